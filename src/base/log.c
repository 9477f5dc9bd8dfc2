#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const level_names[] = {"off", "error", "warning", "info", "debug"};

void kvf_log_line(const kvf_log *log, kvf_log_level level, const char *format, ...)
{
    if (log == NULL || level > log->level || level == KVF_LOG_OFF)
        return;
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (log->callback != NULL)
        log->callback(log->user, level, line);
    else
        (void)fprintf(stderr, "kvferry: %s: %s\n", level_names[level], line);
}
