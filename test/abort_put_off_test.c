/* Where the connection to a prefill is full, an abort is put off. The room may be left before there is room in it: its pages
 * are given back, and the user closes it. The prefill is told nevertheless, or it would hold the request for
 * minutes, and take it for the next room of that id. */
#include "support/raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { VICTIMS = 4, PAGES = 2 };

static const uint32_t pages[PAGES] = {1, 2};

static test_bootstrap bootstrap;
static test_worker decode;
static raw_prefill prefill; /* reads nothing but what the test takes in */
static raw_push letters;

/* Heartbeats go the way of everything else, so who reads nothing doesn't answer them. */
static const char *const settings[] = {"peer_extensions",
                                       "assume",
                                       "heartbeat_timeout",
                                       "5min",
                                       "fence_timeout",
                                       "200ms",
                                       "waiting_timeout",
                                       "5min",
                                       NULL};

static void start(void)
{
    test_use_engine("loop");
    test_bootstrap_open(&bootstrap);
    raw_prefill_open(&prefill, bootstrap.address);
    test_worker_open(&decode, KVF_DECODE, NULL, NULL, settings);
    raw_push_open(&letters, kvf_manager_port(decode.manager));
}

static void stop(void)
{
    raw_push_close(&letters);
    test_worker_close(&decode);
    raw_prefill_close(&prefill);
    test_bootstrap_close(&bootstrap);
}

static kvf_receiver *ask(uint64_t room)
{
    kvf_receiver *receiver = test_receiver_open(&decode, bootstrap.address, room);
    if (kvf_receiver_expect(receiver, pages, PAGES, 0) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    return receiver;
}

/* Rooms come and go until one can't say any more what it wants. */
static void fill_the_connection(void)
{
    enum { MOST = 100000 };
    for (uint64_t room = VICTIMS + 1; room < MOST; room++) {
        kvf_receiver *receiver = ask(room);
        test_receiver_reaches(&decode, receiver, KVF_WAITING_FOR_INPUT);
        kvf_receiver_abort(receiver);
        bool unsaid = kvf_receiver_wait(receiver, 0) == KVF_PAGES_SAFE &&
                      kvf_receiver_proof(receiver) == KVF_PROOF_NEVER_DISCLOSED;
        kvf_receiver_close(receiver);
        if (unsaid)
            return;
    }
    fail_msg("the connection takes any number of messages");
}

static void the_prefill_is_told_after_the_room_was_left(void **state)
{
    kvf_receiver *victims[VICTIMS];
    bool told[VICTIMS] = {false};
    (void)state;
    start();
    for (uint64_t i = 0; i < VICTIMS; i++) {
        victims[i] = ask(i + 1);
        raw_prefill_requested(&prefill, i + 1);
    }
    raw_prefill_greets(&prefill, &letters);
    test_wait_statistic(&decode, messages_received, 1);
    fill_the_connection();
    for (size_t i = 0; i < VICTIMS; i++)
        kvf_receiver_abort(victims[i]);
    for (size_t i = 0; i < VICTIMS; i++) {
        assert_int_equal(kvf_receiver_wait(victims[i], -1), KVF_PAGES_SAFE);
        assert_int_equal(kvf_receiver_proof(victims[i]), KVF_PROOF_RECEIVER_CLOSED);
        kvf_receiver_close(victims[i]);
    }
    for (size_t count = 0; count < VICTIMS;) {
        uint64_t room = raw_prefill_aborted(&prefill);
        if (room > VICTIMS)
            continue;
        assert_false(told[room - 1]);
        told[room - 1] = true;
        count++;
    }
    stop();
}

/* What is still owed when the manager closes is freed. */
static void what_is_owed_at_the_end_is_freed(void **state)
{
    (void)state;
    start();
    kvf_receiver *victim = ask(1);
    raw_prefill_requested(&prefill, 1);
    raw_prefill_greets(&prefill, &letters);
    test_wait_statistic(&decode, messages_received, 1);
    fill_the_connection();
    kvf_receiver_abort(victim);
    assert_int_equal(kvf_receiver_wait(victim, -1), KVF_PAGES_SAFE);
    kvf_receiver_close(victim);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_prefill_is_told_after_the_room_was_left),
        cmocka_unit_test(what_is_owed_at_the_end_is_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
