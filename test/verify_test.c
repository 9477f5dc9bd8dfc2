/* Verification between real managers: what is found, what it says, when it can't be had, and how rooms end that are
 * given up in the middle of it. */
#include "support/worker.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 9 };

typedef struct scene {
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode;
} scene;

static scene one;

/* No two are neighbours on both sides, some on one. */
static const uint32_t source[PAGES] = {5, 6, 7, 1, 30, 29, 12, 13, 2};
static const uint32_t destination[PAGES] = {20, 19, 18, 2, 3, 4, 31, 0, 9};

static const char *const on[] = {"verify", "on", NULL};
static const char *const required[] = {"verify", "required", NULL};
static const char *const stock[] = {"extensions", "off", NULL};

static void start(const char *engine, const test_shape *shape, const char *const *prefill,
                  const char *const *decode)
{
    test_use_engine(engine);
    test_bootstrap_open(&one.bootstrap);
    test_worker_open(&one.prefill, KVF_PREFILL, shape, one.bootstrap.address, prefill);
    test_worker_open(&one.decode, KVF_DECODE, shape, NULL, decode);
}

static void start_small(const char *engine, const char *const *prefill, const char *const *decode)
{
    start(engine, NULL, prefill, decode);
    test_worker_fill(&one.prefill);
    test_worker_fill(&one.decode);
}

static int stop(void **state)
{
    (void)state;
    test_worker_close(&one.decode);
    test_worker_close(&one.prefill);
    test_bootstrap_close(&one.bootstrap);
    memset(&one, 0, sizeof one);
    return 0;
}

static kvf_receiver *ask_for(uint64_t room, kvf_verify verify)
{
    kvf_room_options options = {.size = sizeof options, .dp_rank = -1, .verify = verify};
    kvf_receiver *receiver;
    if (kvf_receiver_open(one.decode.manager, one.bootstrap.address, room, &options, &receiver) !=
        KVF_OK)
        fail_msg("%s", kvf_error_text());
    assert_int_equal(kvf_receiver_expect(receiver, destination, PAGES, 3), KVF_OK);
    return receiver;
}

static kvf_sender *give(uint64_t room, uint32_t chunks)
{
    kvf_sender *sender = test_sender_open(&one.prefill, room);
    assert_int_equal(kvf_sender_expect(sender, PAGES, 6), KVF_OK);
    for (uint32_t i = 0; i < chunks; i++) {
        uint32_t first = PAGES * i / chunks;
        uint32_t end = PAGES * (i + 1) / chunks;
        assert_int_equal(kvf_sender_send(sender, source + first, end - first), KVF_OK);
    }
    return sender;
}

/* The room's last event says whether it was verified; checks how it ended too. */
static void ends(test_worker *worker, uint64_t room, kvf_status status, bool verified)
{
    kvf_event event = {.state = KVF_BOOTSTRAPPING};
    while (event.room != room || (event.state != KVF_SUCCESS && event.state != KVF_FAILED))
        if (kvf_manager_wait(worker->manager, &event, 1, 30000) != 1)
            fail_msg("room %llu doesn't end", (unsigned long long)room);
    if ((kvf_status)event.status != status || event.verified != (verified ? 1 : 0))
        fail_msg("room %llu: ended with %s, verified %u", (unsigned long long)room,
                 kvf_status_name((kvf_status)event.status), event.verified);
}

static bool all_arrived(const test_worker *decode)
{
    for (size_t i = 0; i < PAGES; i++)
        if (!test_page_arrived(&one.prefill, source[i], decode, destination[i]))
            return false;
    for (size_t i = 0; i < decode->shape.aux; i++)
        if (memcmp(test_slot(&one.prefill, i, 6), test_slot(decode, i, 3),
                   decode->shape.aux_item_length) != 0)
            return false;
    return true;
}

/* A room to its good end. */
static void works(uint64_t room, uint32_t chunks, kvf_verify verify, bool verified)
{
    kvf_receiver *receiver = ask_for(room, verify);
    kvf_sender *sender = give(room, chunks);
    ends(&one.decode, room, KVF_OK, verified);
    ends(&one.prefill, room, KVF_OK, verified);
    assert_true(all_arrived(&one.decode));
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

/* ---- Sound rooms ----------------------------------------------------------------------------------- */

static void rooms_of_any_number_of_chunks_are_verified(void **state)
{
    start_small(*state, NULL, on);
    for (uint32_t chunks = 1; chunks <= PAGES; chunks++) {
        test_worker_fill(&one.decode);
        works(chunks, chunks, KVF_VERIFY_DEFAULT, true);
    }
    assert_int_equal(test_statistics(&one.decode).messages_dropped, 0);
    assert_int_equal(test_statistics(&one.prefill).messages_dropped, 0);
}

static void a_room_of_no_pages_is_verified(void **state)
{
    start_small(*state, NULL, on);
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, NULL, 0, 3), KVF_OK);
    kvf_sender *sender = test_sender_open(&one.prefill, 1);
    assert_int_equal(kvf_sender_expect(sender, 0, 6), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, NULL, 0), KVF_OK);
    ends(&one.decode, 1, KVF_OK, true);
    ends(&one.prefill, 1, KVF_OK, true);
    assert_memory_equal(test_slot(&one.prefill, 1, 6), test_slot(&one.decode, 1, 3), 64);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

static void a_pool_without_aux_is_verified(void **state)
{
    test_shape shape = test_small_shape;
    shape.aux = 0;
    start(*state, &shape, NULL, on);
    test_worker_fill(&one.prefill);
    works(1, 2, KVF_VERIFY_DEFAULT, true);
}

static void each_room_has_its_own_way(void **state)
{
    start_small(*state, NULL, NULL);
    works(1, 3, KVF_VERIFY_DEFAULT, false);
    works(2, 3, KVF_VERIFY_ON, true);
    works(3, 3, KVF_VERIFY_OFF, false);
    works(4, 3, KVF_VERIFY_REQUIRED, true);
}

static void a_room_says_no_where_the_manager_says_yes(void **state)
{
    start_small(*state, NULL, required);
    works(1, 3, KVF_VERIFY_OFF, false);
    works(2, 3, KVF_VERIFY_DEFAULT, true);
}

/* Built against the header before there was a field `verify`. */
static void shorter_options_are_taken(void **state)
{
    start_small(*state, NULL, on);
    kvf_room_options options = {
        .size = offsetof(kvf_room_options, verify), .dp_rank = -1, .verify = UINT32_MAX};
    kvf_receiver *receiver;
    assert_int_equal(
        kvf_receiver_open(one.decode.manager, one.bootstrap.address, 1, &options, &receiver),
        KVF_OK);
    assert_int_equal(kvf_receiver_expect(receiver, destination, PAGES, 3), KVF_OK);
    kvf_sender *sender = give(1, 1);
    ends(&one.decode, 1, KVF_OK, true);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
    options.size = sizeof options;
    assert_int_equal(
        kvf_receiver_open(one.decode.manager, one.bootstrap.address, 2, &options, &receiver),
        KVF_INVALID_ARGUMENT);
    options.size = offsetof(kvf_room_options, verify) - 1;
    assert_int_equal(
        kvf_receiver_open(one.decode.manager, one.bootstrap.address, 2, &options, &receiver),
        KVF_INVALID_ARGUMENT);
}

/* ---- Where it can't be had ------------------------------------------------------------------------- */

static void a_stock_prefill_is_not_verified(void **state)
{
    start_small(*state, stock, on);
    works(1, 2, KVF_VERIFY_DEFAULT, false);
    kvf_receiver *receiver = ask_for(2, KVF_VERIFY_REQUIRED);
    test_receiver_ends(&one.decode, receiver, KVF_UNSUPPORTED, "needs a kvferry prefill");
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_NEVER_DISCLOSED);
    kvf_receiver_close(receiver);
}

/* Memory that this processor can't read, on either side; to the loop engine it is memory like any other. */
static void accelerator_memory_is_not_verified(void **state)
{
    kvf_role role = *(const kvf_role *)*state;
    test_use_engine("loop");
    test_bootstrap_open(&one.bootstrap);
    test_worker_build(&one.prefill, NULL);
    test_worker_build(&one.decode, NULL);
    (role == KVF_PREFILL ? &one.prefill : &one.decode)->buffers[1].memory = KVF_MEMORY_CUDA;
    assert_int_equal(test_worker_start(&one.prefill, KVF_PREFILL, one.bootstrap.address, NULL),
                     KVF_OK);
    assert_int_equal(test_worker_start(&one.decode, KVF_DECODE, NULL, NULL), KVF_OK);
    test_worker_fill(&one.prefill);
    works(1, 3, KVF_VERIFY_ON, false);
    kvf_sender *sender = give(2, 3); /* first: it fails as soon as the receiver has */
    kvf_receiver *receiver = ask_for(2, KVF_VERIFY_REQUIRED);
    test_receiver_ends(&one.decode, receiver, KVF_UNSUPPORTED, "host memory");
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

/* ---- Other bytes ----------------------------------------------------------------------------------- */

/* The sender hears of it, and the fence ends as after any failure. */
static void is_found(uint64_t room, uint32_t chunks, const char *where)
{
    kvf_receiver *receiver = ask_for(room, KVF_VERIFY_ON);
    kvf_sender *sender = give(room, chunks);
    test_receiver_ends(&one.decode, receiver, KVF_CORRUPT, where);
    assert_non_null(strstr(kvf_receiver_failure_text(receiver), "at the source, 0x"));
    test_sender_ends(&one.prefill, sender, KVF_PEER_FAILED, where);
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

static void a_first_byte_is_found(void **state)
{
    static const char *const fault[] = {"fault", "corrupt=2", NULL};
    start_small(*state, fault, NULL);
    works(1, 1, KVF_VERIFY_ON, true);
    is_found(2, 1, "buffer 0, page 20 (number 0 of the room, from 0; in chunk 0)");
    works(3, 1, KVF_VERIFY_ON, true);
}

static void a_later_chunk_is_found(void **state)
{
    static const char *const fault[] = {"fault", "corrupt=3", NULL};
    start_small(*state, fault, NULL);
    is_found(1, 3, "buffer 0, page 31 (number 6 of the room, from 0; in chunk 2)");
}

static void a_middle_page_is_found(void **state)
{
    static const char *const fault[] = {"fault", "corrupt_page=1", NULL};
    start_small(*state, fault, NULL);
    is_found(1, 1, "buffer 1, page 3 (number 4 of the room, from 0; in chunk 0)");
}

/* More pages than one answer has: the third of them has it. */
static void a_page_of_a_long_chunk_is_found(void **state)
{
    enum { MANY = 6000 };
    static const char *const fault[] = {"fault", "corrupt_page=1", NULL};
    static uint32_t pages[MANY];
    test_shape shape = test_small_shape;
    shape.pages = MANY;
    shape.item_length = 128;
    start(*state, &shape, fault, on);
    test_worker_fill(&one.prefill);
    for (uint32_t i = 0; i < MANY; i++)
        pages[i] = MANY - 1 - i;
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, pages, MANY, 0), KVF_OK);
    kvf_sender *sender = test_sender_open(&one.prefill, 1);
    assert_int_equal(kvf_sender_expect(sender, MANY, 0), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, pages, MANY), KVF_OK);
    test_receiver_ends(&one.decode, receiver, KVF_CORRUPT, "buffer 1, page 2999 (number 3000 of");
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

static void an_aux_record_is_found(void **state)
{
    static const char *const fault[] = {"fault", "corrupt=1", NULL};
    start_small(*state, fault, on);
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, NULL, 0, 3), KVF_OK);
    kvf_sender *sender = test_sender_open(&one.prefill, 1);
    assert_int_equal(kvf_sender_expect(sender, 0, 6), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, NULL, 0), KVF_OK);
    test_receiver_ends(&one.decode, receiver, KVF_CORRUPT, "aux buffer 0, slot 3: sum 0x");
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

/* The control: the same fault without verification. */
static void unverified_rooms_do_not_notice(void **state)
{
    static const char *const fault[] = {"fault", "corrupt=1", NULL};
    start_small(*state, fault, NULL);
    kvf_receiver *receiver = ask_for(1, KVF_VERIFY_OFF);
    kvf_sender *sender = give(1, 1);
    ends(&one.decode, 1, KVF_OK, false);
    ends(&one.prefill, 1, KVF_OK, false);
    assert_false(all_arrived(&one.decode));
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

/* ---- Two destinations ------------------------------------------------------------------------------ */

/* MLA: two decode ranks report to one prefill rank, and each gets everything. */
static void two_destinations(const char *engine, const char *const *prefill,
                             const char *const *second_settings, test_worker *second)
{
    test_shape shape = test_small_shape;
    shape.mla = 1;
    test_use_engine(engine);
    test_bootstrap_open(&one.bootstrap);
    test_worker_open(&one.prefill, KVF_PREFILL, &shape, one.bootstrap.address, prefill);
    shape.tp_size = 2;
    test_worker_open(&one.decode, KVF_DECODE, &shape, NULL, on);
    shape.rank = 1;
    test_worker_open(second, KVF_DECODE, &shape, NULL, second_settings);
    test_worker_fill(&one.prefill);
    test_worker_fill(&one.decode);
    test_worker_fill(second);
}

static kvf_receiver *ask_second(test_worker *second)
{
    kvf_receiver *receiver = test_receiver_open(second, one.bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, destination, PAGES, 3), KVF_OK);
    return receiver;
}

static void each_destination_checks_for_itself(void **state)
{
    static const char *const *const ways[] = {on, NULL};
    for (size_t i = 0; i < 2; i++) {
        bool both = ways[i] == on;
        test_worker second;
        two_destinations(*state, NULL, ways[i], &second);
        kvf_receiver *receivers[] = {ask_for(1, KVF_VERIFY_DEFAULT), ask_second(&second)};
        kvf_sender *sender = give(1, 4);
        ends(&one.decode, 1, KVF_OK, true);
        ends(&second, 1, KVF_OK, both);
        ends(&one.prefill, 1, KVF_OK, both);
        assert_true(all_arrived(&one.decode));
        assert_true(all_arrived(&second));
        kvf_receiver_close(receivers[0]);
        kvf_receiver_close(receivers[1]);
        kvf_sender_close(sender);
        test_worker_close(&second);
        (void)stop(NULL);
    }
}

/* The first to ask is written to first; the other one's transfer stays away. Only when that one gives up the room fails. */
static void one_that_has_everything_may_go(void **state)
{
    static const char *const stalling[] = {"fault", "transfer_stall=2", NULL};
    static const char *const *const ways[] = {on, NULL};
    for (size_t i = 0; i < 2; i++) {
        test_worker second;
        two_destinations(*state, stalling, ways[i], &second);
        kvf_receiver *first = ask_second(&second);
        test_wait_statistic(&one.prefill, requests_held, 1);
        kvf_receiver *other = ask_for(1, KVF_VERIFY_DEFAULT);
        test_wait_statistic(&one.prefill, requests_held, 2);
        kvf_sender *sender = give(1, 1);
        ends(&second, 1, KVF_OK, ways[i] == on);
        test_wait_statistic(&one.prefill, messages_received, ways[i] == on ? 3 : 2);
        kvf_receiver_close(first);
        test_worker_close(&second);
        test_wait_statistic(&one.prefill, peers_lost, 1);
        assert_int_equal(kvf_sender_poll(sender), KVF_TRANSFERRING);
        kvf_receiver_abort(other);
        test_sender_ends(&one.prefill, sender, KVF_PEER_FAILED, "gave the room up");
        kvf_receiver_close(other);
        kvf_sender_close(sender);
        (void)stop(NULL);
    }
}

/* The byte is wrong at its source while it is written to one: whether the other gets it too is chance, and whether it
 * is still wrong when that one asks for the pages. */
static void one_that_finds_other_bytes_ends_the_room(void **state)
{
    static const char *const fault[] = {"fault", "corrupt=1", NULL};
    test_worker second;
    two_destinations(*state, fault, on, &second);
    kvf_receiver *receivers[] = {ask_for(1, KVF_VERIFY_DEFAULT), ask_second(&second)};
    kvf_sender *sender = give(1, 1);
    test_receiver_settles(&one.decode, receivers[0]);
    test_receiver_settles(&second, receivers[1]);
    test_sender_ends(&one.prefill, sender, KVF_PEER_FAILED, "what arrived ");
    assert_true(kvf_receiver_status(receivers[0]) == KVF_CORRUPT ||
                kvf_receiver_status(receivers[1]) == KVF_CORRUPT);
    assert_true(kvf_receiver_poll(receivers[0]) == KVF_FAILED || all_arrived(&one.decode));
    assert_true(kvf_receiver_poll(receivers[1]) == KVF_FAILED || all_arrived(&second));
    kvf_receiver_close(receivers[0]);
    kvf_receiver_close(receivers[1]);
    kvf_sender_close(sender);
    test_worker_close(&second);
}

/* ---- Given up in the middle ------------------------------------------------------------------------- */

enum { BIG_PAGES = 1024 };

/* 512 MiB of addresses; what isn't written takes no memory. */
static const test_shape big_shape = {.buffers = 8,
                                     .pages = BIG_PAGES,
                                     .item_length = 64 << 10,
                                     .aux = 1,
                                     .slots = 8,
                                     .aux_item_length = 64};

static void begin_big(uint64_t room, uint32_t pages, kvf_sender **sender, kvf_receiver **receiver)
{
    static uint32_t list[BIG_PAGES];
    for (uint32_t i = 0; i < BIG_PAGES; i++)
        list[i] = i;
    *receiver = test_receiver_open(&one.decode, one.bootstrap.address, room);
    assert_int_equal(kvf_receiver_expect(*receiver, list, pages, 0), KVF_OK);
    *sender = test_sender_open(&one.prefill, room);
    assert_int_equal(kvf_sender_expect(*sender, pages, 0), KVF_OK);
    assert_int_equal(kvf_sender_send(*sender, list, pages), KVF_OK);
}

static void both_are_safe(kvf_sender *sender, kvf_receiver *receiver)
{
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

static void an_abort_while_the_source_is_summed(void **state)
{
    start(*state, &big_shape, NULL, on);
    kvf_sender *sender;
    kvf_receiver *receiver;
    begin_big(1, BIG_PAGES, &sender, &receiver);
    while (kvf_sender_poll(sender) != KVF_TRANSFERRING)
        continue;
    kvf_receiver_abort(receiver);
    test_receiver_ends(&one.decode, receiver, KVF_ABORTED, NULL);
    test_sender_ends(&one.prefill, sender, KVF_PEER_FAILED, "gave the room up");
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_ACKNOWLEDGED);
    both_are_safe(sender, receiver);
    assert_int_equal(test_statistics(&one.prefill).bytes_written, 0);
    begin_big(1, 8, &sender, &receiver);
    ends(&one.decode, 1, KVF_OK, true);
    both_are_safe(sender, receiver);
}

static void the_sender_gives_up_while_it_sums(void **state)
{
    start(*state, &big_shape, NULL, on);
    kvf_sender *sender;
    kvf_receiver *receiver;
    begin_big(1, BIG_PAGES, &sender, &receiver);
    while (kvf_sender_poll(sender) != KVF_TRANSFERRING)
        continue;
    kvf_sender_abort(sender);
    test_sender_ends(&one.prefill, sender, KVF_ABORTED, NULL);
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "aborted by this side");
    both_are_safe(sender, receiver);
    assert_int_equal(test_statistics(&one.prefill).bytes_written, 0);
}

/* All bytes are there and being read when the room is given up. Whether it is in time shows only afterwards. */
static void an_abort_while_what_arrived_is_checked(void **state)
{
    enum { CHECKED_PAGES = 128, ATTEMPTS = 50 };
    bool in_time = false;
    start(*state, &big_shape, NULL, on);
    for (uint64_t room = 1; room <= ATTEMPTS && !in_time; room++) {
        kvf_sender *sender;
        kvf_receiver *receiver;
        begin_big(room, CHECKED_PAGES, &sender, &receiver);
        while (test_statistics(&one.decode).notifications_received < 2 * room)
            continue;
        kvf_receiver_abort(receiver);
        test_receiver_settles(&one.decode, receiver);
        in_time = kvf_receiver_status(receiver) == KVF_ABORTED;
        assert_true(in_time || kvf_receiver_poll(receiver) == KVF_SUCCESS);
        test_sender_settles(&one.prefill, sender);
        both_are_safe(sender, receiver);
    }
    assert_true(in_time);
}

/* ---- Fairness --------------------------------------------------------------------------------------- */

/* Small rooms come and go while a big one of the same managers is summed and checked. */
static void small_rooms_do_not_wait_behind_a_big_one(void **state)
{
    enum { BIG_ROOM = 1, SMALL = 10 };
    start(*state, &big_shape, NULL, on);
    kvf_sender *big_sender;
    kvf_receiver *big_receiver;
    begin_big(BIG_ROOM, BIG_PAGES, &big_sender, &big_receiver);
    while (kvf_sender_poll(big_sender) != KVF_TRANSFERRING)
        continue;
    for (uint64_t room = 2; room < 2 + SMALL; room++) {
        kvf_sender *sender;
        kvf_receiver *receiver;
        begin_big(room, 1, &sender, &receiver);
        ends(&one.decode, room, KVF_OK, true);
        both_are_safe(sender, receiver);
    }
    assert_int_equal(kvf_receiver_poll(big_receiver), KVF_WAITING_FOR_INPUT);
    kvf_receiver_abort(big_receiver);
    test_receiver_settles(&one.decode, big_receiver);
    both_are_safe(big_sender, big_receiver);
}

#define ON(engine, name)                                                                           \
    {                                                                                              \
#name " (" engine ")", name, NULL, stop, (void *)(uintptr_t)engine                         \
    }
#define ON_EACH(name) ON("loop", name), ON("shm", name), ON("tcp", name)

int main(void)
{
    static kvf_role prefill = KVF_PREFILL;
    static kvf_role decode = KVF_DECODE;
    const struct CMUnitTest tests[] = {
        ON_EACH(rooms_of_any_number_of_chunks_are_verified),
        ON_EACH(a_room_of_no_pages_is_verified),
        ON_EACH(a_pool_without_aux_is_verified),
        ON_EACH(each_room_has_its_own_way),
        ON("loop", a_room_says_no_where_the_manager_says_yes),
        ON("loop", shorter_options_are_taken),
        ON_EACH(a_stock_prefill_is_not_verified),
        {"the prefill's accelerator memory", accelerator_memory_is_not_verified, NULL, stop,
         &prefill},
        {"the decode's accelerator memory", accelerator_memory_is_not_verified, NULL, stop,
         &decode},
        ON_EACH(a_first_byte_is_found),
        ON_EACH(a_later_chunk_is_found),
        ON_EACH(a_middle_page_is_found),
        ON_EACH(a_page_of_a_long_chunk_is_found),
        ON_EACH(an_aux_record_is_found),
        ON_EACH(unverified_rooms_do_not_notice),
        ON_EACH(each_destination_checks_for_itself),
        ON_EACH(one_that_has_everything_may_go),
        ON_EACH(one_that_finds_other_bytes_ends_the_room),
        ON_EACH(an_abort_while_the_source_is_summed),
        ON_EACH(the_sender_gives_up_while_it_sums),
        ON_EACH(an_abort_while_what_arrived_is_checked),
        ON("loop", small_rooms_do_not_wait_behind_a_big_one),
        ON("shm", small_rooms_do_not_wait_behind_a_big_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
