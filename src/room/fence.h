/* Which fence a decode has against the writer of a failed room, and what it proves: DESIGN's table as code. Facts
 * in, decision out; carried out by the manager and by the simulator. */
#ifndef KVF_ROOM_FENCE_H
#define KVF_ROOM_FENCE_H

#include "kvferry/kvferry.h"

#include <stdbool.h>

/* Of the inbox that a failed room's writer was given. */
typedef struct kvf_fence_facts {
    bool open; /* it can still be written to */
    bool
        shown; /* the writer has said that it is kvferry: it can be asked, and bears a closed inbox */
    bool strict; /* the setting fence: rather end a stock writer than let a byte be late */
    bool direct; /* the writer has a way past it */
    bool
        serves_open_rooms; /* which would lose their bytes with it; looked at when it may be closed */
} kvf_fence_facts;

typedef enum kvf_fence_step {
    KVF_FENCE_WAIT,  /* for the writer's own notifications */
    KVF_FENCE_ASK,   /* the writer to stop, and to say so */
    KVF_FENCE_RETIRE /* the inbox: later rooms get another one, so that this one can be closed */
} kvf_fence_step;

/* When a room fails whose request was sent. */
kvf_fence_step kvf_fence_begin_with(const kvf_fence_facts *facts);

/* When its fence deadline is about to pass without a proof: is the inbox to be closed? */
bool kvf_fence_may_close(const kvf_fence_facts *facts);

/* What it proves that the inbox was closed, and that the writing process is known to be gone. */
kvf_proof kvf_fence_proof(bool direct, bool writer_gone);

#endif
