/* The receiver machine under any stream of events. Input: three bytes an event: kind, and two of content.
 * What must hold whatever comes: Failed and Success are final, Success only after chunks 0 to the last and the
 * aux record of one agent, a failed room says why, a room with a deadline has armed it, and a failed room's pages
 * are only called safe with a proof that was there. */
#include "room/receiver.h"

#include "support.h"

/* What a slow, obvious observer remembers. */
typedef struct observer {
    bool heard[256]; /* chunks, of the agent that spoke first */
    bool aux;
    int agent; /* -1: none yet */
    int last;  /* -1: none marked */
    bool requested;
    bool disclosed;
    bool proven;
    bool settled;
    bool ended;
    kvf_poll end;
} observer;

static void observe_notice(observer *seen, const kvf_notice *notice, int agent)
{
    if (!seen->requested || notice->kind == KVF_NOTICE_UNKNOWN)
        return;
    if (seen->agent < 0)
        seen->agent = agent;
    if (seen->agent != agent)
        return;
    if (notice->kind == KVF_NOTICE_AUX) {
        seen->aux = true;
        return;
    }
    seen->heard[notice->chunk] = true;
    if (notice->last)
        seen->last = (int)notice->chunk;
}

static bool is_complete(const observer *seen)
{
    if (!seen->aux || seen->last < 0)
        return false;
    for (int i = 0; i <= seen->last; i++)
        if (!seen->heard[i])
            return false;
    return true;
}

static void check_actions(const kvf_receiver_machine *machine, const kvf_actions *actions,
                          observer *seen)
{
    unsigned published = 0;
    require(actions->count <= KVF_ACTIONS_MAX);
    for (size_t i = 0; i < actions->count; i++) {
        published += actions->items[i].kind == KVF_ACTION_PUBLISH;
        if (actions->items[i].kind == KVF_ACTION_TIMER)
            require(actions->items[i].deadline == machine->deadline);
        if (actions->items[i].kind == KVF_ACTION_REQUEST) {
            require(!seen->requested);
            seen->requested = true;
        }
    }
    require(published <= 1);
    require(!seen->settled || actions->count == 0);
}

static void check_state(const kvf_receiver_machine *machine, observer *seen)
{
    const kvf_outcome *outcome = &machine->outcome;
    require(!seen->ended || outcome->state == seen->end);
    if (outcome->state == KVF_SUCCESS)
        require(is_complete(seen) && outcome->safety == KVF_PAGES_SAFE);
    if (outcome->state == KVF_FAILED)
        require(outcome->error.status != KVF_OK && outcome->error.text[0] != '\0');
    require((outcome->safety == KVF_PAGES_SAFE) == (outcome->proof != KVF_PROOF_NONE));
    require(outcome->proof != KVF_PROOF_NEVER_DISCLOSED || !seen->disclosed);
    require(outcome->proof != KVF_PROOF_COMPLETED || is_complete(seen));
    require(outcome->proof != KVF_PROOF_ACKNOWLEDGED || seen->proven);
    if (kvf_outcome_is_settled(outcome)) {
        require(machine->deadline == KVF_NO_DEADLINE);
        seen->settled = true;
    }
    if (kvf_outcome_is_final(outcome)) {
        require(seen->settled || machine->deadline < KVF_NO_DEADLINE);
        seen->ended = true;
        seen->end = outcome->state;
    } else if (machine->expected) {
        require(machine->deadline < KVF_NO_DEADLINE);
    }
}

static kvf_receiver_event make_event(const uint8_t *data, kvf_notice *notice,
                                     const kvf_error *error)
{
    static const char *const names[] = {"prefill-a", "prefill-b", ""};
    kvf_receiver_event event = {
        .kind = (kvf_receiver_event_kind)(data[0] % (KVF_RECEIVER_TIMER + 1)),
        .page_count = data[1],
        .agent_name = kvf_slice_of(names[data[2] >> 6 == 3 ? 2 : data[2] >> 6 & 1]),
        .notice = notice,
        .error = error,
        .proof = KVF_PROOF_ACKNOWLEDGED};
    *notice = (kvf_notice){.kind = data[2] % 3 == 2   ? KVF_NOTICE_UNKNOWN
                                   : data[2] % 3 == 1 ? KVF_NOTICE_AUX
                                                      : KVF_NOTICE_CHUNK,
                           .room = 7,
                           .chunk = data[1],
                           .last = (data[2] & 32) != 0};
    return event;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const kvf_room_timeouts timeouts = {1000, 2000, 500};
    kvf_receiver_machine machine;
    observer seen = {.agent = -1, .last = -1};
    uint64_t now = 0;
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_GONE, "the prefill side is gone");
    kvf_receiver_machine_init(&machine, &timeouts);
    for (; size >= 3; data += 3, size -= 3) {
        kvf_notice notice;
        kvf_receiver_event event = make_event(data, &notice, &error);
        kvf_actions actions = {.count = 0};
        now += data[0] >> 4;
        if (event.kind == KVF_RECEIVER_TIMER && machine.deadline != KVF_NO_DEADLINE &&
            (data[1] & 1) != 0)
            now = machine.deadline;
        if (event.kind == KVF_RECEIVER_NOTICE && event.agent_name.length > 0 && !seen.settled)
            observe_notice(&seen, &notice, event.agent_name.data[8]);
        seen.disclosed = seen.disclosed || (event.kind == KVF_RECEIVER_DISCLOSED && !seen.ended);
        seen.proven = seen.proven || (event.kind == KVF_RECEIVER_PROVEN && seen.ended);
        (void)kvf_receiver_machine_step(&machine, &event, now, &actions);
        check_actions(&machine, &actions, &seen);
        check_state(&machine, &seen);
    }
    kvf_receiver_machine_free(&machine);
    return 0;
}
