/* Who is at the other end of a connection, where that is a process of this host: what is needed to know for
 * certain that it is gone. */
#ifndef KVF_CONTROL_PEER_PROCESS_H
#define KVF_CONTROL_PEER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kvf_peer_process {
    /* Of the socket there, which is in this network namespace, and so on this host; 0 where it isn't. */
    uint64_t inode;
    /* Readable once the process and all its threads are gone; the caller closes it. -1 until held, and where the
     * process couldn't be told for certain: another host, no permission to look, or several hold the socket. */
    int exit_fd;
} kvf_peer_process;

/* `socket` is a connected TCP socket. */
kvf_peer_process kvf_peer_process_find(int socket);
/* Gets the exit_fd, while the connection is open. Looks through all processes: some milliseconds on a busy host. */
void kvf_peer_process_hold(kvf_peer_process *process);

#endif
