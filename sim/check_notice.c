/* Whether failures and aborts are heard of in time, and pages given back without a proof only where none can be had. */
#include "sim/sim.h"

#define NOTICED_WITHIN (500 * KVF_MILLISECOND)

/* Somebody on `prefill` must hear of what happened on `decode`, or the other way round. */
typedef struct expectation {
    uint64_t since;
    sim_node *prefill;
    uint32_t prefill_incarnation;
    sim_side *sender; /* whose failure it is; NULL: the receiver's */
    sim_side *receiver;
    uint64_t connection; /* that the request went over */
    uint64_t room;
    uint64_t epoch;
    char agent_name[KVF_AGENT_NAME_MAX + 1];
} expectation;

static void expect(const expectation *expected, sim_task_run check)
{
    sim_world *world = expected->prefill->world;
    sim_task_add(world, world->now + NOTICED_WITHIN, check, NULL, 0, NULL, 0, expected,
                 sizeof *expected);
}

/* ---- What excuses silence ------------------------------------------------------------------------- */

static bool is_broken(const sim_world *world, uint64_t number)
{
    const sim_connection *connection = sim_connection_find(world, number);
    return connection == NULL || connection->broken;
}

/* One from or to that agent. */
static bool was_letter_lost(const sim_side *receiver, uint64_t since)
{
    return receiver->letter_lost && (receiver->letter_lost_at >= since || receiver->turned_away);
}

static bool is_excused(const expectation *expected)
{
    const sim_side *receiver = expected->receiver;
    const sim_node *prefill = expected->prefill;
    return receiver->lost || !prefill->alive ||
           prefill->incarnation != expected->prefill_incarnation ||
           sim_pair_is_disturbed(prefill, receiver->node, expected->since) ||
           is_broken(prefill->world, expected->connection) ||
           was_letter_lost(receiver, expected->since);
}

/* ---- A sender's failure --------------------------------------------------------------------------- */

static void receiver_must_have_ended(sim_world *world, sim_task *task)
{
    expectation expected;
    memcpy(&expected, task->bytes, sizeof expected);
    if (expected.receiver->ended || is_excused(&expected))
        return;
    sim_violate(world, "room %llu on %s goes on although %s failed at %.6f s, and had its request",
                (unsigned long long)expected.room, expected.receiver->node->name,
                expected.prefill->name, (double)expected.since / 1e9);
}

static void expect_receiver_ends(sim_side *sender, const sim_asker *asker)
{
    expectation expected = {.since = sender->node->world->now,
                            .prefill = sender->node,
                            .prefill_incarnation = sender->node->incarnation,
                            .sender = sender,
                            .receiver = asker->receiver,
                            .connection = asker->connection,
                            .room = sender->instance->id};
    expect(&expected, receiver_must_have_ended);
}

/* The receiver that waits for what the request asked for; NULL: none does any more, or nobody could tell it. */
static sim_side *asker_of(const sim_agent *agent, const kvf_request *request)
{
    sim_node *decode = sim_node_named(agent->node->world, agent->name);
    if (decode == NULL || decode->stock || !decode->alive || request->epoch == 0 ||
        agent->host[0] == '\0')
        return NULL;
    const sim_inbox *inbox = sim_inbox_find(decode, request->agent_name);
    const sim_target *target =
        inbox == NULL ? NULL : sim_inbox_target(inbox, request->epoch, request->room);
    return target == NULL ? NULL : target->receiver->side;
}

/* Whatever the sender makes of it, the request is known to it now. */
void sim_check_given(const sim_sender *sender, const sim_incoming *incoming)
{
    sim_side *side = sender->side;
    sim_side *receiver = asker_of(incoming->agent, &incoming->request);
    if (sender->node->stock || receiver == NULL || receiver->ended ||
        kvf_request_is_dummy(&incoming->request) || side->asker_count == SIM_ASKERS)
        return;
    sim_asker *asker = &side->askers[side->asker_count++];
    *asker = (sim_asker){receiver, incoming->agent->connection};
    if (side->ended && side->state == KVF_FAILED)
        expect_receiver_ends(side, asker);
}

/* The second request was forged in the name of the first one's agent, and that one has stepped aside for it: no
 * kvferry decode asks twice for one room. */
static bool has_failed_for_a_forgery(const sim_side *side)
{
    return side->error.status == KVF_PROTOCOL &&
           (side->instance->faults & SIM_BIT(SIM_FAULT_LATE)) != 0;
}

static void sender_failed(sim_side *side)
{
    if (has_failed_for_a_forgery(side))
        return;
    for (uint32_t i = 0; i < side->asker_count; i++)
        if (!side->askers[i].receiver->ended)
            expect_receiver_ends(side, &side->askers[i]);
}

/* ---- A receiver's failure or abort ---------------------------------------------------------------- */

static const sim_agent *find_agent(const sim_node *prefill, const char *name)
{
    const sim_agent *agent;
    DL_FOREACH(prefill->agents, agent)
    {
        if (strcmp(agent->name, name) == 0)
            return agent;
    }
    return NULL;
}

static void sender_must_have_ended(const expectation *expected)
{
    const sim_agent *agent = find_agent(expected->prefill, expected->agent_name);
    const sim_incoming *incoming = agent == NULL ? NULL : agent->incoming;
    for (; incoming != NULL; incoming = incoming->agent_next) {
        if (incoming->request.room != expected->room || incoming->request.epoch != expected->epoch)
            continue;
        if (incoming->sender == NULL || !sim_sender_has_served(incoming->sender, agent))
            sim_violate(expected->prefill->world,
                        "room %llu on %s %s although %s gave it up at %.6f s",
                        (unsigned long long)expected->room, expected->prefill->name,
                        incoming->sender == NULL ? "holds its request" : "goes on",
                        expected->receiver->node->name, (double)expected->since / 1e9);
    }
}

/* On a slow link what was posted takes its time. */
static bool is_slow(const expectation *expected)
{
    uint32_t prefill = expected->prefill->index;
    uint32_t decode = expected->receiver->node->index;
    return expected->prefill->world->slow_until[prefill][decode] >= expected->since;
}

static void receiver_must_be_settled(const expectation *expected)
{
    const sim_side *side = expected->receiver;
    bool proven = side->proof == KVF_PROOF_ACKNOWLEDGED || side->proof == KVF_PROOF_COMPLETED;
    if (proven || is_slow(expected) || side->node->leapt_at >= expected->since)
        return;
    sim_violate(side->node->world,
                "room %llu on %s gave up at %.6f s, and %s has not said that it stopped",
                (unsigned long long)expected->room, side->node->name, (double)expected->since / 1e9,
                expected->prefill->name);
}

static void prefill_must_have_heard(sim_world *world, sim_task *task)
{
    expectation expected;
    (void)world;
    memcpy(&expected, task->bytes, sizeof expected);
    if (is_excused(&expected) || expected.receiver->request_lost)
        return;
    sender_must_have_ended(&expected);
    receiver_must_be_settled(&expected);
}

/* Only of one that has shown that it is kvferry, and could be told. */
static void receiver_failed(sim_side *side)
{
    const sim_target *target = &side->receiver->targets[0];
    const sim_inbox *inbox = target->inbox;
    if (inbox == NULL || !inbox->open || !inbox->extended || inbox->writer->stock ||
        inbox->transport_lost || !sim_rank_is_shown(inbox->rank) ||
        is_broken(side->node->world, target->connection))
        return;
    side->may_ask = true;
    expectation expected = {.since = side->node->world->now,
                            .prefill = inbox->writer,
                            .prefill_incarnation = inbox->writer_incarnation,
                            .receiver = side,
                            .connection = target->connection,
                            .room = side->instance->id,
                            .epoch = target->key};
    memcpy(expected.agent_name, inbox->agent_name, sizeof expected.agent_name);
    expect(&expected, prefill_must_have_heard);
}

void sim_check_failed(sim_side *side)
{
    side->failed_at = side->node->world->now;
    if (side->node->stock)
        return;
    if (side->receiver != NULL)
        receiver_failed(side);
    else
        sender_failed(side);
}

/* ---- Losses --------------------------------------------------------------------------------------- */

/* Whoever was refused before anything was kept of it is told so, and can't ask again. */
void sim_check_turned_away(const sim_inbox *inbox, const kvf_request *request)
{
    const sim_target *target =
        inbox == NULL ? NULL : sim_inbox_target(inbox, request->epoch, request->room);
    if (target != NULL)
        target->receiver->side->turned_away = true;
}

/* Each of the agent's rooms may be the one that it was about. */
void sim_check_letter_lost(const sim_inbox *inbox)
{
    const sim_target *target;
    for (target = inbox == NULL ? NULL : inbox->targets; target != NULL;
         target = target->key_next) {
        target->receiver->side->letter_lost = true;
        target->receiver->side->letter_lost_at = inbox->node->world->now;
    }
}

/* ---- Without a proof ------------------------------------------------------------------------------ */

/* What the writer itself said: its notification of this chunk, or of the aux record. */
void sim_check_heard(sim_side *side, const sim_inbox *inbox, kvf_slice agent_name,
                     const kvf_notice *notice)
{
    if (inbox->writer == NULL ||
        !kvf_slice_equal(agent_name, kvf_slice_of(inbox->writer->agent_name)))
        return;
    if (notice->kind == KVF_NOTICE_AUX)
        side->heard_aux = true;
    else if (notice->kind == KVF_NOTICE_CHUNK && notice->chunk < 32)
        side->heard_chunks |= UINT32_C(1) << notice->chunk;
}

static bool has_heard_all(const sim_side *side)
{
    const sim_instance *instance = side->instance;
    return side->heard_aux && side->heard_chunks == (UINT32_C(1) << instance->chunk_count) - 1 &&
           !side->receiver->machine.arrivals.contradicted && !side->pinned_by_stranger;
}

static bool receiver_has_no_excuse(const sim_side *side)
{
    const sim_receiver *receiver = side->receiver;
    const sim_inbox *inbox = receiver->targets[0].inbox;
    if (has_heard_all(side))
        return true;
    return side->may_ask && !side->request_lost && inbox != NULL && !inbox->transport_lost &&
           !was_letter_lost(side, side->failed_at) &&
           !sim_pair_is_disturbed(inbox->writer, side->node, side->failed_at);
}

/* Where nothing stood in the way of any decode node that it may have written to. */
static bool sender_has_no_excuse(const sim_side *side)
{
    const sim_instance *instance = side->instance;
    for (uint32_t i = 0; i < instance->receiver_count; i++)
        if (sim_pair_is_disturbed(side->node, instance->receivers[i].node, side->failed_at))
            return false;
    return true;
}

void sim_check_released(const sim_side *side)
{
    const sim_node *node = side->node;
    bool leapt = node->leapt_at >= side->failed_at; /* and so has the deadline come at once */
    if (node->stock || leapt ||
        !(side->receiver != NULL ? receiver_has_no_excuse(side) : sender_has_no_excuse(side)))
        return;
    sim_violate(node->world,
                "room %llu (%u) on %s: its pages are released without a proof, and nothing stood "
                "in its way",
                (unsigned long long)side->instance->id, side->instance->uid, node->name);
}
