#include "room/sender.h"

#include <stdlib.h>
#include <string.h>

void kvf_sender_machine_init(kvf_sender_machine *machine, const kvf_profile *profile,
                             const kvf_room_timeouts *timeouts, uint32_t destination_limit)
{
    memset(machine, 0, sizeof *machine);
    machine->outcome.state = KVF_BOOTSTRAPPING;
    machine->profile = profile;
    machine->timeouts = timeouts;
    machine->destination_limit = destination_limit;
    machine->deadline = KVF_NO_DEADLINE;
}

void kvf_sender_machine_free(kvf_sender_machine *machine)
{
    free(machine->destinations);
    machine->destinations = NULL;
    machine->destination_count = 0;
}

static void set_deadline(kvf_sender_machine *machine, uint64_t deadline, kvf_actions *actions)
{
    if (machine->deadline == deadline)
        return;
    machine->deadline = deadline;
    kvf_actions_add_timer(actions, deadline);
}

static void publish(kvf_sender_machine *machine, kvf_poll state, kvf_actions *actions)
{
    machine->outcome.state = state;
    kvf_actions_publish(actions);
}

/* The error must have been written into the outcome before. The fence deadline is armed by the step. */
static void fail(kvf_sender_machine *machine, kvf_actions *actions)
{
    kvf_actions_add(actions, KVF_ACTION_STOP);
    publish(machine, KVF_FAILED, actions);
}

static void settle(kvf_sender_machine *machine, kvf_safety safety, kvf_proof proof,
                   kvf_actions *actions)
{
    machine->outcome.safety = safety;
    machine->outcome.proof = proof;
    set_deadline(machine, KVF_NO_DEADLINE, actions);
    kvf_actions_publish(actions);
}

static void fail_with(kvf_sender_machine *machine, const kvf_error *error, kvf_actions *actions)
{
    machine->outcome.error = *error;
    fail(machine, actions);
}

static int name_length(const kvf_request *request)
{
    return (int)request->agent_name.length;
}

static const char *name_of(const kvf_request *request)
{
    return (const char *)request->agent_name.data;
}

/* All that a dummy says is who has reported, of how many: one that an earlier room of the id left behind is as good
 * as the room's own. */
static bool requests_equal(const kvf_request *a, const kvf_request *b)
{
    if (kvf_request_is_dummy(a) && kvf_request_is_dummy(b))
        return a->required == b->required;
    return a->required == b->required && a->aux_slot == b->aux_slot && a->device == b->device &&
           a->extended == b->extended && a->extensions == b->extensions && a->epoch == b->epoch &&
           kvf_slice_equal(a->pages, b->pages) && kvf_slice_equal(a->buffers, b->buffers) &&
           kvf_slice_equal(a->aux, b->aux) && kvf_slice_equal(a->agent_metadata, b->agent_metadata);
}

/* Index of the agent's request, or destination_count. */
static uint32_t find_agent(const kvf_sender_machine *machine, kvf_slice agent_name)
{
    uint32_t i = 0;
    while (i < machine->destination_count &&
           !kvf_slice_equal(machine->destinations[i].request->agent_name, agent_name))
        i++;
    return i;
}

/* How many must report is agreed on by all who do; only a lone destination may still change its mind, as long
 * as it's not the only one needed: the room would go on without those it names now. */
static bool check_required(kvf_sender_machine *machine, const kvf_request *request, bool only_one)
{
    kvf_error *error = &machine->outcome.error;
    if (request->required == 0 || request->required > machine->destination_limit) {
        kvf_error_set(
            error, request->required == 0 ? KVF_PROTOCOL : KVF_LIMIT,
            "agent %.*s says that %u decode ranks report to this one; allowed are 1 to %u "
            "(setting max_destinations)",
            name_length(request), name_of(request), request->required, machine->destination_limit);
        return false;
    }
    if (machine->required != 0 && machine->required != request->required && !only_one) {
        kvf_error_set(error, KVF_PROTOCOL,
                      "agent %.*s says that %u decode ranks report to this one, after %u was said; "
                      "all must run with the same sizes",
                      name_length(request), name_of(request), request->required, machine->required);
        return false;
    }
    return true;
}

static bool check_pages(kvf_sender_machine *machine, const kvf_request *request)
{
    if (!machine->expected || kvf_request_is_dummy(request) ||
        kvf_request_page_count(request) == machine->pages_total)
        return true;
    (void)kvf_request_explain_count(machine->profile, request, machine->pages_total,
                                    &machine->outcome.error);
    return false;
}

static bool store_request(kvf_sender_machine *machine, uint32_t index, const kvf_request *request)
{
    if (index == machine->destination_count) {
        kvf_sender_destination *grown = realloc(machine->destinations, (index + 1) * sizeof *grown);
        if (grown == NULL) {
            kvf_error_set(&machine->outcome.error, KVF_NO_MEMORY, "no memory for a destination");
            return false;
        }
        machine->destinations = grown;
        machine->destination_count++;
    } else if (!kvf_request_is_dummy(machine->destinations[index].request)) {
        machine->real_count--;
    }
    machine->destinations[index] = (kvf_sender_destination){.request = request};
    machine->required = request->required;
    if (!kvf_request_is_dummy(request))
        machine->real_count++;
    return true;
}

/* Takes a request or decides why not. An identical repeat is ignored, as stock peers may send one; a
 * different one wins as long as nothing was written to where the first one pointed. */
static bool take_request(kvf_sender_machine *machine, const kvf_request *request,
                         kvf_actions *actions)
{
    uint32_t index = find_agent(machine, request->agent_name);
    bool known = index < machine->destination_count;
    if (known && requests_equal(machine->destinations[index].request, request))
        return false;
    kvf_error *error = &machine->outcome.error;
    bool alone =
        known && machine->destination_count == 1 && machine->outcome.state == KVF_BOOTSTRAPPING;
    bool sound = check_required(machine, request, alone);
    if (sound && known && machine->chunks_posted > 0) {
        kvf_error_set(error, KVF_PROTOCOL,
                      "agent %.*s asked again, for other pages, after the first byte was sent",
                      name_length(request), name_of(request));
        sound = false;
    }
    if (sound && !known && machine->destination_count == request->required) {
        kvf_error_set(error, KVF_PROTOCOL,
                      "agent %.*s reports although all %u required decode ranks have; is an old "
                      "decode process still running?",
                      name_length(request), name_of(request), request->required);
        sound = false;
    }
    sound = sound && check_pages(machine, request) && store_request(machine, index, request);
    if (!sound)
        fail(machine, actions);
    return sound;
}

/* Whatever has become possible. */
static void advance(kvf_sender_machine *machine, uint64_t now, kvf_actions *actions)
{
    if (machine->outcome.state == KVF_BOOTSTRAPPING && machine->required > 0 &&
        machine->destination_count == machine->required) {
        set_deadline(machine, KVF_NO_DEADLINE, actions);
        publish(machine, KVF_WAITING_FOR_INPUT, actions);
    }
    if (machine->outcome.state == KVF_BOOTSTRAPPING)
        return;
    uint32_t new_chunks = machine->chunk_count - machine->chunks_posted;
    if (new_chunks > 0) {
        kvf_actions_add(actions, KVF_ACTION_POST);
        kvf_action *post = &actions->items[actions->count - 1];
        post->first_chunk = machine->chunks_posted;
        post->chunk_count = new_chunks;
        machine->chunks_posted = machine->chunk_count;
        machine->writes_left += (uint64_t)new_chunks * machine->real_count;
        if (machine->outcome.state != KVF_TRANSFERRING)
            publish(machine, KVF_TRANSFERRING, actions);
    }
    if (machine->writes_left > 0) {
        set_deadline(machine, kvf_deadline_after(now, machine->timeouts->waiting), actions);
        return;
    }
    set_deadline(machine, KVF_NO_DEADLINE, actions);
    if (machine->last_sent) {
        machine->outcome.state = KVF_SUCCESS;
        settle(machine, KVF_PAGES_SAFE, KVF_PROOF_COMPLETED, actions);
    }
}

static bool expect(kvf_sender_machine *machine, uint32_t page_count, kvf_actions *actions)
{
    if (machine->expected)
        return false;
    machine->expected = true;
    machine->pages_total = page_count;
    for (uint32_t i = 0; i < machine->destination_count; i++) {
        if (!check_pages(machine, machine->destinations[i].request)) {
            fail(machine, actions);
            return true;
        }
    }
    return true;
}

static bool send_chunk(kvf_sender_machine *machine, uint32_t page_count)
{
    if (!machine->expected || machine->last_sent ||
        page_count > machine->pages_total - machine->pages_sent)
        return false;
    machine->pages_sent += page_count;
    machine->last_sent = machine->pages_sent == machine->pages_total;
    machine->chunk_count++;
    return true;
}

static bool deadline_passed(kvf_sender_machine *machine, uint64_t now, kvf_actions *actions)
{
    if (now < machine->deadline)
        return false;
    if (machine->outcome.state == KVF_BOOTSTRAPPING && machine->required == 0)
        kvf_error_set(&machine->outcome.error, KVF_TIMEOUT,
                      "no decode rank asked for this room within bootstrap_timeout; is the request "
                      "at a decode server, and does it know this prefill server's address?");
    else if (machine->outcome.state == KVF_BOOTSTRAPPING)
        kvf_error_set(&machine->outcome.error, KVF_TIMEOUT,
                      "only %u of %u decode ranks asked for this room within bootstrap_timeout",
                      machine->destination_count, machine->required);
    else
        kvf_error_set(&machine->outcome.error, KVF_TIMEOUT,
                      "%llu writes of chunks were not completed within waiting_timeout: the decode "
                      "side takes no bytes, or the UCX versions of the two sides don't meet",
                      (unsigned long long)machine->writes_left);
    fail(machine, actions);
    return true;
}

static bool written(kvf_sender_machine *machine, kvf_slice agent_name)
{
    uint32_t index = find_agent(machine, agent_name);
    if (index == machine->destination_count ||
        kvf_request_is_dummy(machine->destinations[index].request) ||
        machine->destinations[index].chunks_written == machine->chunks_posted)
        return false;
    machine->destinations[index].chunks_written++;
    machine->writes_left--;
    return true;
}

/* A destination that has everything may go: the room only waits for others. */
static bool has_all(const kvf_sender_machine *machine, uint32_t index)
{
    return machine->last_sent && machine->destinations[index].chunks_written > 0 &&
           machine->destinations[index].chunks_written == machine->chunk_count;
}

static bool peer_gone(kvf_sender_machine *machine, const kvf_sender_event *event,
                      kvf_actions *actions)
{
    uint32_t index = find_agent(machine, event->agent_name);
    if (index == machine->destination_count || has_all(machine, index))
        return false;
    fail_with(machine, event->error, actions);
    return true;
}

static bool dispatch(kvf_sender_machine *machine, const kvf_sender_event *event, uint64_t now,
                     kvf_actions *actions)
{
    switch (event->kind) {
    case KVF_SENDER_OPENED:
        set_deadline(machine, kvf_deadline_after(now, machine->timeouts->bootstrap), actions);
        return true;
    case KVF_SENDER_REQUESTED:
        return take_request(machine, event->request, actions);
    case KVF_SENDER_EXPECTED:
        return expect(machine, event->page_count, actions);
    case KVF_SENDER_SENT:
        return send_chunk(machine, event->page_count);
    case KVF_SENDER_WRITTEN:
        return written(machine, event->agent_name);
    case KVF_SENDER_PEER_GONE:
        return peer_gone(machine, event, actions);
    case KVF_SENDER_TIMER:
        return deadline_passed(machine, now, actions);
    case KVF_SENDER_REFUSED:
    case KVF_SENDER_FAILED:
        fail_with(machine, event->error, actions);
        return true;
    case KVF_SENDER_ABORTED:
        kvf_error_set(&machine->outcome.error, KVF_ABORTED, "aborted by this side");
        fail(machine, actions);
        return true;
    case KVF_SENDER_SHUTDOWN:
        kvf_error_set(&machine->outcome.error, KVF_SHUTDOWN, "the manager was closed");
        fail(machine, actions);
        return true;
    case KVF_SENDER_DRAINED:
        return false;
    }
    return false;
}

/* A failed room only waits for the transport, and not for ever. */
static bool fence(kvf_sender_machine *machine, const kvf_sender_event *event, uint64_t now,
                  kvf_actions *actions)
{
    if (machine->outcome.safety != KVF_PAGES_IN_USE)
        return false;
    if (event->kind == KVF_SENDER_DRAINED)
        settle(machine, KVF_PAGES_SAFE, KVF_PROOF_TRANSPORT_DONE, actions);
    else if (event->kind == KVF_SENDER_TIMER && now >= machine->deadline)
        settle(machine, KVF_PAGES_RELEASED, KVF_PROOF_NONE, actions);
    else
        return false;
    return true;
}

bool kvf_sender_machine_step(kvf_sender_machine *machine, const kvf_sender_event *event,
                             uint64_t now, kvf_actions *actions)
{
    if (kvf_outcome_is_final(&machine->outcome))
        return fence(machine, event, now, actions);
    bool meant = dispatch(machine, event, now, actions);
    if (meant && machine->outcome.state != KVF_FAILED)
        advance(machine, now, actions);
    if (machine->outcome.state == KVF_FAILED)
        set_deadline(machine, kvf_deadline_after(now, machine->timeouts->fence), actions);
    return meant;
}
