/* The data engine inside one process: engines find each other in a hub and copy with memcpy. Nothing moves
 * outside progress(), and puts are carried out in the order they were posted, so a test that calls
 * progress() in a fixed order sees the same thing each time. */
#include "data/transfers.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* "loop", process, engine. No UCX address begins so. */
enum { ADDRESS_LENGTH = 4 + 8 + 8 };

/* A packed UCX key of one memory domain, whose 16 bytes are engine and region: what checks the form of
 * keys is satisfied. */
enum { KEY_HEAD = 8 + 1 + 1, KEY_LENGTH = KEY_HEAD + 16 };

enum { PUTS_AT_ONCE = 16 };

typedef struct loop_region {
    uint64_t base;
    uint64_t length;
    uint8_t key[KEY_LENGTH];
} loop_region;

typedef struct loop_engine loop_engine;

struct kvf_engine_inbox {
    loop_engine *engine;
    uint64_t id;
    uint8_t address[ADDRESS_LENGTH];
    void *user;
    void (*notified)(void *user, kvf_slice payload);
    kvf_engine_inbox *next;     /* of the engine's */
    kvf_engine_inbox *hub_next; /* in the hub */
    kvf_bytes arrived;          /* under the hub's lock: u32 length, payload, ... */
};

struct loop_engine {
    kvf_engine base;
    kvf_engine_callbacks callbacks;
    kvf_transfers transfers;
    uint64_t id; /* of its regions' keys: its own inbox's */
    int wake;
    kvf_engine_inbox *inboxes; /* the last is its own */
    kvf_engine_inbox *own;
    kvf_put *pending; /* oldest first */
    kvf_put *pending_last;
    kvf_engine_peer *peers;
    kvf_engine_peer *failed; /* to be reported */
    /* Under the hub's lock: */
    loop_region **regions;
    size_t region_count;
};

struct kvf_engine_peer {
    kvf_transfers_peer base;
    loop_engine *engine;
    uint64_t id;        /* of the inbox */
    uint64_t engine_id; /* of the engine behind it */
    void *user;
    uint64_t *regions; /* remote region -> the target's region */
    size_t region_count;
    kvf_engine_peer *next; /* of the engine's */
    kvf_engine_peer *next_failed;
};

static pthread_mutex_t hub_lock = PTHREAD_MUTEX_INITIALIZER;
static kvf_engine_inbox *hub_inboxes;
static uint64_t hub_next_id = 1;

static loop_engine *loop_of(kvf_engine *engine)
{
    return (loop_engine *)(void *)engine;
}

static const loop_engine *loop_of_const(const kvf_engine *engine)
{
    return (const loop_engine *)(const void *)engine;
}

/* Under the hub's lock. */
static kvf_engine_inbox *hub_find(uint64_t id)
{
    kvf_engine_inbox *inbox = hub_inboxes;
    while (inbox != NULL && inbox->id != id)
        inbox = inbox->hub_next;
    return inbox;
}

static void wake(int descriptor)
{
    uint64_t one = 1;
    while (write(descriptor, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

/* ---- Transport ---- */

static kvf_outcome loop_put(void *context, kvf_put *put)
{
    loop_engine *engine = context;
    put->next = NULL;
    if (engine->pending == NULL)
        engine->pending = put;
    else
        engine->pending_last->next = put;
    engine->pending_last = put;
    return KVF_OUTCOME_PENDING;
}

static void peer_gone(kvf_engine_peer *peer)
{
    if (peer->base.failed)
        return;
    kvf_transfers_peer_failed(&peer->engine->transfers, &peer->base, "the peer's inbox is closed");
    peer->next_failed = peer->engine->failed;
    peer->engine->failed = peer;
}

static bool inside(const loop_region *region, uint64_t address, uint64_t length)
{
    return address >= region->base && length <= region->length &&
           address - region->base <= region->length - length;
}

static void carry_out(loop_engine *engine, kvf_put *put)
{
    kvf_transfer *transfer = put->transfer;
    kvf_engine_peer *peer = transfer->peer;
    const kvf_write *write = &put->write;
    pthread_mutex_lock(&hub_lock);
    const kvf_engine_inbox *inbox = hub_find(peer->id);
    const loop_engine *target = inbox == NULL ? NULL : inbox->engine;
    if (target == NULL) {
        peer_gone(peer);
        kvf_transfers_fail(transfer, KVF_PEER_GONE, "%s", peer->base.failure);
    } else if (write->source_region >= engine->region_count ||
               !inside(engine->regions[write->source_region], write->source, write->length) ||
               write->destination_region >= peer->region_count ||
               !inside(target->regions[peer->regions[write->destination_region]],
                       write->destination, write->length)) {
        kvf_transfers_fail(transfer, KVF_TRANSPORT, "a write of %llu bytes lies outside its region",
                           (unsigned long long)write->length);
    } else {
        memcpy((void *)(uintptr_t)write->destination, (const void *)(uintptr_t)write->source,
               write->length);
    }
    pthread_mutex_unlock(&hub_lock);
    kvf_transfers_put_ended(&engine->transfers, put);
}

static kvf_outcome loop_flush(void *context, kvf_transfer *transfer)
{
    (void)context;
    (void)transfer;
    return KVF_OUTCOME_DONE; /* memcpy is */
}

/* Under the hub's lock. All of it or nothing. */
static bool leave_notification(kvf_bytes *arrived, const kvf_transfer_part *part)
{
    size_t before = arrived->length;
    kvf_bytes_append(arrived, &part->payload_length, sizeof part->payload_length);
    kvf_bytes_append(arrived, part->payload, part->payload_length);
    bool whole = !arrived->failed;
    if (!whole)
        arrived->length = before;
    arrived->failed = false;
    return whole;
}

static kvf_outcome loop_notify(void *context, kvf_transfer *transfer, const kvf_transfer_part *part)
{
    (void)context;
    kvf_engine_peer *peer = transfer->peer;
    bool left = false;
    pthread_mutex_lock(&hub_lock);
    kvf_engine_inbox *target = hub_find(peer->id);
    if (target != NULL) {
        left = leave_notification(&target->arrived, part);
        wake(target->engine->wake);
    }
    pthread_mutex_unlock(&hub_lock);
    if (left)
        return KVF_OUTCOME_DONE;
    if (target == NULL) {
        peer_gone(peer);
        kvf_transfers_fail(transfer, KVF_PEER_GONE, "%s", peer->base.failure);
    } else {
        kvf_transfers_fail(transfer, KVF_NO_MEMORY, "no memory for a notification");
    }
    return KVF_OUTCOME_FAILED;
}

static const kvf_transport loop_transport = {loop_put, loop_flush, loop_notify};

/* ---- Regions and peers ---- */

static kvf_status loop_add_region(kvf_engine *base, const kvf_buffer *buffer, uint32_t *index,
                                  kvf_error *error)
{
    loop_engine *engine = loop_of(base);
    loop_region *region = calloc(1, sizeof *region);
    pthread_mutex_lock(&hub_lock);
    loop_region **regions =
        realloc(engine->regions, (engine->region_count + 1) * sizeof(loop_region *));
    if (regions != NULL)
        engine->regions = regions;
    bool enough = region != NULL && regions != NULL;
    if (enough) {
        region->base = buffer->base;
        region->length = buffer->length;
        kvf_write_u64(region->key, 1);
        region->key[KEY_HEAD - 1] = KEY_LENGTH - KEY_HEAD;
        kvf_write_u64(region->key + KEY_HEAD, engine->id);
        kvf_write_u64(region->key + KEY_HEAD + 8, engine->region_count);
        *index = (uint32_t)engine->region_count;
        engine->regions[engine->region_count++] = region;
    }
    pthread_mutex_unlock(&hub_lock);
    if (enough)
        return KVF_OK;
    free(region);
    return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a region");
}

static kvf_slice loop_inbox_address(const kvf_engine_inbox *inbox)
{
    return (kvf_slice){inbox->address, ADDRESS_LENGTH};
}

static kvf_slice loop_address(const kvf_engine *base)
{
    return loop_inbox_address(loop_of_const(base)->own);
}

static kvf_slice loop_region_key(const kvf_engine *base, uint32_t index)
{
    return (kvf_slice){loop_of_const(base)->regions[index]->key, KEY_LENGTH};
}

static kvf_status loop_connect(kvf_engine *base, kvf_slice address, void *user,
                               kvf_engine_peer **peer, kvf_error *error)
{
    *peer = NULL;
    if (address.length != ADDRESS_LENGTH || memcmp(address.data, "loop", 4) != 0)
        return kvf_error_set(error, KVF_TRANSPORT,
                             "the peer's address isn't one of the loop engine: both sides need "
                             "engine=loop");
    uint64_t id = kvf_read_u64(address.data + 12);
    pthread_mutex_lock(&hub_lock);
    const kvf_engine_inbox *inbox =
        kvf_read_u64(address.data + 4) == (uint64_t)getpid() ? hub_find(id) : NULL;
    uint64_t engine_id = inbox == NULL ? 0 : inbox->engine->id;
    pthread_mutex_unlock(&hub_lock);
    if (engine_id == 0)
        return kvf_error_set(error, KVF_TRANSPORT,
                             "no loop engine %llu in this process: loop moves bytes inside one "
                             "process only",
                             (unsigned long long)id);
    kvf_engine_peer *made = calloc(1, sizeof *made);
    if (made == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a peer");
    made->engine = loop_of(base);
    made->id = id;
    made->engine_id = engine_id;
    made->user = user;
    made->next = made->engine->peers;
    made->engine->peers = made;
    *peer = made;
    return KVF_OK;
}

static kvf_status loop_add_remote_region(kvf_engine_peer *peer, kvf_slice key, uint32_t *index,
                                         kvf_error *error)
{
    bool sound = key.length == KEY_LENGTH && kvf_read_u64(key.data + KEY_HEAD) == peer->engine_id;
    uint64_t region = sound ? kvf_read_u64(key.data + KEY_HEAD + 8) : 0;
    pthread_mutex_lock(&hub_lock);
    const kvf_engine_inbox *target = hub_find(peer->id);
    sound = sound && target != NULL && region < target->engine->region_count;
    pthread_mutex_unlock(&hub_lock);
    if (!sound)
        return kvf_error_set(error, KVF_TRANSPORT, "not a key of the peer's loop engine");
    uint64_t *regions = realloc(peer->regions, (peer->region_count + 1) * sizeof *regions);
    if (regions == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a remote region");
    regions[peer->region_count] = region;
    peer->regions = regions;
    *index = (uint32_t)peer->region_count++;
    return KVF_OK;
}

static void *loop_peer_user(const kvf_engine_peer *peer)
{
    return peer->user;
}

static void loop_disconnect(kvf_engine *base, kvf_engine_peer *peer)
{
    loop_engine *engine = loop_of(base);
    kvf_engine_peer **link = &engine->failed;
    while (*link != NULL && *link != peer)
        link = &(*link)->next_failed;
    if (*link == peer)
        *link = peer->next_failed;
    for (link = &engine->peers; *link != peer;)
        link = &(*link)->next;
    *link = peer->next;
    free(peer->regions);
    free(peer);
}

/* ---- Progress ---- */

static kvf_status loop_post(kvf_engine *base, kvf_transfer *transfer, kvf_error *error)
{
    return kvf_transfers_post(&loop_of(base)->transfers, transfer, error);
}

static void loop_cancel(kvf_engine *base, kvf_transfer *transfer)
{
    kvf_transfers_cancel(&loop_of(base)->transfers, transfer);
}

static bool carry_out_some(loop_engine *engine)
{
    int puts = 0;
    for (; puts < PUTS_AT_ONCE && engine->pending != NULL && kvf_engine_may_post(&engine->base);
         puts++) {
        kvf_put *put = engine->pending;
        engine->pending = put->next;
        carry_out(engine, put);
    }
    return puts > 0;
}

static bool deliver(kvf_engine_inbox *inbox)
{
    pthread_mutex_lock(&hub_lock);
    kvf_bytes arrived = inbox->arrived;
    inbox->arrived = (kvf_bytes){0};
    pthread_mutex_unlock(&hub_lock);
    kvf_cursor cursor = kvf_cursor_over(kvf_bytes_slice(&arrived));
    kvf_slice head;
    kvf_slice payload;
    while (kvf_cursor_take(&cursor, sizeof(uint32_t), &head)) {
        uint32_t length;
        memcpy(&length, head.data, sizeof length);
        if (kvf_cursor_take(&cursor, length, &payload))
            inbox->notified(inbox->user, payload);
    }
    bool any = arrived.length > 0;
    kvf_bytes_free(&arrived);
    return any;
}

/* Callbacks close no inbox: the list stays as it is. */
static bool deliver_all(loop_engine *engine)
{
    bool any = false;
    for (kvf_engine_inbox *inbox = engine->inboxes; inbox != NULL; inbox = inbox->next)
        any = deliver(inbox) || any;
    return any;
}

static void report_failed(loop_engine *engine)
{
    while (engine->failed != NULL) {
        kvf_engine_peer *peer = engine->failed;
        engine->failed = peer->next_failed;
        engine->callbacks.peer_failed(engine->callbacks.user, peer, peer->base.failure);
    }
}

static bool loop_progress(kvf_engine *base, uint64_t budget)
{
    loop_engine *engine = loop_of(base);
    uint64_t deadline = kvf_clock_after(kvf_clock_now(), budget);
    for (;;) {
        if (!kvf_engine_may_post(base))
            return true;
        bool moved = carry_out_some(engine);
        moved = deliver_all(engine) || moved;
        moved = kvf_transfers_advance(&engine->transfers) || moved;
        report_failed(engine);
        if (!moved)
            return false;
        if (kvf_clock_now() >= deadline)
            return true;
    }
}

/* The descriptor is emptied before the inbox is looked at: what comes after fills it again. */
static bool loop_arm(kvf_engine *base)
{
    loop_engine *engine = loop_of(base);
    uint64_t count;
    while (read(engine->wake, &count, sizeof count) < 0 && errno == EINTR)
        continue;
    pthread_mutex_lock(&hub_lock);
    bool idle = true;
    for (const kvf_engine_inbox *inbox = engine->inboxes; inbox != NULL; inbox = inbox->next)
        idle = idle && inbox->arrived.length == 0;
    pthread_mutex_unlock(&hub_lock);
    return idle && engine->pending == NULL && engine->failed == NULL &&
           !kvf_transfers_have_work(&engine->transfers);
}

static int loop_descriptor(const kvf_engine *base)
{
    return loop_of_const(base)->wake;
}

/* ---- Open and close ---- */

static void hub_leave(kvf_engine_inbox *inbox)
{
    pthread_mutex_lock(&hub_lock);
    kvf_engine_inbox **link = &hub_inboxes;
    while (*link != inbox)
        link = &(*link)->hub_next;
    *link = inbox->hub_next;
    pthread_mutex_unlock(&hub_lock);
}

/* Writers look the inbox up under the hub's lock for each write: after this none finds it. */
static void loop_close_inbox(kvf_engine *base, kvf_engine_inbox *inbox)
{
    kvf_engine_inbox **link = &loop_of(base)->inboxes;
    hub_leave(inbox);
    while (*link != inbox)
        link = &(*link)->next;
    *link = inbox->next;
    kvf_bytes_free(&inbox->arrived);
    free(inbox);
}

static bool loop_inbox_is_direct(const kvf_engine_inbox *inbox)
{
    (void)inbox;
    return false;
}

static void loop_close(kvf_engine *base)
{
    loop_engine *engine = loop_of(base);
    while (engine->inboxes != NULL)
        loop_close_inbox(base, engine->inboxes);
    while (engine->peers != NULL)
        loop_disconnect(base, engine->peers);
    kvf_transfers_close(&engine->transfers);
    for (size_t i = 0; i < engine->region_count; i++)
        free(engine->regions[i]);
    free(engine->regions);
    if (engine->wake >= 0)
        (void)close(engine->wake);
    free(engine);
}

static void hub_enter(kvf_engine_inbox *inbox)
{
    pthread_mutex_lock(&hub_lock);
    inbox->id = hub_next_id++;
    inbox->hub_next = hub_inboxes;
    hub_inboxes = inbox;
    pthread_mutex_unlock(&hub_lock);
    memcpy(inbox->address, "loop", 4);
    kvf_write_u64(inbox->address + 4, (uint64_t)getpid());
    kvf_write_u64(inbox->address + 12, inbox->id);
}

static kvf_status loop_open_inbox(kvf_engine *base, const kvf_inbox_options *options,
                                  kvf_engine_inbox **inbox, kvf_error *error)
{
    loop_engine *engine = loop_of(base);
    *inbox = calloc(1, sizeof **inbox);
    if (*inbox == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for an inbox");
    (*inbox)->engine = engine;
    (*inbox)->user = options->user;
    (*inbox)->notified = options->notified;
    (*inbox)->next = engine->inboxes;
    engine->inboxes = *inbox;
    hub_enter(*inbox);
    return KVF_OK;
}

static const kvf_engine_operations loop_operations = {
    .close = loop_close,
    .add_region = loop_add_region,
    .open_inbox = loop_open_inbox,
    .close_inbox = loop_close_inbox,
    .inbox_address = loop_inbox_address,
    .inbox_is_direct = loop_inbox_is_direct,
    .address = loop_address,
    .region_key = loop_region_key,
    .portable_region_key = loop_region_key,
    .connect = loop_connect,
    .add_remote_region = loop_add_remote_region,
    .peer_user = loop_peer_user,
    .disconnect = loop_disconnect,
    .post = loop_post,
    .cancel = loop_cancel,
    .progress = loop_progress,
    .arm = loop_arm,
    .descriptor = loop_descriptor,
};

kvf_status kvf_loop_open(const kvf_settings *settings, const kvf_engine_callbacks *callbacks,
                         kvf_engine **engine, kvf_error *error)
{
    *engine = NULL;
    loop_engine *made = calloc(1, sizeof *made);
    if (made == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a data engine");
    made->base.operations = &loop_operations;
    made->callbacks = *callbacks;
    made->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    kvf_status status =
        made->wake < 0
            ? kvf_error_set(error, KVF_SYSTEM, "eventfd: %s", strerror(errno))
            : kvf_transfers_open(&made->transfers, settings, &loop_transport, &made->base, error);
    kvf_inbox_options own = {.user = callbacks->user, .notified = callbacks->notified};
    if (status == KVF_OK)
        status = loop_open_inbox(&made->base, &own, &made->own, error);
    if (status != KVF_OK) {
        loop_close(&made->base);
        return status;
    }
    made->id = made->own->id;
    *engine = &made->base;
    return KVF_OK;
}
