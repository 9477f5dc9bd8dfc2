/* The table behind the bootstrap server: which rank is where. No I/O and no lock: only the
 * server's thread touches it. */
#ifndef KVF_BOOTSTRAP_REGISTRY_H
#define KVF_BOOTSTRAP_REGISTRY_H

#include "base/error.h"
#include "wire/route.h"

typedef struct kvf_registry kvf_registry;

kvf_registry *kvf_registry_new(size_t max_ranks); /* NULL: no memory */
void kvf_registry_free(kvf_registry *registry);

/* Stores or replaces a rank. The first registration fixes the sizes; KVF_MISMATCH when another disagrees,
 * KVF_LIMIT, KVF_NO_MEMORY: then nothing has changed. A role that isn't Prefill is accepted and ignored. */
kvf_status kvf_registry_put(kvf_registry *registry, const kvf_route_registration *registration,
                            kvf_error *error);

void kvf_registry_topology(const kvf_registry *registry, kvf_route_topology *topology);
/* False when unknown. `tp_rank` counts inside the dp group. */
bool kvf_registry_rank(const kvf_registry *registry, int64_t dp_group, int64_t tp_rank,
                       kvf_route_rank *rank);

#endif
