/* Every captured notification rebuilt; the parser's known traps; random and damaged ones. */
#include "wire/notice.h"

#include "support/random.h"
#include "support/scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- golden ---- */

/* The `turn`th notification of a room's sender, as the number of chunks determines it. */
static kvf_notice nth_notice(const test_scene *scene, uint32_t turn)
{
    assert_true(turn <= scene->chunks);
    if (turn == scene->chunks)
        return (kvf_notice){.kind = KVF_NOTICE_AUX, .room = scene->room};
    return (kvf_notice){.kind = KVF_NOTICE_CHUNK,
                        .room = scene->room,
                        .chunk = turn,
                        .last = turn + 1 == scene->chunks};
}

static void check_notice(const test_scene *scene, uint32_t turn, kvf_slice captured)
{
    char text[KVF_NOTICE_TEXT_MAX];
    kvf_notice notice = nth_notice(scene, turn), parsed;
    kvf_slice built = {(const uint8_t *)text, kvf_notice_format(&notice, text)};
    test_assert_bytes(scene, "notification", built, captured);
    assert_int_equal(kvf_notice_parse(captured, &parsed, NULL), KVF_OK);
    assert_true(parsed.kind == notice.kind && parsed.room == notice.room &&
                parsed.chunk == notice.chunk && parsed.last == notice.last);
}

/* The events of `rank` of one kind that concern one peer, in their order. */
static uint32_t check_sequence(const test_scene *scene, const test_rank *rank, const char *what,
                               const char *peer_key, const char *peer)
{
    uint32_t turn = 0;
    for (const json_t *event = NULL; (event = test_event_next(rank, what, event)) != NULL;) {
        if (strcmp(test_event_text(event, peer_key), peer) != 0)
            continue;
        if (rank->is_prefill) {
            check_notice(scene, turn++, kvf_slice_of(test_event_text(event, "notification")));
            continue;
        }
        kvf_bytes captured = test_from_hex(test_event_text(event, "hex"));
        check_notice(scene, turn++, kvf_bytes_slice(&captured));
        kvf_bytes_free(&captured);
    }
    return turn;
}

static void check_scene(const test_scene *scene)
{
    for (size_t i = 0; i < scene->rank_count; i++)
        for (size_t j = 0; j < scene->rank_count; j++) {
            const test_rank *decode = &scene->ranks[i];
            const test_rank *prefill = &scene->ranks[j];
            if (decode->is_prefill || !prefill->is_prefill)
                continue;
            bool real = test_targets_of(scene, decode).first == prefill->tp_rank;
            uint32_t expected = real ? scene->chunks + 1 : 0;
            assert_int_equal(
                check_sequence(scene, decode, "notification", "sender", prefill->agent_name),
                expected);
            assert_int_equal(check_sequence(scene, prefill, "write", "peer", decode->agent_name),
                             expected);
        }
}

static void captured_notifications_are_rebuilt(void **state)
{
    (void)state;
    test_scenes_each(check_scene);
}

/* Written by NIXL's own serialiser, from nixl-wire.md 3.6. */
static void the_envelope_is_nixls(void **state)
{
    (void)state;
    static const char golden[] = "nixlSerDes|name\x09\0\0\0\0\0\0\0prefill-0|"
                                 "msg\x08\0\0\0\0\0\0\0"
                                 "7_kv_0_1|";
    uint8_t payload[KVF_NOTICE_PAYLOAD_MAX];
    size_t length =
        kvf_notice_payload_encode(kvf_slice_of("prefill-0"), kvf_slice_of("7_kv_0_1"), payload);
    assert_int_equal(length, 53);
    assert_memory_equal(payload, golden, 53);
    kvf_slice name, text;
    assert_int_equal(kvf_notice_payload_decode((kvf_slice){payload, length}, &name, &text, NULL),
                     KVF_OK);
    assert_true(kvf_slice_equal(name, kvf_slice_of("prefill-0")));
    assert_true(kvf_slice_equal(text, kvf_slice_of("7_kv_0_1")));

    char long_text[KVF_NOTICE_TEXT_MAX + 2] = {0};
    memset(long_text, 'x', KVF_NOTICE_TEXT_MAX + 1);
    assert_int_equal(kvf_notice_payload_encode(kvf_slice_of("a"), kvf_slice_of(long_text), payload),
                     0);
}

/* ---- traps ---- */

static void wrong_texts_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "abc",
                                        "x_kv_0_1",
                                        "5_kv",
                                        "5_kv_0_2",
                                        "5_kv_-1_1",
                                        "5_kv_0_1_0_part_3_2",
                                        "18446744073709551616_aux",
                                        "9223372036854775808_aux",
                                        "5_kv_0",
                                        "5_kv_0_",
                                        "5_kv__1",
                                        "5_kv_0_1_",
                                        "5_kv_0_1_0",
                                        "5_kv_0_01",
                                        "5_kv_0_1 ",
                                        "5_kv_4294967296_1",
                                        "5_kv_+1_1",
                                        " 5_aux",
                                        "5_aux_",
                                        "5_aux_nokv_1",
                                        "5_",
                                        "_aux",
                                        "5",
                                        "5_kv_0_1\n",
                                        "5_a\xc3\xa4",
                                        "-5_aux",
                                        "5.0_aux"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        kvf_notice notice;
        kvf_error error = {0};
        if (kvf_notice_parse(kvf_slice_of(wrong[i]), &notice, &error) != KVF_PROTOCOL)
            fail_msg("\"%s\" was taken", wrong[i]);
        assert_true(error.text[0] != '\0');
    }
}

static void unknown_tags_are_told_apart_from_rubbish(void **state)
{
    (void)state;
    static const char *const texts[] = {"5_unknown_1", "5_stg_0_1_2_3_4_5_an_agent_name",
                                        "5_state_0_1", "5_KV_0_1",
                                        "5_kvx",       "5_a b"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        kvf_notice notice;
        assert_int_equal(kvf_notice_parse(kvf_slice_of(texts[i]), &notice, NULL), KVF_OK);
        assert_int_equal(notice.kind, KVF_NOTICE_UNKNOWN);
        assert_true(notice.room == 5);
    }
}

static void a_long_text_is_just_long(void **state)
{
    (void)state;
    const size_t length = 65536;
    uint8_t *text = malloc(length);
    assert_non_null(text);
    memset(text, '5', length);
    kvf_notice notice;
    kvf_error error;
    assert_int_equal(kvf_notice_parse((kvf_slice){text, length}, &notice, &error), KVF_PROTOCOL);
    memcpy(text, "5_kv_", 5);
    assert_int_equal(kvf_notice_parse((kvf_slice){text, length}, &notice, &error), KVF_PROTOCOL);
    free(text);
}

static void wrong_envelopes_are_refused(void **state)
{
    (void)state;
    uint8_t payload[KVF_NOTICE_PAYLOAD_MAX + 1];
    size_t length =
        kvf_notice_payload_encode(kvf_slice_of("agent"), kvf_slice_of("7_aux"), payload);
    kvf_slice name, text;
    for (size_t cut = 0; cut < length; cut++) {
        kvf_slice copy = test_copy((kvf_slice){payload, cut});
        assert_int_equal(kvf_notice_payload_decode(copy, &name, &text, NULL), KVF_PROTOCOL);
        free((void *)(uintptr_t)copy.data);
    }
    payload[length] = '|';
    assert_int_equal(
        kvf_notice_payload_decode((kvf_slice){payload, length + 1}, &name, &text, NULL),
        KVF_PROTOCOL);
    payload[length - 1] = '_';
    assert_int_equal(kvf_notice_payload_decode((kvf_slice){payload, length}, &name, &text, NULL),
                     KVF_PROTOCOL);
    /* A connection check of NIXL up to 0.5.0, and a notification of nobody. */
    assert_int_equal(
        kvf_notice_payload_decode(kvf_slice_of("4c030bad-0641-4e6c"), &name, &text, NULL),
        KVF_PROTOCOL);
    length = kvf_notice_payload_encode(kvf_slice_of(""), kvf_slice_of("7_aux"), payload);
    assert_int_equal(kvf_notice_payload_decode((kvf_slice){payload, length}, &name, &text, NULL),
                     KVF_PROTOCOL);
}

/* ---- random ---- */

static void round_trip(test_random *random, kvf_slice name, uint8_t *payload, size_t *length)
{
    kvf_notice notice = {.room = test_random_edgy(random) & KVF_ROOM_MAX};
    if (test_random_below(random, 4) == 0)
        notice.kind = KVF_NOTICE_AUX;
    else
        notice = (kvf_notice){.kind = KVF_NOTICE_CHUNK,
                              .room = notice.room,
                              .chunk = (uint32_t)test_random_edgy(random),
                              .last = test_random_below(random, 2) == 0};
    if (test_random_below(random, 2) == 0)
        notice.epoch = test_random_edgy(random);
    char text[KVF_NOTICE_TEXT_MAX];
    kvf_slice written = {(const uint8_t *)text, kvf_notice_format(&notice, text)};
    assert_true(written.length < KVF_NOTICE_TEXT_MAX);
    *length = kvf_notice_payload_encode(name, written, payload);
    assert_in_range(*length, 1, KVF_NOTICE_PAYLOAD_MAX);
    kvf_slice name_again, text_again;
    kvf_notice again;
    assert_int_equal(
        kvf_notice_payload_decode((kvf_slice){payload, *length}, &name_again, &text_again, NULL),
        KVF_OK);
    assert_true(kvf_slice_equal(name, name_again) && kvf_slice_equal(written, text_again));
    assert_int_equal(kvf_notice_parse(text_again, &again, NULL), KVF_OK);
    assert_true(again.kind == notice.kind && again.room == notice.room &&
                again.epoch == notice.epoch && again.chunk == notice.chunk &&
                again.last == notice.last);
}

static void a_kvferry_peer_names_the_epoch(void **state)
{
    (void)state;
    char text[KVF_NOTICE_TEXT_MAX];
    kvf_notice chunk = {
        .kind = KVF_NOTICE_CHUNK, .room = 7, .epoch = UINT64_MAX, .chunk = 3, .last = true};
    kvf_notice aux = {.kind = KVF_NOTICE_AUX, .room = 7, .epoch = 5};
    kvf_slice written = {(const uint8_t *)text, kvf_notice_format(&chunk, text)};
    assert_true(kvf_slice_equal(written, kvf_slice_of("7_kvferry_18446744073709551615_3_1")));
    written.length = kvf_notice_format(&aux, text);
    assert_true(kvf_slice_equal(written, kvf_slice_of("7_kvferryaux_5")));
    static const char *const wrong[] = {
        "7_kvferry_5_3", "7_kvferry_5_3_2",  "7_kvferry_0_3_1",   "7_kvferry__3_1",
        "7_kvferry",     "7_kvferryaux_5_0", "7_kvferryaux_0",    "7_kvferryaux",
        "7_kvferryaux_", "7_kvferry_x_3_1",  "7_kvferry_5_3_1_0",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (kvf_notice_parse(kvf_slice_of(wrong[i]), &aux, NULL) != KVF_PROTOCOL)
            fail_msg("\"%s\" was taken", wrong[i]);
}

static void random_notifications_survive_round_trip_and_damage(void **state)
{
    (void)state;
    test_random random = test_random_start();
    for (unsigned round = 0; round < 3000; round++) {
        uint8_t name[KVF_AGENT_NAME_MAX], payload[KVF_NOTICE_PAYLOAD_MAX];
        kvf_slice name_slice = {name, 1 + (size_t)test_random_below(&random, sizeof name)};
        test_random_fill(&random, name, name_slice.length, true);
        size_t length;
        round_trip(&random, name_slice, payload, &length);
        for (unsigned i = 0; i < 10; i++) {
            kvf_slice damaged = test_random_damage(&random, (kvf_slice){payload, length});
            kvf_slice text;
            kvf_notice notice;
            kvf_error error;
            if (kvf_notice_payload_decode(damaged, &name_slice, &text, &error) == KVF_OK) {
                assert_true(test_lies_inside(name_slice, damaged));
                assert_true(test_lies_inside(text, damaged));
                (void)kvf_notice_parse(text, &notice, &error);
            }
            free((void *)(uintptr_t)damaged.data);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_notifications_are_rebuilt),
        cmocka_unit_test(the_envelope_is_nixls),
        cmocka_unit_test(wrong_texts_are_refused),
        cmocka_unit_test(a_kvferry_peer_names_the_epoch),
        cmocka_unit_test(unknown_tags_are_told_apart_from_rubbish),
        cmocka_unit_test(a_long_text_is_just_long),
        cmocka_unit_test(wrong_envelopes_are_refused),
        cmocka_unit_test(random_notifications_survive_round_trip_and_damage),
    };
    return cmocka_run_group_tests_name("wire/notice", tests, NULL, NULL);
}
