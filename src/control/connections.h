/* Which connection a message came over, and when a connection has ended for good.
 *
 * ZeroMQ tells of connections in three ways that don't meet: the monitor names descriptors, whose numbers
 * are used again; a message names its descriptor, and may lie in a queue long after its connection has
 * ended and another one got the number; and a handshake, which waits for our answer, names nothing but
 * takes a key from us that each message of its connection then carries.
 *
 * What ties them together is one sequence, counted over accepted connections and keys: a connection's key
 * is given after it was accepted and before its descriptor can have been accepted again. So a message
 * belongs to the present holder of its descriptor exactly if its key is younger than that accept. For
 * this to hold, all monitor events must have been entered before a key is given, and before a message
 * is asked about that was read earlier.
 *
 * Only connections that brought a message get a number, and only they are reported as ended. */
#ifndef KVF_CONTROL_CONNECTIONS_H
#define KVF_CONTROL_CONNECTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kvf_connection kvf_connection;
typedef struct kvf_connection_slot kvf_connection_slot;

typedef struct kvf_connection_list {
    kvf_connection *first;
    kvf_connection *last;
} kvf_connection_list;

typedef struct kvf_connections {
    kvf_connection_slot *slots; /* by descriptor */
    size_t slot_count;
    uint64_t sequence;
    uint64_t last_number;
    uint64_t messages; /* taken from the queue */
    size_t open;
    size_t silent;               /* ended without a number since the queue was last empty */
    kvf_connection_list ended;   /* may have messages in the queue */
    kvf_connection_list settled; /* ended before the queue was last looked at */
} kvf_connections;

/* A zeroed struct is an empty table. */
void kvf_connections_free(kvf_connections *connections);

/* The monitor's events. */
void kvf_connections_accepted(kvf_connections *connections, uint32_t descriptor);
void kvf_connections_disconnected(kvf_connections *connections, uint32_t descriptor);

/* The key for a connection in its handshake. */
uint64_t kvf_connections_key(kvf_connections *connections);

/* The number of the connection that a message with this descriptor and key came over; never used again
 * for another one. 0: no memory. A message that turns up after its connection was taken as ended gets a
 * new number, which ends at once. */
uint64_t kvf_connections_number(kvf_connections *connections, uint32_t descriptor, uint64_t key);

/* Call before looking at the queue; if it is then empty, what was settled can have no messages left. */
void kvf_connections_settle(kvf_connections *connections);
/* Takes one settled connection out of the table; false when there is none. Only when the queue is empty. */
bool kvf_connections_take_settled(kvf_connections *connections, uint64_t *number);
/* The same for a queue that is never empty, since others keep it full: all connections take turns in it, so one that
 * let several of its turns pass has nothing left. */
bool kvf_connections_take_drained(kvf_connections *connections, uint64_t *number);
/* Whether connections have ended that are not settled yet. */
bool kvf_connections_unsettled(const kvf_connections *connections);

#endif
