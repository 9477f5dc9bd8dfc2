#include "manager/work.h"

#include <xxhash.h>

/* Bytes; summing takes about as long as moving them. */
#define TURN (UINT64_C(1) << 20)
#define SLICE (TURN / 4)
#define SLICES 64 /* of small works, in one turn */

void kvf_work_add(kvf_manager *manager, kvf_work *work)
{
    if (work->listed)
        return;
    work->listed = true;
    DL_APPEND(manager->work, work);
}

void kvf_work_remove(kvf_manager *manager, kvf_work *work)
{
    if (!work->listed)
        return;
    work->listed = false;
    DL_DELETE(manager->work, work);
}

bool kvf_work_run(kvf_manager *manager)
{
    uint64_t left = TURN;
    for (int i = 0; i < SLICES && manager->work != NULL && left > 0; i++) {
        kvf_work *work = manager->work;
        uint64_t slice = left < SLICE ? left : SLICE;
        uint64_t budget = slice;
        DL_DELETE(manager->work, work);
        DL_APPEND(manager->work, work);
        work->run(work, &budget);
        left -= slice - budget;
    }
    return manager->work != NULL;
}

/* ---- Sums ---------------------------------------------------------------------------------------- */

bool kvf_sum_begin(kvf_sum *sum)
{
    if (sum->state == NULL)
        sum->state = XXH3_createState();
    sum->page = 0;
    sum->offset = 0;
    return sum->state != NULL && XXH3_64bits_reset(sum->state) == XXH_OK;
}

void kvf_sum_free(kvf_sum *sum)
{
    if (sum->state != NULL)
        (void)XXH3_freeState(sum->state);
    sum->state = NULL;
}

/* Bytes that lie in one piece from where the sum is, at most `limit`. */
static uint64_t piece(const kvf_sum *sum, uint64_t item_length, const uint32_t *pages,
                      uint32_t page_count, uint64_t limit)
{
    uint64_t length = item_length - sum->offset;
    for (uint32_t i = sum->page + 1;
         i < page_count && length < limit && pages[i] == pages[i - 1] + 1; i++)
        length += item_length;
    return length < limit ? length : limit;
}

bool kvf_sum_run(kvf_sum *sum, const kvf_buffer *buffer, const uint32_t *pages, uint32_t page_count,
                 uint64_t *budget, uint64_t *result)
{
    uint64_t item_length = buffer->item_length;
    while (sum->page<page_count && * budget> 0) {
        uint64_t length = piece(sum, item_length, pages, page_count, *budget);
        uint64_t address = buffer->base + pages[sum->page] * item_length + sum->offset;
        (void)XXH3_64bits_update(sum->state, (const void *)(uintptr_t)address, (size_t)length);
        *budget -= length;
        sum->offset += length;
        sum->page += (uint32_t)(sum->offset / item_length);
        sum->offset %= item_length;
    }
    if (sum->page < page_count)
        return false;
    *result = XXH3_64bits_digest(sum->state);
    return kvf_sum_begin(sum);
}

bool kvf_pool_is_host(const kvf_pool *pool)
{
    for (size_t i = 0; i < pool->buffer_count; i++)
        if (pool->buffers[i].memory != KVF_MEMORY_HOST)
            return false;
    return true;
}
