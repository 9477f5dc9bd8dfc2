/* The server over real sockets, byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/settings.h"
#include "support/process.h"

#define TEXT "text/plain; charset=utf-8"
#define JSON "application/json; charset=utf-8"
#define PATIENCE 10000 /* ms; how long anything may take before a test fails */

/* ---- The server under test -------------------------------------------------------------------- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 16];

static void keep_line(void *user, kvf_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)pthread_mutex_lock(&log_lock);
    size_t used = strlen(log_text);
    (void)snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
    (void)pthread_mutex_unlock(&log_lock);
}

static size_t log_count(const char *what)
{
    size_t count = 0;
    (void)pthread_mutex_lock(&log_lock);
    for (const char *found = log_text; (found = strstr(found, what)) != NULL; found++)
        count++;
    (void)pthread_mutex_unlock(&log_lock);
    return count;
}

static kvf_settings test_settings(void)
{
    static kvf_settings settings;
    kvf_settings_defaults(&settings);
    settings.log = (kvf_log){.level = KVF_LOG_INFO, .callback = keep_line};
    (void)pthread_mutex_lock(&log_lock);
    log_text[0] = '\0';
    (void)pthread_mutex_unlock(&log_lock);
    return settings;
}

static kvf_bootstrap *start_at(const char *address, const kvf_settings *settings)
{
    kvf_bootstrap *bootstrap;
    kvf_status status = kvf_bootstrap_start(&bootstrap, address, settings);
    if (status != KVF_OK)
        fail_msg("%s", kvf_error_text());
    assert_int_not_equal(kvf_bootstrap_port(bootstrap), 0);
    return bootstrap;
}

static kvf_bootstrap *start(void)
{
    kvf_settings settings = test_settings();
    return start_at("127.0.0.1:0", &settings);
}

/* ---- A raw client ----------------------------------------------------------------------------- */

static int dial_family(int family, uint16_t port)
{
    int descriptor = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(descriptor >= 0);
    struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const void *address = family == AF_INET ? (const void *)&v4 : (const void *)&v6;
    socklen_t length = family == AF_INET ? sizeof v4 : sizeof v6;
    assert_int_equal(connect(descriptor, address, length), 0);
    struct timeval patience = {.tv_sec = PATIENCE / 1000};
    assert_int_equal(setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience),
                     0);
    return descriptor;
}

static int dial(const kvf_bootstrap *bootstrap)
{
    return dial_family(AF_INET, kvf_bootstrap_port(bootstrap));
}

static void say_bytes(int descriptor, const void *data, size_t length)
{
    const char *rest = data;
    while (length > 0) {
        ssize_t sent = send(descriptor, rest, length, MSG_NOSIGNAL);
        assert_true(sent > 0);
        rest += sent;
        length -= (size_t)sent;
    }
}

static void say(int descriptor, const char *text)
{
    say_bytes(descriptor, text, strlen(text));
}

typedef struct reply {
    int status;
    char head[4096];
    char type[128];
    char body[8192];
} reply;

static bool find_header(const char *head, const char *name, char *value, size_t capacity)
{
    size_t length = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line != NULL; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, length) == 0 && line[2 + length] == ':') {
            (void)snprintf(value, capacity, "%.*s", (int)strcspn(line + 4 + length, "\r"),
                           line + 4 + length);
            return true;
        }
    return false;
}

/* Reads one answer, byte by byte so that the next one stays; false at the end of the connection. */
static bool hear(int descriptor, bool head_only, reply *answer)
{
    *answer = (reply){0};
    size_t used = 0;
    while (strstr(answer->head, "\r\n\r\n") == NULL) {
        ssize_t got = recv(descriptor, answer->head + used, 1, 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return false;
        assert_int_equal(got, 1);
        used++;
        assert_true(used < sizeof answer->head - 1);
    }
    assert_int_equal(sscanf(answer->head, "HTTP/1.1 %d ", &answer->status), 1);
    char number[32];
    (void)find_header(answer->head, "Content-Type", answer->type, sizeof answer->type);
    assert_true(find_header(answer->head, "Content-Length", number, sizeof number));
    size_t length = head_only ? 0 : (size_t)atoi(number);
    assert_true(length < sizeof answer->body);
    for (size_t have = 0; have < length;) {
        ssize_t got = recv(descriptor, answer->body + have, length - have, 0);
        assert_true(got > 0);
        have += (size_t)got;
    }
    return true;
}

static void expect(int descriptor, int status, const char *type, const char *body)
{
    reply answer;
    if (!hear(descriptor, false, &answer))
        fail_msg("connection closed instead of %d %s", status, body);
    assert_int_equal(answer.status, status);
    assert_string_equal(answer.type, type);
    assert_string_equal(answer.body, body);
}

static void say_request(int descriptor, const char *method, const char *target, const char *body)
{
    char text[8192];
    if (body == NULL)
        (void)snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: x\r\n\r\n", method, target);
    else
        (void)snprintf(text, sizeof text,
                       "%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       "Content-Length: %zu\r\n\r\n%s",
                       method, target, strlen(body), body);
    say(descriptor, text);
}

/* One exchange on a connection of its own. */
static reply ask(const kvf_bootstrap *bootstrap, const char *method, const char *target,
                 const char *body)
{
    reply answer;
    int descriptor = dial(bootstrap);
    say_request(descriptor, method, target, body);
    assert_true(hear(descriptor, strcmp(method, "HEAD") == 0, &answer));
    (void)close(descriptor);
    return answer;
}

static void check(const kvf_bootstrap *bootstrap, const char *method, const char *target,
                  const char *body, int status, const char *type, const char *text)
{
    reply answer = ask(bootstrap, method, target, body);
    if (answer.status != status || strcmp(answer.type, type) != 0 || strcmp(answer.body, text) != 0)
        fail_msg("%s %s %s: got %d %s \"%s\" instead of %d %s \"%s\"", method, target,
                 body == NULL ? "" : body, answer.status, answer.type, answer.body, status, type,
                 text);
}

#define GET(target, status, type, text) check(bootstrap, "GET", target, NULL, status, type, text)
#define TOPOLOGY "/route?engine_rank=-1&target_dp_group=-1"

static const char *registration(uint32_t rank, uint32_t tp_size, uint32_t dp_size, unsigned port)
{
    static char text[256];
    (void)snprintf(text, sizeof text,
                   "{\"role\": \"Prefill\", \"tp_size\": %u, \"dp_size\": %u, \"rank_ip\": "
                   "\"10.1.2.3\", \"rank_port\": %u, \"engine_rank\": %u}",
                   tp_size, dp_size, port, rank);
    return text;
}

static void put_ok(const kvf_bootstrap *bootstrap, const char *body)
{
    check(bootstrap, "PUT", "/route", body, 200, TEXT, "OK");
}

/* The peer closes (or resets) the connection, and sends nothing before. */
static void expect_closed(int descriptor)
{
    char byte;
    ssize_t got = recv(descriptor, &byte, 1, 0);
    assert_true(got == 0 || (got < 0 && errno == ECONNRESET));
    (void)close(descriptor);
}

/* ---- The route, row by row -------------------------------------------------------------------- */

static void test_get(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    GET(TOPOLOGY, 200, JSON, "{\"prefill_tp_size\": null, \"prefill_dp_size\": null}");
    GET("/route?engine_rank=0&target_dp_group=0", 404, TEXT, "Bootstrap info not Found");
    put_ok(bootstrap, registration(5, 8, 2, 4321));
    GET(TOPOLOGY, 200, JSON, "{\"prefill_tp_size\": 8, \"prefill_dp_size\": 2}");
    GET("/route?engine_rank=1&target_dp_group=1", 200, JSON,
        "{\"rank_ip\": \"10.1.2.3\", \"rank_port\": 4321}");
    const char *const unknown[] = {
        "/route?engine_rank=1&target_dp_group=0",
        "/route?engine_rank=5&target_dp_group=0",
        "/route?engine_rank=1&target_dp_group=2",
        "/route?engine_rank=-1&target_dp_group=1",
        "/route?engine_rank=1&target_dp_group=-1",
        "/route?engine_rank=-2&target_dp_group=-2",
        "/route?engine_rank=9223372036854775807&target_dp_group=1",
    };
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        GET(unknown[i], 404, TEXT, "Bootstrap info not Found");
    const char *const missing[] = {
        "/route",
        "/route?",
        "/route?engine_rank=0",
        "/route?target_dp_group=0",
        "/route?engine_rank=&target_dp_group=0",
        "/route?engine_rank=0&target_dp_group=",
        "/route?engine_rank&target_dp_group",
        "/route?Engine_Rank=1&target_dp_group=1",
    };
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++)
        GET(missing[i], 400, TEXT, "Missing inputs for bootstrap server.");
    kvf_bootstrap_stop(bootstrap);
}

/* Query values are decoded, then read as Python's int() reads them. */
static void test_numbers(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    put_ok(bootstrap, registration(10, 16, 1, 4321));
    const char *const ten[] = {"10",  "%31%30", "+10",        "%2B10", "%20%2010%09",
                               "1_0", "010",    "%20+10+%20", "1%5f0"};
    for (size_t i = 0; i < sizeof ten / sizeof ten[0]; i++) {
        char target[128];
        (void)snprintf(target, sizeof target, "/route?target_dp_group=-0&engine_rank=%s", ten[i]);
        /* "+" in a query is a space: "%20+10+%20" is 10 among spaces, "+10" is " 10". */
        GET(target, 200, JSON, "{\"rank_ip\": \"10.1.2.3\", \"rank_port\": 4321}");
    }
    GET("/route?engine_rank=10&target_dp_group=0&engine_rank=3&other=x", 200, JSON,
        "{\"rank_ip\": \"10.1.2.3\", \"rank_port\": 4321}");
    GET("/route?engine%5Frank=10&target_dp_group=0", 200, JSON,
        "{\"rank_ip\": \"10.1.2.3\", \"rank_port\": 4321}");
    GET("/route?engine_rank=%2D1&target_dp_group=+-1", 200, JSON,
        "{\"prefill_tp_size\": 16, \"prefill_dp_size\": 1}");
    const char *const bad[] = {"x",
                               "1.0",
                               "_1",
                               "1_",
                               "1__0",
                               "--1",
                               "%2B-1",
                               "0x1",
                               "1%00",
                               "1 0",
                               "%20",
                               "+",
                               "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char target[128];
        (void)snprintf(target, sizeof target, "/route?engine_rank=%s&target_dp_group=0", bad[i]);
        GET(target, 400, TEXT, "engine_rank is not a number");
        (void)snprintf(target, sizeof target, "/route?engine_rank=0&target_dp_group=%s", bad[i]);
        GET(target, 400, TEXT, "target_dp_group is not a number");
    }
    kvf_bootstrap_stop(bootstrap);
}

static void test_other_methods_and_paths(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    const char *const methods[] = {"POST", "DELETE", "OPTIONS", "PATCH", "get", "FERRY"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        check(bootstrap, methods[i], TOPOLOGY, NULL, 405, JSON, "Method not allowed");
    check(bootstrap, "POST", "/route", registration(0, 1, 1, 5), 405, JSON, "Method not allowed");
    reply answer = ask(bootstrap, "HEAD", TOPOLOGY, NULL);
    char length[16];
    assert_int_equal(answer.status, 405);
    assert_string_equal(answer.type, JSON);
    assert_true(find_header(answer.head, "Content-Length", length, sizeof length));
    assert_string_equal(length, "18");
    const char *const paths[] = {"/", "/route/", "/routes", "/health", "/ROUTE", "/route/../x"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        GET(paths[i], 404, TEXT, "404: Not Found");
    check(bootstrap, "PUT", "/register", registration(0, 1, 1, 5), 404, TEXT, "404: Not Found");
    GET(TOPOLOGY, 200, JSON, "{\"prefill_tp_size\": null, \"prefill_dp_size\": null}");
    kvf_bootstrap_stop(bootstrap);
}

static void test_put(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    /* Numbers as text where stock casts; a key that stock doesn't know. */
    put_ok(bootstrap, "{\"engine_rank\": \" 1 \", \"rank_port\": \"1_234\", \"rank_ip\": \"::1\", "
                      "\"dp_size\": 1, \"tp_size\": 2, \"role\": \"Prefill\", \"later\": [1]}");
    GET("/route?engine_rank=1&target_dp_group=0", 200, JSON,
        "{\"rank_ip\": \"::1\", \"rank_port\": 1234}");
    put_ok(bootstrap, registration(1, 2, 1, 99));
    GET("/route?engine_rank=1&target_dp_group=0", 200, JSON,
        "{\"rank_ip\": \"10.1.2.3\", \"rank_port\": 99}");
    put_ok(bootstrap, registration(1, 2, 1, 99));
    assert_int_equal(log_count("rank 1 of 2 registered at [::1]:1234 (stock)\n"), 1);
    assert_int_equal(
        log_count("rank 1 of 2 registered at 10.1.2.3:99 (stock), no longer at [::1]:1234\n"), 1);
    assert_int_equal(log_count("\n"), 2); /* the same again isn't worth a line */
    put_ok(bootstrap, "{\"role\": \"Prefill\", \"tp_size\": 2, \"dp_size\": 1, \"rank_ip\": \"h\", "
                      "\"rank_port\": 9, \"engine_rank\": 0, \"kvferry\": 1}");
    GET("/route?engine_rank=0&target_dp_group=0", 200, JSON,
        "{\"rank_ip\": \"h\", \"rank_port\": 9, \"kvferry\": 1}");
    kvf_bootstrap_stop(bootstrap);
}

static void test_other_roles_store_nothing(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    const char *const roles[] = {"Decode", "prefill", "PREFILL", ""};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        char body[256];
        (void)snprintf(body, sizeof body,
                       "{\"role\": \"%s\", \"tp_size\": 4, \"dp_size\": 1, \"rank_ip\": \"h\", "
                       "\"rank_port\": 9, \"engine_rank\": 0}",
                       roles[i]);
        put_ok(bootstrap, body);
    }
    GET(TOPOLOGY, 200, JSON, "{\"prefill_tp_size\": null, \"prefill_dp_size\": null}");
    GET("/route?engine_rank=0&target_dp_group=0", 404, TEXT, "Bootstrap info not Found");
    kvf_bootstrap_stop(bootstrap);
}

#define BODY(role, tp, dp, ip, port, rank)                                                         \
    "{\"role\": " role ", \"tp_size\": " tp ", \"dp_size\": " dp ", \"rank_ip\": " ip              \
    ", \"rank_port\": " port ", \"engine_rank\": " rank "}"
#define PREFILL "\"Prefill\""

static void test_bad_put_latches_nothing(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    const char *const bad[] = {
        "",
        "x",
        "[]",
        "1",
        "{}",
        "{\"role\": \"Prefill\"",
        BODY(PREFILL, "2", "1", "\"h\"", "5", "0") "x",
        "{\"role\": \"Prefill\", \"tp_size\": 2, \"dp_size\": 1, \"rank_ip\": \"h\", "
        "\"rank_port\": 5}",
        BODY(PREFILL, "\"2\"", "1", "\"h\"", "5", "0"),
        BODY(PREFILL, "2", "\"1\"", "\"h\"", "5", "0"),
        BODY(PREFILL, "2", "0", "\"h\"", "5", "0"),
        BODY(PREFILL, "0", "1", "\"h\"", "5", "0"),
        BODY(PREFILL, "2", "4", "\"h\"", "5", "0"),
        BODY(PREFILL, "3", "2", "\"h\"", "5", "0"),
        BODY(PREFILL, "-2", "1", "\"h\"", "5", "0"),
        BODY(PREFILL, "2.5", "1", "\"h\"", "5", "0"),
        BODY(PREFILL, "99999999999999999999", "1", "\"h\"", "5", "0"),
        BODY(PREFILL, "2", "1", "\"h\"", "5", "2"),
        BODY(PREFILL, "2", "1", "\"h\"", "5", "-1"),
        BODY(PREFILL, "2", "1", "\"h\"", "5", "\"x\""),
        BODY(PREFILL, "2", "1", "\"h\"", "65536", "0"),
        BODY(PREFILL, "2", "1", "\"h\"", "\"x\"", "0"),
        BODY(PREFILL, "2", "1", "5", "5", "0"),
        BODY(PREFILL, "2", "1", "null", "5", "0"),
        BODY(PREFILL, "2", "1", "\"a\\nb\"", "5", "0"),
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        reply answer = ask(bootstrap, "PUT", "/route", bad[i]);
        if (answer.status != 400 || strlen(answer.body) < 10 || strcmp(answer.type, TEXT) != 0)
            fail_msg("%s: %d %s", bad[i], answer.status, answer.body);
    }
    assert_int_equal(ask(bootstrap, "PUT", "/route", NULL).status, 400);
    GET(TOPOLOGY, 200, JSON, "{\"prefill_tp_size\": null, \"prefill_dp_size\": null}");
    put_ok(bootstrap, registration(7, 8, 2, 7));
    kvf_bootstrap_stop(bootstrap);
}

static void test_sizes_that_disagree(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    put_ok(bootstrap, registration(0, 4, 2, 7));
    check(bootstrap, "PUT", "/route", registration(1, 8, 2, 7), 409, TEXT,
          "engine_rank 1 has tp_size 8 and dp_size 2, but the ranks registered here have tp_size 4 "
          "and dp_size 2; give this deployment a bootstrap server of its own, or restart this one");
    assert_int_equal(ask(bootstrap, "PUT", "/route", registration(1, 4, 1, 7)).status, 409);
    assert_int_equal(log_count("registration refused"), 2);
    GET(TOPOLOGY, 200, JSON, "{\"prefill_tp_size\": 4, \"prefill_dp_size\": 2}");
    GET("/route?engine_rank=1&target_dp_group=0", 404, TEXT, "Bootstrap info not Found");
    kvf_bootstrap_stop(bootstrap);
}

static void test_many_ranks(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    settings.max_registered_ranks = 1000;
    kvf_bootstrap *bootstrap = start_at("127.0.0.1:0", &settings);
    int descriptor = dial(bootstrap);
    for (uint32_t rank = 0; rank < 1000; rank++) {
        say_request(descriptor, "PUT", "/route", registration(rank, 2000, 2, 1000 + rank));
        expect(descriptor, 200, TEXT, "OK");
    }
    say_request(descriptor, "PUT", "/route", registration(1000, 2000, 2, 1));
    expect(descriptor, 507, TEXT,
           "no place for engine_rank 1000: 1000 ranks are registered (setting "
           "max_registered_ranks)");
    say_request(descriptor, "PUT", "/route", registration(999, 2000, 2, 1));
    expect(descriptor, 200, TEXT, "OK");
    for (uint32_t rank = 0; rank < 1000; rank++) {
        char target[96];
        char text[96];
        (void)snprintf(target, sizeof target, "/route?engine_rank=%u&target_dp_group=0", rank);
        (void)snprintf(text, sizeof text, "{\"rank_ip\": \"10.1.2.3\", \"rank_port\": %u}",
                       rank == 999 ? 1 : 1000 + rank);
        say_request(descriptor, "GET", target, NULL);
        expect(descriptor, 200, JSON, text);
    }
    (void)close(descriptor);
    kvf_bootstrap_stop(bootstrap);
}

/* ---- What stock 0.4.7 said and heard ---------------------------------------------------------- */

static void replay_event(const kvf_bootstrap *bootstrap, const json_t *event)
{
    const char *url = json_string_value(json_object_get(event, "url"));
    const char *target = strstr(url, "/route");
    assert_non_null(target);
    check(bootstrap, json_string_value(json_object_get(event, "method")), target,
          json_string_value(json_object_get(event, "request_body")),
          (int)json_integer_value(json_object_get(event, "status")),
          json_string_value(json_object_get(event, "response_type")),
          json_string_value(json_object_get(event, "response_body")));
}

/* The ranks' lists aren't in one order of time: all registrations come first, then the lookups. */
static size_t replay(const kvf_bootstrap *bootstrap, const json_t *scene, const char *method)
{
    size_t replayed = 0;
    const char *key;
    json_t *events;
    json_object_foreach((json_t *)scene, key, events)
    {
        size_t i;
        json_t *event;
        json_array_foreach(events, i, event)
        {
            const char *what = json_string_value(json_object_get(event, "what"));
            const char *had = json_string_value(json_object_get(event, "method"));
            if (what == NULL || strcmp(what, "http") != 0 || strcmp(had, method) != 0)
                continue;
            replay_event(bootstrap, event);
            replayed++;
        }
    }
    return replayed;
}

static void test_golden(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        size_t puts, gets;
    } scenes[] = {{"0.4.7/pair.json", 1, 2},
                  {"0.4.7/mla_p1_d2.json", 1, 4},
                  {"0.4.7/mla_p2_d1.json", 2, 3},
                  {"0.4.7.post1/pair.json", 1, 2},
                  {"0.4.7.post1/mla_p1_d2.json", 1, 4},
                  {"0.4.7.post1/mla_p2_d1.json", 2, 3}};
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        char path[512];
        (void)snprintf(path, sizeof path, "%s/%s", KVF_TEST_VECTORS, scenes[i].file);
        json_error_t reason;
        json_t *scene = json_load_file(path, 0, &reason);
        if (scene == NULL)
            fail_msg("%s: %s", path, reason.text);
        kvf_bootstrap *bootstrap = start();
        assert_int_equal(replay(bootstrap, scene, "PUT"), scenes[i].puts);
        assert_int_equal(replay(bootstrap, scene, "GET"), scenes[i].gets);
        kvf_bootstrap_stop(bootstrap);
        json_decref(scene);
    }
}

/* ---- HTTP itself ------------------------------------------------------------------------------ */

static void test_body_too_large(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    settings.max_http_body = 300;
    kvf_bootstrap *bootstrap = start_at("127.0.0.1:0", &settings);
    /* Announced: refused before the body comes. */
    int descriptor = dial(bootstrap);
    say(descriptor, "PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: 301\r\n\r\n");
    expect(descriptor, 413, TEXT, "Maximum request body size 300 exceeded, actual body size 301");
    expect_closed(descriptor);
    descriptor = dial(bootstrap);
    say(descriptor,
        "PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n");
    reply answer;
    assert_true(!hear(descriptor, false, &answer) || answer.status >= 400);
    (void)close(descriptor);
    /* In chunks: refused at the end. */
    descriptor = dial(bootstrap);
    say(descriptor, "PUT /route HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    char chunk[0x80 + 1];
    memset(chunk, ' ', sizeof chunk - 1);
    chunk[sizeof chunk - 1] = '\0';
    for (int i = 0; i < 3; i++) {
        say(descriptor, "80\r\n");
        say(descriptor, chunk);
        say(descriptor, "\r\n");
    }
    say(descriptor, "0\r\n\r\n");
    expect(descriptor, 413, TEXT, "Maximum request body size 300 exceeded, actual body size 384");
    (void)close(descriptor);
    /* Exactly the limit is fine. */
    char body[301];
    (void)snprintf(body, sizeof body, "%-300s", registration(0, 1, 1, 5));
    put_ok(bootstrap, body);
    kvf_bootstrap_stop(bootstrap);
}

/* Whatever the head is, the answer is a 4xx or a closed connection, and the server goes on. */
static void test_rubbish(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    static char huge[64 << 10];
    memset(huge, 'a', sizeof huge - 1);
    const char *const heads[] = {"GET /route?", "GET /route HTTP/1.1\r\nX: ",
                                 "PUT /route HTTP/1.1\r\nContent-Length: ", "", "\x16\x03\x01"};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        int descriptor = dial(bootstrap);
        (void)!send(descriptor, heads[i], strlen(heads[i]), MSG_NOSIGNAL);
        (void)!send(descriptor, huge, sizeof huge - 1, MSG_NOSIGNAL);
        (void)!send(descriptor, "\r\n\r\n", 4, MSG_NOSIGNAL);
        (void)shutdown(descriptor, SHUT_WR);
        reply answer;
        if (hear(descriptor, false, &answer))
            assert_in_range(answer.status, 400, 505);
        (void)close(descriptor);
    }
    put_ok(bootstrap, registration(0, 1, 1, 5));
    kvf_bootstrap_stop(bootstrap);
}

static void test_keep_alive_and_pipelining(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    int descriptor = dial(bootstrap);
    for (int i = 0; i < 3; i++) {
        say_request(descriptor, "GET", "/route", NULL);
        expect(descriptor, 400, TEXT, "Missing inputs for bootstrap server.");
        say_request(descriptor, "POST", "/route", "12345");
        expect(descriptor, 405, JSON, "Method not allowed");
        say_request(descriptor, "PUT", "/route", "x");
        reply answer;
        assert_true(hear(descriptor, false, &answer));
        assert_int_equal(answer.status, 400);
    }
    for (int i = 0; i < 50; i++) {
        say_request(descriptor, "PUT", "/route", registration(0, 1, 1, 100 + (unsigned)i));
        say_request(descriptor, "GET", "/route?engine_rank=0&target_dp_group=0", NULL);
    }
    for (int i = 0; i < 50; i++) {
        char text[96];
        (void)snprintf(text, sizeof text, "{\"rank_ip\": \"10.1.2.3\", \"rank_port\": %d}",
                       100 + i);
        expect(descriptor, 200, TEXT, "OK");
        expect(descriptor, 200, JSON, text);
    }
    say(descriptor, "GET /route HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    expect(descriptor, 400, TEXT, "Missing inputs for bootstrap server.");
    expect_closed(descriptor);
    descriptor = dial(bootstrap);
    say(descriptor, "GET /route HTTP/1.0\r\n\r\n");
    reply answer;
    assert_true(hear(descriptor, false, &answer));
    assert_int_equal(answer.status, 400);
    expect_closed(descriptor);
    kvf_bootstrap_stop(bootstrap);
}

/* A request may come in any pieces. */
static void test_pieces(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    char text[512];
    const char *body = registration(0, 1, 1, 5);
    int length = snprintf(text, sizeof text,
                          "PUT /route HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                          "Content-Length: %zu\r\n\r\n",
                          strlen(body));
    int descriptor = dial(bootstrap);
    for (int i = 0; i < length; i++)
        say_bytes(descriptor, text + i, 1);
    char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    char got[sizeof go_on] = "";
    assert_int_equal(recv(descriptor, got, sizeof go_on - 1, MSG_WAITALL), sizeof go_on - 1);
    assert_string_equal(got, go_on);
    for (size_t i = 0; i < strlen(body); i++)
        say_bytes(descriptor, body + i, 1);
    expect(descriptor, 200, TEXT, "OK");
    (void)close(descriptor);
    kvf_bootstrap_stop(bootstrap);
}

/* Peers that go away with answers under way: nothing of it may raise SIGPIPE in this process. */
static void test_reset_connections(void **state)
{
    (void)state;
    (void)signal(SIGPIPE, SIG_DFL);
    kvf_bootstrap *bootstrap = start();
    for (int i = 0; i < 50; i++) {
        int descriptor = dial(bootstrap);
        for (int request = 0; request < 20; request++)
            say_request(descriptor, "GET", TOPOLOGY, NULL);
        const struct linger reset = {.l_onoff = 1};
        assert_int_equal(setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
        (void)close(descriptor);
    }
    put_ok(bootstrap, registration(0, 1, 1, 5));
    kvf_bootstrap_stop(bootstrap);
}

/* ---- Time and limits -------------------------------------------------------------------------- */

/* Sends a byte every 20 ms until the server cuts the connection; returns after how many milliseconds. */
static uint64_t drip(int descriptor)
{
    uint64_t start_time = kvf_clock_now();
    for (;;) {
        struct pollfd waiting = {.fd = descriptor, .events = POLLIN};
        if (poll(&waiting, 1, 20) > 0) {
            expect_closed(descriptor);
            break;
        }
        (void)!send(descriptor, "a", 1, MSG_NOSIGNAL);
        assert_true(kvf_clock_now() - start_time < PATIENCE * KVF_MILLISECOND);
    }
    return (kvf_clock_now() - start_time) / KVF_MILLISECOND;
}

static void test_dripping_is_cut(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    settings.server_header_timeout = 300 * KVF_MILLISECOND;
    kvf_bootstrap *bootstrap = start_at("127.0.0.1:0", &settings);
    const char *const beginnings[] = {
        "", "GET /",
        "GET / HTTP/1.1\r\nX: ", "PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"};
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++) {
        int descriptor = dial(bootstrap);
        say(descriptor, beginnings[i]);
        assert_in_range(drip(descriptor), 200, 3000);
    }
    /* On a kept-alive connection too. */
    int descriptor = dial(bootstrap);
    say_request(descriptor, "GET", "/route", NULL);
    expect(descriptor, 400, TEXT, "Missing inputs for bootstrap server.");
    say(descriptor, "PUT /route HTTP/1.1\r\n");
    assert_in_range(drip(descriptor), 200, 3000);
    /* Silence from the first moment on. */
    descriptor = dial(bootstrap);
    expect_closed(descriptor);
    put_ok(bootstrap, registration(0, 1, 1, 5));
    kvf_bootstrap_stop(bootstrap);
}

static uint64_t cpu_milliseconds(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

static void test_idle_is_cut(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    settings.server_idle_timeout = 500 * KVF_MILLISECOND;
    settings.server_header_timeout = 100 * KVF_MILLISECOND; /* must not count for idle ones */
    kvf_bootstrap *bootstrap = start_at("127.0.0.1:0", &settings);
    int descriptors[3];
    for (size_t i = 0; i < 3; i++) {
        descriptors[i] = dial(bootstrap);
        say_request(descriptors[i], "GET", "/route", NULL);
        expect(descriptors[i], 400, TEXT, "Missing inputs for bootstrap server.");
    }
    uint64_t start_time = kvf_clock_now();
    uint64_t cpu = cpu_milliseconds();
    for (size_t i = 0; i < 3; i++)
        expect_closed(descriptors[i]);
    assert_in_range((kvf_clock_now() - start_time) / KVF_MILLISECOND, 300, 3000);
    assert_in_range(cpu_milliseconds() - cpu, 0, 150); /* it slept meanwhile */
    kvf_bootstrap_stop(bootstrap);
}

static void test_connection_limit(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    settings.max_http_connections = 3;
    kvf_bootstrap *bootstrap = start_at("127.0.0.1:0", &settings);
    int held[3];
    for (size_t i = 0; i < 3; i++) {
        held[i] = dial(bootstrap);
        say_request(held[i], "GET", "/route", NULL);
        expect(held[i], 400, TEXT, "Missing inputs for bootstrap server.");
    }
    int late = dial(bootstrap); /* in the backlog */
    say_request(late, "GET", "/route", NULL);
    say_request(held[0], "GET", "/route", NULL);
    expect(held[0], 400, TEXT, "Missing inputs for bootstrap server.");
    struct pollfd waiting = {.fd = late, .events = POLLIN};
    assert_int_equal(poll(&waiting, 1, 0), 0);
    uint64_t cpu = cpu_milliseconds();
    assert_int_equal(poll(&waiting, 1, 200), 0);
    assert_in_range(cpu_milliseconds() - cpu, 0, 100);
    (void)close(held[1]);
    expect(late, 400, TEXT, "Missing inputs for bootstrap server.");
    (void)close(late);
    (void)close(held[0]);
    (void)close(held[2]);
    int burst[20]; /* places come back; who is over the limit waits and isn't dropped */
    for (size_t i = 0; i < 20; i++) {
        burst[i] = dial(bootstrap);
        say(burst[i], "GET /route HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    }
    for (size_t i = 0; i < 20; i++) {
        expect(burst[i], 400, TEXT, "Missing inputs for bootstrap server.");
        expect_closed(burst[i]);
    }
    kvf_bootstrap_stop(bootstrap);
}

/* Many at once, more than one burst of accepts. */
static void test_many_connections(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    kvf_bootstrap *bootstrap = start();
    int descriptors[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        descriptors[i] = dial(bootstrap);
        say_request(descriptors[i], "GET", "/route", NULL);
    }
    for (size_t i = 0; i < COUNT; i++)
        expect(descriptors[i], 400, TEXT, "Missing inputs for bootstrap server.");
    for (size_t i = 0; i < COUNT; i++)
        (void)close(descriptors[i]);
    kvf_bootstrap_stop(bootstrap);
}

static void test_out_of_descriptors(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap = start();
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit none = {.rlim_cur = (rlim_t)descriptor + 1, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(kvf_bootstrap_port(bootstrap)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(descriptor, (struct sockaddr *)&address, sizeof address), 0);
    uint64_t deadline = kvf_clock_now() + PATIENCE * KVF_MILLISECOND;
    while (log_count("can't take a connection") < 3 && kvf_clock_now() < deadline)
        (void)poll(NULL, 0, 5);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_in_range(log_count("can't take a connection"), 3, 5);
    say_request(descriptor, "GET", "/route", NULL);
    expect(descriptor, 400, TEXT, "Missing inputs for bootstrap server.");
    (void)close(descriptor);
    kvf_bootstrap_stop(bootstrap);
}

/* ---- Start and stop --------------------------------------------------------------------------- */

static void test_stop_with_open_connections(void **state)
{
    (void)state;
    size_t before = test_entries("/proc/self/fd");
    kvf_bootstrap *bootstrap = start();
    int idle = dial(bootstrap);
    say_request(idle, "GET", "/route", NULL);
    expect(idle, 400, TEXT, "Missing inputs for bootstrap server.");
    int half = dial(bootstrap);
    say(half, "PUT /route HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
    GET("/route", 400, TEXT, "Missing inputs for bootstrap server.");
    kvf_bootstrap_stop(bootstrap);
    expect_closed(idle);
    expect_closed(half);
    assert_int_equal(test_entries("/proc/self/fd"), before);
    kvf_bootstrap_stop(NULL);
    assert_int_equal(kvf_bootstrap_port(NULL), 0);
}

static void test_port_taken(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    kvf_bootstrap *bootstrap = start_at("127.0.0.1:0", &settings);
    size_t before = test_entries("/proc/self/fd");
    char address[64];
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", kvf_bootstrap_port(bootstrap));
    kvf_bootstrap *second = bootstrap;
    assert_int_equal(kvf_bootstrap_start(&second, address, &settings), KVF_ADDRESS_IN_USE);
    assert_null(second);
    assert_non_null(strstr(kvf_error_text(), address));
    (void)snprintf(address, sizeof address, "0.0.0.0:%u", kvf_bootstrap_port(bootstrap));
    assert_int_equal(kvf_bootstrap_start(&second, address, &settings), KVF_ADDRESS_IN_USE);
    assert_int_equal(test_entries("/proc/self/fd"), before);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", kvf_bootstrap_port(bootstrap));
    /* With a connection that the server closed, so that its port lingers: free again at once. */
    int open = dial(bootstrap);
    say_request(open, "GET", "/route", NULL);
    expect(open, 400, TEXT, "Missing inputs for bootstrap server.");
    kvf_bootstrap_stop(bootstrap);
    expect_closed(open);
    bootstrap = start_at(address, &settings);
    kvf_bootstrap_stop(bootstrap);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    kvf_bootstrap *bootstrap;
    const char *const bad[] = {"",           "8998",       ":8998",        "127.0.0.1",
                               "127.0.0.1:", "a:b",        "127.0.0.1:-1", "127.0.0.1:65536",
                               "[::1]",      "300.1.1.1:x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(kvf_bootstrap_start(&bootstrap, bad[i], &settings), KVF_INVALID_ARGUMENT);
        assert_null(bootstrap);
        assert_true(strlen(kvf_error_text()) > 10);
    }
    assert_int_equal(kvf_bootstrap_start(NULL, "127.0.0.1:0", &settings), KVF_INVALID_ARGUMENT);
    assert_int_equal(kvf_bootstrap_start(&bootstrap, NULL, &settings), KVF_INVALID_ARGUMENT);
    /* An address that isn't ours (TEST-NET-1). */
    assert_int_equal(kvf_bootstrap_start(&bootstrap, "192.0.2.1:0", &settings), KVF_SYSTEM);
}

static void test_settings_from_environment(void **state)
{
    (void)state;
    kvf_bootstrap *bootstrap;
    assert_int_equal(setenv("KVFERRY_MAX_HTTP_BODY", "rubbish", 1), 0);
    assert_int_equal(kvf_bootstrap_start(&bootstrap, "127.0.0.1:0", NULL), KVF_BAD_SETTING);
    assert_null(bootstrap);
    assert_int_equal(setenv("KVFERRY_MAX_HTTP_BODY", "256", 1), 0);
    assert_int_equal(kvf_bootstrap_start(&bootstrap, "127.0.0.1:0", NULL), KVF_OK);
    assert_int_equal(unsetenv("KVFERRY_MAX_HTTP_BODY"), 0);
    char body[258];
    memset(body, ' ', sizeof body - 1);
    body[sizeof body - 1] = '\0';
    check(bootstrap, "PUT", "/route", body, 413, TEXT,
          "Maximum request body size 256 exceeded, actual body size 257");
    kvf_bootstrap_stop(bootstrap);
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

static void ask_over(int family, const kvf_bootstrap *bootstrap)
{
    int descriptor = dial_family(family, kvf_bootstrap_port(bootstrap));
    say_request(descriptor, "GET", "/route", NULL);
    expect(descriptor, 400, TEXT, "Missing inputs for bootstrap server.");
    (void)close(descriptor);
}

static void test_addresses(void **state)
{
    (void)state;
    kvf_settings settings = test_settings();
    kvf_bootstrap *bootstrap = start_at("0.0.0.0:0", &settings);
    ask_over(AF_INET, bootstrap);
    kvf_bootstrap_stop(bootstrap);
    if (!have_ipv6())
        return;
    bootstrap = start_at("[::1]:0", &settings);
    ask_over(AF_INET6, bootstrap);
    kvf_bootstrap_stop(bootstrap);
    bootstrap = start_at("[::]:0", &settings);
    ask_over(AF_INET6, bootstrap);
    ask_over(AF_INET, bootstrap);
    kvf_bootstrap_stop(bootstrap);
}

/* B16: told one address, it is at no other one of this machine. All of 127.0.0.0/8 is this machine. */
static void test_one_address_is_one(void **state)
{
    (void)state;
    struct sockaddr_in other = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1)};
    kvf_bootstrap *bootstrap = start();
    ask_over(AF_INET, bootstrap);
    other.sin_port = htons(kvf_bootstrap_port(bootstrap));
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(descriptor >= 0);
    assert_int_equal(connect(descriptor, (struct sockaddr *)&other, sizeof other), -1);
    assert_int_equal(errno, ECONNREFUSED);
    (void)close(descriptor);
    kvf_bootstrap_stop(bootstrap);
    /* Told all, it is: what was refused was the address. */
    kvf_settings settings = test_settings();
    bootstrap = start_at("0.0.0.0:0", &settings);
    other.sin_port = htons(kvf_bootstrap_port(bootstrap));
    descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(descriptor, (struct sockaddr *)&other, sizeof other), 0);
    (void)close(descriptor);
    kvf_bootstrap_stop(bootstrap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_other_methods_and_paths),
        cmocka_unit_test(test_put),
        cmocka_unit_test(test_other_roles_store_nothing),
        cmocka_unit_test(test_bad_put_latches_nothing),
        cmocka_unit_test(test_sizes_that_disagree),
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_body_too_large),
        cmocka_unit_test(test_rubbish),
        cmocka_unit_test(test_keep_alive_and_pipelining),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_reset_connections),
        cmocka_unit_test(test_dripping_is_cut),
        cmocka_unit_test(test_idle_is_cut),
        cmocka_unit_test(test_connection_limit),
        cmocka_unit_test(test_many_connections),
        cmocka_unit_test(test_out_of_descriptors),
        cmocka_unit_test(test_stop_with_open_connections),
        cmocka_unit_test(test_port_taken),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_settings_from_environment),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_one_address_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
