/* The heap of deadlines. */
#include "base/timers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TIMERS = 200 };

static uint64_t latest;
static size_t fired;

static void fire(kvf_timer *timer, uint64_t now)
{
    assert_true(timer->deadline >= latest && timer->deadline <= now);
    assert_int_equal(timer->position, 0);
    latest = timer->deadline;
    fired++;
}

static void begin(void)
{
    latest = 0;
    fired = 0;
}

static void deadlines_come_in_order(void **state)
{
    (void)state;
    static kvf_timer all[TIMERS];
    kvf_timers timers = {0};
    begin();
    for (size_t i = 0; i < TIMERS; i++) {
        assert_true(kvf_timers_join(&timers));
        all[i] = (kvf_timer){.fire = fire};
        kvf_timers_set(&timers, &all[i], 1 + i * 73 % TIMERS);
    }
    kvf_timers_set(&timers, &all[5], UINT64_MAX);
    kvf_timers_set(&timers, &all[6], 7 * TIMERS);
    assert_true(kvf_timers_run(&timers, TIMERS, 10));
    assert_int_equal(fired, 10);
    assert_false(kvf_timers_run(&timers, TIMERS, TIMERS));
    assert_int_equal(fired, TIMERS - 2);
    assert_true(kvf_timers_next(&timers) == (uint64_t)7 * TIMERS);
    kvf_timers_leave(&timers, &all[6]);
    assert_true(kvf_timers_next(&timers) == UINT64_MAX);
    kvf_timers_free(&timers);
}

/* What a room does whose owner had no memory to join: the heap is full of those who had. */
static void one_that_never_joined_writes_nowhere(void **state)
{
    (void)state;
    static kvf_timer all[TIMERS];
    kvf_timer stranger = {.fire = fire};
    kvf_timers timers = {0};
    begin();
    kvf_timers_set(&timers, &stranger, 1); /* there is no heap at all */
    assert_int_equal(stranger.position, 0);
    size_t joined = 0;
    do {
        assert_true(kvf_timers_join(&timers));
        all[joined] = (kvf_timer){.fire = fire};
        kvf_timers_set(&timers, &all[joined], 2 + joined);
        joined++;
    } while (joined < timers.capacity);
    assert_true(joined <= TIMERS);
    kvf_timers_set(&timers, &stranger, 1);
    assert_int_equal(stranger.position, 0);
    kvf_timers_set(&timers, &all[0], 1); /* who is in there can still be moved */
    assert_int_equal(kvf_timers_next(&timers), 1);
    assert_false(kvf_timers_run(&timers, 2 + joined, joined));
    assert_int_equal(fired, joined);
    kvf_timers_free(&timers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deadlines_come_in_order),
        cmocka_unit_test(one_that_never_joined_writes_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
