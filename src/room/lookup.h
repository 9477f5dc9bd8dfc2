/* Something the decode side has to find out, with patience: a prefill server's sizes (an answer is
 * enough), or one of its ranks (an answer, then a connection).
 *
 *   IDLE ──wanted──▶ ASKING ──answer──▶ CONNECTING ──connected──▶ READY ──gone──▶ IDLE, or ASKING if wanted
 *                      ▲ └─not yet, failed─▶ PAUSING │refused
 *                      └───────timer──────────┴◀─────┘
 *
 * "Not registered yet" and "connection refused" are asked again as long as somebody waits, who has a
 * deadline of its own; failing HTTP is given up after a number of attempts in a row. */
#ifndef KVF_ROOM_LOOKUP_H
#define KVF_ROOM_LOOKUP_H

#include "room/action.h"

typedef enum kvf_lookup_state {
    KVF_LOOKUP_IDLE,
    KVF_LOOKUP_ASKING,
    KVF_LOOKUP_PAUSING,
    KVF_LOOKUP_CONNECTING,
    KVF_LOOKUP_READY
} kvf_lookup_state;

typedef enum kvf_lookup_event_kind {
    KVF_LOOKUP_WANTED,   /* somebody waits for it */
    KVF_LOOKUP_ANSWERED, /* the answer is good */
    KVF_LOOKUP_NOT_YET,  /* error */
    KVF_LOOKUP_FAILED,   /* error */
    KVF_LOOKUP_CONNECTED,
    KVF_LOOKUP_GONE, /* error: refused, or lost */
    KVF_LOOKUP_TIMER
} kvf_lookup_event_kind;

typedef struct kvf_lookup_event {
    kvf_lookup_event_kind kind;
    bool wanted; /* whether anybody waits for it now */
    const kvf_error *error;
} kvf_lookup_event;

typedef struct kvf_lookup_policy {
    uint64_t retry_interval; /* first pause; doubles up to 16 times that */
    uint32_t attempts;       /* failures in a row before giving up */
    bool connects;
} kvf_lookup_policy;

typedef struct kvf_lookup_machine {
    kvf_lookup_state state;
    const kvf_lookup_policy *policy;
    uint64_t deadline; /* end of the pause */
    uint32_t failures; /* in a row */
    uint32_t pauses;   /* in a row, for the doubling */
    kvf_error problem; /* the latest; status KVF_OK: none. For those who give up waiting */
} kvf_lookup_machine;

void kvf_lookup_machine_init(kvf_lookup_machine *machine, const kvf_lookup_policy *policy);
void kvf_lookup_machine_step(kvf_lookup_machine *machine, const kvf_lookup_event *event,
                             uint64_t now, kvf_actions *actions);

#endif
