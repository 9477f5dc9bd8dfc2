/* Layout checks: each promise of the header broken once, addresses at the edges, and overlaps against
 * comparing every pair. */
#include "plan/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define HOST(base, length, item)                                                                   \
    {                                                                                              \
        sizeof(kvf_buffer), (base), (length), (item), KVF_MEMORY_HOST, 0                           \
    }

static void a_good_layout_is_summed_up(void **state)
{
    (void)state;
    kvf_buffer buffers[] = {HOST(0x10000, 0x1000, 0x100), HOST(0x20000, 0x900, 0x80)};
    kvf_buffer aux[] = {HOST(0x30000, 256, 64), HOST(0x31000, 4096, 512)};
    kvf_layout layout = {.size = sizeof layout,
                         .buffers = buffers,
                         .buffer_count = 2,
                         .aux = aux,
                         .aux_count = 2,
                         .mla = 7};
    kvf_pool pool;
    assert_int_equal(kvf_pool_build(&layout, 4, &pool, NULL), KVF_OK);
    memset(buffers, 0, sizeof buffers); /* the pool has its own copies */
    assert_int_equal(pool.buffers[1].item_length, 0x80);
    assert_int_equal(pool.page_limit, 16);
    assert_int_equal(pool.aux_slot_limit, 4);
    assert_int_equal(pool.bytes_per_page, 0x180);
    assert_int_equal(pool.bytes_per_slot, 576);
    assert_int_equal(pool.tp_size, 1);
    assert_int_equal(pool.dp_size, 1);
    assert_true(pool.mla);
    kvf_pool_free(&pool);
}

static void no_aux_means_no_slots(void **state)
{
    (void)state;
    kvf_buffer buffer = HOST(4096, UINT64_C(1) << 40, 1);
    kvf_layout layout = {.size = sizeof layout, .buffers = &buffer, .buffer_count = 1};
    kvf_pool pool;
    assert_int_equal(kvf_pool_build(&layout, 1, &pool, NULL), KVF_OK);
    assert_int_equal(pool.aux_slot_limit, 0);
    assert_true(pool.page_limit == UINT32_MAX); /* more items than 32 bits can address */
    kvf_pool_free(&pool);
}

static void assert_refused(const kvf_layout *layout, kvf_status status, const char *text)
{
    kvf_pool pool;
    kvf_error error = {0};
    assert_int_equal(kvf_pool_build(layout, 3, &pool, &error), status);
    assert_non_null(strstr(error.text, text));
    assert_null(pool.buffers);
}

static void broken_buffers_are_named(void **state)
{
    (void)state;
    static const struct {
        kvf_buffer buffer;
        const char *text;
    } cases[] = {
        {HOST(0, 64, 64), "buffer 1: base 0x0"},
        {HOST(0x9000, 0, 64), "length 0"},
        {HOST(0x9000, 64, 0), "item length 0"},
        {HOST(0x9000, 65, 64), "whole number"},
        {HOST(0x9000, 64, 128), "whole number"},
        {HOST(UINT64_MAX - 63, 64, 64), "past the end"},
        {HOST(0x9000, UINT64_MAX, 1), "past the end"},
        {{1, 0x9000, 64, 64, KVF_MEMORY_HOST, 0}, "sizeof(kvf_buffer)"},
        {{sizeof(kvf_buffer), 0x9000, 64, 64, 2, 0}, "no kvf_memory"},
        {HOST(0x1000, 64, 64), "overlap"},
        {HOST(0xfff, 2, 2), "overlap"},
        {HOST(0x103f, 1, 1), "overlap"},
        {HOST(1, 0x7fffffff, 1), "overlap"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvf_buffer buffers[] = {HOST(0x1000, 64, 64), cases[i].buffer};
        kvf_layout layout = {.size = sizeof layout, .buffers = buffers, .buffer_count = 2};
        assert_refused(&layout, KVF_INVALID_ARGUMENT, cases[i].text);
    }
    kvf_buffer touching[] = {HOST(0x1000, 64, 64), HOST(0x1040, 64, 64),
                             HOST(UINT64_MAX - 64, 64, 64)};
    kvf_layout layout = {.size = sizeof layout, .buffers = touching, .buffer_count = 3};
    kvf_pool pool;
    assert_int_equal(kvf_pool_build(&layout, 3, &pool, NULL), KVF_OK);
    kvf_pool_free(&pool);
}

static void broken_layouts_are_named(void **state)
{
    (void)state;
    kvf_buffer buffers[4] = {HOST(0x1000, 64, 64), HOST(0x2000, 64, 64), HOST(0x3000, 64, 64),
                             HOST(0x4000, 64, 64)};
    kvf_layout good = {.size = sizeof good, .buffers = buffers, .buffer_count = 2};
    kvf_layout layout;
    assert_refused(NULL, KVF_INVALID_ARGUMENT, "NULL");
    layout = good, layout.size = 8;
    assert_refused(&layout, KVF_INVALID_ARGUMENT, "sizeof(kvf_layout)");
    layout = good, layout.buffer_count = 0;
    assert_refused(&layout, KVF_INVALID_ARGUMENT, "must be a buffer");
    layout = good, layout.buffers = NULL;
    assert_refused(&layout, KVF_INVALID_ARGUMENT, "array is NULL");
    layout = good, layout.aux_count = 1;
    assert_refused(&layout, KVF_INVALID_ARGUMENT, "aux buffers, but the array is NULL");
    layout = good, layout.buffer_count = 4;
    assert_refused(&layout, KVF_LIMIT, "max_buffers");
    layout = good, layout.aux_count = SIZE_MAX, layout.aux = buffers;
    assert_refused(&layout, KVF_LIMIT, "max_buffers");
    layout = good, layout.tp_size = 4, layout.dp_size = 3;
    assert_refused(&layout, KVF_INVALID_ARGUMENT, "dp_size 3");
    layout = good, layout.tp_size = 4, layout.engine_rank = 4;
    assert_refused(&layout, KVF_INVALID_ARGUMENT, "engine_rank 4");
    layout = good, layout.aux = buffers + 1, layout.aux_count = 1;
    assert_refused(&layout, KVF_INVALID_ARGUMENT, "overlap");
    buffers[2].memory = KVF_MEMORY_CUDA;
    layout = good, layout.aux = buffers + 2, layout.aux_count = 1;
    assert_refused(&layout, KVF_INVALID_ARGUMENT, "must be host memory");
}

static unsigned long seed;

static unsigned long seed_of_run(void)
{
    const char *text = getenv("KVF_TEST_SEED");
    return text != NULL ? strtoul(text, NULL, 10) : (unsigned long)time(NULL);
}

static uint32_t below(uint32_t limit)
{
    seed = seed * 6364136223846793005UL + 1442695040888963407UL;
    return (uint32_t)(seed >> 33) % limit;
}

static bool any_pair_overlaps(const kvf_buffer *buffers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++)
            if (buffers[i].base < buffers[j].base + buffers[j].length &&
                buffers[j].base < buffers[i].base + buffers[i].length)
                return true;
    return false;
}

static void overlaps_agree_with_every_pair(void **state)
{
    (void)state;
    unsigned long start = seed = seed_of_run();
    size_t overlapping = 0;
    for (unsigned round = 0; round < 20000; round++) {
        kvf_buffer buffers[6];
        size_t count = 1 + below(6);
        size_t aux = below((uint32_t)count);
        for (size_t i = 0; i < count; i++)
            buffers[i] = (kvf_buffer)HOST(1 + below(60), 1 + below(10), 1);
        kvf_layout layout = {.size = sizeof layout,
                             .buffers = buffers + aux,
                             .buffer_count = count - aux,
                             .aux = buffers,
                             .aux_count = aux};
        kvf_pool pool;
        bool refused = kvf_pool_build(&layout, 6, &pool, NULL) != KVF_OK;
        kvf_pool_free(&pool);
        overlapping += refused;
        if (refused != any_pair_overlaps(buffers, count))
            fail_msg("round %u of KVF_TEST_SEED=%lu", round, start);
    }
    assert_true(overlapping > 1000 && overlapping < 19000);
}

static void pages_are_checked(void **state)
{
    (void)state;
    static const uint32_t pages[] = {0, 7, 3, UINT32_MAX - 1, 8};
    kvf_error error;
    assert_int_equal(kvf_pages_check(pages, 3, 8, "page", &error), KVF_OK);
    assert_int_equal(kvf_pages_check(NULL, 0, 0, "page", &error), KVF_OK);
    assert_int_equal(kvf_pages_check(pages, 5, 8, "source page", &error), KVF_OUT_OF_RANGE);
    assert_non_null(strstr(error.text, "source page 4294967294 (index 3)"));
    assert_int_equal(kvf_pages_check_unique(pages, 5, &error), KVF_OK);
    assert_int_equal(kvf_pages_check_unique(NULL, 0, &error), KVF_OK);
    static const uint32_t twice[] = {64, 0, 63, 65, 0};
    assert_int_equal(kvf_pages_check_unique(twice, 4, &error), KVF_OK);
    assert_int_equal(kvf_pages_check_unique(twice, 5, &error), KVF_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "page 0 is named twice (again at index 4)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_layout_is_summed_up),
        cmocka_unit_test(no_aux_means_no_slots),
        cmocka_unit_test(broken_buffers_are_named),
        cmocka_unit_test(broken_layouts_are_named),
        cmocka_unit_test(overlaps_agree_with_every_pair),
        cmocka_unit_test(pages_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
