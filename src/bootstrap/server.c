/* The bootstrap server: libmicrohttpd parses and writes HTTP, this file owns the thread and the time.
 *
 * MHD runs without a thread of its own. Ours sleeps in poll() on three descriptors (wake-up, MHD's epoll,
 * the listening socket), because MHD knows only how long a connection has been idle: a peer that drips
 * a byte every second would never be. So each connection is in one of two lists, with a deadline:
 *   arriving  from its first moment, and from the request line of each later request, until the answer has
 *             been sent: server_header_timeout
 *   idle      kept alive, since its last answer: server_idle_timeout
 * Both times are constant, so each list is in the order of its deadlines, and only its head is ever looked
 * at. A connection past its deadline has its socket shut down; MHD sees that and closes it.
 *
 * All of this is touched by that one thread only, so nothing is locked. */
#include "base/clock.h"
#include "base/last_error.h"
#include "base/settings.h"
#include "bootstrap/answer.h"
#include "bootstrap/listener.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* What MHD may use to keep the head of one request: more than aiohttp allows for its longest line. */
#define HEAD_MEMORY ((size_t)(16 << 10))
/* Out of descriptors: the next accept waits this long, instead of failing again at once for ever. */
#define ACCEPT_PAUSE (100 * KVF_MILLISECOND)
/* Connections taken in one go before the others have their turn. */
#define ACCEPT_BURST 64

typedef struct connection {
    struct connection *previous;
    struct connection *next;
    struct list *list; /* NULL once it was cut */
    uint64_t deadline;
    int descriptor; /* MHD's */
} connection;

typedef struct list {
    connection *first;
    connection *last;
} list;

/* One request on its way in. */
typedef struct exchange {
    kvf_bytes body;
    uint64_t received; /* more than body.length once it is too large */
} exchange;

struct kvf_bootstrap {
    kvf_settings settings;
    kvf_registry *registry;
    struct MHD_Daemon *daemon;
    int daemon_descriptor; /* MHD's epoll, which stays MHD's */
    int listener;
    int wake; /* eventfd: time to stop */
    uint16_t port;
    pthread_t thread;
    uint64_t connections;
    uint64_t accept_again; /* no accept before */
    list arriving;
    list idle;
};

/* ---- Connections and their time --------------------------------------------------------------- */

static void list_remove(connection *entry)
{
    if (entry->list == NULL)
        return;
    if (entry->previous != NULL)
        entry->previous->next = entry->next;
    else
        entry->list->first = entry->next;
    if (entry->next != NULL)
        entry->next->previous = entry->previous;
    else
        entry->list->last = entry->previous;
    entry->list = NULL;
    entry->previous = NULL;
    entry->next = NULL;
}

static void list_move(connection *entry, list *target, uint64_t deadline)
{
    list_remove(entry);
    entry->deadline = deadline;
    entry->list = target;
    entry->previous = target->last;
    if (target->last != NULL)
        target->last->next = entry;
    else
        target->first = entry;
    target->last = entry;
}

static connection *connection_of(struct MHD_Connection *http)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(http, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info == NULL ? NULL : info->socket_context;
}

static void start_arriving(kvf_bootstrap *bootstrap, connection *entry)
{
    list_move(entry, &bootstrap->arriving,
              kvf_clock_after(kvf_clock_now(), bootstrap->settings.server_header_timeout));
}

/* MHD: a connection was added or is about to be closed. */
static void on_connection(void *user, struct MHD_Connection *http, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    kvf_bootstrap *bootstrap = user;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        connection *entry = *context;
        *context = NULL;
        bootstrap->connections--;
        if (entry != NULL)
            list_remove(entry);
        free(entry);
        return;
    }
    bootstrap->connections++;
    int descriptor = MHD_get_connection_info(http, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    connection *entry = calloc(1, sizeof *entry);
    *context = entry;
    if (entry == NULL) {
        (void)shutdown(descriptor, SHUT_RDWR); /* what has no deadline must not stay */
        return;
    }
    entry->descriptor = descriptor;
    start_arriving(bootstrap, entry);
}

/* MHD: a request line was read. The first request's time already runs, since the connection was made. */
static void *on_request_line(void *user, const char *uri, struct MHD_Connection *http)
{
    (void)uri;
    kvf_bootstrap *bootstrap = user;
    connection *entry = connection_of(http);
    if (entry != NULL && entry->list == &bootstrap->idle)
        start_arriving(bootstrap, entry);
    return NULL;
}

/* MHD: the answer was sent, or the request ended otherwise. */
static void on_request_end(void *user, struct MHD_Connection *http, void **context,
                           enum MHD_RequestTerminationCode code)
{
    (void)code;
    kvf_bootstrap *bootstrap = user;
    exchange *request = *context;
    *context = NULL;
    if (request != NULL)
        kvf_bytes_free(&request->body);
    free(request);
    connection *entry = connection_of(http);
    if (entry != NULL && entry->list != NULL)
        list_move(entry, &bootstrap->idle,
                  kvf_clock_after(kvf_clock_now(), bootstrap->settings.server_idle_timeout));
}

static void cut_expired(list *expiring, uint64_t now)
{
    while (expiring->first != NULL && expiring->first->deadline <= now) {
        connection *entry = expiring->first;
        list_remove(entry);
        (void)shutdown(entry->descriptor, SHUT_RDWR);
    }
}

/* ---- Requests --------------------------------------------------------------------------------- */

/* Sends `answer` and frees its body. */
static enum MHD_Result send_answer(struct MHD_Connection *http, kvf_http_answer *answer)
{
    enum MHD_Result result = MHD_NO; /* closes the connection */
    struct MHD_Response *response = NULL;
    if (!answer->body.failed)
        response = MHD_create_response_from_buffer(answer->body.length, answer->body.data,
                                                   MHD_RESPMEM_MUST_COPY);
    kvf_bytes_free(&answer->body);
    if (response == NULL)
        return result;
    if (MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer->content_type) ==
        MHD_YES)
        result = MHD_queue_response(http, answer->status, response);
    MHD_destroy_response(response);
    return result;
}

/* MHD: one query parameter, decoded. Names count exactly, and the first of a name, as with aiohttp. */
static enum MHD_Result on_parameter(void *user, enum MHD_ValueKind kind, const char *key,
                                    size_t key_length, const char *value, size_t value_length)
{
    (void)kind;
    kvf_http_request *request = user;
    kvf_slice name = {(const uint8_t *)key, key_length};
    kvf_slice *target = NULL;
    if (kvf_slice_equal(name, kvf_slice_of("engine_rank")))
        target = &request->engine_rank;
    else if (kvf_slice_equal(name, kvf_slice_of("target_dp_group")))
        target = &request->target_dp_group;
    if (target != NULL && target->data == NULL && value != NULL)
        *target = (kvf_slice){(const uint8_t *)value, value_length};
    return MHD_YES;
}

static enum MHD_Result refuse_too_large(const kvf_bootstrap *bootstrap, struct MHD_Connection *http,
                                        uint64_t length)
{
    kvf_http_answer answer;
    kvf_http_answer_too_large(bootstrap->settings.max_http_body, length, &answer);
    return send_answer(http, &answer);
}

/* The head has arrived. A body that is announced as too large is refused before any of it is read. */
static enum MHD_Result begin_request(kvf_bootstrap *bootstrap, struct MHD_Connection *http,
                                     void **context)
{
    exchange *request = calloc(1, sizeof *request);
    if (request == NULL)
        return MHD_NO;
    *context = request;
    const char *announced =
        MHD_lookup_connection_value(http, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t length;
    if (announced != NULL && kvf_parse_decimal(kvf_slice_of(announced), UINT64_MAX, &length) &&
        length > bootstrap->settings.max_http_body)
        return refuse_too_large(bootstrap, http, length);
    return MHD_YES;
}

static enum MHD_Result take_body(const kvf_bootstrap *bootstrap, exchange *request, bool wanted,
                                 const char *data, size_t *length)
{
    request->received += *length;
    if (request->received > bootstrap->settings.max_http_body)
        kvf_bytes_free(&request->body); /* read on and dropped: MHD can't answer in the middle */
    else if (wanted)
        kvf_bytes_append(&request->body, data, *length);
    *length = 0;
    return request->body.failed ? MHD_NO : MHD_YES;
}

/* MHD: called when the head is complete, for each piece of the body, and at the end. */
static enum MHD_Result on_request(void *user, struct MHD_Connection *http, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *length, void **context)
{
    (void)version;
    kvf_bootstrap *bootstrap = user;
    exchange *state = *context;
    if (state == NULL)
        return begin_request(bootstrap, http, context);
    if (*length > 0)
        return take_body(bootstrap, state, kvf_http_wants_body(method, url), data, length);
    if (state->received > bootstrap->settings.max_http_body)
        return refuse_too_large(bootstrap, http, state->received);
    kvf_http_request request = {
        .method = method, .path = url, .body = kvf_bytes_slice(&state->body)};
    (void)MHD_get_connection_values_n(http, MHD_GET_ARGUMENT_KIND, on_parameter, &request);
    kvf_http_answer answer;
    kvf_http_answer_make(bootstrap->registry, &bootstrap->settings.log, &request, &answer);
    return send_answer(http, &answer);
}

/* ---- The thread ------------------------------------------------------------------------------- */

static bool may_accept(const kvf_bootstrap *bootstrap, uint64_t now)
{
    return bootstrap->connections < bootstrap->settings.max_http_connections &&
           now >= bootstrap->accept_again;
}

/* Over the limit connections wait in the system's backlog, until others have ended or were cut. */
static void accept_connections(kvf_bootstrap *bootstrap, uint64_t now)
{
    for (int taken = 0; taken < ACCEPT_BURST && may_accept(bootstrap, now); taken++) {
        struct sockaddr_storage peer = {0};
        socklen_t length = sizeof peer;
        int descriptor = accept4(bootstrap->listener, (struct sockaddr *)&peer, &length,
                                 SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (descriptor >= 0) {
            /* MHD closes the descriptor if it can't take it. */
            (void)MHD_add_connection(bootstrap->daemon, descriptor, (struct sockaddr *)&peer,
                                     length);
            continue;
        }
        if (errno == EAGAIN)
            return;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            kvf_log_warning(&bootstrap->settings.log, "bootstrap: can't take a connection: %s",
                            strerror(errno));
            bootstrap->accept_again = kvf_clock_after(now, ACCEPT_PAUSE);
        } /* the rest is about that one connection, e.g. ECONNABORTED */
    }
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int time_to_sleep(const kvf_bootstrap *bootstrap, uint64_t now)
{
    uint64_t deadline = KVF_NEVER;
    if (bootstrap->arriving.first != NULL)
        deadline = bootstrap->arriving.first->deadline;
    if (bootstrap->idle.first != NULL)
        deadline = sooner(deadline, bootstrap->idle.first->deadline);
    if (bootstrap->accept_again > now)
        deadline = sooner(deadline, bootstrap->accept_again);
    MHD_UNSIGNED_LONG_LONG milliseconds;
    if (MHD_get_timeout(bootstrap->daemon, &milliseconds) == MHD_YES)
        deadline = sooner(deadline, kvf_clock_after(now, milliseconds * KVF_MILLISECOND));
    return kvf_clock_wait(now, deadline);
}

static void *serve(void *user)
{
    kvf_bootstrap *bootstrap = user;
    for (;;) {
        uint64_t now = kvf_clock_now();
        struct pollfd waiting[] = {{.fd = bootstrap->wake, .events = POLLIN},
                                   {.fd = bootstrap->daemon_descriptor, .events = POLLIN},
                                   {.fd = bootstrap->listener, .events = POLLIN}};
        if (!may_accept(bootstrap, now))
            waiting[2].fd = -1; /* ignored */
        (void)poll(waiting, 3, time_to_sleep(bootstrap, now));
        if (waiting[0].revents != 0)
            return NULL;
        now = kvf_clock_now();
        cut_expired(&bootstrap->arriving, now);
        cut_expired(&bootstrap->idle, now);
        if (waiting[2].revents != 0)
            accept_connections(bootstrap, now);
        (void)MHD_run(bootstrap->daemon);
    }
}

/* Signals are the application's; and should a write ever raise SIGPIPE, it stays in this thread. */
static int start_thread(kvf_bootstrap *bootstrap)
{
    sigset_t all;
    sigset_t before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = pthread_create(&bootstrap->thread, NULL, serve, bootstrap);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (result == 0)
        (void)pthread_setname_np(bootstrap->thread, "kvf-bootstrap");
    return result;
}

/* ---- Public ----------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 0))) static void on_daemon_log(void *user, const char *format,
                                                                va_list arguments)
{
    const kvf_bootstrap *bootstrap = user;
    char line[512];
    (void)vsnprintf(line, sizeof line, format, arguments);
    line[strcspn(line, "\n")] = '\0';
    kvf_log_debug(&bootstrap->settings.log, "bootstrap: %s", line);
}

static kvf_status start_daemon(kvf_bootstrap *bootstrap, kvf_error *error)
{
    /* MHD's own limit is one more than ours: it drops what is over, where we let it wait. */
    unsigned limit = (unsigned)bootstrap->settings.max_http_connections + 1;
    bootstrap->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request,
        bootstrap, MHD_OPTION_EXTERNAL_LOGGER, on_daemon_log, bootstrap,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, bootstrap, MHD_OPTION_URI_LOG_CALLBACK,
        on_request_line, bootstrap, MHD_OPTION_NOTIFY_COMPLETED, on_request_end, bootstrap,
        MHD_OPTION_CONNECTION_LIMIT, limit, MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEAD_MEMORY,
        MHD_OPTION_END);
    if (bootstrap->daemon == NULL)
        return kvf_error_set(error, KVF_SYSTEM, "libmicrohttpd refused to start: %s",
                             strerror(errno));
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(bootstrap->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    if (info == NULL)
        return kvf_error_set(error, KVF_UNSUPPORTED, "this libmicrohttpd was built without epoll");
    bootstrap->daemon_descriptor = info->epoll_fd;
    return KVF_OK;
}

static kvf_status start(kvf_bootstrap *bootstrap, const char *listen_address,
                        const kvf_settings *settings, kvf_error *error)
{
    kvf_settings_defaults(&bootstrap->settings);
    kvf_status status = KVF_OK;
    if (settings != NULL)
        bootstrap->settings = *settings;
    else
        status = kvf_settings_from_environment(&bootstrap->settings, error);
    if (status != KVF_OK)
        return status;
    bootstrap->registry = kvf_registry_new((size_t)bootstrap->settings.max_registered_ranks);
    if (bootstrap->registry == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a bootstrap server");
    bootstrap->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (bootstrap->wake < 0)
        return kvf_error_set(error, KVF_SYSTEM, "eventfd: %s", strerror(errno));
    status = kvf_listener_open(listen_address, &bootstrap->listener, &bootstrap->port, error);
    if (status == KVF_OK)
        status = start_daemon(bootstrap, error);
    if (status != KVF_OK)
        return status;
    int result = start_thread(bootstrap);
    if (result != 0)
        return kvf_error_set(error, KVF_SYSTEM, "can't start the bootstrap server's thread: %s",
                             strerror(result));
    return KVF_OK;
}

/* Frees what start() has made, all or part; the thread has ended or never ran. */
static void release(kvf_bootstrap *bootstrap)
{
    if (bootstrap->daemon != NULL)
        MHD_stop_daemon(bootstrap->daemon);
    if (bootstrap->listener >= 0)
        (void)close(bootstrap->listener);
    if (bootstrap->wake >= 0)
        (void)close(bootstrap->wake);
    kvf_registry_free(bootstrap->registry);
    free(bootstrap);
}

kvf_status kvf_bootstrap_start(kvf_bootstrap **bootstrap, const char *listen_address,
                               const kvf_settings *settings)
{
    if (bootstrap == NULL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "bootstrap must not be NULL");
    *bootstrap = NULL;
    if (listen_address == NULL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "listen_address must not be NULL");
    kvf_bootstrap *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return kvf_last_error_set(KVF_NO_MEMORY, "no memory for a bootstrap server");
    fresh->listener = -1;
    fresh->wake = -1;
    kvf_error error;
    if (start(fresh, listen_address, settings, &error) != KVF_OK) {
        release(fresh);
        return kvf_last_error_keep(&error);
    }
    *bootstrap = fresh;
    return KVF_OK;
}

uint16_t kvf_bootstrap_port(const kvf_bootstrap *bootstrap)
{
    return bootstrap == NULL ? 0 : bootstrap->port;
}

void kvf_bootstrap_stop(kvf_bootstrap *bootstrap)
{
    if (bootstrap == NULL)
        return;
    const uint64_t one = 1;
    (void)!write(bootstrap->wake, &one, sizeof one); /* can't fail: it is at 0 */
    (void)pthread_join(bootstrap->thread, NULL);
    release(bootstrap);
}
