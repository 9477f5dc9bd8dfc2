/* What SGLang's own prefill doesn't survive is refused on decode before it is sent. test/interop plays the same
 * against the real one. */
#include <kvferry/kvferry.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ITEM 64
#define PAGES 8

typedef struct scene {
    kvf_bootstrap *bootstrap;
    char address[64];
    unsigned char memory[2][2 * ITEM * PAGES];
    kvf_manager *prefill;
    kvf_manager *decode;
} scene;

static kvf_manager *open_side(scene *opened, kvf_role role, size_t aux_count)
{
    unsigned char *memory = opened->memory[role == KVF_DECODE];
    kvf_buffer buffers[2];
    for (size_t i = 0; i < 2; i++)
        buffers[i] = (kvf_buffer){.size = sizeof(kvf_buffer),
                                  .base = (uint64_t)(uintptr_t)memory + i * ITEM * PAGES,
                                  .length = (uint64_t)ITEM * PAGES,
                                  .item_length = ITEM};
    kvf_layout layout = {.size = sizeof layout,
                         .buffers = buffers,
                         .buffer_count = 1,
                         .aux = buffers + 1,
                         .aux_count = aux_count};
    const char *choices[][2] = {{"engine", "loop"},
                                {"advertise_address", "127.0.0.1"},
                                {"extensions", "off"},
                                {"bootstrap_address", opened->address}};
    kvf_settings *settings;
    assert_int_equal(kvf_settings_open(&settings), KVF_OK);
    for (size_t i = 0; i < (role == KVF_PREFILL ? 4 : 3); i++)
        assert_int_equal(kvf_settings_set(settings, choices[i][0], choices[i][1]), KVF_OK);
    kvf_manager *manager;
    if (kvf_manager_open(&manager, role, &layout, settings) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    kvf_settings_close(settings);
    return manager;
}

static void expect_refusal(size_t aux_count, size_t page_count, const char *word)
{
    static const uint32_t pages[] = {3};
    scene *opened = calloc(1, sizeof *opened);
    assert_int_equal(kvf_bootstrap_start(&opened->bootstrap, "127.0.0.1:0", NULL), KVF_OK);
    (void)snprintf(opened->address, sizeof opened->address, "127.0.0.1:%u",
                   kvf_bootstrap_port(opened->bootstrap));
    opened->prefill = open_side(opened, KVF_PREFILL, 1);
    opened->decode = open_side(opened, KVF_DECODE, aux_count);
    kvf_receiver *receiver;
    kvf_event event;
    assert_int_equal(kvf_receiver_open(opened->decode, opened->address, 7, NULL, &receiver),
                     KVF_OK);
    assert_int_equal(kvf_receiver_expect(receiver, pages, page_count, 0), KVF_OK);
    do
        assert_int_equal(kvf_manager_wait(opened->decode, &event, 1, 30000), 1);
    while (event.state != KVF_FAILED && event.state != KVF_SUCCESS);
    assert_int_equal(event.status, KVF_UNSUPPORTED);
    assert_non_null(strstr(kvf_receiver_failure_text(receiver), word));
    kvf_statistics statistics = {.size = sizeof statistics};
    assert_int_equal(kvf_manager_statistics(opened->prefill, &statistics), KVF_OK);
    assert_int_equal(statistics.messages_received, 0);
    kvf_manager_close(opened->decode);
    kvf_manager_close(opened->prefill);
    kvf_bootstrap_stop(opened->bootstrap);
    free(opened);
}

static void a_room_without_aux_buffers_is_not_asked_for(void **state)
{
    (void)state;
    expect_refusal(0, 1, "aux buffer");
}

static void a_room_of_no_pages_is_not_asked_for(void **state)
{
    (void)state;
    expect_refusal(1, 0, "no pages");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_room_without_aux_buffers_is_not_asked_for),
        cmocka_unit_test(a_room_of_no_pages_is_not_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
