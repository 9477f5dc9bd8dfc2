/* Many deadlines, one of which is next: a binary heap of timers that live inside their owners. */
#ifndef KVF_BASE_TIMERS_H
#define KVF_BASE_TIMERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kvf_timer kvf_timer;
struct kvf_timer {
    uint64_t deadline;
    size_t position; /* in the heap, counted from 1; 0: not set */
    void (*fire)(kvf_timer *timer, uint64_t now);
};

typedef struct kvf_timers {
    kvf_timer **heap;
    size_t count;
    size_t capacity;
    size_t owners;
} kvf_timers;

/* Room for one more timer, so that kvf_timers_set() can't fail. Pair with kvf_timers_leave(). */
bool kvf_timers_join(kvf_timers *timers);
void kvf_timers_leave(kvf_timers *timers, kvf_timer *timer);

/* Sets, moves or (with UINT64_MAX) clears a timer whose owner has joined. One whose owner hasn't, for want of memory,
 * may be left out. */
void kvf_timers_set(kvf_timers *timers, kvf_timer *timer, uint64_t deadline);

/* The earliest deadline; UINT64_MAX without any. */
uint64_t kvf_timers_next(const kvf_timers *timers);

/* Fires what is due, at most `limit` timers; each is cleared before its function runs. True when more are
 * due. */
bool kvf_timers_run(kvf_timers *timers, uint64_t now, size_t limit);
void kvf_timers_free(kvf_timers *timers);

#endif
