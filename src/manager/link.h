/* A connection on which this side speaks: decode to a prefill rank, prefill to a decode process. Wraps a PUSH:
 * watches its descriptors, has it processed, and does outside its callbacks what must not be done inside. */
#ifndef KVF_MANAGER_LINK_H
#define KVF_MANAGER_LINK_H

#include "manager/manager.h"
#include "wire/letter.h"

typedef struct kvf_link_callbacks {
    void (*connected)(kvf_link *link);
    void (*writable)(kvf_link *link); /* after a send that was put off */
    /* Never connected, or lost; nothing else follows until the next open. */
    void (*gone)(kvf_link *link, const char *text);
    /* Called each time the link has been attended to, outside all other callbacks: here it may be opened,
     * closed, and its owner freed. */
    void (*attended)(kvf_link *link);
} kvf_link_callbacks;

struct kvf_link {
    kvf_manager *manager;
    const kvf_link_callbacks *callbacks;
    kvf_watch watch;
    kvf_control_push *push; /* NULL: closed */
    bool over;              /* gone: closed when its callbacks have returned */
    bool busy;              /* in the list of links to attend to */
    kvf_link *prev;
    kvf_link *next;
    int descriptors[2];
    size_t descriptor_count;
};

void kvf_link_init(kvf_link *link, kvf_manager *manager, const kvf_link_callbacks *callbacks);
/* Starts to connect; only where no callback of this link is running. */
kvf_status kvf_link_open(kvf_link *link, const char *host, uint16_t port, kvf_error *error);
void kvf_link_close(kvf_link *link);
bool kvf_link_is_open(const kvf_link *link);
/* As kvf_control_push_send(). */
kvf_status kvf_link_send(kvf_link *link, const kvf_slice *frames, size_t frame_count, bool *put_off,
                         kvf_error *error);
/* False: it has to wait, and writable() tells until when. What can't be sent at all is dropped: the connection is about to
 * be lost. */
bool kvf_link_send_letter(kvf_link *link, const kvf_letter *letter);
/* Has it processed in this or the next turn of the loop. */
void kvf_link_attend(kvf_link *link);
/* True when there is more to do at once. */
bool kvf_links_process(kvf_manager *manager);

#endif
