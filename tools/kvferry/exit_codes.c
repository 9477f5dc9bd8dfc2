#include "exit_codes.h"

int tool_exit_of(kvf_status status)
{
    switch (status) {
    case KVF_OK:
        return TOOL_FINE;
    case KVF_INVALID_ARGUMENT:
    case KVF_OUT_OF_RANGE:
    case KVF_LIMIT:
    case KVF_BAD_SETTING:
        return TOOL_USAGE;
    default:
        return TOOL_ENVIRONMENT;
    }
}
