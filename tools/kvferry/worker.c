#include "worker.h"

#include "clock.h"
#include "exit_codes.h"
#include "progress.h"
#include "worker_lines.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { LINE_LIMIT = 256 << 20, EVENTS_AT_ONCE = 64 };

static const char *name_of(const tool_worker *worker)
{
    return worker->role == KVF_PREFILL ? "prefill" : "decode";
}

/* Stop signals become readable, for this thread and all that the library starts later. */
static bool catch_signals(tool_worker *worker, message *why)
{
    sigset_t stop;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    worker->signals = signalfd(-1, &stop, SFD_CLOEXEC);
    return worker->signals >= 0 || message_set(why, "can't wait for signals: %s", strerror(errno));
}

static int open_settings(tool_worker *worker, message *why)
{
    worker->settings = settings_from_options(&worker->options.set, why);
    if (worker->settings == NULL)
        return TOOL_USAGE;
    if (worker->role != KVF_PREFILL || worker->options.bootstrap == NULL)
        return TOOL_FINE;
    kvf_status status =
        kvf_settings_set(worker->settings, "bootstrap_address", worker->options.bootstrap);
    if (status != KVF_OK)
        (void)message_set(why, "%s", kvf_error_text());
    return tool_exit_of(status);
}

static int open_pool(tool_worker *worker, message *why)
{
    pool_shape shape;
    if (!worker_options_shape(&worker->options, &shape, why))
        return TOOL_USAGE;
    if (!pool_open(&worker->pool, &shape, worker->options.huge, why))
        return TOOL_ENVIRONMENT;
    if (worker->role == KVF_PREFILL)
        pool_fill(&worker->pool, worker->options.seed);
    else
        pool_poison(&worker->pool);
    return TOOL_FINE;
}

static int open_manager(tool_worker *worker, message *why)
{
    const tool_pool *pool = &worker->pool;
    const worker_options *options = &worker->options;
    kvf_layout layout = {.size = sizeof layout,
                         .buffers = pool->buffers,
                         .buffer_count = (size_t)pool->shape.buffer_count,
                         .aux = pool_aux(pool),
                         .aux_count = (size_t)pool->shape.aux_count,
                         .engine_rank = (uint32_t)options->rank,
                         .tp_size = (uint32_t)options->tp,
                         .dp_size = (uint32_t)options->dp,
                         .mla = options->mla,
                         .device = (uint32_t)options->device};
    kvf_status status = kvf_manager_open(&worker->manager, worker->role, &layout, worker->settings);
    if (status != KVF_OK)
        (void)message_set(why, "%s", kvf_error_text());
    return tool_exit_of(status);
}

static int open_worker(tool_worker *worker, message *why)
{
    int result = open_settings(worker, why);
    if (result == TOOL_FINE)
        result = catch_signals(worker, why) ? TOOL_FINE : TOOL_ENVIRONMENT;
    if (result == TOOL_FINE)
        result = open_pool(worker, why);
    if (result == TOOL_FINE)
        result = open_manager(worker, why);
    line_reader_open(&worker->input, STDIN_FILENO, LINE_LIMIT);
    return result;
}

static void close_worker(tool_worker *worker)
{
    rooms_free_all(&worker->rooms);
    kvf_manager_close(worker->manager);
    pool_close(&worker->pool);
    kvf_settings_close(worker->settings);
    line_reader_close(&worker->input);
    if (worker->signals >= 0)
        (void)close(worker->signals);
}

static void take_events(tool_worker *worker)
{
    kvf_event events[EVENTS_AT_ONCE];
    int count = kvf_manager_wait(worker->manager, events, EVENTS_AT_ONCE, 0);
    uint64_t now = clock_now();
    for (int i = 0; i < count; i++)
        worker_take_event(worker, &events[i], now);
}

static void take_lines(tool_worker *worker)
{
    char *text = NULL;
    size_t length = 0;
    if (!line_reader_fill(&worker->input))
        (void)fprintf(stderr, "kvferry %s: standard input: %s\n", name_of(worker), strerror(errno));
    while (!worker->quitting) {
        line_found found = line_reader_next(&worker->input, &text, &length);
        if (found == LINE_NONE || found == LINE_END)
            return;
        worker->line_number++;
        const tool_line unknown = {.room_known = false};
        if (found == LINE_TOO_LONG)
            worker_refuse(worker, &unknown, "the line is longer than 256 MiB");
        else if (length > strspn(text, " \t\r"))
            worker_take_line(worker, text, length);
    }
}

static bool may_answer(const tool_worker *worker)
{
    bool hold = worker->options.verify_when_idle && worker->rooms.open > 0;
    return worker->rooms.first_final != NULL && !hold;
}

/* Sleeps until something is to be done; returns at once when a room can be answered. */
static void wait_and_act(tool_worker *worker)
{
    bool reading = !worker->input.ended && !worker->quitting;
    struct pollfd sources[] = {{kvf_manager_fd(worker->manager), POLLIN, 0},
                               {worker->signals, POLLIN, 0},
                               {reading ? STDIN_FILENO : -1, POLLIN, 0}};
    if (poll(sources, 3, may_answer(worker) ? 0 : -1) < 0)
        return;
    if (sources[0].revents != 0)
        take_events(worker);
    if (sources[1].revents != 0)
        worker->quitting = true;
    if (sources[2].revents != 0)
        take_lines(worker);
    if (may_answer(worker))
        (void)worker_answer_one(worker);
}

static void show_progress(const tool_worker *worker)
{
    if (!worker->options.quiet && progress_is_live() && isatty(fileno(stdout)) == 0)
        progress_show("%zu rooms open, %llu succeeded, %llu failed", worker->rooms.open,
                      (unsigned long long)worker->succeeded, (unsigned long long)worker->failed);
}

/* Who quits needn't know when the pages are safe: they go with the process. */
static bool has_ended(const tool_worker *worker)
{
    bool answered = worker->rooms.open == 0 && worker->rooms.first_final == NULL;
    bool settled = worker->quitting || worker->rooms.fencing == 0;
    return (worker->input.ended || worker->quitting) && answered && settled;
}

static void serve(tool_worker *worker)
{
    if (!line_write_ready(stdout, worker->role, kvf_manager_port(worker->manager)))
        worker->output_broken = true;
    bool aborted = false;
    for (;;) {
        if (worker->output_broken || has_ended(worker))
            return;
        if (worker->quitting && !aborted) {
            rooms_abort_all(&worker->rooms);
            aborted = true;
        }
        wait_and_act(worker);
        show_progress(worker);
    }
}

static int result_of(const tool_worker *worker)
{
    if (worker->output_broken) {
        (void)fprintf(stderr, "kvferry %s: standard output is closed\n", name_of(worker));
        return TOOL_ENVIRONMENT;
    }
    return worker->failed == 0 ? TOOL_FINE : TOOL_ROOM;
}

int worker_run(kvf_role role, int count, char **arguments)
{
    tool_worker *worker = calloc(1, sizeof *worker);
    int result = TOOL_ENVIRONMENT;
    message why;
    if (worker == NULL)
        return result;
    worker->role = role;
    worker->signals = -1;
    if (worker_options_read(role, count, arguments, &worker->options, &result)) {
        result = open_worker(worker, &why);
        if (result == TOOL_FINE) {
            serve(worker);
            progress_clear();
            result = result_of(worker);
        } else {
            (void)fprintf(stderr, "kvferry %s: %s\n", name_of(worker), why.text);
        }
    }
    close_worker(worker);
    free(worker);
    return result;
}
