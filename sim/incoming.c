/* Requests at a prefill node: checked, matched with their rooms, or held; src/manager/incoming.c in small. */
#include "sim/sim.h"

#include <stdlib.h>

static kvf_slice keep(uint8_t **position, kvf_slice slice)
{
    kvf_slice kept = {*position, slice.length};
    if (slice.length > 0)
        memcpy(*position, slice.data, slice.length);
    *position += slice.length;
    return kept;
}

static sim_incoming *new_incoming(sim_agent *agent, const kvf_request *request)
{
    size_t size = sizeof(sim_incoming) + request->host.length + request->buffers.length +
                  request->pages.length + request->aux.length;
    sim_incoming *incoming = calloc(1, size);
    if (incoming == NULL)
        abort();
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

static void arm_held(sim_node *node)
{
    kvf_timers_set(&node->timers, &node->held_timer,
                   node->held == NULL ? KVF_NEVER : node->held->expires);
}

static void drop_held_if_empty(sim_node *node, sim_held *held)
{
    if (held->incoming != NULL || held->refused)
        return;
    DL_DELETE(node->held, held);
    node->held_count--;
    arm_held(node);
    free(held);
}

static void leave_held(sim_node *node, sim_incoming *incoming)
{
    DL_DELETE(incoming->held->incoming, incoming);
    node->held_bytes -= incoming->size;
    incoming->held = NULL;
}

/* Nothing is written for the request any more, and nothing was that could not be acknowledged. */
void sim_incoming_free(sim_incoming *incoming)
{
    sim_node *node = incoming->agent->node;
    sim_held *held = incoming->held;
    if (incoming->stop_wanted)
        sim_letters_stopped(incoming->agent, &incoming->request);
    if (incoming->sender != NULL && !node->stock)
        kvf_peer_ended(&incoming->agent->past, incoming->request.room);
    if (held != NULL) {
        leave_held(node, incoming);
        drop_held_if_empty(node, held);
    }
    if (incoming->sender != NULL)
        DL_DELETE(incoming->sender->incoming, incoming);
    DL_DELETE2(incoming->agent->incoming, incoming, agent_prev, agent_next);
    free(incoming->pages);
    free(incoming);
}

static sim_incoming *of_agent(sim_incoming *list, const sim_agent *agent)
{
    sim_incoming *incoming;
    DL_FOREACH(list, incoming)
    {
        if (incoming->agent == agent)
            return incoming;
    }
    return NULL;
}

/* ---- To a room ------------------------------------------------------------------------------------ */

static kvf_status bind(sim_incoming *incoming, kvf_error *error)
{
    if (kvf_request_is_dummy(&incoming->request))
        return KVF_OK;
    kvf_status status = sim_agent_bind(incoming, error);
    size_t count = kvf_request_page_count(&incoming->request);
    free(incoming->pages); /* only a planted bug binds twice */
    incoming->pages = calloc(count + 1, sizeof *incoming->pages);
    if (incoming->pages == NULL)
        abort();
    for (size_t i = 0; status == KVF_OK && i < count; i++)
        if (!kvf_request_page(&incoming->request, i, &incoming->pages[i]) ||
            incoming->pages[i] >= incoming->page_limit)
            status = kvf_error_set(error, KVF_OUT_OF_RANGE, "a page outside the agent's pool");
    if (status == KVF_OK && incoming->request.aux_slot >= incoming->slot_limit)
        status = kvf_error_set(error, KVF_OUT_OF_RANGE, "a slot outside the agent's aux buffers");
    return status;
}

/* Planted: a second request replaces the first one's pages, whatever was posted. */
static bool overwrite(sim_sender *sender, sim_incoming *incoming)
{
    sim_incoming *earlier = of_agent(sender->incoming, incoming->agent);
    if (sender->node->world->plant != SIM_PLANT_LATE_REQUEST_WINS || earlier == NULL ||
        earlier->pages == NULL || incoming->pages == NULL ||
        kvf_request_page_count(&earlier->request) != kvf_request_page_count(&incoming->request))
        return false;
    memcpy(earlier->pages, incoming->pages,
           kvf_request_page_count(&earlier->request) * sizeof *earlier->pages);
    return true;
}

/* An earlier request of the same agent steps aside while the machine decides between the two. */
static void give(sim_sender *sender, sim_incoming *incoming)
{
    sim_node *node = sender->node;
    kvf_error error;
    sim_check_given(sender, incoming);
    if (!node->stock && incoming->request.required > node->world->limits.destinations)
        sim_fault_limit(node, &incoming->request);
    if (bind(incoming, &error) != KVF_OK) {
        sim_letters_failed(incoming->agent, &incoming->request, &error);
        sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_REFUSED, .error = &error});
        sim_incoming_free(incoming);
        return;
    }
    if (overwrite(sender, incoming)) {
        sim_incoming_free(incoming);
        return;
    }
    sender->asked = true;
    sender->side->was_asked = true;
    sim_incoming *earlier = of_agent(sender->incoming, incoming->agent);
    if (earlier != NULL)
        DL_DELETE(sender->incoming, earlier);
    DL_APPEND(sender->incoming, incoming);
    incoming->sender = sender;
    bool ended = kvf_outcome_is_final(&sender->machine.outcome);
    bool taken = sim_sender_feed(
        sender, &(kvf_sender_event){.kind = KVF_SENDER_REQUESTED, .request = &incoming->request});
    sim_incoming *loser = taken ? earlier : incoming;
    if (earlier != NULL)
        DL_APPEND(sender->incoming, earlier);
    if (ended && !taken) /* too late to be told with the others */
        sim_letters_failed(incoming->agent, &incoming->request, &sender->machine.outcome.error);
    if (loser != NULL)
        sim_incoming_free(loser);
}

/* ---- Held ----------------------------------------------------------------------------------------- */

static sim_held *held_for(sim_node *node, uint64_t room)
{
    sim_held *held;
    DL_FOREACH(node->held, held)
    {
        if (held->room == room)
            return held;
    }
    if (!node->stock && node->held_count >= node->world->limits.held_requests)
        return NULL;
    held = calloc(1, sizeof *held);
    if (held == NULL)
        abort();
    held->room = room;
    held->expires = sim_now(node) + (node->stock ? SIM_STOCK_HOLD : SIM_HOLD_TIMEOUT);
    if (node->world->plant == SIM_PLANT_HELD_FOR_EVER)
        held->expires = KVF_NEVER;
    DL_APPEND(node->held, held);
    node->held_count++;
    arm_held(node);
    return held;
}

static void hold(sim_node *node, sim_incoming *incoming)
{
    sim_held *held = NULL;
    if (node->stock || node->held_bytes + incoming->size <= node->world->limits.held_bytes)
        held = held_for(node, incoming->request.room);
    if (held == NULL) {
        kvf_error error;
        kvf_error_set(&error, KVF_LIMIT, "too many requests are held");
        sim_fault_limit(node, &incoming->request);
        sim_letters_failed(incoming->agent, &incoming->request, &error);
        sim_incoming_free(incoming);
        return;
    }
    sim_incoming *earlier = of_agent(held->incoming, incoming->agent);
    DL_APPEND(held->incoming, incoming);
    incoming->held = held;
    node->held_bytes += incoming->size;
    if (earlier != NULL)
        sim_incoming_free(earlier);
}

/* Planted: the addresses outlive the room and wait for the id's next user. */
void sim_incoming_keep(sim_sender *sender)
{
    while (sender->incoming != NULL) {
        sim_incoming *incoming = sender->incoming;
        DL_DELETE(sender->incoming, incoming);
        incoming->sender = NULL;
        hold(sender->node, incoming);
    }
}

void sim_incoming_take_held(sim_sender *sender)
{
    sim_node *node = sender->node;
    sim_held *held;
    DL_FOREACH(node->held, held)
    {
        if (held->room == sender->id)
            break;
    }
    if (held == NULL)
        return;
    if (held->refused)
        sim_sender_feed(sender,
                        &(kvf_sender_event){.kind = KVF_SENDER_REFUSED, .error = &held->refusal});
    held->refused = false;
    sim_incoming *list = NULL;
    while (held->incoming != NULL) {
        sim_incoming *incoming = held->incoming;
        leave_held(node, incoming);
        DL_APPEND(list, incoming);
    }
    drop_held_if_empty(node, held);
    while (list != NULL) {
        sim_incoming *incoming = list;
        DL_DELETE(list, incoming);
        give(sender, incoming);
    }
}

static void tell_expired(const sim_held *held)
{
    kvf_error error;
    kvf_error_set(&error, KVF_TIMEOUT, "nobody opened a sender within hold_timeout");
    sim_incoming *incoming;
    DL_FOREACH(held->incoming, incoming)
    {
        sim_letters_failed(incoming->agent, &incoming->request, &error);
    }
}

static void free_held(sim_node *node, sim_held *held)
{
    held->refused = false;
    if (held->incoming == NULL) {
        drop_held_if_empty(node, held);
        return;
    }
    bool more = true;
    while (more) {
        more = held->incoming->next != NULL;
        sim_incoming_free(held->incoming);
    }
}

void sim_held_timer(kvf_timer *timer, uint64_t now)
{
    sim_node *node = (sim_node *)((char *)timer - offsetof(sim_node, held_timer));
    while (node->held != NULL && node->held->expires <= now) {
        tell_expired(node->held);
        free_held(node, node->held);
    }
}

void sim_held_free_all(sim_node *node)
{
    while (node->held != NULL)
        free_held(node, node->held);
}

/* ---- In ------------------------------------------------------------------------------------------- */

void sim_incoming_refuse(sim_node *node, sim_sender *sender, uint64_t room, const kvf_error *error)
{
    if (sender == NULL) {
        sim_held *held = held_for(node, room);
        if (held == NULL || held->refused)
            return;
        held->refused = true;
        held->refusal = *error;
        return;
    }
    sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_REFUSED, .error = error});
    sim_sender_release(sender);
}

/* A kvferry agent that had its part in the room that has ended asks for another one of that id. One that had none is
 * late for it. */
static bool is_for_the_next(const sim_sender *ended, const sim_agent *agent,
                            const kvf_request *request)
{
    return request->epoch != 0 && ended->asked &&
           (of_agent(ended->incoming, agent) != NULL ||
            kvf_peer_has_had(&agent->past, request->room));
}

void sim_incoming_take(sim_node *node, sim_sender *sender, sim_agent *agent,
                       const kvf_request *request)
{
    kvf_error error;
    bool ended = sender != NULL && kvf_outcome_is_final(&sender->machine.outcome);
    if (ended && is_for_the_next(sender, agent, request)) {
        sender = NULL;
    } else if (ended) {
        kvf_error_set(&error, KVF_WRONG_STATE, "room %llu has ended",
                      (unsigned long long)request->room);
        sim_letters_failed(agent, request, &error);
        return;
    }
    sim_incoming *incoming = new_incoming(agent, request);
    if (sender == NULL) {
        hold(node, incoming);
        return;
    }
    give(sender, incoming);
    sim_sender_release(sender);
}
