/* A write, a flush or a notification that fails, between real managers: who hears of it, with which words, and that
 * nobody's pages stay in use. */
#include "support/worker.h"

#include "data/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sys/mman.h>

enum { PAGES = 6, CHUNK = 2 };

static const uint32_t source[PAGES] = {5, 6, 7, 1, 2, 9};
static const uint32_t destination[PAGES] = {20, 21, 3, 4, 30, 31};
static const char *const patient[] = {"fence_timeout", "60s", NULL};

static struct {
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode;
    uint64_t released; /* rooms without a proof */
} one;

static void start(const char *engine, const char *const *prefill, const char *const *decode)
{
    one.released = 0;
    test_use_engine(engine);
    test_bootstrap_open(&one.bootstrap);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, one.bootstrap.address, prefill);
    test_worker_open(&one.decode, KVF_DECODE, NULL, NULL, decode);
    test_worker_fill(&one.prefill);
    test_worker_fill(&one.decode);
}

/* Whatever failed: the next rooms work, the same id among them, and nothing is left. */
static int stop(void **state)
{
    (void)state;
    if (one.decode.manager == NULL)
        return 0; /* skipped */
    assert_int_equal(mprotect(one.decode.memory, one.decode.memory_length, PROT_READ | PROT_WRITE),
                     0);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 1, PAGES);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 2, PAGES);
    kvf_statistics statistics = test_statistics(&one.prefill);
    assert_int_equal(statistics.rooms_open, 0);
    assert_int_equal(statistics.transfers_active, 0);
    assert_int_equal(statistics.rooms_released, 0);
    statistics = test_statistics(&one.decode);
    assert_int_equal(statistics.rooms_open, 0);
    assert_int_equal(statistics.rooms_fencing, 0);
    assert_int_equal(statistics.rooms_released, one.released);
    test_worker_close(&one.prefill);
    test_worker_close(&one.decode);
    test_bootstrap_close(&one.bootstrap);
    return 0;
}

static kvf_receiver *ask(void)
{
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, destination, PAGES, 3), KVF_OK);
    return receiver;
}

/* In chunks of two pages; one that is given after the room has failed is refused with the room's reason. */
static kvf_sender *give(void)
{
    kvf_sender *sender = test_sender_open(&one.prefill, 1);
    assert_int_equal(kvf_sender_expect(sender, PAGES, 6), KVF_OK);
    for (uint32_t i = 0; i < PAGES; i += CHUNK) {
        kvf_status status = kvf_sender_send(sender, source + i, CHUNK);
        assert_true(status == KVF_OK || kvf_sender_poll(sender) == KVF_FAILED);
    }
    return sender;
}

/* The sender says what failed, its pages are safe, and the decode hears the same words. */
static void fails(kvf_receiver *receiver, kvf_status status, const char *what)
{
    char told[512];
    kvf_sender *sender = give();
    test_sender_ends(&one.prefill, sender, status, what);
    (void)snprintf(told, sizeof told, "%s: %s", kvf_status_name(status),
                   kvf_sender_failure_text(sender));
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, told);
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_sender_proof(sender), KVF_PROOF_TRANSPORT_DONE);
    kvf_sender_close(sender);
}

static void is_proven(kvf_receiver *receiver)
{
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_ACKNOWLEDGED);
    kvf_receiver_close(receiver);
}

static void fails_as_injected(const char *engine, const char *fault, const char *what)
{
    const char *const failing[] = {"fault", fault, "fence_timeout", "60s", NULL};
    start(engine, failing, patient);
    kvf_receiver *receiver = ask();
    fails(receiver, KVF_TRANSPORT, what);
    is_proven(receiver);
}

static void a_first_write_that_fails_is_told(void **state)
{
    fails_as_injected(*state, "transfer_fail=1", "injected: the transfer failed");
}

static void a_last_write_that_fails_is_told(void **state)
{
    fails_as_injected(*state, "transfer_fail=3", "injected: the transfer failed");
}

static void a_connection_that_fails_is_told(void **state)
{
    fails_as_injected(*state, "connect_fail=1", "injected: the connection failed");
    for (uint32_t i = 0; i < PAGES; i++)
        assert_true(test_page_untouched(&one.decode, destination[i]));
}

/* No fault is injected: the kernel refuses to write to the decode's pages, and UCX gives the peer up. Nothing was flushed
 * then, so nobody acknowledges, and a direct mapping can't be closed: no proof is claimed. */
static void what_the_kernel_refuses_is_told(void **state)
{
    static const char *const hasty[] = {"fence_timeout", "50ms", NULL};
    if (!kvf_ucx_is_at_least(19)) {
        print_message("skipped: UCX %s ends the process there\n", kvf_ucx_version());
        skip();
    }
    start(*state, patient, hasty);
    assert_int_equal(mprotect(one.decode.memory, one.decode.memory_length, PROT_READ), 0);
    kvf_receiver *receiver = ask();
    fails(receiver, KVF_PEER_GONE, "UCX lost the peer");
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_RELEASED);
    kvf_receiver_close(receiver);
    one.released = 1;
}

/* The sender can't know: it has done its part. The decode ends by its deadline, and is told that nothing more comes. */
static void is_lost(const char *engine, const char *const *losing, const char *text)
{
    static const char *const hasty[] = {"waiting_timeout", "1s", "fence_timeout", "60s", NULL};
    start(engine, losing, hasty);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 3, PAGES); /* connects */
    kvf_receiver *receiver = ask();
    kvf_sender *sender = give();
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    test_receiver_ends(&one.decode, receiver, KVF_TIMEOUT, text);
    assert_int_equal(kvf_sender_safety(sender), KVF_PAGES_SAFE);
    kvf_sender_close(sender);
    is_proven(receiver);
}

static void a_lost_notification_of_a_chunk_ends_by_the_deadline(void **state)
{
    static const char *const losing[] = {"fault", "notify_drop=4", NULL};
    is_lost(*state, losing, "after 2 chunks (the last among them) the rest did not arrive within");
}

static void a_lost_notification_of_the_aux_record_ends_by_the_deadline(void **state)
{
    static const char *const losing[] = {"fault", "notify_drop=6", NULL};
    is_lost(*state, losing, "after 3 chunks (the last among them) the rest did not arrive within");
}

#define ON(engine, name)                                                                           \
    {                                                                                              \
#name " (" engine ")", name, NULL, stop, (void *)(uintptr_t)engine                         \
    }
#define ON_EACH(name) ON("loop", name), ON("shm", name), ON("tcp", name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(a_first_write_that_fails_is_told),
        ON_EACH(a_last_write_that_fails_is_told),
        ON_EACH(a_connection_that_fails_is_told),
        ON("shm", what_the_kernel_refuses_is_told),
        ON_EACH(a_lost_notification_of_a_chunk_ends_by_the_deadline),
        ON_EACH(a_lost_notification_of_the_aux_record_ends_by_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
