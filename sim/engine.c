/* The data plane of a prefill node: transfers take turns, each write is cut into pieces, a piece lands cell by
 * cell. Who places the cells is the transport's nature:
 *   writer-placed (direct mapping): the writer itself; it stops and dies in mid-write, goes on when it is
 *     continued, whatever the target has closed meanwhile, and reads the source when the cell lands;
 *   receiver-placed (TCP): the receiver, from bytes the writer has handed to the kernel, which outlive it, until
 *     the inbox they were sent to is closed. */
#include "sim/sim.h"

#include <stdlib.h>

enum { OUTSTANDING_PIECES = 8 };

typedef struct piece {
    uint64_t transfer;
    sim_node *writer;
    uint32_t writer_incarnation;
    sim_node *reader;
    uint32_t reader_incarnation;
    uint64_t inbox;
    const sim_instance *instance;
    uint64_t source;
    uint64_t destination;
    uint32_t cells;
    uint32_t landed;
    bool writer_placed;
    uint64_t contents[SIM_PIECE_CELLS]; /* receiver-placed: read when it was sent */
} piece;

static sim_transfer *find_transfer(sim_node *node, uint64_t number)
{
    sim_transfer *transfer;
    DL_FOREACH(node->transfers, transfer)
    {
        if (transfer->number == number)
            return transfer;
    }
    return NULL;
}

/* `flushed`: all that was posted is known to have landed. */
static void end(sim_transfer *transfer, bool flushed, kvf_status status, const char *text)
{
    sim_node *node = transfer->sender->node;
    DL_DELETE(node->transfers, transfer);
    transfer->agent->transfer_count--;
    transfer->flushed = flushed;
    sim_sender_transfer_ended(transfer, status, text);
    free(transfer);
    sim_agents_reap(node);
}

static bool is_reachable(const sim_agent *agent)
{
    return agent->decode->alive && agent->decode->incarnation == agent->decode_incarnation &&
           sim_inbox_is_open(agent->decode, agent->decode_inbox);
}

/* ---- Landing -------------------------------------------------------------------------------------- */

static uint64_t cell_pause(sim_world *world, const piece *what)
{
    uint64_t slow = world->slow[what->writer->index][what->reader->index];
    return sim_random_between(&world->random, KVF_MICROSECOND, 20 * KVF_MICROSECOND) * slow;
}

static void completed(sim_world *world, sim_task *task);

static void land(sim_world *world, sim_task *task)
{
    piece what;
    memcpy(&what, task->bytes, sizeof what);
    uint64_t at;
    /* A dead reader's memory is gone: the transport notices by itself. */
    if (!what.reader->alive || what.reader->incarnation != what.reader_incarnation)
        return;
    /* Nor does a writer go on with what it has given up: it has let go of the source. What a reader has closed
     * it doesn't take from. */
    if (what.writer_placed ? find_transfer(what.writer, what.transfer) == NULL
                           : !sim_inbox_is_open(what.reader, what.inbox))
        return;
    if (sim_is_cut(world, what.writer, what.reader)) {
        at = world->now + sim_delay(world, what.writer, what.reader);
    } else {
        uint64_t offset = (uint64_t)what.landed * SIM_CELL;
        uint64_t content = what.writer_placed
                               ? sim_memory_read(world, what.source + offset, what.instance)
                               : what.contents[what.landed];
        sim_memory_land(world, what.destination + offset, content, what.instance);
        what.landed++;
        at = world->now + cell_pause(world, &what);
    }
    if (what.landed == what.cells)
        sim_task_add(world, world->now + sim_delay(world, what.reader, what.writer), completed,
                     what.writer, what.writer_incarnation, NULL, what.transfer, NULL, 0);
    else
        sim_task_add(world, at, land, task->node, task->incarnation, NULL, 0, &what, sizeof what);
}

static void launch(sim_transfer *transfer, const kvf_write *write)
{
    sim_node *writer = transfer->sender->node;
    sim_world *world = writer->world;
    piece what = {.transfer = transfer->number,
                  .writer = writer,
                  .writer_incarnation = writer->incarnation,
                  .reader = transfer->agent->decode,
                  .reader_incarnation = transfer->agent->decode_incarnation,
                  .inbox = transfer->agent->decode_inbox,
                  .instance = transfer->sender->side->instance,
                  .source = write->source,
                  .destination = write->destination,
                  .cells = (uint32_t)(write->length / SIM_CELL)};
    what.writer_placed = transfer->agent->direct;
    sim_check_post(transfer);
    sim_check_awake(transfer);
    for (uint32_t i = 0; !what.writer_placed && i < what.cells; i++)
        what.contents[i] =
            sim_memory_read(world, what.source + (uint64_t)i * SIM_CELL, what.instance);
    transfer->outstanding++;
    uint64_t delay = sim_delay(world, writer, what.reader);
    if (what.writer_placed)
        sim_task_add(world, world->now + delay, land, writer, what.writer_incarnation, NULL, 0,
                     &what, sizeof what);
    else
        sim_task_add(world, world->now + delay, land, what.reader, what.reader_incarnation, NULL, 0,
                     &what, sizeof what);
}

/* ---- Turns ---------------------------------------------------------------------------------------- */

static void flushed(sim_world *world, sim_task *task);
static void turn(sim_world *world, sim_task *task);

static void run_engine(sim_node *node)
{
    if (node->engine_runs)
        return;
    node->engine_runs = true;
    sim_task_add(node->world,
                 node->world->now + sim_random_between(&node->world->random, KVF_MICROSECOND,
                                                       100 * KVF_MICROSECOND),
                 turn, node, node->incarnation, NULL, 0, NULL, 0);
}

/* When everything posted has landed, a flush; what is canceled ends here. */
static void settle(sim_transfer *transfer)
{
    sim_node *node = transfer->sender->node;
    sim_world *world = node->world;
    if (transfer->outstanding > 0 && world->plant != SIM_PLANT_SUCCESS_BEFORE_FLUSH)
        return;
    if (transfer->canceled) {
        if (transfer->outstanding == 0 && !transfer->flushing)
            end(transfer, true, KVF_ABORTED, "canceled");
        return;
    }
    if (transfer->flushing || !kvf_writes_done(&transfer->parts[transfer->part].writes))
        return;
    transfer->flushing = true;
    sim_task_add(world, world->now + sim_delay(world, node, transfer->agent->decode), flushed, node,
                 node->incarnation, NULL, transfer->number, NULL, 0);
}

static void completed(sim_world *world, sim_task *task)
{
    sim_transfer *transfer = find_transfer(task->node, task->number);
    (void)world;
    if (transfer == NULL || transfer->outstanding == 0)
        return;
    transfer->outstanding--;
    settle(transfer);
    run_engine(task->node);
}

static void announce(sim_transfer *transfer, const kvf_notice *notice)
{
    sim_node *node = transfer->sender->node;
    char text[KVF_NOTICE_TEXT_MAX];
    uint8_t payload[KVF_NOTICE_PAYLOAD_MAX];
    size_t length = kvf_notice_format(notice, text);
    if (transfer->sender->stopped)
        sim_violate(node->world, "room %llu: %s announces \"%s\" after the room's end",
                    (unsigned long long)notice->room, node->name, text);
    length = kvf_notice_payload_encode(kvf_slice_of(node->agent_name),
                                       (kvf_slice){(const uint8_t *)text, length}, payload);
    sim_trace(node->world, node, "room %llu: notifies %s: %s", (unsigned long long)notice->room,
              transfer->agent->decode->name, text);
    sim_notify(transfer, payload, length);
}

/* Planted: a piece of the transfer is sent once more, much later. */
static void resend(sim_transfer *transfer)
{
    sim_node *writer = transfer->sender->node;
    sim_world *world = writer->world;
    kvf_writes writes = transfer->parts[0].writes;
    kvf_write write;
    kvf_writes_begin(&writes, writes.spans, SIM_BUFFERS, writes.source_pages,
                     writes.destination_pages, writes.page_count);
    if (world->plant != SIM_PLANT_WRITE_AFTER_SUCCESS ||
        !kvf_writes_next(&writes, SIM_CELL, &write))
        return;
    piece what = {.writer = writer,
                  .reader = transfer->agent->decode,
                  .reader_incarnation = transfer->agent->decode_incarnation,
                  .inbox = transfer->agent->decode_inbox,
                  .instance = transfer->sender->side->instance,
                  .destination = write.destination,
                  .cells = 1};
    sim_task_add(world, world->now + 30 * KVF_MILLISECOND, land, what.reader,
                 transfer->agent->decode_incarnation, NULL, 0, &what, sizeof what);
}

static void flushed(sim_world *world, sim_task *task)
{
    sim_transfer *transfer = find_transfer(task->node, task->number);
    (void)world;
    if (transfer == NULL || !is_reachable(transfer->agent))
        return;
    transfer->flushing = false;
    if (transfer->canceled) {
        settle(transfer);
        return;
    }
    announce(transfer, &transfer->parts[transfer->part].notice);
    transfer->part++;
    if (transfer->part < transfer->part_count) {
        settle(transfer);
        run_engine(task->node);
        return;
    }
    resend(transfer);
    end(transfer, true, KVF_OK, NULL);
}

/* One piece of the next transfer that has one to post. */
static void turn(sim_world *world, sim_task *task)
{
    sim_node *node = task->node;
    node->engine_runs = false;
    sim_transfer *transfer;
    DL_FOREACH(node->transfers, transfer)
    {
        kvf_write write;
        uint64_t length = SIM_CELL * sim_random_between(&world->random, 1, SIM_PIECE_CELLS);
        if (transfer->canceled || transfer->outstanding >= OUTSTANDING_PIECES ||
            transfer->part >= transfer->part_count || transfer->flushing ||
            !kvf_writes_next(&transfer->parts[transfer->part].writes, length, &write))
            continue;
        launch(transfer, &write);
        DL_DELETE(node->transfers, transfer);
        DL_APPEND(node->transfers, transfer);
        settle(transfer);
        run_engine(node);
        return;
    }
}

/* number: the inbox, above its node's incarnation. */
static void notices(sim_world *world, sim_task *task)
{
    (void)world;
    sim_engine_peer_failed(task->node, task->subject, (uint32_t)task->number, task->number >> 32,
                           "nobody takes what is written there");
}

static void notice_later(sim_node *node, sim_node *decode, uint32_t incarnation, uint64_t inbox,
                         uint64_t delay)
{
    sim_task_add(node->world, node->world->now + delay, notices, node, node->incarnation, decode,
                 inbox << 32 | incarnation, NULL, 0);
}

/* Over TCP the reset tells the writer; by direct mapping it only misses answers. */
void sim_engine_inbox_closed(const sim_inbox *inbox)
{
    sim_world *world = inbox->node->world;
    sim_node *writer = inbox->writer;
    if (!writer->alive || writer->incarnation != inbox->writer_incarnation)
        return;
    uint64_t delay = sim_delay(world, inbox->node, writer) + 5 * KVF_MILLISECOND;
    if (inbox->direct)
        delay += sim_random_below(&world->random, SIM_TRANSPORT_TIMEOUT);
    notice_later(writer, inbox->node, inbox->node->incarnation, inbox->number, delay);
}

void sim_engine_post(sim_transfer *transfer)
{
    sim_node *node = transfer->sender->node;
    transfer->number = ++node->world->transfer_count;
    transfer->agent->transfer_count++;
    DL_APPEND(node->transfers, transfer);
    sim_check_post(transfer);
    if (!is_reachable(transfer->agent))
        notice_later(node, transfer->agent->decode, transfer->agent->decode_incarnation,
                     transfer->agent->decode_inbox, KVF_MILLISECOND);
    settle(transfer); /* a part of no pages has nothing to post */
    run_engine(node);
}

static void cancel_later(sim_world *world, sim_task *task)
{
    sim_transfer *transfer = find_transfer(task->node, task->number);
    (void)world;
    if (transfer != NULL)
        settle(transfer);
}

/* done() never comes from inside cancel(). */
void sim_engine_cancel(sim_transfer *transfer)
{
    sim_node *node = transfer->sender->node;
    if (node->world->plant == SIM_PLANT_CANCEL_IGNORED)
        return;
    transfer->canceled = true;
    sim_task_add(node->world, node->world->now, cancel_later, node, node->incarnation, NULL,
                 transfer->number, NULL, 0);
}

static bool is_meant(const sim_agent *agent, const sim_node *decode, uint32_t incarnation,
                     uint64_t inbox)
{
    return agent->decode == decode && agent->decode_incarnation == incarnation &&
           (inbox == 0 || agent->decode_inbox == inbox);
}

/* The transport gives a peer up: its agent is buried, then its transfers end; what the writer doesn't
 * place itself may still land. */
static void mark_inboxes(const sim_node *node, const sim_node *decode, uint32_t incarnation,
                         uint64_t number)
{
    sim_inbox *inbox;
    DL_FOREACH(decode->inboxes, inbox)
    {
        if (inbox->writer == node && decode->incarnation == incarnation &&
            (number == 0 || inbox->number == number))
            inbox->transport_lost = true;
    }
}

void sim_engine_peer_failed(sim_node *node, sim_node *decode, uint32_t incarnation, uint64_t inbox,
                            const char *text)
{
    mark_inboxes(node, decode, incarnation, inbox);
    sim_agent *agent;
    sim_agent *next_agent;
    DL_FOREACH_SAFE(node->agents, agent, next_agent)
    {
        if (is_meant(agent, decode, incarnation, inbox))
            sim_agent_transport_failed(agent, text);
    }
    for (;;) {
        sim_transfer *transfer;
        DL_FOREACH(node->transfers, transfer)
        {
            if (is_meant(transfer->agent, decode, incarnation, inbox))
                break;
        }
        if (transfer == NULL)
            break;
        transfer->outstanding = 0;
        end(transfer, false, transfer->canceled ? KVF_ABORTED : KVF_PEER_GONE, text);
    }
    sim_agents_reap(node);
}
