/* `kvferry prefill` and `kvferry decode`. */
#ifndef KVFERRY_TOOL_WORKER_H
#define KVFERRY_TOOL_WORKER_H

#include "kvferry/kvferry.h"

/* Runs until standard input has ended or a signal came; returns the exit status. */
int worker_run(kvf_role role, int count, char **arguments);

#endif
