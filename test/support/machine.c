#include "support/machine.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const char *const names[] = {
    [KVF_ACTION_PUBLISH] = "publish", [KVF_ACTION_TIMER] = "timer",
    [KVF_ACTION_POST] = "post",       [KVF_ACTION_STOP] = "stop",
    [KVF_ACTION_REQUEST] = "request", [KVF_ACTION_ASK] = "ask",
    [KVF_ACTION_CONNECT] = "connect", [KVF_ACTION_READY] = "ready",
    [KVF_ACTION_LOST] = "lost",       [KVF_ACTION_GIVE_UP] = "give up",
    [KVF_ACTION_FENCE] = "fence",     [KVF_ACTION_LEAVE] = "leave",
};

const char *test_actions_text(const kvf_actions *actions)
{
    static char text[512];
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < actions->count; i++) {
        const kvf_action *action = &actions->items[i];
        char detail[64] = "";
        if (action->kind == KVF_ACTION_TIMER && action->deadline == KVF_NO_DEADLINE)
            (void)strcpy(detail, " none");
        else if (action->kind == KVF_ACTION_TIMER)
            (void)snprintf(detail, sizeof detail, " %" PRIu64, action->deadline);
        else if (action->kind == KVF_ACTION_POST)
            (void)snprintf(detail, sizeof detail, " %u %u", action->first_chunk,
                           action->chunk_count);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s%s", i == 0 ? "" : ", ",
                                 names[action->kind], detail);
    }
    return text;
}

const char *test_state_text(kvf_poll state)
{
    static const char *const states[] = {"failed", "bootstrapping", "waiting", "transferring",
                                         "success"};
    return states[state];
}

size_t test_actions_count(const kvf_actions *actions, kvf_action_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < actions->count; i++)
        count += actions->items[i].kind == kind;
    return count;
}

const kvf_action *test_actions_last(const kvf_actions *actions, kvf_action_kind kind)
{
    const kvf_action *last = NULL;
    for (size_t i = 0; i < actions->count; i++)
        if (actions->items[i].kind == kind)
            last = &actions->items[i];
    return last;
}

test_watch test_watch_start(void)
{
    return (test_watch){.state = KVF_BOOTSTRAPPING, .armed = KVF_NO_DEADLINE};
}

static bool is_final(kvf_poll state)
{
    return state == KVF_SUCCESS || state == KVF_FAILED;
}

void test_watch_step(test_watch *watch, const kvf_outcome *outcome, uint64_t deadline,
                     const kvf_actions *actions, bool meant)
{
    kvf_poll before = watch->state;
    kvf_poll after = outcome->state;
    bool safety_changed = watch->safety != outcome->safety;
    const kvf_action *timer = test_actions_last(actions, KVF_ACTION_TIMER);
    if (timer != NULL)
        watch->armed = timer->deadline;
    assert_true(actions->count < KVF_ACTIONS_MAX);
    assert_int_equal(test_actions_count(actions, KVF_ACTION_PUBLISH),
                     before != after || safety_changed);
    assert_true(after == KVF_FAILED || after >= before);
    if (is_final(before))
        assert_int_equal(after, before);
    if (watch->safety != KVF_PAGES_IN_USE) {
        assert_int_equal(outcome->safety, watch->safety);
        assert_int_equal(actions->count, 0);
        assert_false(meant);
    }
    assert_true(watch->armed == deadline);
    if (kvf_outcome_is_settled(outcome))
        assert_true(watch->armed == KVF_NO_DEADLINE);
    assert_int_equal(outcome->error.status == KVF_OK, after != KVF_FAILED);
    assert_int_equal(outcome->error.text[0] == '\0', after != KVF_FAILED);
    assert_int_equal(outcome->proof != KVF_PROOF_NONE, outcome->safety == KVF_PAGES_SAFE);
    if (after != KVF_FAILED)
        assert_int_equal(outcome->safety, after == KVF_SUCCESS ? KVF_PAGES_SAFE : KVF_PAGES_IN_USE);
    watch->state = after;
    watch->safety = outcome->safety;
}
