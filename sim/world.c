/* One seed: a cluster, its faults and its rooms, from the first registration to empty tables. */
#include "sim/sim.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Processes ------------------------------------------------------------------------------------ */

void sim_node_start(sim_node *node)
{
    sim_world *world = node->world;
    node->incarnation++;
    node->alive = true;
    node->stopped = false;
    node->wake_at = KVF_NEVER;
    node->resumed_at = world->now;
    node->timers = (kvf_timers){0};
    node->room_count = 0;
    node->held_count = 0;
    node->held_bytes = 0;
    /* A stock rank takes any port that is free; what else is restarted comes back where it was. */
    node->port =
        (uint16_t)(50000 + node->index + (node->stock ? SIM_NODES * node->incarnation : 0));
    (void)sim_pool_open(node);
    (void)snprintf(node->agent_name, sizeof node->agent_name, "%s-%u", node->name,
                   node->incarnation); /* a decode node's inboxes have names of their own */
    sim_trace(world, node, "starts, incarnation %u%s", node->incarnation,
              node->stock ? ", stock" : "");
    if (node->prefill)
        sim_prefill_open(node);
    else
        sim_decode_open(node);
}

static void add_node(sim_world *world, bool prefill, bool stock, uint32_t group, uint32_t rank)
{
    sim_node *node = &world->nodes[world->node_count];
    node->world = world;
    node->index = world->node_count++;
    node->prefill = prefill;
    node->stock = stock;
    node->strict = sim_random_chance(&world->random, 300);
    node->group = group;
    node->rank = rank;
    /* SGLang 0.4.7 waits for ever, and gives pages back at once, whatever may still land there. */
    node->timeouts =
        stock ? (kvf_room_timeouts){KVF_NEVER, KVF_NEVER, 0}
              : (kvf_room_timeouts){SIM_BOOTSTRAP_TIMEOUT, SIM_WAITING_TIMEOUT, SIM_FENCE_TIMEOUT};
    node->heartbeat_timeout = stock ? SIM_HEARTBEAT_TIMEOUT
                                    : sim_random_between(&world->random, SIM_HEARTBEAT_TIMEOUT / 4,
                                                         SIM_HEARTBEAT_TIMEOUT);
    (void)snprintf(node->name, sizeof node->name, "%s%u.%u", prefill ? "prefill" : "decode", group,
                   rank);
    (void)snprintf(node->host, sizeof node->host, "10.0.0.%u", node->index + 1);
    sim_node_start(node);
}

/* ---- The cluster ---------------------------------------------------------------------------------- */

static void choose_shape(sim_world *world)
{
    static const struct {
        uint32_t prefill, decode;
        bool mla;
    } shapes[] = {{1, 1, false}, {2, 2, false}, {2, 1, true}, {1, 2, true}, {2, 2, true}};
    size_t shape = sim_random_below(&world->random, sizeof shapes / sizeof shapes[0]);
    world->prefill_ranks = shapes[shape].prefill;
    world->decode_ranks = shapes[shape].decode;
    world->mla = shapes[shape].mla;
    world->prefill_groups = (uint32_t)sim_random_between(&world->random, 1, SIM_GROUPS);
    world->decode_groups = (uint32_t)sim_random_between(&world->random, 1, SIM_GROUPS);
    world->assume = sim_random_chance(&world->random, 150);
    world->profile = kvf_profile_at(sim_random_below(&world->random, 2));
    world->server_policy =
        (kvf_lookup_policy){.retry_interval = 50 * KVF_MILLISECOND, .attempts = 3};
    world->rank_policy = world->server_policy;
    world->rank_policy.connects = true;
    world->limits = (sim_limits){
        .rooms = 64, .peers = 64, .held_requests = 64, .held_bytes = 256 << 10, .destinations = 4};
}

/* Not every seed has every fault: rare combinations come out better when the common ones are away. */
static void choose_faults(sim_world *world)
{
    world->faults_until = sim_random_between(&world->random, 2, 8) * KVF_SECOND;
    world->end = world->faults_until + SIM_RECOVERY + 2 * SIM_WAITING_TIMEOUT +
                 SIM_BOOTSTRAP_TIMEOUT + SIM_FENCE_TIMEOUT + 3 * SIM_HOLD_TIMEOUT;
    if (sim_random_chance(&world->random, 900))
        world->enabled_faults = (uint32_t)sim_random_next(&world->random);
    if (sim_random_chance(&world->random, 600))
        world->enabled_faults |= (uint32_t)sim_random_next(&world->random);
    if (sim_random_chance(&world->random, 400))
        world->enabled_faults &= (uint32_t)sim_random_next(&world->random);
    for (uint32_t i = 0; i < SIM_NODES; i++)
        for (uint32_t j = 0; j < SIM_NODES; j++) {
            world->writer_placed[i][j] = sim_random_chance(&world->random, 500);
            world->slow[i][j] = 1;
        }
}

/* Small enough to be reached by what the seed does. */
static void choose_limits(sim_world *world)
{
    if ((world->enabled_faults & SIM_BIT(SIM_FAULT_LIMIT)) == 0 ||
        sim_random_chance(&world->random, 500))
        return;
    world->limits.rooms = (uint32_t)sim_random_between(&world->random, 3, 12);
    world->limits.peers = (uint32_t)sim_random_between(&world->random, 1, 6);
    world->limits.held_requests = (uint32_t)sim_random_between(&world->random, 1, 6);
    world->limits.held_bytes = sim_random_between(&world->random, 1000, 20000);
    if (sim_random_chance(&world->random, 300))
        world->limits.destinations = (uint32_t)sim_random_between(&world->random, 1, 2);
}

static void build(sim_world *world)
{
    choose_shape(world);
    choose_faults(world);
    choose_limits(world);
    world->next_room = 1000000 + sim_random_below(&world->random, 1000000);
    bool stock[2][SIM_GROUPS];
    for (uint32_t i = 0; i < SIM_GROUPS; i++)
        for (uint32_t side = 0; side < 2; side++)
            stock[side][i] = sim_random_chance(&world->random, 200);
    for (uint32_t group = 0; group < world->prefill_groups; group++)
        for (uint32_t rank = 0; rank < world->prefill_ranks; rank++)
            add_node(world, true, stock[0][group], group, rank);
    for (uint32_t group = 0; group < world->decode_groups; group++)
        for (uint32_t rank = 0; rank < world->decode_ranks; rank++)
            add_node(world, false, stock[1][group], group, rank);
}

static void tear_down(sim_world *world)
{
    for (uint32_t i = 0; i < world->node_count; i++) {
        sim_node *node = &world->nodes[i];
        while (node->backlog != NULL) {
            sim_task *next = node->backlog->next;
            free(node->backlog);
            node->backlog = next;
        }
        if (!node->alive)
            continue;
        if (node->prefill)
            sim_prefill_close(node);
        else
            sim_decode_close(node);
        sim_pool_close(node);
        kvf_timers_free(&node->timers);
    }
    sim_tasks_free(world);
    sim_connections_free(world);
    sim_links_free(world);
    sim_acknowledgements_free(world);
    free(world->addressees);
    sim_router_end(world);
}

static void print_violation(const sim_world *world, const sim_options *options)
{
    printf("seed %llu, after %.6f s and %llu steps: %s\n", (unsigned long long)world->seed,
           (double)world->now / 1e9, (unsigned long long)world->steps, world->violation);
    if (!options->trace)
        printf("replay: %s --seed %llu --trace%s%s\n", options->program,
               (unsigned long long)world->seed, options->plant != SIM_PLANT_NONE ? " --plant " : "",
               options->plant != SIM_PLANT_NONE ? sim_plant_name(options->plant) : "");
}

bool sim_run(uint64_t seed, const sim_options *options, sim_tally *tally)
{
    sim_world *world = calloc(1, sizeof *world);
    if (world == NULL)
        abort();
    world->seed = seed;
    world->random.state = sim_mix(seed + 1);
    world->trace = options->trace;
    world->plant = options->plant;
    world->tally = tally;
    build(world);
    sim_router_start(world);
    sim_faults_start(world);
    while (world->now < world->end && sim_step(world))
        ;
    if (!world->violated)
        sim_check_end(world);
    bool held = !world->violated;
    if (!held && !options->quiet)
        print_violation(world, options);
    tally->seeds++;
    tally->steps += world->steps;
    tally->virtual_time += world->now;
    tear_down(world);
    free(world);
    return held;
}
