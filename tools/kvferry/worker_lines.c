#include "worker_lines.h"

#include "clock.h"

#include <stdlib.h>

/* Of a room's aux buffers, the profile of SGLang 0.4.7 carries the first one. */
enum { AUX_CARRIED = 1 };

static void check_output(tool_worker *worker, bool written)
{
    if (!written)
        worker->output_broken = true;
}

void worker_refuse(tool_worker *worker, const tool_line *line, const char *reason)
{
    worker->failed++;
    check_output(worker, line_write_error(stdout, line, worker->line_number, reason));
}

/* Ends a room that the library refused before it could run. */
static void end_refused(tool_worker *worker, tool_room *room, kvf_status status)
{
    (void)message_set(&room->reason, "%s", kvf_error_text());
    room->status = status;
    room->safety = KVF_PAGES_SAFE;
    room->proof = KVF_PROOF_NEVER_DISCLOSED;
    kvf_sender_close(room->sender);
    kvf_receiver_close(room->receiver);
    room->sender = NULL;
    room->receiver = NULL;
    rooms_end(&worker->rooms, room, clock_now());
}

static kvf_status send_chunks(tool_room *room)
{
    const tool_line *line = &room->line;
    size_t sent = 0;
    for (size_t i = 0; i < line->chunks.count; i++) {
        size_t count = line->chunks.numbers[i];
        kvf_status status = kvf_sender_send(room->sender, line->pages.numbers + sent, count);
        if (status != KVF_OK)
            return kvf_sender_poll(room->sender) == KVF_FAILED ? KVF_OK : status;
        sent += count;
    }
    return KVF_OK; /* a room that has failed meanwhile says so with its event */
}

static kvf_status open_sender(tool_worker *worker, tool_room *room)
{
    const tool_line *line = &room->line;
    kvf_room_options options = {.size = sizeof options, .user = room, .dp_rank = -1};
    kvf_status status = kvf_sender_open(worker->manager, line->room, &options, &room->sender);
    if (status == KVF_OK)
        status =
            kvf_sender_expect(room->sender, (uint32_t)line->pages.count, (uint32_t)line->aux_slot);
    return status == KVF_OK ? send_chunks(room) : status;
}

static kvf_status open_receiver(tool_worker *worker, tool_room *room)
{
    const tool_line *line = &room->line;
    const char *address = line->address != NULL ? line->address : worker->options.bootstrap;
    kvf_room_options options = {.size = sizeof options, .user = room, .dp_rank = line->dp_rank};
    kvf_status status =
        kvf_receiver_open(worker->manager, address, line->room, &options, &room->receiver);
    room->began = clock_now();
    if (status == KVF_OK)
        status = kvf_receiver_expect(room->receiver, line->pages.numbers, line->pages.count,
                                     (uint32_t)line->aux_slot);
    return status;
}

static void start_room(tool_worker *worker, tool_line *line)
{
    if (rooms_find(&worker->rooms, line->room) != NULL) {
        worker_refuse(worker, line, "the room is open already, or its pages are in use still");
        return;
    }
    bool decode = worker->role == KVF_DECODE;
    if (decode && line->address == NULL && worker->options.bootstrap == NULL) {
        worker_refuse(worker, line, "no \"address\" in the line and no --bootstrap given");
        return;
    }
    tool_room *room = rooms_add(&worker->rooms, line);
    if (room == NULL) {
        worker_refuse(worker, line, "no memory for the room");
        return;
    }
    room->began = clock_now();
    kvf_status status = decode ? open_receiver(worker, room) : open_sender(worker, room);
    if (status != KVF_OK)
        end_refused(worker, room, status);
}

static void abort_room(tool_worker *worker, const tool_line *line)
{
    tool_room *room = rooms_find(&worker->rooms, line->room);
    if (room == NULL || room->answered)
        worker_refuse(worker, line, "no such room is open");
    else
        room_abort(room);
}

static void tell_statistics(tool_worker *worker)
{
    kvf_statistics statistics = {.size = sizeof statistics};
    (void)kvf_manager_statistics(worker->manager, &statistics);
    check_output(worker, line_write_statistics(stdout, &statistics));
}

static void poison_again(tool_worker *worker, const tool_line *line)
{
    if (worker->rooms.open + worker->rooms.fencing > 0) {
        worker_refuse(worker, line,
                      "rooms are open, or their pages in use: poison would overwrite what arrives");
        return;
    }
    pool_poison(&worker->pool);
    check_output(worker, line_write_poisoned(stdout));
}

void worker_take_line(tool_worker *worker, const char *text, size_t length)
{
    tool_line line;
    message why;
    bool fine = line_parse(text, length, worker->role, worker->options.seed, &line, &why);
    if (!fine) {
        worker_refuse(worker, &line, why.text);
        line_free(&line);
        return;
    }
    switch (line.kind) {
    case LINE_ROOM:
        start_room(worker, &line);
        break;
    case LINE_ABORT:
        abort_room(worker, &line);
        break;
    case LINE_STATISTICS:
        tell_statistics(worker);
        break;
    case LINE_POISON:
        poison_again(worker, &line);
        break;
    case LINE_QUIT:
        worker->quitting = true;
        break;
    }
    line_free(&line);
}

static void end_room(tool_worker *worker, tool_room *room, const kvf_event *event, uint64_t now)
{
    room->status = (kvf_status)event->status;
    room->bytes = event->bytes;
    if (event->state == KVF_FAILED)
        (void)message_set(&room->reason, "%s",
                          room->sender != NULL ? kvf_sender_failure_text(room->sender)
                                               : kvf_receiver_failure_text(room->receiver));
    rooms_end(&worker->rooms, room, now);
}

static void tell_settled(tool_worker *worker, tool_room *room, uint64_t now)
{
    settled_answer answer = {
        .room = room->line.room, .safety = room->safety, .proof = room->proof, .settled = now};
    check_output(worker, line_write_settled(stdout, &answer));
    rooms_settled(&worker->rooms, room);
}

/* A failed room whose pages are in use has a second event, when they aren't any more. */
void worker_take_event(tool_worker *worker, const kvf_event *event, uint64_t now)
{
    tool_room *room = event->user;
    if (event->state != KVF_SUCCESS && event->state != KVF_FAILED)
        return;
    room->safety = (kvf_safety)event->safety;
    room->proof = (kvf_proof)event->proof;
    if (!room->final)
        end_room(worker, room, event, now);
    else if (room->answered && room->safety != KVF_PAGES_IN_USE)
        tell_settled(worker, room, now);
}

static check_result check_room(tool_worker *worker, const tool_room *room, message *mismatch)
{
    if (worker->role != KVF_DECODE || worker->options.no_verify || room->status != KVF_OK)
        return NOT_CHECKED;
    const tool_line *line = &room->line;
    pool_claim claim = {.seed = line->source_seed,
                        .pages = line->pages.numbers,
                        .source_pages = line->source_pages.numbers,
                        .page_count = line->pages.count,
                        .aux_slot = (uint32_t)line->aux_slot,
                        .source_aux_slot = (uint32_t)line->source_aux_slot,
                        .aux_count = AUX_CARRIED};
    return pool_check(&worker->pool, &claim, mismatch) ? CHECKED_RIGHT : CHECKED_WRONG;
}

bool worker_answer_one(tool_worker *worker)
{
    tool_room *room = rooms_take_final(&worker->rooms);
    if (room == NULL)
        return false;
    message mismatch = {""};
    room_answer answer = {.room = room->line.room,
                          .status = room->status,
                          .reason = room->reason.text,
                          .bytes = room->bytes,
                          .began = room->began,
                          .ended = room->ended,
                          .verified = check_room(worker, room, &mismatch),
                          .mismatch = mismatch.text,
                          .safety = room->safety,
                          .proof = room->proof};
    if (room->status == KVF_OK && answer.verified != CHECKED_WRONG)
        worker->succeeded++;
    else
        worker->failed++;
    check_output(worker, line_write_room(stdout, &answer));
    rooms_answered(&worker->rooms, room);
    return true;
}
