/* Every captured request, rebuilt from its scene; what other releases send; random and damaged ones. */
#include "wire/request.h"

#include "support/random.h"
#include "support/scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FRAMES_MAX 32

static const kvf_profile *wide;   /* sglang-0.4.7 */
static const kvf_profile *narrow; /* sglang-0.4.7.post1 */

/* ---- golden ---- */

static void append_pointers(kvf_bytes *bytes, const test_regions *regions)
{
    for (size_t i = 0; i < regions->count; i++)
        kvf_bytes_append_u64(bytes, regions->bases[i]);
}

static void compare_frames(const test_scene *scene, const kvf_message *message,
                           const json_t *captured)
{
    assert_int_equal(message->frame_count, json_array_size(captured));
    for (size_t i = 0; i < message->frame_count; i++) {
        char what[32];
        (void)snprintf(what, sizeof what, "frame %zu", i);
        kvf_bytes frame = test_from_hex(test_event_text(json_array_get(captured, i), "hex"));
        test_assert_bytes(scene, what, message->frames[i], kvf_bytes_slice(&frame));
        kvf_bytes_free(&frame);
    }
}

static void compare_request(const kvf_request *a, const kvf_request *b)
{
    assert_true(a->room == b->room && a->port == b->port);
    assert_true(kvf_slice_equal(a->host, b->host));
    assert_true(kvf_slice_equal(a->agent_name, b->agent_name));
    assert_true(kvf_slice_equal(a->agent_metadata, b->agent_metadata));
    assert_true(kvf_slice_equal(a->buffers, b->buffers));
    assert_true(kvf_slice_equal(a->pages, b->pages));
    assert_true(kvf_slice_equal(a->aux, b->aux));
    assert_int_equal(a->page_width, b->page_width);
    assert_int_equal(a->aux_slot, b->aux_slot);
    assert_int_equal(a->device, b->device);
    assert_int_equal(a->required, b->required);
    assert_int_equal(a->extended, b->extended);
    assert_true(a->extensions == b->extensions);
    if ((a->extensions & KVF_EXTENSION_EPOCH) != 0)
        assert_true(a->epoch == b->epoch);
    if ((a->extensions & KVF_EXTENSION_LEASE) != 0)
        assert_true(a->lease == b->lease);
}

static void decode_again(const kvf_profile *profile, const kvf_request *request,
                         const kvf_message *message)
{
    kvf_request decoded;
    kvf_refusal refusal;
    kvf_error error = {0};
    if (kvf_request_decode(profile, message->frames, message->frame_count, &decoded, &refusal,
                           &error) != KVF_OK)
        fail_msg("%s", error.text);
    assert_false(refusal.room_known);
    compare_request(request, &decoded);
}

/* What one decode rank sends to its `turn`th target. */
static void check_message(const test_scene *scene, const test_rank *decode, uint32_t turn,
                          const json_t *event)
{
    kvf_metadata metadata = test_metadata_of(decode);
    kvf_bytes blob = {0}, buffers = {0}, aux = {0}, pages = {0};
    const json_t *frames = json_object_get(event, "frames");
    const char *port = test_event_text(json_array_get(frames, 3), "ascii"); /* opaque */
    assert_int_equal(kvf_metadata_encode(&metadata, scene->profile->flavour, &blob, NULL), KVF_OK);
    append_pointers(&buffers, &decode->buffers);
    append_pointers(&aux, &decode->aux);
    if (turn == 0) /* the others are dummies */
        kvf_request_pages_encode(scene->profile, scene->pages, scene->page_count, &pages);
    kvf_request request = {.room = scene->room,
                           .host = kvf_slice_of("127.0.0.1"),
                           .port = (uint16_t)strtoul(port, NULL, 10),
                           .agent_name = kvf_slice_of(decode->agent_name),
                           .agent_metadata = kvf_bytes_slice(&blob),
                           .buffers = kvf_bytes_slice(&buffers),
                           .pages = kvf_bytes_slice(&pages),
                           .page_width = scene->profile->page_width,
                           .aux = kvf_bytes_slice(&aux),
                           .aux_slot = (uint32_t)(scene->room % scene->aux_slots),
                           .required = test_targets_of(scene, decode).required};
    kvf_message message;
    kvf_request_encode(scene->profile, &request, &message);
    compare_frames(scene, &message, frames);
    decode_again(scene->profile, &request, &message);
    assert_int_equal(kvf_request_is_dummy(&request), turn != 0);
    for (size_t i = 0; i < kvf_request_page_count(&request); i++) {
        uint32_t page;
        assert_true(kvf_request_page(&request, i, &page));
        assert_int_equal(page, scene->pages[i]);
    }
    free(metadata.descriptors);
    kvf_bytes_free(&blob);
    kvf_bytes_free(&buffers);
    kvf_bytes_free(&aux);
    kvf_bytes_free(&pages);
}

static void check_scene(const test_scene *scene)
{
    for (size_t i = 0; i < scene->rank_count; i++) {
        const test_rank *rank = &scene->ranks[i];
        if (rank->is_prefill)
            continue;
        uint32_t turn = 0;
        for (const json_t *event = NULL;
             (event = test_event_next(rank, "zmq transfer", event)) != NULL; turn++)
            check_message(scene, rank, turn, event);
        assert_int_equal(turn, test_targets_of(scene, rank).count);
    }
}

static void captured_requests_are_rebuilt(void **state)
{
    (void)state;
    test_scenes_each(check_scene);
}

/* ---- one message, changed by hand ---- */

typedef struct frames {
    kvf_slice slices[FRAMES_MAX];
    size_t count;
} frames;

/* A sound 0.4.7 request of two pages for room 7. */
static frames sound(void)
{
    static const uint8_t zeros[16];
    frames message = {.count = 12};
    static const char *const texts[12] = {"NixlMsgGuard", "7",       "127.0.0.1", "1",
                                          "metadata",     "agent-0", NULL,        NULL,
                                          NULL,           "0",       "0",         "1"};
    for (size_t i = 0; i < 12; i++)
        message.slices[i] = texts[i] != NULL ? kvf_slice_of(texts[i]) : (kvf_slice){zeros, 16};
    return message;
}

static frames with(size_t index, const char *text)
{
    frames message = sound();
    message.slices[index] = kvf_slice_of(text);
    return message;
}

static frames of(size_t count, const char *const *texts)
{
    frames message = {.count = count};
    for (size_t i = 0; i < count; i++)
        message.slices[i] = kvf_slice_of(texts[i]);
    return message;
}

static kvf_refusal expect(const kvf_profile *profile, const frames *message, kvf_status status,
                          const char *words)
{
    kvf_request request;
    kvf_refusal refusal;
    kvf_error error = {0};
    kvf_status seen =
        kvf_request_decode(profile, message->slices, message->count, &request, &refusal, &error);
    if (seen != status || strstr(error.text, words) == NULL)
        fail_msg("got %s (%s), expected %s with \"%s\"", kvf_status_name(seen), error.text,
                 kvf_status_name(status), words);
    if (status != KVF_PROFILE)
        assert_false(refusal.room_known);
    return refusal;
}

static void malformed_requests_are_refused(void **state)
{
    (void)state;
    static const struct {
        size_t frame;
        const char *text;
        const char *words;
    } cases[] = {
        {0, "NixlMsgGuar", "begins with"},
        {0, "", "begins with"},
        {1, "", "room"},
        {1, "x", "room"},
        {1, "-1", "room"},
        {1, "9223372036854775808", "room"},
        {1, "none", "room"},
        {2, "", "host"},
        {2, "a\nb", "host"},
        {3, "65536", "port"},
        {3, "", "port"},
        {5, "", "agent name"},
        {5, "\xff", "agent name"},
        {5, "0123456789012345678901234567890123456789012345678901234567890123", "agent name"},
        {6, "1234567", "buffer pointers"},
        {7, "123", "pages"},
        {8, "123456789", "aux pointers"},
        {9, "None", "aux slot"},
        {9, "-1", "aux slot"},
        {9, "4294967296", "aux slot"},
        {10, "0x0", "device"},
        {11, "0", "required"},
        {11, "1 ", "required"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        frames message = with(cases[i].frame, cases[i].text);
        (void)expect(wide, &message, KVF_PROTOCOL, cases[i].words);
    }
    frames message = sound();
    (void)expect(wide, &message, KVF_OK, "");
    for (message.count = 0; message.count < 12; message.count++)
        (void)expect(wide, &message, KVF_PROTOCOL, "");
    for (message.count = 14; message.count < FRAMES_MAX; message.count++)
        (void)expect(wide, &message, KVF_PROTOCOL, "where sglang-0.4.7 has 12");
}

static void hostile_bytes_stay_out_of_the_text(void **state)
{
    (void)state;
    frames message = with(0, "\x1b[31mforged\nline \xff"
                             "and very, very, very, very much more");
    kvf_request request;
    kvf_refusal refusal;
    kvf_error error = {0};
    assert_int_equal(
        kvf_request_decode(wide, message.slices, message.count, &request, &refusal, &error),
        KVF_PROTOCOL);
    assert_non_null(strstr(error.text, "\"?[31mforged?line ?and"));
    for (const char *at = error.text; *at != '\0'; at++)
        assert_in_range(*at, 0x20, 0x7e);
}

static void registrations_of_later_releases_are_named(void **state)
{
    (void)state;
    static const struct {
        size_t count;
        const char *words;
    } cases[] = {{9, "0.4.8.post1 to 0.5.1"}, {12, "0.5.2 to 0.5.6"},   {13, "0.5.9"},
                 {20, "0.5.15 or 0.5.16"},    {24, "0.5.17 to 0.5.22"}, {25, "0.5.23"},
                 {17, "later than 0.4.8"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        frames message = with(1, "None");
        while (message.count < cases[i].count)
            message.slices[message.count++] = kvf_slice_of("0");
        message.count = cases[i].count;
        assert_false(expect(wide, &message, KVF_PROFILE, cases[i].words).room_known);
        assert_false(expect(narrow, &message, KVF_PROFILE, "set to sglang-0.4.7.post1").room_known);
    }
}

static void requests_of_later_releases_are_named(void **state)
{
    (void)state;
    const char *texts[] = {"NixlMsgGuard",
                           "9223372036854775807",
                           "10.0.0.1",
                           "4000",
                           "agent-0",
                           "abcd",
                           "3",
                           "1",
                           "",
                           "0",
                           "0"};
    static const char *const words[] = {"0.4.8.post1 to 0.5.6", "0.5.9", "0.5.16", "0.5.23"};
    for (size_t count = 8; count <= 11; count++) {
        frames message = of(count, texts);
        kvf_refusal refusal = expect(wide, &message, KVF_PROFILE, words[count - 8]);
        assert_true(refusal.room_known && refusal.room == KVF_ROOM_MAX);
    }
    texts[6] = "None"; /* stock writes this for a missing slot */
    frames message = of(8, texts);
    assert_true(expect(wide, &message, KVF_PROFILE, "0.4.8.post1").room_known);
    texts[6] = "x";
    message = of(8, texts);
    (void)expect(wide, &message, KVF_PROTOCOL, "cut short");
}

static void control_messages_of_later_releases_are_named(void **state)
{
    (void)state;
    static const char *const abort_texts[] = {"ABORT", "42", "10.0.0.1", "4000", "1"};
    static const char *const odd_texts[] = {"ABORT", "x"};
    for (size_t count = 2; count <= 5; count++) {
        frames message = of(count, abort_texts);
        kvf_refusal refusal = expect(wide, &message, KVF_PROFILE, "ABORT");
        assert_true(refusal.room_known && refusal.room == 42);
    }
    frames message = of(1, abort_texts);
    assert_false(expect(wide, &message, KVF_PROFILE, "ABORT").room_known);
    message = of(2, odd_texts);
    assert_false(expect(wide, &message, KVF_PROFILE, "ABORT").room_known);
    static const char *const mark_texts[] = {"WATERMARK", "1", "2", "agent-0"};
    message = of(4, mark_texts);
    assert_false(expect(wide, &message, KVF_PROFILE, "WATERMARK").room_known);
}

static void the_other_page_width_is_named(void **state)
{
    (void)state;
    frames message = with(7, "123456789012"); /* three int32, or one and a half int64 */
    kvf_refusal refusal = expect(wide, &message, KVF_PROFILE, "speaks sglang-0.4.7.post1");
    assert_true(refusal.room_known && refusal.room == 7);
    (void)expect(narrow, &message, KVF_OK, "");

    /* Pages 1 2 3 4, in four bytes each and in eight. */
    uint8_t four[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
    uint8_t eight[32] = {[0] = 1, [8] = 2, [16] = 3, [24] = 4};
    kvf_request request = {.room = 7, .pages = {four, 16}, .page_width = 8};
    kvf_error error;
    assert_int_equal(kvf_request_explain_count(wide, &request, 4, &error), KVF_PROFILE);
    assert_non_null(strstr(error.text, "the peer speaks sglang-0.4.7.post1 (4-byte page indices)"));
    assert_int_equal(kvf_request_explain_count(wide, &request, 3, &error), KVF_MISMATCH);
    request = (kvf_request){.room = 7, .pages = {eight, 32}, .page_width = 4};
    assert_int_equal(kvf_request_explain_count(narrow, &request, 4, &error), KVF_PROFILE);
    assert_non_null(strstr(error.text, "the peer speaks sglang-0.4.7 (8-byte page indices)"));
    request.pages.length = 12;
    assert_int_equal(kvf_request_explain_count(narrow, &request, 4, &error), KVF_MISMATCH);
    request.pages.length = 0;
    assert_int_equal(kvf_request_explain_count(narrow, &request, UINT64_MAX, &error), KVF_MISMATCH);
}

/* Half or twice the pages is far more often a mistake in the page count than in the release. */
static void a_count_that_is_merely_wrong_is_no_profile(void **state)
{
    (void)state;
    uint8_t four[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
    uint8_t eight[16] = {[0] = 1, [8] = 2};
    kvf_request request = {.room = 7, .pages = {eight, 16}, .page_width = 8};
    kvf_error error;
    assert_int_equal(kvf_request_explain_count(wide, &request, 4, &error), KVF_MISMATCH);
    assert_non_null(strstr(error.text, "or the peer speaks sglang-0.4.7.post1"));
    request = (kvf_request){.room = 7, .pages = {four, 16}, .page_width = 4};
    assert_int_equal(kvf_request_explain_count(narrow, &request, 2, &error), KVF_MISMATCH);
    assert_non_null(strstr(error.text, "or the peer speaks sglang-0.4.7"));
}

static void tail_frames_are_told_apart(void **state)
{
    (void)state;
    static const uint8_t tail[] = "KVFERRY1\x03\0\0\0\0\0\0\x80 and what may come";
    frames message = sound();
    kvf_request request;
    kvf_refusal refusal;
    message.count = 13;
    for (size_t length = 16; length < sizeof tail; length++) {
        message.slices[12] = (kvf_slice){tail, length};
        assert_int_equal(kvf_request_decode(wide, message.slices, 13, &request, &refusal, NULL),
                         KVF_OK);
        assert_true(request.extended && request.extensions == 0x8000000000000003u);
    }
    message.slices[12] = (kvf_slice){tail, 15};
    (void)expect(wide, &message, KVF_PROTOCOL, "tail frame");
    static const char *const foreign[] = {"", "KVFERRY2", "KVFERRY", "anything"};
    for (size_t i = 0; i < 4; i++) {
        message.slices[12] = kvf_slice_of(foreign[i]);
        assert_int_equal(kvf_request_decode(wide, message.slices, 13, &request, &refusal, NULL),
                         KVF_OK);
        assert_true(!request.extended && request.extensions == 0);
    }
    message.slices[7].length = 0;
    message.slices[12] = (kvf_slice){tail, 16};
    assert_int_equal(kvf_request_decode(wide, message.slices, 13, &request, &refusal, NULL),
                     KVF_OK);
    assert_false(kvf_request_is_dummy(&request)); /* KVF_EXTENSION_NO_DUMMY */
}

/* Each number stands behind the one before; who doesn't know the last ignores it. */
static void the_tails_numbers_are_the_announced_ones(void **state)
{
    (void)state;
    static const struct {
        uint8_t flags;
        uint8_t numbers[16]; /* two little-endian u64 */
        size_t length;
        bool sound;
        uint64_t epoch;
        uint64_t lease;
    } tails[] = {
        {4 | 16, {7, [8] = 9}, 16, true, 7, 9},  {16, {9}, 8, true, 0, 9},
        {4, {7, [8] = 9}, 16, true, 7, 0},       {4 | 16, {7}, 8, false, 0, 0},
        {4 | 16, {7, [8] = 9}, 15, false, 0, 0}, {4 | 16, {7}, 16, false, 0, 0},
        {4 | 16, {[8] = 9}, 16, false, 0, 0},    {16, {0}, 0, false, 0, 0},
    };
    frames message = sound();
    message.count = 13;
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        uint8_t tail[32] = "KVFERRY1";
        kvf_request request;
        kvf_refusal refusal;
        tail[8] = tails[i].flags;
        memcpy(tail + 16, tails[i].numbers, 16);
        message.slices[12] = (kvf_slice){tail, 16 + tails[i].length};
        if (!tails[i].sound) {
            (void)expect(wide, &message, KVF_PROTOCOL, "which its flags announce");
            continue;
        }
        assert_int_equal(kvf_request_decode(wide, message.slices, 13, &request, &refusal, NULL),
                         KVF_OK);
        assert_true(request.epoch == tails[i].epoch && request.lease == tails[i].lease);
    }
}

static void page_indices_keep_their_bounds(void **state)
{
    (void)state;
    static const uint8_t pages[] = {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,    /* 2^32 - 1 */
                                    0,    0,    0,    0,    1, 0, 0, 0,    /* 2^32 */
                                    1,    0,    0,    0,    0, 0, 0, 0x80, /* negative */
                                    0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0x80};
    kvf_request request = {.pages = {pages, sizeof pages}, .page_width = 8};
    uint32_t page = 0;
    assert_true(kvf_request_page(&request, 0, &page) && page == UINT32_MAX);
    assert_false(kvf_request_page(&request, 1, &page));
    assert_false(kvf_request_page(&request, 2, &page));
    assert_false(kvf_request_page(&request, 4, &page));
    assert_false(kvf_request_page(&request, SIZE_MAX, &page));
    request.page_width = 4;
    assert_false(kvf_request_page(&request, 0, &page)); /* -1 */
    assert_true(kvf_request_page(&request, 6, &page) && page == INT32_MAX);
    assert_false(kvf_request_page(&request, 7, &page));

    kvf_bytes bytes = {0};
    const uint32_t too_large = UINT32_C(1) << 31;
    kvf_request_pages_encode(wide, &too_large, 1, &bytes);
    assert_false(bytes.failed);
    kvf_request_pages_encode(narrow, &too_large, 1, &bytes);
    assert_true(bytes.failed); /* would be negative on the wire */
    kvf_bytes_free(&bytes);
}

/* ---- random ---- */

static kvf_slice random_slice(test_random *random, size_t minimum, size_t more, size_t unit,
                              bool printable)
{
    size_t length = (minimum + (size_t)test_random_below(random, more)) * unit;
    uint8_t *data = malloc(length == 0 ? 1 : length);
    assert_non_null(data);
    test_random_fill(random, data, length, printable);
    return (kvf_slice){data, length};
}

static kvf_request random_request(test_random *random, const kvf_profile *profile)
{
    bool extended = test_random_below(random, 2) == 0;
    return (kvf_request){.room = test_random_edgy(random) & KVF_ROOM_MAX,
                         .host = random_slice(random, 1, 255, 1, true),
                         .port = (uint16_t)test_random_edgy(random),
                         .agent_name = random_slice(random, 1, KVF_AGENT_NAME_MAX, 1, true),
                         .agent_metadata = random_slice(random, 0, 300, 1, false),
                         .buffers = random_slice(random, 0, 20, 8, false),
                         .pages = random_slice(random, 0, 200, profile->page_width, false),
                         .page_width = profile->page_width,
                         .aux = random_slice(random, 0, 6, 8, false),
                         .aux_slot = (uint32_t)test_random_edgy(random),
                         .device = (uint32_t)test_random_edgy(random),
                         .required = (uint32_t)test_random_edgy(random) | 1,
                         .extended = extended,
                         .extensions = extended ? test_random_edgy(random) : 0,
                         .epoch = extended ? 1 + test_random_below(random, UINT64_MAX) : 0,
                         .lease = extended ? 1 + test_random_below(random, UINT64_MAX) : 0};
}

static void free_request(kvf_request *request)
{
    const kvf_slice slices[] = {request->host,    request->agent_name, request->agent_metadata,
                                request->buffers, request->pages,      request->aux};
    for (size_t i = 0; i < sizeof slices / sizeof slices[0]; i++)
        free((void *)(uintptr_t)slices[i].data);
}

/* One or two frames damaged, or frames lost, doubled or swapped. */
static void damage_message(test_random *random, frames *message, bool owned[FRAMES_MAX])
{
    for (uint64_t hits = test_random_below(random, 3); hits > 0; hits--) {
        size_t index = (size_t)test_random_below(random, message->count);
        kvf_slice damaged = test_random_damage(random, message->slices[index]);
        if (owned[index])
            free((void *)(uintptr_t)message->slices[index].data);
        message->slices[index] = damaged;
        owned[index] = true;
    }
    switch (test_random_below(random, 4)) {
    case 0:
        message->count = (size_t)test_random_below(random, message->count + 1);
        break;
    case 1:
        while (message->count < FRAMES_MAX - 1 && test_random_below(random, 3) != 0)
            message->slices[message->count++] = (kvf_slice){NULL, 0};
        break;
    default:
        break;
    }
}

static void expect_inside(const kvf_request *request, const frames *message)
{
    assert_true(test_lies_inside(request->host, message->slices[2]));
    assert_true(test_lies_inside(request->agent_metadata, message->slices[4]));
    assert_true(test_lies_inside(request->agent_name, message->slices[5]));
    assert_true(test_lies_inside(request->buffers, message->slices[6]));
    assert_true(test_lies_inside(request->pages, message->slices[7]));
    assert_true(test_lies_inside(request->aux, message->slices[8]));
    assert_in_range(request->agent_name.length, 1, KVF_AGENT_NAME_MAX);
    assert_int_equal(request->buffers.length % 8, 0);
    assert_int_equal(request->aux.length % 8, 0);
    assert_int_equal(request->pages.length % request->page_width, 0);
    assert_true(request->room <= KVF_ROOM_MAX);
    uint32_t page;
    for (size_t i = 0; i <= kvf_request_page_count(request); i++)
        (void)kvf_request_page(request, i, &page);
}

static void decode_damaged(test_random *random, const kvf_profile *profile,
                           const kvf_message *sound_message)
{
    frames message = {.count = sound_message->frame_count};
    bool owned[FRAMES_MAX] = {false};
    memcpy(message.slices, sound_message->frames, message.count * sizeof *message.slices);
    damage_message(random, &message, owned);
    kvf_request decoded;
    kvf_refusal refusal;
    kvf_error error = {0};
    kvf_status status =
        kvf_request_decode(profile, message.slices, message.count, &decoded, &refusal, &error);
    if (status == KVF_OK)
        expect_inside(&decoded, &message);
    else
        assert_true((status == KVF_PROTOCOL || status == KVF_PROFILE) && error.text[0] != '\0');
    for (size_t i = 0; i < FRAMES_MAX; i++)
        if (owned[i])
            free((void *)(uintptr_t)message.slices[i].data);
}

static void random_requests_survive_round_trip_and_damage(void **state)
{
    (void)state;
    test_random random = test_random_start();
    for (unsigned round = 0; round < 3000; round++) {
        const kvf_profile *profile = round % 2 == 0 ? wide : narrow;
        kvf_request request = random_request(&random, profile);
        kvf_message message;
        kvf_request_encode(profile, &request, &message);
        assert_int_equal(message.frame_count, request.extended ? 13 : 12);
        decode_again(profile, &request, &message);
        for (unsigned i = 0; i < 5; i++)
            decode_damaged(&random, profile, &message);
        free_request(&request);
    }
}

static void random_pages_survive(void **state)
{
    (void)state;
    test_random random = test_random_start();
    for (unsigned round = 0; round < 200; round++) {
        const kvf_profile *profile = round % 2 == 0 ? wide : narrow;
        uint32_t pages[300];
        size_t count = (size_t)test_random_below(&random, 300);
        for (size_t i = 0; i < count; i++)
            pages[i] =
                (uint32_t)test_random_edgy(&random) & (profile == wide ? UINT32_MAX : INT32_MAX);
        kvf_bytes bytes = {0};
        kvf_request_pages_encode(profile, pages, count, &bytes);
        assert_false(bytes.failed);
        kvf_request request = {.pages = kvf_bytes_slice(&bytes), .page_width = profile->page_width};
        assert_int_equal(kvf_request_page_count(&request), count);
        for (size_t i = 0; i < count; i++) {
            uint32_t page;
            assert_true(kvf_request_page(&request, i, &page) && page == pages[i]);
        }
        kvf_bytes_free(&bytes);
    }
}

int main(void)
{
    wide = kvf_profile_at(0);
    narrow = kvf_profile_at(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_requests_are_rebuilt),
        cmocka_unit_test(malformed_requests_are_refused),
        cmocka_unit_test(hostile_bytes_stay_out_of_the_text),
        cmocka_unit_test(registrations_of_later_releases_are_named),
        cmocka_unit_test(requests_of_later_releases_are_named),
        cmocka_unit_test(control_messages_of_later_releases_are_named),
        cmocka_unit_test(the_other_page_width_is_named),
        cmocka_unit_test(a_count_that_is_merely_wrong_is_no_profile),
        cmocka_unit_test(tail_frames_are_told_apart),
        cmocka_unit_test(the_tails_numbers_are_the_announced_ones),
        cmocka_unit_test(page_indices_keep_their_bounds),
        cmocka_unit_test(random_requests_survive_round_trip_and_damage),
        cmocka_unit_test(random_pages_survive),
    };
    return cmocka_run_group_tests_name("wire/request", tests, NULL, NULL);
}
