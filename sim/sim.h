/* The deterministic simulator: the pure parts (room machines, codecs, plan) of several managers on a
 * pretend network and a virtual clock. One seed, one run: no threads, no clock, no I/O but the trace.
 * docs/simulator.md says how to run it and how to add a fault. */
#ifndef KVF_SIM_SIM_H
#define KVF_SIM_SIM_H

#include "sim/managers.h"

/* ---- Faults -------------------------------------------------------------------------------------- */

typedef enum sim_fault {
    SIM_FAULT_KILL,       /* the process dies; it is started again on the same address */
    SIM_FAULT_STOP,       /* SIGSTOP, later SIGCONT */
    SIM_FAULT_CUT,        /* nothing passes between two nodes for a while */
    SIM_FAULT_LOSS,       /* a control connection breaks */
    SIM_FAULT_JUMP,       /* a node's clock leaps forward */
    SIM_FAULT_SLOW,       /* a link moves bytes a hundred times slower */
    SIM_FAULT_BOOTSTRAP,  /* the bootstrap server is down, silent, talks rubbish, or forgets */
    SIM_FAULT_TRUNCATION, /* a request or a notification is cut short */
    SIM_FAULT_REPEAT,     /* a request or a notification comes twice */
    SIM_FAULT_LATE,       /* a second request, for other pages, after the first byte */
    SIM_FAULT_FOREIGN,    /* traffic that has nothing to do with us, or pretends to */
    SIM_FAULT_ABORT,      /* the user aborts one side */
    SIM_FAULT_MISMATCH,   /* the two sides were told different page counts */
    SIM_FAULT_SHUTDOWN,   /* a manager is closed in good order, and opened again */
    SIM_FAULT_LIMIT,      /* a limit of the settings is reached */
    SIM_FAULT_USED_ID,    /* an id comes again that a stock peer can't tell from the first */
    SIM_FAULTS
} sim_fault;

#define SIM_BIT(fault) (UINT32_C(1) << (fault))

/* ---- Tasks: what happens at a time --------------------------------------------------------------- */

typedef void (*sim_task_run)(sim_world *world, sim_task *task);

struct sim_task {
    uint64_t time;
    uint64_t order; /* among those of one time */
    sim_task_run run;
    sim_node
        *node; /* put off while it is stopped, dropped when it has died; NULL: the world's own */
    uint32_t incarnation;
    void *subject;
    uint64_t number;
    sim_task *next; /* in a stopped node's backlog */
    size_t length;
    uint8_t bytes[];
};

/* ---- Memory -------------------------------------------------------------------------------------- */

typedef struct sim_pool {
    kvf_buffer regions[SIM_REGIONS]; /* the KV buffers, then the aux buffers */
    uint64_t *cells[SIM_REGIONS];    /* what lies in each cell: see sim_content() */
    sim_side *page_owner[SIM_PAGES]; /* NULL: free */
    sim_side *slot_owner[SIM_SLOTS];
    uint32_t free_pages[SIM_PAGES]; /* a stack, so that what was given back goes out first */
    uint32_t free_page_count;
    uint32_t free_slots[SIM_SLOTS];
    uint32_t free_slot_count;
} sim_pool;

/* ---- Nodes: one rank's process ------------------------------------------------------------------- */

typedef struct sim_limits {
    uint32_t rooms;
    uint32_t peers;
    uint32_t held_requests;
    uint64_t held_bytes;
    uint32_t destinations;
} sim_limits;

/* A prefill server, known by its bootstrap server's address, as one decode rank sees it. */
struct sim_server {
    sim_node *node;
    kvf_lookup_machine machine;
    kvf_timer timer;
    uint32_t group;
    bool asking;
    kvf_route_topology topology;
    sim_receiver *waiting;
};

struct sim_rank {
    sim_node *node;
    kvf_lookup_machine machine;
    kvf_timer timer;
    uint32_t group;
    uint32_t rank;
    kvf_route_rank where;
    bool shown; /* it has said that it is kvferry */
    sim_connection *connection;
    sim_inbox *inbox;     /* what requests name; NULL until the first one */
    kvf_room_memory used; /* room ids, of a stock rank */
    sim_target *targets;
};

struct sim_node {
    sim_world *world;
    uint32_t index;
    bool prefill;
    bool stock;  /* behaves as SGLang 0.4.7 does */
    bool strict; /* decode: setting fence */
    uint64_t heartbeat_timeout;
    uint32_t group;
    uint32_t rank;
    char name[32];
    char host[32];
    uint16_t port;

    bool alive;
    bool stopped;
    uint32_t incarnation;
    uint64_t clock_offset; /* its clock runs ahead of the world's by this */
    uint64_t stopped_at;
    uint64_t resumed_at;
    uint64_t leapt_at; /* its clock */
    uint64_t wake_at;  /* a task will look at the timers then */
    uint64_t healthy_at;
    uint32_t recent_faults;
    sim_task *backlog;
    sim_task *backlog_tail;

    char agent_name[KVF_AGENT_NAME_MAX + 1];
    kvf_timers timers;
    kvf_room_timeouts timeouts;
    sim_pool pool;
    uint32_t room_count;
    /* prefill */
    sim_sender *senders; /* those closed but lingering among them */
    sim_agent *agents;
    sim_agent *dead_agents;
    kvf_formers formers;
    sim_held *held;
    kvf_timer held_timer;
    size_t held_bytes;
    uint32_t held_count;
    uint32_t agent_count;
    sim_transfer *transfers;
    bool engine_runs;
    bool registered;
    bool closing; /* nothing is sent any more */
    bool deaf;    /* planted */
    /* decode */
    sim_receiver *receivers; /* those closed whose pages are in use among them */
    bool reap_receivers;
    sim_server servers[SIM_GROUPS];
    sim_rank ranks[SIM_GROUPS][SIM_RANKS];
    sim_inbox *inboxes;
    kvf_bytes pointers;
};

/* ---- Rooms as the user sees them ----------------------------------------------------------------- */

/* A receiver whose request a sender was given. */
typedef struct sim_asker {
    sim_side *receiver;
    uint64_t connection;
} sim_asker;

/* One side of a room on one rank: what the user did and was told. Lives as long as the world. */
struct sim_side {
    sim_instance *instance;
    sim_node *node;
    uint32_t incarnation;
    sim_sender *sender;
    sim_receiver *receiver;
    uint32_t pages[SIM_ROOM_PAGES + 1];
    uint32_t page_count;
    uint32_t aux_slot;
    bool has_memory;
    bool opened;
    bool closed;
    bool lost; /* its process died */
    bool disclosed;
    bool all_aux;
    bool aborted; /* by its user */
    bool shut_down;
    bool ended;
    bool settled;   /* its pages aren't in use any more */
    bool was_asked; /* a sender: some request was given to it */
    bool pinned_by_stranger;
    bool request_lost; /* on its way */
    bool turned_away;
    bool may_ask;     /* when it failed its writer could be told */
    bool letter_lost; /* from or to its agent */
    uint64_t letter_lost_at;
    uint64_t failed_at;
    sim_asker askers[SIM_ASKERS];
    uint32_t asker_count;
    uint32_t heard_chunks; /* bits, of those that its writer has announced */
    bool heard_aux;
    uint32_t chunks_sent;
    kvf_poll state;
    kvf_safety safety;
    kvf_proof proof;
    kvf_error error;
    kvf_status peer_status; /* why the other side gave the room up, as its letter says */
    uint64_t opened_at;     /* on the node's clock */
    uint64_t limit;         /* on the node's clock: it must have ended by then */
    uint64_t fence_limit;   /* and its pages must be given back */
};

/* One request's hand-off between two groups. */
struct sim_instance {
    uint32_t uid; /* room ids are used again, this isn't */
    uint64_t id;
    uint32_t prefill_group;
    uint32_t decode_group;
    uint32_t page_count;
    uint32_t chunks[SIM_ROOM_PAGES];
    uint32_t chunk_count;
    uint32_t faults; /* bits: what has touched it */
    bool
        id_tainted; /* messages of it may still be under way: between stock peers the id is spent */
    bool asked_twice;
    bool id_passed_on;
    bool fresh;                  /* made after everything had healed */
    bool heir;                   /* of the id of a room that had not succeeded everywhere */
    const sim_instance *earlier; /* the id's last user */
    sim_side senders[SIM_RANKS];
    sim_side receivers[SIM_RANKS];
    uint32_t sender_count;
    uint32_t receiver_count;
    sim_instance *prev;
    sim_instance *next;
};

/* ---- Network ------------------------------------------------------------------------------------- */

/* One control connection. Each end learns of its end at its own time. */
struct sim_connection {
    uint64_t number; /* never 0 */
    sim_node *decode;
    sim_node *prefill;
    uint32_t decode_incarnation;
    uint32_t prefill_incarnation;
    uint16_t port;
    bool decode_open;
    bool prefill_open;
    bool broken; /* nothing more passes */
    uint64_t broken_at;
    bool prefill_silent;  /* that is why: it was stopped for longer than the decode node waits */
    uint64_t given_up_at; /* for that, by the decode node */
    uint64_t last_arrival;
    sim_rank *rank;
    sim_connection *next;
};

/* What is true of a prefill node and a decode node: see pair.c. */
typedef struct sim_pair {
    bool silent; /* neither hears of the other */
    bool lost;   /* once at least */
    uint64_t silent_since;
    uint64_t lost_at;      /* the latest event after which one may call the other gone */
    uint64_t disturbed_at; /* the latest beginning or end of a silence, or loss */
} sim_pair;

/* A prefill node said that nothing of a request is under way, and nothing will be. */
typedef struct sim_acknowledgement {
    char agent_name[KVF_AGENT_NAME_MAX + 1];
    uint64_t room;
    uint64_t epoch;
    struct sim_acknowledgement *next;
} sim_acknowledgement;

/* The process that an inbox was made for; NULL: a stock node's, which is for all. */
typedef struct sim_addressee {
    const sim_node *writer;
    uint32_t incarnation;
} sim_addressee;

typedef enum sim_bootstrap_mood {
    SIM_BOOTSTRAP_FINE,
    SIM_BOOTSTRAP_DOWN,
    SIM_BOOTSTRAP_SILENT,
    SIM_BOOTSTRAP_RUBBISH
} sim_bootstrap_mood;

typedef struct sim_bootstrap {
    sim_bootstrap_mood mood;
    kvf_route_topology topology;
    kvf_route_rank rows[SIM_RANKS];
    bool known[SIM_RANKS];
    uint64_t healthy_at;
} sim_bootstrap;

/* ---- The world ----------------------------------------------------------------------------------- */

/* Beside the states of KVPoll: failed, and the pages in use still. */
enum { SIM_FENCING = KVF_SUCCESS + 1 };

/* Sums over all seeds of a run of the program. */
typedef struct sim_tally {
    uint64_t seeds;
    uint64_t steps;
    uint64_t rooms;
    uint64_t sides;
    uint64_t succeeded;
    uint64_t failed;
    uint64_t lost;
    uint64_t untouched; /* rooms without any fault */
    uint64_t reused_ids;
    uint64_t landed_late;     /* cells, in pages of failed rooms that were in use still */
    uint64_t landed_released; /* and in pages given back without a proof */
    uint64_t proofs[KVF_PROOF_TRANSPORT_DONE + 1];
    uint64_t released[2]; /* kvferry sides whose pages were: senders, receivers */
    uint64_t cells;
    uint64_t virtual_time;
    uint64_t fresh; /* seeds with a room, after everything had healed, that nothing exempts */
    /* By the state of the sides that they met: of prefill nodes, and of decode nodes. */
    uint64_t faults[SIM_FAULTS][2][SIM_FENCING + 1];
    uint64_t statuses[KVF_STATUS_LAST + 1];
} sim_tally;

struct sim_world {
    uint64_t seed;
    sim_random random;
    uint64_t now;
    uint64_t order;
    uint64_t steps;
    sim_task **tasks; /* a heap */
    size_t task_count;
    size_t task_capacity;
    bool trace;
    sim_plant plant;
    bool violated;
    char violation[512];

    const kvf_profile *profile;
    kvf_lookup_policy server_policy;
    kvf_lookup_policy rank_policy;
    sim_limits limits;
    bool mla;
    bool
        assume; /* bootstrap servers don't pass on who is kvferry; decode nodes take it for granted */
    uint32_t prefill_groups, prefill_ranks;
    uint32_t decode_groups, decode_ranks;
    uint32_t enabled_faults;
    bool writer_placed[SIM_NODES][SIM_NODES];
    uint64_t slow[SIM_NODES][SIM_NODES]; /* factor */
    uint64_t slow_until[SIM_NODES][SIM_NODES];
    uint64_t cut_until[SIM_NODES][SIM_NODES];
    sim_pair pairs[SIM_NODES][SIM_NODES];             /* prefill, decode */
    uint64_t pair_healthy_at[SIM_GROUPS][SIM_GROUPS]; /* prefill group, decode group */
    uint32_t pair_faults[SIM_GROUPS][SIM_GROUPS];
    sim_node nodes[SIM_NODES];
    uint32_t node_count;
    sim_bootstrap bootstraps[SIM_GROUPS];
    sim_connection *connections;
    uint64_t connection_count;
    sim_link *links;
    uint64_t inbox_count;
    sim_addressee *addressees; /* by the number of the inbox */
    size_t addressee_capacity;
    sim_acknowledgement *acknowledgements;
    uint64_t transfer_count;
    sim_instance *instances;
    uint32_t instance_count;
    uint64_t next_room;
    uint64_t faults_until;
    uint64_t end;
    sim_tally *tally;
};

#define SIM_HEARTBEAT_TIMEOUT KVF_SECOND /* at most */
#define SIM_TRANSPORT_TIMEOUT (2 * KVF_SECOND)
#define SIM_BOOTSTRAP_TIMEOUT (4 * KVF_SECOND)
#define SIM_WAITING_TIMEOUT (5 * KVF_SECOND)
#define SIM_FENCE_TIMEOUT (5 * KVF_SECOND)
#define SIM_HOLD_TIMEOUT (5 * KVF_SECOND)
#define SIM_STOCK_HOLD (3 * SIM_HOLD_TIMEOUT) /* for ever, in truth */
#define SIM_HTTP_TIMEOUT KVF_SECOND
#define SIM_REGISTRATION_CHECK KVF_SECOND
#define SIM_RECOVERY (4 * KVF_SECOND) /* after the end of a fault, a fresh room must succeed */
#define SIM_SLACK (100 * KVF_MILLISECOND)

/* schedule.c */
void sim_task_add(sim_world *world, uint64_t time, sim_task_run run, sim_node *node,
                  uint32_t incarnation, void *subject, uint64_t number, const void *bytes,
                  size_t length);
bool sim_step(sim_world *world);
void sim_tasks_free(sim_world *world);
uint64_t sim_now(const sim_node *node); /* the node's own clock */
void sim_node_arm(sim_node *node);
void sim_node_continue(sim_node *node);
/* The node's loop looks at its clock and finds that it has stood still for so long. */
void sim_node_slept(sim_node *node, uint64_t silence);
__attribute__((format(printf, 3, 4))) void sim_trace(sim_world *world, const sim_node *node,
                                                     const char *format, ...);
__attribute__((format(printf, 2, 3))) void sim_violate(sim_world *world, const char *format, ...);

/* memory.c */
bool sim_pool_open(sim_node *node);
void sim_pool_close(sim_node *node);
uint64_t sim_content(const sim_side *side, uint32_t region, uint32_t position, uint32_t cell);
bool sim_memory_take(sim_side *side, uint32_t page_count);
void sim_memory_give_back(sim_side *side);
void sim_memory_fill(sim_side *sender, uint32_t first, uint32_t count, bool last);
uint64_t sim_memory_read(sim_world *world, uint64_t address, const sim_instance *instance);
void sim_memory_land(sim_world *world, uint64_t address, uint64_t content,
                     const sim_instance *instance);
void sim_memory_verify(sim_side *receiver, const sim_side *told);

/* network.c */
uint64_t sim_delay(sim_world *world, const sim_node *from, const sim_node *to);
bool sim_is_cut(const sim_world *world, const sim_node *a, const sim_node *b);
sim_connection *sim_connection_open(sim_rank *rank);
sim_connection *sim_connection_find(const sim_world *world, uint64_t number);
/* False: what arrives isn't whole. */
bool sim_connection_send(sim_connection *connection, sim_instance *instance,
                         const kvf_slice *frames, size_t count);
void sim_frames_pack(const kvf_slice *frames, size_t count, kvf_bytes *bytes);
size_t sim_frames_unpack(const uint8_t *bytes, size_t length, kvf_slice *frames, size_t capacity);
void sim_connection_drop(sim_connection *connection);
void sim_connections_free(sim_world *world);
void sim_connections_of_dead(sim_node *node);
void sim_connections_silent(sim_world *world);
void sim_notify(const sim_transfer *transfer, const uint8_t *payload, size_t length);

/* pair.c */
sim_pair *sim_pair_of(const sim_node *a, const sim_node *b);
uint64_t sim_pair_silence(const sim_node *a, const sim_node *b);
void sim_pair_disturbed(const sim_node *a, const sim_node *b);
void sim_pair_lost(const sim_node *a, const sim_node *b);
bool sim_pair_may_be_lost(const sim_node *a, const sim_node *b);
bool sim_pair_is_disturbed(const sim_node *a, const sim_node *b, uint64_t since);
void sim_pairs_update(sim_world *world);
void sim_pairs_lost(const sim_node *node, uint64_t silence);
sim_node *sim_node_named(sim_world *world, const char *text);

/* letters.c */
void sim_links_break(sim_world *world, const sim_node *prefill, const sim_node *decode);
void sim_links_free(sim_world *world);

/* bootstrap.c */
void sim_bootstrap_ask_topology(sim_server *server);
void sim_bootstrap_ask_rank(sim_rank *rank);
void sim_registration_start(sim_node *node);

/* engine.c */
void sim_engine_post(sim_transfer *transfer);
void sim_engine_cancel(sim_transfer *transfer);
/* One inbox of that incarnation, or all (0). */
void sim_engine_peer_failed(sim_node *node, sim_node *decode, uint32_t incarnation, uint64_t inbox,
                            const char *text);
void sim_engine_inbox_closed(const sim_inbox *inbox);

/* user.c */
void sim_user_open_at(sim_side *side, uint64_t time);
void sim_user_abort_at(sim_side *side, uint64_t time);
void sim_user_abort(sim_side *side);
void sim_user_close(sim_side *side);
void sim_user_told(sim_side *side, const kvf_outcome *outcome);
bool sim_is_deceived(const sim_side *side);

/* router.c */
void sim_router_start(sim_world *world);
void sim_router_end(sim_world *world);
void sim_router_closed(sim_instance *instance); /* one side of it has been */

/* fault.c */
extern const char *const sim_fault_names[SIM_FAULTS];
void sim_faults_start(sim_world *world);
void sim_fault_stop(sim_node *node);
void sim_fault_limit(sim_node *prefill, const kvf_request *request);
void sim_fault_touch(sim_instance *instance, sim_fault fault);
void sim_fault_meets(sim_world *world, sim_fault fault, const sim_side *side);
void sim_fault_meets_newborn(const sim_side *side);
sim_instance *sim_instance_of(sim_world *world, uint64_t room); /* the latest with that id */
void sim_node_start(sim_node *node);
bool sim_faulty_now(sim_world *world, sim_fault fault, unsigned per_thousand);

/* check.c */
void sim_check_step(sim_world *world, sim_node *node);
void sim_check_end(sim_world *world);
void sim_check_reason(const sim_side *side);
void sim_check_id(const sim_side *sender);
void sim_check_acknowledges(const sim_agent *agent, const kvf_request *request);
void sim_check_post(const sim_transfer *transfer);
void sim_check_inbox_made(const sim_inbox *inbox);
void sim_check_addressee(const sim_node *prefill, const sim_agent *agent);
void sim_check_awake(const sim_transfer *transfer);
void sim_acknowledgements_free(sim_world *world);

/* check_loss.c */
void sim_check_agent_gone(const sim_agent *agent, const char *why);
void sim_check_rank_gone(const sim_rank *rank, const char *why);
void sim_check_given_up(const sim_agent *agent, uint64_t silence);
void sim_check_broken(sim_connection *connection);
bool sim_sender_has_served(const sim_sender *sender, const sim_agent *agent);

/* check_notice.c */
void sim_check_given(const sim_sender *sender, const sim_incoming *incoming);
void sim_check_failed(sim_side *side);
void sim_check_letter_lost(const sim_inbox *inbox);
void sim_check_turned_away(const sim_inbox *inbox, const kvf_request *request);
void sim_check_heard(sim_side *side, const sim_inbox *inbox, kvf_slice agent_name,
                     const kvf_notice *notice);
void sim_check_released(const sim_side *side);

/* world.c: runs one seed; false when an invariant was violated. */
typedef struct sim_options {
    bool trace;
    bool quiet;
    sim_plant plant;
    const char *program;
} sim_options;
bool sim_run(uint64_t seed, const sim_options *options, sim_tally *tally);

#endif
