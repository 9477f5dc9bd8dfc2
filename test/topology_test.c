/* Several prefill and decode ranks in one process: MLA with fewer and with more decode ranks (dummies, several
 * that report to one), dp groups named and reckoned, sizes that don't fit. */
#include "support/raw.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS_MAX = 4, PAGES = 3 };

typedef struct scene {
    test_bootstrap bootstrap;
    test_worker prefill[RANKS_MAX];
    test_worker decode[RANKS_MAX];
    uint32_t prefill_count;
    uint32_t decode_count;
} scene;

typedef struct sizes {
    uint32_t tp;
    uint32_t dp;
} sizes;

static const uint32_t source[PAGES] = {4, 5, 9};
static const uint32_t destination[PAGES] = {20, 21, 2};

/* Every rank has bytes of its own, so that it shows whose arrived. */
static void fill(test_worker *worker, uint32_t rank)
{
    test_worker_fill(worker);
    for (size_t i = 0; worker->role == KVF_PREFILL && i < worker->memory_length; i++)
        worker->memory[i] = (unsigned char)(worker->memory[i] + 17 * rank + 1);
}

static scene *open_scene(sizes prefill, sizes decode, uint32_t mla, const char *const *settings)
{
    scene *one = calloc(1, sizeof *one);
    test_shape shape = test_small_shape;
    assert_non_null(one);
    test_bootstrap_open(&one->bootstrap);
    shape.mla = mla;
    one->prefill_count = shape.tp_size = prefill.tp;
    shape.dp_size = prefill.dp;
    for (shape.rank = 0; shape.rank < prefill.tp; shape.rank++) {
        test_worker_open(&one->prefill[shape.rank], KVF_PREFILL, &shape, one->bootstrap.address,
                         settings);
        fill(&one->prefill[shape.rank], shape.rank);
    }
    one->decode_count = shape.tp_size = decode.tp;
    shape.dp_size = decode.dp;
    for (shape.rank = 0; shape.rank < decode.tp; shape.rank++) {
        test_worker_open(&one->decode[shape.rank], KVF_DECODE, &shape, NULL, settings);
        fill(&one->decode[shape.rank], shape.rank);
    }
    return one;
}

static void close_scene(scene *one)
{
    for (uint32_t i = 0; i < one->decode_count; i++)
        test_worker_close(&one->decode[i]);
    for (uint32_t i = 0; i < one->prefill_count; i++)
        test_worker_close(&one->prefill[i]);
    test_bootstrap_close(&one->bootstrap);
    free(one);
}

static kvf_receiver *expect(scene *one, uint32_t rank, uint64_t room, int64_t dp_rank)
{
    kvf_room_options options = {.size = sizeof options, .dp_rank = dp_rank};
    kvf_receiver *receiver;
    if (kvf_receiver_open(one->decode[rank].manager, one->bootstrap.address, room, &options,
                          &receiver) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    /* A room may have failed already, where the sizes were known. */
    if (kvf_receiver_expect(receiver, destination, PAGES, 3) != KVF_OK &&
        kvf_receiver_poll(receiver) != KVF_FAILED)
        fail_msg("%s", kvf_error_text());
    return receiver;
}

/* In two chunks. */
static kvf_sender *send(scene *one, uint32_t rank, uint64_t room)
{
    kvf_sender *sender = test_sender_open(&one->prefill[rank], room);
    if (kvf_sender_expect(sender, PAGES, 6) != KVF_OK ||
        kvf_sender_send(sender, source, 1) != KVF_OK ||
        kvf_sender_send(sender, source + 1, PAGES - 1) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    return sender;
}

static void came_from(const scene *one, uint32_t decode, uint32_t prefill)
{
    const test_worker *from = &one->prefill[prefill];
    const test_worker *to = &one->decode[decode];
    for (uint32_t i = 0; i < PAGES; i++)
        if (!test_page_arrived(from, source[i], to, destination[i]))
            fail_msg("page %u of decode rank %u isn't prefill rank %u's", destination[i], decode,
                     prefill);
    for (uint32_t i = 0; i < 2; i++)
        assert_memory_equal(test_slot(from, i, 6), test_slot(to, i, 3), 64);
}

static void sent_nothing(const test_worker *prefill)
{
    kvf_statistics statistics = test_statistics(prefill);
    assert_int_equal(statistics.messages_received, 1);
    assert_int_equal(statistics.messages_dropped, 0);
    assert_int_equal(statistics.rooms_succeeded, 1);
    assert_int_equal(statistics.writes_posted, 0);
    assert_int_equal(statistics.bytes_written, 0);
    assert_int_equal(statistics.pages_sent, 0);
}

/* B25: all four finish, two of them without a byte. */
static void fewer_decode_ranks_send_dummies(void **state)
{
    (void)state;
    scene *one = open_scene((sizes){4, 1}, (sizes){2, 1}, 1, NULL);
    kvf_sender *senders[4];
    kvf_receiver *receivers[2];
    for (uint32_t i = 0; i < 4; i++)
        senders[i] = send(one, i, 70);
    for (uint32_t i = 0; i < 2; i++)
        receivers[i] = expect(one, i, 70, -1);
    for (uint32_t i = 0; i < 2; i++)
        test_receiver_ends(&one->decode[i], receivers[i], KVF_OK, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        test_sender_ends(&one->prefill[i], senders[i], KVF_OK, NULL);
        assert_int_equal(kvf_sender_safety(senders[i]), KVF_PAGES_SAFE);
    }
    came_from(one, 0, 0);
    came_from(one, 1, 2);
    sent_nothing(&one->prefill[1]);
    sent_nothing(&one->prefill[3]);
    for (uint32_t i = 0; i < 2; i++) {
        kvf_statistics statistics = test_statistics(&one->decode[i]);
        assert_int_equal(statistics.notifications_received, 3);
        assert_int_equal(statistics.notifications_dropped, 0);
        assert_int_equal(statistics.peers, 2);
        kvf_receiver_close(receivers[i]);
    }
    for (uint32_t i = 0; i < 4; i++)
        kvf_sender_close(senders[i]);
    close_scene(one);
}

/* What its event says when the room succeeds. */
static uint64_t bytes_at_the_end(const test_worker *worker, uint64_t room)
{
    kvf_event event = {.room = 0};
    while (event.room != room || event.state != KVF_SUCCESS) {
        assert_int_equal(kvf_manager_wait(worker->manager, &event, 1, 30000), 1);
        assert_int_not_equal(event.state, KVF_FAILED);
    }
    return event.bytes;
}

/* Both report to the one prefill rank, which waits for both and gives each everything: twice the bytes, of which
 * each receiver counts its own (B111). */
static void more_decode_ranks_report_to_one(void **state)
{
    (void)state;
    scene *one = open_scene((sizes){1, 1}, (sizes){2, 1}, 1, NULL);
    kvf_sender *sender = send(one, 0, 71);
    kvf_receiver *receivers[2];
    receivers[1] = expect(one, 1, 71, -1);
    test_wait_statistic(&one->prefill[0], messages_received, 1);
    assert_int_equal(kvf_sender_poll(sender), KVF_BOOTSTRAPPING);
    assert_true(test_page_untouched(&one->decode[1], destination[0]));
    receivers[0] = expect(one, 0, 71, -1);
    const test_shape *shape = &one->decode[0].shape;
    uint64_t bytes =
        PAGES * shape->buffers * shape->item_length + shape->aux * shape->aux_item_length;
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(bytes_at_the_end(&one->decode[i], 71) == bytes);
        came_from(one, i, 0);
        kvf_receiver_close(receivers[i]);
    }
    assert_true(bytes_at_the_end(&one->prefill[0], 71) == 2 * bytes);
    kvf_sender_close(sender);
    kvf_statistics statistics = test_statistics(&one->prefill[0]);
    assert_int_equal(statistics.pages_sent, 2 * PAGES);
    assert_int_equal(statistics.bytes_written, 2 * bytes);
    assert_int_equal(statistics.peers, 2);
    close_scene(one);
}

/* Both wait for a sender; it fails of the first one's request, and the second hears of it too. */
static void a_bad_request_that_was_held_fails_all_who_asked(void **state)
{
    (void)state;
    static const uint64_t outside[] = {4, 1000, 5};
    scene *one = open_scene((sizes){1, 1}, (sizes){2, 1}, 1, NULL);
    raw_decode raw;
    raw_decode_open(&raw, "raw-decode", kvf_manager_port(one->prefill[0].manager));
    kvf_request request = raw_decode_request(&raw, 73, outside, PAGES);
    request.required = 2;
    raw_decode_send(&raw, &request);
    test_wait_statistic(&one->prefill[0], requests_held, 1);
    kvf_receiver *receiver = expect(one, 1, 73, -1);
    test_wait_statistic(&one->prefill[0], requests_held, 2);
    kvf_sender *sender = test_sender_open(&one->prefill[0], 73);
    test_sender_ends(&one->prefill[0], sender, KVF_OUT_OF_RANGE, "page 1000");
    test_receiver_ends(&one->decode[1], receiver, KVF_PEER_FAILED, "page 1000");
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
    raw_decode_close(&raw);
    close_scene(one);
}

/* One of two destinations takes no bytes any more, as if it was stopped. The other gives its room up, and has its proof
 * although the sender itself isn't done. */
static void a_destination_that_hangs_keeps_no_pages_of_others(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "fault", "transfer_hang=2", "fence_timeout", "3s", "close_timeout", "20ms", NULL};
    scene *one = open_scene((sizes){1, 1}, (sizes){2, 1}, 1, settings);
    kvf_receiver *receivers[2];
    receivers[0] = expect(one, 0, 74, -1);
    test_wait_statistic(&one->prefill[0], messages_received, 1);
    receivers[1] = expect(one, 1, 74, -1);
    kvf_sender *sender = test_sender_open(&one->prefill[0], 74);
    assert_int_equal(kvf_sender_expect(sender, PAGES, 6), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, source, 1), KVF_OK); /* the first of two chunks */
    test_wait_statistic(&one->prefill[0], pages_sent, 1);
    kvf_receiver_abort(receivers[0]);
    assert_int_equal(kvf_receiver_wait(receivers[0], -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receivers[0]), KVF_PROOF_ACKNOWLEDGED);
    assert_int_equal(kvf_sender_poll(sender), KVF_FAILED);
    assert_int_equal(kvf_sender_safety(sender), KVF_PAGES_IN_USE);
    test_receiver_ends(&one->decode[1], receivers[1], KVF_PEER_FAILED, "gave the room up");
    for (uint32_t i = 0; i < 2; i++)
        kvf_receiver_close(receivers[i]);
    kvf_sender_close(sender);
    close_scene(one);
}

/* Four decode ranks, two prefill ranks: 0 and 1 report to 0, 2 and 3 to 1. */
static void several_decode_ranks_a_prefill_rank(void **state)
{
    (void)state;
    scene *one = open_scene((sizes){2, 1}, (sizes){4, 1}, 1, NULL);
    kvf_sender *senders[2] = {send(one, 0, 72), send(one, 1, 72)};
    kvf_receiver *receivers[4];
    for (uint32_t i = 0; i < 4; i++)
        receivers[i] = expect(one, i, 72, -1);
    for (uint32_t i = 0; i < 4; i++) {
        test_receiver_ends(&one->decode[i], receivers[i], KVF_OK, NULL);
        came_from(one, i, i / 2);
        kvf_receiver_close(receivers[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        test_sender_ends(&one->prefill[i], senders[i], KVF_OK, NULL);
        kvf_sender_close(senders[i]);
    }
    close_scene(one);
}

static void hand_over(scene *one, uint32_t decode, uint32_t prefill, uint64_t room, int64_t dp_rank)
{
    fill(&one->decode[decode], decode);
    kvf_receiver *receiver = expect(one, decode, room, dp_rank);
    kvf_sender *sender = send(one, prefill, room);
    test_receiver_ends(&one->decode[decode], receiver, KVF_OK, NULL);
    test_sender_ends(&one->prefill[prefill], sender, KVF_OK, NULL);
    came_from(one, decode, prefill);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

static void dp_groups_are_named_or_reckoned(void **state)
{
    (void)state;
    scene *one = open_scene((sizes){4, 2}, (sizes){2, 1}, 0, NULL);
    for (uint32_t rank = 0; rank < 2; rank++) {
        hand_over(one, rank, 2 + rank, 80, 1); /* named, against the room's number */
        hand_over(one, rank, rank, 81, 0);
        hand_over(one, rank, rank, 82, -1);
        hand_over(one, rank, 2 + rank, 83, -1);
        hand_over(one, rank, 2 + rank, (UINT64_C(1) << 63) - 1, -1);
    }
    close_scene(one);
}

/* With dp on the decode side a rank counts inside its own group. */
static void decode_ranks_count_in_their_group(void **state)
{
    (void)state;
    scene *one = open_scene((sizes){2, 2}, (sizes){2, 2}, 0, NULL);
    hand_over(one, 0, 0, 90, -1);
    hand_over(one, 1, 0, 92, -1);
    hand_over(one, 0, 1, 91, -1);
    hand_over(one, 1, 1, 94, 1);
    close_scene(one);
}

static void sizes_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    scene *one = open_scene((sizes){3, 1}, (sizes){2, 1}, 1, NULL);
    for (uint32_t i = 0; i < 3; i++)
        test_wait_statistic(&one->prefill[i], registered, 1);
    kvf_receiver *receiver = expect(one, 1, 95, -1);
    test_receiver_ends(&one->decode[1], receiver, KVF_MISMATCH, "one number must divide the other");
    kvf_receiver_close(receiver);
    close_scene(one);
}

/* A dummy's rank that isn't there is missed too: the others would wait for it for ever. */
static void a_missing_rank_is_named(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "bootstrap_timeout", "500ms", "retry_interval", "5ms", "bootstrap_address", "", NULL};
    scene *one = open_scene((sizes){2, 1}, (sizes){1, 1}, 1, settings);
    test_worker_close(&one->prefill[0]);
    test_shape shape = test_small_shape;
    shape.tp_size = 2;
    shape.mla = 1;
    test_worker_open(&one->prefill[0], KVF_PREFILL, &shape, one->bootstrap.address, NULL);
    test_wait_statistic(&one->prefill[0], registered, 1);
    kvf_receiver *receiver = expect(one, 0, 96, -1);
    test_receiver_ends(&one->decode[0], receiver, KVF_TIMEOUT, "rank 1");
    kvf_receiver_close(receiver);
    close_scene(one);
}

static void open_prefill_again(scene *one, uint32_t rank, const char *const *settings)
{
    test_shape shape = one->prefill[rank].shape;
    test_worker_open(&one->prefill[rank], KVF_PREFILL, &shape, one->bootstrap.address, settings);
    fill(&one->prefill[rank], rank);
}

/* B03, B04: the server tells the sizes when one of two ranks is there. The other is asked for until it is there too, by
 * the room that waits as well as by the one after a room that gave up. */
static void a_rank_that_comes_later_is_found(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "bootstrap_timeout", "2s", "retry_interval", "5ms", "bootstrap_address", "", NULL};
    scene *one = open_scene((sizes){2, 1}, (sizes){1, 1}, 1, settings);
    kvf_sender *senders[2];
    for (uint32_t i = 0; i < 2; i++)
        test_worker_close(&one->prefill[i]); /* it has not registered */
    open_prefill_again(one, 0, NULL);
    test_wait_statistic(&one->prefill[0], registered, 1);
    kvf_receiver *receiver = expect(one, 0, 97, -1);
    test_receiver_ends(&one->decode[0], receiver, KVF_TIMEOUT, "rank 1");
    kvf_receiver_close(receiver);
    assert_int_equal(test_statistics(&one->prefill[0]).messages_received, 0);
    /* What wasn't found is forgotten. */
    uint64_t deadline = kvf_clock_now() + 30 * KVF_SECOND;
    while (test_statistics(&one->decode[0]).peers != 1 && kvf_clock_now() < deadline)
        continue;
    assert_int_equal(test_statistics(&one->decode[0]).peers, 1);
    receiver = expect(one, 0, 98, -1);
    test_wait_statistic(&one->decode[0], peers, 2); /* it is being asked for */
    open_prefill_again(one, 1, NULL);
    for (uint32_t i = 0; i < 2; i++)
        senders[i] = send(one, i, 98);
    test_receiver_ends(&one->decode[0], receiver, KVF_OK, NULL);
    came_from(one, 0, 0);
    kvf_receiver_close(receiver);
    for (uint32_t i = 0; i < 2; i++) {
        test_sender_ends(&one->prefill[i], senders[i], KVF_OK, NULL);
        kvf_sender_close(senders[i]);
    }
    sent_nothing(&one->prefill[1]);
    close_scene(one);
}

/* B18: a room that is told its dp rank asks where that rank is now, like any other. */
static void a_named_dp_rank_is_asked_for_again_after_a_loss(void **state)
{
    (void)state;
    scene *one = open_scene((sizes){2, 2}, (sizes){1, 1}, 0, NULL);
    hand_over(one, 0, 1, 84, 1);
    uint64_t lost = test_statistics(&one->decode[0]).peers_lost;
    test_worker_close(&one->prefill[1]);
    test_wait_statistic(&one->decode[0], peers_lost, lost + 1);
    fill(&one->decode[0], 0);
    kvf_receiver *receiver = expect(one, 0, 86, 1); /* the other group by its number */
    open_prefill_again(one, 1, NULL);
    kvf_sender *sender = send(one, 1, 86);
    test_receiver_ends(&one->decode[0], receiver, KVF_OK, NULL);
    came_from(one, 0, 1);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
    hand_over(one, 0, 1, 88, 1);
    close_scene(one);
}

/* B51: each decode rank's room has its own end: the one whose writer failed says why, and doesn't wait. */
static void one_rank_of_two_fails_and_says_why(void **state)
{
    (void)state;
    static const char *const failing[] = {"fault", "transfer_fail=1", NULL};
    scene *one = open_scene((sizes){2, 1}, (sizes){2, 1}, 0, NULL);
    kvf_sender *senders[2];
    kvf_receiver *receivers[2];
    test_worker_close(&one->prefill[1]);
    open_prefill_again(one, 1, failing);
    for (uint32_t i = 0; i < 2; i++) {
        receivers[i] = expect(one, i, 73, -1);
        senders[i] = send(one, i, 73);
    }
    test_receiver_ends(&one->decode[1], receivers[1], KVF_PEER_FAILED,
                       "injected: the transfer failed");
    test_receiver_ends(&one->decode[0], receivers[0], KVF_OK, NULL);
    came_from(one, 0, 0);
    test_sender_ends(&one->prefill[0], senders[0], KVF_OK, NULL);
    test_sender_ends(&one->prefill[1], senders[1], KVF_TRANSPORT, "injected: the transfer failed");
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(kvf_receiver_wait(receivers[i], -1), KVF_PAGES_SAFE);
        kvf_receiver_close(receivers[i]);
        kvf_sender_close(senders[i]);
        hand_over(one, i, i, 73, -1);
    }
    close_scene(one);
}

static int use_loop(void **state)
{
    (void)state;
    test_use_engine("loop");
    return 0;
}

static int use_shm(void **state)
{
    (void)state;
    test_use_engine("shm");
    return 0;
}

#define ON_BOTH(name) cmocka_unit_test_setup(name, use_loop), cmocka_unit_test_setup(name, use_shm)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(fewer_decode_ranks_send_dummies),
        ON_BOTH(more_decode_ranks_report_to_one),
        ON_BOTH(several_decode_ranks_a_prefill_rank),
        ON_BOTH(a_bad_request_that_was_held_fails_all_who_asked),
        ON_BOTH(a_destination_that_hangs_keeps_no_pages_of_others),
        ON_BOTH(dp_groups_are_named_or_reckoned),
        cmocka_unit_test_setup(decode_ranks_count_in_their_group, use_loop),
        cmocka_unit_test_setup(sizes_that_do_not_divide_are_refused, use_loop),
        cmocka_unit_test_setup(a_missing_rank_is_named, use_loop),
        cmocka_unit_test_setup(a_rank_that_comes_later_is_found, use_loop),
        ON_BOTH(a_named_dp_rank_is_asked_for_again_after_a_loss),
        ON_BOTH(one_rank_of_two_fails_and_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
