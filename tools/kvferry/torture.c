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
    {"duration", "SECONDS", OPTION_COUNT, AT(duration), 1, 604800,
     "how long (30); not with --aborts"},
    {"seed", "N", OPTION_COUNT, AT(seed), 0, INT64_MAX - 1000000,
     "the schedule of faults follows from it (1)"},
    {"faults", "LIST", OPTION_TEXT, AT(faults), 0, 0,
     "with commas; see below (all); not with --aborts"},
    {"transports", "NAME", OPTION_TEXT, AT(transports), 0, 0,
     "shm, tcp, or any value of the setting transports (shm)"},
    {"aborts", "N", OPTION_COUNT, AT(aborts), 1, 100000000,
     "nothing but aborts on decode, in the middle of transfers, until there were N"},
    {"room-limit", "SECONDS", OPTION_COUNT, AT(room_limit), 1, 604800,
     "a room that hasn't ended by then has hung (20)"},
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
    "  starve-descriptors                        prefill or decode can open none for 1 to 3 s\n"
    "  abort-decode abort-prefill                rooms are aborted in the middle of a transfer\n"
    "  slow                                      transfers are held, and one of them forever\n"
    "  all, none\n"
    "A cut network, a full disk and limits of memory aren't among them: they need root or other\n"
    "settings, and are the end-to-end tests' only.\n"
    "\n"
    "Promises\n"
    "  no byte lands in a page after it was said to be safe; Success means all bytes; each room\n"
    "  ends on both sides; no process ends unless told to, nor with an error when it is; after\n"
    "  each fault a fresh room succeeds within 15 s.\n"
    "--plant and --fence off break them, to show that this would be seen.\n"
    "\n"
    "SIGINT and SIGTERM end the run early, with all that there is to look at at its end; a second\n"
    "one abandons it.\n"
    "\n"
    "Exit status: 0 all promises were kept, 1 one was broken, 2 wrong options or settings, 3 the\n"
    "machine refused, or the run was abandoned.\n",
    rows, sizeof rows / sizeof rows[0]};

/* ---- The schedule --------------------------------------------------------------------------------- */

static bool has_fault(const torture_run *run, torture_fault fault)
{
    return (run->faults >> fault & 1U) != 0;
}

static bool one_has_ended(const torture_run *run)
{
    return run->ended[TORTURE_BOOTSTRAP] || run->ended[TORTURE_PREFILL] ||
           run->ended[TORTURE_DECODE];
}

/* There is nothing else to wait for. */
static bool cannot_go_on(const torture_run *run)
{
    return one_has_ended(run) || run->given_up || torture_interrupted(run);
}

/* One that has no pages left can't show it, and is restarted. */
static bool has_healed(const torture_run *run)
{
    return run->rooms_since > 0 || run->starved || cannot_go_on(run);
}

static bool senders_are_over(const torture_run *run)
{
    return run->ended[TORTURE_PREFILL] || torture_senders_are_over(run);
}

static bool enough_aborts(const torture_run *run)
{
    return run->result.aborts >= run->options->aborts || cannot_go_on(run);
}

static void say_that_it_ended(torture_run *run, torture_victim which)
{
    const char *name = run->processes.children[which].name;
    message how;
    int status = torture_reap(&run->processes, which);
    torture_break(&run->result, "the %s process ended by itself, %s", name,
                  torture_how(status, &how));
}

/* Whether none has ended unasked. */
static bool all_run(torture_run *run)
{
    for (unsigned i = 0; i < TORTURE_CHILDREN && !run->given_up; i++)
        if (run->ended[i] && !run->told[i]) {
            run->told[i] = true;
            say_that_it_ended(run, (torture_victim)i);
        }
    return !run->given_up && !one_has_ended(run);
}

static bool goes_on(torture_run *run)
{
    return all_run(run) && !torture_interrupted(run);
}

static void await_healing(torture_run *run, const char *after)
{
    if (run->healed_from == 0)
        run->healed_from = clock_now();
    if (!torture_pump(run, has_healed, HEAL_LIMIT))
        torture_break(&run->result, "no room succeeded within 15 s after %s", after);
    run->healed_from = 0;
}

/* It has no pages left that are proven safe. That is no fault, and isn't counted as one. */
static void restart_starved(torture_run *run)
{
    run->starved = false;
    run->result.starved_restarts++;
    torture_quit(run, TORTURE_DECODE);
    run->rooms_since = 0;
    if (!run->result.abandoned && torture_bring_up(run, TORTURE_DECODE))
        await_healing(run, "a restart for want of pages");
}

/* One fault, what follows from it, and some time in peace. */
static void one_fault(torture_run *run, const torture_step *step)
{
    torture_inject(run, step);
    if (goes_on(run))
        await_healing(run, torture_fault_name(step->fault));
    if (run->starved && goes_on(run))
        restart_starved(run);
}

static void run_by_time(torture_run *run)
{
    uint64_t end = run->result.began + run->options->duration * SECOND;
    torture_step step = {.pause_ms = 0};
    while (goes_on(run) && clock_now() < end) {
        bool any = torture_next_step(&run->schedule, run->faults, &step);
        uint64_t pause = step.pause_ms * MILLISECOND;
        uint64_t left = end > clock_now() ? end - clock_now() : 0;
        (void)torture_pump(run, cannot_go_on, any && pause < left ? pause : left);
        if (any && goes_on(run) && clock_now() < end)
            one_fault(run, &step);
        if (progress_is_live())
            progress_show(
                "%llu rooms, %llu s left", (unsigned long long)run->result.rooms,
                (unsigned long long)(end > clock_now() ? (end - clock_now()) / SECOND : 0));
    }
}

static void run_by_aborts(torture_run *run)
{
    uint64_t limit = 10 * SECOND + run->options->aborts * ABORT_LIMIT;
    if (!torture_pump(run, enough_aborts, limit))
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
    run->schedule.random.seed = run->options->seed;
    processes->options = run->options;
    processes->slowness = torture_draw_slowness(&run->schedule.random);
    processes->stock = strcmp(run->options->peers, "stock") == 0;
    processes->slow = has_fault(run, FAULT_SLOW);
    processes->abort_there = has_fault(run, FAULT_ABORT_PREFILL) ? 10 : 0;
    processes->abort_here = has_fault(run, FAULT_ABORT_DECODE) ? 30 : 0;
    if (only_aborts)
        processes->abort_here = 100;
    (void)snprintf(processes->bootstrap, sizeof processes->bootstrap, "127.0.0.1:0");
}

/* An instrumented worker that ends with a complaint must not look like one with failed rooms. */
static void set_sanitizer_status(void)
{
    static const char *const names[] = {"ASAN_OPTIONS", "LSAN_OPTIONS", "UBSAN_OPTIONS",
                                        "TSAN_OPTIONS"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *before = getenv(names[i]);
        message value;
        (void)message_set(&value, "%.200s:exitcode=86", before == NULL ? "" : before);
        (void)setenv(names[i], value.text, 1);
    }
}

/* What the children inherit. */
static bool settle_in(torture_run *run)
{
    const struct rlimit none = {0, 0};
    sigset_t stop;
    (void)setrlimit(RLIMIT_CORE, &none);
    set_sanitizer_status();
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

/* A prefill that is asked to quit would end them. */
static void await_senders(torture_run *run)
{
    (void)torture_pump(run, senders_are_over, (run->options->room_limit + 1) * SECOND);
    torture_rooms_check(run);
}

/* In peace at last, a room must succeed; then all rooms end on both sides, all pages are looked at, and all processes
 * quit. */
static void wind_up(torture_run *run)
{
    run->winding_up = true;
    if (!all_run(run))
        return;
    torture_tell(run, TORTURE_DECODE, json_pack("{s:b}", "calm", 1));
    run->rooms_since = 0;
    run->healed_from = 0;
    if (!run->starved)
        await_healing(run, "all faults");
    if (!all_run(run))
        return;
    torture_quit(run, TORTURE_DECODE);
    if (!run->result.abandoned)
        await_senders(run);
    if (!run->result.abandoned)
        torture_quit(run, TORTURE_PREFILL);
    if (!run->result.abandoned)
        torture_quit(run, TORTURE_BOOTSTRAP);
}

/* Whatever state they are in. */
static void end_all(torture_run *run)
{
    static const torture_victim order[] = {TORTURE_DECODE, TORTURE_PREFILL, TORTURE_BOOTSTRAP};
    for (size_t i = 0; i < TORTURE_CHILDREN; i++) {
        torture_signal(&run->processes, order[i], SIGKILL);
        (void)torture_reap(&run->processes, order[i]);
    }
    torture_rooms_forget(run);
    (void)close(run->stop_signals);
}

static int exit_status(const torture_result *result)
{
    if (result->broken_count > 0)
        return TOOL_ROOM;
    if (result->refused != 0)
        return result->refused;
    return result->abandoned ? TOOL_ENVIRONMENT : TOOL_FINE;
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
    return exit_status(&run->result);
}

/* Fills in what wasn't given, too. */
static bool check_options(torture_options *options, unsigned *faults, message *why)
{
    if (options->aborts > 0 && (options->duration > 0 || options->faults != NULL))
        return message_set(why, "--aborts goes neither with --duration nor with --faults");
    if (options->duration == 0)
        options->duration = 30;
    if (options->faults == NULL)
        options->faults = "all";
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
    torture_options options = {
        .seed = 1, .room_limit = 20, .transports = "shm", .fence = "on", .peers = "kvferry"};
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
