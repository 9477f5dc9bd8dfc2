#include "bootstrap/listener.h"

#include "base/text.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Also the backlog of connections over max_http_connections; the system caps it. */
#define BACKLOG 1024

static kvf_status refuse(kvf_error *error, const char *address, const char *what, int number)
{
    if (number == EADDRINUSE)
        return kvf_error_set(error, KVF_ADDRESS_IN_USE,
                             "can't listen on %s: the port is taken; stop what listens there or "
                             "choose another port",
                             address);
    return kvf_error_set(error, KVF_SYSTEM, "can't listen on %s: %s: %s", address, what,
                         strerror(number));
}

static kvf_status set_options(int descriptor, int family, const char *address, kvf_error *error)
{
    /* Otherwise a restarted server couldn't have its port back while old connections linger. Another
     * listener on the port is still an error. */
    const int yes = 1;
    const int no = 0;
    if (setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0)
        return refuse(error, address, "SO_REUSEADDR", errno);
    if (family == AF_INET6 &&
        setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0)
        return refuse(error, address, "IPV6_V6ONLY", errno);
    return KVF_OK;
}

static uint16_t bound_port(int descriptor)
{
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    if (getsockname(descriptor, (struct sockaddr *)&name, &length) != 0)
        return 0;
    in_port_t port;
    if (name.ss_family == AF_INET6)
        port = ((struct sockaddr_in6 *)&name)->sin6_port;
    else
        port = ((struct sockaddr_in *)&name)->sin_port;
    return ntohs(port);
}

static kvf_status listen_on(const struct addrinfo *target, const char *address, int *descriptor,
                            uint16_t *port, kvf_error *error)
{
    int fd = socket(target->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return refuse(error, address, "socket", errno);
    kvf_status status = set_options(fd, target->ai_family, address, error);
    if (status == KVF_OK && bind(fd, target->ai_addr, target->ai_addrlen) != 0)
        status = refuse(error, address, "bind", errno);
    /* Two sockets may bind one free port; then the second is told here. */
    if (status == KVF_OK && listen(fd, BACKLOG) != 0)
        status = refuse(error, address, "listen", errno);
    if (status != KVF_OK) {
        (void)close(fd);
        return status;
    }
    *descriptor = fd;
    *port = bound_port(fd);
    return KVF_OK;
}

kvf_status kvf_listener_open(const char *address, int *descriptor, uint16_t *port, kvf_error *error)
{
    char host[KVF_HOST_MAX];
    uint16_t wanted;
    /* Listening everywhere is something to ask for, not what an empty host happens to mean. */
    if (!kvf_parse_address(address, false, true, host, &wanted))
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "\"%.100s\" isn't an address to listen on; write host:port, e.g. "
                             "127.0.0.1:8998, 0.0.0.0:8998 or [::1]:0",
                             address);
    char service[8];
    (void)snprintf(service, sizeof service, "%u", (unsigned)wanted);
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int result = getaddrinfo(host, service, &hints, &found);
    if (result != 0)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT, "can't listen on %s: %s", address,
                             result == EAI_SYSTEM ? strerror(errno) : gai_strerror(result));
    /* A name may have addresses of a family this machine doesn't run. */
    kvf_status status = KVF_SYSTEM;
    for (const struct addrinfo *target = found; target != NULL && status == KVF_SYSTEM;
         target = target->ai_next)
        status = listen_on(target, address, descriptor, port, error);
    freeaddrinfo(found);
    return status;
}
