/* Decode processes as prefill sees them, the requests they made, and the chunks on their way to them. All of
 * it is the loop's. */
#ifndef KVF_MANAGER_AGENT_H
#define KVF_MANAGER_AGENT_H

#include "manager/link.h"
#include "room/peer.h"
#include "wire/letter.h"

typedef struct kvf_check kvf_check;

/* A letter that waits, or that was given to the connection and may be lost with it. */
typedef struct kvf_letter_kept {
    struct kvf_letter_kept *prev;
    struct kvf_letter_kept *next;
    kvf_letter letter; /* its slices point into `data` */
    uint64_t sent_at;
    bool again; /* a connection was lost with it: with the next one it is lost for good */
    uint8_t data[];
} kvf_letter_kept;

/* Bytes of bodies that wait for one agent's connection. */
#define KVF_LETTERS_KEPT_MAX (UINT64_C(16) << 20)

/* One region of the agent's memory that we may write to. */
typedef struct kvf_remote_region {
    uint64_t base;
    uint64_t length;
    uint64_t device;
    uint32_t kind;
    uint32_t index; /* the engine's */
} kvf_remote_region;

/* Our buffers paired with an agent's: resolved once, shared by all its requests. */
struct kvf_binding {
    unsigned references;
    kvf_span *spans;
    size_t span_count;
    kvf_span *aux_spans;
    size_t aux_span_count;
    uint32_t page_limit; /* pages that exist on the agent's side, in every buffer */
    uint32_t aux_limit;
    /* What it was made from. */
    uint32_t device;
    bool all_aux;
    size_t buffers_length;
    size_t aux_length;
    uint8_t pointers[]; /* buffers, then aux */
};

struct kvf_agent {
    kvf_manager *manager;
    char name[KVF_AGENT_NAME_MAX + 1];
    uint64_t connection; /* its control connection */
    uint8_t *metadata;
    size_t metadata_length;
    bool loaded; /* the transport knows it; never for an agent that only sends dummies */
    bool dead;
    bool reset;     /* its transport was lost: another is made when there is something to write */
    bool connected; /* our own connection to it, for letters */
    bool greeted;
    uint64_t refused_until; /* what comes before may have been asked before this side was stopped */
    kvf_engine_peer *peer;
    kvf_remote_region *regions; /* sorted by kind, device, base */
    size_t region_count;
    kvf_binding *binding; /* of the latest request */
    kvf_incoming *incoming;
    unsigned deliveries;
    kvf_peer_past past;
    /* Letters to it, where it is kvferry. */
    kvf_link link;
    char host[KVF_HOST_MAX]; /* where it listens; "" where it doesn't */
    uint16_t port;
    uint32_t letter_bytes;    /* of the bodies of: */
    kvf_letter_kept *letters; /* those that wait for the connection, oldest first */
    kvf_letter_kept *sent;    /* what ends rooms, and may not have arrived; oldest first */
    uint32_t letter_count;
    uint32_t sent_count;
    kvf_agent *prev; /* among the dead */
    kvf_agent *next;
    UT_hash_handle by_name;
};

/* One agent's request for one room. */
struct kvf_incoming {
    kvf_request request; /* its slices point into `data` and the agent's metadata */
    kvf_agent *agent;
    kvf_sender *sender; /* NULL while held */
    kvf_held *held;     /* NULL once taken */
    kvf_binding *binding;
    kvf_check *check; /* NULL unless its decode checks what is written; from the first chunk on */
    uint32_t *pages;  /* destination pages, checked; NULL until bound and for dummies */
    unsigned deliveries;
    bool stop_wanted; /* its decode gave the room up, and waits to hear that nothing is under way */
    kvf_incoming *agent_prev;
    kvf_incoming *agent_next;
    kvf_incoming *prev; /* in its room, open or held */
    kvf_incoming *next;
    size_t size; /* of this allocation */
    uint8_t data[];
};

/* Requests for a room that no sender has opened yet. */
struct kvf_held {
    uint64_t room;
    uint64_t expires;
    kvf_incoming *incoming;
    kvf_error *refusal; /* a message for this room was refused */
    kvf_held *prev;     /* oldest first */
    kvf_held *next;
    UT_hash_handle by_room;
};

/* letters_prefill.c */
void kvf_letters_init(kvf_agent *agent);
void kvf_letters_free(kvf_agent *agent);
/* Where the agent listens, as its latest request says; to its first one the answer is a hello. */
void kvf_letters_address(kvf_agent *agent, const kvf_request *request);
void kvf_letters_take(kvf_manager *manager, uint64_t connection, const kvf_slice *frames,
                      size_t count);
/* Tells the request's decode, if it can be told, that the room has failed here. */
void kvf_letters_failed(kvf_agent *agent, const kvf_request *request, const kvf_error *error);
/* Nothing of the request is under way any more, nor will be. */
void kvf_letters_stopped(kvf_agent *agent, const kvf_request *request);
/* Tells it of sums, or with an error that there will be none; false when that can't be. */
bool kvf_letters_sums(kvf_incoming *incoming, kvf_letter_kind kind, kvf_slice body,
                      const kvf_error *error);

/* sums_prefill.c: sums of what is written, for destinations that check it */
/* Chunks are to go out: at once, or one by one when they are summed. */
void kvf_sums_post(kvf_sender *sender, uint32_t first_chunk, uint32_t chunk_count);
/* A chunk has been written to a destination. */
void kvf_sums_delivered(kvf_incoming *incoming);
/* Whether all that was written was checked by who it was written to. */
bool kvf_sums_all_verified(const kvf_sender *sender);
void kvf_sums_verdict(kvf_incoming *incoming, kvf_slice body);
void kvf_sums_wanted(kvf_incoming *incoming, kvf_slice body);
/* The agent has taken the letters that waited. */
void kvf_sums_resume(const kvf_agent *agent);
/* Letters to the agent are lost: rooms that rely on them fail. */
void kvf_sums_unheard(kvf_agent *agent, const char *why);
/* What an open room waits for, if it is for a verdict; false otherwise. */
bool kvf_sums_problem(const kvf_sender *sender, kvf_error *error);
/* Nothing of the room is read any more. */
void kvf_sums_stop(kvf_sender *sender);
void kvf_sums_free(kvf_sender *sender);
void kvf_check_free(kvf_incoming *incoming);

/* One chunk on its way to one destination. */
struct kvf_delivery {
    kvf_transfer transfer;
    kvf_sender *sender;
    kvf_incoming *incoming;
    uint32_t page_count;
    uint32_t chunk;
    kvf_delivery *prev;
    kvf_delivery *next;
};

#endif
