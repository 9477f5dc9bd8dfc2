/* The decode side of a room.
 *
 *   BOOTSTRAPPING ──all targets found and connected──▶ WAITING_FOR_INPUT ──first chunk arrived──▶ TRANSFERRING
 *         └──────────────── any failure, abort, deadline ────────────▶ FAILED                        │
 *                                        SUCCESS ◀──chunks 0 to last and the aux record arrived──────┘
 *
 * A room is pinned to the agent of its first notification: what another agent says doesn't count.
 *
 * A failed room goes on until its pages are given back: at once when nobody was told of them; when a proof is
 * found that nothing can land there any more; or, without one, when the fence deadline passes. */
#ifndef KVF_ROOM_RECEIVER_H
#define KVF_ROOM_RECEIVER_H

#include "room/action.h"
#include "room/arrivals.h"
#include "wire/event.h"

typedef enum kvf_receiver_event_kind {
    KVF_RECEIVER_OPENED,
    KVF_RECEIVER_FOUND,     /* every target is connected */
    KVF_RECEIVER_EXPECTED,  /* page_count */
    KVF_RECEIVER_DISCLOSED, /* the request is on its way to the rank that will write */
    KVF_RECEIVER_NOTICE,    /* agent_name, notice */
    KVF_RECEIVER_FAILED, /* error: lookup given up, a target lost or failed, the request can't be sent */
    KVF_RECEIVER_PROVEN, /* proof: that nobody writes to a failed room's pages any more */
    KVF_RECEIVER_ABORTED,
    KVF_RECEIVER_SHUTDOWN,
    KVF_RECEIVER_TIMER /* error: what is missing, if anything is known; may be NULL */
} kvf_receiver_event_kind;

typedef struct kvf_receiver_event {
    kvf_receiver_event_kind kind;
    uint32_t page_count;
    kvf_slice agent_name;
    const kvf_notice *notice;
    const kvf_error *error;
    kvf_proof proof;
} kvf_receiver_event;

typedef struct kvf_receiver_machine {
    kvf_outcome outcome;
    const kvf_room_timeouts *timeouts;
    uint64_t deadline; /* armed */
    uint64_t bootstrap_deadline;
    uint64_t waiting_deadline;
    uint64_t fence_deadline;
    kvf_arrivals arrivals;
    bool found;
    bool expected;
    bool requested;
    bool disclosed;
} kvf_receiver_machine;

void kvf_receiver_machine_init(kvf_receiver_machine *machine, const kvf_room_timeouts *timeouts);
void kvf_receiver_machine_free(kvf_receiver_machine *machine);

/* One step. False when the event meant nothing to the room (a notification from another agent, before the
 * request, or of an unknown kind; anything once the pages are given back): count and forget it. */
bool kvf_receiver_machine_step(kvf_receiver_machine *machine, const kvf_receiver_event *event,
                               uint64_t now, kvf_actions *actions);

#endif
