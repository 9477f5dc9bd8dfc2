/* Peers that live, and whose connections live, but that do nothing more: rooms end by waiting_timeout, on whichever side
 * still waits, and not because anybody counts as gone. A peer whose loop is stuck is one made of bare parts that
 * nobody moves on: ZeroMQ's own thread answers its heartbeats. */
#include "support/raw.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 6 };

#define WAITING "1200ms"
#define WAITING_TIME (1200 * KVF_MILLISECOND)

static const uint32_t pages[PAGES] = {4, 5, 6, 7, 20, 21};
static const uint64_t wide_pages[PAGES] = {4, 5, 6, 7, 20, 21};

/* Who answers no heartbeat is lost well before the room's deadline. */
static const char *const hasty[] = {"waiting_timeout",
                                    WAITING,
                                    "heartbeat_interval",
                                    "100ms",
                                    "heartbeat_timeout",
                                    "800ms",
                                    "bootstrap_timeout",
                                    "60s",
                                    "fence_timeout",
                                    "60s",
                                    NULL};

static struct {
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode;
    raw_prefill stuck_prefill;
    raw_decode stuck_decode;
} one;

static int stop(void **state)
{
    (void)state;
    raw_prefill_close(&one.stuck_prefill);
    raw_decode_close(&one.stuck_decode);
    test_worker_close(&one.decode);
    test_worker_close(&one.prefill);
    test_bootstrap_close(&one.bootstrap);
    memset(&one, 0, sizeof one);
    return 0;
}

/* The time is taken before the call, so that the deadline can't come earlier. */
static kvf_receiver *ask(uint64_t room, uint64_t *asked)
{
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, room);
    test_receiver_reaches(&one.decode, receiver, KVF_WAITING_FOR_INPUT);
    *asked = kvf_clock_now();
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, 1), KVF_OK);
    return receiver;
}

/* Between kvferry peers the prefill forgets the request as soon as the decode has given it up. */
static void nobody_opens_the_sender(void **state)
{
    test_use_engine(*state);
    test_bootstrap_open(&one.bootstrap);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, one.bootstrap.address,
                     (const char *const[]){"hold_timeout", "60s", NULL});
    test_worker_open(&one.decode, KVF_DECODE, NULL, NULL, hasty);
    test_worker_fill(&one.decode);
    uint64_t asked;
    kvf_receiver *receiver = ask(1, &asked);
    test_wait_statistic(&one.prefill, requests_held, 1);
    assert_int_equal(kvf_receiver_poll(receiver), KVF_WAITING_FOR_INPUT);
    test_receiver_ends(&one.decode, receiver, KVF_TIMEOUT,
                       "nothing arrived within waiting_timeout");
    assert_true(kvf_clock_now() - asked >= WAITING_TIME);
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_ACKNOWLEDGED);
    assert_int_equal(test_statistics(&one.prefill).requests_held, 0);
    assert_int_equal(test_statistics(&one.decode).peers_lost, 0);
    kvf_receiver_close(receiver);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 1, PAGES);
}

/* Nobody takes what was sent to the prefill's port. Only its end tells that nothing comes any more. */
static void a_prefill_is_stuck(void **state)
{
    test_use_engine(*state);
    test_bootstrap_open(&one.bootstrap);
    raw_prefill_open(&one.stuck_prefill, one.bootstrap.address);
    test_worker_open(&one.decode, KVF_DECODE, NULL, NULL, hasty);
    test_worker_fill(&one.decode);
    uint64_t asked;
    kvf_receiver *receiver = ask(1, &asked);
    test_receiver_ends(&one.decode, receiver, KVF_TIMEOUT,
                       "nothing arrived within waiting_timeout");
    assert_true(kvf_clock_now() - asked >= WAITING_TIME);
    assert_int_equal(test_statistics(&one.decode).peers_lost, 0);
    assert_int_equal(kvf_receiver_safety(receiver), KVF_PAGES_IN_USE);
    raw_prefill_requested(&one.stuck_prefill, 1); /* it was there all the time */
    for (uint32_t i = 0; i < PAGES; i++)
        assert_true(test_page_untouched(&one.decode, pages[i]));
    raw_prefill_close(&one.stuck_prefill);
    kvf_receiver_close(receiver);
}

static kvf_sender *give_to_raw(uint64_t room)
{
    kvf_request request = raw_decode_request(&one.stuck_decode, room, wide_pages, PAGES);
    raw_decode_send(&one.stuck_decode, &request);
    kvf_sender *sender = test_sender_open(&one.prefill, room);
    assert_int_equal(kvf_sender_expect(sender, PAGES, 1), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, pages, PAGES), KVF_OK);
    return sender;
}

static void works_with_raw(uint64_t room, uint64_t notifications)
{
    kvf_sender *sender = give_to_raw(room);
    assert_true(raw_decode_notified(&one.stuck_decode, notifications));
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    for (uint32_t i = 0; i < PAGES; i++)
        assert_true(test_page_arrived(&one.prefill, pages[i], &one.stuck_decode.worker, pages[i]));
    kvf_sender_close(sender);
}

/* It takes in no more bytes. Over TCP each write needs it; what shared memory maps directly doesn't, and there the room
 * rightly succeeds. */
static void a_decode_is_stuck(void **state)
{
    static const char *const impatient[] = {"waiting_timeout",
                                            WAITING,
                                            "fence_timeout",
                                            "50ms",
                                            "heartbeat_interval",
                                            "100ms",
                                            "heartbeat_timeout",
                                            "800ms",
                                            NULL};
    if (test_ends_with_its_peer(*state))
        skip();
    test_use_engine(*state);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, NULL, impatient);
    test_worker_fill(&one.prefill);
    raw_decode_open(&one.stuck_decode, "a-stuck-decode", kvf_manager_port(one.prefill.manager));
    works_with_raw(1, 2);
    uint64_t sent = kvf_clock_now();
    kvf_sender *sender = give_to_raw(2);
    test_sender_ends(&one.prefill, sender, KVF_TIMEOUT,
                     "1 writes of chunks were not completed within waiting_timeout");
    assert_true(kvf_clock_now() - sent >= WAITING_TIME);
    assert_int_equal(test_statistics(&one.prefill).peers_lost, 0);
    /* The transport still reads the pages when fence_timeout gives them back. */
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_RELEASED);
    assert_int_equal(kvf_sender_proof(sender), KVF_PROOF_NONE);
    assert_int_equal(test_statistics(&one.prefill).transfers_active, 1);
    assert_int_equal(test_statistics(&one.prefill).rooms_released, 1);
    kvf_sender_close(sender);
    /* When it goes on, what was handed to the transport ends without a notification, and the next room works. */
    works_with_raw(3, 4);
    assert_int_equal(test_statistics(&one.prefill).transfers_active, 0);
    assert_int_equal(one.stuck_decode.notifications, 4);
}

#define ON(engine, name)                                                                           \
    {                                                                                              \
#name " (" engine ")", name, NULL, stop, (void *)(uintptr_t)engine                         \
    }
#define ON_EACH(name) ON("loop", name), ON("shm", name), ON("tcp", name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(nobody_opens_the_sender),
        ON_EACH(a_prefill_is_stuck),
        ON("tcp", a_decode_is_stuck),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
