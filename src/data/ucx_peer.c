/* Peers of the UCX engine: endpoints, and keys to the peers' memory. */
#include "data/ucx.h"
#include "wire/metadata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* UCX's parsers take no length. Zeros behind what they are given end them soon. */
enum { PARSER_MARGIN = 512 };

/* The shortest address: version, flags or id. */
enum { SHORTEST_ADDRESS = 10 };

/* Without anything that moves, and in any case. */
#define CLOSING_TIME (100 * KVF_MILLISECOND)
#define LONGEST_CLOSING (1000 * KVF_MILLISECOND)

static void *copy_with_margin(kvf_slice slice)
{
    uint8_t *copy = calloc(1, slice.length + PARSER_MARGIN);
    if (copy != NULL)
        memcpy(copy, slice.data, slice.length);
    return copy;
}

/* Addresses tell the minor version modulo 16; v2 addresses exist from 1.12 on. Releases before 1.16 don't
 * say theirs and leave 0. */
void kvf_ucx_name_versions(const kvf_engine_peer *peer, char *text, size_t capacity)
{
    int minor = peer->ucx_minor;
    if (minor < 0)
        (void)snprintf(text, capacity, "ours is UCX %s, the peer's address doesn't tell its own",
                       kvf_ucx_version());
    else
        (void)snprintf(text, capacity, "ours is UCX %s, the peer's 1.%d%s", kvf_ucx_version(),
                       minor < 12 ? minor + 16 : minor, minor == 0 ? " or older" : "");
}

static kvf_status peer_error(const kvf_engine_peer *peer, const char *what, ucs_status_t status,
                             kvf_error *error)
{
    char versions[128];
    kvf_ucx_name_versions(peer, versions, sizeof versions);
    return kvf_error_set(error, KVF_TRANSPORT,
                         "UCX can't %s: %s (%s); where versions don't meet, run both sides on UCX "
                         "1.19 or newer",
                         what, ucs_status_string(status), versions);
}

static void endpoint_failed(void *context, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    kvf_engine_peer *peer = context;
    if (peer->base.failed || peer->leaving)
        return;
    char text[KVF_ERROR_TEXT_MAX];
    (void)snprintf(text, sizeof text, "UCX lost the peer: %s", ucs_status_string(status));
    kvf_transfers_peer_failed(&peer->engine->transfers, &peer->base, text);
    kvf_ucx_end_held(peer);
    peer->next_failed = peer->engine->failed;
    peer->engine->failed = peer;
}

/* Error mode NONE whatever the peer's: PEER lets a writer's death take the target's process down. */
static ucs_status_t create_endpoint(kvf_engine_peer *peer, const void *address)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_NONE,
        .err_handler = {.cb = endpoint_failed, .arg = peer},
    };
    return ucp_ep_create(peer->engine->own.worker, &params, &peer->endpoint);
}

kvf_status kvf_ucx_connect(kvf_engine *base, kvf_slice address, void *user, kvf_engine_peer **peer,
                           kvf_error *error)
{
    *peer = NULL;
    if (address.length < SHORTEST_ADDRESS || (address.data[0] & 0x0f) > 1)
        return kvf_error_set(error, KVF_TRANSPORT, "the peer's %zu bytes are no UCX worker address",
                             address.length);
    kvf_engine_peer *made = calloc(1, sizeof *made);
    void *copy = copy_with_margin(address);
    if (made == NULL || copy == NULL) {
        free(made);
        free(copy);
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a peer");
    }
    made->engine = kvf_ucx_of(base);
    made->user = user;
    made->ucx_minor = kvf_worker_address_ucx_minor(address);
    ucs_status_t status = create_endpoint(made, copy);
    free(copy);
    if (status != UCS_OK) {
        (void)peer_error(made, "connect to the peer", status, error);
        free(made);
        return KVF_TRANSPORT;
    }
    made->next = made->engine->peers;
    made->engine->peers = made;
    kvf_ucx_greet(made);
    *peer = made;
    return KVF_OK;
}

/* Whether the peer's UCX packs keys that ours refuses (see make_portable). Addresses tell the minor version
 * modulo 16: 12 to 15 are old ones, as there is no 1.28 yet. */
static bool packs_what_ours_refuses(const kvf_engine_peer *peer)
{
    int minor = peer->ucx_minor;
    return kvf_ucx_is_at_least(19) && minor >= 0 && (minor < 19 - 16 || minor >= 12);
}

kvf_status kvf_ucx_add_remote_region(kvf_engine_peer *peer, kvf_slice key, uint32_t *region,
                                     kvf_error *error)
{
    if (!kvf_rkey_is_sound(key))
        return kvf_error_set(error, KVF_PROTOCOL, "the peer's %zu bytes are no UCX memory key",
                             key.length);
    ucp_rkey_h *keys = realloc(peer->keys, (peer->key_count + 1) * sizeof(ucp_rkey_h));
    void *copy = copy_with_margin(key);
    if (keys != NULL)
        peer->keys = keys;
    if (keys == NULL || copy == NULL) {
        free(copy);
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a remote region");
    }
    if (packs_what_ours_refuses(peer))
        (void)kvf_rkey_leave_out_empty(copy, key.length);
    ucs_status_t status = ucp_ep_rkey_unpack(peer->endpoint, copy, &keys[peer->key_count]);
    free(copy);
    if (status != UCS_OK)
        return peer_error(peer, "use the peer's memory key", status, error);
    *region = (uint32_t)peer->key_count++;
    return KVF_OK;
}

void *kvf_ucx_peer_user(const kvf_engine_peer *peer)
{
    return peer->user;
}

static void destroy_keys(kvf_engine_peer *peer)
{
    for (size_t i = 0; i < peer->key_count; i++)
        ucp_rkey_destroy(peer->keys[i]);
    free(peer->keys);
    peer->keys = NULL;
    peer->key_count = 0;
}

/* A flushing close: the forced one needs error mode PEER. Progress ends it, or the end of the worker. */
static void close_endpoint(kvf_engine_peer *peer)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = 0};
    peer->closing = ucp_ep_close_nbx(peer->endpoint, &param);
    peer->endpoint = NULL;
}

static bool is_closed(kvf_engine_peer *peer)
{
    if (peer->closing == NULL || UCS_PTR_IS_ERR(peer->closing))
        return true;
    if (ucp_request_check_status(peer->closing) == UCS_INPROGRESS)
        return false;
    ucp_request_free(peer->closing);
    return true;
}

void kvf_ucx_disconnect(kvf_engine *base, kvf_engine_peer *peer)
{
    kvf_ucx *engine = kvf_ucx_of(base);
    kvf_engine_peer **link = &engine->failed;
    while (*link != NULL && *link != peer)
        link = &(*link)->next_failed;
    if (*link == peer)
        *link = peer->next_failed;
    if (peer->base.active == 0)
        destroy_keys(peer); /* else the engine is being closed, and UCX still looks at them */
    peer->leaving = true;
    engine->leaving++;
    close_endpoint(peer);
}

void kvf_ucx_reap_peers(kvf_ucx *engine)
{
    for (kvf_engine_peer **link = &engine->peers; engine->leaving > 0 && *link != NULL;) {
        kvf_engine_peer *peer = *link;
        if (peer->leaving && is_closed(peer)) {
            *link = peer->next;
            engine->leaving--;
            destroy_keys(peer);
            free(peer);
        } else {
            link = &peer->next;
        }
    }
}

bool kvf_ucx_close_endpoints(kvf_ucx *engine)
{
    for (kvf_engine_peer *peer = engine->peers; peer != NULL; peer = peer->next)
        if (!peer->leaving)
            kvf_ucx_disconnect(&engine->base, peer);
    uint64_t began = kvf_clock_now();
    for (kvf_ucx_reap_peers(engine); engine->leaving > 0; kvf_ucx_reap_peers(engine)) {
        bool moves = ucp_worker_progress(engine->own.worker) != 0;
        if (kvf_clock_now() - began >= (moves ? LONGEST_CLOSING : CLOSING_TIME))
            return false;
    }
    return true;
}

void kvf_ucx_forget_closing(kvf_ucx *engine)
{
    for (kvf_engine_peer *peer = engine->peers; peer != NULL; peer = peer->next) {
        if (peer->closing != NULL && !UCS_PTR_IS_ERR(peer->closing))
            ucp_request_free(peer->closing);
        destroy_keys(peer);
    }
}

void kvf_ucx_free_peers(kvf_ucx *engine)
{
    while (engine->peers != NULL) {
        kvf_engine_peer *peer = engine->peers;
        engine->peers = peer->next;
        free(peer);
    }
}
