/* The bootstrap servers: a table each, and HTTP as far as a client can tell. Bodies go through the codecs. */
#include "sim/sim.h"

#include <stdlib.h>

static uint64_t http_delay(sim_world *world)
{
    return sim_random_between(&world->random, 200 * KVF_MICROSECOND, 5 * KVF_MILLISECOND);
}

/* ---- Lookups -------------------------------------------------------------------------------------- */

static void fail_lookup(sim_server *server, sim_rank *rank, kvf_lookup_event_kind kind,
                        kvf_error *error)
{
    if (server != NULL)
        sim_server_feed(server, kind, error);
    else
        sim_rank_feed(rank, kind, error);
}

/* number: 0 no answer in time, 1 refused, 2 an answer (an empty body: 404). */
static void topology_answered(sim_world *world, sim_task *task)
{
    sim_server *server = task->subject;
    kvf_error error;
    (void)world;
    server->asking = false;
    if (task->number < 2) {
        kvf_error_set(&error, KVF_BOOTSTRAP, "bootstrap server %u: %s", server->group,
                      task->number == 0 ? "no answer within http_timeout" : "connection refused");
        fail_lookup(server, NULL, KVF_LOOKUP_FAILED, &error);
        return;
    }
    kvf_route_topology topology;
    if (kvf_route_topology_decode((kvf_slice){task->bytes, task->length}, &topology, &error) !=
        KVF_OK) {
        error.status = KVF_BOOTSTRAP;
        fail_lookup(server, NULL, KVF_LOOKUP_FAILED, &error);
    } else if (!topology.known) {
        kvf_error_set(&error, KVF_BOOTSTRAP, "no prefill rank has registered yet");
        fail_lookup(server, NULL, KVF_LOOKUP_NOT_YET, &error);
    } else {
        server->topology = topology;
        sim_server_feed(server, KVF_LOOKUP_ANSWERED, NULL);
    }
}

static void rank_answered(sim_world *world, sim_task *task)
{
    sim_rank *rank = task->subject;
    kvf_route_rank where;
    kvf_error error;
    if (task->number < 2) {
        kvf_error_set(&error, KVF_BOOTSTRAP, "bootstrap server %u: %s", rank->group,
                      task->number == 0 ? "no answer within http_timeout" : "connection refused");
        fail_lookup(NULL, rank, KVF_LOOKUP_FAILED, &error);
    } else if (task->length == 0) {
        kvf_error_set(&error, KVF_BOOTSTRAP, "prefill rank %u has not registered yet", rank->rank);
        fail_lookup(NULL, rank, KVF_LOOKUP_NOT_YET, &error);
    } else if (kvf_route_rank_decode((kvf_slice){task->bytes, task->length}, &where, &error) !=
               KVF_OK) {
        error.status = KVF_BOOTSTRAP;
        fail_lookup(NULL, rank, KVF_LOOKUP_FAILED, &error);
    } else {
        if (where.rank_port != rank->where.rank_port)
            kvf_room_memory_free(&rank->used);
        rank->where = where;
        rank->shown = rank->where.extended;
        rank->where.extended |= world->assume;
        sim_rank_feed(rank, KVF_LOOKUP_ANSWERED, NULL);
    }
}

/* What the server says, when it says anything. */
static void answer(sim_node *node, const sim_bootstrap *bootstrap, sim_task_run then, void *subject,
                   kvf_bytes *body)
{
    sim_world *world = node->world;
    uint64_t at = world->now + http_delay(world);
    uint64_t outcome = 2;
    if (bootstrap->mood == SIM_BOOTSTRAP_SILENT) {
        at = world->now + SIM_HTTP_TIMEOUT;
        outcome = 0;
    } else if (bootstrap->mood == SIM_BOOTSTRAP_DOWN) {
        outcome = 1;
    } else if (bootstrap->mood == SIM_BOOTSTRAP_RUBBISH && body->length > 0) {
        body->length = sim_random_between(&world->random, 1, body->length - 1);
    }
    sim_task_add(world, at, then, node, node->incarnation, subject, outcome, body->data,
                 outcome == 2 ? body->length : 0);
    kvf_bytes_free(body);
}

static void topology_asked(sim_world *world, sim_task *task)
{
    sim_server *server = task->subject;
    const sim_bootstrap *bootstrap = &world->bootstraps[server->group];
    kvf_bytes body = {0};
    kvf_route_topology_encode(&bootstrap->topology, &body);
    answer(task->node, bootstrap, topology_answered, server, &body);
}

static void rank_asked(sim_world *world, sim_task *task)
{
    sim_rank *rank = task->subject;
    const sim_bootstrap *bootstrap = &world->bootstraps[rank->group];
    kvf_bytes body = {0};
    if (bootstrap->known[rank->rank])
        kvf_route_rank_encode(&bootstrap->rows[rank->rank], &body);
    answer(task->node, bootstrap, rank_answered, rank, &body);
}

void sim_bootstrap_ask_topology(sim_server *server)
{
    sim_node *node = server->node;
    server->asking = true;
    sim_task_add(node->world, node->world->now + http_delay(node->world), topology_asked, node,
                 node->incarnation, server, 0, NULL, 0);
}

void sim_bootstrap_ask_rank(sim_rank *rank)
{
    sim_node *node = rank->node;
    sim_task_add(node->world, node->world->now + http_delay(node->world), rank_asked, node,
                 node->incarnation, rank, 0, NULL, 0);
}

/* ---- Registrations -------------------------------------------------------------------------------- */

static void put(sim_world *world, sim_node *node, sim_bootstrap *bootstrap)
{
    kvf_bytes body = {0};
    kvf_route_registration row = {.rank_port = node->port,
                                  .tp_size = world->prefill_ranks,
                                  .dp_size = 1,
                                  .engine_rank = node->rank,
                                  .is_prefill = true,
                                  .extended = !node->stock && !world->assume};
    kvf_route_registration taken;
    kvf_error error;
    memcpy(row.rank_ip, node->host, sizeof node->host);
    kvf_route_registration_encode(&row, &body);
    if (kvf_route_registration_decode(kvf_bytes_slice(&body), &taken, &error) != KVF_OK) {
        sim_violate(world, "a registration can't be read back: %s", error.text);
    } else {
        bootstrap->topology = (kvf_route_topology){true, taken.tp_size, taken.dp_size};
        kvf_route_rank *stored = &bootstrap->rows[taken.engine_rank];
        memcpy(stored->rank_ip, taken.rank_ip, sizeof stored->rank_ip);
        stored->rank_port = taken.rank_port;
        stored->extended = taken.extended;
        bootstrap->known[taken.engine_rank] = true;
        node->registered = true;
    }
    kvf_bytes_free(&body);
}

/* A kvferry rank looks for its row again and again; a stock one registers once. */
static void register_rank(sim_world *world, sim_task *task)
{
    sim_node *node = task->node;
    sim_bootstrap *bootstrap = &world->bootstraps[node->group];
    bool reachable = bootstrap->mood == SIM_BOOTSTRAP_FINE;
    if (reachable &&
        (!bootstrap->known[node->rank] || bootstrap->rows[node->rank].rank_port != node->port))
        put(world, node, bootstrap);
    if (node->stock && node->registered)
        return;
    uint64_t pause = reachable ? SIM_REGISTRATION_CHECK : 200 * KVF_MILLISECOND;
    sim_task_add(world, world->now + pause, register_rank, node, node->incarnation, NULL, 0, NULL,
                 0);
}

void sim_registration_start(sim_node *node)
{
    node->registered = false;
    sim_task_add(node->world, node->world->now + http_delay(node->world), register_rank, node,
                 node->incarnation, NULL, 0, NULL, 0);
}
