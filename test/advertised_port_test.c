/* The port that peers are told, which need not be the one that is bound: behind a translator of addresses it isn't. */
#include "support/raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOLD = 4711 };

typedef struct scene {
    test_bootstrap bootstrap;
    raw_prefill raw;
    test_worker decode;
    test_worker prefill;
} scene;

static scene one;

static void start(bool registered, const char *const *decode)
{
    test_use_engine("loop");
    test_bootstrap_open(&one.bootstrap);
    raw_prefill_open(&one.raw, registered ? one.bootstrap.address : NULL);
    test_worker_open(&one.decode, KVF_DECODE, NULL, NULL, decode);
}

static int stop(void **state)
{
    (void)state;
    test_worker_close(&one.decode);
    test_worker_close(&one.prefill);
    raw_prefill_close(&one.raw);
    test_bootstrap_close(&one.bootstrap);
    memset(&one, 0, sizeof one);
    return 0;
}

static void ask(void)
{
    static const uint32_t page = 3;
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, &page, 1, 0), KVF_OK);
    raw_prefill_requested(&one.raw, 1);
    kvf_receiver_close(receiver);
}

static void a_decode_tells_the_port_it_has(void **state)
{
    (void)state;
    start(true, NULL);
    ask();
    assert_int_not_equal(one.raw.decode_port, 0);
    assert_int_equal(one.raw.decode_port, kvf_manager_port(one.decode.manager));
}

static void or_the_one_it_is_to_tell(void **state)
{
    static const char *const told[] = {"advertise_port", "4711", NULL};
    (void)state;
    start(true, told);
    ask();
    assert_int_equal(one.raw.decode_port, TOLD);
    assert_int_not_equal(kvf_manager_port(one.decode.manager), TOLD);
}

/* Nothing listens: there is none to tell. */
static void or_none(void **state)
{
    static const char *const told[] = {"advertise_port", "4711", "extensions", "off", NULL};
    (void)state;
    start(true, told);
    ask();
    assert_int_equal(one.raw.decode_port, 0);
    assert_int_equal(kvf_manager_port(one.decode.manager), 0);
}

/* The request goes to the port that was told, where somebody else listens. */
static void a_prefill_registers_the_port_it_is_to_tell(void **state)
{
    char port[8];
    const char *const told[] = {"advertise_port", port, NULL};
    (void)state;
    start(false, NULL);
    (void)snprintf(port, sizeof port, "%u", one.raw.port);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, one.bootstrap.address, told);
    ask();
    assert_int_equal(test_statistics(&one.prefill).messages_received, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_decode_tells_the_port_it_has, stop),
        cmocka_unit_test_teardown(or_the_one_it_is_to_tell, stop),
        cmocka_unit_test_teardown(or_none, stop),
        cmocka_unit_test_teardown(a_prefill_registers_the_port_it_is_to_tell, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
