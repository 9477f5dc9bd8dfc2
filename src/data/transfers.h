/* What all engines share: transfers take turns within the bounds, go through their stages, and end. The
 * engine underneath only puts, flushes and notifies.
 *
 * Peers take turns, one write each, and so do the transfers of a peer. The bounds are a pool: a peer
 * may take no more of it than it leaves free, so that a peer whose writes never complete can't stop
 * the others. Beside the pool each peer may have one write outstanding without asking anybody. */
#ifndef KVF_DATA_TRANSFERS_H
#define KVF_DATA_TRANSFERS_H

#include "data/engine.h"

typedef struct kvf_transfers kvf_transfers;
typedef struct kvf_transfers_peer kvf_transfers_peer;

/* One write that is outstanding. */
typedef struct kvf_put {
    kvf_transfer *transfer;
    kvf_write write;
    bool pooled;
    struct kvf_put *next; /* free list; the engine's own while the put is outstanding */
} kvf_put;

/* Every engine's peer begins with this. */
struct kvf_transfers_peer {
    kvf_transfers_peer *next; /* ring of the peers that have something to post */
    kvf_transfers_peer *previous;
    kvf_transfer *transfers; /* ring of what it has to post; NULL: not in the ring of peers */
    kvf_put own;             /* the write that needs no room in the pool */
    uint64_t bytes;          /* outstanding, of the pool */
    uint32_t writes;
    uint32_t active; /* transfers posted and not done */
    bool failed;     /* nothing more is posted to it */
    char failure[KVF_ERROR_TEXT_MAX];
};

typedef enum kvf_outcome {
    KVF_OUTCOME_DONE,    /* completed at once; nothing else follows */
    KVF_OUTCOME_PENDING, /* kvf_transfers_put_ended() or kvf_transfers_step_ended() follows */
    KVF_OUTCOME_FAILED   /* kvf_transfers_fail() was called; nothing else follows */
} kvf_outcome;

/* What the engine underneath does. `peer` is transfer->peer. */
typedef struct kvf_transport {
    kvf_outcome (*put)(void *engine, kvf_put *put);
    kvf_outcome (*flush)(void *engine, kvf_transfer *transfer);
    kvf_outcome (*notify)(void *engine, kvf_transfer *transfer, const kvf_transfer_part *part);
} kvf_transport;

struct kvf_transfers {
    const kvf_transport *transport;
    kvf_engine *engine;
    kvf_transfers_peer *peers; /* ring; its head is whose turn it is */
    kvf_transfer *ready;       /* a stage has ended; oldest first */
    kvf_transfer *ready_last;
    kvf_put *puts; /* outstanding_writes of them */
    kvf_put *free_puts;
    uint64_t byte_limit;
    uint64_t write_size;
    uint64_t bytes; /* outstanding, of the pool */
    uint32_t write_limit;
    uint32_t writes;
    bool stirred; /* something may be posted that couldn't be before */
};

kvf_status kvf_transfers_open(kvf_transfers *transfers, const kvf_settings *settings,
                              const kvf_transport *transport, kvf_engine *engine, kvf_error *error);
/* Forgets what is active. */
void kvf_transfers_close(kvf_transfers *transfers);

/* The engine operations of the same names. post() refuses a failed peer. */
kvf_status kvf_transfers_post(kvf_transfers *transfers, kvf_transfer *transfer, kvf_error *error);
void kvf_transfers_cancel(kvf_transfers *transfers, kvf_transfer *transfer);

/* Posts and moves on a bounded number of transfers, none of them past the engine's post_until; calls done(). True
 * when something moved. */
bool kvf_transfers_advance(kvf_transfers *transfers);

/* True when advance() may have something to do although nothing has completed since. */
bool kvf_transfers_have_work(const kvf_transfers *transfers);

/* A pending put has ended. On failure call kvf_transfers_fail() first. */
void kvf_transfers_put_ended(kvf_transfers *transfers, kvf_put *put);
/* A pending flush or notification has ended. */
void kvf_transfers_step_ended(kvf_transfers *transfers, kvf_transfer *transfer);

/* Keeps the first failure of a transfer; it ends when everything outstanding has. */
__attribute__((format(printf, 3, 4))) void
kvf_transfers_fail(kvf_transfer *transfer, kvf_status status, const char *format, ...);

/* Nothing more is posted to the peer: its transfers end with KVF_PEER_GONE. */
void kvf_transfers_peer_failed(kvf_transfers *transfers, kvf_transfers_peer *peer,
                               const char *text);

#endif
