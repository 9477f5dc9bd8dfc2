/* Decode: proving that nobody writes to a failed room's pages any more. Which proof holds when is DESIGN.md's
 * table; docs/failures.md says what a user sees of it.
 *
 * A kvferry peer is asked to stop and says when it has. A stock peer can't be asked: it is waited for, since it
 * notifies when it has written all. Closing the inbox proves it for both, but ends a stock prefill that writes
 * there afterwards: done only when its connection is lost, or with fence=strict. */
#include "room/fence.h"
#include "manager/inbox.h"
#include "wire/letter.h"

static bool serves_open_rooms(const kvf_inbox *inbox)
{
    const kvf_target *target;
    const kvf_target *next;
    HASH_ITER(by_key, inbox->targets, target, next)
    {
        if (!kvf_outcome_is_final(&target->receiver->machine.outcome))
            return true;
    }
    return false;
}

static kvf_fence_facts facts_of(const kvf_inbox *inbox)
{
    return (kvf_fence_facts){.open = inbox->engine != NULL,
                             .shown = inbox->rank->shown,
                             .strict = inbox->manager->settings.fence != 0,
                             .direct = inbox->direct};
}

static void ask_to_stop(kvf_receiver *receiver)
{
    kvf_target *target = &receiver->targets[0];
    kvf_letters_write(target, KVF_LETTER_ABORT, (kvf_slice){NULL, 0},
                      &receiver->machine.outcome.error, &target->abort_wanted);
    /* Not before it has been said: the room may be left now. */
    if (!target->abort_wanted)
        kvf_checking_release(receiver);
}

void kvf_fence_begin(kvf_receiver *receiver)
{
    kvf_inbox *inbox = receiver->targets[0].inbox;
    if (inbox == NULL)
        return;
    kvf_fence_facts facts = facts_of(inbox);
    switch (kvf_fence_begin_with(&facts)) {
    case KVF_FENCE_ASK:
        ask_to_stop(receiver);
        break;
    case KVF_FENCE_RETIRE:
        kvf_inbox_retire(inbox);
        kvf_checking_release(receiver);
        break;
    case KVF_FENCE_WAIT:
        kvf_checking_release(receiver);
        break;
    }
}

void kvf_fence_end(kvf_receiver *receiver)
{
    kvf_inbox *inbox = receiver->targets == NULL ? NULL : receiver->targets[0].inbox;
    if (inbox == NULL)
        return;
    kvf_fence_facts facts = facts_of(inbox);
    facts.serves_open_rooms = serves_open_rooms(inbox);
    if (kvf_fence_may_close(&facts))
        kvf_inbox_close(inbox);
}
