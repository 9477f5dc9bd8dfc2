/* Prefill ranks as a decode node sees them; src/manager/rank.c in small. */
#include "sim/sim.h"

static bool is_wanted(const sim_rank *rank)
{
    const sim_target *target;
    DL_FOREACH(rank->targets, target)
    {
        if (!target->requested)
            return true;
    }
    return false;
}

static void target_ready(sim_target *target)
{
    sim_receiver *receiver = target->receiver;
    target->ready = true;
    if (++receiver->targets_ready == receiver->target_count)
        sim_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_FOUND});
}

static void tell_ready(sim_rank *rank)
{
    sim_target *target;
    sim_target *next;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (!target->ready)
            target_ready(target);
    }
}

/* A room that relied on the connection fails, unless all the rank had to know was that it writes nothing. */
static void tell_lost(sim_rank *rank, const kvf_error *error)
{
    sim_target *target;
    sim_target *next;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        sim_receiver *receiver = target->receiver;
        bool is_real = target == &receiver->targets[0];
        if (!target->ready || (target->requested && !is_real))
            continue;
        target->ready = false;
        receiver->targets_ready--;
        if (receiver->machine.found)
            sim_receiver_fail(receiver, error);
    }
}

static void tell_given_up(sim_rank *rank, const kvf_error *error)
{
    sim_target *target;
    sim_target *next;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (!target->ready)
            sim_receiver_fail(target->receiver, error);
    }
}

void sim_rank_feed(sim_rank *rank, kvf_lookup_event_kind kind, const kvf_error *error)
{
    kvf_actions actions = {.count = 0};
    if (kind == KVF_LOOKUP_NOT_YET || kind == KVF_LOOKUP_FAILED)
        sim_server_forget(rank->node, rank->group);
    kvf_lookup_event event = {.kind = kind, .wanted = is_wanted(rank), .error = error};
    kvf_lookup_machine_step(&rank->machine, &event, sim_now(rank->node), &actions);
    for (size_t i = 0; i < actions.count; i++) {
        switch (actions.items[i].kind) {
        case KVF_ACTION_ASK:
            sim_bootstrap_ask_rank(rank);
            break;
        case KVF_ACTION_CONNECT:
            rank->connection = sim_connection_open(rank);
            break;
        case KVF_ACTION_TIMER:
            kvf_timers_set(&rank->node->timers, &rank->timer, actions.items[i].deadline);
            break;
        case KVF_ACTION_READY:
            tell_ready(rank);
            break;
        case KVF_ACTION_LOST:
            tell_lost(rank, error);
            break;
        case KVF_ACTION_GIVE_UP:
            tell_given_up(rank, error);
            break;
        default:
            break;
        }
    }
}

static void rank_timer(kvf_timer *timer, uint64_t now)
{
    (void)now;
    sim_rank *rank = (sim_rank *)((char *)timer - offsetof(sim_rank, timer));
    sim_rank_feed(rank, KVF_LOOKUP_TIMER, NULL);
}

/* Its ids may be used again at once. */
void sim_rank_show(sim_rank *rank)
{
    if (!rank->shown)
        kvf_room_memory_free(&rank->used);
    rank->shown = true;
}

bool sim_rank_is_shown(const sim_rank *rank)
{
    return rank->shown ||
           (rank->node->world->plant == SIM_PLANT_STRANGER_SHOWN && rank->where.extended);
}

void sim_rank_gone(sim_rank *rank, const char *text)
{
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_GONE, "prefill rank %u of server %u: %s", rank->rank,
                  rank->group, text);
    sim_check_rank_gone(rank, text);
    rank->connection = NULL;
    sim_trace(rank->node->world, rank->node, "%s", error.text);
    sim_server_forget(rank->node, rank->group);
    if (rank->node->world->plant == SIM_PLANT_DEATH_UNSEEN &&
        rank->machine.state == KVF_LOOKUP_READY)
        return;
    /* The rooms fail first, and are then told what the closed inboxes prove. */
    sim_rank_feed(rank, KVF_LOOKUP_GONE, &error);
    if (!rank->node->stock)
        sim_inboxes_close(rank);
}

void sim_rank_join(sim_target *target, uint32_t group, uint32_t tp_rank)
{
    sim_node *node = target->receiver->node;
    sim_rank *rank = &node->ranks[group][tp_rank];
    target->rank = rank;
    DL_APPEND(rank->targets, target);
    if (rank->machine.state == KVF_LOOKUP_READY)
        target_ready(target);
    else
        sim_rank_feed(rank, KVF_LOOKUP_WANTED, NULL);
}

/* What is said of a room that was given up, which may have been left before it could be. */
typedef struct abort_letter {
    sim_side *side;
    uint64_t connection;
    uint64_t room;
    uint64_t epoch;
    kvf_error reason;
    char agent_name[KVF_AGENT_NAME_MAX + 1];
} abort_letter;

static abort_letter abort_of(const sim_target *target)
{
    const sim_receiver *receiver = target->receiver;
    abort_letter given_up = {.side = receiver->side,
                             .connection = target->rank->connection->number,
                             .room = receiver->id,
                             .epoch = target->key,
                             .reason = receiver->machine.outcome.error};
    memcpy(given_up.agent_name, target->inbox->agent_name, sizeof given_up.agent_name);
    return given_up;
}

/* False: it has come to harm. */
static bool send_abort(sim_connection *connection, const abort_letter *given_up)
{
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice frames[KVF_LETTER_FRAMES];
    kvf_letter letter = {.kind = KVF_LETTER_ABORT,
                         .status = given_up->reason.status,
                         .room = given_up->room,
                         .epoch = given_up->epoch,
                         .agent_name = kvf_slice_of(given_up->agent_name),
                         .text = kvf_slice_of(given_up->reason.text)};
    kvf_letter_encode(&letter, head, frames);
    return sim_connection_send(connection, given_up->side->instance, frames, KVF_LETTER_FRAMES);
}

static void send_owed(sim_world *world, sim_task *task)
{
    abort_letter given_up;
    const sim_rank *rank = task->subject;
    memcpy(&given_up, task->bytes, sizeof given_up);
    if (rank->connection == NULL || rank->connection->number != given_up.connection ||
        send_abort(rank->connection, &given_up))
        return;
    given_up.side->letter_lost = true;
    given_up.side->letter_lost_at = world->now;
}

/* The prefill goes on, or holds the request, until it has been told. */
static void owe_abort(const sim_target *target)
{
    sim_rank *rank = target->rank;
    sim_world *world = rank->node->world;
    if (rank->connection == NULL)
        return;
    abort_letter given_up = abort_of(target);
    sim_task_add(world, world->now + sim_random_below(&world->random, 30 * KVF_MILLISECOND),
                 send_owed, rank->node, rank->node->incarnation, rank, 0, &given_up,
                 sizeof given_up);
}

void sim_rank_leave(sim_target *target)
{
    if (target->rank == NULL)
        return;
    if (target->abort_wanted)
        owe_abort(target);
    sim_inbox_remove(target);
    DL_DELETE(target->rank->targets, target);
    target->rank = NULL;
    target->abort_wanted = false;
}

/* ---- Requests ------------------------------------------------------------------------------------- */

static void fill_request(const sim_target *target, const sim_inbox *inbox, kvf_slice pages,
                         kvf_request *request)
{
    const sim_receiver *receiver = target->receiver;
    const sim_node *node = receiver->node;
    bool is_real = target == &receiver->targets[0];
    *request = (kvf_request){
        .room = receiver->id,
        .host = kvf_slice_of(node->host),
        .port = node->port,
        .agent_name = kvf_slice_of(inbox->agent_name),
        .agent_metadata = kvf_bytes_slice(&inbox->metadata),
        .buffers = {node->pointers.data, 8 * (size_t)SIM_BUFFERS},
        .aux = {node->pointers.data + 8 * (size_t)SIM_BUFFERS, 8 * (size_t)SIM_AUX},
        .pages = pages,
        .page_width = node->world->profile->page_width,
        .aux_slot = receiver->side->aux_slot,
        .required = receiver->required,
        .extended = inbox->extended,
        .epoch = inbox->extended ? inbox->last_epoch : 0,
        .lease = inbox->extended ? node->heartbeat_timeout : 0,
    };
    if (request->extended)
        request->extensions = KVF_EXTENSION_ALL_AUX | KVF_EXTENSION_EPOCH | KVF_EXTENSION_LEASE |
                              (is_real ? (uint64_t)KVF_EXTENSION_NO_DUMMY : 0);
}

static void send_put_off(sim_world *world, sim_task *task)
{
    sim_rank *rank = task->subject;
    sim_target *target;
    sim_target *next;
    (void)world;
    if (rank->machine.state != KVF_LOOKUP_READY)
        return;
    DL_FOREACH_SAFE(rank->targets, target, next)
    {
        if (target->abort_wanted)
            sim_rank_ask_to_stop(target);
        else if (target->ready && !target->requested && target->receiver->machine.requested)
            sim_receiver_request(target->receiver);
    }
}

/* The socket may be full: then what is sent waits until it isn't. */
static bool is_put_off(sim_rank *rank)
{
    sim_world *world = rank->node->world;
    if (!sim_random_chance(&world->random, 40))
        return false;
    sim_task_add(world, world->now + sim_random_below(&world->random, 30 * KVF_MILLISECOND),
                 send_put_off, rank->node, rank->node->incarnation, rank, 0, NULL, 0);
    return true;
}

static void send_request(sim_target *target, const sim_inbox *inbox)
{
    sim_receiver *receiver = target->receiver;
    const kvf_profile *profile = receiver->node->world->profile;
    kvf_bytes pages = {0};
    kvf_request request;
    kvf_message message;
    if (target == &receiver->targets[0])
        kvf_request_pages_encode(profile, receiver->side->pages, receiver->side->page_count,
                                 &pages);
    fill_request(target, inbox, kvf_bytes_slice(&pages), &request);
    kvf_request_encode(profile, &request, &message);
    bool whole = sim_connection_send(target->rank->connection, receiver->side->instance,
                                     message.frames, message.frame_count);
    if (!whole && target == &receiver->targets[0])
        receiver->side->request_lost = true;
    kvf_bytes_free(&pages);
}

/* A stock rank can't tell a new room from an old one of the same id: it would write to the old one's pages. */
static bool is_used(const sim_rank *rank, uint64_t room)
{
    const sim_node *node = rank->node;
    return !sim_rank_is_shown(rank) && !node->stock &&
           node->world->plant != SIM_PLANT_USED_ID_TAKEN && kvf_room_memory_has(&rank->used, room);
}

/* The room's notices are looked for from before the request leaves. */
static void disclose(sim_target *target, sim_inbox *inbox)
{
    sim_receiver *receiver = target->receiver;
    kvf_error error;
    if (is_used(target->rank, receiver->id)) {
        kvf_error_set(&error, KVF_BUSY, "room %llu was used before with a stock prefill rank",
                      (unsigned long long)receiver->id);
        sim_receiver_fail(receiver, &error);
        return;
    }
    sim_inbox_add(inbox, target, inbox->extended ? inbox->last_epoch : receiver->id);
    receiver->side->disclosed = true;
    target->connection = target->rank->connection->number;
    send_request(target, inbox);
    target->requested = true;
    if (!sim_rank_is_shown(target->rank))
        (void)kvf_room_memory_add(&target->rank->used, receiver->id);
    sim_receiver_feed(receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_DISCLOSED});
}

/* Only the real rank writes; the others learn that they needn't. */
void sim_rank_request(sim_target *target)
{
    if (target->rank->connection == NULL || is_put_off(target->rank))
        return;
    sim_inbox *inbox = sim_inbox_of(target->rank);
    inbox->last_epoch++;
    if (target == &target->receiver->targets[0]) {
        disclose(target, inbox);
        return;
    }
    send_request(target, inbox);
    target->requested = true;
}

/* Where it can't be sent the connection is about to be lost, which proves more. */
void sim_rank_ask_to_stop(sim_target *target)
{
    target->abort_wanted = target->rank->connection != NULL && is_put_off(target->rank);
    if (target->rank->connection == NULL || target->abort_wanted)
        return;
    abort_letter given_up = abort_of(target);
    if (!send_abort(target->rank->connection, &given_up))
        sim_check_letter_lost(target->inbox);
}

void sim_ranks_open(sim_node *node)
{
    for (uint32_t group = 0; group < SIM_GROUPS; group++)
        for (uint32_t i = 0; i < SIM_RANKS; i++) {
            sim_rank *rank = &node->ranks[group][i];
            *rank =
                (sim_rank){.node = node, .group = group, .rank = i, .timer = {.fire = rank_timer}};
            (void)kvf_timers_join(&node->timers);
            kvf_lookup_machine_init(&rank->machine, &node->world->rank_policy);
            kvf_room_memory_init(&rank->used, SIM_REMEMBERED);
        }
}

void sim_ranks_close(sim_node *node)
{
    for (uint32_t group = 0; group < SIM_GROUPS; group++)
        for (uint32_t i = 0; i < SIM_RANKS; i++)
            kvf_room_memory_free(&node->ranks[group][i].used);
}
