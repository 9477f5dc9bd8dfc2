#include "bootstrap/answer.h"

#include <inttypes.h>
#include <string.h>

#define ROUTE_PATH "/route"

static void answer_text(kvf_http_answer *answer, unsigned status, const char *text)
{
    answer->status = status;
    answer->content_type = KVF_CONTENT_TEXT;
    kvf_bytes_append_text(&answer->body, text);
}

bool kvf_http_wants_body(const char *method, const char *path)
{
    return strcmp(path, ROUTE_PATH) == 0 && strcmp(method, "PUT") == 0;
}

void kvf_http_answer_too_large(uint64_t limit, uint64_t length, kvf_http_answer *answer)
{
    *answer = (kvf_http_answer){.status = 413, .content_type = KVF_CONTENT_TEXT};
    kvf_bytes_append_format(
        &answer->body, "Maximum request body size %" PRIu64 " exceeded, actual body size %" PRIu64,
        limit, length);
}

static unsigned refusal_status(kvf_status status)
{
    switch (status) {
    case KVF_MISMATCH:
        return 409;
    case KVF_LIMIT:
    case KVF_NO_MEMORY:
        return 507; /* not the rank's fault: it may try again later */
    default:
        return 400;
    }
}

/* Ranks look for their row and may register again at any time: only what is new is worth a line. */
static void log_registration(const kvf_log *log, const kvf_route_registration *registration,
                             const kvf_route_rank *former)
{
    char address[KVF_ADDRESS_MAX];
    kvf_format_address(registration->rank_ip, registration->rank_port, address);
    const char *kind = registration->extended ? "kvferry" : "stock";
    if (former == NULL) {
        kvf_log_info(log, "bootstrap: rank %u of %u registered at %s (%s)",
                     registration->engine_rank, registration->tp_size, address, kind);
        return;
    }
    if (strcmp(former->rank_ip, registration->rank_ip) == 0 &&
        former->rank_port == registration->rank_port && former->extended == registration->extended)
        return;
    char former_address[KVF_ADDRESS_MAX];
    kvf_format_address(former->rank_ip, former->rank_port, former_address);
    kvf_log_info(log, "bootstrap: rank %u of %u registered at %s (%s), no longer at %s",
                 registration->engine_rank, registration->tp_size, address, kind, former_address);
}

/* The codec has checked the sizes, so the division can't fail. */
static bool find_former(const kvf_registry *registry, const kvf_route_registration *registration,
                        kvf_route_rank *former)
{
    kvf_route_topology topology;
    kvf_registry_topology(registry, &topology);
    if (!topology.known)
        return false;
    uint32_t group_size = topology.tp_size / topology.dp_size;
    return kvf_registry_rank(registry, registration->engine_rank / group_size,
                             registration->engine_rank % group_size, former);
}

static void answer_put(kvf_registry *registry, const kvf_log *log, kvf_slice body,
                       kvf_http_answer *answer)
{
    kvf_route_registration registration;
    kvf_route_rank former;
    kvf_error error;
    bool known = false;
    kvf_status status = kvf_route_registration_decode(body, &registration, &error);
    if (status == KVF_OK) {
        known = find_former(registry, &registration, &former);
        status = kvf_registry_put(registry, &registration, &error);
    }
    if (status != KVF_OK) {
        kvf_log_warning(log, "bootstrap: registration refused: %s", error.text);
        answer_text(answer, refusal_status(status), error.text);
        return;
    }
    if (registration.is_prefill)
        log_registration(log, &registration, known ? &former : NULL);
    answer_text(answer, 200, "OK");
}

static void answer_get(const kvf_registry *registry, const kvf_http_request *request,
                       kvf_http_answer *answer)
{
    if (request->engine_rank.length == 0 || request->target_dp_group.length == 0) {
        answer_text(answer, 400, "Missing inputs for bootstrap server.");
        return;
    }
    int64_t tp_rank;
    int64_t dp_group;
    if (!kvf_route_integer(request->engine_rank, &tp_rank)) {
        answer_text(answer, 400, "engine_rank is not a number");
        return;
    }
    if (!kvf_route_integer(request->target_dp_group, &dp_group)) {
        answer_text(answer, 400, "target_dp_group is not a number");
        return;
    }
    if (tp_rank == -1 && dp_group == -1) {
        kvf_route_topology topology;
        kvf_registry_topology(registry, &topology);
        kvf_route_topology_encode(&topology, &answer->body);
    } else {
        /* What GET calls engine_rank is the rank inside the dp group. */
        kvf_route_rank rank;
        if (!kvf_registry_rank(registry, dp_group, tp_rank, &rank)) {
            answer_text(answer, 404, "Bootstrap info not Found");
            return;
        }
        kvf_route_rank_encode(&rank, &answer->body);
    }
    answer->status = 200;
    answer->content_type = KVF_CONTENT_JSON;
}

void kvf_http_answer_make(kvf_registry *registry, const kvf_log *log,
                          const kvf_http_request *request, kvf_http_answer *answer)
{
    *answer = (kvf_http_answer){0};
    if (strcmp(request->path, ROUTE_PATH) != 0) {
        answer_text(answer, 404, "404: Not Found");
    } else if (strcmp(request->method, "PUT") == 0) {
        answer_put(registry, log, request->body, answer);
    } else if (strcmp(request->method, "GET") == 0) {
        answer_get(registry, request, answer);
    } else {
        /* HEAD too. Stock names JSON as the type of this plain text. */
        answer_text(answer, 405, "Method not allowed");
        answer->content_type = KVF_CONTENT_JSON;
    }
}
