/* Which fault a failed room is put down to. */
#include "torture.h"

#include <string.h>

#define MILLISECOND UINT64_C(1000000)

/* For so long after a prefill was stopped it distrusts what came meanwhile. */
static const uint64_t aftermath = 2000 * MILLISECOND;

typedef struct room_failure {
    const char *status;
    const char *reason;
    uint64_t opened;
    uint64_t failed;
    uint64_t settled;
} room_failure;

static bool is(const char *status, const char *name)
{
    return strcmp(status, name) == 0;
}

/* What a process that dies, stops or finds no descriptors can cause on either side. */
static bool can_be_a_fault(const char *status)
{
    static const char *const names[] = {"peer gone", "peer failed", "transport", "bootstrap",
                                        "timeout",   "system",      "no memory"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (is(status, names[i]))
            return true;
    return false;
}

static bool overlaps(const torture_last *last, const room_failure *failure)
{
    uint64_t over = last->over + (last->fault == FAULT_STOP_PREFILL ? aftermath : 0);
    return last->at != 0 && failure->failed > last->at &&
           (last->over == 0 || failure->opened < over);
}

/* A room counts once, with the fault that it was put down to first. */
static bool count_once(torture_run *run, torture_room *room, torture_fault fault)
{
    run->result.effects[fault].rooms += room->attributed ? 0 : 1;
    if (!room->attributed)
        room->fault = fault;
    room->attributed = true;
    return room->fault == fault;
}

static void put_down(torture_run *run, torture_room *room, torture_fault fault, uint64_t from,
                     const room_failure *failure)
{
    torture_effect *effect = &run->result.effects[fault];
    if (!count_once(run, room, fault))
        return;
    if (failure->failed > from && failure->failed - from > effect->worst_to_failed)
        effect->worst_to_failed = failure->failed - from;
    if (failure->settled > from && failure->settled - from > effect->worst_to_settled)
        effect->worst_to_settled = failure->settled - from;
}

static uint64_t start_of(const torture_last *last, const room_failure *failure)
{
    return last->at > failure->opened ? last->at : failure->opened;
}

static bool blame(torture_run *run, torture_room *room, torture_victim victim,
                  const room_failure *failure)
{
    const torture_last *last = &run->last[victim];
    if (!overlaps(last, failure))
        return false;
    put_down(run, room, last->fault, start_of(last, failure), failure);
    return true;
}

/* The later fault of the two workers'. A process's own rooms count, but the time is the other side's: who is stopped
 * notices nothing meanwhile. Only a process without descriptors is the first to notice. */
static bool blame_workers(torture_run *run, torture_room *room, torture_victim own,
                          const room_failure *failure)
{
    torture_victim other = own == TORTURE_DECODE ? TORTURE_PREFILL : TORTURE_DECODE;
    const torture_last *last = &run->last[own];
    if (!can_be_a_fault(failure->status))
        return false;
    if (!overlaps(last, failure) ||
        (overlaps(&run->last[other], failure) && run->last[other].at > last->at))
        return blame(run, room, other, failure);
    if (last->fault == FAULT_STARVE_DESCRIPTORS)
        return blame(run, room, own, failure);
    (void)count_once(run, room, last->fault);
    return true;
}

/* Each slow prefill process lets one transfer stall for ever. Either side may be the first to lose patience. */
static bool is_stall(torture_run *run, const room_failure *failure)
{
    bool late = is(failure->status, "timeout") || is(failure->status, "peer failed");
    bool stall = late && run->processes.slow && !run->stall_seen &&
                 strstr(failure->reason, "waiting_timeout") != NULL;
    run->stall_seen = run->stall_seen || stall;
    return stall;
}

static bool is_lookup(const room_failure *failure)
{
    return is(failure->status, "bootstrap") ||
           (is(failure->status, "timeout") && strstr(failure->reason, "bootstrap_timeout") != NULL);
}

static bool is_abort_there(const torture_room *room, const room_failure *failure)
{
    return room->abort_asked != 0 &&
           (is(failure->status, "peer failed") || is(failure->status, "timeout"));
}

void torture_receiver_failed(torture_run *run, torture_room *room, const json_t *line)
{
    const room_failure failure = {.status = torture_text_of(line, "status"),
                                  .reason = torture_text_of(line, "reason"),
                                  .opened = torture_number_of(line, "opened_ns"),
                                  .failed = torture_number_of(line, "failed_ns"),
                                  .settled = torture_number_of(line, "settled_ns")};
    if (is(failure.status, "aborted"))
        put_down(run, room, FAULT_ABORT_DECODE, torture_number_of(line, "aborted_ns"), &failure);
    else if (is_abort_there(room, &failure))
        put_down(run, room, FAULT_ABORT_PREFILL, room->abort_asked, &failure);
    else if (is_stall(run, &failure))
        put_down(run, room, FAULT_SLOW, failure.opened, &failure);
    else if (!(is_lookup(&failure) && blame(run, room, TORTURE_BOOTSTRAP, &failure)) &&
             !blame_workers(run, room, TORTURE_DECODE, &failure) && !room->attributed &&
             run->result.unexplained++ == 0)
        (void)message_set(&run->result.first_unexplained, "room %llu: %s: %.160s",
                          (unsigned long long)room->id, failure.status, failure.reason);
}

/* What else it fails of is put down with its receiver. */
void torture_sender_failed(torture_run *run, torture_room *room, const json_t *line)
{
    uint64_t ended = torture_number_of(line, "ended_ns");
    const room_failure failure = {.status = torture_text_of(line, "status"),
                                  .reason = torture_text_of(line, "reason"),
                                  .opened = torture_number_of(line, "began_ns"),
                                  .failed = ended,
                                  .settled = ended};
    bool stalled = run->processes.slow && strstr(failure.reason, "waiting_timeout") != NULL;
    if (!is(failure.status, "peer failed") && !stalled)
        (void)blame_workers(run, room, TORTURE_PREFILL, &failure);
}
