/* Checks of what a caller says about its memory, and of what a peer says about its own. */
#ifndef KVF_PLAN_LAYOUT_H
#define KVF_PLAN_LAYOUT_H

#include "base/error.h"

#include <stdbool.h>

/* A layout that has been checked: owned copies. Pages and slots below the limits exist in every buffer. */
typedef struct kvf_pool {
    kvf_buffer *buffers;
    size_t buffer_count;
    kvf_buffer *aux;
    size_t aux_count;
    uint32_t page_limit;     /* pages that every buffer has */
    uint32_t aux_slot_limit; /* slots that every aux buffer has; 0 without aux buffers */
    uint64_t bytes_per_page; /* all buffers together */
    uint64_t bytes_per_slot; /* all aux buffers together */
    uint32_t engine_rank;
    uint32_t tp_size;
    uint32_t dp_size;
    bool mla;
    uint32_t device;
} kvf_pool;

/* Checks everything the header promises: sizes of the structs, at least one buffer, no zero lengths, whole
 * items, base + length without wrapping, no two buffers overlapping (aux included), known memory kinds,
 * aux in host memory, dp_size divides tp_size, engine_rank below tp_size, at most max_buffers. */
kvf_status kvf_pool_build(const kvf_layout *layout, size_t max_buffers, kvf_pool *pool,
                          kvf_error *error);
void kvf_pool_free(kvf_pool *pool);

/* KVF_OUT_OF_RANGE naming the first page that isn't below `limit`. */
kvf_status kvf_pages_check(const uint32_t *pages, size_t count, uint32_t limit, const char *what,
                           kvf_error *error);

/* KVF_INVALID_ARGUMENT naming a page that is there twice. O(n log n) or better; allocates. */
kvf_status kvf_pages_check_unique(const uint32_t *pages, size_t count, kvf_error *error);

#endif
