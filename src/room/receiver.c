#include "room/receiver.h"

#include <string.h>

void kvf_receiver_machine_init(kvf_receiver_machine *machine, const kvf_room_timeouts *timeouts)
{
    memset(machine, 0, sizeof *machine);
    machine->outcome.state = KVF_BOOTSTRAPPING;
    machine->timeouts = timeouts;
    machine->deadline = KVF_NO_DEADLINE;
    machine->bootstrap_deadline = KVF_NO_DEADLINE;
    machine->waiting_deadline = KVF_NO_DEADLINE;
    machine->fence_deadline = KVF_NO_DEADLINE;
}

void kvf_receiver_machine_free(kvf_receiver_machine *machine)
{
    kvf_arrivals_free(&machine->arrivals);
}

static void publish(kvf_receiver_machine *machine, kvf_poll state, kvf_actions *actions)
{
    machine->outcome.state = state;
    kvf_actions_publish(actions);
}

static uint64_t next_deadline(const kvf_receiver_machine *machine)
{
    if (kvf_outcome_is_settled(&machine->outcome))
        return KVF_NO_DEADLINE;
    if (machine->outcome.state == KVF_FAILED)
        return machine->fence_deadline;
    if (!machine->found && machine->bootstrap_deadline < machine->waiting_deadline)
        return machine->bootstrap_deadline;
    return machine->waiting_deadline;
}

static void arm(kvf_receiver_machine *machine, kvf_actions *actions)
{
    uint64_t deadline = next_deadline(machine);
    if (deadline == machine->deadline)
        return;
    machine->deadline = deadline;
    kvf_actions_add_timer(actions, deadline);
}

static void settle(kvf_receiver_machine *machine, kvf_safety safety, kvf_proof proof,
                   kvf_actions *actions)
{
    machine->outcome.safety = safety;
    machine->outcome.proof = proof;
    kvf_actions_publish(actions);
    kvf_actions_add(actions, KVF_ACTION_LEAVE);
}

/* The error must have been written into the outcome before. */
static bool fail(kvf_receiver_machine *machine, uint64_t now, kvf_actions *actions)
{
    kvf_actions_add(actions, KVF_ACTION_STOP);
    machine->outcome.state = KVF_FAILED;
    if (machine->disclosed) {
        machine->fence_deadline = kvf_deadline_after(now, machine->timeouts->fence);
        kvf_actions_publish(actions);
        kvf_actions_add(actions, KVF_ACTION_FENCE);
    } else {
        settle(machine, KVF_PAGES_SAFE, KVF_PROOF_NEVER_DISCLOSED, actions);
    }
    return true;
}

#define fail_with(machine, now, actions, status, ...)                                              \
    ((void)kvf_error_set(&(machine)->outcome.error, (status), __VA_ARGS__),                        \
     fail(machine, now, actions))

/* Counts what a notification says, whatever the room's state. Before the request nobody can have been told where to
 * write: it belongs to another room. */
static bool count_notice(kvf_receiver_machine *machine, const kvf_receiver_event *event,
                         kvf_error *error)
{
    return machine->requested &&
           kvf_arrivals_take(&machine->arrivals, event->agent_name, event->notice, error);
}

static bool notice_arrived(kvf_receiver_machine *machine, const kvf_receiver_event *event,
                           uint64_t now, kvf_actions *actions)
{
    kvf_error error;
    if (!count_notice(machine, event, &error))
        return false;
    if (error.status != KVF_OK) {
        machine->outcome.error = error;
        return fail(machine, now, actions);
    }
    if (kvf_arrivals_are_complete(&machine->arrivals)) {
        machine->outcome.state = KVF_SUCCESS;
        settle(machine, KVF_PAGES_SAFE, KVF_PROOF_COMPLETED, actions);
    } else if (machine->outcome.state == KVF_WAITING_FOR_INPUT &&
               machine->arrivals.chunk_count > 0) {
        publish(machine, KVF_TRANSFERRING, actions);
    }
    return true;
}

/* After the failure: what may still prove that the pages are nobody's, until the deadline. */
static bool fence(kvf_receiver_machine *machine, const kvf_receiver_event *event, uint64_t now,
                  kvf_actions *actions)
{
    kvf_error ignored;
    if (machine->outcome.safety != KVF_PAGES_IN_USE)
        return false;
    switch (event->kind) {
    case KVF_RECEIVER_NOTICE:
        if (!count_notice(machine, event, &ignored))
            return false;
        if (kvf_arrivals_are_complete(&machine->arrivals))
            settle(machine, KVF_PAGES_SAFE, KVF_PROOF_COMPLETED, actions);
        return true;
    case KVF_RECEIVER_PROVEN:
        settle(machine, KVF_PAGES_SAFE, event->proof, actions);
        return true;
    case KVF_RECEIVER_TIMER:
        if (now < machine->deadline)
            return false;
        settle(machine, KVF_PAGES_RELEASED, KVF_PROOF_NONE, actions);
        return true;
    default:
        return false;
    }
}

static bool deadline_passed(kvf_receiver_machine *machine, const kvf_error *missing, uint64_t now,
                            kvf_actions *actions)
{
    if (now < machine->deadline)
        return false;
    const char *detail = missing != NULL && missing->text[0] != '\0' ? missing->text : "";
    const char *separator = detail[0] != '\0' ? ": " : "";
    if (!machine->found)
        return fail_with(machine, now, actions, KVF_TIMEOUT,
                         "the prefill side was not found and connected within %s%s%s",
                         machine->deadline == machine->bootstrap_deadline ? "bootstrap_timeout"
                                                                          : "waiting_timeout",
                         separator, detail);
    if (machine->arrivals.chunk_count == 0)
        return fail_with(machine, now, actions, KVF_TIMEOUT,
                         "nothing arrived within waiting_timeout, although the prefill side is "
                         "connected; was the request given to it? UCX versions that don't meet "
                         "also look like this");
    return fail_with(machine, now, actions, KVF_TIMEOUT,
                     "after %u chunks%s the rest did not arrive within waiting_timeout",
                     machine->arrivals.chunk_count,
                     machine->arrivals.last_known ? " (the last among them)" : "");
}

static bool dispatch(kvf_receiver_machine *machine, const kvf_receiver_event *event, uint64_t now,
                     kvf_actions *actions)
{
    switch (event->kind) {
    case KVF_RECEIVER_OPENED:
        machine->bootstrap_deadline = kvf_deadline_after(now, machine->timeouts->bootstrap);
        return true;
    case KVF_RECEIVER_FOUND:
        if (machine->found)
            return false;
        machine->found = true;
        publish(machine, KVF_WAITING_FOR_INPUT, actions);
        return true;
    case KVF_RECEIVER_EXPECTED:
        if (machine->expected)
            return false;
        machine->expected = true;
        machine->arrivals.page_count = event->page_count;
        machine->waiting_deadline = kvf_deadline_after(now, machine->timeouts->waiting);
        return true;
    case KVF_RECEIVER_NOTICE:
        return notice_arrived(machine, event, now, actions);
    case KVF_RECEIVER_DISCLOSED:
        machine->disclosed = true;
        return true;
    case KVF_RECEIVER_FAILED:
        machine->outcome.error = *event->error;
        return fail(machine, now, actions);
    case KVF_RECEIVER_PROVEN:
        return false;
    case KVF_RECEIVER_ABORTED:
        return fail_with(machine, now, actions, KVF_ABORTED, "aborted by this side");
    case KVF_RECEIVER_SHUTDOWN:
        return fail_with(machine, now, actions, KVF_SHUTDOWN, "the manager was closed");
    case KVF_RECEIVER_TIMER:
        return deadline_passed(machine, event->error, now, actions);
    }
    return false;
}

bool kvf_receiver_machine_step(kvf_receiver_machine *machine, const kvf_receiver_event *event,
                               uint64_t now, kvf_actions *actions)
{
    bool meant = kvf_outcome_is_final(&machine->outcome) ? fence(machine, event, now, actions)
                                                         : dispatch(machine, event, now, actions);
    if (!kvf_outcome_is_final(&machine->outcome) && machine->found && machine->expected &&
        !machine->requested) {
        machine->requested = true;
        kvf_actions_add(actions, KVF_ACTION_REQUEST);
    }
    arm(machine, actions);
    return meant;
}
