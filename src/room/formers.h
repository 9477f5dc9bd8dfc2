/* What is remembered of peers that are gone, should they come back: the room ids that were used with them, or how far
 * their epochs had come. A stock peer has its old name over a new connection, and can tell its rooms apart no better than
 * before. */
#ifndef KVF_ROOM_FORMERS_H
#define KVF_ROOM_FORMERS_H

#include "room/memory.h"

/* Of so many that were lost last. */
#define KVF_FORMERS_MAX 256

typedef struct kvf_former kvf_former;

typedef struct kvf_formers {
    kvf_former *all; /* latest first */
    uint32_t count;
} kvf_formers; /* zero: nobody */

void kvf_formers_free(kvf_formers *formers);

/* Takes the ids, which leaves `memory` empty; those kept for the name before are forgotten. Without memory it keeps
 * nothing. */
void kvf_formers_keep(kvf_formers *formers, const char *name, kvf_room_memory *memory);

/* Gives back the ids of that name, if it is known, in place of those in `memory`. */
void kvf_formers_recall(kvf_formers *formers, const char *name, kvf_room_memory *memory);

/* The same with epochs, of a peer that has some; 0: none, which isn't kept. */
void kvf_formers_keep_epochs(kvf_formers *formers, const char *name, uint64_t highest,
                             uint64_t unflushed);
/* Leaves both as they are where nothing is known. */
void kvf_formers_recall_epochs(kvf_formers *formers, const char *name, uint64_t *highest,
                               uint64_t *unflushed);

#endif
