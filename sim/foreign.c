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

static void junk_frames(sim_world *world, sim_node *prefill)
{
    uint8_t noise[16];
    kvf_slice frames[3];
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)sim_random_next(&world->random);
    for (size_t i = 0; i < 3; i++)
        frames[i] = (kvf_slice){noise, sim_random_below(&world->random, sizeof noise)};
    sim_prefill_message(prefill, FOREIGN_CONNECTION, frames,
                        sim_random_between(&world->random, 1, 3));
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
    }
    if (decode->alive && !decode->stopped) {
        DL_FOREACH(decode->receivers, receiver)
        {
            sim_fault_meets(world, SIM_FAULT_FOREIGN, receiver->side);
        }
        junk_notifications(world, decode);
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
