/* Requests of decode ranks: checked, matched with their rooms, or held for rooms not opened yet. */
#include "manager/agent.h"
#include "manager/messenger.h"

#include <stdlib.h>
#include <string.h>

static void drop(kvf_manager *manager, const kvf_error *error)
{
    kvf_drop_message(manager, error == NULL ? NULL : error->text);
}

/* ---- Incoming ----------------------------------------------------------------------------------- */

static kvf_slice keep(uint8_t **position, kvf_slice slice)
{
    kvf_slice kept = {*position, slice.length};
    if (slice.length > 0)
        memcpy(*position, slice.data, slice.length);
    *position += slice.length;
    return kept;
}

static kvf_incoming *new_incoming(kvf_agent *agent, const kvf_request *request)
{
    size_t size = sizeof(kvf_incoming) + request->host.length + request->buffers.length +
                  request->pages.length + request->aux.length;
    kvf_incoming *incoming = calloc(1, size);
    if (incoming == NULL)
        return NULL;
    uint8_t *position = incoming->data;
    incoming->size = size;
    incoming->agent = agent;
    incoming->request = *request;
    incoming->request.agent_name = kvf_slice_of(agent->name);
    incoming->request.agent_metadata = (kvf_slice){agent->metadata, agent->metadata_length};
    if (kvf_request_is_dummy(request))
        incoming->request.agent_metadata = (kvf_slice){NULL, 0};
    incoming->request.host = keep(&position, request->host);
    incoming->request.buffers = keep(&position, request->buffers);
    incoming->request.pages = keep(&position, request->pages);
    incoming->request.aux = keep(&position, request->aux);
    DL_APPEND2(agent->incoming, incoming, agent_prev, agent_next);
    return incoming;
}

static void drop_held_if_empty(kvf_manager *manager, kvf_held *held)
{
    if (held->incoming != NULL || held->refusal != NULL)
        return;
    HASH_DELETE(by_room, manager->held, held);
    DL_DELETE(manager->held_queue, held);
    kvf_timers_set(&manager->timers, &manager->held_timer,
                   manager->held_queue == NULL ? KVF_NO_DEADLINE : manager->held_queue->expires);
    free(held);
}

static void leave_held(kvf_manager *manager, kvf_incoming *incoming)
{
    DL_DELETE(incoming->held->incoming, incoming);
    manager->held_bytes -= incoming->size;
    kvf_uncount(manager, KVF_COUNT_REQUESTS_HELD, 1);
    incoming->held = NULL;
}

/* Nothing is written for the request any more, and nothing was that could not be acknowledged: that comes last, when
 * whoever hears of it finds everything done. */
void kvf_incoming_free(kvf_manager *manager, kvf_incoming *incoming)
{
    kvf_held *held = incoming->held;
    kvf_agent *agent = incoming->agent;
    kvf_check_free(incoming);
    if (incoming->sender != NULL)
        kvf_peer_ended(&agent->past, incoming->request.room);
    if (held != NULL) {
        leave_held(manager, incoming);
        drop_held_if_empty(manager, held);
    }
    if (incoming->sender != NULL)
        DL_DELETE(incoming->sender->incoming, incoming);
    DL_DELETE2(agent->incoming, incoming, agent_prev, agent_next);
    kvf_binding_release(incoming->binding);
    free(incoming->pages);
    if (incoming->stop_wanted && manager->engine != NULL)
        kvf_letters_stopped(agent, &incoming->request);
    free(incoming);
}

static kvf_incoming *of_agent(kvf_incoming *list, const kvf_agent *agent)
{
    kvf_incoming *incoming;
    DL_FOREACH(list, incoming)
    {
        if (incoming->agent == agent)
            return incoming;
    }
    return NULL;
}

/* ---- Giving a request to its room ---------------------------------------------------------------- */

static kvf_status decode_pages(kvf_incoming *incoming, kvf_error *error)
{
    const kvf_request *request = &incoming->request;
    size_t count = kvf_request_page_count(request);
    incoming->pages = malloc((count + 1) * sizeof *incoming->pages);
    if (incoming->pages == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a room's pages");
    uint32_t limit = incoming->binding->page_limit;
    for (size_t i = 0; i < count; i++) {
        if (!kvf_request_page(request, i, &incoming->pages[i]) || incoming->pages[i] >= limit)
            return kvf_error_set(
                error, KVF_OUT_OF_RANGE,
                "agent %s: destination page %llu (the %zu. of %zu) is outside its pool of %u pages",
                incoming->agent->name,
                (unsigned long long)(request->page_width == 8
                                         ? kvf_read_u64(request->pages.data + 8 * i)
                                         : kvf_read_u32(request->pages.data + 4 * i)),
                i + 1, count, limit);
    }
    return KVF_OK;
}

/* The profile in whose width all pages lie inside the pool, or NULL. */
static const kvf_profile *fitting_profile(const kvf_incoming *incoming)
{
    const kvf_profile *profile;
    for (size_t i = 0; (profile = kvf_profile_at(i)) != NULL; i++) {
        kvf_request request = incoming->request;
        request.page_width = profile->page_width;
        size_t count = kvf_request_page_count(&request);
        size_t fitting = 0;
        uint32_t page;
        while (fitting < count && kvf_request_page(&request, fitting, &page) &&
               page < incoming->binding->page_limit)
            fitting++;
        if (fitting == count && request.pages.length % profile->page_width == 0)
            return profile;
    }
    return NULL;
}

/* Indices of another width look like pages that don't exist. What the sender expects settles it; before it
 * has said so, all of them making sense in that width does. */
static kvf_status explain_page(const kvf_sender *sender, const kvf_incoming *incoming,
                               kvf_error *error)
{
    const kvf_profile *own = sender->machine.profile;
    const kvf_profile *other = fitting_profile(incoming);
    kvf_error explained;
    if (error->status != KVF_OUT_OF_RANGE)
        return error->status;
    if (sender->machine.expected) {
        if (kvf_request_explain_count(own, &incoming->request, sender->machine.pages_total,
                                      &explained) == KVF_PROFILE)
            *error = explained;
    } else if (other != NULL) {
        kvf_error_set(error, KVF_PROFILE,
                      "agent %s: the pages are outside its pool, but inside when they are read as "
                      "%u-byte indices: the peer speaks %s, this side is set to %s; set both to "
                      "one release",
                      incoming->agent->name, other->page_width, other->name, own->name);
    }
    return error->status;
}

/* Everything that could be wrong with where we shall write, before the first byte. Nothing is loaded for a
 * dummy. */
static kvf_status bind(const kvf_sender *sender, kvf_incoming *incoming, kvf_error *error)
{
    if (kvf_request_is_dummy(&incoming->request))
        return KVF_OK;
    kvf_agent *agent = incoming->agent;
    if (kvf_request_page_count(&incoming->request) > agent->manager->settings.max_pages)
        return kvf_error_set(error, KVF_LIMIT, "agent %s asks for %zu pages; max_pages allows %llu",
                             agent->name, kvf_request_page_count(&incoming->request),
                             (unsigned long long)agent->manager->settings.max_pages);
    kvf_status status = kvf_agent_bind(agent, &incoming->request, &incoming->binding, error);
    if (status == KVF_OK && decode_pages(incoming, error) != KVF_OK)
        return explain_page(sender, incoming, error);
    if (status == KVF_OK && incoming->binding->aux_span_count > 0 &&
        incoming->request.aux_slot >= incoming->binding->aux_limit)
        status = kvf_error_set(
            error, KVF_OUT_OF_RANGE, "agent %s: aux slot %u is outside its aux buffers of %u slots",
            agent->name, incoming->request.aux_slot, incoming->binding->aux_limit);
    return status;
}

/* Why a room that has ended takes no request any more. */
static void explain_end(const kvf_sender *sender, kvf_error *error)
{
    if (sender->machine.outcome.state == KVF_FAILED)
        *error = sender->machine.outcome.error;
    else
        kvf_error_set(error, KVF_WRONG_STATE, "room %llu has ended",
                      (unsigned long long)sender->room.id);
}

/* An earlier request of the same agent steps aside while the machine decides between the two. */
static void give(kvf_sender *sender, kvf_incoming *incoming)
{
    kvf_manager *manager = sender->room.manager;
    kvf_error error;
    if (kvf_outcome_is_final(&sender->machine.outcome)) { /* another one that was held ended it */
        explain_end(sender, &error);
        kvf_letters_failed(incoming->agent, &incoming->request, &error);
        kvf_incoming_free(manager, incoming);
        return;
    }
    if (bind(sender, incoming, &error) != KVF_OK) {
        kvf_letters_failed(incoming->agent, &incoming->request, &error);
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_REFUSED, .error = &error});
        kvf_incoming_free(manager, incoming);
        return;
    }
    sender->asked = true;
    kvf_incoming *earlier = of_agent(sender->incoming, incoming->agent);
    if (earlier != NULL)
        DL_DELETE(sender->incoming, earlier);
    DL_APPEND(sender->incoming, incoming);
    incoming->sender = sender;
    bool taken = kvf_sender_feed(
        sender, &(kvf_sender_event){.kind = KVF_SENDER_REQUESTED, .request = &incoming->request});
    kvf_incoming *loser = taken ? earlier : incoming;
    if (earlier != NULL)
        DL_APPEND(sender->incoming, earlier);
    if (loser != NULL)
        kvf_incoming_free(manager, loser);
    if (!taken)
        drop(manager, NULL);
}

/* ---- Holding ------------------------------------------------------------------------------------ */

static kvf_held *held_for(kvf_manager *manager, uint64_t room, kvf_error *error)
{
    kvf_held *held = NULL;
    HASH_FIND(by_room, manager->held, &room, sizeof room, held);
    if (held != NULL)
        return held;
    held = HASH_CNT(by_room, manager->held) < manager->settings.max_held_requests
               ? calloc(1, sizeof *held)
               : NULL;
    if (held == NULL) {
        kvf_error_set(error, KVF_LIMIT,
                      "room %llu has no sender yet, and max_held_requests or memory is used up",
                      (unsigned long long)room);
        return NULL;
    }
    held->room = room;
    held->expires = kvf_clock_after(manager->now, manager->settings.hold_timeout);
    unsigned before = HASH_CNT(by_room, manager->held);
    HASH_ADD(by_room, manager->held, room, sizeof held->room, held);
    if (HASH_CNT(by_room, manager->held) == before) {
        free(held);
        kvf_error_set(error, KVF_NO_MEMORY, "no memory to hold a request");
        return NULL;
    }
    DL_APPEND(manager->held_queue, held);
    kvf_timers_set(&manager->timers, &manager->held_timer, manager->held_queue->expires);
    return held;
}

static void hold(kvf_manager *manager, kvf_incoming *incoming)
{
    kvf_error error;
    kvf_held *held = NULL;
    if (manager->held_bytes + incoming->size <= manager->settings.max_held_bytes)
        held = held_for(manager, incoming->request.room, &error);
    else
        kvf_error_set(&error, KVF_LIMIT, "held requests take %zu bytes; max_held_bytes allows %llu",
                      manager->held_bytes, (unsigned long long)manager->settings.max_held_bytes);
    if (held == NULL) {
        drop(manager, &error);
        kvf_letters_failed(incoming->agent, &incoming->request, &error);
        kvf_incoming_free(manager, incoming);
        return;
    }
    kvf_incoming *earlier = of_agent(held->incoming, incoming->agent);
    DL_APPEND(held->incoming, incoming);
    incoming->held = held;
    manager->held_bytes += incoming->size;
    kvf_count(manager, KVF_COUNT_REQUESTS_HELD, 1);
    if (earlier != NULL)
        kvf_incoming_free(manager, earlier);
}

static void hold_refusal(kvf_manager *manager, uint64_t room, const kvf_error *refusal)
{
    kvf_error error;
    kvf_held *held = held_for(manager, room, &error);
    if (held == NULL || held->refusal != NULL)
        return;
    held->refusal = malloc(sizeof *held->refusal);
    if (held->refusal != NULL)
        *held->refusal = *refusal;
    drop_held_if_empty(manager, held);
}

void kvf_incoming_take_held(kvf_sender *sender)
{
    kvf_manager *manager = sender->room.manager;
    kvf_held *held = NULL;
    HASH_FIND(by_room, manager->held, &sender->room.id, sizeof sender->room.id, held);
    if (held == NULL)
        return;
    if (held->refusal != NULL)
        kvf_sender_feed(sender,
                        &(kvf_sender_event){.kind = KVF_SENDER_REFUSED, .error = held->refusal});
    free(held->refusal);
    held->refusal = NULL;
    kvf_incoming *list = NULL;
    while (held->incoming != NULL) {
        kvf_incoming *incoming = held->incoming;
        leave_held(manager, incoming);
        DL_APPEND(list, incoming);
    }
    drop_held_if_empty(manager, held);
    while (list != NULL) {
        kvf_incoming *incoming = list;
        DL_DELETE(list, incoming);
        give(sender, incoming);
    }
}

static void tell_all(const kvf_held *held, const kvf_error *error)
{
    kvf_incoming *incoming;
    DL_FOREACH(held->incoming, incoming)
    {
        kvf_letters_failed(incoming->agent, &incoming->request, error);
    }
}

static void free_held(kvf_manager *manager, kvf_held *held)
{
    free(held->refusal);
    held->refusal = NULL;
    if (held->incoming == NULL) {
        drop_held_if_empty(manager, held);
        return;
    }
    /* Freeing the last of them frees the entry. */
    bool more = true;
    while (more) {
        more = held->incoming->next != NULL;
        kvf_incoming_free(manager, held->incoming);
    }
}

void kvf_held_timer(kvf_timer *timer, uint64_t now)
{
    kvf_manager *manager = (kvf_manager *)((char *)timer - offsetof(kvf_manager, held_timer));
    kvf_error error;
    kvf_error_set(&error, KVF_TIMEOUT, "nobody opened a sender within hold_timeout");
    while (manager->held_queue != NULL && manager->held_queue->expires <= now) {
        kvf_log_info(&manager->settings.log,
                     "room %llu: nobody opened a sender within hold_timeout",
                     (unsigned long long)manager->held_queue->room);
        kvf_count(manager, KVF_COUNT_REQUESTS_EXPIRED, 1);
        tell_all(manager->held_queue, &error);
        free_held(manager, manager->held_queue);
    }
}

void kvf_incoming_refuse_all_held(kvf_manager *manager, const kvf_error *error)
{
    for (const kvf_held *held = manager->held_queue; held != NULL; held = held->next)
        tell_all(held, error);
    kvf_incoming_free_all_held(manager);
}

void kvf_incoming_free_all_held(kvf_manager *manager)
{
    while (manager->held_queue != NULL)
        free_held(manager, manager->held_queue);
}

/* ---- Messages ----------------------------------------------------------------------------------- */

/* The sender of an open room that the loop has taken up, or NULL. */
static kvf_sender *open_sender(kvf_manager *manager, uint64_t id)
{
    kvf_room *room = kvf_room_find(manager, id);
    return room != NULL && room->opened ? (kvf_sender *)room : NULL;
}

static void refuse_sender(kvf_sender *sender, const kvf_error *error)
{
    kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_REFUSED, .error = error});
    kvf_sender_release(sender);
}

static void refuse(kvf_manager *manager, uint64_t room, const kvf_error *error)
{
    kvf_sender *sender = open_sender(manager, room);
    drop(manager, error);
    if (sender != NULL)
        refuse_sender(sender, error);
    else
        hold_refusal(manager, room, error);
}

/* Whoever opens the room later may be asked again by then. */
static void refuse_now(kvf_manager *manager, uint64_t room, const kvf_error *error)
{
    kvf_sender *sender = open_sender(manager, room);
    drop(manager, error);
    if (sender != NULL)
        refuse_sender(sender, error);
}

/* A kvferry agent that had its part in the room that has ended asks for another one of that id. One that had none is
 * late for it, and so is everybody where nobody had: that an agent has used the id tells nothing then. */
static bool is_for_the_next(const kvf_sender *ended, const kvf_agent *agent,
                            const kvf_request *request)
{
    return request->epoch != 0 && ended->asked &&
           (of_agent(ended->incoming, agent) != NULL ||
            kvf_peer_has_had(&agent->past, request->room));
}

static void take(kvf_manager *manager, const kvf_request *request, kvf_agent *agent)
{
    kvf_sender *sender = open_sender(manager, request->room);
    kvf_error error;
    bool ended = sender != NULL && kvf_outcome_is_final(&sender->machine.outcome);
    if (ended && is_for_the_next(sender, agent, request)) {
        sender = NULL;
    } else if (ended) {
        explain_end(sender, &error);
        drop(manager, &error);
        kvf_letters_failed(agent, request, &error);
        return;
    }
    kvf_incoming *incoming = new_incoming(agent, request);
    if (incoming == NULL) {
        kvf_error_set(&error, KVF_NO_MEMORY, "no memory for a request");
        drop(manager, &error);
        kvf_letters_failed(agent, request, &error);
        return;
    }
    if (sender == NULL) {
        hold(manager, incoming);
        return;
    }
    give(sender, incoming);
    kvf_sender_release(sender);
}

static bool is_refused(kvf_agent *agent, const kvf_request *request, kvf_error *error)
{
    if (agent->refused_until <= agent->manager->now)
        return false;
    kvf_error_set(
        error, KVF_PEER_GONE,
        "this prefill was stopped, perhaps for longer than agent %s waits: what the agent "
        "asked for may be given up by now",
        agent->name);
    kvf_letters_failed(agent, request, error);
    return true;
}

static bool is_news(kvf_agent *agent, const kvf_request *request, kvf_error *error)
{
    switch (kvf_peer_asks(&agent->past, request->room, request->epoch)) {
    case KVF_NEWS:
        return true;
    case KVF_NEWS_REPEATED:
        kvf_error_set(error, KVF_PROTOCOL, "agent %s repeats an old request for room %llu",
                      agent->name, (unsigned long long)request->room);
        return false;
    case KVF_NEWS_USED_ID:
        kvf_error_set(error, KVF_BUSY, "room %llu of agent %s has ended, and its id can't be told",
                      (unsigned long long)request->room, agent->name);
        return false;
    }
    return false;
}

/* As a stock prefill reads it. */
static void forget_extensions(kvf_request *request)
{
    request->extended = false;
    request->extensions = 0;
    request->epoch = 0;
    request->lease = 0;
}

/* Not where it is an old one that comes again: the room may be another one by now. */
static void turn_away(kvf_manager *manager, const kvf_request *request, const kvf_error *error)
{
    if (kvf_agent_has_asked(manager, request)) {
        drop(manager, error);
        return;
    }
    kvf_messenger_send(manager, request, error, kvf_agent_turn_away(manager, request));
    refuse(manager, request->room, error);
}

void kvf_incoming_message(void *user, uint64_t connection, const kvf_slice *frames, size_t count)
{
    kvf_manager *manager = user;
    kvf_request request;
    kvf_refusal refusal = {.room_known = false};
    kvf_error error;
    kvf_agent *agent;
    kvf_count(manager, KVF_COUNT_MESSAGES, 1);
    if (count == 0) {
        kvf_error_set(&error, KVF_LIMIT, "more frames than max_message_frames");
        drop(manager, &error);
        return;
    }
    if (manager->settings.extensions != 0 && kvf_letter_is_one(frames, count)) {
        kvf_letters_take(manager, connection, frames, count);
        return;
    }
    if (kvf_request_decode(manager->profile, frames, count, &request, &refusal, &error) != KVF_OK) {
        if (refusal.room_known)
            refuse(manager, refusal.room, &error);
        else
            drop(manager, &error);
        return;
    }
    if (manager->settings.extensions == 0)
        forget_extensions(&request);
    if (kvf_agent_find(manager, &request, connection, &agent, &error) != KVF_OK) {
        turn_away(manager, &request, &error);
        return;
    }
    if (!is_news(agent, &request, &error)) {
        drop(manager, &error);
        return;
    }
    kvf_agent_lease(agent, request.lease);
    kvf_letters_address(agent, &request);
    if (is_refused(agent, &request, &error))
        refuse_now(manager, request.room, &error);
    else
        take(manager, &request, agent);
}
