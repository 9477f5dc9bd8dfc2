/* Puts, flushes and notifications of the UCX engine. Callbacks only count; kvf_transfers_advance() moves
 * things on. UCX's own pool gives the requests: nothing is allocated here. */
#include "data/ucx.h"

static kvf_transfers *transfers_of(const kvf_transfer *transfer)
{
    return &transfer->peer->engine->transfers;
}

static void put_failed(const kvf_put *put, ucs_status_t status)
{
    char versions[128];
    kvf_ucx_name_versions(put->transfer->peer, versions, sizeof versions);
    kvf_transfers_fail(put->transfer, kvf_ucx_status(status),
                       "a write of %llu bytes failed: %s (%s)",
                       (unsigned long long)put->write.length, ucs_status_string(status), versions);
}

static void put_ended(void *request, ucs_status_t status, void *context)
{
    kvf_put *put = context;
    ucp_request_free(request);
    if (status != UCS_OK)
        put_failed(put, status);
    kvf_transfers_put_ended(transfers_of(put->transfer), put);
}

/* What an operation returned at once. */
static kvf_outcome outcome_of(ucs_status_ptr_t result)
{
    if (result == NULL)
        return KVF_OUTCOME_DONE;
    return UCS_PTR_IS_ERR(result) ? KVF_OUTCOME_FAILED : KVF_OUTCOME_PENDING;
}

/* The region indices come from our own tables and were checked when the spans were made. */
static kvf_outcome post_put_now(kvf_put *put)
{
    const kvf_engine_peer *peer = put->transfer->peer;
    const kvf_ucx *engine = peer->engine;
    const kvf_write *write = &put->write;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FLAG_MULTI_SEND,
        .cb = {.send = put_ended},
        .user_data = put,
        .memh = engine->regions[write->source_region].memory,
    };
    ucs_status_ptr_t result =
        ucp_put_nbx(peer->endpoint, (const void *)(uintptr_t)write->source, write->length,
                    write->destination, peer->keys[write->destination_region], &param);
    if (UCS_PTR_IS_ERR(result))
        put_failed(put, UCS_PTR_STATUS(result));
    return outcome_of(result);
}

static void hold_put(kvf_engine_peer *peer, kvf_put *put)
{
    put->next = NULL;
    if (peer->held == NULL)
        peer->held = put;
    else
        peer->held_last->next = put;
    peer->held_last = put;
}

static kvf_put *take_held(kvf_engine_peer *peer)
{
    kvf_put *put = peer->held;
    peer->held = put->next;
    return put;
}

static kvf_outcome post_put(void *context, kvf_put *put)
{
    (void)context;
    kvf_engine_peer *peer = put->transfer->peer;
    if (peer->greeted && peer->held == NULL)
        return post_put_now(put);
    hold_put(peer, put);
    return KVF_OUTCOME_PENDING;
}

/* False when it is too late to post, and some are left. */
static bool release_held(kvf_engine_peer *peer)
{
    kvf_ucx *engine = peer->engine;
    while (peer->held != NULL) {
        if (!kvf_engine_may_post(&engine->base))
            return false;
        kvf_put *put = take_held(peer);
        if (post_put_now(put) != KVF_OUTCOME_PENDING)
            kvf_transfers_put_ended(&engine->transfers, put);
    }
    return true;
}

void kvf_ucx_release_greeted(kvf_ucx *engine)
{
    if (!engine->greeted)
        return;
    bool all = true;
    for (kvf_engine_peer *peer = engine->peers; peer != NULL; peer = peer->next)
        if (peer->greeted && !peer->base.failed)
            all = release_held(peer) && all;
    engine->greeted = !all;
}

void kvf_ucx_end_held(kvf_engine_peer *peer)
{
    while (peer->held != NULL) {
        kvf_put *put = take_held(peer);
        kvf_transfers_fail(put->transfer, KVF_PEER_GONE, "%s", peer->base.failure);
        kvf_transfers_put_ended(&peer->engine->transfers, put);
    }
}

void kvf_ucx_drop_held(kvf_transfer *transfer)
{
    kvf_engine_peer *peer = transfer->peer;
    kvf_put *list = peer->held;
    peer->held = NULL;
    while (list != NULL) {
        kvf_put *put = list;
        list = put->next;
        if (put->transfer == transfer)
            kvf_transfers_put_ended(&peer->engine->transfers, put);
        else
            hold_put(peer, put);
    }
}

static void greeted(void *request, ucs_status_t status, void *context)
{
    (void)status; /* where it failed, the puts do too, and say so */
    kvf_engine_peer *peer = context;
    ucp_request_free(request);
    peer->greeted = true;
    peer->engine->greeted = true; /* its puts go when it has been seen that they still may */
}

/* A message that asks for a way to reply is complete when the peer's worker has one. Without it the peer would
 * make one in the middle of our first writes, and UCX's TCP (1.22 and before) ends the peer's process when a
 * connection that has received half a write changes hands so; seen where there are two TCP devices. An empty
 * message on NIXL's former id of "disconnect": nobody looks at it. */
void kvf_ucx_greet(kvf_engine_peer *peer)
{
    enum { ID = 2 };
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY,
        .cb = {.send = greeted},
        .user_data = peer,
    };
    ucs_status_ptr_t result = ucp_am_send_nbx(peer->endpoint, ID, NULL, 0, NULL, 0, &param);
    peer->greeted = outcome_of(result) != KVF_OUTCOME_PENDING;
}

static void flush_failed(kvf_transfer *transfer, ucs_status_t status)
{
    kvf_transfers_fail(transfer, kvf_ucx_status(status), "the flush failed: %s",
                       ucs_status_string(status));
}

static void flush_ended(void *request, ucs_status_t status, void *context)
{
    kvf_transfer *transfer = context;
    ucp_request_free(request);
    if (status != UCS_OK)
        flush_failed(transfer, status);
    kvf_transfers_step_ended(transfers_of(transfer), transfer);
}

static kvf_outcome post_flush(void *context, kvf_transfer *transfer)
{
    (void)context;
    if (!transfer->peer->greeted)
        return KVF_OUTCOME_DONE; /* canceled while all was held: nothing has been posted */
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.send = flush_ended},
        .user_data = transfer,
    };
    ucs_status_ptr_t result = ucp_ep_flush_nbx(transfer->peer->endpoint, &param);
    if (UCS_PTR_IS_ERR(result))
        flush_failed(transfer, UCS_PTR_STATUS(result));
    return outcome_of(result);
}

static void notify_failed(kvf_transfer *transfer, ucs_status_t status)
{
    kvf_transfers_fail(transfer, kvf_ucx_status(status), "the notification wasn't sent: %s",
                       ucs_status_string(status));
}

static void notify_ended(void *request, ucs_status_t status, void *context)
{
    kvf_transfer *transfer = context;
    ucp_request_free(request);
    if (status != UCS_OK)
        notify_failed(transfer, status);
    kvf_transfers_step_ended(transfers_of(transfer), transfer);
}

/* Eager and without a header: a stock receiver takes anything else for rubbish. */
static kvf_outcome post_notify(void *context, kvf_transfer *transfer, const kvf_transfer_part *part)
{
    const kvf_ucx *engine = context;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb = {.send = notify_ended},
        .user_data = transfer,
    };
    ucs_status_ptr_t result = ucp_am_send_nbx(transfer->peer->endpoint, engine->notification_id,
                                              NULL, 0, part->payload, part->payload_length, &param);
    if (UCS_PTR_IS_ERR(result))
        notify_failed(transfer, UCS_PTR_STATUS(result));
    return outcome_of(result);
}

const kvf_transport kvf_ucx_transport = {post_put, post_flush, post_notify};
