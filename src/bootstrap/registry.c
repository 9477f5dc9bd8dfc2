#include "bootstrap/registry.h"

#include <stdlib.h>
#include <string.h>

/* Every registration must agree on the sizes, so one array with a place for each engine rank holds all:
 * the rank of a dp group's n-th member is dp_group * (tp_size / dp_size) + n. */
struct kvf_registry {
    size_t max_ranks;
    size_t count;
    kvf_route_topology topology;
    kvf_route_rank **rows; /* topology.tp_size of them; NULL: not registered */
};

kvf_registry *kvf_registry_new(size_t max_ranks)
{
    kvf_registry *registry = calloc(1, sizeof *registry);
    if (registry != NULL)
        registry->max_ranks = max_ranks;
    return registry;
}

void kvf_registry_free(kvf_registry *registry)
{
    if (registry == NULL)
        return;
    for (uint32_t i = 0; i < registry->topology.tp_size; i++)
        free(registry->rows[i]);
    free(registry->rows);
    free(registry);
}

static kvf_status check_sizes(const kvf_registry *registry,
                              const kvf_route_registration *registration, kvf_error *error)
{
    uint32_t tp_size = registration->tp_size;
    uint32_t dp_size = registration->dp_size;
    if (tp_size == 0 || dp_size == 0 || tp_size % dp_size != 0 ||
        registration->engine_rank >= tp_size)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "impossible sizes: engine_rank %u, tp_size %u, dp_size %u",
                             registration->engine_rank, tp_size, dp_size);
    const kvf_route_topology *topology = &registry->topology;
    if (topology->known && (topology->tp_size != tp_size || topology->dp_size != dp_size))
        return kvf_error_set(error, KVF_MISMATCH,
                             "engine_rank %u has tp_size %u and dp_size %u, but the ranks "
                             "registered here have tp_size %u and dp_size %u; give this "
                             "deployment a bootstrap server of its own, or restart this one",
                             registration->engine_rank, tp_size, dp_size, topology->tp_size,
                             topology->dp_size);
    return KVF_OK;
}

/* Makes room for a new rank. The sizes are latched last, when nothing can fail any more. */
static kvf_status add_row(kvf_registry *registry, const kvf_route_registration *registration,
                          kvf_error *error)
{
    if (registry->count >= registry->max_ranks)
        return kvf_error_set(error, KVF_LIMIT,
                             "no place for engine_rank %u: %zu ranks are registered "
                             "(setting max_registered_ranks)",
                             registration->engine_rank, registry->count);
    kvf_route_rank *row = calloc(1, sizeof *row);
    kvf_route_rank **rows = registry->rows;
    if (row != NULL && rows == NULL)
        rows = calloc(registration->tp_size, sizeof *rows);
    if (row == NULL || rows == NULL) {
        free(row);
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory to register engine_rank %u",
                             registration->engine_rank);
    }
    registry->rows = rows;
    registry->topology = (kvf_route_topology){
        .known = true, .tp_size = registration->tp_size, .dp_size = registration->dp_size};
    rows[registration->engine_rank] = row;
    registry->count++;
    return KVF_OK;
}

kvf_status kvf_registry_put(kvf_registry *registry, const kvf_route_registration *registration,
                            kvf_error *error)
{
    if (!registration->is_prefill)
        return KVF_OK;
    kvf_status status = check_sizes(registry, registration, error);
    if (status != KVF_OK)
        return status;
    if (registry->rows == NULL || registry->rows[registration->engine_rank] == NULL) {
        status = add_row(registry, registration, error);
        if (status != KVF_OK)
            return status;
    }
    kvf_route_rank *row = registry->rows[registration->engine_rank];
    memcpy(row->rank_ip, registration->rank_ip, sizeof row->rank_ip);
    row->rank_port = registration->rank_port;
    row->extended = registration->extended;
    return KVF_OK;
}

void kvf_registry_topology(const kvf_registry *registry, kvf_route_topology *topology)
{
    *topology = registry->topology;
}

bool kvf_registry_rank(const kvf_registry *registry, int64_t dp_group, int64_t tp_rank,
                       kvf_route_rank *rank)
{
    const kvf_route_topology *topology = &registry->topology;
    if (!topology->known)
        return false;
    uint32_t group_size = topology->tp_size / topology->dp_size;
    if (dp_group < 0 || dp_group >= topology->dp_size || tp_rank < 0 || tp_rank >= group_size)
        return false;
    const kvf_route_rank *row = registry->rows[(uint32_t)dp_group * group_size + (uint32_t)tp_rank];
    if (row == NULL)
        return false;
    *rank = *row;
    return true;
}
