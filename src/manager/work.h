/* Work of the processor's own that takes long, as summing a chunk does: cut into slices, taking turns, so that the loop
 * is never held up by it. All of it is the loop's. */
#ifndef KVF_MANAGER_WORK_H
#define KVF_MANAGER_WORK_H

#include "manager/manager.h"

struct kvf_work {
    /* Does some of it and takes the bytes it has looked at off *budget; it may remove any work, its own too, and free
     * its owner. */
    void (*run)(kvf_work *work, uint64_t *budget);
    kvf_work *prev;
    kvf_work *next;
    bool listed;
};

void kvf_work_add(kvf_manager *manager, kvf_work *work); /* one that is listed stays where it is */
void kvf_work_remove(kvf_manager *manager, kvf_work *work);
/* A turn of the loop's worth of it; true when there is more. */
bool kvf_work_run(kvf_manager *manager);

/* The sum of one buffer's bytes of some pages, in the making. */
typedef struct kvf_sum {
    struct XXH3_state_s *state; /* NULL until the first one */
    uint32_t page;              /* position of the page that is next */
    uint64_t offset;            /* in it */
} kvf_sum;

/* Forgets what was summed; false without memory. Needed before the first sum, and after one that was broken off. */
bool kvf_sum_begin(kvf_sum *sum);
void kvf_sum_free(kvf_sum *sum);
/* Goes on with it; true when *result is the sum, and the next one may begin. */
bool kvf_sum_run(kvf_sum *sum, const kvf_buffer *buffer, const uint32_t *pages, uint32_t page_count,
                 uint64_t *budget, uint64_t *result);
/* Whether this processor can read all of the pool. */
bool kvf_pool_is_host(const kvf_pool *pool);

#endif
