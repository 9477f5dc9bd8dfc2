#include "control/control.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The source address the system would take towards `target`: connecting a UDP socket looks the route up
 * and sends nothing. */
static bool by_route(int family, const char *target, char host[256])
{
    struct addrinfo hints = {.ai_family = family,
                             .ai_socktype = SOCK_DGRAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *remote = NULL;
    if (getaddrinfo(target, "80", &hints, &remote) != 0)
        return false;
    struct sockaddr_storage local = {0};
    socklen_t length = sizeof local;
    int descriptor = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool found =
        descriptor >= 0 && connect(descriptor, remote->ai_addr, remote->ai_addrlen) == 0 &&
        getsockname(descriptor, (struct sockaddr *)&local, &length) == 0 &&
        getnameinfo((struct sockaddr *)&local, length, host, 256, NULL, 0, NI_NUMERICHOST) == 0;
    if (descriptor >= 0)
        (void)close(descriptor);
    freeaddrinfo(remote);
    return found;
}

static bool is_loopback_or_any(const struct sockaddr *address)
{
    const struct sockaddr_in *ipv4 = (const struct sockaddr_in *)(const void *)address;
    uint32_t number = ntohl(ipv4->sin_addr.s_addr);
    return number >> 24 == 127 || number == INADDR_ANY;
}

static bool by_name(char host[256])
{
    char name[256] = "";
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses = NULL;
    if (gethostname(name, sizeof name - 1) != 0 || getaddrinfo(name, NULL, &hints, &addresses) != 0)
        return false;
    bool found = false;
    for (struct addrinfo *each = addresses; each != NULL && !found; each = each->ai_next)
        found =
            !is_loopback_or_any(each->ai_addr) &&
            getnameinfo(each->ai_addr, each->ai_addrlen, host, 256, NULL, 0, NI_NUMERICHOST) == 0;
    freeaddrinfo(addresses);
    return found;
}

static bool is_any(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET)
        return ((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr ==
               htonl(INADDR_ANY);
    const struct in6_addr *ipv6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return IN6_IS_ADDR_UNSPECIFIED(ipv6) ||
           (IN6_IS_ADDR_V4MAPPED(ipv6) && memcmp(ipv6->s6_addr + 12, "\0\0\0", 4) == 0);
}

/* Numbers in every notation that the system knows, "0" and "[::0]" among them; no name is looked up. */
bool kvf_control_is_wildcard(const char *host)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *address = NULL;
    char bare[256];
    size_t length = strlen(host);
    bool bracketed = length >= 2 && host[0] == '[' && host[length - 1] == ']';
    (void)snprintf(bare, sizeof bare, "%.*s", (int)(bracketed ? length - 2 : length),
                   bracketed ? host + 1 : host);
    if (strcmp(bare, "*") == 0)
        return true;
    if (bare[0] == '\0' || getaddrinfo(bare, NULL, &hints, &address) != 0)
        return false;
    bool any = is_any(address->ai_addr);
    freeaddrinfo(address);
    return any;
}

void kvf_control_local_host(const kvf_settings *settings, char host[256])
{
    size_t length = strlen(settings->advertise_address);
    if (length > 0 && length < 256) {
        memcpy(host, settings->advertise_address, length + 1);
        return;
    }
    /* SGLang's targets. The name comes last because looking it up may wait for a server. */
    if (by_route(AF_INET, "8.8.8.8", host) || by_route(AF_INET6, "2001:4860:4860::8888", host) ||
        by_name(host))
        return;
    (void)snprintf(host, 256, "127.0.0.1");
}
