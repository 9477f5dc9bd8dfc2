/* A manager that is closed with rooms open: its rooms end with KVF_SHUTDOWN, those of its peers hear why, and the call
 * returns when nothing touches the pages any more, or after close_timeout. The handles live as long as the call waits:
 * it waits for a peer that this test moves on when it has looked at them. */
#include "support/raw.h"

#include "base/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 6, BEFORE = 1, WAITING = 2, HALFWAY = 3, UNDER_WAY = 4 };

static const uint32_t pages[PAGES] = {4, 5, 6, 7, 20, 21};
static const uint64_t wide_pages[PAGES] = {4, 5, 6, 7, 20, 21};
static const char *const patient[] = {"fence_timeout", "60s", "close_timeout", "60s", NULL};

static struct {
    test_bootstrap bootstrap;
    test_bootstrap empty; /* nobody registers there */
    test_worker prefill;
    test_worker decode;
    raw_decode raw; /* takes bytes in only when the test moves it on */
} one;

static void start(const char *engine, const char *const *prefill, const char *const *decode)
{
    test_use_engine(engine);
    test_bootstrap_open(&one.bootstrap);
    test_bootstrap_open(&one.empty);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, one.bootstrap.address, prefill);
    test_worker_open(&one.decode, KVF_DECODE, NULL, NULL, decode);
    test_worker_fill(&one.prefill);
    test_worker_fill(&one.decode);
}

static int stop(void **state)
{
    (void)state;
    raw_decode_close(&one.raw);
    test_worker_close(&one.decode);
    test_worker_close(&one.prefill);
    test_bootstrap_close(&one.bootstrap);
    test_bootstrap_close(&one.empty);
    memset(&one, 0, sizeof one);
    return 0;
}

/* ---- Closing in another thread --------------------------------------------------------------------- */

typedef struct closing {
    pthread_t thread;
    kvf_manager *manager;
    uint64_t took;
    atomic_bool returned;
} closing;

static void *close_manager(void *user)
{
    closing *call = user;
    uint64_t began = kvf_clock_now();
    kvf_manager_close(call->manager);
    call->took = kvf_clock_now() - began;
    atomic_store(&call->returned, true);
    return NULL;
}

static void begin_closing(closing *call, test_worker *worker)
{
    *call = (closing){.manager = worker->manager};
    atomic_init(&call->returned, false);
    worker->manager = NULL;
    assert_int_equal(pthread_create(&call->thread, NULL, close_manager, call), 0);
}

/* How long the call took. */
static uint64_t end_closing(closing *call)
{
    assert_int_equal(pthread_join(call->thread, NULL), 0);
    return call->took;
}

/* ---- Rooms ----------------------------------------------------------------------------------------- */

static kvf_sender *give(uint64_t room, uint32_t count)
{
    kvf_sender *sender = test_sender_open(&one.prefill, room);
    assert_int_equal(kvf_sender_expect(sender, PAGES, 1), KVF_OK);
    if (count > 0)
        assert_int_equal(kvf_sender_send(sender, pages, count), KVF_OK);
    return sender;
}

static kvf_receiver *ask(const char *address, uint64_t room)
{
    kvf_receiver *receiver = test_receiver_open(&one.decode, address, room);
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, 1), KVF_OK);
    return receiver;
}

/* The manager is being closed, so that nobody waits for its events: views and polls remain. */
static void sender_is_shut_down(kvf_sender *sender, kvf_safety safety)
{
    while (kvf_sender_poll(sender) != KVF_FAILED)
        continue;
    assert_int_equal(kvf_sender_status(sender), KVF_SHUTDOWN);
    assert_string_equal(kvf_sender_failure_text(sender), "the manager was closed");
    assert_int_equal(kvf_sender_wait(sender, safety == KVF_PAGES_SAFE ? -1 : 0), safety);
}

static void receiver_is_shut_down(kvf_receiver *receiver, kvf_safety safety)
{
    while (kvf_receiver_poll(receiver) != KVF_FAILED)
        continue;
    assert_int_equal(kvf_receiver_status(receiver), KVF_SHUTDOWN);
    assert_string_equal(kvf_receiver_failure_text(receiver), "the manager was closed");
    assert_int_equal(kvf_receiver_wait(receiver, safety == KVF_PAGES_SAFE ? -1 : 0), safety);
}

/* ---- A prefill is closed --------------------------------------------------------------------------- */

static kvf_sender *give_to_raw(uint64_t room)
{
    kvf_request request = raw_decode_request(&one.raw, room, wide_pages, PAGES);
    raw_decode_send(&one.raw, &request);
    return give(room, PAGES);
}

/* A first room, so that nothing is held until the decode answers: the next one's bytes go out, and stay away. */
static kvf_sender *write_that_does_not_end(void)
{
    raw_decode_open(&one.raw, "a-slow-decode", kvf_manager_port(one.prefill.manager));
    kvf_sender *sender = give_to_raw(100);
    assert_true(raw_decode_notified(&one.raw, 2));
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    uint64_t written = test_statistics(&one.prefill).bytes_written;
    sender = give_to_raw(UNDER_WAY);
    test_sender_reaches(&one.prefill, sender, KVF_TRANSFERRING);
    test_wait_statistic(&one.prefill, transfers_active, 1);
    assert_true(test_statistics(&one.prefill).bytes_written == written);
    return sender;
}

static void senders_end_and_their_receivers_hear_why(void **state)
{
    closing call;
    if (test_ends_with_its_peer("tcp"))
        skip();
    start(*state, patient, patient);
    kvf_sender *before = give(BEFORE, PAGES);
    kvf_receiver *waiting = ask(one.bootstrap.address, WAITING);
    kvf_sender *waiter = give(WAITING, 0);
    test_sender_reaches(&one.prefill, waiter, KVF_WAITING_FOR_INPUT);
    kvf_receiver *halfway = ask(one.bootstrap.address, HALFWAY);
    kvf_sender *half = give(HALFWAY, PAGES / 2);
    test_receiver_reaches(&one.decode, halfway, KVF_TRANSFERRING);
    kvf_sender *writing = write_that_does_not_end();
    begin_closing(&call, &one.prefill);
    sender_is_shut_down(before, KVF_PAGES_SAFE);
    sender_is_shut_down(waiter, KVF_PAGES_SAFE);
    sender_is_shut_down(half, KVF_PAGES_SAFE);
    sender_is_shut_down(writing, KVF_PAGES_IN_USE);
    test_receiver_ends(&one.decode, waiting, KVF_PEER_FAILED, "shutdown: the manager was closed");
    test_receiver_ends(&one.decode, halfway, KVF_PEER_FAILED, "shutdown: the manager was closed");
    assert_int_equal(kvf_receiver_wait(waiting, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_wait(halfway, -1), KVF_PAGES_SAFE);
    assert_false(atomic_load(&call.returned));
    while (!atomic_load(&call.returned))
        raw_decode_turn(&one.raw);
    assert_true(end_closing(&call) < 60 * KVF_SECOND);
    assert_int_equal(one.raw.notifications, 2); /* none after the shutdown */
    kvf_receiver_close(waiting);
    kvf_receiver_close(halfway);
}

/* Nobody waits for letters where nothing is written: the decode may only see the connection end. */
static void receivers_of_an_idle_prefill_end_too(void **state)
{
    static const char *const hasty[] = {"fence_timeout", "50ms",
                                        NULL}; /* over shared memory no proof can be had */
    closing call;
    start(*state, patient, hasty);
    kvf_receiver *waiting = ask(one.bootstrap.address, WAITING);
    kvf_sender *waiter = give(WAITING, 0);
    test_sender_reaches(&one.prefill, waiter, KVF_WAITING_FOR_INPUT);
    begin_closing(&call, &one.prefill);
    test_receiver_settles(&one.decode, waiting);
    assert_true(kvf_receiver_status(waiting) == KVF_PEER_FAILED ||
                kvf_receiver_status(waiting) == KVF_PEER_GONE);
    assert_true(end_closing(&call) < 60 * KVF_SECOND);
    kvf_receiver_close(waiting);
}

/* ---- A decode is closed ---------------------------------------------------------------------------- */

/* The prefill is a stock one: it is waited for until it has written all, which is what the test makes it do last. */
static void receivers_end_and_a_stock_prefill_is_waited_for(void **state)
{
    static const char *const stock[] = {"extensions", "off", NULL};
    closing call;
    start(*state, stock, patient);
    kvf_receiver *before = ask(one.empty.address, BEFORE);
    kvf_receiver *found = test_receiver_open(&one.decode, one.bootstrap.address, UNDER_WAY);
    test_receiver_reaches(&one.decode, found, KVF_WAITING_FOR_INPUT);
    kvf_receiver *waiting = ask(one.bootstrap.address, WAITING);
    test_wait_statistic(&one.prefill, requests_held, 1);
    kvf_receiver *halfway = ask(one.bootstrap.address, HALFWAY);
    kvf_sender *half = give(HALFWAY, PAGES / 2);
    test_receiver_reaches(&one.decode, halfway, KVF_TRANSFERRING);
    assert_int_equal(kvf_receiver_poll(before), KVF_BOOTSTRAPPING);
    begin_closing(&call, &one.decode);
    receiver_is_shut_down(before, KVF_PAGES_SAFE);
    receiver_is_shut_down(found, KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(before), KVF_PROOF_NEVER_DISCLOSED);
    assert_int_equal(kvf_receiver_proof(found), KVF_PROOF_NEVER_DISCLOSED);
    receiver_is_shut_down(waiting, KVF_PAGES_IN_USE);
    receiver_is_shut_down(halfway, KVF_PAGES_IN_USE);
    /* Takes the manager's lock: so ThreadSanitizer sees that the handles are freed later, for it doesn't know UCX. */
    kvf_event event;
    (void)kvf_manager_wait(call.manager, &event, 1, 0);
    assert_int_equal(kvf_sender_send(half, pages + PAGES / 2, PAGES / 2), KVF_OK);
    test_sender_ends(&one.prefill, half, KVF_OK, NULL);
    assert_false(atomic_load(&call.returned));
    kvf_sender *last = give(WAITING, PAGES);
    test_sender_ends(&one.prefill, last, KVF_OK, NULL);
    assert_true(end_closing(&call) < 60 * KVF_SECOND);
    for (uint32_t i = 0; i < PAGES; i++)
        assert_true(test_page_arrived(&one.prefill, pages[i], &one.decode, pages[i]));
    kvf_sender_close(half);
    kvf_sender_close(last);
}

static void senders_of_a_closed_decode_hear_why(void **state)
{
    closing call;
    start(*state, patient, patient);
    kvf_receiver *waiting = ask(one.bootstrap.address, WAITING);
    kvf_sender *waiter = give(WAITING, 0);
    test_sender_reaches(&one.prefill, waiter, KVF_WAITING_FOR_INPUT);
    kvf_receiver *halfway = ask(one.bootstrap.address, HALFWAY);
    kvf_sender *half = give(HALFWAY, PAGES / 2);
    test_receiver_reaches(&one.decode, halfway, KVF_TRANSFERRING);
    kvf_receiver *held = ask(one.bootstrap.address, BEFORE);
    test_wait_statistic(&one.prefill, requests_held, 1);
    (void)waiting; /* they go with their manager */
    (void)held;
    begin_closing(&call, &one.decode);
    test_sender_ends(&one.prefill, waiter, KVF_PEER_FAILED,
                     "gave the room up: the manager was closed");
    test_sender_ends(&one.prefill, half, KVF_PEER_FAILED,
                     "gave the room up: the manager was closed");
    assert_int_equal(kvf_sender_wait(waiter, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_sender_wait(half, -1), KVF_PAGES_SAFE);
    assert_true(end_closing(&call) < 60 * KVF_SECOND);
    assert_int_equal(test_statistics(&one.prefill).requests_held, 0);
    kvf_sender_close(waiter);
    kvf_sender_close(half);
}

/* ---- close_timeout --------------------------------------------------------------------------------- */

/* Nothing of the pages is touched any more when the call has returned: they are unmapped then, and the decode takes in
 * what is left. */
static void a_write_that_does_not_end_is_left(void **state)
{
    static const char *const hasty[] = {"fence_timeout", "60s", "close_timeout", "300ms", NULL};
    closing call;
    if (test_ends_with_its_peer("tcp"))
        skip();
    start(*state, hasty, patient);
    (void)write_that_does_not_end();
    begin_closing(&call, &one.prefill);
    uint64_t took = end_closing(&call);
    assert_true(took >= 300 * KVF_MILLISECOND); /* it was waited for */
    assert_true(took < 30 * KVF_SECOND);
    test_worker_close(&one.prefill); /* the memory */
    for (int i = 0; i < 10; i++)
        raw_decode_turn(&one.raw);
    assert_int_equal(one.raw.notifications, 2);
}

static void nothing_is_waited_for_without_time(void **state)
{
    static const char *const at_once[] = {"fence_timeout", "60s", "close_timeout", "0s", NULL};
    closing call;
    if (test_ends_with_its_peer("tcp"))
        skip();
    start(*state, at_once, patient);
    (void)write_that_does_not_end();
    begin_closing(&call, &one.prefill);
    assert_true(end_closing(&call) < 30 * KVF_SECOND);
}

/* A stock prefill that never writes what it was asked for. */
static void a_fence_that_does_not_end_is_left(void **state)
{
    static const char *const stock[] = {"extensions", "off", NULL};
    static const char *const hasty[] = {"fence_timeout", "60s", "close_timeout", "300ms", NULL};
    closing call;
    start(*state, stock, hasty);
    (void)ask(one.bootstrap.address, WAITING);
    test_wait_statistic(&one.prefill, requests_held, 1);
    begin_closing(&call, &one.decode);
    uint64_t took = end_closing(&call);
    assert_true(took >= 300 * KVF_MILLISECOND);
    assert_true(took < 30 * KVF_SECOND);
    for (uint32_t i = 0; i < PAGES; i++)
        assert_true(test_page_untouched(&one.decode, pages[i]));
}

#define ON(engine, name)                                                                           \
    {                                                                                              \
#name " (" engine ")", name, NULL, stop, (void *)(uintptr_t)engine                         \
    }
#define ON_EACH(name) ON("loop", name), ON("shm", name), ON("tcp", name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("tcp", senders_end_and_their_receivers_hear_why),
        ON_EACH(receivers_of_an_idle_prefill_end_too),
        ON_EACH(receivers_end_and_a_stock_prefill_is_waited_for),
        ON_EACH(senders_of_a_closed_decode_hear_why),
        ON("tcp", a_write_that_does_not_end_is_left),
        ON("tcp", nothing_is_waited_for_without_time),
        ON_EACH(a_fence_that_does_not_end_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
