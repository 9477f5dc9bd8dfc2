/* Puts, flushes and notifications of the UCX engine. Callbacks only count; kvf_transfers_advance() moves
 * things on. UCX's own pool gives the requests: nothing is allocated here. */
#include "data/ucx.h"

static kvf_transfers *transfers_of(const kvf_transfer *transfer)
{
    return &transfer->peer->engine->transfers;
}

static void put_failed(const kvf_put *put, ucs_status_t status)
{
    kvf_transfers_fail(put->transfer, kvf_ucx_status(status), "a write of %llu bytes failed: %s",
                       (unsigned long long)put->write.length, ucs_status_string(status));
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
static kvf_outcome post_put(void *context, kvf_put *put)
{
    const kvf_ucx *engine = context;
    const kvf_engine_peer *peer = put->transfer->peer;
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
