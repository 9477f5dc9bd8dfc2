/* Prefill ranks as decode sees them: looked up over HTTP, connected, forgotten on failure. */
#include "manager/rank.h"
#include "manager/inbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LAST_LETTER_WAIT (100 * KVF_MILLISECOND)

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

/* What was used with a stock rank belongs to its place: one that was restarted has another port. */
static void keep_used(kvf_rank *rank)
{
    char place[KVF_ADDRESS_MAX];
    kvf_format_address(rank->where.rank_ip, rank->where.rank_port, place);
    kvf_formers_keep(&rank->manager->formers, place, &rank->used);
}

static void set_place(kvf_rank *rank, const kvf_route_rank *where)
{
    char place[KVF_ADDRESS_MAX];
    keep_used(rank);
    rank->where = *where;
    kvf_format_address(where->rank_ip, where->rank_port, place);
    kvf_formers_recall(&rank->manager->formers, place, &rank->used);
}

/* Its ids may be used again at once. */
void kvf_rank_show(kvf_rank *rank)
{
    if (!rank->shown)
        kvf_room_memory_free(&rank->used);
    rank->shown = true;
}

static void rank_answered(void *user, const kvf_bootstrap_answer *answer)
{
    kvf_rank *rank = user;
    rank->call = NULL;
    /* A rank that isn't there may mean that the server has been restarted with other sizes. */
    if (answer->outcome != KVF_BOOTSTRAP_ANSWERED)
        kvf_server_forget(rank->manager, rank->key, rank->address_length);
    if (answer->outcome == KVF_BOOTSTRAP_ANSWERED) {
        set_place(rank, &answer->rank);
        rank->shown = answer->rank.extended && rank->manager->settings.extensions != 0;
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

static kvf_rank *rank_of(kvf_link *link)
{
    return (kvf_rank *)((char *)link - offsetof(kvf_rank, link));
}

static void forget_process(kvf_rank *rank)
{
    if (rank->process.exit_fd >= 0)
        (void)close(rank->process.exit_fd);
    rank->process = (kvf_peer_process){.exit_fd = -1};
}

static void connected(kvf_link *link)
{
    kvf_rank *rank = rank_of(link);
    forget_process(rank);
    rank->process = kvf_control_push_peer(link->push);
    rank_feed(rank, KVF_LOOKUP_CONNECTED, NULL);
}

/* What a peer wrote before its end counts: it is taken in before anybody fails for the end. */
static void take_in_what_arrived(kvf_manager *manager)
{
    enum { ROUNDS = 32 };
    bool more = true;
    for (int i = 0; i < ROUNDS && more; i++)
        more = manager->engine->operations->progress(manager->engine, KVF_MILLISECOND);
}

/* The rooms fail first, and are then told what the closed inboxes prove. */
static void lose(kvf_rank *rank, const kvf_error *error)
{
    rank->letters = 0;
    kvf_letters_drop_aborts(rank); /* nobody holds a request of a decode that is gone */
    take_in_what_arrived(rank->manager);
    kvf_server_forget(rank->manager, rank->key, rank->address_length);
    rank_feed(rank, KVF_LOOKUP_GONE, error);
    kvf_inboxes_close(rank);
    forget_process(rank);
}

static void lose_at_last(kvf_rank *rank)
{
    kvf_error *error = rank->lost;
    rank->lost = NULL;
    kvf_timers_set(&rank->manager->timers, &rank->timer, KVF_NO_DEADLINE);
    lose(rank, error);
    free(error);
}

/* One that was closed has told why, over a connection of its own: two connections have no common order. */
static bool may_have_told(const kvf_rank *rank)
{
    const kvf_target *target;
    if (!rank->shown || rank->manager->pull == NULL || rank->letters == KVF_LETTERS_ENDED)
        return false;
    DL_FOREACH(rank->targets, target)
    {
        if (target->inbox != NULL)
            return true;
    }
    return false;
}

/* Puts the loss off until the other connection has ended too, or for a moment. While its link is up a rank needs no
 * timer. */
static void gone(kvf_link *link, const char *text)
{
    kvf_rank *rank = rank_of(link);
    kvf_manager *manager = rank->manager;
    char where[KVF_ADDRESS_MAX];
    kvf_format_address(rank->where.rank_ip, rank->where.rank_port, where);
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_GONE, "prefill rank %u of %.*s at %s: %s", rank->tp_rank,
                  (int)rank->address_length, rank->key, where, text);
    if (may_have_told(rank))
        rank->lost = malloc(sizeof *rank->lost);
    if (rank->lost == NULL) {
        lose(rank, &error);
        return;
    }
    *rank->lost = error;
    kvf_timers_set(&manager->timers, &rank->timer, kvf_clock_after(manager->now, LAST_LETTER_WAIT));
}

void kvf_rank_wrote(kvf_rank *rank, uint64_t connection)
{
    kvf_rank_show(rank);
    rank->letters = connection;
}

void kvf_rank_letters_gone(void *user, uint64_t connection)
{
    kvf_manager *manager = user;
    kvf_rank *rank;
    kvf_rank *next;
    HASH_ITER(by_key, manager->ranks, rank, next)
    {
        if (rank->letters != connection)
            continue;
        rank->letters = KVF_LETTERS_ENDED;
        if (rank->lost != NULL)
            lose_at_last(rank);
    }
}

/* Sends what was put off, in order. */
static void writable(kvf_link *link)
{
    kvf_rank *rank = rank_of(link);
    kvf_target *target;
    kvf_target *next;
    if (!kvf_letters_pay_aborts(rank))
        return;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (target->abort_wanted)
            kvf_fence_begin(target->receiver);
        else if (target->letter_wanted)
            kvf_checking_resume(target->receiver);
        else if (target->ready && !target->requested && target->receiver->machine.requested)
            kvf_receiver_request(target->receiver);
    }
}

static void rank_connect(kvf_rank *rank)
{
    kvf_error error;
    rank->connect = false;
    if (kvf_link_open(&rank->link, rank->where.rank_ip, rank->where.rank_port, &error) != KVF_OK)
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
            kvf_link_attend(&rank->link);
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
        kvf_link_attend(&rank->link);
}

static void rank_timer(kvf_timer *timer, uint64_t now)
{
    (void)now;
    kvf_rank *rank = (kvf_rank *)((char *)timer - offsetof(kvf_rank, timer));
    if (rank->lost != NULL)
        lose_at_last(rank);
    else
        rank_feed(rank, KVF_LOOKUP_TIMER, NULL);
}

static void free_rank(kvf_rank *rank)
{
    kvf_manager *manager = rank->manager;
    HASH_DELETE(by_key, manager->ranks, rank);
    if (rank->call != NULL)
        kvf_bootstrap_cancel(rank->call);
    kvf_link_close(&rank->link);
    if (manager->engine != NULL)
        kvf_inboxes_close(rank);
    keep_used(rank);
    forget_process(rank);
    free(rank->lost);
    kvf_letters_drop_aborts(rank);
    kvf_timers_leave(&manager->timers, &rank->timer);
    kvf_uncount(manager, KVF_COUNT_PEERS, 1);
    free(rank);
}

/* Nobody needs it, and it holds nothing worth keeping. */
static bool is_spent(const kvf_rank *rank)
{
    return rank->targets == NULL && !rank->link.busy &&
           (rank->machine.state == KVF_LOOKUP_IDLE || rank->machine.state == KVF_LOOKUP_PAUSING);
}

static void forget_a_rank(kvf_manager *manager)
{
    kvf_rank *rank;
    kvf_rank *next;
    HASH_ITER(by_key, manager->ranks, rank, next)
    {
        if (rank->targets == NULL && !rank->link.busy) {
            free_rank(rank);
            return;
        }
    }
}

/* What the link's callbacks asked for is done here, where none of them is running. */
static void attended(kvf_link *link)
{
    kvf_rank *rank = rank_of(link);
    if (rank->connect)
        rank_connect(rank);
    if (is_spent(rank))
        free_rank(rank);
}

static const kvf_link_callbacks link_callbacks = {connected, writable, gone, attended};

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
    rank->process.exit_fd = -1;
    kvf_link_init(&rank->link, manager, &link_callbacks);
    kvf_room_memory_init(&rank->used, (uint32_t)manager->settings.remembered_rooms);
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
    if (rank == NULL && HASH_CNT(by_key, manager->ranks) >= manager->settings.max_peers)
        forget_a_rank(manager);
    if (rank == NULL && HASH_CNT(by_key, manager->ranks) >= manager->settings.max_peers)
        return kvf_error_set(error, KVF_LIMIT, "too many prefill ranks (setting max_peers)");
    if (rank == NULL)
        rank = new_rank(manager, key, strlen(address), dp_group, tp_rank);
    if (rank == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a prefill rank");
    target->rank = rank;
    DL_APPEND(rank->targets, target);
    if (rank->machine.state == KVF_LOOKUP_READY && rank->lost == NULL)
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
    if (target->abort_wanted)
        kvf_letters_owe_abort(target);
    kvf_inbox_remove(target);
    target->rank = NULL;
    target->abort_wanted = false;
    DL_DELETE(rank->targets, target);
    /* The link may be in the middle of a callback: it is looked at again later. */
    if (rank->targets == NULL)
        kvf_link_attend(&rank->link);
}

bool kvf_rank_is_extended(const kvf_rank *rank)
{
    return rank->where.extended && rank->manager->settings.extensions != 0;
}

void kvf_rank_prefix(const kvf_rank *rank, kvf_error *error)
{
    kvf_error_prefix(error, "prefill rank %u of %.*s", rank->tp_rank, (int)rank->address_length,
                     rank->key);
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

static void fill_request(const kvf_receiver *receiver, const kvf_inbox *inbox, bool is_real,
                         kvf_slice pages, kvf_request *request)
{
    const kvf_manager *manager = receiver->room.manager;
    *request = (kvf_request){
        .room = receiver->room.id,
        .host = kvf_slice_of(manager->host),
        .port = manager->told_port,
        .agent_name = kvf_slice_of(inbox->agent_name),
        .agent_metadata = kvf_bytes_slice(&inbox->metadata),
        .buffers = {manager->pointers.data, 8 * manager->pool.buffer_count},
        .aux = {manager->pointers.data + 8 * manager->pool.buffer_count,
                8 * manager->pool.aux_count},
        .pages = pages,
        .page_width = manager->profile->page_width,
        .aux_slot = receiver->expect->aux_slot,
        .device = manager->pool.device,
        .required = receiver->required,
        .extended = inbox->extended,
        .epoch = inbox->last_epoch,
        .lease = manager->settings.heartbeat_timeout,
    };
    if (inbox->extended)
        request->extensions =
            KVF_EXTENSION_ALL_AUX | KVF_EXTENSION_EPOCH | KVF_EXTENSION_LEASE |
            (is_real ? (uint64_t)KVF_EXTENSION_NO_DUMMY : 0) |
            (is_real && receiver->checking != NULL ? (uint64_t)KVF_EXTENSION_VERIFY : 0);
}

static kvf_status send_request(kvf_target *target, const kvf_inbox *inbox, bool *put_off,
                               kvf_error *error)
{
    kvf_receiver *receiver = target->receiver;
    const kvf_profile *profile = receiver->room.manager->profile;
    bool is_real = target == &receiver->targets[0];
    kvf_bytes pages = {0};
    if (is_real)
        kvf_request_pages_encode(profile, receiver->expect->pages, receiver->expect->page_count,
                                 &pages);
    kvf_request request;
    kvf_message message;
    fill_request(receiver, inbox, is_real, kvf_bytes_slice(&pages), &request);
    kvf_request_encode(profile, &request, &message);
    kvf_status status = pages.failed
                            ? kvf_error_set(error, KVF_NO_MEMORY, "no memory for a request")
                            : kvf_link_send(&target->rank->link, message.frames,
                                            message.frame_count, put_off, error);
    kvf_bytes_free(&pages);
    return status;
}

/* A stock rank can't tell a new room from an old one of the same id: it would write to the old one's pages. */
static kvf_status check_unused(const kvf_rank *rank, uint64_t room, kvf_error *error)
{
    if (rank->shown)
        return KVF_OK;
    if (kvf_inboxes_serve(rank, room))
        return kvf_error_set(error, KVF_BUSY,
                             "prefill rank %u of %.*s may still write to an earlier room %llu; it "
                             "is not kvferry and can't tell the two apart; the router must choose "
                             "another id",
                             rank->tp_rank, (int)rank->address_length, rank->key,
                             (unsigned long long)room);
    if (!kvf_room_memory_has(&rank->used, room))
        return KVF_OK;
    return kvf_error_set(error, KVF_BUSY,
                         "room %llu was used before with prefill rank %u of %.*s, which is not "
                         "kvferry and can't tell the two apart; the router must choose another id "
                         "(setting remembered_rooms)",
                         (unsigned long long)room, rank->tp_rank, (int)rank->address_length,
                         rank->key);
}

/* The room's notices are looked for from before the request leaves. */
static kvf_status disclose(kvf_target *target, kvf_inbox *inbox, bool *put_off, kvf_error *error)
{
    kvf_receiver *receiver = target->receiver;
    kvf_rank *rank = target->rank;
    kvf_status status = check_unused(rank, receiver->room.id, error);
    if (status != KVF_OK)
        return status;
    if (!kvf_inbox_add(inbox, target, inbox->extended ? inbox->last_epoch : receiver->room.id))
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a request");
    status = send_request(target, inbox, put_off, error);
    if (status != KVF_OK || *put_off)
        kvf_inbox_remove(target);
    else if (!rank->shown)
        (void)kvf_room_memory_add(&rank->used, receiver->room.id);
    return status;
}

/* Only the real rank writes; the others learn that they needn't. */
void kvf_rank_request(kvf_target *target)
{
    kvf_receiver *receiver = target->receiver;
    bool is_real = target == &receiver->targets[0];
    bool put_off = false;
    kvf_error error;
    if (target->rank->lost != NULL)
        return; /* it fails with those that were sent */
    kvf_inbox *inbox = kvf_inbox_of(target->rank, &error);
    kvf_status status = inbox == NULL ? error.status : KVF_OK;
    if (inbox != NULL) {
        inbox->last_epoch++;
        status = is_real ? disclose(target, inbox, &put_off, &error)
                         : send_request(target, inbox, &put_off, &error);
    }
    if (status != KVF_OK) {
        kvf_receiver_fail(receiver, &error);
        return;
    }
    target->requested = !put_off;
    if (is_real && target->requested)
        kvf_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_DISCLOSED});
}

void kvf_ranks_free(kvf_manager *manager)
{
    kvf_rank *rank;
    kvf_rank *next;
    HASH_ITER(by_key, manager->ranks, rank, next)
    {
        free_rank(rank);
    }
}
