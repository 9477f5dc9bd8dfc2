/* Merged writes against copying page by page. */
#include "plan/writes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static uint64_t seed;

static uint64_t seed_of_run(void)
{
    const char *text = getenv("KVF_TEST_SEED");
    return text != NULL ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);
}

static uint32_t below(uint32_t limit)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % limit;
}

enum { PAGES = 40, SPANS = 3, POOL = 1 << 14 };

typedef struct scene {
    uint8_t source[SPANS][POOL];
    uint8_t expected[SPANS][POOL];
    uint8_t actual[SPANS][POOL];
    kvf_span spans[SPANS];
    uint32_t source_pages[PAGES];
    uint32_t destination_pages[PAGES];
    uint32_t span_count;
    uint32_t page_count;
} scene;

/* Distinct pages in a random order with some stretches left in order, so that runs occur. */
static void draw_pages(uint32_t *pages)
{
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = i;
    for (uint32_t cuts = below(PAGES); cuts > 0; cuts--) {
        uint32_t a = below(PAGES);
        uint32_t b = below(PAGES);
        uint32_t page = pages[a];
        pages[a] = pages[b];
        pages[b] = page;
    }
}

static void draw(scene *s)
{
    draw_pages(s->source_pages);
    draw_pages(s->destination_pages);
    s->page_count = below(PAGES + 1);
    s->span_count = below(SPANS + 1);
    for (uint32_t i = 0; i < SPANS; i++) {
        uint64_t shift = below(64);
        s->spans[i] = (kvf_span){.source_base = (uint64_t)(uintptr_t)s->source[i] + shift,
                                 .destination_base = (uint64_t)(uintptr_t)s->actual[i] + shift / 2,
                                 .item_length = 1 + below(400),
                                 .source_region = i,
                                 .destination_region = 100 + i};
        for (uint32_t j = 0; j < POOL; j++)
            s->source[i][j] = (uint8_t)below(256);
    }
    memset(s->expected, 0xee, sizeof s->expected);
    memset(s->actual, 0xee, sizeof s->actual);
}

static void copy_page_by_page(scene *s)
{
    for (uint32_t i = 0; i < s->span_count; i++) {
        const kvf_span *span = &s->spans[i];
        uint64_t source = span->source_base - (uint64_t)(uintptr_t)s->source[i];
        uint64_t destination = span->destination_base - (uint64_t)(uintptr_t)s->actual[i];
        for (uint32_t j = 0; j < s->page_count; j++)
            memcpy(s->expected[i] + destination + s->destination_pages[j] * span->item_length,
                   s->source[i] + source + s->source_pages[j] * span->item_length,
                   span->item_length);
    }
}

/* A run starts at each page that doesn't follow the one before it on both sides. */
static size_t count_runs(const scene *s)
{
    size_t runs = s->page_count > 0;
    for (uint32_t j = 1; j < s->page_count; j++)
        runs += s->source_pages[j] - s->source_pages[j - 1] != 1 ||
                s->destination_pages[j] - s->destination_pages[j - 1] != 1;
    return runs * s->span_count;
}

/* Carries the writes out; returns how many runs they said they were. */
static size_t carry_out(scene *s, uint64_t max_length, bool vary)
{
    kvf_writes writes;
    kvf_write write;
    size_t runs = 0;
    uint64_t in_run = 0;
    kvf_writes_begin(&writes, s->spans, s->span_count, s->source_pages, s->destination_pages,
                     s->page_count);
    assert_int_equal(kvf_writes_done(&writes), s->page_count == 0 || s->span_count == 0);
    for (;;) {
        uint64_t cut = vary ? 1 + below((uint32_t)max_length) : max_length;
        bool done = kvf_writes_done(&writes);
        assert_false(kvf_writes_next(&writes, 0, &write));
        if (!kvf_writes_next(&writes, cut, &write)) {
            assert_true(done);
            return runs;
        }
        assert_false(done);
        assert_true(write.length > 0 && write.length <= cut);
        assert_int_equal(write.destination_region, write.source_region + 100);
        in_run = write.starts_run ? 0 : in_run;
        if (!vary && max_length >= 64)
            assert_int_equal(in_run % 64, 0);
        in_run += write.length;
        runs += write.starts_run;
        memcpy((void *)(uintptr_t)write.destination, (void *)(uintptr_t)write.source, write.length);
    }
}

static void every_byte_lands_where_page_by_page_puts_it(void **state)
{
    (void)state;
    uint64_t start = seed = seed_of_run();
    static scene s;
    static const uint64_t cuts[] = {1, 63, 64, 100, 4096, UINT64_MAX};
    for (unsigned round = 0; round < 600; round++) {
        draw(&s);
        copy_page_by_page(&s);
        bool vary = below(3) == 0;
        uint64_t cut = vary ? 1 + below(2000) : cuts[below(6)];
        size_t runs = carry_out(&s, cut, vary);
        if (runs != count_runs(&s) || memcmp(s.expected, s.actual, sizeof s.actual) != 0)
            fail_msg("round %u of KVF_TEST_SEED=%llu: %zu runs of %zu", round,
                     (unsigned long long)start, runs, count_runs(&s));
    }
}

static void addresses_near_the_end_dont_wrap(void **state)
{
    (void)state;
    const uint64_t item = UINT64_C(3) << 31;
    const uint32_t pages[] = {5, 6};
    kvf_span span = {.source_base = UINT64_MAX - 7 * item, /* ends at the last address */
                     .destination_base = 4096,
                     .item_length = item};
    kvf_writes writes;
    kvf_write write;
    kvf_writes_begin(&writes, &span, 1, pages, pages, 2);
    assert_true(kvf_writes_next(&writes, UINT64_MAX, &write));
    assert_true(write.source == UINT64_MAX - 2 * item);
    assert_true(write.destination == 4096 + 5 * item); /* item × page is above 2^32 */
    assert_true(write.length == 2 * item);
    assert_true(kvf_writes_done(&writes));
}

static void the_highest_index_is_not_followed_by_zero(void **state)
{
    (void)state;
    const uint32_t pages[] = {UINT32_MAX, 0, 1};
    kvf_span span = {.source_base = 1, .destination_base = 1, .item_length = 16};
    kvf_writes writes;
    kvf_write write;
    kvf_writes_begin(&writes, &span, 1, pages, pages, 3);
    assert_true(kvf_writes_next(&writes, UINT64_MAX, &write));
    assert_int_equal(write.length, 16);
    assert_true(kvf_writes_next(&writes, UINT64_MAX, &write));
    assert_int_equal(write.length, 32);
    assert_false(kvf_writes_next(&writes, UINT64_MAX, &write));
}

static void a_copied_position_starts_over(void **state)
{
    (void)state;
    const uint32_t pages[] = {1, 2, 3};
    kvf_span span = {.source_base = 64, .destination_base = 64, .item_length = 64};
    kvf_writes writes;
    kvf_writes_begin(&writes, &span, 1, pages, pages, 3);
    kvf_writes again = writes;
    kvf_write first;
    kvf_write second;
    assert_true(kvf_writes_next(&writes, 100, &first));
    assert_true(kvf_writes_next(&again, 100, &second));
    assert_int_equal(first.length, 64);
    assert_true(first.source == second.source && first.length == second.length);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_lands_where_page_by_page_puts_it),
        cmocka_unit_test(addresses_near_the_end_dont_wrap),
        cmocka_unit_test(the_highest_index_is_not_followed_by_zero),
        cmocka_unit_test(a_copied_position_starts_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
