/* How fast the UCX engine writes, against memcpy of the same pattern in the same run.
 *
 * Usage: bench_engine [buffers=64] [repeat=7] [huge=0|1] [item=2048] [tcp=0|1]
 * Two processes on this host; settings from the environment (KVFERRY_WRITE_SIZE=...). Prints medians. */
#include "data/engine.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_REPEAT = 101, MAX_BUFFERS = 256 };

typedef struct shape {
    uint64_t item_length;
    uint32_t pages;
} shape;

static const shape shapes[] = {{2048, 4096}, {16384, 512}, {131072, 512}};
static const char *const transports[] = {"posix,sysv,cma,self", "tcp,self"};

static uint32_t buffers = 64;
static uint32_t repeat = 7;
static bool huge;
static uint32_t only_item; /* 0: all shapes */
static int only_transport = -1;

typedef struct pool {
    uint8_t *base;
    uint64_t buffer_length;
} pool;

/* What the target tells the writer. */
typedef struct offer {
    pool pool;
    uint32_t address_length;
    uint32_t key_length;
    uint8_t address[4096];
    uint8_t key[256];
} offer;

static void die(const char *what, const char *text)
{
    fprintf(stderr, "bench_engine: %s: %s\n", what, text);
    exit(1);
}

static pool make_pool(const shape *s)
{
    pool made = {.buffer_length = s->item_length * s->pages};
    uint64_t length = made.buffer_length * buffers;
    made.base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made.base == MAP_FAILED)
        die("mmap", "no memory");
    (void)madvise(made.base, length, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(made.base, 1, length);
    return made;
}

static void free_pool(const pool *p)
{
    munmap(p->base, p->buffer_length * buffers);
}

/* The buffers lie one behind the other and are one region: what is measured is writing. */
static kvf_buffer region_of(const pool *p)
{
    kvf_buffer buffer = {.size = sizeof buffer, .base = (uint64_t)(uintptr_t)p->base};
    buffer.length = buffer.item_length = p->buffer_length * buffers;
    return buffer;
}

static void ignore_notice(void *user, kvf_slice payload)
{
    (void)user;
    (void)payload;
}

static void ignore_failure(void *user, kvf_engine_peer *peer, const char *text)
{
    (void)user;
    (void)peer;
    fprintf(stderr, "bench_engine: peer failed: %s\n", text);
}

static kvf_engine *open_engine(const char *tls, const pool *p, uint32_t *region)
{
    static const kvf_engine_callbacks callbacks = {NULL, ignore_notice, ignore_failure};
    kvf_settings settings;
    kvf_engine *engine;
    kvf_error error;
    if (kvf_settings_from_environment(&settings, &error) != KVF_OK ||
        kvf_settings_assign(&settings, "transports", tls, &error) != KVF_OK ||
        kvf_ucx_open(&settings, KVF_FLAVOUR_P031, &callbacks, &engine, &error) != KVF_OK)
        die("open", error.text);
    kvf_buffer buffer = region_of(p);
    if (engine->operations->add_region(engine, &buffer, region, &error) != KVF_OK)
        die("register", error.text);
    return engine;
}

/* As the event loop does it: progress, arm, sleep. progress() may have brought about what is waited for. */
static void turn(kvf_engine *engine, int other, const bool *over)
{
    if (engine->operations->progress(engine, 200 * KVF_MICROSECOND) || *over ||
        !engine->operations->arm(engine))
        return;
    struct pollfd descriptors[] = {{.fd = engine->operations->descriptor(engine), .events = POLLIN},
                                   {.fd = other, .events = POLLIN}};
    (void)poll(descriptors, 2, -1);
}

static void be_target(const char *tls, const shape *s, int out, int in)
{
    offer told = {.pool = make_pool(s)};
    uint32_t region;
    kvf_engine *engine = open_engine(tls, &told.pool, &region);
    kvf_slice address = engine->operations->address(engine);
    kvf_slice key = engine->operations->region_key(engine, region);
    if (address.length > sizeof told.address || key.length > sizeof told.key)
        die("target", "address or key too long");
    told.address_length = (uint32_t)address.length;
    told.key_length = (uint32_t)key.length;
    memcpy(told.address, address.data, address.length);
    memcpy(told.key, key.data, key.length);
    if (write(out, &told, sizeof told) != (ssize_t)sizeof told)
        die("target", "the writer is gone");
    struct pollfd end = {.fd = in, .events = POLLIN};
    bool never = false;
    while (poll(&end, 1, 0) == 0)
        turn(engine, in, &never);
    engine->operations->close(engine);
    exit(0);
}

typedef struct job {
    kvf_transfer transfer;
    kvf_span spans[MAX_BUFFERS];
    bool done;
} job;

static void job_done(kvf_transfer *transfer, kvf_status status, const char *text)
{
    job *j = transfer->user;
    j->done = true;
    if (status != KVF_OK)
        die("transfer", text);
}

static void draw_pages(uint32_t *pages, uint32_t count, bool scattered)
{
    for (uint32_t i = 0; i < count; i++)
        pages[i] = i;
    for (uint32_t i = count; scattered && i > 1; i--) {
        uint32_t j = (uint32_t)random() % i;
        uint32_t page = pages[i - 1];
        pages[i - 1] = pages[j];
        pages[j] = page;
    }
}

static void fill_spans(kvf_span *spans, const pool *source, const pool *target, const shape *s)
{
    for (uint32_t i = 0; i < buffers; i++)
        spans[i] = (kvf_span){
            .source_base = (uint64_t)(uintptr_t)source->base + i * source->buffer_length,
            .destination_base = (uint64_t)(uintptr_t)target->base + i * target->buffer_length,
            .item_length = s->item_length,
        };
}

static double run_engine(kvf_engine *engine, job *j, const uint32_t *from, const uint32_t *to,
                         uint32_t pages)
{
    kvf_error error;
    j->done = false;
    j->transfer.done = job_done;
    j->transfer.user = j;
    j->transfer.part_count = 1;
    j->transfer.parts[0].payload_length = 8;
    memcpy(j->transfer.parts[0].payload, "1_kv_0_1", 8);
    kvf_writes_begin(&j->transfer.parts[0].writes, j->spans, buffers, from, to, pages);
    uint64_t started = kvf_clock_now();
    if (engine->operations->post(engine, &j->transfer, &error) != KVF_OK)
        die("post", error.text);
    while (!j->done)
        turn(engine, -1, &j->done);
    return (double)(kvf_clock_now() - started) / 1e9;
}

static double run_memcpy(const kvf_span *spans, const uint32_t *from, const uint32_t *to,
                         uint32_t pages)
{
    kvf_writes writes;
    kvf_write write;
    kvf_writes_begin(&writes, spans, buffers, from, to, pages);
    uint64_t started = kvf_clock_now();
    while (kvf_writes_next(&writes, UINT64_MAX, &write))
        memcpy((void *)(uintptr_t)write.destination, (const void *)(uintptr_t)write.source,
               write.length);
    return (double)(kvf_clock_now() - started) / 1e9;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *times)
{
    qsort(times, repeat, sizeof *times, compare);
    return times[repeat / 2];
}

static void measure(kvf_engine *engine, job *j, const pool *source, const pool *target,
                    const shape *s, bool scattered, const char *tls)
{
    static uint32_t from[8192];
    static uint32_t to[8192];
    static double engine_times[MAX_REPEAT];
    static double memcpy_times[MAX_REPEAT];
    kvf_span local[MAX_BUFFERS];
    draw_pages(from, s->pages, scattered);
    draw_pages(to, s->pages, scattered);
    pool copy = make_pool(s);
    fill_spans(j->spans, source, target, s);
    fill_spans(local, source, &copy, s);
    (void)run_engine(engine, j, from, to, s->pages);
    (void)run_memcpy(local, from, to, s->pages);
    for (uint32_t i = 0; i < repeat; i++) {
        engine_times[i] = run_engine(engine, j, from, to, s->pages);
        memcpy_times[i] = run_memcpy(local, from, to, s->pages);
    }
    free_pool(&copy);
    double bytes = (double)(source->buffer_length * buffers) / 1e9;
    double seconds = median(engine_times);
    double reference = bytes / median(memcpy_times);
    printf("%-20s %7llu x %-5u %-10s %7.2f GB/s  memcpy %7.2f  %4.0f%%  %8.2f us/write\n", tls,
           (unsigned long long)s->item_length, s->pages, scattered ? "scattered" : "contiguous",
           bytes / seconds, reference, 100 * bytes / seconds / reference,
           seconds * 1e6 / (double)j->transfer.writes_posted);
    fflush(stdout);
}

static void be_writer(const char *tls, const shape *s, int in)
{
    static offer told;
    static job j;
    size_t got = 0;
    while (got < sizeof told) {
        ssize_t n = read(in, (char *)&told + got, sizeof told - got);
        if (n <= 0)
            die("writer", "the target is gone");
        got += (size_t)n;
    }
    pool source = make_pool(s);
    uint32_t region;
    kvf_error error;
    kvf_engine *engine = open_engine(tls, &source, &region);
    kvf_slice address = {told.address, told.address_length};
    kvf_slice key = {told.key, told.key_length};
    if (engine->operations->connect(engine, address, NULL, &j.transfer.peer, &error) != KVF_OK ||
        engine->operations->add_remote_region(j.transfer.peer, key, &region, &error) != KVF_OK)
        die("connect", error.text);
    measure(engine, &j, &source, &told.pool, s, false, tls);
    measure(engine, &j, &source, &told.pool, s, true, tls);
    engine->operations->disconnect(engine, j.transfer.peer);
    engine->operations->close(engine);
    free_pool(&source);
}

static void run_pair(const char *tls, const shape *s)
{
    int up[2];
    int down[2];
    if (pipe(up) != 0 || pipe(down) != 0)
        die("pipe", "failed");
    pid_t child = fork();
    if (child == 0) {
        close(down[1]);
        be_target(tls, s, up[1], down[0]);
    }
    pid_t writer = fork(); /* UCX isn't used in the parent, which forks again */
    if (writer == 0) {
        be_writer(tls, s, up[0]);
        exit(0);
    }
    (void)waitpid(writer, NULL, 0);
    close(up[0]);
    close(up[1]);
    close(down[0]);
    close(down[1]); /* ends the target */
    (void)waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        unsigned value = 0;
        if (sscanf(argv[i], "buffers=%u", &value) == 1 && value > 0 && value <= MAX_BUFFERS)
            buffers = value;
        else if (sscanf(argv[i], "repeat=%u", &value) == 1 && value > 0 && value <= MAX_REPEAT)
            repeat = value;
        else if (sscanf(argv[i], "huge=%u", &value) == 1)
            huge = value != 0;
        else if (sscanf(argv[i], "item=%u", &value) == 1)
            only_item = value;
        else if (sscanf(argv[i], "tcp=%u", &value) == 1)
            only_transport = value != 0;
        else
            die(argv[i], "[buffers=64] [repeat=7] [huge=0|1] [item=2048] [tcp=0|1]");
    }
    printf("UCX %s, %u buffers, medians of %u, huge pages %s\n", kvf_ucx_version(), buffers, repeat,
           huge ? "asked for" : "off");
    fflush(stdout); /* or the children print it again */
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            if ((only_transport < 0 || only_transport == t) &&
                (only_item == 0 || only_item == shapes[i].item_length))
                run_pair(transports[t], &shapes[i]);
    return 0;
}
