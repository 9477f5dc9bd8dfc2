/* The engines around the managers: a router makes rooms, each side's user opens, gives pages, aborts, closes,
 * and remembers what it was told. */
#include "sim/sim.h"

#include <stdlib.h>

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
    if (!open_side(side))
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
    if (!open_side(side))
        return;
    sim_receiver_open(side);
    at(side, soon(world, 40 * KVF_MILLISECOND), receiver_expect, 0);
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

static void close_side(sim_side *side)
{
    if (!is_usable(side))
        return;
    side->closed = true;
    if (side->sender != NULL)
        sim_sender_close(side->sender);
    else if (side->receiver != NULL)
        sim_receiver_close(side->receiver);
}

static void close_task(sim_world *world, sim_task *task)
{
    (void)world;
    close_side(task->subject);
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

/* Pages that aren't proven safe are never given to another room: what lands there is counted. */
static void settled(sim_side *side, const kvf_outcome *outcome)
{
    sim_world *world = side->node->world;
    side->settled = true;
    if (outcome->safety == KVF_PAGES_RELEASED)
        world->tally->released[side->receiver != NULL]++;
    if (outcome->safety != KVF_PAGES_SAFE)
        return;
    world->tally->proofs[outcome->proof]++;
    if (sim_random_chance(&world->random, 500))
        sim_memory_give_back(side);
    else
        at(side, soon(world, 5 * KVF_MILLISECOND), give_back, 0);
}

static void ended(sim_side *side, const kvf_outcome *outcome)
{
    sim_world *world = side->node->world;
    side->ended = true;
    side->fence_limit = sim_now(side->node) + SIM_FENCE_TIMEOUT;
    side->error = outcome->error;
    if (outcome->state == KVF_SUCCESS && side->receiver != NULL)
        sim_memory_verify(side, side);
    if (outcome->state == KVF_SUCCESS && side->receiver == NULL)
        verify_destinations(side);
    if (outcome->state == KVF_FAILED)
        sim_check_reason(side);
    at(side, soon(world, 400 * KVF_MILLISECOND), close_task, 0);
}

void sim_user_told(sim_side *side, const kvf_outcome *outcome)
{
    sim_world *world = side->node->world;
    static const char *const states[] = {"Failed", "Bootstrapping", "WaitingForInput",
                                         "Transferring", "Success"};
    static const char *const safeties[] = {"", ", pages safe", ", pages released, unproven"};
    sim_trace(world, side->node, "room %llu (%u): %s%s%s%s%s",
              (unsigned long long)side->instance->id, side->instance->uid, states[outcome->state],
              safeties[outcome->safety], outcome->state == KVF_FAILED ? ": " : "",
              outcome->state == KVF_FAILED ? outcome->error.text : "",
              outcome->proof != KVF_PROOF_NONE ? kvf_proof_name(outcome->proof) : "");
    if (side->settled ||
        (side->ended && (outcome->state != side->state || outcome->safety == KVF_PAGES_IN_USE))) {
        sim_violate(world, "room %llu on %s: told %s after its end, %s",
                    (unsigned long long)side->instance->id, side->node->name,
                    states[outcome->state], states[side->state]);
        return;
    }
    if (outcome->state != KVF_FAILED && outcome->state < side->state)
        sim_violate(world, "room %llu on %s: %s after %s", (unsigned long long)side->instance->id,
                    side->node->name, states[outcome->state], states[side->state]);
    side->state = outcome->state;
    side->safety = outcome->safety;
    if (kvf_outcome_is_final(outcome) && !side->ended)
        ended(side, outcome);
    if (kvf_outcome_is_settled(outcome))
        settled(side, outcome);
}

/* ---- Making rooms --------------------------------------------------------------------------------- */

static bool may_pass_on(const sim_world *world, const sim_instance *instance)
{
    if (instance->id_passed_on)
        return false;
    bool succeeded = !instance->id_tainted;
    for (uint32_t i = 0; i < instance->sender_count; i++) {
        if (!instance->senders[i].closed && !instance->senders[i].lost)
            return false;
        succeeded = succeeded && instance->senders[i].state == KVF_SUCCESS;
    }
    for (uint32_t i = 0; i < instance->receiver_count; i++) {
        if (!instance->receivers[i].closed && !instance->receivers[i].lost)
            return false;
        succeeded = succeeded && instance->receivers[i].state == KVF_SUCCESS;
    }
    return succeeded || world->reuse_any;
}

/* An id is used again only after success on all sides: what a failed room left on the way can't be told from
 * the next one's, until requests carry epochs. */
static void choose_id(sim_world *world, sim_instance *instance)
{
    sim_instance *earlier;
    instance->id = 0;
    if (sim_random_chance(&world->random, 400)) {
        DL_FOREACH(world->instances, earlier)
        {
            if (!may_pass_on(world, earlier))
                continue;
            earlier->id_passed_on = true;
            instance->id = earlier->id;
            instance->prefill_group = earlier->prefill_group;
            instance->decode_group = earlier->decode_group;
            world->tally->reused_ids++;
            return;
        }
    }
    instance->id = world->next_room++;
}

static void choose_pages(sim_world *world, sim_instance *instance, bool may_be_empty)
{
    uint32_t left = (uint32_t)sim_random_between(&world->random, 1, SIM_ROOM_PAGES);
    if (may_be_empty && sim_random_chance(&world->random, 40))
        left = 0;
    instance->page_count = left;
    do {
        uint32_t chunk = left == 0 ? 0 : (uint32_t)sim_random_between(&world->random, 1, left);
        if (instance->chunk_count == 4)
            chunk = left;
        instance->chunks[instance->chunk_count++] = chunk;
        left -= chunk;
    } while (left > 0);
}

static sim_node *node_of(sim_world *world, bool prefill, uint32_t group, uint32_t rank)
{
    for (uint32_t i = 0; i < world->node_count; i++) {
        sim_node *node = &world->nodes[i];
        if (node->prefill == prefill && node->group == group && node->rank == rank)
            return node;
    }
    abort();
}

static void start_side(sim_side *side, sim_instance *instance, sim_node *node, sim_task_run open)
{
    sim_world *world = node->world;
    side->instance = instance;
    side->node = node;
    side->incarnation = node->incarnation;
    side->page_count = instance->page_count;
    side->state = KVF_BOOTSTRAPPING;
    side->lost = !node->alive;
    world->tally->sides++;
    if (world->now < node->healthy_at)
        instance->faults |= node->recent_faults;
    uint64_t wait = sim_random_chance(&world->random, 100) ? 1500 : 100;
    at(side, soon(world, wait * KVF_MILLISECOND), open, 0);
}

static void plan_faults(sim_world *world, sim_instance *instance)
{
    if (world->now < world->bootstraps[instance->prefill_group].healthy_at)
        instance->faults |= SIM_BIT(SIM_FAULT_BOOTSTRAP);
    uint64_t healthy = world->pair_healthy_at[instance->prefill_group][instance->decode_group];
    if (world->now < healthy)
        instance->faults |= world->pair_faults[instance->prefill_group][instance->decode_group];
    if (sim_faulty_now(world, SIM_FAULT_ABORT, 200)) {
        bool sender = sim_random_chance(&world->random, 500);
        sim_side *side =
            sender
                ? &instance->senders[sim_random_below(&world->random, instance->sender_count)]
                : &instance->receivers[sim_random_below(&world->random, instance->receiver_count)];
        at(side, soon(world, 500 * KVF_MILLISECOND), abort_task, 0);
    }
    if (sim_faulty_now(world, SIM_FAULT_MISMATCH, 40) && instance->page_count > 0) {
        sim_fault_touch(instance, SIM_FAULT_MISMATCH);
        sim_side *side = &instance->senders[0];
        side->page_count++;
        side->opened = true;
        sim_fault_meets(world, SIM_FAULT_MISMATCH, side);
        side->opened = false;
    }
}

static void make_room(sim_world *world, sim_task *task)
{
    (void)task;
    sim_instance *instance = calloc(1, sizeof *instance);
    if (instance == NULL)
        abort();
    instance->uid = ++world->instance_count;
    instance->prefill_group = (uint32_t)sim_random_below(&world->random, world->prefill_groups);
    instance->decode_group = (uint32_t)sim_random_below(&world->random, world->decode_groups);
    choose_id(world, instance);
    bool stock = node_of(world, true, instance->prefill_group, 0)->stock ||
                 node_of(world, false, instance->decode_group, 0)->stock;
    choose_pages(world, instance, !stock);
    instance->sender_count = world->prefill_ranks;
    instance->receiver_count = world->decode_ranks;
    DL_PREPEND(world->instances, instance);
    world->tally->rooms++;
    for (uint32_t i = 0; i < instance->sender_count; i++)
        start_side(&instance->senders[i], instance,
                   node_of(world, true, instance->prefill_group, i), sender_open);
    for (uint32_t i = 0; i < instance->receiver_count; i++)
        start_side(&instance->receivers[i], instance,
                   node_of(world, false, instance->decode_group, i), receiver_open);
    plan_faults(world, instance);
}

static void close_everything(sim_world *world, sim_task *task)
{
    sim_instance *instance;
    (void)task;
    DL_FOREACH(world->instances, instance)
    {
        for (uint32_t i = 0; i < instance->sender_count; i++)
            if (instance->senders[i].node->stock && is_usable(&instance->senders[i])) {
                instance->senders[i].aborted = true;
                close_side(&instance->senders[i]);
            }
        for (uint32_t i = 0; i < instance->receiver_count; i++)
            if (instance->receivers[i].node->stock && is_usable(&instance->receivers[i])) {
                instance->receivers[i].aborted = true;
                close_side(&instance->receivers[i]);
            }
    }
}

void sim_user_start(sim_world *world)
{
    uint32_t count = (uint32_t)sim_random_between(&world->random, 10, 50);
    for (uint32_t i = 0; i < count; i++)
        sim_task_add(world, soon(world, world->faults_until), make_room, NULL, 0, NULL, 0, NULL, 0);
    /* When everything has healed, rooms succeed again. */
    for (uint32_t i = 0; i < 6; i++)
        sim_task_add(world, world->faults_until + SIM_RECOVERY + (uint64_t)i * 50 * KVF_MILLISECOND,
                     make_room, NULL, 0, NULL, 0, NULL, 0);
    /* A stock side has no deadlines: its engine gives up in the end. */
    sim_task_add(world, world->end - (2 * SIM_HOLD_TIMEOUT), close_everything, NULL, 0, NULL, 0,
                 NULL, 0);
}

void sim_user_end(sim_world *world)
{
    while (world->instances != NULL) {
        sim_instance *instance = world->instances;
        DL_DELETE(world->instances, instance);
        free(instance);
    }
}
