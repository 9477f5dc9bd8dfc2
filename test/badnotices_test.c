/* What arrives at a decode rank over the data plane: garbage, notifications of strangers, repeated, late and
 * contradicting ones. A prefill rank made of bare parts sends them. */
#include "support/raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define AGENT "the-rooms-own-agent"

typedef struct scene {
    test_bootstrap bootstrap; /* where the raw prefill is registered */
    test_bootstrap sane;      /* and the sound one */
    raw_prefill raw;
    test_worker prefill;
    test_worker decode;
    uint64_t next_room;
} scene;

static int start(void **state, const char *engine)
{
    scene *one = calloc(1, sizeof *one);
    test_use_engine(engine);
    test_bootstrap_open(&one->bootstrap);
    test_bootstrap_open(&one->sane);
    raw_prefill_open(&one->raw, one->bootstrap.address);
    test_worker_open(&one->prefill, KVF_PREFILL, NULL, one->sane.address, NULL);
    test_worker_open(&one->decode, KVF_DECODE, NULL, NULL,
                     (const char *const[]){"waiting_timeout", "5s", NULL});
    one->next_room = 1000;
    *state = one;
    return 0;
}

static int start_loop(void **state)
{
    return start(state, "loop");
}

static int start_shm(void **state)
{
    return start(state, "shm");
}

static int start_tcp(void **state)
{
    return start(state, "tcp");
}

static int stop(void **state)
{
    scene *one = *state;
    test_room_works(&one->prefill, &one->decode, one->sane.address, one->next_room++, 2);
    assert_int_equal(test_statistics(&one->decode).rooms_open, 0);
    raw_prefill_close(&one->raw);
    test_worker_close(&one->prefill);
    test_worker_close(&one->decode);
    test_bootstrap_close(&one->bootstrap);
    test_bootstrap_close(&one->sane);
    free(one);
    return 0;
}

/* A room of `count` pages whose request has reached the raw prefill. */
static kvf_receiver *requested(scene *one, uint64_t room, uint32_t count)
{
    static const uint32_t pages[] = {1, 2, 3, 4, 5, 6};
    kvf_receiver *receiver = test_receiver_open(&one->decode, one->bootstrap.address, room);
    assert_int_equal(kvf_receiver_expect(receiver, pages, count, 0), KVF_OK);
    raw_prefill_requested(&one->raw, room);
    return receiver;
}

static void notify(scene *one, const char *text)
{
    raw_prefill_notify(&one->raw, AGENT, text);
}

/* Waits until `dropped` notifications have been; the room's state must be `state` then. */
static void dropped(scene *one, kvf_receiver *receiver, uint64_t count, kvf_poll state)
{
    test_wait_statistic(&one->decode, notifications_dropped, count);
    assert_int_equal(kvf_receiver_poll(receiver), state);
    assert_int_equal(test_statistics(&one->decode).notifications_dropped, count);
}

static void finish(scene *one, kvf_receiver *receiver)
{
    test_receiver_ends(&one->decode, receiver, KVF_OK, NULL);
    assert_int_equal(kvf_receiver_safety(receiver), KVF_PAGES_SAFE);
    kvf_receiver_close(receiver);
}

static void garbage_is_counted_and_dropped(void **state)
{
    scene *one = *state;
    kvf_receiver *receiver = requested(one, 7, 2);
    static const char *const payloads[] = {"x", "7_kv_0_1", "nixlSerDes|", "nixlSerDes|name",
                                           "00000000-0000-0000-0000-000000000000"};
    uint64_t count = 0;
    for (size_t i = 0; i < sizeof payloads / sizeof payloads[0]; i++) {
        raw_prefill_payload(&one->raw, kvf_slice_of(payloads[i]));
        dropped(one, receiver, ++count, KVF_WAITING_FOR_INPUT);
    }
    uint8_t payload[KVF_NOTICE_PAYLOAD_MAX];
    size_t length =
        kvf_notice_payload_encode(kvf_slice_of(AGENT), kvf_slice_of("7_kv_0_1"), payload);
    for (size_t cut = 1; cut < length; cut += 3) {
        raw_prefill_payload(&one->raw, (kvf_slice){payload, cut});
        dropped(one, receiver, ++count, KVF_WAITING_FOR_INPUT);
    }
    static const char *const texts[] = {
        "hello", "_kv_0_1", "7_kv_0",    "7_kv_0_2", "7_kv_0_1_", "7_kv_-1_1", "7_kv_0_1_9",
        "7",     "x_aux",   "7_stg_0_1", "8_aux",    "8_kv_0_1",  "7_kv_0_01", "7_kv_4294967296_0"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        notify(one, texts[i]);
        dropped(one, receiver, ++count, KVF_WAITING_FOR_INPUT);
    }
    notify(one, "7_kv_0_1");
    notify(one, "7_aux");
    finish(one, receiver);
}

/* A room belongs to the agent of its first notification. */
static void other_agents_do_not_count(void **state)
{
    scene *one = *state;
    kvf_receiver *receiver = requested(one, 7, 2);
    notify(one, "7_kv_0_0");
    raw_prefill_notify(&one->raw, "another-agent", "7_kv_1_1");
    raw_prefill_notify(&one->raw, "another-agent", "7_aux");
    raw_prefill_notify(&one->raw, AGENT "x", "7_aux");
    raw_prefill_notify(&one->raw, "the-rooms-own-agen", "7_aux");
    dropped(one, receiver, 4, KVF_TRANSFERRING);
    notify(one, "7_aux");
    notify(one, "7_kv_1_1");
    finish(one, receiver);
}

/* last=0 is not last (B53); repeated ones are dropped; every order is right. */
static void a_room_ends_with_its_last_missing_part(void **state)
{
    scene *one = *state;
    static const char *const orders[][4] = {
        {"%u_kv_0_0", "%u_kv_1_1", "%u_aux"}, {"%u_kv_0_0", "%u_aux", "%u_kv_1_1"},
        {"%u_kv_1_1", "%u_kv_0_0", "%u_aux"}, {"%u_kv_1_1", "%u_aux", "%u_kv_0_0"},
        {"%u_aux", "%u_kv_0_0", "%u_kv_1_1"}, {"%u_aux", "%u_kv_1_1", "%u_kv_0_0"},
    };
    uint64_t repeated = 0;
    for (unsigned i = 0; i < 6; i++) {
        char text[32];
        kvf_receiver *receiver = requested(one, 10 + i, 3);
        for (size_t part = 0; part < 3; part++) {
            (void)snprintf(text, sizeof text, orders[i][part], 10 + i);
            notify(one, text);
            if (part == 2)
                break;
            notify(one, text);
            test_wait_statistic(&one->decode, notifications_dropped, ++repeated);
            assert_true(kvf_receiver_poll(receiver) != KVF_SUCCESS);
        }
        finish(one, receiver);
    }
    kvf_statistics statistics = test_statistics(&one->decode);
    assert_int_equal(statistics.rooms_succeeded, 6);
    assert_int_equal(statistics.notifications_received, 6 * 5);
}

static void late_ones_touch_nothing(void **state)
{
    scene *one = *state;
    kvf_receiver *receiver = requested(one, 7, 1);
    notify(one, "7_aux");
    notify(one, "7_kv_0_1"); /* the first chunk and the end in one: counted once */
    test_receiver_ends(&one->decode, receiver, KVF_OK, NULL);
    assert_int_equal(test_statistics(&one->decode).rooms_succeeded, 1);
    notify(one, "7_aux"); /* B43 */
    notify(one, "7_kv_0_1");
    notify(one, "7_kv_5_1");
    dropped(one, receiver, 3, KVF_SUCCESS);
    kvf_receiver_close(receiver);
    notify(one, "7_aux");
    test_wait_statistic(&one->decode, notifications_dropped, 4);
    /* Aborted, then what would have been its Success (B39): it only proves that the pages are nobody's. */
    receiver = requested(one, 8, 1);
    kvf_receiver_abort(receiver);
    test_receiver_ends(&one->decode, receiver, KVF_ABORTED, NULL);
    assert_int_equal(kvf_receiver_safety(receiver), KVF_PAGES_IN_USE);
    notify(one, "8_kv_0_1");
    notify(one, "8_aux");
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_COMPLETED);
    notify(one, "8_aux");
    dropped(one, receiver, 5, KVF_FAILED);
    kvf_receiver_close(receiver);
}

/* B43: for rooms that have ended, and for rooms that never were, nothing is kept. */
static void late_ones_leave_nothing(void **state)
{
    enum { WARM = 2000, ALL = 12000, LEAST = 32 }; /* bytes; a smaller entry there is not */
    scene *one = *state;
    char text[64];
    size_t before = 0;
    kvf_receiver *receiver = requested(one, 7, 1);
    notify(one, "7_aux");
    notify(one, "7_kv_0_1");
    finish(one, receiver);
    for (unsigned i = 0; i < ALL; i++) {
        static const char *const forms[] = {"%u_aux", "%u_kv_0_1", "%u_kv_0_0"};
        if (i == WARM) {
            test_wait_statistic(&one->decode, notifications_dropped, WARM);
            before = test_heap_in_use();
        }
        (void)snprintf(text, sizeof text, forms[i % 3], i % 10 == 0 ? 7 : 5000 + i);
        notify(one, text);
    }
    test_wait_statistic(&one->decode, notifications_dropped, ALL);
    size_t after = test_heap_in_use();
    print_message("%zu bytes before, %zu after\n", before, after);
    assert_true(after < before + (ALL - WARM) * LEAST / 4);
}

/* Nobody can have been told where to write: it's of another room. */
static void those_before_the_request_do_not_count(void **state)
{
    scene *one = *state;
    kvf_receiver *first = requested(one, 6, 1);
    kvf_receiver *receiver = test_receiver_open(&one->decode, one->bootstrap.address, 7);
    notify(one, "7_kv_0_1");
    notify(one, "7_aux");
    test_wait_statistic(&one->decode, notifications_dropped, 2);
    uint32_t page = 3;
    assert_int_equal(kvf_receiver_expect(receiver, &page, 1, 0), KVF_OK);
    raw_prefill_requested(&one->raw, 7);
    assert_int_equal(kvf_receiver_poll(receiver), KVF_WAITING_FOR_INPUT);
    notify(one, "7_kv_0_1");
    notify(one, "7_aux");
    finish(one, receiver);
    notify(one, "6_kv_0_1");
    notify(one, "6_aux");
    finish(one, first);
}

static void contradictions_fail_the_room(void **state)
{
    scene *one = *state;
    static const struct {
        const char *texts[3];
        const char *reason;
    } cases[] = {
        {{"20_kv_3_0"}, "at most 3 chunks"},
        {{"21_kv_4294967295_1"}, "at most 3 chunks"},
        {{"22_kv_0_1", "22_kv_1_0"}, "after chunk 0 was marked last"},
        {{"23_kv_1_1", "23_kv_2_1"}, "after chunk 1 was marked last"},
        {{"24_kv_1_1", "24_kv_1_0"}, "marked not last, after chunk 1"},
        {{"25_kv_2_0", "25_kv_1_1"}, "marked chunk 1 last, but chunk 2 had arrived"},
        {{"26_kv_1_0", "26_kv_1_1"}, "twice, the second time marked last"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvf_receiver *receiver = requested(one, 20 + i, 3); /* a stock peer: each id once */
        for (size_t text = 0; text < 3 && cases[i].texts[text] != NULL; text++)
            notify(one, cases[i].texts[text]);
        test_receiver_ends(&one->decode, receiver, KVF_PROTOCOL, cases[i].reason);
        assert_int_not_equal(kvf_receiver_safety(receiver), KVF_PAGES_SAFE);
        kvf_receiver_close(receiver);
    }
    assert_int_equal(test_statistics(&one->decode).rooms_failed, sizeof cases / sizeof cases[0]);
    assert_int_equal(test_statistics(&one->decode).notifications_dropped, 0);
}

#define ON(start_function, name) cmocka_unit_test_setup_teardown(name, start_function, stop)
#define ON_EACH(name) ON(start_loop, name), ON(start_shm, name), ON(start_tcp, name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(garbage_is_counted_and_dropped),
        ON_EACH(other_agents_do_not_count),
        ON_EACH(a_room_ends_with_its_last_missing_part),
        ON(start_loop, late_ones_touch_nothing),
        ON_EACH(late_ones_leave_nothing),
        ON(start_loop, those_before_the_request_do_not_count),
        ON(start_loop, contradictions_fail_the_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
