/* Letters: their bytes, what is refused, and damage of every kind. */
#include "wire/letter.h"

#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const kvf_letter abort_letter = {.kind = KVF_LETTER_ABORT,
                                        .status = KVF_ABORTED,
                                        .room = 0x0102030405060708,
                                        .epoch = 0x1112131415161718};

static void the_bytes_are_the_documented_ones(void **state)
{
    (void)state;
    static const uint8_t golden[KVF_LETTER_HEAD] = {1,    0,    0,    0,    18,   0,    0,    0,
                                                    8,    7,    6,    5,    4,    3,    2,    1,
                                                    0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
    kvf_letter letter = abort_letter;
    letter.agent_name = kvf_slice_of("decode");
    letter.text = kvf_slice_of("why");
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice frames[KVF_LETTER_FRAMES];
    kvf_letter_encode(&letter, head, frames);
    assert_true(kvf_slice_equal(frames[0], kvf_slice_of("KVFERRY1")));
    assert_int_equal(frames[1].length, KVF_LETTER_HEAD);
    assert_memory_equal(frames[1].data, golden, KVF_LETTER_HEAD);
    assert_true(kvf_slice_equal(frames[2], letter.agent_name));
    assert_true(kvf_slice_equal(frames[3], letter.text));
    assert_int_equal(frames[4].length, 0);
}

static bool same(const kvf_letter *a, const kvf_letter *b)
{
    return a->kind == b->kind && a->status == b->status && a->room == b->room &&
           a->epoch == b->epoch && kvf_slice_equal(a->agent_name, b->agent_name) &&
           kvf_slice_equal(a->text, b->text) && kvf_slice_equal(a->body, b->body);
}

/* A sound letter over texts that live as long as the test's buffers. */
static kvf_letter random_letter(test_random *random, uint8_t *name, uint8_t *text, uint8_t *body)
{
    kvf_letter letter = {.kind = (uint32_t)test_random_edgy(random),
                         .status = (kvf_status)test_random_below(random, KVF_STATUS_LAST + 1),
                         .room = test_random_edgy(random) & KVF_ROOM_MAX,
                         .epoch = 1 + test_random_below(random, UINT64_MAX)};
    letter.agent_name = (kvf_slice){name, 1 + test_random_below(random, KVF_AGENT_NAME_MAX)};
    letter.text = (kvf_slice){text, test_random_below(random, KVF_LETTER_TEXT_MAX + 1)};
    letter.body = (kvf_slice){body, test_random_below(random, 64)};
    test_random_fill(random, name, letter.agent_name.length, true);
    test_random_fill(random, text, letter.text.length, true);
    test_random_fill(random, body, letter.body.length, false);
    return letter;
}

static void random_letters_survive_round_trip_and_damage(void **state)
{
    (void)state;
    test_random random = test_random_start();
    static uint8_t name[KVF_AGENT_NAME_MAX];
    static uint8_t text[KVF_LETTER_TEXT_MAX];
    static uint8_t body[64];
    for (int round = 0; round < 3000; round++) {
        kvf_letter letter = random_letter(&random, name, text, body);
        kvf_letter again;
        kvf_error error;
        uint8_t head[KVF_LETTER_HEAD];
        kvf_slice frames[KVF_LETTER_FRAMES];
        kvf_letter_encode(&letter, head, frames);
        assert_true(kvf_letter_is_one(frames, KVF_LETTER_FRAMES));
        assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, &error), KVF_OK);
        assert_true(same(&letter, &again));
        size_t hurt = 1 + test_random_below(&random, KVF_LETTER_FRAMES - 1);
        frames[hurt] = test_random_damage(&random, frames[hurt]);
        if (kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, &error) == KVF_OK) {
            assert_true(again.room <= KVF_ROOM_MAX && again.epoch != 0);
            assert_true(again.status <= KVF_STATUS_LAST);
            assert_in_range(again.agent_name.length, 1, KVF_AGENT_NAME_MAX);
            assert_in_range(again.text.length, 0, KVF_LETTER_TEXT_MAX);
        }
        free((void *)(uintptr_t)frames[hurt].data);
    }
}

static void damaged_letters_are_refused(void **state)
{
    (void)state;
    uint8_t head[KVF_LETTER_HEAD + 8] = {0};
    kvf_slice frames[KVF_LETTER_FRAMES + 1];
    kvf_letter letter = abort_letter;
    kvf_letter again;
    kvf_error error;
    letter.agent_name = kvf_slice_of("decode");
    kvf_letter_encode(&letter, head, frames);
    frames[KVF_LETTER_FRAMES] = kvf_slice_of("of a later version");
    for (size_t count = 0; count < KVF_LETTER_FRAMES; count++)
        assert_int_equal(kvf_letter_decode(frames, count, &again, &error), KVF_PROTOCOL);
    frames[1].length = KVF_LETTER_HEAD - 1;
    assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, &error), KVF_PROTOCOL);
    frames[1].length = KVF_LETTER_HEAD + 8; /* of a later version, too */
    assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES + 1, &again, &error), KVF_OK);
    frames[2] = kvf_slice_of("");
    assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, &error), KVF_PROTOCOL);
    frames[2] = kvf_slice_of("dec\node");
    assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, &error), KVF_PROTOCOL);
    frames[2] = kvf_slice_of("decode");
    frames[3] = kvf_slice_of("caf\xc3\xa9");
    assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, &error), KVF_PROTOCOL);
}

/* Or the peer would refuse the letter, and with it what the letter was about. */
static void any_text_is_made_fit_for_a_letter(void **state)
{
    (void)state;
    char plain[KVF_LETTER_TEXT_MAX];
    char anything[2 * KVF_LETTER_TEXT_MAX];
    test_random random = test_random_start();
    assert_true(kvf_slice_equal(kvf_letter_text("caf\xc3\xa9\n", plain), kvf_slice_of("caf???")));
    assert_int_equal(kvf_letter_text("", plain).length, 0);
    for (int round = 0; round < 300; round++) {
        uint8_t head[KVF_LETTER_HEAD];
        kvf_slice frames[KVF_LETTER_FRAMES];
        kvf_letter letter = abort_letter;
        kvf_letter again;
        test_random_fill(&random, (uint8_t *)anything, sizeof anything - 1, false);
        anything[sizeof anything - 1] = '\0';
        letter.agent_name = kvf_slice_of("decode");
        letter.text = kvf_letter_text(anything, plain);
        kvf_letter_encode(&letter, head, frames);
        assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, NULL), KVF_OK);
    }
}

static void odd_numbers_are_refused_or_made_plain(void **state)
{
    (void)state;
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice frames[KVF_LETTER_FRAMES];
    kvf_letter letter = abort_letter;
    kvf_letter again;
    letter.agent_name = kvf_slice_of("decode");
    letter.status = (kvf_status)4000000;
    kvf_letter_encode(&letter, head, frames);
    assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, NULL), KVF_OK);
    assert_int_equal(again.status, KVF_PEER_FAILED);
    letter.epoch = 0;
    kvf_letter_encode(&letter, head, frames);
    assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, NULL), KVF_PROTOCOL);
    letter.epoch = 1;
    letter.room = KVF_ROOM_MAX + 1;
    kvf_letter_encode(&letter, head, frames);
    assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &again, NULL), KVF_PROTOCOL);
    frames[0] = kvf_slice_of("KVFERRY2");
    assert_false(kvf_letter_is_one(frames, KVF_LETTER_FRAMES));
    assert_false(kvf_letter_is_one(frames, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_are_the_documented_ones),
        cmocka_unit_test(random_letters_survive_round_trip_and_damage),
        cmocka_unit_test(damaged_letters_are_refused),
        cmocka_unit_test(any_text_is_made_fit_for_a_letter),
        cmocka_unit_test(odd_numbers_are_refused_or_made_plain),
    };
    return cmocka_run_group_tests_name("wire/letter", tests, NULL, NULL);
}
