#include "torture.h"

#include "clock.h"
#include "commands.h"
#include "exit_codes.h"
#include "progress.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define AT(field) offsetof(torture_options, field)
#define SECOND UINT64_C(1000000000)
#define MILLISECOND UINT64_C(1000000)

/* After a fault is over, a fresh room must have succeeded by then. */
#define HEAL_LIMIT (15 * SECOND)

/* Aborts must not take longer each than this on average. */
#define ABORT_LIMIT (100 * MILLISECOND)

static const option_row rows[] = {
    {"duration", "SECONDS", OPTION_COUNT, AT(duration), 1, 604800, "how long (30)"},
    {"seed", "N", OPTION_COUNT, AT(seed), 0, INT64_MAX - 1000000,
     "the schedule of faults follows from it (1)"},
    {"faults", "LIST", OPTION_TEXT, AT(faults), 0, 0, "with commas; see below (all)"},
    {"transports", "NAME", OPTION_TEXT, AT(transports), 0, 0,
     "shm, tcp, or any value of the setting transports (shm)"},
    {"aborts", "N", OPTION_COUNT, AT(aborts), 1, 100000000,
     "nothing but aborts on decode, in the middle of transfers, until there were N"},
    {"plant", "BUG", OPTION_TEXT, AT(plant), 0, 0,
     "ack-early: prefill says that it has stopped, and doesn't"},
    {"fence", "on|off", OPTION_TEXT, AT(fence), 0, 0,
     "off: decode reuses pages of failed rooms before they are safe (on)"},
    {"peers", "NAME", OPTION_TEXT, AT(peers), 0, 0,
     "kvferry, or stock: both workers say only what a stock one would (kvferry)"},
    {"json", NULL, OPTION_FLAG, AT(json), 0, 0, "one JSON document instead of the table"},
    {"set", "NAME=VALUE", OPTION_LIST, AT(set), 0, 0,
     "any setting of `kvferry settings`, for both workers"}};

static const option_table table = {
    "torture", "breaks a small deployment in every way it can and looks whether a byte is wrong",
    "Starts a bootstrap server, a prefill and a decode process of this program on the loopback\n"
    "interface. Rooms are moved all the time, some are aborted in the middle, and the pages of a\n"
    "failed room go to the next one in the turn in which they are said to be safe. Every byte of\n"
    "every room is compared, and unused pages hold a canary that must not change.\n"
    "\n"
    "Faults\n"
    "  kill-prefill kill-decode kill-bootstrap   SIGKILL, and a new process on the same port\n"
    "  stop-prefill stop-decode                  SIGSTOP, for 0.3 or 3 s, and SIGCONT\n"
    "  restart-prefill restart-decode            asked to quit, and started again\n"
    "  abort-decode abort-prefill                rooms are aborted in the middle of a transfer\n"
    "  slow                                      transfers are held, and one of them forever\n"
    "  all, none\n"
    "\n"
    "Promises\n"
    "  no byte lands in a page after it was said to be safe; Success means all bytes; each room\n"
    "  ends within its deadlines; no process ends unless told to; after each fault a fresh room\n"
    "  succeeds within 15 s.\n"
    "--plant and --fence off break them, to show that this would be seen.\n"
    "\n"
    "Exit status: 0 all promises were kept, 1 one was broken, 2 wrong options, 3 the machine\n"
    "refused.\n",
    rows, sizeof rows / sizeof rows[0]};

/* ---- The schedule --------------------------------------------------------------------------------- */

static bool has_fault(const torture_run *run, torture_fault fault)
{
    return (run->faults >> fault & 1U) != 0;
}

/* Whether there is a fault to schedule, and which. Aborts and slowness are there all the time. */
static bool draw_fault(torture_run *run, torture_fault *fault)
{
    torture_fault chosen[FAULT_COUNT];
    size_t count = 0;
    torture_victim ignored;
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        if (has_fault(run, (torture_fault)i) && torture_fault_hits((torture_fault)i, &ignored))
            chosen[count++] = (torture_fault)i;
    if (count == 0)
        return false;
    *fault = chosen[torture_draw(&run->random, count)];
    return true;
}

static bool never(const torture_run *run)
{
    return run->ended[TORTURE_PREFILL] || run->ended[TORTURE_DECODE];
}

static bool has_healed(const torture_run *run)
{
    return run->rooms_since > 0 || never(run);
}

static bool enough_aborts(const torture_run *run)
{
    return run->result.aborts >= run->options->aborts || never(run);
}

static bool all_run(torture_run *run)
{
    static const torture_victim workers[] = {TORTURE_PREFILL, TORTURE_DECODE};
    bool fine = true;
    for (size_t i = 0; i < 2; i++)
        if (run->ended[workers[i]]) {
            torture_break(&run->result, "the %s process ended by itself",
                          run->processes.children[workers[i]].name);
            fine = false;
        }
    return fine && !run->interrupted;
}

static void await_healing(torture_run *run, const char *after)
{
    if (run->healed_from == 0)
        run->healed_from = clock_now();
    if (!torture_pump(run, has_healed, HEAL_LIMIT) && !run->interrupted)
        torture_break(&run->result, "no room succeeded within 15 s after %s", after);
    run->healed_from = 0;
}

/* One fault, what follows from it, and some time in peace. */
static void one_fault(torture_run *run, torture_fault fault)
{
    torture_inject(run, fault);
    if (all_run(run))
        await_healing(run, torture_fault_name(fault));
    if (!run->starved || !all_run(run))
        return;
    run->starved = false;
    torture_inject(run, FAULT_RESTART_DECODE); /* it has no pages left that are proven safe */
}

static void run_by_time(torture_run *run)
{
    uint64_t end = run->result.began + run->options->duration * SECOND;
    torture_fault fault = FAULT_COUNT;
    while (all_run(run) && clock_now() < end) {
        uint64_t pause = (200 + torture_draw(&run->random, 1000)) * MILLISECOND;
        uint64_t left = end > clock_now() ? end - clock_now() : 0;
        bool any = draw_fault(run, &fault);
        (void)torture_pump(run, never, any && pause < left ? pause : left);
        if (any && all_run(run) && clock_now() < end)
            one_fault(run, fault);
        if (progress_is_live())
            progress_show(
                "%llu rooms, %llu s left", (unsigned long long)run->result.rooms,
                (unsigned long long)(end > clock_now() ? (end - clock_now()) / SECOND : 0));
    }
}

static void run_by_aborts(torture_run *run)
{
    uint64_t limit = 10 * SECOND + run->options->aborts * ABORT_LIMIT;
    if (!torture_pump(run, enough_aborts, limit) && !run->interrupted)
        torture_break(&run->result, "there were only %llu aborts in %llu s",
                      (unsigned long long)run->result.aborts, (unsigned long long)(limit / SECOND));
    if (run->result.aborts_midway * 2 < run->result.aborts)
        torture_break(&run->result, "most aborts met no transfer in its middle");
}

/* ---- Start and end -------------------------------------------------------------------------------- */

static void prepare(torture_run *run)
{
    bool only_aborts = run->options->aborts > 0;
    torture_processes *processes = &run->processes;
    if (only_aborts)
        run->faults = 1U << FAULT_ABORT_DECODE;
    run->random.seed = run->options->seed;
    processes->options = run->options;
    processes->random.seed = run->options->seed + 1;
    processes->stock = strcmp(run->options->peers, "stock") == 0;
    processes->slow = has_fault(run, FAULT_SLOW);
    processes->abort_there = has_fault(run, FAULT_ABORT_PREFILL) ? 10 : 0;
    processes->abort_here = has_fault(run, FAULT_ABORT_DECODE) ? 30 : 0;
    if (only_aborts)
        processes->abort_here = 100;
    (void)snprintf(processes->bootstrap, sizeof processes->bootstrap, "127.0.0.1:0");
}

/* What the children inherit. */
static bool settle_in(torture_run *run)
{
    const struct rlimit none = {0, 0};
    sigset_t stop;
    (void)setrlimit(RLIMIT_CORE, &none);
    (void)setenv("UCX_KEEPALIVE_INTERVAL", "1s", 0);
    (void)setenv("UCX_LOG_LEVEL", "fatal", 0); /* it complains of each peer that dies */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
    run->stop_signals = signalfd(-1, &stop, SFD_CLOEXEC);
    return run->stop_signals >= 0;
}

static bool start_all(torture_run *run)
{
    return torture_bring_up(run, TORTURE_BOOTSTRAP) && torture_bring_up(run, TORTURE_PREFILL) &&
           torture_bring_up(run, TORTURE_DECODE);
}

/* In peace at last, a room must succeed; then all rooms end and all pages are looked at. */
static void wind_up(torture_run *run)
{
    message ignored;
    if (!all_run(run))
        return;
    (void)child_tell(&run->processes.children[TORTURE_DECODE], json_pack("{s:b}", "calm", 1),
                     &ignored);
    run->rooms_since = 0;
    run->healed_from = 0;
    if (!run->starved)
        await_healing(run, "all faults");
    if (all_run(run))
        torture_end_decode(run);
}

/* Whatever state they are in. */
static void end_all(torture_run *run)
{
    static const torture_victim order[] = {TORTURE_DECODE, TORTURE_PREFILL, TORTURE_BOOTSTRAP};
    for (size_t i = 0; i < TORTURE_CHILDREN; i++) {
        torture_signal(&run->processes, order[i], SIGKILL);
        (void)torture_reap(&run->processes, order[i]);
    }
    for (size_t i = 0; i < TORTURE_IDS; i++)
        json_decref(run->rooms[i].line);
    (void)close(run->stop_signals);
}

static int carry_out(torture_run *run)
{
    run->result.began = clock_now();
    if (start_all(run)) {
        if (run->options->aborts > 0)
            run_by_aborts(run);
        else
            run_by_time(run);
        wind_up(run);
    }
    end_all(run);
    run->result.ended = clock_now();
    progress_clear();
    torture_report(run->options, run->faults, &run->result);
    return run->result.broken_count == 0 ? TOOL_FINE : TOOL_ROOM;
}

static bool check_options(const torture_options *options, unsigned *faults, message *why)
{
    if (options->plant != NULL && strcmp(options->plant, "ack-early") != 0)
        return message_set(why, "--plant: \"%.64s\" is not ack-early", options->plant);
    if (strcmp(options->fence, "on") != 0 && strcmp(options->fence, "off") != 0)
        return message_set(why, "--fence: \"%.64s\" is neither on nor off", options->fence);
    if (strcmp(options->peers, "kvferry") != 0 && strcmp(options->peers, "stock") != 0)
        return message_set(why, "--peers: \"%.64s\" is neither kvferry nor stock", options->peers);
    return torture_faults_read(options->faults, faults, why);
}

int command_torture(int count, char **arguments)
{
    torture_options options = {.duration = 30,
                               .seed = 1,
                               .faults = "all",
                               .transports = "shm",
                               .fence = "on",
                               .peers = "kvferry"};
    unsigned faults = 0;
    int result = TOOL_FINE;
    message why;
    if (!options_begin(&table, count, arguments, &options, &result))
        return result;
    if (!check_options(&options, &faults, &why)) {
        (void)fprintf(stderr, "kvferry torture: %s\n", why.text);
        return TOOL_USAGE;
    }
    torture_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return TOOL_ENVIRONMENT;
    run->options = &options;
    run->faults = faults;
    prepare(run);
    result = settle_in(run) ? carry_out(run) : TOOL_ENVIRONMENT;
    free(run);
    return result;
}
