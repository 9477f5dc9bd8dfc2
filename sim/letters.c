/* Letters between kvferry managers; src/manager's letters_prefill.c and letters_decode.c in small. To a prefill node
 * they travel with the requests, to a decode node on a connection of their own. */
#include "sim/sim.h"

#include <stdlib.h>

/* ---- The way to a decode node --------------------------------------------------------------------- */

/* Lives as long as the world: letters under way refer to it. */
struct sim_link {
    sim_node *prefill;
    sim_node *decode; /* whoever listens at the address now */
    uint32_t decode_incarnation;
    bool broken;
    uint64_t last_arrival;
    uint64_t held_until; /* by a cut */
    sim_link *next;
};

static sim_node *node_at(sim_world *world, const char *host)
{
    for (uint32_t i = 0; i < world->node_count; i++)
        if (strcmp(world->nodes[i].host, host) == 0)
            return &world->nodes[i];
    return NULL;
}

static sim_link *open_link(sim_agent *agent)
{
    sim_world *world = agent->node->world;
    sim_link *link = calloc(1, sizeof *link);
    if (link == NULL)
        abort();
    link->prefill = agent->node;
    link->decode = node_at(world, agent->host);
    link->broken = link->decode == NULL || !link->decode->alive;
    LL_PREPEND(world->links, link);
    if (link->broken)
        return link;
    link->decode_incarnation = link->decode->incarnation;
    link->last_arrival = world->now + sim_delay(world, agent->node, link->decode) +
                         sim_delay(world, link->decode, agent->node);
    return link;
}

void sim_links_break(sim_world *world, const sim_node *prefill, const sim_node *decode)
{
    sim_link *link;
    LL_FOREACH(world->links, link)
    {
        if (link->prefill == prefill && link->decode == decode)
            link->broken = true;
    }
}

void sim_links_free(sim_world *world)
{
    while (world->links != NULL) {
        sim_link *next = world->links->next;
        free(world->links);
        world->links = next;
    }
}

static void arrive(sim_world *world, sim_task *task);

static void arrive_held(sim_world *world, sim_task *task)
{
    arrive(world, task);
}

/* Waits for the end of a cut, in order. */
static bool is_held(sim_world *world, sim_task *task)
{
    sim_link *link = task->subject;
    bool cut = sim_is_cut(world, link->prefill, link->decode);
    if (!cut && (task->run == arrive_held || world->now > link->held_until))
        return false;
    uint64_t healed = cut ? world->cut_until[link->prefill->index][link->decode->index] : 0;
    link->held_until = (healed > link->held_until ? healed : link->held_until) + 1;
    sim_task_add(world, link->held_until, arrive_held, link->decode, task->incarnation, link,
                 link->held_until, task->bytes, task->length);
    return true;
}

static void lost(const sim_link *link, const sim_task *task)
{
    kvf_slice frames[KVF_LETTER_FRAMES];
    kvf_letter letter;
    kvf_error error;
    size_t count = sim_frames_unpack(task->bytes, task->length, frames, KVF_LETTER_FRAMES);
    if (kvf_letter_decode(frames, count, &letter, &error) == KVF_OK)
        sim_check_letter_lost(sim_inbox_find(link->decode, letter.agent_name));
}

/* What a stop or a cut has held up for longer than the heartbeats allow is lost with the connection. */
static void arrive(sim_world *world, sim_task *task)
{
    sim_link *link = task->subject;
    uint64_t limit = link->prefill->heartbeat_timeout;
    if (sim_pair_silence(link->prefill, link->decode) > limit || world->now > task->number + limit)
        link->broken = true;
    if (link->broken)
        lost(link, task);
    if (link->broken || is_held(world, task))
        return;
    kvf_slice frames[KVF_LETTER_FRAMES];
    size_t count = sim_frames_unpack(task->bytes, task->length, frames, KVF_LETTER_FRAMES);
    sim_letters_message(link->decode, frames, count);
}

static void post(sim_link *link, const kvf_slice *frames, size_t count, uint64_t extra)
{
    sim_world *world = link->prefill->world;
    kvf_bytes bytes = {0};
    sim_frames_pack(frames, count, &bytes);
    uint64_t sent = link->last_arrival > world->now ? link->last_arrival : world->now;
    uint64_t arrival =
        sent + sim_random_between(&world->random, 50 * KVF_MICROSECOND, KVF_MILLISECOND) + extra;
    if (extra == 0)
        link->last_arrival = arrival;
    sim_task_add(world, arrival, arrive, link->decode, link->decode_incarnation, link, arrival,
                 bytes.data, bytes.length);
    kvf_bytes_free(&bytes);
}

/* It counts, but whoever isn't told ends all the same. */
static void letter_spoilt(sim_node *decode, const kvf_letter *letter, sim_fault fault)
{
    const sim_instance *instance = sim_instance_of(decode->world, letter->room);
    sim_check_letter_lost(sim_inbox_find(decode, letter->agent_name));
    if (instance != NULL)
        sim_fault_meets(decode->world, fault, &instance->receivers[decode->rank]);
}

static void send_letter(sim_agent *agent, const kvf_letter *letter)
{
    sim_world *world = agent->node->world;
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice frames[KVF_LETTER_FRAMES];
    if (agent->link == NULL || agent->link->broken)
        agent->link = open_link(agent);
    /* max_waiting_letters leaves no place for it. */
    bool dropped = agent->link->broken || sim_faulty_now(world, SIM_FAULT_LIMIT, 60);
    bool cut = !dropped && sim_faulty_now(world, SIM_FAULT_TRUNCATION, 60);
    if ((dropped || cut) && agent->link->decode != NULL)
        letter_spoilt(agent->link->decode, letter, cut ? SIM_FAULT_TRUNCATION : SIM_FAULT_LIMIT);
    if (dropped)
        return;
    kvf_letter_encode(letter, head, frames);
    size_t count = cut ? sim_random_below(&world->random, KVF_LETTER_FRAMES) : KVF_LETTER_FRAMES;
    post(agent->link, frames, count, 0);
    if (sim_faulty_now(world, SIM_FAULT_REPEAT, 80))
        post(agent->link, frames, count, 1 + sim_random_below(&world->random, KVF_SECOND));
}

/* ---- Prefill: writing ----------------------------------------------------------------------------- */

/* False when the agent won't hear of it. */
static bool write_letter(sim_agent *agent, kvf_letter_kind kind, const kvf_request *request,
                         kvf_status status, const char *text)
{
    if (request->epoch == 0 || agent->dead || agent->host[0] == '\0' || agent->node->closing)
        return false;
    kvf_letter letter = {.kind = kind,
                         .status = status,
                         .room = request->room,
                         .epoch = request->epoch,
                         .agent_name = kvf_slice_of(agent->name),
                         .text = kvf_slice_of(text)};
    static const char *const what[] = {[KVF_LETTER_STOPPED] = "that it has stopped",
                                       [KVF_LETTER_FAILED] = "of the failure:",
                                       [KVF_LETTER_HELLO] = "who it is"};
    sim_trace(agent->node->world, agent->node, "room %llu: tells %s %s %s",
              (unsigned long long)request->room, agent->name, what[kind], text);
    send_letter(agent, &letter);
    return true;
}

void sim_letters_address(sim_agent *agent, const kvf_request *request)
{
    if (request->epoch == 0 || !kvf_slice_to_text(request->host, agent->host, sizeof agent->host))
        agent->host[0] = '\0';
    if (!agent->greeted)
        agent->greeted = write_letter(agent, KVF_LETTER_HELLO, request, KVF_OK, "");
}

void sim_letters_failed(sim_agent *agent, const kvf_request *request, const kvf_error *error)
{
    (void)write_letter(agent, KVF_LETTER_FAILED, request, error->status, error->text);
}

void sim_letters_turned_away(sim_node *node, const kvf_request *request, const kvf_error *error,
                             bool stopped)
{
    sim_agent stranger = {.node = node};
    if (!kvf_slice_to_text(request->agent_name, stranger.name, sizeof stranger.name) ||
        !kvf_slice_to_text(request->host, stranger.host, sizeof stranger.host))
        return;
    sim_node *decode = node_at(node->world, stranger.host);
    if (decode != NULL)
        sim_check_turned_away(sim_inbox_find(decode, request->agent_name), request);
    sim_letters_failed(&stranger, request, error);
    if (stopped && request->epoch != 0)
        sim_letters_stopped(&stranger, request);
}

void sim_letters_stopped(sim_agent *agent, const kvf_request *request)
{
    if (!kvf_peer_may_acknowledge(&agent->past, request->epoch) || agent->dead ||
        agent->node->closing)
        return;
    sim_check_acknowledges(agent, request);
    (void)write_letter(agent, KVF_LETTER_STOPPED, request, KVF_OK, "");
}

/* ---- Prefill: reading ----------------------------------------------------------------------------- */

static sim_incoming *find_incoming(const sim_agent *agent, const kvf_letter *letter)
{
    sim_incoming *incoming;
    DL_FOREACH2(agent->incoming, incoming, agent_next)
    {
        if (incoming->request.epoch == letter->epoch && incoming->request.room == letter->room)
            return incoming;
    }
    return NULL;
}

/* Answered when the request is freed: then nothing of it is under way. One that hasn't come can't any more, and
 * one that is gone has ended. */
static void stop(sim_agent *agent, const kvf_letter *letter)
{
    sim_incoming *incoming = find_incoming(agent, letter);
    kvf_error error;
    kvf_peer_gives_up(&agent->past, letter->epoch);
    kvf_request request = {.room = letter->room, .epoch = letter->epoch};
    if (incoming == NULL || agent->node->world->plant == SIM_PLANT_ACK_EARLY)
        sim_letters_stopped(agent, &request);
    if (incoming == NULL)
        return;
    incoming->stop_wanted = agent->node->world->plant != SIM_PLANT_ACK_EARLY;
    sim_sender *sender = incoming->sender;
    if (sender == NULL) {
        sim_incoming_free(incoming);
        return;
    }
    sender->side->peer_status = letter->status;
    kvf_error_set(&error, KVF_PEER_FAILED, "decode agent %s gave the room up: %.*s", agent->name,
                  (int)letter->text.length, (const char *)letter->text.data);
    bool meant =
        sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_PEER_GONE,
                                                    .agent_name = kvf_slice_of(agent->name),
                                                    .error = &error});
    if (!meant && !kvf_outcome_is_final(&sender->machine.outcome) && incoming->stop_wanted) {
        incoming->stop_wanted = false; /* it has all, and the room only waits for others */
        sim_letters_stopped(agent, &request);
    }
    sim_sender_release(sender);
}

void sim_letters_take(sim_node *node, uint64_t connection, const kvf_slice *frames, size_t count)
{
    kvf_letter letter;
    kvf_error error;
    sim_agent *agent;
    if (kvf_letter_decode(frames, count, &letter, &error) != KVF_OK)
        return;
    DL_FOREACH(node->agents, agent)
    {
        if (kvf_slice_equal(kvf_slice_of(agent->name), letter.agent_name))
            break;
    }
    if (letter.kind == KVF_LETTER_ABORT && agent != NULL && agent->connection == connection)
        stop(agent, &letter);
}

/* ---- Decode --------------------------------------------------------------------------------------- */

static void room_failed(sim_target *target, const kvf_letter *letter)
{
    kvf_error error;
    sim_side *side = target->receiver->side;
    if (!side->ended)
        side->peer_status = letter->status;
    kvf_error_set(&error, KVF_PEER_FAILED, "prefill rank %u of server %u: %s: %.*s",
                  target->rank->rank, target->rank->group, kvf_status_name(letter->status),
                  (int)letter->text.length, (const char *)letter->text.data);
    sim_receiver_fail(target->receiver, &error);
}

/* The agent name and the epoch prove that it is about a request that this side made. */
void sim_letters_message(sim_node *node, const kvf_slice *frames, size_t count)
{
    kvf_letter letter;
    kvf_error error;
    if (!kvf_letter_is_one(frames, count) ||
        kvf_letter_decode(frames, count, &letter, &error) != KVF_OK)
        return;
    sim_inbox *inbox = sim_inbox_find(node, letter.agent_name);
    if (inbox != NULL && inbox->rank != NULL)
        sim_rank_show(inbox->rank);
    sim_target *target = inbox == NULL ? NULL : sim_inbox_target(inbox, letter.epoch, letter.room);
    if (target == NULL)
        sim_trace(node->world, node, "drops a letter about room %llu: it has ended meanwhile",
                  (unsigned long long)letter.room);
    else if (letter.kind == KVF_LETTER_FAILED)
        room_failed(target, &letter);
    else if (letter.kind == KVF_LETTER_STOPPED)
        sim_receiver_prove(target->receiver, KVF_PROOF_ACKNOWLEDGED);
}
