/* The whole library in use: one process computes a KV cache, another one gets it.
 *
 *   child    the prefill worker, with the bootstrap server beside it
 *   parent   the decode worker
 *
 * The two share nothing but the bootstrap server's port, which the child writes into a pipe. Exit
 * status 0: every byte arrived. */
#define _POSIX_C_SOURCE 200809L /* fork(), pipe(); NOLINT: the name is POSIX's own */
#include <kvferry/kvferry.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUFFERS = 4, PAGES = 32, ITEM = 4096, SLOTS = 8, RECORD = 64, MOVED = 5 };

static const uint64_t room = 42; /* the router chooses it and tells both sides */
static const uint32_t source_pages[MOVED] = {3, 4, 5, 20, 7};
static const uint32_t target_pages[MOVED] = {9, 10, 11, 0, 31};
static const uint32_t source_slot = 2;
static const uint32_t target_slot = 6;

/* Each process has its own copy: in an engine this is the KV pool on the accelerator. */
static uint8_t kv[BUFFERS][PAGES][ITEM];
static uint8_t aux[SLOTS][RECORD];

static uint8_t kv_byte(size_t buffer, uint32_t page, size_t offset)
{
    return (uint8_t)(31 * buffer + 7 * (size_t)page + offset + 1);
}

static bool fine(const char *what, kvf_status status)
{
    if (status != KVF_OK)
        fprintf(stderr, "%s: %s: %s\n", what, kvf_status_name(status), kvf_error_text());
    return status == KVF_OK;
}

static kvf_status open_manager(kvf_manager **manager, kvf_role role, const kvf_settings *settings)
{
    kvf_buffer buffers[BUFFERS];
    for (size_t i = 0; i < BUFFERS; i++)
        buffers[i] = (kvf_buffer){.size = sizeof(kvf_buffer),
                                  .base = (uintptr_t)kv[i],
                                  .length = sizeof kv[i],
                                  .item_length = ITEM};
    kvf_buffer records = {.size = sizeof records,
                          .base = (uintptr_t)aux,
                          .length = sizeof aux,
                          .item_length = RECORD};
    kvf_layout layout = {.size = sizeof layout,
                         .buffers = buffers,
                         .buffer_count = BUFFERS,
                         .aux = &records,
                         .aux_count = 1};
    return kvf_manager_open(manager, role, &layout, settings);
}

/* Sleeps until the only room of this manager has ended. */
static bool wait_for_success(kvf_manager *manager)
{
    kvf_event event;
    int count;
    do
        count = kvf_manager_wait(manager, &event, 1, 60000);
    while (count == 1 && event.state != KVF_SUCCESS && event.state != KVF_FAILED);
    return count == 1 && event.state == KVF_SUCCESS;
}

static bool send_room(kvf_manager *manager)
{
    kvf_sender *sender = NULL;
    bool sent = fine("open a sender", kvf_sender_open(manager, room, NULL, &sender)) &&
                fine("expect", kvf_sender_expect(sender, MOVED, source_slot)) &&
                fine("send three pages", kvf_sender_send(sender, source_pages, 3)) &&
                fine("send the rest", kvf_sender_send(sender, source_pages + 3, MOVED - 3)) &&
                wait_for_success(manager);
    if (!sent && sender != NULL)
        fprintf(stderr, "prefill: %s\n", kvf_sender_failure_text(sender));
    kvf_sender_close(sender);
    return sent;
}

static bool prefill(int port_pipe)
{
    char address[32];
    kvf_bootstrap *bootstrap = NULL;
    kvf_settings *settings = NULL;
    kvf_manager *manager = NULL;
    for (size_t i = 0; i < BUFFERS; i++)
        for (uint32_t page = 0; page < PAGES; page++)
            for (size_t k = 0; k < ITEM; k++)
                kv[i][page][k] = kv_byte(i, page, k);
    memset(aux[source_slot], 0x77, RECORD);

    bool done = fine("bootstrap", kvf_bootstrap_start(&bootstrap, "127.0.0.1:0", NULL)) &&
                fine("settings", kvf_settings_open(&settings));
    uint16_t port = done ? kvf_bootstrap_port(bootstrap) : 0;
    snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)port);
    done = done && fine("set", kvf_settings_set(settings, "bootstrap_address", address)) &&
           fine("set", kvf_settings_set(settings, "advertise_address", "127.0.0.1")) &&
           fine("open a manager", open_manager(&manager, KVF_PREFILL, settings)) &&
           write(port_pipe, &port, sizeof port) == (ssize_t)sizeof port && send_room(manager);

    kvf_manager_close(manager);
    kvf_settings_close(settings);
    kvf_bootstrap_stop(bootstrap);
    return done;
}

static bool all_bytes_arrived(void)
{
    for (size_t i = 0; i < BUFFERS; i++)
        for (size_t p = 0; p < MOVED; p++)
            for (size_t k = 0; k < ITEM; k++)
                if (kv[i][target_pages[p]][k] != kv_byte(i, source_pages[p], k))
                    return false;
    for (size_t k = 0; k < RECORD; k++)
        if (aux[target_slot][k] != 0x77)
            return false;
    return true;
}

static bool decode(int port_pipe)
{
    char address[32];
    uint16_t port = 0;
    kvf_manager *manager = NULL;
    kvf_receiver *receiver = NULL;
    if (read(port_pipe, &port, sizeof port) != (ssize_t)sizeof port)
        return false; /* the prefill worker has said why */
    snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)port);
    bool done =
        fine("open a manager", open_manager(&manager, KVF_DECODE, NULL)) &&
        fine("open a receiver", kvf_receiver_open(manager, address, room, NULL, &receiver)) &&
        fine("expect", kvf_receiver_expect(receiver, target_pages, MOVED, target_slot)) &&
        wait_for_success(manager);
    if (!done && receiver != NULL)
        fprintf(stderr, "decode: %s\n", kvf_receiver_failure_text(receiver));
    else if (done)
        done = all_bytes_arrived();
    kvf_receiver_close(receiver);
    kvf_manager_close(manager);
    return done;
}

int main(void)
{
    int port_pipe[2];
    if (pipe(port_pipe) != 0)
        return 1;
    pid_t child = fork(); /* before any handle exists */
    if (child < 0)
        return 1;
    if (child == 0) {
        close(port_pipe[0]);
        return prefill(port_pipe[1]) ? 0 : 1;
    }
    close(port_pipe[1]);
    int status = 0;
    bool arrived = decode(port_pipe[0]);
    close(port_pipe[0]);
    bool sent =
        waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    puts(arrived && sent ? "hello: every byte arrived" : "hello: failed");
    return arrived && sent ? 0 : 1;
}
