/* The data engine on UCX: context, opening and closing, progress. docs/wire.md says why the
 * features, options and active messages are what they are: they match NIXL's. */
#include "data/ucx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Rounds of ucp_worker_progress() before transfers are moved on. */
enum { ROUNDS_AT_ONCE = 16 };

const char *kvf_ucx_version(void)
{
    return ucp_get_version_string();
}

bool kvf_ucx_is_at_least(unsigned minor)
{
    unsigned major;
    unsigned ours;
    unsigned release;
    ucp_get_version(&major, &ours, &release);
    return major > 1 || ours >= minor;
}

kvf_status kvf_ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_CANCELED:
        return KVF_PEER_GONE;
    default:
        return KVF_TRANSPORT;
    }
}

/* ---- Open ---- */

/* The options that this UCX has, as text; NULL without memory. */
static char *list_options(const ucp_config_t *config)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (stream == NULL)
        return NULL;
    ucp_config_print(config, stream, NULL, UCS_CONFIG_PRINT_CONFIG);
    (void)fclose(stream);
    return text;
}

/* As NIXL sets them. An option that the environment sets is left; one that an older UCX lacks too, because
 * UCX would take it and complain later, each time a worker is made. */
static void set_options(ucp_config_t *config)
{
    static const char *const options[][2] = {
        {"RNDV_THRESH", "inf"},
        {"ADDRESS_VERSION", "v2"},
        {"MAX_RMA_RAILS", "2"},
        {"MAX_COMPONENT_MDS", "32"},
    };
    char *known = list_options(config);
    for (size_t i = 0; i < sizeof options / sizeof options[0] && known != NULL; i++) {
        char variable[64];
        char line[72];
        (void)snprintf(variable, sizeof variable, "UCX_%s", options[i][0]);
        (void)snprintf(line, sizeof line, "\n%s=", variable);
        if (getenv(variable) == NULL && strstr(known, line) != NULL)
            (void)ucp_config_modify(config, options[i][0], options[i][1]);
    }
    free(known);
}

static kvf_status open_context(kvf_ucx *engine, const char *transports, kvf_error *error)
{
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return kvf_error_set(error, KVF_SYSTEM, "UCX can't read its configuration: %s",
                             ucs_status_string(status));
    set_options(config);
    if (transports[0] != '\0')
        status = ucp_config_modify(config, "TLS", transports);
    if (status == UCS_OK) {
        ucp_params_t params = {
            .field_mask = UCP_PARAM_FIELD_FEATURES,
            .features = UCP_FEATURE_RMA | UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64 | UCP_FEATURE_AM |
                        UCP_FEATURE_WAKEUP,
        };
        status = ucp_init(&params, config, &engine->context);
    }
    ucp_config_release(config);
    if (status != UCS_OK)
        return kvf_error_set(error, KVF_TRANSPORT,
                             "UCX %s doesn't start with the transports \"%s\": %s; see the setting "
                             "transports",
                             kvf_ucx_version(), transports, ucs_status_string(status));
    engine->offer = kvf_ucx_read_offer(engine->context);
    return KVF_OK;
}

/* UCX 1.13 ends the process when a worker is destroyed whose endpoint waits for a peer that doesn't answer
 * (seen with 1.13.1 over TCP, not with 1.22). */
static bool may_destroy_unconnected(void)
{
    return kvf_ucx_is_at_least(19);
}

static void ucx_close(kvf_engine *base)
{
    kvf_ucx *engine = kvf_ucx_of(base);
    bool destroy = true;
    engine->closing = true;
    if (engine->own.worker != NULL)
        destroy = kvf_ucx_close_endpoints(engine) || may_destroy_unconnected();
    kvf_ucx_close_inboxes(engine);
    if (!destroy || engine->inboxes != NULL)
        return; /* leaks the engine, and the process lives */
    kvf_ucx_forget_closing(engine);
    kvf_ucx_close_worker(&engine->own);
    kvf_ucx_free_peers(engine);
    kvf_ucx_free_regions(engine);
    if (engine->context != NULL)
        ucp_cleanup(engine->context);
    if (engine->descriptor >= 0)
        (void)close(engine->descriptor);
    kvf_transfers_close(&engine->transfers);
    free(engine);
}

/* ---- Progress ---- */

static kvf_slice ucx_address(const kvf_engine *base)
{
    const kvf_ucx *engine = (const kvf_ucx *)(const void *)base;
    return kvf_ucx_inbox_address(&engine->own);
}

static kvf_status ucx_post(kvf_engine *base, kvf_transfer *transfer, kvf_error *error)
{
    return kvf_transfers_post(&kvf_ucx_of(base)->transfers, transfer, error);
}

static void ucx_cancel(kvf_engine *base, kvf_transfer *transfer)
{
    kvf_transfers_cancel(&kvf_ucx_of(base)->transfers, transfer);
    kvf_ucx_drop_held(transfer);
}

static void report_failed(kvf_ucx *engine)
{
    while (engine->failed != NULL) {
        kvf_engine_peer *peer = engine->failed;
        engine->failed = peer->next_failed;
        if (!peer->leaving)
            engine->callbacks.peer_failed(engine->callbacks.user, peer, peer->base.failure);
    }
}

static bool ucx_progress(kvf_engine *base, uint64_t budget)
{
    kvf_ucx *engine = kvf_ucx_of(base);
    uint64_t deadline = kvf_clock_after(kvf_clock_now(), budget);
    for (;;) {
        int rounds = 0;
        /* One round may copy some megabytes: the clock is cheaper than being late, and a transfer whose
         * next stage can begin doesn't wait for the others' bytes. */
        while (rounds < ROUNDS_AT_ONCE && engine->transfers.ready == NULL &&
               kvf_ucx_progress_workers(engine) != 0 &&
               (rounds++ == 0 || kvf_clock_now() < deadline))
            continue;
        report_failed(engine);
        kvf_ucx_reap_peers(engine);
        if (!kvf_engine_may_post(base))
            return true;
        kvf_ucx_release_greeted(engine);
        bool moved = kvf_transfers_advance(&engine->transfers);
        if (!moved && rounds == 0)
            return false;
        if (kvf_clock_now() >= deadline)
            return true;
    }
}

static bool ucx_arm(kvf_engine *base)
{
    kvf_ucx *engine = kvf_ucx_of(base);
    if (kvf_transfers_have_work(&engine->transfers) || engine->failed != NULL || engine->greeted)
        return false;
    return kvf_ucx_arm_workers(engine);
}

static int ucx_descriptor(const kvf_engine *base)
{
    return ((const kvf_ucx *)(const void *)base)->descriptor;
}

static const kvf_engine_operations operations = {
    .close = ucx_close,
    .add_region = kvf_ucx_add_region,
    .open_inbox = kvf_ucx_open_inbox,
    .close_inbox = kvf_ucx_close_inbox,
    .inbox_address = kvf_ucx_inbox_address,
    .inbox_is_direct = kvf_ucx_inbox_is_direct,
    .address = ucx_address,
    .region_key = kvf_ucx_region_key,
    .portable_region_key = kvf_ucx_portable_region_key,
    .connect = kvf_ucx_connect,
    .add_remote_region = kvf_ucx_add_remote_region,
    .peer_user = kvf_ucx_peer_user,
    .disconnect = kvf_ucx_disconnect,
    .post = ucx_post,
    .cancel = ucx_cancel,
    .progress = ucx_progress,
    .arm = ucx_arm,
    .descriptor = ucx_descriptor,
};

kvf_status kvf_ucx_open(const kvf_settings *settings, kvf_flavour flavour,
                        const kvf_engine_callbacks *callbacks, kvf_engine **engine,
                        kvf_error *error)
{
    *engine = NULL;
    kvf_ucx *made = calloc(1, sizeof *made);
    if (made == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a data engine");
    made->base.operations = &operations;
    made->callbacks = *callbacks;
    made->notification_id = kvf_flavour_notification_id(flavour);
    made->own.user = callbacks->user;
    made->own.notified = callbacks->notified;
    made->descriptor = epoll_create1(EPOLL_CLOEXEC);
    kvf_status status = made->descriptor < 0
                            ? kvf_error_set(error, KVF_SYSTEM, "epoll_create1: %s", strerror(errno))
                            : kvf_transfers_open(&made->transfers, settings, &kvf_ucx_transport,
                                                 &made->base, error);
    if (status == KVF_OK)
        status = open_context(made, settings->transports, error);
    if (status == KVF_OK)
        status = kvf_ucx_open_worker(made, &made->own, error);
    if (status != KVF_OK) {
        ucx_close(&made->base);
        return status;
    }
    *engine = &made->base;
    return KVF_OK;
}
