/* Time. The pure parts never call this: they are told. */
#ifndef KVF_BASE_CLOCK_H
#define KVF_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define KVF_MICROSECOND UINT64_C(1000)
#define KVF_MILLISECOND UINT64_C(1000000)
#define KVF_SECOND UINT64_C(1000000000)
#define KVF_NEVER UINT64_MAX

/* Nanoseconds of the monotonic clock, which doesn't jump when the date is set. */
uint64_t kvf_clock_now(void);

/* The same, but going on while the machine is suspended. */
uint64_t kvf_clock_elapsed(void);

/* For how long the calling thread has run. */
uint64_t kvf_clock_worked(void);

/* How long epoll may sleep from `now` until `deadline`, in milliseconds, rounded up; -1 for never. */
int kvf_clock_wait(uint64_t now, uint64_t deadline);

/* A moment as the pthread calls want it; far ahead for KVF_NEVER. */
struct timespec kvf_clock_timespec(uint64_t moment);

/* now + duration without wrapping. */
static inline uint64_t kvf_clock_after(uint64_t now, uint64_t duration)
{
    return duration >= KVF_NEVER - now ? KVF_NEVER : now + duration;
}

#endif
