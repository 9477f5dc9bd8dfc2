/* Real processes that are really killed or stopped, in mid-transfer and before it. Two prefill and two decode
 * processes; one of the four is the victim. Every room it took part in must fail soon, with the reason that
 * the peer is gone; every other room must succeed. Prints how long the notice took: docs/failures.md quotes
 * it.
 *
 *            decode 0              decode 1
 * prefill 0  room 1 (under way)    room 3 (waits)
 *            room 2 (waits)
 * prefill 1  room 4 (waits)        room 5 (waits)
 */
#include "kvferry/kvferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BUFFERS = 8, PAGES = 256, ITEM = 64 * 1024, AUX_ITEM = 64, ROOMS = 5 };
#define BUFFER_BYTES ((size_t)PAGES * ITEM)
#define LIMIT_MS 20000

typedef struct room_plan {
    uint64_t id;
    int prefill;
    int decode;
    uint32_t first_page;
    uint32_t pages;
} room_plan;

static const room_plan rooms[ROOMS] = {
    {1, 0, 0, 0, 200}, {2, 0, 0, 200, 4}, {3, 0, 1, 204, 4}, {4, 1, 0, 208, 4}, {5, 1, 1, 212, 4}};

/* ---- The processes -------------------------------------------------------------------------------- */

typedef struct worker {
    pid_t pid;
    FILE *orders; /* to it */
    int reports;  /* from it: a line for each change of a room */
    char pending[4096];
    size_t pending_length;
} worker;

static unsigned char pattern(size_t buffer, size_t byte)
{
    return (unsigned char)(buffer * 101 + (byte >> 12) * 7 + byte + 1);
}

static void die(const char *what)
{
    (void)dprintf(STDERR_FILENO, "child: %s: %s\n", what, kvf_error_text());
    _exit(1);
}

typedef struct worker_pool {
    unsigned char *memory;
    unsigned char *aux;
    kvf_buffer buffers[BUFFERS];
    kvf_buffer aux_buffer;
    kvf_layout layout;
} worker_pool;

static void make_pool(worker_pool *pool)
{
    pool->memory = mmap(NULL, BUFFERS * BUFFER_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pool->aux = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pool->memory == MAP_FAILED || pool->aux == MAP_FAILED)
        die("mmap");
    for (size_t i = 0; i < BUFFERS; i++)
        pool->buffers[i] =
            (kvf_buffer){.size = sizeof(kvf_buffer),
                         .base = (uint64_t)(uintptr_t)(pool->memory + i * BUFFER_BYTES),
                         .length = BUFFER_BYTES,
                         .item_length = ITEM};
    pool->aux_buffer = (kvf_buffer){.size = sizeof(kvf_buffer),
                                    .base = (uint64_t)(uintptr_t)pool->aux,
                                    .length = 4096,
                                    .item_length = AUX_ITEM};
    pool->layout = (kvf_layout){.size = sizeof(kvf_layout),
                                .buffers = pool->buffers,
                                .buffer_count = BUFFERS,
                                .aux = &pool->aux_buffer,
                                .aux_count = 1};
}

/* Small writes, one after the other, so that room 1 is under way for long enough to be met there. */
static kvf_manager *open_manager(const worker_pool *pool, kvf_role role, const char *transports,
                                 const char *address)
{
    kvf_settings *settings;
    kvf_manager *manager;
    if (kvf_settings_open(&settings) != KVF_OK ||
        kvf_settings_set(settings, "transports", transports) != KVF_OK ||
        kvf_settings_set(settings, "advertise_address", "127.0.0.1") != KVF_OK ||
        (role == KVF_PREFILL &&
         (kvf_settings_set(settings, "bootstrap_address", address) != KVF_OK ||
          kvf_settings_set(settings, "write_size", "4KiB") != KVF_OK ||
          kvf_settings_set(settings, "outstanding_bytes", "4KiB") != KVF_OK)) ||
        kvf_manager_open(&manager, role, &pool->layout, settings) != KVF_OK)
        die("manager");
    kvf_settings_close(settings);
    return manager;
}

static void report_changes(kvf_manager *manager, const char *(*text)(uint64_t room))
{
    kvf_event events[16];
    int count = kvf_manager_wait(manager, events, 16, 0);
    for (int i = 0; i < count; i++)
        (void)dprintf(STDOUT_FILENO, "%llu %u %u %s\n", (unsigned long long)events[i].room,
                      events[i].state, events[i].status, text(events[i].room));
}

static kvf_sender *senders[ROOMS + 1];
static kvf_receiver *receivers[ROOMS + 1];

static const char *sender_text(uint64_t room)
{
    return kvf_sender_failure_text(senders[room]);
}

static const char *receiver_text(uint64_t room)
{
    return kvf_receiver_failure_text(receivers[room]);
}

static void send_room(const room_plan *plan)
{
    uint32_t pages[PAGES];
    for (uint32_t i = 0; i < plan->pages; i++)
        pages[i] = plan->first_page + i;
    if (senders[plan->id] != NULL)
        (void)kvf_sender_send(senders[plan->id], pages, plan->pages);
}

/* Orders: "send N": hand over room N's pages; "quit". */
static bool obey_prefill(const char *order)
{
    unsigned room;
    if (sscanf(order, "send %u", &room) == 1 && room >= 1 && room <= ROOMS)
        send_room(&rooms[room - 1]);
    return strncmp(order, "quit", 4) != 0;
}

static bool check_room(const worker_pool *pool, const room_plan *plan)
{
    for (size_t b = 0; b < BUFFERS; b++)
        for (size_t i = plan->first_page * (size_t)ITEM;
             i < (plan->first_page + plan->pages) * (size_t)ITEM; i++)
            if (pool->memory[b * BUFFER_BYTES + i] != pattern(b, i))
                return false;
    return true;
}

static const worker_pool *decode_pool;

/* Orders: "check N": say whether room N's bytes are right; "quit". */
static bool obey_decode(const char *order)
{
    unsigned room;
    if (sscanf(order, "check %u", &room) == 1 && room >= 1 && room <= ROOMS)
        (void)dprintf(STDOUT_FILENO, "check %s\n",
                      check_room(decode_pool, &rooms[room - 1]) ? "right" : "wrong");
    return strncmp(order, "quit", 4) != 0;
}

static void serve(kvf_manager *manager, const char *(*text)(uint64_t), bool (*obey)(const char *))
{
    char order[128];
    for (;;) {
        struct pollfd descriptors[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                        {.fd = kvf_manager_fd(manager), .events = POLLIN}};
        (void)poll(descriptors, 2, -1);
        report_changes(manager, text);
        if (descriptors[0].revents == 0)
            continue;
        if (fgets(order, sizeof order, stdin) == NULL || !obey(order))
            break;
    }
    kvf_manager_close(manager);
    _exit(0);
}

static void run_prefill(int index, const char *transports)
{
    char address[64];
    worker_pool pool;
    make_pool(&pool);
    for (size_t b = 0; b < BUFFERS; b++)
        for (size_t i = 0; i < BUFFER_BYTES; i++)
            pool.memory[b * BUFFER_BYTES + i] = pattern(b, i);
    if (scanf("%63s", address) != 1)
        die("no address");
    kvf_manager *manager = open_manager(&pool, KVF_PREFILL, transports, address);
    for (size_t i = 0; i < ROOMS; i++) {
        if (rooms[i].prefill != index)
            continue;
        if (kvf_sender_open(manager, rooms[i].id, NULL, &senders[rooms[i].id]) != KVF_OK ||
            kvf_sender_expect(senders[rooms[i].id], rooms[i].pages, 0) != KVF_OK)
            die("sender");
    }
    serve(manager, sender_text, obey_prefill);
}

static void run_decode(int index, const char *transports)
{
    char addresses[2][64];
    worker_pool pool;
    make_pool(&pool);
    memset(pool.memory, 0xee, BUFFERS * BUFFER_BYTES);
    decode_pool = &pool;
    if (scanf("%63s %63s", addresses[0], addresses[1]) != 2)
        die("no addresses");
    kvf_manager *manager = open_manager(&pool, KVF_DECODE, transports, NULL);
    for (size_t i = 0; i < ROOMS; i++) {
        const room_plan *plan = &rooms[i];
        uint32_t pages[PAGES];
        if (plan->decode != index)
            continue;
        for (uint32_t p = 0; p < plan->pages; p++)
            pages[p] = plan->first_page + p;
        if (kvf_receiver_open(manager, addresses[plan->prefill], plan->id, NULL,
                              &receivers[plan->id]) != KVF_OK ||
            kvf_receiver_expect(receivers[plan->id], pages, plan->pages, 0) != KVF_OK)
            die("receiver");
    }
    serve(manager, receiver_text, obey_decode);
}

static void start_process(worker *process, void (*run)(int, const char *), int index,
                          const char *transports)
{
    int in[2];
    int out[2];
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)dup2(in[0], STDIN_FILENO);
        (void)dup2(out[1], STDOUT_FILENO);
        for (int fd = 3; fd < 256; fd++)
            (void)close(fd);
        /* Unbuffered: an order must not hide in stdio while poll() waits for it. */
        (void)setvbuf(stdin, NULL, _IONBF, 0);
        run(index, transports);
        _exit(1);
    }
    (void)close(in[0]);
    (void)close(out[1]);
    process->orders = fdopen(in[1], "w");
    (void)setvbuf(process->orders, NULL, _IOLBF, 0);
    process->reports = out[0];
    process->pending_length = 0;
}

static void end_process(worker *process)
{
    (void)kill(process->pid, SIGCONT);
    (void)kill(process->pid, SIGKILL);
    (void)waitpid(process->pid, NULL, 0);
    (void)fclose(process->orders);
    (void)close(process->reports);
}

/* ---- Watching them -------------------------------------------------------------------------------- */

static double seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The next line of a process's reports; false when it takes too long or the process has ended. */
static bool next_report(worker *process, char line[1024])
{
    double deadline = seconds() + LIMIT_MS / 1000.0;
    for (;;) {
        char *newline = memchr(process->pending, '\n', process->pending_length);
        if (newline != NULL) {
            size_t length = (size_t)(newline - process->pending);
            (void)snprintf(line, 1024, "%.*s", (int)length, process->pending);
            process->pending_length -= length + 1;
            memmove(process->pending, newline + 1, process->pending_length);
            return true;
        }
        struct pollfd descriptor = {.fd = process->reports, .events = POLLIN};
        int left = (int)((deadline - seconds()) * 1000);
        if (left <= 0 || poll(&descriptor, 1, left) <= 0)
            return false;
        ssize_t got = read(process->reports, process->pending + process->pending_length,
                           sizeof process->pending - process->pending_length);
        if (got <= 0)
            return false;
        process->pending_length += (size_t)got;
    }
}

typedef struct room_state {
    unsigned state;
    unsigned status;
    char text[512];
} room_state;

/* Reads reports until `room` has reached `state` or has ended. */
static void await_state(worker *process, room_state states[ROOMS + 1], uint64_t room,
                        unsigned state)
{
    char line[1024];
    while (states[room].state != state && states[room].state != KVF_FAILED) {
        unsigned long long id;
        room_state now = {0};
        if (!next_report(process, line))
            fail_msg("no report of room %llu reaching state %u (it is in %u)",
                     (unsigned long long)room, state, states[room].state);
        if (sscanf(line, "%llu %u %u %511[^\n]", &id, &now.state, &now.status, now.text) >= 3 &&
            id <= ROOMS)
            states[id] = now;
    }
}

static void reset(room_state states[ROOMS + 1])
{
    for (size_t i = 0; i <= ROOMS; i++)
        states[i] = (room_state){.state = KVF_BOOTSTRAPPING};
}

static void expect_success(worker *prefill, worker *decode, room_state prefill_states[ROOMS + 1],
                           room_state decode_states[ROOMS + 1], uint64_t room)
{
    char line[1024];
    (void)fprintf(prefill->orders, "send %llu\n", (unsigned long long)room);
    await_state(decode, decode_states, room, KVF_SUCCESS);
    await_state(prefill, prefill_states, room, KVF_SUCCESS);
    if (decode_states[room].state != KVF_SUCCESS || prefill_states[room].state != KVF_SUCCESS)
        fail_msg("room %llu without the victim failed: %s%s", (unsigned long long)room,
                 decode_states[room].text, prefill_states[room].text);
    (void)fprintf(decode->orders, "check %llu\n", (unsigned long long)room);
    /* A room that has failed may be reported once more, when its pages are given back. */
    do
        assert_true(next_report(decode, line));
    while (strncmp(line, "check", strlen("check")) != 0);
    assert_string_equal(line, "check right");
}

/* A writer may see its write fail first. */
static void expect_lost(worker *survivor, room_state states[ROOMS + 1], uint64_t room, bool writes)
{
    await_state(survivor, states, room, KVF_SUCCESS);
    if (states[room].state != KVF_FAILED)
        fail_msg("room %llu with the victim did not fail", (unsigned long long)room);
    if (states[room].status != KVF_PEER_GONE && !(writes && states[room].status == KVF_TRANSPORT))
        fail_msg("room %llu failed with status %u: %s", (unsigned long long)room,
                 states[room].status, states[room].text);
}

/* ---- The scenes ------------------------------------------------------------------------------------ */

typedef struct scene_plan {
    const char *transports;
    bool prefill_dies;
    int signal;
} scene_plan;

/* UCX before 1.19 ends the survivor itself, with an assertion of its own, when a peer is killed over TCP. */
static bool ucx_survives(const scene_plan *plan)
{
    unsigned minor = 0;
    bool old = sscanf(kvf_ucx_version(), "1.%u", &minor) == 1 && minor < 19;
    return !old || plan->signal != SIGKILL || strstr(plan->transports, "tcp") == NULL;
}

static void run_scene(const scene_plan *plan)
{
    if (!ucx_survives(plan)) {
        print_message("skipped: UCX %s ends the surviving process itself\n", kvf_ucx_version());
        skip();
    }
    worker prefills[2];
    worker decodes[2];
    room_state at_prefill[2][ROOMS + 1];
    room_state at_decode[2][ROOMS + 1];
    kvf_bootstrap *servers[2];
    for (int i = 0; i < 2; i++) {
        start_process(&prefills[i], run_prefill, i, plan->transports);
        start_process(&decodes[i], run_decode, i, plan->transports);
        reset(at_prefill[i]);
        reset(at_decode[i]);
    }
    for (int i = 0; i < 2; i++)
        if (kvf_bootstrap_start(&servers[i], "127.0.0.1:0", NULL) != KVF_OK)
            fail_msg("%s", kvf_error_text());
    for (int i = 0; i < 2; i++) {
        (void)fprintf(prefills[i].orders, "127.0.0.1:%u\n", kvf_bootstrap_port(servers[i]));
        (void)fprintf(decodes[i].orders, "127.0.0.1:%u 127.0.0.1:%u\n",
                      kvf_bootstrap_port(servers[0]), kvf_bootstrap_port(servers[1]));
    }
    for (size_t i = 0; i < ROOMS; i++)
        await_state(&prefills[rooms[i].prefill], at_prefill[rooms[i].prefill], rooms[i].id,
                    KVF_WAITING_FOR_INPUT);

    (void)fprintf(prefills[0].orders, "send 1\n");
    await_state(&prefills[0], at_prefill[0], 1, KVF_TRANSFERRING);
    worker *victim = plan->prefill_dies ? &prefills[0] : &decodes[0];
    assert_int_equal(kill(victim->pid, plan->signal), 0);
    double start = seconds();
    if (plan->prefill_dies) {
        expect_lost(&decodes[0], at_decode[0], 1, false);
        expect_lost(&decodes[0], at_decode[0], 2, false);
        double first = seconds() - start;
        expect_lost(&decodes[1], at_decode[1], 3, false);
        print_message("prefill %-8s %-24s %6.3f s, all its rooms %6.3f s\n",
                      plan->signal == SIGKILL ? "KILL" : "STOP", plan->transports, first,
                      seconds() - start);
        expect_success(&prefills[1], &decodes[0], at_prefill[1], at_decode[0], 4);
    } else {
        /* Writes into a stopped process's memory go on: room 1 may rightly have ended before. */
        await_state(&prefills[0], at_prefill[0], 1, KVF_SUCCESS);
        if (at_prefill[0][1].state == KVF_FAILED || plan->signal == SIGKILL)
            expect_lost(&prefills[0], at_prefill[0], 1, true);
        expect_lost(&prefills[0], at_prefill[0], 2, true);
        double first = seconds() - start;
        expect_lost(&prefills[1], at_prefill[1], 4, true);
        print_message("decode  %-8s %-24s %6.3f s, all its rooms %6.3f s\n",
                      plan->signal == SIGKILL ? "KILL" : "STOP", plan->transports, first,
                      seconds() - start);
        expect_success(&prefills[0], &decodes[1], at_prefill[0], at_decode[1], 3);
    }
    expect_success(&prefills[1], &decodes[1], at_prefill[1], at_decode[1], 5);
    for (int i = 0; i < 2; i++) {
        end_process(&prefills[i]);
        end_process(&decodes[i]);
        kvf_bootstrap_stop(servers[i]);
    }
}

#define SCENE(name, transports, prefill_dies, signal)                                              \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        run_scene(&(scene_plan){transports, prefill_dies, signal});                                \
    }

#define SHARED_MEMORY "posix,sysv,cma,self"
#define TCP "tcp,self"

SCENE(prefill_killed_over_shared_memory, SHARED_MEMORY, true, SIGKILL)
SCENE(prefill_stopped_over_shared_memory, SHARED_MEMORY, true, SIGSTOP)
SCENE(decode_killed_over_shared_memory, SHARED_MEMORY, false, SIGKILL)
SCENE(decode_stopped_over_shared_memory, SHARED_MEMORY, false, SIGSTOP)
SCENE(prefill_killed_over_tcp, TCP, true, SIGKILL)
SCENE(prefill_stopped_over_tcp, TCP, true, SIGSTOP)
SCENE(decode_killed_over_tcp, TCP, false, SIGKILL)
SCENE(decode_stopped_over_tcp, TCP, false, SIGSTOP)

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    print_message("UCX %s; time from the signal until the survivor's room failed\n",
                  kvf_ucx_version());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_killed_over_shared_memory),
        cmocka_unit_test(prefill_stopped_over_shared_memory),
        cmocka_unit_test(decode_killed_over_shared_memory),
        cmocka_unit_test(decode_stopped_over_shared_memory),
        cmocka_unit_test(prefill_killed_over_tcp),
        cmocka_unit_test(prefill_stopped_over_tcp),
        cmocka_unit_test(decode_killed_over_tcp),
        cmocka_unit_test(decode_stopped_over_tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
