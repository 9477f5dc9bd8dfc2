/* Prefill servers as decode sees them: their sizes, looked up over HTTP, kept until a rank of theirs is lost. */
#include "manager/rank.h"

#include <stdlib.h>

static void server_feed(kvf_server *server, kvf_lookup_event_kind kind, const kvf_error *error);

static void server_answered(void *user, const kvf_bootstrap_answer *answer)
{
    kvf_server *server = user;
    server->call = NULL;
    server->topology = answer->topology;
    if (answer->outcome == KVF_BOOTSTRAP_ANSWERED)
        server_feed(server, KVF_LOOKUP_ANSWERED, NULL);
    else if (answer->outcome == KVF_BOOTSTRAP_NOT_YET)
        server_feed(server, KVF_LOOKUP_NOT_YET, &answer->error);
    else
        server_feed(server, KVF_LOOKUP_FAILED, &answer->error);
}

static void server_ask(kvf_server *server)
{
    kvf_error error;
    if (kvf_bootstrap_get_topology(server->manager->client, server->address, server_answered,
                                   server, &server->call, &error) != KVF_OK) {
        server->call = NULL;
        server_feed(server, KVF_LOOKUP_FAILED, &error);
    }
}

/* Tells all who wait, one by one; each leaves the list before it is told. */
static void server_tell(kvf_server *server, const kvf_error *error)
{
    kvf_receiver *waiting = server->waiting;
    server->waiting = NULL;
    while (waiting != NULL) {
        kvf_receiver *receiver = waiting;
        DL_DELETE(waiting, receiver);
        receiver->server = NULL;
        if (error != NULL)
            kvf_receiver_fail(receiver, error);
        else
            kvf_receiver_sizes_known(receiver, &server->topology);
    }
}

static void server_feed(kvf_server *server, kvf_lookup_event_kind kind, const kvf_error *error)
{
    kvf_actions actions = {.count = 0};
    kvf_lookup_event event = {.kind = kind, .wanted = server->waiting != NULL, .error = error};
    kvf_lookup_machine_step(&server->machine, &event, server->manager->now, &actions);
    for (size_t i = 0; i < actions.count; i++) {
        switch (actions.items[i].kind) {
        case KVF_ACTION_ASK:
            server_ask(server);
            break;
        case KVF_ACTION_TIMER:
            kvf_timers_set(&server->manager->timers, &server->timer, actions.items[i].deadline);
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
    kvf_server *server = (kvf_server *)((char *)timer - offsetof(kvf_server, timer));
    server_feed(server, KVF_LOOKUP_TIMER, NULL);
}

static void free_server(kvf_server *server)
{
    HASH_DELETE(by_address, server->manager->servers, server);
    if (server->call != NULL)
        kvf_bootstrap_cancel(server->call);
    kvf_timers_leave(&server->manager->timers, &server->timer);
    free(server);
}

static kvf_server *new_server(kvf_manager *manager, const char *address)
{
    size_t length = strlen(address);
    kvf_server *server = calloc(1, sizeof *server + length + 1);
    if (server == NULL || !kvf_timers_join(&manager->timers)) {
        free(server);
        return NULL;
    }
    server->manager = manager;
    server->timer.fire = server_timer;
    memcpy(server->address, address, length + 1);
    kvf_lookup_machine_init(&server->machine, &manager->server_policy);
    unsigned before = HASH_CNT(by_address, manager->servers);
    HASH_ADD(by_address, manager->servers, address, length, server);
    if (HASH_CNT(by_address, manager->servers) == before) {
        kvf_timers_leave(&manager->timers, &server->timer);
        free(server);
        return NULL;
    }
    return server;
}

static kvf_server *find_server(kvf_manager *manager, const char *address, size_t length)
{
    kvf_server *server = NULL;
    HASH_FIND(by_address, manager->servers, address, length, server);
    return server;
}

/* Makes room for one more by forgetting a server that nobody waits for. */
static void forget_a_server(kvf_manager *manager)
{
    kvf_server *server;
    kvf_server *next;
    HASH_ITER(by_address, manager->servers, server, next)
    {
        if (server->waiting == NULL) {
            free_server(server);
            return;
        }
    }
}

static kvf_server *find_or_make_server(kvf_manager *manager, const char *address, kvf_error *error)
{
    kvf_server *server = find_server(manager, address, strlen(address));
    if (server != NULL)
        return server;
    if (HASH_CNT(by_address, manager->servers) >= manager->settings.max_peers)
        forget_a_server(manager);
    if (HASH_CNT(by_address, manager->servers) >= manager->settings.max_peers) {
        kvf_error_set(error, KVF_LIMIT, "too many prefill servers (setting max_peers)");
        return NULL;
    }
    server = new_server(manager, address);
    if (server == NULL)
        kvf_error_set(error, KVF_NO_MEMORY, "no memory for a prefill server");
    return server;
}

void kvf_server_wait(kvf_receiver *receiver)
{
    kvf_error error;
    kvf_server *server = find_or_make_server(receiver->room.manager, receiver->address, &error);
    if (server == NULL) {
        kvf_receiver_fail(receiver, &error);
        return;
    }
    if (server->machine.state == KVF_LOOKUP_READY) {
        kvf_receiver_sizes_known(receiver, &server->topology);
        return;
    }
    DL_APPEND(server->waiting, receiver);
    receiver->server = server;
    server_feed(server, KVF_LOOKUP_WANTED, NULL);
}

void kvf_server_leave(kvf_receiver *receiver)
{
    if (receiver->server == NULL)
        return;
    DL_DELETE(receiver->server->waiting, receiver);
    receiver->server = NULL;
}

void kvf_server_forget(kvf_manager *manager, const char *address, size_t length)
{
    kvf_server *server = find_server(manager, address, length);
    if (server != NULL && server->waiting == NULL && server->call == NULL)
        free_server(server);
}

void kvf_servers_free(kvf_manager *manager)
{
    kvf_server *server;
    kvf_server *next;
    HASH_ITER(by_address, manager->servers, server, next)
    {
        free_server(server);
    }
}
