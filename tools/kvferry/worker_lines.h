/* What a worker does about each line and each event. */
#ifndef KVFERRY_TOOL_WORKER_LINES_H
#define KVFERRY_TOOL_WORKER_LINES_H

#include "line_reader.h"
#include "rooms.h"
#include "worker_options.h"

typedef struct tool_worker {
    kvf_role role;
    worker_options options;
    tool_pool pool;
    kvf_settings *settings;
    kvf_manager *manager;
    int signals; /* a signalfd */
    line_reader input;
    uint64_t line_number;
    room_table rooms;
    uint64_t succeeded;
    uint64_t failed; /* rooms, wrong bytes and lines that weren't understood */
    bool quitting;
    bool output_broken;
} tool_worker;

/* Acts on one line of standard input. */
void worker_take_line(tool_worker *worker, const char *text, size_t length);

/* Answers for a line that can't be acted on. */
void worker_refuse(tool_worker *worker, const tool_line *line, const char *reason);

void worker_take_event(tool_worker *worker, const kvf_event *event, uint64_t now);

/* Checks and answers one room that has ended. False: there is none. */
bool worker_answer_one(tool_worker *worker);

#endif
