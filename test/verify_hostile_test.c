/* Verification against peers that say what they shouldn't: a prefill rank and a decode rank made of bare parts. Each bad
 * letter ends its own room and nothing else. */
#include "support/raw.h"

#include "wire/sums.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>
#include <zmq.h>

#include <cmocka.h>

#define AGENT "a-bare-prefill"
enum { BUFFERS = 2, AUX = 2, PAGES = 6, SLOT = 1, MANY_BUFFERS = 72, MANY_PAGES = 32768 };

typedef struct scene {
    test_bootstrap bootstrap; /* where the bare prefill is registered */
    test_bootstrap sane;
    raw_prefill raw;
    raw_decode raw_decode;
    raw_push letters; /* to the decode manager */
    test_worker prefill;
    test_worker decode;
    uint64_t next_room;
    bool hasty; /* with deadlines that a sound room might miss on a busy machine */
} scene;

static scene one;

static const uint32_t pages[PAGES] = {3, 4, 9, 1, 0, 7};

static const char *const decode_settings[] = {
    "verify", "required", "peer_extensions", "assume", "waiting_timeout", "20s", NULL};

static void start(const test_shape *shape, const char *const *prefill, const char *const *decode)
{
    test_use_engine("loop");
    test_bootstrap_open(&one.bootstrap);
    test_bootstrap_open(&one.sane);
    raw_prefill_open(&one.raw, one.bootstrap.address);
    test_worker_open(&one.prefill, KVF_PREFILL, shape, one.sane.address, prefill);
    test_worker_open(&one.decode, KVF_DECODE, shape, NULL, decode);
    raw_push_open(&one.letters, kvf_manager_port(one.decode.manager));
    one.next_room = 1000;
}

static void start_usual(void)
{
    start(NULL, NULL, decode_settings);
    test_worker_fill(&one.prefill);
    test_worker_fill(&one.decode);
}

/* Whatever was said to them, the managers still work. */
static int stop(void **state)
{
    (void)state;
    if (one.decode.shape.buffers == BUFFERS && !one.hasty)
        test_room_works(&one.prefill, &one.decode, one.sane.address, one.next_room++, 2);
    assert_int_equal(test_statistics(&one.decode).rooms_open, 0);
    assert_int_equal(test_statistics(&one.prefill).rooms_open, 0);
    raw_push_close(&one.letters);
    raw_decode_close(&one.raw_decode);
    raw_prefill_close(&one.raw);
    test_worker_close(&one.decode);
    test_worker_close(&one.prefill);
    test_bootstrap_close(&one.bootstrap);
    test_bootstrap_close(&one.sane);
    memset(&one, 0, sizeof one);
    return 0;
}

/* ---- A bare prefill ---------------------------------------------------------------------------------- */

static kvf_receiver *requested(uint64_t room)
{
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, room);
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, SLOT), KVF_OK);
    raw_prefill_requested(&one.raw, room);
    assert_true((one.raw.extensions & KVF_EXTENSION_VERIFY) != 0);
    return receiver;
}

static void tell(kvf_letter_kind kind, kvf_status status, const kvf_bytes *body)
{
    kvf_letter letter = {.kind = kind,
                         .status = status,
                         .room = one.raw.room,
                         .epoch = one.raw.epoch,
                         .agent_name = kvf_slice_of(one.raw.agent_name),
                         .text = kvf_slice_of(status == KVF_OK ? "" : "because"),
                         .body = body == NULL ? (kvf_slice){NULL, 0} : kvf_bytes_slice(body)};
    raw_letter(&one.letters, &letter);
}

/* What decode has in its pool, summed in one go. */
static uint64_t sum_of_pages(size_t buffer, uint32_t first, uint32_t count)
{
    unsigned char copy[PAGES * 512];
    for (uint32_t i = 0; i < count; i++)
        memcpy(copy + (size_t)512 * i, test_page(&one.decode, buffer, pages[first + i]), 512);
    return XXH3_64bits(copy, (size_t)512 * count);
}

/* Sums of pages first to first + count; with `wrong` added to those of the last buffer. */
static void tell_sums(const kvf_chunk_sums *head, uint32_t first, uint64_t wrong)
{
    kvf_bytes body = {0};
    kvf_chunk_sums_begin(head, &body);
    for (uint32_t i = 0; i < head->buffer_count; i++)
        kvf_bytes_append_u64(&body, sum_of_pages(i % BUFFERS, first, head->page_count % PAGES) +
                                        (i + 1 == BUFFERS ? wrong : 0));
    for (uint32_t i = 0; i < head->aux_count; i++)
        kvf_bytes_append_u64(&body, XXH3_64bits(test_slot(&one.decode, i % AUX, SLOT), 64));
    tell(KVF_LETTER_SUMS, KVF_OK, &body);
    kvf_bytes_free(&body);
}

/* Two chunks: the first has two pages, the last four. */
static const kvf_chunk_sums first_chunk = {.chunk = 0, .page_count = 2, .buffer_count = BUFFERS};
static const kvf_chunk_sums last_chunk = {
    .chunk = 1, .page_count = 4, .buffer_count = BUFFERS, .aux_count = AUX, .last = true};

static void notify_as(const char *agent_name, kvf_notice_kind kind, uint32_t chunk, bool last)
{
    char text[KVF_NOTICE_TEXT_MAX + 1];
    kvf_notice notice = {
        .kind = kind, .room = one.raw.room, .epoch = one.raw.epoch, .chunk = chunk, .last = last};
    text[kvf_notice_format(&notice, text)] = '\0';
    raw_prefill_notify(&one.raw, agent_name, text);
}

static void notify(kvf_notice_kind kind, uint32_t chunk, bool last)
{
    notify_as(AGENT, kind, chunk, last);
}

/* The next letter that decode sends. */
static void hears(kvf_letter_kind kind, const uint32_t *numbers, size_t count)
{
    zmq_msg_t messages[KVF_LETTER_FRAMES];
    kvf_slice frames[KVF_LETTER_FRAMES];
    kvf_letter letter;
    for (size_t i = 0; i < KVF_LETTER_FRAMES; i++) {
        (void)zmq_msg_init(&messages[i]);
        if (zmq_msg_recv(&messages[i], one.raw.socket, 0) < 0)
            fail_msg("no letter came");
        frames[i] = (kvf_slice){zmq_msg_data(&messages[i]), zmq_msg_size(&messages[i])};
    }
    assert_int_equal(kvf_letter_decode(frames, KVF_LETTER_FRAMES, &letter, NULL), KVF_OK);
    assert_int_equal(letter.kind, kind);
    assert_true(letter.room == one.raw.room && letter.epoch == one.raw.epoch);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(kvf_read_u32(letter.body.data + 4 * i), numbers[i]);
    for (size_t i = 0; i < KVF_LETTER_FRAMES; i++)
        (void)zmq_msg_close(&messages[i]);
}

static void hears_verdict(uint32_t chunk)
{
    hears(KVF_LETTER_VERDICT, &chunk, 1);
}

static void hears_question(uint32_t chunk, uint32_t buffer, uint32_t first)
{
    hears(KVF_LETTER_WANT_PAGES, (const uint32_t[]){chunk, buffer, first}, 3);
}

/* Says that it has stopped, as a prefill does that is told of the failure. */
static void ends(kvf_receiver *receiver, kvf_status status, const char *part)
{
    test_receiver_ends(&one.decode, receiver, status, part);
    if (status != KVF_OK)
        tell(KVF_LETTER_STOPPED, KVF_OK, NULL);
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    kvf_receiver_close(receiver);
}

static void any_order_of_letters_and_notifications_is_right(void **state)
{
    (void)state;
    start_usual();
    for (uint64_t order = 0; order < 4; order++) {
        kvf_receiver *receiver = requested(order);
        if (order % 2 == 0)
            tell_sums(&first_chunk, 0, 0);
        notify(KVF_NOTICE_AUX, 0, false);
        if (order < 2)
            notify(KVF_NOTICE_CHUNK, 1, true);
        notify(KVF_NOTICE_CHUNK, 0, false);
        if (order >= 2)
            notify(KVF_NOTICE_CHUNK, 1, true);
        assert_int_not_equal(kvf_receiver_poll(receiver), KVF_SUCCESS);
        if (order % 2 == 1)
            tell_sums(&first_chunk, 0, 0);
        hears_verdict(0);
        assert_int_not_equal(kvf_receiver_poll(receiver), KVF_SUCCESS);
        tell_sums(&last_chunk, 2, 0);
        hears_verdict(1);
        ends(receiver, KVF_OK, NULL);
    }
}

static void nothing_counts_twice_or_from_others(void **state)
{
    (void)state;
    start_usual();
    kvf_receiver *receiver = requested(1);
    notify(KVF_NOTICE_CHUNK, 0, false);
    notify(KVF_NOTICE_CHUNK, 0, false);
    notify(KVF_NOTICE_AUX, 0, false);
    notify(KVF_NOTICE_AUX, 0, false);
    notify_as("another", KVF_NOTICE_CHUNK, 1, true);
    test_wait_statistic(&one.decode, notifications_dropped, 3);
    tell_sums(&first_chunk, 0, 0);
    tell_sums(&last_chunk, 2, 0);
    hears_verdict(0);
    notify(KVF_NOTICE_CHUNK, 1, true);
    hears_verdict(1);
    ends(receiver, KVF_OK, NULL);
    assert_int_equal(test_statistics(&one.decode).notifications_dropped, 3);
}

/* Sums that can't be: as the first ones, and after the first chunk's. */
static void sums_that_cannot_be_end_their_room(void **state)
{
    (void)state;
    static const struct {
        kvf_chunk_sums sums;
        const char *part;
        bool first; /* chunk 0's were told before */
    } bad[] = {
        {{.chunk = 1, .page_count = 2, .buffer_count = 2}, "sums of chunk 1 came after", false},
        {{.chunk = UINT32_MAX, .page_count = 2, .buffer_count = 2}, "came after those", false},
        {{.chunk = 0, .page_count = 2, .buffer_count = 2}, "sums of chunk 0 came after", true},
        {{.chunk = 2, .page_count = 2, .buffer_count = 2}, "sums of chunk 2 came after", true},
        {{.chunk = 0, .page_count = 2, .buffer_count = 1}, "sums of 1 buffers", false},
        {{.chunk = 0, .page_count = 2, .buffer_count = 3}, "sums of 3 buffers", false},
        {{.chunk = 0, .page_count = 7, .buffer_count = 2}, "sums of 7 pages", false},
        {{.chunk = 0, .page_count = UINT32_MAX, .buffer_count = 2}, "6 of 6 are left", false},
        {{.chunk = 0, .page_count = 0, .buffer_count = 2}, "sums of 0 pages", false},
        {{.chunk = 0, .page_count = 6, .buffer_count = 2}, "sums of 6 pages", false},
        {{.chunk = 1, .page_count = 5, .buffer_count = 2}, "4 of 6 are left", true},
        {{.chunk = 1, .page_count = 3, .buffer_count = 2, .aux_count = 2, .last = true},
         "the last, has sums of 3 pages",
         true},
        {{.chunk = 1, .page_count = 4, .buffer_count = 2, .aux_count = 1, .last = true},
         "1 aux buffers",
         true},
        {{.chunk = 1, .page_count = 4, .buffer_count = 2, .last = true}, "0 aux buffers", true},
    };
    start_usual();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvf_receiver *receiver = requested(i);
        if (bad[i].first)
            tell_sums(&first_chunk, 0, 0);
        tell_sums(&bad[i].sums, 0, 0);
        ends(receiver, KVF_PROTOCOL, bad[i].part);
        hears(KVF_LETTER_ABORT, NULL, 0);
    }
}

static void sums_that_cannot_be_read_end_their_room(void **state)
{
    (void)state;
    start_usual();
    kvf_bytes body = {0};
    kvf_chunk_sums_begin(&first_chunk, &body);
    kvf_bytes_append_u64(&body, 1);
    kvf_receiver *receiver = requested(1);
    tell(KVF_LETTER_SUMS, KVF_OK, &body);
    ends(receiver, KVF_PROTOCOL, "a body of 28 bytes");
    hears(KVF_LETTER_ABORT, NULL, 0);
    receiver = requested(2);
    tell(KVF_LETTER_PAGE_SUMS, KVF_OK, &body);
    ends(receiver, KVF_PROTOCOL, "a body of 28 bytes");
    hears(KVF_LETTER_ABORT, NULL, 0);
    /* Too late to say that there are none. */
    receiver = requested(3);
    tell_sums(&first_chunk, 0, 0);
    tell(KVF_LETTER_SUMS, KVF_UNSUPPORTED, NULL);
    ends(receiver, KVF_PROTOCOL, "a body of 0 bytes");
    hears(KVF_LETTER_ABORT, NULL, 0);
    kvf_bytes_free(&body);
}

/* Where it contradicts itself its notifications prove nothing. */
static void notifications_that_contradict_end_their_room(void **state)
{
    (void)state;
    static const struct {
        uint32_t chunks[2];
        bool last[2];
        const char *text;
    } bad[] = {{{0, 1}, {true, false}, "chunk 1 marked not last, after chunk 0 was marked last"},
               {{0, 1}, {true, true}, "chunk 1 marked last, after chunk 0 was marked last"},
               {{1, 0}, {false, true}, "marked chunk 0 last, but chunk 1 had arrived"},
               {{0, 0}, {false, true}, "sent chunk 0 twice, the second time marked last"},
               {{0, 0}, {true, false}, "chunk 0 marked not last, after chunk 0 was marked last"},
               {{0, PAGES}, {false, false}, "a room of 6 pages has at most 6 chunks"}};
    start_usual();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvf_receiver *receiver = requested(i);
        notify(KVF_NOTICE_AUX, 0, false);
        for (size_t n = 0; n < 2; n++)
            notify(KVF_NOTICE_CHUNK, bad[i].chunks[n], bad[i].last[n]);
        test_receiver_ends(&one.decode, receiver, KVF_PROTOCOL, bad[i].text);
        hears(KVF_LETTER_ABORT, NULL, 0);
        assert_int_equal(kvf_receiver_safety(receiver), KVF_PAGES_IN_USE);
        ends(receiver, KVF_PROTOCOL, NULL);
    }
    /* Sums and notifications that don't agree. */
    kvf_receiver *receiver = requested(100);
    tell_sums(&first_chunk, 0, 0);
    notify(KVF_NOTICE_CHUNK, 0, true);
    ends(receiver, KVF_PROTOCOL, "chunk 0 is the last by its notification alone");
    hears(KVF_LETTER_ABORT, NULL, 0);
}

/* ---- Pages --------------------------------------------------------------------------------------------- */

static void tell_page_sums(const kvf_page_sums *head, uint64_t wrong)
{
    kvf_bytes body = {0};
    kvf_page_sums_begin(head, &body);
    for (uint32_t i = 0; i < head->page_count; i++)
        kvf_bytes_append_u64(&body,
                             sum_of_pages(head->buffer % BUFFERS,
                                          (first_chunk.page_count + head->first + i) % PAGES, 1) +
                                 (i + 1 == head->page_count ? wrong : 0));
    tell(KVF_LETTER_PAGE_SUMS, KVF_OK, &body);
    kvf_bytes_free(&body);
}

/* A room whose last chunk differs in buffer 1, as its prefill says. */
static kvf_receiver *in_question(uint64_t room)
{
    kvf_receiver *receiver = requested(room);
    tell_sums(&first_chunk, 0, 0);
    tell_sums(&last_chunk, 2, 5);
    notify(KVF_NOTICE_CHUNK, 0, false);
    notify(KVF_NOTICE_CHUNK, 1, true);
    notify(KVF_NOTICE_AUX, 0, false);
    hears_verdict(0);
    hears_question(1, 1, 0);
    return receiver;
}

static void pages_are_asked_for_piece_by_piece(void **state)
{
    (void)state;
    start_usual();
    kvf_receiver *receiver = in_question(1);
    tell_page_sums(&(kvf_page_sums){.chunk = 1, .buffer = 1, .first = 0, .page_count = 1}, 0);
    hears_question(1, 1, 1);
    tell_page_sums(&(kvf_page_sums){.chunk = 1, .buffer = 1, .first = 1, .page_count = 2}, 9);
    hears(KVF_LETTER_ABORT, NULL, 0);
    char expected[128];
    uint64_t own = sum_of_pages(1, 4, 1);
    (void)snprintf(expected, sizeof expected,
                   "buffer 1, page 0 (number 4 of the room, from 0; in chunk 1): sum 0x%016llx at "
                   "the source, 0x%016llx here",
                   (unsigned long long)(own + 9), (unsigned long long)own);
    test_receiver_ends(&one.decode, receiver, KVF_CORRUPT, expected);
    /* All notifications had come: nothing is written any more. */
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_COMPLETED);
    kvf_receiver_close(receiver);
}

static void pages_that_are_equal_after_all_are_told(void **state)
{
    (void)state;
    start_usual();
    kvf_receiver *receiver = in_question(1);
    tell_page_sums(&(kvf_page_sums){.chunk = 1, .buffer = 1, .first = 0, .page_count = 4}, 0);
    hears(KVF_LETTER_ABORT, NULL, 0);
    ends(receiver, KVF_CORRUPT, "buffer 1, chunk 1: sum 0x");
}

static void answers_nobody_asked_for_end_their_room(void **state)
{
    (void)state;
    static const kvf_page_sums bad[] = {{.chunk = 0, .buffer = 1, .first = 0, .page_count = 1},
                                        {.chunk = 1, .buffer = 0, .first = 0, .page_count = 1},
                                        {.chunk = 1, .buffer = 1, .first = 1, .page_count = 1},
                                        {.chunk = 1, .buffer = 1, .first = 0, .page_count = 5}};
    start_usual();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvf_receiver *receiver = in_question(i);
        tell_page_sums(&bad[i], 0);
        ends(receiver, KVF_PROTOCOL, "not asked for");
        hears(KVF_LETTER_ABORT, NULL, 0);
    }
    kvf_receiver *receiver = requested(100);
    tell_page_sums(&bad[3], 0);
    ends(receiver, KVF_PROTOCOL, "not asked for");
    hears(KVF_LETTER_ABORT, NULL, 0);
}

/* ---- Limits and silence -------------------------------------------------------------------------------- */

static void sums_that_run_ahead_end_their_room(void **state)
{
    (void)state;
    enum { SUMS = 8 * MANY_BUFFERS };
    const test_shape shape = {.buffers = MANY_BUFFERS, .pages = MANY_PAGES, .item_length = 64};
    static uint32_t many[MANY_PAGES];
    kvf_bytes body = {0};
    for (uint32_t i = 0; i < MANY_PAGES; i++)
        many[i] = i;
    start(&shape, NULL, decode_settings);
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, many, MANY_PAGES, 0), KVF_OK);
    raw_prefill_requested(&one.raw, 1);
    uint32_t fitting = (uint32_t)(KVF_SUMS_HELD_MAX / SUMS);
    assert_true(fitting + 1 < MANY_PAGES);
    for (uint32_t chunk = 0; chunk <= fitting; chunk++) {
        kvf_bytes_clear(&body);
        kvf_chunk_sums_begin(
            &(kvf_chunk_sums){.chunk = chunk, .page_count = 1, .buffer_count = MANY_BUFFERS},
            &body);
        for (uint32_t i = 0; i < MANY_BUFFERS; i++)
            kvf_bytes_append_u64(&body, i);
        if (chunk == fitting)
            assert_int_not_equal(kvf_receiver_poll(receiver), KVF_FAILED);
        tell(KVF_LETTER_SUMS, KVF_OK, &body);
    }
    ends(receiver, KVF_PROTOCOL, "run ahead of the verdicts by more than 16777216 bytes");
    kvf_bytes_free(&body);
}

/* The room that needs too much ends, not the one that was there before; and what it held is free again. */
static void sums_of_all_rooms_have_a_limit(void **state)
{
    (void)state;
    enum { FITTING = 40, TOO_MANY = 100, FIRST_PAGE = 10 };
    static const char *const narrow[] = {"verify",
                                         "required",
                                         "peer_extensions",
                                         "assume",
                                         "max_sums_bytes",
                                         "4KiB",
                                         "waiting_timeout",
                                         "20s",
                                         NULL};
    uint32_t many[TOO_MANY];
    test_shape shape = test_small_shape;
    shape.pages = FIRST_PAGE + TOO_MANY;
    for (uint32_t i = 0; i < TOO_MANY; i++)
        many[i] = FIRST_PAGE + i;
    start(&shape, NULL, narrow);
    kvf_receiver *before = requested(1);
    uint64_t epoch = one.raw.epoch;
    tell_sums(&first_chunk, 0, 0);
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 2);
    assert_int_equal(kvf_receiver_expect(receiver, many, TOO_MANY, 0), KVF_OK);
    raw_prefill_requested(&one.raw, 2);
    for (uint32_t chunk = 0; chunk + 1 < TOO_MANY; chunk++) {
        if (chunk == FITTING) {
            test_wait_statistic(&one.decode, messages_received, 1 + FITTING);
            assert_int_not_equal(kvf_receiver_poll(receiver), KVF_FAILED);
        }
        tell_sums(&(kvf_chunk_sums){.chunk = chunk, .page_count = 1, .buffer_count = BUFFERS}, 0,
                  0);
    }
    hears(KVF_LETTER_ABORT, NULL, 0);
    ends(receiver, KVF_LIMIT, "setting max_sums_bytes");
    one.raw.room = 1;
    one.raw.epoch = epoch;
    tell_sums(&last_chunk, 2, 0);
    notify(KVF_NOTICE_CHUNK, 0, false);
    notify(KVF_NOTICE_CHUNK, 1, true);
    notify(KVF_NOTICE_AUX, 0, false);
    hears_verdict(0);
    hears_verdict(1);
    ends(before, KVF_OK, NULL);
}

static void a_prefill_without_sums_is_named(void **state)
{
    (void)state;
    static const char *const hasty[] = {
        "verify", "on", "peer_extensions", "assume", "waiting_timeout", "1s", NULL};
    start(NULL, NULL, hasty);
    one.hasty = true;
    kvf_receiver *receiver = requested(1);
    notify(KVF_NOTICE_CHUNK, 0, true);
    notify(KVF_NOTICE_AUX, 0, false);
    ends(receiver, KVF_TIMEOUT, "chunk 0 has arrived, but its sums");
    hears(KVF_LETTER_ABORT, NULL, 0);
    receiver = in_question(2);
    ends(receiver, KVF_TIMEOUT, "chunk 1 has arrived, but the page sums");
    hears(KVF_LETTER_ABORT, NULL, 0);
}

/* Held notifications prove that nothing is written any more, also of a room that was given up meanwhile. */
static void an_abort_while_sums_are_missing_is_proven(void **state)
{
    (void)state;
    start_usual();
    kvf_receiver *receiver = requested(1);
    notify(KVF_NOTICE_CHUNK, 0, true);
    notify(KVF_NOTICE_AUX, 0, false);
    test_wait_statistic(&one.decode, notifications_received, 2);
    kvf_receiver_abort(receiver);
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_COMPLETED);
    hears(KVF_LETTER_ABORT, NULL, 0);
    kvf_receiver_close(receiver);
    /* One that comes after the abort counts as well. */
    receiver = requested(2);
    notify(KVF_NOTICE_CHUNK, 0, true);
    kvf_receiver_abort(receiver);
    hears(KVF_LETTER_ABORT, NULL, 0);
    assert_int_equal(kvf_receiver_safety(receiver), KVF_PAGES_IN_USE);
    notify(KVF_NOTICE_AUX, 0, false);
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_COMPLETED);
    kvf_receiver_close(receiver);
}

/* Of a room that isn't verified, or of no room at all. */
static void stray_letters_are_dropped(void **state)
{
    (void)state;
    static const char *const off[] = {"peer_extensions", "assume", NULL};
    start(NULL, NULL, off);
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, SLOT), KVF_OK);
    raw_prefill_requested(&one.raw, 1);
    assert_true((one.raw.extensions & KVF_EXTENSION_VERIFY) == 0);
    tell_sums(&first_chunk, 0, 0);
    tell_page_sums(&(kvf_page_sums){.page_count = 1}, 0);
    tell(KVF_LETTER_VERDICT, KVF_OK, NULL);
    one.raw.epoch++;
    tell_sums(&first_chunk, 0, 0);
    one.raw.epoch--;
    test_wait_statistic(&one.decode, messages_dropped, 4);
    notify(KVF_NOTICE_CHUNK, 0, true);
    notify(KVF_NOTICE_AUX, 0, false);
    ends(receiver, KVF_OK, NULL);
}

/* ---- A bare decode -------------------------------------------------------------------------------------- */

static const uint64_t wide_pages[PAGES] = {3, 4, 9, 1, 0, 7};

/* It hears letters where the sound decode does, who drops them. */
static kvf_request verified_request(uint64_t room, uint64_t epoch, uint16_t port)
{
    kvf_request request = raw_decode_request(&one.raw_decode, room, wide_pages, PAGES);
    request.port = port;
    request.extended = true;
    request.extensions =
        KVF_EXTENSION_ALL_AUX | KVF_EXTENSION_NO_DUMMY | KVF_EXTENSION_EPOCH | KVF_EXTENSION_VERIFY;
    request.epoch = epoch;
    return request;
}

static kvf_sender *verified_sender(uint64_t room, uint64_t epoch, uint16_t port)
{
    kvf_request request = verified_request(room, epoch, port);
    kvf_sender *sender = test_sender_open(&one.prefill, room);
    assert_int_equal(kvf_sender_expect(sender, PAGES, SLOT), KVF_OK);
    raw_decode_send(&one.raw_decode, &request);
    return sender;
}

static void start_bare_decode(const char *const *prefill)
{
    start(NULL, prefill, NULL);
    test_worker_fill(&one.prefill);
    raw_decode_open(&one.raw_decode, "a-bare-decode", kvf_manager_port(one.prefill.manager));
}

static void say(kvf_letter_kind kind, uint64_t room, uint64_t epoch, const uint32_t *numbers,
                size_t count)
{
    uint8_t body[32];
    for (size_t i = 0; i < count; i++)
        kvf_write_u32(body + 4 * i, numbers[i]);
    kvf_letter letter = {.kind = kind,
                         .room = room,
                         .epoch = epoch,
                         .agent_name = kvf_slice_of(one.raw_decode.agent_name),
                         .body = {body, 4 * count}};
    raw_letter(&one.raw_decode.push, &letter);
}

static void verdict(uint64_t room, uint64_t epoch, uint32_t chunk)
{
    say(KVF_LETTER_VERDICT, room, epoch, &chunk, 1);
}

/* Each chunk counts once, in order, and only once it was told of. */
static void verdicts_are_counted_against_what_was_sent(void **state)
{
    (void)state;
    start_bare_decode(NULL);
    kvf_sender *sender = verified_sender(7, 5, kvf_manager_port(one.decode.manager));
    verdict(7, 5, 0); /* nothing was sent yet */
    test_wait_statistic(&one.prefill, messages_dropped, 1);
    assert_int_equal(kvf_sender_send(sender, pages, 2), KVF_OK);
    assert_true(raw_decode_notified(&one.raw_decode, 1));
    verdict(7, 5, 1);
    verdict(7, 5, UINT32_MAX);
    verdict(7, 6, 0); /* of another request */
    verdict(8, 5, 0);
    say(KVF_LETTER_VERDICT, 7, 5, NULL, 0);
    say(KVF_LETTER_SUMS, 7, 5, NULL, 0);
    verdict(7, 5, 0);
    verdict(7, 5, 0);
    test_wait_statistic(&one.prefill, messages_dropped, 8);
    assert_int_equal(kvf_sender_send(sender, pages + 2, 4), KVF_OK);
    assert_true(raw_decode_notified(&one.raw_decode, 3));
    test_room_works(&one.prefill, &one.decode, one.sane.address, one.next_room++, 2);
    assert_int_equal(kvf_sender_poll(sender), KVF_TRANSFERRING);
    verdict(7, 5, 1);
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    assert_int_equal(test_statistics(&one.prefill).messages_dropped, 8);
    kvf_sender_close(sender);
}

/* Only about the chunk whose verdict is due, and pages that it has. */
static void questions_that_cannot_be_are_dropped(void **state)
{
    (void)state;
    static const uint32_t bad[][3] = {{1, 0, 0}, {0, 2, 0},          {0, UINT32_MAX, 0},
                                      {0, 0, 2}, {0, 0, UINT32_MAX}, {UINT32_MAX, 0, 0}};
    enum { BAD = sizeof bad / sizeof bad[0] };
    start_bare_decode(NULL);
    kvf_sender *sender = verified_sender(7, 5, kvf_manager_port(one.decode.manager));
    say(KVF_LETTER_WANT_PAGES, 7, 5, bad[0], 3);
    test_wait_statistic(&one.prefill, messages_dropped, 1);
    assert_int_equal(kvf_sender_send(sender, pages, 2), KVF_OK);
    assert_true(raw_decode_notified(&one.raw_decode, 1));
    for (size_t i = 0; i < BAD; i++)
        say(KVF_LETTER_WANT_PAGES, 7, 5, bad[i], 3);
    say(KVF_LETTER_WANT_PAGES, 7, 5, bad[0], 2);
    verdict(7, 5, 0);
    say(KVF_LETTER_WANT_PAGES, 7, 5, (const uint32_t[]){0, 0, 0}, 3);
    test_wait_statistic(&one.prefill, messages_dropped, BAD + 3);
    assert_int_equal(kvf_sender_send(sender, pages + 2, 4), KVF_OK);
    assert_true(raw_decode_notified(&one.raw_decode, 3));
    say(KVF_LETTER_WANT_PAGES, 7, 5, (const uint32_t[]){1, 1, 3}, 3);
    verdict(7, 5, 1);
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
}

/* The flag alone, without what it needs, is no request for sums. */
static void a_flag_that_cannot_be_is_ignored(void **state)
{
    (void)state;
    start_bare_decode(NULL);
    kvf_request request = verified_request(7, 0, 1);
    request.extensions = KVF_EXTENSION_ALL_AUX | KVF_EXTENSION_NO_DUMMY | KVF_EXTENSION_VERIFY;
    kvf_sender *sender = test_sender_open(&one.prefill, 7);
    assert_int_equal(kvf_sender_expect(sender, PAGES, SLOT), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, pages, PAGES), KVF_OK);
    raw_decode_send(&one.raw_decode, &request);
    assert_true(raw_decode_notified(&one.raw_decode, 2));
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
}

static void a_decode_that_gives_no_verdict_is_named(void **state)
{
    (void)state;
    static const char *const hasty[] = {"waiting_timeout", "1s", NULL};
    start_bare_decode(hasty);
    one.hasty = true;
    kvf_sender *sender = verified_sender(7, 5, kvf_manager_port(one.decode.manager));
    assert_int_equal(kvf_sender_send(sender, pages, 2), KVF_OK);
    test_sender_ends(&one.prefill, sender, KVF_TIMEOUT, "confirmed only 0 within waiting_timeout");
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    kvf_sender_close(sender);
}

/* The same room as above, seen from its prefill: it waits for verdicts with as much as it may be ahead, also when it makes
 * its sums faster than it is connected. */
static void a_prefill_does_not_run_ahead(void **state)
{
    (void)state;
    const test_shape shape = {.buffers = MANY_BUFFERS, .pages = MANY_PAGES, .item_length = 64};
    const uint32_t ahead = (uint32_t)(KVF_SUMS_HELD_MAX / 2 / kvf_chunk_sums_size(MANY_BUFFERS, 0));
    static uint64_t wide[MANY_PAGES];
    start(&shape, NULL, NULL);
    raw_decode_open_shaped(&one.raw_decode, "a-bare-decode", kvf_manager_port(one.prefill.manager),
                           &shape);
    for (uint32_t i = 0; i < MANY_PAGES; i++)
        wide[i] = i;
    kvf_request request = verified_request(7, 5, kvf_manager_port(one.decode.manager));
    request.pages = (kvf_slice){(const uint8_t *)wide, sizeof wide};
    kvf_sender *sender = test_sender_open(&one.prefill, 7);
    assert_int_equal(kvf_sender_expect(sender, MANY_PAGES, 0), KVF_OK);
    for (uint32_t i = 0; i < ahead + 100; i++)
        assert_int_equal(kvf_sender_send(sender, &i, 1), KVF_OK);
    raw_decode_send(&one.raw_decode, &request);
    assert_true(raw_decode_notified(&one.raw_decode, ahead));
    verdict(7, 5, ahead);
    test_wait_statistic(&one.prefill, messages_dropped, 1);
    assert_int_equal(test_statistics(&one.prefill).pages_sent, ahead);
    for (uint32_t i = 0; i < 3; i++)
        verdict(7, 5, i);
    assert_true(raw_decode_notified(&one.raw_decode, ahead + 3));
    test_wait_statistic(&one.prefill, pages_sent, ahead + 3);
    verdict(7, 5, ahead + 3);
    test_wait_statistic(&one.prefill, messages_dropped, 2);
    assert_int_equal(test_statistics(&one.prefill).pages_sent, ahead + 3);
    kvf_sender_abort(sender);
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    kvf_sender_close(sender);
}

/* A port that is taken, and refuses connections. */
static int deaf_socket(uint16_t *port)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    int deaf = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(deaf, (struct sockaddr *)&where, size), 0);
    assert_int_equal(getsockname(deaf, (struct sockaddr *)&where, &size), 0);
    *port = ntohs(where.sin_port);
    return deaf;
}

static void a_decode_that_cannot_be_told_fails_its_room(void **state)
{
    (void)state;
    uint16_t port;
    int deaf = deaf_socket(&port);
    start_bare_decode(NULL);
    kvf_sender *sender = verified_sender(7, 5, port);
    assert_int_equal(kvf_sender_send(sender, pages, 2), KVF_OK);
    test_sender_ends(&one.prefill, sender, KVF_PEER_GONE, "is lost");
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    kvf_sender_close(sender);
    sender = verified_sender(8, 6, 0); /* says that it listens nowhere */
    assert_int_equal(kvf_sender_send(sender, pages, 2), KVF_OK);
    test_sender_ends(&one.prefill, sender, KVF_LIMIT, "listens nowhere");
    kvf_sender_close(sender);
    (void)close(deaf);
}

#define TEST(name) cmocka_unit_test_teardown(name, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(any_order_of_letters_and_notifications_is_right),
        TEST(nothing_counts_twice_or_from_others),
        TEST(sums_that_cannot_be_end_their_room),
        TEST(sums_that_cannot_be_read_end_their_room),
        TEST(notifications_that_contradict_end_their_room),
        TEST(pages_are_asked_for_piece_by_piece),
        TEST(pages_that_are_equal_after_all_are_told),
        TEST(answers_nobody_asked_for_end_their_room),
        TEST(sums_that_run_ahead_end_their_room),
        TEST(sums_of_all_rooms_have_a_limit),
        TEST(a_prefill_without_sums_is_named),
        TEST(an_abort_while_sums_are_missing_is_proven),
        TEST(stray_letters_are_dropped),
        TEST(verdicts_are_counted_against_what_was_sent),
        TEST(questions_that_cannot_be_are_dropped),
        TEST(a_flag_that_cannot_be_is_ignored),
        TEST(a_decode_that_gives_no_verdict_is_named),
        TEST(a_prefill_does_not_run_ahead),
        TEST(a_decode_that_cannot_be_told_fails_its_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
