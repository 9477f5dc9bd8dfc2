/* Figures of a manager, for the record; nothing passes or fails here. A target, not a test:
 *     ninja bench_manager && ./bench_manager [verification]
 * Both managers are in this process, so that on few cores they take each other's time. */
#include "support/worker.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void check(kvf_status status)
{
    if (status == KVF_OK)
        return;
    (void)fprintf(stderr, "%s\n", kvf_error_text());
    exit(1);
}

static int compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static double microseconds(uint64_t *times, size_t count, double part)
{
    qsort(times, count, sizeof *times, compare);
    return (double)times[(size_t)((double)(count - 1) * part)] / 1e3;
}

/* ---- send() ------------------------------------------------------------------------------------------ */

/* No two pages are neighbours: 32,768 × 64 writes. */
static void time_send(void)
{
    enum { PAGES = 32768, TIMES = 9 };
    static uint32_t source[PAGES];
    static uint32_t destination[PAGES];
    const test_shape shape = {.buffers = 64,
                              .pages = PAGES,
                              .item_length = 64,
                              .aux = 1,
                              .slots = 8,
                              .aux_item_length = 64};
    test_bootstrap server;
    test_worker prefill;
    test_worker decode;
    uint64_t times[TIMES];
    for (uint32_t i = 0; i < PAGES; i++) {
        source[i] = PAGES - 1 - i;
        destination[i] = i;
    }
    test_use_engine("shm");
    test_bootstrap_open(&server);
    test_worker_open(&prefill, KVF_PREFILL, &shape, server.address, NULL);
    test_worker_open(&decode, KVF_DECODE, &shape, NULL, NULL);
    for (uint64_t i = 0; i < TIMES; i++) {
        kvf_sender *sender = test_sender_open(&prefill, i);
        kvf_receiver *receiver = test_receiver_open(&decode, server.address, i);
        check(kvf_receiver_expect(receiver, destination, PAGES, 0));
        while (kvf_sender_poll(sender) == KVF_BOOTSTRAPPING)
            (void)usleep(100);
        check(kvf_sender_expect(sender, PAGES, 0));
        uint64_t start = kvf_clock_now();
        check(kvf_sender_send(sender, source, PAGES));
        times[i] = kvf_clock_now() - start;
        test_receiver_settles(&decode, receiver);
        kvf_sender_close(sender);
        kvf_receiver_close(receiver);
    }
    (void)printf("send() of 32,768 pages x 64 buffers (with aux), destination known: returns after "
                 "%.0f us (median of %d, at most %.0f)\n",
                 microseconds(times, TIMES, 0.5), TIMES, microseconds(times, TIMES, 1));
    test_worker_close(&prefill);
    test_worker_close(&decode);
    test_bootstrap_close(&server);
}

/* ---- Memory ------------------------------------------------------------------------------------------- */

enum { OPEN_ROOMS = 10000 };

static size_t allocated(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* When the loop has taken up everything that was queued: its counters and an aborted room say so. */
static void settle_sender(test_worker *prefill)
{
    kvf_sender *last = test_sender_open(prefill, UINT32_MAX);
    kvf_sender_abort(last);
    test_sender_settles(prefill, last);
    kvf_sender_close(last);
}

static void settle_receiver(test_worker *decode, const char *address)
{
    kvf_receiver *last = test_receiver_open(decode, address, UINT32_MAX);
    kvf_receiver_abort(last);
    test_receiver_settles(decode, last);
    kvf_receiver_close(last);
}

static void memory_of_senders(uint32_t pages)
{
    static kvf_sender *senders[OPEN_ROOMS];
    static const uint32_t list[1024];
    test_worker prefill;
    test_worker_open(&prefill, KVF_PREFILL, NULL, NULL, NULL);
    settle_sender(&prefill);
    size_t before = allocated();
    for (uint32_t i = 0; i < OPEN_ROOMS; i++) {
        senders[i] = test_sender_open(&prefill, i);
        check(kvf_sender_expect(senders[i], pages, 0));
        check(kvf_sender_send(senders[i], list, pages));
    }
    settle_sender(&prefill);
    (void)printf("a sender that holds %u pages: %zu bytes\n", pages,
                 (allocated() - before) / OPEN_ROOMS);
    for (uint32_t i = 0; i < OPEN_ROOMS; i++)
        kvf_sender_close(senders[i]);
    test_worker_close(&prefill);
}

static void memory_of_receivers(uint32_t pages)
{
    static kvf_receiver *receivers[OPEN_ROOMS];
    static uint32_t list[1024];
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char address[32];
    if (bind(silent, (struct sockaddr *)&where, size) != 0 || listen(silent, 1) != 0 ||
        getsockname(silent, (struct sockaddr *)&where, &size) != 0)
        exit(1);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(where.sin_port));
    test_shape shape = test_small_shape;
    shape.pages = 1024;
    for (uint32_t i = 0; i < 1024; i++)
        list[i] = i;
    test_worker decode;
    test_worker_open(&decode, KVF_DECODE, &shape, NULL, NULL);
    settle_receiver(&decode, address);
    size_t before = allocated();
    for (uint32_t i = 0; i < OPEN_ROOMS; i++) {
        receivers[i] = test_receiver_open(&decode, address, i);
        check(kvf_receiver_expect(receivers[i], list, pages, 0));
    }
    settle_receiver(&decode, address);
    (void)printf("a receiver that waits for %u pages: %zu bytes\n", pages,
                 (allocated() - before) / OPEN_ROOMS);
    for (uint32_t i = 0; i < OPEN_ROOMS; i++)
        kvf_receiver_close(receivers[i]);
    test_worker_close(&decode);
    (void)close(silent);
}

/* ---- Rooms a second ------------------------------------------------------------------------------------ */

typedef struct couple {
    test_bootstrap server;
    test_worker prefill;
    test_worker decode;
    uint64_t next;
} couple;

/* Of pages of the small shape. */
static void open_couple(couple *one, const char *engine)
{
    *one = (couple){.next = 0};
    test_use_engine(engine);
    test_bootstrap_open(&one->server);
    test_worker_open(&one->prefill, KVF_PREFILL, NULL, one->server.address, NULL);
    test_worker_open(&one->decode, KVF_DECODE, NULL, NULL, NULL);
    test_room_works(&one->prefill, &one->decode, one->server.address, UINT32_MAX, 1);
}

static void close_couple(couple *one)
{
    test_worker_close(&one->prefill);
    test_worker_close(&one->decode);
    test_bootstrap_close(&one->server);
}

static void begin(couple *one, kvf_verify verify, kvf_sender **sender, kvf_receiver **receiver)
{
    kvf_room_options options = {.size = sizeof options, .dp_rank = -1, .verify = verify};
    uint64_t room = one->next++;
    uint32_t page = (uint32_t)(room % test_small_shape.pages);
    check(kvf_receiver_open(one->decode.manager, one->server.address, room, &options, receiver));
    *sender = test_sender_open(&one->prefill, room);
    check(kvf_receiver_expect(*receiver, &page, 1, 0));
    check(kvf_sender_expect(*sender, 1, 0));
    check(kvf_sender_send(*sender, &page, 1));
}

static void end(couple *one, kvf_sender *sender, kvf_receiver *receiver)
{
    test_receiver_ends(&one->decode, receiver, KVF_OK, NULL);
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    kvf_receiver_close(receiver);
}

static void one_at_a_time(couple *one, const char *engine)
{
    enum { COUNT = 5000 };
    static uint64_t times[COUNT];
    uint64_t start = kvf_clock_now();
    for (size_t i = 0; i < COUNT; i++) {
        kvf_sender *sender;
        kvf_receiver *receiver;
        uint64_t from = kvf_clock_now();
        begin(one, KVF_VERIFY_DEFAULT, &sender, &receiver);
        test_receiver_settles(&one->decode, receiver);
        times[i] = kvf_clock_now() - from;
        end(one, sender, receiver);
    }
    double seconds = (double)(kvf_clock_now() - start) / 1e9;
    (void)printf("%-4s one small room at a time: %.0f rooms/s; from open() to Success %.0f us "
                 "(p99 %.0f us)\n",
                 engine, COUNT / seconds, microseconds(times, COUNT, 0.5),
                 microseconds(times, COUNT, 0.99));
}

enum { AT_ONCE = 1000 };

static void a_thousand(couple *one, kvf_verify verify)
{
    static kvf_sender *senders[AT_ONCE];
    static kvf_receiver *receivers[AT_ONCE];
    for (size_t i = 0; i < AT_ONCE; i++)
        begin(one, verify, &senders[i], &receivers[i]);
    for (size_t i = 0; i < AT_ONCE; i++)
        end(one, senders[i], receivers[i]);
}

static void a_thousand_at_once(couple *one, const char *engine)
{
    enum { TIMES = 20 };
    uint64_t start = kvf_clock_now();
    for (int time = 0; time < TIMES; time++)
        a_thousand(one, KVF_VERIFY_DEFAULT);
    double seconds = (double)(kvf_clock_now() - start) / 1e9;
    (void)printf("%-4s a thousand small rooms at once: %.0f rooms/s\n", engine,
                 AT_ONCE * TIMES / seconds);
}

static void rooms_a_second(const char *engine)
{
    couple one;
    open_couple(&one, engine);
    one_at_a_time(&one, engine);
    a_thousand_at_once(&one, engine);
    close_couple(&one);
}

/* ---- The cost of verification ---------------------------------------------------------------------------- */

enum { LAYERS = 64, ROUNDS = 7, LIST_MAX = 16384 };

static uint64_t processor_time(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * KVF_SECOND + (uint64_t)now.tv_nsec;
}

/* Pages side by side, or in an order in which no two are neighbours on both sides. */
static void list_pages(uint32_t *list, uint32_t count, bool scattered, uint32_t step)
{
    for (uint32_t i = 0; i < count; i++)
        list[i] = scattered ? (uint32_t)((uint64_t)i * step % count) : i;
}

typedef struct cost {
    uint64_t wall[ROUNDS];
    uint64_t processor[ROUNDS];
} cost;

static void move_once(couple *one, uint32_t count, bool scattered, kvf_verify verify, cost *spent,
                      size_t round)
{
    static uint32_t source[LIST_MAX];
    static uint32_t destination[LIST_MAX];
    kvf_room_options options = {.size = sizeof options, .dp_rank = -1, .verify = verify};
    kvf_receiver *receiver;
    uint64_t room = one->next++;
    list_pages(source, count, scattered, 1237);
    list_pages(destination, count, scattered, 2741);
    kvf_sender *sender = test_sender_open(&one->prefill, room);
    check(kvf_sender_expect(sender, count, 0));
    check(kvf_sender_send(sender, source, count));
    check(kvf_receiver_open(one->decode.manager, one->server.address, room, &options, &receiver));
    uint64_t wall = kvf_clock_now();
    uint64_t processor = processor_time();
    check(kvf_receiver_expect(receiver, destination, count, 0));
    test_receiver_settles(&one->decode, receiver);
    spent->wall[round] = kvf_clock_now() - wall;
    spent->processor[round] = processor_time() - processor;
    end(one, sender, receiver);
}

static double median(uint64_t *times)
{
    return microseconds(times, ROUNDS, 0.5) / 1e3;
}

/* In turns, so that whatever else the machine does comes to both. */
static void verification_of(const char *engine, size_t item_length, bool scattered)
{
    const uint64_t bytes = UINT64_C(512) << 20;
    uint32_t count = (uint32_t)(bytes / LAYERS / item_length);
    const test_shape shape = {.buffers = LAYERS,
                              .pages = count,
                              .item_length = item_length,
                              .aux = 1,
                              .slots = 8,
                              .aux_item_length = 64};
    static cost off;
    static cost on;
    couple one = {.next = 0};
    test_use_engine(engine);
    test_bootstrap_open(&one.server);
    test_worker_open(&one.prefill, KVF_PREFILL, &shape, one.server.address, NULL);
    test_worker_open(&one.decode, KVF_DECODE, &shape, NULL, NULL);
    test_worker_fill(&one.prefill);
    test_worker_fill(&one.decode);
    for (size_t round = 0; round < ROUNDS; round++) {
        move_once(&one, count, scattered, KVF_VERIFY_OFF, &off, round);
        move_once(&one, count, scattered, KVF_VERIFY_REQUIRED, &on, round);
    }
    (void)printf("%-4s 512 MiB in %5u pages of 64 buffers, %-10s: unverified %4.0f ms (processor "
                 "%4.0f), verified %4.0f ms (processor %4.0f): %.2f times (processor %.2f)\n",
                 engine, count, scattered ? "scattered" : "contiguous", median(off.wall),
                 median(off.processor), median(on.wall), median(on.processor),
                 median(on.wall) / median(off.wall), median(on.processor) / median(off.processor));
    close_couple(&one);
}

static void small_rooms_at_once(couple *one, kvf_verify verify, cost *spent, size_t round)
{
    uint64_t wall = kvf_clock_now();
    uint64_t processor = processor_time();
    a_thousand(one, verify);
    spent->wall[round] = (kvf_clock_now() - wall) / AT_ONCE;
    spent->processor[round] = (processor_time() - processor) / AT_ONCE;
}

/* Here it isn't the bytes that cost, but the letters. */
static void verification_of_small_rooms(const char *engine)
{
    static cost off;
    static cost on;
    couple one;
    open_couple(&one, engine);
    for (size_t round = 0; round < ROUNDS; round++) {
        small_rooms_at_once(&one, KVF_VERIFY_OFF, &off, round);
        small_rooms_at_once(&one, KVF_VERIFY_REQUIRED, &on, round);
    }
    (void)printf("%-4s a thousand small rooms at once: unverified %.0f rooms/s (processor %.0f us "
                 "each), verified %.0f rooms/s (processor %.0f us each): processor %.2f times\n",
                 engine, 1e3 / median(off.wall), 1e3 * median(off.processor), 1e3 / median(on.wall),
                 1e3 * median(on.processor), median(on.processor) / median(off.processor));
    close_couple(&one);
}

static void cost_of_verification(void)
{
    static const char *const engines[] = {"shm", "tcp"};
    for (size_t i = 0; i < 2; i++) {
        verification_of(engines[i], 32 << 10, false);
        verification_of(engines[i], 2 << 10, true);
        verification_of_small_rooms(engines[i]);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "verification") == 0) {
        cost_of_verification();
        return 0;
    }
    (void)mallopt(M_ARENA_MAX, 1); /* mallinfo2() sees only the first */
    test_use_engine("loop");
    memory_of_senders(1);
    memory_of_senders(1024);
    memory_of_receivers(1);
    memory_of_receivers(1024);
    time_send();
    rooms_a_second("loop");
    rooms_a_second("shm");
    rooms_a_second("tcp");
    cost_of_verification();
    return 0;
}
