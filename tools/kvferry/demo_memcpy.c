#include "clock.h"
#include "demo.h"

#include <stdlib.h>
#include <string.h>

static int compare_values(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

double demo_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare_values);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* How many pages from `first` on are neighbours on both sides: what kvferry merges, too. */
static size_t run_length(const demo_case *each, size_t first, size_t end)
{
    size_t length = 1;
    while (first + length < end && each->source[first + length] == each->source[first] + length &&
           each->target[first + length] == each->target[first] + length)
        length++;
    return length;
}

static void copy_room(const demo_case *each, const tool_pool *from, const tool_pool *to,
                      size_t first)
{
    size_t end = first + each->pages_per_room;
    for (uint64_t buffer = 0; buffer < each->shape.buffer_count; buffer++) {
        for (size_t k = first; k < end;) {
            size_t length = run_length(each, k, end);
            memcpy(pool_item(to, buffer, each->target[k]), pool_item(from, buffer, each->source[k]),
                   length * (size_t)each->shape.item_length);
            k += length;
        }
    }
}

static double time_one_round(const demo_case *each, const tool_pool *from, tool_pool *to)
{
    pool_poison(to);
    uint64_t began = clock_now();
    for (size_t first = 0; first < each->page_count; first += each->pages_per_room)
        copy_room(each, from, to, first);
    return (double)(clock_now() - began) / 1e9;
}

bool demo_measure_memcpy(const demo_case *each, double *seconds, message *why)
{
    tool_pool from;
    tool_pool to;
    bool huge = !each->options->small_pages;
    double rounds[DEMO_ROUNDS_MAX];
    size_t count = (size_t)each->options->rounds;
    if (!pool_open(&from, &each->shape, huge, why))
        return false;
    if (!pool_open(&to, &each->shape, huge, why)) {
        pool_close(&from);
        return false;
    }
    pool_poison(&from);
    for (size_t i = 0; i < count; i++)
        rounds[i] = time_one_round(each, &from, &to);
    *seconds = demo_median(rounds, count);
    pool_close(&from);
    pool_close(&to);
    return true;
}
