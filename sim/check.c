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
    if (node->room_count > limits->rooms || node->agent_count > limits->peers ||
        node->held_count > limits->held_requests || node->held_bytes > limits->held_bytes)
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

/* ---- Why a room failed ---------------------------------------------------------------------------- */

/* The faults of which at least one must have touched the room for the status to be the truth. */
static uint32_t causes(kvf_status status)
{
    switch (status) {
    case KVF_TIMEOUT:
        return UINT32_MAX;
    case KVF_PEER_GONE:
    case KVF_TRANSPORT:
        return SIM_BIT(SIM_FAULT_KILL) | SIM_BIT(SIM_FAULT_STOP) | SIM_BIT(SIM_FAULT_CUT) |
               SIM_BIT(SIM_FAULT_LOSS) | SIM_BIT(SIM_FAULT_JUMP) | SIM_BIT(SIM_FAULT_SHUTDOWN);
    case KVF_PROTOCOL:
        return SIM_BIT(SIM_FAULT_TRUNCATION) | SIM_BIT(SIM_FAULT_REPEAT) | SIM_BIT(SIM_FAULT_LATE) |
               SIM_BIT(SIM_FAULT_FOREIGN);
    case KVF_PROFILE:
    case KVF_OUT_OF_RANGE:
        return SIM_BIT(SIM_FAULT_TRUNCATION);
    case KVF_MISMATCH:
        return SIM_BIT(SIM_FAULT_TRUNCATION) | SIM_BIT(SIM_FAULT_MISMATCH);
    case KVF_BOOTSTRAP:
        return SIM_BIT(SIM_FAULT_BOOTSTRAP);
    case KVF_LIMIT:
        return SIM_BIT(SIM_FAULT_LIMIT);
    case KVF_BUSY:
        return SIM_BIT(SIM_FAULT_USED_ID);
    case KVF_WRONG_STATE: /* the other side had ended before it was asked */
        return UINT32_MAX;
    default:
        return 0;
    }
}

/* What a letter says happened on some other side of the room. A side that was told by a third one says so. */
static bool is_peers_reason(const sim_side *side)
{
    const sim_instance *instance = side->instance;
    kvf_status status = side->peer_status;
    if (status != KVF_ABORTED && status != KVF_SHUTDOWN)
        return status == KVF_PEER_FAILED ? instance->faults != 0
                                         : (instance->faults & causes(status)) != 0;
    for (uint32_t i = 0; i < instance->sender_count + instance->receiver_count; i++) {
        const sim_side *other = i < instance->sender_count
                                    ? &instance->senders[i]
                                    : &instance->receivers[i - instance->sender_count];
        if (other != side && (status == KVF_ABORTED ? other->aborted : other->shut_down))
            return true;
    }
    return false;
}

/* Of the id's last room a request may be held still, or one to give it up be under way: they may cost the next
 * room its life, but nobody a byte. */
static bool met_leftovers(const sim_side *side)
{
    kvf_status status = side->error.status;
    return side->instance->heir && (status == KVF_MISMATCH || status == KVF_PROTOCOL ||
                                    status == KVF_PEER_GONE || status == KVF_PEER_FAILED);
}

/* A decode that has given the room up may close what the sender writes to. */
static bool was_shut_out(const sim_side *side)
{
    const sim_instance *instance = side->instance;
    bool given_up = false;
    for (uint32_t i = 0; i < instance->receiver_count; i++)
        given_up = given_up || instance->receivers[i].state == KVF_FAILED;
    return side->node->prefill && side->error.status == KVF_PEER_GONE && instance->faults != 0 &&
           given_up;
}

void sim_check_reason(const sim_side *side)
{
    sim_world *world = side->node->world;
    kvf_status status = side->error.status;
    bool right;
    world->tally->statuses[status]++;
    if (status == KVF_ABORTED)
        right = side->aborted;
    else if (status == KVF_SHUTDOWN)
        right = side->shut_down;
    else if (status == KVF_PEER_FAILED)
        right = is_peers_reason(side);
    else
        right = (side->instance->faults & causes(status)) != 0 || was_shut_out(side);
    right = right || met_leftovers(side);
    if (!right)
        sim_violate(world, "room %llu on %s failed as \"%s\", but nothing of the kind happened: %s",
                    (unsigned long long)side->instance->id, side->node->name,
                    kvf_status_name(status), side->error.text);
    if (side->error.text[0] == '\0')
        sim_violate(world, "room %llu on %s failed without a word",
                    (unsigned long long)side->instance->id, side->node->name);
}

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
