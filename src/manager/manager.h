/* Inside a manager. Two kinds of data: what API threads and the loop share, guarded by `lock` or atomic, and
 * what belongs to the loop alone. Each struct says which is which. */
#ifndef KVF_MANAGER_MANAGER_H
#define KVF_MANAGER_MANAGER_H

#include "base/last_error.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/text.h"
#include "base/timers.h"
#include "bootstrap/client.h"
#include "control/control.h"
#include "data/engine.h"
#include "plan/layout.h"
#include "room/formers.h"
#include "room/lookup.h"
#include "room/receiver.h"
#include "room/sender.h"
#include "wire/metadata.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* A failed allocation inside the table macros leaves the entry out instead of ending the process. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>
#include <utlist.h>

typedef struct kvf_room kvf_room;
typedef struct kvf_call kvf_call;
typedef struct kvf_agent kvf_agent;
typedef struct kvf_incoming kvf_incoming;
typedef struct kvf_held kvf_held;
typedef struct kvf_delivery kvf_delivery;
typedef struct kvf_server kvf_server;
typedef struct kvf_rank kvf_rank;
typedef struct kvf_target kvf_target;
typedef struct kvf_inbox kvf_inbox;
typedef struct kvf_link kvf_link;
typedef struct kvf_messenger kvf_messenger;
typedef struct kvf_work kvf_work;
typedef struct kvf_summing kvf_summing;
typedef struct kvf_checking kvf_checking;
typedef struct kvf_watch kvf_watch;

/* What epoll tells of a descriptor that isn't one of the manager's own few. */
struct kvf_watch {
    void (*ready)(kvf_watch *watch);
};

/* ---- Calls: what API threads ask of the loop --------------------------------------------------- */

typedef enum kvf_call_kind {
    KVF_CALL_OPEN,
    KVF_CALL_EXPECT,
    KVF_CALL_SEND,
    KVF_CALL_ABORT,
    KVF_CALL_CLOSE
} kvf_call_kind;

/* A queued call, with a copy of the caller's pages behind it. A chunk lives on as the call that brought it. */
struct kvf_call {
    kvf_call *next;
    kvf_room *room;
    uint32_t *pages;
    uint32_t page_count;
    uint32_t aux_slot;
    kvf_call_kind kind;
};

/* ---- Rooms ------------------------------------------------------------------------------------- */

/* What senders and receivers have in common; their first member. */
struct kvf_room {
    kvf_manager *manager;
    uint64_t id;
    void *user;

    /* Published by the loop under the manager's lock, read by anybody. The machine's error text is complete before
     * `state` says KVF_FAILED, and doesn't change afterwards. State and safety are what kvf_*_view() points to, and
     * are stored as one: nobody sees the one without the other. */
    union {
        struct {
            atomic_uchar state;
            atomic_uchar safety;
        };
        atomic_ushort view;
    };
    atomic_uchar proof;
    atomic_uchar verified;
    atomic_uint status;
    atomic_uint_least64_t bytes;

    /* Guarded by the manager's lock. */
    bool in_table;
    bool event_pending;
    bool abort_queued;
    bool expected;
    bool all_given; /* sender: the last chunk */
    uint32_t pages_expected;
    uint32_t pages_given;
    kvf_room *prev; /* in the list of events */
    kvf_room *next;
    UT_hash_handle by_id;

    /* The loop's. */
    kvf_timer timer;
    bool opened; /* the loop has seen it */
    bool closed;
    /* Calls that must not fail for want of memory live here. */
    kvf_call open_call;
    kvf_call abort_call;
    kvf_call close_call;
};

struct kvf_sender {
    kvf_room room;
    /* The loop's. */
    kvf_sender_machine machine;
    kvf_call *chunks; /* in order */
    kvf_call *chunks_tail;
    kvf_call *unposted;
    kvf_incoming *incoming;
    kvf_delivery *deliveries;
    kvf_summing *summing; /* NULL until a destination asks for sums */
    uint32_t aux_slot;
    uint32_t pages_posted; /* of the chunks before `unposted` */
    uint32_t steps;        /* of the machine; tells a nested step */
    kvf_sender *prev;      /* among the lingering */
    kvf_sender *next;
    bool lingers;
    bool asked; /* a request was given to it: later ones may be for a later room of its id */
};

struct kvf_receiver {
    kvf_room room;
    int64_t dp_rank;
    /* The loop's. */
    kvf_receiver_machine machine;
    kvf_call *expect;
    kvf_server *server; /* while its sizes are awaited */
    kvf_receiver *prev; /* among those who wait for it; later, among the fencing */
    kvf_receiver *next;
    kvf_target *targets; /* the first is the real one */
    uint32_t target_count;
    uint32_t targets_ready;
    uint32_t required;      /* decode ranks that report to each target */
    uint32_t steps;         /* of the machine; tells a nested step */
    kvf_checking *checking; /* NULL unless the room is verified */
    kvf_verify verify;      /* as asked for; the default is settled */
    bool all_aux;
    bool lingers;   /* among the fencing */
    char address[]; /* of the bootstrap server */
};

/* ---- Manager ------------------------------------------------------------------------------------ */

typedef enum kvf_counter {
    KVF_COUNT_ROOMS_OPENED,
    KVF_COUNT_ROOMS_SUCCEEDED,
    KVF_COUNT_ROOMS_FAILED,
    KVF_COUNT_REQUESTS_HELD,
    KVF_COUNT_REQUESTS_EXPIRED,
    KVF_COUNT_PEERS,
    KVF_COUNT_PEERS_LOST,
    KVF_COUNT_MESSAGES,
    KVF_COUNT_MESSAGES_DROPPED,
    KVF_COUNT_NOTIFICATIONS,
    KVF_COUNT_NOTIFICATIONS_DROPPED,
    KVF_COUNT_PAGES_SENT,
    KVF_COUNT_WRITES,
    KVF_COUNT_BYTES,
    KVF_COUNT_TRANSFERS,
    KVF_COUNT_REGISTERED,
    KVF_COUNT_ROOMS_FENCING,
    KVF_COUNT_ROOMS_RELEASED,
    KVF_COUNTERS
} kvf_counter;

/* This rank's own row at the bootstrap server. */
typedef struct kvf_registration {
    kvf_route_registration row;
    kvf_bootstrap_call *call;
    kvf_timer timer;
    uint32_t pauses; /* in a row */
    bool registered;
    bool troubled; /* the trouble has been logged */
} kvf_registration;

struct kvf_manager {
    /* Constant while the loop runs. */
    kvf_role role;
    kvf_flavour flavour;
    kvf_settings settings;
    kvf_pool pool;
    const kvf_profile *profile;
    kvf_room_timeouts timeouts;
    kvf_lookup_policy server_policy;
    kvf_lookup_policy rank_policy;
    char agent_name[KVF_AGENT_NAME_MAX + 1]; /* prefill's; each inbox of decode has its own */
    char host[KVF_HOST_MAX];                 /* what peers are told */
    uint16_t port;                           /* the bound control port; 0: none */
    uint16_t told_port;                      /* what peers are told; 0: none */
    kvf_bytes
        pointers; /* bases of our buffers, then of our aux buffers, as the request carries them */
    pthread_t thread;
    int wake_fd;  /* eventfd: calls are queued */
    int event_fd; /* eventfd: events are pending */
    int epoll_fd;

    /* Guarded by `lock`. */
    pthread_mutex_t lock;
    pthread_cond_t settled; /* a room's pages aren't in use any more */
    kvf_room *rooms;        /* by id */
    kvf_room *events;
    kvf_call *calls;
    kvf_call *calls_tail;
    bool stopping;

    atomic_uint_least64_t counters[KVF_COUNTERS];

    /* The loop's. */
    kvf_timers timers;
    kvf_engine *engine;
    kvf_control *control;
    kvf_control_pull *pull;
    kvf_bootstrap_client *client;
    kvf_call *taken_calls; /* taken from the queue, not run yet */
    bool pull_busy;
    bool client_busy;
    bool reap_receivers; /* some of the fencing are over */
    bool reap_inboxes;   /* some that were retired serve nobody any more */
    kvf_registration registration;
    uint64_t now;
    uint64_t last_turn;   /* when the loop last looked for a stop, by kvf_clock_elapsed() */
    uint64_t mark;        /* the same, but now and then only */
    uint64_t mark_worked; /* by kvf_clock_worked(), then */
    /* prefill */
    kvf_agent *agents; /* by name */
    kvf_agent *dead_agents;
    kvf_messenger *messengers;
    unsigned messenger_count;
    uint64_t patience; /* of the least patient agent; KVF_NEVER without any */
    bool patience_stale;
    kvf_sender *lingering; /* closed, but the transport has not finished with their pages */
    kvf_held *held;        /* by room */
    kvf_held *held_queue;
    size_t held_bytes;
    kvf_timer held_timer;
    /* decode */
    kvf_server *servers;   /* by address */
    kvf_rank *ranks;       /* by address, group and rank */
    kvf_inbox *inboxes;    /* by agent name */
    kvf_receiver *fencing; /* closed, but a write to their pages may still come */
    /* both */
    size_t sums_bytes;   /* decode: held by all rooms */
    kvf_formers formers; /* of stock peers: agents by their name, ranks by their place */
    kvf_link *busy_links;
    kvf_work *work; /* whose turn it is, first */
};

/* Counters. */
void kvf_count(kvf_manager *manager, kvf_counter counter, uint64_t amount);
void kvf_uncount(kvf_manager *manager, kvf_counter counter, uint64_t amount);
uint64_t kvf_counter_value(kvf_manager *manager, kvf_counter counter);

/* True for the 1st, 2nd, 4th, 8th … of a kind: what a peer can repeat at will must not flood the log. */
bool kvf_worth_logging(uint64_t count);

/* room.c: the table, the calls and the events. */
/* Of an earlier version's struct that ends before the field `verify`, or of ours. */
kvf_status kvf_room_check_options(const kvf_room_options *options);
kvf_status kvf_room_insert(kvf_room *room, kvf_manager *manager, uint64_t id,
                           const kvf_room_options *options);
kvf_room *kvf_room_find(kvf_manager *manager, uint64_t id);
kvf_call *kvf_call_new(kvf_room *room, kvf_call_kind kind, const uint32_t *pages, size_t count);
void kvf_call_queue(kvf_call *call); /* the manager's lock must be held */
kvf_call *kvf_calls_take(kvf_manager *manager);
void kvf_wake(kvf_manager *manager);
int kvf_events_take(kvf_manager *manager, kvf_event *events, size_t capacity);
kvf_proof kvf_room_proof(const kvf_room *room);
kvf_safety kvf_room_wait(kvf_room *room, int timeout_ms);
void kvf_room_abort(kvf_room *room);
void kvf_room_close(kvf_room *room);
/* Adds to a failure of this cause what an old UCX of ours may have to do with it. */
void kvf_suspect_old_ucx(const kvf_manager *manager, kvf_status cause, kvf_error *error);
/* Loop: makes the machine's state visible and pends an event. */
void kvf_room_publish(kvf_room *room, kvf_outcome *outcome, uint64_t bytes);

/* loop.c */
void *kvf_loop_run(void *manager);
kvf_status kvf_loop_watch(kvf_manager *manager, int descriptor, void *tag, kvf_error *error);
void kvf_loop_forget(kvf_manager *manager, int descriptor);

/* What is received but means nothing: counted, and logged now and then. */
void kvf_drop_message(kvf_manager *manager, const char *why);
void kvf_drop_notification(kvf_manager *manager, const char *why);

/* sender.c, loop side */
void kvf_sender_call(kvf_sender *sender, kvf_call *call);
bool kvf_sender_feed(kvf_sender *sender, const kvf_sender_event *event);
void kvf_sender_timer(kvf_timer *timer, uint64_t now);
void kvf_sender_free(kvf_sender *sender);
void kvf_sender_release(kvf_sender *sender);

/* delivery.c: chunks on their way to a destination */
void kvf_deliver_chunks(kvf_sender *sender, uint32_t first_chunk, uint32_t chunk_count);
/* Whether it is the room's last, which the aux record goes with. */
bool kvf_chunk_is_last(const kvf_sender *sender, const kvf_call *chunk);
void kvf_deliveries_cancel(kvf_sender *sender);
/* After the engine was closed: frees what never ended. */
void kvf_deliveries_forget(kvf_sender *sender);

/* incoming.c: requests of decode ranks */
void kvf_incoming_message(void *manager, uint64_t connection, const kvf_slice *frames,
                          size_t count);
void kvf_incoming_take_held(kvf_sender *sender);
void kvf_incoming_free(kvf_manager *manager, kvf_incoming *incoming);
void kvf_incoming_free_all_held(kvf_manager *manager);
/* The same, and those who asked hear why. */
void kvf_incoming_refuse_all_held(kvf_manager *manager, const kvf_error *error);
void kvf_held_timer(kvf_timer *timer, uint64_t now);

/* agent.c: decode processes, as prefill sees them */
typedef struct kvf_binding kvf_binding;
kvf_agent *kvf_agent_named(kvf_manager *manager, kvf_slice name); /* or NULL */
/* Whether its agent has asked for something since. */
bool kvf_agent_has_asked(kvf_manager *manager, const kvf_request *request);
/* Of a request that was refused before its agent was known: true when nothing of it is under way, nor will be, should it
 * come again. */
bool kvf_agent_turn_away(kvf_manager *manager, const kvf_request *request);
kvf_status kvf_agent_find(kvf_manager *manager, const kvf_request *request, uint64_t connection,
                          kvf_agent **agent, kvf_error *error);
kvf_status kvf_agent_bind(kvf_agent *agent, const kvf_request *request, kvf_binding **binding,
                          kvf_error *error);
void kvf_binding_release(kvf_binding *binding);
/* Frees dead agents that nothing refers to; not from inside an engine callback. */
void kvf_agents_reap(kvf_manager *manager);
void kvf_agent_connection_gone(void *manager, uint64_t connection);
void kvf_agent_transport_failed(void *manager, kvf_engine_peer *peer, const char *text);
void kvf_agents_free(kvf_manager *manager);
/* This process was silent for so long: those who may have given it up are written to no more. */
void kvf_agents_give_up(kvf_manager *manager, uint64_t silence);
void kvf_agents_find_patience(kvf_manager *manager);
/* For how long the agent bears silence, as its latest request says. */
void kvf_agent_lease(kvf_agent *agent, uint64_t lease);

/* receiver.c, loop side */
void kvf_receiver_call(kvf_receiver *receiver, kvf_call *call);
void kvf_receiver_feed(kvf_receiver *receiver, const kvf_receiver_event *event);
void kvf_receiver_timer(kvf_timer *timer, uint64_t now);
void kvf_receiver_free(kvf_receiver *receiver);
/* Frees closed rooms whose pages are given back; not from inside their callbacks. */
void kvf_receivers_reap(kvf_manager *manager);
void kvf_receiver_sizes_known(kvf_receiver *receiver, const kvf_route_topology *topology);
void kvf_receiver_fail(kvf_receiver *receiver, const kvf_error *error);
/* Sends what has not been sent of the room's requests; again when a connection is writable. */
void kvf_receiver_request(kvf_receiver *receiver);
void kvf_receiver_prove(kvf_receiver *receiver, kvf_proof proof);

/* server.c, rank.c: prefill servers and their ranks, as decode sees them */
struct kvf_target {
    kvf_receiver *receiver;
    kvf_rank *rank;
    kvf_target *prev;
    kvf_target *next;
    bool ready;
    bool requested;
    bool abort_wanted;  /* the rank is to be told that the room was given up */
    bool letter_wanted; /* one about verification was put off */
    kvf_inbox
        *inbox; /* that the request named, from when it was sent until nothing can come any more */
    uint64_t key; /* in there: the request's epoch, or the room's id at a stock peer */
    UT_hash_handle by_key;
};
void kvf_server_wait(kvf_receiver *receiver);
void kvf_server_leave(kvf_receiver *receiver);
/* The server's sizes may have changed with its restart: ask again next time. */
void kvf_server_forget(kvf_manager *manager, const char *address, size_t length);
void kvf_servers_free(kvf_manager *manager);
kvf_status kvf_rank_join(kvf_target *target, uint32_t dp_group, uint32_t tp_rank, kvf_error *error);
void kvf_rank_leave(kvf_target *target);
void kvf_rank_request(kvf_target *target);
/* What is missing, if a room waits for a server or a rank; NULL otherwise. */
const kvf_error *kvf_rank_problem(const kvf_receiver *receiver);
bool kvf_rank_is_extended(const kvf_rank *rank);
/* It has said that it is kvferry; and over which connection. */
void kvf_rank_show(kvf_rank *rank);
void kvf_rank_wrote(kvf_rank *rank, uint64_t connection);
/* No more letters come over it. */
void kvf_rank_letters_gone(void *manager, uint64_t connection);
/* Puts "prefill rank 0 of 10.0.0.1:8998: " in front of what has to do with it. */
void kvf_rank_prefix(const kvf_rank *rank, kvf_error *error);
void kvf_ranks_free(kvf_manager *manager);

/* fence.c: proving that nobody writes to a failed room's pages any more */
void kvf_fence_begin(kvf_receiver *receiver);
/* The deadline is about to pass: what can still be done. */
void kvf_fence_end(kvf_receiver *receiver);

/* letters_decode.c: what kvferry peers tell each other */
void kvf_letters_message(void *manager, uint64_t connection, const kvf_slice *frames, size_t count);

/* verify_decode.c, compare_decode.c: checking what has arrived against the source's sums */
/* Before the request: whether the room is verified. KVF_UNSUPPORTED where it must be and can't. */
kvf_status kvf_checking_decide(kvf_receiver *receiver, kvf_error *error);
/* Every notification of the room comes here first. */
void kvf_checking_notice(kvf_receiver *receiver, const kvf_receiver_event *event);
/* With a status: there will be no sums, and why. */
void kvf_checking_sums(kvf_receiver *receiver, kvf_status status, kvf_slice text, kvf_slice body);
void kvf_checking_pages(kvf_receiver *receiver, kvf_slice body);
/* The prefill was taken for kvferry and isn't: no sums will come. */
void kvf_checking_mistaken(kvf_receiver *receiver);
/* The connection takes letters again. */
void kvf_checking_resume(kvf_receiver *receiver);
bool kvf_checking_has_passed(const kvf_receiver *receiver);
/* What an open room waits for, if the prefill owes sums; false otherwise. */
bool kvf_checking_problem(const kvf_receiver *receiver, kvf_error *error);
/* The room has failed: nothing is read any more. Afterwards, once the prefill has been told, the room hears of
 * the notifications that were held back. */
void kvf_checking_stop(kvf_receiver *receiver);
void kvf_checking_release(kvf_receiver *receiver);
void kvf_checking_free(kvf_receiver *receiver);

/* registration.c */
void kvf_registration_start(kvf_manager *manager);
void kvf_registration_timer(kvf_timer *timer, uint64_t now);

#endif
