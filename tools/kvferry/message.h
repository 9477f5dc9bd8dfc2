/* Why something went wrong, in words for a person. */
#ifndef KVFERRY_TOOL_MESSAGE_H
#define KVFERRY_TOOL_MESSAGE_H

#include <stdbool.h>

typedef struct message {
    char text[768];
} message;

/* Always false, so that a function can end with `return message_set(...)`. */
__attribute__((format(printf, 2, 3))) bool message_set(message *why, const char *format, ...);

#endif
