/* The decode side of a room: the public calls, and what the loop does for them. */
#include "manager/manager.h"
#include "plan/ranks.h"

#include <stdlib.h>

/* ---- API threads -------------------------------------------------------------------------------- */

static kvf_status check_open(const kvf_manager *manager, const char *address, uint64_t room,
                             const kvf_room_options *options, kvf_receiver *const *receiver)
{
    char host[KVF_HOST_MAX];
    uint16_t port;
    if (manager == NULL || receiver == NULL || address == NULL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "kvf_receiver_open: an argument is NULL");
    if (manager->role != KVF_DECODE)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "receivers belong to decode managers");
    if (room > KVF_ROOM_MAX)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "room %llu: rooms are below 2^63",
                                  (unsigned long long)room);
    if (!kvf_parse_address(address, false, false, host, &port))
        return kvf_last_error_set(KVF_INVALID_ARGUMENT,
                                  "\"%.64s\" is no bootstrap address; it is host:port", address);
    return kvf_room_check_options(options);
}

static kvf_verify verify_of(const kvf_manager *manager, const kvf_room_options *options)
{
    bool told = options != NULL && options->size >= sizeof *options &&
                options->verify != KVF_VERIFY_DEFAULT;
    return told ? (kvf_verify)options->verify
                : (kvf_verify)(KVF_VERIFY_OFF + manager->settings.verify);
}

kvf_status kvf_receiver_open(kvf_manager *manager, const char *address, uint64_t room,
                             const kvf_room_options *options, kvf_receiver **receiver)
{
    if (receiver != NULL)
        *receiver = NULL;
    kvf_status status = check_open(manager, address, room, options, receiver);
    if (status != KVF_OK)
        return status;
    size_t length = strlen(address);
    kvf_receiver *opened = calloc(1, sizeof *opened + length + 1);
    if (opened == NULL)
        return kvf_last_error_set(KVF_NO_MEMORY, "no memory for a room");
    memcpy(opened->address, address, length + 1);
    opened->dp_rank = options == NULL ? -1 : options->dp_rank;
    opened->verify = verify_of(manager, options);
    kvf_receiver_machine_init(&opened->machine, &manager->timeouts);
    opened->room.timer.fire = kvf_receiver_timer;
    status = kvf_room_insert(&opened->room, manager, room, options);
    if (status != KVF_OK)
        free(opened);
    else
        *receiver = opened;
    return status;
}

static kvf_status check_expect(const kvf_receiver *receiver, const uint32_t *pages,
                               size_t page_count, uint32_t aux_slot, kvf_error *error)
{
    const kvf_manager *manager = receiver->room.manager;
    if (page_count > manager->settings.max_pages)
        return kvf_error_set(error, KVF_LIMIT, "%zu pages; setting max_pages allows %llu",
                             page_count, (unsigned long long)manager->settings.max_pages);
    if (manager->pool.aux_count > 0 && aux_slot >= manager->pool.aux_slot_limit)
        return kvf_error_set(error, KVF_OUT_OF_RANGE, "aux slot %u; the aux buffers have %u slots",
                             aux_slot, manager->pool.aux_slot_limit);
    kvf_status status =
        kvf_pages_check(pages, page_count, manager->pool.page_limit, "destination page", error);
    return status == KVF_OK ? kvf_pages_check_unique(pages, page_count, error) : status;
}

kvf_status kvf_receiver_expect(kvf_receiver *receiver, const uint32_t *pages, size_t page_count,
                               uint32_t aux_slot)
{
    if (receiver == NULL || (pages == NULL && page_count > 0))
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "kvf_receiver_expect: an argument is NULL");
    if (kvf_receiver_poll(receiver) == KVF_FAILED)
        return kvf_last_error_set(kvf_receiver_status(receiver), "room %llu has failed: %s",
                                  (unsigned long long)receiver->room.id,
                                  kvf_receiver_failure_text(receiver));
    kvf_error error;
    if (check_expect(receiver, pages, page_count, aux_slot, &error) != KVF_OK)
        return kvf_last_error_keep(&error);
    kvf_call *call = kvf_call_new(&receiver->room, KVF_CALL_EXPECT, pages, page_count);
    if (call == NULL)
        return kvf_last_error_set(KVF_NO_MEMORY, "no memory for a room's pages");
    call->aux_slot = aux_slot;
    kvf_manager *manager = receiver->room.manager;
    pthread_mutex_lock(&manager->lock);
    bool repeated = receiver->room.expected;
    receiver->room.expected = true;
    if (!repeated)
        kvf_call_queue(call);
    pthread_mutex_unlock(&manager->lock);
    if (!repeated)
        return KVF_OK;
    free(call);
    return kvf_last_error_set(KVF_WRONG_STATE, "room %llu: expect() was called already",
                              (unsigned long long)receiver->room.id);
}

void kvf_receiver_abort(kvf_receiver *receiver)
{
    kvf_room_abort((kvf_room *)receiver);
}

kvf_poll kvf_receiver_poll(const kvf_receiver *receiver)
{
    return (kvf_poll)atomic_load_explicit(&receiver->room.state, memory_order_acquire);
}

kvf_status kvf_receiver_status(const kvf_receiver *receiver)
{
    return (kvf_status)atomic_load_explicit(&receiver->room.status, memory_order_acquire);
}

kvf_safety kvf_receiver_safety(const kvf_receiver *receiver)
{
    return (kvf_safety)atomic_load_explicit(&receiver->room.safety, memory_order_acquire);
}

kvf_proof kvf_receiver_proof(const kvf_receiver *receiver)
{
    return kvf_room_proof(&receiver->room);
}

const uint8_t *kvf_receiver_view(const kvf_receiver *receiver)
{
    return (const uint8_t *)&receiver->room.state;
}

kvf_safety kvf_receiver_wait(kvf_receiver *receiver, int timeout_ms)
{
    return kvf_room_wait(&receiver->room, timeout_ms);
}

const char *kvf_receiver_failure_text(const kvf_receiver *receiver)
{
    return kvf_receiver_poll(receiver) == KVF_FAILED ? receiver->machine.outcome.error.text : "";
}

void kvf_receiver_close(kvf_receiver *receiver)
{
    kvf_room_close((kvf_room *)receiver);
}

/* ---- Loop --------------------------------------------------------------------------------------- */

/* What Success means that has arrived: at a stock peer only the first aux buffer. */
static uint64_t promised_bytes(const kvf_receiver *receiver)
{
    const kvf_pool *pool = &receiver->room.manager->pool;
    uint64_t bytes = pool->bytes_per_page * receiver->machine.arrivals.page_count;
    if (receiver->all_aux)
        return bytes + pool->bytes_per_slot;
    return bytes + (pool->aux_count > 0 ? pool->aux[0].item_length : 0);
}

/* What a stock peer's dialect can't say, or its prefill doesn't survive; NULL for everything else. */
static const char *needs_kvferry_peer(const kvf_receiver *receiver)
{
    if (receiver->all_aux)
        return NULL;
    if (receiver->expect->page_count == 0)
        return "a room of no pages needs a kvferry prefill: SGLang's message takes an empty page "
               "list "
               "for a dummy";
    if (receiver->room.manager->pool.aux_count == 0)
        return "a decode without aux buffers needs a kvferry prefill: SGLang's ends when a request "
               "names no aux buffer; add one, or set extensions=on on both sides";
    return NULL;
}

/* The dummies first, and the real request when all of them are on their way: once the real rank has finished
 * the room is left, and a dummy that had been put off would never be told. Goes on where it had to stop. */
void kvf_receiver_request(kvf_receiver *receiver)
{
    receiver->all_aux = kvf_rank_is_extended(receiver->targets[0].rank);
    const char *reason = needs_kvferry_peer(receiver);
    kvf_error error;
    if (reason != NULL) {
        kvf_error_set(&error, KVF_UNSUPPORTED, "%s", reason);
        kvf_receiver_fail(receiver, &error);
        return;
    }
    if (!receiver->targets[0].requested && kvf_checking_decide(receiver, &error) != KVF_OK) {
        kvf_receiver_fail(receiver, &error);
        return;
    }
    bool all_told = true;
    for (uint32_t i = 1; i <= receiver->target_count && all_told; i++) {
        kvf_target *target = &receiver->targets[i % receiver->target_count];
        if (!target->requested)
            kvf_rank_request(target);
        if (kvf_outcome_is_final(&receiver->machine.outcome))
            return;
        all_told = target->requested;
    }
}

/* Everything but the rank that may be writing. */
static void leave_lookups(kvf_receiver *receiver)
{
    kvf_server_leave(receiver);
    for (uint32_t i = 0; i < receiver->target_count; i++)
        if (receiver->targets[i].inbox == NULL)
            kvf_rank_leave(&receiver->targets[i]);
}

static void leave_everything(kvf_receiver *receiver)
{
    leave_lookups(receiver);
    if (receiver->target_count > 0)
        kvf_rank_leave(&receiver->targets[0]);
}

static void carry_out(kvf_receiver *receiver, const kvf_action *action)
{
    kvf_room *room = &receiver->room;
    switch (action->kind) {
    case KVF_ACTION_TIMER:
        kvf_timers_set(&room->manager->timers, &room->timer, action->deadline);
        break;
    case KVF_ACTION_REQUEST:
        kvf_receiver_request(receiver);
        break;
    case KVF_ACTION_STOP:
        kvf_checking_stop(receiver);
        leave_lookups(receiver);
        break;
    case KVF_ACTION_FENCE:
        kvf_fence_begin(receiver);
        break;
    case KVF_ACTION_LEAVE:
        leave_everything(receiver);
        break;
    case KVF_ACTION_PUBLISH:
        if (receiver->machine.outcome.state == KVF_SUCCESS && kvf_checking_has_passed(receiver))
            atomic_store_explicit(&room->verified, 1, memory_order_relaxed);
        kvf_room_publish(room, &receiver->machine.outcome,
                         receiver->machine.outcome.state == KVF_SUCCESS ? promised_bytes(receiver)
                                                                        : 0);
        break;
    default:
        break;
    }
}

void kvf_receiver_feed(kvf_receiver *receiver, const kvf_receiver_event *event)
{
    kvf_manager *manager = receiver->room.manager;
    kvf_actions actions = {.count = 0};
    bool meant = kvf_receiver_machine_step(&receiver->machine, event, manager->now, &actions);
    if (event->kind == KVF_RECEIVER_NOTICE && !meant)
        kvf_count(manager, KVF_COUNT_NOTIFICATIONS_DROPPED, 1);
    /* Sending may fail at once: then a nested step has said all there is to say. One that asked for nothing
     * leaves the rest to us. */
    uint32_t step = actions.count > 0 ? ++receiver->steps : receiver->steps;
    for (size_t i = 0; i < actions.count && receiver->steps == step; i++)
        carry_out(receiver, &actions.items[i]);
    if (receiver->lingers && kvf_outcome_is_settled(&receiver->machine.outcome))
        manager->reap_receivers = true;
}

void kvf_receiver_fail(kvf_receiver *receiver, const kvf_error *error)
{
    kvf_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_FAILED, .error = error});
}

void kvf_receiver_prove(kvf_receiver *receiver, kvf_proof proof)
{
    kvf_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_PROVEN, .proof = proof});
}

void kvf_receiver_timer(kvf_timer *timer, uint64_t now)
{
    kvf_receiver *receiver = (kvf_receiver *)((char *)timer - offsetof(kvf_receiver, room.timer));
    kvf_error error;
    if (kvf_outcome_is_final(&receiver->machine.outcome))
        kvf_fence_end(receiver);
    else if (now >= receiver->machine.deadline && kvf_checking_problem(receiver, &error))
        kvf_receiver_fail(receiver, &error);
    kvf_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_TIMER,
                                                      .error = kvf_rank_problem(receiver)});
}

static kvf_status join_ranks(kvf_receiver *receiver, const kvf_rank_targets *targets,
                             kvf_error *error)
{
    receiver->targets = calloc(targets->count, sizeof *receiver->targets);
    if (receiver->targets == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a room's targets");
    receiver->target_count = targets->count;
    receiver->required = targets->required;
    for (uint32_t i = 0; i < targets->count; i++)
        receiver->targets[i].receiver = receiver;
    for (uint32_t i = 0; i < targets->count; i++) {
        kvf_status status =
            kvf_rank_join(&receiver->targets[i], targets->dp_group, targets->first + i, error);
        if (status != KVF_OK)
            return status;
        if (kvf_outcome_is_final(&receiver->machine.outcome))
            return KVF_OK;
    }
    return KVF_OK;
}

void kvf_receiver_sizes_known(kvf_receiver *receiver, const kvf_route_topology *topology)
{
    const kvf_pool *pool = &receiver->room.manager->pool;
    kvf_rank_sizes prefill = {topology->tp_size, topology->dp_size};
    kvf_rank_sizes decode = {pool->tp_size, pool->dp_size};
    kvf_rank_targets targets;
    kvf_error error;
    kvf_status status = kvf_ranks_map(&prefill, &decode, pool->engine_rank, pool->mla,
                                      receiver->room.id, receiver->dp_rank, &targets, &error);
    if (status == KVF_OK)
        status = join_ranks(receiver, &targets, &error);
    if (status != KVF_OK)
        kvf_receiver_fail(receiver, &error);
}

static void open_room(kvf_receiver *receiver)
{
    receiver->room.opened = kvf_timers_join(&receiver->room.manager->timers);
    if (!receiver->room.opened) {
        kvf_error error;
        kvf_error_set(&error, KVF_NO_MEMORY, "no memory for a room's deadline");
        kvf_receiver_fail(receiver, &error);
        return;
    }
    kvf_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_OPENED});
    kvf_server_wait(receiver);
}

/* A closed room into whose pages something may still be written stays until that is over. */
static void close_room(kvf_receiver *receiver)
{
    if (kvf_outcome_is_settled(&receiver->machine.outcome)) {
        kvf_receiver_free(receiver);
        return;
    }
    receiver->lingers = true;
    DL_APPEND(receiver->room.manager->fencing, receiver);
}

void kvf_receivers_reap(kvf_manager *manager)
{
    kvf_receiver *receiver;
    kvf_receiver *next;
    manager->reap_receivers = false;
    DL_FOREACH_SAFE(manager->fencing, receiver, next)
    {
        if (kvf_outcome_is_settled(&receiver->machine.outcome))
            kvf_receiver_free(receiver);
    }
}

void kvf_receiver_call(kvf_receiver *receiver, kvf_call *call)
{
    switch (call->kind) {
    case KVF_CALL_OPEN:
        open_room(receiver);
        break;
    case KVF_CALL_EXPECT:
        receiver->expect = call;
        kvf_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_EXPECTED,
                                                          .page_count = call->page_count});
        break;
    case KVF_CALL_ABORT:
        kvf_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_ABORTED});
        break;
    case KVF_CALL_CLOSE:
        kvf_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_ABORTED});
        close_room(receiver);
        break;
    case KVF_CALL_SEND:
        free(call);
        break;
    }
}

void kvf_receiver_free(kvf_receiver *receiver)
{
    leave_everything(receiver);
    kvf_checking_free(receiver);
    if (receiver->lingers)
        DL_DELETE(receiver->room.manager->fencing, receiver);
    if (receiver->room.opened)
        kvf_timers_leave(&receiver->room.manager->timers, &receiver->room.timer);
    kvf_receiver_machine_free(&receiver->machine);
    free(receiver->expect);
    free(receiver->targets);
    free(receiver);
}
