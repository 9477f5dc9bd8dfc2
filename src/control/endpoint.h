/* What PULL and PUSH have in common: a ZeroMQ socket, the monitor that tells of its connections, and one
 * descriptor to sleep on. Only for the files of this directory. */
#ifndef KVF_CONTROL_ENDPOINT_H
#define KVF_CONTROL_ENDPOINT_H

#include "control/control.h"

#include <zmq.h>

struct kvf_control {
    void *context;
    kvf_log log;
    uint64_t heartbeat_interval;
    uint64_t heartbeat_timeout;
    uint64_t max_frame_bytes;
    uint64_t max_message_frames;
    uint64_t linger;  /* of PUSHes that are closed, in nanoseconds; see kvf_control_linger() */
    size_t endpoints; /* open ones, for the assertion in close */
};

typedef struct kvf_endpoint {
    void *socket;
    void *monitor; /* the PAIR that the events of `socket` come from */
    int wake;      /* an epoll over every descriptor that may wake the endpoint */
} kvf_endpoint;

typedef struct kvf_endpoint_event {
    int kind;       /* ZMQ_EVENT_... */
    uint32_t value; /* a descriptor or an error number, as the kind has it */
} kvf_endpoint_event;

/* A socket of `type` for tcp to or at `host`, its monitor for `events`, and a wake descriptor over both.
 * On failure everything is closed again. */
kvf_status kvf_endpoint_open(kvf_endpoint *endpoint, const kvf_control *control, void *context,
                             int type, const char *host, int events, kvf_error *error);
/* The sockets only: `wake` stays valid and silent. May be called twice. */
void kvf_endpoint_close_sockets(kvf_endpoint *endpoint);
void kvf_endpoint_close(kvf_endpoint *endpoint);

/* False when there is none now. */
bool kvf_endpoint_next_event(kvf_endpoint *endpoint, kvf_endpoint_event *event);

kvf_status kvf_endpoint_watch(kvf_endpoint *endpoint, int descriptor, kvf_error *error);
kvf_status kvf_endpoint_watch_socket(kvf_endpoint *endpoint, void *socket, kvf_error *error);
void kvf_endpoint_unwatch_socket(kvf_endpoint *endpoint, void *socket);

/* zmq_msg_recv without waiting, into an initialized message; false when there is nothing. */
bool kvf_endpoint_receive(void *socket, zmq_msg_t *message);
/* The bits of ZMQ_EVENTS. Unlike send and receive it always looks at the socket's mailbox. */
int kvf_endpoint_ready(void *socket);

kvf_status kvf_endpoint_option(void *socket, int option, int value, kvf_error *error);

/* "tcp://host:port", "*" for port 0; false when `host` holds what ZeroMQ would read as more than a host. */
bool kvf_endpoint_address(const char *host, uint16_t port, char *address, size_t capacity);

/* Nanoseconds to the milliseconds of a ZeroMQ option, rounded up. */
int kvf_endpoint_milliseconds(uint64_t duration);

#endif
