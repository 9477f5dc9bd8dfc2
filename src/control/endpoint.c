#include "control/endpoint.h"

#include "base/text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

int kvf_endpoint_milliseconds(uint64_t duration)
{
    uint64_t milliseconds = duration / KVF_MILLISECOND + (duration % KVF_MILLISECOND != 0);
    return milliseconds > INT_MAX ? INT_MAX : (int)milliseconds;
}

bool kvf_endpoint_address(const char *host, uint16_t port, char *address, size_t capacity)
{
    /* "a;b" would be a source and a destination, "/" a path: hosts come from the network. */
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:%_-";
    size_t length = strlen(host);
    if (length == 0 || length >= KVF_HOST_MAX || host[strspn(host, allowed)] != '\0')
        return false;
    char port_text[8] = "*";
    if (port != 0)
        (void)snprintf(port_text, sizeof port_text, "%u", (unsigned)port);
    const char *format = strchr(host, ':') != NULL ? "tcp://[%s]:%s" : "tcp://%s:%s";
    return snprintf(address, capacity, format, host, port_text) < (int)capacity;
}

bool kvf_endpoint_receive(void *socket, zmq_msg_t *message)
{
    int received;
    do
        received = zmq_msg_recv(message, socket, ZMQ_DONTWAIT);
    while (received < 0 && errno == EINTR);
    return received >= 0;
}

int kvf_endpoint_ready(void *socket)
{
    int events = 0;
    size_t size = sizeof events;
    int result;
    do
        result = zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size);
    while (result != 0 && errno == EINTR);
    return result == 0 ? events : 0;
}

kvf_status kvf_endpoint_option(void *socket, int option, int value, kvf_error *error)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) == 0)
        return KVF_OK;
    return kvf_error_set(error, KVF_SYSTEM,
                         "ZeroMQ refuses the value %d of its socket option %d: %s", value, option,
                         zmq_strerror(errno));
}

kvf_status kvf_endpoint_watch(kvf_endpoint *endpoint, int descriptor, kvf_error *error)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(endpoint->wake, EPOLL_CTL_ADD, descriptor, &event) == 0)
        return KVF_OK;
    return kvf_error_set(error, KVF_SYSTEM, "can't watch a descriptor of a control socket: %s",
                         strerror(errno));
}

static int descriptor_of(void *socket)
{
    int descriptor = -1;
    size_t size = sizeof descriptor;
    (void)zmq_getsockopt(socket, ZMQ_FD, &descriptor, &size);
    return descriptor;
}

kvf_status kvf_endpoint_watch_socket(kvf_endpoint *endpoint, void *socket, kvf_error *error)
{
    return kvf_endpoint_watch(endpoint, descriptor_of(socket), error);
}

void kvf_endpoint_unwatch_socket(kvf_endpoint *endpoint, void *socket)
{
    /* Before zmq_close: ZeroMQ closes the descriptor later, in a thread of its own, and its number may
     * be somebody else's by then. */
    (void)epoll_ctl(endpoint->wake, EPOLL_CTL_DEL, descriptor_of(socket), NULL);
}

static kvf_status set_options(const kvf_endpoint *endpoint, const kvf_control *control,
                              const char *host, kvf_error *error)
{
    struct in_addr ipv4;
    bool maybe_ipv6 = inet_pton(AF_INET, host, &ipv4) != 1;
    int interval = kvf_endpoint_milliseconds(control->heartbeat_interval);
    int timeout = kvf_endpoint_milliseconds(control->heartbeat_timeout);
    const int options[][2] = {
        {ZMQ_LINGER, 0},
        {ZMQ_IPV6, maybe_ipv6},
        {ZMQ_HEARTBEAT_IVL, interval},
        {ZMQ_HEARTBEAT_TIMEOUT, timeout},
        /* Tells the other side, which may have no heartbeats of its own, when to count us as gone: not
         * before it would have missed a ping and the time we ourselves give it. */
        {ZMQ_HEARTBEAT_TTL, interval + timeout},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        kvf_status status =
            kvf_endpoint_option(endpoint->socket, options[i][0], options[i][1], error);
        if (status != KVF_OK)
            return status;
    }
    return KVF_OK;
}

static kvf_status open_monitor(kvf_endpoint *endpoint, void *context, int events, kvf_error *error)
{
    char name[64];
    (void)snprintf(name, sizeof name, "inproc://monitor-%p", endpoint->socket);
    if (zmq_socket_monitor(endpoint->socket, name, events) != 0)
        return kvf_error_set(error, KVF_SYSTEM, "can't monitor a control socket: %s",
                             zmq_strerror(errno));
    endpoint->monitor = zmq_socket(context, ZMQ_PAIR);
    if (endpoint->monitor == NULL)
        return kvf_error_set(error, KVF_SYSTEM, "can't open a monitor's socket: %s",
                             zmq_strerror(errno));
    /* No limit: where one is reached, ZeroMQ's I/O thread waits inside the monitor, with a lock held
     * that zmq_close of the socket needs. An event is small, and process() takes them out. */
    kvf_status status = kvf_endpoint_option(endpoint->monitor, ZMQ_RCVHWM, 0, error);
    if (status == KVF_OK)
        status = kvf_endpoint_option(endpoint->monitor, ZMQ_LINGER, 0, error);
    if (status == KVF_OK && zmq_connect(endpoint->monitor, name) != 0)
        return kvf_error_set(error, KVF_SYSTEM, "can't connect to a socket's monitor: %s",
                             zmq_strerror(errno));
    return status;
}

static kvf_status open_parts(kvf_endpoint *endpoint, const kvf_control *control, void *context,
                             int type, const char *host, int events, kvf_error *error)
{
    endpoint->wake = epoll_create1(EPOLL_CLOEXEC);
    if (endpoint->wake < 0)
        return kvf_error_set(error, KVF_SYSTEM, "can't open an epoll for a control socket: %s",
                             strerror(errno));
    endpoint->socket = zmq_socket(context, type);
    if (endpoint->socket == NULL)
        return kvf_error_set(error, KVF_SYSTEM, "can't open a control socket: %s%s",
                             zmq_strerror(errno),
                             errno == EMFILE ? " (descriptors, or max_peers sockets)" : "");
    kvf_status status = set_options(endpoint, control, host, error);
    if (status == KVF_OK)
        status = open_monitor(endpoint, context, events, error);
    if (status == KVF_OK)
        status = kvf_endpoint_watch_socket(endpoint, endpoint->socket, error);
    if (status == KVF_OK)
        status = kvf_endpoint_watch_socket(endpoint, endpoint->monitor, error);
    return status;
}

kvf_status kvf_endpoint_open(kvf_endpoint *endpoint, const kvf_control *control, void *context,
                             int type, const char *host, int events, kvf_error *error)
{
    *endpoint = (kvf_endpoint){.wake = -1};
    kvf_status status = open_parts(endpoint, control, context, type, host, events, error);
    if (status != KVF_OK)
        kvf_endpoint_close(endpoint);
    return status;
}

void kvf_endpoint_close_sockets(kvf_endpoint *endpoint)
{
    if (endpoint->socket == NULL)
        return;
    /* The monitor's sending end goes first: with its PAIR closed before, the I/O thread would wait for
     * ever to hand over the next event. */
    (void)zmq_socket_monitor(endpoint->socket, NULL, 0);
    if (endpoint->monitor != NULL) {
        kvf_endpoint_unwatch_socket(endpoint, endpoint->monitor);
        (void)zmq_close(endpoint->monitor);
    }
    kvf_endpoint_unwatch_socket(endpoint, endpoint->socket);
    (void)zmq_close(endpoint->socket);
    endpoint->monitor = NULL;
    endpoint->socket = NULL;
}

void kvf_endpoint_close(kvf_endpoint *endpoint)
{
    kvf_endpoint_close_sockets(endpoint);
    if (endpoint->wake >= 0)
        (void)close(endpoint->wake);
    endpoint->wake = -1;
}

bool kvf_endpoint_next_event(kvf_endpoint *endpoint, kvf_endpoint_event *event)
{
    zmq_msg_t message;
    (void)zmq_msg_init(&message);
    if (!kvf_endpoint_receive(endpoint->monitor, &message)) {
        (void)zmq_msg_close(&message);
        return false;
    }
    uint16_t kind = 0;
    event->value = 0;
    if (zmq_msg_size(&message) >= sizeof kind + sizeof event->value) {
        const uint8_t *data = zmq_msg_data(&message);
        memcpy(&kind, data, sizeof kind);
        memcpy(&event->value, data + sizeof kind, sizeof event->value);
    }
    event->kind = kind;
    /* The second frame is the endpoint's address, which says nothing new. */
    while (zmq_msg_more(&message) && kvf_endpoint_receive(endpoint->monitor, &message))
        ;
    (void)zmq_msg_close(&message);
    return true;
}
