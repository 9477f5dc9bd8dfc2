/* Asynchronous HTTP towards bootstrap servers, over curl's multi interface. One thread, the event loop:
 * the client owns an epoll descriptor that becomes readable when process() has something to do. */
#ifndef KVF_BOOTSTRAP_CLIENT_H
#define KVF_BOOTSTRAP_CLIENT_H

#include "base/error.h"
#include "base/settings.h"
#include "wire/route.h"

typedef struct kvf_bootstrap_client kvf_bootstrap_client;
typedef struct kvf_bootstrap_call kvf_bootstrap_call;

typedef enum kvf_bootstrap_outcome {
    KVF_BOOTSTRAP_ANSWERED, /* 200, and the body made sense */
    KVF_BOOTSTRAP_NOT_YET,  /* 404 for a rank; nulls for the topology: registered later, perhaps */
    KVF_BOOTSTRAP_REFUSED,  /* 4xx: the server understood and refuses (PUT: 400, 409) */
    KVF_BOOTSTRAP_FAILED /* no connection, silence, 5xx except stock's 500 for an unknown rank, rubbish */
} kvf_bootstrap_outcome;

typedef struct kvf_bootstrap_answer {
    kvf_bootstrap_outcome outcome;
    kvf_route_topology topology; /* of a topology call */
    kvf_route_rank rank;         /* of a rank call */
    kvf_error error;             /* unless ANSWERED: says what happened and names the address */
} kvf_bootstrap_answer;

/* Called once for each call that wasn't canceled, inside process(). May start and cancel calls. */
typedef void (*kvf_bootstrap_done)(void *user, const kvf_bootstrap_answer *answer);

kvf_status kvf_bootstrap_client_open(const kvf_settings *settings, kvf_bootstrap_client **client,
                                     kvf_error *error);
/* Open calls are canceled. */
void kvf_bootstrap_client_close(kvf_bootstrap_client *client);

int kvf_bootstrap_client_descriptor(const kvf_bootstrap_client *client);
/* When process() must be called at the latest (base/clock.h time), KVF_NEVER without a deadline. */
uint64_t kvf_bootstrap_client_deadline(const kvf_bootstrap_client *client);
void kvf_bootstrap_client_process(kvf_bootstrap_client *client);

/* Each starts one request to "host:port" and returns at once; *call is valid until its done(). An error
 * is returned only where nothing could be started (then done() isn't called). */
kvf_status kvf_bootstrap_get_topology(kvf_bootstrap_client *client, const char *address,
                                      kvf_bootstrap_done done, void *user,
                                      kvf_bootstrap_call **call, kvf_error *error);
kvf_status kvf_bootstrap_get_rank(kvf_bootstrap_client *client, const char *address,
                                  uint32_t dp_group, uint32_t tp_rank, kvf_bootstrap_done done,
                                  void *user, kvf_bootstrap_call **call, kvf_error *error);
kvf_status kvf_bootstrap_put(kvf_bootstrap_client *client, const char *address,
                             const kvf_route_registration *registration, kvf_bootstrap_done done,
                             void *user, kvf_bootstrap_call **call, kvf_error *error);
void kvf_bootstrap_cancel(kvf_bootstrap_call *call);

#endif
