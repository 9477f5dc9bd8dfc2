/* curl's multi socket interface behind a descriptor of our own.
 *
 * curl says which sockets it waits for, and until when; the sockets go into our epoll, the time into
 * `deadline`. Names are looked up in threads of curl's (the build must have AsynchDNS: open() checks), and
 * with CURLOPT_QUICK_EXIT a canceled or expired call doesn't wait for such a thread: without it the loop
 * would stand still until the system's resolver gives up. */
#include "bootstrap/client.h"

#include "base/clock.h"

#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Connections kept for later calls; more may be open while calls are under way. */
#define IDLE_CONNECTIONS 64
#define EVENTS_AT_ONCE 64
/* How much of a refusal's body an error text quotes. */
#define QUOTE_MAX 200

typedef enum call_kind { CALL_TOPOLOGY, CALL_RANK, CALL_PUT } call_kind;

struct kvf_bootstrap_call {
    kvf_bootstrap_call *previous;
    kvf_bootstrap_call *next;
    kvf_bootstrap_client *client;
    CURL *easy;
    struct curl_slist *headers;
    kvf_bootstrap_done done;
    void *user;
    call_kind kind;
    uint32_t dp_group; /* of a rank call, for texts */
    uint32_t tp_rank;
    bool too_large;
    kvf_bytes body; /* of the answer */
    char address[KVF_ADDRESS_MAX];
    char reason[CURL_ERROR_SIZE];
};

struct kvf_bootstrap_client {
    CURLM *multi;
    int epoll;
    uint64_t deadline; /* curl's timer */
    uint64_t connect_timeout;
    uint64_t timeout;
    uint64_t max_body;
    kvf_bootstrap_call *calls;
};

/* ---- curl's callbacks ------------------------------------------------------------------------- */

static int on_timer(CURLM *multi, long milliseconds, void *user)
{
    (void)multi;
    kvf_bootstrap_client *client = user;
    if (milliseconds < 0)
        client->deadline = KVF_NEVER;
    else
        client->deadline =
            kvf_clock_after(kvf_clock_now(), (uint64_t)milliseconds * KVF_MILLISECOND);
    return 0;
}

/* `known` is whatever curl_multi_assign() gave: not NULL once the socket is in our epoll. */
static int on_socket(CURL *easy, curl_socket_t socket, int what, void *user, void *known)
{
    (void)easy;
    kvf_bootstrap_client *client = user;
    if (what == CURL_POLL_REMOVE) {
        (void)epoll_ctl(client->epoll, EPOLL_CTL_DEL, socket, NULL);
        return 0;
    }
    struct epoll_event event = {.data.fd = socket};
    if (what == CURL_POLL_IN || what == CURL_POLL_INOUT)
        event.events |= EPOLLIN;
    if (what == CURL_POLL_OUT || what == CURL_POLL_INOUT)
        event.events |= EPOLLOUT;
    int operation = known != NULL ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(client->epoll, operation, socket, &event) != 0)
        return -1; /* curl fails its calls; they'd wait for nothing otherwise */
    (void)curl_multi_assign(client->multi, socket, client);
    return 0;
}

/* curl's own socket() lets children that the application executes inherit it. */
static curl_socket_t on_open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *address)
{
    (void)user;
    (void)purpose;
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

static size_t on_body(char *data, size_t size, size_t count, void *user)
{
    kvf_bootstrap_call *call = user;
    size_t length = size * count;
    if (length > call->client->max_body - call->body.length) {
        call->too_large = true;
        return 0; /* ends the call */
    }
    kvf_bytes_append(&call->body, data, length);
    return call->body.failed ? 0 : length;
}

/* ---- Open and close --------------------------------------------------------------------------- */

static CURLcode global_result;

static void initialize_curl(void)
{
    global_result = curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* curl_global_init() is thread-safe only in later versions, and managers open in any thread. */
static kvf_status require_curl(kvf_error *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, initialize_curl);
    if (global_result != CURLE_OK)
        return kvf_error_set(error, KVF_SYSTEM, "libcurl refused to start: %s",
                             curl_easy_strerror(global_result));
    const curl_version_info_data *version = curl_version_info(CURLVERSION_NOW);
    if ((version->features & CURL_VERSION_ASYNCHDNS) == 0)
        return kvf_error_set(error, KVF_UNSUPPORTED,
                             "this libcurl (%s) looks names up in the calling thread and would "
                             "stall the event loop; install one with an asynchronous resolver",
                             version->version);
    return KVF_OK;
}

static bool set_up_multi(kvf_bootstrap_client *client)
{
    client->multi = curl_multi_init();
    return client->multi != NULL &&
           curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, on_socket) == CURLM_OK &&
           curl_multi_setopt(client->multi, CURLMOPT_SOCKETDATA, client) == CURLM_OK &&
           curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, on_timer) == CURLM_OK &&
           curl_multi_setopt(client->multi, CURLMOPT_TIMERDATA, client) == CURLM_OK &&
           curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, (long)IDLE_CONNECTIONS) ==
               CURLM_OK;
}

kvf_status kvf_bootstrap_client_open(const kvf_settings *settings, kvf_bootstrap_client **client,
                                     kvf_error *error)
{
    *client = NULL;
    kvf_status status = require_curl(error);
    if (status != KVF_OK)
        return status;
    kvf_bootstrap_client *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for an HTTP client");
    fresh->deadline = KVF_NEVER;
    fresh->connect_timeout = settings->http_connect_timeout;
    fresh->timeout = settings->http_timeout;
    fresh->max_body = settings->max_http_body;
    fresh->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (fresh->epoll < 0)
        status = kvf_error_set(error, KVF_SYSTEM, "epoll_create1: %s", strerror(errno));
    else if (!set_up_multi(fresh))
        status = kvf_error_set(error, KVF_SYSTEM, "libcurl's multi interface doesn't start");
    if (status != KVF_OK) {
        kvf_bootstrap_client_close(fresh);
        return status;
    }
    *client = fresh;
    return KVF_OK;
}

/* Also takes the call out of curl: nothing of it is called back any more. */
static void free_call(kvf_bootstrap_call *call)
{
    kvf_bootstrap_client *client = call->client;
    if (call->previous != NULL)
        call->previous->next = call->next;
    else if (client->calls == call)
        client->calls = call->next;
    if (call->next != NULL)
        call->next->previous = call->previous;
    if (call->easy != NULL) {
        (void)curl_multi_remove_handle(client->multi, call->easy);
        curl_easy_cleanup(call->easy);
    }
    curl_slist_free_all(call->headers);
    kvf_bytes_free(&call->body);
    free(call);
}

void kvf_bootstrap_client_close(kvf_bootstrap_client *client)
{
    if (client == NULL)
        return;
    while (client->calls != NULL)
        free_call(client->calls);
    if (client->multi != NULL)
        (void)curl_multi_cleanup(client->multi);
    if (client->epoll >= 0)
        (void)close(client->epoll);
    free(client);
}

int kvf_bootstrap_client_descriptor(const kvf_bootstrap_client *client)
{
    return client->epoll;
}

uint64_t kvf_bootstrap_client_deadline(const kvf_bootstrap_client *client)
{
    return client->deadline;
}

/* ---- What an answer means --------------------------------------------------------------------- */

static const char *call_text(const kvf_bootstrap_call *call, char text[96])
{
    if (call->kind == CALL_RANK)
        (void)snprintf(text, 96, "rank %u of dp group %u at", call->tp_rank, call->dp_group);
    else
        (void)snprintf(text, 96, "%s",
                       call->kind == CALL_PUT ? "registering at" : "sizes of the prefill side at");
    return text;
}

/* The beginning of a body, fit for a log line: it may come from anywhere. */
static void quote(const kvf_bytes *body, char text[QUOTE_MAX + 1])
{
    size_t length = body->length < QUOTE_MAX ? body->length : QUOTE_MAX;
    for (size_t i = 0; i < length; i++) {
        uint8_t character = body->data[i];
        text[i] = (char)(character < ' ' || character > '~' ? '?' : character);
    }
    text[length] = '\0';
}

__attribute__((format(printf, 5, 6))) static void
conclude(const kvf_bootstrap_call *call, kvf_bootstrap_answer *answer,
         kvf_bootstrap_outcome outcome, kvf_status status, const char *format, ...)
{
    char what[KVF_ERROR_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    char subject[96];
    answer->outcome = outcome;
    (void)kvf_error_set(&answer->error, status, "%s bootstrap server %s: %s",
                        call_text(call, subject), call->address, what);
}

/* 200: is it the answer that was asked for? */
static void judge_body(const kvf_bootstrap_call *call, kvf_bootstrap_answer *answer)
{
    kvf_error error = {0};
    kvf_slice body = kvf_bytes_slice(&call->body);
    kvf_status status = KVF_OK;
    if (call->kind == CALL_TOPOLOGY)
        status = kvf_route_topology_decode(body, &answer->topology, &error);
    else if (call->kind == CALL_RANK)
        status = kvf_route_rank_decode(body, &answer->rank, &error);
    else if (!kvf_slice_equal(body, kvf_slice_of("OK")))
        status = kvf_error_set(&error, KVF_PROTOCOL, "the answer isn't OK");
    if (status != KVF_OK)
        conclude(call, answer, KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP, "%s; is it a bootstrap server?",
                 error.text);
    else if (call->kind == CALL_TOPOLOGY && !answer->topology.known)
        conclude(call, answer, KVF_BOOTSTRAP_NOT_YET, KVF_BOOTSTRAP,
                 "no rank has registered there yet");
    else
        answer->outcome = KVF_BOOTSTRAP_ANSWERED;
}

static void judge_status(const kvf_bootstrap_call *call, long status, kvf_bootstrap_answer *answer)
{
    char text[QUOTE_MAX + 1];
    quote(&call->body, text);
    /* 500 is what SGLang 0.4.7 itself says of a rank that isn't in its table (an uncaught KeyError; its
     * 404 is unreachable), and ranks look each other up while some are still starting. A server that is
     * really broken says so until the room's bootstrap_timeout, with this text. */
    if (call->kind == CALL_RANK && (status == 404 || status == 500))
        conclude(call, answer, KVF_BOOTSTRAP_NOT_YET, KVF_BOOTSTRAP,
                 "not registered yet (HTTP %ld)", status);
    else if (status >= 400 && status < 500)
        conclude(call, answer, KVF_BOOTSTRAP_REFUSED, status == 409 ? KVF_MISMATCH : KVF_BOOTSTRAP,
                 "refused with HTTP %ld: %s", status, text);
    else
        conclude(call, answer, KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP, "HTTP %ld: %s", status, text);
}

static void judge(const kvf_bootstrap_call *call, CURLcode result, kvf_bootstrap_answer *answer)
{
    long status = 0;
    (void)curl_easy_getinfo(call->easy, CURLINFO_RESPONSE_CODE, &status);
    if (call->too_large)
        conclude(call, answer, KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP,
                 "the answer is longer than %" PRIu64 " bytes (setting max_http_body)",
                 call->client->max_body);
    else if (result != CURLE_OK)
        conclude(call, answer, KVF_BOOTSTRAP_FAILED, KVF_BOOTSTRAP, "%s",
                 call->reason[0] != '\0' ? call->reason : curl_easy_strerror(result));
    else if (status == 200)
        judge_body(call, answer);
    else
        judge_status(call, status, answer);
}

/* ---- The loop's turn -------------------------------------------------------------------------- */

static void act_on_sockets(kvf_bootstrap_client *client)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    int running;
    int count = epoll_wait(client->epoll, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++) {
        int actions = 0;
        if ((events[i].events & EPOLLIN) != 0)
            actions |= CURL_CSELECT_IN;
        if ((events[i].events & EPOLLOUT) != 0)
            actions |= CURL_CSELECT_OUT;
        if ((events[i].events & (EPOLLERR | EPOLLHUP)) != 0)
            actions |= CURL_CSELECT_ERR;
        (void)curl_multi_socket_action(client->multi, events[i].data.fd, actions, &running);
    }
    if (client->deadline <= kvf_clock_now()) {
        client->deadline = KVF_NEVER; /* curl's timer rings once; what comes next it says again */
        (void)curl_multi_socket_action(client->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
}

/* One at a time: what a done() starts or cancels changes curl's list of messages. */
static bool finish_one(kvf_bootstrap_client *client)
{
    int left;
    const CURLMsg *message = curl_multi_info_read(client->multi, &left);
    if (message == NULL)
        return false;
    kvf_bootstrap_call *call = NULL;
    (void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &call);
    kvf_bootstrap_answer answer = {0};
    judge(call, message->data.result, &answer);
    kvf_bootstrap_done done = call->done;
    void *user = call->user;
    free_call(call);
    done(user, &answer);
    return true;
}

void kvf_bootstrap_client_process(kvf_bootstrap_client *client)
{
    act_on_sockets(client);
    while (finish_one(client))
        ;
}

/* ---- Calls ------------------------------------------------------------------------------------ */

static long milliseconds_of(uint64_t nanoseconds)
{
    return (long)((nanoseconds + KVF_MILLISECOND - 1) / KVF_MILLISECOND);
}

static bool set_limits(kvf_bootstrap_call *call)
{
    CURL *easy = call->easy;
    const kvf_bootstrap_client *client = call->client;
#if LIBCURL_VERSION_NUM >= 0x075500
    bool http_only = curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http") == CURLE_OK;
#else
    bool http_only = curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)CURLPROTO_HTTP) == CURLE_OK;
#endif
#if LIBCURL_VERSION_NUM >= 0x075700
    (void)curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
    /* No proxy, whatever the environment says: peers of the cluster are reached directly, and a proxy meant
     * for the outside would answer for them with pages of its own. */
    return http_only && curl_easy_setopt(easy, CURLOPT_NOPROXY, "*") == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                            milliseconds_of(client->connect_timeout)) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, milliseconds_of(client->timeout)) == CURLE_OK;
}

static bool set_callbacks(kvf_bootstrap_call *call)
{
    CURL *easy = call->easy;
    return curl_easy_setopt(easy, CURLOPT_PRIVATE, call) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->reason) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, on_open_socket) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_WRITEDATA, call) == CURLE_OK;
}

static bool set_request(kvf_bootstrap_call *call, const char *query, const kvf_bytes *body)
{
    CURL *easy = call->easy;
    char url[KVF_ADDRESS_MAX + 96];
    (void)snprintf(url, sizeof url, "http://%s/route%s", call->address, query);
    if (curl_easy_setopt(easy, CURLOPT_URL, url) != CURLE_OK ||
        curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) != CURLE_OK)
        return false;
    if (body == NULL)
        return true;
    call->headers = curl_slist_append(NULL, "Content-Type: application/json");
    return call->headers != NULL &&
           curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call->headers) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, "PUT") == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->length) ==
               CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, (const char *)body->data) == CURLE_OK;
}

/* Gives `fresh` to curl; frees it on error. */
static kvf_status start(kvf_bootstrap_client *client, kvf_bootstrap_call fresh, const char *address,
                        const char *query, const kvf_bytes *body, kvf_bootstrap_call **call,
                        kvf_error *error)
{
    *call = NULL;
    char host[KVF_HOST_MAX];
    uint16_t port;
    if (!kvf_parse_address(address, false, false, host, &port))
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "\"%.100s\" isn't the address of a bootstrap server; write host:port",
                             address);
    kvf_bootstrap_call *started = malloc(sizeof *started);
    if (started == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a request to %s", address);
    *started = fresh;
    started->client = client;
    kvf_format_address(host, port, started->address);
    started->easy = curl_easy_init();
    if (started->easy == NULL || !set_limits(started) || !set_callbacks(started) ||
        !set_request(started, query, body) ||
        curl_multi_add_handle(client->multi, started->easy) != CURLM_OK) {
        free_call(started);
        return kvf_error_set(error, KVF_SYSTEM, "libcurl can't start a request to %s", address);
    }
    started->next = client->calls;
    if (client->calls != NULL)
        client->calls->previous = started;
    client->calls = started;
    *call = started;
    return KVF_OK;
}

kvf_status kvf_bootstrap_get_topology(kvf_bootstrap_client *client, const char *address,
                                      kvf_bootstrap_done done, void *user,
                                      kvf_bootstrap_call **call, kvf_error *error)
{
    const kvf_bootstrap_call fresh = {.kind = CALL_TOPOLOGY, .done = done, .user = user};
    return start(client, fresh, address, "?engine_rank=-1&target_dp_group=-1", NULL, call, error);
}

kvf_status kvf_bootstrap_get_rank(kvf_bootstrap_client *client, const char *address,
                                  uint32_t dp_group, uint32_t tp_rank, kvf_bootstrap_done done,
                                  void *user, kvf_bootstrap_call **call, kvf_error *error)
{
    const kvf_bootstrap_call fresh = {
        .kind = CALL_RANK, .done = done, .user = user, .dp_group = dp_group, .tp_rank = tp_rank};
    char query[96];
    (void)snprintf(query, sizeof query, "?engine_rank=%u&target_dp_group=%u", tp_rank, dp_group);
    return start(client, fresh, address, query, NULL, call, error);
}

kvf_status kvf_bootstrap_put(kvf_bootstrap_client *client, const char *address,
                             const kvf_route_registration *registration, kvf_bootstrap_done done,
                             void *user, kvf_bootstrap_call **call, kvf_error *error)
{
    *call = NULL;
    kvf_bytes body = {0};
    kvf_route_registration_encode(registration, &body);
    if (body.failed) {
        kvf_bytes_free(&body);
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a registration at %s", address);
    }
    const kvf_bootstrap_call fresh = {.kind = CALL_PUT, .done = done, .user = user};
    kvf_status status = start(client, fresh, address, "", &body, call, error);
    kvf_bytes_free(&body);
    return status;
}

void kvf_bootstrap_cancel(kvf_bootstrap_call *call)
{
    free_call(call);
}
