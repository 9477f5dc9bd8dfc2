#include "base/timers.h"

#include <stdlib.h>

static void place(kvf_timers *timers, size_t position, kvf_timer *timer)
{
    timers->heap[position - 1] = timer;
    timer->position = position;
}

static void move_up(kvf_timers *timers, kvf_timer *timer)
{
    size_t position = timer->position;
    while (position > 1 && timers->heap[position / 2 - 1]->deadline > timer->deadline) {
        place(timers, position, timers->heap[position / 2 - 1]);
        position /= 2;
    }
    place(timers, position, timer);
}

static void move_down(kvf_timers *timers, kvf_timer *timer)
{
    size_t position = timer->position;
    for (;;) {
        size_t child = 2 * position;
        if (child > timers->count)
            break;
        if (child < timers->count &&
            timers->heap[child]->deadline < timers->heap[child - 1]->deadline)
            child++;
        if (timers->heap[child - 1]->deadline >= timer->deadline)
            break;
        place(timers, position, timers->heap[child - 1]);
        position = child;
    }
    place(timers, position, timer);
}

static void take_out(kvf_timers *timers, kvf_timer *timer)
{
    kvf_timer *last = timers->heap[--timers->count];
    if (last != timer) {
        place(timers, timer->position, last);
        move_up(timers, last);
        move_down(timers, last);
    }
    timer->position = 0;
}

bool kvf_timers_join(kvf_timers *timers)
{
    if (timers->owners == timers->capacity) {
        size_t capacity = timers->capacity == 0 ? 64 : 2 * timers->capacity;
        kvf_timer **heap = realloc(timers->heap, capacity * sizeof *heap);
        if (heap == NULL)
            return false;
        timers->heap = heap;
        timers->capacity = capacity;
    }
    timers->owners++;
    return true;
}

void kvf_timers_leave(kvf_timers *timers, kvf_timer *timer)
{
    kvf_timers_set(timers, timer, UINT64_MAX);
    timers->owners--;
}

void kvf_timers_set(kvf_timers *timers, kvf_timer *timer, uint64_t deadline)
{
    if (deadline == UINT64_MAX) {
        if (timer->position != 0)
            take_out(timers, timer);
        return;
    }
    /* Its owner never joined: better a deadline that doesn't come than a write past the heap. */
    if (timer->position == 0 && timers->count == timers->capacity)
        return;
    timer->deadline = deadline;
    if (timer->position == 0)
        place(timers, ++timers->count, timer);
    move_up(timers, timer);
    move_down(timers, timer);
}

uint64_t kvf_timers_next(const kvf_timers *timers)
{
    return timers->count == 0 ? UINT64_MAX : timers->heap[0]->deadline;
}

bool kvf_timers_run(kvf_timers *timers, uint64_t now, size_t limit)
{
    for (; limit > 0 && kvf_timers_next(timers) <= now; limit--) {
        kvf_timer *timer = timers->heap[0];
        take_out(timers, timer);
        timer->fire(timer, now);
    }
    return kvf_timers_next(timers) <= now;
}

void kvf_timers_free(kvf_timers *timers)
{
    free(timers->heap);
    *timers = (kvf_timers){0};
}
