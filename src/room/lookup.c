#include "room/lookup.h"

#include <string.h>

void kvf_lookup_machine_init(kvf_lookup_machine *machine, const kvf_lookup_policy *policy)
{
    memset(machine, 0, sizeof *machine);
    machine->policy = policy;
    machine->deadline = KVF_NO_DEADLINE;
}

static void ask(kvf_lookup_machine *machine, kvf_actions *actions)
{
    machine->state = KVF_LOOKUP_ASKING;
    kvf_actions_add(actions, KVF_ACTION_ASK);
}

static void ready(kvf_lookup_machine *machine, kvf_actions *actions)
{
    machine->state = KVF_LOOKUP_READY;
    machine->failures = 0;
    machine->pauses = 0;
    machine->problem = (kvf_error){0};
    kvf_actions_add(actions, KVF_ACTION_READY);
}

/* Who waits next is owed attempts of its own. */
static void rest(kvf_lookup_machine *machine)
{
    machine->state = KVF_LOOKUP_IDLE;
    machine->failures = 0;
    machine->pauses = 0;
}

/* Without anybody waiting there is nothing to pause for. */
static void pause_or_rest(kvf_lookup_machine *machine, bool wanted, uint64_t now,
                          kvf_actions *actions)
{
    if (!wanted) {
        rest(machine);
        return;
    }
    uint64_t pause = kvf_backoff(machine->policy->retry_interval, machine->pauses++);
    machine->state = KVF_LOOKUP_PAUSING;
    machine->deadline = kvf_deadline_after(now, pause);
    kvf_actions_add_timer(actions, machine->deadline);
}

static void failed(kvf_lookup_machine *machine, const kvf_lookup_event *event, uint64_t now,
                   kvf_actions *actions)
{
    machine->problem = *event->error;
    machine->failures++;
    if (machine->failures < machine->policy->attempts) {
        pause_or_rest(machine, event->wanted, now, actions);
        return;
    }
    rest(machine);
    kvf_actions_add(actions, KVF_ACTION_GIVE_UP);
}

static void gone(kvf_lookup_machine *machine, const kvf_lookup_event *event, uint64_t now,
                 kvf_actions *actions)
{
    machine->problem = *event->error;
    if (machine->state == KVF_LOOKUP_READY)
        kvf_actions_add(actions, KVF_ACTION_LOST);
    pause_or_rest(machine, event->wanted, now, actions);
}

void kvf_lookup_machine_step(kvf_lookup_machine *machine, const kvf_lookup_event *event,
                             uint64_t now, kvf_actions *actions)
{
    switch (event->kind) {
    case KVF_LOOKUP_WANTED:
        if (machine->state == KVF_LOOKUP_IDLE)
            ask(machine, actions);
        break;
    case KVF_LOOKUP_ANSWERED:
        if (machine->state != KVF_LOOKUP_ASKING)
            break;
        if (machine->policy->connects) {
            machine->state = KVF_LOOKUP_CONNECTING;
            machine->failures = 0;
            kvf_actions_add(actions, KVF_ACTION_CONNECT);
        } else {
            ready(machine, actions);
        }
        break;
    case KVF_LOOKUP_NOT_YET:
        if (machine->state != KVF_LOOKUP_ASKING)
            break;
        machine->problem = *event->error;
        machine->failures = 0;
        pause_or_rest(machine, event->wanted, now, actions);
        break;
    case KVF_LOOKUP_FAILED:
        if (machine->state == KVF_LOOKUP_ASKING)
            failed(machine, event, now, actions);
        break;
    case KVF_LOOKUP_CONNECTED:
        if (machine->state == KVF_LOOKUP_CONNECTING)
            ready(machine, actions);
        break;
    case KVF_LOOKUP_GONE:
        if (machine->state == KVF_LOOKUP_CONNECTING || machine->state == KVF_LOOKUP_READY)
            gone(machine, event, now, actions);
        break;
    case KVF_LOOKUP_TIMER:
        if (machine->state != KVF_LOOKUP_PAUSING || now < machine->deadline)
            break;
        if (event->wanted)
            ask(machine, actions);
        else
            rest(machine);
        break;
    }
}
