/* Prefill servers and their ranks, as decode sees them: looked up over HTTP, connected, forgotten on failure. */
#include "manager/rank.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Servers: the sizes -------------------------------------------------------------------------- */

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

void kvf_server_wait(kvf_receiver *receiver)
{
    kvf_manager *manager = receiver->room.manager;
    kvf_error error;
    kvf_server *server = find_server(manager, receiver->address, strlen(receiver->address));
    if (server == NULL) {
        if (HASH_CNT(by_address, manager->servers) >= manager->settings.max_peers)
            forget_a_server(manager);
        if (HASH_CNT(by_address, manager->servers) < manager->settings.max_peers)
            server = new_server(manager, receiver->address);
    }
    if (server == NULL) {
        kvf_error_set(&error, KVF_LIMIT,
                      "too many prefill servers (setting max_peers), or no memory");
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

/* The server's sizes may have changed with its restart: ask again next time. */
static void server_forget(kvf_rank *rank)
{
    kvf_server *server = find_server(rank->manager, rank->key, rank->address_length);
    if (server != NULL && server->waiting == NULL && server->call == NULL)
        free_server(server);
}

/* ---- Ranks: where, and the connection ------------------------------------------------------------ */

static void rank_feed(kvf_rank *rank, kvf_lookup_event_kind kind, const kvf_error *error);

/* Somebody waits for the connection, or to be sent. */
static bool is_wanted(const kvf_rank *rank)
{
    const kvf_target *target;
    DL_FOREACH(rank->targets, target)
    {
        if (!target->requested)
            return true;
    }
    return false;
}

static void rank_answered(void *user, const kvf_bootstrap_answer *answer)
{
    kvf_rank *rank = user;
    rank->call = NULL;
    /* A rank that isn't there may mean that the server has been restarted with other sizes. */
    if (answer->outcome != KVF_BOOTSTRAP_ANSWERED)
        server_forget(rank);
    if (answer->outcome == KVF_BOOTSTRAP_ANSWERED) {
        rank->where = answer->rank;
        if (rank->manager->settings.peer_extensions != 0)
            rank->where.extended = true;
        rank_feed(rank, KVF_LOOKUP_ANSWERED, NULL);
    } else if (answer->outcome == KVF_BOOTSTRAP_NOT_YET) {
        rank_feed(rank, KVF_LOOKUP_NOT_YET, &answer->error);
    } else {
        rank_feed(rank, KVF_LOOKUP_FAILED, &answer->error);
    }
}

static void rank_ask(kvf_rank *rank)
{
    char address[KVF_ADDRESS_MAX];
    kvf_error error;
    (void)snprintf(address, sizeof address, "%.*s", (int)rank->address_length, rank->key);
    if (kvf_bootstrap_get_rank(rank->manager->client, address, rank->dp_group, rank->tp_rank,
                               rank_answered, rank, &rank->call, &error) != KVF_OK) {
        rank->call = NULL;
        rank_feed(rank, KVF_LOOKUP_FAILED, &error);
    }
}

static void push_connected(void *user)
{
    rank_feed(user, KVF_LOOKUP_CONNECTED, NULL);
}

static void push_gone(void *user, const char *text)
{
    kvf_rank *rank = user;
    char where[KVF_ADDRESS_MAX];
    kvf_format_address(rank->where.rank_ip, rank->where.rank_port, where);
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_GONE, "prefill rank %u of %.*s at %s: %s", rank->tp_rank,
                  (int)rank->address_length, rank->key, where, text);
    rank->push_over = true;
    server_forget(rank);
    rank_feed(rank, KVF_LOOKUP_GONE, &error);
}

/* Sends what was put off, in order. */
static void push_writable(void *user)
{
    kvf_rank *rank = user;
    kvf_target *target;
    kvf_target *next;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (target->ready && !target->requested && target->receiver->machine.requested)
            kvf_receiver_request(target->receiver);
    }
}

void kvf_rank_attend(kvf_rank *rank)
{
    if (rank->busy)
        return;
    rank->busy = true;
    DL_APPEND(rank->manager->busy_ranks, rank);
}

static void close_push(kvf_rank *rank)
{
    if (rank->push == NULL)
        return;
    for (size_t i = 0; i < rank->descriptor_count; i++)
        kvf_loop_forget(rank->manager, rank->descriptors[i]);
    rank->descriptor_count = 0;
    kvf_control_push_close(rank->push);
    rank->push = NULL;
    rank->push_over = false;
}

static kvf_status open_push(kvf_rank *rank, kvf_error *error)
{
    kvf_manager *manager = rank->manager;
    kvf_control_push_callbacks callbacks = {
        .user = rank, .connected = push_connected, .writable = push_writable, .gone = push_gone};
    kvf_status status =
        kvf_control_push_open(manager->control, rank->where.rank_ip, rank->where.rank_port,
                              manager->settings.heartbeat_timeout, &callbacks, &rank->push, error);
    if (status != KVF_OK)
        return status;
    rank->descriptor_count = kvf_control_push_descriptors(rank->push, rank->descriptors);
    for (size_t i = 0; status == KVF_OK && i < rank->descriptor_count; i++)
        status = kvf_loop_watch(manager, rank->descriptors[i], rank, error);
    kvf_rank_attend(rank);
    if (status != KVF_OK)
        close_push(rank);
    return status;
}

static void rank_connect(kvf_rank *rank)
{
    rank->connect = false;
    close_push(rank);
    kvf_error error;
    if (open_push(rank, &error) != KVF_OK)
        rank_feed(rank, KVF_LOOKUP_GONE, &error);
}

static void target_ready(kvf_target *target)
{
    kvf_receiver *receiver = target->receiver;
    target->ready = true;
    if (++receiver->targets_ready == receiver->target_count)
        kvf_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_FOUND});
}

static void tell_ready(kvf_rank *rank)
{
    kvf_target *target;
    kvf_target *next;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (!target->ready)
            target_ready(target);
    }
}

/* A room that relied on the connection fails, unless all the rank had to know was that it writes nothing. One
 * that still waits for other ranks goes on waiting, now for this one too. */
static void tell_lost(kvf_rank *rank, const kvf_error *error)
{
    kvf_target *target;
    kvf_target *next;
    kvf_count(rank->manager, KVF_COUNT_PEERS_LOST, 1);
    kvf_log_line(&rank->manager->settings.log,
                 rank->targets == NULL ? KVF_LOG_INFO : KVF_LOG_WARNING, "lost %s", error->text);
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        kvf_receiver *receiver = target->receiver;
        bool is_real = target == &receiver->targets[0];
        if (!target->ready || (target->requested && !is_real))
            continue;
        target->ready = false;
        receiver->targets_ready--;
        if (receiver->machine.found)
            kvf_receiver_fail(receiver, error);
    }
}

static void tell_given_up(kvf_rank *rank, const kvf_error *error)
{
    kvf_target *target;
    kvf_target *next;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (!target->ready)
            kvf_receiver_fail(target->receiver, error);
    }
}

static void rank_feed(kvf_rank *rank, kvf_lookup_event_kind kind, const kvf_error *error)
{
    kvf_actions actions = {.count = 0};
    kvf_lookup_event event = {.kind = kind, .wanted = is_wanted(rank), .error = error};
    kvf_lookup_machine_step(&rank->machine, &event, rank->manager->now, &actions);
    for (size_t i = 0; i < actions.count; i++) {
        switch (actions.items[i].kind) {
        case KVF_ACTION_ASK:
            rank_ask(rank);
            break;
        case KVF_ACTION_CONNECT:
            rank->connect = true;
            kvf_rank_attend(rank);
            break;
        case KVF_ACTION_TIMER:
            kvf_timers_set(&rank->manager->timers, &rank->timer, actions.items[i].deadline);
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
    if (rank->targets == NULL)
        kvf_rank_attend(rank);
}

static void rank_timer(kvf_timer *timer, uint64_t now)
{
    (void)now;
    kvf_rank *rank = (kvf_rank *)((char *)timer - offsetof(kvf_rank, timer));
    rank_feed(rank, KVF_LOOKUP_TIMER, NULL);
}

static void free_rank(kvf_rank *rank)
{
    kvf_manager *manager = rank->manager;
    HASH_DELETE(by_key, manager->ranks, rank);
    if (rank->busy)
        DL_DELETE(manager->busy_ranks, rank);
    if (rank->call != NULL)
        kvf_bootstrap_cancel(rank->call);
    close_push(rank);
    kvf_timers_leave(&manager->timers, &rank->timer);
    kvf_uncount(manager, KVF_COUNT_PEERS, 1);
    free(rank);
}

/* Nobody needs it, and it holds nothing worth keeping. Only outside its own callbacks. */
static bool is_spent(const kvf_rank *rank)
{
    return rank->targets == NULL && !rank->busy &&
           (rank->machine.state == KVF_LOOKUP_IDLE || rank->machine.state == KVF_LOOKUP_PAUSING);
}

static void forget_a_rank(kvf_manager *manager)
{
    kvf_rank *rank;
    kvf_rank *next;
    HASH_ITER(by_key, manager->ranks, rank, next)
    {
        if (rank->targets == NULL && !rank->busy) {
            free_rank(rank);
            return;
        }
    }
}

static kvf_rank *new_rank(kvf_manager *manager, const char *key, size_t address_length,
                          uint32_t dp_group, uint32_t tp_rank)
{
    size_t length = strlen(key);
    kvf_rank *rank = calloc(1, sizeof *rank + length + 1);
    if (rank == NULL || !kvf_timers_join(&manager->timers)) {
        free(rank);
        return NULL;
    }
    rank->manager = manager;
    rank->timer.fire = rank_timer;
    rank->dp_group = dp_group;
    rank->tp_rank = tp_rank;
    rank->address_length = address_length;
    memcpy(rank->key, key, length + 1);
    kvf_lookup_machine_init(&rank->machine, &manager->rank_policy);
    unsigned before = HASH_CNT(by_key, manager->ranks);
    HASH_ADD(by_key, manager->ranks, key, length, rank);
    if (HASH_CNT(by_key, manager->ranks) == before) {
        kvf_timers_leave(&manager->timers, &rank->timer);
        free(rank);
        return NULL;
    }
    kvf_count(manager, KVF_COUNT_PEERS, 1);
    return rank;
}

kvf_status kvf_rank_join(kvf_target *target, uint32_t dp_group, uint32_t tp_rank, kvf_error *error)
{
    kvf_manager *manager = target->receiver->room.manager;
    const char *address = target->receiver->address;
    char key[KVF_ADDRESS_MAX + 32];
    (void)snprintf(key, sizeof key, "%.*s|%u|%u", KVF_ADDRESS_MAX - 1, address, dp_group, tp_rank);
    kvf_rank *rank = NULL;
    HASH_FIND(by_key, manager->ranks, key, strlen(key), rank);
    if (rank == NULL) {
        if (HASH_CNT(by_key, manager->ranks) >= manager->settings.max_peers)
            forget_a_rank(manager);
        if (HASH_CNT(by_key, manager->ranks) < manager->settings.max_peers)
            rank = new_rank(manager, key, strlen(address), dp_group, tp_rank);
    }
    if (rank == NULL)
        return kvf_error_set(error, KVF_LIMIT,
                             "too many prefill ranks (setting max_peers), or no memory");
    target->rank = rank;
    DL_APPEND(rank->targets, target);
    if (rank->machine.state == KVF_LOOKUP_READY)
        target_ready(target);
    else
        rank_feed(rank, KVF_LOOKUP_WANTED, NULL);
    return KVF_OK;
}

void kvf_rank_leave(kvf_target *target)
{
    if (target->rank == NULL)
        return;
    kvf_rank *rank = target->rank;
    target->rank = NULL;
    DL_DELETE(rank->targets, target);
    /* The push may be in the middle of a callback: it is looked at again later. */
    if (rank->targets == NULL)
        kvf_rank_attend(rank);
}

bool kvf_rank_is_extended(const kvf_rank *rank)
{
    return rank->where.extended && rank->manager->settings.extensions != 0;
}

const kvf_error *kvf_rank_problem(const kvf_receiver *receiver)
{
    if (receiver->server != NULL)
        return &receiver->server->machine.problem;
    for (uint32_t i = 0; i < receiver->target_count; i++)
        if (receiver->targets[i].rank != NULL && !receiver->targets[i].ready)
            return &receiver->targets[i].rank->machine.problem;
    return NULL;
}

static void fill_request(const kvf_receiver *receiver, bool is_real, bool extended, kvf_slice pages,
                         kvf_request *request)
{
    const kvf_manager *manager = receiver->room.manager;
    *request = (kvf_request){
        .room = receiver->room.id,
        .host = kvf_slice_of(manager->host),
        .port = manager->port,
        .agent_name = kvf_slice_of(manager->agent_name),
        .agent_metadata =
            kvf_bytes_slice(extended ? &manager->metadata : &manager->portable_metadata),
        .buffers = {manager->pointers.data, 8 * manager->pool.buffer_count},
        .aux = {manager->pointers.data + 8 * manager->pool.buffer_count,
                8 * manager->pool.aux_count},
        .pages = pages,
        .page_width = manager->profile->page_width,
        .aux_slot = receiver->expect->aux_slot,
        .device = manager->pool.device,
        .required = receiver->required,
        .extended = extended,
    };
    if (extended)
        request->extensions =
            KVF_EXTENSION_ALL_AUX | (is_real ? (uint64_t)KVF_EXTENSION_NO_DUMMY : 0);
}

void kvf_rank_request(kvf_target *target)
{
    kvf_receiver *receiver = target->receiver;
    kvf_rank *rank = target->rank;
    bool is_real = target == &receiver->targets[0];
    kvf_bytes pages = {0};
    if (is_real)
        kvf_request_pages_encode(rank->manager->profile, receiver->expect->pages,
                                 receiver->expect->page_count, &pages);
    kvf_request request;
    kvf_message message;
    kvf_error error;
    bool put_off = false;
    fill_request(receiver, is_real, kvf_rank_is_extended(rank), kvf_bytes_slice(&pages), &request);
    kvf_request_encode(rank->manager->profile, &request, &message);
    kvf_status status = pages.failed
                            ? kvf_error_set(&error, KVF_NO_MEMORY, "no memory for a request")
                            : kvf_control_push_send(rank->push, message.frames, message.frame_count,
                                                    &put_off, &error);
    kvf_bytes_free(&pages);
    kvf_rank_attend(rank);
    if (status != KVF_OK)
        kvf_receiver_fail(receiver, &error);
    else
        target->requested = !put_off;
}

/* ---- Loop ---------------------------------------------------------------------------------------- */

/* What a push's callbacks asked for is done here, where none of them is running. */
static bool process(kvf_rank *rank)
{
    bool more = rank->push != NULL && !rank->push_over && kvf_control_push_process(rank->push);
    if (rank->push_over)
        close_push(rank);
    if (rank->connect)
        rank_connect(rank);
    return more || rank->connect || rank->push_over;
}

bool kvf_ranks_process(kvf_manager *manager)
{
    kvf_rank *list = manager->busy_ranks;
    manager->busy_ranks = NULL;
    while (list != NULL) {
        kvf_rank *rank = list;
        DL_DELETE(list, rank);
        rank->busy = false;
        if (process(rank))
            kvf_rank_attend(rank);
        else if (is_spent(rank))
            free_rank(rank);
    }
    return manager->busy_ranks != NULL;
}

void kvf_ranks_free(kvf_manager *manager)
{
    kvf_rank *rank;
    kvf_rank *next_rank;
    HASH_ITER(by_key, manager->ranks, rank, next_rank)
    {
        free_rank(rank);
    }
    kvf_server *server;
    kvf_server *next_server;
    HASH_ITER(by_address, manager->servers, server, next_server)
    {
        free_server(server);
    }
}
