/* What this machine is, in one line for a person. */
#ifndef KVFERRY_TOOL_MACHINE_H
#define KVFERRY_TOOL_MACHINE_H

#include <stddef.h>

/* E.g. "AMD EPYC 7763, 2 cores, 24 GB, Linux 6.1.0". */
void machine_describe(char *text, size_t capacity);

#endif
