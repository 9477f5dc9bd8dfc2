/* The simulated managers: what they keep of rooms, peers and transfers, and what may be asked of them. Each
 * mirrors a part of src/manager in small. */
#ifndef KVF_SIM_MANAGERS_H
#define KVF_SIM_MANAGERS_H

#include "room/fence.h"
#include "room/peer.h"
#include "sim/types.h"

typedef struct sim_chunk {
    struct sim_chunk *next;
    uint32_t page_count;
    uint32_t pages[SIM_ROOM_PAGES + 1];
} sim_chunk;

struct sim_sender {
    sim_node *node;
    sim_side *side;
    uint64_t id;
    kvf_timer timer;
    kvf_sender_machine machine;
    sim_chunk *chunks;
    sim_chunk *unposted;
    sim_incoming *incoming;
    uint32_t transfer_count;
    uint32_t steps; /* tells a nested step */
    bool closed;
    bool asked;   /* by some decode, for this very room */
    bool stopped; /* told to cancel: nothing may be announced any more */
    sim_sender *prev;
    sim_sender *next;
};

struct sim_agent {
    sim_node *node;
    char name[KVF_AGENT_NAME_MAX + 1];
    uint64_t connection;
    uint8_t *metadata;
    size_t metadata_length;
    sim_node *decode; /* NULL: not loaded, or nowhere */
    uint32_t decode_incarnation;
    uint64_t decode_inbox;
    bool direct; /* it lets us place what we write ourselves */
    bool dead;
    kvf_peer_past past;
    uint64_t refused_until; /* by this node's clock */
    sim_link *link;         /* for letters; NULL before the first one */
    bool greeted;
    char host[32]; /* where it listens; "" where it doesn't */
    uint32_t transfer_count;
    sim_incoming *incoming;
    sim_agent *prev;
    sim_agent *next;
};

struct sim_incoming {
    kvf_request request; /* its slices point into `data` and the agent's metadata */
    sim_agent *agent;
    sim_sender *sender;
    sim_held *held;
    kvf_span spans[SIM_BUFFERS];
    kvf_span aux_spans[SIM_AUX];
    uint32_t aux_span_count;
    uint64_t page_limit;
    uint64_t slot_limit;
    uint32_t *pages;
    bool stop_wanted; /* its decode gave the room up, and waits to hear that nothing is under way */
    sim_incoming *agent_prev;
    sim_incoming *agent_next;
    sim_incoming *prev;
    sim_incoming *next;
    size_t size;
    uint8_t data[];
};

struct sim_held {
    uint64_t room;
    uint64_t expires;
    sim_incoming *incoming;
    bool refused;
    kvf_error refusal;
    sim_held *prev;
    sim_held *next;
};

typedef struct sim_part {
    kvf_writes writes;
    kvf_notice notice;
} sim_part;

struct sim_transfer {
    uint64_t number;
    sim_sender *sender;
    sim_agent *agent;
    uint64_t epoch;
    sim_part parts[2];
    uint32_t part_count;
    uint32_t part;
    uint32_t outstanding; /* pieces */
    bool flushing;
    bool canceled;
    bool flushed; /* at its end: nothing of it can land any more */
    sim_transfer *prev;
    sim_transfer *next;
};

struct sim_target {
    sim_receiver *receiver;
    sim_rank *rank;
    bool ready;
    bool requested;
    bool abort_wanted;
    uint64_t connection; /* that the request went over */
    sim_inbox *inbox;    /* that the request named */
    uint64_t key;        /* in there: the request's epoch, or the room's id at a stock peer */
    sim_target *prev;
    sim_target *next;
    sim_target *key_prev;
    sim_target *key_next;
};

/* What one prefill rank is told to write to, under an agent name of its own. */
struct sim_inbox {
    sim_node *node;
    sim_rank *rank; /* NULL: a stock node's, for all ranks */
    uint64_t number;
    bool open;
    bool extended;
    bool fenceable; /* its writer isn't offered the direct way */
    bool direct;    /* the writer places its bytes itself, whether or not this is open */
    bool awaits_exit;
    bool transport_lost; /* for the writer: what it had posted is never known to have ended */
    sim_node *writer;
    uint32_t writer_incarnation;
    uint64_t last_epoch;
    kvf_bytes metadata;
    sim_target *targets;
    unsigned holds; /* somebody walks through them */
    char agent_name[KVF_AGENT_NAME_MAX + 1];
    sim_inbox *prev;
    sim_inbox *next;
};

struct sim_receiver {
    sim_node *node;
    sim_side *side;
    uint64_t id;
    kvf_timer timer;
    kvf_receiver_machine machine;
    sim_server *server;
    sim_receiver *wait_prev;
    sim_receiver *wait_next;
    sim_target targets[SIM_RANKS];
    uint32_t target_count;
    uint32_t targets_ready;
    uint32_t required;
    uint32_t steps;
    bool all_aux;
    bool closed; /* but something may still be written to its pages */
    sim_receiver *prev;
    sim_receiver *next;
};

/* prefill.c, agent.c */
void sim_prefill_open(sim_node *node);
void sim_prefill_close(sim_node *node);
void sim_sender_open(sim_side *side);
bool sim_sender_feed(sim_sender *sender, const kvf_sender_event *event);
void sim_sender_send(sim_sender *sender, const uint32_t *pages, uint32_t count);
void sim_sender_close(sim_sender *sender);
void sim_sender_release(sim_sender *sender);
void sim_sender_transfer_ended(sim_transfer *transfer, kvf_status status, const char *text);
void sim_prefill_message(sim_node *node, uint64_t connection, const kvf_slice *frames,
                         size_t count);
void sim_incoming_take(sim_node *node, sim_sender *sender, sim_agent *agent,
                       const kvf_request *request);
void sim_incoming_refuse(sim_node *node, sim_sender *sender, uint64_t room, const kvf_error *error);
void sim_incoming_keep(sim_sender *sender);
void sim_incoming_free(sim_incoming *incoming);
void sim_incoming_take_held(sim_sender *sender);
void sim_held_free_all(sim_node *node);
void sim_held_timer(kvf_timer *timer, uint64_t now);
kvf_status sim_agent_find(sim_node *node, const kvf_request *request, uint64_t connection,
                          sim_agent **agent, kvf_error *error);
bool sim_agent_has_asked(sim_node *node, const kvf_request *request);
bool sim_agent_turn_away(sim_node *node, const kvf_request *request);
kvf_status sim_agent_bind(sim_incoming *incoming, kvf_error *error);
void sim_agent_bury(sim_agent *agent, const char *why);
void sim_agent_transport_failed(sim_agent *agent, const char *why);
void sim_agents_give_up(sim_node *node, uint64_t silence);
void sim_agents_reap(sim_node *node);
void sim_agents_free(sim_node *node);
void sim_prefill_connection_gone(sim_node *node, uint64_t connection);

/* letters.c */
void sim_letters_address(sim_agent *agent, const kvf_request *request);
void sim_letters_failed(sim_agent *agent, const kvf_request *request, const kvf_error *error);
/* Who made a request that was refused before anything was kept of it. */
void sim_letters_turned_away(sim_node *node, const kvf_request *request, const kvf_error *error,
                             bool stopped);
void sim_letters_stopped(sim_agent *agent, const kvf_request *request);
void sim_letters_take(sim_node *node, uint64_t connection, const kvf_slice *frames, size_t count);
void sim_letters_message(sim_node *node, const kvf_slice *frames, size_t count);

/* inbox.c */
sim_inbox *sim_inbox_of(sim_rank *rank);
sim_inbox *sim_inbox_find(sim_node *node, kvf_slice agent_name);
bool sim_inbox_is_open(const sim_node *node, uint64_t number);
void sim_inbox_add(sim_inbox *inbox, sim_target *target, uint64_t key);
void sim_inbox_remove(sim_target *target);
sim_target *sim_inbox_target(const sim_inbox *inbox, uint64_t key, uint64_t room);
void sim_inbox_notified(sim_node *node, uint64_t number, kvf_slice payload);
void sim_inbox_close(sim_inbox *inbox);
void sim_inboxes_close(sim_rank *rank);
void sim_inboxes_free(sim_node *node);
void sim_inboxes_writer_died(const sim_node *writer);
void sim_fence_begin(sim_receiver *receiver);
void sim_fence_end(sim_receiver *receiver);

/* decode.c, server.c, rank.c */
void sim_decode_open(sim_node *node);
void sim_decode_close(sim_node *node);
void sim_receiver_open(sim_side *side);
void sim_receiver_feed(sim_receiver *receiver, const kvf_receiver_event *event);
void sim_receiver_fail(sim_receiver *receiver, const kvf_error *error);
void sim_receiver_request(sim_receiver *receiver);
void sim_receiver_close(sim_receiver *receiver);
void sim_receivers_reap(sim_node *node);
void sim_receiver_sizes_known(sim_receiver *receiver, const kvf_route_topology *topology);
void sim_receiver_prove(sim_receiver *receiver, kvf_proof proof);
void sim_receiver_notified(sim_receiver *receiver, kvf_receiver_event *event);
void sim_server_wait(sim_receiver *receiver, uint32_t group);
void sim_server_leave(sim_receiver *receiver);
void sim_server_forget(sim_node *node, uint32_t group);
void sim_servers_open(sim_node *node);
void sim_server_feed(sim_server *server, kvf_lookup_event_kind kind, const kvf_error *error);
void sim_rank_feed(sim_rank *rank, kvf_lookup_event_kind kind, const kvf_error *error);
void sim_rank_join(sim_target *target, uint32_t group, uint32_t rank);
void sim_rank_leave(sim_target *target);
void sim_rank_request(sim_target *target);
void sim_rank_ask_to_stop(sim_target *target);
bool sim_rank_is_shown(const sim_rank *rank);
void sim_rank_show(sim_rank *rank);
void sim_rank_gone(sim_rank *rank, const char *text);
void sim_ranks_open(sim_node *node);
void sim_ranks_close(sim_node *node);

#endif
