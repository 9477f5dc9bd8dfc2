/* ZeroMQ endpoints of the control plane: one bound PULL (who asks), and a PUSH per prefill rank (whom we
 * ask). Both notice the death of the other side: a socket monitor sees a closed connection, ZMTP
 * heartbeats a silent one. Nothing reconnects or queues by itself: a restarted peer is a new peer.
 *
 * One thread, the event loop. Descriptors behave as ZeroMQ's do (edge-triggered, one for all
 * directions): after any call on an endpoint call its process() until it returns false; only then is it
 * safe to sleep on its descriptors. Callbacks run inside process(). They may call send() and connect();
 * close() of the endpoint that calls back only after process() has returned.
 *
 * What ZeroMQ doesn't let us do: bound an unfinished message (a peer may send frames without end, of which
 * nothing is seen up here until the last); tell a closed connection from a silent one; be told of a name
 * that isn't found (the timeout tells). A peer whose receive queue stays full counts as silent, since its
 * answer to a heartbeat waits behind the messages. */
#ifndef KVF_CONTROL_CONTROL_H
#define KVF_CONTROL_CONTROL_H

#include "base/bytes.h"
#include "base/error.h"
#include "base/settings.h"
#include "control/peer_process.h"

typedef struct kvf_control kvf_control; /* the context: ZeroMQ's I/O thread and limits */
typedef struct kvf_control_pull kvf_control_pull;
typedef struct kvf_control_push kvf_control_push;

kvf_status kvf_control_open(const kvf_settings *settings, kvf_control **control, kvf_error *error);
/* From now on a PUSH that is closed hands over to the network what it was given, for at most `duration`
 * nanoseconds. Before the end only. */
void kvf_control_linger(kvf_control *control, uint64_t duration);
/* Waits for that, once all PUSHes are closed; no other can be opened afterwards. PULLs may be open still. */
void kvf_control_hand_over(kvf_control *control);
/* All endpoints must be closed. Doesn't wait for the network, unless told to linger. */
void kvf_control_close(kvf_control *control);

/* ---- PULL ---- */

typedef struct kvf_control_pull_callbacks {
    void *user;
    /* A whole message. `connection` tells which connection it came over: never 0, never used again for
     * another one, and never guessed, also where a descriptor was used again meanwhile. Frames are valid
     * during the call. Messages with more frames than the settings allow are dropped and reported with
     * frame_count 0. */
    void (*message)(void *user, uint64_t connection, const kvf_slice *frames, size_t frame_count);
    /* A connection that had brought a message ended: closed, or silent for heartbeat_timeout (counted from
     * a heartbeat, so up to heartbeat_interval later). Comes after its last message: should one turn up
     * still, which only a connection cut for bad bytes can cause, it comes under a number of its own. */
    void (*gone)(void *user, uint64_t connection);
} kvf_control_pull_callbacks;

/* Binds host:port (port 0: any free one); looking up a name may wait. Peers get through their handshake
 * only while process() is called: that is what makes a connection known for certain. KVF_ADDRESS_IN_USE, KVF_INVALID_ARGUMENT, KVF_SYSTEM. */
kvf_status kvf_control_pull_open(kvf_control *control, const char *host, uint16_t port,
                                 const kvf_control_pull_callbacks *callbacks,
                                 kvf_control_pull **pull, kvf_error *error);
uint16_t kvf_control_pull_port(const kvf_control_pull *pull);
/* Handles up to a bounded number of messages and monitor events; true when there may be more. */
bool kvf_control_pull_process(kvf_control_pull *pull);
/* The descriptors to sleep on; fills at most two, returns how many. */
size_t kvf_control_pull_descriptors(const kvf_control_pull *pull, int descriptors[2]);
void kvf_control_pull_close(kvf_control_pull *pull);

/* ---- PUSH ---- */

typedef struct kvf_control_push_callbacks {
    void *user;
    void (*connected)(void *user); /* the ZMTP handshake is done: send() works from here */
    void (*writable)(void *user);  /* after a send() that had to be put off */
    /* Never connected, or lost; at most once, nothing else follows. The text says which. */
    void (*gone)(void *user, const char *text);
} kvf_control_push_callbacks;

/* Starts to connect and returns. KVF_INVALID_ARGUMENT, KVF_SYSTEM. A connect that doesn't succeed within
 * `timeout` nanoseconds is `gone`. A name is looked up on the I/O thread of all PUSHes, which answers no
 * heartbeats meanwhile: with a slow name server they would all be lost. Better give a numeric address. */
kvf_status kvf_control_push_open(kvf_control *control, const char *host, uint16_t port,
                                 uint64_t timeout, const kvf_control_push_callbacks *callbacks,
                                 kvf_control_push **push, kvf_error *error);
/* Sends all frames as one message, without waiting. *put_off: try again when writable (nothing was sent).
 * KVF_PEER_GONE when not connected. */
kvf_status kvf_control_push_send(kvf_control_push *push, const kvf_slice *frames,
                                 size_t frame_count, bool *put_off, kvf_error *error);
bool kvf_control_push_process(kvf_control_push *push);
/* Who is at the other end; to be asked from connected() on. */
kvf_peer_process kvf_control_push_peer(const kvf_control_push *push);
size_t kvf_control_push_descriptors(const kvf_control_push *push, int descriptors[2]);
/* Discards what the connection hasn't taken yet, unless kvf_control_linger() says otherwise. */
void kvf_control_push_close(kvf_control_push *push);

/* Whether the host means every address of a machine ("0.0.0.0", "::", "*"), and so none that can be connected to. */
bool kvf_control_is_wildcard(const char *host);

/* The address other hosts reach this one by: the setting advertise_address, else the source address of a
 * route lookup (no packet is sent), else the loopback address. */
void kvf_control_local_host(const kvf_settings *settings, char host[256]);

#endif
