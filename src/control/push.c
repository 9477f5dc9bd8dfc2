#include "control/endpoint.h"

#include "base/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    EVENTS_PER_CALL = 64,
    QUEUED_MESSAGES = 256,  /* beyond, sends are put off */
    MAX_ANSWER_BYTES = 1024 /* a PULL sends handshakes and heartbeats, nothing else */
};

typedef enum push_state {
    CONNECTING, /* the TCP connection isn't there yet */
    SHAKING,    /* it is, the handshake isn't done */
    CONNECTED,
    BROKEN, /* found dead in the middle of a message; the monitor will tell */
    GONE
} push_state;

struct kvf_control_push {
    kvf_control *control;
    kvf_control_push_callbacks callbacks;
    kvf_endpoint endpoint;
    push_state state;
    bool put_off; /* a send waits for room */
    int socket;   /* libzmq's own, while connected: only to look at; -1: none */
    int timer;    /* rings when `timeout` is over; -1: none any more */
    uint64_t timeout;
    uint64_t deadline;
    char address[KVF_ADDRESS_MAX];
};

/* ---- open and close ---- */

static kvf_status start_timer(kvf_control_push *push, kvf_error *error)
{
    push->deadline = kvf_clock_after(kvf_clock_now(), push->timeout);
    if (push->deadline == KVF_NEVER)
        return KVF_OK;
    push->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct itimerspec when = {.it_value = {.tv_sec = (time_t)(push->deadline / KVF_SECOND),
                                           .tv_nsec = (long)(push->deadline % KVF_SECOND)}};
    if (push->timer < 0 || timerfd_settime(push->timer, TFD_TIMER_ABSTIME, &when, NULL) != 0)
        return kvf_error_set(error, KVF_SYSTEM, "can't set a timer for the connection to %s: %s",
                             push->address, strerror(errno));
    return kvf_endpoint_watch(&push->endpoint, push->timer, error);
}

static void stop_timer(kvf_control_push *push)
{
    if (push->timer >= 0)
        (void)close(push->timer);
    push->timer = -1;
}

static kvf_status set_options(kvf_control_push *push, kvf_error *error)
{
    const int options[][2] = {
        {ZMQ_SNDHWM, QUEUED_MESSAGES},
        {ZMQ_IMMEDIATE, 1},      /* no queue without a connection */
        {ZMQ_RECONNECT_IVL, -1}, /* the next process at this address is another peer */
        /* libzmq's own limit (30 s) must not cut what our timer still allows. */
        {ZMQ_HANDSHAKE_IVL, kvf_endpoint_milliseconds(push->timeout)},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        kvf_status status =
            kvf_endpoint_option(push->endpoint.socket, options[i][0], options[i][1], error);
        if (status != KVF_OK)
            return status;
    }
    int64_t limit = MAX_ANSWER_BYTES;
    if (zmq_setsockopt(push->endpoint.socket, ZMQ_MAXMSGSIZE, &limit, sizeof limit) != 0)
        return kvf_error_set(error, KVF_SYSTEM, "ZeroMQ refuses a limit of received bytes: %s",
                             zmq_strerror(errno));
    return KVF_OK;
}

static kvf_status start(kvf_control_push *push, const char *host, uint16_t port, kvf_error *error)
{
    char address[KVF_HOST_MAX + 16];
    if (port == 0 || !kvf_endpoint_address(host, port, address, sizeof address))
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "\"%.64s\" port %u is no address to connect to", host, (unsigned)port);
    kvf_format_address(host, port, push->address);
    kvf_status status =
        kvf_endpoint_open(&push->endpoint, push->control, push->control->context, ZMQ_PUSH, host,
                          ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED |
                              ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                              ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH,
                          error);
    if (status == KVF_OK)
        status = set_options(push, error);
    if (status == KVF_OK)
        status = start_timer(push, error);
    if (status == KVF_OK && zmq_connect(push->endpoint.socket, address) != 0)
        status = kvf_error_set(error, errno == EINVAL ? KVF_INVALID_ARGUMENT : KVF_SYSTEM,
                               "can't connect to %s: %s", push->address, zmq_strerror(errno));
    return status;
}

kvf_status kvf_control_push_open(kvf_control *control, const char *host, uint16_t port,
                                 uint64_t timeout, const kvf_control_push_callbacks *callbacks,
                                 kvf_control_push **push, kvf_error *error)
{
    *push = NULL;
    kvf_control_push *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a connection to %.64s", host);
    opened->control = control;
    opened->callbacks = *callbacks;
    opened->endpoint.wake = -1;
    opened->timer = -1;
    opened->socket = -1;
    opened->timeout = timeout;
    control->endpoints++;
    kvf_status status = start(opened, host, port, error);
    if (status != KVF_OK) {
        kvf_control_push_close(opened);
        return status;
    }
    *push = opened;
    return KVF_OK;
}

void kvf_control_push_close(kvf_control_push *push)
{
    if (push == NULL)
        return;
    stop_timer(push);
    if (push->control->linger > 0 && push->endpoint.socket != NULL)
        (void)kvf_endpoint_option(push->endpoint.socket, ZMQ_LINGER,
                                  kvf_endpoint_milliseconds(push->control->linger), NULL);
    kvf_endpoint_close(&push->endpoint);
    push->control->endpoints--;
    free(push);
}

size_t kvf_control_push_descriptors(const kvf_control_push *push, int descriptors[2])
{
    descriptors[0] = push->endpoint.wake;
    return 1;
}

kvf_peer_process kvf_control_push_peer(const kvf_control_push *push)
{
    return kvf_peer_process_find(push->socket);
}

/* ---- send ---- */

static void close_frames(zmq_msg_t *messages, size_t count)
{
    for (size_t i = 0; i < count; i++)
        (void)zmq_msg_close(&messages[i]);
    free(messages);
}

/* All frames, before the first is sent: there is no way back from half a message. NULL: no memory. */
static zmq_msg_t *copy_frames(const kvf_slice *frames, size_t count)
{
    zmq_msg_t *messages = calloc(count, sizeof messages[0]);
    for (size_t i = 0; messages != NULL && i < count; i++) {
        if (zmq_msg_init_size(&messages[i], frames[i].length) != 0) {
            close_frames(messages, i);
            return NULL;
        }
        if (frames[i].length > 0)
            memcpy(zmq_msg_data(&messages[i]), frames[i].data, frames[i].length);
    }
    return messages;
}

/* How many were taken: all of them; none where there is no room; some where the connection died in
 * between, and libzmq has then thrown those away. */
static size_t send_frames(void *socket, zmq_msg_t *messages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int flags = ZMQ_DONTWAIT | (i + 1 < count ? ZMQ_SNDMORE : 0);
        int sent;
        do
            sent = zmq_msg_send(&messages[i], socket, flags);
        while (sent < 0 && errno == EINTR);
        if (sent < 0)
            return i;
    }
    return count;
}

kvf_status kvf_control_push_send(kvf_control_push *push, const kvf_slice *frames,
                                 size_t frame_count, bool *put_off, kvf_error *error)
{
    *put_off = false;
    if (push->state != CONNECTED)
        return kvf_error_set(error, KVF_PEER_GONE, "not connected to %s", push->address);
    if (frame_count == 0)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT, "a message needs a frame");
    /* Looking makes libzmq take in what its I/O thread has reported; a send alone may not. And nobody may overtake
     * what was put off before. */
    if ((kvf_endpoint_ready(push->endpoint.socket) & ZMQ_POLLOUT) == 0 || push->put_off) {
        push->put_off = *put_off = true;
        return KVF_OK;
    }
    zmq_msg_t *messages = copy_frames(frames, frame_count);
    if (messages == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a message to %s", push->address);
    size_t sent = send_frames(push->endpoint.socket, messages, frame_count);
    close_frames(messages, frame_count);
    if (sent == frame_count)
        return KVF_OK;
    if (sent == 0) {
        push->put_off = *put_off = true;
        return KVF_OK;
    }
    push->state = BROKEN;
    return kvf_error_set(error, KVF_PEER_GONE, "the connection to %s ended during a send",
                         push->address);
}

/* ---- process ---- */

static void end(kvf_control_push *push, const char *text)
{
    /* Nothing may leave or come back once the caller has heard that the peer is gone. */
    push->state = GONE;
    push->socket = -1;
    stop_timer(push);
    kvf_endpoint_close_sockets(&push->endpoint);
    push->callbacks.gone(push->callbacks.user, text);
}

static double seconds(uint64_t duration)
{
    return (double)duration / (double)KVF_SECOND;
}

static void explain_end(const kvf_control_push *push, kvf_endpoint_event event, char *text,
                        size_t capacity)
{
    if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        (void)snprintf(text, capacity,
                       "%s answers, but not as a ZeroMQ PULL socket (error 0x%x); check the port",
                       push->address, (unsigned)event.value);
    else if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        (void)snprintf(text, capacity, "%s refuses the connection in the ZeroMQ handshake",
                       push->address);
    else if (push->state == CONNECTING)
        (void)snprintf(text, capacity,
                       "%s: connection refused or no route to it; is the peer running?",
                       push->address);
    else if (push->state == SHAKING)
        (void)snprintf(
            text, capacity,
            "%s closed the connection during the ZeroMQ handshake; is it a control port?",
            push->address);
    else
        (void)snprintf(text, capacity,
                       "the connection to %s is lost: closed by the peer, or silent for %.3g s",
                       push->address, seconds(push->control->heartbeat_timeout));
}

static void handle_event(kvf_control_push *push, kvf_endpoint_event event)
{
    char text[KVF_ADDRESS_MAX + 128];
    switch (event.kind) {
    case ZMQ_EVENT_CONNECTED:
        push->state = SHAKING;
        push->socket = (int)event.value;
        return;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        push->state = CONNECTED;
        stop_timer(push);
        push->callbacks.connected(push->callbacks.user);
        return;
    default:
        explain_end(push, event, text, sizeof text);
        end(push, text);
    }
}

static void check_deadline(kvf_control_push *push)
{
    if (push->timer < 0 || kvf_clock_now() < push->deadline)
        return;
    char text[KVF_ADDRESS_MAX + 128];
    (void)snprintf(text, sizeof text, "%s: %s within %.3g s", push->address,
                   push->state == SHAKING ? "connected, but no ZeroMQ handshake" : "no connection",
                   seconds(push->timeout));
    end(push, text);
}

/* True when the callback was called, and may have sent again. */
static bool check_room(kvf_control_push *push)
{
    /* Asked even when nobody waits: the look takes in what libzmq has for us, without which the
     * descriptor wouldn't wake us again. */
    int ready = kvf_endpoint_ready(push->endpoint.socket);
    if (push->state != CONNECTED || !push->put_off || (ready & ZMQ_POLLOUT) == 0)
        return false;
    push->put_off = false;
    push->callbacks.writable(push->callbacks.user);
    return true;
}

bool kvf_control_push_process(kvf_control_push *push)
{
    kvf_endpoint_event event;
    for (int i = 0; i < EVENTS_PER_CALL; i++) {
        if (push->state == GONE)
            return false;
        if (kvf_endpoint_next_event(&push->endpoint, &event)) {
            handle_event(push, event);
            continue;
        }
        check_deadline(push);
        if (push->state == GONE || !check_room(push))
            return false;
    }
    return true;
}
