/* Why a room failed: it must be what happened to it, and name whom it happened to. */
#include "sim/sim.h"

#include <stdio.h>

/* ---- What happened -------------------------------------------------------------------------------- */

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
    case KVF_PROFILE: /* half or twice the count looks like numbers of the other profile's width */
        return SIM_BIT(SIM_FAULT_TRUNCATION) | SIM_BIT(SIM_FAULT_MISMATCH);
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
    default:
        return 0;
    }
}

/* The other side had ended before it was asked: in this room, or in one before it of that id. */
static bool had_ended(const sim_instance *instance)
{
    for (; instance != NULL; instance = instance->earlier)
        for (uint32_t i = 0; i < instance->sender_count; i++)
            if (instance->senders[i].ended)
                return true;
    return false;
}

/* What a letter says happened on some other side of the room. A side that was told by a third one says so. */
static bool is_peers_reason(const sim_side *side)
{
    const sim_instance *instance = side->instance;
    kvf_status status = side->peer_status;
    if (status == KVF_WRONG_STATE)
        return had_ended(instance);
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

/* ---- Whom the reason names ------------------------------------------------------------------------ */

static bool names_rank(const sim_side *side, uint32_t rank)
{
    char name[64];
    (void)snprintf(name, sizeof name, "prefill rank %u of server %u:", rank,
                   side->instance->prefill_group);
    return strstr(side->error.text, name) != NULL;
}

/* Of the other side of this room, the node that the text speaks of. */
static const sim_node *named_peer(const sim_side *side)
{
    const sim_instance *instance = side->instance;
    for (uint32_t i = 0; !side->node->prefill && i < instance->sender_count; i++)
        if (names_rank(side, i))
            return instance->senders[i].node;
    for (uint32_t i = 0; side->node->prefill && i < instance->receiver_count; i++)
        if (strstr(side->error.text, instance->receivers[i].node->name) != NULL)
            return instance->receivers[i].node;
    return NULL;
}

/* Who was told another name, or by a stranger, can say no better one. */
static bool was_told_another_name(const sim_side *side)
{
    uint32_t faults = side->instance->faults;
    return side->node->prefill && ((faults & SIM_BIT(SIM_FAULT_TRUNCATION)) != 0 ||
                                   ((faults & SIM_BIT(SIM_FAULT_FOREIGN)) != 0 &&
                                    strstr(side->error.text, "stranger") != NULL));
}

static void check_name(const sim_side *side)
{
    kvf_status status = side->error.status;
    const sim_node *peer = named_peer(side);
    if (side->node->stock || (status != KVF_PEER_GONE && status != KVF_PEER_FAILED))
        return;
    if (peer == NULL && !was_told_another_name(side))
        sim_violate(side->node->world,
                    "room %llu on %s failed, and the reason names none of its peers: %s",
                    (unsigned long long)side->instance->id, side->node->name, side->error.text);
    if (peer != NULL && status == KVF_PEER_GONE && !sim_pair_may_be_lost(side->node, peer))
        sim_violate(side->node->world, "room %llu on %s failed, but %s isn't gone: %s",
                    (unsigned long long)side->instance->id, side->node->name, peer->name,
                    side->error.text);
}

/* No deadline is shorter, whatever the machine thinks of its own. */
static void check_timeout(const sim_side *side)
{
    if (side->error.status != KVF_TIMEOUT ||
        sim_now(side->node) >= side->opened_at + SIM_BOOTSTRAP_TIMEOUT)
        return;
    sim_violate(side->node->world, "room %llu on %s timed out %.3f s after it was opened: %s",
                (unsigned long long)side->instance->id, side->node->name,
                (double)(sim_now(side->node) - side->opened_at) / 1e9, side->error.text);
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
    check_name(side);
    check_timeout(side);
    if (side->error.text[0] == '\0')
        sim_violate(world, "room %llu on %s failed without a word",
                    (unsigned long long)side->instance->id, side->node->name);
}
