/* The engines around the managers: each side's user opens, gives pages, aborts, closes, and remembers what it
 * was told. */
#include "sim/sim.h"

static uint64_t soon(sim_world *world, uint64_t most)
{
    return world->now + sim_random_below(&world->random, most);
}

static void at(sim_side *side, uint64_t time, sim_task_run run, uint64_t number)
{
    sim_task_add(side->node->world, time, run, side->node, side->incarnation, side, number, NULL,
                 0);
}

static void extend(sim_side *side, uint64_t duration)
{
    uint64_t limit = sim_now(side->node) + duration;
    if (limit > side->limit)
        side->limit = limit;
}

static bool is_usable(const sim_side *side)
{
    return side->opened && !side->closed && !side->lost;
}

/* ---- What the users do ---------------------------------------------------------------------------- */

static bool open_side(sim_side *side)
{
    sim_node *node = side->node;
    if (node->room_count >= node->world->limits.rooms || !sim_memory_take(side, side->page_count)) {
        sim_fault_touch(side->instance, SIM_FAULT_LIMIT);
        sim_trace(node->world, node, "room %llu: not opened, max_rooms is reached",
                  (unsigned long long)side->instance->id);
        side->lost = true;
        return false;
    }
    side->opened = true;
    side->opened_at = sim_now(node);
    sim_fault_meets_newborn(side);
    sim_trace(node->world, node, "room %llu (%u): opened, %u pages",
              (unsigned long long)side->instance->id, side->instance->uid, side->page_count);
    extend(side, SIM_BOOTSTRAP_TIMEOUT);
    return true;
}

static void sender_send(sim_world *world, sim_task *task)
{
    sim_side *side = task->subject;
    const sim_instance *instance = side->instance;
    uint32_t index = (uint32_t)task->number;
    uint32_t first = 0;
    if (!is_usable(side))
        return;
    for (uint32_t i = 0; i < index; i++)
        first += instance->chunks[i];
    side->chunks_sent++;
    bool last = side->chunks_sent == instance->chunk_count;
    uint32_t count = last ? side->page_count - first : instance->chunks[index];
    if (side->has_memory)
        sim_memory_fill(side, first, count, last);
    extend(side, SIM_WAITING_TIMEOUT);
    if (side->limit < sim_now(side->node) + SIM_WAITING_TIMEOUT + SIM_BOOTSTRAP_TIMEOUT && last)
        side->limit += SIM_WAITING_TIMEOUT; /* from the moment all destinations have reported */
    sim_sender_send(side->sender, side->pages + first, count);
    if (!last)
        at(side, soon(world, 60 * KVF_MILLISECOND), sender_send, index + 1);
}

static void sender_expect(sim_world *world, sim_task *task)
{
    sim_side *side = task->subject;
    if (!is_usable(side))
        return;
    sim_sender_feed(side->sender, &(kvf_sender_event){.kind = KVF_SENDER_EXPECTED,
                                                      .page_count = side->page_count});
    sim_sender_release(side->sender);
    at(side, soon(world, 30 * KVF_MILLISECOND), sender_send, 0);
}

static void sender_open(sim_world *world, sim_task *task)
{
    sim_side *side = task->subject;
    if (side->opened || side->lost || !open_side(side))
        return;
    sim_sender_open(side);
    at(side, soon(world, 40 * KVF_MILLISECOND), sender_expect, 0);
}

static void receiver_expect(sim_world *world, sim_task *task)
{
    sim_side *side = task->subject;
    (void)world;
    if (!is_usable(side) || side->ended)
        return;
    extend(side, SIM_WAITING_TIMEOUT);
    sim_receiver_feed(side->receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_EXPECTED,
                                                            .page_count = side->page_count});
}

static void receiver_open(sim_world *world, sim_task *task)
{
    sim_side *side = task->subject;
    if (side->opened || side->lost || !open_side(side))
        return;
    sim_receiver_open(side);
    at(side, soon(world, 40 * KVF_MILLISECOND), receiver_expect, 0);
}

void sim_user_open_at(sim_side *side, uint64_t time)
{
    at(side, time, side->node->prefill ? sender_open : receiver_open, 0);
}

void sim_user_abort(sim_side *side)
{
    if (!is_usable(side))
        return;
    sim_trace(side->node->world, side->node, "room %llu: the user aborts",
              (unsigned long long)side->instance->id);
    side->aborted = true;
    if (side->sender != NULL) {
        sim_sender_feed(side->sender, &(kvf_sender_event){.kind = KVF_SENDER_ABORTED});
        sim_sender_release(side->sender);
    } else if (side->receiver != NULL) {
        sim_receiver_feed(side->receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_ABORTED});
    }
}

static void abort_task(sim_world *world, sim_task *task)
{
    sim_side *side = task->subject;
    if (!is_usable(side))
        return;
    sim_fault_meets(world, SIM_FAULT_ABORT, side);
    sim_fault_touch(side->instance, SIM_FAULT_ABORT);
    sim_user_abort(side);
}

void sim_user_abort_at(sim_side *side, uint64_t time)
{
    at(side, time, abort_task, 0);
}

void sim_user_close(sim_side *side)
{
    if (!is_usable(side))
        return;
    side->closed = true;
    if (side->sender != NULL)
        sim_sender_close(side->sender);
    else if (side->receiver != NULL)
        sim_receiver_close(side->receiver);
    sim_router_closed(side->instance);
}

static void close_task(sim_world *world, sim_task *task)
{
    (void)world;
    sim_user_close(task->subject);
}

/* ---- What they are told --------------------------------------------------------------------------- */

static void give_back(sim_world *world, sim_task *task)
{
    (void)world;
    sim_memory_give_back(task->subject);
}

/* A sender's Success says that the bytes are there, whether or not the receiver has heard of it. A request that
 * was cut short may have named nobody to write to. */
static void verify_destinations(const sim_side *sender)
{
    const sim_world *world = sender->node->world;
    sim_instance *instance = sender->instance;
    uint32_t unsure = SIM_BIT(SIM_FAULT_TRUNCATION) | SIM_BIT(SIM_FAULT_LATE);
    if ((instance->faults & unsure) != 0)
        return;
    for (uint32_t i = 0; i < instance->receiver_count; i++) {
        sim_side *receiver = &instance->receivers[i];
        uint32_t source = world->prefill_ranks >= world->decode_ranks
                              ? i * (world->prefill_ranks / world->decode_ranks)
                              : i / (world->decode_ranks / world->prefill_ranks);
        if (source == sender->node->rank && !receiver->ended && !receiver->lost &&
            receiver->disclosed)
            sim_memory_verify(receiver, sender);
    }
}

/* To a room that is about to open there: it has them in the same turn. */
static void pass_pages_on(sim_side *side)
{
    sim_node *node = side->node;
    sim_instance *instance;
    sim_memory_give_back(side);
    DL_FOREACH(node->world->instances, instance)
    {
        sim_side *next =
            node->prefill ? &instance->senders[node->rank] : &instance->receivers[node->rank];
        if (next->node != node || next->opened || next->lost)
            continue;
        sim_user_open_at(next, node->world->now);
        return;
    }
}

/* A stock decode takes what is left of the id's last room for this one's: its word isn't ours. */
bool sim_is_deceived(const sim_side *side)
{
    return side->node->stock && (side->instance->faults & SIM_BIT(SIM_FAULT_USED_ID)) != 0;
}

/* Pages that aren't proven safe are never given to another room: what lands there is counted. */
static void settled(sim_side *side, const kvf_outcome *outcome)
{
    sim_world *world = side->node->world;
    side->settled = true;
    if (outcome->safety == KVF_PAGES_RELEASED && !side->node->stock)
        world->tally->released[side->receiver != NULL]++;
    if (outcome->safety == KVF_PAGES_RELEASED)
        sim_check_released(side);
    if (outcome->safety != KVF_PAGES_SAFE || sim_is_deceived(side))
        return;
    world->tally->proofs[outcome->proof]++;
    if (sim_random_chance(&world->random, 500))
        pass_pages_on(side);
    else
        at(side, soon(world, 5 * KVF_MILLISECOND), give_back, 0);
}

static void ended(sim_side *side, const kvf_outcome *outcome)
{
    sim_world *world = side->node->world;
    side->ended = true;
    side->fence_limit = sim_now(side->node) + SIM_FENCE_TIMEOUT;
    side->error = outcome->error;
    if (outcome->state == KVF_SUCCESS && side->receiver != NULL && !sim_is_deceived(side))
        sim_memory_verify(side, side);
    if (outcome->state == KVF_SUCCESS && side->receiver == NULL) {
        verify_destinations(side);
        sim_check_id(side);
    }
    if (outcome->state == KVF_FAILED) {
        sim_check_reason(side);
        sim_check_failed(side);
        if (sim_faulty_now(world, SIM_FAULT_ABORT, 150)) /* whose user hasn't heard of it yet */
            sim_user_abort_at(side, soon(world, KVF_MILLISECOND));
    }
    at(side, soon(world, 400 * KVF_MILLISECOND), close_task, 0);
}

static const char *const states[] = {"Failed", "Bootstrapping", "WaitingForInput", "Transferring",
                                     "Success"};

static void trace_outcome(const sim_side *side, const kvf_outcome *outcome)
{
    static const char *const safeties[] = {"", ", pages safe", ", pages released, unproven"};
    bool proven = outcome->proof != KVF_PROOF_NONE;
    bool failed = outcome->state == KVF_FAILED;
    sim_trace(side->node->world, side->node, "room %llu (%u): %s%s%s%s%s%s",
              (unsigned long long)side->instance->id, side->instance->uid, states[outcome->state],
              safeties[outcome->safety], proven ? " by proof " : "",
              proven ? kvf_proof_name(outcome->proof) : "", failed ? ": " : "",
              failed ? outcome->error.text : "");
}

/* Forwards; then one end; then, where that was a failure, once that the pages are given back. */
static bool may_follow(const sim_side *side, const kvf_outcome *outcome)
{
    if (side->ended)
        return !side->settled && outcome->state == side->state &&
               outcome->safety != KVF_PAGES_IN_USE;
    return outcome->state == KVF_FAILED || outcome->state >= side->state;
}

void sim_user_told(sim_side *side, const kvf_outcome *outcome)
{
    trace_outcome(side, outcome);
    if (!may_follow(side, outcome)) {
        sim_violate(side->node->world, "room %llu on %s: told %s after %s%s",
                    (unsigned long long)side->instance->id, side->node->name,
                    states[outcome->state], states[side->state],
                    side->settled ? ", its pages given back" : "");
        return;
    }
    side->state = outcome->state;
    side->safety = outcome->safety;
    side->proof = outcome->proof;
    if (kvf_outcome_is_final(outcome) && !side->ended)
        ended(side, outcome);
    if (kvf_outcome_is_settled(outcome))
        settled(side, outcome);
}
