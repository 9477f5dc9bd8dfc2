#include "doctor.h"

#include <stdarg.h>
#include <stdio.h>

static void set_finding(doctor_finding *finding, doctor_state state, const char *advice,
                        const char *format, va_list arguments)
{
    finding->state = state;
    (void)snprintf(finding->advice, sizeof finding->advice, "%s", advice);
    (void)vsnprintf(finding->text, sizeof finding->text, format, arguments);
}

void doctor_fine(doctor_finding *finding, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_finding(finding, DOCTOR_FINE, "", format, arguments);
    va_end(arguments);
}

void doctor_warn(doctor_finding *finding, const char *advice, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_finding(finding, DOCTOR_WARNING, advice, format, arguments);
    va_end(arguments);
}

void doctor_complain(doctor_finding *finding, const char *advice, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_finding(finding, DOCTOR_PROBLEM, advice, format, arguments);
    va_end(arguments);
}
