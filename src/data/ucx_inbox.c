/* Workers of the UCX engine, and what arrives in them. Each has its own address; closing one ends what is written
 * to it and nothing else. What bypasses it is said by kvf_ucx_offer. */
#include "data/ucx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* Longest payload that is worth looking at. */
#define PAYLOAD_MAX 65536

/* ---- What arrives ---- */

static ucs_status_t message_arrived(void *context, const void *header, size_t header_length,
                                    void *data, size_t length, const ucp_am_recv_param_t *param)
{
    (void)header;
    (void)header_length;
    kvf_engine_inbox *inbox = context;
    /* A rendezvous message has no data here, only a descriptor; returning UCS_OK refuses it. */
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 && data != NULL && length > 0 &&
        length <= PAYLOAD_MAX && !inbox->engine->closing)
        inbox->notified(inbox->user, (kvf_slice){data, length});
    return UCS_OK;
}

/* All ids that some NIXL uses: what isn't a notification is told apart by its content. */
static ucs_status_t listen_to_messages(kvf_engine_inbox *inbox)
{
    for (unsigned id = 0; id <= 2; id++) {
        ucp_am_handler_param_t param = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = id,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = message_arrived,
            .arg = inbox,
        };
        ucs_status_t status = ucp_worker_set_am_recv_handler(inbox->worker, &param);
        if (status != UCS_OK)
            return status;
    }
    return UCS_OK;
}

/* ---- What the context offers ---- */

static bool is_one_of(const char *name, const char *const *list)
{
    while (*list != NULL && strcmp(name, *list) != 0)
        list++;
    return *list != NULL;
}

static void add_transport(kvf_ucx_offer *offer, const char *name)
{
    static const char *const local[] = {"self",      "cuda_copy", "gdr_copy",
                                        "rocm_copy", "ze_copy",   NULL};
    static const char *const fifo[] = {"posix", "sysv", NULL};
    static const char *const direct[] = {"cma",      "knem",   "xpmem", "cuda_ipc",
                                         "rocm_ipc", "ze_ipc", NULL};
    if (is_one_of(name, local))
        return;
    if (is_one_of(name, fifo))
        offer->fifo = true;
    else if (is_one_of(name, direct))
        offer->direct = true;
    else if (strcmp(name, "tcp") == 0)
        offer->tcp = true;
    else
        offer->nic = true;
}

/* UCX tells it only in print: "resource 5 : md 4 dev 3 flags -- cma/memory". What can't be read counts as
 * everything: then nothing is claimed. */
kvf_ucx_offer kvf_ucx_read_offer(ucp_context_h context)
{
    kvf_ucx_offer offer = {0};
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (stream == NULL)
        return (kvf_ucx_offer){true, true, true, true};
    ucp_context_print_info(context, stream);
    (void)fclose(stream);
    char *rest = NULL;
    char *line = text == NULL ? NULL : strtok_r(text, "\n", &rest);
    bool any = false;
    for (; line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char name[32];
        const char *resource = strstr(line, " -- ");
        if (strstr(line, "resource") == NULL || resource == NULL ||
            sscanf(resource, " -- %31[^/]/", name) != 1)
            continue;
        add_transport(&offer, name);
        any = true;
    }
    free(text);
    return any ? offer : (kvf_ucx_offer){true, true, true, true};
}

/* ---- Workers ---- */

static ucs_status_t watch(const kvf_ucx *engine, kvf_engine_inbox *inbox)
{
    ucs_status_t status = ucp_worker_get_efd(inbox->worker, &inbox->descriptor);
    struct epoll_event readable = {.events = EPOLLIN};
    if (status == UCS_OK &&
        epoll_ctl(engine->descriptor, EPOLL_CTL_ADD, inbox->descriptor, &readable) != 0)
        status = UCS_ERR_IO_ERROR;
    return status;
}

/* UCX before 1.19 ends the process when a worker is destroyed that still owes an answer to a peer that died while it
 * connected (1.13.1, ucp_request.c:684; seen in one of four runs of deaths_slow_test). */
static bool may_destroy(void)
{
    return kvf_ucx_is_at_least(19);
}

/* A worker that is only left alone goes on receiving where a NIC puts the bytes, and not our progress. */
static bool outlives_parking(const kvf_ucx *engine)
{
    return !may_destroy() && engine->offer.nic;
}

/* One thread at a time uses a worker, but opening and closing may be another's than the loop's. */
kvf_status kvf_ucx_open_worker(kvf_ucx *engine, kvf_engine_inbox *inbox, kvf_error *error)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    inbox->engine = engine;
    inbox->direct = engine->offer.direct || outlives_parking(engine);
    const char *step = "create a worker";
    ucs_status_t status = ucp_worker_create(engine->context, &params, &inbox->worker);
    if (status == UCS_OK) {
        step = "tell its address";
        status = ucp_worker_get_address(inbox->worker, &inbox->address, &inbox->address_length);
    }
    if (status == UCS_OK) {
        step = "give a descriptor to wait on";
        status = watch(engine, inbox);
    }
    if (status == UCS_OK) {
        step = "receive active messages";
        status = listen_to_messages(inbox);
    }
    if (status != UCS_OK)
        return kvf_error_set(error, KVF_TRANSPORT, "UCX %s can't %s: %s", kvf_ucx_version(), step,
                             ucs_status_string(status));
    return KVF_OK;
}

/* The descriptor leaves epoll with the worker that owns it. */
void kvf_ucx_close_worker(kvf_engine_inbox *inbox)
{
    if (inbox->packed)
        free(inbox->address);
    else if (inbox->address != NULL)
        ucp_worker_release_address(inbox->worker, inbox->address);
    inbox->address = NULL;
    if (inbox->worker != NULL)
        ucp_worker_destroy(inbox->worker);
    inbox->worker = NULL;
}

unsigned kvf_ucx_progress_workers(kvf_ucx *engine)
{
    unsigned count = ucp_worker_progress(engine->own.worker);
    for (kvf_engine_inbox *inbox = engine->inboxes; inbox != NULL; inbox = inbox->next)
        if (!inbox->parked)
            count += ucp_worker_progress(inbox->worker);
    return count;
}

/* Anything but BUSY, be it an error, would be the same the next time: asking again would spin. */
bool kvf_ucx_arm_workers(kvf_ucx *engine)
{
    bool quiet = ucp_worker_arm(engine->own.worker) != UCS_ERR_BUSY;
    for (kvf_engine_inbox *inbox = engine->inboxes; quiet && inbox != NULL; inbox = inbox->next)
        quiet = inbox->parked || ucp_worker_arm(inbox->worker) != UCS_ERR_BUSY;
    return quiet;
}

/* ---- Inboxes ---- */

/* Why a peer is offered only the network, where the transports have none. */
static kvf_status refuse_reach(unsigned reach, kvf_error *error)
{
    const char *why = "the peer isn't seen on this host";
    if ((reach & KVF_REACH_FENCEABLE) != 0)
        why = "fence=strict offers nothing that a writer may use past us";
    else if ((reach & KVF_REACH_PORTABLE) != 0)
        why = "before UCX 1.18, shared memory without CMA ends a stock peer on 1.19 or newer";
    return kvf_error_set(error, KVF_UNSUPPORTED,
                         "UCX %s has only transports of one host here, and %s: add tcp to the "
                         "setting transports, or run on UCX 1.19 or newer",
                         kvf_ucx_version(), why);
}

/* The address as peers on other hosts would see it. */
static kvf_status pack_for_network(kvf_engine_inbox *inbox, unsigned reach, kvf_error *error)
{
    const kvf_ucx_offer *offer = &inbox->engine->offer;
    if (!offer->tcp && !offer->nic)
        return refuse_reach(reach, error);
    ucp_worker_attr_t attributes = {
        .field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS,
        .address_flags = UCP_WORKER_ADDRESS_FLAG_NET_ONLY,
    };
    ucs_status_t status = ucp_worker_query(inbox->worker, &attributes);
    if (status != UCS_OK)
        return kvf_error_set(error, KVF_TRANSPORT,
                             "UCX %s can't tell a worker's network address: %s", kvf_ucx_version(),
                             ucs_status_string(status));
    ucp_address_t *copy = malloc(attributes.address_length);
    if (copy != NULL)
        memcpy(copy, attributes.address, attributes.address_length);
    ucp_worker_release_address(inbox->worker, attributes.address);
    if (copy == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for an address");
    ucp_worker_release_address(inbox->worker, inbox->address);
    inbox->address = copy;
    inbox->address_length = attributes.address_length;
    inbox->packed = true;
    inbox->direct = outlives_parking(inbox->engine);
    return KVF_OK;
}

/* A writer on UCX 1.19 or newer is ended by an old target that offers shared memory without direct mapping: by
 * 1.13.1 (measured), not by 1.18.1 (measured); what lies between wasn't, and is taken for old. */
static bool must_use_network(const kvf_ucx *engine, unsigned reach)
{
    const kvf_ucx_offer *offer = &engine->offer;
    if ((reach & KVF_REACH_NETWORK) != 0 && (offer->fifo || offer->direct))
        return true;
    if ((reach & KVF_REACH_FENCEABLE) != 0 && offer->direct)
        return true;
    return (reach & KVF_REACH_PORTABLE) != 0 && !kvf_ucx_is_at_least(18) && offer->fifo &&
           !offer->direct;
}

kvf_status kvf_ucx_open_inbox(kvf_engine *base, const kvf_inbox_options *options,
                              kvf_engine_inbox **inbox, kvf_error *error)
{
    kvf_ucx *engine = kvf_ucx_of(base);
    *inbox = NULL;
    kvf_engine_inbox *made = calloc(1, sizeof *made);
    if (made == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for an inbox");
    made->user = options->user;
    made->notified = options->notified;
    kvf_status status = kvf_ucx_open_worker(engine, made, error);
    if (status == KVF_OK && must_use_network(engine, options->reach))
        status = pack_for_network(made, options->reach, error);
    if (status != KVF_OK) {
        kvf_ucx_close_worker(made);
        free(made);
        return status;
    }
    made->next = engine->inboxes;
    engine->inboxes = made;
    *inbox = made;
    return KVF_OK;
}

static void free_inbox(kvf_ucx *engine, kvf_engine_inbox *inbox)
{
    kvf_engine_inbox **link = &engine->inboxes;
    while (*link != inbox)
        link = &(*link)->next;
    *link = inbox->next;
    kvf_ucx_close_worker(inbox);
    free(inbox);
}

/* Nothing is put in place any more that our own progress would have. */
static void park(kvf_ucx *engine, kvf_engine_inbox *inbox)
{
    inbox->parked = true;
    (void)epoll_ctl(engine->descriptor, EPOLL_CTL_DEL, inbox->descriptor, NULL);
}

void kvf_ucx_close_inbox(kvf_engine *base, kvf_engine_inbox *inbox)
{
    if (may_destroy())
        free_inbox(kvf_ucx_of(base), inbox);
    else
        park(kvf_ucx_of(base), inbox);
}

kvf_slice kvf_ucx_inbox_address(const kvf_engine_inbox *inbox)
{
    return (kvf_slice){(const uint8_t *)inbox->address, inbox->address_length};
}

bool kvf_ucx_inbox_is_direct(const kvf_engine_inbox *inbox)
{
    return inbox->direct;
}

void kvf_ucx_close_inboxes(kvf_ucx *engine)
{
    kvf_engine_inbox *inbox = engine->inboxes;
    while (inbox != NULL) {
        kvf_engine_inbox *next = inbox->next;
        if (!inbox->parked)
            free_inbox(engine, inbox);
        inbox = next;
    }
}
