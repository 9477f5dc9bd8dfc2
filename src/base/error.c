#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

kvf_status kvf_error_set(kvf_error *error, kvf_status status, const char *format, ...)
{
    if (error == NULL)
        return status;
    error->status = status;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return status;
}

void kvf_error_prefix(kvf_error *error, const char *format, ...)
{
    if (error == NULL)
        return;
    char text[KVF_ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof text)
        return;
    (void)snprintf(text + length, sizeof text - (size_t)length, ": %s", error->text);
    memcpy(error->text, text, sizeof error->text);
}

const char *kvf_status_name(kvf_status status)
{
    switch (status) {
    case KVF_OK:
        return "ok";
    case KVF_INVALID_ARGUMENT:
        return "invalid argument";
    case KVF_OUT_OF_RANGE:
        return "out of range";
    case KVF_NO_MEMORY:
        return "no memory";
    case KVF_LIMIT:
        return "limit";
    case KVF_BUSY:
        return "busy";
    case KVF_WRONG_STATE:
        return "wrong state";
    case KVF_BAD_SETTING:
        return "bad setting";
    case KVF_ADDRESS_IN_USE:
        return "address in use";
    case KVF_SYSTEM:
        return "system";
    case KVF_REGISTRATION:
        return "registration";
    case KVF_BOOTSTRAP:
        return "bootstrap";
    case KVF_TIMEOUT:
        return "timeout";
    case KVF_PEER_GONE:
        return "peer gone";
    case KVF_PROTOCOL:
        return "protocol";
    case KVF_MISMATCH:
        return "mismatch";
    case KVF_PROFILE:
        return "profile";
    case KVF_TRANSPORT:
        return "transport";
    case KVF_ABORTED:
        return "aborted";
    case KVF_SHUTDOWN:
        return "shutdown";
    case KVF_UNSUPPORTED:
        return "unsupported";
    case KVF_PEER_FAILED:
        return "peer failed";
    case KVF_CORRUPT:
        return "corrupt";
    }
    return "unknown status";
}

const char *kvf_proof_name(kvf_proof proof)
{
    switch (proof) {
    case KVF_PROOF_NONE:
        return "none";
    case KVF_PROOF_NEVER_DISCLOSED:
        return "never disclosed";
    case KVF_PROOF_COMPLETED:
        return "completed";
    case KVF_PROOF_ACKNOWLEDGED:
        return "acknowledged";
    case KVF_PROOF_RECEIVER_CLOSED:
        return "receiver closed";
    case KVF_PROOF_WRITER_EXITED:
        return "writer exited";
    case KVF_PROOF_TRANSPORT_DONE:
        return "transport done";
    }
    return "unknown";
}
