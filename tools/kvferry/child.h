/* A process of this very program that is told JSON lines and answers with JSON lines. */
#ifndef KVFERRY_TOOL_CHILD_H
#define KVFERRY_TOOL_CHILD_H

#include "line_reader.h"
#include "message.h"

#include <jansson.h>
#include <sys/types.h>

typedef struct tool_child {
    const char *name;
    pid_t pid; /* 0: not running */
    int input; /* what it is told is written here */
    line_reader answers;
} tool_child;

/* `arguments` start with the command's name, e.g. {"prefill", "--pages", "4", NULL}. */
bool child_start(tool_child *child, const char *const *arguments, message *why);

/* Writes one object as a line; takes it. */
bool child_tell(tool_child *child, json_t *object, message *why);

/* The next answer, within `timeout_ms`; NULL and a message otherwise. The caller owns it. An answer
 * with "error" is a failure too. */
json_t *child_answer(tool_child *child, int timeout_ms, message *why);

/* Ends its input, waits for it, and kills it where that takes longer than `timeout_ms`. Returns its
 * exit status, or -1 if it had to be killed or died of a signal. */
int child_end(tool_child *child, int timeout_ms);

#endif
