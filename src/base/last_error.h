/* Behind kvf_error_text(): the last failure on this thread. For the functions of the public header. */
#ifndef KVF_BASE_LAST_ERROR_H
#define KVF_BASE_LAST_ERROR_H

#include "base/error.h"

/* Remembers `error` for this thread and returns its status. */
kvf_status kvf_last_error_keep(const kvf_error *error);

/* The same from a format. */
__attribute__((format(printf, 2, 3))) kvf_status kvf_last_error_set(kvf_status status,
                                                                    const char *format, ...);

#endif
