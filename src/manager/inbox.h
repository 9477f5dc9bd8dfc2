/* Inboxes of a decode manager: what one prefill rank is told to write to. Each has an agent name of its own, so
 * that it can be closed without anybody else noticing. All of it is the loop's. */
#ifndef KVF_MANAGER_INBOX_H
#define KVF_MANAGER_INBOX_H

#include "manager/rank.h"

struct kvf_inbox {
    kvf_manager *manager;
    kvf_rank *rank;
    kvf_engine_inbox *engine; /* NULL once closed */
    kvf_bytes metadata;
    uint64_t last_epoch;
    bool extended; /* made for a kvferry peer: its notifications carry epochs */
    bool direct;   /* the writer may bypass it */
    /* By key: rooms whose request named this inbox, and into whose pages something may still be written. */
    kvf_target *targets;
    unsigned holds; /* somebody walks through them */
    kvf_watch exit_watch;
    int exit_fd; /* of the writing process, while its exit is awaited; -1 otherwise */
    UT_hash_handle by_name;
    char agent_name[KVF_AGENT_NAME_MAX + 1];
};

/* The rank's inbox, opened where there is none yet; NULL with the reason. */
kvf_inbox *kvf_inbox_of(kvf_rank *rank, kvf_error *error);
kvf_inbox *kvf_inbox_find(kvf_manager *manager, kvf_slice agent_name);
/* Notes that the target's request is about to name this inbox, under the key that notices will carry. */
bool kvf_inbox_add(kvf_inbox *inbox, kvf_target *target, uint64_t key); /* false: no memory */
void kvf_inbox_remove(kvf_target *target);
kvf_target *kvf_inbox_target(const kvf_inbox *inbox, uint64_t key, uint64_t room);
/* A room of that id is written to by the rank, or may be still, also through an inbox that it had before. */
bool kvf_inboxes_serve(const kvf_rank *rank, uint64_t room);
/* Tells the target's rank something about its request; *put_off: the same again when the connection is writable.
 * Where it can't be sent the connection is about to be lost. */
void kvf_letters_write(kvf_target *target, uint32_t kind, kvf_slice body, const kvf_error *reason,
                       bool *put_off);
/* The room is about to be left before its rank could be told that it was given up: it is told later. A prefill that
 * was not would go on, or hold the request. */
void kvf_letters_owe_abort(const kvf_target *target);
/* False: some have to wait on. */
bool kvf_letters_pay_aborts(kvf_rank *rank);
void kvf_letters_drop_aborts(kvf_rank *rank);
/* Further requests to this rank get a new one. */
void kvf_inbox_retire(kvf_inbox *inbox);
/* Ends all ways in that lead through it, and proves so to the failed rooms where there is no other way, or once the
 * writing process is gone. Not from inside a callback of the engine. */
void kvf_inbox_close(kvf_inbox *inbox);
/* The same for all of a rank whose connection is lost. */
void kvf_inboxes_close(kvf_rank *rank);
/* Closes the retired ones that no room needs any more. Not from inside a callback of the engine. */
void kvf_inboxes_reap(kvf_manager *manager);
void kvf_inboxes_free(kvf_manager *manager);

#endif
