#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

bool progress_is_live(void)
{
    return isatty(STDERR_FILENO) == 1;
}

void progress_show(const char *format, ...)
{
    bool live = progress_is_live();
    va_list arguments;
    va_start(arguments, format);
    if (live)
        (void)fputs("\r\033[K", stderr);
    (void)vfprintf(stderr, format, arguments);
    if (!live)
        (void)fputc('\n', stderr);
    va_end(arguments);
}

void progress_clear(void)
{
    if (progress_is_live())
        (void)fputs("\r\033[K", stderr);
}
