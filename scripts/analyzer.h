/* Included before each file by scripts/tidy.sh, and by nothing else: tells the analyzer, which looks at one file at a
 * time, that kvf_error_set() returns the status it was given. */
#include "base/error.h"

static inline kvf_status kvf_analyzer_given(kvf_status returned, kvf_status given)
{
    (void)returned;
    return given;
}

#define kvf_error_set(error, status, ...)                                                          \
    kvf_analyzer_given((kvf_error_set)(error, status, __VA_ARGS__), status)
