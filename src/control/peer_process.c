/* From a socket to the process at its other end: the kernel's table of connections names the other socket by
 * inode, and a process that holds it has a link to it among its descriptors. Needs nothing of the peer. */
#include "control/peer_process.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Links read in one search at most: a host with more is given up on, so that the loop isn't held up. */
enum { LINKS_MAX = 65536 };

/* An end of a connection as the kernel prints it: address in hexadecimal, ':', port. */
typedef struct printed_end {
    char text[48];
} printed_end;

/* IPv4 addresses that come in IPv6 clothes are in the IPv6 table as such. */
static bool print_end(const struct sockaddr_storage *address, printed_end *end)
{
    uint32_t words[4];
    size_t count = address->ss_family == AF_INET ? 1 : 4;
    uint16_t port;
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        memcpy(words, &in->sin_addr, 4);
        port = ntohs(in->sin_port);
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const void *)address;
        memcpy(words, &in6->sin6_addr, 16);
        port = ntohs(in6->sin6_port);
    } else {
        return false;
    }
    char *at = end->text;
    for (size_t i = 0; i < count; i++)
        at += sprintf(at, "%08" PRIX32, words[i]);
    (void)sprintf(at, ":%04X", port);
    return true;
}

/* The inode of the established connection from `local` to `remote`; 0 when there is none. */
static uint64_t find_in(const char *path, const printed_end *local, const printed_end *remote)
{
    FILE *table = fopen(path, "re");
    uint64_t found = 0;
    char line[512];
    while (table != NULL && found == 0 && fgets(line, sizeof line, table) != NULL) {
        char here[48];
        char there[48];
        uint64_t inode;
        if (sscanf(line, " %*[^:]: %47s %47s 01 %*s %*s %*s %*s %*s %" SCNu64, here, there,
                   &inode) == 3 &&
            strcmp(here, local->text) == 0 && strcmp(there, remote->text) == 0)
            found = inode;
    }
    if (table != NULL)
        (void)fclose(table);
    return found;
}

/* Who connects to an address of its own host does it from that address, or from a loopback one. Spares the walk
 * through a long table where the peer is elsewhere. */
static bool may_be_local(const struct sockaddr_storage *ours, const struct sockaddr_storage *theirs)
{
    if (ours->ss_family != AF_INET)
        return memcmp(&((const struct sockaddr_in6 *)(const void *)ours)->sin6_addr,
                      &((const struct sockaddr_in6 *)(const void *)theirs)->sin6_addr, 16) == 0;
    uint32_t here = ntohl(((const struct sockaddr_in *)(const void *)ours)->sin_addr.s_addr);
    uint32_t there = ntohl(((const struct sockaddr_in *)(const void *)theirs)->sin_addr.s_addr);
    return here == there || (here >> 24 == IN_LOOPBACKNET && there >> 24 == IN_LOOPBACKNET);
}

/* The inode of the socket at the other end, when it is in our network namespace. */
static uint64_t other_inode(int socket)
{
    struct sockaddr_storage ours = {0};
    struct sockaddr_storage theirs = {0};
    socklen_t ours_length = sizeof ours;
    socklen_t theirs_length = sizeof theirs;
    printed_end here;
    printed_end there;
    if (getsockname(socket, (struct sockaddr *)&ours, &ours_length) != 0 ||
        getpeername(socket, (struct sockaddr *)&theirs, &theirs_length) != 0 ||
        !may_be_local(&ours, &theirs) || !print_end(&ours, &here) || !print_end(&theirs, &there))
        return 0;
    uint64_t inode = find_in("/proc/self/net/tcp", &there, &here);
    if (inode == 0)
        inode = find_in("/proc/self/net/tcp6", &there, &here);
    if (inode != 0 || ours.ss_family != AF_INET)
        return inode;
    /* A listener for both families has the connection with mapped addresses. */
    printed_end mapped_here;
    printed_end mapped_there;
    static const char prefix[] = "0000000000000000FFFF0000";
    (void)snprintf(mapped_here.text, sizeof mapped_here.text, "%s%.23s", prefix, here.text);
    (void)snprintf(mapped_there.text, sizeof mapped_there.text, "%s%.23s", prefix, there.text);
    return find_in("/proc/self/net/tcp6", &mapped_there, &mapped_here);
}

/* Whether process `pid` holds the socket; counts the links it read. */
static bool holds(const char *pid, const char *link, int *links)
{
    char folder[64];
    (void)snprintf(folder, sizeof folder, "/proc/%.20s/fd", pid);
    DIR *descriptors = opendir(folder);
    bool found = false;
    const struct dirent *entry;
    while (descriptors != NULL && !found && (entry = readdir(descriptors)) != NULL) {
        char target[64];
        ssize_t length = readlinkat(dirfd(descriptors), entry->d_name, target, sizeof target - 1);
        (*links)++;
        if (length <= 0)
            continue;
        target[length] = '\0';
        found = strcmp(target, link) == 0;
    }
    if (descriptors != NULL)
        (void)closedir(descriptors);
    return found;
}

/* The one process that holds the socket; 0 for none, several, or too many descriptors to look through. */
static pid_t find_holder(uint64_t inode)
{
    char link[48];
    (void)snprintf(link, sizeof link, "socket:[%" PRIu64 "]", inode);
    DIR *processes = opendir("/proc");
    pid_t holder = 0;
    int holders = 0;
    int links = 0;
    const struct dirent *entry;
    while (processes != NULL && links < LINKS_MAX && (entry = readdir(processes)) != NULL) {
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || !holds(entry->d_name, link, &links))
            continue;
        holder = (pid_t)strtol(entry->d_name, NULL, 10);
        holders++;
    }
    if (processes != NULL)
        (void)closedir(processes);
    return holders == 1 && links < LINKS_MAX ? holder : 0;
}

/* The number could be another process's by now: it must still hold the socket when we hold the process. */
static int hold_process(uint64_t inode)
{
    pid_t pid = find_holder(inode);
    if (pid == 0 || pid == getpid())
        return -1;
    int exit_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (exit_fd < 0)
        return -1;
    char number[24];
    char link[48];
    int links = 0;
    (void)snprintf(number, sizeof number, "%d", (int)pid);
    (void)snprintf(link, sizeof link, "socket:[%" PRIu64 "]", inode);
    if (holds(number, link, &links))
        return exit_fd;
    (void)close(exit_fd);
    return -1;
}

kvf_peer_process kvf_peer_process_find(int socket)
{
    return (kvf_peer_process){.inode = socket < 0 ? 0 : other_inode(socket), .exit_fd = -1};
}

void kvf_peer_process_hold(kvf_peer_process *process)
{
    if (process->inode != 0 && process->exit_fd < 0)
        process->exit_fd = hold_process(process->inode);
}
