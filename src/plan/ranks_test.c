/* Rank mapping: the spec's worked examples, and what must hold for every pair of sizes. */
#include "plan/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static kvf_rank_targets map(uint32_t prefill_tp, uint32_t prefill_dp, uint32_t decode_tp,
                            uint32_t decode_dp, uint32_t rank, uint64_t room, int64_t dp_rank)
{
    kvf_rank_targets targets;
    kvf_rank_sizes prefill = {prefill_tp, prefill_dp};
    kvf_rank_sizes decode = {decode_tp, decode_dp};
    assert_int_equal(kvf_ranks_map(&prefill, &decode, rank, true, room, dp_rank, &targets, NULL),
                     KVF_OK);
    return targets;
}

static void assert_targets(kvf_rank_targets targets, uint32_t dp_group, uint32_t first,
                           uint32_t count, uint32_t required)
{
    assert_int_equal(targets.dp_group, dp_group);
    assert_int_equal(targets.first, first);
    assert_int_equal(targets.count, count);
    assert_int_equal(targets.required, required);
}

static void worked_examples(void **state)
{
    (void)state;
    assert_targets(map(4, 1, 8, 1, 5, 7, -1), 0, 2, 1, 2);
    assert_targets(map(4, 1, 8, 1, 4, 7, -1), 0, 2, 1, 2);
    assert_targets(map(8, 1, 2, 1, 1, 7, -1), 0, 4, 4, 1);
    assert_targets(map(2, 1, 1, 1, 0, 7, -1), 0, 0, 2, 1);
    assert_targets(map(8, 2, 8, 2, 5, 7, -1), 1, 1, 1, 1);
    assert_targets(map(8, 2, 8, 2, 5, 8, -1), 0, 1, 1, 1);
    assert_targets(map(8, 2, 8, 2, 5, 8, 1), 1, 1, 1, 1);
    assert_targets(map(3, 3, 1, 1, 0, (UINT64_C(1) << 63) - 1, -1), 1, 0, 1, 1);
}

/* Within a dp group, over all decode ranks: each prefill rank is asked by exactly as many as it is
 * told to wait for, and exactly one of each decode rank's targets is the real one. */
static void every_target_gets_what_it_waits_for(void **state)
{
    (void)state;
    for (uint32_t prefill = 1; prefill <= 16; prefill++)
        for (uint32_t decode = 1; decode <= 16; decode++) {
            if (prefill % decode != 0 && decode % prefill != 0)
                continue;
            uint32_t reports[16] = {0};
            uint32_t required[16] = {0};
            for (uint32_t rank = 0; rank < decode; rank++) {
                /* As seen from the third of five dp groups. */
                kvf_rank_targets targets =
                    map(prefill * 2, 2, decode * 5, 5, 2 * decode + rank, rank, -1);
                assert_true(targets.count >= 1 && targets.first + targets.count <= prefill);
                for (uint32_t i = 0; i < targets.count; i++) {
                    reports[targets.first + i]++;
                    required[targets.first + i] = targets.required;
                }
            }
            for (uint32_t i = 0; i < prefill; i++)
                assert_true(reports[i] > 0 && reports[i] == required[i]);
        }
}

static void wrong_sizes_are_named(void **state)
{
    (void)state;
    static const struct {
        kvf_rank_sizes prefill;
        kvf_rank_sizes decode;
        uint32_t rank;
        bool mla;
        int64_t dp_rank;
        kvf_status status;
        const char *text;
    } cases[] = {
        {{0, 1}, {1, 1}, 0, true, -1, KVF_MISMATCH, "prefill has tp size 0"},
        {{1, 0}, {1, 1}, 0, true, -1, KVF_MISMATCH, "dp size 0"},
        {{4, 1}, {4, 3}, 0, true, -1, KVF_MISMATCH, "decode has tp size 4"},
        {{4, 1}, {6, 1}, 0, true, -1, KVF_MISMATCH, "must divide"},
        {{4, 1}, {6, 1}, 0, false, -1, KVF_UNSUPPORTED, "without MLA"},
        {{4, 1}, {8, 1}, 0, false, -1, KVF_UNSUPPORTED, "without MLA"},
        {{4, 1}, {4, 1}, 4, false, -1, KVF_OUT_OF_RANGE, "decode rank 4"},
        {{4, 2}, {4, 2}, 0, false, 2, KVF_OUT_OF_RANGE, "dp rank 2"},
        {{4, 2}, {4, 2}, 0, false, INT64_MAX, KVF_OUT_OF_RANGE, "dp rank"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvf_rank_targets targets;
        kvf_error error;
        assert_int_equal(kvf_ranks_map(&cases[i].prefill, &cases[i].decode, cases[i].rank,
                                       cases[i].mla, 1, cases[i].dp_rank, &targets, &error),
                         cases[i].status);
        assert_non_null(strstr(error.text, cases[i].text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_examples),
        cmocka_unit_test(every_target_gets_what_it_waits_for),
        cmocka_unit_test(wrong_sizes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
