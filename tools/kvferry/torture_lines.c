/* What the workers say: rooms are passed on from the decode to the prefill, and all that ends is added up. */
#include "clock.h"
#include "torture.h"

#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const int look_again_ms = 100;

/* A signal that comes so soon after another one asks for nothing new. */
static const uint64_t same_signal = UINT64_C(500000000);

void torture_count(torture_tally *tally, const char *name)
{
    size_t i = 0;
    while (i < tally->used && strcmp(tally->names[i], name) != 0)
        i++;
    if (i == TORTURE_NAMES)
        return; /* there are fewer statuses and proofs than this */
    if (i == tally->used)
        (void)snprintf(tally->names[tally->used++], sizeof tally->names[0], "%s", name);
    tally->counts[i]++;
}

void torture_break(torture_result *result, const char *format, ...)
{
    va_list arguments;
    if (result->abandoned)
        return;
    if (result->broken_count < TORTURE_BROKEN) {
        message *text = &result->broken[result->broken_count];
        va_start(arguments, format);
        (void)vsnprintf(text->text, sizeof text->text, format, arguments);
        va_end(arguments);
    }
    result->broken_count++;
}

const char *torture_text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text == NULL ? "" : text;
}

uint64_t torture_number_of(const json_t *line, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(line, key));
}

bool torture_takes_lines(const torture_run *run, torture_victim which)
{
    return run->ready[which] && !run->ended[which];
}

bool torture_runs(const torture_run *run, torture_victim which)
{
    return torture_takes_lines(run, which) && !run->stopped[which];
}

void torture_tell(torture_run *run, torture_victim which, json_t *line)
{
    message ignored; /* a process that has just died is noticed by the end of its output */
    (void)child_tell(&run->processes.children[which], line, &ignored);
}

static void raise_to(uint64_t *worst, uint64_t value)
{
    if (value > *worst)
        *worst = value;
}

/* ---- The decode's lines -------------------------------------------------------------------------- */

static void room_opened(torture_run *run, json_t *line)
{
    uint64_t id = torture_number_of(line, "open");
    torture_room *room = torture_room_place(run, id);
    if (room == NULL)
        return;
    run->result.rooms++;
    run->result.ids_reused += room->id == id ? 1 : 0;
    *room = (torture_room){.id = id, .opened = clock_now()};
    room->line = json_pack(
        "{s:I, s:O, s:O, s:O}", "room", (json_int_t)id, "pages", json_object_get(line, "pages"),
        "chunks", json_object_get(line, "chunks"), "aux_slot", json_object_get(line, "aux_slot"));
    if (!torture_takes_lines(run, TORTURE_PREFILL))
        return; /* told when it is back */
    room->told = clock_now();
    torture_tell(run, TORTURE_PREFILL, json_incref(room->line));
}

static void abort_there(torture_run *run, const json_t *line)
{
    uint64_t id = torture_number_of(line, "abort_there");
    torture_room *room = torture_room_find(run, id);
    if (room == NULL || room->told == 0)
        return;
    room->abort_asked = clock_now();
    run->result.effects[FAULT_ABORT_PREFILL].injected++;
    torture_tell(run, TORTURE_PREFILL, json_pack("{s:I}", "abort", (json_int_t)id));
}

static void count_abort(torture_run *run, const json_t *line)
{
    double landed = json_real_value(json_object_get(line, "landed"));
    if (strcmp(torture_text_of(line, "abort"), "here") != 0 ||
        torture_number_of(line, "aborted_ns") == 0)
        return;
    run->result.effects[FAULT_ABORT_DECODE].injected++;
    if (strcmp(torture_text_of(line, "status"), "ok") == 0)
        return; /* it was over when the abort was asked for */
    run->result.aborts++;
    run->result.aborts_midway += landed > 0.01 && landed < 0.99 ? 1 : 0;
}

static void room_succeeded(torture_run *run, const json_t *line)
{
    uint64_t settled = torture_number_of(line, "settled_ns");
    if (run->healed_from == 0 || torture_number_of(line, "opened_ns") < run->healed_from)
        return;
    if (run->rooms_since++ == 0 && settled - run->healed_from > run->result.worst_heal)
        run->result.worst_heal = settled - run->healed_from;
}

static void check_bytes(torture_run *run, uint64_t id, const json_t *line)
{
    uint64_t wrong = torture_number_of(line, "wrong_pages");
    run->result.bytes_verified += torture_number_of(line, "bytes_checked");
    if (wrong == 0)
        return;
    run->result.pages_corrupted += wrong;
    torture_break(&run->result, "room %llu (%s): %llu pages corrupted; the process's first: %s",
                  (unsigned long long)id, torture_text_of(line, "status"),
                  (unsigned long long)wrong, torture_text_of(line, "corrupted"));
}

static void time_receiver(torture_result *result, const json_t *line)
{
    uint64_t opened = torture_number_of(line, "opened_ns");
    uint64_t failed = torture_number_of(line, "failed_ns");
    uint64_t settled = torture_number_of(line, "settled_ns");
    raise_to(&result->worst_decode.end, (failed == 0 ? settled : failed) - opened);
    raise_to(&result->worst_decode.settled, settled - opened);
}

static void room_ended(torture_run *run, const json_t *line)
{
    uint64_t id = torture_number_of(line, "ended");
    torture_room *room = torture_room_find(run, id);
    const char *status = torture_text_of(line, "status");
    if (room == NULL)
        return;
    torture_count(&run->result.decode, status);
    torture_count(&run->result.proofs, json_is_true(json_object_get(line, "released"))
                                           ? "released, unproven"
                                           : torture_text_of(line, "proof"));
    count_abort(run, line);
    check_bytes(run, id, line);
    time_receiver(&run->result, line);
    if (strcmp(status, "ok") == 0)
        room_succeeded(run, line);
    else
        torture_receiver_failed(run, room, line);
    torture_receiver_check(run, room, torture_number_of(line, "settled_ns"));
    json_decref(room->line);
    room->line = NULL;
    room->decode_ended = clock_now();
    (void)snprintf(room->decode_status, sizeof room->decode_status, "%s", status);
    torture_room_free(run, room);
}

/* Counts the wrong pages that weren't found with a room: canaries. */
static void summed_up(torture_run *run, const json_t *line)
{
    run->summed_up = true;
    run->result.bytes_verified += torture_number_of(line, "bytes_checked");
    run->result.canaries_corrupted += torture_number_of(line, "canaries_corrupted");
    run->result.pages_released += torture_number_of(line, "pages_released");
    run->result.released_written += torture_number_of(line, "released_written");
    if (torture_number_of(line, "canaries_corrupted") > 0)
        torture_break(&run->result, "canaries of %llu unused pages were overwritten",
                      (unsigned long long)torture_number_of(line, "canaries_corrupted"));
}

static void take_decode_line(torture_run *run, json_t *line)
{
    if (json_object_get(line, "open") != NULL)
        room_opened(run, line);
    else if (json_object_get(line, "abort_there") != NULL)
        abort_there(run, line);
    else if (json_object_get(line, "ended") != NULL)
        room_ended(run, line);
    else if (json_object_get(line, "summary") != NULL)
        summed_up(run, line);
    else if (json_object_get(line, "starved") != NULL)
        run->starved = true;
}

/* ---- The prefill's lines ------------------------------------------------------------------------- */

static void sender_ended(torture_run *run, torture_room *room, const json_t *line)
{
    const char *status = torture_text_of(line, "status");
    uint64_t ended = torture_number_of(line, "ended_ns");
    torture_count(&run->result.prefill, status);
    if (room == NULL)
        return;
    room->sender_began = torture_number_of(line, "began_ns");
    raise_to(&run->result.worst_prefill.end, ended - room->sender_began);
    raise_to(&run->result.worst_prefill.settled, ended - room->sender_began);
    if (strcmp(status, "ok") != 0)
        torture_sender_failed(run, room, line);
}

/* The sender's side has failed, or its pages aren't in use any more. */
static void take_prefill_room(torture_run *run, const json_t *line)
{
    torture_room *room = torture_room_find(run, torture_number_of(line, "room"));
    uint64_t settled = torture_number_of(line, "settled_ns");
    if (json_object_get(line, "state") != NULL)
        sender_ended(run, room, line);
    if (room == NULL)
        return;
    room->sender_failed = strcmp(torture_text_of(line, "safety"), "in use") == 0;
    if (settled > room->sender_began)
        raise_to(&run->result.worst_prefill.settled, settled - room->sender_began);
    if (!room->sender_failed)
        torture_sender_over(run, room);
}

/* An abort may cross the room's end. */
static bool is_harmless(const char *mistake)
{
    return strncmp(mistake, "no such room", strlen("no such room")) == 0;
}

static void take_prefill_line(torture_run *run, const json_t *line)
{
    const char *mistake = torture_text_of(line, "error");
    if (json_object_get(line, "ready") != NULL)
        run->processes.prefill_port = torture_number_of(line, "port");
    else if (mistake[0] != '\0' && !is_harmless(mistake))
        torture_break(&run->result, "the prefill process refuses a line: %s", mistake);
    else if (json_object_get(line, "room") != NULL && mistake[0] == '\0')
        take_prefill_room(run, line);
}

/* ---- The pump ------------------------------------------------------------------------------------ */

static void set_ready(torture_run *run, torture_victim which)
{
    run->ready[which] = true;
}

/* The bootstrap server's lines are nobody's; their end is the end of the process. */
static void take_lines(torture_run *run, torture_victim which)
{
    tool_child *child = &run->processes.children[which];
    char *text = NULL;
    size_t length = 0;
    line_found found;
    while ((found = line_reader_next(&child->answers, &text, &length)) == LINE_WHOLE) {
        json_t *line = json_loadb(text, length, 0, NULL);
        if (json_object_get(line, "ready") != NULL)
            set_ready(run, which);
        if (which == TORTURE_DECODE)
            take_decode_line(run, line);
        else if (which == TORTURE_PREFILL)
            take_prefill_line(run, line);
        json_decref(line);
    }
    run->ended[which] = found == LINE_END;
}

static int descriptor_of(const torture_run *run, torture_victim which)
{
    const tool_child *child = &run->processes.children[which];
    return child->pid == 0 || run->ended[which] ? -1 : child->answers.descriptor;
}

/* One key may come as two signals, to this process and to its group. */
static void take_signal(torture_run *run)
{
    struct signalfd_siginfo information;
    uint64_t now = clock_now();
    if (read(run->stop_signals, &information, sizeof information) <= 0)
        return;
    if (run->signaled == 0)
        run->signaled = now;
    run->result.interrupted = true;
    run->result.abandoned = run->result.abandoned || now - run->signaled > same_signal;
}

bool torture_interrupted(const torture_run *run)
{
    return run->signaled != 0 && !run->winding_up;
}

static bool turn(torture_run *run, int wait_ms)
{
    struct pollfd sources[TORTURE_CHILDREN + 1] = {
        [TORTURE_CHILDREN] = {run->stop_signals, POLLIN, 0}};
    for (unsigned i = 0; i < TORTURE_CHILDREN; i++)
        sources[i] = (struct pollfd){descriptor_of(run, (torture_victim)i), POLLIN, 0};
    if (poll(sources, TORTURE_CHILDREN + 1, wait_ms) < 0)
        return false;
    for (unsigned i = 0; i < TORTURE_CHILDREN; i++)
        if (sources[i].revents != 0) {
            (void)line_reader_fill(&run->processes.children[i].answers);
            take_lines(run, (torture_victim)i);
        }
    if (sources[TORTURE_CHILDREN].revents != 0)
        take_signal(run);
    torture_orphans_abort(run);
    torture_rooms_check(run);
    return !run->result.abandoned;
}

bool torture_pump(torture_run *run, bool (*until)(const torture_run *run), uint64_t timeout_ns)
{
    uint64_t deadline = clock_now() + timeout_ns;
    while (!until(run)) {
        uint64_t now = clock_now();
        if (now >= deadline)
            return false;
        uint64_t left_ms = (deadline - now) / 1000000 + 1;
        if (!turn(run, left_ms < (uint64_t)look_again_ms ? (int)left_ms : look_again_ms))
            return false;
    }
    return true;
}
