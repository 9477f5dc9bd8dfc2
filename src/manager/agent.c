/* Decode processes as prefill sees them: known by name, reached through the engine, gone with their control
 * connection. A restarted process has a fresh name and is a new agent. */
#include "manager/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Coming and going --------------------------------------------------------------------------- */

/* Only its restart gives a stock agent another name; one of kvferry has a fresh one with each connection. */
static void remember(kvf_agent *agent)
{
    const kvf_incoming *incoming;
    DL_FOREACH2(agent->incoming, incoming, agent_next)
    {
        if (incoming->sender != NULL)
            kvf_peer_ended(&agent->past, incoming->request.room);
    }
    if (agent->past.highest_epoch == 0)
        kvf_formers_keep(&agent->manager->formers, agent->name, &agent->past.ended);
}

static uint64_t patience_of(const kvf_agent *agent)
{
    return kvf_peer_patience(&agent->past, agent->manager->settings.heartbeat_timeout);
}

/* Anew when the least patient one may be gone or more patient; each turn at most. */
void kvf_agents_find_patience(kvf_manager *manager)
{
    manager->patience_stale = false;
    manager->patience = KVF_NEVER;
    for (const kvf_agent *agent = manager->agents; agent != NULL; agent = agent->by_name.next)
        if (patience_of(agent) < manager->patience)
            manager->patience = patience_of(agent);
}

static void patience_changed(kvf_agent *agent, uint64_t before)
{
    kvf_manager *manager = agent->manager;
    if (patience_of(agent) < manager->patience)
        manager->patience = patience_of(agent);
    else if (before == manager->patience)
        manager->patience_stale = true;
}

void kvf_agent_lease(kvf_agent *agent, uint64_t lease)
{
    uint64_t before = patience_of(agent);
    agent->past.lease = lease;
    patience_changed(agent, before);
}

static kvf_agent *new_agent(kvf_manager *manager, const kvf_request *request)
{
    kvf_agent *agent = calloc(1, sizeof *agent);
    if (agent == NULL)
        return NULL;
    agent->manager = manager;
    kvf_letters_init(agent);
    kvf_peer_past_init(&agent->past, (uint32_t)manager->settings.remembered_rooms);
    (void)kvf_slice_to_text(request->agent_name, agent->name, sizeof agent->name);
    unsigned before = HASH_CNT(by_name, manager->agents);
    HASH_ADD(by_name, manager->agents, name, strlen(agent->name), agent);
    if (HASH_CNT(by_name, manager->agents) == before) {
        free(agent);
        return NULL;
    }
    kvf_formers_recall(&manager->formers, agent->name, &agent->past.ended);
    kvf_formers_recall_epochs(&manager->formers, agent->name, &agent->past.highest_epoch,
                              &agent->past.unflushed_epoch);
    patience_changed(agent, KVF_NEVER);
    kvf_count(manager, KVF_COUNT_PEERS, 1);
    return agent;
}

/* What a first request brings is kept, and so must be sound: everything later is held against it. */
static kvf_status check_metadata(kvf_manager *manager, const kvf_request *request, kvf_error *error)
{
    kvf_metadata metadata;
    kvf_status status = kvf_metadata_decode(
        request->agent_metadata, 2 * (size_t)manager->settings.max_buffers, &metadata, error);
    if (status == KVF_OK) {
        if (!kvf_slice_equal(metadata.agent_name, request->agent_name))
            status = kvf_error_set(error, KVF_PROTOCOL, "it is the metadata of another agent");
        kvf_metadata_free(&metadata);
    }
    if (status != KVF_OK)
        kvf_error_prefix(error, "metadata of agent %.*s", (int)request->agent_name.length,
                         (const char *)request->agent_name.data);
    return status;
}

static kvf_status keep_metadata(kvf_agent *agent, kvf_slice metadata, kvf_error *error)
{
    agent->metadata = malloc(metadata.length);
    if (agent->metadata == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a peer's metadata");
    memcpy(agent->metadata, metadata.data, metadata.length);
    agent->metadata_length = metadata.length;
    return KVF_OK;
}

/* Freed at the end of the turn. */
static void leave(kvf_agent *agent)
{
    HASH_DELETE(by_name, agent->manager->agents, agent);
    agent->manager->patience_stale = true;
    DL_APPEND(agent->manager->dead_agents, agent);
    agent->dead = true;
}

static bool is_idle(const kvf_agent *agent)
{
    return agent->incoming == NULL && agent->deliveries == 0 && agent->letters == NULL;
}

/* A decode that goes by another name on the same connection has closed what it gave to be written to by the earlier one.
 * What it asked for by that is over, and no news should it come again. */
static void forget_followed(kvf_manager *manager, uint64_t connection)
{
    kvf_agent *agent;
    kvf_agent *next;
    HASH_ITER(by_name, manager->agents, agent, next)
    {
        if (agent->connection != connection || !is_idle(agent))
            continue;
        leave(agent);
        remember(agent);
        kvf_formers_keep_epochs(&manager->formers, agent->name, agent->past.highest_epoch,
                                agent->past.unflushed_epoch);
    }
}

static kvf_status add_agent(kvf_manager *manager, const kvf_request *request, uint64_t connection,
                            kvf_agent **agent, kvf_error *error)
{
    forget_followed(manager, connection);
    if (HASH_CNT(by_name, manager->agents) >= manager->settings.max_peers)
        return kvf_error_set(error, KVF_LIMIT,
                             "%llu decode processes are known; setting max_peers allows no more",
                             (unsigned long long)manager->settings.max_peers);
    *agent = new_agent(manager, request);
    if (*agent == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a peer");
    (*agent)->connection = connection; /* with which it goes, whatever becomes of the request */
    return KVF_OK;
}

kvf_agent *kvf_agent_named(kvf_manager *manager, kvf_slice name)
{
    kvf_agent *agent = NULL;
    HASH_FIND(by_name, manager->agents, name.data, name.length, agent);
    return agent;
}

/* Nothing is looked at in a dummy's metadata, and nothing kept of it. */
kvf_status kvf_agent_find(kvf_manager *manager, const kvf_request *request, uint64_t connection,
                          kvf_agent **agent, kvf_error *error)
{
    kvf_agent *found = kvf_agent_named(manager, request->agent_name);
    bool dummy = kvf_request_is_dummy(request);
    kvf_status status = KVF_OK;
    bool first = !dummy && (found == NULL || found->metadata == NULL);
    if (first)
        status = check_metadata(manager, request, error);
    else if (!dummy && !kvf_slice_equal((kvf_slice){found->metadata, found->metadata_length},
                                        request->agent_metadata))
        status = kvf_error_set(error, KVF_PROTOCOL,
                               "agent %s sent other metadata than before; a restarted decode "
                               "process must use a new agent name",
                               found->name);
    if (status == KVF_OK && found == NULL)
        status = add_agent(manager, request, connection, &found, error);
    if (status == KVF_OK && first)
        status = keep_metadata(found, request->agent_metadata, error);
    if (status != KVF_OK)
        return status;
    found->connection = connection;
    *agent = found;
    return KVF_OK;
}

bool kvf_agent_has_asked(kvf_manager *manager, const kvf_request *request)
{
    const kvf_agent *known = kvf_agent_named(manager, request->agent_name);
    return known != NULL && request->epoch != 0 && request->epoch <= known->past.highest_epoch;
}

bool kvf_agent_turn_away(kvf_manager *manager, const kvf_request *request)
{
    char name[KVF_AGENT_NAME_MAX + 1];
    kvf_peer_past past = {0};
    if (request->epoch == 0 || kvf_agent_named(manager, request->agent_name) != NULL ||
        !kvf_slice_to_text(request->agent_name, name, sizeof name))
        return false;
    kvf_formers_recall_epochs(&manager->formers, name, &past.highest_epoch, &past.unflushed_epoch);
    kvf_peer_gives_up(&past, request->epoch);
    kvf_formers_keep_epochs(&manager->formers, name, past.highest_epoch, past.unflushed_epoch);
    const kvf_agent *dead;
    DL_FOREACH(manager->dead_agents, dead)
    {
        if (strcmp(dead->name, name) == 0)
            return false;
    }
    return kvf_peer_may_acknowledge(&past, request->epoch);
}

static void unload(kvf_agent *agent)
{
    if (agent->peer != NULL && agent->manager->engine != NULL)
        agent->manager->engine->operations->disconnect(agent->manager->engine, agent->peer);
    agent->peer = NULL;
    free(agent->regions);
    agent->regions = NULL;
    agent->region_count = 0;
    agent->loaded = false;
}

static void free_agent(kvf_agent *agent)
{
    unload(agent);
    kvf_binding_release(agent->binding);
    kvf_uncount(agent->manager, KVF_COUNT_PEERS, 1);
    kvf_letters_free(agent);
    kvf_peer_past_free(&agent->past);
    free(agent->metadata);
    free(agent);
}

/* Fails the rooms that are written to it, and no others. */
static void fail_rooms(kvf_agent *agent, const char *why)
{
    const kvf_manager *manager = agent->manager;
    if (agent->incoming != NULL)
        kvf_log_warning(&manager->settings.log, "decode agent %s is gone: %s", agent->name, why);
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_GONE, "decode agent %s is gone: %s", agent->name, why);
    kvf_incoming *incoming;
    kvf_incoming *next;
    DL_FOREACH_SAFE2(agent->incoming, incoming, next, agent_next)
    {
        kvf_sender *sender = incoming->sender;
        if (sender == NULL)
            continue;
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_PEER_GONE,
                                                    .agent_name = kvf_slice_of(agent->name),
                                                    .error = &error});
        kvf_sender_release(sender);
    }
}

static void drop_held(kvf_agent *agent, const char *why)
{
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_GONE, "%s", why);
    kvf_incoming *incoming;
    kvf_incoming *next;
    DL_FOREACH_SAFE2(agent->incoming, incoming, next, agent_next)
    {
        if (incoming->sender != NULL)
            continue;
        kvf_letters_failed(agent, &incoming->request, &error); /* where it still hears us */
        kvf_incoming_free(agent->manager, incoming);
    }
}

/* It can't be reached any more. */
static void bury(kvf_agent *agent, const char *why)
{
    leave(agent);
    remember(agent);
    kvf_count(agent->manager, KVF_COUNT_PEERS_LOST, 1);
    fail_rooms(agent, why);
    drop_held(agent, why);
}

void kvf_agent_connection_gone(void *user, uint64_t connection)
{
    kvf_manager *manager = user;
    kvf_agent *agent;
    kvf_agent *next;
    HASH_ITER(by_name, manager->agents, agent, next)
    {
        if (agent->connection == connection)
            bury(agent, "its control connection was closed or went silent");
    }
}

/* While its control connection lives the agent isn't forgotten: a request of before would be news again, and what
 * was never flushed would be acknowledged. */
void kvf_agent_transport_failed(void *user, kvf_engine_peer *peer, const char *text)
{
    kvf_manager *manager = user;
    kvf_agent *agent = manager->engine->operations->peer_user(peer);
    if (agent == NULL || agent->dead)
        return;
    agent->reset = true;
    fail_rooms(agent, text);
}

/* Nor then: after a leap of the clock alone the connections are still there. Where they aren't, their end comes after
 * the requests that were under way, whose rooms are given up as well: those are refused meanwhile. */
void kvf_agents_give_up(kvf_manager *manager, uint64_t silence)
{
    char why[128];
    kvf_agent *agent;
    kvf_agent *next;
    (void)snprintf(why, sizeof why,
                   "this process was stopped for %.1f s, after which the peer may have given it up "
                   "(its setting heartbeat_timeout)",
                   (double)silence / (double)KVF_SECOND);
    HASH_ITER(by_name, manager->agents, agent, next)
    {
        if (silence <= patience_of(agent))
            continue;
        fail_rooms(agent, why);
        drop_held(agent, why);
        agent->refused_until = kvf_clock_after(manager->now, agent->past.lease);
    }
}

void kvf_agents_reap(kvf_manager *manager)
{
    kvf_agent *agent;
    kvf_agent *next;
    DL_FOREACH_SAFE(manager->dead_agents, agent, next)
    {
        if (agent->incoming != NULL || agent->deliveries > 0)
            continue;
        DL_DELETE(manager->dead_agents, agent);
        free_agent(agent);
    }
}

void kvf_agents_free(kvf_manager *manager)
{
    kvf_agent *agent;
    kvf_agent *next;
    HASH_ITER(by_name, manager->agents, agent, next)
    {
        HASH_DELETE(by_name, manager->agents, agent);
        free_agent(agent);
    }
    DL_FOREACH_SAFE(manager->dead_agents, agent, next)
    {
        DL_DELETE(manager->dead_agents, agent);
        free_agent(agent);
    }
}

/* ---- Memory ------------------------------------------------------------------------------------- */

static int compare_regions(const void *left, const void *right)
{
    const kvf_remote_region *a = left;
    const kvf_remote_region *b = right;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    if (a->base != b->base)
        return a->base < b->base ? -1 : 1;
    return 0;
}

static kvf_status add_regions(kvf_agent *agent, const kvf_metadata *metadata, kvf_error *error)
{
    const kvf_engine_operations *operations = agent->manager->engine->operations;
    agent->regions = calloc(metadata->descriptor_count + 1, sizeof *agent->regions);
    if (agent->regions == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a peer's regions");
    for (size_t i = 0; i < metadata->descriptor_count; i++) {
        const kvf_descriptor *descriptor = &metadata->descriptors[i];
        kvf_remote_region *region = &agent->regions[i];
        *region = (kvf_remote_region){.base = descriptor->base,
                                      .length = descriptor->length,
                                      .device = descriptor->device,
                                      .kind = descriptor->kind};
        kvf_status status =
            operations->add_remote_region(agent->peer, descriptor->key, &region->index, error);
        if (status != KVF_OK)
            return status;
        agent->region_count++;
    }
    qsort(agent->regions, agent->region_count, sizeof *agent->regions, compare_regions);
    return KVF_OK;
}

/* Makes the agent reachable. Put off until somebody has something to write to it. */
static kvf_status load(kvf_agent *agent, kvf_error *error)
{
    kvf_manager *manager = agent->manager;
    kvf_metadata metadata;
    kvf_status status =
        kvf_metadata_decode((kvf_slice){agent->metadata, agent->metadata_length},
                            2 * (size_t)manager->settings.max_buffers, &metadata, error);
    if (status != KVF_OK) {
        kvf_error_prefix(error, "metadata of agent %s", agent->name);
        return status;
    }
    status = manager->engine->operations->connect(manager->engine, metadata.worker_address, agent,
                                                  &agent->peer, error);
    if (status == KVF_OK)
        status = add_regions(agent, &metadata, error);
    kvf_metadata_free(&metadata);
    if (status != KVF_OK)
        unload(agent);
    agent->loaded = status == KVF_OK;
    return status;
}

/* The region that holds `address`, or NULL. */
static const kvf_remote_region *find_region(const kvf_agent *agent, uint32_t kind, uint64_t device,
                                            uint64_t address)
{
    kvf_remote_region key = {.kind = kind, .device = device, .base = address};
    size_t low = 0;
    size_t high = agent->region_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_regions(&agent->regions[middle], &key) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return NULL;
    const kvf_remote_region *region = &agent->regions[low - 1];
    bool holds =
        region->kind == kind && region->device == device && address - region->base < region->length;
    return holds ? region : NULL;
}

/* Pairs one of our buffers with one of the agent's; lowers `limit` to the items that fit there. */
static kvf_status pair(const kvf_agent *agent, const kvf_buffer *buffer, uint32_t source_region,
                       uint64_t address, uint32_t kind, uint64_t device, kvf_span *span,
                       uint32_t *limit, kvf_error *error)
{
    const kvf_remote_region *region = find_region(agent, kind, device, address);
    if (region == NULL)
        return kvf_error_set(error, KVF_MISMATCH,
                             "agent %s names a buffer at 0x%llx that lies in no region of its "
                             "metadata (%s, device %llu)",
                             agent->name, (unsigned long long)address,
                             kind == KVF_NIXL_VRAM ? "VRAM" : "DRAM", (unsigned long long)device);
    uint64_t items = (region->length - (address - region->base)) / buffer->item_length;
    if (items < *limit)
        *limit = (uint32_t)items;
    *span = (kvf_span){.source_base = buffer->base,
                       .destination_base = address,
                       .item_length = buffer->item_length,
                       .source_region = source_region,
                       .destination_region = region->index};
    return KVF_OK;
}

void kvf_binding_release(kvf_binding *binding)
{
    if (binding == NULL || --binding->references > 0)
        return;
    free(binding->spans);
    free(binding->aux_spans);
    free(binding);
}

static bool binding_fits(const kvf_binding *binding, const kvf_request *request, bool all_aux)
{
    return binding != NULL && binding->device == request->device && binding->all_aux == all_aux &&
           kvf_slice_equal((kvf_slice){binding->pointers, binding->buffers_length},
                           request->buffers) &&
           kvf_slice_equal(
               (kvf_slice){binding->pointers + binding->buffers_length, binding->aux_length},
               request->aux);
}

/* A stock decode may have more KV buffers than we (a draft model's come last); a kvferry one has the same. */
static kvf_status check_counts(const kvf_pool *pool, const kvf_request *request, bool all_aux,
                               const char *name, kvf_error *error)
{
    size_t buffers = request->buffers.length / 8;
    size_t aux = request->aux.length / 8;
    if (buffers < pool->buffer_count || (request->extended && buffers != pool->buffer_count))
        return kvf_error_set(error, KVF_MISMATCH, "agent %s has %zu KV buffers, this side has %zu",
                             name, buffers, pool->buffer_count);
    if ((aux == 0) != (pool->aux_count == 0) || (all_aux && aux != pool->aux_count))
        return kvf_error_set(error, KVF_MISMATCH, "agent %s has %zu aux buffers, this side has %zu",
                             name, aux, pool->aux_count);
    return KVF_OK;
}

static kvf_binding *new_binding(const kvf_pool *pool, const kvf_request *request, bool all_aux)
{
    kvf_binding *binding =
        calloc(1, sizeof *binding + request->buffers.length + request->aux.length);
    if (binding == NULL)
        return NULL;
    binding->references = 1;
    binding->span_count = pool->buffer_count;
    binding->aux_span_count =
        request->aux.length / 8 < pool->aux_count ? request->aux.length / 8 : pool->aux_count;
    binding->spans = calloc(binding->span_count + 1, sizeof *binding->spans);
    binding->aux_spans = calloc(binding->aux_span_count + 1, sizeof *binding->aux_spans);
    if (binding->spans == NULL || binding->aux_spans == NULL) {
        kvf_binding_release(binding);
        return NULL;
    }
    binding->page_limit = UINT32_MAX;
    binding->aux_limit = UINT32_MAX;
    binding->device = request->device;
    binding->all_aux = all_aux;
    binding->buffers_length = request->buffers.length;
    binding->aux_length = request->aux.length;
    memcpy(binding->pointers, request->buffers.data, request->buffers.length);
    if (request->aux.length > 0)
        memcpy(binding->pointers + request->buffers.length, request->aux.data, request->aux.length);
    return binding;
}

/* The first aux buffer is what SGLang 0.4.7 writes, and must fit. Its decode names more, and reads them: they
 * are written as far as they lie where it says. A kvferry decode is promised all of them. */
static kvf_status fill_aux(const kvf_agent *agent, kvf_binding *binding, const kvf_request *request,
                           kvf_error *error)
{
    const kvf_pool *pool = &agent->manager->pool;
    for (size_t i = 0; i < binding->aux_span_count; i++) {
        uint32_t limit = UINT32_MAX;
        kvf_status status =
            pair(agent, &pool->aux[i], (uint32_t)(pool->buffer_count + i),
                 kvf_read_u64(request->aux.data + 8 * i), agent->manager->profile->aux_kind, 0,
                 &binding->aux_spans[i], &limit, error);
        bool optional = i > 0 && !binding->all_aux;
        if (optional && (status != KVF_OK || limit < binding->aux_limit)) {
            binding->aux_span_count = i;
            return KVF_OK;
        }
        if (status != KVF_OK)
            return status;
        if (limit < binding->aux_limit)
            binding->aux_limit = limit;
    }
    return KVF_OK;
}

static kvf_status fill_binding(const kvf_agent *agent, kvf_binding *binding,
                               const kvf_request *request, kvf_error *error)
{
    const kvf_pool *pool = &agent->manager->pool;
    const kvf_profile *profile = agent->manager->profile;
    kvf_status status = KVF_OK;
    for (size_t i = 0; status == KVF_OK && i < binding->span_count; i++)
        status = pair(agent, &pool->buffers[i], (uint32_t)i,
                      kvf_read_u64(request->buffers.data + 8 * i), profile->buffer_kind,
                      request->device, &binding->spans[i], &binding->page_limit, error);
    return status == KVF_OK ? fill_aux(agent, binding, request, error) : status;
}

/* Once the last transfer over the lost transport has ended; until then rooms fail with it. */
static void renew_transport(kvf_agent *agent)
{
    if (!agent->reset || agent->deliveries > 0)
        return;
    kvf_binding_release(agent->binding);
    agent->binding = NULL;
    unload(agent);
    agent->reset = false;
}

kvf_status kvf_agent_bind(kvf_agent *agent, const kvf_request *request, kvf_binding **binding,
                          kvf_error *error)
{
    bool all_aux = (request->extensions & KVF_EXTENSION_ALL_AUX) != 0;
    renew_transport(agent);
    if (!agent->loaded) {
        kvf_status status = load(agent, error);
        if (status != KVF_OK)
            return status;
    }
    if (!binding_fits(agent->binding, request, all_aux)) {
        kvf_status status =
            check_counts(&agent->manager->pool, request, all_aux, agent->name, error);
        if (status != KVF_OK)
            return status;
        kvf_binding *made = new_binding(&agent->manager->pool, request, all_aux);
        if (made == NULL)
            return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a peer's buffers");
        status = fill_binding(agent, made, request, error);
        if (status != KVF_OK) {
            kvf_binding_release(made);
            return status;
        }
        kvf_binding_release(agent->binding);
        agent->binding = made;
    }
    agent->binding->references++;
    *binding = agent->binding;
    return KVF_OK;
}
