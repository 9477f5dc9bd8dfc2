/* What the workers say: rooms are passed on from the decode to the prefill, and all that ends is added up. */
#include "clock.h"
#include "torture.h"

#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* After this long without the decode's side a sender is aborted, as a router would. */
static const uint64_t orphan_age = UINT64_C(1000000000);

static const int look_again_ms = 100;

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
    if (result->broken_count < TORTURE_BROKEN) {
        message *text = &result->broken[result->broken_count];
        va_start(arguments, format);
        (void)vsnprintf(text->text, sizeof text->text, format, arguments);
        va_end(arguments);
    }
    result->broken_count++;
}

static const char *text_of(const json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));
    return text == NULL ? "" : text;
}

static uint64_t number_of(const json_t *line, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(line, key));
}

/* Where the room is kept: NULL for one of a decode process that is gone. */
static torture_room *place_of(torture_run *run, uint64_t id)
{
    uint64_t first = run->processes.decodes * TORTURE_ID_BASE;
    bool present = id >= first && id - first < TORTURE_ID_BASE;
    return present ? &run->rooms[(id - first) % TORTURE_IDS] : NULL;
}

/* NULL as well if another room has taken its place. */
static torture_room *room_of(torture_run *run, uint64_t id)
{
    torture_room *room = place_of(run, id);
    return room != NULL && room->id == id ? room : NULL;
}

static bool runs(const torture_run *run, torture_victim which)
{
    return run->ready[which] && !run->ended[which];
}

static void tell(torture_run *run, torture_victim which, json_t *line)
{
    message ignored; /* a process that has just died is noticed by the end of its output */
    (void)child_tell(&run->processes.children[which], line, &ignored);
}

/* A room's id may be used again when both sides have ended it. */
static void free_if_over(torture_run *run, const torture_room *room)
{
    if (room->line == NULL && !room->prefill_open && runs(run, TORTURE_DECODE))
        tell(run, TORTURE_DECODE, json_pack("{s:I}", "free", (json_int_t)room->id));
}

static void add_effect(torture_effect *effect, uint64_t from, uint64_t failed, uint64_t settled)
{
    effect->rooms++;
    if (failed > from && failed - from > effect->worst_to_failed)
        effect->worst_to_failed = failed - from;
    if (settled > from && settled - from > effect->worst_to_settled)
        effect->worst_to_settled = settled - from;
}

static bool tells_of_a_lost_peer(const char *status)
{
    return strcmp(status, "peer gone") == 0 || strcmp(status, "transport") == 0 ||
           strcmp(status, "bootstrap") == 0;
}

/* ---- The decode's lines -------------------------------------------------------------------------- */

static void room_opened(torture_run *run, json_t *line)
{
    uint64_t id = number_of(line, "open");
    torture_room *room = place_of(run, id);
    if (room == NULL)
        return;
    run->result.rooms++;
    run->result.ids_reused += room->id == id ? 1 : 0;
    *room = (torture_room){.id = id};
    room->line = json_pack(
        "{s:I, s:O, s:O, s:O}", "room", (json_int_t)id, "pages", json_object_get(line, "pages"),
        "chunks", json_object_get(line, "chunks"), "aux_slot", json_object_get(line, "aux_slot"));
    if (!runs(run, TORTURE_PREFILL))
        return; /* told when it is back */
    room->prefill_open = true;
    tell(run, TORTURE_PREFILL, json_incref(room->line));
}

static void abort_there(torture_run *run, const json_t *line)
{
    uint64_t id = number_of(line, "abort_there");
    torture_room *room = room_of(run, id);
    if (room == NULL || !room->prefill_open)
        return;
    room->abort_asked = clock_now();
    run->result.effects[FAULT_ABORT_PREFILL].injected++;
    tell(run, TORTURE_PREFILL, json_pack("{s:I}", "abort", (json_int_t)id));
}

/* Which fault a failed room of the decode is put down to. */
static void attribute(torture_run *run, const torture_room *room, const json_t *line)
{
    const torture_last *prefill = &run->last[TORTURE_PREFILL];
    const char *status = text_of(line, "status");
    uint64_t failed = number_of(line, "failed_ns");
    uint64_t settled = number_of(line, "settled_ns");
    uint64_t opened = number_of(line, "opened_ns");
    torture_effect *effects = run->result.effects;
    if (strcmp(status, "aborted") == 0)
        add_effect(&effects[FAULT_ABORT_DECODE], number_of(line, "aborted_ns"), failed, settled);
    else if (strcmp(status, "peer failed") == 0 && room->abort_asked != 0)
        add_effect(&effects[FAULT_ABORT_PREFILL], room->abort_asked, failed, settled);
    else if (strcmp(status, "timeout") == 0 && run->processes.slow)
        effects[FAULT_SLOW].rooms++;
    else if (tells_of_a_lost_peer(status) && opened < prefill->at && failed > prefill->at)
        add_effect(&effects[prefill->fault], prefill->at, failed, settled);
}

static void count_abort(torture_run *run, const json_t *line)
{
    double landed = json_real_value(json_object_get(line, "landed"));
    if (strcmp(text_of(line, "abort"), "here") != 0 || number_of(line, "aborted_ns") == 0)
        return;
    run->result.effects[FAULT_ABORT_DECODE].injected++;
    if (strcmp(text_of(line, "status"), "ok") == 0)
        return; /* it was over when the abort was asked for */
    run->result.aborts++;
    run->result.aborts_midway += landed > 0.01 && landed < 0.99 ? 1 : 0;
}

static void room_succeeded(torture_run *run, const json_t *line)
{
    uint64_t settled = number_of(line, "settled_ns");
    if (run->healed_from == 0 || number_of(line, "opened_ns") < run->healed_from)
        return;
    if (run->rooms_since++ == 0 && settled - run->healed_from > run->result.worst_heal)
        run->result.worst_heal = settled - run->healed_from;
}

static void room_ended(torture_run *run, const json_t *line)
{
    uint64_t id = number_of(line, "ended");
    torture_room *room = room_of(run, id);
    const char *status = text_of(line, "status");
    if (room == NULL)
        return;
    torture_count(&run->result.decode, status);
    torture_count(&run->result.proofs, json_is_true(json_object_get(line, "released"))
                                           ? "released, unproven"
                                           : text_of(line, "proof"));
    count_abort(run, line);
    run->result.bytes_verified += number_of(line, "bytes_checked");
    if (strcmp(status, "ok") == 0)
        room_succeeded(run, line);
    else
        attribute(run, room, line);
    if (number_of(line, "settled_ns") - number_of(line, "opened_ns") > TORTURE_ROOM_LIMIT)
        torture_break(&run->result, "room %llu took longer than all its deadlines",
                      (unsigned long long)id);
    if (number_of(line, "wrong_pages") > 0) {
        run->result.pages_corrupted += number_of(line, "wrong_pages");
        torture_break(&run->result, "room %llu (%s): %llu pages corrupted; the process's first: %s",
                      (unsigned long long)id, status,
                      (unsigned long long)number_of(line, "wrong_pages"),
                      text_of(line, "corrupted"));
    }
    json_decref(room->line);
    room->line = NULL;
    room->decode_ended = clock_now();
    free_if_over(run, room);
}

/* Counts the wrong pages that weren't found with a room: canaries. */
static void summed_up(torture_run *run, const json_t *line)
{
    run->summed_up = true;
    run->result.bytes_verified += number_of(line, "bytes_checked");
    run->result.canaries_corrupted += number_of(line, "canaries_corrupted");
    run->result.pages_released += number_of(line, "pages_released");
    run->result.released_written += number_of(line, "released_written");
    if (number_of(line, "canaries_corrupted") > 0)
        torture_break(&run->result, "canaries of %llu unused pages were overwritten",
                      (unsigned long long)number_of(line, "canaries_corrupted"));
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

static void attribute_sender(torture_run *run, const json_t *line)
{
    const torture_last *decode = &run->last[TORTURE_DECODE];
    uint64_t ended = number_of(line, "ended_ns");
    if (tells_of_a_lost_peer(text_of(line, "status")) && decode->at != 0 &&
        number_of(line, "began_ns") < decode->at && ended > decode->at)
        add_effect(&run->result.effects[decode->fault], decode->at, ended, ended);
}

/* The sender's side has failed, or its pages aren't in use any more. */
static void take_prefill_room(torture_run *run, const json_t *line)
{
    uint64_t id = number_of(line, "room");
    torture_room *room = room_of(run, id);
    if (json_object_get(line, "state") != NULL) {
        torture_count(&run->result.prefill, text_of(line, "status"));
        attribute_sender(run, line);
    }
    if (room == NULL || strcmp(text_of(line, "safety"), "in use") == 0)
        return;
    room->prefill_open = false;
    free_if_over(run, room);
}

/* An abort may cross the room's end. */
static bool is_harmless(const char *mistake)
{
    return strncmp(mistake, "no such room", strlen("no such room")) == 0;
}

static void take_prefill_line(torture_run *run, const json_t *line)
{
    const char *mistake = text_of(line, "error");
    if (json_object_get(line, "ready") != NULL)
        run->processes.prefill_port = number_of(line, "port");
    else if (mistake[0] != '\0' && !is_harmless(mistake))
        torture_break(&run->result, "the prefill process refuses a line: %s", mistake);
    else if (json_object_get(line, "room") != NULL && mistake[0] == '\0')
        take_prefill_room(run, line);
}

/* ---- The pump ------------------------------------------------------------------------------------ */

static void take_lines(torture_run *run, torture_victim which)
{
    tool_child *child = &run->processes.children[which];
    char *text = NULL;
    size_t length = 0;
    line_found found;
    while ((found = line_reader_next(&child->answers, &text, &length)) == LINE_WHOLE) {
        json_t *line = json_loadb(text, length, 0, NULL);
        if (json_object_get(line, "ready") != NULL)
            run->ready[which] = true;
        if (which == TORTURE_DECODE)
            take_decode_line(run, line);
        else
            take_prefill_line(run, line);
        json_decref(line);
    }
    run->ended[which] = found == LINE_END;
}

static void abort_orphans(torture_run *run)
{
    uint64_t now = clock_now();
    for (size_t i = 0; i < TORTURE_IDS; i++) {
        torture_room *room = &run->rooms[i];
        if (!room->prefill_open || room->line != NULL || room->orphan_aborted ||
            now - room->decode_ended < orphan_age || !runs(run, TORTURE_PREFILL))
            continue;
        room->orphan_aborted = true;
        tell(run, TORTURE_PREFILL, json_pack("{s:I}", "abort", (json_int_t)room->id));
    }
}

static int descriptor_of(const torture_run *run, torture_victim which)
{
    const tool_child *child = &run->processes.children[which];
    return child->pid == 0 || run->ended[which] ? -1 : child->answers.descriptor;
}

static void take_signal(torture_run *run)
{
    struct signalfd_siginfo information;
    run->interrupted = read(run->stop_signals, &information, sizeof information) > 0;
}

static bool turn(torture_run *run, int wait_ms)
{
    static const torture_victim workers[] = {TORTURE_PREFILL, TORTURE_DECODE};
    struct pollfd sources[] = {{descriptor_of(run, TORTURE_PREFILL), POLLIN, 0},
                               {descriptor_of(run, TORTURE_DECODE), POLLIN, 0},
                               {run->stop_signals, POLLIN, 0}};
    if (poll(sources, 3, wait_ms) < 0)
        return false;
    for (size_t i = 0; i < 2; i++)
        if (sources[i].revents != 0) {
            (void)line_reader_fill(&run->processes.children[workers[i]].answers);
            take_lines(run, workers[i]);
        }
    if (sources[2].revents != 0)
        take_signal(run);
    abort_orphans(run);
    return !run->interrupted;
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
