/* Questions to a bootstrap server, as decode ranks ask them, with short deadlines. */
#ifndef KVFERRY_TOOL_DOCTOR_ROUTE_H
#define KVFERRY_TOOL_DOCTOR_ROUTE_H

#include "message.h"

#include <jansson.h>
#include <stdint.h>

typedef struct route_client route_client;

typedef struct route_answer {
    long status;        /* of HTTP; 0: nothing came back */
    json_t *object;     /* NULL unless the status is 200 and the body a JSON object */
    char server[64];    /* what it calls itself; "" where it doesn't */
    message trouble;    /* what happened where object is NULL */
    const char *advice; /* what to do then */
} route_answer;

/* NULL without memory. `address` is host:port and must outlive the client. */
route_client *route_open(const char *address);
void route_close(route_client *client);

/* GET /route?engine_rank=RANK&target_dp_group=GROUP; -1 and -1 ask for the sizes. Free the answer with
 * route_free(). */
void route_ask(route_client *client, int64_t rank, int64_t group, route_answer *answer);
void route_free(route_answer *answer);

/* The sizes of the prefill side. */
typedef struct route_sizes {
    int64_t tensor_ranks; /* 0: no prefill rank has registered */
    int64_t groups;
} route_sizes;

/* False where the answer holds none, with the answer's trouble and advice. Free the answer either way. */
bool route_ask_sizes(route_client *client, route_sizes *sizes, route_answer *answer);

#endif
