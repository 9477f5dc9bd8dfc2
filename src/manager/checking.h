/* Inside of verification on decode: what compare_decode.c and verify_decode.c share. All of it is the loop's. */
#ifndef KVF_MANAGER_CHECKING_H
#define KVF_MANAGER_CHECKING_H

#include "manager/inbox.h"
#include "manager/work.h"
#include "wire/letter.h"
#include "wire/sums.h"

/* Sums of a chunk that has not been checked yet. */
typedef struct kvf_held_sums {
    struct kvf_held_sums *prev;
    struct kvf_held_sums *next;
    uint32_t page_count;
    uint32_t item_count;
    bool last;
    uint8_t sums[]; /* as in the letter */
} kvf_held_sums;

typedef enum kvf_checking_stage {
    KVF_CHECKING_SUMS,  /* comparing the sums of whole buffers */
    KVF_CHECKING_ASK,   /* one differs: its page sums are to be asked for */
    KVF_CHECKING_AWAIT, /* and have been */
    KVF_CHECKING_PAGES  /* comparing them */
} kvf_checking_stage;

struct kvf_checking {
    kvf_work work;
    kvf_receiver *receiver;
    kvf_sum sum;
    bool stopped;    /* nothing is checked any more */
    bool released;   /* notifications go to the room at once */
    bool distrusted; /* the prefill contradicted itself: what it notifies proves nothing */
    bool passed_all;
    /* What the prefill has told. */
    kvf_held_sums *sums; /* of the chunk that is being checked, and of later ones */
    uint64_t sums_held;
    uint32_t chunks_told;
    uint32_t pages_told;
    bool last_told;
    kvf_arrivals arrivals;
    /* How far it has been checked. */
    uint32_t passed;     /* chunks */
    uint32_t first_page; /* of the next one */
    uint32_t item;       /* buffer, then aux buffer of it */
    kvf_checking_stage stage;
    uint64_t source_sum; /* of the buffer that differs */
    uint64_t own_sum;
    uint32_t page;       /* of the chunk, that is compared or asked for next */
    uint32_t pages_end;  /* the answer reaches to here */
    kvf_bytes page_sums; /* the answer, from `pages_begin` on */
    uint32_t pages_begin;
};

static inline kvf_manager *kvf_checking_manager(const kvf_checking *checking)
{
    return checking->receiver->room.manager;
}

static inline const kvf_pool *kvf_checking_pool(const kvf_checking *checking)
{
    return &kvf_checking_manager(checking)->pool;
}

static inline const kvf_rank *kvf_checking_rank(const kvf_checking *checking)
{
    return checking->receiver->targets[0].rank;
}

/* What the prefill said can't be: its notifications aren't taken for a proof either. */
void kvf_checking_distrust(kvf_checking *checking, kvf_error *error);
/* Queues the checking where there is something to compare. */
void kvf_checking_go_on(kvf_checking *checking);
void kvf_checking_run(kvf_work *work, uint64_t *budget);
/* Of the chunk that is being checked. */
void kvf_checking_drop_sums(kvf_checking *checking);
/* The room hears of a notification that was held back. */
void kvf_checking_feed_chunk(kvf_checking *checking, uint32_t chunk);
void kvf_checking_feed_aux(kvf_checking *checking);

#endif
