#include "room/fence.h"

kvf_fence_step kvf_fence_begin_with(const kvf_fence_facts *facts)
{
    if (!facts->open)
        return KVF_FENCE_WAIT;
    if (facts->shown)
        return KVF_FENCE_ASK;
    return facts->strict ? KVF_FENCE_RETIRE : KVF_FENCE_WAIT;
}

/* A stock writer that finds its inbox closed ends on the error, and closing proves nothing where it can be bypassed. */
bool kvf_fence_may_close(const kvf_fence_facts *facts)
{
    return facts->open && !facts->direct && (facts->shown || facts->strict) &&
           !facts->serves_open_rooms;
}

kvf_proof kvf_fence_proof(bool direct, bool writer_gone)
{
    if (!direct)
        return KVF_PROOF_RECEIVER_CLOSED;
    return writer_gone ? KVF_PROOF_WRITER_EXITED : KVF_PROOF_NONE;
}
