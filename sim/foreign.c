/* Traffic that nobody should send: junk, strangers, a second request after the first byte. */
#include "sim/sim.h"

#include <stdio.h>
#include <stdlib.h>

enum { FOREIGN_CONNECTION = 1 << 30 };

void sim_fault_foreign(sim_world *world, sim_node *prefill, sim_node *decode);
void sim_fault_late(sim_world *world);

/* ---- To a prefill node ---------------------------------------------------------------------------- */

static void stranger_leaves(sim_world *world, sim_task *task)
{
    (void)world;
    sim_prefill_connection_gone(task->node, task->number);
}

/* Few frames, or as many as a request has. */
static void junk_frames(sim_world *world, sim_node *prefill)
{
    static const size_t counts[] = {1, 2, 3, 12, 13};
    uint8_t noise[16];
    kvf_slice frames[13];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)sim_random_next(&world->random);
    for (size_t i = 0; i < 13; i++)
        frames[i] = (kvf_slice){noise, sim_random_below(&world->random, sizeof noise)};
    sim_prefill_message(prefill, FOREIGN_CONNECTION, frames,
                        counts[sim_random_below(&world->random, 5)]);
}

/* A well-formed request of an unknown agent for a room that nobody will ever open. */
static void stray_request(sim_world *world, sim_node *prefill)
{
    char name[32];
    uint8_t pages[16] = {1};
    kvf_message message;
    kvf_bytes bytes = {0};
    kvf_error error;
    uint64_t connection = FOREIGN_CONNECTION + sim_random_below(&world->random, 1000);
    (void)snprintf(name, sizeof name, "stranger-%llu", (unsigned long long)connection);
    kvf_metadata metadata = {.agent_name = kvf_slice_of(name),
                             .worker_address = {pages, sizeof pages}};
    (void)kvf_metadata_encode(&metadata, world->profile->flavour, &bytes, &error);
    kvf_request request = {.room = 5 + sim_random_below(&world->random, 1000),
                           .host = kvf_slice_of("192.0.2.1"),
                           .agent_name = kvf_slice_of(name),
                           .agent_metadata = kvf_bytes_slice(&bytes),
                           .buffers = {pages, 16},
                           .pages = {pages, 8},
                           .page_width = world->profile->page_width,
                           .aux = {pages, 8},
                           .required = 1};
    kvf_request_encode(world->profile, &request, &message);
    sim_prefill_message(prefill, connection, message.frames, message.frame_count);
    kvf_bytes_free(&bytes);
    sim_task_add(world, world->now + KVF_SECOND, stranger_leaves, prefill, prefill->incarnation,
                 NULL, connection, NULL, 0);
}

static sim_incoming *any_open_request(sim_node *prefill)
{
    sim_sender *sender;
    DL_FOREACH(prefill->senders, sender)
    {
        sim_incoming *incoming = sender->incoming;
        if (!sender->closed && incoming != NULL && !kvf_request_is_dummy(&incoming->request) &&
            sim_random_chance(&prefill->world->random, 300))
            return incoming;
    }
    return NULL;
}

/* Somebody else asks for an open room as its decode did, with one more to come: that ends the room, as both can't be
 * right. */
static void second_agent(sim_world *world, sim_node *prefill)
{
    char name[32];
    kvf_message message;
    kvf_metadata metadata;
    kvf_bytes bytes = {0};
    kvf_error error;
    uint64_t connection = FOREIGN_CONNECTION + sim_random_below(&world->random, 1000);
    const sim_incoming *incoming = any_open_request(prefill);
    if (incoming == NULL || incoming->request.required >= world->limits.destinations)
        return;
    kvf_request request = incoming->request;
    if (kvf_metadata_decode(request.agent_metadata, 64, &metadata, &error) != KVF_OK)
        return;
    (void)snprintf(name, sizeof name, "stranger-%llu", (unsigned long long)connection);
    metadata.agent_name = request.agent_name = kvf_slice_of(name);
    (void)kvf_metadata_encode(&metadata, world->profile->flavour, &bytes, &error);
    kvf_metadata_free(&metadata);
    request.agent_metadata = kvf_bytes_slice(&bytes);
    request.required++;
    request.extended = false;
    request.epoch = 0;
    const sim_side *side = incoming->sender->side;
    sim_fault_touch(side->instance, SIM_FAULT_FOREIGN);
    kvf_request_encode(world->profile, &request, &message);
    sim_prefill_message(prefill, connection, message.frames, message.frame_count);
    sim_fault_meets(world, SIM_FAULT_FOREIGN, side); /* in the state that it has brought about */
    kvf_bytes_free(&bytes);
    sim_task_add(world, world->now + KVF_SECOND, stranger_leaves, prefill, prefill->incarnation,
                 NULL, connection, NULL, 0);
}

/* Gives an open room up in its decode's name, over another connection: nothing may come of it. */
static void forged_abort(sim_node *prefill)
{
    static const char text[] = "forged";
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice frames[KVF_LETTER_FRAMES];
    const sim_incoming *incoming = any_open_request(prefill);
    if (incoming == NULL)
        return;
    kvf_letter letter = {.kind = KVF_LETTER_ABORT,
                         .status = KVF_ABORTED,
                         .room = incoming->request.room,
                         .epoch = incoming->request.epoch,
                         .agent_name = incoming->request.agent_name,
                         .text = kvf_slice_of(text)};
    kvf_letter_encode(&letter, head, frames);
    sim_prefill_message(prefill, FOREIGN_CONNECTION, frames, KVF_LETTER_FRAMES);
}

/* ---- To a decode node ----------------------------------------------------------------------------- */

static void tell(sim_node *decode, uint64_t inbox, const char *name, const kvf_notice *notice)
{
    char text[KVF_NOTICE_TEXT_MAX];
    uint8_t payload[KVF_NOTICE_PAYLOAD_MAX];
    size_t length = kvf_notice_format(notice, text);
    length = kvf_notice_payload_encode(kvf_slice_of(name),
                                       (kvf_slice){(const uint8_t *)text, length}, payload);
    sim_inbox_notified(decode, inbox, (kvf_slice){payload, length});
}

/* One word from a stranger about an open room. It may pin the room to itself, and then the room fails; it
 * can't complete it, for that takes two. */
static void stranger_speaks(sim_world *world, sim_node *decode)
{
    sim_receiver *receiver;
    DL_FOREACH(decode->receivers, receiver)
    {
        sim_side *side = receiver->side;
        const sim_inbox *inbox = receiver->targets[0].inbox;
        if (inbox == NULL || side->pinned_by_stranger || sim_random_chance(&world->random, 500))
            continue;
        side->pinned_by_stranger = true;
        sim_fault_touch(side->instance, SIM_FAULT_FOREIGN);
        kvf_notice notice = {
            .kind = sim_random_chance(&world->random, 500) ? KVF_NOTICE_AUX : KVF_NOTICE_CHUNK,
            .room = receiver->id,
            .epoch = inbox->rank != NULL && inbox->rank->shown ? receiver->targets[0].key : 0,
            .chunk = side->instance->chunk_count - 1,
            .last = true};
        sim_trace(world, decode, "room %llu: a stranger speaks", (unsigned long long)receiver->id);
        tell(decode, inbox->number, "stranger", &notice);
        return;
    }
}

static void junk_notifications(sim_world *world, sim_node *decode)
{
    uint8_t noise[24];
    const sim_inbox *inbox = decode->inboxes;
    if (inbox == NULL)
        return;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)sim_random_next(&world->random);
    sim_inbox_notified(decode, inbox->number,
                       (kvf_slice){noise, sim_random_below(&world->random, sizeof noise)});
    tell(decode, inbox->number, "stranger",
         &(kvf_notice){.kind = KVF_NOTICE_AUX, .room = sim_random_below(&world->random, 1000)});
}

/* Of a request that was never made, or to somebody else: nothing may come of it. */
static void forged_letter(sim_world *world, sim_node *decode)
{
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice frames[KVF_LETTER_FRAMES];
    const sim_receiver *receiver = decode->receivers;
    const sim_inbox *inbox = receiver == NULL ? NULL : receiver->targets[0].inbox;
    if (inbox == NULL || decode->stock)
        return;
    bool named = inbox->rank->shown && sim_random_chance(&world->random, 500);
    uint64_t key = receiver->targets[0].key;
    kvf_letter letter = {.kind = sim_random_chance(&world->random, 500) ? KVF_LETTER_FAILED
                                                                        : KVF_LETTER_STOPPED,
                         .status = KVF_ABORTED,
                         .room = receiver->id,
                         .epoch = named ? key + 100000 : key,
                         .agent_name = kvf_slice_of(named ? inbox->agent_name : "stranger"),
                         .text = kvf_slice_of("forged")};
    kvf_letter_encode(&letter, head, frames);
    sim_letters_message(decode, frames, KVF_LETTER_FRAMES);
}

void sim_fault_foreign(sim_world *world, sim_node *prefill, sim_node *decode)
{
    sim_sender *sender;
    sim_receiver *receiver;
    /* A stock process doesn't survive junk: see the list of its limits. */
    if (prefill->alive && !prefill->stopped && !prefill->stock) {
        DL_FOREACH(prefill->senders, sender)
        {
            if (!sender->closed)
                sim_fault_meets(world, SIM_FAULT_FOREIGN, sender->side);
        }
        junk_frames(world, prefill);
        stray_request(world, prefill);
        forged_abort(prefill);
        if (sim_random_chance(&world->random, 300))
            second_agent(world, prefill);
    }
    if (decode->alive && !decode->stopped) {
        DL_FOREACH(decode->receivers, receiver)
        {
            sim_fault_meets(world, SIM_FAULT_FOREIGN, receiver->side);
        }
        junk_notifications(world, decode);
        forged_letter(world, decode);
        stranger_speaks(world, decode);
    }
}

/* ---- A second request, for other pages ------------------------------------------------------------ */

static sim_incoming *written_to(sim_sender *sender)
{
    sim_incoming *incoming;
    DL_FOREACH(sender->incoming, incoming)
    {
        if (incoming->pages != NULL && incoming->agent->decode->alive &&
            incoming->agent->decode->incarnation == incoming->agent->decode_incarnation)
            return incoming;
    }
    return NULL;
}

/* The other pages are lent by the decode node's pool for good, in the name of the same room. */
static bool lend_pages(sim_side *receiver, uint32_t count, uint32_t *pages)
{
    sim_pool *pool = &receiver->node->pool;
    if (pool->free_page_count < count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        pages[i] = pool->free_pages[--pool->free_page_count];
        pool->page_owner[pages[i]] = receiver;
    }
    return true;
}

/* What is on its way must not be overtaken: its epochs are smaller. */
static bool is_quiet(const sim_world *world, uint64_t number)
{
    const sim_connection *connection;
    LL_FOREACH(world->connections, connection)
    {
        if (connection->number == number)
            return !connection->broken && connection->last_arrival <= world->now;
    }
    return false;
}

static void ask_again(sim_sender *sender, const sim_incoming *incoming)
{
    sim_node *node = sender->node;
    sim_world *world = node->world;
    sim_instance *instance = sender->side->instance;
    sim_side *receiver = &instance->receivers[incoming->agent->decode->rank];
    uint32_t pages[SIM_ROOM_PAGES + 1];
    uint32_t count = (uint32_t)kvf_request_page_count(&incoming->request);
    kvf_bytes bytes = {0};
    kvf_request request = incoming->request;
    kvf_message message;
    sim_inbox *inbox = sim_inbox_find(receiver->node, incoming->request.agent_name);
    if (inbox == NULL || !is_quiet(world, incoming->agent->connection) || count == 0 ||
        count > SIM_ROOM_PAGES || !lend_pages(receiver, count, pages))
        return;
    sim_fault_touch(instance, SIM_FAULT_LATE);
    sim_fault_meets(world, SIM_FAULT_LATE, sender->side);
    instance->id_tainted = true;
    sim_trace(world, node, "room %llu: asked again, for other pages",
              (unsigned long long)instance->id);
    if (request.epoch != 0)
        request.epoch = ++inbox->last_epoch;
    kvf_request_pages_encode(world->profile, pages, count, &bytes);
    request.pages = kvf_bytes_slice(&bytes);
    kvf_request_encode(world->profile, &request, &message);
    sim_prefill_message(node, incoming->agent->connection, message.frames, message.frame_count);
    kvf_bytes_free(&bytes);
}

/* Only once something was posted: before, the later request is right to win. */
void sim_fault_late(sim_world *world)
{
    for (uint32_t i = 0; i < world->node_count; i++) {
        sim_node *node = &world->nodes[i];
        sim_sender *sender;
        if (!node->alive || node->stopped || node->stock)
            continue;
        DL_FOREACH(node->senders, sender)
        {
            sim_incoming *incoming = written_to(sender);
            if (sender->closed || sender->machine.chunks_posted == 0 || incoming == NULL)
                continue;
            ask_again(sender, incoming);
            return;
        }
    }
}
