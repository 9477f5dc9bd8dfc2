/* Every captured HTTP body rebuilt; Python's spelling; what is refused and by which key; damaged ones. */
#include "wire/route.h"

#include "support/random.h"
#include "support/scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- golden ---- */

static uint32_t prefill_tp_size(const test_scene *scene)
{
    return scene->ranks[scene->rank_count - 1].tp_size; /* prefill ranks come last */
}

static const test_rank *prefill_rank(const test_scene *scene, uint32_t tp_rank)
{
    for (size_t i = 0; i < scene->rank_count; i++)
        if (scene->ranks[i].is_prefill && scene->ranks[i].tp_rank == tp_rank)
            return &scene->ranks[i];
    fail_msg("%s has no prefill rank %u", scene->name, (unsigned)tp_rank);
    return NULL;
}

static void compare_body(const test_scene *scene, const char *what, kvf_bytes *built,
                         const char *captured)
{
    test_assert_bytes(scene, what, kvf_bytes_slice(built), kvf_slice_of(captured));
    kvf_bytes_free(built);
    *built = (kvf_bytes){0};
}

static void check_put(const test_scene *scene, const test_rank *rank)
{
    const json_t *event = test_event_next(rank, "http", NULL);
    const char *captured = test_event_text(event, "request_body");
    kvf_route_registration registration = {.rank_ip = "127.0.0.1",
                                           .rank_port = test_port_of(scene, rank),
                                           .tp_size = rank->tp_size,
                                           .dp_size = 1,
                                           .engine_rank = rank->tp_rank,
                                           .is_prefill = true};
    kvf_route_registration decoded;
    kvf_bytes built = {0};
    kvf_route_registration_encode(&registration, &built);
    compare_body(scene, "PUT", &built, captured);
    assert_int_equal(kvf_route_registration_decode(kvf_slice_of(captured), &decoded, NULL), KVF_OK);
    assert_string_equal(decoded.rank_ip, registration.rank_ip);
    assert_true(decoded.rank_port == registration.rank_port &&
                decoded.tp_size == registration.tp_size && decoded.dp_size == 1 &&
                decoded.engine_rank == registration.engine_rank && decoded.is_prefill &&
                !decoded.extended);
}

static void check_topology(const test_scene *scene, const json_t *event)
{
    const char *captured = test_event_text(event, "response_body");
    kvf_route_topology topology = {true, prefill_tp_size(scene), 1}, decoded;
    kvf_bytes built = {0};
    kvf_route_topology_encode(&topology, &built);
    compare_body(scene, "topology", &built, captured);
    assert_int_equal(kvf_route_topology_decode(kvf_slice_of(captured), &decoded, NULL), KVF_OK);
    assert_true(decoded.known && decoded.tp_size == topology.tp_size && decoded.dp_size == 1);
}

static void check_rank(const test_scene *scene, const json_t *event, uint32_t tp_rank)
{
    const char *captured = test_event_text(event, "response_body");
    kvf_route_rank rank = {.rank_ip = "127.0.0.1",
                           .rank_port = test_port_of(scene, prefill_rank(scene, tp_rank))};
    kvf_route_rank decoded;
    kvf_bytes built = {0};
    kvf_route_rank_encode(&rank, &built);
    compare_body(scene, "rank", &built, captured);
    assert_int_equal(kvf_route_rank_decode(kvf_slice_of(captured), &decoded, NULL), KVF_OK);
    assert_string_equal(decoded.rank_ip, rank.rank_ip);
    assert_true(decoded.rank_port == rank.rank_port && !decoded.extended);
}

static void check_scene(const test_scene *scene)
{
    for (size_t i = 0; i < scene->rank_count; i++) {
        const test_rank *rank = &scene->ranks[i];
        if (rank->is_prefill) {
            check_put(scene, rank);
            continue;
        }
        test_targets targets = test_targets_of(scene, rank);
        const json_t *event = test_event_next(rank, "http", NULL);
        check_topology(scene, event);
        for (uint32_t turn = 0; turn < targets.count; turn++) {
            event = test_event_next(rank, "http", event);
            assert_non_null(event);
            check_rank(scene, event, targets.first + turn);
        }
        assert_null(test_event_next(rank, "http", event));
    }
}

static void captured_bodies_are_rebuilt(void **state)
{
    (void)state;
    test_scenes_each(check_scene);
}

/* ---- spelling ---- */

static void the_extra_key_comes_last(void **state)
{
    (void)state;
    kvf_bytes bytes = {0};
    kvf_route_registration registration = {"10.0.0.1", 4000, 8, 2, 5, true, true};
    kvf_route_registration_encode(&registration, &bytes);
    static const char put[] = "{\"role\": \"Prefill\", \"tp_size\": 8, \"dp_size\": 2, "
                              "\"rank_ip\": \"10.0.0.1\", \"rank_port\": 4000, "
                              "\"engine_rank\": 5, \"kvferry\": 1}";
    assert_true(kvf_slice_equal(kvf_bytes_slice(&bytes), kvf_slice_of(put)));
    assert_int_equal(kvf_route_registration_decode(kvf_bytes_slice(&bytes), &registration, NULL),
                     KVF_OK);
    assert_true(registration.extended);
    kvf_bytes_clear(&bytes);
    kvf_route_rank rank = {"10.0.0.1", 4000, true};
    kvf_route_rank_encode(&rank, &bytes);
    static const char get[] = "{\"rank_ip\": \"10.0.0.1\", \"rank_port\": 4000, \"kvferry\": 1}";
    assert_true(kvf_slice_equal(kvf_bytes_slice(&bytes), kvf_slice_of(get)));
    assert_int_equal(kvf_route_rank_decode(kvf_bytes_slice(&bytes), &rank, NULL), KVF_OK);
    assert_true(rank.extended);
    kvf_bytes_clear(&bytes);
    kvf_route_topology topology = {0};
    kvf_route_topology_encode(&topology, &bytes);
    static const char nobody[] = "{\"prefill_tp_size\": null, \"prefill_dp_size\": null}";
    assert_true(kvf_slice_equal(kvf_bytes_slice(&bytes), kvf_slice_of(nobody)));
    assert_int_equal(kvf_route_topology_decode(kvf_bytes_slice(&bytes), &topology, NULL), KVF_OK);
    assert_false(topology.known);
    kvf_bytes_free(&bytes);
}

/* Expected texts are those of Python's json.dumps. */
static void strings_are_escaped_as_python_does(void **state)
{
    (void)state;
    static const struct {
        const char *text, *json;
    } cases[] = {
        {"fe80::1%eth0", "fe80::1%eth0"},
        {"a\"b\\c/d", "a\\\"b\\\\c/d"},
        {"\b\f\n\r\t\x01\x1f\x7f", "\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f"},
        {"h\xc3\xb4te-\xe2\x82\xac", "h\\u00f4te-\\u20ac"},
        {"\xf0\x9f\x9a\xa2", "\\ud83d\\udea2"},
        {"\xf4\x8f\xbf\xbf", "\\udbff\\udfff"},
        /* Not UTF-8: Python wouldn't come so far. */
        {"\xff-\xc3", "\\ufffd-\\ufffd"},
        {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},
        {"\xc0\x80", "\\ufffd\\ufffd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvf_route_rank rank = {.rank_port = 1};
        char expected[128];
        (void)snprintf(rank.rank_ip, sizeof rank.rank_ip, "%s", cases[i].text);
        (void)snprintf(expected, sizeof expected, "{\"rank_ip\": \"%s\", \"rank_port\": 1}",
                       cases[i].json);
        kvf_bytes bytes = {0};
        kvf_route_rank_encode(&rank, &bytes);
        kvf_bytes_append(&bytes, "", 1);
        assert_string_equal((const char *)bytes.data, expected);
        kvf_bytes_free(&bytes);
    }
}

/* ---- decoding ---- */

static void lenient_where_stock_is(void **state)
{
    (void)state;
    kvf_route_registration registration;
    assert_int_equal(
        kvf_route_registration_decode(
            kvf_slice_of("{\"engine_rank\": \" 1_0 \", \"rank_port\":\"+4000\",\"rank_ip\":\"h\","
                         "\"role\":\"prefill\",\"dp_size\":4,\"tp_size\":16,\"more\":[1,{}]}"),
            &registration, NULL),
        KVF_OK);
    assert_false(registration.is_prefill); /* case matters; accepted all the same */
    assert_int_equal(registration.engine_rank, 10);
    assert_int_equal(registration.rank_port, 4000);
    kvf_route_rank rank;
    assert_int_equal(
        kvf_route_rank_decode(
            kvf_slice_of("\n{\"rank_ip\":\"h\",\"rank_port\":1,\"kvferry\":\"x\"}\n"), &rank, NULL),
        KVF_OK);
    assert_false(rank.extended);
}

static void wrong_registrations_name_their_key(void **state)
{
    (void)state;
    static const struct {
        const char *body, *words;
    } cases[] = {
        {"", "isn't JSON"},
        {"{", "isn't JSON"},
        {"[]", "isn't a JSON object"},
        {"null", "isn't JSON"},
        {"{} {}", "isn't JSON"},
        {"{}", "role"},
        {"{\"role\":1}", "role"},
        {"{\"role\":\"Prefill\"}", "tp_size is missing"},
        {"{\"role\":\"Prefill\",\"attn_tp_size\":1}", "SGLang 0.5.3 or later"},
        {"{\"role\":\"Prefill\",\"tp_size\":\"1\"}", "tp_size isn't an integer"},
        {"{\"role\":\"Prefill\",\"tp_size\":true}", "tp_size"},
        {"{\"role\":\"Prefill\",\"tp_size\":1.0}", "tp_size"},
        {"{\"role\":\"Prefill\",\"tp_size\":0}", "tp_size is 0"},
        {"{\"role\":\"Prefill\",\"tp_size\":65537}", "tp_size is 65537"},
        {"{\"role\":\"Prefill\",\"tp_size\":99999999999999999999}", "isn't JSON"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":3}", "dp_size"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":8}", "dp_size"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"tp_size\":4}", "tp_size"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2}", "rank_ip is missing"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":null}", "rank_ip"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"\"}", "rank_ip"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"a b\"}", "rank_ip"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"a\\u0000b\"}", "isn't"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"a\"}", "rank_port"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"a\",\"rank_port\":0}",
         "rank_port is 0"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"a\",\"rank_port\":65536}",
         "rank_port"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"a\",\"rank_port\":\"x\"}",
         "rank_port isn't a number"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"a\",\"rank_port\":1}",
         "engine_rank"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"a\",\"rank_port\":1,"
         "\"engine_rank\":4}",
         "engine_rank is 4"},
        {"{\"role\":\"Prefill\",\"tp_size\":4,\"dp_size\":2,\"rank_ip\":\"a\",\"rank_port\":1,"
         "\"engine_rank\":-1}",
         "engine_rank is -1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvf_route_registration registration;
        kvf_error error = {0};
        kvf_slice body = test_copy(kvf_slice_of(cases[i].body));
        if (kvf_route_registration_decode(body, &registration, &error) != KVF_PROTOCOL ||
            strstr(error.text, cases[i].words) == NULL)
            fail_msg("%s: \"%s\"", cases[i].body, error.text);
        free((void *)(uintptr_t)body.data);
    }
}

static void wrong_answers_name_their_key(void **state)
{
    (void)state;
    kvf_route_topology topology;
    kvf_route_rank rank;
    kvf_error error;
    static const struct {
        const char *body, *words;
    } cases[] = {{"{}", "prefill_tp_size"},
                 {"{\"prefill_tp_size\":null,\"prefill_dp_size\":1}", "prefill_tp_size"},
                 {"{\"prefill_tp_size\":1,\"prefill_dp_size\":null}", "prefill_dp_size"},
                 {"{\"prefill_tp_size\":6,\"prefill_dp_size\":4}", "prefill_dp_size"},
                 {"{\"prefill_attn_tp_size\":6,\"prefill_dp_size\":1}", "SGLang 0.5.3 or later"},
                 {"OK", "isn't JSON"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(kvf_route_topology_decode(kvf_slice_of(cases[i].body), &topology, &error),
                         KVF_PROTOCOL);
        if (strstr(error.text, cases[i].words) == NULL || topology.known)
            fail_msg("%s: \"%s\"", cases[i].body, error.text);
    }
    assert_int_equal(kvf_route_rank_decode(kvf_slice_of("{\"rank_port\":1}"), &rank, &error),
                     KVF_PROTOCOL);
    assert_non_null(strstr(error.text, "rank_ip is missing"));
    char body[400];
    (void)snprintf(body, sizeof body, "{\"rank_ip\":\"%0*d\",\"rank_port\":1}", KVF_HOST_MAX, 0);
    assert_int_equal(kvf_route_rank_decode(kvf_slice_of(body), &rank, &error), KVF_PROTOCOL);
    assert_non_null(strstr(error.text, "rank_ip"));
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    const size_t depth = 200000;
    uint8_t *body = malloc(depth);
    assert_non_null(body);
    memset(body, '[', depth);
    kvf_route_rank rank;
    kvf_error error;
    assert_int_equal(kvf_route_rank_decode((kvf_slice){body, depth}, &rank, &error), KVF_PROTOCOL);
    free(body);
}

static void integers_are_pythons(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } right[] = {{"0", 0},
                 {"-1", -1},
                 {"+5", 5},
                 {" \t1_0\n", 10},
                 {"007", 7},
                 {"-0", 0},
                 {"1_2_3", 123},
                 {"9223372036854775807", INT64_MAX},
                 {"-9223372036854775808", INT64_MIN},
                 {"\x1c"
                  "3\x1f",
                  3}};
    static const char *const wrong[] = {"",
                                        " ",
                                        "-",
                                        "+",
                                        "--1",
                                        "+-1",
                                        "1_",
                                        "_1",
                                        "1__0",
                                        "1 0",
                                        "- 1",
                                        "0x1",
                                        "1.0",
                                        "1e3",
                                        "a",
                                        "-_1",
                                        "9223372036854775808",
                                        "-9223372036854775809",
                                        "99999999999999999999999"};
    int64_t value;
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++)
        if (!kvf_route_integer(kvf_slice_of(right[i].text), &value) || value != right[i].value)
            fail_msg("%s", right[i].text);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (kvf_route_integer(kvf_slice_of(wrong[i]), &value))
            fail_msg("%s", wrong[i]);
}

/* ---- random ---- */

static void append_code_point(test_random *random, char *text, size_t *length)
{
    static const char *const points[] = {"\xc2\x80",     "\xdf\xbf",         "\xe0\xa0\x80",
                                         "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
    if (test_random_below(random, 4) != 0) {
        text[(*length)++] = (char)(0x21 + test_random_below(random, 0x5e));
        return;
    }
    const char *point = points[test_random_below(random, 6)];
    memcpy(text + *length, point, strlen(point));
    *length += strlen(point);
}

static kvf_route_registration random_registration(test_random *random)
{
    kvf_route_registration registration = {
        .rank_port = (uint16_t)(1 + test_random_below(random, 65535)),
        .dp_size = (uint32_t)(1 + test_random_below(random, 256)),
        .is_prefill = test_random_below(random, 4) != 0,
        .extended = test_random_below(random, 2) == 0};
    registration.tp_size = registration.dp_size * (uint32_t)(1 + test_random_below(random, 256));
    registration.engine_rank = (uint32_t)test_random_below(random, registration.tp_size);
    size_t length = 0, target = 1 + test_random_below(random, 250);
    while (length < target)
        append_code_point(random, registration.rank_ip, &length);
    return registration;
}

static void damage_all(test_random *random, kvf_slice body)
{
    for (unsigned i = 0; i < 10; i++) {
        kvf_slice damaged = test_random_damage(random, body);
        kvf_route_registration registration;
        kvf_route_rank rank;
        kvf_route_topology topology;
        kvf_error error;
        if (kvf_route_registration_decode(damaged, &registration, &error) == KVF_OK) {
            assert_in_range(registration.tp_size, 1, 65536);
            assert_in_range(registration.dp_size, 1, registration.tp_size);
            assert_int_equal(registration.tp_size % registration.dp_size, 0);
            assert_true(registration.engine_rank < registration.tp_size);
            assert_true(registration.rank_port != 0);
            assert_in_range(strnlen(registration.rank_ip, KVF_HOST_MAX), 1, KVF_HOST_MAX - 1);
        }
        (void)kvf_route_rank_decode(damaged, &rank, &error);
        (void)kvf_route_topology_decode(damaged, &topology, &error);
        free((void *)(uintptr_t)damaged.data);
    }
}

static void random_bodies_survive_round_trip_and_damage(void **state)
{
    (void)state;
    test_random random = test_random_start();
    for (unsigned round = 0; round < 1000; round++) {
        kvf_route_registration registration = random_registration(&random), decoded;
        kvf_bytes bytes = {0};
        kvf_error error = {0};
        kvf_route_registration_encode(&registration, &bytes);
        assert_false(bytes.failed);
        if (kvf_route_registration_decode(kvf_bytes_slice(&bytes), &decoded, &error) != KVF_OK)
            fail_msg("%s", error.text);
        assert_string_equal(decoded.rank_ip, registration.rank_ip);
        assert_true(decoded.rank_port == registration.rank_port &&
                    decoded.tp_size == registration.tp_size &&
                    decoded.dp_size == registration.dp_size &&
                    decoded.engine_rank == registration.engine_rank &&
                    decoded.is_prefill == registration.is_prefill &&
                    decoded.extended == registration.extended);
        damage_all(&random, kvf_bytes_slice(&bytes));
        kvf_bytes_clear(&bytes);
        kvf_route_topology topology = {test_random_below(&random, 2) == 0, registration.tp_size,
                                       registration.dp_size};
        kvf_route_topology_encode(&topology, &bytes);
        damage_all(&random, kvf_bytes_slice(&bytes));
        kvf_bytes_free(&bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_bodies_are_rebuilt),
        cmocka_unit_test(the_extra_key_comes_last),
        cmocka_unit_test(strings_are_escaped_as_python_does),
        cmocka_unit_test(lenient_where_stock_is),
        cmocka_unit_test(wrong_registrations_name_their_key),
        cmocka_unit_test(wrong_answers_name_their_key),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(integers_are_pythons),
        cmocka_unit_test(random_bodies_survive_round_trip_and_damage),
    };
    return cmocka_run_group_tests_name("wire/route", tests, NULL, NULL);
}
