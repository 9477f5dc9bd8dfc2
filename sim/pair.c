/* What is true of a prefill node and a decode node, whatever either believes: since when they hear nothing of each
 * other, and when something last happened after which one may call the other gone. */
#include "sim/sim.h"

sim_pair *sim_pair_of(const sim_node *a, const sim_node *b)
{
    return a->prefill ? &a->world->pairs[a->index][b->index] : &a->world->pairs[b->index][a->index];
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool is_silent(const sim_node *prefill, const sim_node *decode)
{
    return prefill->stopped || decode->stopped || sim_is_cut(prefill->world, prefill, decode);
}

uint64_t sim_pair_silence(const sim_node *a, const sim_node *b)
{
    const sim_pair *pair = sim_pair_of(a, b);
    return pair->silent ? a->world->now - pair->silent_since : 0;
}

void sim_pair_disturbed(const sim_node *a, const sim_node *b)
{
    sim_pair_of(a, b)->disturbed_at = a->world->now;
}

void sim_pair_lost(const sim_node *a, const sim_node *b)
{
    sim_pair *pair = sim_pair_of(a, b);
    pair->lost = true;
    pair->lost_at = a->world->now;
    sim_pair_disturbed(a, b);
}

static bool is_silent_for_long(const sim_node *a, const sim_node *b)
{
    return sim_pair_of(a, b)->silent &&
           sim_pair_silence(a, b) >= smaller(a->heartbeat_timeout, b->heartbeat_timeout);
}

bool sim_pair_may_be_lost(const sim_node *a, const sim_node *b)
{
    const sim_pair *pair = sim_pair_of(a, b);
    return is_silent_for_long(a, b) ||
           (pair->lost && a->world->now <= pair->lost_at + SIM_RECOVERY);
}

bool sim_pair_is_disturbed(const sim_node *a, const sim_node *b, uint64_t since)
{
    const sim_pair *pair = sim_pair_of(a, b);
    return pair->silent || pair->disturbed_at > since;
}

static void update(const sim_node *prefill, const sim_node *decode)
{
    sim_pair *pair = sim_pair_of(prefill, decode);
    bool silent = is_silent(prefill, decode);
    if (silent == pair->silent)
        return;
    if (is_silent_for_long(prefill, decode))
        sim_pair_lost(prefill, decode);
    pair->silent = silent;
    pair->silent_since = prefill->world->now;
    sim_pair_disturbed(prefill, decode);
}

/* After a stop or a cut has begun or ended. */
void sim_pairs_update(sim_world *world)
{
    for (uint32_t i = 0; i < world->node_count; i++)
        for (uint32_t j = 0; j < world->node_count; j++)
            if (world->nodes[i].prefill && !world->nodes[j].prefill)
                update(&world->nodes[i], &world->nodes[j]);
    sim_connections_silent(world);
}

/* Its process has died, or its clock has leapt so far that who waits less than `silence` has given it up. */
void sim_pairs_lost(const sim_node *node, uint64_t silence)
{
    sim_world *world = node->world;
    for (uint32_t i = 0; i < world->node_count; i++) {
        const sim_node *other = &world->nodes[i];
        /* A stock one says nothing of how long it waits. */
        uint64_t patience = other->stock ? 2 * node->heartbeat_timeout : other->heartbeat_timeout;
        if (other->prefill != node->prefill && silence > patience)
            sim_pair_lost(node, other);
    }
}

/* Of a kvferry agent's name, or one that begins as it does; NULL: a stranger's. */
sim_node *sim_node_named(sim_world *world, const char *text)
{
    for (uint32_t i = 0; i < world->node_count; i++) {
        size_t length = strlen(world->nodes[i].name);
        if (strncmp(text, world->nodes[i].name, length) == 0 && text[length] == '-')
            return &world->nodes[i];
    }
    return NULL;
}
