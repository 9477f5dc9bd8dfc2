/* A caller's mistakes and useless bootstrap servers: each gets an error that names what is wrong, and rooms of
 * others go on. What hostile peers say is in badrequests_test.c and badnotices_test.c. */
#include "support/raw.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct scene {
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode;
} scene;

static int start(void **state, const char *engine)
{
    scene *one = calloc(1, sizeof *one);
    test_use_engine(engine);
    test_bootstrap_open(&one->bootstrap);
    test_worker_open(&one->prefill, KVF_PREFILL, NULL, one->bootstrap.address, NULL);
    test_worker_open(&one->decode, KVF_DECODE, NULL, NULL, NULL);
    *state = one;
    return 0;
}

static int start_loop(void **state)
{
    return start(state, "loop");
}

static int start_shm(void **state)
{
    return start(state, "shm");
}

/* Whatever was done: others' rooms work. */
static int stop(void **state)
{
    scene *one = *state;
    test_room_works(&one->prefill, &one->decode, one->bootstrap.address, 987654321, 3);
    assert_int_equal(test_statistics(&one->prefill).rooms_open, 0);
    assert_int_equal(test_statistics(&one->decode).rooms_open, 0);
    test_worker_close(&one->prefill);
    test_worker_close(&one->decode);
    test_bootstrap_close(&one->bootstrap);
    free(one);
    return 0;
}

/* The last call failed so, and said so. */
static void expect_error(kvf_status is, kvf_status should, const char *part)
{
    const char *text = kvf_error_text();
    if (is != should || strstr(text, part) == NULL)
        fail_msg("got %s: \"%s\", expected %s: \"%s\"", kvf_status_name(is), text,
                 kvf_status_name(should), part);
}

/* ---- Rooms ----------------------------------------------------------------------------------------- */

static void own_pages_and_slots_are_checked_and_nothing_changes(void **state)
{
    scene *one = *state;
    test_worker_fill(&one->prefill);
    test_worker_fill(&one->decode);
    kvf_sender *sender = test_sender_open(&one->prefill, 1);
    kvf_receiver *receiver = test_receiver_open(&one->decode, one->bootstrap.address, 1);
    static const uint32_t wrong[] = {3, 32};
    static const uint32_t twice[] = {3, 4, 3};
    static const uint32_t right[] = {3, 31};
    expect_error(kvf_sender_expect(sender, 2, 8), KVF_OUT_OF_RANGE, "aux slot 8");
    expect_error(kvf_sender_send(sender, right, 2), KVF_WRONG_STATE, "before expect");
    assert_int_equal(kvf_sender_expect(sender, 2, 7), KVF_OK);
    expect_error(kvf_sender_expect(sender, 2, 7), KVF_WRONG_STATE, "already");
    expect_error(kvf_sender_send(sender, wrong, 2), KVF_OUT_OF_RANGE, "source page 32");
    expect_error(kvf_receiver_expect(receiver, wrong, 2, 7), KVF_OUT_OF_RANGE,
                 "destination page 32");
    expect_error(kvf_receiver_expect(receiver, twice, 3, 7), KVF_INVALID_ARGUMENT,
                 "page 3 is named twice");
    expect_error(kvf_receiver_expect(receiver, right, 2, 8), KVF_OUT_OF_RANGE, "aux slot 8");
    assert_int_equal(kvf_receiver_expect(receiver, right, 2, 7), KVF_OK);
    expect_error(kvf_receiver_expect(receiver, right, 2, 7), KVF_WRONG_STATE, "already");
    assert_int_equal(kvf_sender_send(sender, right, 1), KVF_OK);
    expect_error(kvf_sender_send(sender, right, 2), KVF_OUT_OF_RANGE, "more pages than expect");
    assert_int_equal(kvf_sender_send(sender, NULL, 0), KVF_OK); /* does nothing */
    assert_int_equal(kvf_sender_send(sender, right + 1, 1), KVF_OK);
    test_receiver_ends(&one->decode, receiver, KVF_OK, NULL);
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    assert_true(test_page_arrived(&one->prefill, 31, &one->decode, 31));
    kvf_sender_close(sender);
    kvf_receiver_close(receiver);
}

/* "elsewhere it does nothing": not even before the other side has asked. */
static void a_second_empty_send_does_nothing(void **state)
{
    scene *one = *state;
    kvf_sender *sender = test_sender_open(&one->prefill, 2);
    assert_int_equal(kvf_sender_expect(sender, 0, 0), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, NULL, 0), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, NULL, 0), KVF_OK);
    kvf_receiver *receiver = test_receiver_open(&one->decode, one->bootstrap.address, 2);
    assert_int_equal(kvf_receiver_expect(receiver, NULL, 0, 0), KVF_OK);
    test_receiver_ends(&one->decode, receiver, KVF_OK, NULL);
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    kvf_receiver_close(receiver);
}

static void rooms_of_the_wrong_kind_are_refused(void **state)
{
    scene *one = *state;
    const char *address = one->bootstrap.address;
    kvf_sender *sender;
    kvf_receiver *receiver;
    kvf_room_options options = {.size = 1};
    expect_error(kvf_sender_open(one->decode.manager, 1, NULL, &sender), KVF_INVALID_ARGUMENT,
                 "prefill");
    expect_error(kvf_receiver_open(one->prefill.manager, address, 1, NULL, &receiver),
                 KVF_INVALID_ARGUMENT, "decode");
    expect_error(kvf_sender_open(one->prefill.manager, UINT64_C(1) << 63, NULL, &sender),
                 KVF_INVALID_ARGUMENT, "9223372036854775808");
    expect_error(
        kvf_receiver_open(one->decode.manager, address, UINT64_C(1) << 63, NULL, &receiver),
        KVF_INVALID_ARGUMENT, "2^63");
    expect_error(kvf_receiver_open(one->decode.manager, "nowhere", 1, NULL, &receiver),
                 KVF_INVALID_ARGUMENT, "nowhere");
    expect_error(kvf_sender_open(one->prefill.manager, 1, &options, &sender), KVF_INVALID_ARGUMENT,
                 "size");
    expect_error(kvf_sender_open(NULL, 1, NULL, &sender), KVF_INVALID_ARGUMENT, "NULL");
    assert_null(sender);
    assert_null(receiver);
    receiver = test_receiver_open(&one->decode, address, 1);
    kvf_receiver *second;
    expect_error(kvf_receiver_open(one->decode.manager, address, 1, NULL, &second), KVF_BUSY,
                 "room 1");
    kvf_receiver_close(receiver);
}

static void a_dp_rank_that_does_not_exist_fails_its_room(void **state)
{
    scene *one = *state;
    test_wait_statistic(&one->prefill, registered, 1);
    kvf_room_options options = {.size = sizeof options, .dp_rank = 1};
    kvf_receiver *receiver;
    assert_int_equal(
        kvf_receiver_open(one->decode.manager, one->bootstrap.address, 1, &options, &receiver),
        KVF_OK);
    test_receiver_ends(&one->decode, receiver, KVF_OUT_OF_RANGE, "dp rank 1");
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_NEVER_DISCLOSED);
    kvf_receiver_close(receiver);
}

static void limits_refuse_one_room_and_no_others(void **state)
{
    scene *one = *state;
    test_worker small;
    kvf_sender *senders[3];
    test_worker_open(&small, KVF_PREFILL, NULL, NULL,
                     (const char *const[]){"max_rooms", "2", "max_pages", "3", NULL});
    senders[0] = test_sender_open(&small, 1);
    senders[1] = test_sender_open(&small, 2);
    expect_error(kvf_sender_open(small.manager, 3, NULL, &senders[2]), KVF_LIMIT, "max_rooms");
    expect_error(kvf_sender_expect(senders[0], 4, 0), KVF_LIMIT, "max_pages");
    assert_int_equal(kvf_sender_expect(senders[0], 3, 0), KVF_OK);
    kvf_sender_close(senders[1]);
    senders[2] = test_sender_open(&small, 3);
    kvf_sender_close(senders[0]);
    kvf_sender_close(senders[2]);
    test_worker_close(&small);
    (void)one;
}

static void a_room_that_failed_answers_with_its_reason(void **state)
{
    scene *one = *state;
    uint32_t page = 1;
    kvf_sender *sender = test_sender_open(&one->prefill, 5);
    kvf_receiver *receiver = test_receiver_open(&one->decode, one->bootstrap.address, 5);
    kvf_sender_abort(sender);
    kvf_receiver_abort(receiver);
    test_sender_ends(&one->prefill, sender, KVF_ABORTED, "aborted");
    test_receiver_ends(&one->decode, receiver, KVF_ABORTED, "aborted");
    expect_error(kvf_receiver_expect(receiver, &page, 1, 0), KVF_ABORTED, "room 5 has failed");
    expect_error(kvf_sender_send(sender, &page, 1), KVF_ABORTED, "room 5 has failed");
    kvf_sender_close(sender);
    kvf_receiver_close(receiver);
}

/* ---- Managers --------------------------------------------------------------------------------------- */

static void try_layout(test_worker *worker, kvf_status status, const char *part)
{
    expect_error(test_worker_start(worker, KVF_PREFILL, NULL, NULL), status, part);
    assert_null(worker->manager);
}

static void layouts_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    test_worker worker;
    test_worker_build(&worker, NULL);
    kvf_buffer *buffers = worker.buffers;
    kvf_buffer right[4];
    memcpy(right, buffers, sizeof right);
#define TRY(change, status, part)                                                                  \
    do {                                                                                           \
        change;                                                                                    \
        try_layout(&worker, status, part);                                                         \
        memcpy(buffers, right, sizeof right);                                                      \
    } while (0)
    TRY(buffers[1].length = 0, KVF_INVALID_ARGUMENT, "buffer 1");
    TRY(buffers[1].item_length = 0, KVF_INVALID_ARGUMENT, "buffer 1");
    TRY(buffers[1].base = 0, KVF_INVALID_ARGUMENT, "buffer 1");
    TRY(buffers[0].item_length = 511, KVF_INVALID_ARGUMENT, "whole number of items");
    TRY(buffers[1].base -= 512, KVF_INVALID_ARGUMENT, "buffer 0 and buffer 1 overlap");
    TRY(buffers[2].base -= 64, KVF_INVALID_ARGUMENT, "buffer 1 and aux buffer 0 overlap");
    TRY(buffers[3].base = buffers[2].base, KVF_INVALID_ARGUMENT, "overlap");
    TRY(buffers[1].base = UINT64_MAX - 512, KVF_INVALID_ARGUMENT, "address space");
    TRY(buffers[2].memory = KVF_MEMORY_CUDA, KVF_INVALID_ARGUMENT, "aux buffer 0");
    TRY(buffers[0].memory = 7, KVF_INVALID_ARGUMENT, "kvf_memory");
    TRY(buffers[0].size = 1, KVF_INVALID_ARGUMENT, "sizeof(kvf_buffer)");
    TRY(worker.layout.buffer_count = 0, KVF_INVALID_ARGUMENT, "there must be a buffer");
    worker.layout.buffer_count = 2;
    TRY(worker.layout.engine_rank = 1, KVF_INVALID_ARGUMENT, "engine_rank 1");
    worker.layout.engine_rank = 0;
    TRY(worker.layout.dp_size = 2, KVF_INVALID_ARGUMENT, "dp_size 2");
    worker.layout.dp_size = 1;
    TRY(worker.layout.size = 1, KVF_INVALID_ARGUMENT, "sizeof(kvf_layout)");
#undef TRY
    worker.layout.size = sizeof(kvf_layout);
    expect_error(kvf_manager_open(&worker.manager, (kvf_role)3, &worker.layout, NULL),
                 KVF_INVALID_ARGUMENT, "role 3");
    expect_error(kvf_manager_open(&worker.manager, KVF_DECODE, NULL, NULL), KVF_INVALID_ARGUMENT,
                 "NULL");
    assert_int_equal(test_worker_start(&worker, KVF_PREFILL, NULL, NULL), KVF_OK);
    test_worker_close(&worker);
}

/* Only UCX looks at the memory. */
static void memory_that_cannot_be_registered_is_named(void **state)
{
    (void)state;
    test_worker worker;
    size_t length = UINT64_C(1) << 20;
    unsigned char *area =
        mmap(NULL, 3 * length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(area != MAP_FAILED);
    test_worker_build(&worker, NULL);
    worker.buffers[1].base = (uint64_t)(uintptr_t)area;
    worker.buffers[1].length = 2 * length;
    assert_int_equal(mprotect(area + length, length, PROT_NONE), 0);
    try_layout(&worker, KVF_REGISTRATION, "KV buffer 1 ");
    assert_int_equal(munmap(area + length, length), 0);
    try_layout(&worker, KVF_REGISTRATION, "mapped");
    assert_int_equal(mprotect(area, length, PROT_READ), 0);
    worker.buffers[1].length = length;
    try_layout(&worker, KVF_REGISTRATION, "KV buffer 1 ");
    assert_int_equal(mprotect(area, length, PROT_READ | PROT_WRITE), 0);
    worker.buffers[3].base = (uint64_t)(uintptr_t)(area + length);
    try_layout(&worker, KVF_REGISTRATION, "aux buffer 1 ");
    worker.buffers[3].base = (uint64_t)(uintptr_t)test_slot(&worker, 1, 0);
    assert_int_equal(test_worker_start(&worker, KVF_PREFILL, NULL, NULL), KVF_OK);
    test_worker_close(&worker);
    (void)munmap(area, length);
    (void)munmap(area + 2 * length, length);
}

static void ports_that_are_taken_are_named(void **state)
{
    scene *one = *state;
    test_worker worker;
    char port[16];
    (void)snprintf(port, sizeof port, "%u", kvf_manager_port(one->prefill.manager));
    test_worker_build(&worker, NULL);
    expect_error(test_worker_start(&worker, KVF_PREFILL, NULL,
                                   (const char *const[]){"control_port", port, NULL}),
                 KVF_ADDRESS_IN_USE, port);
    assert_null(worker.manager);
    expect_error(test_worker_start(&worker, KVF_PREFILL, NULL,
                                   (const char *const[]){"control_address", "192.0.2.1", NULL}),
                 KVF_INVALID_ARGUMENT, "192.0.2.1");
    test_worker_close(&worker);
    kvf_bootstrap *second;
    expect_error(kvf_bootstrap_start(&second, one->bootstrap.address, NULL), KVF_ADDRESS_IN_USE,
                 one->bootstrap.address);
    assert_null(second);
    expect_error(kvf_bootstrap_start(&second, "localhost", NULL), KVF_INVALID_ARGUMENT,
                 "localhost");
}

/* B09: each rank would connect to itself. */
static void an_address_that_means_all_is_not_told_to_peers(void **state)
{
    scene *one = *state;
    static const char *const wildcards[] = {"0.0.0.0",        "0", "::", "[::]", "0:0:0:0:0:0:0:0",
                                            "::ffff:0.0.0.0", "*"};
    test_worker worker;
    test_worker_build(&worker, NULL);
    for (size_t i = 0; i < sizeof wildcards / sizeof wildcards[0]; i++)
        for (int role = KVF_PREFILL; role <= KVF_DECODE; role++) {
            expect_error(
                test_worker_start(&worker, (kvf_role)role, one->bootstrap.address,
                                  (const char *const[]){"advertise_address", wildcards[i],
                                                        "control_address", "127.0.0.1", NULL}),
                KVF_BAD_SETTING, "advertise_address");
            assert_null(worker.manager);
        }
    /* Bound everywhere, as control_address says, and told an address. */
    assert_int_equal(test_worker_start(&worker, KVF_DECODE, NULL,
                                       (const char *const[]){"control_address", "0.0.0.0", NULL}),
                     KVF_OK);
    test_room_works(&one->prefill, &worker, one->bootstrap.address, 7, 2);
    test_worker_close(&worker);
}

static void settings_that_do_not_exist_name_the_right_ones(void **state)
{
    (void)state;
    kvf_settings *settings;
    assert_int_equal(kvf_settings_open(&settings), KVF_OK);
    expect_error(kvf_settings_set(settings, "waiting_time", "5s"), KVF_BAD_SETTING,
                 "waiting_timeout");
    expect_error(kvf_settings_set(settings, "waiting_timeout", "soon"), KVF_BAD_SETTING, "soon");
    expect_error(kvf_settings_set(settings, "waiting_timeout", "5"), KVF_BAD_SETTING,
                 "waiting_timeout");
    expect_error(kvf_settings_set(settings, "control_port", "65536"), KVF_BAD_SETTING, "65535");
    expect_error(kvf_settings_set(settings, "profile", "sglang-9"), KVF_BAD_SETTING,
                 "sglang-0.4.7.post1");
    assert_null(kvf_settings_get(settings, "nonsense"));
    test_worker worker;
    test_worker_build(&worker, NULL);
    assert_int_equal(kvf_settings_set(settings, "bootstrap_address", "nowhere"), KVF_OK);
    expect_error(kvf_manager_open(&worker.manager, KVF_PREFILL, &worker.layout, settings),
                 KVF_BAD_SETTING, "bootstrap_address");
    kvf_settings_close(settings);
    assert_int_equal(setenv("KVFERRY_NO_SUCH_THING", "1", 1), 0);
    expect_error(kvf_settings_open(&settings), KVF_BAD_SETTING, "KVFERRY_NO_SUCH_THING");
    assert_null(settings);
    expect_error(kvf_manager_open(&worker.manager, KVF_PREFILL, &worker.layout, NULL),
                 KVF_BAD_SETTING, "KVFERRY_NO_SUCH_THING");
    assert_int_equal(unsetenv("KVFERRY_NO_SUCH_THING"), 0);
    test_worker_close(&worker);
}

/* ---- Bootstrap servers ------------------------------------------------------------------------------ */

/* Answers every connection with the same bytes, or takes none (text NULL). */
typedef struct canned_server {
    int listener;
    char address[64];
    const char *text;
    pthread_t thread;
} canned_server;

static void *serve(void *user)
{
    canned_server *server = user;
    int connection;
    while ((connection = accept(server->listener, NULL, NULL)) >= 0) {
        char request[2048];
        (void)!recv(connection, request, sizeof request, 0);
        (void)!send(connection, server->text, strlen(server->text), MSG_NOSIGNAL);
        (void)close(connection);
    }
    return NULL;
}

static void canned_open(canned_server *server, const char *text)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    server->text = text;
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(server->listener, (struct sockaddr *)&where, size), 0);
    assert_int_equal(listen(server->listener, 16), 0);
    assert_int_equal(getsockname(server->listener, (struct sockaddr *)&where, &size), 0);
    (void)snprintf(server->address, sizeof server->address, "127.0.0.1:%u", ntohs(where.sin_port));
    if (text != NULL)
        assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void canned_close(canned_server *server)
{
    (void)shutdown(server->listener, SHUT_RDWR);
    if (server->text != NULL)
        (void)pthread_join(server->thread, NULL);
    (void)close(server->listener);
}

static const char *const hasty[] = {"http_timeout",
                                    "200ms",
                                    "http_connect_timeout",
                                    "200ms",
                                    "retry_interval",
                                    "2ms",
                                    "http_attempts",
                                    "2",
                                    NULL};

/* A room at `address` fails with that; no call waits for it; a room elsewhere works meanwhile. */
static void fails_at(scene *one, const char *address, kvf_status status, const char *part)
{
    test_worker decode;
    uint32_t page = 1;
    test_worker_open(&decode, KVF_DECODE, NULL, NULL, hasty);
    uint64_t start_time = kvf_clock_now();
    kvf_receiver *receiver = test_receiver_open(&decode, address, 1);
    if (kvf_receiver_expect(receiver, &page, 1, 0) != KVF_OK) /* refused already? */
        assert_int_equal(kvf_receiver_poll(receiver), KVF_FAILED);
    uint64_t taken = kvf_clock_now() - start_time;
    if (taken > 100 * KVF_MILLISECOND && !test_is_sanitized())
        fail_msg("open and expect took %llu ns", (unsigned long long)taken);
    test_room_works(&one->prefill, &decode, one->bootstrap.address, 2, 2);
    test_receiver_ends(&decode, receiver, status, part);
    kvf_receiver_close(receiver);
    test_worker_close(&decode);
}

static void a_bootstrap_server_that_is_absent(void **state)
{
    canned_server server;
    canned_open(&server, NULL);
    canned_close(&server);
    fails_at(*state, server.address, KVF_BOOTSTRAP, server.address);
}

static void a_bootstrap_server_that_is_silent(void **state)
{
    canned_server server;
    canned_open(&server, NULL);
    fails_at(*state, server.address, KVF_BOOTSTRAP, server.address);
    canned_close(&server);
}

/* ---- A bootstrap server that comes and goes ---- */

typedef struct listener_log {
    sem_t troubled;   /* registering doesn't work */
    sem_t registered; /* it has worked */
} listener_log;

static void hear(void *user, kvf_log_level level, const char *line)
{
    listener_log *heard = user;
    (void)level;
    if (strstr(line, "does not work, and is tried again") != NULL)
        (void)sem_post(&heard->troubled);
    else if (strstr(line, "registered at ") != NULL)
        (void)sem_post(&heard->registered);
}

static void await_line(sem_t *line, const char *what)
{
    struct timespec deadline;
    (void)clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 30;
    if (sem_timedwait(line, &deadline) != 0)
        fail_msg("the log doesn't say that %s", what);
}

/* Keeps the port for the server of later: nobody else is given it, and who connects is refused. */
static int reserve_port(char address[64])
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    const int yes = 1;
    int reserved = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(setsockopt(reserved, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
    assert_int_equal(bind(reserved, (struct sockaddr *)&where, size), 0);
    assert_int_equal(getsockname(reserved, (struct sockaddr *)&where, &size), 0);
    (void)snprintf(address, 64, "127.0.0.1:%u", ntohs(where.sin_port));
    return reserved;
}

static kvf_manager *open_prefill(test_worker *worker, const char *address, listener_log *heard)
{
    static const char *const names[][2] = {{"engine", "loop"},
                                           {"advertise_address", "127.0.0.1"},
                                           {"log_level", "info"},
                                           {"retry_interval", "2ms"},
                                           {"registration_check", "100ms"}};
    kvf_settings *settings;
    test_worker_build(worker, NULL);
    worker->role = KVF_PREFILL;
    assert_int_equal(kvf_settings_open(&settings), KVF_OK);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_int_equal(kvf_settings_set(settings, names[i][0], names[i][1]), KVF_OK);
    assert_int_equal(kvf_settings_set(settings, "bootstrap_address", address), KVF_OK);
    assert_int_equal(kvf_settings_log(settings, hear, heard), KVF_OK);
    if (kvf_manager_open(&worker->manager, KVF_PREFILL, &worker->layout, settings) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    kvf_settings_close(settings);
    return worker->manager;
}

/* B07: a rank that finds no server goes on trying, and one whose server has lost its row brings it again. */
static void a_bootstrap_server_that_comes_late_and_again(void **state)
{
    scene *one = *state;
    listener_log heard;
    test_worker prefill;
    char address[64];
    int reserved = reserve_port(address);
    assert_int_equal(sem_init(&heard.troubled, 0, 0), 0);
    assert_int_equal(sem_init(&heard.registered, 0, 0), 0);
    (void)open_prefill(&prefill, address, &heard);
    await_line(&heard.troubled, "registering does not work");
    for (uint64_t time = 0; time < 2; time++) {
        kvf_bootstrap *server;
        if (kvf_bootstrap_start(&server, address, NULL) != KVF_OK)
            fail_msg("%s", kvf_error_text());
        await_line(&heard.registered, "it has registered");
        test_worker decode;
        test_worker_open(&decode, KVF_DECODE, NULL, NULL, NULL);
        test_room_works(&prefill, &decode, address, 20 + time, 2);
        test_worker_close(&decode);
        kvf_bootstrap_stop(server);
    }
    test_worker_close(&prefill);
    (void)sem_destroy(&heard.troubled);
    (void)sem_destroy(&heard.registered);
    (void)close(reserved);
    (void)one;
}

#define JSON_ANSWER(body) "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" body

static void a_bootstrap_server_that_talks_rubbish(void **state)
{
    static const char *const answers[] = {
        "\x05\x01\x02 this is no HTTP\n",
        "",
        "HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\nOops",
        JSON_ANSWER("not JSON"),
        JSON_ANSWER("{\"prefill_tp_size\": 1"),
        JSON_ANSWER("{\"prefill_tp_size\": \"one\", \"prefill_dp_size\": 1}"),
        JSON_ANSWER("{\"prefill_tp_size\": 0, \"prefill_dp_size\": 1}"),
        JSON_ANSWER("{\"prefill_tp_size\": 3, \"prefill_dp_size\": 2}"),
        JSON_ANSWER("{\"prefill_tp_size\": 99999999999, \"prefill_dp_size\": 1}"),
        JSON_ANSWER("[]"),
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        canned_server server;
        canned_open(&server, answers[i]);
        fails_at(*state, server.address, KVF_BOOTSTRAP, server.address);
        canned_close(&server);
    }
}

/* Not yet is no failure: it is asked again until the room's deadline, which then says what was missing. */
static void a_rank_that_never_registers(void **state)
{
    scene *one = *state;
    test_bootstrap empty;
    test_worker decode;
    test_bootstrap_open(&empty);
    test_worker_open(
        &decode, KVF_DECODE, NULL, NULL,
        (const char *const[]){"bootstrap_timeout", "300ms", "retry_interval", "2ms", NULL});
    kvf_receiver *receiver = test_receiver_open(&decode, empty.address, 1);
    test_receiver_ends(&decode, receiver, KVF_TIMEOUT, empty.address);
    kvf_receiver_close(receiver);
    raw_register(empty.address, 9, 1, 2, 1);
    test_shape shape = test_small_shape;
    shape.tp_size = 2;
    test_worker pair;
    test_worker_open(
        &pair, KVF_DECODE, &shape, NULL,
        (const char *const[]){"bootstrap_timeout", "300ms", "retry_interval", "2ms", NULL});
    receiver = test_receiver_open(&pair, empty.address, 1);
    test_receiver_ends(&pair, receiver, KVF_TIMEOUT, "rank 0");
    kvf_receiver_close(receiver);
    test_worker_close(&pair);
    test_worker_close(&decode);
    test_bootstrap_close(&empty);
    (void)one;
}

/* The row is there, but at its address there is nobody, or something that isn't ZeroMQ. */
static void a_rank_that_cannot_be_reached(void **state)
{
    scene *one = *state;
    for (int deaf = 0; deaf < 2; deaf++) {
        test_bootstrap other;
        test_worker decode;
        canned_server server;
        canned_open(&server, deaf ? "HTTP/1.0 400 Bad Request\r\n\r\n" : NULL);
        if (!deaf)
            canned_close(&server);
        test_bootstrap_open(&other);
        raw_register(other.address, (uint16_t)strtoul(strrchr(server.address, ':') + 1, NULL, 10),
                     0, 1, 1);
        test_worker_open(
            &decode, KVF_DECODE, NULL, NULL,
            (const char *const[]){"bootstrap_timeout", "500ms", "retry_interval", "10ms", NULL});
        kvf_receiver *receiver = test_receiver_open(&decode, other.address, 1);
        test_room_works(&one->prefill, &decode, one->bootstrap.address, 2, 2);
        test_receiver_ends(&decode, receiver, KVF_TIMEOUT, server.address);
        if (!deaf)
            assert_non_null(strstr(kvf_receiver_failure_text(receiver), "efused"));
        kvf_receiver_close(receiver);
        test_worker_close(&decode);
        test_bootstrap_close(&other);
        if (deaf)
            canned_close(&server);
    }
}

/* The server refuses what contradicts the others; the manager lives and keeps trying. */
static void sizes_that_disagree_are_not_registered(void **state)
{
    scene *one = *state;
    test_worker other;
    test_shape shape = test_small_shape;
    shape.tp_size = 4;
    test_wait_statistic(&one->prefill, registered, 1);
    assert_int_equal(raw_put(one->bootstrap.address, "{\"role\": "), 400);
    assert_int_equal(raw_put(one->bootstrap.address, "{\"role\": \"Prefill\", \"tp_size\": 2}"),
                     400);
    test_worker_open(&other, KVF_PREFILL, &shape, one->bootstrap.address, hasty);
    test_room_works(&one->prefill, &one->decode, one->bootstrap.address, 3, 2);
    assert_int_equal(test_statistics(&other).registered, 0);
    test_worker_close(&other);
}

static void unequal_tp_without_mla_is_refused_with_a_reason(void **state)
{
    scene *one = *state;
    test_worker decode;
    test_shape shape = test_small_shape;
    shape.tp_size = 2;
    test_wait_statistic(&one->prefill, registered, 1);
    test_worker_open(&decode, KVF_DECODE, &shape, NULL, NULL);
    kvf_receiver *receiver = test_receiver_open(&decode, one->bootstrap.address, 1);
    test_receiver_ends(&decode, receiver, KVF_UNSUPPORTED, "without MLA");
    kvf_receiver_close(receiver);
    test_worker_close(&decode);
}

#define ON(start_function, name) cmocka_unit_test_setup_teardown(name, start_function, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON(start_loop, own_pages_and_slots_are_checked_and_nothing_changes),
        ON(start_shm, own_pages_and_slots_are_checked_and_nothing_changes),
        ON(start_loop, a_second_empty_send_does_nothing),
        ON(start_loop, rooms_of_the_wrong_kind_are_refused),
        ON(start_loop, a_dp_rank_that_does_not_exist_fails_its_room),
        ON(start_loop, limits_refuse_one_room_and_no_others),
        ON(start_loop, a_room_that_failed_answers_with_its_reason),
        ON(start_loop, layouts_that_make_no_sense_are_refused),
        ON(start_shm, memory_that_cannot_be_registered_is_named),
        ON(start_loop, ports_that_are_taken_are_named),
        ON(start_loop, an_address_that_means_all_is_not_told_to_peers),
        ON(start_loop, settings_that_do_not_exist_name_the_right_ones),
        ON(start_loop, a_bootstrap_server_that_is_absent),
        ON(start_loop, a_bootstrap_server_that_is_silent),
        ON(start_loop, a_bootstrap_server_that_talks_rubbish),
        ON(start_loop, a_bootstrap_server_that_comes_late_and_again),
        ON(start_loop, a_rank_that_never_registers),
        ON(start_loop, a_rank_that_cannot_be_reached),
        ON(start_loop, sizes_that_disagree_are_not_registered),
        ON(start_loop, unequal_tp_without_mla_is_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
