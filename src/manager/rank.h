/* Prefill servers and their ranks, as decode sees them. All of it is the loop's. */
#ifndef KVF_MANAGER_RANK_H
#define KVF_MANAGER_RANK_H

#include "manager/link.h"
#include "room/memory.h"

/* A prefill server, known by its bootstrap server's address. */
struct kvf_server {
    kvf_manager *manager;
    kvf_lookup_machine machine;
    kvf_timer timer;
    kvf_bootstrap_call *call;
    kvf_route_topology topology;
    kvf_receiver *waiting;
    UT_hash_handle by_address;
    char address[];
};

/* An abort that was put off, and whose room has been left since. */
typedef struct kvf_abort_owed {
    struct kvf_abort_owed *prev;
    struct kvf_abort_owed *next;
    kvf_letter letter; /* its slices point into `data` */
    uint8_t data[];
} kvf_abort_owed;

/* The connection has ended after all that came over it. */
#define KVF_LETTERS_ENDED UINT64_MAX

/* One rank of it: where it is, and our connection to it. */
struct kvf_rank {
    kvf_manager *manager;
    kvf_lookup_machine machine;
    kvf_timer timer;
    kvf_bootstrap_call *call;
    uint32_t dp_group;
    uint32_t tp_rank;
    kvf_route_rank where;
    /* It has said itself that it is kvferry. Without that, peer_extensions=assume may be wrong: what a stock rank
     * would mind isn't sent, and what it answers counts. */
    bool shown;
    bool connect; /* open the link when no callback of it is running */
    kvf_link link;
    uint64_t letters; /* the connection its letters come over; 0: none yet; KVF_LETTERS_ENDED */
    kvf_error *
        lost; /* the link is, and what it says last may still come over the other one; NULL: it isn't */
    kvf_peer_process process; /* who is at its other end */
    kvf_inbox *inbox;         /* what requests name; NULL until the first one */
    kvf_room_memory used;     /* room ids; of a stock rank, since it was found there */
    kvf_target *targets;      /* of rooms that need this rank */
    kvf_abort_owed *owed;     /* oldest first */
    uint32_t owed_count;
    UT_hash_handle by_key;
    size_t address_length;
    char key[]; /* address, then "|group|rank" */
};

#endif
