/* The endpoints over real loopback sockets. The stock peers are plain libzmq sockets with its defaults, as
 * pyzmq has them. Deaths of processes are in death_test.c. */
#include "control/control.h"

#include "support/endpoints.h"
#include "support/process.h"
#include "support/random.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED
#endif
#endif

#define SHORT (300 * KVF_MILLISECOND)
#define LONG (20 * KVF_SECOND)

static test_endpoints endpoints;
static void *stock; /* the context of the stock peers */

static int set_up(void **state)
{
    (void)state;
    test_endpoints_open(&endpoints);
    stock = zmq_ctx_new();
    return stock == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    test_endpoints_close(&endpoints);
    return zmq_ctx_term(stock);
}

static void *stock_push(uint16_t port)
{
    char address[64];
    (void)snprintf(address, sizeof address, "tcp://127.0.0.1:%u", port);
    void *socket = zmq_socket(stock, ZMQ_PUSH);
    assert_non_null(socket);
    assert_int_equal(zmq_connect(socket, address), 0);
    return socket;
}

/* Binds a stock socket to the port, or to any for 0; fills the port in. */
static void *stock_bound(int type, uint16_t *port)
{
    char address[64];
    (void)snprintf(address, sizeof address, "tcp://127.0.0.1:%u", *port);
    if (*port == 0)
        (void)snprintf(address, sizeof address, "tcp://127.0.0.1:*");
    void *socket = zmq_socket(stock, type);
    assert_non_null(socket);
    while (zmq_bind(socket, address) != 0)
        assert_int_equal(errno, EADDRINUSE); /* the last holder is still being closed */
    size_t size = sizeof address;
    assert_int_equal(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, address, &size), 0);
    *port = (uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10);
    return socket;
}

static void stock_close(void *socket)
{
    int linger = 0;
    assert_int_equal(zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger), 0);
    assert_int_equal(zmq_close(socket), 0);
}

static int tcp_connect(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(descriptor >= 0);
    assert_int_equal(connect(descriptor, (struct sockaddr *)&address, sizeof address), 0);
    return descriptor;
}

/* A TCP port that is bound, and listens when asked to. */
static int tcp_bound(bool listening, uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(descriptor >= 0);
    assert_int_equal(bind(descriptor, (struct sockaddr *)&address, length), 0);
    if (listening)
        assert_int_equal(listen(descriptor, 8), 0);
    assert_int_equal(getsockname(descriptor, (struct sockaddr *)&address, &length), 0);
    *port = ntohs(address.sin_port);
    return descriptor;
}

static double milliseconds_since(uint64_t start)
{
    return (double)(kvf_clock_now() - start) / (double)KVF_MILLISECOND;
}

/* ---- messages ---- */

static void look_for_frames(void *user, uint64_t connection, const kvf_slice *frames, size_t count)
{
    size_t *expected = user;
    (void)connection;
    (*expected)++;
    assert_int_equal(count, *expected);
    for (size_t i = 0; i < count; i++) {
        /* Frame i of message n has i * 1000 bytes of the value n + i, so the first is empty. */
        assert_int_equal(frames[i].length, i * 1000);
        for (size_t k = 0; k < frames[i].length; k++)
            assert_int_equal(frames[i].data[k], count + i);
    }
}

static void test_frames_arrive_whole(void **state)
{
    (void)state;
    size_t seen = 0;
    test_pull pull = {.look = look_for_frames, .user = &seen};
    test_push push;
    test_pull_open(&endpoints, &pull);
    test_push_open(&endpoints, &push, kvf_control_pull_port(pull.pull), LONG);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    static uint8_t data[13][13000];
    for (size_t n = 1; n <= 13; n++) {
        kvf_slice frames[13];
        for (size_t i = 0; i < n; i++) {
            memset(data[i], (int)(n + i), i * 1000);
            frames[i] = (kvf_slice){data[i], i * 1000};
        }
        bool put_off = true;
        assert_int_equal(kvf_control_push_send(push.push, frames, n, &put_off, NULL), KVF_OK);
        assert_false(put_off);
    }
    test_endpoints_expect(&endpoints, &pull.messages, 13);
    test_push_close(&endpoints, &push);
    test_endpoints_expect(&endpoints, &pull.gone, 1);
    assert_int_equal(pull.last_gone, pull.last_connection);
    test_pull_close(&endpoints, &pull);
}

enum { SENDERS = 8, PER_SENDER = 1250 };

typedef struct sequence {
    size_t next[SENDERS];
    uint64_t connection[SENDERS];
} sequence;

static void look_for_order(void *user, uint64_t connection, const kvf_slice *frames, size_t count)
{
    sequence *order = user;
    assert_int_equal(count, 2);
    uint64_t sender = kvf_read_u64(frames[0].data);
    assert_true(sender < SENDERS);
    assert_int_equal(kvf_read_u64(frames[1].data), order->next[sender]++);
    if (order->connection[sender] == 0)
        order->connection[sender] = connection;
    assert_int_equal(order->connection[sender], connection);
}

/* Half of the senders are stock; true when the message was taken. */
static bool send_numbered(test_push *push, void *socket, uint64_t sender, uint64_t number)
{
    uint8_t data[2][8];
    kvf_write_u64(data[0], sender);
    kvf_write_u64(data[1], number);
    if (push != NULL) {
        kvf_slice frames[2] = {{data[0], 8}, {data[1], 8}};
        bool put_off = false;
        assert_int_equal(kvf_control_push_send(push->push, frames, 2, &put_off, NULL), KVF_OK);
        return !put_off;
    }
    if (zmq_send(socket, data[0], 8, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
        return false;
    assert_int_equal(zmq_send(socket, data[1], 8, ZMQ_DONTWAIT), 8);
    return true;
}

static void test_order_of_each_connection(void **state)
{
    (void)state;
    sequence order = {0};
    test_pull pull = {.look = look_for_order, .user = &order};
    test_push pushes[SENDERS / 2];
    void *sockets[SENDERS / 2];
    test_pull_open(&endpoints, &pull);
    uint16_t port = kvf_control_pull_port(pull.pull);
    for (size_t i = 0; i < SENDERS / 2; i++) {
        sockets[i] = stock_push(port);
        test_push_open(&endpoints, &pushes[i], port, LONG);
        test_endpoints_expect(&endpoints, &pushes[i].connected, 1);
    }
    size_t sent[SENDERS] = {0};
    size_t total = 0;
    uint64_t start = kvf_clock_now();
    while (total < SENDERS * PER_SENDER) {
        for (size_t i = 0; i < SENDERS; i++) {
            test_push *push = i % 2 ? &pushes[i / 2] : NULL;
            for (int k = 0; k < 100 && sent[i] < PER_SENDER; k++) {
                if (!send_numbered(push, sockets[i / 2], i, sent[i]))
                    break;
                sent[i]++;
                total++;
            }
        }
        (void)test_endpoints_wait(&endpoints, &pull.messages, total, 1);
    }
    test_endpoints_expect(&endpoints, &pull.messages, SENDERS * PER_SENDER);
    print_message("%d messages over %d connections in %.0f ms\n", SENDERS * PER_SENDER, SENDERS,
                  milliseconds_since(start));
    for (size_t i = 0; i < SENDERS; i++)
        for (size_t k = 0; k < i; k++)
            assert_int_not_equal(order.connection[i], order.connection[k]);
    for (size_t i = 0; i < SENDERS / 2; i++) {
        stock_close(sockets[i]);
        test_push_close(&endpoints, &pushes[i]);
    }
    test_endpoints_expect(&endpoints, &pull.gone, SENDERS);
    test_pull_close(&endpoints, &pull);
}

/* ---- many short connections: descriptors are used again and again ---- */

enum { SHORT_LIVES = 400 };

typedef struct life_table {
    uint16_t port;
    uint64_t tag_of[4 * SHORT_LIVES]; /* by connection number, plus 1; 0: none yet */
    bool gone[4 * SHORT_LIVES];
    size_t arrived[SHORT_LIVES];
    bool failed;
} life_table;

static void look_for_lives(void *user, uint64_t connection, const kvf_slice *frames, size_t count)
{
    life_table *lives = user;
    assert_int_equal(count, 2);
    uint64_t tag = kvf_read_u64(frames[0].data);
    assert_true(connection < 4 * SHORT_LIVES && tag < SHORT_LIVES);
    assert_false(lives->gone[connection]);
    assert_true(lives->tag_of[connection] == 0 || lives->tag_of[connection] == tag + 1);
    lives->tag_of[connection] = tag + 1;
    assert_int_equal(kvf_read_u64(frames[1].data), lives->arrived[tag]++);
}

static void look_for_ends(void *user, uint64_t connection)
{
    life_table *lives = user;
    assert_int_not_equal(lives->tag_of[connection], 0);
    assert_false(lives->gone[connection]);
    lives->gone[connection] = true;
}

/* Each life connects, sends tag % 5 messages and one more, and closes with libzmq's default linger. */
static void *live(void *user)
{
    life_table *lives = user;
    void *context = zmq_ctx_new();
    char address[64];
    (void)snprintf(address, sizeof address, "tcp://127.0.0.1:%u", lives->port);
    for (uint64_t tag = 0; tag < SHORT_LIVES; tag++) {
        void *socket = zmq_socket(context, ZMQ_PUSH);
        lives->failed |= zmq_connect(socket, address) != 0;
        for (uint64_t i = 0; i <= tag % 5; i++)
            lives->failed |= !send_numbered(NULL, socket, tag, i);
        lives->failed |= zmq_close(socket) != 0;
        if (tag % 7 == 0) {
            (void)zmq_ctx_term(context);
            context = zmq_ctx_new();
        }
    }
    (void)zmq_ctx_term(context);
    return NULL;
}

static void test_short_lives_keep_their_messages(void **state)
{
    (void)state;
    static life_table lives;
    lives = (life_table){0};
    test_random random = test_random_start();
    test_pull pull = {.look = look_for_lives, .look_gone = look_for_ends, .user = &lives};
    test_pull_open(&endpoints, &pull);
    lives.port = kvf_control_pull_port(pull.pull);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, live, &lives), 0);
    size_t expected = 0;
    for (size_t tag = 0; tag < SHORT_LIVES; tag++)
        expected += tag % 5 + 1;
    while (pull.messages < expected) {
        /* A loop that is busy elsewhere now and then, so that ends, accepts and messages pile up. */
        struct timespec pause = {0, (long)test_random_below(&random, 5000000)};
        (void)nanosleep(&pause, NULL);
        if (!test_endpoints_wait(&endpoints, &pull.messages, pull.messages + 1, 20000))
            fail_msg("%zu of %zu messages arrived", pull.messages, expected);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(lives.failed);
    size_t connections = 0;
    for (size_t i = 0; i < 4 * SHORT_LIVES; i++)
        connections += lives.tag_of[i] != 0;
    test_endpoints_expect(&endpoints, &pull.gone, connections);
    assert_int_equal(pull.messages, expected);
    assert_int_equal(pull.gone, connections);
    print_message("%d short lives, told apart as %zu connections\n", SHORT_LIVES, connections);
    test_pull_close(&endpoints, &pull);
}

/* ---- a flood ---- */

enum { FAREWELLS = 50, POURERS = 3, FLOOD = 20000 };

typedef struct flood {
    uint16_t port;
    atomic_bool over;
    uint64_t leaver; /* the connection of who leaves; 0: nothing of it yet */
    size_t farewells;
    bool left;
} flood;

/* Slower than the flood, as a loop is that has rooms to serve. */
static void look_for_farewells(void *user, uint64_t connection, const kvf_slice *frames,
                               size_t count)
{
    flood *all = user;
    assert_int_equal(count, 1);
    if (kvf_slice_equal(frames[0], kvf_slice_of("farewell"))) {
        assert_false(all->left);
        all->leaver = connection;
        all->farewells++;
    }
    (void)nanosleep(&(struct timespec){0, 20000}, NULL);
}

static void look_for_leaver(void *user, uint64_t connection)
{
    flood *all = user;
    assert_true(connection == all->leaver);
    assert_int_equal(all->farewells, FAREWELLS);
    all->left = true;
}

static void *pour(void *user)
{
    flood *all = user;
    void *context = zmq_ctx_new();
    void *socket = zmq_socket(context, ZMQ_PUSH);
    char address[64];
    int none = 0;
    int patience = 100;
    (void)snprintf(address, sizeof address, "tcp://127.0.0.1:%u", all->port);
    (void)zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    (void)zmq_setsockopt(socket, ZMQ_SNDTIMEO, &patience, sizeof patience);
    (void)zmq_connect(socket, address);
    while (!atomic_load(&all->over))
        (void)zmq_send(socket, "drop", 4, 0);
    (void)zmq_close(socket);
    (void)zmq_ctx_term(context);
    return NULL;
}

/* One peer whose messages never end doesn't put off the news that another one has gone, which still comes after that
 * one's last message. */
static void test_a_flood_hides_no_death(void **state)
{
    (void)state;
    static flood all;
    memset(&all, 0, sizeof all);
    test_pull pull = {.look = look_for_farewells, .look_gone = look_for_leaver, .user = &all};
    test_pull_open(&endpoints, &pull);
    all.port = kvf_control_pull_port(pull.pull);
    pthread_t threads[POURERS];
    for (int i = 0; i < POURERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, pour, &all), 0);
    uint64_t deadline = kvf_clock_now() + LONG;
    while (pull.messages < 1000 && kvf_clock_now() < deadline)
        (void)kvf_control_pull_process(pull.pull);
    void *leaver = stock_push(all.port);
    for (int i = 0; i < FAREWELLS; i++)
        assert_int_equal(zmq_send(leaver, "farewell", 8, 0), 8);
    (void)zmq_close(leaver);
    while (all.farewells < FAREWELLS && kvf_clock_now() < deadline)
        (void)kvf_control_pull_process(pull.pull);
    size_t most = pull.messages + FLOOD;
    while (!all.left && pull.messages < most && kvf_clock_now() < deadline)
        (void)kvf_control_pull_process(pull.pull);
    bool during_the_flood = all.left;
    atomic_store(&all.over, true);
    for (int i = 0; i < POURERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    test_pull_close(&endpoints, &pull);
    assert_true(during_the_flood);
}

/* ---- foreign and oversized input ---- */

/* What a ZMTP 3.0 peer begins with. */
static const uint8_t greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'};

static void send_bytes(int descriptor, const void *data, size_t length)
{
    assert_int_equal(send(descriptor, data, length, MSG_NOSIGNAL), length);
}

static void test_foreign_input_harms_nobody(void **state)
{
    (void)state;
    static const uint8_t plain[64] = {0xff, 0, 0, 0,   0,   0,   0,   0,  1,
                                      0x7f, 3, 0, 'P', 'L', 'A', 'I', 'N'};
    static const uint8_t old[] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1, 5, 0, 0};
    static const uint8_t bad_ready[] = {4, 6, 5, 'R', 'E', 'A', 'D', 'Z'};
    test_random random = test_random_start();
    test_pull pull = {0};
    test_pull_open(&endpoints, &pull);
    uint16_t port = kvf_control_pull_port(pull.pull);
    void *good = stock_push(port);
    int descriptors[8];
    for (size_t i = 0; i < 8; i++)
        descriptors[i] = tcp_connect(port);
    send_bytes(descriptors[0], "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 28);
    send_bytes(descriptors[1], greeting, 10);
    send_bytes(descriptors[2], greeting, 64);
    send_bytes(descriptors[3], plain, 64);
    send_bytes(descriptors[4], old, sizeof old);
    send_bytes(descriptors[5], greeting, 64);
    send_bytes(descriptors[5], bad_ready, sizeof bad_ready);
    uint8_t noise[4096];
    test_random_fill(&random, noise, sizeof noise, false);
    send_bytes(descriptors[6], noise, sizeof noise);
    /* Stock sockets of the wrong kind. */
    void *wrong = zmq_socket(stock, ZMQ_REQ);
    char address[64];
    (void)snprintf(address, sizeof address, "tcp://127.0.0.1:%u", port);
    assert_int_equal(zmq_connect(wrong, address), 0);
    (void)zmq_send(wrong, "hello", 5, ZMQ_DONTWAIT);
    for (size_t i = 1; i <= 100; i++) {
        assert_int_equal(zmq_send(good, "good", 4, 0), 4);
        if (i == 50)
            (void)close(descriptors[0]);
        test_endpoints_expect(&endpoints, &pull.messages, i);
    }
    for (size_t i = 1; i < 8; i++)
        (void)close(descriptors[i]);
    assert_int_equal(zmq_send(good, "good", 4, 0), 4);
    test_endpoints_expect(&endpoints, &pull.messages, 101);
    assert_int_equal(pull.gone, 0);
    stock_close(good);
    stock_close(wrong);
    test_endpoints_expect(&endpoints, &pull.gone, 1);
    test_pull_close(&endpoints, &pull);
}

static void reset(int descriptor)
{
    struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    (void)close(descriptor);
}

static void look_for_good(void *user, uint64_t connection, const kvf_slice *frames, size_t count)
{
    (void)connection;
    assert_int_equal(count, 1);
    *(bool *)user |= frames[0].length == 4;
}

static const uint8_t ready[] = "\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH";
/* A message of one byte, then the start of another. */
static const uint8_t and_a_half[] = {0, 1, 'm', 1, 1, 'n', 0, 9};

/* Runs the loop until the other side has sent its greeting and its own READY. */
static void finish_handshake(int descriptor)
{
    uint8_t answer[sizeof greeting + sizeof ready - 1];
    size_t never = 0;
    uint64_t deadline = kvf_clock_now() + LONG;
    while (recv(descriptor, answer, sizeof answer, MSG_PEEK | MSG_DONTWAIT) !=
           (ssize_t)sizeof answer) {
        assert_true(kvf_clock_now() < deadline);
        (void)test_endpoints_wait(&endpoints, &never, 1, 1);
    }
}

/* Connections that die before, while and after libzmq asks whether to let them in, and in mid-message. */
static void test_handshakes_that_die(void **state)
{
    (void)state;
    uint8_t talk[sizeof greeting + sizeof ready - 1];
    memcpy(talk, greeting, sizeof greeting);
    memcpy(talk + sizeof greeting, ready, sizeof ready - 1);
    test_random random = test_random_start();
    bool well = false;
    test_pull pull = {.look = look_for_good, .user = &well};
    test_pull_open(&endpoints, &pull);
    uint16_t port = kvf_control_pull_port(pull.pull);
    void *good = stock_push(port);
    for (size_t i = 1; i <= 1000; i++) {
        int descriptor = tcp_connect(port);
        size_t length = i % 4 == 0 ? sizeof talk : test_random_below(&random, sizeof talk);
        send_bytes(descriptor, talk, length);
        if (i % 8 == 0) {
            finish_handshake(descriptor);
            send_bytes(descriptor, and_a_half, sizeof and_a_half);
        }
        if (i % 16 == 0)
            test_endpoints_expect(&endpoints, &pull.messages, pull.messages + 1);
        if (i % 7 == 0)
            (void)test_endpoints_wait(&endpoints, &pull.gone, SIZE_MAX, 1);
        reset(descriptor);
    }
    assert_int_equal(zmq_send(good, "good", 4, 0), 4);
    while (!well)
        test_endpoints_expect(&endpoints, &pull.messages, pull.messages + 1);
    assert_true(pull.messages > 1000 / 16);
    print_message("1000 broken handshakes, %zu of which got a message through\n",
                  pull.messages - 1);
    test_endpoints_expect(&endpoints, &pull.gone, pull.messages - 1);
    stock_close(good);
    test_endpoints_expect(&endpoints, &pull.gone, pull.messages);
    test_pull_close(&endpoints, &pull);
}

static void test_work_of_a_call_is_bounded(void **state)
{
    (void)state;
    test_pull pull = {0};
    test_pull_open(&endpoints, &pull);
    void *socket = stock_push(kvf_control_pull_port(pull.pull));
    enum { SINGLES = 900, FRAMES = 50000 };
    for (int i = 0; i < SINGLES; i++)
        assert_int_equal(zmq_send(socket, "x", 1, 0), 1);
    for (int i = 1; i <= FRAMES; i++)
        assert_int_equal(zmq_send(socket, "x", 1, i < FRAMES ? ZMQ_SNDMORE : 0), 1);
    uint64_t deadline = kvf_clock_now() + LONG;
    size_t fullest = 0;
    size_t pieces = 0;
    while (pull.messages < SINGLES + 1 && kvf_clock_now() < deadline) {
        size_t before = pull.messages;
        bool more = kvf_control_pull_process(pull.pull);
        size_t handled = pull.messages - before;
        fullest = handled > fullest ? handled : fullest;
        pieces += more && handled == 0;
    }
    assert_int_equal(pull.messages, SINGLES + 1);
    assert_int_equal(pull.too_many_frames, 1);
    assert_true(fullest > 0 && fullest <= 64);
    assert_true(pieces >= FRAMES / 4096 - 1);
    stock_close(socket);
    test_pull_close(&endpoints, &pull);
}

static void test_too_many_frames(void **state)
{
    (void)state;
    test_pull pull = {0};
    test_pull_open(&endpoints, &pull);
    void *socket = stock_push(kvf_control_pull_port(pull.pull));
    static const size_t counts[] = {64, 65, 100000, 64};
    for (size_t m = 0; m < 4; m++)
        for (size_t i = 1; i <= counts[m]; i++)
            assert_int_equal(zmq_send(socket, "frame", 5, i < counts[m] ? ZMQ_SNDMORE : 0), 5);
    test_endpoints_expect(&endpoints, &pull.messages, 4);
    assert_int_equal(pull.too_many_frames, 2);
    assert_int_equal(pull.gone, 0);
    stock_close(socket);
    test_pull_close(&endpoints, &pull);
}

static void test_too_large_a_frame(void **state)
{
    (void)state;
    endpoints.settings.max_frame_bytes = 4096;
    test_endpoints_reopen(&endpoints);
    test_pull pull = {0};
    test_pull_open(&endpoints, &pull);
    uint16_t port = kvf_control_pull_port(pull.pull);
    void *good = stock_push(port);
    void *large = stock_push(port);
    char data[4097] = {0};
    assert_int_equal(zmq_send(good, data, 4096, 0), 4096);
    test_endpoints_expect(&endpoints, &pull.messages, 1);
    assert_int_equal(zmq_send(large, data, 4096, 0), 4096);
    assert_int_equal(zmq_send(large, data, 4097, 0), 4097);
    test_endpoints_expect(&endpoints, &pull.messages, 2);
    test_endpoints_expect(&endpoints, &pull.gone, 1);
    assert_int_equal(pull.last_gone, pull.last_connection);
    assert_int_equal(zmq_send(good, data, 1, 0), 1);
    test_endpoints_expect(&endpoints, &pull.messages, 3);
    stock_close(good);
    stock_close(large);
    test_pull_close(&endpoints, &pull);
}

/* ---- addresses ---- */

static kvf_status try_pull(const char *host, uint16_t port, kvf_error *error)
{
    kvf_control_pull *pull = NULL;
    const kvf_control_pull_callbacks callbacks = {0};
    kvf_status status =
        kvf_control_pull_open(endpoints.control, host, port, &callbacks, &pull, error);
    assert_true((pull != NULL) == (status == KVF_OK));
    if (pull != NULL)
        assert_int_not_equal(kvf_control_pull_port(pull), 0);
    kvf_control_pull_close(pull);
    return status;
}

static void test_addresses_to_bind(void **state)
{
    (void)state;
    test_pull pull = {0};
    test_pull_open(&endpoints, &pull);
    uint16_t port = kvf_control_pull_port(pull.pull);
    kvf_error error;
    assert_int_equal(try_pull("127.0.0.1", port, &error), KVF_ADDRESS_IN_USE);
    print_message("%s\n", error.text);
    test_pull_close(&endpoints, &pull);
    assert_int_equal(try_pull("127.0.0.1", port, &error), KVF_OK);
    assert_int_equal(try_pull("localhost", 0, &error), KVF_OK);
    assert_int_equal(try_pull("0.0.0.0", 0, &error), KVF_OK);
    assert_int_equal(try_pull("192.0.2.77", 0, &error), KVF_INVALID_ARGUMENT);
    print_message("%s\n", error.text);
    static const char *const bad[] = {"", "a;b", "127.0.0.1/x", "*", "a b", "[::1]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(try_pull(bad[i], 0, &error), KVF_INVALID_ARGUMENT);
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int descriptor = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool works =
        descriptor >= 0 && bind(descriptor, (struct sockaddr *)&address, sizeof address) == 0;
    if (descriptor >= 0)
        (void)close(descriptor);
    return works;
}

static void on_ipv6_message(void *user, uint64_t connection, const kvf_slice *frames, size_t count)
{
    (void)connection, (void)frames, (void)count;
    ++*(size_t *)user;
}

static void on_ipv6_gone(void *user, uint64_t connection)
{
    (void)user, (void)connection;
}

static void on_ipv6_connected(void *user)
{
    kvf_control_push **push = user;
    bool put_off = true;
    kvf_slice frame = kvf_slice_of("from inside a callback");
    assert_int_equal(kvf_control_push_send(*push, &frame, 1, &put_off, NULL), KVF_OK);
    assert_false(put_off);
}

static void on_ipv6_lost(void *user, const char *text)
{
    (void)user;
    fail_msg("%s", text);
}

static void test_ipv6(void **state)
{
    (void)state;
    if (!has_ipv6())
        skip();
    size_t messages = 0;
    kvf_control_pull *pull = NULL;
    kvf_control_push *push = NULL;
    const kvf_control_pull_callbacks pull_callbacks = {&messages, on_ipv6_message, on_ipv6_gone};
    const kvf_control_push_callbacks push_callbacks = {&push, on_ipv6_connected, NULL,
                                                       on_ipv6_lost};
    assert_int_equal(
        kvf_control_pull_open(endpoints.control, "::1", 0, &pull_callbacks, &pull, NULL), KVF_OK);
    assert_int_equal(kvf_control_push_open(endpoints.control, "::1", kvf_control_pull_port(pull),
                                           LONG, &push_callbacks, &push, NULL),
                     KVF_OK);
    uint64_t deadline = kvf_clock_now() + LONG;
    while (messages == 0 && kvf_clock_now() < deadline) {
        while (kvf_control_pull_process(pull) || kvf_control_push_process(push))
            ;
        (void)poll(NULL, 0, 1);
    }
    assert_int_equal(messages, 1);
    kvf_control_push_close(push);
    kvf_control_pull_close(pull);
}

static void test_local_host(void **state)
{
    (void)state;
    char host[256];
    kvf_control_local_host(&endpoints.settings, host);
    struct in_addr ipv4;
    struct in6_addr ipv6;
    if (inet_pton(AF_INET, host, &ipv4) == 1)
        assert_true(ipv4.s_addr != htonl(INADDR_ANY));
    else
        assert_true(inet_pton(AF_INET6, host, &ipv6) == 1 && !IN6_IS_ADDR_UNSPECIFIED(&ipv6));
    kvf_settings settings = endpoints.settings;
    (void)snprintf(settings.advertise_address, sizeof settings.advertise_address, "10.1.2.3");
    kvf_control_local_host(&settings, host);
    assert_string_equal(host, "10.1.2.3");
}

static void test_addresses_that_mean_all(void **state)
{
    (void)state;
    static const char *const all[] = {
        "0.0.0.0",        "0", "000.0.0.0", "::", "[::]", "[::0]", "0:0:0:0:0:0:0:0",
        "::ffff:0.0.0.0", "*"};
    static const char *const some[] = {"",        "10.1.2.3",        "0.0.0.1",   "::1",   "[::1]",
                                       "fe80::1", "::ffff:10.0.0.0", "localhost", "node*", "[]"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!kvf_control_is_wildcard(all[i]))
            fail_msg("%s is taken for an address", all[i]);
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
        if (kvf_control_is_wildcard(some[i]))
            fail_msg("\"%s\" is taken for every address", some[i]);
}

/* ---- binding ---- */

/* What this thread binds to IPv4, while it is being watched; libzmq comes through here as well. */
static _Thread_local struct {
    bool watched;
    size_t binds;
    size_t chosen_before; /* with a port already */
    uint16_t port;        /* that the system gave at last */
} bound;

__attribute__((visibility("default"))) int bind(int descriptor, __CONST_SOCKADDR_ARG address,
                                                socklen_t length)
{
    const struct sockaddr_in *ipv4 = (const void *)address.__sockaddr__;
    int result = (int)syscall(SYS_bind, descriptor, ipv4, length);
    if (!bound.watched || ipv4->sin_family != AF_INET)
        return result;
    struct sockaddr_in name = {0};
    socklen_t size = sizeof name;
    (void)getsockname(descriptor, (struct sockaddr *)&name, &size);
    bound.binds++;
    bound.chosen_before += ipv4->sin_port != 0;
    bound.port = ntohs(name.sin_port);
    return result;
}

/* B10: a port that is looked for first and bound later may be another's by then. */
static void test_any_port_is_bound_at_once(void **state)
{
    (void)state;
    enum { PULLS = 8 };
    static test_pull pulls[PULLS];
    size_t once = 0;
    size_t told = 0;
    size_t chosen_before = 0;
    for (size_t i = 0; i < PULLS; i++) {
        memset(&bound, 0, sizeof bound);
        bound.watched = true;
        test_pull_open(&endpoints, &pulls[i]);
        bound.watched = false;
        once += bound.binds == 1 && bound.port != 0;
        chosen_before += bound.chosen_before;
        told += kvf_control_pull_port(pulls[i].pull) == bound.port;
    }
    for (size_t i = 0; i < PULLS; i++)
        test_pull_close(&endpoints, &pulls[i]);
    assert_int_equal(chosen_before, 0);
    assert_int_equal(once, PULLS);
    assert_int_equal(told, PULLS);
}

/* ---- a PUSH that comes to nothing ---- */

static void expect_gone(test_push *push, uint64_t start, double least, double most)
{
    test_endpoints_expect(&endpoints, &push->gone, 1);
    double took = (double)(push->gone_at - start) / (double)KVF_MILLISECOND;
    print_message("after %.1f ms: %s\n", took, push->text);
    assert_true(took >= least && took <= most);
    assert_int_equal(push->gone, 1);
    bool put_off = true;
    kvf_slice frame = kvf_slice_of("late");
    assert_int_equal(kvf_control_push_send(push->push, &frame, 1, &put_off, NULL), KVF_PEER_GONE);
    assert_false(put_off);
    assert_false(kvf_control_push_process(push->push));
    test_push_close(&endpoints, push);
}

static void test_connect_refused(void **state)
{
    (void)state;
    uint16_t port = 0;
    int descriptor = tcp_bound(false, &port);
    test_push push;
    uint64_t start = kvf_clock_now();
    test_push_open(&endpoints, &push, port, LONG);
    expect_gone(&push, start, 0, 5000);
    (void)close(descriptor);
}

static void test_silent_peer(void **state)
{
    (void)state;
    uint16_t port = 0;
    int descriptor = tcp_bound(true, &port);
    test_push push;
    uint64_t start = kvf_clock_now();
    test_push_open(&endpoints, &push, port, SHORT);
    /* Not much later, on a machine as busy as may be. */
    expect_gone(&push, start, 299, 2000);
    (void)close(descriptor);
}

static void test_peers_of_the_wrong_kind(void **state)
{
    (void)state;
    uint16_t port = 0;
    void *rep = stock_bound(ZMQ_REP, &port);
    test_push push;
    uint64_t start = kvf_clock_now();
    test_push_open(&endpoints, &push, port, LONG);
    expect_gone(&push, start, 0, 5000);
    stock_close(rep);

    int listener = tcp_bound(true, &port);
    start = kvf_clock_now();
    test_push_open(&endpoints, &push, port, LONG);
    int accepted = accept(listener, NULL, NULL);
    static const char answer[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    send_bytes(accepted, answer, sizeof answer - 1);
    (void)close(accepted);
    expect_gone(&push, start, 0, 5000);
    (void)close(listener);
}

static kvf_status try_push(const char *host, uint16_t port, uint64_t timeout, test_push *push)
{
    kvf_control_push_callbacks callbacks = {0};
    kvf_error error;
    kvf_status status = kvf_control_push_open(endpoints.control, host, port, timeout, &callbacks,
                                              &push->push, &error);
    assert_true((push->push != NULL) == (status == KVF_OK));
    return status;
}

static void test_addresses_to_connect_to(void **state)
{
    (void)state;
    test_push push;
    assert_int_equal(try_push("127.0.0.1", 0, LONG, &push), KVF_INVALID_ARGUMENT);
    assert_int_equal(try_push("", 1, LONG, &push), KVF_INVALID_ARGUMENT);
    assert_int_equal(try_push("1.2.3.4;127.0.0.1", 1, LONG, &push), KVF_INVALID_ARGUMENT);
    char endless[400];
    memset(endless, 'a', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    assert_int_equal(try_push(endless, 1, LONG, &push), KVF_INVALID_ARGUMENT);
}

/* A name that nothing resolves gives no event at all in ZeroMQ; "a..b" is refused without asking a server. */
static void test_names_to_connect_to(void **state)
{
    (void)state;
    test_pull pull = {0};
    test_pull_open(&endpoints, &pull);
    test_push push;
    test_push_open_host(&endpoints, &push, "localhost", kvf_control_pull_port(pull.pull), LONG);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    test_push_close(&endpoints, &push);
    uint64_t start = kvf_clock_now();
    test_push_open_host(&endpoints, &push, "a..b", 1, SHORT);
    expect_gone(&push, start, 0, 5000);
    test_pull_close(&endpoints, &pull);
}

/* ---- a PUSH that is held back ---- */

static void fill(test_push *push, size_t *sent)
{
    static char text[60000];
    memset(text, 'x', sizeof text - 1);
    kvf_slice frame = kvf_slice_of(text);
    /* Full is what stays full while the I/O thread moves what the kernel takes. */
    for (int quiet = 0; quiet < 20;) {
        bool put_off = false;
        assert_int_equal(kvf_control_push_send(push->push, &frame, 1, &put_off, NULL), KVF_OK);
        *sent += !put_off;
        quiet = put_off && !test_endpoints_wait(&endpoints, &push->writable, push->writable + 1, 10)
                    ? quiet + 1
                    : 0;
    }
}

static void test_put_off_then_writable(void **state)
{
    (void)state;
    endpoints.settings.heartbeat_timeout = LONG; /* a reader that is held up counts as silent */
    test_endpoints_reopen(&endpoints);
    uint16_t port = 0;
    void *reader = stock_bound(ZMQ_PULL, &port);
    test_push push;
    test_push_open(&endpoints, &push, port, LONG);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    size_t sent = 0;
    fill(&push, &sent);
    size_t writable = push.writable;
    size_t read = 0;
    char data[60000];
    for (; push.writable == writable && read < sent; read++)
        if (zmq_recv(reader, data, sizeof data, 0) >= 0)
            (void)test_endpoints_wait(&endpoints, &push.writable, writable + 1, 0);
    test_endpoints_expect(&endpoints, &push.writable, writable + 1);
    test_push_send(&push, "last", 1);
    for (; read < sent; read++)
        assert_int_equal(zmq_recv(reader, data, sizeof data, 0), 59999);
    assert_int_equal(zmq_recv(reader, data, sizeof data, 0), 4);
    print_message("%zu messages taken before a send was put off\n", sent);
    test_push_close(&endpoints, &push);
    stock_close(reader);
}

/* There is room again, but who was put off first hasn't been told yet. */
static void test_nobody_overtakes_what_was_put_off(void **state)
{
    (void)state;
    endpoints.settings.heartbeat_timeout = LONG;
    test_endpoints_reopen(&endpoints);
    uint16_t port = 0;
    void *reader = stock_bound(ZMQ_PULL, &port);
    test_push push;
    test_push_open(&endpoints, &push, port, LONG);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    size_t sent = 0;
    fill(&push, &sent);
    size_t writable = push.writable;
    char data[60000];
    for (size_t read = 0; read < sent; read++)
        assert_int_equal(zmq_recv(reader, data, sizeof data, 0), 59999);
    kvf_slice frame = kvf_slice_of("next");
    bool put_off = false;
    assert_int_equal(kvf_control_push_send(push.push, &frame, 1, &put_off, NULL), KVF_OK);
    assert_true(put_off);
    test_endpoints_expect(&endpoints, &push.writable, writable + 1);
    test_push_send(&push, "last", 1);
    assert_int_equal(zmq_recv(reader, data, sizeof data, 0), 4);
    assert_memory_equal(data, "last", 4);
    test_push_close(&endpoints, &push);
    stock_close(reader);
}

static void test_close_discards_and_returns(void **state)
{
    (void)state;
    endpoints.settings.heartbeat_timeout = LONG;
    test_endpoints_reopen(&endpoints);
    uint16_t port = 0;
    void *reader = stock_bound(ZMQ_PULL, &port);
    test_push push;
    test_push_open(&endpoints, &push, port, LONG);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    size_t sent = 0;
    fill(&push, &sent);
    uint64_t start = kvf_clock_now();
    test_push_close(&endpoints, &push);
    test_endpoints_reopen(&endpoints);
    print_message("closed with unsent data in %.2f ms\n", milliseconds_since(start));
    assert_true(milliseconds_since(start) < 2000);
    stock_close(reader);
}

static void *hand_over(void *control)
{
    kvf_control_hand_over(control);
    return NULL;
}

/* At the end of a manager: what a connection has taken still leaves. */
static void test_close_lingers_when_told(void **state)
{
    (void)state;
    endpoints.settings.heartbeat_timeout = LONG;
    test_endpoints_reopen(&endpoints);
    uint16_t port = 0;
    void *reader = stock_bound(ZMQ_PULL, &port);
    int patience = 5000;
    assert_int_equal(zmq_setsockopt(reader, ZMQ_RCVTIMEO, &patience, sizeof patience), 0);
    test_push push;
    test_push_open(&endpoints, &push, port, LONG);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    size_t sent = 0;
    fill(&push, &sent);
    kvf_control_linger(endpoints.control, LONG);
    test_push_close(&endpoints, &push);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, hand_over, endpoints.control), 0);
    size_t read = 0;
    char data[60000];
    while (read < sent && zmq_recv(reader, data, sizeof data, 0) == 59999)
        read++;
    assert_int_equal(pthread_join(thread, NULL), 0);
    stock_close(reader);
    assert_int_equal(read, sent);
}

/* B27: what was queued for a dead peer must not reach the next process at its address. */
static void test_successor_gets_nothing(void **state)
{
    (void)state;
    endpoints.settings.heartbeat_timeout = LONG;
    test_endpoints_reopen(&endpoints);
    uint16_t port = 0;
    void *first = stock_bound(ZMQ_PULL, &port);
    test_push push;
    test_push_open(&endpoints, &push, port, LONG);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    size_t sent = 0;
    fill(&push, &sent);
    stock_close(first);
    void *second = stock_bound(ZMQ_PULL, &port);
    test_endpoints_expect(&endpoints, &push.gone, 1);
    print_message("%s\n", push.text);
    /* The old PUSH still exists while a new one connects and is served. */
    test_push fresh;
    test_push_open(&endpoints, &fresh, port, LONG);
    test_endpoints_expect(&endpoints, &fresh.connected, 1);
    test_push_send(&fresh, "fresh", 1);
    char data[16];
    assert_int_equal(zmq_recv(second, data, sizeof data, 0), 5);
    test_push_close(&endpoints, &fresh);
    test_push_close(&endpoints, &push);
    assert_int_equal(zmq_recv(second, data, sizeof data, ZMQ_DONTWAIT), -1);
    stock_close(second);
}

/* ---- resources ---- */

static void test_no_descriptor_is_left_open(void **state)
{
    (void)state;
    size_t before = test_entries("/proc/self/fd");
    uint64_t start = kvf_clock_now();
    for (int i = 0; i < 1000; i++) {
        test_pull pull = {0};
        test_push push;
        test_pull_open(&endpoints, &pull);
        test_push_open(&endpoints, &push, kvf_control_pull_port(pull.pull), LONG);
        if (i % 4 == 0)
            test_endpoints_expect(&endpoints, &push.connected, 1);
        if (i % 8 == 0) {
            test_push_send(&push, "hello", 2);
            test_endpoints_expect(&endpoints, &pull.messages, 1);
        }
        test_push_close(&endpoints, &push);
        test_pull_close(&endpoints, &pull);
    }
    print_message("1000 pairs opened and closed in %.0f ms\n", milliseconds_since(start));
    test_endpoints_reopen(&endpoints); /* closing a context waits for its sockets' descriptors */
    assert_int_equal(test_entries("/proc/self/fd"), before);
}

static double processor_milliseconds(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
}

static void test_idle_uses_no_processor(void **state)
{
    (void)state;
    test_pull pull = {0};
    test_push push;
    test_pull_open(&endpoints, &pull);
    test_push_open(&endpoints, &push, kvf_control_pull_port(pull.pull), LONG);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    test_push_send(&push, "hello", 1);
    test_endpoints_expect(&endpoints, &pull.messages, 1);
    endpoints.wakeups = 0;
    double before = processor_milliseconds();
    assert_false(test_endpoints_wait(&endpoints, &push.gone, 1, 3000));
    double used = processor_milliseconds() - before;
    print_message("idle for 3 s: %.2f ms of processor time (%.3f %%), %zu wake-ups\n", used,
                  used / 30, endpoints.wakeups);
#ifndef SANITIZED /* a sanitizer has threads of its own */
    assert_true(used < 3);
#endif
    assert_true(endpoints.wakeups <= 3);
    test_push_close(&endpoints, &push);
    test_pull_close(&endpoints, &pull);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_frames_arrive_whole),
        TEST(test_order_of_each_connection),
        TEST(test_short_lives_keep_their_messages),
        TEST(test_a_flood_hides_no_death),
        TEST(test_foreign_input_harms_nobody),
        TEST(test_handshakes_that_die),
        TEST(test_work_of_a_call_is_bounded),
        TEST(test_too_many_frames),
        TEST(test_too_large_a_frame),
        TEST(test_addresses_to_bind),
        TEST(test_ipv6),
        TEST(test_local_host),
        TEST(test_addresses_that_mean_all),
        TEST(test_any_port_is_bound_at_once),
        TEST(test_connect_refused),
        TEST(test_silent_peer),
        TEST(test_peers_of_the_wrong_kind),
        TEST(test_addresses_to_connect_to),
        TEST(test_names_to_connect_to),
        TEST(test_put_off_then_writable),
        TEST(test_nobody_overtakes_what_was_put_off),
        TEST(test_close_discards_and_returns),
        TEST(test_close_lingers_when_told),
        TEST(test_successor_gets_nothing),
        TEST(test_no_descriptor_is_left_open),
        TEST(test_idle_uses_no_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
