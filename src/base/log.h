/* The log. Each message is written once, where the matter is decided. */
#ifndef KVF_BASE_LOG_H
#define KVF_BASE_LOG_H

#include "kvferry/kvferry.h"

typedef struct kvf_log {
    kvf_log_level level;
    kvf_log_callback callback; /* NULL: standard error */
    void *user;
} kvf_log;

__attribute__((format(printf, 3, 4))) void kvf_log_line(const kvf_log *log, kvf_log_level level,
                                                        const char *format, ...);

#define kvf_log_error(log, ...) kvf_log_line((log), KVF_LOG_ERROR, __VA_ARGS__)
#define kvf_log_warning(log, ...) kvf_log_line((log), KVF_LOG_WARNING, __VA_ARGS__)
#define kvf_log_info(log, ...) kvf_log_line((log), KVF_LOG_INFO, __VA_ARGS__)
#define kvf_log_debug(log, ...) kvf_log_line((log), KVF_LOG_DEBUG, __VA_ARGS__)

#endif
