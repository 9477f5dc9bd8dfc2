/* The prefill side of a room: the public calls, and what the loop does for them. */
#include "manager/agent.h"

#include <stdlib.h>

/* ---- API threads -------------------------------------------------------------------------------- */

static kvf_status check_open(const kvf_manager *manager, uint64_t room,
                             const kvf_room_options *options, kvf_sender *const *sender)
{
    if (manager == NULL || sender == NULL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "kvf_sender_open: an argument is NULL");
    if (manager->role != KVF_PREFILL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "senders belong to prefill managers");
    if (room > KVF_ROOM_MAX)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "room %llu: rooms are below 2^63",
                                  (unsigned long long)room);
    return kvf_room_check_options(options);
}

kvf_status kvf_sender_open(kvf_manager *manager, uint64_t room, const kvf_room_options *options,
                           kvf_sender **sender)
{
    if (sender != NULL)
        *sender = NULL;
    kvf_status status = check_open(manager, room, options, sender);
    if (status != KVF_OK)
        return status;
    kvf_sender *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return kvf_last_error_set(KVF_NO_MEMORY, "no memory for a room");
    kvf_sender_machine_init(&opened->machine, manager->profile, &manager->timeouts,
                            (uint32_t)manager->settings.max_destinations);
    opened->room.timer.fire = kvf_sender_timer;
    status = kvf_room_insert(&opened->room, manager, room, options);
    if (status != KVF_OK)
        free(opened);
    else
        *sender = opened;
    return status;
}

/* With the lock held. */
static kvf_status expect_locked(kvf_sender *sender, uint32_t page_count, kvf_call *call)
{
    kvf_room *room = &sender->room;
    if (room->expected)
        return kvf_last_error_set(KVF_WRONG_STATE, "room %llu: expect() was called already",
                                  (unsigned long long)room->id);
    room->expected = true;
    room->pages_expected = page_count;
    kvf_call_queue(call);
    return KVF_OK;
}

kvf_status kvf_sender_expect(kvf_sender *sender, uint32_t page_count, uint32_t aux_slot)
{
    if (sender == NULL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "kvf_sender_expect: sender is NULL");
    kvf_manager *manager = sender->room.manager;
    if (page_count > manager->settings.max_pages)
        return kvf_last_error_set(KVF_LIMIT, "%u pages; setting max_pages allows %llu", page_count,
                                  (unsigned long long)manager->settings.max_pages);
    if (manager->pool.aux_count > 0 && aux_slot >= manager->pool.aux_slot_limit)
        return kvf_last_error_set(KVF_OUT_OF_RANGE, "aux slot %u; the aux buffers have %u slots",
                                  aux_slot, manager->pool.aux_slot_limit);
    kvf_call *call = kvf_call_new(&sender->room, KVF_CALL_EXPECT, NULL, 0);
    if (call == NULL)
        return kvf_last_error_set(KVF_NO_MEMORY, "no memory for a call");
    call->page_count = page_count;
    call->aux_slot = aux_slot;
    pthread_mutex_lock(&manager->lock);
    kvf_status status = expect_locked(sender, page_count, call);
    pthread_mutex_unlock(&manager->lock);
    if (status != KVF_OK)
        free(call);
    return status;
}

/* With the lock held. *queued: the call is the loop's. An empty send says something only in a room of no pages,
 * and only once. */
static kvf_status send_locked(kvf_room *room, size_t page_count, kvf_call *call, bool *queued)
{
    if (!room->expected)
        return kvf_last_error_set(KVF_WRONG_STATE, "room %llu: send() before expect()",
                                  (unsigned long long)room->id);
    if (page_count > room->pages_expected - room->pages_given)
        return kvf_last_error_set(
            KVF_OUT_OF_RANGE, "room %llu: %zu more pages than expect() said (%u, %u given already)",
            (unsigned long long)room->id, page_count, room->pages_expected, room->pages_given);
    if (page_count == 0 && (room->pages_expected > 0 || room->all_given))
        return KVF_OK;
    room->pages_given += (uint32_t)page_count;
    room->all_given = room->pages_given == room->pages_expected;
    kvf_call_queue(call);
    *queued = true;
    return KVF_OK;
}

kvf_status kvf_sender_send(kvf_sender *sender, const uint32_t *pages, size_t page_count)
{
    if (sender == NULL || (pages == NULL && page_count > 0))
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "kvf_sender_send: an argument is NULL");
    kvf_manager *manager = sender->room.manager;
    if (kvf_sender_poll(sender) == KVF_FAILED)
        return kvf_last_error_set(kvf_sender_status(sender), "room %llu has failed: %s",
                                  (unsigned long long)sender->room.id,
                                  kvf_sender_failure_text(sender));
    if (page_count > manager->settings.max_pages)
        return kvf_last_error_set(KVF_OUT_OF_RANGE, "%zu pages; setting max_pages allows %llu",
                                  page_count, (unsigned long long)manager->settings.max_pages);
    kvf_error error;
    if (kvf_pages_check(pages, page_count, manager->pool.page_limit, "source page", &error) !=
        KVF_OK)
        return kvf_last_error_keep(&error);
    kvf_call *call = kvf_call_new(&sender->room, KVF_CALL_SEND, pages, page_count);
    if (call == NULL)
        return kvf_last_error_set(KVF_NO_MEMORY, "no memory for a chunk");
    bool queued = false;
    pthread_mutex_lock(&manager->lock);
    kvf_status status = send_locked(&sender->room, page_count, call, &queued);
    pthread_mutex_unlock(&manager->lock);
    if (!queued)
        free(call);
    return status;
}

void kvf_sender_abort(kvf_sender *sender)
{
    kvf_room_abort((kvf_room *)sender);
}

kvf_poll kvf_sender_poll(const kvf_sender *sender)
{
    return (kvf_poll)atomic_load_explicit(&sender->room.state, memory_order_acquire);
}

kvf_status kvf_sender_status(const kvf_sender *sender)
{
    return (kvf_status)atomic_load_explicit(&sender->room.status, memory_order_acquire);
}

kvf_safety kvf_sender_safety(const kvf_sender *sender)
{
    return (kvf_safety)atomic_load_explicit(&sender->room.safety, memory_order_acquire);
}

kvf_proof kvf_sender_proof(const kvf_sender *sender)
{
    return kvf_room_proof(&sender->room);
}

const uint8_t *kvf_sender_view(const kvf_sender *sender)
{
    return (const uint8_t *)&sender->room.state;
}

kvf_safety kvf_sender_wait(kvf_sender *sender, int timeout_ms)
{
    return kvf_room_wait(&sender->room, timeout_ms);
}

const char *kvf_sender_failure_text(const kvf_sender *sender)
{
    return kvf_sender_poll(sender) == KVF_FAILED ? sender->machine.outcome.error.text : "";
}

void kvf_sender_close(kvf_sender *sender)
{
    kvf_room_close((kvf_room *)sender);
}

/* ---- Loop --------------------------------------------------------------------------------------- */

/* Who gave the room up itself hears that it is over instead. */
static void tell_failed(kvf_sender *sender)
{
    kvf_incoming *incoming;
    DL_FOREACH(sender->incoming, incoming)
    {
        if (!incoming->stop_wanted)
            kvf_letters_failed(incoming->agent, &incoming->request, &sender->machine.outcome.error);
    }
}

static void carry_out(kvf_sender *sender, const kvf_action *action)
{
    kvf_room *room = &sender->room;
    switch (action->kind) {
    case KVF_ACTION_TIMER:
        if (room->opened) /* else there was no memory for its timer, and nothing is under way */
            kvf_timers_set(&room->manager->timers, &room->timer, action->deadline);
        break;
    case KVF_ACTION_POST:
        kvf_sums_post(sender, action->first_chunk, action->chunk_count);
        break;
    case KVF_ACTION_STOP:
        kvf_sums_stop(sender);
        kvf_deliveries_cancel(sender);
        tell_failed(sender);
        break;
    case KVF_ACTION_PUBLISH:
        if (sender->machine.outcome.state == KVF_SUCCESS && kvf_sums_all_verified(sender))
            atomic_store_explicit(&room->verified, 1, memory_order_relaxed);
        kvf_room_publish(room, &sender->machine.outcome,
                         atomic_load_explicit(&room->bytes, memory_order_relaxed));
        break;
    default:
        break;
    }
}

bool kvf_sender_feed(kvf_sender *sender, const kvf_sender_event *event)
{
    kvf_actions actions = {.count = 0};
    bool meant =
        kvf_sender_machine_step(&sender->machine, event, sender->room.manager->now, &actions);
    /* Posting may fail at once: then a nested step has said all there is to say. */
    uint32_t step = ++sender->steps;
    for (size_t i = 0; i < actions.count && sender->steps == step; i++)
        carry_out(sender, &actions.items[i]);
    return meant;
}

void kvf_sender_timer(kvf_timer *timer, uint64_t now)
{
    kvf_sender *sender = (kvf_sender *)((char *)timer - offsetof(kvf_sender, room.timer));
    kvf_error error;
    if (now >= sender->machine.deadline && kvf_sums_problem(sender, &error))
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_FAILED, .error = &error});
    else
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_TIMER});
    kvf_sender_release(sender);
}

static void open_room(kvf_sender *sender)
{
    kvf_room *room = &sender->room;
    room->opened = kvf_timers_join(&room->manager->timers);
    if (!room->opened) {
        kvf_error error;
        kvf_error_set(&error, KVF_NO_MEMORY, "no memory for a room's deadline");
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_FAILED, .error = &error});
        return;
    }
    kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_OPENED});
    kvf_incoming_take_held(sender);
}

static void take_chunk(kvf_sender *sender, kvf_call *chunk)
{
    if (kvf_outcome_is_final(&sender->machine.outcome)) {
        free(chunk);
        return;
    }
    chunk->next = NULL;
    if (sender->chunks == NULL)
        sender->chunks = chunk;
    else
        sender->chunks_tail->next = chunk;
    sender->chunks_tail = chunk;
    if (sender->unposted == NULL)
        sender->unposted = chunk;
    kvf_sender_feed(sender,
                    &(kvf_sender_event){.kind = KVF_SENDER_SENT, .page_count = chunk->page_count});
}

void kvf_sender_call(kvf_sender *sender, kvf_call *call)
{
    switch (call->kind) {
    case KVF_CALL_OPEN:
        open_room(sender);
        break;
    case KVF_CALL_EXPECT:
        sender->aux_slot = call->aux_slot;
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_EXPECTED,
                                                    .page_count = call->page_count});
        free(call);
        break;
    case KVF_CALL_SEND:
        take_chunk(sender, call);
        break;
    case KVF_CALL_ABORT:
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_ABORTED});
        break;
    case KVF_CALL_CLOSE:
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_ABORTED});
        sender->room.closed = true;
        break;
    }
    kvf_sender_release(sender);
}

static void free_chunks(kvf_sender *sender)
{
    while (sender->chunks != NULL) {
        kvf_call *next = sender->chunks->next;
        free(sender->chunks);
        sender->chunks = next;
    }
    sender->unposted = NULL;
}

/* A closed room whose pages the transport may still read stays until that has ended. */
static void linger(kvf_sender *sender)
{
    if (!sender->room.closed || sender->lingers)
        return;
    sender->lingers = true;
    DL_APPEND(sender->room.manager->lingering, sender);
}

/* Each destination hears that nothing is under way to it when that is so, however long others take: one that is stopped
 * must not keep the pages of the rest. */
static void release_finished(kvf_sender *sender)
{
    kvf_incoming *incoming;
    kvf_incoming *next;
    DL_FOREACH_SAFE(sender->incoming, incoming, next)
    {
        if (incoming->deliveries == 0)
            kvf_incoming_free(sender->room.manager, incoming);
    }
}

/* Once a room is final and nothing is under way, only its handle is left; once that is closed, nothing. */
void kvf_sender_release(kvf_sender *sender)
{
    if (!kvf_outcome_is_final(&sender->machine.outcome))
        return;
    release_finished(sender);
    if (sender->deliveries != NULL) {
        linger(sender);
        return;
    }
    kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_DRAINED});
    kvf_sums_free(sender);
    free_chunks(sender);
    if (sender->room.closed)
        kvf_sender_free(sender);
}

void kvf_sender_free(kvf_sender *sender)
{
    if (sender->lingers)
        DL_DELETE(sender->room.manager->lingering, sender);
    kvf_sums_free(sender);
    kvf_deliveries_forget(sender);
    free_chunks(sender);
    while (sender->incoming != NULL)
        kvf_incoming_free(sender->room.manager, sender->incoming);
    if (sender->room.opened)
        kvf_timers_leave(&sender->room.manager->timers, &sender->room.timer);
    kvf_sender_machine_free(&sender->machine);
    free(sender);
}
