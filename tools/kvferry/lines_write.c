#include "lines.h"

#include <jansson.h>
#include <unistd.h>

enum { REAL_DIGITS = 9 };

/* Takes the object, which may be NULL for want of memory. */
static bool write_object(FILE *stream, json_t *object)
{
    if (object == NULL)
        return false;
    int failed = json_dumpf(object, stream, JSON_COMPACT | JSON_REAL_PRECISION(REAL_DIGITS));
    json_decref(object);
    return failed == 0 && fputc('\n', stream) != EOF && fflush(stream) == 0;
}

bool line_write_ready(FILE *stream, kvf_role role, uint16_t port)
{
    return write_object(stream, json_pack("{s:b, s:s, s:i, s:i}", "ready", 1, "role",
                                          role == KVF_PREFILL ? "prefill" : "decode", "port",
                                          (int)port, "pid", (int)getpid()));
}

static const char *safety_name(kvf_safety safety)
{
    switch (safety) {
    case KVF_PAGES_IN_USE:
        return "in use";
    case KVF_PAGES_SAFE:
        return "safe";
    case KVF_PAGES_RELEASED:
        break;
    }
    return "released";
}

static json_t *check_value(check_result verified)
{
    return verified == NOT_CHECKED ? json_null() : json_boolean(verified == CHECKED_RIGHT);
}

bool line_write_room(FILE *stream, const room_answer *answer)
{
    json_t *object = json_pack(
        "{s:I, s:s, s:s, s:s, s:I, s:f, s:o, s:s, s:s, s:I, s:I}", "room", (json_int_t)answer->room,
        "state", answer->status == KVF_OK ? "success" : "failed", "status",
        kvf_status_name(answer->status), "reason", answer->reason, "bytes",
        (json_int_t)answer->bytes, "seconds", (double)(answer->ended - answer->began) / 1e9,
        "verified", check_value(answer->verified), "safety", safety_name(answer->safety), "proof",
        kvf_proof_name(answer->proof), "began_ns", (json_int_t)answer->began, "ended_ns",
        (json_int_t)answer->ended);
    if (object != NULL && answer->verified == CHECKED_WRONG)
        (void)json_object_set_new(object, "mismatch", json_string(answer->mismatch));
    return write_object(stream, object);
}

bool line_write_settled(FILE *stream, const settled_answer *answer)
{
    return write_object(stream,
                        json_pack("{s:I, s:b, s:s, s:s, s:I}", "room", (json_int_t)answer->room,
                                  "settled", 1, "safety", safety_name(answer->safety), "proof",
                                  kvf_proof_name(answer->proof), "settled_ns",
                                  (json_int_t)answer->settled));
}

bool line_write_statistics(FILE *stream, const kvf_statistics *statistics)
{
    const struct {
        const char *name;
        uint64_t value;
    } counters[] = {{"rooms_open", statistics->rooms_open},
                    {"rooms_opened", statistics->rooms_opened},
                    {"rooms_succeeded", statistics->rooms_succeeded},
                    {"rooms_failed", statistics->rooms_failed},
                    {"requests_held", statistics->requests_held},
                    {"requests_expired", statistics->requests_expired},
                    {"peers", statistics->peers},
                    {"peers_lost", statistics->peers_lost},
                    {"messages_received", statistics->messages_received},
                    {"messages_dropped", statistics->messages_dropped},
                    {"notifications_received", statistics->notifications_received},
                    {"notifications_dropped", statistics->notifications_dropped},
                    {"pages_sent", statistics->pages_sent},
                    {"writes_posted", statistics->writes_posted},
                    {"bytes_written", statistics->bytes_written},
                    {"transfers_active", statistics->transfers_active},
                    {"registered", statistics->registered},
                    {"rooms_fencing", statistics->rooms_fencing},
                    {"rooms_released", statistics->rooms_released}};
    json_t *inner = json_object();
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++)
        (void)json_object_set_new(inner, counters[i].name,
                                  json_integer((json_int_t)counters[i].value));
    return write_object(stream, json_pack("{s:o}", "statistics", inner));
}

bool line_write_poisoned(FILE *stream)
{
    return write_object(stream, json_pack("{s:b}", "poisoned", 1));
}

bool line_write_error(FILE *stream, const tool_line *line, uint64_t line_number, const char *reason)
{
    json_t *object = json_pack("{s:s, s:I}", "error", reason, "line", (json_int_t)line_number);
    if (object != NULL && line->room_known)
        (void)json_object_set_new(object, "room", json_integer((json_int_t)line->room));
    return write_object(stream, object);
}
