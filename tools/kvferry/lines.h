/* The JSON lines of `kvferry prefill` and `kvferry decode`: what they are told and what they answer.
 * docs/tool.md describes them. */
#ifndef KVFERRY_TOOL_LINES_H
#define KVFERRY_TOOL_LINES_H

#include "kvferry/kvferry.h"
#include "message.h"

#include <stdio.h>

typedef enum line_kind {
    LINE_ROOM = 1,
    LINE_ABORT,
    LINE_STATISTICS,
    LINE_POISON,
    LINE_QUIT
} line_kind;

typedef struct number_list {
    uint32_t *numbers;
    size_t count;
} number_list;

typedef struct tool_line {
    line_kind kind;
    bool room_known; /* also on a line that is wrong otherwise */
    uint64_t room;
    number_list pages;
    uint64_t aux_slot;
    number_list chunks;       /* prefill: pages of each send */
    number_list source_pages; /* decode: what the pages must equal; as many as pages */
    uint64_t source_aux_slot;
    uint64_t source_seed;
    char *address; /* decode: NULL for the default */
    int64_t dp_rank;
} tool_line;

/* Reads one line a worker of `role` is told. Unknown keys are mistakes. `source_seed` is the seed of a
 * line that names none. Free the result with line_free() either way. */
bool line_parse(const char *text, size_t length, kvf_role role, uint64_t source_seed,
                tool_line *line, message *why);
void line_free(tool_line *line);

typedef enum check_result { NOT_CHECKED, CHECKED_RIGHT, CHECKED_WRONG } check_result;

/* How a room ended. Times are CLOCK_MONOTONIC, in nanoseconds. */
typedef struct room_answer {
    uint64_t room;
    kvf_status status;
    const char *reason;
    uint64_t bytes;
    uint64_t began;
    uint64_t ended;
    check_result verified;
    const char *mismatch; /* with CHECKED_WRONG */
    kvf_safety safety;
    kvf_proof proof;
} room_answer;

/* What became of the pages of a room that was answered as failed with its pages in use. */
typedef struct settled_answer {
    uint64_t room;
    kvf_safety safety;
    kvf_proof proof;
    uint64_t settled;
} settled_answer;

/* Each writes one line and flushes it; false when the stream is broken. */
bool line_write_ready(FILE *stream, kvf_role role, uint16_t port);
bool line_write_room(FILE *stream, const room_answer *answer);
bool line_write_settled(FILE *stream, const settled_answer *answer);
bool line_write_statistics(FILE *stream, const kvf_statistics *statistics);
bool line_write_poisoned(FILE *stream);
bool line_write_error(FILE *stream, const tool_line *line, uint64_t line_number,
                      const char *reason);

#endif
