/* What decode ranks and strangers can send to a prefill rank's control port, through real sockets: foreign and
 * malformed messages touch no room; what contradicts a room fails that room with a reason; nothing is written
 * where it mustn't be; and rooms of another decode go on. */
#include "support/raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct scene {
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode; /* the bystander */
    raw_decode raw;
    raw_decode second;
    uint64_t next_room;
} scene;

static const char *const *chosen_settings;

static int start(void **state, const char *engine)
{
    scene *one = calloc(1, sizeof *one);
    test_use_engine(engine);
    test_bootstrap_open(&one->bootstrap);
    test_worker_open(&one->prefill, KVF_PREFILL, NULL, one->bootstrap.address, chosen_settings);
    test_worker_open(&one->decode, KVF_DECODE, NULL, NULL, NULL);
    raw_decode_open(&one->raw, "raw-decode", kvf_manager_port(one->prefill.manager));
    raw_decode_open(&one->second, "second-decode", kvf_manager_port(one->prefill.manager));
    test_worker_fill(&one->prefill);
    one->next_room = 1000;
    *state = one;
    return 0;
}

static int start_loop(void **state)
{
    chosen_settings = NULL;
    return start(state, "loop");
}

static int start_shm(void **state)
{
    chosen_settings = NULL;
    return start(state, "shm");
}

static int start_hasty(void **state)
{
    static const char *const settings[] = {
        "hold_timeout", "1s", "max_held_requests", "3", "bootstrap_timeout", "400ms", NULL};
    chosen_settings = settings;
    return start(state, "loop");
}

static int start_small(void **state)
{
    static const char *const settings[] = {"max_destinations", "2", "max_pages", "4", NULL};
    chosen_settings = settings;
    return start(state, "loop");
}

static int start_forgetful(void **state)
{
    static const char *const settings[] = {"remembered_rooms", "0", NULL};
    chosen_settings = settings;
    return start(state, "loop");
}

static int start_with_few(void **state)
{
    static const char *const settings[] = {"max_peers", "3", NULL};
    chosen_settings = settings;
    return start(state, "loop");
}

static int start_post1(void **state)
{
    static const char *const settings[] = {"profile", "sglang-0.4.7.post1", NULL};
    chosen_settings = settings;
    return start(state, "loop");
}

static int stop(void **state)
{
    scene *one = *state;
    raw_decode_close(&one->raw);
    raw_decode_close(&one->second);
    assert_int_equal(test_statistics(&one->prefill).rooms_open, 0);
    test_worker_close(&one->prefill);
    test_worker_close(&one->decode);
    test_bootstrap_close(&one->bootstrap);
    free(one);
    return 0;
}

static void bystander_works(scene *one)
{
    test_room_works(&one->prefill, &one->decode, one->bootstrap.address, one->next_room++, 2);
}

static kvf_sender *open_room(scene *one, uint64_t room, uint32_t pages)
{
    kvf_sender *sender = test_sender_open(&one->prefill, room);
    assert_int_equal(kvf_sender_expect(sender, pages, 2), KVF_OK);
    return sender;
}

static void send_pages(kvf_sender *sender, uint32_t first, uint32_t count)
{
    uint32_t pages[32];
    for (uint32_t i = 0; i < count; i++)
        pages[i] = first + i;
    assert_int_equal(kvf_sender_send(sender, pages, count), KVF_OK);
}

/* The raw decode asks for `room` as it should, and gets it. */
static void room_works(scene *one, kvf_sender *sender, uint64_t room)
{
    static const uint64_t pages[] = {9, 4};
    kvf_request request = raw_decode_request(&one->raw, room, pages, 2);
    uint64_t before = one->raw.notifications;
    raw_decode_send(&one->raw, &request);
    send_pages(sender, 6, 2);
    assert_true(raw_decode_notified(&one->raw, before + 2));
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    assert_true(test_page_arrived(&one->prefill, 6, &one->raw.worker, 9));
    assert_true(test_page_arrived(&one->prefill, 7, &one->raw.worker, 4));
    kvf_sender_close(sender);
}

/* The room of a request that is wrong ends so, and nothing was written. */
static void is_refused(scene *one, const kvf_request *request, uint32_t pages, kvf_status status,
                       const char *part)
{
    kvf_sender *sender = open_room(one, request->room, pages);
    raw_decode_send(&one->raw, request);
    test_sender_ends(&one->prefill, sender, status, part);
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_sender_proof(sender), KVF_PROOF_TRANSPORT_DONE);
    kvf_sender_close(sender);
    for (size_t page = 0; page < 32; page++)
        assert_true(test_page_untouched(&one->raw.worker, page));
    bystander_works(one);
}

/* ---- Messages that name no room -------------------------------------------------------------------- */

/* Frames as text, separated by "|"; the message of a sound request with some of them replaced. */
static size_t foreign_messages(scene *one, kvf_slice messages[][16], size_t counts[])
{
    static const char *const texts[][16] = {
        {"GET / HTTP/1.1"},
        {""},
        {"NixlMsgGuard"},
        {"NixlMsgGuarD", "77"},
        {"NixlMsgGuard", "seventy-seven"},
        {"NixlMsgGuard", "-1"},
        {"NixlMsgGuard", "9223372036854775808"},
        {"NixlMsgGuard", "77 "},
        {"NixlMsgGuard", "77", "127.0.0.1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "12345678", "", "", "0", "0"},
        {"NixlMsgGuard", "None", "127.0.0.1", "1", "name", "meta", "", "", "0"},
        {"ABORT"},
        {"WATERMARK", "1", "2", "x"},
        {"NixlMsgGuard", "77", "h", "70000", "m", "n", "", "", "", "0", "0", "1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "", "", "", "0x1", "0", "1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "", "", "", "0", "gpu", "1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "", "", "", "0", "0", "0"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "", "", "", "0", "0", "4294967296"},
        {"NixlMsgGuard", "77", "h", "1", "m", "", "", "", "", "0", "0", "1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "a\nb", "", "", "", "0", "0", "1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "1234567", "", "", "0", "0", "1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "", "123", "", "0", "0", "1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "", "", "1", "0", "0", "1"},
        {"NixlMsgGuard", "77", "", "1", "m", "n", "", "", "", "0", "0", "1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "", "", "", "0", "0", "1", "KVFERRY1"},
        {"NixlMsgGuard", "77", "h", "1", "m", "n", "", "", "", "0", "0", "1", "", "more"},
    };
    size_t count = sizeof texts / sizeof texts[0];
    (void)one;
    for (size_t i = 0; i < count; i++)
        for (counts[i] = 0; counts[i] < 16 && texts[i][counts[i]] != NULL; counts[i]++)
            messages[i][counts[i]] = kvf_slice_of(texts[i][counts[i]]);
    return count;
}

static void foreign_and_torn_messages_touch_no_room(void **state)
{
    scene *one = *state;
    static kvf_slice messages[64][16];
    static size_t counts[64];
    size_t count = foreign_messages(one, messages, counts);
    kvf_sender *sender = open_room(one, 77, 2);
    raw_push stranger;
    raw_push_open(&stranger, kvf_manager_port(one->prefill.manager));
    for (size_t i = 0; i < count; i++) {
        raw_push_send(&stranger, messages[i], counts[i]);
        test_wait_statistic(&one->prefill, messages_dropped, i + 1);
        if (kvf_sender_poll(sender) != KVF_BOOTSTRAPPING)
            fail_msg("message %zu: %s", i, kvf_sender_failure_text(sender));
    }
    kvf_slice long_message[80];
    for (size_t i = 0; i < 80; i++)
        long_message[i] = kvf_slice_of("frame");
    raw_push_send(&stranger, long_message, 80);
    test_wait_statistic(&one->prefill, messages_dropped, count + 1);
    raw_push_close(&stranger);
    room_works(one, sender, 77);
    kvf_statistics statistics = test_statistics(&one->prefill);
    assert_int_equal(statistics.messages_dropped, count + 1);
    assert_int_equal(statistics.messages_received, count + 2);
    assert_int_equal(statistics.requests_held, 0);
    bystander_works(one);
}

/* ---- Other profiles --------------------------------------------------------------------------------- */

static void requests_of_later_releases_name_them(void **state)
{
    scene *one = *state;
    static const char *const frames[] = {"NixlMsgGuard", "5",      "127.0.0.1", "4242",
                                         "their-agent",  "\1\0\0", "0",         "1"};
    kvf_slice message[8];
    for (size_t i = 0; i < 8; i++)
        message[i] = kvf_slice_of(frames[i]);
    message[5].length = 4;
    kvf_sender *sender = open_room(one, 5, 1);
    raw_push_send(&one->raw.push, message, 8);
    test_sender_ends(&one->prefill, sender, KVF_PROFILE, "0.4.8.post1");
    kvf_sender_close(sender);
    /* The same before the sender opens its room: it's told then. */
    message[1] = kvf_slice_of("6");
    raw_push_send(&one->raw.push, message, 8);
    test_wait_statistic(&one->prefill, messages_dropped, 2);
    sender = open_room(one, 6, 1);
    test_sender_ends(&one->prefill, sender, KVF_PROFILE, "set both to one release");
    kvf_sender_close(sender);
    static const char *const abort_frames[] = {"ABORT", "8", "127.0.0.1", "4242"};
    for (size_t i = 0; i < 4; i++)
        message[i] = kvf_slice_of(abort_frames[i]);
    sender = open_room(one, 8, 1);
    raw_push_send(&one->raw.push, message, 4);
    test_sender_ends(&one->prefill, sender, KVF_PROFILE, "ABORT");
    kvf_sender_close(sender);
    bystander_works(one);
}

/* 8-byte indices expected: 4-byte ones look like half as many pages, or like none whole. */
static void short_page_indices_are_named(void **state)
{
    scene *one = *state;
    static const uint32_t pages[] = {1, 2, 3, 4};
    kvf_request request = raw_decode_request(&one->raw, 11, NULL, 0);
    request.pages = (kvf_slice){(const uint8_t *)pages, 16};
    is_refused(one, &request, 4, KVF_PROFILE, "sglang-0.4.7.post1");
    request.room = 12;
    request.pages.length = 12;
    is_refused(one, &request, 3, KVF_PROFILE, "sglang-0.4.7.post1");
    /* The sender hasn't said how many pages there are. */
    request.room = 13;
    request.pages.length = 16;
    kvf_sender *sender = test_sender_open(&one->prefill, 13);
    raw_decode_send(&one->raw, &request);
    test_sender_ends(&one->prefill, sender, KVF_PROFILE, "4-byte indices");
    kvf_sender_close(sender);
    /* Nor has it here, and they look like pages. */
    static const uint32_t plausible[] = {5, 0, 7, 0};
    request.room = 14;
    request.pages.data = (const uint8_t *)plausible;
    sender = test_sender_open(&one->prefill, 14);
    raw_decode_send(&one->raw, &request);
    test_sender_reaches(&one->prefill, sender, KVF_WAITING_FOR_INPUT);
    assert_int_equal(kvf_sender_expect(sender, 4, 0), KVF_OK);
    test_sender_ends(&one->prefill, sender, KVF_MISMATCH, "or the peer speaks sglang-0.4.7.post1");
    kvf_sender_close(sender);
    bystander_works(one);
}

static void long_page_indices_are_named(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {1, 2, 3};
    kvf_request request = raw_decode_request(&one->raw, 11, pages, 3);
    kvf_sender *sender = open_room(one, 11, 3);
    raw_decode_send(&one->raw, &request);
    test_sender_ends(&one->prefill, sender, KVF_PROFILE, "the peer speaks sglang-0.4.7 (8-byte");
    kvf_sender_close(sender);
}

/* Two of our own, set to different profiles: both ends say so, or end by their deadline. */
static void two_profiles_do_not_meet(void **state)
{
    scene *one = *state;
    uint32_t pages[] = {1, 2, 3};
    kvf_sender *sender = open_room(one, 21, 3);
    kvf_receiver *receiver = test_receiver_open(&one->decode, one->bootstrap.address, 21);
    assert_int_equal(kvf_receiver_expect(receiver, pages, 3, 0), KVF_OK);
    test_sender_ends(&one->prefill, sender, KVF_PROFILE, "sglang-0.4.7 ");
    kvf_sender_close(sender);
    kvf_receiver_close(receiver);
}

/* ---- Requests that can't be carried out -------------------------------------------------------------- */

static void pages_and_slots_outside_the_peers_pool_are_named(void **state)
{
    scene *one = *state;
    static const uint64_t pages[][2] = {
        {3, 32}, {3, UINT64_MAX}, {UINT64_C(1) << 32, 3}, {3, UINT64_C(1) << 63}};
    static const char *const named[] = {"page 32 ", "page 18446744073709551615 ",
                                        "page 4294967296 ", "page 9223372036854775808 "};
    for (size_t i = 0; i < 4; i++) {
        kvf_request request = raw_decode_request(&one->raw, 30 + i, pages[i], 2);
        is_refused(one, &request, 2, KVF_OUT_OF_RANGE, named[i]);
    }
    static const uint64_t right[] = {1, 2};
    kvf_request request = raw_decode_request(&one->raw, 40, right, 2);
    request.aux_slot = 8;
    is_refused(one, &request, 2, KVF_OUT_OF_RANGE, "aux slot 8");
    request.room = 41;
    request.aux_slot = UINT32_MAX;
    is_refused(one, &request, 2, KVF_OUT_OF_RANGE, "aux slot 4294967295");
}

static void counts_that_differ_are_refused(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {1, 2, 3};
    kvf_request request = raw_decode_request(&one->raw, 50, pages, 3);
    is_refused(one, &request, 2, KVF_MISMATCH, "3 pages, the prefill rank has 2");
    request.room = 51;
    is_refused(one, &request, 4, KVF_MISMATCH, "3 pages, the prefill rank has 4");
    request.room = 52;
    request.buffers.length -= 8;
    is_refused(one, &request, 3, KVF_MISMATCH, "1 KV buffers, this side has 2");
    request = raw_decode_request(&one->raw, 53, pages, 3);
    request.aux.length = 0;
    is_refused(one, &request, 3, KVF_MISMATCH, "0 aux buffers");
    request = raw_decode_request(&one->raw, 54, pages, 3);
    request.extended = true;
    request.extensions = KVF_EXTENSION_ALL_AUX;
    request.aux.length = 8;
    is_refused(one, &request, 3, KVF_MISMATCH, "1 aux buffers");
}

/* B74: what a stock decode has more, a draft model's layers, comes last: the buffers before it are ours in order, V's
 * no less than K's. A kvferry decode that has more is refused. */
static void more_buffers_than_ours_are_left_alone(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {9, 4};
    test_shape shape = test_small_shape;
    raw_decode draft;
    shape.buffers = 4;
    raw_decode_open_shaped(&draft, "draft-decode", kvf_manager_port(one->prefill.manager), &shape);
    test_worker_fill(&draft.worker);
    kvf_request request = raw_decode_request(&draft, 55, pages, 2);
    kvf_sender *sender = open_room(one, 55, 2);
    raw_decode_send(&draft, &request);
    send_pages(sender, 6, 2);
    assert_true(raw_decode_notified(&draft, 2));
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    for (uint64_t buffer = 0; buffer < 4; buffer++)
        for (uint32_t page = 0; page < 2; page++) {
            const unsigned char *filled = test_page(&draft.worker, buffer, pages[page]);
            if (buffer < 2)
                assert_memory_equal(filled, test_page(&one->prefill, buffer, 6 + page), 512);
            else
                assert_int_equal(filled[0] & filled[511], 0xee);
        }
    request.room = 56;
    request.extended = true;
    request.extensions = KVF_EXTENSION_ALL_AUX;
    sender = open_room(one, 56, 2);
    raw_decode_send(&draft, &request);
    test_sender_ends(&one->prefill, sender, KVF_MISMATCH, "4 KV buffers, this side has 2");
    kvf_sender_close(sender);
    raw_decode_close(&draft);
    bystander_works(one);
}

/* Exchanges the descriptors of the two KV buffers, so that the higher address comes first, as in the metadata of a
 * sender who doesn't sort. */
static void turn_metadata_round(raw_decode *raw)
{
    uint8_t base[2][8];
    uint8_t *found[2];
    kvf_bytes *metadata = &raw->metadata;
    for (size_t i = 0; i < 2; i++) {
        kvf_write_u64(base[i], raw->worker.buffers[i].base);
        found[i] = memmem(metadata->data, metadata->length, base[i], 8);
        assert_non_null(found[i]);
    }
    size_t length = (size_t)(found[1] - found[0]) - 8; /* without the length in front of the next */
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = found[0][i];
        found[0][i] = found[1][i];
        found[1][i] = byte;
    }
}

/* B66: neither the metadata's order, nor the buffers', nor the pages' has to be that of the addresses. */
static void buffers_at_descending_addresses_are_found(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {5, 2, 9};
    uint64_t pointers[2];
    for (size_t i = 0; i < 2; i++)
        pointers[i] = one->raw.worker.buffers[1 - i].base;
    turn_metadata_round(&one->raw);
    kvf_request request = raw_decode_request(&one->raw, 65, pages, 3);
    request.buffers = (kvf_slice){(const uint8_t *)pointers, sizeof pointers};
    kvf_sender *sender = open_room(one, 65, 3);
    raw_decode_send(&one->raw, &request);
    send_pages(sender, 6, 3);
    assert_true(raw_decode_notified(&one->raw, 2));
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    for (uint32_t page = 0; page < 3; page++)
        for (size_t buffer = 0; buffer < 2; buffer++)
            assert_memory_equal(test_page(&one->raw.worker, 1 - buffer, pages[page]),
                                test_page(&one->prefill, buffer, 6 + page), 512);
    assert_memory_equal(test_slot(&one->raw.worker, 0, 1), test_slot(&one->prefill, 0, 2), 64);
    bystander_works(one);
}

static void buffers_outside_the_metadata_are_refused(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {1, 2};
    uint64_t pointers[2] = {(uint64_t)(uintptr_t)test_page(&one->raw.worker, 0, 0), 4096};
    kvf_request request = raw_decode_request(&one->raw, 60, pages, 2);
    request.buffers = (kvf_slice){(const uint8_t *)pointers, sizeof pointers};
    is_refused(one, &request, 2, KVF_MISMATCH, "0x1000");
    pointers[1] = UINT64_MAX;
    request.room = 61;
    is_refused(one, &request, 2, KVF_MISMATCH, "0xffffffffffffffff");
    request = raw_decode_request(&one->raw, 62, pages, 2);
    request.device = 5;
    is_refused(one, &request, 2, KVF_MISMATCH, "device 5");
    /* The second half of the buffer: half as many pages are there. */
    pointers[0] = (uint64_t)(uintptr_t)test_page(&one->raw.worker, 0, 30);
    pointers[1] = (uint64_t)(uintptr_t)test_page(&one->raw.worker, 1, 0);
    request = raw_decode_request(&one->raw, 63, pages, 2);
    request.buffers = (kvf_slice){(const uint8_t *)pointers, sizeof pointers};
    is_refused(one, &request, 2, KVF_OUT_OF_RANGE, "pool of 2 pages");
}

static void metadata_that_makes_no_sense_is_refused(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {1, 2};
    kvf_slice whole = kvf_bytes_slice(&one->raw.metadata);
    kvf_request request = raw_decode_request(&one->raw, 70, pages, 2);
    for (size_t cut = 0; cut < 6; cut++) {
        char name[16];
        (void)snprintf(name, sizeof name, "liar-%zu", cut);
        request.room = 70 + cut;
        request.agent_name = kvf_slice_of(name);
        request.agent_metadata.length = cut * whole.length / 6;
        is_refused(one, &request, 2, KVF_PROTOCOL, name);
    }
    request.room = 80;
    request.agent_name = kvf_slice_of("thief");
    request.agent_metadata = whole;
    is_refused(one, &request, 2, KVF_PROTOCOL, "another agent");
    /* A name that is known, with other metadata than before. */
    request = raw_decode_request(&one->raw, 81, pages, 2);
    room_works(one, open_room(one, 82, 2), 82);
    request.agent_metadata.length--;
    kvf_sender *sender = open_room(one, 81, 2);
    raw_decode_send(&one->raw, &request);
    test_sender_ends(&one->prefill, sender, KVF_PROTOCOL, "other metadata");
    kvf_sender_close(sender);
    bystander_works(one);
}

static void limits_are_named(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {1, 2, 3, 4, 5};
    kvf_request request = raw_decode_request(&one->raw, 90, pages, 2);
    request.required = 3;
    kvf_sender *sender = open_room(one, 90, 2);
    raw_decode_send(&one->raw, &request);
    test_sender_ends(&one->prefill, sender, KVF_LIMIT, "max_destinations");
    kvf_sender_close(sender);
    request = raw_decode_request(&one->raw, 91, pages, 5);
    sender = open_room(one, 91, 4);
    raw_decode_send(&one->raw, &request);
    test_sender_ends(&one->prefill, sender, KVF_LIMIT, "max_pages");
    kvf_sender_close(sender);
    bystander_works(one);
}

/* ---- Repeated and superfluous requests --------------------------------------------------------------- */

static void an_identical_request_is_ignored(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {9, 4};
    kvf_request request = raw_decode_request(&one->raw, 100, pages, 2);
    kvf_sender *sender = open_room(one, 100, 2);
    raw_decode_send(&one->raw, &request);
    raw_decode_send(&one->raw, &request);
    test_wait_statistic(&one->prefill, messages_dropped, 1);
    send_pages(sender, 6, 1);
    assert_true(raw_decode_notified(&one->raw, 1));
    raw_decode_send(&one->raw, &request); /* after the first byte, too */
    test_wait_statistic(&one->prefill, messages_dropped, 2);
    send_pages(sender, 7, 1);
    assert_true(raw_decode_notified(&one->raw, 3));
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    assert_true(test_page_arrived(&one->prefill, 6, &one->raw.worker, 9));
    assert_true(test_page_arrived(&one->prefill, 7, &one->raw.worker, 4));
    /* After the end, while the handle is open: dropped, and nothing happens (B31). */
    memset(test_page(&one->raw.worker, 0, 9), 0x55, 512);
    request.pages = (kvf_slice){(const uint8_t *)(pages + 1), 8};
    raw_decode_send(&one->raw, &request);
    test_wait_statistic(&one->prefill, messages_dropped, 3);
    assert_int_equal(kvf_sender_poll(sender), KVF_SUCCESS);
    kvf_sender_close(sender);
    bystander_works(one);
    assert_int_equal(test_page(&one->raw.worker, 0, 9)[0], 0x55);
    assert_int_equal(one->raw.notifications, 3);
}

static void a_different_request_wins_before_the_first_byte(void **state)
{
    scene *one = *state;
    static const uint64_t first[] = {1, 2};
    static const uint64_t second[] = {9, 4};
    kvf_request request = raw_decode_request(&one->raw, 110, first, 2);
    kvf_sender *sender = open_room(one, 110, 2);
    raw_decode_send(&one->raw, &request);
    request.pages.data = (const uint8_t *)second;
    request.aux_slot = 5;
    raw_decode_send(&one->raw, &request);
    test_wait_statistic(&one->prefill, messages_received, 2);
    bystander_works(one); /* so that both have been taken */
    test_worker_fill(&one->prefill);
    send_pages(sender, 6, 2);
    assert_true(raw_decode_notified(&one->raw, 2));
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    assert_true(test_page_arrived(&one->prefill, 6, &one->raw.worker, 9));
    assert_true(test_page_arrived(&one->prefill, 7, &one->raw.worker, 4));
    assert_true(test_page_untouched(&one->raw.worker, 1));
    assert_true(test_page_untouched(&one->raw.worker, 2));
    assert_memory_equal(test_slot(&one->prefill, 0, 2), test_slot(&one->raw.worker, 0, 5), 64);
    kvf_sender_close(sender);
    assert_int_equal(test_statistics(&one->prefill).messages_dropped, 0);
}

static void a_different_request_fails_the_room_after_the_first_byte(void **state)
{
    scene *one = *state;
    static const uint64_t first[] = {1, 2};
    static const uint64_t second[] = {9, 4};
    kvf_request request = raw_decode_request(&one->raw, 120, first, 2);
    kvf_sender *sender = open_room(one, 120, 2);
    raw_decode_send(&one->raw, &request);
    send_pages(sender, 6, 1);
    assert_true(raw_decode_notified(&one->raw, 1));
    request.pages.data = (const uint8_t *)second;
    raw_decode_send(&one->raw, &request);
    test_sender_ends(&one->prefill, sender, KVF_PROTOCOL, "after the first byte");
    assert_true(test_page_untouched(&one->raw.worker, 9));
    kvf_sender_close(sender);
    bystander_works(one);
}

/* A lone rank that first says it's alone, then that there are two: before all had reported it may; after, the
 * room would go on without the other. */
static void a_rank_cannot_ask_for_more_ranks_once_all_have_reported(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {1, 2};
    kvf_request request = raw_decode_request(&one->raw, 125, pages, 2);
    kvf_sender *sender = open_room(one, 125, 2);
    raw_decode_send(&one->raw, &request);
    request.required = 2;
    raw_decode_send(&one->raw, &request);
    test_sender_ends(&one->prefill, sender, KVF_PROTOCOL, "2 decode ranks");
    kvf_sender_close(sender);
    bystander_works(one);
}

static void more_ranks_than_required_fail_the_room(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {1, 2};
    kvf_request first = raw_decode_request(&one->raw, 130, pages, 2);
    kvf_request second = raw_decode_request(&one->second, 130, pages, 2);
    kvf_sender *sender = open_room(one, 130, 2);
    raw_decode_send(&one->raw, &first);
    test_wait_statistic(&one->prefill, messages_received, 1);
    raw_decode_send(&one->second, &second);
    test_sender_ends(&one->prefill, sender, KVF_PROTOCOL, "all 1 required");
    kvf_sender_close(sender);
    /* Two that don't agree how many there are. */
    first.room = second.room = 131;
    first.required = 2;
    second.required = 3;
    sender = open_room(one, 131, 2);
    raw_decode_send(&one->raw, &first);
    raw_decode_send(&one->second, &second);
    test_sender_ends(&one->prefill, sender, KVF_PROTOCOL, "all must run with the same sizes");
    kvf_sender_close(sender);
    bystander_works(one);
}

/* Stock never sends such a room: two real destinations, each of which gets everything. */
static void every_required_rank_gets_everything(void **state)
{
    scene *one = *state;
    static const uint64_t first_pages[] = {1, 2};
    static const uint64_t second_pages[] = {7, 8};
    kvf_request first = raw_decode_request(&one->raw, 135, first_pages, 2);
    kvf_request second = raw_decode_request(&one->second, 135, second_pages, 2);
    first.required = second.required = 2;
    kvf_sender *sender = open_room(one, 135, 2);
    send_pages(sender, 6, 2);
    raw_decode_send(&one->raw, &first);
    bystander_works(one);
    test_worker_fill(&one->prefill);
    assert_int_equal(kvf_sender_poll(sender), KVF_BOOTSTRAPPING);
    assert_true(test_page_untouched(&one->raw.worker, 1));
    raw_decode_send(&one->second, &second);
    assert_true(raw_decode_notified(&one->raw, 2));
    assert_true(raw_decode_notified(&one->second, 2));
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    assert_true(test_page_arrived(&one->prefill, 6, &one->raw.worker, 1));
    assert_true(test_page_arrived(&one->prefill, 7, &one->second.worker, 8));
    kvf_sender_close(sender);
}

/* Neither a first message that was cut nor what a dummy brings is held against the agent later. */
static void bad_metadata_is_not_remembered(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {9, 4};
    kvf_request request = raw_decode_request(&one->raw, 136, pages, 2);
    request.agent_metadata.length /= 2;
    is_refused(one, &request, 2, KVF_PROTOCOL, "raw-decode");
    request = raw_decode_request(&one->second, 137, pages, 0);
    request.agent_metadata = kvf_slice_of("junk");
    kvf_sender *sender = open_room(one, 137, 2);
    raw_decode_send(&one->second, &request);
    send_pages(sender, 6, 2);
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    room_works(one, open_room(one, 138, 2), 138);
    request = raw_decode_request(&one->second, 139, pages, 2);
    sender = open_room(one, 139, 2);
    raw_decode_send(&one->second, &request);
    send_pages(sender, 6, 2);
    assert_true(raw_decode_notified(&one->second, 2));
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
}

/* ---- Held requests ----------------------------------------------------------------------------------- */

static void requests_are_held_and_taken(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {9, 4};
    kvf_request request = raw_decode_request(&one->raw, 140, pages, 2);
    raw_decode_send(&one->raw, &request);
    test_wait_statistic(&one->prefill, requests_held, 1);
    raw_decode_send(&one->raw, &request); /* again: the later one stands */
    test_wait_statistic(&one->prefill, messages_received, 2);
    kvf_sender *sender = open_room(one, 140, 2);
    send_pages(sender, 6, 2);
    assert_true(raw_decode_notified(&one->raw, 2));
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    assert_int_equal(test_statistics(&one->prefill).requests_held, 0);
    bystander_works(one);
}

static void held_requests_expire_and_are_limited(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {9, 4};
    kvf_request request = raw_decode_request(&one->raw, 150, pages, 2);
    for (request.room = 150; request.room < 155; request.room++)
        raw_decode_send(&one->raw, &request);
    test_wait_statistic(&one->prefill, messages_dropped, 2); /* three fit */
    test_wait_statistic(&one->prefill, requests_expired, 3);
    kvf_statistics statistics = test_statistics(&one->prefill);
    assert_int_equal(statistics.requests_held, 0);
    assert_int_equal(statistics.messages_received, 5);
    assert_int_equal(statistics.messages_dropped, 2);
    /* Too late: the room is on its own. */
    kvf_sender *sender = open_room(one, 150, 2);
    test_sender_ends(&one->prefill, sender, KVF_TIMEOUT, "no decode rank asked");
    kvf_sender_close(sender);
    bystander_works(one);
}

/* One that only some ranks asked for says how many. */
static void a_room_that_waits_for_more_ranks_ends(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {9, 4};
    kvf_request request = raw_decode_request(&one->raw, 160, pages, 2);
    request.required = 3;
    kvf_sender *sender = open_room(one, 160, 2);
    raw_decode_send(&one->raw, &request);
    test_sender_ends(&one->prefill, sender, KVF_TIMEOUT, "only 1 of 3 decode ranks");
    kvf_sender_close(sender);
    bystander_works(one);
}

/* A room closed before its request came, then its id again: nothing of the first is left (B37, B38). */
static void a_closed_rooms_id_starts_anew(void **state)
{
    scene *one = *state;
    for (int i = 0; i < 3; i++) {
        kvf_sender *sender = open_room(one, 170, 2);
        if (i == 1)
            kvf_sender_abort(sender);
        kvf_sender_close(sender);
        sender = open_room(one, 170, 2);
        assert_int_equal(kvf_sender_poll(sender), KVF_BOOTSTRAPPING);
        test_worker_fill(&one->raw.worker);
        room_works(one, sender, 170);
    }
    bystander_works(one);
}

/* A stock agent's request that comes again would be written to the pages of the room that has ended (B31, B37). */
static void a_used_id_of_a_stock_agent_is_refused(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {9, 4};
    room_works(one, open_room(one, 171, 2), 171);
    kvf_request late = raw_decode_request(&one->raw, 171, pages, 2);
    uint64_t dropped = test_statistics(&one->prefill).messages_dropped;
    raw_decode_send(&one->raw, &late);
    test_wait_statistic(&one->prefill, messages_dropped, dropped + 1);
    kvf_sender *sender = open_room(one, 171, 2);
    raw_decode_send(&one->raw, &late);
    test_wait_statistic(&one->prefill, messages_dropped, dropped + 2);
    assert_int_equal(kvf_sender_poll(sender), KVF_BOOTSTRAPPING);
    /* Another agent's room of that id is another room. */
    kvf_request other = raw_decode_request(&one->second, 171, pages, 2);
    raw_decode_send(&one->second, &other);
    send_pages(sender, 6, 2);
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
}

/* An agent that says it bears no silence at all, and then any. */
static void leases_of_all_lengths_are_served(void **state)
{
    static const uint64_t leases[] = {1, UINT64_MAX, KVF_SECOND, 1};
    static const uint64_t pages[] = {9, 4};
    scene *one = *state;
    for (uint64_t i = 0; i < sizeof leases / sizeof leases[0]; i++) {
        kvf_request request = raw_decode_request(&one->second, 174 + i, pages, 2);
        request.extended = true;
        request.extensions = KVF_EXTENSION_EPOCH | KVF_EXTENSION_LEASE;
        request.epoch = i + 1;
        request.lease = leases[i];
        kvf_sender *sender = open_room(one, 174 + i, 2);
        raw_decode_send(&one->second, &request);
        send_pages(sender, 6, 2);
        assert_true(raw_decode_notified(&one->second, 2 * (i + 1)));
        test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
        kvf_sender_close(sender);
    }
    bystander_works(one);
}

/* Over a new connection it can't tell its rooms apart any better. */
static void a_used_id_is_remembered_across_connections(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {9, 4};
    room_works(one, open_room(one, 172, 2), 172);
    kvf_statistics before = test_statistics(&one->prefill);
    raw_push_close(&one->raw.push);
    test_wait_statistic(&one->prefill, peers_lost, before.peers_lost + 1);
    raw_push_open(&one->raw.push, kvf_manager_port(one->prefill.manager));
    kvf_sender *sender = open_room(one, 172, 2);
    kvf_request again = raw_decode_request(&one->raw, 172, pages, 2);
    raw_decode_send(&one->raw, &again);
    test_wait_statistic(&one->prefill, messages_dropped, before.messages_dropped + 1);
    assert_int_equal(kvf_sender_poll(sender), KVF_BOOTSTRAPPING);
    kvf_sender_close(sender);
    test_worker_fill(&one->raw.worker);
    room_works(one, open_room(one, 173, 2), 173);
}

static kvf_request kvferry_request(raw_decode *raw, uint64_t room, uint64_t epoch)
{
    static const uint64_t pages[] = {9, 4};
    kvf_request request = raw_decode_request(raw, room, pages, 2);
    request.extended = true;
    request.extensions = KVF_EXTENSION_EPOCH;
    request.epoch = epoch;
    return request;
}

/* A decode that closes what it gave to be written to goes by a new name each time. The old ones take no place among the
 * peers, and what they asked for is no news although they are forgotten. */
static void names_that_are_followed_take_no_place(void **state)
{
    scene *one = *state;
    for (uint64_t i = 0; i < 8; i++) {
        char name[] = {'r', 'a', 'w', (char)('0' + i), '\0'};
        raw_decode_rename(&one->raw, name);
        kvf_request request = kvferry_request(&one->raw, 300 + i, 7 + i);
        kvf_sender *sender = open_room(one, 300 + i, 2);
        raw_decode_send(&one->raw, &request);
        send_pages(sender, 6, 2);
        assert_true(raw_decode_notified(&one->raw, 2 * (i + 1)));
        test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
        kvf_sender_close(sender);
    }
    bystander_works(one);
    assert_in_range(test_statistics(&one->prefill).peers, 2, 3);
    assert_int_equal(test_statistics(&one->prefill).peers_lost, 0);
    raw_decode_rename(&one->raw, "raw0");
    kvf_request again = kvferry_request(&one->raw, 300, 7);
    uint64_t dropped = test_statistics(&one->prefill).messages_dropped;
    raw_decode_send(&one->raw, &again);
    test_wait_statistic(&one->prefill, messages_dropped, dropped + 1);
    assert_int_equal(test_statistics(&one->prefill).requests_held, 0);
    again = kvferry_request(&one->raw, 320, 8);
    kvf_sender *sender = open_room(one, 320, 2);
    raw_decode_send(&one->raw, &again);
    send_pages(sender, 6, 2);
    test_sender_ends(&one->prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
}

static void a_rank_that_hangs_up_fails_its_rooms_only(void **state)
{
    scene *one = *state;
    static const uint64_t pages[] = {9, 4};
    kvf_request request = raw_decode_request(&one->raw, 180, pages, 2);
    kvf_request other = raw_decode_request(&one->second, 181, pages, 2);
    kvf_sender *sender = open_room(one, 180, 2);
    kvf_sender *survivor = open_room(one, 181, 2);
    raw_decode_send(&one->raw, &request);
    raw_decode_send(&one->second, &other);
    request.room = 182;
    raw_decode_send(&one->raw, &request);
    test_wait_statistic(&one->prefill, requests_held, 1);
    raw_push_close(&one->raw.push);
    test_sender_ends(&one->prefill, sender, KVF_PEER_GONE, "raw-decode");
    kvf_sender_close(sender);
    bystander_works(one); /* so that all of it has been done */
    test_worker_fill(&one->prefill);
    assert_int_equal(test_statistics(&one->prefill).requests_held, 0);
    assert_int_equal(test_statistics(&one->prefill).peers_lost, 1);
    send_pages(survivor, 6, 2);
    assert_true(raw_decode_notified(&one->second, 2));
    test_sender_ends(&one->prefill, survivor, KVF_OK, NULL);
    kvf_sender_close(survivor);
    bystander_works(one);
}

#define ON(start_function, name) cmocka_unit_test_setup_teardown(name, start_function, stop)
#define ON_BOTH(name) ON(start_loop, name), ON(start_shm, name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(foreign_and_torn_messages_touch_no_room),
        ON(start_loop, requests_of_later_releases_name_them),
        ON(start_loop, short_page_indices_are_named),
        ON(start_post1, long_page_indices_are_named),
        ON(start_post1, two_profiles_do_not_meet),
        ON_BOTH(pages_and_slots_outside_the_peers_pool_are_named),
        ON(start_loop, counts_that_differ_are_refused),
        ON_BOTH(more_buffers_than_ours_are_left_alone),
        ON_BOTH(buffers_at_descending_addresses_are_found),
        ON_BOTH(buffers_outside_the_metadata_are_refused),
        ON_BOTH(metadata_that_makes_no_sense_is_refused),
        ON(start_small, limits_are_named),
        ON_BOTH(an_identical_request_is_ignored),
        ON_BOTH(a_different_request_wins_before_the_first_byte),
        ON_BOTH(a_different_request_fails_the_room_after_the_first_byte),
        ON(start_loop, a_rank_cannot_ask_for_more_ranks_once_all_have_reported),
        ON(start_loop, more_ranks_than_required_fail_the_room),
        ON_BOTH(every_required_rank_gets_everything),
        ON_BOTH(bad_metadata_is_not_remembered),
        ON_BOTH(requests_are_held_and_taken),
        ON(start_hasty, held_requests_expire_and_are_limited),
        ON(start_hasty, a_room_that_waits_for_more_ranks_ends),
        ON(start_forgetful, a_closed_rooms_id_starts_anew),
        ON(start_loop, a_used_id_of_a_stock_agent_is_refused),
        ON(start_loop, a_used_id_is_remembered_across_connections),
        ON(start_loop, leases_of_all_lengths_are_served),
        ON(start_with_few, names_that_are_followed_take_no_place),
        ON_BOTH(a_rank_that_hangs_up_fails_its_rooms_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
