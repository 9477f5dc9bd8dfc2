/* Inboxes of a decode node, and proving that nobody writes to a failed room's pages any more; src/manager's
 * inbox.c and fence.c in small. A stock node has one for all ranks, which it never closes. */
#include "sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- What peers are told ------------------------------------------------------------------------- */

/* The worker address tells the simulated engine whose inbox it is: see agent.c. */
static void write_metadata(sim_inbox *inbox)
{
    static const uint8_t key[9] = {0};
    const sim_node *node = inbox->node;
    const kvf_profile *profile = node->world->profile;
    kvf_descriptor descriptors[SIM_REGIONS];
    uint8_t address[SIM_ADDRESS];
    kvf_error error;
    kvf_write_u64(address, node->index);
    kvf_write_u64(address + 8, node->incarnation);
    kvf_write_u64(address + 16, inbox->number);
    kvf_write_u64(address + 24, inbox->fenceable);
    for (uint32_t i = 0; i < SIM_REGIONS; i++)
        descriptors[i] =
            (kvf_descriptor){.base = node->pool.regions[i].base,
                             .length = node->pool.regions[i].length,
                             .kind = i < SIM_BUFFERS ? profile->buffer_kind : profile->aux_kind,
                             .key = {key, sizeof key}};
    kvf_metadata metadata = {.agent_name = kvf_slice_of(inbox->agent_name),
                             .worker_address = {address, sizeof address},
                             .descriptors = descriptors,
                             .descriptor_count = SIM_REGIONS};
    if (kvf_metadata_encode(&metadata, profile->flavour, &inbox->metadata, &error) != KVF_OK)
        sim_violate(node->world, "metadata can't be written: %s", error.text);
}

/* ---- Coming and going ---------------------------------------------------------------------------- */

static void free_inbox(sim_inbox *inbox)
{
    DL_DELETE(inbox->node->inboxes, inbox);
    kvf_bytes_free(&inbox->metadata);
    free(inbox);
}

static sim_inbox *open_inbox(const sim_node *node, uint64_t number)
{
    sim_inbox *inbox;
    DL_FOREACH(node->inboxes, inbox)
    {
        if (inbox->number == number)
            return inbox->open ? inbox : NULL;
    }
    return NULL;
}

/* A stock node's only one has no rank. */
static bool is_unused(const sim_inbox *inbox)
{
    return inbox->targets == NULL && inbox->holds == 0 && inbox->rank != NULL &&
           inbox->rank->inbox != inbox;
}

static void reap(sim_world *world, sim_task *task)
{
    (void)world;
    sim_inbox *inbox = open_inbox(task->node, task->number);
    if (inbox != NULL && is_unused(inbox))
        sim_inbox_close(inbox);
}

/* One that is retired or closed, without rooms, is of no use any more. This may be inside a notification of it. */
static void release(sim_inbox *inbox)
{
    if (!is_unused(inbox))
        return;
    if (!inbox->open)
        free_inbox(inbox);
    else if (inbox->node->world->plant !=
             SIM_PLANT_DEATH_IS_SAFE) /* where closing closes nothing */
        sim_task_add(inbox->node->world, inbox->node->world->now, reap, inbox->node,
                     inbox->node->incarnation, NULL, inbox->number, NULL, 0);
}

/* Only what must be fenced from a writer that can't be asked is denied the direct way. */
static sim_inbox *new_inbox(sim_rank *rank)
{
    sim_node *node = rank->node;
    sim_world *world = node->world;
    const sim_connection *connection = rank->connection;
    sim_inbox *inbox = calloc(1, sizeof *inbox);
    if (inbox == NULL)
        abort();
    inbox->node = node;
    inbox->number = ++world->inbox_count;
    inbox->open = true;
    if (!node->stock) {
        inbox->rank = rank;
        inbox->writer = connection->prefill;
        inbox->writer_incarnation = connection->prefill_incarnation;
        inbox->extended = rank->where.extended;
        inbox->fenceable = node->strict && !inbox->extended;
        inbox->direct =
            world->writer_placed[inbox->writer->index][node->index] && !inbox->fenceable;
    }
    (void)snprintf(inbox->agent_name, sizeof inbox->agent_name, "%s-%u-%" PRIu64, node->name,
                   node->incarnation, inbox->number);
    sim_check_inbox_made(inbox);
    write_metadata(inbox);
    DL_APPEND(node->inboxes, inbox);
    return inbox;
}

sim_inbox *sim_inbox_of(sim_rank *rank)
{
    if (rank->node->stock && rank->node->inboxes != NULL)
        return rank->node->inboxes;
    if (rank->inbox == NULL)
        rank->inbox = new_inbox(rank);
    return rank->inbox;
}

sim_inbox *sim_inbox_find(sim_node *node, kvf_slice agent_name)
{
    sim_inbox *inbox;
    DL_FOREACH(node->inboxes, inbox)
    {
        if (kvf_slice_equal(kvf_slice_of(inbox->agent_name), agent_name))
            return inbox;
    }
    return NULL;
}

bool sim_inbox_is_open(const sim_node *node, uint64_t number)
{
    return open_inbox(node, number) != NULL;
}

void sim_inbox_add(sim_inbox *inbox, sim_target *target, uint64_t key)
{
    target->inbox = inbox;
    target->key = key;
    DL_APPEND2(inbox->targets, target, key_prev, key_next);
}

void sim_inbox_remove(sim_target *target)
{
    sim_inbox *inbox = target->inbox;
    if (inbox == NULL)
        return;
    DL_DELETE2(inbox->targets, target, key_prev, key_next);
    target->inbox = NULL;
    release(inbox);
}

sim_target *sim_inbox_target(const sim_inbox *inbox, uint64_t key, uint64_t room)
{
    bool any_epoch = inbox->node->world->plant == SIM_PLANT_EPOCH_IGNORED;
    sim_target *target;
    DL_FOREACH2(inbox->targets, target, key_next)
    {
        if ((target->key == key || any_epoch) && target->receiver->id == room)
            return target;
    }
    return NULL;
}

void sim_inboxes_free(sim_node *node)
{
    while (node->inboxes != NULL)
        free_inbox(node->inboxes);
}

/* ---- What arrives -------------------------------------------------------------------------------- */

/* Whom a stock writer means that was told of an epoch. It writes the first aux buffer alone. */
static sim_target *find_by_room(const sim_inbox *inbox, uint64_t room)
{
    sim_target *target;
    DL_FOREACH2(inbox->targets, target, key_next)
    {
        if (target->receiver->id != room)
            continue;
        target->receiver->side->all_aux = false;
        return target;
    }
    return NULL;
}

static sim_target *find_target(const sim_inbox *inbox, const kvf_notice *notice)
{
    if (!inbox->extended)
        return notice->epoch == 0 ? sim_inbox_target(inbox, notice->room, notice->room) : NULL;
    if (notice->epoch == 0)
        return sim_rank_is_shown(inbox->rank) ? NULL : find_by_room(inbox, notice->room);
    sim_target *target = sim_inbox_target(inbox, notice->epoch, notice->room);
    if (target != NULL)
        sim_rank_show(inbox->rank);
    return target;
}

/* A notification counts only for a room that asked for it through this very inbox. */
void sim_inbox_notified(sim_node *node, uint64_t number, kvf_slice payload)
{
    kvf_receiver_event event = {.kind = KVF_RECEIVER_NOTICE};
    kvf_notice notice;
    kvf_slice text;
    kvf_error error;
    sim_inbox *inbox = open_inbox(node, number);
    if (inbox == NULL)
        return;
    if (kvf_notice_payload_decode(payload, &event.agent_name, &text, &error) != KVF_OK ||
        kvf_notice_parse(text, &notice, &error) != KVF_OK) {
        sim_trace(node->world, node, "drops a notification: %s", error.text);
        return;
    }
    sim_target *target = find_target(inbox, &notice);
    if (target == NULL) {
        sim_trace(node->world, node, "drops a notification: no room of its peer waits for %.*s",
                  (int)text.length, (const char *)text.data);
        node->room_count += node->world->plant == SIM_PLANT_GHOST_ROOMS;
        return;
    }
    event.notice = &notice;
    sim_check_heard(target->receiver->side, inbox, event.agent_name, &notice);
    sim_receiver_notified(target->receiver, &event);
}

/* ---- Closing, and what that proves --------------------------------------------------------------- */

static void retire(sim_inbox *inbox)
{
    if (inbox->rank->inbox == inbox)
        inbox->rank->inbox = NULL;
}

/* Each room that is proven safe leaves the inbox; open rooms have failed before. */
static void prove_all(sim_inbox *inbox, kvf_proof proof)
{
    sim_target *target = inbox->targets;
    inbox->holds++;
    while (target != NULL) {
        sim_target *next = target->key_next;
        sim_receiver_prove(target->receiver, proof);
        target = next;
    }
    inbox->holds--;
}

static void writer_exited(sim_world *world, sim_task *task)
{
    sim_inbox *inbox;
    (void)world;
    DL_FOREACH(task->node->inboxes, inbox)
    {
        if (inbox->number == task->number)
            break;
    }
    if (inbox == NULL)
        return;
    prove_all(inbox, kvf_fence_proof(inbox->direct, true));
    release(inbox);
}

static void exit_seen(const sim_inbox *inbox)
{
    sim_world *world = inbox->node->world;
    sim_task_add(world, world->now + KVF_MILLISECOND, writer_exited, inbox->node,
                 inbox->node->incarnation, NULL, inbox->number, NULL, 0);
}

static void await_exit(sim_inbox *inbox)
{
    const sim_node *writer = inbox->writer;
    inbox->awaits_exit = true;
    if (!writer->alive || writer->incarnation != inbox->writer_incarnation)
        exit_seen(inbox);
}

/* The kernel tells those who hold a descriptor of the process. */
void sim_inboxes_writer_died(const sim_node *writer)
{
    sim_world *world = writer->world;
    sim_inbox *inbox;
    for (uint32_t i = 0; i < world->node_count; i++)
        DL_FOREACH(world->nodes[i].inboxes, inbox)
        {
            if (inbox->awaits_exit && inbox->writer == writer &&
                inbox->writer_incarnation == writer->incarnation)
                exit_seen(inbox);
        }
}

void sim_inbox_close(sim_inbox *inbox)
{
    sim_plant plant = inbox->node->world->plant;
    retire(inbox);
    if (!inbox->open)
        return;
    sim_trace(inbox->node->world, inbox->node, "closes inbox %s", inbox->agent_name);
    inbox->open = inbox->direct ? false : plant == SIM_PLANT_DEATH_IS_SAFE;
    sim_pair_lost(inbox->writer, inbox->node);
    sim_engine_inbox_closed(inbox);
    kvf_proof proof = kvf_fence_proof(inbox->direct, plant == SIM_PLANT_LOSS_IS_SAFE_DIRECT);
    if (proof != KVF_PROOF_NONE)
        prove_all(inbox, proof);
    else if (inbox->targets != NULL)
        await_exit(inbox);
    release(inbox);
}

void sim_inboxes_close(sim_rank *rank)
{
    sim_inbox *inbox;
    sim_inbox *next;
    DL_FOREACH_SAFE(rank->node->inboxes, inbox, next)
    {
        if (inbox->rank == rank)
            sim_inbox_close(inbox);
    }
}

/* ---- The fence ----------------------------------------------------------------------------------- */

static kvf_fence_facts facts_of(const sim_inbox *inbox)
{
    return (kvf_fence_facts){.open = inbox->open,
                             .shown = inbox->rank != NULL && sim_rank_is_shown(inbox->rank),
                             .strict = inbox->node->strict,
                             .direct = inbox->direct};
}

void sim_fence_begin(sim_receiver *receiver)
{
    sim_inbox *inbox = receiver->targets[0].inbox;
    if (inbox == NULL || receiver->node->stock)
        return;
    kvf_fence_facts facts = facts_of(inbox);
    kvf_fence_step step = kvf_fence_begin_with(&facts);
    if (step == KVF_FENCE_ASK)
        sim_rank_ask_to_stop(&receiver->targets[0]);
    else if (step == KVF_FENCE_RETIRE)
        retire(inbox);
}

/* Rooms that still hope for their bytes would lose them. */
static bool serves_open_rooms(const sim_inbox *inbox)
{
    const sim_target *target;
    DL_FOREACH2(inbox->targets, target, key_next)
    {
        if (!kvf_outcome_is_final(&target->receiver->machine.outcome))
            return true;
    }
    return false;
}

/* The deadline is about to pass: what can still be done. */
void sim_fence_end(sim_receiver *receiver)
{
    sim_inbox *inbox = receiver->targets[0].inbox;
    if (inbox == NULL || receiver->node->stock)
        return;
    kvf_fence_facts facts = facts_of(inbox);
    facts.serves_open_rooms = serves_open_rooms(inbox);
    if (kvf_fence_may_close(&facts))
        sim_inbox_close(inbox);
}
