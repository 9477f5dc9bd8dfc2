/* A manager that has nothing to do uses no CPU, nor does one that waits: less than a thousandth of a core over
 * ten seconds, all threads of its process together. Each case is a process of its own; all run at once. */
#include "support/worker.h"

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define SETTLE_MS 1500
#define MEASURE_MS 10000
#define LIMIT_PERCENT 0.1

/* A case's process: what it is given, and what it answers. */
typedef struct subject subject;
struct subject {
    const char *name;
    const char *engine;
    void (*run)(subject *own);
    int partner; /* index of the case that it talks to, or its own */
    bool waits;  /* of a pair: a room waits on both sides */
    /* Filled by the test. */
    pid_t pid;
    int answer[2];  /* the measured figure */
    int address[2]; /* from the pair's prefill to its decode */
};

static int quit[2]; /* closed by the parent: everybody may go */

static const char *const patient[] = {"bootstrap_timeout", "120s", "waiting_timeout", "120s", NULL};

/* ---- Measuring ------------------------------------------------------------------------------------- */

static double used_ms(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return 1e3 * (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-3 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static double clock_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* As an application does: asleep in wait(). */
static void sleep_in_wait(kvf_manager *manager, double duration)
{
    kvf_event events[16];
    double end = clock_ms() + duration;
    for (double now = clock_ms(); now < end; now = clock_ms())
        (void)kvf_manager_wait(manager, events, 16, (int)(end - now) + 1);
}

static void measure(const subject *own, kvf_manager *manager)
{
    sleep_in_wait(manager, SETTLE_MS);
    double used = used_ms();
    double start = clock_ms();
    sleep_in_wait(manager, MEASURE_MS);
    double percent = 100 * (used_ms() - used) / (clock_ms() - start);
    if (write(own->answer[1], &percent, sizeof percent) != sizeof percent)
        _exit(3);
    char byte;
    (void)!read(quit[0], &byte, 1);
}

/* ---- Cases ----------------------------------------------------------------------------------------- */

/* A prefill that has served a room and is connected to a decode; with waits, it also holds a request and has
 * a sender that nobody asked for. */
static void connected_prefill(subject *own)
{
    test_bootstrap server;
    test_worker prefill;
    test_bootstrap_open(&server);
    test_worker_open(&prefill, KVF_PREFILL, NULL, server.address, patient);
    test_wait_statistic(&prefill, registered, 1);
    if (write(own->address[1], server.address, sizeof server.address) != sizeof server.address)
        _exit(3);
    uint32_t page = 3;
    kvf_sender *sender = test_sender_open(&prefill, 1);
    (void)kvf_sender_expect(sender, 1, 0);
    (void)kvf_sender_send(sender, &page, 1);
    test_sender_ends(&prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    if (own->waits) {
        test_wait_statistic(&prefill, requests_held, 1);
        (void)test_sender_open(&prefill, 3);
    }
    measure(own, prefill.manager);
}

static void connected_decode(subject *own)
{
    char address[64];
    test_worker decode;
    if (read(own->address[0], address, sizeof address) != sizeof address)
        _exit(3);
    test_worker_open(&decode, KVF_DECODE, NULL, NULL, patient);
    uint32_t page = 5;
    kvf_receiver *receiver = test_receiver_open(&decode, address, 1);
    (void)kvf_receiver_expect(receiver, &page, 1, 0);
    test_receiver_ends(&decode, receiver, KVF_OK, NULL);
    kvf_receiver_close(receiver);
    if (own->waits) {
        receiver = test_receiver_open(&decode, address, 2);
        (void)kvf_receiver_expect(receiver, &page, 1, 0);
    }
    measure(own, decode.manager);
}

/* Nobody ever came. */
static void lone_prefill(subject *own)
{
    test_bootstrap server;
    test_worker prefill;
    test_bootstrap_open(&server);
    test_worker_open(&prefill, KVF_PREFILL, NULL, server.address, patient);
    test_wait_statistic(&prefill, registered, 1);
    measure(own, prefill.manager);
}

static void lone_decode(subject *own)
{
    test_worker decode;
    test_worker_open(&decode, KVF_DECODE, NULL, NULL, patient);
    measure(own, decode.manager);
}

/* A port where nobody listens, or one where connections are taken by the kernel and nothing is ever said. */
static void dead_address(char address[64], bool silent)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&where, size) != 0 ||
        (silent && listen(listener, 16) != 0) ||
        getsockname(listener, (struct sockaddr *)&where, &size) != 0)
        _exit(3);
    (void)snprintf(address, 64, "127.0.0.1:%u", ntohs(where.sin_port));
}

static void prefill_without_server(subject *own)
{
    char address[64];
    test_worker prefill;
    dead_address(address, own->waits);
    test_worker_open(&prefill, KVF_PREFILL, NULL, address, patient);
    measure(own, prefill.manager);
}

static void decode_at_silent_server(subject *own)
{
    char address[64];
    test_worker decode;
    dead_address(address, true);
    test_worker_open(&decode, KVF_DECODE, NULL, NULL, patient);
    (void)test_receiver_open(&decode, address, 1);
    measure(own, decode.manager);
}

/* The server knows nobody, or another rank than is needed; it is in the same process, and idle too. */
static void decode_before_registration(subject *own)
{
    test_bootstrap server;
    test_worker decode;
    test_worker prefill;
    test_shape shape = test_small_shape;
    shape.tp_size = 2;
    test_bootstrap_open(&server);
    if (own->waits) {
        test_worker_open(&prefill, KVF_PREFILL, &shape, server.address, patient);
        test_wait_statistic(&prefill, registered, 1);
    }
    shape.rank = 1;
    test_worker_open(&decode, KVF_DECODE, &shape, NULL, patient);
    uint32_t page = 1;
    kvf_receiver *receiver = test_receiver_open(&decode, server.address, 1);
    (void)kvf_receiver_expect(receiver, &page, 1, 0);
    measure(own, decode.manager);
}

static subject subjects[] = {
    {.name = "prefill, registered", .engine = "all", .run = lone_prefill, .partner = 0},
    {.name = "decode", .engine = "all", .run = lone_decode, .partner = 1},
    {.name = "prefill, connected", .engine = "all", .run = connected_prefill, .partner = 2},
    {.name = "decode, connected", .engine = "all", .run = connected_decode, .partner = 2},
    {.name = "prefill, connected, tcp", .engine = "tcp", .run = connected_prefill, .partner = 4},
    {.name = "decode, connected, tcp", .engine = "tcp", .run = connected_decode, .partner = 4},
    {.name = "prefill, holds a request, has a room nobody asks for",
     .engine = "all",
     .run = connected_prefill,
     .partner = 6,
     .waits = true},
    {.name = "decode, its request is held",
     .engine = "all",
     .run = connected_decode,
     .partner = 6,
     .waits = true},
    {.name = "prefill, no bootstrap server",
     .engine = "all",
     .run = prefill_without_server,
     .partner = 8},
    {.name = "prefill, silent bootstrap server",
     .engine = "all",
     .run = prefill_without_server,
     .partner = 9,
     .waits = true},
    {.name = "decode, a room at a silent bootstrap server",
     .engine = "all",
     .run = decode_at_silent_server,
     .partner = 10},
    {.name = "decode and server, nobody registered",
     .engine = "all",
     .run = decode_before_registration,
     .partner = 11},
    {.name = "decode, server and prefill, another rank registered",
     .engine = "all",
     .run = decode_before_registration,
     .partner = 12,
     .waits = true},
};

enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

/* Before anything else: nothing of kvferry may be in use when a process forks. */
static void start_all(void)
{
    if (pipe(quit) != 0)
        exit(1);
    for (size_t i = 0; i < SUBJECTS; i++) {
        subject *own = &subjects[i];
        subject *partner = &subjects[own->partner];
        if (pipe(own->answer) != 0 || (partner == own && pipe(own->address) != 0))
            exit(1);
        memcpy(own->address, partner->address, sizeof own->address);
        (void)fflush(NULL);
        own->pid = fork();
        if (own->pid < 0)
            exit(1);
        if (own->pid > 0) {
            (void)close(own->answer[1]);
            continue;
        }
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(quit[1]);
        /* clang's sanitizers die inside UCX's check of CMA between processes, depending on address layout. */
        test_use_engine(test_is_sanitized() ? "tcp" : own->engine);
        own->run(own);
        _exit(0);
    }
}

static double answer_of(const subject *own)
{
    double percent = -1;
    struct pollfd pipe_end = {.fd = own->answer[0], .events = POLLIN};
    if (poll(&pipe_end, 1, 60000) > 0)
        (void)!read(own->answer[0], &percent, sizeof percent);
    return percent;
}

static void nobody_uses_a_thousandth_of_a_core(void **state)
{
    (void)state;
    /* A sanitizer's own work counts too there. */
    double limit = test_is_sanitized() ? 20 * LIMIT_PERCENT : LIMIT_PERCENT;
    bool fine = true;
    for (size_t i = 0; i < SUBJECTS; i++) {
        double percent = answer_of(&subjects[i]);
        (void)printf("%8.4f %% of a core  %s\n", percent, subjects[i].name);
        fine = fine && percent >= 0 && percent < limit;
    }
    (void)close(quit[1]);
    for (size_t i = 0; i < SUBJECTS; i++) {
        int status = 0;
        if (waitpid(subjects[i].pid, &status, 0) != subjects[i].pid || status != 0)
            fail_msg("\"%s\" ended badly: %d", subjects[i].name, status);
    }
    assert_true(fine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nobody_uses_a_thousandth_of_a_core)};
    start_all();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
