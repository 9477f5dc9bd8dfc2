/* A letter that was lost with its connection, while the other one lives, is written again: nobody else tells the decode
 * how its room has ended. Between the two is a proxy that swallows the letter and cuts the connection. */
#include "support/worker.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 8, LETTER = 24 };

typedef struct proxy {
    int listener;
    uint16_t port; /* its own and the decode's */
    atomic_bool swallow;
    atomic_uint cuts;
    atomic_bool over;
    pthread_t thread;
} proxy;

#define DECODE_HOST "127.0.0.1"
#define PROXY_HOST "127.0.0.2" /* with the decode's port number, as its requests name it */

static int bound(uint16_t port)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port)};
    assert_int_equal(inet_pton(AF_INET, PROXY_HOST, &where.sin_addr), 1);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&where, sizeof where), 0);
    assert_int_equal(listen(listener, 16), 0);
    return listener;
}

static int connected(uint16_t port)
{
    struct sockaddr_in where = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(made, (struct sockaddr *)&where, sizeof where) == 0)
        return made;
    (void)close(made);
    return -1;
}

/* False at the end of the connection, or where it is cut: a heartbeat is shorter than any letter. */
static bool pump(proxy *between, int from, int to, bool to_decode)
{
    char data[4096];
    ssize_t length = read(from, data, sizeof data);
    if (length <= 0)
        return false;
    if (to_decode && atomic_load(&between->swallow)) {
        if (length <= LETTER)
            return true;
        atomic_store(&between->swallow, false);
        atomic_fetch_add(&between->cuts, 1);
        return false;
    }
    return write(to, data, (size_t)length) == length;
}

static void serve(proxy *between, int prefill)
{
    int decode = connected(between->port);
    bool open = decode >= 0;
    while (open && !atomic_load(&between->over)) {
        struct pollfd ends[2] = {{.fd = prefill, .events = POLLIN},
                                 {.fd = decode, .events = POLLIN}};
        (void)poll(ends, 2, 50);
        if (ends[0].revents != 0)
            open = pump(between, prefill, decode, true);
        if (open && ends[1].revents != 0)
            open = pump(between, decode, prefill, false);
    }
    (void)close(prefill);
    if (decode >= 0)
        (void)close(decode);
}

static void *run_proxy(void *user)
{
    proxy *between = user;
    while (!atomic_load(&between->over)) {
        struct pollfd listener = {.fd = between->listener, .events = POLLIN};
        if (poll(&listener, 1, 50) > 0)
            serve(between, accept(between->listener, NULL, NULL));
    }
    return NULL;
}

typedef struct scene {
    proxy between;
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode;
} scene;

static const char *const patient[] = {"fence_timeout", "60s", NULL};

static void start(scene *one)
{
    static const char *const behind[] = {"control_address",
                                         DECODE_HOST,
                                         "advertise_address",
                                         PROXY_HOST,
                                         "fence_timeout",
                                         "60s",
                                         NULL};
    memset(one, 0, sizeof *one);
    test_use_engine("loop");
    test_bootstrap_open(&one->bootstrap);
    test_worker_open(&one->prefill, KVF_PREFILL, NULL, one->bootstrap.address, patient);
    test_worker_open(&one->decode, KVF_DECODE, NULL, one->bootstrap.address, behind);
    one->between.port = kvf_manager_port(one->decode.manager);
    one->between.listener = bound(one->between.port);
    assert_int_equal(pthread_create(&one->between.thread, NULL, run_proxy, &one->between), 0);
}

static void stop(scene *one)
{
    test_worker_close(&one->decode);
    test_worker_close(&one->prefill);
    test_bootstrap_close(&one->bootstrap);
    atomic_store(&one->between.over, true);
    pthread_join(one->between.thread, NULL);
    (void)close(one->between.listener);
}

/* Its request has come, and the hello gone back. */
static kvf_receiver *ask(scene *one)
{
    static const uint32_t pages[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
    kvf_receiver *receiver = test_receiver_open(&one->decode, one->bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, 0), KVF_OK);
    test_wait_statistic(&one->decode, messages_received, 1);
    return receiver;
}

static void a_lost_failure_is_told_again(void **state)
{
    (void)state;
    scene one;
    start(&one);
    kvf_receiver *receiver = ask(&one);
    kvf_sender *sender = test_sender_open(&one.prefill, 1);
    atomic_store(&one.between.swallow, true);
    kvf_sender_abort(sender);
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "aborted by this side");
    assert_int_equal(atomic_load(&one.between.cuts), 1);
    stop(&one);
}

static void a_lost_acknowledgement_is_given_again(void **state)
{
    (void)state;
    scene one;
    start(&one);
    kvf_receiver *receiver = ask(&one);
    atomic_store(&one.between.swallow, true);
    kvf_receiver_abort(receiver);
    assert_int_equal(kvf_receiver_wait(receiver, 20000), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_ACKNOWLEDGED);
    assert_int_equal(atomic_load(&one.between.cuts), 1);
    stop(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_failure_is_told_again),
        cmocka_unit_test(a_lost_acknowledgement_is_given_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
