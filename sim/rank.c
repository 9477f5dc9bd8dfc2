/* Prefill servers and their ranks as a decode node sees them; src/manager/rank.c in small. */
#include "sim/sim.h"

#include <stdlib.h>

/* ---- Servers: the sizes --------------------------------------------------------------------------- */

static void server_tell(sim_server *server, const kvf_error *error)
{
    sim_receiver *waiting = server->waiting;
    server->waiting = NULL;
    while (waiting != NULL) {
        sim_receiver *receiver = waiting;
        DL_DELETE2(waiting, receiver, wait_prev, wait_next);
        receiver->server = NULL;
        if (error != NULL)
            sim_receiver_fail(receiver, error);
        else
            sim_receiver_sizes_known(receiver, &server->topology);
    }
}

void sim_server_feed(sim_server *server, kvf_lookup_event_kind kind, const kvf_error *error)
{
    kvf_actions actions = {.count = 0};
    kvf_lookup_event event = {.kind = kind, .wanted = server->waiting != NULL, .error = error};
    kvf_lookup_machine_step(&server->machine, &event, sim_now(server->node), &actions);
    for (size_t i = 0; i < actions.count; i++) {
        switch (actions.items[i].kind) {
        case KVF_ACTION_ASK:
            sim_bootstrap_ask_topology(server);
            break;
        case KVF_ACTION_TIMER:
            kvf_timers_set(&server->node->timers, &server->timer, actions.items[i].deadline);
            break;
        case KVF_ACTION_READY:
            server_tell(server, NULL);
            break;
        case KVF_ACTION_GIVE_UP:
            server_tell(server, &server->machine.problem);
            break;
        default:
            break;
        }
    }
}

static void server_timer(kvf_timer *timer, uint64_t now)
{
    (void)now;
    sim_server *server = (sim_server *)((char *)timer - offsetof(sim_server, timer));
    sim_server_feed(server, KVF_LOOKUP_TIMER, NULL);
}

void sim_server_wait(sim_receiver *receiver, uint32_t group)
{
    sim_server *server = &receiver->node->servers[group];
    if (server->machine.state == KVF_LOOKUP_READY) {
        sim_receiver_sizes_known(receiver, &server->topology);
        return;
    }
    DL_APPEND2(server->waiting, receiver, wait_prev, wait_next);
    receiver->server = server;
    sim_server_feed(server, KVF_LOOKUP_WANTED, NULL);
}

void sim_server_leave(sim_receiver *receiver)
{
    if (receiver->server == NULL)
        return;
    DL_DELETE2(receiver->server->waiting, receiver, wait_prev, wait_next);
    receiver->server = NULL;
}

/* The server's sizes may have changed with its restart: ask again next time. */
static void server_forget(const sim_rank *rank)
{
    sim_server *server = &rank->node->servers[rank->group];
    if (server->waiting != NULL || server->asking)
        return;
    kvf_timers_set(&rank->node->timers, &server->timer, KVF_NEVER);
    kvf_lookup_machine_init(&server->machine, &rank->node->world->server_policy);
}

/* ---- Ranks ---------------------------------------------------------------------------------------- */

static bool is_wanted(const sim_rank *rank)
{
    const sim_target *target;
    DL_FOREACH(rank->targets, target)
    {
        if (!target->requested)
            return true;
    }
    return false;
}

static void target_ready(sim_target *target)
{
    sim_receiver *receiver = target->receiver;
    target->ready = true;
    if (++receiver->targets_ready == receiver->target_count)
        sim_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_FOUND});
}

static void tell_ready(sim_rank *rank)
{
    sim_target *target;
    sim_target *next;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (!target->ready)
            target_ready(target);
    }
}

/* A room that relied on the connection fails, unless all the rank had to know was that it writes nothing. */
static void tell_lost(sim_rank *rank, const kvf_error *error)
{
    sim_target *target;
    sim_target *next;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        sim_receiver *receiver = target->receiver;
        bool is_real = target == &receiver->targets[0];
        if (!target->ready || (target->requested && !is_real))
            continue;
        target->ready = false;
        receiver->targets_ready--;
        if (receiver->machine.found)
            sim_receiver_fail(receiver, error);
    }
}

static void tell_given_up(sim_rank *rank, const kvf_error *error)
{
    sim_target *target;
    sim_target *next;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (!target->ready)
            sim_receiver_fail(target->receiver, error);
    }
}

void sim_rank_feed(sim_rank *rank, kvf_lookup_event_kind kind, const kvf_error *error)
{
    kvf_actions actions = {.count = 0};
    if (kind == KVF_LOOKUP_NOT_YET || kind == KVF_LOOKUP_FAILED)
        server_forget(rank);
    kvf_lookup_event event = {.kind = kind, .wanted = is_wanted(rank), .error = error};
    kvf_lookup_machine_step(&rank->machine, &event, sim_now(rank->node), &actions);
    for (size_t i = 0; i < actions.count; i++) {
        switch (actions.items[i].kind) {
        case KVF_ACTION_ASK:
            sim_bootstrap_ask_rank(rank);
            break;
        case KVF_ACTION_CONNECT:
            rank->connection = sim_connection_open(rank);
            break;
        case KVF_ACTION_TIMER:
            kvf_timers_set(&rank->node->timers, &rank->timer, actions.items[i].deadline);
            break;
        case KVF_ACTION_READY:
            tell_ready(rank);
            break;
        case KVF_ACTION_LOST:
            tell_lost(rank, error);
            break;
        case KVF_ACTION_GIVE_UP:
            tell_given_up(rank, error);
            break;
        default:
            break;
        }
    }
}

static void rank_timer(kvf_timer *timer, uint64_t now)
{
    (void)now;
    sim_rank *rank = (sim_rank *)((char *)timer - offsetof(sim_rank, timer));
    sim_rank_feed(rank, KVF_LOOKUP_TIMER, NULL);
}

void sim_rank_gone(sim_rank *rank, const char *text)
{
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_GONE, "prefill rank %u of server %u: %s", rank->rank,
                  rank->group, text);
    rank->connection = NULL;
    sim_trace(rank->node->world, rank->node, "%s", error.text);
    server_forget(rank);
    if (rank->node->world->plant == SIM_PLANT_DEATH_UNSEEN &&
        rank->machine.state == KVF_LOOKUP_READY)
        return;
    sim_rank_feed(rank, KVF_LOOKUP_GONE, &error);
}

void sim_rank_join(sim_target *target, uint32_t group, uint32_t tp_rank)
{
    sim_node *node = target->receiver->node;
    sim_rank *rank = &node->ranks[group][tp_rank];
    target->rank = rank;
    DL_APPEND(rank->targets, target);
    if (rank->machine.state == KVF_LOOKUP_READY)
        target_ready(target);
    else
        sim_rank_feed(rank, KVF_LOOKUP_WANTED, NULL);
}

void sim_rank_leave(sim_target *target)
{
    if (target->rank == NULL)
        return;
    DL_DELETE(target->rank->targets, target);
    target->rank = NULL;
}

/* ---- Requests ------------------------------------------------------------------------------------- */

static void fill_request(const sim_target *target, kvf_slice pages, kvf_request *request)
{
    const sim_receiver *receiver = target->receiver;
    const sim_node *node = receiver->node;
    bool is_real = target == &receiver->targets[0];
    *request = (kvf_request){
        .room = receiver->id,
        .host = kvf_slice_of(node->host),
        .agent_name = kvf_slice_of(node->agent_name),
        .agent_metadata = kvf_bytes_slice(&node->metadata),
        .buffers = {node->pointers.data, 8 * (size_t)SIM_BUFFERS},
        .aux = {node->pointers.data + 8 * (size_t)SIM_BUFFERS, 8 * (size_t)SIM_AUX},
        .pages = pages,
        .page_width = node->world->profile->page_width,
        .aux_slot = receiver->side->aux_slot,
        .required = receiver->required,
        .extended = target->rank->where.extended && !node->stock,
    };
    if (request->extended)
        request->extensions =
            KVF_EXTENSION_ALL_AUX | (is_real ? (uint64_t)KVF_EXTENSION_NO_DUMMY : 0);
}

static void send_put_off(sim_world *world, sim_task *task)
{
    sim_rank *rank = task->subject;
    sim_target *target;
    sim_target *next;
    (void)world;
    if (rank->machine.state != KVF_LOOKUP_READY)
        return;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (target->ready && !target->requested && target->receiver->machine.requested)
            sim_receiver_request(target->receiver);
    }
}

void sim_rank_request(sim_target *target)
{
    sim_receiver *receiver = target->receiver;
    sim_node *node = receiver->node;
    sim_rank *rank = target->rank;
    kvf_bytes pages = {0};
    kvf_request request;
    kvf_message message;
    /* The socket may be full: then the request waits until it isn't. */
    if (sim_random_chance(&node->world->random, 20)) {
        sim_task_add(node->world, node->world->now + 5 * KVF_MILLISECOND, send_put_off, node,
                     node->incarnation, rank, 0, NULL, 0);
        return;
    }
    if (rank->connection == NULL)
        return;
    if (target == &receiver->targets[0])
        kvf_request_pages_encode(node->world->profile, receiver->side->pages,
                                 receiver->side->page_count, &pages);
    fill_request(target, kvf_bytes_slice(&pages), &request);
    kvf_request_encode(node->world->profile, &request, &message);
    receiver->side->disclosed = true;
    sim_connection_send(rank->connection, message.frames, message.frame_count);
    target->requested = true;
    kvf_bytes_free(&pages);
    if (target == &receiver->targets[0])
        sim_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_DISCLOSED});
}

void sim_ranks_open(sim_node *node)
{
    sim_world *world = node->world;
    for (uint32_t group = 0; group < SIM_GROUPS; group++) {
        sim_server *server = &node->servers[group];
        *server = (sim_server){.node = node, .group = group, .timer = {.fire = server_timer}};
        (void)kvf_timers_join(&node->timers);
        kvf_lookup_machine_init(&server->machine, &world->server_policy);
        for (uint32_t i = 0; i < SIM_RANKS; i++) {
            sim_rank *rank = &node->ranks[group][i];
            *rank =
                (sim_rank){.node = node, .group = group, .rank = i, .timer = {.fire = rank_timer}};
            (void)kvf_timers_join(&node->timers);
            kvf_lookup_machine_init(&rank->machine, &world->rank_policy);
        }
    }
}
