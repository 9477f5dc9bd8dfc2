/* Inside of the UCX engine: what ucx.c, ucx_memory.c, ucx_peer.c and ucx_transfer.c share. */
#ifndef KVF_DATA_UCX_H
#define KVF_DATA_UCX_H

#include "data/transfers.h"

#include <ucp/api/ucp.h>

typedef struct kvf_ucx_region {
    ucp_mem_h memory;
    void *key;
    size_t key_length;
    uint8_t *portable_key;
    size_t portable_key_length;
} kvf_ucx_region;

typedef struct kvf_ucx kvf_ucx;

/* Which kinds of transports the context has, as to who puts the bytes where they belong. */
typedef struct kvf_ucx_offer {
    bool tcp;    /* we do, in progress */
    bool nic;    /* our NIC does */
    bool fifo;   /* we do: shared memory, without mapping the pool */
    bool direct; /* the writer does, past us */
} kvf_ucx_offer;

/* A worker with its address: the engine's own, which its endpoints belong to, or one more. */
struct kvf_engine_inbox {
    kvf_ucx *engine;
    ucp_worker_h worker;
    ucp_address_t *address; /* of UCX, or packed for network devices only: see `packed` */
    size_t address_length;
    bool packed;
    bool direct;
    bool parked; /* closed, and left alone: its worker can't be destroyed */
    int descriptor;
    void *user;
    void (*notified)(void *user, kvf_slice payload);
    kvf_engine_inbox *next;
};

struct kvf_ucx {
    kvf_engine base;
    kvf_engine_callbacks callbacks;
    kvf_transfers transfers;
    ucp_context_h context;
    kvf_ucx_offer offer;
    kvf_engine_inbox own;
    kvf_engine_inbox *inboxes; /* all others */
    int descriptor;            /* epoll over all workers' */
    unsigned notification_id;
    kvf_ucx_region *regions;
    size_t region_count;
    kvf_engine_peer *peers;
    kvf_engine_peer *failed; /* to be reported */
    uint32_t leaving;        /* peers disconnected and not freed */
    bool greeted;            /* some peers' held puts may go */
    bool closing;            /* nothing is told any more */
};

struct kvf_engine_peer {
    kvf_transfers_peer base;
    kvf_ucx *engine;
    ucp_ep_h endpoint;
    void *user;
    ucp_rkey_h *keys;
    size_t key_count;
    int ucx_minor; /* of the peer, modulo 16; -1: unknown */
    bool leaving;  /* disconnected: freed when `closing` has ended */
    bool greeted;  /* the peer's worker knows our endpoint: puts may go */
    kvf_put *held; /* puts that wait for it, oldest first */
    kvf_put *held_last;
    ucs_status_ptr_t closing;
    kvf_engine_peer *next;
    kvf_engine_peer *next_failed;
};

static inline kvf_ucx *kvf_ucx_of(kvf_engine *engine)
{
    return (kvf_ucx *)(void *)engine;
}

/* Inboxes. */
kvf_status kvf_ucx_open_worker(kvf_ucx *engine, kvf_engine_inbox *inbox, kvf_error *error);
void kvf_ucx_close_worker(kvf_engine_inbox *inbox);
/* Moves all workers on; how much happened. */
unsigned kvf_ucx_progress_workers(kvf_ucx *engine);
/* Asks all descriptors to tell; false when something has happened already. */
bool kvf_ucx_arm_workers(kvf_ucx *engine);
void kvf_ucx_close_inboxes(kvf_ucx *engine); /* parked ones stay in the list */
/* What the context's transports are. */
kvf_ucx_offer kvf_ucx_read_offer(ucp_context_h context);

/* The engine operations of the same names. */
kvf_status kvf_ucx_open_inbox(kvf_engine *base, const kvf_inbox_options *options,
                              kvf_engine_inbox **inbox, kvf_error *error);
void kvf_ucx_close_inbox(kvf_engine *base, kvf_engine_inbox *inbox);
kvf_slice kvf_ucx_inbox_address(const kvf_engine_inbox *inbox);
bool kvf_ucx_inbox_is_direct(const kvf_engine_inbox *inbox);
kvf_status kvf_ucx_add_region(kvf_engine *base, const kvf_buffer *buffer, uint32_t *region,
                              kvf_error *error);
kvf_slice kvf_ucx_region_key(const kvf_engine *base, uint32_t region);
kvf_slice kvf_ucx_portable_region_key(const kvf_engine *base, uint32_t region);
kvf_status kvf_ucx_connect(kvf_engine *base, kvf_slice address, void *user, kvf_engine_peer **peer,
                           kvf_error *error);
kvf_status kvf_ucx_add_remote_region(kvf_engine_peer *peer, kvf_slice key, uint32_t *region,
                                     kvf_error *error);
void *kvf_ucx_peer_user(const kvf_engine_peer *peer);
void kvf_ucx_disconnect(kvf_engine *base, kvf_engine_peer *peer);

/* "ours is UCX 1.22.0, the peer's 1.19", as far as it is known. */
void kvf_ucx_name_versions(const kvf_engine_peer *peer, char *text, size_t capacity);

/* Greets a new peer; until it has answered its puts are held. */
void kvf_ucx_greet(kvf_engine_peer *peer);
/* Posts what is held for peers that have answered, as long as it may be posted. */
void kvf_ucx_release_greeted(kvf_ucx *engine);
/* Ends what is held for a peer that has failed. */
void kvf_ucx_end_held(kvf_engine_peer *peer);
/* Ends the held puts of a canceled transfer. */
void kvf_ucx_drop_held(kvf_transfer *transfer);

/* After the worker is gone. */
void kvf_ucx_free_regions(kvf_ucx *engine);

/* Disconnects all and gives the closing a moment; true when every endpoint has closed. */
bool kvf_ucx_close_endpoints(kvf_ucx *engine);
/* Before the worker goes with those that haven't, and after. */
void kvf_ucx_forget_closing(kvf_ucx *engine);
void kvf_ucx_free_peers(kvf_ucx *engine);

/* Frees disconnected peers whose endpoints have closed. */
void kvf_ucx_reap_peers(kvf_ucx *engine);

extern const kvf_transport kvf_ucx_transport;

/* KVF_PEER_GONE for what means that the peer is unreachable, KVF_TRANSPORT otherwise. */
kvf_status kvf_ucx_status(ucs_status_t status);

#endif
