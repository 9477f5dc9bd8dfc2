/* The invariants that aren't checked where the thing happens (memory.c, engine.c, user.c). */
#include "sim/sim.h"

#include <stdlib.h>

/* ---- After every step ----------------------------------------------------------------------------- */

/* The machine's own idea of its deadline isn't asked: the user knows what it did, and when. */
static void check_deadline(sim_side *side, bool all_given)
{
    sim_node *node = side->node;
    sim_world *world = node->world;
    if (side->ended || node->stock || !all_given || world->now < node->resumed_at + SIM_SLACK ||
        sim_now(node) <= side->limit + SIM_SLACK)
        return;
    sim_violate(world, "room %llu on %s is open %.1f s past its deadline",
                (unsigned long long)side->instance->id, node->name,
                (double)(sim_now(node) - side->limit) / 1e9);
}

static void check_fence(const sim_side *side)
{
    sim_node *node = side->node;
    sim_world *world = node->world;
    if (!side->ended || side->settled || node->stock || world->now < node->resumed_at + SIM_SLACK ||
        sim_now(node) <= side->fence_limit + SIM_SLACK)
        return;
    sim_violate(world, "room %llu on %s holds its pages %.1f s past fence_timeout",
                (unsigned long long)side->instance->id, node->name,
                (double)(sim_now(node) - side->fence_limit) / 1e9);
}

static void check_final(sim_world *world, const sim_side *side, const kvf_outcome *outcome)
{
    if (side->ended && (outcome->state != side->state || outcome->safety != side->safety))
        sim_violate(world, "room %llu on %s: its end didn't stay",
                    (unsigned long long)side->instance->id, side->node->name);
    if (side->ended && side->state == KVF_SUCCESS && outcome->safety != KVF_PAGES_SAFE)
        sim_violate(world, "room %llu on %s: Success, and the pages aren't safe",
                    (unsigned long long)side->instance->id, side->node->name);
    check_fence(side);
}

void sim_check_step(sim_world *world, sim_node *node)
{
    if (node == NULL || !node->alive)
        return;
    const sim_limits *limits = &world->limits;
    bool within = node->agent_count <= limits->peers && node->held_count <= limits->held_requests &&
                  node->held_bytes <= limits->held_bytes;
    if (node->room_count > limits->rooms || (!within && !node->stock)) /* which knows none */
        sim_violate(world, "%s exceeds a limit", node->name);
    sim_sender *sender;
    DL_FOREACH(node->senders, sender)
    {
        check_final(world, sender->side, &sender->machine.outcome);
        check_deadline(sender->side,
                       sender->side->chunks_sent == sender->side->instance->chunk_count);
    }
    sim_receiver *receiver;
    DL_FOREACH(node->receivers, receiver)
    {
        check_final(world, receiver->side, &receiver->machine.outcome);
        check_deadline(receiver->side, receiver->machine.expected);
    }
}

/* ---- Ids ------------------------------------------------------------------------------------------ */

/* A stock decode can't tell two rooms of one id apart, and so the second must not be served, as long as neither side has
 * been started again. A name that was cut short is another agent's. */
void sim_check_id(const sim_side *sender)
{
    const sim_instance *instance = sender->instance;
    const sim_instance *earlier = instance->earlier;
    if (sender->node->stock || earlier == NULL || !instance->receivers[0].node->stock)
        return;
    const sim_side *before = &earlier->senders[sender->node->rank];
    bool same = before->was_asked && before->incarnation == sender->incarnation &&
                ((earlier->faults | instance->faults) & SIM_BIT(SIM_FAULT_TRUNCATION)) == 0;
    for (uint32_t i = 0; i < instance->receiver_count; i++)
        same = same && earlier->receivers[i].incarnation == instance->receivers[i].incarnation;
    if (same)
        sim_violate(sender->node->world, "room %llu on %s succeeds, whose id its decode had used",
                    (unsigned long long)instance->id, sender->node->name);
}

/* ---- Acknowledgements ----------------------------------------------------------------------------- */

static bool is_acknowledged(const sim_world *world, const char *agent_name, uint64_t room,
                            uint64_t epoch)
{
    const sim_acknowledgement *each;
    LL_FOREACH(world->acknowledgements, each)
    {
        if (each->epoch == epoch && each->room == room && strcmp(each->agent_name, agent_name) == 0)
            return true;
    }
    return false;
}

void sim_check_acknowledges(const sim_agent *agent, const kvf_request *request)
{
    sim_world *world = agent->node->world;
    sim_acknowledgement *new = calloc(1, sizeof *new);
    if (new == NULL)
        abort();
    memcpy(new->agent_name, agent->name, sizeof new->agent_name);
    new->room = request->room;
    new->epoch = request->epoch;
    LL_PREPEND(world->acknowledgements, new);
}

void sim_check_post(const sim_transfer *transfer)
{
    const sim_agent *agent = transfer->agent;
    const sim_sender *sender = transfer->sender;
    if (transfer->epoch != 0 &&
        is_acknowledged(agent->node->world, agent->name, sender->id, transfer->epoch))
        sim_violate(agent->node->world,
                    "room %llu: %s posts for epoch %llu of %s, after it said that it had stopped",
                    (unsigned long long)sender->id, agent->node->name,
                    (unsigned long long)transfer->epoch, agent->name);
}

/* Who goes on after a stop may find pages of others where it wrote, if its peer has given it up meanwhile. */
void sim_check_awake(const sim_transfer *transfer)
{
    const sim_agent *agent = transfer->agent;
    const sim_node *node = agent->node;
    const sim_connection *connection = sim_connection_find(node->world, agent->connection);
    if (node->stock || transfer->epoch == 0 || connection == NULL || connection->given_up_at == 0 ||
        connection->given_up_at > node->resumed_at)
        return;
    sim_violate(node->world, "room %llu: %s writes to %s, which gave it up while it was stopped",
                (unsigned long long)transfer->sender->id, node->name, agent->name);
}

void sim_acknowledgements_free(sim_world *world)
{
    while (world->acknowledgements != NULL) {
        sim_acknowledgement *next = world->acknowledgements->next;
        free(world->acknowledgements);
        world->acknowledgements = next;
    }
}

/* ---- Whom an inbox is for ------------------------------------------------------------------------- */

void sim_check_inbox_made(const sim_inbox *inbox)
{
    sim_world *world = inbox->node->world;
    if (inbox->number >= world->addressee_capacity) {
        size_t capacity = 2 * inbox->number + 16;
        sim_addressee *grown = realloc(world->addressees, capacity * sizeof *grown);
        if (grown == NULL)
            abort();
        world->addressees = grown;
        world->addressee_capacity = capacity;
    }
    world->addressees[inbox->number] = (sim_addressee){inbox->writer, inbox->writer_incarnation};
}

/* What was sent to one process must not be taken by the next one at its address. */
void sim_check_addressee(const sim_node *prefill, const sim_agent *agent)
{
    const sim_world *world = prefill->world;
    const char *number = strrchr(agent->name, '-');
    if (sim_node_named(prefill->world, agent->name) == NULL || number == NULL)
        return;
    uint64_t inbox = strtoull(number + 1, NULL, 10);
    if (inbox == 0 || inbox > world->inbox_count)
        return;
    const sim_addressee *addressee = &world->addressees[inbox];
    if (addressee->writer != NULL &&
        (addressee->writer != prefill || addressee->incarnation != prefill->incarnation))
        sim_violate(prefill->world, "%s takes what agent %s asked another process for",
                    prefill->name, agent->name);
}
