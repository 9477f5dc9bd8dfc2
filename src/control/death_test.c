/* Real processes that are really killed and stopped, seen from both sides. The test runs itself again in
 * the role of a peer: with the product's endpoints, or stock ones (plain libzmq with its defaults). */
#include "control/control.h"

#include "support/endpoints.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#define HEARTBEAT_INTERVAL (200 * KVF_MILLISECOND)
#define HEARTBEAT_TIMEOUT (600 * KVF_MILLISECOND)
#define HEARTBEATS 800.0
/* A machine with every core busy may be late. */
#define LATENESS 1500.0

static test_endpoints endpoints;

static void open_endpoints(void)
{
    test_endpoints_open(&endpoints);
    endpoints.settings.heartbeat_interval = HEARTBEAT_INTERVAL;
    endpoints.settings.heartbeat_timeout = HEARTBEAT_TIMEOUT;
    test_endpoints_reopen(&endpoints);
}

/* ---- the peer's process ---- */

static int be_pull(void)
{
    static test_pull pull;
    open_endpoints();
    test_pull_open(&endpoints, &pull);
    (void)printf("%u\n", kvf_control_pull_port(pull.pull));
    (void)fflush(stdout);
    static const size_t never = 0;
    return test_endpoints_wait(&endpoints, &never, 1, 60000);
}

static int be_push(uint16_t port)
{
    static test_push push;
    open_endpoints();
    test_push_open(&endpoints, &push, port, 20 * KVF_SECOND);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    test_push_send(&push, "hello", 1);
    return !test_endpoints_wait(&endpoints, &push.gone, 1, 60000);
}

static int be_stock_pull(void)
{
    void *socket = zmq_socket(zmq_ctx_new(), ZMQ_PULL);
    char text[64];
    size_t size = sizeof text;
    if (zmq_bind(socket, "tcp://127.0.0.1:*") != 0 ||
        zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, text, &size) != 0)
        return 1;
    (void)printf("%s\n", strrchr(text, ':') + 1);
    (void)fflush(stdout);
    for (;;)
        (void)zmq_recv(socket, text, sizeof text, 0);
}

static int be_stock_push(uint16_t port)
{
    void *socket = zmq_socket(zmq_ctx_new(), ZMQ_PUSH);
    char address[64];
    (void)snprintf(address, sizeof address, "tcp://127.0.0.1:%u", port);
    if (zmq_connect(socket, address) != 0 || zmq_send(socket, "hello", 5, 0) != 5)
        return 1;
    for (;;)
        (void)pause();
}

static int be_peer(const char *role, uint16_t port)
{
    /* Not longer than the test, whatever becomes of it. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (strcmp(role, "pull") == 0)
        return be_pull();
    if (strcmp(role, "push") == 0)
        return be_push(port);
    if (strcmp(role, "stock-pull") == 0)
        return be_stock_pull();
    return be_stock_push(port);
}

/* ---- the test's side ---- */

static pid_t peer;

/* Returns the port that the peer has bound, if it binds one. */
static uint16_t start_peer(const char *role, uint16_t port)
{
    int output[2];
    char port_text[8];
    (void)snprintf(port_text, sizeof port_text, "%u", port);
    assert_int_equal(pipe2(output, 0), 0);
    peer = fork();
    assert_true(peer >= 0);
    if (peer == 0) {
        (void)dup2(output[1], STDOUT_FILENO);
        (void)close(output[0]);
        (void)close(output[1]);
        (void)execl("/proc/self/exe", "death_test", role, port_text, (char *)NULL);
        _exit(127);
    }
    (void)close(output[1]);
    char text[16] = "";
    if (port == 0)
        assert_true(read(output[0], text, sizeof text - 1) > 0);
    (void)close(output[0]);
    return (uint16_t)strtoul(text, NULL, 10);
}

static void end_peer(void)
{
    if (peer == 0)
        return;
    (void)kill(peer, SIGKILL); /* ends a stopped process too */
    (void)waitpid(peer, NULL, 0);
    peer = 0;
}

static int set_up(void **state)
{
    (void)state;
    open_endpoints();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    end_peer();
    test_endpoints_close(&endpoints);
    return 0;
}

static void check_time(const char *what, uint64_t struck, uint64_t noticed, double most)
{
    double took = (double)(noticed - struck) / (double)KVF_MILLISECOND;
    print_message("%s: noticed after %.1f ms\n", what, took);
    assert_true(took <= most);
}

/* Strikes a peer that binds, and waits for our PUSH to notice. */
static void strike_puller(const char *role, int signal_number, double most)
{
    test_push push;
    test_push_open(&endpoints, &push, start_peer(role, 0), 20 * KVF_SECOND);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    test_push_send(&push, "hello", 3);
    uint64_t struck = kvf_clock_now();
    assert_int_equal(kill(peer, signal_number), 0);
    test_endpoints_expect(&endpoints, &push.gone, 1);
    char what[64];
    (void)snprintf(what, sizeof what, "PUSH, %s struck by %s", role, strsignal(signal_number));
    check_time(what, struck, push.gone_at, most);
    test_push_close(&endpoints, &push);
}

/* Strikes a peer that connects, and waits for our PULL to notice. */
static void strike_pusher(const char *role, int signal_number, double most)
{
    test_pull pull = {0};
    test_pull_open(&endpoints, &pull);
    (void)start_peer(role, kvf_control_pull_port(pull.pull));
    test_endpoints_expect(&endpoints, &pull.messages, 1);
    uint64_t struck = kvf_clock_now();
    assert_int_equal(kill(peer, signal_number), 0);
    test_endpoints_expect(&endpoints, &pull.gone, 1);
    assert_int_equal(pull.last_gone, pull.last_connection);
    char what[64];
    (void)snprintf(what, sizeof what, "PULL, %s struck by %s", role, strsignal(signal_number));
    check_time(what, struck, pull.last_gone_at, most);
    test_pull_close(&endpoints, &pull);
}

static void test_killed_puller(void **state)
{
    (void)state;
    strike_puller("pull", SIGKILL, LATENESS);
}

static void test_killed_stock_puller(void **state)
{
    (void)state;
    strike_puller("stock-pull", SIGKILL, LATENESS);
}

static void test_stopped_puller(void **state)
{
    (void)state;
    strike_puller("pull", SIGSTOP, HEARTBEATS + LATENESS);
}

static void test_stopped_stock_puller(void **state)
{
    (void)state;
    strike_puller("stock-pull", SIGSTOP, HEARTBEATS + LATENESS);
}

static void test_killed_pusher(void **state)
{
    (void)state;
    strike_pusher("push", SIGKILL, LATENESS);
}

static void test_killed_stock_pusher(void **state)
{
    (void)state;
    strike_pusher("stock-push", SIGKILL, LATENESS);
}

static void test_stopped_pusher(void **state)
{
    (void)state;
    strike_pusher("push", SIGSTOP, HEARTBEATS + LATENESS);
}

static void test_stopped_stock_pusher(void **state)
{
    (void)state;
    strike_pusher("stock-push", SIGSTOP, HEARTBEATS + LATENESS);
}

/* A stopped peer that goes on after it was given up: it is a new connection, the old one stays gone. */
static void test_stopped_pusher_comes_back_as_another(void **state)
{
    (void)state;
    test_pull pull = {0};
    test_pull_open(&endpoints, &pull);
    (void)start_peer("push", kvf_control_pull_port(pull.pull));
    test_endpoints_expect(&endpoints, &pull.messages, 1);
    assert_int_equal(kill(peer, SIGSTOP), 0);
    test_endpoints_expect(&endpoints, &pull.gone, 1);
    assert_int_equal(kill(peer, SIGCONT), 0);
    /* Our PUSH in the peer doesn't reconnect: the process ends by itself, content. */
    int status = 0;
    assert_int_equal(waitpid(peer, &status, 0), peer);
    peer = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    (void)start_peer("stock-push", kvf_control_pull_port(pull.pull));
    test_endpoints_expect(&endpoints, &pull.messages, 2);
    assert_int_equal(pull.gone, 1);
    assert_true(pull.last_connection != pull.last_gone);
    test_pull_close(&endpoints, &pull);
}

/* Heartbeats must not cut a peer that is merely quiet. */
static void test_quiet_peer_stays(void **state)
{
    (void)state;
    test_push push;
    test_push_open(&endpoints, &push, start_peer("stock-pull", 0), 20 * KVF_SECOND);
    test_endpoints_expect(&endpoints, &push.connected, 1);
    assert_false(test_endpoints_wait(&endpoints, &push.gone, 1, 2500));
    test_push_send(&push, "still here", 1);
    test_push_close(&endpoints, &push);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(int argument_count, char **arguments)
{
    if (argument_count == 3)
        return be_peer(arguments[1], (uint16_t)strtoul(arguments[2], NULL, 10));
    const struct CMUnitTest tests[] = {
        TEST(test_killed_puller),
        TEST(test_killed_stock_puller),
        TEST(test_stopped_puller),
        TEST(test_stopped_stock_puller),
        TEST(test_killed_pusher),
        TEST(test_killed_stock_pusher),
        TEST(test_stopped_pusher),
        TEST(test_stopped_stock_pusher),
        TEST(test_stopped_pusher_comes_back_as_another),
        TEST(test_quiet_peer_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
