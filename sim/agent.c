/* Decode processes as a prefill node sees them; src/manager/agent.c in small. */
#include "sim/sim.h"

#include <stdlib.h>

static void remember(sim_agent *agent)
{
    const sim_incoming *incoming;
    DL_FOREACH2(agent->incoming, incoming, agent_next)
    {
        if (incoming->sender != NULL)
            kvf_peer_ended(&agent->past, incoming->request.room);
    }
    if (agent->past.highest_epoch == 0 && agent->node->world->plant != SIM_PLANT_LOSS_FORGETS_IDS)
        kvf_formers_keep(&agent->node->formers, agent->name, &agent->past.ended);
}

static sim_agent *new_agent(sim_node *node, const kvf_request *request)
{
    sim_agent *agent = calloc(1, sizeof *agent);
    if (agent == NULL)
        abort();
    agent->node = node;
    (void)kvf_slice_to_text(request->agent_name, agent->name, sizeof agent->name);
    kvf_peer_past_init(&agent->past, SIM_REMEMBERED);
    kvf_formers_recall(&node->formers, agent->name, &agent->past.ended);
    kvf_formers_recall_epochs(&node->formers, agent->name, &agent->past.highest_epoch,
                              &agent->past.unflushed_epoch);
    DL_APPEND(node->agents, agent);
    node->agent_count++;
    return agent;
}

static void keep_metadata(sim_agent *agent, kvf_slice metadata)
{
    agent->metadata = malloc(metadata.length + 1);
    if (agent->metadata == NULL)
        abort();
    if (metadata.length > 0)
        memcpy(agent->metadata, metadata.data, metadata.length);
    agent->metadata_length = metadata.length;
}

/* Before anything is remembered: a first message that was cut short must spoil that room alone, not all that
 * the agent will ever ask for. */
static kvf_status check_metadata(const sim_node *node, const kvf_request *request, kvf_error *error)
{
    kvf_metadata metadata;
    if (node->world->plant == SIM_PLANT_BAD_METADATA_STICKS)
        return KVF_OK;
    kvf_status status = kvf_metadata_decode(request->agent_metadata, 64, &metadata, error);
    if (status == KVF_OK && !kvf_slice_equal(metadata.agent_name, request->agent_name))
        status = kvf_error_set(error, KVF_PROTOCOL, "the metadata of another agent");
    kvf_metadata_free(&metadata);
    return status;
}

static sim_agent *find_agent(sim_node *node, kvf_slice name)
{
    sim_agent *agent;
    DL_FOREACH(node->agents, agent)
    {
        if (kvf_slice_equal(kvf_slice_of(agent->name), name))
            return agent;
    }
    return NULL;
}

static void leave(sim_agent *agent)
{
    sim_node *node = agent->node;
    DL_DELETE(node->agents, agent);
    node->agent_count--;
    DL_APPEND(node->dead_agents, agent);
    agent->dead = true;
}

/* A decode that goes by another name on the same connection has closed what it gave to be written to by the earlier one.
 * What it asked for by that is over, and no news should it come again. */
static void forget_followed(sim_node *node, uint64_t connection)
{
    sim_agent *agent;
    sim_agent *next;
    DL_FOREACH_SAFE(node->agents, agent, next)
    {
        if (agent->connection != connection || agent->incoming != NULL || agent->transfer_count > 0)
            continue;
        leave(agent);
        remember(agent);
        kvf_formers_keep_epochs(&node->formers, agent->name, agent->past.highest_epoch,
                                agent->past.unflushed_epoch);
    }
    sim_agents_reap(node);
}

bool sim_agent_has_asked(sim_node *node, const kvf_request *request)
{
    const sim_agent *known = find_agent(node, request->agent_name);
    return known != NULL && request->epoch != 0 && request->epoch <= known->past.highest_epoch;
}

bool sim_agent_turn_away(sim_node *node, const kvf_request *request)
{
    char name[KVF_AGENT_NAME_MAX + 1];
    kvf_peer_past past = {0};
    if (request->epoch == 0 || find_agent(node, request->agent_name) != NULL ||
        !kvf_slice_to_text(request->agent_name, name, sizeof name))
        return false;
    kvf_formers_recall_epochs(&node->formers, name, &past.highest_epoch, &past.unflushed_epoch);
    kvf_peer_gives_up(&past, request->epoch);
    kvf_formers_keep_epochs(&node->formers, name, past.highest_epoch, past.unflushed_epoch);
    const sim_agent *dead;
    DL_FOREACH(node->dead_agents, dead)
    {
        if (strcmp(dead->name, name) == 0)
            return false;
    }
    return kvf_peer_may_acknowledge(&past, request->epoch);
}

/* Nothing is looked at in a dummy's metadata, and nothing kept of it. */
kvf_status sim_agent_find(sim_node *node, const kvf_request *request, uint64_t connection,
                          sim_agent **agent, kvf_error *error)
{
    sim_agent *found = find_agent(node, request->agent_name);
    bool dummy = kvf_request_is_dummy(request);
    bool first = !dummy && (found == NULL || found->metadata == NULL);
    kvf_status status = KVF_OK;
    if (first)
        status = check_metadata(node, request, error);
    else if (!dummy && !kvf_slice_equal((kvf_slice){found->metadata, found->metadata_length},
                                        request->agent_metadata))
        status = kvf_error_set(error, KVF_PROTOCOL, "agent %s sent other metadata than before",
                               found->name);
    if (status == KVF_OK && found == NULL && !node->stock)
        forget_followed(node, connection);
    if (status == KVF_OK && found == NULL && !node->stock &&
        node->agent_count >= node->world->limits.peers) {
        sim_fault_limit(node, request);
        status = kvf_error_set(error, KVF_LIMIT, "too many peers");
    }
    if (status != KVF_OK)
        return status;
    if (found == NULL)
        found = new_agent(node, request);
    if (first)
        keep_metadata(found, request->agent_metadata);
    found->connection = connection;
    *agent = found;
    return KVF_OK;
}

/* Fails the rooms that are written to it, and no others. */
static void fail_rooms(sim_agent *agent, const char *why)
{
    sim_node *node = agent->node;
    kvf_error error;
    sim_trace(node->world, node, "decode agent %s is gone: %s", agent->name, why);
    sim_check_agent_gone(agent, why);
    kvf_error_set(&error, KVF_PEER_GONE, "decode agent %s is gone: %s", agent->name, why);
    sim_incoming *incoming;
    sim_incoming *next;
    DL_FOREACH_SAFE2(agent->incoming, incoming, next, agent_next)
    {
        sim_sender *sender = incoming->sender;
        if (sender == NULL)
            continue;
        sim_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_PEER_GONE,
                                                    .agent_name = kvf_slice_of(agent->name),
                                                    .error = &error});
        sim_sender_release(sender);
    }
    sim_sender *sender;
    DL_FOREACH(node->senders, sender)
    {
        if (node->world->plant == SIM_PLANT_DEATH_FAILS_ALL)
            sim_sender_feed(sender,
                            &(kvf_sender_event){.kind = KVF_SENDER_FAILED, .error = &error});
    }
}

static void drop_held(sim_agent *agent, const char *why)
{
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_GONE, "%s", why);
    sim_incoming *incoming;
    sim_incoming *next;
    DL_FOREACH_SAFE2(agent->incoming, incoming, next, agent_next)
    {
        if (incoming->sender != NULL)
            continue;
        sim_letters_failed(agent, &incoming->request, &error);
        sim_incoming_free(incoming);
    }
}

/* It can't be reached any more. */
void sim_agent_bury(sim_agent *agent, const char *why)
{
    leave(agent);
    remember(agent);
    fail_rooms(agent, why);
    drop_held(agent, why);
}

/* While its control connection lives the agent isn't forgotten: a request of before would be news again, and what
 * was never flushed would be acknowledged. */
void sim_agent_transport_failed(sim_agent *agent, const char *why)
{
    if (agent->node->world->plant == SIM_PLANT_AGENT_FORGOTTEN)
        sim_agent_bury(agent, why);
    else
        fail_rooms(agent, why);
}

/* Planted: how long the peers wait isn't known, only how long this node would; or nobody is given any time. */
static uint64_t patience_of(const sim_agent *agent)
{
    const sim_node *node = agent->node;
    kvf_peer_past past = agent->past;
    if (node->world->plant == SIM_PLANT_IMPATIENT)
        return 0;
    if (node->world->plant == SIM_PLANT_LEASE_IGNORED)
        past.lease = 0;
    return kvf_peer_patience(&past, node->heartbeat_timeout);
}

/* This process was stopped for longer than the agent waits: it must not write where it did before. After a leap of the
 * clock alone the connections are still there; where they aren't, what was asked for before comes first. */
void sim_agents_give_up(sim_node *node, uint64_t silence)
{
    sim_agent *agent;
    sim_agent *next;
    const char *why = "this process was stopped for too long";
    DL_FOREACH_SAFE(node->agents, agent, next)
    {
        if (silence <= patience_of(agent))
            continue;
        sim_check_given_up(agent, silence);
        sim_agent_transport_failed(agent, why);
        if (agent->dead)
            continue;
        drop_held(agent, why);
        if (node->world->plant != SIM_PLANT_STALE_REQUEST_TAKEN)
            agent->refused_until = sim_now(node) + agent->past.lease;
    }
    sim_agents_reap(node);
}

/* A stock prefill has no monitor: it writes on to whoever takes it. */
void sim_prefill_connection_gone(sim_node *node, uint64_t connection)
{
    sim_agent *agent;
    sim_agent *next;
    if (node->stock)
        return;
    DL_FOREACH_SAFE(node->agents, agent, next)
    {
        if (agent->connection == connection)
            sim_agent_bury(agent, "its control connection was closed or went silent");
    }
    sim_agents_reap(node);
}

static void free_agent(sim_agent *agent)
{
    kvf_peer_past_free(&agent->past);
    free(agent->metadata);
    free(agent);
}

void sim_agents_reap(sim_node *node)
{
    sim_agent *agent;
    sim_agent *next;
    DL_FOREACH_SAFE(node->dead_agents, agent, next)
    {
        if (agent->incoming != NULL || agent->transfer_count > 0)
            continue;
        DL_DELETE(node->dead_agents, agent);
        free_agent(agent);
    }
}

void sim_agents_free(sim_node *node)
{
    sim_agent *agent;
    sim_agent *next;
    DL_FOREACH_SAFE(node->agents, agent, next)
    {
        DL_DELETE(node->agents, agent);
        free_agent(agent);
    }
    DL_FOREACH_SAFE(node->dead_agents, agent, next)
    {
        DL_DELETE(node->dead_agents, agent);
        free_agent(agent);
    }
    kvf_formers_free(&node->formers);
    node->agent_count = 0;
}

/* ---- Memory --------------------------------------------------------------------------------------- */

static const kvf_descriptor *find_region(const kvf_metadata *metadata, uint32_t kind,
                                         uint64_t device, uint64_t address)
{
    for (size_t i = 0; i < metadata->descriptor_count; i++) {
        const kvf_descriptor *region = &metadata->descriptors[i];
        if (region->kind == kind && region->device == device &&
            address - region->base < region->length)
            return region;
    }
    return NULL;
}

static kvf_status pair(const kvf_metadata *metadata, const kvf_buffer *buffer, uint64_t address,
                       uint32_t kind, uint64_t device, kvf_span *span, uint64_t *limit,
                       kvf_error *error)
{
    const kvf_descriptor *region = find_region(metadata, kind, device, address);
    if (region == NULL)
        return kvf_error_set(error, KVF_MISMATCH, "a buffer that lies in no region");
    uint64_t items = (region->length - (address - region->base)) / buffer->item_length;
    if (items < *limit)
        *limit = items;
    *span = (kvf_span){.source_base = buffer->base,
                       .destination_base = address,
                       .item_length = buffer->item_length};
    return KVF_OK;
}

static kvf_status pair_all(sim_incoming *incoming, const kvf_metadata *metadata, bool all_aux,
                           kvf_error *error)
{
    const sim_node *node = incoming->agent->node;
    const kvf_request *request = &incoming->request;
    const kvf_profile *profile = node->world->profile;
    size_t buffers = request->buffers.length / 8;
    size_t aux = request->aux.length / 8;
    if (buffers < SIM_BUFFERS || (request->extended && buffers != SIM_BUFFERS))
        return kvf_error_set(error, KVF_MISMATCH, "the agent has %zu KV buffers", buffers);
    if (aux == 0 || (all_aux && aux != SIM_AUX))
        return kvf_error_set(error, KVF_MISMATCH, "the agent has %zu aux buffers", aux);
    incoming->page_limit = UINT32_MAX;
    incoming->slot_limit = UINT32_MAX;
    incoming->aux_span_count = all_aux ? SIM_AUX : 1;
    kvf_status status = KVF_OK;
    for (size_t i = 0; status == KVF_OK && i < SIM_BUFFERS; i++)
        status = pair(metadata, &node->pool.regions[i], kvf_read_u64(request->buffers.data + 8 * i),
                      profile->buffer_kind, request->device, &incoming->spans[i],
                      &incoming->page_limit, error);
    for (size_t i = 0; status == KVF_OK && i < incoming->aux_span_count; i++)
        status = pair(metadata, &node->pool.regions[SIM_BUFFERS + i],
                      kvf_read_u64(request->aux.data + 8 * i), profile->aux_kind, 0,
                      &incoming->aux_spans[i], &incoming->slot_limit, error);
    return status;
}

/* What a worker address says: see inbox.c. */
static kvf_status load(sim_agent *agent, const kvf_metadata *metadata, kvf_error *error)
{
    sim_world *world = agent->node->world;
    if (!kvf_slice_equal(metadata->agent_name, kvf_slice_of(agent->name)))
        return kvf_error_set(error, KVF_PROTOCOL, "the metadata of another agent");
    if (metadata->worker_address.length != SIM_ADDRESS)
        return kvf_error_set(error, KVF_TRANSPORT, "not a worker address");
    uint64_t index = kvf_read_u64(metadata->worker_address.data);
    if (index >= world->node_count)
        return kvf_error_set(error, KVF_TRANSPORT, "nobody is at that worker address");
    agent->decode = &world->nodes[index];
    agent->decode_incarnation = (uint32_t)kvf_read_u64(metadata->worker_address.data + 8);
    agent->decode_inbox = kvf_read_u64(metadata->worker_address.data + 16);
    bool fenceable = kvf_read_u64(metadata->worker_address.data + 24) != 0;
    /* Nobody connects any more to what is closed; who has, writes past it. */
    if (agent->decode->alive && agent->decode->incarnation == agent->decode_incarnation &&
        !sim_inbox_is_open(agent->decode, agent->decode_inbox)) {
        agent->decode = NULL;
        return kvf_error_set(error, KVF_TRANSPORT, "what agent %s gave to write to is closed",
                             agent->name);
    }
    agent->direct = world->writer_placed[agent->node->index][index] && !fenceable;
    return KVF_OK;
}

kvf_status sim_agent_bind(sim_incoming *incoming, kvf_error *error)
{
    sim_agent *agent = incoming->agent;
    kvf_metadata metadata;
    kvf_status status = kvf_metadata_decode((kvf_slice){agent->metadata, agent->metadata_length},
                                            64, &metadata, error);
    if (status != KVF_OK)
        return status;
    if (agent->decode == NULL)
        status = load(agent, &metadata, error);
    bool all_aux =
        !agent->node->stock && (incoming->request.extensions & KVF_EXTENSION_ALL_AUX) != 0;
    if (status == KVF_OK)
        status = pair_all(incoming, &metadata, all_aux, error);
    kvf_metadata_free(&metadata);
    return status;
}
