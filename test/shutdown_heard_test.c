/* What the peers of a manager hear that is closed: every room of theirs fails with that reason, and not because a
 * connection was lost. And what closing costs. */
#include "support/worker.h"

#include "base/clock.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 8, TRIES = 8, MANY = 15 };

static const uint32_t pages[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
static const char *const patient[] = {"fence_timeout", "60s", "close_timeout", "30s", NULL};
static const char *const stalling[] = {"fault", "transfer_stall=1", "close_timeout", "30s", NULL};

typedef struct scene {
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode;
} scene;

static void start(scene *one, const char *engine, const char *const *prefill)
{
    memset(one, 0, sizeof *one);
    test_use_engine(engine);
    test_bootstrap_open(&one->bootstrap);
    test_worker_open(&one->prefill, KVF_PREFILL, NULL, one->bootstrap.address, prefill);
    test_worker_open(&one->decode, KVF_DECODE, NULL, one->bootstrap.address, patient);
}

static kvf_receiver *ask(scene *one, uint64_t room)
{
    kvf_receiver *receiver = test_receiver_open(&one->decode, one->bootstrap.address, room);
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, 0), KVF_OK);
    return receiver;
}

static kvf_sender *expect(scene *one, uint64_t room)
{
    kvf_sender *sender = test_sender_open(&one->prefill, room);
    assert_int_equal(kvf_sender_expect(sender, PAGES, 0), KVF_OK);
    return sender;
}

/* Room 1 is being written, room 2 waits for pages. */
static void open_two(scene *one, kvf_receiver *receivers[2], kvf_sender *senders[2])
{
    for (int i = 0; i < 2; i++) {
        senders[i] = expect(one, (uint64_t)i + 1);
        receivers[i] = ask(one, (uint64_t)i + 1);
        test_sender_reaches(&one->prefill, senders[i], KVF_WAITING_FOR_INPUT);
    }
    assert_int_equal(kvf_sender_send(senders[0], pages, PAGES), KVF_OK);
    test_wait_statistic(&one->prefill, transfers_active, 1);
}

static void a_closed_prefill_is_heard(void **state)
{
    if (test_ends_with_its_peer(*state))
        skip();
    for (int i = 0; i < TRIES; i++) {
        scene one;
        kvf_receiver *receivers[2];
        kvf_sender *senders[2];
        start(&one, *state, stalling);
        open_two(&one, receivers, senders);
        kvf_receiver *held = ask(&one, 3); /* no sender is opened for it */
        test_wait_statistic(&one.prefill, requests_held, 1);
        test_worker_close(&one.prefill);
        for (int k = 0; k < 2; k++)
            test_receiver_ends(&one.decode, receivers[k], KVF_PEER_FAILED,
                               "the manager was closed");
        test_receiver_ends(&one.decode, held, KVF_PEER_FAILED, "the manager was closed");
        test_worker_close(&one.decode);
        test_bootstrap_close(&one.bootstrap);
    }
}

/* Nothing is under way, so that closing has nothing to wait for but the news. */
static void all_rooms_of_a_closed_prefill_hear(void **state)
{
    if (test_ends_with_its_peer(*state))
        skip();
    for (int i = 0; i < TRIES; i++) {
        scene one;
        kvf_receiver *receivers[MANY];
        start(&one, *state, patient);
        for (uint64_t room = 0; room < MANY; room++) {
            kvf_sender *sender = expect(&one, room);
            receivers[room] = ask(&one, room);
            test_sender_reaches(&one.prefill, sender, KVF_WAITING_FOR_INPUT);
        }
        test_worker_close(&one.prefill);
        for (uint64_t room = 0; room < MANY; room++)
            test_receiver_ends(&one.decode, receivers[room], KVF_PEER_FAILED,
                               "the manager was closed");
        test_worker_close(&one.decode);
        test_bootstrap_close(&one.bootstrap);
    }
}

/* It has asked just now: our connection to it, which the news takes, is still being made. */
static void a_prefill_that_is_closed_at_once_is_heard(void **state)
{
    if (test_ends_with_its_peer(*state))
        skip();
    for (int i = 0; i < TRIES; i++) {
        scene one;
        start(&one, *state, patient);
        kvf_receiver *receiver = ask(&one, 1);
        test_wait_statistic(&one.prefill, requests_held, 1);
        test_worker_close(&one.prefill);
        test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "the manager was closed");
        test_worker_close(&one.decode);
        test_bootstrap_close(&one.bootstrap);
    }
}

static void a_closed_decode_is_heard(void **state)
{
    if (test_ends_with_its_peer(*state))
        skip();
    for (int i = 0; i < TRIES; i++) {
        scene one;
        kvf_receiver *receivers[2];
        kvf_sender *senders[2];
        start(&one, *state, stalling);
        open_two(&one, receivers, senders);
        test_worker_close(&one.decode);
        for (int k = 0; k < 2; k++)
            test_sender_ends(&one.prefill, senders[k], KVF_PEER_FAILED, "the manager was closed");
        test_worker_close(&one.prefill);
        test_bootstrap_close(&one.bootstrap);
    }
}

/* A stock prefill can't be asked to stop: closing takes all of close_timeout, and sleeps. */
static void closing_sleeps(void **state)
{
    static const char *const stock[] = {"extensions", "off", NULL};
    static const char *const hasty[] = {"close_timeout", "1500ms", "fence_timeout", "60s", NULL};
    scene one;
    start(&one, *state, stock);
    test_worker_close(&one.decode);
    test_worker_open(&one.decode, KVF_DECODE, NULL, one.bootstrap.address, hasty);
    (void)ask(&one, 1);
    test_wait_statistic(&one.prefill, requests_held, 1);
    uint64_t began = kvf_clock_now();
    struct timespec before;
    struct timespec after;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before), 0);
    test_worker_close(&one.decode);
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after), 0);
    uint64_t took = kvf_clock_now() - began;
    int64_t worked =
        (after.tv_sec - before.tv_sec) * (int64_t)KVF_SECOND + after.tv_nsec - before.tv_nsec;
    print_message("closing took %.3f s, %.3f s of them work\n", (double)took / 1e9,
                  (double)worked / 1e9);
    assert_true(took >= 1400 * KVF_MILLISECOND);
    assert_true((uint64_t)worked < took / 8);
    test_worker_close(&one.prefill);
    test_bootstrap_close(&one.bootstrap);
}

#define ON(engine, name)                                                                           \
    {                                                                                              \
#name " (" engine ")", name, NULL, NULL, (void *)(uintptr_t)engine                         \
    }

/* On one processor, where whoever is woken has to wait, the order of things is less often the fortunate one. */
static void use_one_processor(void)
{
    cpu_set_t allowed;
    cpu_set_t one;
    size_t first = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return;
    while (first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &allowed))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

int main(void)
{
    use_one_processor();
    const struct CMUnitTest tests[] = {
        ON("loop", a_closed_prefill_is_heard),
        ON("tcp", a_closed_prefill_is_heard),
        ON("loop", all_rooms_of_a_closed_prefill_hear),
        ON("tcp", all_rooms_of_a_closed_prefill_hear),
        ON("loop", a_prefill_that_is_closed_at_once_is_heard),
        ON("tcp", a_prefill_that_is_closed_at_once_is_heard),
        ON("loop", a_closed_decode_is_heard),
        ON("tcp", a_closed_decode_is_heard),
        ON("loop", closing_sleeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
