/* What notifications have said of a room: from whom, which chunks, which of them is the last, and the aux record.
 * Counts what is new, and knows what can't be. */
#ifndef KVF_ROOM_ARRIVALS_H
#define KVF_ROOM_ARRIVALS_H

#include "base/error.h"
#include "wire/event.h"

typedef struct kvf_arrivals {
    uint32_t page_count;
    uint32_t chunk_count; /* that have arrived */
    uint32_t last_chunk;  /* if last_known */
    uint32_t highest_chunk;
    uint64_t first_chunks; /* bit i: chunk i arrived, i < 64 */
    uint8_t *more_chunks;  /* bits of chunks from 64 on; NULL until one of them arrives */
    uint32_t more_bytes;
    bool last_known;
    bool aux_arrived;
    bool contradicted;                       /* by the writer, whose word proves nothing any more */
    char agent_name[KVF_AGENT_NAME_MAX + 1]; /* of the first notification's agent; "" before it */
} kvf_arrivals;                              /* zero: nothing yet, of a room of page_count pages */

void kvf_arrivals_free(kvf_arrivals *arrivals);

/* False when it says nothing new: repeated, of an unknown kind, or from another agent than the first one. Otherwise
 * `error` says whether it can be: KVF_OK, KVF_PROTOCOL where it contradicts the page count or an earlier one,
 * KVF_NO_MEMORY. */
bool kvf_arrivals_take(kvf_arrivals *arrivals, kvf_slice agent_name, const kvf_notice *notice,
                       kvf_error *error);

bool kvf_arrivals_has(const kvf_arrivals *arrivals, uint32_t chunk);
/* Everything has, and nothing spoke against it. */
bool kvf_arrivals_are_complete(const kvf_arrivals *arrivals);

#endif
