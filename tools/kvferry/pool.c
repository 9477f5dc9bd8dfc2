#include "pool.h"

#include "pattern.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const uint64_t buffer_alignment = 4096;
static const uint64_t huge_page = 2 << 20;
static const uint64_t pool_limit = UINT64_C(1) << 46;

static uint64_t round_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

/* count * length, or more than the limit where that is exceeded. */
static uint64_t limited_product(uint64_t count, uint64_t length)
{
    return length != 0 && count > pool_limit / length ? pool_limit + 1 : count * length;
}

static bool measure(const pool_shape *shape, uint64_t *length, message *why)
{
    if (shape->buffer_count == 0 || shape->page_count == 0 || shape->item_length == 0)
        return message_set(why, "a pool needs at least one buffer, one page and one byte an item");
    if (shape->buffer_count > PATTERN_AUX || shape->aux_count > PATTERN_AUX)
        return message_set(why, "more than %u buffers", (unsigned)PATTERN_AUX);
    uint64_t buffer = limited_product(shape->page_count, shape->item_length);
    uint64_t aux = limited_product(shape->aux_slots, shape->aux_item_length);
    if (shape->aux_count > 0 && aux == 0)
        return message_set(why, "aux buffers need at least one slot and one byte an item");
    uint64_t kv = limited_product(shape->buffer_count, round_up(buffer, buffer_alignment));
    uint64_t all_aux = limited_product(shape->aux_count, round_up(aux, buffer_alignment));
    if (kv > pool_limit || all_aux > pool_limit || kv + all_aux > pool_limit)
        return message_set(why, "the pool would be larger than %llu GiB",
                           (unsigned long long)(pool_limit >> 30));
    *length = kv + all_aux;
    return true;
}

/* A mapping that starts at a multiple of a huge page, so that all of it can be in huge pages. */
static bool map_memory(tool_pool *pool, uint64_t length, bool huge, message *why)
{
    pool->mapping_length = (size_t)(round_up(length, huge_page) + huge_page);
    void *mapping = mmap(NULL, pool->mapping_length, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return message_set(why, "no memory for a pool of %llu bytes: %s",
                           (unsigned long long)length, strerror(errno));
    pool->mapping = mapping;
    if (huge)
        (void)madvise(mapping, pool->mapping_length, MADV_HUGEPAGE); /* advice: may be refused */
    return true;
}

static void place_buffers(tool_pool *pool)
{
    const pool_shape *shape = &pool->shape;
    uint64_t base = round_up((uint64_t)(uintptr_t)pool->mapping, huge_page);
    for (uint64_t i = 0; i < shape->buffer_count + shape->aux_count; i++) {
        bool aux = i >= shape->buffer_count;
        uint64_t item = aux ? shape->aux_item_length : shape->item_length;
        uint64_t length = item * (aux ? shape->aux_slots : shape->page_count);
        pool->buffers[i] = (kvf_buffer){.size = sizeof(kvf_buffer),
                                        .base = base,
                                        .length = length,
                                        .item_length = item,
                                        .memory = KVF_MEMORY_HOST,
                                        .device = 0};
        base += round_up(length, buffer_alignment);
    }
}

bool pool_open(tool_pool *pool, const pool_shape *shape, bool huge, message *why)
{
    uint64_t length = 0;
    *pool = (struct tool_pool){.shape = *shape};
    if (!measure(shape, &length, why))
        return false;
    pool->buffers = calloc((size_t)(shape->buffer_count + shape->aux_count), sizeof *pool->buffers);
    if (pool->buffers == NULL)
        return message_set(why, "no memory for the list of buffers");
    if (!map_memory(pool, length, huge, why)) {
        free(pool->buffers);
        pool->buffers = NULL;
        return false;
    }
    place_buffers(pool);
    return true;
}

void pool_close(tool_pool *pool)
{
    if (pool->mapping != NULL)
        (void)munmap(pool->mapping, pool->mapping_length);
    free(pool->buffers);
    *pool = (struct tool_pool){.mapping = NULL};
}

const kvf_buffer *pool_aux(const tool_pool *pool)
{
    return pool->shape.aux_count == 0 ? NULL : pool->buffers + pool->shape.buffer_count;
}

/* Where an item of a buffer of this pool lies. */
static uint8_t *item_at(const tool_pool *pool, const kvf_buffer *buffer, uint64_t index)
{
    return pool->mapping + (buffer->base - (uintptr_t)pool->mapping) + index * buffer->item_length;
}

void pool_fill(tool_pool *pool, uint64_t seed)
{
    for (uint64_t i = 0; i < pool->shape.buffer_count; i++)
        pattern_fill(seed, (uint32_t)i, 0, item_at(pool, &pool->buffers[i], 0),
                     (size_t)pool->buffers[i].length);
    const kvf_buffer *aux = pool_aux(pool);
    for (uint64_t i = 0; i < pool->shape.aux_count; i++)
        pattern_fill(seed, PATTERN_AUX + (uint32_t)i, 0, item_at(pool, &aux[i], 0),
                     (size_t)aux[i].length);
}

void pool_poison(tool_pool *pool)
{
    for (uint64_t i = 0; i < pool->shape.buffer_count + pool->shape.aux_count; i++)
        memset(item_at(pool, &pool->buffers[i], 0), PATTERN_POISON,
               (size_t)pool->buffers[i].length);
}

uint8_t *pool_item(const tool_pool *pool, uint64_t buffer, uint64_t page)
{
    return item_at(pool, &pool->buffers[buffer], page);
}

static bool all_poison(const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != PATTERN_POISON)
            return false;
    return true;
}

/* One item against the item of the source it must equal. */
static bool check_item(const tool_pool *pool, const kvf_buffer *buffer, uint32_t pattern_buffer,
                       uint64_t seed, uint32_t index, uint32_t source_index, message *why)
{
    const uint8_t *bytes = item_at(pool, buffer, index);
    size_t length = (size_t)buffer->item_length;
    uint64_t source = source_index * buffer->item_length;
    size_t at = pattern_compare(seed, pattern_buffer, source, bytes, length);
    if (at == length)
        return true;
    bool aux = pattern_buffer >= PATTERN_AUX;
    uint8_t expected = 0;
    pattern_fill(seed, pattern_buffer, source + at, &expected, 1);
    return message_set(why, "%s %u, %s %u: byte %zu is 0x%02x instead of 0x%02x of source %s %u%s",
                       aux ? "aux buffer" : "buffer",
                       (unsigned)(aux ? pattern_buffer - PATTERN_AUX : pattern_buffer),
                       aux ? "slot" : "page", (unsigned)index, at, bytes[at], expected,
                       aux ? "slot" : "page", (unsigned)source_index,
                       all_poison(bytes, length) ? "; nothing was written there" : "");
}

bool pool_check(const tool_pool *pool, const pool_claim *claim, message *why)
{
    for (uint32_t i = 0; i < pool->shape.buffer_count; i++)
        for (size_t k = 0; k < claim->page_count; k++)
            if (!check_item(pool, &pool->buffers[i], i, claim->seed, claim->pages[k],
                            claim->source_pages[k], why))
                return false;
    const kvf_buffer *aux = pool_aux(pool);
    for (uint32_t i = 0; i < pool->shape.aux_count && i < claim->aux_count; i++)
        if (!check_item(pool, &aux[i], PATTERN_AUX + i, claim->seed, claim->aux_slot,
                        claim->source_aux_slot, why))
            return false;
    return true;
}
