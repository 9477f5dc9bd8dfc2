/* One prefill and one decode manager hand rooms over, through the public interface, over each engine. */
#include "kvferry/kvferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BUFFERS 4
#define PAGES 64
#define ITEM 4096
#define SLOTS 8
#define AUX_ITEM 64

typedef struct side {
    unsigned char *memory;
    unsigned char *aux;
    kvf_buffer buffers[BUFFERS];
    kvf_buffer aux_buffers[2];
    kvf_layout layout;
    kvf_manager *manager;
} side;

typedef struct pair {
    kvf_bootstrap *bootstrap;
    char address[64];
    side prefill;
    side decode;
} pair;

static void set(kvf_settings *settings, const char *name, const char *value)
{
    if (kvf_settings_set(settings, name, value) != KVF_OK)
        fail_msg("%s", kvf_error_text());
}

static void build_layout(side *one)
{
    one->memory = aligned_alloc(4096, (size_t)BUFFERS * PAGES * ITEM);
    one->aux = aligned_alloc(4096, 2 * SLOTS * AUX_ITEM + 4096 - 2 * SLOTS * AUX_ITEM % 4096);
    assert_non_null(one->memory);
    assert_non_null(one->aux);
    for (size_t i = 0; i < BUFFERS; i++)
        one->buffers[i] = (kvf_buffer){
            .size = sizeof(kvf_buffer),
            .base = (uint64_t)(uintptr_t)(one->memory + i * PAGES * ITEM),
            .length = PAGES * ITEM,
            .item_length = ITEM,
        };
    for (size_t i = 0; i < 2; i++)
        one->aux_buffers[i] = (kvf_buffer){
            .size = sizeof(kvf_buffer),
            .base = (uint64_t)(uintptr_t)(one->aux + i * SLOTS * AUX_ITEM),
            .length = SLOTS * AUX_ITEM,
            .item_length = AUX_ITEM,
        };
    one->layout = (kvf_layout){.size = sizeof(kvf_layout),
                               .buffers = one->buffers,
                               .buffer_count = BUFFERS,
                               .aux = one->aux_buffers,
                               .aux_count = 2};
}

static const char *chosen_engine = "loop";
static const char *chosen_transports = "";

static void open_side(pair *scene, side *one, kvf_role role)
{
    build_layout(one);
    kvf_settings *settings;
    assert_int_equal(kvf_settings_open(&settings), KVF_OK);
    set(settings, "engine", chosen_engine);
    set(settings, "transports", chosen_transports);
    set(settings, "advertise_address", "127.0.0.1");
    set(settings, "bootstrap_timeout", "20s");
    set(settings, "waiting_timeout", "20s");
    if (role == KVF_PREFILL)
        set(settings, "bootstrap_address", scene->address);
    if (kvf_manager_open(&one->manager, role, &one->layout, settings) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    kvf_settings_close(settings);
}

static int start(void **state)
{
    pair *opened = calloc(1, sizeof *opened);
    if (kvf_bootstrap_start(&opened->bootstrap, "127.0.0.1:0", NULL) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    (void)snprintf(opened->address, sizeof opened->address, "127.0.0.1:%u",
                   kvf_bootstrap_port(opened->bootstrap));
    open_side(opened, &opened->prefill, KVF_PREFILL);
    open_side(opened, &opened->decode, KVF_DECODE);
    *state = opened;
    return 0;
}

static int stop(void **state)
{
    pair *opened = *state;
    kvf_manager_close(opened->prefill.manager);
    kvf_manager_close(opened->decode.manager);
    kvf_bootstrap_stop(opened->bootstrap);
    free(opened->prefill.memory);
    free(opened->prefill.aux);
    free(opened->decode.memory);
    free(opened->decode.aux);
    free(opened);
    return 0;
}

static unsigned char pattern(size_t buffer, size_t page, size_t offset)
{
    return (unsigned char)(buffer * 31 + page * 7 + offset * 13 + 1);
}

static void fill(pair *scene)
{
    for (size_t b = 0; b < BUFFERS; b++)
        for (size_t p = 0; p < PAGES; p++)
            for (size_t o = 0; o < ITEM; o++)
                scene->prefill.memory[(b * PAGES + p) * ITEM + o] = pattern(b, p, o);
    for (size_t i = 0; i < 2 * SLOTS * AUX_ITEM; i++)
        scene->prefill.aux[i] = (unsigned char)(i * 11 + 5);
    memset(scene->decode.memory, 0xee, (size_t)BUFFERS * PAGES * ITEM);
    memset(scene->decode.aux, 0xee, 2 * SLOTS * AUX_ITEM);
}

/* Waits for the room's end. */
static kvf_event end_of(kvf_manager *manager, uint64_t room)
{
    kvf_event events[16];
    for (;;) {
        int count = kvf_manager_wait(manager, events, 16, 30000);
        if (count <= 0)
            fail_msg("no event for room %llu", (unsigned long long)room);
        for (int i = 0; i < count; i++)
            if (events[i].room == room &&
                (events[i].state == KVF_SUCCESS || events[i].state == KVF_FAILED))
                return events[i];
    }
}

static void check_pages(const pair *scene, const uint32_t *source, const uint32_t *destination,
                        size_t count)
{
    bool touched[PAGES] = {false};
    for (size_t i = 0; i < count; i++)
        touched[destination[i]] = true;
    for (size_t b = 0; b < BUFFERS; b++) {
        const unsigned char *from = scene->prefill.memory + b * PAGES * ITEM;
        const unsigned char *to = scene->decode.memory + b * PAGES * ITEM;
        for (size_t i = 0; i < count; i++)
            assert_memory_equal(to + destination[i] * ITEM, from + source[i] * ITEM, ITEM);
        for (size_t p = 0; p < PAGES; p++)
            for (size_t o = 0; !touched[p] && o < ITEM; o++)
                assert_int_equal(to[p * ITEM + o], 0xee);
    }
}

static void a_room_in_two_chunks_arrives(void **state)
{
    pair *scene = *state;
    fill(scene);
    static const uint32_t source[] = {5, 6, 1, 7, 9};
    static const uint32_t destination[] = {2, 3, 4, 0, 63};
    kvf_receiver *receiver;
    kvf_sender *sender;
    assert_int_equal(kvf_receiver_open(scene->decode.manager, scene->address, 77, NULL, &receiver),
                     KVF_OK);
    assert_int_equal(kvf_receiver_expect(receiver, destination, 5, 3), KVF_OK);
    assert_int_equal(kvf_sender_open(scene->prefill.manager, 77, NULL, &sender), KVF_OK);
    assert_int_equal(kvf_sender_expect(sender, 5, 6), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, source, 2), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, source + 2, 3), KVF_OK);
    kvf_event received = end_of(scene->decode.manager, 77);
    if (received.state != KVF_SUCCESS)
        fail_msg("%s", kvf_receiver_failure_text(receiver));
    kvf_event sent = end_of(scene->prefill.manager, 77);
    if (sent.state != KVF_SUCCESS)
        fail_msg("%s", kvf_sender_failure_text(sender));
    check_pages(scene, source, destination, 5);
    for (size_t i = 0; i < 2; i++)
        assert_memory_equal(scene->decode.aux + (i * SLOTS + 3) * AUX_ITEM,
                            scene->prefill.aux + (i * SLOTS + 6) * AUX_ITEM, AUX_ITEM);
    assert_int_equal(sent.bytes, 5 * BUFFERS * ITEM + 2 * AUX_ITEM);
    assert_int_equal(received.bytes, sent.bytes);
    assert_int_equal(received.safety, KVF_PAGES_SAFE);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

static void an_empty_room_still_brings_its_aux_record(void **state)
{
    pair *scene = *state;
    fill(scene);
    kvf_receiver *receiver;
    kvf_sender *sender;
    assert_int_equal(kvf_sender_open(scene->prefill.manager, 5, NULL, &sender), KVF_OK);
    assert_int_equal(kvf_sender_expect(sender, 0, 1), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, NULL, 0), KVF_OK);
    assert_int_equal(kvf_receiver_open(scene->decode.manager, scene->address, 5, NULL, &receiver),
                     KVF_OK);
    assert_int_equal(kvf_receiver_expect(receiver, NULL, 0, 2), KVF_OK);
    kvf_event received = end_of(scene->decode.manager, 5);
    if (received.state != KVF_SUCCESS)
        fail_msg("%s", kvf_receiver_failure_text(receiver));
    assert_memory_equal(scene->decode.aux + 2 * AUX_ITEM, scene->prefill.aux + AUX_ITEM, AUX_ITEM);
    check_pages(scene, NULL, NULL, 0);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

static void many_rooms_at_once_and_one_after_another(void **state)
{
    pair *scene = *state;
    fill(scene);
    enum { ROOMS = 500 };
    static kvf_receiver *receivers[ROOMS];
    static kvf_sender *senders[ROOMS];
    for (uint32_t i = 0; i < ROOMS; i++) {
        uint32_t source = i % PAGES;
        uint32_t destination = (i * 3) % PAGES;
        assert_int_equal(
            kvf_receiver_open(scene->decode.manager, scene->address, 1000 + i, NULL, &receivers[i]),
            KVF_OK);
        assert_int_equal(kvf_receiver_expect(receivers[i], &destination, 1, i % SLOTS), KVF_OK);
        assert_int_equal(kvf_sender_open(scene->prefill.manager, 1000 + i, NULL, &senders[i]),
                         KVF_OK);
        assert_int_equal(kvf_sender_expect(senders[i], 1, i % SLOTS), KVF_OK);
        assert_int_equal(kvf_sender_send(senders[i], &source, 1), KVF_OK);
    }
    size_t ended = 0;
    while (ended < ROOMS) {
        kvf_event events[64];
        int count = kvf_manager_wait(scene->decode.manager, events, 64, 30000);
        assert_true(count > 0);
        for (int i = 0; i < count; i++) {
            assert_int_not_equal(events[i].state, KVF_FAILED);
            ended += events[i].state == KVF_SUCCESS;
        }
    }
    for (uint32_t i = 0; i < ROOMS; i++) {
        kvf_receiver_close(receivers[i]);
        kvf_sender_close(senders[i]);
    }
}

static void a_room_in_use_is_refused_and_free_after_close(void **state)
{
    pair *scene = *state;
    kvf_sender *first;
    kvf_sender *second;
    assert_int_equal(kvf_sender_open(scene->prefill.manager, 9, NULL, &first), KVF_OK);
    assert_int_equal(kvf_sender_open(scene->prefill.manager, 9, NULL, &second), KVF_BUSY);
    assert_null(second);
    kvf_sender_close(first);
    assert_int_equal(kvf_sender_open(scene->prefill.manager, 9, NULL, &second), KVF_OK);
    kvf_sender_abort(second);
    kvf_event ended = end_of(scene->prefill.manager, 9);
    assert_int_equal(ended.status, KVF_ABORTED);
    assert_int_equal(kvf_sender_wait(second, -1), KVF_PAGES_SAFE);
    assert_string_not_equal(kvf_sender_failure_text(second), "");
    kvf_sender_close(second);
}

static void page_counts_that_differ_fail_before_the_first_byte(void **state)
{
    pair *scene = *state;
    fill(scene);
    static const uint32_t pages[] = {1, 2, 3};
    kvf_receiver *receiver;
    kvf_sender *sender;
    assert_int_equal(kvf_receiver_open(scene->decode.manager, scene->address, 21, NULL, &receiver),
                     KVF_OK);
    assert_int_equal(kvf_receiver_expect(receiver, pages, 3, 0), KVF_OK);
    assert_int_equal(kvf_sender_open(scene->prefill.manager, 21, NULL, &sender), KVF_OK);
    assert_int_equal(kvf_sender_expect(sender, 2, 0), KVF_OK);
    assert_int_equal(
        kvf_sender_send(sender, pages, 2) == KVF_OK || kvf_sender_poll(sender) == KVF_FAILED, 1);
    kvf_event ended = end_of(scene->prefill.manager, 21);
    assert_int_equal(ended.status, KVF_MISMATCH);
    check_pages(scene, NULL, NULL, 0);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

#define ON(engine_start, name) cmocka_unit_test_setup_teardown(name, engine_start, stop)

static int start_loop(void **state)
{
    chosen_engine = "loop";
    chosen_transports = "";
    return start(state);
}

static int start_shared_memory(void **state)
{
    chosen_engine = "ucx";
    chosen_transports = "posix,sysv,cma,self";
    return start(state);
}

/* UCX 1.13 now and then ends a process in which a TCP connection is set up over two devices at once. */
static void keep_old_ucx_to_one_device(void)
{
    unsigned minor = 0;
    if (sscanf(kvf_ucx_version(), "1.%u", &minor) == 1 && minor < 19)
        (void)setenv("UCX_NET_DEVICES", "lo", 0);
}

static int start_tcp(void **state)
{
    keep_old_ucx_to_one_device();
    chosen_engine = "ucx";
    chosen_transports = "tcp,self";
    return start(state);
}

#define ON_EACH(name) ON(start_loop, name), ON(start_shared_memory, name), ON(start_tcp, name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(a_room_in_two_chunks_arrives),
        ON_EACH(an_empty_room_still_brings_its_aux_record),
        ON_EACH(many_rooms_at_once_and_one_after_another),
        ON_EACH(a_room_in_use_is_refused_and_free_after_close),
        ON_EACH(page_counts_that_differ_fail_before_the_first_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
