#include "message.h"

#include <stdarg.h>
#include <stdio.h>

bool message_set(message *why, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(why->text, sizeof why->text, format, arguments);
    va_end(arguments);
    return false;
}
