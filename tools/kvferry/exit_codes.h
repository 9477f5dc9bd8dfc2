/* What the command's exit status means; documented in --help and the manual. */
#ifndef KVFERRY_TOOL_EXIT_CODES_H
#define KVFERRY_TOOL_EXIT_CODES_H

#include "kvferry/kvferry.h"

enum {
    TOOL_FINE = 0,
    TOOL_ROOM = 1,       /* a room, a byte or a line was wrong, or the doctor found a problem */
    TOOL_USAGE = 2,      /* options or settings are wrong */
    TOOL_ENVIRONMENT = 3 /* a port is taken, memory is short, UCX refuses */
};

/* The exit status for a library call that failed before any room was open. */
int tool_exit_of(kvf_status status);

#endif
