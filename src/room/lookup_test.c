/* Every event in every state of a lookup, then random events against what must hold. */
#include "room/lookup.h"

#include "support/machine.h"
#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { RETRY = 10, ATTEMPTS = 3 };

static const kvf_lookup_policy with_connection = {RETRY, ATTEMPTS, true};
static const kvf_lookup_policy answer_only = {RETRY, ATTEMPTS, false};
static const kvf_error trouble = {KVF_BOOTSTRAP, "something is wrong"};

static const char *const state_names[] = {"idle", "asking", "pausing", "connecting", "ready"};
static const char *const event_names[] = {"wanted",    "answered", "not yet", "failed",
                                          "connected", "gone",     "timer"};

static const char *step(kvf_lookup_machine *machine, kvf_lookup_event_kind kind, bool wanted,
                        uint64_t now)
{
    static kvf_actions actions;
    kvf_lookup_event event = {.kind = kind, .wanted = wanted, .error = &trouble};
    actions.count = 0;
    kvf_lookup_machine_step(machine, &event, now, &actions);
    return test_actions_text(&actions);
}

/* A machine that has come to `state` at time 0. */
static kvf_lookup_machine machine_in(kvf_lookup_state state)
{
    kvf_lookup_machine machine;
    kvf_lookup_machine_init(&machine, &with_connection);
    if (state == KVF_LOOKUP_IDLE)
        return machine;
    (void)step(&machine, KVF_LOOKUP_WANTED, true, 0);
    if (state == KVF_LOOKUP_PAUSING)
        (void)step(&machine, KVF_LOOKUP_NOT_YET, true, 0);
    if (state == KVF_LOOKUP_CONNECTING || state == KVF_LOOKUP_READY)
        (void)step(&machine, KVF_LOOKUP_ANSWERED, true, 0);
    if (state == KVF_LOOKUP_READY)
        (void)step(&machine, KVF_LOOKUP_CONNECTED, true, 0);
    assert_int_equal(machine.state, state);
    return machine;
}

/* What an event does while somebody waits, and where it leads; NULL: nothing. By state, then event. */
typedef struct cell {
    const char *does;
    const char *leads_to;
} cell;

static const cell table[5][7] = {
    [KVF_LOOKUP_IDLE] = {[KVF_LOOKUP_WANTED] = {"ask", "asking"}},
    [KVF_LOOKUP_ASKING] = {[KVF_LOOKUP_ANSWERED] = {"connect", "connecting"},
                           [KVF_LOOKUP_NOT_YET] = {"timer 15", "pausing"},
                           [KVF_LOOKUP_FAILED] = {"timer 15", "pausing"}},
    [KVF_LOOKUP_PAUSING] = {[KVF_LOOKUP_TIMER] = {"", "pausing"}}, /* at 5, which is too early */
    [KVF_LOOKUP_CONNECTING] =
        {[KVF_LOOKUP_CONNECTED] = {"ready", "ready"}, [KVF_LOOKUP_GONE] = {"timer 15", "pausing"}},
    [KVF_LOOKUP_READY] = {[KVF_LOOKUP_GONE] = {"lost, timer 15", "pausing"}},
};

static void every_event_in_every_state(void **state)
{
    (void)state;
    for (size_t before = 0; before < 5; before++) {
        for (size_t kind = 0; kind < 7; kind++) {
            kvf_lookup_machine machine = machine_in((kvf_lookup_state)before);
            const cell *should = &table[before][kind];
            const char *does = step(&machine, (kvf_lookup_event_kind)kind, true, 5);
            const char *leads_to =
                should->leads_to == NULL ? state_names[before] : should->leads_to;
            if (strcmp(does, should->does == NULL ? "" : should->does) != 0 ||
                strcmp(state_names[machine.state], leads_to) != 0)
                fail_msg("%s in %s does \"%s\" and leads to %s", event_names[kind],
                         state_names[before], does, state_names[machine.state]);
        }
    }
}

static void nothing_is_asked_again_when_nobody_waits(void **state)
{
    (void)state;
    static const struct {
        kvf_lookup_state state;
        kvf_lookup_event_kind event;
        const char *does;
    } cases[] = {{KVF_LOOKUP_ASKING, KVF_LOOKUP_NOT_YET, ""},
                 {KVF_LOOKUP_ASKING, KVF_LOOKUP_FAILED, ""},
                 {KVF_LOOKUP_PAUSING, KVF_LOOKUP_TIMER, ""},
                 {KVF_LOOKUP_CONNECTING, KVF_LOOKUP_GONE, ""},
                 {KVF_LOOKUP_READY, KVF_LOOKUP_GONE, "lost"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvf_lookup_machine machine = machine_in(cases[i].state);
        assert_string_equal(step(&machine, cases[i].event, false, 50), cases[i].does);
        assert_int_equal(machine.state, KVF_LOOKUP_IDLE);
        assert_string_equal(step(&machine, KVF_LOOKUP_WANTED, true, 60), "ask");
    }
    /* An answer that comes when nobody waits any more is still worth keeping. */
    kvf_lookup_machine machine = machine_in(KVF_LOOKUP_ASKING);
    assert_string_equal(step(&machine, KVF_LOOKUP_ANSWERED, false, 1), "connect");
}

static void an_answer_is_enough_for_a_server(void **state)
{
    (void)state;
    kvf_lookup_machine machine;
    kvf_lookup_machine_init(&machine, &answer_only);
    assert_string_equal(step(&machine, KVF_LOOKUP_WANTED, true, 0), "ask");
    assert_string_equal(step(&machine, KVF_LOOKUP_NOT_YET, true, 0), "timer 10");
    assert_string_equal(machine.problem.text, trouble.text);
    assert_string_equal(step(&machine, KVF_LOOKUP_TIMER, true, 10), "ask");
    assert_string_equal(step(&machine, KVF_LOOKUP_ANSWERED, true, 11), "ready");
    assert_int_equal(machine.problem.status, KVF_OK);
    assert_string_equal(step(&machine, KVF_LOOKUP_WANTED, true, 12), "");
}

static void pauses_double_up_to_sixteen_times(void **state)
{
    (void)state;
    kvf_lookup_machine machine = machine_in(KVF_LOOKUP_ASKING);
    uint64_t now = 0;
    static const uint64_t factors[] = {1, 2, 4, 8, 16, 16, 16};
    for (size_t i = 0; i < 7; i++) {
        (void)step(&machine, KVF_LOOKUP_NOT_YET, true, now);
        assert_int_equal(machine.deadline, now + RETRY * factors[i]);
        assert_string_equal(step(&machine, KVF_LOOKUP_TIMER, true, machine.deadline - 1), "");
        now = machine.deadline;
        assert_string_equal(step(&machine, KVF_LOOKUP_TIMER, true, now), "ask");
    }
    /* Once it was ready, they start anew. */
    (void)step(&machine, KVF_LOOKUP_ANSWERED, true, now);
    (void)step(&machine, KVF_LOOKUP_CONNECTED, true, now);
    (void)step(&machine, KVF_LOOKUP_GONE, true, now);
    assert_int_equal(machine.deadline, now + RETRY);
}

static void failures_in_a_row_end_it(void **state)
{
    (void)state;
    kvf_lookup_machine machine = machine_in(KVF_LOOKUP_ASKING);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < ATTEMPTS - 1; i++) {
            (void)step(&machine, KVF_LOOKUP_FAILED, true, 0);
            assert_string_equal(step(&machine, KVF_LOOKUP_TIMER, true, 1000), "ask");
        }
        /* "Not yet" is an answer: the row is broken. */
        if (round == 0) {
            (void)step(&machine, KVF_LOOKUP_NOT_YET, true, 0);
            assert_string_equal(step(&machine, KVF_LOOKUP_TIMER, true, 1000), "ask");
        }
    }
    assert_string_equal(step(&machine, KVF_LOOKUP_FAILED, true, 0), "give up");
    assert_int_equal(machine.state, KVF_LOOKUP_IDLE);
    assert_string_equal(machine.problem.text, trouble.text);
    assert_string_equal(step(&machine, KVF_LOOKUP_WANTED, true, 0), "ask");
    assert_string_equal(step(&machine, KVF_LOOKUP_FAILED, true, 0), "timer 10");
}

/* Who waits after others have left has all the attempts, and pauses from the shortest on. */
static void a_new_waiter_starts_anew(void **state)
{
    (void)state;
    kvf_lookup_machine machine = machine_in(KVF_LOOKUP_ASKING);
    (void)step(&machine, KVF_LOOKUP_FAILED, true, 0);
    (void)step(&machine, KVF_LOOKUP_TIMER, true, 10);
    (void)step(&machine, KVF_LOOKUP_FAILED, false, 10);
    assert_int_equal(machine.state, KVF_LOOKUP_IDLE);
    (void)step(&machine, KVF_LOOKUP_WANTED, true, 100);
    assert_string_equal(step(&machine, KVF_LOOKUP_FAILED, true, 100), "timer 110");
    (void)step(&machine, KVF_LOOKUP_TIMER, true, 110);
    assert_string_equal(step(&machine, KVF_LOOKUP_FAILED, true, 110), "timer 130");
    (void)step(&machine, KVF_LOOKUP_TIMER, false, 130);
    assert_int_equal(machine.state, KVF_LOOKUP_IDLE);
    (void)step(&machine, KVF_LOOKUP_WANTED, true, 200);
    assert_string_equal(step(&machine, KVF_LOOKUP_FAILED, true, 200), "timer 210");
}

/* ---- Random events ---------------------------------------------------------------------------------- */

/* Seen from outside: what is under way, told by the actions alone. */
typedef struct outside {
    bool call;       /* an HTTP request */
    bool connection; /* being made or there */
    bool ready;
    uint64_t timer;
    unsigned failures;
} outside;

static void follow(outside *one, const kvf_lookup_event *event, const kvf_actions *actions)
{
    bool over = event->kind == KVF_LOOKUP_ANSWERED || event->kind == KVF_LOOKUP_NOT_YET ||
                event->kind == KVF_LOOKUP_FAILED;
    if (over && one->call)
        one->failures = event->kind == KVF_LOOKUP_FAILED ? one->failures + 1 : 0;
    one->call = one->call && !over;
    one->connection = one->connection && event->kind != KVF_LOOKUP_GONE;
    for (size_t i = 0; i < actions->count; i++) {
        switch (actions->items[i].kind) {
        case KVF_ACTION_ASK:
            assert_false(one->call || one->connection || one->ready);
            one->call = true;
            break;
        case KVF_ACTION_CONNECT:
            assert_false(one->call || one->connection || one->ready);
            one->connection = true;
            break;
        case KVF_ACTION_READY:
            assert_true(one->connection && !one->ready);
            one->ready = true;
            break;
        case KVF_ACTION_LOST:
            assert_true(one->ready && event->kind == KVF_LOOKUP_GONE);
            one->ready = false;
            break;
        case KVF_ACTION_GIVE_UP:
            assert_int_equal(one->failures, ATTEMPTS);
            one->failures = 0;
            break;
        case KVF_ACTION_TIMER:
            assert_true(event->wanted);
            assert_false(one->call || one->connection);
            one->timer = actions->items[i].deadline;
            break;
        default:
            fail_msg("a lookup has no such action");
        }
    }
}

/* Only what can happen happens: an answer while a call is under way, a timer that was set. */
static bool is_possible(const outside *one, kvf_lookup_event_kind kind, uint64_t now)
{
    switch (kind) {
    case KVF_LOOKUP_ANSWERED:
    case KVF_LOOKUP_NOT_YET:
    case KVF_LOOKUP_FAILED:
        return one->call;
    case KVF_LOOKUP_CONNECTED:
        return one->connection && !one->ready;
    case KVF_LOOKUP_GONE:
        return one->connection;
    case KVF_LOOKUP_TIMER:
        return one->timer <= now;
    default:
        return true;
    }
}

static void random_lookup(test_random *random)
{
    outside one = {.timer = KVF_NO_DEADLINE};
    kvf_lookup_machine machine;
    uint64_t now = 0;
    kvf_lookup_machine_init(&machine, &with_connection);
    for (int i = 0; i < 200; i++) {
        kvf_lookup_event_kind kind = (kvf_lookup_event_kind)test_random_below(random, 7);
        kvf_lookup_event event = {
            .kind = kind, .wanted = test_random_below(random, 4) > 0, .error = &trouble};
        kvf_actions actions = {.count = 0};
        now += test_random_below(random, 2 * RETRY);
        if (!is_possible(&one, kind, now))
            continue;
        if (kind == KVF_LOOKUP_TIMER)
            one.timer = KVF_NO_DEADLINE;
        event.wanted = event.wanted || kind == KVF_LOOKUP_WANTED;
        kvf_lookup_machine_step(&machine, &event, now, &actions);
        assert_true(actions.count < KVF_ACTIONS_MAX);
        follow(&one, &event, &actions);
        if (machine.state == KVF_LOOKUP_IDLE)
            one.failures = 0;
        assert_int_equal(machine.state == KVF_LOOKUP_READY, one.ready);
        assert_int_equal(machine.state == KVF_LOOKUP_ASKING, one.call);
        /* Somebody waits, so something is under way that will end. */
        bool given_up = test_actions_count(&actions, KVF_ACTION_GIVE_UP) > 0;
        if (event.wanted && !given_up)
            assert_true(one.call || one.connection || one.timer != KVF_NO_DEADLINE);
    }
}

static void random_events_leave_nobody_waiting_in_vain(void **state)
{
    (void)state;
    test_random random = test_random_start();
    for (int i = 0; i < 20000; i++)
        random_lookup(&random);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_event_in_every_state),
        cmocka_unit_test(nothing_is_asked_again_when_nobody_waits),
        cmocka_unit_test(an_answer_is_enough_for_a_server),
        cmocka_unit_test(pauses_double_up_to_sixteen_times),
        cmocka_unit_test(failures_in_a_row_end_it),
        cmocka_unit_test(a_new_waiter_starts_anew),
        cmocka_unit_test(random_events_leave_nobody_waiting_in_vain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
