/* What the tests of the room machines share: actions as text, states as text, and a table of steps. */
#ifndef KVF_TEST_SUPPORT_MACHINE_H
#define KVF_TEST_SUPPORT_MACHINE_H

#include "room/action.h"

/* "timer 100, post 0 2, publish"; "" for none. Static storage. */
const char *test_actions_text(const kvf_actions *actions);
const char *test_state_text(kvf_poll state); /* "bootstrapping" */

/* Looks into actions: how many of that kind there are, and the last of them. */
size_t test_actions_count(const kvf_actions *actions, kvf_action_kind kind);
const kvf_action *test_actions_last(const kvf_actions *actions, kvf_action_kind kind);

/* What must hold of any machine's steps, whatever it decides. */
typedef struct test_watch {
    kvf_poll state;
    kvf_safety safety;
    uint64_t armed; /* the timer */
} test_watch;

test_watch test_watch_start(void);
/* After each step: fewer than KVF_ACTIONS_MAX actions; a publication exactly where the state or the safety
 * changed; no way back, no way out of a final state; nothing done and no timer left once the pages are given
 * back; a proof exactly where they are safe. */
void test_watch_step(test_watch *watch, const kvf_outcome *outcome, uint64_t deadline,
                     const kvf_actions *actions, bool meant);

#endif
