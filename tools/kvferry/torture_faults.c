/* The faults a run injects, by name, and how each is done and undone. */
#include "clock.h"
#include "exit_codes.h"
#include "torture.h"

#include <signal.h>
#include <string.h>

#define MILLISECOND UINT64_C(1000000)
#define PATIENCE (20000 * MILLISECOND)

enum { NO_VICTIM = TORTURE_CHILDREN, EITHER_WORKER };

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
                        [FAULT_STARVE_DESCRIPTORS] = {"starve-descriptors", EITHER_WORKER},
                        [FAULT_ABORT_DECODE] = {"abort-decode", NO_VICTIM},
                        [FAULT_ABORT_PREFILL] = {"abort-prefill", NO_VICTIM},
                        [FAULT_SLOW] = {"slow", NO_VICTIM}};

const char *torture_fault_name(torture_fault fault)
{
    return kinds[fault].name;
}

bool torture_fault_is_scheduled(torture_fault fault)
{
    return kinds[fault].victim != NO_VICTIM;
}

torture_victim torture_fault_victim(torture_fault fault, torture_victim either)
{
    return kinds[fault].victim == EITHER_WORKER ? either : (torture_victim)kinds[fault].victim;
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
                               "kill-bootstrap starve-descriptors abort-decode abort-prefill "
                               "slow",
                               (int)length, name);
        name += length;
        if (*name == '\0')
            return true;
    }
}

/* ---- Conditions to wait for ----------------------------------------------------------------------- */

static bool has_ended(const torture_run *run, torture_victim which)
{
    return run->ended[which];
}

static bool bootstrap_ended(const torture_run *run)
{
    return has_ended(run, TORTURE_BOOTSTRAP);
}

static bool prefill_ended(const torture_run *run)
{
    return has_ended(run, TORTURE_PREFILL);
}

static bool decode_ended(const torture_run *run)
{
    return has_ended(run, TORTURE_DECODE);
}

static bool prefill_ready(const torture_run *run)
{
    return run->ready[TORTURE_PREFILL] || prefill_ended(run);
}

static bool decode_ready(const torture_run *run)
{
    return run->ready[TORTURE_DECODE] || decode_ended(run);
}

static bool await_end(torture_run *run, torture_victim which)
{
    static bool (*const until[])(const torture_run *run) = {[TORTURE_BOOTSTRAP] = bootstrap_ended,
                                                            [TORTURE_PREFILL] = prefill_ended,
                                                            [TORTURE_DECODE] = decode_ended};
    return torture_pump(run, until[which], PATIENCE);
}

/* ---- Coming --------------------------------------------------------------------------------------- */

static void refuse(torture_run *run, int status, const char *why)
{
    run->result.refused = status;
    (void)message_set(&run->result.refusal, "%.200s", why);
}

/* It ended before it was ready: a wrong setting, or something the machine refuses, is not the library's fault. */
static void judge_start(torture_run *run, torture_victim which, const char *name)
{
    message why;
    message how;
    int status = torture_reap(&run->processes, which);
    (void)message_set(&why, "the %s process ended at its start, %s", name,
                      torture_how(status, &how));
    if (status == TOOL_USAGE || status == TOOL_ENVIRONMENT)
        refuse(run, status, why.text);
    else
        torture_break(&run->result, "%s", why.text);
}

static bool start(torture_run *run, torture_victim which)
{
    message why;
    if (torture_start(&run->processes, which, &why))
        return true;
    int status = torture_reap(&run->processes, which);
    refuse(run, status == TOOL_USAGE ? TOOL_USAGE : TOOL_ENVIRONMENT, why.text);
    return false;
}

static bool await_ready(torture_run *run, torture_victim which)
{
    const char *name = run->processes.children[which].name;
    if (which == TORTURE_BOOTSTRAP) /* it was waited for */
        return true;
    if (!torture_pump(run, which == TORTURE_PREFILL ? prefill_ready : decode_ready, PATIENCE))
        torture_break(&run->result, "the %s process doesn't get ready", name);
    else if (run->ended[which])
        judge_start(run, which, name);
    return run->ready[which] && !run->ended[which];
}

bool torture_bring_up(torture_run *run, torture_victim which)
{
    run->ready[which] = run->ended[which] = false;
    if (which == TORTURE_DECODE)
        run->starved = false;
    if (which == TORTURE_PREFILL && run->processes.slow) {
        run->result.effects[FAULT_SLOW].injected++;
        run->stall_seen = false;
    }
    if (!start(run, which) || !await_ready(run, which)) {
        run->given_up = true;
        return false;
    }
    if (which == TORTURE_PREFILL)
        torture_senders_tell(run);
    return true;
}

/* ---- Going ---------------------------------------------------------------------------------------- */

/* What the others know of a process that is gone. */
static void forget(torture_run *run, torture_victim which)
{
    if (which == TORTURE_PREFILL)
        torture_senders_drop(run);
    else if (which == TORTURE_DECODE)
        torture_rooms_forget(run);
}

static void kill_one(torture_run *run, torture_victim victim)
{
    torture_signal(&run->processes, victim, SIGKILL);
    if (!await_end(run, victim))
        torture_break(&run->result, "a killed process lives on");
    (void)torture_reap(&run->processes, victim);
    forget(run, victim);
}

static void ask_to_quit(torture_run *run, torture_victim which)
{
    run->summed_up = false;
    if (which == TORTURE_BOOTSTRAP)
        torture_signal(&run->processes, which, SIGTERM);
    else
        torture_tell(run, which, json_pack("{s:b}", "quit", 1));
}

/* A prefill says with its status that rooms have failed. */
static bool is_good_end(const torture_run *run, torture_victim which, int status)
{
    if (which == TORTURE_DECODE && !run->summed_up)
        return false;
    return status == TOOL_FINE || (which == TORTURE_PREFILL && status == TOOL_ROOM);
}

void torture_quit(torture_run *run, torture_victim which)
{
    const char *name = run->processes.children[which].name;
    ask_to_quit(run, which);
    bool in_time = await_end(run, which);
    if (run->result.abandoned)
        return;
    if (!in_time) {
        torture_break(&run->result, "the %s process was asked to quit and doesn't end", name);
        torture_signal(&run->processes, which, SIGKILL);
    }
    message how;
    int status = torture_reap(&run->processes, which);
    if (in_time && !is_good_end(run, which, status))
        torture_break(&run->result, "the %s process was asked to quit and ended %s%s", name,
                      torture_how(status, &how),
                      which == TORTURE_DECODE && !run->summed_up ? ", without a summary" : "");
    forget(run, which);
}

/* ---- Faults --------------------------------------------------------------------------------------- */

static void pass_time(torture_run *run, unsigned milliseconds)
{
    (void)torture_pump(run, torture_interrupted, milliseconds * MILLISECOND);
}

static void stop_and_continue(torture_run *run, const torture_step *step)
{
    uint64_t since = clock_now();
    run->stopped[step->victim] = true;
    torture_signal(&run->processes, step->victim, SIGSTOP);
    pass_time(run, step->down_ms);
    torture_signal(&run->processes, step->victim, SIGCONT);
    run->stopped[step->victim] = false;
    torture_rooms_excuse(run, step->victim, clock_now() - since);
}

static void starve_and_feed(torture_run *run, const torture_step *step)
{
    if (!torture_starve(&run->processes, step->victim)) {
        refuse(run, TOOL_ENVIRONMENT, "can't lower the descriptor limit of a process");
        run->given_up = true;
        return;
    }
    pass_time(run, step->down_ms);
    torture_feed(&run->processes, step->victim);
}

static void restart(torture_run *run, const torture_step *step)
{
    if (step->fault == FAULT_RESTART_PREFILL || step->fault == FAULT_RESTART_DECODE)
        torture_quit(run, step->victim);
    else
        kill_one(run, step->victim);
    pass_time(run, step->down_ms);
    if (step->victim == TORTURE_PREFILL)
        run->processes.slowness = step->slowness;
    if (!run->result.abandoned)
        (void)torture_bring_up(run, step->victim);
}

static void record(torture_result *result, const torture_step *step)
{
    result->effects[step->fault].injected++;
    if (result->steps < TORTURE_STEPS)
        result->schedule[result->steps++] = *step;
}

void torture_inject(torture_run *run, const torture_step *step)
{
    torture_last *last = &run->last[step->victim];
    record(&run->result, step);
    *last = (torture_last){.fault = step->fault, .at = clock_now()};
    if (step->fault == FAULT_STOP_PREFILL || step->fault == FAULT_STOP_DECODE)
        stop_and_continue(run, step);
    else if (step->fault == FAULT_STARVE_DESCRIPTORS)
        starve_and_feed(run, step);
    else
        restart(run, step);
    last->over = run->healed_from = clock_now();
    run->rooms_since = 0;
}
