/* Where the command stands, on standard error: one line that changes on a terminal, plain lines
 * elsewhere. */
#ifndef KVFERRY_TOOL_PROGRESS_H
#define KVFERRY_TOOL_PROGRESS_H

#include <stdbool.h>

/* Whether standard error is a terminal that nothing else is written to meanwhile. */
bool progress_is_live(void);

__attribute__((format(printf, 1, 2))) void progress_show(const char *format, ...);

/* Wipes the changing line, so that something else can be written. */
void progress_clear(void);

#endif
