/* The bootstrap server's listening socket. */
#ifndef KVF_BOOTSTRAP_LISTENER_H
#define KVF_BOOTSTRAP_LISTENER_H

#include "base/error.h"

/* Listens on "host:port", non-blocking; port 0 takes any free one. "[::]" takes IPv4 too. On success the
 * caller owns *descriptor and *port is what was bound. KVF_ADDRESS_IN_USE, KVF_INVALID_ARGUMENT,
 * KVF_SYSTEM. */
kvf_status kvf_listener_open(const char *address, int *descriptor, uint16_t *port,
                             kvf_error *error);

#endif
