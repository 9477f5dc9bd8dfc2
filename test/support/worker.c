#include "support/worker.h"

#include "data/engine.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <sys/mman.h>

#define PATIENCE_MS 30000

const test_shape test_small_shape = {
    .buffers = 2, .pages = 32, .item_length = 512, .aux = 2, .slots = 8, .aux_item_length = 64};

static const char *chosen = "loop";

void test_use_engine(const char *name)
{
    chosen = name;
}

bool test_ends_with_its_peer(const char *engine)
{
    if (strcmp(engine, "tcp") != 0 || kvf_ucx_is_at_least(19))
        return false;
    print_message("skipped: UCX %s ends a process that loses a peer over TCP\n", kvf_ucx_version());
    return true;
}

const char *test_engine_name(void)
{
    return chosen;
}

bool test_is_sanitized(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

size_t test_heap_in_use(void)
{
    struct mallinfo2 heap = mallinfo2();
    return test_is_sanitized() ? 0 : heap.uordblks + heap.hblkhd;
}

/* ---- Pools ---- */

static size_t bytes_of(const test_shape *shape)
{
    return shape->buffers * shape->pages * shape->item_length +
           shape->aux * shape->slots * shape->aux_item_length;
}

void test_worker_build(test_worker *worker, const test_shape *shape)
{
    *worker = (test_worker){.shape = shape == NULL ? test_small_shape : *shape};
    shape = &worker->shape;
    assert_true(shape->buffers + shape->aux <= TEST_BUFFERS_MAX);
    worker->memory_length = bytes_of(shape);
    worker->memory = mmap(NULL, worker->memory_length, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(worker->memory != MAP_FAILED);
    for (size_t i = 0; i < shape->buffers + shape->aux; i++) {
        bool is_aux = i >= shape->buffers;
        worker->buffers[i] = (kvf_buffer){
            .size = sizeof(kvf_buffer),
            .base = (uint64_t)(uintptr_t)(is_aux ? test_slot(worker, i - shape->buffers, 0)
                                                 : test_page(worker, i, 0)),
            .length =
                is_aux ? shape->slots * shape->aux_item_length : shape->pages * shape->item_length,
            .item_length = is_aux ? shape->aux_item_length : shape->item_length};
    }
    worker->layout = (kvf_layout){.size = sizeof(kvf_layout),
                                  .buffers = worker->buffers,
                                  .buffer_count = shape->buffers,
                                  .aux = worker->buffers + shape->buffers,
                                  .aux_count = shape->aux,
                                  .engine_rank = shape->rank,
                                  .tp_size = shape->tp_size,
                                  .dp_size = shape->dp_size,
                                  .mla = shape->mla};
}

unsigned char *test_page(const test_worker *worker, size_t buffer, size_t page)
{
    return worker->memory + (buffer * worker->shape.pages + page) * worker->shape.item_length;
}

unsigned char *test_slot(const test_worker *worker, size_t aux, size_t slot)
{
    const test_shape *shape = &worker->shape;
    return worker->memory + shape->buffers * shape->pages * shape->item_length +
           (aux * shape->slots + slot) * shape->aux_item_length;
}

void test_worker_fill(test_worker *worker)
{
    if (worker->role == KVF_DECODE) {
        memset(worker->memory, 0xee, worker->memory_length);
        return;
    }
    /* Pages of a room that is under way must not be written to, not even with what they hold. */
    for (size_t i = 0; i < worker->memory_length; i++) {
        unsigned char byte = (unsigned char)((i * 131) ^ (i >> 9) ^ (i >> 17));
        if (worker->memory[i] != byte)
            worker->memory[i] = byte;
    }
}

bool test_page_arrived(const test_worker *from, size_t source, const test_worker *to,
                       size_t destination)
{
    for (size_t i = 0; i < to->shape.buffers; i++)
        if (memcmp(test_page(from, i, source), test_page(to, i, destination),
                   to->shape.item_length) != 0)
            return false;
    return true;
}

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
__attribute__((no_sanitize("thread")))
#endif
#endif
bool test_page_untouched(const test_worker *to, size_t page)
{
    for (size_t i = 0; i < to->shape.buffers; i++)
        for (size_t byte = 0; byte < to->shape.item_length; byte++)
            if (test_page(to, i, page)[byte] != 0xee)
                return false;
    return true;
}

/* ---- Managers ---- */

static void set(kvf_settings *settings, const char *name, const char *value)
{
    if (kvf_settings_set(settings, name, value) != KVF_OK)
        fail_msg("%s", kvf_error_text());
}

static void set_engine(kvf_settings *settings)
{
    set(settings, "engine", strcmp(chosen, "loop") == 0 ? "loop" : "ucx");
    if (strcmp(chosen, "shm") == 0)
        set(settings, "transports", "posix,sysv,cma,self");
    else if (strcmp(chosen, "tcp") == 0)
        set(settings, "transports", "tcp,self");
}

kvf_status test_worker_start(test_worker *worker, kvf_role role, const char *bootstrap,
                             const char *const *settings)
{
    kvf_settings *own;
    if (kvf_settings_open(&own) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    set_engine(own);
    set(own, "advertise_address", "127.0.0.1");
    set(own, "log_level", "error");
    set(own, "bootstrap_timeout", "20s");
    set(own, "waiting_timeout", "20s");
    if (role == KVF_PREFILL && bootstrap != NULL)
        set(own, "bootstrap_address", bootstrap);
    for (; settings != NULL && settings[0] != NULL; settings += 2)
        set(own, settings[0], settings[1]);
    worker->role = role;
    kvf_status status = kvf_manager_open(&worker->manager, role, &worker->layout, own);
    kvf_settings_close(own);
    return status;
}

void test_worker_open(test_worker *worker, kvf_role role, const test_shape *shape,
                      const char *bootstrap, const char *const *settings)
{
    test_worker_build(worker, shape);
    if (test_worker_start(worker, role, bootstrap, settings) != KVF_OK)
        fail_msg("%s", kvf_error_text());
}

void test_worker_close(test_worker *worker)
{
    kvf_manager_close(worker->manager);
    worker->manager = NULL;
    if (worker->memory != NULL)
        (void)munmap(worker->memory, worker->memory_length);
    worker->memory = NULL;
}

/* ---- Rooms ---- */

kvf_sender *test_sender_open(test_worker *worker, uint64_t room)
{
    kvf_sender *sender;
    if (kvf_sender_open(worker->manager, room, NULL, &sender) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    return sender;
}

kvf_receiver *test_receiver_open(test_worker *worker, const char *bootstrap, uint64_t room)
{
    kvf_receiver *receiver;
    if (kvf_receiver_open(worker->manager, bootstrap, room, NULL, &receiver) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    return receiver;
}

static void wait_for_change(const test_worker *worker)
{
    kvf_event events[16];
    int count = kvf_manager_wait(worker->manager, events, 16, PATIENCE_MS);
    if (count == 0)
        fail_msg("nothing changed within %d ms", PATIENCE_MS);
    if (count < 0)
        fail_msg("%s", kvf_error_text());
}

static void check_end(const char *side, kvf_status is, const char *text, kvf_status should,
                      const char *part)
{
    if (is != should || (part != NULL && strstr(text, part) == NULL))
        fail_msg("%s: ended with \"%s\" (%s), expected \"%s\" (%s)", side, kvf_status_name(is),
                 text, kvf_status_name(should), part == NULL ? "" : part);
    if ((is == KVF_OK) != (text[0] == '\0'))
        fail_msg("%s: a failure has a text and a success none, but here: \"%s\"", side, text);
}

void test_sender_reaches(test_worker *worker, kvf_sender *sender, kvf_poll state)
{
    while (kvf_sender_poll(sender) != state)
        wait_for_change(worker);
}

void test_receiver_reaches(test_worker *worker, kvf_receiver *receiver, kvf_poll state)
{
    while (kvf_receiver_poll(receiver) != state)
        wait_for_change(worker);
}

void test_sender_settles(test_worker *worker, kvf_sender *sender)
{
    while (kvf_sender_poll(sender) != KVF_FAILED && kvf_sender_poll(sender) != KVF_SUCCESS)
        wait_for_change(worker);
}

void test_receiver_settles(test_worker *worker, kvf_receiver *receiver)
{
    while (kvf_receiver_poll(receiver) != KVF_FAILED && kvf_receiver_poll(receiver) != KVF_SUCCESS)
        wait_for_change(worker);
}

void test_sender_ends(test_worker *worker, kvf_sender *sender, kvf_status status, const char *part)
{
    test_sender_settles(worker, sender);
    check_end("sender", kvf_sender_status(sender), kvf_sender_failure_text(sender), status, part);
}

void test_receiver_ends(test_worker *worker, kvf_receiver *receiver, kvf_status status,
                        const char *part)
{
    test_receiver_settles(worker, receiver);
    check_end("receiver", kvf_receiver_status(receiver), kvf_receiver_failure_text(receiver),
              status, part);
}

void test_room_works(test_worker *prefill, test_worker *decode, const char *bootstrap,
                     uint64_t room, uint32_t count)
{
    uint32_t source[64];
    uint32_t destination[64];
    assert_true(count <= 64 && count <= prefill->shape.pages && count <= decode->shape.pages);
    test_worker_fill(prefill);
    test_worker_fill(decode);
    for (uint32_t i = 0; i < count; i++) {
        source[i] = (uint32_t)((i + room) % prefill->shape.pages);
        destination[i] = (uint32_t)((i * 3 + room * 5) % decode->shape.pages);
    }
    kvf_receiver *receiver = test_receiver_open(decode, bootstrap, room);
    if (kvf_receiver_expect(receiver, destination, count, 1) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    kvf_sender *sender = test_sender_open(prefill, room);
    if (kvf_sender_expect(sender, count, 2) != KVF_OK ||
        kvf_sender_send(sender, source, count) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    test_receiver_ends(decode, receiver, KVF_OK, NULL);
    test_sender_ends(prefill, sender, KVF_OK, NULL);
    for (uint32_t i = 0; i < count; i++)
        assert_true(test_page_arrived(prefill, source[i], decode, destination[i]));
    for (size_t i = 0; i < decode->shape.aux; i++)
        assert_memory_equal(test_slot(prefill, i, 2), test_slot(decode, i, 1),
                            decode->shape.aux_item_length);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

/* ---- Statistics ---- */

kvf_statistics test_statistics(const test_worker *worker)
{
    kvf_statistics statistics = {.size = sizeof statistics};
    assert_int_equal(kvf_manager_statistics(worker->manager, &statistics), KVF_OK);
    return statistics;
}

/* Counters ring no bell: this looks again every millisecond. */
void test_wait_statistic_at(const test_worker *worker, size_t offset, uint64_t value,
                            const char *name)
{
    uint64_t is = 0;
    for (int i = 0; i < PATIENCE_MS; i++) {
        kvf_statistics statistics = test_statistics(worker);
        memcpy(&is, (const char *)&statistics + offset, sizeof is);
        if (is >= value)
            return;
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    fail_msg("%s is %llu and doesn't reach %llu", name, (unsigned long long)is,
             (unsigned long long)value);
}

/* ---- Bootstrap server ---- */

void test_bootstrap_open(test_bootstrap *bootstrap)
{
    kvf_settings *settings;
    if (kvf_settings_open(&settings) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    set(settings, "log_level", "error");
    if (kvf_bootstrap_start(&bootstrap->server, "127.0.0.1:0", settings) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    kvf_settings_close(settings);
    (void)snprintf(bootstrap->address, sizeof bootstrap->address, "127.0.0.1:%u",
                   kvf_bootstrap_port(bootstrap->server));
}

void test_bootstrap_close(test_bootstrap *bootstrap)
{
    kvf_bootstrap_stop(bootstrap->server);
    bootstrap->server = NULL;
}
