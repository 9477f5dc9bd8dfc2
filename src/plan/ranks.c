#include "plan/ranks.h"

#include <inttypes.h>

/* Ranks of one dp group, or KVF_MISMATCH. */
static kvf_status group_size(const kvf_rank_sizes *sizes, const char *side, uint32_t *size,
                             kvf_error *error)
{
    if (sizes->tp_size == 0 || sizes->dp_size == 0 || sizes->tp_size % sizes->dp_size != 0)
        return kvf_error_set(error, KVF_MISMATCH,
                             "%s has tp size %" PRIu32 " and dp size %" PRIu32
                             ": dp size must divide tp size",
                             side, sizes->tp_size, sizes->dp_size);
    *size = sizes->tp_size / sizes->dp_size;
    return KVF_OK;
}

/* Ranks that differ in number share the work only where each holds all of the KV and one divides the
 * other; otherwise SGLang's floor divisions point at ranks that don't exist. */
static kvf_status check_unequal(uint32_t prefill, uint32_t decode, bool mla, kvf_error *error)
{
    if (prefill == decode)
        return KVF_OK;
    if (!mla)
        return kvf_error_set(
            error, KVF_UNSUPPORTED,
            "%" PRIu32 " prefill ranks and %" PRIu32
            " decode ranks a dp group: without MLA both sides need the same number",
            prefill, decode);
    if (prefill % decode != 0 && decode % prefill != 0)
        return kvf_error_set(error, KVF_MISMATCH,
                             "%" PRIu32 " prefill ranks and %" PRIu32
                             " decode ranks a dp group: one number must divide the other",
                             prefill, decode);
    return KVF_OK;
}

kvf_status kvf_ranks_map(const kvf_rank_sizes *prefill, const kvf_rank_sizes *decode,
                         uint32_t decode_rank, bool mla, uint64_t room, int64_t dp_rank,
                         kvf_rank_targets *targets, kvf_error *error)
{
    uint32_t prefill_size = 0;
    uint32_t decode_size = 0;
    kvf_status status = group_size(prefill, "prefill", &prefill_size, error);
    if (status == KVF_OK)
        status = group_size(decode, "decode", &decode_size, error);
    if (status == KVF_OK)
        status = check_unequal(prefill_size, decode_size, mla, error);
    if (status != KVF_OK)
        return status;
    if (decode_rank >= decode->tp_size)
        return kvf_error_set(error, KVF_OUT_OF_RANGE,
                             "decode rank %" PRIu32 " doesn't exist at tp size %" PRIu32,
                             decode_rank, decode->tp_size);
    if (dp_rank >= (int64_t)prefill->dp_size)
        return kvf_error_set(error, KVF_OUT_OF_RANGE,
                             "dp rank %" PRId64 " doesn't exist: prefill has %" PRIu32 " dp groups",
                             dp_rank, prefill->dp_size);

    uint32_t rank = decode_rank % decode_size;
    targets->dp_group = (uint32_t)(dp_rank >= 0 ? (uint64_t)dp_rank : room % prefill->dp_size);
    if (decode_size > prefill_size) {
        targets->required = decode_size / prefill_size;
        targets->first = rank / targets->required;
        targets->count = 1;
    } else {
        targets->required = 1;
        targets->count = prefill_size / decode_size;
        targets->first = rank * targets->count;
    }
    return KVF_OK;
}
