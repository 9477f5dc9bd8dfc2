/* The prefill side of a room.
 *
 *   BOOTSTRAPPING ──all destinations reported──▶ WAITING_FOR_INPUT ──first chunk posted──▶ TRANSFERRING
 *         └──────────────── any failure, abort, deadline ────────────▶ FAILED                   │
 *                                            SUCCESS ◀──last chunk given and all writes ended───┘
 *
 * Final states stay final. A room whose destinations are all dummies succeeds after its last chunk.
 * A failed room's pages stay in use until the transport has finished with them (DRAINED), or until the
 * fence deadline: then they are released without a proof. */
#ifndef KVF_ROOM_SENDER_H
#define KVF_ROOM_SENDER_H

#include "room/action.h"
#include "wire/request.h"

typedef enum kvf_sender_event_kind {
    KVF_SENDER_OPENED,
    KVF_SENDER_REQUESTED, /* request */
    KVF_SENDER_REFUSED,   /* error: a message meant for this room was refused */
    KVF_SENDER_EXPECTED,  /* page_count: the total */
    KVF_SENDER_SENT,      /* page_count: of one chunk */
    KVF_SENDER_WRITTEN,   /* agent_name: one chunk has been written to it */
    KVF_SENDER_FAILED,    /* error: one could not be written */
    KVF_SENDER_PEER_GONE, /* agent_name, error: it died, or gave the room up; nothing to a room that has no more
                           * for it */
    KVF_SENDER_DRAINED, /* nothing of a failed room is under way any more */
    KVF_SENDER_ABORTED,
    KVF_SENDER_SHUTDOWN,
    KVF_SENDER_TIMER
} kvf_sender_event_kind;

typedef struct kvf_sender_event {
    kvf_sender_event_kind kind;
    const kvf_request
        *request; /* stays valid while the machine refers to it: until replaced or freed */
    kvf_slice agent_name;
    uint32_t page_count;
    const kvf_error *error;
} kvf_sender_event;

typedef struct kvf_sender_destination {
    const kvf_request *request;
    uint32_t chunks_written;
} kvf_sender_destination;

typedef struct kvf_sender_machine {
    kvf_outcome outcome;
    const kvf_profile *profile;
    const kvf_room_timeouts *timeouts;
    uint64_t deadline;
    kvf_sender_destination *destinations;
    uint32_t destination_count;
    uint32_t destination_limit;
    uint32_t real_count; /* destinations that aren't dummies */
    uint32_t required;   /* 0: no request yet */
    uint32_t pages_total;
    uint32_t pages_sent;
    uint32_t chunk_count;
    uint32_t chunks_posted;
    uint64_t writes_left; /* chunks × destinations posted and not ended */
    bool expected;
    bool last_sent;
} kvf_sender_machine;

void kvf_sender_machine_init(kvf_sender_machine *machine, const kvf_profile *profile,
                             const kvf_room_timeouts *timeouts, uint32_t destination_limit);
void kvf_sender_machine_free(kvf_sender_machine *machine);

/* One step. For KVF_SENDER_REQUESTED: true when the request was taken (the machine now refers to it and to
 * none of an earlier one of the same agent), false when it was repeated, late or refused. For other
 * events: true when they meant something to the room. */
bool kvf_sender_machine_step(kvf_sender_machine *machine, const kvf_sender_event *event,
                             uint64_t now, kvf_actions *actions);

#endif
