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
    if (!connection->decode_open)
        return;
    connection->decode_open = false;
    connection->broken = true;
    if (connection->prefill_silent)
        connection->given_up_at = world->now;
    sim_rank_gone(connection->rank, task->number == 0 ? "connection refused" : "connection lost");
}

enum { AT_ONCE = 0, LATER = 1 };

/* What goes on after a stop first takes in what has come meanwhile: that the connection has ended is told by another
 * of its threads. */
static void tell_prefill(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    if (!connection->prefill_open)
        return;
    if (task->number == AT_ONCE && connection->prefill->resumed_at == world->now) {
        sim_task_add(world, world->now + sim_random_below(&world->random, 5 * KVF_MILLISECOND),
                     tell_prefill, connection->prefill, connection->prefill_incarnation, connection,
                     LATER, NULL, 0);
        return;
    }
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
                 connection->prefill_incarnation, connection, AT_ONCE, NULL, 0);
}

static void connected(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    (void)world;
    if (!connection->broken && connection->decode_open)
        sim_rank_feed(connection->rank, KVF_LOOKUP_CONNECTED, NULL);
}

/* At the address: whoever lives there now. Neither over a cut nor with a stopped process does the handshake get
 * anywhere; it is waited for as long as for a sign of life. */
static void arrive(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    sim_node *prefill = connection->prefill;
    sim_node *decode = connection->decode;
    bool listens = prefill->alive && prefill->port == connection->port;
    bool silent = sim_pair_of(prefill, decode)->silent;
    if (listens && !silent) {
        connection->prefill_open = true;
        connection->prefill_incarnation = prefill->incarnation;
        sim_task_add(world, world->now + sim_delay(world, prefill, decode), connected, decode,
                     connection->decode_incarnation, connection, 0, NULL, 0);
        return;
    }
    if (silent && world->now < task->number + decode->heartbeat_timeout) {
        sim_task_add(world, world->now + 20 * KVF_MILLISECOND, arrive, NULL, 0, connection,
                     task->number, NULL, 0);
        return;
    }
    connection->broken = true;
    end_decode(connection, KVF_MILLISECOND, false);
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
    connection->port = rank->where.rank_port;
    LL_PREPEND(world->connections, connection);
    for (uint32_t i = 0; i < world->node_count; i++)
        if (strcmp(world->nodes[i].host, rank->where.rank_ip) == 0)
            connection->prefill = &world->nodes[i];
    if (connection->prefill == NULL)
        abort();
    sim_task_add(world, world->now + sim_delay(world, decode, connection->prefill), arrive, NULL, 0,
                 connection, world->now, NULL, 0);
    return connection;
}

/* Over a cut link the heartbeats have to tell. */
static uint64_t notice_delay(const sim_node *from, const sim_node *to)
{
    sim_world *world = from->world;
    uint64_t delay = sim_delay(world, from, to);
    uint64_t silence = sim_pair_silence(from, to);
    uint64_t patience = to->heartbeat_timeout > silence ? to->heartbeat_timeout - silence : 0;
    return sim_is_cut(world, from, to) && patience < delay ? patience : delay;
}

/* Both ends learn, each in its time. */
void sim_connection_drop(sim_connection *connection)
{
    if (connection->broken)
        return;
    sim_world *world = connection->decode->world;
    connection->broken = true;
    sim_check_broken(connection);
    sim_trace(world, connection->decode, "connection to %s breaks", connection->prefill->name);
    end_decode(connection, notice_delay(connection->prefill, connection->decode), true);
    end_prefill(connection, notice_delay(connection->decode, connection->prefill));
}

/* The kernel of a dead process closes its connections. */
void sim_connections_of_dead(sim_node *node)
{
    sim_connection *connection;
    LL_FOREACH(node->world->connections, connection)
    {
        if (connection->broken || (connection->decode != node && connection->prefill != node))
            continue;
        sim_node *other = connection->decode == node ? connection->prefill : connection->decode;
        uint64_t delay = notice_delay(node, other);
        connection->broken = true;
        sim_check_broken(connection);
        if (other == connection->decode)
            end_decode(connection, delay, true);
        else if (connection->prefill_open)
            end_prefill(connection, delay);
    }
}

sim_connection *sim_connection_find(const sim_world *world, uint64_t number)
{
    sim_connection *connection;
    LL_FOREACH(world->connections, connection)
    {
        if (connection->number == number)
            break;
    }
    return connection;
}

/* One end of it that runs has heard nothing for as long as it waits. A stock prefill doesn't look. */
static void check_silence(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    const sim_node *prefill = connection->prefill;
    const sim_node *decode = connection->decode;
    uint64_t silence = sim_pair_silence(prefill, decode);
    bool prefill_notices =
        !prefill->stopped && !prefill->stock && silence >= prefill->heartbeat_timeout;
    bool decode_notices = !decode->stopped && silence >= decode->heartbeat_timeout;
    if (connection->broken || !connection->prefill_open || (!prefill_notices && !decode_notices))
        return;
    if (prefill->stopped && world->now >= prefill->stopped_at + decode->heartbeat_timeout)
        connection->prefill_silent = true;
    sim_connection_drop(connection);
}

static void check_silence_after(sim_connection *connection, const sim_node *end, uint64_t silence)
{
    sim_world *world = end->world;
    uint64_t wait = end->heartbeat_timeout > silence ? end->heartbeat_timeout - silence : 0;
    sim_task_add(world, world->now + wait, check_silence, NULL, 0, connection, 0, NULL, 0);
}

/* Called when a stop or a cut has begun or ended: the heartbeats notice, if the silence lasts. */
void sim_connections_silent(sim_world *world)
{
    sim_connection *connection;
    LL_FOREACH(world->connections, connection)
    {
        sim_node *prefill = connection->prefill;
        sim_node *decode = connection->decode;
        if (connection->broken || !sim_pair_of(prefill, decode)->silent)
            continue;
        uint64_t silence = sim_pair_silence(prefill, decode);
        check_silence_after(connection, prefill, silence);
        check_silence_after(connection, decode, silence);
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

enum { REPEAT = 1 };

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

void sim_frames_pack(const kvf_slice *frames, size_t count, kvf_bytes *bytes)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t length[4];
        kvf_write_u32(length, (uint32_t)frames[i].length);
        kvf_bytes_append(bytes, length, sizeof length);
        kvf_bytes_append(bytes, frames[i].data, frames[i].length);
    }
}

size_t sim_frames_unpack(const uint8_t *bytes, size_t length, kvf_slice *frames, size_t capacity)
{
    const uint8_t *end = bytes + length;
    size_t count = 0;
    while (bytes < end && count < capacity) {
        frames[count] = (kvf_slice){bytes + 4, kvf_read_u32(bytes)};
        bytes += 4 + frames[count++].length;
    }
    return count;
}

static void deliver(sim_world *world, sim_task *task)
{
    sim_connection *connection = task->subject;
    const sim_node *prefill = connection->prefill;
    kvf_slice frames[SIM_FRAMES_MAX];
    if (!connection->prefill_open)
        return;
    size_t count = sim_frames_unpack(task->bytes, task->length, frames, SIM_FRAMES_MAX);
    if (task->number == REPEAT && count > 1)
        meets_repeat(world, prefill, frames[1]);
    sim_prefill_message(connection->prefill, connection->number, frames, count);
}

static void send_once(sim_connection *connection, const kvf_slice *frames, size_t count,
                      uint64_t extra)
{
    sim_world *world = connection->decode->world;
    kvf_bytes bytes = {0};
    sim_frames_pack(frames, count, &bytes);
    uint64_t arrival =
        world->now + sim_delay(world, connection->decode, connection->prefill) + extra;
    if (arrival <= connection->last_arrival)
        arrival = connection->last_arrival + 1;
    if (extra == 0) /* a repeat comes from whoever repeats, and holds nothing up */
        connection->last_arrival = arrival;
    sim_task_add(world, arrival, deliver, connection->prefill, connection->prefill_incarnation,
                 connection, extra > 0 ? REPEAT : 0, bytes.data, bytes.length);
    kvf_bytes_free(&bytes);
}

/* Planted: a socket that was told of no end connects again by itself, and sends what it had kept. */
static void send_to_whoever(sim_connection *connection, const kvf_slice *frames, size_t count)
{
    sim_world *world = connection->decode->world;
    const sim_node *prefill = connection->prefill;
    kvf_bytes bytes = {0};
    if (world->plant != SIM_PLANT_SOCKET_RECONNECTS || !connection->prefill_open)
        return;
    sim_frames_pack(frames, count, &bytes);
    uint32_t next = prefill->incarnation + !prefill->alive;
    sim_task_add(world, world->now + 2 * KVF_SECOND, deliver, connection->prefill, next, connection,
                 0, bytes.data, bytes.length);
    kvf_bytes_free(&bytes);
}

/* Cut short as no sender would: frames missing at the end, or bytes at the end of a binary frame. Numbers stay
 * whole: a shorter number is another number, which no receiver could tell. */
static size_t truncate_message(const sim_instance *instance, kvf_slice *frames, size_t count)
{
    sim_world *world = instance->senders[0].node->world;
    /* Where the users differ about the number of pages a lost one might make them agree. */
    bool whole = (instance->faults & SIM_BIT(SIM_FAULT_MISMATCH)) != 0;
    if (whole || sim_random_chance(&world->random, 500))
        return sim_random_below(&world->random, KVF_REQUEST_FRAMES);
    size_t frame = 4 + sim_random_below(&world->random, 5);
    if (frames[frame].length > 0)
        frames[frame].length = sim_random_below(&world->random, frames[frame].length);
    return count;
}

static bool cut_short(sim_connection *connection, sim_instance *instance, kvf_slice *frames,
                      size_t *count)
{
    sim_world *world = connection->decode->world;
    if (connection->prefill->stock || !sim_faulty_now(world, SIM_FAULT_TRUNCATION, 60))
        return false;
    *count = kvf_letter_is_one(frames, *count) ? sim_random_below(&world->random, KVF_LETTER_FRAMES)
                                               : truncate_message(instance, frames, *count);
    sim_fault_touch(instance, SIM_FAULT_TRUNCATION);
    sim_fault_meets(world, SIM_FAULT_TRUNCATION, &instance->senders[connection->prefill->rank]);
    sim_trace(world, connection->decode, "room %llu: the message to %s is cut short",
              (unsigned long long)instance->id, connection->prefill->name);
    return true;
}

bool sim_connection_send(sim_connection *connection, sim_instance *instance,
                         const kvf_slice *frames, size_t count)
{
    sim_world *world = connection->decode->world;
    kvf_slice copy[SIM_FRAMES_MAX];
    memcpy(copy, frames, count * sizeof *frames);
    if (connection->broken) {
        send_to_whoever(connection, copy, count);
        return false;
    }
    bool whole = !cut_short(connection, instance, copy, &count);
    send_once(connection, copy, count, 0);
    if (sim_faulty_now(world, SIM_FAULT_STOP, 20)) /* it will find the message when it goes on */
        sim_fault_stop(connection->prefill);
    if (!sim_faulty_now(world, SIM_FAULT_REPEAT, 150))
        return whole;
    instance->id_tainted = true;
    instance->asked_twice = true;
    sim_fault_touch(instance, SIM_FAULT_REPEAT);
    send_once(connection, copy, count,
              1 + sim_random_below(&world->random, 1500 * KVF_MILLISECOND));
    sim_trace(world, connection->decode, "room %llu: the message to %s will come twice",
              (unsigned long long)instance->id, connection->prefill->name);
    return whole;
}

/* ---- Notifications: no order among them ---------------------------------------------------------- */

static void notified(sim_world *world, sim_task *task)
{
    if (task->subject != NULL) {
        sim_instance *instance = task->subject;
        sim_fault_meets(world, SIM_FAULT_REPEAT, &instance->receivers[task->node->rank]);
    }
    sim_inbox_notified(task->node, task->number, (kvf_slice){task->bytes, task->length});
}

static void notify_once(const sim_transfer *transfer, const uint8_t *payload, size_t length,
                        sim_instance *repeat_of)
{
    const sim_agent *agent = transfer->agent;
    sim_world *world = agent->node->world;
    uint64_t extra = repeat_of == NULL ? 0 : sim_random_below(&world->random, 2 * KVF_SECOND);
    sim_task_add(world, world->now + sim_delay(world, agent->node, agent->decode) + extra, notified,
                 agent->decode, agent->decode_incarnation, repeat_of, agent->decode_inbox, payload,
                 length);
}

void sim_notify(const sim_transfer *transfer, const uint8_t *payload, size_t length)
{
    const sim_node *from = transfer->agent->node;
    const sim_node *to = transfer->agent->decode;
    sim_world *world = from->world;
    sim_instance *instance = transfer->sender->side->instance;
    if (sim_faulty_now(world, SIM_FAULT_TRUNCATION, 30)) {
        sim_fault_touch(instance, SIM_FAULT_TRUNCATION);
        sim_fault_meets(world, SIM_FAULT_TRUNCATION, &instance->receivers[to->rank]);
        length = sim_random_below(&world->random, length);
        sim_trace(world, from, "a notification to %s is cut short", to->name);
    }
    notify_once(transfer, payload, length, NULL);
    if (!sim_faulty_now(world, SIM_FAULT_REPEAT, 150))
        return;
    instance->id_tainted = true;
    sim_fault_touch(instance, SIM_FAULT_REPEAT);
    notify_once(transfer, payload, length, instance);
}
