/* A failure: its status and the sentence that says what happened, to what, and what to do. */
#ifndef KVF_BASE_ERROR_H
#define KVF_BASE_ERROR_H

#include "kvferry/kvferry.h"

#define KVF_ERROR_TEXT_MAX 320 /* longer texts are cut */
#define KVF_STATUS_LAST KVF_CORRUPT

typedef struct kvf_error {
    kvf_status status;
    char text[KVF_ERROR_TEXT_MAX];
} kvf_error;

/* Fills `error` (which may be NULL) and returns `status`, so that a function can end with
 * `return kvf_error_set(error, KVF_LIMIT, "...")`. A text too long is cut. */
__attribute__((format(printf, 3, 4))) kvf_status kvf_error_set(kvf_error *error, kvf_status status,
                                                               const char *format, ...);

/* Puts "context: " in front of the text. */
__attribute__((format(printf, 2, 3))) void kvf_error_prefix(kvf_error *error, const char *format,
                                                            ...);

#endif
