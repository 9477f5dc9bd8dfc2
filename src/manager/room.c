/* The rooms table, the queue of calls and the list of events: all that API threads and the loop share. */
#include "manager/manager.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void kvf_count(kvf_manager *manager, kvf_counter counter, uint64_t amount)
{
    (void)atomic_fetch_add_explicit(&manager->counters[counter], amount, memory_order_relaxed);
}

void kvf_uncount(kvf_manager *manager, kvf_counter counter, uint64_t amount)
{
    (void)atomic_fetch_sub_explicit(&manager->counters[counter], amount, memory_order_relaxed);
}

uint64_t kvf_counter_value(kvf_manager *manager, kvf_counter counter)
{
    return atomic_load_explicit(&manager->counters[counter], memory_order_relaxed);
}

bool kvf_worth_logging(uint64_t count)
{
    return (count & (count - 1)) == 0;
}

void kvf_drop_message(kvf_manager *manager, const char *why)
{
    kvf_count(manager, KVF_COUNT_MESSAGES_DROPPED, 1);
    uint64_t count = kvf_counter_value(manager, KVF_COUNT_MESSAGES_DROPPED);
    if (why != NULL && kvf_worth_logging(count))
        kvf_log_warning(&manager->settings.log,
                        "a control message was dropped, the %llu. so far: %s",
                        (unsigned long long)count, why);
}

void kvf_drop_notification(kvf_manager *manager, const char *why)
{
    kvf_count(manager, KVF_COUNT_NOTIFICATIONS_DROPPED, 1);
    uint64_t count = kvf_counter_value(manager, KVF_COUNT_NOTIFICATIONS_DROPPED);
    if (kvf_worth_logging(count))
        kvf_log_info(&manager->settings.log, "a notification was dropped, the %llu. so far: %s",
                     (unsigned long long)count, why);
}

static void signal_descriptor(int descriptor)
{
    uint64_t one = 1;
    /* Can't fail: the counter is far from its maximum, and a full one would be readable anyway. */
    ssize_t written = write(descriptor, &one, sizeof one);
    (void)written;
}

static void clear_descriptor(int descriptor)
{
    uint64_t value;
    ssize_t taken = read(descriptor, &value, sizeof value);
    (void)taken;
}

kvf_status kvf_room_check_options(const kvf_room_options *options)
{
    if (options == NULL)
        return KVF_OK;
    if (options->size < offsetof(kvf_room_options, verify))
        return kvf_last_error_set(KVF_INVALID_ARGUMENT,
                                  "set options->size to sizeof(kvf_room_options)");
    if (options->size >= sizeof *options && options->verify > KVF_VERIFY_REQUIRED)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "options->verify is %u, no kvf_verify",
                                  options->verify);
    return KVF_OK;
}

/* The two bytes in their order in memory, whatever the machine's is. */
static unsigned short as_view(kvf_poll state, kvf_safety safety)
{
    const unsigned char bytes[sizeof(unsigned short)] = {(unsigned char)state,
                                                         (unsigned char)safety};
    unsigned short view;
    memcpy(&view, bytes, sizeof view);
    return view;
}

static void prepare(kvf_room *room, kvf_manager *manager, uint64_t id,
                    const kvf_room_options *options)
{
    room->manager = manager;
    room->id = id;
    room->user = options == NULL ? NULL : options->user;
    atomic_init(&room->view, as_view(KVF_BOOTSTRAPPING, KVF_PAGES_IN_USE));
    atomic_init(&room->proof, KVF_PROOF_NONE);
    atomic_init(&room->verified, 0);
    atomic_init(&room->status, KVF_OK);
    atomic_init(&room->bytes, 0);
    room->open_call = (kvf_call){.room = room, .kind = KVF_CALL_OPEN};
    room->abort_call = (kvf_call){.room = room, .kind = KVF_CALL_ABORT};
    room->close_call = (kvf_call){.room = room, .kind = KVF_CALL_CLOSE};
}

/* With the lock held. */
static kvf_status insert_locked(kvf_room *room, kvf_manager *manager)
{
    kvf_room *other = NULL;
    HASH_FIND(by_id, manager->rooms, &room->id, sizeof room->id, other);
    if (other != NULL)
        return kvf_last_error_set(KVF_BUSY, "room %llu is open already; close it first",
                                  (unsigned long long)room->id);
    if (HASH_CNT(by_id, manager->rooms) >= manager->settings.max_rooms)
        return kvf_last_error_set(KVF_LIMIT,
                                  "%llu rooms are open; setting max_rooms allows no more",
                                  (unsigned long long)manager->settings.max_rooms);
    unsigned before = HASH_CNT(by_id, manager->rooms);
    HASH_ADD(by_id, manager->rooms, id, sizeof room->id, room);
    if (HASH_CNT(by_id, manager->rooms) == before)
        return kvf_last_error_set(KVF_NO_MEMORY, "no memory for the rooms table");
    room->in_table = true;
    kvf_call_queue(&room->open_call);
    return KVF_OK;
}

kvf_status kvf_room_insert(kvf_room *room, kvf_manager *manager, uint64_t id,
                           const kvf_room_options *options)
{
    prepare(room, manager, id, options);
    pthread_mutex_lock(&manager->lock);
    kvf_status status = insert_locked(room, manager);
    pthread_mutex_unlock(&manager->lock);
    if (status == KVF_OK)
        kvf_count(manager, KVF_COUNT_ROOMS_OPENED, 1);
    return status;
}

kvf_room *kvf_room_find(kvf_manager *manager, uint64_t id)
{
    kvf_room *room = NULL;
    pthread_mutex_lock(&manager->lock);
    HASH_FIND(by_id, manager->rooms, &id, sizeof id, room);
    pthread_mutex_unlock(&manager->lock);
    return room;
}

kvf_call *kvf_call_new(kvf_room *room, kvf_call_kind kind, const uint32_t *pages, size_t count)
{
    kvf_call *call = malloc(sizeof *call + count * sizeof *pages);
    if (call == NULL)
        return NULL;
    *call = (kvf_call){.room = room, .kind = kind, .page_count = (uint32_t)count};
    call->pages = (uint32_t *)(call + 1);
    if (count > 0)
        memcpy(call->pages, pages, count * sizeof *pages);
    return call;
}

void kvf_call_queue(kvf_call *call)
{
    kvf_manager *manager = call->room->manager;
    call->next = NULL;
    if (manager->calls == NULL)
        manager->calls = call;
    else
        manager->calls_tail->next = call;
    if (manager->calls == call)
        signal_descriptor(manager->wake_fd);
    manager->calls_tail = call;
}

void kvf_wake(kvf_manager *manager)
{
    signal_descriptor(manager->wake_fd);
}

kvf_call *kvf_calls_take(kvf_manager *manager)
{
    pthread_mutex_lock(&manager->lock);
    kvf_call *calls = manager->calls;
    /* The order to stop comes with the same descriptor, and without a call. */
    if (calls != NULL || manager->stopping)
        clear_descriptor(manager->wake_fd);
    manager->calls = NULL;
    manager->calls_tail = NULL;
    pthread_mutex_unlock(&manager->lock);
    return calls;
}

void kvf_room_abort(kvf_room *room)
{
    if (room == NULL)
        return;
    pthread_mutex_lock(&room->manager->lock);
    if (!room->abort_queued) {
        room->abort_queued = true;
        kvf_call_queue(&room->abort_call);
    }
    pthread_mutex_unlock(&room->manager->lock);
}

/* With the lock held. */
static void drop_event(kvf_room *room)
{
    if (!room->event_pending)
        return;
    kvf_manager *manager = room->manager;
    room->event_pending = false;
    DL_DELETE(manager->events, room);
    if (manager->events == NULL)
        clear_descriptor(manager->event_fd);
}

/* The id is free from here on; the loop frees the room when nothing refers to it any more. */
void kvf_room_close(kvf_room *room)
{
    if (room == NULL)
        return;
    kvf_manager *manager = room->manager;
    pthread_mutex_lock(&manager->lock);
    HASH_DELETE(by_id, manager->rooms, room);
    room->in_table = false;
    drop_event(room);
    kvf_call_queue(&room->close_call);
    pthread_mutex_unlock(&manager->lock);
}

static kvf_poll published_state(const kvf_room *room)
{
    return (kvf_poll)atomic_load_explicit(&room->state, memory_order_acquire);
}

static kvf_safety published_safety(const kvf_room *room)
{
    return (kvf_safety)atomic_load_explicit(&room->safety, memory_order_acquire);
}

static bool is_settled(const kvf_room *room)
{
    kvf_poll state = published_state(room);
    return (state == KVF_FAILED || state == KVF_SUCCESS) &&
           published_safety(room) != KVF_PAGES_IN_USE;
}

/* The proof was stored before the safety that it belongs to. */
kvf_proof kvf_room_proof(const kvf_room *room)
{
    if (published_safety(room) != KVF_PAGES_SAFE)
        return KVF_PROOF_NONE;
    return (kvf_proof)atomic_load_explicit(&room->proof, memory_order_relaxed);
}

kvf_safety kvf_room_wait(kvf_room *room, int timeout_ms)
{
    kvf_manager *manager = room->manager;
    struct timespec until = kvf_clock_timespec(
        timeout_ms < 0 ? KVF_NEVER
                       : kvf_clock_after(kvf_clock_now(), (uint64_t)timeout_ms * KVF_MILLISECOND));
    pthread_mutex_lock(&manager->lock);
    bool more = true;
    while (more && !is_settled(room))
        more = pthread_cond_timedwait(&manager->settled, &manager->lock, &until) != ETIMEDOUT;
    pthread_mutex_unlock(&manager->lock);
    return published_safety(room);
}

static void count_end(kvf_room *room, const kvf_outcome *outcome)
{
    kvf_poll before = published_state(room);
    if (before == KVF_FAILED || before == KVF_SUCCESS)
        return; /* only the safety has changed */
    if (outcome->state == KVF_SUCCESS)
        kvf_count(room->manager, KVF_COUNT_ROOMS_SUCCEEDED, 1);
    if (outcome->state != KVF_FAILED)
        return;
    kvf_count(room->manager, KVF_COUNT_ROOMS_FAILED, 1);
    kvf_log_level level = outcome->error.status == KVF_ABORTED ? KVF_LOG_DEBUG : KVF_LOG_INFO;
    kvf_log_line(&room->manager->settings.log, level, "room %llu failed (%s): %s",
                 (unsigned long long)room->id, kvf_status_name(outcome->error.status),
                 outcome->error.text);
}

static void count_fencing(kvf_room *room, const kvf_outcome *outcome, bool was_fencing)
{
    bool fencing = outcome->state == KVF_FAILED && outcome->safety == KVF_PAGES_IN_USE;
    if (fencing && !was_fencing)
        kvf_count(room->manager, KVF_COUNT_ROOMS_FENCING, 1);
    if (was_fencing && !fencing)
        kvf_uncount(room->manager, KVF_COUNT_ROOMS_FENCING, 1);
    if (outcome->safety != KVF_PAGES_RELEASED)
        return;
    kvf_count(room->manager, KVF_COUNT_ROOMS_RELEASED, 1);
    kvf_log_line(&room->manager->settings.log, KVF_LOG_WARNING,
                 "room %llu: its pages are given back after fence_timeout without a proof that "
                 "nothing touches them any more",
                 (unsigned long long)room->id);
}

/* Large writes over shared memory hang or are lost between UCX before 1.19 and newer ones; neither side
 * hears more of it than silence. */
void kvf_suspect_old_ucx(const kvf_manager *manager, kvf_status cause, kvf_error *error)
{
    if (manager->settings.engine != 0 || kvf_ucx_is_at_least(19) ||
        (cause != KVF_TIMEOUT && cause != KVF_PEER_GONE && cause != KVF_TRANSPORT))
        return;
    size_t length = strlen(error->text);
    (void)snprintf(error->text + length, sizeof error->text - length,
                   "; this side is on UCX %s, which doesn't meet 1.19 and newer ones over shared "
                   "memory: run both sides on 1.19 or newer, or on transports=tcp",
                   kvf_ucx_version());
}

/* With the lock held, as an event is filled: it tells of one publication. */
static void store(kvf_room *room, const kvf_outcome *outcome, uint64_t bytes)
{
    atomic_store_explicit(&room->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&room->status, (unsigned)outcome->error.status, memory_order_relaxed);
    atomic_store_explicit(&room->proof, (unsigned char)outcome->proof, memory_order_relaxed);
    atomic_store_explicit(&room->view, as_view(outcome->state, outcome->safety),
                          memory_order_release);
}

void kvf_room_publish(kvf_room *room, kvf_outcome *outcome, uint64_t bytes)
{
    kvf_manager *manager = room->manager;
    bool was_fencing = published_state(room) == KVF_FAILED;
    if (!was_fencing && outcome->state == KVF_FAILED)
        kvf_suspect_old_ucx(manager, outcome->error.status, &outcome->error);
    count_end(room, outcome);
    count_fencing(room, outcome, was_fencing);
    pthread_mutex_lock(&manager->lock);
    store(room, outcome, bytes);
    if (is_settled(room))
        pthread_cond_broadcast(&manager->settled);
    if (room->in_table && !room->event_pending) {
        room->event_pending = true;
        if (manager->events == NULL)
            signal_descriptor(manager->event_fd);
        DL_APPEND(manager->events, room);
    }
    pthread_mutex_unlock(&manager->lock);
}

static void fill_event(kvf_event *event, kvf_room *room)
{
    memset(event, 0, sizeof *event);
    event->size = sizeof *event;
    event->room = room->id;
    event->user = room->user;
    event->state = atomic_load_explicit(&room->state, memory_order_acquire);
    event->bytes = atomic_load_explicit(&room->bytes, memory_order_relaxed);
    event->status = atomic_load_explicit(&room->status, memory_order_relaxed);
    event->safety = atomic_load_explicit(&room->safety, memory_order_acquire);
    event->proof = atomic_load_explicit(&room->proof, memory_order_relaxed);
    /* Noted before the Success that it is about is published. */
    event->verified = event->state == KVF_SUCCESS
                          ? atomic_load_explicit(&room->verified, memory_order_relaxed)
                          : 0;
}

int kvf_events_take(kvf_manager *manager, kvf_event *events, size_t capacity)
{
    int count = 0;
    pthread_mutex_lock(&manager->lock);
    while (manager->events != NULL && (size_t)count < capacity) {
        kvf_room *room = manager->events;
        drop_event(room);
        fill_event(&events[count++], room);
    }
    pthread_mutex_unlock(&manager->lock);
    return count;
}
