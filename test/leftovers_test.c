/* What must not grow with the number of rooms: sockets, whoever opens the rooms; what failed transfers leave; and inboxes
 * that were retired. */
#include "base/clock.h"
#include "data/engine.h"
#include "support/process.h"
#include "support/worker.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { THREADS = 16, ROOMS = 60, PAGES = 3 };

typedef struct scene {
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode;
    atomic_uint running;
    atomic_uint mistakes;
} scene;

static const test_shape shape = {.buffers = 2,
                                 .pages = THREADS * PAGES,
                                 .item_length = 512,
                                 .aux = 1,
                                 .slots = THREADS,
                                 .aux_item_length = 64};

static scene one;

static void start(const char *engine, const char *const *prefill, const char *const *decode)
{
    memset(&one, 0, sizeof one);
    test_use_engine(engine);
    test_bootstrap_open(&one.bootstrap);
    test_worker_open(&one.prefill, KVF_PREFILL, &shape, one.bootstrap.address, prefill);
    test_worker_open(&one.decode, KVF_DECODE, &shape, NULL, decode);
}

static int stop(void **state)
{
    (void)state;
    test_worker_close(&one.decode);
    test_worker_close(&one.prefill);
    test_bootstrap_close(&one.bootstrap);
    return 0;
}

/* ---- Sockets ------------------------------------------------------------------------------------------- */

typedef struct user {
    pthread_t thread;
    uint32_t number;
} user;

static bool one_room(uint64_t room, const uint32_t *pages, uint32_t slot)
{
    kvf_sender *sender = NULL;
    kvf_receiver *receiver = NULL;
    bool fine = kvf_sender_open(one.prefill.manager, room, NULL, &sender) == KVF_OK &&
                kvf_receiver_open(one.decode.manager, one.bootstrap.address, room, NULL,
                                  &receiver) == KVF_OK &&
                kvf_receiver_expect(receiver, pages, PAGES, slot) == KVF_OK &&
                kvf_sender_expect(sender, PAGES, slot) == KVF_OK &&
                kvf_sender_send(sender, pages, PAGES) == KVF_OK &&
                kvf_receiver_wait(receiver, 30000) == KVF_PAGES_SAFE &&
                kvf_receiver_poll(receiver) == KVF_SUCCESS;
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
    return fine;
}

static void *use(void *argument)
{
    const user *self = argument;
    uint32_t pages[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = self->number * PAGES + i;
    for (uint64_t i = 0; i < ROOMS; i++)
        if (!one_room(1000 * (self->number + UINT64_C(1)) + i, pages, self->number))
            (void)atomic_fetch_add(&one.mistakes, 1);
    (void)atomic_fetch_sub(&one.running, 1);
    return NULL;
}

/* A room that succeeds, and one whose failure has been told: there are connections both ways then. */
static void connect_both_ways(void)
{
    static const uint32_t page = 3;
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 1, PAGES);
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 2);
    kvf_sender *sender = test_sender_open(&one.prefill, 2);
    assert_int_equal(kvf_receiver_expect(receiver, &page, 1, 0), KVF_OK);
    test_wait_statistic(&one.prefill, messages_received, 2);
    kvf_sender_abort(sender);
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "aborted");
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

/* B28: all threads' rooms go over the connections that the first rooms made. */
static void rooms_of_many_threads_open_no_socket(void **state)
{
    static const char *const unhurried[] = {"registration_check", "3600s",
                                            NULL}; /* no HTTP later on */
    user users[THREADS];
    kvf_event events[16];
    start(*state, unhurried, NULL);
    connect_both_ways();
    size_t before = test_entries("/proc/self/fd");
    size_t most = 0;
    atomic_store(&one.running, THREADS);
    for (uint32_t i = 0; i < THREADS; i++) {
        users[i].number = i;
        assert_int_equal(pthread_create(&users[i].thread, NULL, use, &users[i]), 0);
    }
    while (atomic_load(&one.running) > 0) {
        size_t now = test_entries("/proc/self/fd");
        most = now > most ? now : most;
        (void)kvf_manager_wait(one.decode.manager, events, 16, 1);
        (void)kvf_manager_wait(one.prefill.manager, events, 16, 1);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        (void)pthread_join(users[i].thread, NULL);
    assert_int_equal(atomic_load(&one.mistakes), 0);
    print_message("%zu descriptors before, %zu at most\n", before, most);
    assert_true(most <= before); /* an idle HTTP connection may have been closed */
    assert_true(test_entries("/proc/self/fd") <= before);
    assert_int_equal(test_statistics(&one.prefill).peers, 1);
    assert_int_equal(test_statistics(&one.decode).peers, 1);
}

/* ---- Failures -------------------------------------------------------------------------------------------- */

/* The first of two chunks is written, and then its transfer fails. */
static void fail_a_room(uint64_t room, const uint32_t *pages)
{
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, room);
    kvf_sender *sender = test_sender_open(&one.prefill, room);
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, 1), KVF_OK);
    assert_int_equal(kvf_sender_expect(sender, PAGES, 1), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, pages, 2), KVF_OK);
    test_sender_ends(&one.prefill, sender, KVF_TRANSPORT, "injected: the transfer failed");
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "injected: the transfer failed");
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

static void nothing_is_open(const test_worker *worker)
{
    kvf_statistics statistics = test_statistics(worker);
    assert_int_equal(statistics.rooms_open, 0);
    assert_int_equal(statistics.rooms_fencing, 0);
    assert_int_equal(statistics.requests_held, 0);
    assert_int_equal(statistics.transfers_active, 0);
    assert_int_equal(statistics.rooms_failed, statistics.rooms_opened);
    assert_int_equal(statistics.peers, 1);
}

/* B42: and the same few ids again and again. */
static void failed_transfers_leave_nothing(void **state)
{
    enum { WARM = 300, ALL = 2300, LEAST = 32 }; /* bytes; a smaller entry there is not */
    /* Letters that were sent are kept for a while, so many at most. */
    static const char *const failing[] = {"fault", "transfer_fail=all", "max_waiting_letters", "8",
                                          NULL};
    static const uint32_t pages[PAGES] = {4, 5, 9};
    size_t before = 0;
    start(*state, failing, NULL);
    for (uint64_t i = 0; i < ALL; i++) {
        if (i == WARM)
            before = test_heap_in_use();
        fail_a_room(i % 7, pages);
    }
    size_t after = test_heap_in_use();
    print_message("%zu bytes before, %zu after\n", before, after);
    assert_true(after < before + (ALL - WARM) * LEAST / 4);
    nothing_is_open(&one.prefill);
    nothing_is_open(&one.decode);
}

/* ---- Inboxes --------------------------------------------------------------------------------------------- */

/* Aborted, and written by the stock prefill nevertheless, which proves that it writes no more. */
static void abort_and_complete(uint64_t room)
{
    static const uint32_t pages[PAGES] = {4, 5, 9};
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, room);
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, 1), KVF_OK);
    test_wait_statistic(&one.prefill, requests_held, 1);
    kvf_receiver_abort(receiver);
    kvf_sender *sender = test_sender_open(&one.prefill, room);
    assert_int_equal(kvf_sender_expect(sender, PAGES, 1), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, pages, PAGES), KVF_OK);
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_COMPLETED);
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

/* With fence=strict an abort gives the rank a new inbox. The old one, of six descriptors and more, goes with its last
 * room. */
static void retired_inboxes_are_closed(void **state)
{
    enum { WARM = 3, ALL = 40 };
    static const char *const stock[] = {"extensions", "off", NULL};
    static const char *const strict[] = {"fence", "strict", "fence_timeout", "60s", NULL};
    if (!kvf_ucx_is_at_least(19)) {
        print_message("skipped: UCX %s doesn't let workers be destroyed\n", kvf_ucx_version());
        skip();
    }
    size_t before = 0;
    start(*state, stock, strict);
    for (uint64_t room = 0; room < ALL; room++) {
        if (room == WARM)
            before = test_entries("/proc/self/fd");
        abort_and_complete(room);
    }
    uint64_t deadline = kvf_clock_now() + 30 * KVF_SECOND;
    while (test_entries("/proc/self/fd") > before + ALL && kvf_clock_now() < deadline)
        continue;
    print_message("%zu descriptors before, %zu after\n", before, test_entries("/proc/self/fd"));
    assert_true(test_entries("/proc/self/fd") <= before + ALL);
}

#define ON(engine, name)                                                                           \
    {                                                                                              \
#name " (" engine ")", name, NULL, stop, (void *)(uintptr_t)engine                         \
    }
#define ON_EACH(name) ON("loop", name), ON("shm", name), ON("tcp", name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(rooms_of_many_threads_open_no_socket),
        ON_EACH(failed_transfers_leave_nothing),
        ON("tcp", retired_inboxes_are_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
