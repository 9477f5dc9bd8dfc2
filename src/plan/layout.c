#include "plan/layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One buffer, whichever list it comes from. */
typedef struct placed_buffer {
    uint64_t base;
    uint64_t length;
    size_t index;
    bool aux;
} placed_buffer;

static const char *list_name(bool aux)
{
    return aux ? "aux buffer" : "buffer";
}

static kvf_status check_buffer(const kvf_buffer *buffer, size_t index, bool aux, kvf_error *error)
{
    const char *what = list_name(aux);
    if (buffer->size != sizeof(kvf_buffer))
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "%s %zu: size is %zu; set it to sizeof(kvf_buffer), %zu", what, index,
                             buffer->size, sizeof(kvf_buffer));
    if (buffer->base == 0 || buffer->length == 0 || buffer->item_length == 0)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "%s %zu: base 0x%" PRIx64 ", length %" PRIu64 ", item length %" PRIu64
                             ": none of them may be 0",
                             what, index, buffer->base, buffer->length, buffer->item_length);
    if (buffer->length % buffer->item_length != 0)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "%s %zu: length %" PRIu64 " isn't a whole number of items of %" PRIu64
                             " bytes",
                             what, index, buffer->length, buffer->item_length);
    if (buffer->base > UINT64_MAX - buffer->length)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "%s %zu: base 0x%" PRIx64 " and length %" PRIu64
                             " reach past the end of the address space",
                             what, index, buffer->base, buffer->length);
    if (buffer->memory != KVF_MEMORY_HOST && buffer->memory != KVF_MEMORY_CUDA)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT, "%s %zu: %" PRIu32 " is no kvf_memory",
                             what, index, buffer->memory);
    if (aux && buffer->memory != KVF_MEMORY_HOST)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "aux buffer %zu: aux buffers must be host memory", index);
    return KVF_OK;
}

static kvf_status check_list(const kvf_buffer *buffers, size_t count, bool aux, kvf_error *error)
{
    if (count > 0 && buffers == NULL)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT, "layout: %zu %ss, but the array is NULL",
                             count, list_name(aux));
    for (size_t i = 0; i < count; i++) {
        kvf_status status = check_buffer(&buffers[i], i, aux, error);
        if (status != KVF_OK)
            return status;
    }
    return KVF_OK;
}

static int compare_bases(const void *a, const void *b)
{
    uint64_t left = ((const placed_buffer *)a)->base;
    uint64_t right = ((const placed_buffer *)b)->base;
    return (left > right) - (left < right);
}

static void place(placed_buffer *placed, const kvf_buffer *buffers, size_t count, bool aux)
{
    for (size_t i = 0; i < count; i++)
        placed[i] = (placed_buffer){buffers[i].base, buffers[i].length, i, aux};
}

/* Sorted by base, only neighbours can be the first to overlap. */
static kvf_status check_overlaps(const kvf_layout *layout, kvf_error *error)
{
    size_t count = layout->buffer_count + layout->aux_count;
    placed_buffer *placed = malloc(count * sizeof *placed);
    if (placed == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory to check %zu buffers", count);
    place(placed, layout->buffers, layout->buffer_count, false);
    place(placed + layout->buffer_count, layout->aux, layout->aux_count, true);
    qsort(placed, count, sizeof *placed, compare_bases);
    kvf_status status = KVF_OK;
    for (size_t i = 1; i < count && status == KVF_OK; i++) {
        const placed_buffer *below = &placed[i - 1];
        if (placed[i].base - below->base < below->length)
            status = kvf_error_set(error, KVF_INVALID_ARGUMENT, "%s %zu and %s %zu overlap",
                                   list_name(below->aux), below->index, list_name(placed[i].aux),
                                   placed[i].index);
    }
    free(placed);
    return status;
}

static kvf_status check_ranks(const kvf_pool *pool, kvf_error *error)
{
    if (pool->tp_size % pool->dp_size != 0)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "layout: dp_size %" PRIu32 " doesn't divide tp_size %" PRIu32,
                             pool->dp_size, pool->tp_size);
    if (pool->engine_rank >= pool->tp_size)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "layout: engine_rank %" PRIu32 " isn't below tp_size %" PRIu32,
                             pool->engine_rank, pool->tp_size);
    return KVF_OK;
}

static kvf_status check_counts(const kvf_layout *layout, size_t max_buffers, kvf_error *error)
{
    if (layout == NULL)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT, "layout is NULL");
    if (layout->size != sizeof(kvf_layout))
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "layout: size is %zu; set it to sizeof(kvf_layout), %zu", layout->size,
                             sizeof(kvf_layout));
    if (layout->buffer_count == 0)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT, "layout: there must be a buffer");
    if (layout->buffer_count > max_buffers || layout->aux_count > max_buffers ||
        layout->buffer_count + layout->aux_count > max_buffers)
        return kvf_error_set(error, KVF_LIMIT,
                             "layout: %zu buffers and %zu aux buffers are more than the setting "
                             "max_buffers, %zu",
                             layout->buffer_count, layout->aux_count, max_buffers);
    return KVF_OK;
}

/* How many items every buffer has, and how long one of each is together. */
static void sum_items(const kvf_buffer *buffers, size_t count, uint32_t *limit, uint64_t *bytes)
{
    uint64_t fewest = count == 0 ? 0 : UINT32_MAX;
    *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t items = buffers[i].length / buffers[i].item_length;
        fewest = items < fewest ? items : fewest;
        *bytes += buffers[i].item_length; /* can't wrap: they don't overlap */
    }
    *limit = (uint32_t)fewest;
}

/* buffer_count is checked, so the sizes can't wrap. calloc of at least one: NULL means failure only. */
static kvf_status copy_buffers(const kvf_layout *layout, kvf_pool *pool, kvf_error *error)
{
    pool->buffers = calloc(layout->buffer_count, sizeof(kvf_buffer));
    pool->aux = calloc(layout->aux_count + 1, sizeof(kvf_buffer));
    if (pool->buffers == NULL || pool->aux == NULL) {
        kvf_pool_free(pool);
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a layout of %zu buffers",
                             layout->buffer_count + layout->aux_count);
    }
    memcpy(pool->buffers, layout->buffers, layout->buffer_count * sizeof(kvf_buffer));
    if (layout->aux_count > 0)
        memcpy(pool->aux, layout->aux, layout->aux_count * sizeof(kvf_buffer));
    pool->buffer_count = layout->buffer_count;
    pool->aux_count = layout->aux_count;
    return KVF_OK;
}

kvf_status kvf_pool_build(const kvf_layout *layout, size_t max_buffers, kvf_pool *pool,
                          kvf_error *error)
{
    memset(pool, 0, sizeof *pool);
    kvf_status status = check_counts(layout, max_buffers, error);
    if (status == KVF_OK)
        status = check_list(layout->buffers, layout->buffer_count, false, error);
    if (status == KVF_OK)
        status = check_list(layout->aux, layout->aux_count, true, error);
    if (status == KVF_OK)
        status = check_overlaps(layout, error);
    if (status != KVF_OK)
        return status;

    kvf_pool built = {
        .engine_rank = layout->engine_rank,
        .tp_size = layout->tp_size == 0 ? 1 : layout->tp_size,
        .dp_size = layout->dp_size == 0 ? 1 : layout->dp_size,
        .mla = layout->mla != 0,
        .device = layout->device,
    };
    status = check_ranks(&built, error);
    if (status == KVF_OK)
        status = copy_buffers(layout, &built, error);
    if (status != KVF_OK)
        return status;
    sum_items(built.buffers, built.buffer_count, &built.page_limit, &built.bytes_per_page);
    sum_items(built.aux, built.aux_count, &built.aux_slot_limit, &built.bytes_per_slot);
    *pool = built;
    return KVF_OK;
}

void kvf_pool_free(kvf_pool *pool)
{
    free(pool->buffers);
    free(pool->aux);
    memset(pool, 0, sizeof *pool);
}

kvf_status kvf_pages_check(const uint32_t *pages, size_t count, uint32_t limit, const char *what,
                           kvf_error *error)
{
    for (size_t i = 0; i < count; i++)
        if (pages[i] >= limit)
            return kvf_error_set(error, KVF_OUT_OF_RANGE,
                                 "%s %" PRIu32 " (index %zu) is outside the pool of %" PRIu32, what,
                                 pages[i], i, limit);
    return KVF_OK;
}

/* One bit for each page up to the highest: pools have at most some million pages. */
kvf_status kvf_pages_check_unique(const uint32_t *pages, size_t count, kvf_error *error)
{
    uint32_t highest = 0;
    for (size_t i = 0; i < count; i++)
        highest = pages[i] > highest ? pages[i] : highest;
    uint64_t *seen = calloc((size_t)highest / 64 + 1, sizeof *seen);
    if (seen == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory to check %zu pages", count);
    kvf_status status = KVF_OK;
    for (size_t i = 0; i < count && status == KVF_OK; i++) {
        uint64_t bit = UINT64_C(1) << (pages[i] % 64);
        if ((seen[pages[i] / 64] & bit) != 0)
            status =
                kvf_error_set(error, KVF_INVALID_ARGUMENT,
                              "page %" PRIu32 " is named twice (again at index %zu)", pages[i], i);
        seen[pages[i] / 64] |= bit;
    }
    free(seen);
    return status;
}
