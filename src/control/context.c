#include "control/endpoint.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* A PUSH takes one socket and the two ends of its monitor. Beside the peers there are those who are only told that they
 * are refused, sixteen at once (manager/messenger.h), and closed sockets that libzmq hasn't given back yet. */
enum { SOCKETS_PER_PEER = 3, REFUSED_PEERS = 16, SPARE_SOCKETS = 32 };

static kvf_status make_room(void *context, uint64_t peers, kvf_error *error)
{
    uint64_t most = (uint64_t)zmq_ctx_get(context, ZMQ_SOCKET_LIMIT);
    uint64_t wanted = (peers + REFUSED_PEERS) * SOCKETS_PER_PEER + SPARE_SOCKETS;
    int sockets = (int)(wanted < most ? wanted : most);
    if (zmq_ctx_set(context, ZMQ_MAX_SOCKETS, sockets) == 0)
        return KVF_OK;
    return kvf_error_set(error, KVF_SYSTEM, "ZeroMQ refuses %d sockets: %s; lower max_peers",
                         sockets, zmq_strerror(errno));
}

kvf_status kvf_control_open(const kvf_settings *settings, kvf_control **control, kvf_error *error)
{
    *control = NULL;
    kvf_control *opened = malloc(sizeof *opened);
    if (opened == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for the control plane");
    *opened = (kvf_control){
        .context = zmq_ctx_new(),
        .log = settings->log,
        .heartbeat_interval = settings->heartbeat_interval,
        .heartbeat_timeout = settings->heartbeat_timeout,
        .max_frame_bytes = settings->max_frame_bytes,
        .max_message_frames = settings->max_message_frames,
    };
    kvf_status status = opened->context == NULL
                            ? kvf_error_set(error, KVF_SYSTEM, "can't open a ZeroMQ context: %s",
                                            zmq_strerror(errno))
                            : make_room(opened->context, settings->max_peers, error);
    if (status != KVF_OK) {
        kvf_control_close(opened);
        return status;
    }
    *control = opened;
    return KVF_OK;
}

void kvf_control_linger(kvf_control *control, uint64_t duration)
{
    control->linger = duration;
}

/* The end of a context waits for its sockets' linger. */
void kvf_control_hand_over(kvf_control *control)
{
    while (control->context != NULL && zmq_ctx_term(control->context) != 0 && errno == EINTR)
        ;
    control->context = NULL;
}

void kvf_control_close(kvf_control *control)
{
    if (control == NULL)
        return;
    assert(control->endpoints == 0);
    kvf_control_hand_over(control);
    free(control);
}
