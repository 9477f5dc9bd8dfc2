/* What a machine wants done. The manager carries it out for real, the simulator against a pretend
 * network. */
#ifndef KVF_ROOM_ACTION_H
#define KVF_ROOM_ACTION_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* "No deadline", as base/clock.h has it; the pure parts don't include the clock. */
#define KVF_NO_DEADLINE UINT64_MAX

typedef enum kvf_action_kind {
    KVF_ACTION_PUBLISH, /* the room's state changed: tell the user */
    KVF_ACTION_TIMER,   /* wake the machine at `deadline`; replaces the earlier timer */
    KVF_ACTION_POST, /* sender: post chunk_count chunks to every destination that isn't a dummy */
    KVF_ACTION_STOP, /* the room has failed: cancel its transfers, leave its lookups */
    KVF_ACTION_REQUEST, /* receiver: send the request to every target */
    KVF_ACTION_FENCE,   /* receiver: tell the writer to stop, and look for a proof that it has */
    KVF_ACTION_LEAVE, /* receiver: nothing of the room is awaited any more: leave its writer too */
    KVF_ACTION_ASK,   /* lookup: send the HTTP request */
    KVF_ACTION_CONNECT, /* lookup: connect to what the answer named */
    KVF_ACTION_READY,   /* lookup: found; tell those who wait */
    KVF_ACTION_LOST,    /* lookup: was ready and is no more; tell those who rely on it */
    KVF_ACTION_GIVE_UP  /* lookup: can't be found; those who wait have failed */
} kvf_action_kind;

typedef struct kvf_action {
    kvf_action_kind kind;
    uint64_t deadline;    /* TIMER: nanoseconds, KVF_NO_DEADLINE: none */
    uint32_t first_chunk; /* POST */
    uint32_t chunk_count; /* POST */
} kvf_action;

/* More than any one event can cause. */
#define KVF_ACTIONS_MAX 8

typedef struct kvf_actions {
    kvf_action items[KVF_ACTIONS_MAX];
    size_t count;
} kvf_actions;

void kvf_actions_add(kvf_actions *actions, kvf_action_kind kind);
/* One publication says it all, however many states an event led through: once, after what came before. */
void kvf_actions_publish(kvf_actions *actions);
void kvf_actions_add_timer(kvf_actions *actions, uint64_t deadline);

/* How a room stands, in what the user is told. The text is written once, before the state. */
typedef struct kvf_outcome {
    kvf_poll state;
    kvf_safety safety;
    kvf_proof proof; /* KVF_PROOF_NONE unless the pages are safe */
    kvf_error error; /* of a failed room; status KVF_OK otherwise */
} kvf_outcome;

static inline bool kvf_outcome_is_final(const kvf_outcome *outcome)
{
    return outcome->state == KVF_FAILED || outcome->state == KVF_SUCCESS;
}

/* Over with nothing left to learn: final, and the pages aren't in use any more. */
static inline bool kvf_outcome_is_settled(const kvf_outcome *outcome)
{
    return kvf_outcome_is_final(outcome) && outcome->safety != KVF_PAGES_IN_USE;
}

/* Deadlines of both machines, in nanoseconds from the event that starts each. */
typedef struct kvf_room_timeouts {
    uint64_t bootstrap;
    uint64_t waiting;
    uint64_t fence; /* from the failure until the pages are given back unproven */
} kvf_room_timeouts;

/* The pause before what has been put off `pauses` times in a row is tried again: doubles up to 16 times. */
static inline uint64_t kvf_backoff(uint64_t first, uint32_t pauses)
{
    return first * (UINT64_C(1) << (pauses < 4 ? pauses : 4));
}

static inline uint64_t kvf_deadline_after(uint64_t now, uint64_t duration)
{
    return duration >= KVF_NO_DEADLINE - now ? KVF_NO_DEADLINE : now + duration;
}

#endif
