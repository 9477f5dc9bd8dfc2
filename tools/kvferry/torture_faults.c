/* The faults a run injects, by name, and how each is done and undone. */
#include "clock.h"
#include "torture.h"

#include <signal.h>
#include <string.h>

#define MILLISECOND UINT64_C(1000000)
#define PATIENCE (20000 * MILLISECOND)

enum { NO_VICTIM = TORTURE_CHILDREN };

static const struct {
    const char *name;
    unsigned victim;
} kinds[FAULT_COUNT] = {[FAULT_KILL_PREFILL] = {"kill-prefill", TORTURE_PREFILL},
                        [FAULT_STOP_PREFILL] = {"stop-prefill", TORTURE_PREFILL},
                        [FAULT_RESTART_PREFILL] = {"restart-prefill", TORTURE_PREFILL},
                        [FAULT_KILL_DECODE] = {"kill-decode", TORTURE_DECODE},
                        [FAULT_STOP_DECODE] = {"stop-decode", TORTURE_DECODE},
                        [FAULT_RESTART_DECODE] = {"restart-decode", TORTURE_DECODE},
                        [FAULT_KILL_BOOTSTRAP] = {"kill-bootstrap", TORTURE_BOOTSTRAP},
                        [FAULT_ABORT_DECODE] = {"abort-decode", NO_VICTIM},
                        [FAULT_ABORT_PREFILL] = {"abort-prefill", NO_VICTIM},
                        [FAULT_SLOW] = {"slow", NO_VICTIM}};

const char *torture_fault_name(torture_fault fault)
{
    return kinds[fault].name;
}

bool torture_fault_hits(torture_fault fault, torture_victim *victim)
{
    if (kinds[fault].victim == NO_VICTIM)
        return false;
    *victim = (torture_victim)kinds[fault].victim;
    return true;
}

static bool add_named(const char *name, size_t length, unsigned *set)
{
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        if (strlen(kinds[i].name) == length && strncmp(kinds[i].name, name, length) == 0) {
            *set |= 1U << i;
            return true;
        }
    return false;
}

bool torture_faults_read(const char *list, unsigned *set, message *why)
{
    *set = strcmp(list, "all") == 0 ? (1U << FAULT_COUNT) - 1 : 0;
    if (*set != 0 || strcmp(list, "none") == 0)
        return true;
    for (const char *name = list;; name++) {
        size_t length = strcspn(name, ",");
        if (!add_named(name, length, set))
            return message_set(why,
                               "--faults: \"%.*s\" is none of all none kill-prefill stop-prefill "
                               "restart-prefill kill-decode stop-decode restart-decode "
                               "kill-bootstrap abort-decode abort-prefill slow",
                               (int)length, name);
        name += length;
        if (*name == '\0')
            return true;
    }
}

/* ---- Conditions to wait for ----------------------------------------------------------------------- */

static bool never(const torture_run *run)
{
    (void)run;
    return false;
}

static bool prefill_ready(const torture_run *run)
{
    return run->ready[TORTURE_PREFILL];
}

static bool decode_ready(const torture_run *run)
{
    return run->ready[TORTURE_DECODE];
}

static bool prefill_ended(const torture_run *run)
{
    return run->ended[TORTURE_PREFILL];
}

static bool decode_ended(const torture_run *run)
{
    return run->ended[TORTURE_DECODE];
}

/* ---- Coming and going ----------------------------------------------------------------------------- */

static void forget_rooms(torture_run *run)
{
    for (size_t i = 0; i < TORTURE_IDS; i++) {
        json_decref(run->rooms[i].line);
        run->rooms[i] = (torture_room){.line = NULL};
    }
}

/* A router would send the rooms that are open still to the prefill that has come back. */
static void tell_open_rooms(torture_run *run)
{
    message ignored;
    for (size_t i = 0; i < TORTURE_IDS; i++) {
        torture_room *room = &run->rooms[i];
        if (room->line == NULL)
            continue;
        room->prefill_open = true;
        (void)child_tell(&run->processes.children[TORTURE_PREFILL], json_incref(room->line),
                         &ignored);
    }
}

bool torture_bring_up(torture_run *run, torture_victim which)
{
    message why;
    run->ready[which] = run->ended[which] = false;
    if (which == TORTURE_PREFILL && run->processes.slow)
        run->result.effects[FAULT_SLOW].injected++;
    if (which == TORTURE_DECODE)
        forget_rooms(run);
    if (!torture_start(&run->processes, which, &why)) {
        torture_break(&run->result, "%s", why.text);
        return false;
    }
    if (which == TORTURE_BOOTSTRAP)
        return true;
    if (!torture_pump(run, which == TORTURE_PREFILL ? prefill_ready : decode_ready, PATIENCE)) {
        torture_break(&run->result, "the %s process doesn't get ready",
                      run->processes.children[which].name);
        return false;
    }
    if (which == TORTURE_PREFILL)
        tell_open_rooms(run);
    return true;
}

/* What a dead prefill had open is over. */
static void drop_prefill_rooms(torture_run *run)
{
    message ignored;
    for (size_t i = 0; i < TORTURE_IDS; i++) {
        torture_room *room = &run->rooms[i];
        bool waits = room->prefill_open && room->line == NULL;
        room->prefill_open = room->orphan_aborted = false;
        room->abort_asked = 0;
        if (waits)
            (void)child_tell(&run->processes.children[TORTURE_DECODE],
                             json_pack("{s:I}", "free", (json_int_t)room->id), &ignored);
    }
}

static void kill_one(torture_run *run, torture_victim victim)
{
    torture_signal(&run->processes, victim, SIGKILL);
    if (victim == TORTURE_BOOTSTRAP)
        run->ended[victim] = true;
    else if (!torture_pump(run, victim == TORTURE_PREFILL ? prefill_ended : decode_ended, PATIENCE))
        torture_break(&run->result, "a killed process lives on");
    (void)torture_reap(&run->processes, victim);
    if (victim == TORTURE_PREFILL)
        drop_prefill_rooms(run);
}

static void quit_prefill(torture_run *run)
{
    message why;
    (void)child_tell(&run->processes.children[TORTURE_PREFILL], json_pack("{s:b}", "quit", 1),
                     &why);
    if (!torture_pump(run, prefill_ended, PATIENCE))
        torture_break(&run->result, "the prefill process was told to quit and doesn't end");
    if (torture_reap(&run->processes, TORTURE_PREFILL) < 0)
        torture_break(&run->result, "the prefill process crashed at its end");
    drop_prefill_rooms(run);
}

void torture_end_decode(torture_run *run)
{
    message why;
    run->summed_up = false;
    (void)child_tell(&run->processes.children[TORTURE_DECODE], json_pack("{s:b}", "quit", 1), &why);
    if (!torture_pump(run, decode_ended, TORTURE_ROOM_LIMIT))
        torture_break(&run->result, "the decode process has rooms that don't end");
    int status = torture_reap(&run->processes, TORTURE_DECODE);
    if (status != 0 || !run->summed_up)
        torture_break(&run->result, "the decode process ended with status %d, %s", status,
                      run->summed_up ? "after its summary" : "without a summary");
}

/* Too short for anybody to notice, or too long for anybody to wait. */
static void stop_and_continue(torture_run *run, torture_victim victim)
{
    bool noticed = torture_draw(&run->random, 3) > 0;
    torture_signal(&run->processes, victim, SIGSTOP);
    (void)torture_pump(run, never, (noticed ? 3000 : 300) * MILLISECOND);
    torture_signal(&run->processes, victim, SIGCONT);
}

static void kill_and_restart(torture_run *run, torture_victim victim)
{
    kill_one(run, victim);
    (void)torture_pump(run, never, torture_draw(&run->random, 500) * MILLISECOND);
    (void)torture_bring_up(run, victim);
}

static void quit_and_restart(torture_run *run, torture_victim victim)
{
    if (victim == TORTURE_PREFILL)
        quit_prefill(run);
    else
        torture_end_decode(run);
    (void)torture_bring_up(run, victim);
}

void torture_inject(torture_run *run, torture_fault fault)
{
    torture_victim victim;
    if (!torture_fault_hits(fault, &victim))
        return;
    run->result.effects[fault].injected++;
    run->last[victim] = (torture_last){.fault = fault, .at = clock_now()};
    if (fault == FAULT_STOP_PREFILL || fault == FAULT_STOP_DECODE)
        stop_and_continue(run, victim);
    else if (fault == FAULT_RESTART_PREFILL || fault == FAULT_RESTART_DECODE)
        quit_and_restart(run, victim);
    else
        kill_and_restart(run, victim);
    run->healed_from = clock_now();
    run->rooms_since = 0;
}
