/* Bodies of letters about verification: golden bytes, what is refused, damaged ones. */
#include "wire/sums.h"

#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void append_sums(kvf_bytes *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        kvf_bytes_append_u64(bytes, 0x0123456789abcdefU + i);
}

static void a_chunks_sums_have_these_bytes(void **state)
{
    (void)state;
    static const uint8_t golden[] = {
        5,    0,    0,    0,    0,    2,    1,    0,    1,    0,    0,    0,    2,    0,    0,
        0,    1,    0,    0,    0,    0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0xf0, 0xcd,
        0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0xf1, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01};
    kvf_bytes bytes = {0};
    kvf_chunk_sums sums = {
        .chunk = 5, .page_count = 66048, .buffer_count = 2, .aux_count = 1, .last = true};
    kvf_chunk_sums_begin(&sums, &bytes);
    append_sums(&bytes, 3);
    assert_int_equal(bytes.length, kvf_chunk_sums_size(2, 1));
    assert_int_equal(bytes.length, sizeof golden);
    assert_memory_equal(bytes.data, golden, sizeof golden);
    memset(&sums, 0, sizeof sums);
    assert_int_equal(kvf_chunk_sums_decode(kvf_bytes_slice(&bytes), &sums, NULL), KVF_OK);
    assert_true(sums.chunk == 5 && sums.page_count == 66048 && sums.buffer_count == 2 &&
                sums.aux_count == 1 && sums.last && sums.sums.length == 24);
    assert_memory_equal(sums.sums.data, golden + KVF_CHUNK_SUMS_HEAD, 24);
    kvf_bytes_free(&bytes);
}

static void page_sums_have_these_bytes(void **state)
{
    (void)state;
    static const uint8_t golden[] = {1, 0, 0, 0, 2, 0, 0,    0,    3,    0,    0,    0,
                                     1, 0, 0, 0, 0, 0, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45};
    kvf_bytes bytes = {0};
    kvf_page_sums sums = {.chunk = 1, .buffer = 2, .first = 3, .page_count = 1};
    kvf_page_sums_begin(&sums, &bytes);
    kvf_bytes_append_u64(&bytes, 0x456789abcdef0000U);
    assert_int_equal(bytes.length, sizeof golden);
    assert_memory_equal(bytes.data, golden, sizeof golden);
    assert_int_equal(kvf_page_sums_decode(kvf_bytes_slice(&bytes), &sums, NULL), KVF_OK);
    assert_true(sums.chunk == 1 && sums.buffer == 2 && sums.first == 3 && sums.page_count == 1);
    assert_int_equal(kvf_read_u64(sums.sums.data), 0x456789abcdef0000U);
    kvf_bytes_free(&bytes);
}

static void questions_and_verdicts_have_these_bytes(void **state)
{
    (void)state;
    static const uint8_t golden[] = {0x78, 0x56, 0x34, 0x12, 7, 0, 0, 0, 9, 0, 0, 0};
    uint8_t question[KVF_WANT_PAGES_SIZE];
    uint8_t verdict[KVF_VERDICT_SIZE];
    kvf_page_sums wanted = {.chunk = 0x12345678, .buffer = 7, .first = 9};
    uint32_t chunk = 0;
    kvf_want_pages_encode(&wanted, question);
    assert_memory_equal(question, golden, sizeof golden);
    memset(&wanted, 0, sizeof wanted);
    assert_int_equal(kvf_want_pages_decode((kvf_slice){question, 12}, &wanted, NULL), KVF_OK);
    assert_true(wanted.chunk == 0x12345678 && wanted.buffer == 7 && wanted.first == 9);
    kvf_verdict_encode(0x12345678, verdict);
    assert_memory_equal(verdict, golden, sizeof verdict);
    assert_int_equal(kvf_verdict_decode((kvf_slice){verdict, 4}, &chunk, NULL), KVF_OK);
    assert_int_equal(chunk, 0x12345678);
}

/* ---- What is refused -------------------------------------------------------------------------------- */

static void chunk_sums_are(kvf_status status, uint32_t last, uint32_t buffers, uint32_t aux,
                           size_t sums)
{
    kvf_bytes bytes = {0};
    kvf_chunk_sums decoded;
    kvf_error error = {.status = KVF_OK};
    kvf_chunk_sums_begin(
        &(kvf_chunk_sums){.page_count = 1, .buffer_count = buffers, .aux_count = aux}, &bytes);
    kvf_write_u32(bytes.data + 8, last);
    append_sums(&bytes, sums);
    kvf_slice exact = test_copy(kvf_bytes_slice(&bytes));
    assert_int_equal(kvf_chunk_sums_decode(exact, &decoded, &error), status);
    assert_true((status == KVF_OK) == (error.text[0] == '\0'));
    free((void *)(uintptr_t)exact.data);
    kvf_bytes_free(&bytes);
}

static void counts_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    chunk_sums_are(KVF_OK, 1, 2, 2, 4);
    chunk_sums_are(KVF_OK, 0, 2, 0, 2);
    chunk_sums_are(KVF_OK, 0, 0, 0, 0);
    chunk_sums_are(KVF_PROTOCOL, 1, 2, 2, 3);
    chunk_sums_are(KVF_PROTOCOL, 1, 2, 2, 5);
    chunk_sums_are(KVF_PROTOCOL, 0, 2, 1, 3);
    chunk_sums_are(KVF_PROTOCOL, 2, 2, 0, 2);
    chunk_sums_are(KVF_PROTOCOL, UINT32_MAX, 2, 0, 2);
    chunk_sums_are(KVF_PROTOCOL, 1, UINT32_MAX, UINT32_MAX, 2);
    chunk_sums_are(KVF_PROTOCOL, 1, 0x20000000, 0, 0); /* 8 times that wraps in 32 bits */
}

static void page_sums_are(kvf_status status, uint32_t pages, size_t sums)
{
    kvf_bytes bytes = {0};
    kvf_page_sums decoded;
    kvf_page_sums_begin(&(kvf_page_sums){.page_count = pages}, &bytes);
    append_sums(&bytes, sums);
    assert_int_equal(kvf_page_sums_decode(kvf_bytes_slice(&bytes), &decoded, NULL), status);
    kvf_bytes_free(&bytes);
}

static void page_sums_are_bounded(void **state)
{
    (void)state;
    page_sums_are(KVF_OK, 1, 1);
    page_sums_are(KVF_OK, KVF_PAGE_SUMS_MAX, KVF_PAGE_SUMS_MAX);
    page_sums_are(KVF_PROTOCOL, KVF_PAGE_SUMS_MAX + 1, KVF_PAGE_SUMS_MAX + 1);
    page_sums_are(KVF_PROTOCOL, 0, 0);
    page_sums_are(KVF_PROTOCOL, 2, 1);
    page_sums_are(KVF_PROTOCOL, 0x20000001, 1);
}

static void other_lengths_are_refused(void **state)
{
    (void)state;
    uint8_t body[32] = {0};
    kvf_chunk_sums sums;
    kvf_page_sums pages;
    uint32_t chunk;
    for (size_t length = 0; length < sizeof body; length++) {
        kvf_slice slice = {body, length};
        kvf_status right = length == KVF_CHUNK_SUMS_HEAD ? KVF_OK : KVF_PROTOCOL;
        assert_int_equal(kvf_chunk_sums_decode(slice, &sums, NULL), right);
        assert_int_equal(kvf_page_sums_decode(slice, &pages, NULL), KVF_PROTOCOL);
        right = length == KVF_VERDICT_SIZE ? KVF_OK : KVF_PROTOCOL;
        assert_int_equal(kvf_verdict_decode(slice, &chunk, NULL), right);
        right = length == KVF_WANT_PAGES_SIZE ? KVF_OK : KVF_PROTOCOL;
        assert_int_equal(kvf_want_pages_decode(slice, &pages, NULL), right);
    }
}

static void damaged_bodies_are_read_within_their_bounds(void **state)
{
    (void)state;
    test_random random = test_random_start();
    kvf_bytes bytes = {0};
    size_t sound = 0;
    for (int i = 0; i < 20000; i++) {
        kvf_chunk_sums chunk = {.chunk = (uint32_t)test_random_edgy(&random),
                                .page_count = (uint32_t)test_random_edgy(&random),
                                .buffer_count = (uint32_t)test_random_below(&random, 9),
                                .last = test_random_below(&random, 2) == 1};
        kvf_bytes_clear(&bytes);
        kvf_chunk_sums_begin(&chunk, &bytes);
        append_sums(&bytes, chunk.buffer_count);
        kvf_slice damaged = test_random_damage(&random, kvf_bytes_slice(&bytes));
        kvf_page_sums pages;
        if (kvf_chunk_sums_decode(damaged, &chunk, NULL) == KVF_OK) {
            assert_true(test_lies_inside(chunk.sums, damaged));
            assert_int_equal(chunk.sums.length, 8 * (chunk.buffer_count + chunk.aux_count));
            sound++;
        }
        if (kvf_page_sums_decode(damaged, &pages, NULL) == KVF_OK)
            assert_true(test_lies_inside(pages.sums, damaged));
        free((void *)(uintptr_t)damaged.data);
    }
    assert_true(sound > 100);
    kvf_bytes_free(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunks_sums_have_these_bytes),
        cmocka_unit_test(page_sums_have_these_bytes),
        cmocka_unit_test(questions_and_verdicts_have_these_bytes),
        cmocka_unit_test(counts_that_do_not_fit_are_refused),
        cmocka_unit_test(page_sums_are_bounded),
        cmocka_unit_test(other_lengths_are_refused),
        cmocka_unit_test(damaged_bodies_are_read_within_their_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
