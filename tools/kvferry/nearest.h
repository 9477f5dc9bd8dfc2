/* Which of the known names a mistyped one probably meant. */
#ifndef KVFERRY_TOOL_NEAREST_H
#define KVFERRY_TOOL_NEAREST_H

#include <stddef.h>

typedef struct nearest {
    const char *word;
    const char *best; /* NULL until something was considered */
    size_t distance;
} nearest;

nearest nearest_to(const char *word);
void nearest_consider(nearest *search, const char *candidate);

#endif
