/* Decode: proving that nobody writes to a failed room's pages any more. Which proof holds when is DESIGN.md's
 * table; docs/failures.md says what a user sees of it.
 *
 * A kvferry peer is asked to stop and says when it has. A stock peer can't be asked: it is waited for, since it
 * notifies when it has written all. Closing the inbox proves it for both, but ends a stock prefill that writes
 * there afterwards: done only when its connection is lost, or with fence=strict. */
#include "manager/inbox.h"
#include "wire/letter.h"

void kvf_fence_begin(kvf_receiver *receiver)
{
    kvf_target *target = &receiver->targets[0];
    kvf_inbox *inbox = target->inbox;
    if (inbox == NULL || inbox->engine == NULL)
        return;
    if (inbox->rank->shown) {
        kvf_letters_write(target, KVF_LETTER_ABORT, (kvf_slice){NULL, 0},
                          &receiver->machine.outcome.error, &target->abort_wanted);
        /* Not before it has been said: the room may be left now. */
        if (!target->abort_wanted)
            kvf_checking_release(receiver);
    } else if (receiver->room.manager->settings.fence != 0) {
        kvf_inbox_retire(inbox);
    }
}

/* Rooms that still hope for their bytes would lose them. */
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

void kvf_fence_end(kvf_receiver *receiver)
{
    kvf_inbox *inbox = receiver->targets == NULL ? NULL : receiver->targets[0].inbox;
    bool may_close = inbox != NULL && inbox->engine != NULL && !inbox->direct &&
                     (inbox->rank->shown || receiver->room.manager->settings.fence != 0);
    if (may_close && !serves_open_rooms(inbox))
        kvf_inbox_close(inbox);
}
