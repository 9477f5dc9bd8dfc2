/* The router: makes rooms between the groups, uses ids again, and ends what nobody else does. */
#include "sim/sim.h"

#include <stdlib.h>

static uint64_t soon(sim_world *world, uint64_t most)
{
    return world->now + sim_random_below(&world->random, most);
}

/* ---- Ids ------------------------------------------------------------------------------------------ */

static bool is_between_stock(const sim_instance *instance)
{
    return instance->senders[0].node->stock && instance->receivers[0].node->stock;
}

/* One side can't tell two rooms of one id apart, and the other knows. */
static bool must_be_refused(const sim_instance *instance)
{
    return instance->senders[0].node->stock != instance->receivers[0].node->stock;
}

static bool has_succeeded(const sim_instance *instance)
{
    bool succeeded = !instance->id_tainted;
    for (uint32_t i = 0; i < instance->sender_count; i++)
        succeeded = succeeded && instance->senders[i].state == KVF_SUCCESS;
    for (uint32_t i = 0; i < instance->receiver_count; i++)
        succeeded = succeeded && instance->receivers[i].state == KVF_SUCCESS;
    return succeeded;
}

static bool may_pass_on(const sim_instance *instance)
{
    if (instance->id_passed_on)
        return false;
    for (uint32_t i = 0; i < instance->sender_count; i++)
        if (!instance->senders[i].closed && !instance->senders[i].lost)
            return false;
    for (uint32_t i = 0; i < instance->receiver_count; i++)
        if (!instance->receivers[i].closed && !instance->receivers[i].lost)
            return false;
    /* A stock prefill takes a request that comes twice for two: nobody can help that. */
    if (must_be_refused(instance))
        return !instance->asked_twice || !instance->senders[0].node->stock;
    return !is_between_stock(instance) || has_succeeded(instance);
}

/* Between kvferry peers an id is used again at once, whatever became of its last room. With a stock peer that is a
 * fault of the router's, which must be refused; between stock peers nobody would. */
static void pass_on(sim_world *world, sim_instance *earlier, sim_instance *instance)
{
    earlier->id_passed_on = true;
    instance->id = earlier->id;
    instance->earlier = earlier;
    instance->prefill_group = earlier->prefill_group;
    instance->decode_group = earlier->decode_group;
    instance->heir = !has_succeeded(earlier);
    if (instance->heir)
        instance->faults |= earlier->faults;
    /* As may one of a rank that has not shown yet that it is kvferry. */
    if (must_be_refused(earlier) || world->assume)
        sim_fault_touch(instance, SIM_FAULT_USED_ID);
    world->tally->reused_ids++;
}

static bool may_pass_on_now(sim_world *world, const sim_instance *instance)
{
    return may_pass_on(instance) &&
           (!must_be_refused(instance) || sim_faulty_now(world, SIM_FAULT_USED_ID, 800));
}

static sim_instance *find_heritage(sim_world *world)
{
    sim_instance *earlier;
    DL_FOREACH(world->instances, earlier)
    {
        if (may_pass_on_now(world, earlier))
            return earlier;
    }
    return NULL;
}

static void choose_groups(sim_world *world, sim_instance *instance)
{
    instance->prefill_group = (uint32_t)sim_random_below(&world->random, world->prefill_groups);
    instance->decode_group = (uint32_t)sim_random_below(&world->random, world->decode_groups);
}

/* `earlier`: the room whose id was chosen; NULL for any. */
static void choose_id(sim_world *world, sim_instance *instance, sim_instance *earlier)
{
    if (earlier == NULL && sim_random_chance(&world->random, 400))
        earlier = find_heritage(world);
    if (earlier != NULL)
        pass_on(world, earlier, instance);
    else
        instance->id = world->next_room++;
}

/* ---- Rooms ---------------------------------------------------------------------------------------- */

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

static void start_side(sim_side *side, sim_instance *instance, sim_node *node)
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
    sim_user_open_at(side, soon(world, wait * KVF_MILLISECOND));
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
        sim_user_abort_at(side, soon(world, 500 * KVF_MILLISECOND));
    }
    if (sim_faulty_now(world, SIM_FAULT_MISMATCH, 40) && instance->page_count > 0) {
        sim_fault_touch(instance, SIM_FAULT_MISMATCH);
        sim_side *side =
            &instance->senders[sim_random_below(&world->random, instance->sender_count)];
        side->page_count += sim_random_chance(&world->random, 500) ? 1 : UINT32_MAX;
    }
}

static void start_sides(sim_world *world, sim_instance *instance)
{
    for (uint32_t i = 0; i < instance->sender_count; i++)
        start_side(&instance->senders[i], instance,
                   node_of(world, true, instance->prefill_group, i));
    for (uint32_t i = 0; i < instance->receiver_count; i++)
        start_side(&instance->receivers[i], instance,
                   node_of(world, false, instance->decode_group, i));
}

static sim_instance *new_room(sim_world *world)
{
    sim_instance *instance = calloc(1, sizeof *instance);
    if (instance == NULL)
        abort();
    instance->uid = ++world->instance_count;
    return instance;
}

static void start_room(sim_world *world, sim_instance *instance)
{
    bool stock = node_of(world, true, instance->prefill_group, 0)->stock ||
                 node_of(world, false, instance->decode_group, 0)->stock;
    choose_pages(world, instance, !stock);
    instance->sender_count = world->prefill_ranks;
    instance->receiver_count = world->decode_ranks;
    DL_PREPEND(world->instances, instance);
    world->tally->rooms++;
    start_sides(world, instance);
    plan_faults(world, instance);
}

static void make_room(sim_world *world, sim_instance *earlier)
{
    sim_instance *instance = new_room(world);
    choose_groups(world, instance);
    choose_id(world, instance, earlier);
    start_room(world, instance);
}

/* number: its two groups. */
static void fresh_room(sim_world *world, sim_task *task)
{
    sim_instance *instance = new_room(world);
    instance->fresh = true;
    instance->prefill_group = (uint32_t)(task->number / SIM_GROUPS);
    instance->decode_group = (uint32_t)(task->number % SIM_GROUPS);
    instance->id = world->next_room++;
    start_room(world, instance);
}

static void later_of(uint64_t *time, uint64_t other)
{
    if (other > *time && other < KVF_NEVER)
        *time = other;
}

/* What never heals keeps its own rooms from being fresh, and no others. */
static uint64_t all_healthy_at(const sim_world *world)
{
    uint64_t time = world->now;
    for (uint32_t i = 0; i < world->node_count; i++)
        later_of(&time, world->nodes[i].healthy_at);
    for (uint32_t i = 0; i < SIM_GROUPS; i++) {
        later_of(&time, world->bootstraps[i].healthy_at);
        for (uint32_t j = 0; j < SIM_GROUPS; j++)
            later_of(&time, world->pair_healthy_at[i][j]);
    }
    return time;
}

/* When the last fault has struck: then it is known when the last one will have healed. */
static void plan_fresh_rooms(sim_world *world, sim_task *task)
{
    uint64_t time = all_healthy_at(world);
    (void)task;
    for (uint32_t i = 0; i < world->prefill_groups; i++)
        for (uint32_t j = 0; j < world->decode_groups; j++)
            sim_task_add(world, time, fresh_room, NULL, 0, NULL, i * (uint64_t)SIM_GROUPS + j, NULL,
                         0);
}

static void any_room(sim_world *world, sim_task *task)
{
    (void)task;
    make_room(world, NULL);
}

static void room_of_that_id(sim_world *world, sim_task *task)
{
    if (may_pass_on(task->subject))
        make_room(world, task->subject);
}

/* Some ids come again at once. */
void sim_router_closed(sim_instance *instance)
{
    sim_world *world = instance->senders[0].node->world;
    if (world->now < world->faults_until && sim_random_chance(&world->random, 300) &&
        may_pass_on_now(world, instance))
        sim_task_add(world, world->now, room_of_that_id, NULL, 0, instance, 0, NULL, 0);
}

static void close_stock(sim_side *side)
{
    if (!side->node->stock || !side->opened || side->closed || side->lost)
        return;
    side->aborted = true;
    sim_user_close(side);
}

/* A stock side has no deadlines: its engine gives up in the end. */
static void close_everything(sim_world *world, sim_task *task)
{
    sim_instance *instance;
    (void)task;
    DL_FOREACH(world->instances, instance)
    {
        for (uint32_t i = 0; i < instance->sender_count; i++)
            close_stock(&instance->senders[i]);
        for (uint32_t i = 0; i < instance->receiver_count; i++)
            close_stock(&instance->receivers[i]);
    }
}

void sim_router_start(sim_world *world)
{
    uint32_t count = (uint32_t)sim_random_between(&world->random, 10, 50);
    for (uint32_t i = 0; i < count; i++)
        sim_task_add(world, soon(world, world->faults_until), any_room, NULL, 0, NULL, 0, NULL, 0);
    /* When everything has healed, rooms succeed again. */
    for (uint32_t i = 0; i < 6; i++)
        sim_task_add(world, world->faults_until + SIM_RECOVERY + (uint64_t)i * 50 * KVF_MILLISECOND,
                     any_room, NULL, 0, NULL, 0, NULL, 0);
    sim_task_add(world, world->faults_until, plan_fresh_rooms, NULL, 0, NULL, 0, NULL, 0);
    sim_task_add(world, world->end - (2 * SIM_HOLD_TIMEOUT), close_everything, NULL, 0, NULL, 0,
                 NULL, 0);
}

void sim_router_end(sim_world *world)
{
    while (world->instances != NULL) {
        sim_instance *instance = world->instances;
        DL_DELETE(world->instances, instance);
        free(instance);
    }
}
