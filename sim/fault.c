/* Faults: which there are, whom they touch, and which states they met. */
#include "sim/sim.h"

#include <stdio.h>
#include <stdlib.h>

const char *const sim_fault_names[SIM_FAULTS] = {
    [SIM_FAULT_KILL] = "kill",
    [SIM_FAULT_STOP] = "stop",
    [SIM_FAULT_CUT] = "cut",
    [SIM_FAULT_LOSS] = "loss",
    [SIM_FAULT_JUMP] = "jump",
    [SIM_FAULT_SLOW] = "slow",
    [SIM_FAULT_BOOTSTRAP] = "bootstrap",
    [SIM_FAULT_TRUNCATION] = "truncation",
    [SIM_FAULT_REPEAT] = "repeat",
    [SIM_FAULT_LATE] = "late",
    [SIM_FAULT_FOREIGN] = "foreign",
    [SIM_FAULT_ABORT] = "abort",
    [SIM_FAULT_MISMATCH] = "mismatch",
    [SIM_FAULT_SHUTDOWN] = "shutdown",
    [SIM_FAULT_LIMIT] = "limit",
    [SIM_FAULT_USED_ID] = "used id",
};

/* ---- Whom they touch ------------------------------------------------------------------------------ */

bool sim_faulty_now(sim_world *world, sim_fault fault, unsigned per_thousand)
{
    return (world->enabled_faults & SIM_BIT(fault)) != 0 && world->now < world->faults_until &&
           sim_random_chance(&world->random, per_thousand);
}

void sim_fault_touch(sim_instance *instance, sim_fault fault)
{
    instance->faults |= SIM_BIT(fault);
}

void sim_fault_meets(sim_world *world, sim_fault fault, const sim_side *side)
{
    uint64_t *met = world->tally->faults[fault][side->node->prefill ? 0 : 1];
    if (side->opened && !side->lost && side->ended && !side->settled)
        met[SIM_FENCING]++;
    else if (side->opened && !side->closed && !side->lost)
        met[side->state]++;
}

sim_instance *sim_instance_of(sim_world *world, uint64_t room)
{
    sim_instance *instance;
    DL_FOREACH(world->instances, instance)
    {
        if (instance->id == room)
            return instance;
    }
    return NULL;
}

/* A request found no place: its room can't be blamed for what becomes of it. */
void sim_fault_limit(sim_node *prefill, const kvf_request *request)
{
    sim_world *world = prefill->world;
    sim_instance *instance = sim_instance_of(world, request->room);
    sim_trace(world, prefill, "room %llu: a limit leaves no place for the request",
              (unsigned long long)request->room);
    if (instance == NULL)
        return;
    sim_fault_touch(instance, SIM_FAULT_LIMIT);
    sim_fault_meets(world, SIM_FAULT_LIMIT, &instance->senders[prefill->rank]);
    for (uint32_t i = 0; i < instance->receiver_count; i++)
        if (strncmp((const char *)request->agent_name.data, instance->receivers[i].node->name,
                    strlen(instance->receivers[i].node->name)) == 0)
            sim_fault_meets(world, SIM_FAULT_LIMIT, &instance->receivers[i]);
}

/* What a room is born with meets each side when it opens. */
void sim_fault_meets_newborn(const sim_side *side)
{
    sim_world *world = side->node->world;
    const sim_instance *instance = side->instance;
    if (side->page_count != instance->page_count)
        sim_fault_meets(world, SIM_FAULT_MISMATCH, side);
    if ((instance->faults & SIM_BIT(SIM_FAULT_USED_ID)) != 0)
        sim_fault_meets(world, SIM_FAULT_USED_ID, side);
}

typedef bool (*side_filter)(const sim_side *side, const void *what);

/* The rooms of all sides that pass are touched, and of these sides those that `hits` passes are met. */
static void touch_sides(sim_world *world, sim_fault fault, side_filter filter, side_filter hits,
                        const void *what)
{
    sim_instance *instance;
    DL_FOREACH(world->instances, instance)
    {
        for (uint32_t i = 0; i < instance->sender_count + instance->receiver_count; i++) {
            sim_side *side = i < instance->sender_count
                                 ? &instance->senders[i]
                                 : &instance->receivers[i - instance->sender_count];
            if (!filter(side, what))
                continue;
            if (hits(side, what))
                sim_fault_meets(world, fault, side);
            sim_fault_touch(instance, fault);
        }
    }
}

static bool on_node(const sim_side *side, const void *node)
{
    return side->node == node;
}

static void touch_node(sim_node *node, sim_fault fault, uint64_t until)
{
    uint64_t healthy = until + SIM_RECOVERY;
    touch_sides(node->world, fault, on_node, on_node, node);
    if (node->world->now >= node->healthy_at)
        node->recent_faults = 0;
    node->recent_faults |= SIM_BIT(fault);
    if (healthy > node->healthy_at)
        node->healthy_at = healthy;
}

typedef struct node_pair {
    const sim_node *prefill;
    const sim_node *decode;
} node_pair;

static bool in_pair(const sim_side *side, const void *what)
{
    const node_pair *pair = what;
    return side->instance->prefill_group == pair->prefill->group &&
           side->instance->decode_group == pair->decode->group;
}

static bool on_one_of(const sim_side *side, const void *what)
{
    const node_pair *pair = what;
    return side->node == pair->prefill || side->node == pair->decode;
}

static void touch_pair(sim_world *world, const sim_node *prefill, const sim_node *decode,
                       sim_fault fault, uint64_t until)
{
    node_pair pair = {prefill, decode};
    uint64_t *healthy = &world->pair_healthy_at[prefill->group][decode->group];
    uint32_t *faults = &world->pair_faults[prefill->group][decode->group];
    touch_sides(world, fault, in_pair, on_one_of, &pair);
    if (world->now >= *healthy)
        *faults = 0;
    *faults |= SIM_BIT(fault);
    if (until + SIM_RECOVERY > *healthy)
        *healthy = until + SIM_RECOVERY;
}

static sim_node *any_node(sim_world *world, bool prefill)
{
    uint32_t count = prefill ? world->prefill_groups * world->prefill_ranks
                             : world->decode_groups * world->decode_ranks;
    uint32_t first = prefill ? 0 : world->prefill_groups * world->prefill_ranks;
    return &world->nodes[first + sim_random_below(&world->random, count)];
}

static uint64_t lasting(sim_world *world, uint64_t most)
{
    return world->now + sim_random_between(&world->random, 20 * KVF_MILLISECOND, most);
}

/* ---- Processes ------------------------------------------------------------------------------------ */

static void start_again(sim_world *world, sim_task *task)
{
    sim_node *node = task->subject;
    (void)world;
    sim_node_start(node);
}

static void transport_notices(sim_world *world, sim_task *task)
{
    (void)world;
    sim_engine_peer_failed(task->node, task->subject, (uint32_t)task->number, 0,
                           "the connection was reset");
}

static bool is_over(const sim_side *side)
{
    return side->closed && side->settled;
}

static void mark_lost(sim_node *node)
{
    sim_instance *instance;
    DL_FOREACH(node->world->instances, instance)
    {
        for (uint32_t i = 0; i < instance->sender_count; i++)
            if (instance->senders[i].node == node && !is_over(&instance->senders[i]))
                instance->senders[i].lost = true;
        for (uint32_t i = 0; i < instance->receiver_count; i++)
            if (instance->receivers[i].node == node && !is_over(&instance->receivers[i]))
                instance->receivers[i].lost = true;
    }
}

static void die(sim_node *node, uint64_t back)
{
    sim_world *world = node->world;
    sim_trace(world, node, "dies; back in %.3f s", (double)(back - world->now) / 1e9);
    mark_lost(node);
    if (node->prefill)
        sim_prefill_close(node);
    else
        sim_decode_close(node);
    while (node->backlog != NULL) {
        sim_task *next = node->backlog->next;
        free(node->backlog);
        node->backlog = next;
    }
    sim_connections_of_dead(node);
    sim_inboxes_writer_died(node);
    for (uint32_t i = 0; !node->prefill && i < world->node_count; i++) {
        sim_node *other = &world->nodes[i];
        if (other->prefill && other->alive)
            sim_task_add(world, world->now + sim_delay(world, node, other) + 5 * KVF_MILLISECOND,
                         transport_notices, other, other->incarnation, node, node->incarnation,
                         NULL, 0);
    }
    sim_pool_close(node);
    kvf_timers_free(&node->timers);
    node->alive = false;
    node->stopped = false;
    sim_pairs_update(world);
    sim_pairs_lost(node, KVF_NEVER);
    sim_task_add(world, back, start_again, NULL, 0, node, 0, NULL, 0);
}

static void kill_node(sim_node *node)
{
    uint64_t back = lasting(node->world, 2 * KVF_SECOND);
    touch_node(node, SIM_FAULT_KILL, back);
    die(node, back);
}

static void end_stop(sim_world *world, sim_task *task)
{
    sim_node *node = task->subject;
    if (!node->alive || node->incarnation != task->number || !node->stopped)
        return;
    sim_trace(world, node, "goes on");
    sim_node_continue(node);
}

void sim_fault_stop(sim_node *node)
{
    sim_world *world = node->world;
    uint64_t until = lasting(world, 4 * KVF_SECOND);
    if (!node->alive || node->stopped)
        return;
    touch_node(node, SIM_FAULT_STOP, until);
    sim_trace(world, node, "is stopped for %.3f s", (double)(until - world->now) / 1e9);
    node->stopped = true;
    node->stopped_at = world->now;
    sim_pairs_update(world);
    sim_task_add(world, until, end_stop, NULL, 0, node, node->incarnation, NULL, 0);
}

static void jump(sim_node *node)
{
    sim_world *world = node->world;
    uint64_t leap = sim_random_below(&world->random, 8 * KVF_SECOND);
    touch_node(node, SIM_FAULT_JUMP, world->now);
    node->clock_offset += leap;
    node->resumed_at = world->now;
    node->leapt_at = world->now;
    if (node->prefill)
        sim_pairs_lost(node, leap);
    sim_node_slept(node, leap);
    sim_trace(world, node, "its clock leaps by %.3f s", (double)leap / 1e9);
}

static void shut_down(sim_node *node)
{
    sim_instance *instance;
    sim_sender *sender;
    sim_receiver *receiver;
    if (node->stopped)
        return;
    uint64_t back = lasting(node->world, 2 * KVF_SECOND);
    touch_node(node, SIM_FAULT_SHUTDOWN, back);
    DL_FOREACH(node->world->instances, instance)
    {
        for (uint32_t i = 0; i < SIM_RANKS; i++) {
            if (instance->senders[i].node == node)
                instance->senders[i].shut_down = true;
            if (instance->receivers[i].node == node)
                instance->receivers[i].shut_down = true;
        }
    }
    DL_FOREACH(node->senders, sender)
    {
        sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_SHUTDOWN});
    }
    DL_FOREACH(node->receivers, receiver)
    {
        sim_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_SHUTDOWN});
    }
    die(node, back);
}

/* ---- Links ---------------------------------------------------------------------------------------- */

static void cut_ends(sim_world *world, sim_task *task)
{
    (void)task;
    sim_pairs_update(world);
}

/* It has heard nothing for all that time. */
static void transport_gives_up(sim_world *world, sim_task *task)
{
    sim_node *decode = task->subject;
    if (sim_is_cut(world, task->node, decode) &&
        sim_pair_silence(task->node, decode) >= SIM_TRANSPORT_TIMEOUT)
        sim_engine_peer_failed(task->node, decode, (uint32_t)task->number, 0, "no answer");
}

static void cut(sim_world *world)
{
    sim_node *prefill = any_node(world, true);
    sim_node *decode = any_node(world, false);
    uint64_t until = lasting(world, 3 * KVF_SECOND);
    if (!prefill->alive || !decode->alive)
        return;
    if (until <
        world->cut_until[prefill->index][decode->index]) /* what is under way waits for that */
        until = world->cut_until[prefill->index][decode->index];
    touch_pair(world, prefill, decode, SIM_FAULT_CUT, until);
    sim_trace(world, prefill, "is cut from %s for %.3f s", decode->name,
              (double)(until - world->now) / 1e9);
    world->cut_until[prefill->index][decode->index] = until;
    world->cut_until[decode->index][prefill->index] = until;
    sim_pairs_update(world);
    sim_task_add(world, until, cut_ends, NULL, 0, NULL, 0, NULL, 0);
    sim_task_add(world, world->now + SIM_TRANSPORT_TIMEOUT, transport_gives_up, prefill,
                 prefill->incarnation, decode, decode->incarnation, NULL, 0);
}

/* The control connection and that of the letters, or only what is written over. */
static void lose_one(sim_connection *connection)
{
    sim_node *prefill = connection->prefill;
    sim_node *decode = connection->decode;
    sim_pair_lost(prefill, decode);
    if (sim_random_chance(&prefill->world->random, 500)) {
        sim_engine_peer_failed(prefill, decode, decode->incarnation, 0, "the transport was reset");
        return;
    }
    sim_connection_drop(connection);
    sim_links_break(prefill->world, prefill, decode);
}

static void lose(sim_world *world)
{
    sim_connection *connection;
    uint64_t chosen = sim_random_below(&world->random, world->connection_count + 1);
    LL_FOREACH(world->connections, connection)
    {
        if (connection->number > chosen || connection->broken || !connection->prefill_open)
            continue;
        touch_pair(world, connection->prefill, connection->decode, SIM_FAULT_LOSS, world->now);
        lose_one(connection);
        return;
    }
}

static void end_slow(sim_world *world, sim_task *task)
{
    world->slow[task->number / SIM_NODES][task->number % SIM_NODES] = 1;
}

static void slow_down(sim_world *world)
{
    sim_node *prefill = any_node(world, true);
    sim_node *decode = any_node(world, false);
    uint64_t until = lasting(world, 2 * KVF_SECOND);
    touch_pair(world, prefill, decode, SIM_FAULT_SLOW, until);
    sim_trace(world, prefill, "writes slowly to %s", decode->name);
    world->slow[prefill->index][decode->index] = 200;
    world->slow_until[prefill->index][decode->index] = until;
    sim_task_add(world, until, end_slow, NULL, 0, NULL,
                 prefill->index * (uint64_t)SIM_NODES + decode->index, NULL, 0);
}

/* ---- The bootstrap server ------------------------------------------------------------------------- */

static bool of_prefill_group(const sim_side *side, const void *group)
{
    return side->instance->prefill_group == *(const uint32_t *)group;
}

static void mend_bootstrap(sim_world *world, sim_task *task)
{
    world->bootstraps[task->number].mood = SIM_BOOTSTRAP_FINE;
}

static void spoil_bootstrap(sim_world *world)
{
    uint32_t group = (uint32_t)sim_random_below(&world->random, world->prefill_groups);
    sim_bootstrap *bootstrap = &world->bootstraps[group];
    uint64_t until = lasting(world, 3 * KVF_SECOND);
    touch_sides(world, SIM_FAULT_BOOTSTRAP, of_prefill_group, of_prefill_group, &group);
    bool forgets = sim_random_chance(&world->random, 300);
    bool stock = world->nodes[(size_t)group * world->prefill_ranks].stock;
    if (forgets) { /* restarted: a stock rank registers once, and is never found again */
        memset(bootstrap->known, 0, sizeof bootstrap->known);
        bootstrap->topology.known = false;
        until = stock ? KVF_NEVER - SIM_RECOVERY : world->now;
    } else {
        bootstrap->mood =
            (sim_bootstrap_mood)sim_random_between(&world->random, 1, SIM_BOOTSTRAP_RUBBISH);
        sim_task_add(world, until, mend_bootstrap, NULL, 0, NULL, group, NULL, 0);
    }
    sim_trace(world, NULL, "bootstrap server %u: %s", group, forgets ? "restarted" : "spoilt");
    if (until + SIM_RECOVERY > bootstrap->healthy_at)
        bootstrap->healthy_at = until + SIM_RECOVERY;
}

/* ---- Messages nobody should send ------------------------------------------------------------------ */

void sim_fault_foreign(sim_world *world, sim_node *prefill, sim_node *decode);
void sim_fault_late(sim_world *world);

static void inject(sim_world *world, sim_fault fault)
{
    sim_node *node = any_node(world, sim_random_chance(&world->random, 500));
    switch (fault) {
    case SIM_FAULT_KILL:
        if (node->alive)
            kill_node(node);
        break;
    case SIM_FAULT_STOP:
        sim_fault_stop(node);
        break;
    case SIM_FAULT_SHUTDOWN:
        if (node->alive)
            shut_down(node);
        break;
    case SIM_FAULT_JUMP:
        if (node->alive)
            jump(node);
        break;
    case SIM_FAULT_CUT:
        cut(world);
        break;
    case SIM_FAULT_LOSS:
        lose(world);
        break;
    case SIM_FAULT_SLOW:
        slow_down(world);
        break;
    case SIM_FAULT_BOOTSTRAP:
        spoil_bootstrap(world);
        break;
    case SIM_FAULT_LATE:
        sim_fault_late(world);
        break;
    case SIM_FAULT_FOREIGN:
        sim_fault_foreign(world, any_node(world, true), any_node(world, false));
        break;
    default: /* the others strike where their message or user is */
        break;
    }
}

static void strike(sim_world *world, sim_task *task)
{
    (void)task;
    if (world->now >= world->faults_until)
        return;
    sim_fault fault = (sim_fault)sim_random_below(&world->random, SIM_FAULTS);
    if ((world->enabled_faults & SIM_BIT(fault)) != 0)
        inject(world, fault);
    sim_task_add(world,
                 world->now + sim_random_between(&world->random, 20 * KVF_MILLISECOND,
                                                 600 * KVF_MILLISECOND),
                 strike, NULL, 0, NULL, 0, NULL, 0);
}

void sim_faults_start(sim_world *world)
{
    sim_task_add(world, 0, strike, NULL, 0, NULL, 0, NULL, 0);
}
