/* Prefill servers as a decode node sees them: their sizes; src/manager/server.c in small. */
#include "sim/sim.h"

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
void sim_server_forget(sim_node *node, uint32_t group)
{
    sim_server *server = &node->servers[group];
    if (server->waiting != NULL || server->asking)
        return;
    kvf_timers_set(&node->timers, &server->timer, KVF_NEVER);
    kvf_lookup_machine_init(&server->machine, &node->world->server_policy);
}

void sim_servers_open(sim_node *node)
{
    for (uint32_t group = 0; group < SIM_GROUPS; group++) {
        sim_server *server = &node->servers[group];
        *server = (sim_server){.node = node, .group = group, .timer = {.fire = server_timer}};
        (void)kvf_timers_join(&node->timers);
        kvf_lookup_machine_init(&server->machine, &node->world->server_policy);
    }
}
