/* Who is at the other end of a connection, where that is a process of this host: what is needed to know for
 * certain that it is gone. */
#ifndef KVF_CONTROL_PEER_PROCESS_H
#define KVF_CONTROL_PEER_PROCESS_H

#include <stdbool.h>

typedef struct kvf_peer_process {
    bool local; /* the other end is in this network namespace, and so on this host */
    /* Readable once the process and all its threads are gone; the caller closes it. -1 where the process
     * couldn't be told for certain: another host, no permission to look, or several hold the socket. */
    int exit_fd;
} kvf_peer_process;

/* `socket` is a connected TCP socket. Looks through /proc: some milliseconds on a busy host. */
kvf_peer_process kvf_peer_process_find(int socket);

#endif
