/* A prefill manager in small: carries the sender machine's actions out, with the rules of src/manager's
 * sender.c and delivery.c. */
#include "sim/sim.h"

#include <stdlib.h>

static void connection_junk(sim_node *node, const char *why)
{
    sim_trace(node->world, node, "drops a message: %s", why);
    if (node->world->plant == SIM_PLANT_JUNK_DEAFENS)
        node->deaf = true;
}

void sim_prefill_open(sim_node *node)
{
    (void)kvf_timers_join(&node->timers);
    node->held_timer = (kvf_timer){.fire = sim_held_timer};
    sim_registration_start(node);
}

/* ---- Chunks --------------------------------------------------------------------------------------- */

static void plan(sim_transfer *transfer, sim_incoming *incoming, const sim_chunk *chunk,
                 uint32_t index, uint32_t first_page, bool last)
{
    sim_sender *sender = transfer->sender;
    sim_part *pages = &transfer->parts[0];
    sim_part *aux = &transfer->parts[1];
    kvf_writes_begin(&pages->writes, incoming->spans, SIM_BUFFERS, chunk->pages,
                     incoming->pages + first_page, chunk->page_count);
    pages->notice = (kvf_notice){.kind = KVF_NOTICE_CHUNK,
                                 .room = sender->id,
                                 .epoch = incoming->request.epoch,
                                 .chunk = index,
                                 .last = last};
    transfer->part_count = 1;
    if (!last)
        return;
    kvf_writes_begin(&aux->writes, incoming->aux_spans, incoming->aux_span_count,
                     &sender->side->aux_slot, &incoming->request.aux_slot, 1);
    aux->notice =
        (kvf_notice){.kind = KVF_NOTICE_AUX, .room = sender->id, .epoch = incoming->request.epoch};
    transfer->part_count = 2;
}

static void deliver(sim_sender *sender, sim_incoming *incoming, const sim_chunk *chunk,
                    uint32_t index, uint32_t first_page, bool last)
{
    sim_transfer *transfer = calloc(1, sizeof *transfer);
    if (transfer == NULL)
        abort();
    transfer->sender = sender;
    transfer->agent = incoming->agent;
    transfer->epoch = incoming->request.epoch;
    plan(transfer, incoming, chunk, index, first_page, last);
    sender->transfer_count++;
    sim_engine_post(transfer);
}

static void deliver_chunks(sim_sender *sender, uint32_t first_chunk, uint32_t chunk_count)
{
    uint32_t first_page = 0;
    for (sim_chunk *chunk = sender->chunks; chunk != sender->unposted; chunk = chunk->next)
        first_page += chunk->page_count;
    for (uint32_t i = 0; i < chunk_count; i++) {
        sim_chunk *chunk = sender->unposted;
        bool last = sender->machine.last_sent && chunk->next == NULL;
        sim_incoming *incoming;
        DL_FOREACH(sender->incoming, incoming)
        {
            if (!kvf_request_is_dummy(&incoming->request))
                deliver(sender, incoming, chunk, first_chunk + i, first_page, last);
        }
        first_page += chunk->page_count;
        sender->unposted = chunk->next;
    }
}

/* SGLang 0.4.7 can't: what it has begun it finishes, whatever its user was told. */
static void cancel(sim_sender *sender)
{
    sim_transfer *transfer;
    if (sender->node->stock)
        return;
    sender->stopped = true;
    DL_FOREACH(sender->node->transfers, transfer)
    {
        if (transfer->sender == sender)
            sim_engine_cancel(transfer);
    }
}

/* Who gave the room up itself hears that it is over instead. */
static void tell_failed(sim_sender *sender)
{
    sim_incoming *incoming;
    DL_FOREACH(sender->incoming, incoming)
    {
        if (!incoming->stop_wanted)
            sim_letters_failed(incoming->agent, &incoming->request, &sender->machine.outcome.error);
    }
}

/* ---- Feeding -------------------------------------------------------------------------------------- */

static void carry_out(sim_sender *sender, const kvf_action *action)
{
    switch (action->kind) {
    case KVF_ACTION_TIMER:
        kvf_timers_set(&sender->node->timers, &sender->timer, action->deadline);
        break;
    case KVF_ACTION_POST:
        deliver_chunks(sender, action->first_chunk, action->chunk_count);
        break;
    case KVF_ACTION_STOP:
        cancel(sender);
        tell_failed(sender);
        break;
    case KVF_ACTION_PUBLISH:
        if (sender->side != NULL)
            sim_user_told(sender->side, &sender->machine.outcome);
        break;
    default:
        break;
    }
}

/* Planted: what ended a room isn't final. */
static void lift(sim_sender *sender, const kvf_sender_event *event)
{
    sim_world *world = sender->node->world;
    if (!kvf_outcome_is_final(&sender->machine.outcome))
        return;
    if (world->plant == SIM_PLANT_FAILED_LIFTED && event->kind == KVF_SENDER_SENT &&
        sender->machine.outcome.state == KVF_FAILED) {
        sender->machine.outcome.state = KVF_TRANSFERRING;
        sim_user_told(sender->side, &sender->machine.outcome);
    }
    if (world->plant == SIM_PLANT_TWO_ENDS && event->kind == KVF_SENDER_ABORTED)
        sim_user_told(sender->side, &sender->machine.outcome);
}

bool sim_sender_feed(sim_sender *sender, const kvf_sender_event *event)
{
    kvf_actions actions = {.count = 0};
    lift(sender, event);
    bool meant = kvf_sender_machine_step(&sender->machine, event, sim_now(sender->node), &actions);
    if (sender->node->world->plant == SIM_PLANT_SOURCE_FREED_EARLY &&
        sender->machine.outcome.state == KVF_FAILED)
        sender->machine.outcome.safety = KVF_PAGES_SAFE;
    uint32_t step = ++sender->steps;
    for (size_t i = 0; i < actions.count && sender->steps == step; i++)
        carry_out(sender, &actions.items[i]);
    return meant;
}

void sim_sender_transfer_ended(sim_transfer *transfer, kvf_status status, const char *text)
{
    sim_sender *sender = transfer->sender;
    kvf_error error;
    kvf_error_set(&error, status, "writing to agent %s: %s", transfer->agent->name,
                  text == NULL ? "" : text);
    sender->transfer_count--;
    if (!transfer->flushed)
        kvf_peer_unflushed(&transfer->agent->past, transfer->epoch);
    uint64_t limit = sim_now(sender->node) + SIM_WAITING_TIMEOUT;
    if (sender->side != NULL && limit > sender->side->limit)
        sender->side->limit = limit; /* the machine waits anew after each chunk */
    if (status != KVF_ABORTED)
        sim_sender_feed(
            sender,
            &(kvf_sender_event){.kind = status == KVF_OK ? KVF_SENDER_WRITTEN : KVF_SENDER_FAILED,
                                .agent_name = kvf_slice_of(transfer->agent->name),
                                .error = &error});
    sim_sender_release(sender);
}

static void sender_timer(kvf_timer *timer, uint64_t now)
{
    (void)now;
    sim_sender *sender = (sim_sender *)((char *)timer - offsetof(sim_sender, timer));
    sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_TIMER});
    sim_sender_release(sender);
}

/* ---- Rooms ---------------------------------------------------------------------------------------- */

void sim_sender_open(sim_side *side)
{
    sim_node *node = side->node;
    sim_sender *sender = calloc(1, sizeof *sender);
    if (sender == NULL || !kvf_timers_join(&node->timers))
        abort();
    sender->node = node;
    sender->side = side;
    sender->id = side->instance->id;
    sender->timer.fire = sender_timer;
    side->sender = sender;
    node->room_count++;
    DL_APPEND(node->senders, sender);
    kvf_sender_machine_init(&sender->machine, node->world->profile, &node->timeouts,
                            node->stock ? SIM_RANKS : node->world->limits.destinations);
    sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_OPENED});
    sim_incoming_take_held(sender);
    sim_sender_release(sender);
}

void sim_sender_send(sim_sender *sender, const uint32_t *pages, uint32_t count)
{
    if (kvf_outcome_is_final(&sender->machine.outcome)) {
        lift(sender, &(kvf_sender_event){.kind = KVF_SENDER_SENT});
        return;
    }
    sim_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL)
        abort();
    chunk->page_count = count;
    if (count > 0)
        memcpy(chunk->pages, pages, count * sizeof *pages);
    LL_APPEND(sender->chunks, chunk);
    if (sender->unposted == NULL)
        sender->unposted = chunk;
    sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_SENT, .page_count = count});
    sim_sender_release(sender);
}

static void free_sender(sim_sender *sender)
{
    sim_node *node = sender->node;
    while (sender->chunks != NULL) {
        sim_chunk *next = sender->chunks->next;
        free(sender->chunks);
        sender->chunks = next;
    }
    while (sender->incoming != NULL)
        sim_incoming_free(sender->incoming);
    kvf_timers_leave(&node->timers, &sender->timer);
    kvf_sender_machine_free(&sender->machine);
    if (!sender->closed)
        node->room_count--;
    if (sender->side != NULL)
        sender->side->sender = NULL;
    DL_DELETE(node->senders, sender);
    free(sender);
}

static bool is_written_for(const sim_sender *sender, const sim_incoming *incoming)
{
    const sim_transfer *transfer;
    DL_FOREACH(sender->node->transfers, transfer)
    {
        if (transfer->sender == sender && transfer->agent == incoming->agent)
            return true;
    }
    return false;
}

/* A destination that has given the room up needn't wait for the others. */
static void free_unwritten(sim_sender *sender)
{
    sim_incoming *incoming;
    sim_incoming *next;
    DL_FOREACH_SAFE(sender->incoming, incoming, next)
    {
        if (!is_written_for(sender, incoming))
            sim_incoming_free(incoming);
    }
}

/* Once a room is final and nothing is under way, only its handle is left; once that is closed, nothing. */
void sim_sender_release(sim_sender *sender)
{
    if (!kvf_outcome_is_final(&sender->machine.outcome))
        return;
    if (sender->node->world->plant != SIM_PLANT_STALE_ADDRESSES)
        free_unwritten(sender);
    if (sender->transfer_count > 0)
        return;
    sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_DRAINED});
    if (sender->node->world->plant == SIM_PLANT_STALE_ADDRESSES) {
        if (!sender->closed)
            return;
        sim_incoming_keep(sender);
    }
    while (sender->incoming != NULL)
        sim_incoming_free(sender->incoming);
    if (sender->closed)
        free_sender(sender);
}

/* Planted: who has the id by then is told of its last user's failure. */
static void late_failure(sim_world *world, sim_task *task)
{
    sim_sender *sender;
    kvf_error error;
    (void)world;
    kvf_error_set(&error, KVF_TRANSPORT, "planted: a failure of an earlier room");
    DL_FOREACH(task->node->senders, sender)
    {
        if (sender->id == task->number && !sender->closed)
            break;
    }
    if (sender != NULL)
        sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_FAILED, .error = &error});
}

void sim_sender_close(sim_sender *sender)
{
    sim_node *node = sender->node;
    sim_world *world = node->world;
    if (world->plant == SIM_PLANT_LATE_FAILURE)
        sim_task_add(world, world->now + 100 * KVF_MILLISECOND, late_failure, node,
                     node->incarnation, NULL, sender->id, NULL, 0);
    sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_ABORTED});
    sender->closed = true;
    node->room_count--;
    sim_sender_release(sender);
}

void sim_prefill_close(sim_node *node)
{
    node->closing = true;
    while (node->transfers != NULL) {
        sim_transfer *transfer = node->transfers;
        DL_DELETE(node->transfers, transfer);
        transfer->agent->transfer_count--;
        free(transfer);
    }
    while (node->senders != NULL)
        free_sender(node->senders);
    sim_held_free_all(node);
    sim_agents_free(node);
    kvf_timers_leave(&node->timers, &node->held_timer);
    node->engine_runs = false;
    node->deaf = false;
    node->closing = false;
}

/* ---- Messages ------------------------------------------------------------------------------------- */

static sim_sender *open_sender(sim_node *node, uint64_t room)
{
    sim_sender *sender;
    DL_FOREACH(node->senders, sender)
    {
        if (sender->id == room && !sender->closed)
            return sender;
    }
    return NULL;
}

static bool is_refused(sim_agent *agent, const kvf_request *request, kvf_error *error)
{
    if (agent->refused_until <= sim_now(agent->node))
        return false;
    kvf_error_set(error, KVF_PEER_GONE,
                  "this node was stopped, perhaps for longer than agent %s waits", agent->name);
    sim_letters_failed(agent, request, error);
    return true;
}

static bool is_news(sim_agent *agent, const kvf_request *request)
{
    const sim_node *node = agent->node;
    sim_plant plant = node->world->plant;
    if (node->stock)
        return true;
    kvf_news news = kvf_peer_asks(&agent->past, request->room, request->epoch);
    if ((news == KVF_NEWS_REPEATED && plant != SIM_PLANT_REPLAY_TAKEN) ||
        (news == KVF_NEWS_USED_ID && plant != SIM_PLANT_USED_ID_TAKEN)) {
        sim_trace(node->world, node, "room %llu: agent %s repeats an old request, or a used id",
                  (unsigned long long)request->room, agent->name);
        return false;
    }
    agent->past.lease = request->lease;
    sim_letters_address(agent, request);
    return true;
}

/* As a stock prefill reads it. */
static void forget_extensions(kvf_request *request)
{
    request->extended = false;
    request->extensions = 0;
    request->epoch = 0;
    request->lease = 0;
}

void sim_prefill_message(sim_node *node, uint64_t connection, const kvf_slice *frames, size_t count)
{
    kvf_request request;
    kvf_refusal refusal = {.room_known = false};
    kvf_error error;
    sim_agent *agent;
    if (node->deaf)
        return;
    if (kvf_letter_is_one(frames, count)) {
        if (node->stock)
            sim_violate(node->world, "%s is sent a letter, which ends its listener", node->name);
        else
            sim_letters_take(node, connection, frames, count);
        return;
    }
    if (kvf_request_decode(node->world->profile, frames, count, &request, &refusal, &error) !=
        KVF_OK) {
        connection_junk(node, error.text);
        if (refusal.room_known)
            sim_incoming_refuse(node, open_sender(node, refusal.room), refusal.room, &error);
        return;
    }
    if (node->stock)
        forget_extensions(&request);
    sim_sender *sender = open_sender(node, request.room);
    sim_trace(node->world, node, "room %llu: request of agent %.*s, %zu pages, %s",
              (unsigned long long)request.room, (int)request.agent_name.length,
              (const char *)request.agent_name.data, kvf_request_page_count(&request),
              sender == NULL ? "held" : "taken to its sender");
    if (node->world->plant == SIM_PLANT_DUMMY_IGNORED && kvf_request_is_dummy(&request))
        return;
    if (sim_agent_find(node, &request, connection, &agent, &error) != KVF_OK) {
        if (!node->stock && sim_agent_has_asked(node, &request))
            return;
        if (!node->stock)
            sim_letters_turned_away(node, &request, &error, sim_agent_turn_away(node, &request));
        sim_incoming_refuse(node, sender, request.room, &error);
        return;
    }
    if (!is_news(agent, &request))
        return;
    if (!kvf_request_is_dummy(&request)) /* whose name may have been cut short */
        sim_check_addressee(node, agent);
    bool refused = is_refused(agent, &request, &error);
    if (refused && sender != NULL)
        sim_incoming_refuse(node, sender, request.room, &error);
    else if (!refused)
        sim_incoming_take(node, sender, agent, &request);
}
