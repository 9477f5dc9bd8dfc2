#ifndef KVFERRY_TOOL_CLOCK_H
#define KVFERRY_TOOL_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds: comparable between the processes of one machine. */
uint64_t clock_now(void);

#endif
