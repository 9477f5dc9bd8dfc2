#include "control/connections.h"
#include "control/endpoint.h"

#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
    MESSAGES_PER_CALL = 64,
    ENDS_PER_CALL = 8,
    RECEIVES_PER_CALL =
        4096, /* frames and events, so that a message of a million frames isn't one step */
    QUEUED_MESSAGES = 256, /* per connection; beyond, TCP holds the peer back */
    QUEUED_CONNECTIONS = 1024,
    KEY_TEXT_MAX = 24
};

/* Each PULL has a context, and with it an I/O thread, of its own: the answers to its handshakes come from
 * one well-known address per context, and whoever floods the port delays no PUSH's heartbeats. */
struct kvf_control_pull {
    kvf_control *control;
    kvf_control_pull_callbacks callbacks;
    void *context;
    kvf_endpoint endpoint;
    void *gate; /* where libzmq asks whether a connection in its handshake may come in */
    uint16_t port;
    kvf_connections connections;
    size_t receives; /* left in this call of process() */

    bool asked; /* a question of the gate is read and not answered */
    char question[64];
    size_t question_length;

    bool complete;      /* a message is read and not delivered */
    size_t frame_count; /* read so far, also those not kept */
    size_t max_frames;
    zmq_msg_t *frames;
    kvf_slice *slices;
    uint32_t descriptor; /* what the message says of its connection */
    uint64_t key;
};

/* ---- open and close ---- */

static kvf_status explain_bind(const char *host, uint16_t port, int reason, kvf_error *error)
{
    char address[KVF_ADDRESS_MAX];
    kvf_format_address(host, port, address);
    switch (reason) {
    case EADDRINUSE:
        return kvf_error_set(error, KVF_ADDRESS_IN_USE,
                             "control port %s is taken; set another control_port, or 0 for any",
                             address);
    case EADDRNOTAVAIL:
    case ENODEV:
    case EINVAL:
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "can't bind the control port to %s: not an address of this host; see "
                             "the setting control_address",
                             address);
    default:
        return kvf_error_set(error, KVF_SYSTEM, "can't bind the control port to %s: %s", address,
                             zmq_strerror(reason));
    }
}

/* ZeroMQ binds to numbers and interface names only, while people configure host names. What isn't found is
 * left as it is: it may be an interface. May wait for a name server, once, at open. */
static void resolve(const char *host, char numeric[KVF_HOST_MAX])
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    (void)snprintf(numeric, KVF_HOST_MAX, "%s", host);
    if (getaddrinfo(host, NULL, &hints, &found) != 0)
        return;
    if (getnameinfo(found->ai_addr, found->ai_addrlen, numeric, KVF_HOST_MAX, NULL, 0,
                    NI_NUMERICHOST) != 0)
        (void)snprintf(numeric, KVF_HOST_MAX, "%s", host);
    freeaddrinfo(found);
}

static kvf_status bind_port(kvf_control_pull *pull, const char *host, uint16_t port,
                            kvf_error *error)
{
    char address[KVF_HOST_MAX + 16];
    (void)kvf_endpoint_address(host, port, address, sizeof address);
    if (zmq_bind(pull->endpoint.socket, address) != 0)
        return explain_bind(host, port, errno, error);
    char bound[KVF_HOST_MAX + 16] = "";
    size_t size = sizeof bound;
    uint64_t number = 0;
    (void)zmq_getsockopt(pull->endpoint.socket, ZMQ_LAST_ENDPOINT, bound, &size);
    const char *colon = strrchr(bound, ':');
    if (colon == NULL || !kvf_parse_decimal(kvf_slice_of(colon + 1), UINT16_MAX, &number))
        return kvf_error_set(error, KVF_SYSTEM, "ZeroMQ doesn't tell the port it bound at %s",
                             address);
    pull->port = (uint16_t)number;
    return KVF_OK;
}

static kvf_status open_gate(kvf_control_pull *pull, kvf_error *error)
{
    /* The address is fixed by ZeroMQ's RFC 27 (ZAP). A domain makes libzmq ask there, and turns away
     * peers older than ZMTP 3.0, which don't have the handshake that is needed. */
    static const char domain[] = "kvferry";
    pull->gate = zmq_socket(pull->context, ZMQ_REP);
    if (pull->gate == NULL || zmq_bind(pull->gate, "inproc://zeromq.zap.01") != 0 ||
        zmq_setsockopt(pull->endpoint.socket, ZMQ_ZAP_DOMAIN, domain, strlen(domain)) != 0)
        return kvf_error_set(error, KVF_SYSTEM, "can't answer ZeroMQ's handshakes: %s",
                             zmq_strerror(errno));
    kvf_status status = kvf_endpoint_option(pull->gate, ZMQ_LINGER, 0, error);
    if (status == KVF_OK)
        status = kvf_endpoint_watch_socket(&pull->endpoint, pull->gate, error);
    return status;
}

static kvf_status open_parts(kvf_control_pull *pull, const char *host, kvf_error *error)
{
    pull->max_frames = (size_t)pull->control->max_message_frames;
    pull->frames = calloc(pull->max_frames, sizeof pull->frames[0]);
    pull->slices = calloc(pull->max_frames, sizeof pull->slices[0]);
    if (pull->frames == NULL || pull->slices == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for the control port");
    pull->context = zmq_ctx_new();
    if (pull->context == NULL)
        return kvf_error_set(error, KVF_SYSTEM, "can't open a ZeroMQ context: %s",
                             zmq_strerror(errno));
    kvf_status status = kvf_endpoint_open(&pull->endpoint, pull->control, pull->context, ZMQ_PULL,
                                          host, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED, error);
    if (status != KVF_OK)
        return status;
    int64_t max_frame_bytes = (int64_t)pull->control->max_frame_bytes;
    if (zmq_setsockopt(pull->endpoint.socket, ZMQ_MAXMSGSIZE, &max_frame_bytes,
                       sizeof max_frame_bytes) != 0)
        return kvf_error_set(error, KVF_SYSTEM, "ZeroMQ refuses max_frame_bytes: %s",
                             zmq_strerror(errno));
    status = kvf_endpoint_option(pull->endpoint.socket, ZMQ_RCVHWM, QUEUED_MESSAGES, error);
    if (status == KVF_OK)
        status = kvf_endpoint_option(pull->endpoint.socket, ZMQ_BACKLOG, QUEUED_CONNECTIONS, error);
    if (status == KVF_OK)
        status = open_gate(pull, error);
    return status;
}

kvf_status kvf_control_pull_open(kvf_control *control, const char *host, uint16_t port,
                                 const kvf_control_pull_callbacks *callbacks,
                                 kvf_control_pull **pull, kvf_error *error)
{
    *pull = NULL;
    char address[KVF_HOST_MAX + 16];
    if (!kvf_endpoint_address(host, port, address, sizeof address))
        return kvf_error_set(error, KVF_INVALID_ARGUMENT, "\"%.64s\" is no host to bind to", host);
    kvf_control_pull *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for the control port");
    opened->control = control;
    opened->callbacks = *callbacks;
    opened->endpoint.wake = -1;
    control->endpoints++;
    char numeric[KVF_HOST_MAX];
    resolve(host, numeric);
    kvf_status status = open_parts(opened, numeric, error);
    if (status == KVF_OK)
        status = bind_port(opened, numeric, port, error);
    if (status != KVF_OK) {
        kvf_control_pull_close(opened);
        return status;
    }
    *pull = opened;
    return KVF_OK;
}

static void drop_frames(kvf_control_pull *pull)
{
    size_t kept = pull->frame_count < pull->max_frames ? pull->frame_count : pull->max_frames;
    for (size_t i = 0; i < kept; i++)
        (void)zmq_msg_close(&pull->frames[i]);
}

void kvf_control_pull_close(kvf_control_pull *pull)
{
    if (pull == NULL)
        return;
    if (pull->frames != NULL)
        drop_frames(pull);
    if (pull->gate != NULL) {
        kvf_endpoint_unwatch_socket(&pull->endpoint, pull->gate);
        (void)zmq_close(pull->gate);
    }
    kvf_endpoint_close(&pull->endpoint);
    while (pull->context != NULL && zmq_ctx_term(pull->context) != 0 && errno == EINTR)
        ;
    kvf_connections_free(&pull->connections);
    free(pull->frames);
    free(pull->slices);
    pull->control->endpoints--;
    free(pull);
}

uint16_t kvf_control_pull_port(const kvf_control_pull *pull)
{
    return pull->port;
}

size_t kvf_control_pull_descriptors(const kvf_control_pull *pull, int descriptors[2])
{
    descriptors[0] = pull->endpoint.wake;
    return 1;
}

/* ---- reading ---- */

static bool receive(kvf_control_pull *pull, void *socket, zmq_msg_t *message)
{
    if (pull->receives == 0)
        return false;
    pull->receives--;
    return kvf_endpoint_receive(socket, message);
}

/* Reads a question of the gate, unless one is waiting for its answer. Of its frames (version, request id,
 * domain, address, ...) only the second matters: the answer repeats it. */
static void read_question(kvf_control_pull *pull)
{
    zmq_msg_t frame;
    (void)zmq_msg_init(&frame);
    bool more = !pull->asked;
    for (int i = 0; more && kvf_endpoint_receive(pull->gate, &frame); i++) {
        size_t length = zmq_msg_size(&frame);
        if (i == 1) {
            pull->question_length = length < sizeof pull->question ? length : sizeof pull->question;
            memcpy(pull->question, zmq_msg_data(&frame), pull->question_length);
        }
        more = zmq_msg_more(&frame) != 0;
        pull->asked = !more;
    }
    (void)zmq_msg_close(&frame);
}

/* Lets the connection in, under a key that all its messages carry as their "User-Id". */
static void answer_question(kvf_control_pull *pull)
{
    char key[KEY_TEXT_MAX];
    int length = snprintf(key, sizeof key, "%llu",
                          (unsigned long long)kvf_connections_key(&pull->connections));
    const kvf_slice answer[] = {
        kvf_slice_of("1.0"),
        {(const uint8_t *)pull->question, pull->question_length},
        kvf_slice_of("200"),
        kvf_slice_of("OK"),
        {(const uint8_t *)key, (size_t)length},
        {NULL, 0},
    };
    size_t last = sizeof answer / sizeof answer[0] - 1;
    for (size_t i = 0; i <= last; i++)
        while (zmq_send(pull->gate, answer[i].data, answer[i].length,
                        i == last ? ZMQ_DONTWAIT : ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0 &&
               errno == EINTR)
            ;
    pull->asked = false;
}

/* What a frame says of the connection it came over. The peer can't forge either: libzmq keeps its own
 * properties where a peer sends some of the same name. */
static void identify(kvf_control_pull *pull, zmq_msg_t *frame)
{
    const char *key = zmq_msg_gets(frame, "User-Id");
    int descriptor = zmq_msg_get(frame, ZMQ_SRCFD);
    pull->key = 0;
    pull->descriptor = 0;
    if (key == NULL || descriptor < 0)
        return;
    pull->descriptor = (uint32_t)descriptor;
    if (!kvf_parse_decimal(kvf_slice_of(key), UINT64_MAX, &pull->key))
        pull->key = 0;
}

/* Reads on until a message is complete, which libzmq delivers whole; should it not, or should this call
 * have done enough, the next one goes on where this one stopped. */
static void read_message(kvf_control_pull *pull)
{
    while (!pull->complete) {
        zmq_msg_t surplus;
        bool keep = pull->frame_count < pull->max_frames;
        zmq_msg_t *frame = keep ? &pull->frames[pull->frame_count] : &surplus;
        (void)zmq_msg_init(frame);
        if (!receive(pull, pull->endpoint.socket, frame)) {
            (void)zmq_msg_close(frame);
            return;
        }
        if (pull->frame_count == 0)
            identify(pull, frame);
        pull->complete = zmq_msg_more(frame) == 0;
        pull->frame_count++;
        if (!keep)
            (void)zmq_msg_close(frame);
    }
}

static void deliver_message(kvf_control_pull *pull)
{
    uint64_t number = pull->key == 0
                          ? 0
                          : kvf_connections_number(&pull->connections, pull->descriptor, pull->key);
    size_t count = pull->frame_count <= pull->max_frames ? pull->frame_count : 0;
    for (size_t i = 0; i < count; i++)
        pull->slices[i] =
            (kvf_slice){zmq_msg_data(&pull->frames[i]), zmq_msg_size(&pull->frames[i])};
    if (number == 0)
        kvf_log_error(&pull->control->log, "a control message is dropped: %s",
                      pull->key == 0 ? "ZeroMQ doesn't tell its connection"
                                     : "no memory for its connection");
    else
        pull->callbacks.message(pull->callbacks.user, number, pull->slices, count);
    drop_frames(pull);
    pull->frame_count = 0;
    pull->complete = false;
}

static void read_events(kvf_control_pull *pull)
{
    kvf_endpoint_event event;
    while (pull->receives > 0 && kvf_endpoint_next_event(&pull->endpoint, &event)) {
        pull->receives--;
        if (event.kind == ZMQ_EVENT_ACCEPTED)
            kvf_connections_accepted(&pull->connections, event.value);
        else if (event.kind == ZMQ_EVENT_DISCONNECTED)
            kvf_connections_disconnected(&pull->connections, event.value);
    }
}

/* ---- process ---- */

/* Reports one connection whose last message has been delivered. True when it did, or when one has ended
 * since the queue was last looked at. */
static bool report_gone(kvf_control_pull *pull)
{
    uint64_t number = 0;
    if (!kvf_connections_take_settled(&pull->connections, &number))
        return kvf_connections_unsettled(&pull->connections);
    pull->callbacks.gone(pull->callbacks.user, number);
    return true;
}

/* One peer's messages without end must not put off the news of the others' deaths. */
static void report_drained(kvf_control_pull *pull)
{
    uint64_t number = 0;
    for (int i = 0; i < ENDS_PER_CALL && kvf_connections_take_drained(&pull->connections, &number);
         i++)
        pull->callbacks.gone(pull->callbacks.user, number);
}

/* True when there may be more. */
static bool process_some(kvf_control_pull *pull)
{
    pull->receives = RECEIVES_PER_CALL;
    for (int i = 0; i < MESSAGES_PER_CALL; i++) {
        /* The order is the point, connections.h says why: first read a question and a message, then all
         * events that came before them, then act. And each socket's last call here found it empty,
         * without which its descriptor wouldn't wake us again. */
        kvf_connections_settle(&pull->connections);
        read_question(pull);
        read_message(pull);
        read_events(pull);
        if (pull->receives == 0)
            return true;
        bool acted = pull->asked || pull->complete;
        if (pull->asked)
            answer_question(pull);
        if (pull->complete)
            deliver_message(pull);
        if (!acted && !report_gone(pull))
            return false;
    }
    return true;
}

bool kvf_control_pull_process(kvf_control_pull *pull)
{
    bool more = process_some(pull);
    if (more)
        report_drained(pull);
    return more;
}
