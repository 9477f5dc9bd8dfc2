/* The client against our server, and against servers that misbehave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "bootstrap/client.h"
#include "support/process.h"

#define PATIENCE (20 * KVF_SECOND) /* how long anything may take before a test fails */

/* ---- A resolver that can be made to hang ------------------------------------------------------ */

/* curl calls this instead of libc's (that's why it must be visible): "hangs.test" is answered when the
 * test lets it. */
static pthread_mutex_t resolver_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t resolver_changed = PTHREAD_COND_INITIALIZER;
static bool resolver_hangs;
static int resolver_waiting;

typedef int resolve_function(const char *, const char *, const struct addrinfo *,
                             struct addrinfo **);

__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **result)
{
    if (node != NULL && strcmp(node, "hangs.test") == 0) {
        (void)pthread_mutex_lock(&resolver_lock);
        resolver_waiting++;
        (void)pthread_cond_broadcast(&resolver_changed);
        while (resolver_hangs)
            (void)pthread_cond_wait(&resolver_changed, &resolver_lock);
        resolver_waiting--;
        (void)pthread_cond_broadcast(&resolver_changed);
        (void)pthread_mutex_unlock(&resolver_lock);
        return EAI_NONAME;
    }
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");
    resolve_function *resolve;
    memcpy(&resolve, &symbol, sizeof resolve);
    return resolve(node, service, hints, result);
}

/* ---- The client under test -------------------------------------------------------------------- */

typedef struct outcome {
    unsigned count;
    kvf_bootstrap_answer answer;
} outcome;

static void keep(void *user, const kvf_bootstrap_answer *answer)
{
    outcome *kept = user;
    kept->count++;
    kept->answer = *answer;
}

static kvf_settings test_settings(void)
{
    kvf_settings settings;
    kvf_settings_defaults(&settings);
    settings.log.level = KVF_LOG_OFF;
    return settings;
}

static kvf_settings impatient_settings(void)
{
    kvf_settings settings = test_settings();
    settings.http_connect_timeout = 300 * KVF_MILLISECOND;
    settings.http_timeout = 300 * KVF_MILLISECOND;
    return settings;
}

static kvf_bootstrap_client *open_client(const kvf_settings *settings)
{
    kvf_bootstrap_client *client;
    kvf_error error;
    if (kvf_bootstrap_client_open(settings, &client, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return client;
}

/* One turn of an event loop; process() itself must not wait for anything. */
static void turn(kvf_bootstrap_client *client, uint64_t until)
{
    uint64_t now = kvf_clock_now();
    uint64_t deadline = kvf_bootstrap_client_deadline(client);
    struct pollfd waiting = {.fd = kvf_bootstrap_client_descriptor(client), .events = POLLIN};
    (void)poll(&waiting, 1, kvf_clock_wait(now, deadline < until ? deadline : until));
    now = kvf_clock_now();
    kvf_bootstrap_client_process(client);
    assert_true(kvf_clock_now() - now < KVF_SECOND);
}

static void run_until(kvf_bootstrap_client *client, const unsigned *count, unsigned wanted)
{
    uint64_t until = kvf_clock_now() + PATIENCE;
    while (*count < wanted) {
        turn(client, until);
        if (kvf_clock_now() > until)
            fail_msg("%u of %u calls ended", *count, wanted);
    }
    assert_int_equal(*count, wanted);
}

static kvf_bootstrap_call *begin_topology(kvf_bootstrap_client *client, const char *address,
                                          outcome *kept)
{
    kvf_bootstrap_call *call;
    kvf_error error;
    if (kvf_bootstrap_get_topology(client, address, keep, kept, &call, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return call;
}

static kvf_bootstrap_answer topology(kvf_bootstrap_client *client, const char *address)
{
    outcome kept = {0};
    (void)begin_topology(client, address, &kept);
    run_until(client, &kept.count, 1);
    return kept.answer;
}

static kvf_bootstrap_answer rank(kvf_bootstrap_client *client, const char *address,
                                 uint32_t dp_group, uint32_t tp_rank)
{
    outcome kept = {0};
    kvf_bootstrap_call *call;
    kvf_error error;
    if (kvf_bootstrap_get_rank(client, address, dp_group, tp_rank, keep, &kept, &call, &error) !=
        KVF_OK)
        fail_msg("%s", error.text);
    run_until(client, &kept.count, 1);
    return kept.answer;
}

static const kvf_route_registration golden_registration = {.rank_ip = "127.0.0.1",
                                                           .rank_port = 50713,
                                                           .tp_size = 1,
                                                           .dp_size = 1,
                                                           .engine_rank = 0,
                                                           .is_prefill = true};

static kvf_bootstrap_answer put(kvf_bootstrap_client *client, const char *address,
                                const kvf_route_registration *registration)
{
    outcome kept = {0};
    kvf_bootstrap_call *call;
    kvf_error error;
    if (kvf_bootstrap_put(client, address, registration, keep, &kept, &call, &error) != KVF_OK)
        fail_msg("%s", error.text);
    run_until(client, &kept.count, 1);
    return kept.answer;
}

static void expect_outcome(kvf_bootstrap_answer answer, kvf_bootstrap_outcome wanted,
                           const char *text)
{
    if (answer.outcome != wanted)
        fail_msg("outcome %d instead of %d: %s", answer.outcome, wanted, answer.error.text);
    if (wanted == KVF_BOOTSTRAP_ANSWERED) {
        assert_int_equal(answer.error.status, KVF_OK);
        return;
    }
    assert_int_not_equal(answer.error.status, KVF_OK);
    if (strstr(answer.error.text, text) == NULL)
        fail_msg("\"%s\" doesn't say \"%s\"", answer.error.text, text);
}

/* ---- A server that follows a script ----------------------------------------------------------- */

typedef struct script {
    const char *answer; /* sent for each request; NULL: silence */
    const char *second; /* the rest of the answer, sent a little later */
    bool closes;        /* the connection, after each answer */
    size_t filler;      /* bytes of 'x' sent after the answer */
    int family;         /* 0: IPv4 */
    int listener;
    int stop;
    pthread_t thread;
    char address[64];
    char request[2048]; /* the latest */
    unsigned connections;
    unsigned requests;
} script;

/* Waits until `descriptor` is readable; false when the test wants to end. */
static bool wait_readable(const script *server, int descriptor)
{
    struct pollfd waiting[] = {{.fd = server->stop, .events = POLLIN},
                               {.fd = descriptor, .events = POLLIN}};
    (void)poll(waiting, 2, -1);
    return waiting[0].revents == 0;
}

static bool request_complete(const char *request)
{
    const char *end = strstr(request, "\r\n\r\n");
    if (end == NULL)
        return false;
    const char *length = strstr(request, "Content-Length: ");
    return length == NULL || strlen(end + 4) >= (size_t)atoi(length + strlen("Content-Length: "));
}

static bool read_request(script *server, int descriptor)
{
    size_t used = 0;
    char request[sizeof server->request] = "";
    while (!request_complete(request)) {
        if (!wait_readable(server, descriptor))
            return false;
        ssize_t got = recv(descriptor, request + used, sizeof request - 1 - used, 0);
        if (got <= 0)
            return false;
        used += (size_t)got;
    }
    memcpy(server->request, request, sizeof request); /* the test looks after the answer */
    server->requests++;
    return true;
}

static void send_script(const script *server, int descriptor)
{
    (void)!send(descriptor, server->answer, strlen(server->answer), MSG_NOSIGNAL);
    if (server->second != NULL) {
        (void)poll(NULL, 0, 50); /* a slow server */
        (void)!send(descriptor, server->second, strlen(server->second), MSG_NOSIGNAL);
    }
    char block[1024];
    memset(block, 'x', sizeof block);
    for (size_t left = server->filler; left > 0;) {
        ssize_t sent =
            send(descriptor, block, left < sizeof block ? left : sizeof block, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        left -= (size_t)sent;
    }
}

/* One connection after another; with silence, connections pile up in the backlog. */
static void *follow(void *user)
{
    script *server = user;
    while (wait_readable(server, server->listener)) {
        int descriptor = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
        if (descriptor < 0)
            continue;
        server->connections++;
        while (read_request(server, descriptor)) {
            if (server->answer == NULL)
                continue;
            send_script(server, descriptor);
            if (server->closes)
                break;
        }
        (void)close(descriptor);
    }
    return NULL;
}

static void start_script(script *server)
{
    server->family = server->family == 0 ? AF_INET : server->family;
    server->stop = eventfd(0, EFD_CLOEXEC);
    server->listener = socket(server->family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool is_v4 = server->family == AF_INET;
    struct sockaddr *address = is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    socklen_t length = is_v4 ? sizeof v4 : sizeof v6;
    assert_int_equal(bind(server->listener, address, length), 0);
    assert_int_equal(listen(server->listener, 64), 0);
    assert_int_equal(getsockname(server->listener, address, &length), 0);
    (void)snprintf(server->address, sizeof server->address, is_v4 ? "127.0.0.1:%u" : "[::1]:%u",
                   ntohs(is_v4 ? v4.sin_port : v6.sin6_port));
    assert_int_equal(pthread_create(&server->thread, NULL, follow, server), 0);
}

/* After this the script's counters may be read. */
static void stop_script(script *server)
{
    const uint64_t one = 1;
    assert_int_equal(write(server->stop, &one, sizeof one), sizeof one);
    (void)pthread_join(server->thread, NULL);
    (void)close(server->stop);
    (void)close(server->listener);
}

/* A port where nothing listens. It stays bound, so that nothing else takes it. */
static int dead_port(char address[64])
{
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    assert_int_equal(bind(descriptor, (struct sockaddr *)&name, length), 0);
    assert_int_equal(getsockname(descriptor, (struct sockaddr *)&name, &length), 0);
    (void)snprintf(address, 64, "127.0.0.1:%u", ntohs(name.sin_port));
    return descriptor;
}

static kvf_bootstrap *start_server(const char *listen_address, char address[64])
{
    kvf_settings settings = test_settings();
    kvf_bootstrap *server;
    if (kvf_bootstrap_start(&server, listen_address, &settings) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    (void)snprintf(address, 64, "%.*s:%u", (int)(strrchr(listen_address, ':') - listen_address),
                   listen_address, kvf_bootstrap_port(server));
    return server;
}

/* ---- Against our server ----------------------------------------------------------------------- */

static void test_our_server(void **state)
{
    (void)state;
    char address[64];
    kvf_settings settings = test_settings();
    kvf_bootstrap *server = start_server("127.0.0.1:0", address);
    kvf_bootstrap_client *client = open_client(&settings);
    expect_outcome(topology(client, address), KVF_BOOTSTRAP_NOT_YET, "no rank has registered");
    expect_outcome(rank(client, address, 0, 0), KVF_BOOTSTRAP_NOT_YET, "rank 0 of dp group 0");
    kvf_route_registration registration = golden_registration;
    registration.tp_size = 4;
    registration.dp_size = 2;
    registration.engine_rank = 3;
    registration.extended = true;
    expect_outcome(put(client, address, &registration), KVF_BOOTSTRAP_ANSWERED, NULL);
    kvf_bootstrap_answer answer = topology(client, address);
    expect_outcome(answer, KVF_BOOTSTRAP_ANSWERED, NULL);
    assert_true(answer.topology.known);
    assert_int_equal(answer.topology.tp_size, 4);
    assert_int_equal(answer.topology.dp_size, 2);
    answer = rank(client, address, 1, 1);
    expect_outcome(answer, KVF_BOOTSTRAP_ANSWERED, NULL);
    assert_string_equal(answer.rank.rank_ip, "127.0.0.1");
    assert_int_equal(answer.rank.rank_port, 50713);
    assert_true(answer.rank.extended);
    answer = rank(client, address, 0, 1);
    expect_outcome(answer, KVF_BOOTSTRAP_NOT_YET, address);
    assert_int_equal(answer.error.status, KVF_BOOTSTRAP);
    registration.tp_size = 8;
    answer = put(client, address, &registration);
    expect_outcome(answer, KVF_BOOTSTRAP_REFUSED, "tp_size 8");
    assert_int_equal(answer.error.status, KVF_MISMATCH);
    kvf_bootstrap_client_close(client);
    kvf_bootstrap_stop(server);
}

static void test_many_calls_at_once(void **state)
{
    (void)state;
    enum { COUNT = 200 };
    char address[64];
    kvf_settings settings = test_settings();
    kvf_bootstrap *server = start_server("127.0.0.1:0", address);
    kvf_bootstrap_client *client = open_client(&settings);
    expect_outcome(put(client, address, &golden_registration), KVF_BOOTSTRAP_ANSWERED, NULL);
    outcome kept = {0};
    for (int i = 0; i < COUNT; i++)
        (void)begin_topology(client, address, &kept);
    run_until(client, &kept.count, COUNT);
    expect_outcome(kept.answer, KVF_BOOTSTRAP_ANSWERED, NULL);
    kvf_bootstrap_client_close(client);
    kvf_bootstrap_stop(server);
}

/* A kept connection that the server has closed meanwhile isn't a failure. */
static void test_server_restarts(void **state)
{
    (void)state;
    char address[64];
    char again[64];
    kvf_settings settings = test_settings();
    kvf_bootstrap *server = start_server("127.0.0.1:0", address);
    kvf_bootstrap_client *client = open_client(&settings);
    for (int i = 0; i < 3; i++) {
        expect_outcome(put(client, address, &golden_registration), KVF_BOOTSTRAP_ANSWERED, NULL);
        expect_outcome(topology(client, address), KVF_BOOTSTRAP_ANSWERED, NULL);
        kvf_bootstrap_stop(server);
        if (i == 0)
            expect_outcome(topology(client, address), KVF_BOOTSTRAP_FAILED, address);
        server = start_server(address, again);
        expect_outcome(topology(client, address), KVF_BOOTSTRAP_NOT_YET, "");
    }
    kvf_bootstrap_client_close(client);
    kvf_bootstrap_stop(server);
}

static bool have_ipv6(void)
{
    int descriptor = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool have =
        descriptor >= 0 && bind(descriptor, (struct sockaddr *)&address, sizeof address) == 0;
    if (descriptor >= 0)
        (void)close(descriptor);
    return have;
}

/* ---- What is sent ----------------------------------------------------------------------------- */

static void test_requests(void **state)
{
    (void)state;
    /* A proxy of the environment is for the outside. */
    assert_int_equal(setenv("http_proxy", "http://127.0.0.1:1", 1), 0);
    assert_int_equal(setenv("all_proxy", "http://127.0.0.1:1", 1), 0);
    kvf_settings settings = test_settings();
    kvf_bootstrap_client *client = open_client(&settings);
    script server = {.answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"};
    start_script(&server);
    expect_outcome(put(client, server.address, &golden_registration), KVF_BOOTSTRAP_ANSWERED, NULL);
    char host[96];
    (void)snprintf(host, sizeof host, "\r\nHost: %s\r\n", server.address);
    assert_int_equal(strncmp(server.request, "PUT /route HTTP/1.1\r\n", 21), 0);
    assert_non_null(strstr(server.request, host));
    assert_non_null(strstr(server.request, "\r\nContent-Type: application/json\r\n"));
    assert_null(strstr(server.request, "Expect"));
    /* The body is pair.json's. */
    assert_string_equal(strstr(server.request, "\r\n\r\n") + 4,
                        "{\"role\": \"Prefill\", \"tp_size\": 1, \"dp_size\": 1, \"rank_ip\": "
                        "\"127.0.0.1\", \"rank_port\": 50713, \"engine_rank\": 0}");
    expect_outcome(topology(client, server.address), KVF_BOOTSTRAP_FAILED, "JSON");
    const char *line = "GET /route?engine_rank=-1&target_dp_group=-1 HTTP/1.1\r\n";
    assert_int_equal(strncmp(server.request, line, strlen(line)), 0);
    expect_outcome(rank(client, server.address, 4, 7), KVF_BOOTSTRAP_FAILED, "JSON");
    line = "GET /route?engine_rank=7&target_dp_group=4 HTTP/1.1\r\n";
    assert_int_equal(strncmp(server.request, line, strlen(line)), 0);
    stop_script(&server);
    assert_int_equal(server.connections, 1); /* kept alive */
    assert_int_equal(server.requests, 3);
    kvf_bootstrap_client_close(client);
    assert_int_equal(unsetenv("http_proxy"), 0);
    assert_int_equal(unsetenv("all_proxy"), 0);
}

static void test_ipv6(void **state)
{
    (void)state;
    if (!have_ipv6())
        return;
    char address[64];
    kvf_settings settings = test_settings();
    kvf_bootstrap_client *client = open_client(&settings);
    script server = {.family = AF_INET6,
                     .answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"};
    start_script(&server);
    expect_outcome(put(client, server.address, &golden_registration), KVF_BOOTSTRAP_ANSWERED, NULL);
    char host[96];
    (void)snprintf(host, sizeof host, "\r\nHost: %s\r\n", server.address);
    assert_non_null(strstr(server.request, host));
    stop_script(&server);
    kvf_bootstrap *ours = start_server("[::1]:0", address);
    expect_outcome(topology(client, address), KVF_BOOTSTRAP_NOT_YET, address);
    /* As SGLang before 0.4.9.post4 writes it. */
    (void)snprintf(address, sizeof address, "::1:%u", kvf_bootstrap_port(ours));
    expect_outcome(topology(client, address), KVF_BOOTSTRAP_NOT_YET, "[::1]:");
    kvf_bootstrap_client_close(client);
    kvf_bootstrap_stop(ours);
}

static void test_bad_addresses(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    kvf_bootstrap_client *client = open_client(&settings);
    const char *const bad[] = {"",      "host",         ":80",   "host:0", "host:65536",
                               "a/b:1", "user@host:80", "a b:1", "a#b:1",  "http://host:80"};
    outcome kept = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvf_bootstrap_call *call;
        kvf_error error;
        assert_int_equal(kvf_bootstrap_get_topology(client, bad[i], keep, &kept, &call, &error),
                         KVF_INVALID_ARGUMENT);
        assert_null(call);
        assert_int_equal(
            kvf_bootstrap_put(client, bad[i], &golden_registration, keep, &kept, &call, &error),
            KVF_INVALID_ARGUMENT);
    }
    kvf_bootstrap_client_process(client);
    assert_int_equal(kept.count, 0);
    kvf_bootstrap_client_close(client);
    kvf_bootstrap_client_close(NULL);
}

/* ---- What is answered ------------------------------------------------------------------------- */

#define ANSWER(status, length, body)                                                               \
    "HTTP/1.1 " status "\r\nContent-Length: " length "\r\nConnection: close\r\n\r\n" body

static void test_answers(void **state)
{
    (void)state;
    static const struct {
        const char *answer;
        kvf_bootstrap_outcome topology, rank, put;
    } rows[] = {
        {ANSWER("500 Internal Server Error", "5", "oops!"), KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_NOT_YET, KVF_BOOTSTRAP_FAILED},
        {ANSWER("404 Not Found", "4", "what"), KVF_BOOTSTRAP_REFUSED, KVF_BOOTSTRAP_NOT_YET,
         KVF_BOOTSTRAP_REFUSED},
        {ANSWER("400 Bad Request", "4", "what"), KVF_BOOTSTRAP_REFUSED, KVF_BOOTSTRAP_REFUSED,
         KVF_BOOTSTRAP_REFUSED},
        {ANSWER("503 Unavailable", "0", ""), KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_FAILED},
        {ANSWER("302 Found\r\nLocation: http://127.0.0.1:1/route", "0", ""), KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED},
        {ANSWER("204 No Content", "0", ""), KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_FAILED},
        {ANSWER("200 OK", "0", ""), KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_FAILED},
        {ANSWER("200 OK", "13", "<html></html>"), KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_FAILED},
        /* Half an answer, nothing at all, and what isn't HTTP. */
        {ANSWER("200 OK", "100", "{\"pre"), KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_FAILED},
        {"HTTP/1.1 200 OK\r\nConten", KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_FAILED},
        {"", KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED},
        {"SSH-2.0-OpenSSH_9.2p1\r\n\x16\x03\x01 OK", KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_FAILED},
        {ANSWER("200 OK", "2", "OK"), KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_ANSWERED},
        {ANSWER("200 OK", "42", "{\"prefill_tp_size\": 2, \"prefill_dp_size\": 1}"),
         KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED},
        {ANSWER("200 OK", "44", "{\"prefill_tp_size\": 2, \"prefill_dp_size\": 1}"),
         KVF_BOOTSTRAP_ANSWERED, KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED},
        {ANSWER("200 OK", "44", "{\"prefill_tp_size\": 2, \"prefill_dp_size\": 0}"),
         KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP_FAILED},
        {ANSWER("200 OK", "33", "{\"rank_ip\": \"h\", \"rank_port\": 12}"), KVF_BOOTSTRAP_FAILED,
         KVF_BOOTSTRAP_ANSWERED, KVF_BOOTSTRAP_FAILED},
    };
    kvf_settings settings = test_settings();
    kvf_bootstrap_client *client = open_client(&settings);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        script server = {.answer = rows[i].answer, .closes = true};
        start_script(&server);
        expect_outcome(topology(client, server.address), rows[i].topology, server.address);
        expect_outcome(rank(client, server.address, 0, 0), rows[i].rank, server.address);
        expect_outcome(put(client, server.address, &golden_registration), rows[i].put,
                       server.address);
        stop_script(&server);
    }
    kvf_bootstrap_client_close(client);
}

/* What a stranger's server says must not forge lines of the log. */
static void test_texts_are_printable(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    kvf_bootstrap_client *client = open_client(&settings);
    script server = {.answer = ANSWER("400 Bad", "12", "no\nkvferry:\x1b"), .closes = true};
    start_script(&server);
    kvf_bootstrap_answer answer = topology(client, server.address);
    expect_outcome(answer, KVF_BOOTSTRAP_REFUSED, "HTTP 400: no?kvferry:?");
    stop_script(&server);
    kvf_bootstrap_client_close(client);
}

static void test_huge_answers(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    settings.max_http_body = 100000;
    kvf_bootstrap_client *client = open_client(&settings);
    const char *const heads[] = {"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
                                 "HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n",
                                 "HTTP/1.1 404 No\r\nContent-Length: 9999999999999\r\n\r\n"};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        script server = {.answer = heads[i], .closes = true, .filler = 100001};
        start_script(&server);
        expect_outcome(rank(client, server.address, 0, 0), KVF_BOOTSTRAP_FAILED, "max_http_body");
        stop_script(&server);
    }
    /* Exactly the limit is read. */
    script server = {.answer = heads[0], .closes = true, .filler = 100000};
    start_script(&server);
    expect_outcome(rank(client, server.address, 0, 0), KVF_BOOTSTRAP_FAILED, "JSON");
    stop_script(&server);
    /* A head without an end. */
    script endless = {.answer = "HTTP/1.1 200 OK\r\nX: ", .closes = true, .filler = 4 << 20};
    start_script(&endless);
    expect_outcome(rank(client, endless.address, 0, 0), KVF_BOOTSTRAP_FAILED, endless.address);
    stop_script(&endless);
    kvf_bootstrap_client_close(client);
}

static void test_slow_answer(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    kvf_bootstrap_client *client = open_client(&settings);
    script server = {.answer = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"prefill_tp_size\"",
                     .second = ": null, \"prefill_dp_size\": null}",
                     .closes = true};
    start_script(&server);
    expect_outcome(topology(client, server.address), KVF_BOOTSTRAP_NOT_YET, "registered");
    stop_script(&server);
    kvf_bootstrap_client_close(client);
}

/* ---- What isn't answered ---------------------------------------------------------------------- */

static void test_dead_port(void **state)
{
    (void)state;
    char address[64];
    kvf_settings settings = test_settings();
    kvf_bootstrap_client *client = open_client(&settings);
    int descriptor = dead_port(address);
    uint64_t start = kvf_clock_now();
    kvf_bootstrap_answer answer = topology(client, address);
    expect_outcome(answer, KVF_BOOTSTRAP_FAILED, address);
    assert_int_equal(answer.error.status, KVF_BOOTSTRAP);
    expect_outcome(put(client, address, &golden_registration), KVF_BOOTSTRAP_FAILED, address);
    assert_true(kvf_clock_now() - start < settings.http_timeout);
    (void)close(descriptor);
    kvf_bootstrap_client_close(client);
}

/* B05: a silent server costs its own calls their time, and nobody else's. */
static void test_silence(void **state)
{
    (void)state;
    char address[64];
    kvf_settings settings = impatient_settings();
    kvf_bootstrap *healthy = start_server("127.0.0.1:0", address);
    kvf_bootstrap_client *client = open_client(&settings);
    script server = {0};
    start_script(&server);
    outcome silent = {0};
    uint64_t start = kvf_clock_now();
    for (int i = 0; i < 5; i++)
        (void)begin_topology(client, server.address, &silent);
    expect_outcome(topology(client, address), KVF_BOOTSTRAP_NOT_YET, "");
    assert_int_equal(silent.count, 0);
    run_until(client, &silent.count, 5);
    expect_outcome(silent.answer, KVF_BOOTSTRAP_FAILED, "timed out");
    assert_in_range((kvf_clock_now() - start) / KVF_MILLISECOND, 250, 3000);
    stop_script(&server);
    kvf_bootstrap_client_close(client);
    kvf_bootstrap_stop(healthy);
}

/* A listener whose backlog is full drops our SYN: that is http_connect_timeout. */
static void test_connect_timeout(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    settings.http_connect_timeout = 300 * KVF_MILLISECOND;
    settings.http_timeout = 60 * KVF_SECOND;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof name;
    assert_int_equal(bind(listener, (struct sockaddr *)&name, length), 0);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&name, &length), 0);
    int filling[8];
    for (size_t i = 0; i < 8; i++) {
        filling[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(filling[i], (struct sockaddr *)&name, length);
    }
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(name.sin_port));
    kvf_bootstrap_client *client = open_client(&settings);
    uint64_t start = kvf_clock_now();
    /* curl says "Timeout was reached" or "Connection timeout after", as its own clock has it. */
    expect_outcome(topology(client, address), KVF_BOOTSTRAP_FAILED, "imeout");
    assert_in_range((kvf_clock_now() - start) / KVF_MILLISECOND, 250, 5000);
    kvf_bootstrap_client_close(client);
    for (size_t i = 0; i < 8; i++)
        (void)close(filling[i]);
    (void)close(listener);
}

static int resolvers_waiting(void)
{
    (void)pthread_mutex_lock(&resolver_lock);
    int waiting = resolver_waiting;
    (void)pthread_mutex_unlock(&resolver_lock);
    return waiting;
}

static void wait_for_resolver(int waiting)
{
    (void)pthread_mutex_lock(&resolver_lock);
    while (resolver_waiting != waiting)
        (void)pthread_cond_wait(&resolver_changed, &resolver_lock);
    (void)pthread_mutex_unlock(&resolver_lock);
}

/* A resolver that hangs holds up neither other calls, nor timeouts, nor canceling, nor closing: turn()
 * checks that each process() comes back, and the clock the rest. */
static void test_resolver_hangs(void **state)
{
    (void)state;
    char address[64];
    kvf_settings settings = impatient_settings();
    kvf_bootstrap *healthy = start_server("127.0.0.1:0", address);
    kvf_bootstrap_client *client = open_client(&settings);
    resolver_hangs = true;
    outcome hanging = {0};
    uint64_t start = kvf_clock_now();
    (void)begin_topology(client, "hangs.test:80", &hanging);
    expect_outcome(topology(client, address), KVF_BOOTSTRAP_NOT_YET, "");
    run_until(client, &hanging.count, 1);
    expect_outcome(hanging.answer, KVF_BOOTSTRAP_FAILED, "hangs.test:80");
    kvf_bootstrap_call *canceled = begin_topology(client, "hangs.test:80", &hanging);
    (void)begin_topology(client, "hangs.test:80", &hanging);
    uint64_t until = kvf_clock_now() + PATIENCE;
    while (resolvers_waiting() < 3 && kvf_clock_now() < until)
        turn(client, kvf_clock_now() + KVF_MILLISECOND);
    assert_int_equal(resolvers_waiting(), 3);
    kvf_bootstrap_cancel(canceled);
    kvf_bootstrap_client_close(client);
    assert_in_range((kvf_clock_now() - start) / KVF_MILLISECOND, 250, 5000);
    assert_int_equal(hanging.count, 1);
    (void)pthread_mutex_lock(&resolver_lock);
    resolver_hangs = false;
    (void)pthread_cond_broadcast(&resolver_changed);
    (void)pthread_mutex_unlock(&resolver_lock);
    wait_for_resolver(0);
    kvf_bootstrap_stop(healthy);
}

/* ---- Canceling -------------------------------------------------------------------------------- */

static void test_cancel(void **state)
{
    (void)state;
    char address[64];
    kvf_settings settings = test_settings();
    kvf_bootstrap *server = start_server("127.0.0.1:0", address);
    kvf_bootstrap_client *client = open_client(&settings);
    outcome canceled = {0};
    kvf_bootstrap_cancel(begin_topology(client, address, &canceled)); /* before its first step */
    script silent = {0};
    start_script(&silent);
    kvf_bootstrap_call *call = begin_topology(client, silent.address, &canceled);
    expect_outcome(topology(client, address), KVF_BOOTSTRAP_NOT_YET, "");
    kvf_bootstrap_cancel(call); /* while it waits */
    expect_outcome(topology(client, address), KVF_BOOTSTRAP_NOT_YET, "");
    assert_int_equal(canceled.count, 0);
    stop_script(&silent);
    kvf_bootstrap_client_close(client);
    kvf_bootstrap_stop(server);
}

enum { CROWD = 8 };

typedef struct crowd {
    kvf_bootstrap_client *client;
    const char *address;
    kvf_bootstrap_call *calls[CROWD];
    unsigned done;
    outcome late;
} crowd;

/* Whoever ends first cancels all others, some of which may have ended too, and starts a new call. */
static void cancel_others(void *user, const kvf_bootstrap_answer *answer)
{
    crowd *all = user;
    (void)answer;
    all->done++;
    kvf_bootstrap_call *fresh;
    kvf_error error;
    assert_int_equal(
        kvf_bootstrap_get_topology(all->client, all->address, keep, &all->late, &fresh, &error),
        KVF_OK);
    for (size_t i = 1; i < CROWD; i++)
        kvf_bootstrap_cancel(all->calls[i]);
}

static void ignore(void *user, const kvf_bootstrap_answer *answer)
{
    (void)answer;
    (*(unsigned *)user)++;
}

static void test_cancel_inside_done(void **state)
{
    (void)state;
    char address[64];
    char dead[64];
    kvf_settings settings = test_settings();
    kvf_bootstrap *server = start_server("127.0.0.1:0", address);
    int descriptor = dead_port(dead);
    kvf_bootstrap_client *client = open_client(&settings);
    crowd all = {.client = client, .address = address};
    unsigned others = 0;
    kvf_error error;
    /* All are refused in one turn, so that their ends stand in curl's list together. */
    assert_int_equal(
        kvf_bootstrap_get_topology(client, dead, cancel_others, &all, &all.calls[0], &error),
        KVF_OK);
    for (size_t i = 1; i < CROWD; i++)
        assert_int_equal(
            kvf_bootstrap_get_topology(client, dead, ignore, &others, &all.calls[i], &error),
            KVF_OK);
    run_until(client, &all.late.count, 1);
    assert_int_equal(all.done, 1);
    assert_int_equal(others, 0);
    expect_outcome(all.late.answer, KVF_BOOTSTRAP_NOT_YET, "");
    (void)close(descriptor);
    kvf_bootstrap_client_close(client);
    kvf_bootstrap_stop(server);
}

static void test_close_with_open_calls(void **state)
{
    (void)state;
    char address[64];
    size_t before = test_entries("/proc/self/fd");
    kvf_settings settings = test_settings();
    kvf_bootstrap *server = start_server("127.0.0.1:0", address);
    script silent = {0};
    start_script(&silent);
    outcome kept = {0};
    for (int i = 0; i < 10; i++) {
        kvf_bootstrap_client *client = open_client(&settings);
        for (int j = 0; j < 4; j++)
            (void)begin_topology(client, j % 2 == 0 ? silent.address : address, &kept);
        if (i > 0)
            expect_outcome(topology(client, address), KVF_BOOTSTRAP_NOT_YET, "");
        kvf_bootstrap_client_close(client);
    }
    kvf_bootstrap_stop(server);
    stop_script(&silent);
    assert_int_equal(test_entries("/proc/self/fd"), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_our_server),
        cmocka_unit_test(test_many_calls_at_once),
        cmocka_unit_test(test_server_restarts),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_bad_addresses),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_texts_are_printable),
        cmocka_unit_test(test_huge_answers),
        cmocka_unit_test(test_slow_answer),
        cmocka_unit_test(test_dead_port),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_connect_timeout),
        cmocka_unit_test(test_resolver_hangs),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_inside_done),
        cmocka_unit_test(test_close_with_open_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
