/* What must be left when every room has been closed and everything has healed. */
#include "sim/sim.h"

/* ---- Rooms ---------------------------------------------------------------------------------------- */

static void count_end(sim_tally *tally, const sim_side *side)
{
    if (side->lost)
        tally->lost++;
    else if (side->ended && side->state == KVF_SUCCESS)
        tally->succeeded++;
    else if (side->ended)
        tally->failed++;
}

static void check_side(sim_world *world, const sim_side *side)
{
    unsigned long long id = side->instance->id;
    bool ours = !side->lost && side->opened && !side->node->stock;
    count_end(world->tally, side);
    if (ours && !side->ended)
        sim_violate(world, "room %llu (%u) on %s never ended", id, side->instance->uid,
                    side->node->name);
    else if (ours && !side->settled)
        sim_violate(world, "room %llu (%u) on %s: its pages were never given back", id,
                    side->instance->uid, side->node->name);
    if (side->instance->faults == 0 && side->state != KVF_SUCCESS)
        sim_violate(world, "room %llu (%u) met no fault and didn't succeed on %s", id,
                    side->instance->uid, side->node->name);
}

static void check_instance(sim_world *world, const sim_instance *instance)
{
    if (instance->faults == 0)
        world->tally->untouched++;
    for (uint32_t i = 0; i < instance->sender_count; i++)
        check_side(world, &instance->senders[i]);
    for (uint32_t i = 0; i < instance->receiver_count; i++)
        check_side(world, &instance->receivers[i]);
}

/* ---- Tables --------------------------------------------------------------------------------------- */

static bool has_idle_lookups(const sim_node *node)
{
    for (uint32_t group = 0; group < SIM_GROUPS; group++) {
        const sim_server *server = &node->servers[group];
        if (server->waiting != NULL || server->asking ||
            (server->machine.state != KVF_LOOKUP_IDLE && server->machine.state != KVF_LOOKUP_READY))
            return false;
        for (uint32_t rank = 0; rank < SIM_RANKS; rank++) {
            kvf_lookup_state state = node->ranks[group][rank].machine.state;
            if (node->ranks[group][rank].targets != NULL ||
                (state != KVF_LOOKUP_IDLE && state != KVF_LOOKUP_READY))
                return false;
        }
    }
    return true;
}

/* A closed inbox is of no use without rooms, and one that is open is what its rank's next requests name. */
static bool has_current_inboxes(const sim_node *node)
{
    const sim_inbox *inbox;
    DL_FOREACH(node->inboxes, inbox)
    {
        if (!inbox->open || inbox->targets != NULL)
            return false;
    }
    return true;
}

static bool has_idle_agents(const sim_node *node)
{
    const sim_agent *agent;
    DL_FOREACH(node->agents, agent)
    {
        if (agent->incoming != NULL)
            return false;
    }
    return node->dead_agents == NULL && node->formers.count <= KVF_FORMERS_MAX;
}

/* The held requests' timer, or those of the lookups. */
static bool has_its_own_timers(const sim_node *node)
{
    return node->timers.owners == (node->prefill ? 1 : SIM_GROUPS * (1 + SIM_RANKS));
}

static bool has_empty_tables(const sim_node *node)
{
    return node->senders == NULL && node->receivers == NULL && node->transfers == NULL &&
           node->held == NULL && node->room_count == 0 && node->held_count == 0 &&
           node->held_bytes == 0 && has_idle_agents(node) && has_its_own_timers(node) &&
           (node->prefill || (has_idle_lookups(node) && has_current_inboxes(node)));
}

/* ---- Memory --------------------------------------------------------------------------------------- */

/* What was lent for a second request (see foreign.c) stays lent. */
static bool is_left(const sim_side *owner)
{
    return owner->has_memory && owner->safety == KVF_PAGES_SAFE && !sim_is_deceived(owner);
}

static bool has_its_memory(const sim_node *node)
{
    const sim_pool *pool = &node->pool;
    uint32_t pages = pool->free_page_count;
    uint32_t slots = pool->free_slot_count;
    for (uint32_t i = 0; i < SIM_PAGES; i++) {
        const sim_side *owner = pool->page_owner[i];
        if (owner != NULL && is_left(owner))
            return false;
        pages += owner != NULL;
    }
    for (uint32_t i = 0; i < SIM_SLOTS; i++) {
        const sim_side *owner = pool->slot_owner[i];
        if (owner != NULL && is_left(owner))
            return false;
        slots += owner != NULL;
    }
    return pages == SIM_PAGES && slots == SIM_SLOTS;
}

void sim_check_end(sim_world *world)
{
    const sim_instance *instance;
    bool fresh = false;
    DL_FOREACH(world->instances, instance)
    {
        check_instance(world, instance);
        fresh = fresh || (instance->fresh && instance->faults == 0);
    }
    world->tally->fresh += fresh;
    for (uint32_t i = 0; i < world->node_count; i++) {
        const sim_node *node = &world->nodes[i];
        if (!has_empty_tables(node))
            sim_violate(world, "%s still holds something although every room is closed",
                        node->name);
        if (!has_its_memory(node))
            sim_violate(world, "%s misses pages or slots of rooms that are safe", node->name);
    }
}
