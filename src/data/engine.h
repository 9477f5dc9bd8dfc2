/* The data engine: registers memory, resolves a peer's memory, and carries out transfers. Implemented by
 * ucx.c (the real one), loop.c (inside one process, deterministic) and fault.c (wraps either).
 *
 * An engine belongs to one thread, the event loop; nothing here may be called from another. Callbacks
 * run inside progress() and post(), on that thread; they may call post() and cancel(), never progress(),
 * disconnect() or close(). */
#ifndef KVF_DATA_ENGINE_H
#define KVF_DATA_ENGINE_H

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/settings.h"
#include "plan/writes.h"
#include "wire/notice.h"
#include "wire/profile.h"

typedef struct kvf_engine kvf_engine;
typedef struct kvf_engine_peer kvf_engine_peer;
typedef struct kvf_engine_inbox kvf_engine_inbox;
typedef struct kvf_transfer kvf_transfer;

/* Writes, and the notification that follows when all of them have been flushed. */
typedef struct kvf_transfer_part {
    kvf_writes writes;
    uint32_t payload_length; /* 0: no notification */
    uint8_t payload[KVF_NOTICE_PAYLOAD_MAX];
} kvf_transfer_part;

#define KVF_TRANSFER_PARTS 2 /* a chunk, and the aux record with the last one */

/* One transfer to one peer. The caller owns it and everything it points to, and keeps both until done()
 * is called, which happens exactly once for each successful post(), never inside post(). */
struct kvf_transfer {
    kvf_engine_peer *peer;
    kvf_transfer_part parts[KVF_TRANSFER_PARTS];
    uint32_t part_count;
    /* KVF_OK: every write, the flush and every notification's send were completed. KVF_ABORTED: after
     * cancel(). KVF_TRANSPORT or KVF_PEER_GONE otherwise. In all cases the transport has finished with
     * the source pages. */
    void (*done)(kvf_transfer *transfer, kvf_status status, const char *text);
    void *user;
    /* Filled by the engine, readable by the caller at any time. */
    uint64_t bytes_posted;
    uint64_t writes_posted; /* merged writes */
    bool flushed;           /* at done(): nothing of it can land any more, however it ended */
    /* The engine's own. */
    struct {
        kvf_transfer *next;
        kvf_transfer *previous;
        uint32_t part;
        uint32_t outstanding;
        uint32_t stage;
        bool canceled;
        kvf_error error;
    } private;
};

typedef struct kvf_engine_callbacks {
    void *user;
    /* A notification's payload arrived in the engine's own inbox; valid during the call. */
    void (*notified)(void *user, kvf_slice payload);
    /* The transport says that this peer can't be reached any more. At most once a peer. */
    void (*peer_failed)(void *user, kvf_engine_peer *peer, const char *text);
} kvf_engine_callbacks;

/* An inbox is an address that peers write to, over the same regions as its engine's other ones. One given to
 * a single peer can be closed, and with it all ways in that don't bypass it. */
enum {
    KVF_REACH_NETWORK = 1,   /* nothing that only works on one host: no shared memory, no mapping */
    KVF_REACH_FENCEABLE = 2, /* nothing that bypasses the inbox */
    KVF_REACH_PORTABLE = 4   /* nothing that ends a peer of whose UCX nothing is known */
};

typedef struct kvf_inbox_options {
    unsigned reach; /* those restrictions; 0 for whatever the transports allow */
    void *user;
    /* A notification's payload arrived; valid during the call. */
    void (*notified)(void *user, kvf_slice payload);
} kvf_inbox_options;

/* Every engine begins with a pointer to its operations. */
typedef struct kvf_engine_operations {
    /* Frees everything; transfers still active are forgotten without done(), but must exist until it
     * returns. */
    void (*close)(kvf_engine *engine);

    /* Registers memory; *region is its index, counted from 0. KVF_REGISTRATION with the reason. */
    kvf_status (*add_region)(kvf_engine *engine, const kvf_buffer *buffer, uint32_t *region,
                             kvf_error *error);

    /* KVF_UNSUPPORTED when no transport is left. The address is valid until the inbox is closed. Close
     * not from inside a callback; all inboxes are closed with the engine. What was written to an inbox and
     * hasn't landed when it is closed never does, except by direct mapping. */
    kvf_status (*open_inbox)(kvf_engine *engine, const kvf_inbox_options *options,
                             kvf_engine_inbox **inbox, kvf_error *error);
    void (*close_inbox)(kvf_engine *engine, kvf_engine_inbox *inbox);
    kvf_slice (*inbox_address)(const kvf_engine_inbox *inbox);
    /* A writer on this host could map our memory and write past the inbox. */
    bool (*inbox_is_direct)(const kvf_engine_inbox *inbox);

    /* The engine's own inbox, of any reach, and the keys of its regions; valid until close. */
    kvf_slice (*address)(const kvf_engine *engine);
    kvf_slice (*region_key)(const kvf_engine *engine, uint32_t region);
    /* The same for peers of whose transport nothing is known: understood by more releases of UCX, but in
     * old ones without their fastest way. */
    kvf_slice (*portable_region_key)(const kvf_engine *engine, uint32_t region);

    /* Makes an endpoint to the worker at `address`, and later remote regions from its packed keys, counted
     * from 0 for each peer. KVF_TRANSPORT with both UCX versions where they are known not to meet. */
    kvf_status (*connect)(kvf_engine *engine, kvf_slice address, void *user, kvf_engine_peer **peer,
                          kvf_error *error);
    kvf_status (*add_remote_region)(kvf_engine_peer *peer, kvf_slice key, uint32_t *region,
                                    kvf_error *error);
    void *(*peer_user)(const kvf_engine_peer *peer);
    /* Ends a peer. Its transfers must be done; frees the endpoint without waiting for the network. */
    void (*disconnect)(kvf_engine *engine, kvf_engine_peer *peer);

    /* Queues a transfer. Writes of several transfers take turns, within the settings' bounds on
     * outstanding writes and bytes. */
    kvf_status (*post)(kvf_engine *engine, kvf_transfer *transfer, kvf_error *error);
    /* Posts nothing more of it; done(KVF_ABORTED) follows when what was posted has ended. */
    void (*cancel)(kvf_engine *engine, kvf_transfer *transfer);

    /* Moves things on for about `budget` nanoseconds. True when there is more to do at once. */
    bool (*progress)(kvf_engine *engine, uint64_t budget);
    /* Asks for the descriptor to become readable at the next happening; false when something has happened
     * already: call progress() again. */
    bool (*arm)(kvf_engine *engine);
    int (*descriptor)(const kvf_engine *engine);
} kvf_engine_operations;

struct kvf_engine {
    const kvf_engine_operations *operations;
    /* By kvf_clock_elapsed(), set by the owner; 0: no bound. Later nothing is posted: the process was stopped in the
     * middle of progress(), and its owner has to find out first whether it still may. */
    uint64_t post_until;
};

static inline bool kvf_engine_may_post(const kvf_engine *engine)
{
    return engine->post_until == 0 || kvf_clock_elapsed() <= engine->post_until;
}

/* Opens the engine the settings name, wrapped in fault.c when the setting "fault" isn't empty. */
kvf_status kvf_engine_open(const kvf_settings *settings, kvf_flavour flavour,
                           const kvf_engine_callbacks *callbacks, kvf_engine **engine,
                           kvf_error *error);

/* Whether this process runs on UCX 1.`minor` or newer. */
bool kvf_ucx_is_at_least(unsigned minor);

/* One each; kvf_engine_open() picks. */
kvf_status kvf_ucx_open(const kvf_settings *settings, kvf_flavour flavour,
                        const kvf_engine_callbacks *callbacks, kvf_engine **engine,
                        kvf_error *error);
kvf_status kvf_loop_open(const kvf_settings *settings, const kvf_engine_callbacks *callbacks,
                         kvf_engine **engine, kvf_error *error);
/* Wraps *engine, which was opened with `callbacks`; docs/settings-fault.md has the grammar. On failure
 * *engine is as before. */
kvf_status kvf_fault_open(const char *faults, const kvf_engine_callbacks *callbacks,
                          kvf_engine **engine, kvf_error *error);
/* Whether the fault ack_early is about the abort that has just come; false where no faults are injected. */
bool kvf_fault_acks_early(kvf_engine *engine);

#endif
