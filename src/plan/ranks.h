/* Which prefill ranks a decode rank talks to. The arithmetic of SGLang 0.4.7 (docs/wire.md, "Ranks"). */
#ifndef KVF_PLAN_RANKS_H
#define KVF_PLAN_RANKS_H

#include "base/error.h"

#include <stdbool.h>

typedef struct kvf_rank_sizes {
    uint32_t tp_size; /* all dp groups together */
    uint32_t dp_size;
} kvf_rank_sizes;

/* The targets are tp ranks first to first + count - 1 inside dp group `dp_group`; `first` is the real
 * one, the others get dummies. */
typedef struct kvf_rank_targets {
    uint32_t dp_group;
    uint32_t first;
    uint32_t count;
    uint32_t required; /* decode ranks that report to each target */
} kvf_rank_targets;

/* dp_rank negative: the group is room % prefill dp_size. KVF_MISMATCH where the sizes don't divide,
 * KVF_UNSUPPORTED for unequal TP without MLA, KVF_OUT_OF_RANGE for a dp_rank that doesn't exist. */
kvf_status kvf_ranks_map(const kvf_rank_sizes *prefill, const kvf_rank_sizes *decode,
                         uint32_t decode_rank, bool mla, uint64_t room, int64_t dp_rank,
                         kvf_rank_targets *targets, kvf_error *error);

#endif
