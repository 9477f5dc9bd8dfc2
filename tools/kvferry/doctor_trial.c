#include "doctor_trial.h"

const pool_shape trial_shape = {.buffer_count = 8,
                                .page_count = (uint64_t)2 * TRIAL_PAGES,
                                .item_length = 2048,
                                .aux_count = 1,
                                .aux_slots = 1,
                                .aux_item_length = 64};

void trial_pages(kvf_role role, uint32_t pages[TRIAL_PAGES])
{
    for (uint32_t i = 0; i < TRIAL_PAGES; i++)
        pages[i] = role == KVF_PREFILL ? 2 * i : 2 * (TRIAL_PAGES - 1 - i) + 1;
}

kvf_layout trial_layout(const tool_pool *pool)
{
    return (kvf_layout){.size = sizeof(kvf_layout),
                        .buffers = pool->buffers,
                        .buffer_count = (size_t)pool->shape.buffer_count,
                        .aux = pool_aux(pool),
                        .aux_count = (size_t)pool->shape.aux_count};
}
