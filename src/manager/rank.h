/* Prefill servers and their ranks, as decode sees them. All of it is the loop's. */
#ifndef KVF_MANAGER_RANK_H
#define KVF_MANAGER_RANK_H

#include "manager/manager.h"

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

/* One rank of it: where it is, and our connection to it. */
struct kvf_rank {
    kvf_manager *manager;
    kvf_lookup_machine machine;
    kvf_timer timer;
    kvf_bootstrap_call *call;
    uint32_t dp_group;
    uint32_t tp_rank;
    kvf_route_rank where;
    kvf_control_push *push;
    bool push_over;      /* close it when its callbacks have returned */
    bool connect;        /* open a new one after that */
    kvf_target *targets; /* of rooms that need this rank */
    bool busy;           /* in the list of ranks whose push must be processed */
    kvf_rank *prev;
    kvf_rank *next;
    int descriptors[2];
    size_t descriptor_count;
    UT_hash_handle by_key;
    size_t address_length;
    char key[]; /* address, then "|group|rank" */
};

#endif
