#include "base/last_error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local kvf_error last_error;

kvf_status kvf_last_error_keep(const kvf_error *error)
{
    last_error = *error;
    return error->status;
}

kvf_status kvf_last_error_set(kvf_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    last_error.status = status;
    (void)vsnprintf(last_error.text, sizeof last_error.text, format, arguments);
    va_end(arguments);
    return status;
}

const char *kvf_error_text(void)
{
    return last_error.text;
}
