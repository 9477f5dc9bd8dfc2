#include "manager/link.h"

static void became_ready(kvf_watch *watch)
{
    kvf_link_attend((kvf_link *)((char *)watch - offsetof(kvf_link, watch)));
}

void kvf_link_init(kvf_link *link, kvf_manager *manager, const kvf_link_callbacks *callbacks)
{
    *link = (kvf_link){.manager = manager, .callbacks = callbacks, .watch.ready = became_ready};
}

static void connected(void *user)
{
    kvf_link *link = user;
    link->callbacks->connected(link);
}

static void writable(void *user)
{
    kvf_link *link = user;
    link->callbacks->writable(link);
}

static void gone(void *user, const char *text)
{
    kvf_link *link = user;
    link->over = true;
    link->callbacks->gone(link, text);
}

kvf_status kvf_link_open(kvf_link *link, const char *host, uint16_t port, kvf_error *error)
{
    kvf_manager *manager = link->manager;
    kvf_control_push_callbacks callbacks = {
        .user = link, .connected = connected, .writable = writable, .gone = gone};
    kvf_link_close(link);
    kvf_status status =
        kvf_control_push_open(manager->control, host, port, manager->settings.heartbeat_timeout,
                              &callbacks, &link->push, error);
    if (status != KVF_OK)
        return status;
    link->descriptor_count = kvf_control_push_descriptors(link->push, link->descriptors);
    for (size_t i = 0; status == KVF_OK && i < link->descriptor_count; i++)
        status = kvf_loop_watch(manager, link->descriptors[i], &link->watch, error);
    kvf_link_attend(link);
    if (status != KVF_OK)
        kvf_link_close(link);
    return status;
}

static void close_push(kvf_link *link)
{
    if (link->push == NULL)
        return;
    for (size_t i = 0; i < link->descriptor_count; i++)
        kvf_loop_forget(link->manager, link->descriptors[i]);
    link->descriptor_count = 0;
    kvf_control_push_close(link->push);
    link->push = NULL;
    link->over = false;
}

void kvf_link_close(kvf_link *link)
{
    if (link->busy)
        DL_DELETE(link->manager->busy_links, link);
    link->busy = false;
    close_push(link);
}

bool kvf_link_is_open(const kvf_link *link)
{
    return link->push != NULL && !link->over;
}

kvf_status kvf_link_send(kvf_link *link, const kvf_slice *frames, size_t frame_count, bool *put_off,
                         kvf_error *error)
{
    *put_off = false;
    if (!kvf_link_is_open(link))
        return kvf_error_set(error, KVF_PEER_GONE, "the connection is closed");
    kvf_link_attend(link);
    return kvf_control_push_send(link->push, frames, frame_count, put_off, error);
}

bool kvf_link_send_letter(kvf_link *link, const kvf_letter *letter)
{
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice frames[KVF_LETTER_FRAMES];
    kvf_error error;
    bool put_off = false;
    kvf_letter_encode(letter, head, frames);
    return kvf_link_send(link, frames, KVF_LETTER_FRAMES, &put_off, &error) != KVF_OK || !put_off;
}

void kvf_link_attend(kvf_link *link)
{
    if (link->busy)
        return;
    link->busy = true;
    DL_APPEND(link->manager->busy_links, link);
}

static void process(kvf_link *link)
{
    if (kvf_link_is_open(link) && kvf_control_push_process(link->push))
        kvf_link_attend(link);
    if (link->over)
        close_push(link);
    link->callbacks->attended(link);
}

/* Those that are busy now; whoever becomes so meanwhile has its turn later, and may be closed before. */
bool kvf_links_process(kvf_manager *manager)
{
    size_t count = 0;
    const kvf_link *each;
    DL_COUNT(manager->busy_links, each, count);
    while (count-- > 0 && manager->busy_links != NULL) {
        kvf_link *link = manager->busy_links;
        DL_DELETE(manager->busy_links, link);
        link->busy = false;
        process(link);
    }
    return manager->busy_links != NULL;
}
