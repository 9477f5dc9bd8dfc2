/* The command's fill pattern: docs/pattern.md promises these very numbers to other programs. */
#include "../tools/kvferry/pattern.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* From an implementation of docs/pattern.md in another language. */
static void words_are_the_documented_ones(void **state)
{
    (void)state;
    assert_int_equal(pattern_word(0, 0, 0), UINT64_C(0xa706dd2f4d197e6f));
    assert_int_equal(pattern_word(1, 0, 0), UINT64_C(0x5e41ab087439611e));
    assert_int_equal(pattern_word(1, 0, 8), UINT64_C(0xe9fd6049d65af21e));
    assert_int_equal(pattern_word(1, 63, 33554424), UINT64_C(0x6151bcfa66ddbf05));
    assert_int_equal(pattern_word(1, PATTERN_AUX, 64), UINT64_C(0x3718cf6099af3001));
    assert_int_equal(pattern_word(UINT64_MAX, 5, 4096), UINT64_C(0xcec838ed9068fa01));
}

static uint8_t slow_byte(uint64_t seed, uint32_t buffer, uint64_t offset)
{
    return (uint8_t)(pattern_word(seed, buffer, offset - offset % 8) >> (8 * (offset % 8)));
}

static void any_range_is_a_part_of_the_whole(void **state)
{
    (void)state;
    uint8_t bytes[64];
    for (uint64_t offset = 0; offset < 20; offset++) {
        for (size_t length = 0; length <= 40; length++) {
            memset(bytes, 0, sizeof bytes);
            pattern_fill(9, 3, offset, bytes, length);
            for (size_t i = 0; i < length; i++)
                assert_int_equal(bytes[i], slow_byte(9, 3, offset + i));
            assert_int_equal(bytes[length], 0);
        }
    }
}

static void one_wrong_byte_is_found_where_it_is(void **state)
{
    (void)state;
    enum { LENGTH = 3 * 4096 + 5, OFFSET = 11 };
    static uint8_t bytes[LENGTH];
    pattern_fill(1, 2, OFFSET, bytes, LENGTH);
    assert_int_equal(pattern_compare(1, 2, OFFSET, bytes, LENGTH), LENGTH);
    const size_t places[] = {0, 1, 4095, 4096, 8191, LENGTH - 1};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        bytes[places[i]] ^= 1;
        assert_int_equal(pattern_compare(1, 2, OFFSET, bytes, LENGTH), places[i]);
        bytes[places[i]] ^= 1;
    }
    assert_int_not_equal(pattern_compare(2, 2, OFFSET, bytes, LENGTH), LENGTH);
    assert_int_not_equal(pattern_compare(1, 3, OFFSET, bytes, LENGTH), LENGTH);
    assert_int_not_equal(pattern_compare(1, 2, OFFSET + 1, bytes, LENGTH), LENGTH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(words_are_the_documented_ones),
                                       cmocka_unit_test(any_range_is_a_part_of_the_whole),
                                       cmocka_unit_test(one_wrong_byte_is_found_where_it_is)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
