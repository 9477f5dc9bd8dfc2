/* What the bootstrap server answers to one whole HTTP request: SGLang's texts, to the byte. No I/O. */
#ifndef KVF_BOOTSTRAP_ANSWER_H
#define KVF_BOOTSTRAP_ANSWER_H

#include "base/bytes.h"
#include "base/log.h"
#include "bootstrap/registry.h"

/* aiohttp's spelling of the two content types. */
#define KVF_CONTENT_TEXT "text/plain; charset=utf-8"
#define KVF_CONTENT_JSON "application/json; charset=utf-8"

typedef struct kvf_http_request {
    const char *method;
    const char *path;
    kvf_slice engine_rank;     /* decoded query value; empty where it is missing */
    kvf_slice target_dp_group; /* likewise */
    kvf_slice body;
} kvf_http_request;

typedef struct kvf_http_answer {
    unsigned status;
    const char *content_type; /* static */
    kvf_bytes body;           /* the caller frees it; body.failed: no memory, nothing to send */
} kvf_http_answer;

/* Is the body of this request of any use? Others needn't be kept. */
bool kvf_http_wants_body(const char *method, const char *path);

/* Changes `registry` where the request is a registration, and says so in the log. */
void kvf_http_answer_make(kvf_registry *registry, const kvf_log *log,
                          const kvf_http_request *request, kvf_http_answer *answer);

/* Refusals that are decided before the request is complete. */
void kvf_http_answer_too_large(uint64_t limit, uint64_t length, kvf_http_answer *answer);

#endif
