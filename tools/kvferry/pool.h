/* A worker's pool: allocation, what it is filled with, and the check of every byte. */
#ifndef KVFERRY_TOOL_POOL_H
#define KVFERRY_TOOL_POOL_H

#include "kvferry/kvferry.h"
#include "message.h"

typedef struct pool_shape {
    uint64_t buffer_count;
    uint64_t page_count;
    uint64_t item_length;
    uint64_t aux_count;
    uint64_t aux_slots;
    uint64_t aux_item_length;
} pool_shape;

typedef struct tool_pool {
    pool_shape shape;
    uint8_t *mapping;
    size_t mapping_length;
    kvf_buffer *buffers; /* the KV buffers, then the aux buffers */
} tool_pool;

/* Anonymous memory for all buffers, each at a multiple of 4096 bytes; `huge` advises huge pages. */
bool pool_open(tool_pool *pool, const pool_shape *shape, bool huge, message *why);
void pool_close(tool_pool *pool);

const kvf_buffer *pool_aux(const tool_pool *pool); /* NULL without aux buffers */

/* Both write every byte, so they also bring the memory in. */
void pool_fill(tool_pool *pool, uint64_t seed);
void pool_poison(tool_pool *pool);

uint8_t *pool_item(const tool_pool *pool, uint64_t buffer, uint64_t page);

/* Which pages must equal which pages of another pool that was filled with `seed`. */
typedef struct pool_claim {
    uint64_t seed;
    const uint32_t *pages;
    const uint32_t *source_pages;
    size_t page_count;
    uint32_t aux_slot;
    uint32_t source_aux_slot;
    uint64_t aux_count; /* how many aux buffers, from the first, have travelled */
} pool_claim;

/* Compares every byte; the message says which is the first wrong one. */
bool pool_check(const tool_pool *pool, const pool_claim *claim, message *why);

#endif
