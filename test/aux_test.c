/* Which aux buffers a prefill writes: SGLang 0.4.7's own writes the first, and its decode names all. */
#include "support/raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct scene {
    test_bootstrap bootstrap;
    test_worker prefill;
    raw_decode raw;
} scene;

static scene one;

static int start(void **state)
{
    test_use_engine(*state);
    test_bootstrap_open(&one.bootstrap);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, one.bootstrap.address, NULL);
    test_worker_fill(&one.prefill);
    raw_decode_open(&one.raw, "raw-decode", kvf_manager_port(one.prefill.manager));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    raw_decode_close(&one.raw);
    test_worker_close(&one.prefill);
    test_bootstrap_close(&one.bootstrap);
    return 0;
}

/* Hands over one page, from aux slot 3 to 1 (raw_decode_request()). */
static void move_one(kvf_request *request)
{
    uint32_t page = 6;
    kvf_sender *sender = test_sender_open(&one.prefill, request->room);
    uint64_t before = one.raw.notifications;
    assert_int_equal(kvf_sender_expect(sender, 1, 3), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, &page, 1), KVF_OK);
    raw_decode_send(&one.raw, request);
    assert_true(raw_decode_notified(&one.raw, before + 2));
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
}

static bool slot_arrived(size_t aux)
{
    return memcmp(test_slot(&one.prefill, aux, 3), test_slot(&one.raw.worker, aux, 1),
                  one.prefill.shape.aux_item_length) == 0;
}

static void a_stock_decode_gets_all_aux_buffers_it_names(void **state)
{
    (void)state;
    static const uint64_t page = 9;
    kvf_request request = raw_decode_request(&one.raw, 7, &page, 1);
    move_one(&request);
    for (size_t aux = 0; aux < one.prefill.shape.aux; aux++)
        assert_true(slot_arrived(aux));
}

static void a_stock_decode_that_names_one_gets_one(void **state)
{
    (void)state;
    static const uint64_t page = 9;
    kvf_request request = raw_decode_request(&one.raw, 7, &page, 1);
    request.aux.length = 8;
    move_one(&request);
    assert_true(slot_arrived(0));
    assert_false(slot_arrived(1));
}

/* One that lies in no region of its metadata is left out, like those after it: only the first is promised. */
static void what_lies_nowhere_is_left_out(void **state)
{
    (void)state;
    static const uint64_t page = 9;
    uint8_t pointers[16];
    kvf_request request = raw_decode_request(&one.raw, 7, &page, 1);
    memcpy(pointers, request.aux.data, 16);
    kvf_write_u64(pointers + 8, 4096);
    request.aux = (kvf_slice){pointers, 16};
    move_one(&request);
    assert_true(slot_arrived(0));
    assert_false(slot_arrived(1));
}

#define ON(engine, name)                                                                           \
    {                                                                                              \
#name " (" engine ")", name, start, stop, (void *)(uintptr_t)engine                        \
    }
#define ON_EACH(name) ON("loop", name), ON("shm", name), ON("tcp", name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(a_stock_decode_gets_all_aux_buffers_it_names),
        ON_EACH(a_stock_decode_that_names_one_gets_one),
        ON_EACH(what_lies_nowhere_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
