#include "manager/messenger.h"

#include "manager/link.h"

#include <stdlib.h>

struct kvf_messenger {
    kvf_link link;
    kvf_timer timer; /* nothing tells when the letters have left: they have had their time then */
    char host[KVF_HOST_MAX];
    uint16_t port;
    bool over;
    bool stopped;
    kvf_letter letter; /* its slices point to: */
    char agent_name[KVF_AGENT_NAME_MAX + 1];
    char text[KVF_LETTER_TEXT_MAX];
    kvf_messenger *prev;
    kvf_messenger *next;
};

static kvf_messenger *of_link(kvf_link *link)
{
    return (kvf_messenger *)((char *)link - offsetof(kvf_messenger, link));
}

static void free_messenger(kvf_messenger *messenger)
{
    kvf_manager *manager = messenger->link.manager;
    kvf_link_close(&messenger->link);
    kvf_timers_leave(&manager->timers, &messenger->timer);
    DL_DELETE(manager->messengers, messenger);
    manager->messenger_count--;
    free(messenger);
}

/* Called again where a letter has to wait; said twice they mean the same. */
static void speak(kvf_link *link)
{
    const kvf_messenger *messenger = of_link(link);
    kvf_letter stopped = messenger->letter;
    stopped.kind = KVF_LETTER_STOPPED;
    stopped.status = KVF_OK;
    stopped.text = (kvf_slice){NULL, 0};
    if (kvf_link_send_letter(link, &messenger->letter) && messenger->stopped)
        (void)kvf_link_send_letter(link, &stopped);
}

static void gone(kvf_link *link, const char *text)
{
    kvf_messenger *messenger = of_link(link);
    messenger->over = true;
    kvf_log_debug(&link->manager->settings.log, "a letter to decode agent %s is lost: %s",
                  messenger->agent_name, text);
}

static void attended(kvf_link *link)
{
    kvf_messenger *messenger = of_link(link);
    kvf_error error;
    if (!messenger->over && !kvf_link_is_open(link) &&
        kvf_link_open(link, messenger->host, messenger->port, &error) != KVF_OK)
        gone(link, error.text);
    if (messenger->over)
        free_messenger(messenger);
}

static void timed_out(kvf_timer *timer, uint64_t now)
{
    (void)now;
    free_messenger((kvf_messenger *)((char *)timer - offsetof(kvf_messenger, timer)));
}

static kvf_messenger *new_messenger(kvf_manager *manager)
{
    static const kvf_link_callbacks callbacks = {speak, speak, gone, attended};
    if (manager->messenger_count == KVF_MESSENGERS_MAX)
        return NULL;
    kvf_messenger *messenger = calloc(1, sizeof *messenger);
    if (messenger == NULL || !kvf_timers_join(&manager->timers)) {
        free(messenger);
        return NULL;
    }
    kvf_link_init(&messenger->link, manager, &callbacks);
    messenger->timer.fire = timed_out;
    DL_APPEND(manager->messengers, messenger);
    manager->messenger_count++;
    return messenger;
}

void kvf_messenger_send(kvf_manager *manager, const kvf_request *request, const kvf_error *error,
                        bool stopped)
{
    kvf_messenger *messenger = request->epoch == 0 ? NULL : new_messenger(manager);
    if (messenger == NULL)
        return;
    messenger->port = request->port;
    messenger->stopped = stopped;
    messenger->letter = (kvf_letter){.kind = KVF_LETTER_FAILED,
                                     .status = error->status,
                                     .room = request->room,
                                     .epoch = request->epoch,
                                     .agent_name = kvf_slice_of(messenger->agent_name),
                                     .text = kvf_letter_text(error->text, messenger->text)};
    if (request->port == 0 ||
        !kvf_slice_to_text(request->host, messenger->host, sizeof messenger->host) ||
        !kvf_slice_to_text(request->agent_name, messenger->agent_name,
                           sizeof messenger->agent_name)) {
        free_messenger(messenger);
        return;
    }
    messenger->letter.agent_name = kvf_slice_of(messenger->agent_name);
    kvf_timers_set(&manager->timers, &messenger->timer,
                   kvf_clock_after(manager->now, manager->settings.heartbeat_timeout));
    kvf_link_attend(&messenger->link);
}

void kvf_messengers_free(kvf_manager *manager)
{
    while (manager->messengers != NULL)
        free_messenger(manager->messengers);
}
