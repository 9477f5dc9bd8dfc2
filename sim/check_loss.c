/* Who is called gone, and whether who is gone is noticed. */
#include "sim/sim.h"

/* ---- Nobody is called gone without a reason ------------------------------------------------------- */

/* What it was to write to is closed, or its process is another one by now. */
static bool is_closed(const sim_agent *agent)
{
    return agent->decode != NULL &&
           (!agent->decode->alive || agent->decode->incarnation != agent->decode_incarnation ||
            !sim_inbox_is_open(agent->decode, agent->decode_inbox));
}

void sim_check_agent_gone(const sim_agent *agent, const char *why)
{
    const sim_node *node = agent->node;
    const sim_node *decode = sim_node_named(node->world, agent->name);
    if (node->stock || decode == NULL || is_closed(agent) || sim_pair_may_be_lost(node, decode))
        return;
    sim_violate(node->world, "%s calls %s gone (%s), but nothing of the kind happened", node->name,
                agent->name, why);
}

void sim_check_rank_gone(const sim_rank *rank, const char *why)
{
    const sim_node *node = rank->node;
    const sim_connection *connection = rank->connection;
    if (node->stock || connection == NULL || rank->machine.state != KVF_LOOKUP_READY ||
        sim_pair_may_be_lost(node, connection->prefill))
        return;
    sim_violate(node->world, "%s calls %s gone (%s), but nothing of the kind happened", node->name,
                connection->prefill->name, why);
}

/* A kvferry decode says how long it waits; nobody may think that it has given up before. */
void sim_check_given_up(const sim_agent *agent, uint64_t silence)
{
    const sim_node *decode = sim_node_named(agent->node->world, agent->name);
    if (decode == NULL || decode->stock || silence > decode->heartbeat_timeout)
        return;
    sim_violate(agent->node->world, "%s gives %s up after %.3f s, which waits for %.3f s",
                agent->node->name, agent->name, (double)silence / 1e9,
                (double)decode->heartbeat_timeout / 1e9);
}

/* ---- Who is gone is noticed ----------------------------------------------------------------------- */

/* What came while it was stopped is looked at first. */
static bool put_off(sim_task *task)
{
    sim_node *node = task->node;
    uint64_t at = node->resumed_at + SIM_SLACK;
    if (node->world->now >= at)
        return false;
    sim_task_add(node->world, at, task->run, node, task->incarnation, task->subject, 0, NULL, 0);
    return true;
}

/* A writer that places its bytes itself must be seen to end. */
static bool may_still_be_written_to(const sim_receiver *receiver)
{
    const sim_inbox *inbox = receiver->targets[0].inbox;
    return inbox != NULL && inbox->direct && inbox->writer->alive &&
           inbox->writer->incarnation == inbox->writer_incarnation;
}

static void decode_must_know(sim_world *world, sim_task *task)
{
    const sim_connection *connection = task->subject;
    const sim_receiver *receiver;
    if (put_off(task))
        return;
    DL_FOREACH(task->node->receivers, receiver)
    {
        const kvf_outcome *outcome = &receiver->machine.outcome;
        if (receiver->targets[0].connection != connection->number ||
            (kvf_outcome_is_final(outcome) &&
             (kvf_outcome_is_settled(outcome) || may_still_be_written_to(receiver))))
            continue;
        sim_violate(world, "room %llu on %s %s although the connection to %s ended at %.6f s",
                    (unsigned long long)receiver->id, task->node->name,
                    kvf_outcome_is_final(outcome) ? "holds its pages" : "goes on",
                    connection->prefill->name, (double)connection->broken_at / 1e9);
    }
}

static bool has_everything(const sim_sender *sender, const sim_agent *agent)
{
    const kvf_sender_machine *machine = &sender->machine;
    for (uint32_t i = 0; i < machine->destination_count; i++) {
        const kvf_sender_destination *destination = &machine->destinations[i];
        if (kvf_slice_equal(destination->request->agent_name, kvf_slice_of(agent->name)))
            return machine->last_sent && destination->chunks_written == machine->chunk_count;
    }
    return false;
}

bool sim_sender_has_served(const sim_sender *sender, const sim_agent *agent)
{
    return kvf_outcome_is_final(&sender->machine.outcome) || has_everything(sender, agent);
}

static void check_buried(const sim_connection *connection, const sim_agent *agent)
{
    const sim_incoming *incoming;
    DL_FOREACH2(agent->incoming, incoming, agent_next)
    {
        if (incoming->sender != NULL && !sim_sender_has_served(incoming->sender, agent))
            sim_violate(agent->node->world,
                        "room %llu on %s goes on although %s, which had asked for it, was lost at "
                        "%.6f s",
                        (unsigned long long)incoming->request.room, agent->node->name, agent->name,
                        (double)connection->broken_at / 1e9);
    }
}

static void prefill_must_know(sim_world *world, sim_task *task)
{
    const sim_connection *connection = task->subject;
    const sim_agent *agent;
    if (put_off(task))
        return;
    DL_FOREACH(task->node->agents, agent)
    {
        if (agent->connection == connection->number)
            sim_violate(world, "%s still knows %s, whose connection ended at %.6f s",
                        task->node->name, agent->name, (double)connection->broken_at / 1e9);
    }
    DL_FOREACH(task->node->dead_agents, agent)
    {
        if (agent->connection == connection->number)
            check_buried(connection, agent);
    }
}

/* Each end that lives and is kvferry must know in time; it's looked at when it runs. */
void sim_check_broken(sim_connection *connection)
{
    sim_world *world = connection->decode->world;
    sim_node *decode = connection->decode;
    sim_node *prefill = connection->prefill;
    connection->broken_at = world->now;
    if (!decode->stock)
        sim_task_add(world, world->now + decode->heartbeat_timeout + SIM_SLACK, decode_must_know,
                     decode, connection->decode_incarnation, connection, 0, NULL, 0);
    if (!prefill->stock && connection->prefill_open)
        sim_task_add(world, world->now + prefill->heartbeat_timeout + SIM_SLACK, prefill_must_know,
                     prefill, connection->prefill_incarnation, connection, 0, NULL, 0);
}
