/* The rooms of a run, for as long as one of the two sides has them, and whether they end in time. */
#include "clock.h"
#include "torture.h"

#include <string.h>

#define SECOND UINT64_C(1000000000)

/* After this long without the decode's side a sender is aborted. */
static const uint64_t orphan_age = SECOND;

torture_room *torture_room_place(torture_run *run, uint64_t id)
{
    uint64_t first = run->processes.decodes * TORTURE_ID_BASE;
    bool present = id >= first && id - first < TORTURE_ID_BASE;
    return present ? &run->rooms[(id - first) % TORTURE_IDS] : NULL;
}

static torture_room *find_left(torture_run *run, uint64_t id)
{
    for (size_t i = 0; i < run->left_count; i++)
        if (run->left[i].id == id)
            return &run->left[i];
    return NULL;
}

torture_room *torture_room_find(torture_run *run, uint64_t id)
{
    torture_room *room = torture_room_place(run, id);
    return room != NULL && room->id == id ? room : find_left(run, id);
}

static bool is_left(const torture_run *run, const torture_room *room)
{
    return room >= run->left && room < run->left + run->left_count;
}

void torture_room_free(torture_run *run, const torture_room *room)
{
    if (room->line == NULL && room->told == 0 && torture_takes_lines(run, TORTURE_DECODE))
        torture_tell(run, TORTURE_DECODE, json_pack("{s:I}", "free", (json_int_t)room->id));
}

void torture_sender_over(torture_run *run, torture_room *room)
{
    room->told = 0;
    if (is_left(run, room))
        *room = run->left[--run->left_count];
    else
        torture_room_free(run, room);
}

/* ---- Processes that go and come ------------------------------------------------------------------- */

static void leave_behind(torture_run *run, const torture_room *room)
{
    if (run->left_count < TORTURE_LEFT)
        run->left[run->left_count++] = *room;
    else
        torture_break(&run->result, "decode processes have left more than %d senders behind",
                      TORTURE_LEFT);
}

void torture_rooms_forget(torture_run *run)
{
    for (size_t i = 0; i < TORTURE_IDS; i++) {
        torture_room *room = &run->rooms[i];
        json_decref(room->line);
        room->line = NULL;
        if (room->told != 0)
            leave_behind(run, room);
        *room = (torture_room){.line = NULL};
    }
}

void torture_senders_drop(torture_run *run)
{
    run->left_count = 0;
    for (size_t i = 0; i < TORTURE_IDS; i++) {
        torture_room *room = &run->rooms[i];
        bool waits = room->told != 0 && room->line == NULL;
        room->told = room->abort_asked = 0;
        room->sender_failed = room->orphan_aborted = room->sender_hung = false;
        if (waits)
            torture_room_free(run, room);
    }
}

void torture_senders_tell(torture_run *run)
{
    for (size_t i = 0; i < TORTURE_IDS; i++) {
        torture_room *room = &run->rooms[i];
        if (room->line == NULL)
            continue;
        room->told = clock_now();
        torture_tell(run, TORTURE_PREFILL, json_incref(room->line));
    }
}

void torture_orphans_abort(torture_run *run)
{
    uint64_t now = clock_now();
    for (size_t i = 0; i < TORTURE_IDS; i++) {
        torture_room *room = &run->rooms[i];
        if (room->told == 0 || room->line != NULL || room->orphan_aborted ||
            now - room->decode_ended < orphan_age || !torture_runs(run, TORTURE_PREFILL))
            continue;
        room->orphan_aborted = true;
        torture_tell(run, TORTURE_PREFILL, json_pack("{s:I}", "abort", (json_int_t)room->id));
    }
}

/* ---- Whether they end ----------------------------------------------------------------------------- */

static void excuse(uint64_t *from, uint64_t stopped, uint64_t now)
{
    if (*from != 0)
        *from = now - *from > stopped ? *from + stopped : now;
}

void torture_rooms_excuse(torture_run *run, torture_victim which, uint64_t stopped)
{
    uint64_t now = clock_now();
    for (size_t i = 0; i < TORTURE_IDS; i++)
        excuse(which == TORTURE_DECODE ? &run->rooms[i].opened : &run->rooms[i].told, stopped, now);
    for (size_t i = 0; i < run->left_count && which == TORTURE_PREFILL; i++)
        excuse(&run->left[i].told, stopped, now);
}

bool torture_senders_are_over(const torture_run *run)
{
    for (size_t i = 0; i < TORTURE_IDS; i++)
        if (run->rooms[i].told != 0)
            return false;
    return run->left_count == 0;
}

static bool is_overdue(const torture_run *run, uint64_t from, uint64_t now)
{
    return now - from > run->options->room_limit * SECOND;
}

static const char *receiver_waits_for(const torture_run *run, const torture_room *room)
{
    if (!torture_runs(run, TORTURE_PREFILL))
        return "there is no prefill process that runs";
    if (room->told != 0)
        return "the sender is open still";
    return "the sender's side is over";
}

void torture_receiver_check(torture_run *run, torture_room *room, uint64_t now)
{
    if (room->receiver_hung || !is_overdue(run, room->opened, now))
        return;
    room->receiver_hung = true;
    torture_break(&run->result, "the receiver of room %llu hasn't ended after %llu s: %s",
                  (unsigned long long)room->id, (unsigned long long)run->options->room_limit,
                  receiver_waits_for(run, room));
}

static void say_sender_waits(const torture_room *room, message *what)
{
    if (room->sender_failed)
        (void)message_set(what, "it has failed, and its pages are in use still");
    else if (room->orphan_aborted || room->abort_asked != 0)
        (void)message_set(what, "it was told to abort, and says nothing");
    else if (room->line != NULL)
        (void)message_set(what, "the receiver is open still");
    else if (room->decode_ended != 0)
        (void)message_set(what, "the receiver's side has ended: %s", room->decode_status);
    else
        (void)message_set(what, "its decode process is gone");
}

static void check_sender(torture_run *run, torture_room *room, uint64_t now)
{
    message what;
    if (room->told == 0 || room->sender_hung || !is_overdue(run, room->told, now))
        return;
    room->sender_hung = true;
    say_sender_waits(room, &what);
    torture_break(&run->result,
                  "the sender of room %llu hasn't ended %llu s after the prefill was told: %.160s",
                  (unsigned long long)room->id, (unsigned long long)run->options->room_limit,
                  what.text);
}

void torture_rooms_check(torture_run *run)
{
    uint64_t now = clock_now();
    if (torture_runs(run, TORTURE_DECODE))
        for (size_t i = 0; i < TORTURE_IDS; i++)
            if (run->rooms[i].line != NULL)
                torture_receiver_check(run, &run->rooms[i], now);
    if (!torture_runs(run, TORTURE_PREFILL))
        return;
    for (size_t i = 0; i < TORTURE_IDS; i++)
        check_sender(run, &run->rooms[i], now);
    for (size_t i = 0; i < run->left_count; i++)
        check_sender(run, &run->left[i], now);
}
