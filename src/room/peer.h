/* What a prefill remembers of a decode agent, to tell news from what is late: its requests' epochs where it is
 * kvferry, the ids of its rooms where it has none. Kept as long as its control connection lives. */
#ifndef KVF_ROOM_PEER_H
#define KVF_ROOM_PEER_H

#include "room/memory.h"

typedef struct kvf_peer_past {
    uint64_t highest_epoch;   /* of its requests: none at or below it is news */
    uint64_t unflushed_epoch; /* highest with a write that was never flushed */
    kvf_room_memory ended;    /* ids of its rooms that have ended here */
    uint64_t lease; /* silence after which it gives us up, in nanoseconds; 0: it didn't say */
} kvf_peer_past;

typedef enum kvf_news {
    KVF_NEWS,
    KVF_NEWS_REPEATED, /* an epoch that was reached before: perhaps of a request that has been given up since */
    KVF_NEWS_USED_ID /* without epochs: an id whose room has ended, which this can't be told from */
} kvf_news;

void kvf_peer_past_init(kvf_peer_past *past, uint32_t remembered_rooms);
void kvf_peer_past_free(kvf_peer_past *past);

/* Judges a request (epoch 0: it has none), and remembers its epoch. */
kvf_news kvf_peer_asks(kvf_peer_past *past, uint64_t room, uint64_t epoch);
/* The peer gave a request up: should it come still, it is no news. */
void kvf_peer_gives_up(kvf_peer_past *past, uint64_t epoch);
/* A request of the peer has ended, after it had been given to its room. */
void kvf_peer_ended(kvf_peer_past *past, uint64_t room);
bool kvf_peer_has_had(const kvf_peer_past *past, uint64_t room);
/* A write for a request ended without a flush: it may land at any time. */
void kvf_peer_unflushed(kvf_peer_past *past, uint64_t epoch);
/* May it be said that nothing of the request can land any more, now that nothing is under way? */
bool kvf_peer_may_acknowledge(const kvf_peer_past *past, uint64_t epoch);
/* How long this side may be silent and still be sure that the peer has not given it up. `timeout` is this side's own
 * for its peers, and twice that what it takes a peer to bear that says nothing of it. */
uint64_t kvf_peer_patience(const kvf_peer_past *past, uint64_t timeout);

#endif
