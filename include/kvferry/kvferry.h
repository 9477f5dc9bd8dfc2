/*
 * kvferry: moves one request's paged KV cache from the prefill worker that computed it to the decode
 * worker that will use it.
 *
 * Read this file from top to bottom; it is the whole public interface. examples/hello.c shows all of
 * it in use, docs/wire.md says where each rule on the wire comes from.
 *
 * The words (one word for one thing, everywhere)
 *   room    one request's hand-off; a number below 2^63 that the router chose
 *   page    the unit the KV pool is allocated in, addressed by its index
 *   buffer  one registered region, e.g. the K cache of layer 7; item = the bytes of one page in it
 *   aux     small per-request records (first token, logprobs), one slot per request, sent last
 *   chunk   what one kvf_sender_send() carries
 *
 * Threads
 *   Each manager owns one thread, its event loop. Every function below may be called from any thread
 *   unless its comment says otherwise. None waits for a network or a peer, except kvf_manager_wait(),
 *   kvf_sender_wait() and kvf_receiver_wait(), which are there to wait, and kvf_manager_close(). Where
 *   a host name is to be looked up, kvf_manager_open() and kvf_bootstrap_start() wait for the system
 *   to do that. Two threads must not use one handle while a third closes it. No handle may be used in
 *   a child after fork().
 *
 * Errors
 *   A call that fails returns a status other than KVF_OK, and kvf_error_text() then says what
 *   happened, to what, and what to do. A room that fails reaches KVF_FAILED, with a status and a text
 *   of its own. Nothing here throws, aborts the process or prints, except through the log.
 *
 * Memory
 *   Arrays and strings passed in may be reused as soon as the call returns. Pools named by a layout
 *   stay the caller's and must stay mapped until kvf_manager_close() has returned.
 */
#ifndef KVFERRY_KVFERRY_H
#define KVFERRY_KVFERRY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVF_PUBLIC __attribute__((visibility("default")))
#else
#define KVF_PUBLIC
#endif

/* ---- Status ---------------------------------------------------------------------------------- */

/* Why a call or a room failed. Numbers never change their meaning; new ones are added at the end. */
typedef enum kvf_status {
    KVF_OK = 0,
    KVF_INVALID_ARGUMENT = 1, /* the caller's mistake: NULL, zero length, overlap, wrong role */
    KVF_OUT_OF_RANGE = 2,     /* a page or aux slot outside its pool */
    KVF_NO_MEMORY = 3,
    KVF_LIMIT = 4,          /* a limit of the settings was reached; nothing else is affected */
    KVF_BUSY = 5,           /* the room id is in use */
    KVF_WRONG_STATE = 6,    /* not now: expect() twice, send() before expect() */
    KVF_BAD_SETTING = 7,    /* unknown setting or malformed value; the text names the right ones */
    KVF_ADDRESS_IN_USE = 8, /* the port is taken */
    KVF_SYSTEM = 9,         /* the operating system or a library refused; the text has its words */
    KVF_REGISTRATION = 10,  /* the transport can't use that memory */
    KVF_BOOTSTRAP = 11,     /* bootstrap server absent, silent or talking nonsense */
    KVF_TIMEOUT = 12,       /* a deadline passed; the text says which and what was missing */
    KVF_PEER_GONE = 13,     /* the peer's process died, was stopped, or the network to it was cut */
    KVF_PROTOCOL = 14,      /* the peer's messages contradict each other */
    KVF_MISMATCH = 15,      /* both sides are sane but disagree: page counts, sizes, buffers */
    KVF_PROFILE = 16,       /* the peer speaks another profile; the text names it */
    KVF_TRANSPORT = 17,     /* a write, a flush or a notification failed */
    KVF_ABORTED = 18,       /* this side called abort() */
    KVF_SHUTDOWN = 19,      /* the manager was closed with the room open */
    KVF_UNSUPPORTED = 20,   /* well formed, but not something this version or profile can do */
    KVF_PEER_FAILED = 21,   /* the other side gave the room up; the text has its reason */
    KVF_CORRUPT = 22        /* verification found bytes that differ from the source's */
} kvf_status;

/* The status's name without its prefix, e.g. "peer gone". Never NULL. Static storage. */
KVF_PUBLIC const char *kvf_status_name(kvf_status status);

/* What the last failed call on this thread had to say. Never NULL; valid until the next kvferry call
 * on the same thread. */
KVF_PUBLIC const char *kvf_error_text(void);

/* "0.1.0". Static storage. */
KVF_PUBLIC const char *kvf_version(void);

/* The UCX this process runs on, e.g. "1.22.0": the one found at run time, which may be newer than the
 * one compiled against. Static storage. */
KVF_PUBLIC const char *kvf_ucx_version(void);

/* ---- Settings -------------------------------------------------------------------------------- */

/* One table drives the environment (KVFERRY_<NAME>), these calls, `kvferry settings` and the manual. */
typedef struct kvf_settings kvf_settings;

typedef enum kvf_log_level {
    KVF_LOG_OFF = 0,
    KVF_LOG_ERROR = 1,
    KVF_LOG_WARNING = 2,
    KVF_LOG_INFO = 3,
    KVF_LOG_DEBUG = 4
} kvf_log_level;

/* Receives one line without a newline. Called from the thread that has something to say, often the
 * manager's own; it must not call back into kvferry and should return quickly. */
typedef void (*kvf_log_callback)(void *user, kvf_log_level level, const char *line);

/* Starts from the defaults, then takes every KVFERRY_* variable of the environment. A variable that is
 * unknown or malformed is KVF_BAD_SETTING and *settings stays NULL. The caller owns the result. */
KVF_PUBLIC kvf_status kvf_settings_open(kvf_settings **settings);
KVF_PUBLIC void kvf_settings_close(kvf_settings *settings); /* NULL is fine */

/* Sets one setting from text, e.g. ("waiting_timeout", "5s"). Not thread-safe on one object. Managers
 * and servers copy what they need when they open: later changes don't reach them. */
KVF_PUBLIC kvf_status kvf_settings_set(kvf_settings *settings, const char *name, const char *value);

/* The present value as text, or NULL for an unknown name. Valid until the next call on `settings`. */
KVF_PUBLIC const char *kvf_settings_get(kvf_settings *settings, const char *name);

/* Sends log lines to a callback instead of standard error. NULL: back to standard error. */
KVF_PUBLIC kvf_status kvf_settings_log(kvf_settings *settings, kvf_log_callback callback,
                                       void *user);

/* One row of the table. Its strings are valid until the next call on the same thread. */
typedef struct kvf_setting {
    size_t size; /* set by the caller to sizeof(kvf_setting) */
    const char *name;
    const char *type; /* "text", "choice", "count", "bytes", "time" or "port" */
    const char *default_value;
    const char *range; /* "1 to 65536", or the choices separated by spaces, or "" */
    const char *help;
} kvf_setting;

/* Fills row `index`; KVF_OUT_OF_RANGE past the last one. */
KVF_PUBLIC kvf_status kvf_settings_describe(size_t index, kvf_setting *row);

/* ---- Layout ---------------------------------------------------------------------------------- */

typedef enum kvf_role { KVF_PREFILL = 1, KVF_DECODE = 2 } kvf_role;

typedef enum kvf_memory { KVF_MEMORY_HOST = 0, KVF_MEMORY_CUDA = 1 } kvf_memory;

/* One buffer of the KV pool, or one aux buffer. Page i (or slot i) is item_length bytes at
 * base + i * item_length; length must be a whole number of items. */
typedef struct kvf_buffer {
    size_t size; /* set by the caller to sizeof(kvf_buffer) */
    uint64_t base;
    uint64_t length;      /* bytes */
    uint64_t item_length; /* bytes of one page (one aux slot) in this buffer */
    uint32_t memory;      /* kvf_memory */
    uint32_t device;      /* device ordinal; 0 for host memory */
} kvf_buffer;

/* What a worker has to give or to fill. Buffers pair up by position on the two sides: the same
 * number, the same item lengths, in the same order (SGLang: K of each layer, then V of each layer). */
typedef struct kvf_layout {
    size_t size; /* set by the caller to sizeof(kvf_layout) */
    const kvf_buffer *buffers;
    size_t buffer_count;
    const kvf_buffer *aux; /* may be NULL with aux_count 0; always host memory */
    size_t aux_count;
    uint32_t engine_rank; /* global tensor-parallel rank, 0 to tp_size - 1 */
    uint32_t tp_size;     /* all dp groups together; 0 counts as 1 */
    uint32_t dp_size;     /* dp-attention groups; 0 counts as 1; must divide tp_size */
    uint32_t mla;         /* not 0: every rank holds the whole latent KV (MLA) */
    uint32_t device;      /* the number peers know this rank's accelerator by (SGLang's gpu_id) */
} kvf_layout;

/* ---- Manager --------------------------------------------------------------------------------- */

typedef struct kvf_manager kvf_manager;
typedef struct kvf_sender kvf_sender;
typedef struct kvf_receiver kvf_receiver;

/* Registers the pool with the transport, binds the control port (prefill) and starts the event loop.
 * A prefill manager registers itself at the setting bootstrap_address in the background and keeps
 * trying; which address and port it tells peers are the settings advertise_address, advertise_port
 * and control_port. `settings` NULL: from the environment. Takes as long as registering takes.
 * KVF_INVALID_ARGUMENT, KVF_BAD_SETTING, KVF_LIMIT, KVF_REGISTRATION, KVF_TRANSPORT (UCX has none of the
 * transports), KVF_UNSUPPORTED (a libcurl that would block the loop), KVF_ADDRESS_IN_USE, KVF_SYSTEM,
 * KVF_NO_MEMORY; then *manager is NULL. */
KVF_PUBLIC kvf_status kvf_manager_open(kvf_manager **manager, kvf_role role,
                                       const kvf_layout *layout, const kvf_settings *settings);

/* Fails every open room with KVF_SHUTDOWN, ends the loop and frees everything, the handles of rooms
 * included: they must not be used afterwards. Writes still under way, from these pages or into
 * them, are given the setting close_timeout to end; returns after at most that, and a second more where
 * the transport doesn't close. NULL is fine. */
KVF_PUBLIC void kvf_manager_close(kvf_manager *manager);

/* A room's state, with SGLang's numbers (KVPoll). Success and Failed are final.
 *
 *                      sender (prefill)                      receiver (decode)
 *   BOOTSTRAPPING      not every destination has reported    the prefill side's ranks not all found
 *                                                            and connected
 *   WAITING_FOR_INPUT  all have; expect() and send()         found; expect(), or waiting for bytes
 *   TRANSFERRING       the first chunk was posted            the first chunk has arrived
 *   SUCCESS            all writes, the flush and the         every chunk and the aux record arrived
 *                      notification were completed
 * SGLang 0.4.7's own connector never reports TRANSFERRING, nor BOOTSTRAPPING on decode. */
typedef enum kvf_poll {
    KVF_FAILED = 0,
    KVF_BOOTSTRAPPING = 1,
    KVF_WAITING_FOR_INPUT = 2,
    KVF_TRANSFERRING = 3,
    KVF_SUCCESS = 4
} kvf_poll;

/* May the room's pages and aux slot be reused? Success is always safe. A room that fails may still be in use
 * for a while: a write is under way, or was asked for and can't be called back at once. It ends as one of
 * the other two, within the setting fence_timeout, and that is a second event of the room. */
typedef enum kvf_safety {
    KVF_PAGES_IN_USE = 0, /* the room is open, or failed and its writes aren't known to be over */
    KVF_PAGES_SAFE = 1,   /* nothing can touch them any more; kvf_proof says how that is known */
    /* Only the deadline passed: on decode bytes may still land in the pages, on prefill the transport
     * may still read them. Better not to reuse them where that can be avoided. */
    KVF_PAGES_RELEASED = 2
} kvf_safety;

/* How it is known that a room's pages are safe. */
typedef enum kvf_proof {
    KVF_PROOF_NONE = 0,
    KVF_PROOF_NEVER_DISCLOSED = 1, /* nobody was ever told of the pages */
    KVF_PROOF_COMPLETED = 2,       /* all that was asked for has arrived, or has been written */
    KVF_PROOF_ACKNOWLEDGED = 3,    /* the writer has stopped, flushed, and said so */
    KVF_PROOF_RECEIVER_CLOSED = 4, /* what the writer wrote to is closed, and it had no other way */
    KVF_PROOF_WRITER_EXITED = 5,   /* same host: the writing process is gone, and its way here */
    KVF_PROOF_TRANSPORT_DONE = 6   /* sender: the transport has finished with the source pages */
} kvf_proof;

/* The proof's name without its prefix, e.g. "acknowledged". Never NULL. Static storage. */
KVF_PUBLIC const char *kvf_proof_name(kvf_proof proof);

/* The latest state of a room that changed. Always 64 bytes in this SONAME; the library fills it. */
typedef struct kvf_event {
    size_t size; /* set by the library to sizeof(kvf_event) */
    uint64_t room;
    void *user; /* as given in kvf_room_options */
    uint64_t
        bytes; /* KV and aux bytes written (sender); promised and arrived (receiver, at Success) */
    uint32_t state;    /* kvf_poll */
    uint32_t status;   /* kvf_status: KVF_OK unless the state is KVF_FAILED */
    uint32_t safety;   /* kvf_safety */
    uint32_t proof;    /* kvf_proof: KVF_PROOF_NONE unless the pages are safe */
    uint32_t verified; /* 1 at Success of a room that was verified (see kvf_verify); 0 otherwise */
    uint32_t reserved[3];
} kvf_event;

/* Waits until a room has changed, at most timeout_ms milliseconds (0: don't wait, -1: no limit), and
 * fills up to `capacity` events. Returns how many; 0 at the timeout; minus a kvf_status on error. Each
 * room has at most one event pending, carrying its latest state. Events of a closed room are dropped.
 * One thread at a time. */
KVF_PUBLIC int kvf_manager_wait(kvf_manager *manager, kvf_event *events, size_t capacity,
                                int timeout_ms);

/* A descriptor that is readable while events are pending, for epoll or poll. It stays the manager's:
 * don't read, write or close it; take the events with kvf_manager_wait(..., 0). */
KVF_PUBLIC int kvf_manager_fd(const kvf_manager *manager);

/* The control port that is bound: what peers are told unless advertise_port is set. Decode listens there for
 * what kvferry peers tell; with extensions=off it binds nothing, tells no port, and this is 0. */
KVF_PUBLIC uint16_t kvf_manager_port(const kvf_manager *manager);

/* Counters since the manager was opened, unless a comment says "now". */
typedef struct kvf_statistics {
    size_t size;         /* set by the caller to sizeof(kvf_statistics) */
    uint64_t rooms_open; /* now */
    uint64_t rooms_opened;
    uint64_t rooms_succeeded;
    uint64_t rooms_failed;     /* aborted ones included */
    uint64_t requests_held;    /* now: requests for rooms no sender has opened yet */
    uint64_t requests_expired; /* held ones whose sender never came */
    uint64_t peers;            /* now */
    uint64_t peers_lost;
    uint64_t messages_received;
    uint64_t messages_dropped; /* malformed, foreign, repeated, or for a finished room */
    uint64_t notifications_received;
    uint64_t
        notifications_dropped; /* malformed, unknown room, or from another agent than the room's */
    uint64_t pages_sent;
    uint64_t writes_posted; /* merged writes */
    uint64_t bytes_written;
    uint64_t transfers_active; /* now */
    uint64_t registered;       /* prefill: 1 once the bootstrap server knows this rank */
    uint64_t rooms_fencing;    /* now: failed ones whose pages are in use still */
    uint64_t rooms_released;   /* failed ones whose pages were given back without a proof */
} kvf_statistics;
KVF_PUBLIC kvf_status kvf_manager_statistics(kvf_manager *manager, kvf_statistics *statistics);

/* Whether a room's bytes are checked end to end. Prefill sums each buffer of each chunk (XXH3, 64 bits) before the
 * first byte is written; decode sums what lies in its pages and compares. Success of a verified room says on both
 * sides that all were equal: what was in the source when it was summed is what decode had in its pages when it
 * checked. Other bytes are KVF_CORRUPT, with the buffer, the page and both sums in the text. It finds accidents, not
 * forgeries. Needs a kvferry peer, and host memory on both sides. */
typedef enum kvf_verify {
    KVF_VERIFY_DEFAULT = 0, /* as the setting `verify` says */
    KVF_VERIFY_OFF = 1,
    KVF_VERIFY_ON = 2,      /* where it can be; events say whether it was */
    KVF_VERIFY_REQUIRED = 3 /* where it can't be the room fails with KVF_UNSUPPORTED */
} kvf_verify;

/* Everything optional about a room. NULL stands for all defaults. An earlier version's shorter struct is taken. */
typedef struct kvf_room_options {
    size_t size;     /* set by the caller to sizeof(kvf_room_options) */
    void *user;      /* handed back in the room's events */
    int64_t dp_rank; /* receiver: the prefill dp group; negative: room modulo dp size */
    uint32_t verify; /* receiver: kvf_verify; a sender does what its receivers ask for */
    uint32_t reserved;
} kvf_room_options;

/* ---- Sender (prefill) ------------------------------------------------------------------------- */

/* Opens this side of a room. Returns at once; a request that arrived earlier is taken up. The room
 * fails with KVF_TIMEOUT when not every destination has reported within bootstrap_timeout of the open.
 * KVF_INVALID_ARGUMENT (wrong role; room of 2^63 or more), KVF_BUSY (id in use), KVF_LIMIT, KVF_NO_MEMORY. */
KVF_PUBLIC kvf_status kvf_sender_open(kvf_manager *manager, uint64_t room,
                                      const kvf_room_options *options, kvf_sender **sender);

/* How many pages all sends together will carry, and which aux slot goes with the last one (ignored
 * without aux buffers). Call once, before the first send. A destination that expects another number
 * is refused before the first byte. KVF_WRONG_STATE, KVF_OUT_OF_RANGE, KVF_LIMIT, KVF_NO_MEMORY. A room
 * that has failed already takes it like any other. */
KVF_PUBLIC kvf_status kvf_sender_expect(kvf_sender *sender, uint32_t page_count, uint32_t aux_slot);

/* Hands over the next pages, whose bytes must be complete (and the aux slot, with the last ones). The
 * send that reaches the expected count is the last one: then the aux record goes too. May come before
 * the destinations have reported: it is held. Returns without waiting. An empty send is only
 * meaningful as the last one of a room of no pages; elsewhere it does nothing.
 * KVF_OUT_OF_RANGE (page outside the pool, or more pages than expected) and KVF_WRONG_STATE change
 * nothing; on a room that has failed the call returns that room's status and does nothing.
 * Source pages must stay untouched until the room is final and its safety is KVF_PAGES_SAFE. */
KVF_PUBLIC kvf_status kvf_sender_send(kvf_sender *sender, const uint32_t *pages, size_t page_count);

/* Stops posting and fails the room with KVF_ABORTED, unless it is final already. */
KVF_PUBLIC void kvf_sender_abort(kvf_sender *sender);

KVF_PUBLIC kvf_poll kvf_sender_poll(const kvf_sender *sender);     /* one atomic load */
KVF_PUBLIC kvf_status kvf_sender_status(const kvf_sender *sender); /* KVF_OK unless it failed */
KVF_PUBLIC kvf_safety kvf_sender_safety(const kvf_sender *sender);
/* Why it failed, for a person; "" unless it failed. Valid until close. */
KVF_PUBLIC const char *kvf_sender_failure_text(const kvf_sender *sender);

KVF_PUBLIC kvf_proof kvf_sender_proof(const kvf_sender *sender);

/* Two bytes that the library publishes together and nobody else may write: [0] kvf_poll, [1] kvf_safety. Who
 * reads [0] first and then [1] has the safety of that state, or a later one. For callers to whom a call is
 * dear; valid until close. */
KVF_PUBLIC const uint8_t *kvf_sender_view(const kvf_sender *sender);

/* Waits until the room is final and its pages are not in use, at most timeout_ms milliseconds (-1: no limit).
 * Returns the safety then. The one call of a room that blocks; meant to follow an abort: the end of a failed
 * room is bounded by fence_timeout, and that of an open one by its own deadlines as long as it waits for peers.
 * Nothing bounds a room that waits for its own side: a sender all of whose destinations have reported, until
 * the next send(), and a receiver whose prefill side was found, until its expect(). */
KVF_PUBLIC kvf_safety kvf_sender_wait(kvf_sender *sender, int timeout_ms);

/* Frees the handle; an open room is aborted first. The id may be used again at once. Where the pages are in
 * use still, they stay so as long as the events would have said; wait before closing to know. NULL is fine. */
KVF_PUBLIC void kvf_sender_close(kvf_sender *sender);

/* ---- Receiver (decode) ------------------------------------------------------------------------ */

/* Opens this side of a room against the prefill server whose bootstrap server is at `address`
 * ("10.0.0.1:8998", "[::1]:8998"; split at the last colon). Returns at once: lookups and connections
 * happen in the background and end within bootstrap_timeout of the open.
 * KVF_INVALID_ARGUMENT, KVF_BUSY, KVF_LIMIT, KVF_NO_MEMORY. */
KVF_PUBLIC kvf_status kvf_receiver_open(kvf_manager *manager, const char *address, uint64_t room,
                                        const kvf_room_options *options, kvf_receiver **receiver);

/* Which pages are to be filled, in the order of the source's pages, and which aux slot. Call once; at
 * any time after open. From here the room ends within waiting_timeout. The prefill side may write to
 * these pages until the room is final and its safety is KVF_PAGES_SAFE. A room of no pages needs a
 * kvferry peer: SGLang's message takes an empty list for a dummy.
 * KVF_WRONG_STATE, KVF_OUT_OF_RANGE, KVF_LIMIT, KVF_INVALID_ARGUMENT (a page named twice), KVF_NO_MEMORY;
 * the room's own status when it has failed already. */
KVF_PUBLIC kvf_status kvf_receiver_expect(kvf_receiver *receiver, const uint32_t *pages,
                                          size_t page_count, uint32_t aux_slot);

/* Fails the room with KVF_ABORTED, unless it is final already. */
KVF_PUBLIC void kvf_receiver_abort(kvf_receiver *receiver);

KVF_PUBLIC kvf_poll kvf_receiver_poll(const kvf_receiver *receiver); /* one atomic load */
KVF_PUBLIC kvf_status kvf_receiver_status(const kvf_receiver *receiver);
KVF_PUBLIC kvf_safety kvf_receiver_safety(const kvf_receiver *receiver);
KVF_PUBLIC const char *kvf_receiver_failure_text(const kvf_receiver *receiver);
KVF_PUBLIC kvf_proof kvf_receiver_proof(const kvf_receiver *receiver);
/* These two as kvf_sender_view() and kvf_sender_wait(). */
KVF_PUBLIC const uint8_t *kvf_receiver_view(const kvf_receiver *receiver);
KVF_PUBLIC kvf_safety kvf_receiver_wait(kvf_receiver *receiver, int timeout_ms);
KVF_PUBLIC void kvf_receiver_close(kvf_receiver *receiver);

/* ---- Bootstrap server ------------------------------------------------------------------------- */

/* The HTTP server at which prefill ranks register and decode ranks look them up, as SGLang's own. It
 * runs in a thread of its own. */
typedef struct kvf_bootstrap kvf_bootstrap;

/* Listens on "host:port", e.g. "0.0.0.0:8998", "[::1]:0" (port 0: any free one). `settings` NULL:
 * from the environment. KVF_ADDRESS_IN_USE, KVF_INVALID_ARGUMENT, KVF_BAD_SETTING, KVF_SYSTEM. */
KVF_PUBLIC kvf_status kvf_bootstrap_start(kvf_bootstrap **bootstrap, const char *listen_address,
                                          const kvf_settings *settings);
KVF_PUBLIC uint16_t kvf_bootstrap_port(const kvf_bootstrap *bootstrap);
KVF_PUBLIC void kvf_bootstrap_stop(kvf_bootstrap *bootstrap); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
