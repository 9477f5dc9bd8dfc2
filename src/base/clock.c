#include "base/clock.h"

#include <limits.h>

static uint64_t read_clock(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * KVF_SECOND + (uint64_t)now.tv_nsec;
}

uint64_t kvf_clock_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

uint64_t kvf_clock_elapsed(void)
{
    return read_clock(CLOCK_BOOTTIME);
}

uint64_t kvf_clock_worked(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

int kvf_clock_wait(uint64_t now, uint64_t deadline)
{
    if (deadline == KVF_NEVER)
        return -1;
    if (deadline <= now)
        return 0;
    uint64_t milliseconds = (deadline - now) / KVF_MILLISECOND + 1;
    return milliseconds > INT_MAX ? INT_MAX : (int)milliseconds;
}

struct timespec kvf_clock_timespec(uint64_t moment)
{
    return (struct timespec){.tv_sec = (time_t)(moment / KVF_SECOND),
                             .tv_nsec = (long)(moment % KVF_SECOND)};
}
