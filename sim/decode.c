/* A decode manager in small: carries the receiver machine's actions out, with the rules of src/manager's
 * receiver.c. */
#include "sim/sim.h"

#include <stdlib.h>

/* ---- Opening -------------------------------------------------------------------------------------- */

void sim_decode_open(sim_node *node)
{
    node->pointers = (kvf_bytes){0};
    for (uint32_t i = 0; i < SIM_REGIONS; i++)
        kvf_bytes_append_u64(&node->pointers, node->pool.regions[i].base);
    sim_servers_open(node);
    sim_ranks_open(node);
}

static void free_receiver(sim_receiver *receiver)
{
    sim_node *node = receiver->node;
    kvf_timers_leave(&node->timers, &receiver->timer);
    kvf_receiver_machine_free(&receiver->machine);
    receiver->side->receiver = NULL;
    if (!receiver->closed)
        node->room_count--;
    DL_DELETE(node->receivers, receiver);
    free(receiver);
}

/* Everything but the rank that may be writing. */
static void leave_lookups(sim_receiver *receiver)
{
    sim_server_leave(receiver);
    for (uint32_t i = 0; i < receiver->target_count; i++)
        if (receiver->targets[i].inbox == NULL)
            sim_rank_leave(&receiver->targets[i]);
}

static void leave_everything(sim_receiver *receiver)
{
    leave_lookups(receiver);
    sim_rank_leave(&receiver->targets[0]);
}

void sim_decode_close(sim_node *node)
{
    while (node->receivers != NULL) {
        leave_everything(node->receivers);
        free_receiver(node->receivers);
    }
    sim_ranks_close(node);
    sim_inboxes_free(node);
    kvf_bytes_free(&node->pointers);
}

/* ---- Feeding -------------------------------------------------------------------------------------- */

/* Dummies first, and the real request only when they are out: once the room has succeeded nobody would send a
 * dummy that was put off, and its rank would wait in vain. */
void sim_receiver_request(sim_receiver *receiver)
{
    bool ordered = receiver->node->world->plant != SIM_PLANT_DUMMY_FORGOTTEN;
    bool all_out = true;
    for (uint32_t i = receiver->target_count; i > 0; i--) {
        sim_target *target = &receiver->targets[i - 1];
        if (kvf_outcome_is_final(&receiver->machine.outcome) || (i == 1 && ordered && !all_out))
            return;
        if (target->ready && !target->requested)
            sim_rank_request(target);
        all_out = all_out && target->requested;
    }
}

static void send_requests(sim_receiver *receiver)
{
    sim_node *node = receiver->node;
    receiver->all_aux = receiver->targets[0].rank->where.extended && !node->stock;
    receiver->side->all_aux = receiver->all_aux;
    if (receiver->side->page_count == 0 && !receiver->all_aux) {
        kvf_error error;
        kvf_error_set(&error, KVF_UNSUPPORTED, "a room of no pages needs a kvferry prefill");
        sim_receiver_fail(receiver, &error);
        return;
    }
    sim_receiver_request(receiver);
}

static void carry_out(sim_receiver *receiver, const kvf_action *action)
{
    sim_node *node = receiver->node;
    switch (action->kind) {
    case KVF_ACTION_TIMER:
        if (node->world->plant != SIM_PLANT_DEADLINE_LOST)
            kvf_timers_set(&node->timers, &receiver->timer, action->deadline);
        break;
    case KVF_ACTION_REQUEST:
        send_requests(receiver);
        break;
    case KVF_ACTION_STOP:
        leave_lookups(receiver);
        break;
    case KVF_ACTION_FENCE:
        sim_fence_begin(receiver);
        break;
    case KVF_ACTION_LEAVE:
        leave_everything(receiver);
        break;
    case KVF_ACTION_PUBLISH:
        sim_user_told(receiver->side, &receiver->machine.outcome);
        break;
    default:
        break;
    }
}

void sim_receiver_feed(sim_receiver *receiver, const kvf_receiver_event *event)
{
    sim_node *node = receiver->node;
    kvf_actions actions = {.count = 0};
    (void)kvf_receiver_machine_step(&receiver->machine, event, sim_now(node), &actions);
    if (node->world->plant == SIM_PLANT_ABORT_FREES_PAGES &&
        receiver->machine.outcome.state == KVF_FAILED)
        receiver->machine.outcome.safety = KVF_PAGES_SAFE;
    if (node->world->plant == SIM_PLANT_DEADLINE_IS_SAFE &&
        receiver->machine.outcome.safety == KVF_PAGES_RELEASED)
        receiver->machine.outcome.safety = KVF_PAGES_SAFE;
    uint32_t step = actions.count > 0 ? ++receiver->steps : receiver->steps;
    for (size_t i = 0; i < actions.count && receiver->steps == step; i++)
        carry_out(receiver, &actions.items[i]);
    if (receiver->closed && kvf_outcome_is_settled(&receiver->machine.outcome))
        node->reap_receivers = true;
}

void sim_receiver_fail(sim_receiver *receiver, const kvf_error *error)
{
    sim_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_FAILED, .error = error});
}

void sim_receiver_prove(sim_receiver *receiver, kvf_proof proof)
{
    sim_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_PROVEN, .proof = proof});
}

static const kvf_error *problem_of(const sim_receiver *receiver)
{
    if (receiver->server != NULL)
        return &receiver->server->machine.problem;
    for (uint32_t i = 0; i < receiver->target_count; i++)
        if (receiver->targets[i].rank != NULL && !receiver->targets[i].ready)
            return &receiver->targets[i].rank->machine.problem;
    return NULL;
}

static void receiver_timer(kvf_timer *timer, uint64_t now)
{
    (void)now;
    sim_receiver *receiver = (sim_receiver *)((char *)timer - offsetof(sim_receiver, timer));
    if (kvf_outcome_is_final(&receiver->machine.outcome))
        sim_fence_end(receiver);
    sim_receiver_feed(
        receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_TIMER, .error = problem_of(receiver)});
}

/* ---- Rooms ---------------------------------------------------------------------------------------- */

void sim_receiver_open(sim_side *side)
{
    sim_node *node = side->node;
    sim_receiver *receiver = calloc(1, sizeof *receiver);
    if (receiver == NULL || !kvf_timers_join(&node->timers))
        abort();
    receiver->node = node;
    receiver->side = side;
    receiver->id = side->instance->id;
    receiver->timer.fire = receiver_timer;
    side->receiver = receiver;
    node->room_count++;
    DL_APPEND(node->receivers, receiver);
    kvf_receiver_machine_init(&receiver->machine, &node->timeouts);
    sim_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_OPENED});
    sim_server_wait(receiver, side->instance->prefill_group);
}

/* A closed room into whose pages something may still be written stays until that is over. */
void sim_receiver_close(sim_receiver *receiver)
{
    sim_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_ABORTED});
    receiver->closed = true;
    receiver->node->room_count--;
    receiver->node->reap_receivers = true;
}

/* Not from inside their callbacks. */
void sim_receivers_reap(sim_node *node)
{
    sim_receiver *receiver;
    sim_receiver *next;
    node->reap_receivers = false;
    DL_FOREACH_SAFE(node->receivers, receiver, next)
    {
        if (!receiver->closed || !kvf_outcome_is_settled(&receiver->machine.outcome))
            continue;
        leave_everything(receiver);
        free_receiver(receiver);
    }
}

void sim_receiver_sizes_known(sim_receiver *receiver, const kvf_route_topology *topology)
{
    sim_world *world = receiver->node->world;
    kvf_rank_sizes prefill = {topology->tp_size, topology->dp_size};
    kvf_rank_sizes decode = {world->decode_ranks, 1};
    kvf_rank_targets targets;
    kvf_error error;
    if (kvf_ranks_map(&prefill, &decode, receiver->node->rank, world->mla, receiver->id, -1,
                      &targets, &error) != KVF_OK) {
        sim_receiver_fail(receiver, &error);
        return;
    }
    receiver->target_count = targets.count;
    receiver->required = targets.required;
    for (uint32_t i = 0; i < targets.count; i++)
        receiver->targets[i].receiver = receiver;
    for (uint32_t i = 0; i < targets.count; i++) {
        sim_rank_join(&receiver->targets[i], receiver->side->instance->prefill_group,
                      targets.first + i);
        if (kvf_outcome_is_final(&receiver->machine.outcome))
            return;
    }
}

/* ---- Notifications -------------------------------------------------------------------------------- */

/* Planted bugs that change what is heard. */
static void mishear(sim_receiver *receiver, kvf_notice *notice, kvf_receiver_event *event)
{
    sim_plant plant = receiver->node->world->plant;
    kvf_receiver_machine *machine = &receiver->machine;
    if (plant == SIM_PLANT_LAST_ALWAYS_TRUE && notice->kind == KVF_NOTICE_CHUNK)
        notice->last = true;
    if (plant == SIM_PLANT_OTHER_AGENT_COUNTED && machine->arrivals.agent_name[0] != '\0')
        event->agent_name = kvf_slice_of(machine->arrivals.agent_name);
    if (plant != SIM_PLANT_LAST_NOT_AWAITED || notice->kind != KVF_NOTICE_CHUNK || !notice->last)
        return;
    for (uint32_t i = 0; i < notice->chunk; i++) {
        kvf_notice earlier = {.kind = KVF_NOTICE_CHUNK, .room = notice->room, .chunk = i};
        kvf_receiver_event heard = *event;
        heard.notice = &earlier;
        sim_receiver_feed(receiver, &heard);
    }
}

void sim_receiver_notified(sim_receiver *receiver, kvf_receiver_event *event)
{
    kvf_notice notice = *event->notice;
    event->notice = &notice;
    mishear(receiver, &notice, event);
    sim_receiver_feed(receiver, event);
}
