#include "doctor_trial.h"

const pool_shape trial_shape = {.buffer_count = 8,
                                .page_count = (uint64_t)2 * TRIAL_PAGES,
                                .item_length = 4096,
                                .aux_count = 1,
                                .aux_slots = 1,
                                .aux_item_length = 64};

void trial_pages(kvf_role role, uint32_t pages[TRIAL_PAGES])
{
    const uint32_t half = TRIAL_PAGES / 2;
    for (uint32_t i = 0; i < half; i++) {
        pages[i] = role == KVF_PREFILL ? i : 3 * half + i;
        pages[half + i] = role == KVF_PREFILL ? half + 2 * i : 2 * (half - 1 - i) + 1;
    }
}

kvf_layout trial_layout(const tool_pool *pool)
{
    return (kvf_layout){.size = sizeof(kvf_layout),
                        .buffers = pool->buffers,
                        .buffer_count = (size_t)pool->shape.buffer_count,
                        .aux = pool_aux(pool),
                        .aux_count = (size_t)pool->shape.aux_count};
}
