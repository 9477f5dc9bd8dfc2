/* A room that is opened while the loss of its rank is put off, for the sake of the rank's last letter, never relied on the
 * lost connection: it is for the prefill that comes next. */
#include "base/clock.h"
#include "support/raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const uint32_t pages[] = {1, 2};
enum { PAGES = 2 };

/* Opens rooms until the one that relied on the connection has failed, each for long enough to be found if that were still
 * done. Returns the last of them; NULL where it may have been found before the loss, as the machine was busy. */
static kvf_receiver *open_until_lost(test_worker *decode, const char *address, kvf_receiver *lost,
                                     uint64_t *room)
{
    enum { STEP_MS = 30, LEAST = 3 }; /* the loss is put off by 100 ms */
    kvf_receiver *latest = NULL;
    int steps = 0;
    while (kvf_receiver_poll(lost) != KVF_FAILED) {
        kvf_event event;
        kvf_receiver_close(latest);
        latest = test_receiver_open(decode, address, ++*room);
        steps++;
        uint64_t until = kvf_clock_now() + STEP_MS * KVF_MILLISECOND;
        while (kvf_clock_now() < until && kvf_receiver_poll(lost) != KVF_FAILED)
            (void)kvf_manager_wait(decode->manager, &event, 1, 1);
    }
    if (steps >= LEAST)
        return latest;
    kvf_receiver_close(latest);
    return NULL;
}

/* False: nothing was learned. */
static bool look_again(void)
{
    static const char *const assuming[] = {"peer_extensions", "assume", NULL};
    test_bootstrap bootstrap;
    test_worker decode;
    raw_prefill prefill = {0};
    raw_prefill next = {0};
    raw_push letters;
    uint64_t room = 1;
    test_use_engine("loop");
    test_bootstrap_open(&bootstrap);
    raw_prefill_open(&prefill, bootstrap.address);
    test_worker_open(&decode, KVF_DECODE, NULL, NULL, assuming);
    raw_push_open(&letters, kvf_manager_port(decode.manager));
    kvf_receiver *lost = test_receiver_open(&decode, bootstrap.address, room);
    assert_int_equal(kvf_receiver_expect(lost, pages, PAGES, 0), KVF_OK);
    raw_prefill_requested(&prefill, room);
    /* Over a connection that goes on, so that a last letter may come. */
    raw_prefill_greets(&prefill, &letters);
    test_wait_statistic(&decode, messages_received, 1);
    raw_prefill_open(&next, bootstrap.address); /* who asks now is sent there */
    raw_prefill_close(&prefill);
    kvf_receiver *latest = open_until_lost(&decode, bootstrap.address, lost, &room);
    bool learned = latest != NULL;
    test_receiver_ends(&decode, lost, KVF_PEER_GONE, "prefill rank 0");
    if (learned && kvf_receiver_expect(latest, pages, PAGES, 0) != KVF_OK)
        fail_msg("%s", kvf_error_text());
    if (learned)
        raw_prefill_requested(&next, room);
    kvf_receiver_close(latest);
    kvf_receiver_close(lost);
    raw_push_close(&letters);
    raw_prefill_close(&next);
    test_worker_close(&decode);
    test_bootstrap_close(&bootstrap);
    return learned;
}

static void a_room_opened_meanwhile_is_looked_up_again(void **state)
{
    enum { TRIES = 20 };
    (void)state;
    int tries = 1;
    while (!look_again())
        assert_true(tries++ < TRIES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_room_opened_meanwhile_is_looked_up_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
