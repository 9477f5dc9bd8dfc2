/* The pretend network: delays, links that are cut, control connections, notifications. */
#include "sim/sim.h"

#include <stdlib.h>

bool sim_is_cut(const sim_world *world, const sim_node *a, const sim_node *b)
{
    return world->cut_until[a->index][b->index] > world->now;
}

/* How long something sent now is under way; over a link that is cut until it heals. */
uint64_t sim_delay(sim_world *world, const sim_node *from, const sim_node *to)
{
    uint64_t delay = sim_random_between(&world->random, 50 * KVF_MICROSECOND, KVF_MILLISECOND);
    if (sim_random_chance(&world->random, 20))
        delay += sim_random_below(&world->random, 30 * KVF_MILLISECOND);
    if (sim_is_cut(world, from, to))
        delay += world->cut_until[from->index][to->index] - world->now;
    return delay;
}

/* ---- Control connections ------------------------------------------------------------------------- */

static void tell_decode(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    (void)world;
    if (!connection->decode_open)
        return;
    connection->decode_open = false;
    connection->broken = true;
    sim_rank_gone(connection->rank, task->number == 0 ? "connection refused" : "connection lost");
}

static void tell_prefill(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    (void)world;
    if (!connection->prefill_open)
        return;
    connection->prefill_open = false;
    connection->broken = true;
    sim_prefill_connection_gone(connection->prefill, connection->number);
}

static void end_decode(sim_connection *connection, uint64_t delay, bool was_open)
{
    sim_world *world = connection->decode->world;
    sim_task_add(world, world->now + delay, tell_decode, connection->decode,
                 connection->decode_incarnation, connection, was_open, NULL, 0);
}

static void end_prefill(sim_connection *connection, uint64_t delay)
{
    sim_world *world = connection->decode->world;
    sim_task_add(world, world->now + delay, tell_prefill, connection->prefill,
                 connection->prefill_incarnation, connection, 0, NULL, 0);
}

static void connected(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    (void)world;
    if (!connection->broken && connection->decode_open)
        sim_rank_feed(connection->rank, KVF_LOOKUP_CONNECTED, NULL);
}

/* At the address: whoever lives there now. A stopped process doesn't finish the handshake. */
static void arrive(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    sim_node *prefill = connection->prefill;
    sim_node *decode = connection->decode;
    if (prefill->alive && !prefill->stopped && !sim_is_cut(world, prefill, decode)) {
        connection->prefill_open = true;
        connection->prefill_incarnation = prefill->incarnation;
        sim_task_add(world, world->now + sim_delay(world, prefill, decode), connected, decode,
                     connection->decode_incarnation, connection, 0, NULL, 0);
        return;
    }
    connection->broken = true;
    bool refused = !prefill->alive && !sim_is_cut(world, prefill, decode);
    end_decode(connection, refused ? KVF_MILLISECOND : SIM_HEARTBEAT_TIMEOUT, false);
}

sim_connection *sim_connection_open(sim_rank *rank)
{
    sim_node *decode = rank->node;
    sim_world *world = decode->world;
    sim_connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        abort();
    connection->number = ++world->connection_count;
    connection->decode = decode;
    connection->decode_incarnation = decode->incarnation;
    connection->decode_open = true;
    connection->rank = rank;
    LL_PREPEND(world->connections, connection);
    for (uint32_t i = 0; i < world->node_count; i++)
        if (strcmp(world->nodes[i].host, rank->where.rank_ip) == 0 &&
            world->nodes[i].port == rank->where.rank_port)
            connection->prefill = &world->nodes[i];
    if (connection->prefill == NULL)
        abort();
    sim_task_add(world, world->now + sim_delay(world, decode, connection->prefill), arrive, NULL, 0,
                 connection, 0, NULL, 0);
    return connection;
}

/* Both ends learn, each in its time. */
void sim_connection_drop(sim_connection *connection)
{
    if (connection->broken)
        return;
    sim_world *world = connection->decode->world;
    connection->broken = true;
    sim_trace(world, connection->decode, "connection to %s breaks", connection->prefill->name);
    end_decode(connection, sim_delay(world, connection->prefill, connection->decode), true);
    end_prefill(connection, sim_delay(world, connection->decode, connection->prefill));
}

/* The kernel of a dead process closes its connections; over a cut link the heartbeats have to notice. */
void sim_connections_of_dead(sim_node *node)
{
    sim_world *world = node->world;
    sim_connection *connection;
    LL_FOREACH(world->connections, connection)
    {
        if (connection->broken || (connection->decode != node && connection->prefill != node))
            continue;
        sim_node *other = connection->decode == node ? connection->prefill : connection->decode;
        uint64_t delay =
            sim_is_cut(world, node, other) ? SIM_HEARTBEAT_TIMEOUT : sim_delay(world, node, other);
        connection->broken = true;
        if (other == connection->decode)
            end_decode(connection, delay, true);
        else if (connection->prefill_open)
            end_prefill(connection, delay);
    }
}

static bool is_silent(const sim_world *world, const sim_connection *connection)
{
    return connection->decode->stopped || connection->prefill->stopped ||
           sim_is_cut(world, connection->decode, connection->prefill);
}

static void check_silence(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    if (connection->broken || !is_silent(world, connection))
        return;
    sim_connection_drop(connection);
}

/* Called when a node has been stopped or a link cut: the heartbeats notice, if it lasts. */
void sim_connections_silent(sim_world *world)
{
    sim_connection *connection;
    LL_FOREACH(world->connections, connection)
    {
        if (!connection->broken && is_silent(world, connection))
            sim_task_add(world, world->now + SIM_HEARTBEAT_TIMEOUT, check_silence, NULL, 0,
                         connection, 0, NULL, 0);
    }
}

void sim_connections_free(sim_world *world)
{
    while (world->connections != NULL) {
        sim_connection *next = world->connections->next;
        free(world->connections);
        world->connections = next;
    }
}

/* ---- Messages ------------------------------------------------------------------------------------ */

enum { REPEAT = 1 << 16 };

static void meets_repeat(sim_world *world, const sim_node *node, kvf_slice room)
{
    uint64_t number = 0;
    (void)kvf_parse_decimal(room, KVF_ROOM_MAX, &number);
    sim_instance *instance = sim_instance_of(world, number);
    if (instance != NULL)
        sim_fault_meets(world, SIM_FAULT_REPEAT,
                        node->prefill ? &instance->senders[node->rank]
                                      : &instance->receivers[node->rank]);
}

static void deliver(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    kvf_slice frames[SIM_FRAMES_MAX];
    if (!connection->prefill_open)
        return;
    const uint8_t *at = task->bytes;
    size_t count = task->number % REPEAT;
    for (size_t i = 0; i < count; i++) {
        uint32_t length = kvf_read_u32(at);
        frames[i] = (kvf_slice){at + 4, length};
        at += 4 + length;
    }
    if (task->number >= REPEAT && count > 1)
        meets_repeat(world, connection->prefill, frames[1]);
    sim_prefill_message(connection->prefill, connection->number, frames, count);
}

static void send_once(sim_connection *connection, const kvf_slice *frames, size_t count,
                      uint64_t extra)
{
    sim_world *world = connection->decode->world;
    kvf_bytes bytes = {0};
    for (size_t i = 0; i < count; i++) {
        uint8_t length[4];
        kvf_write_u32(length, (uint32_t)frames[i].length);
        kvf_bytes_append(&bytes, length, sizeof length);
        kvf_bytes_append(&bytes, frames[i].data, frames[i].length);
    }
    uint64_t arrival =
        world->now + sim_delay(world, connection->decode, connection->prefill) + extra;
    if (arrival <= connection->last_arrival)
        arrival = connection->last_arrival + 1;
    if (extra == 0) /* a repeat comes from whoever repeats, and holds nothing up */
        connection->last_arrival = arrival;
    sim_task_add(world, arrival, deliver, connection->prefill, connection->prefill_incarnation,
                 connection, count + (extra > 0 ? REPEAT : 0), bytes.data, bytes.length);
    kvf_bytes_free(&bytes);
}

/* Cut short as no sender would: frames missing at the end, or bytes at the end of a binary frame. Numbers stay
 * whole: a shorter number is another number, which no receiver could tell. */
static size_t truncate_message(sim_world *world, kvf_slice *frames, size_t count)
{
    if (sim_random_chance(&world->random, 500))
        return sim_random_below(&world->random, KVF_REQUEST_FRAMES);
    size_t frame = 4 + sim_random_below(&world->random, 5);
    if (frames[frame].length > 0)
        frames[frame].length = sim_random_below(&world->random, frames[frame].length);
    return count;
}

void sim_connection_send(sim_connection *connection, const kvf_slice *frames, size_t count)
{
    sim_world *world = connection->decode->world;
    kvf_slice copy[SIM_FRAMES_MAX];
    uint64_t room = 0;
    memcpy(copy, frames, count * sizeof *frames);
    (void)kvf_parse_decimal(frames[1], KVF_ROOM_MAX, &room);
    sim_instance *instance = sim_instance_of(world, room);
    if (connection->broken)
        return;
    if (instance != NULL && !connection->prefill->stock &&
        sim_faulty_now(world, SIM_FAULT_TRUNCATION, 60)) {
        count = truncate_message(world, copy, count);
        sim_fault_touch(instance, SIM_FAULT_TRUNCATION);
        sim_fault_meets(world, SIM_FAULT_TRUNCATION, &instance->senders[connection->prefill->rank]);
        sim_trace(world, connection->decode, "room %llu: the request is cut short",
                  (unsigned long long)room);
    }
    send_once(connection, copy, count, 0);
    if (instance != NULL && sim_faulty_now(world, SIM_FAULT_REPEAT, 80)) {
        instance->id_tainted = true;
        sim_fault_touch(instance, SIM_FAULT_REPEAT);
        send_once(connection, copy, count,
                  1 + sim_random_below(&world->random, 1500 * KVF_MILLISECOND));
        sim_trace(world, connection->decode, "room %llu: the request will come twice",
                  (unsigned long long)room);
    }
}

/* ---- Notifications: no order among them ---------------------------------------------------------- */

static void notified(sim_world *world, sim_task *task)
{
    if (task->subject != NULL) {
        sim_instance *instance = task->subject;
        sim_fault_meets(world, SIM_FAULT_REPEAT, &instance->receivers[task->node->rank]);
    }
    sim_decode_notified(task->node, (kvf_slice){task->bytes, task->length});
}

static void notify_once(sim_world *world, sim_node *from, sim_node *to, uint32_t incarnation,
                        const uint8_t *payload, size_t length, sim_instance *repeat_of)
{
    uint64_t extra =
        repeat_of == NULL ? 0 : sim_random_below(&world->random, 500 * KVF_MILLISECOND);
    sim_task_add(world, world->now + sim_delay(world, from, to) + extra, notified, to, incarnation,
                 repeat_of, 0, payload, length);
}

void sim_notify(sim_world *world, sim_node *from, sim_node *to, uint32_t incarnation,
                const uint8_t *payload, size_t length)
{
    kvf_slice name, text;
    kvf_notice notice;
    sim_instance *instance = NULL;
    if (kvf_notice_payload_decode((kvf_slice){payload, length}, &name, &text, NULL) == KVF_OK &&
        kvf_notice_parse(text, &notice, NULL) == KVF_OK)
        instance = sim_instance_of(world, notice.room);
    sim_side *side = instance == NULL ? NULL : &instance->receivers[to->rank];
    if (side != NULL && sim_faulty_now(world, SIM_FAULT_TRUNCATION, 30)) {
        sim_fault_touch(instance, SIM_FAULT_TRUNCATION);
        sim_fault_meets(world, SIM_FAULT_TRUNCATION, side);
        length = sim_random_below(&world->random, length);
        sim_trace(world, from, "a notification to %s is cut short", to->name);
    }
    notify_once(world, from, to, incarnation, payload, length, NULL);
    if (side != NULL && sim_faulty_now(world, SIM_FAULT_REPEAT, 80)) {
        instance->id_tainted = true;
        sim_fault_touch(instance, SIM_FAULT_REPEAT);
        notify_once(world, from, to, incarnation, payload, length, instance);
    }
}
