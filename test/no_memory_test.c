/* Memory is used up: each single allocation that kvferry's own code makes for a room fails once, the first, the second
 * and so on. Every room ends nevertheless and says why, nothing leaks, and the next room works. The linker gives
 * kvferry's objects these functions in place of the C library's; UCX, ZeroMQ and the others keep theirs. */
#include "support/worker.h"

#include "data/engine.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 4, LIVE_MAX = 1 << 16 };

/* ---- Allocation ------------------------------------------------------------------------------------ */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void __wrap_free(void *memory);

static struct {
    pthread_mutex_t lock;
    uint64_t until_failure; /* 0: none fails */
    bool failed;
    void *live[LIVE_MAX];
    size_t live_count;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool fails_now(void)
{
    pthread_mutex_lock(&memory.lock);
    bool fails = memory.until_failure > 0 && --memory.until_failure == 0;
    memory.failed |= fails;
    pthread_mutex_unlock(&memory.lock);
    return fails;
}

static void *remember(void *made)
{
    pthread_mutex_lock(&memory.lock);
    if (made != NULL && memory.live_count < LIVE_MAX)
        memory.live[memory.live_count++] = made;
    pthread_mutex_unlock(&memory.lock);
    return made;
}

/* What others have made isn't there. */
static void forget(const void *old)
{
    pthread_mutex_lock(&memory.lock);
    for (size_t i = 0; i < memory.live_count; i++)
        if (memory.live[i] == old) {
            memory.live[i] = memory.live[--memory.live_count];
            break;
        }
    pthread_mutex_unlock(&memory.lock);
}

void *__wrap_malloc(size_t size)
{
    return fails_now() ? NULL : remember(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails_now() ? NULL : remember(__real_calloc(count, size));
}

void *__wrap_realloc(void *old, size_t size)
{
    if (fails_now())
        return NULL;
    forget(old);
    return remember(__real_realloc(old, size));
}

void __wrap_free(void *old)
{
    forget(old);
    __real_free(old);
}

static void fail_allocation(uint64_t number)
{
    pthread_mutex_lock(&memory.lock);
    memory.until_failure = number;
    memory.failed = false;
    pthread_mutex_unlock(&memory.lock);
}

/* Whether it came to that allocation. */
static bool end_of_failures(void)
{
    pthread_mutex_lock(&memory.lock);
    memory.until_failure = 0;
    bool failed = memory.failed;
    pthread_mutex_unlock(&memory.lock);
    return failed;
}

static size_t live_allocations(void)
{
    pthread_mutex_lock(&memory.lock);
    size_t count = memory.live_count;
    pthread_mutex_unlock(&memory.lock);
    return count;
}

/* ---- Rooms ----------------------------------------------------------------------------------------- */

static const uint32_t pages[PAGES] = {4, 5, 20, 21};

/* What ends by a deadline because a message got lost, ends soon. */
static const char *const hasty[] = {"bootstrap_timeout",
                                    "2s",
                                    "waiting_timeout",
                                    "2s",
                                    "fence_timeout",
                                    "200ms",
                                    "retry_interval",
                                    "2ms",
                                    "hold_timeout",
                                    "60s",
                                    NULL};

static struct {
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode;
    kvf_sender *sender;
    kvf_receiver *receiver;
    unsigned calls; /* that were refused */
    unsigned rooms; /* that ended so */
    unsigned timeouts;
    unsigned unharmed;
} one;

/* A call says what is missing, or works. */
static bool taken(kvf_status status)
{
    if (status == KVF_OK)
        return true;
    if (status != KVF_NO_MEMORY || strstr(kvf_error_text(), "no memory") == NULL)
        fail_msg("a call failed with %s: %s", kvf_status_name(status), kvf_error_text());
    one.calls++;
    return false;
}

/* A call on a room that the loop has given up meanwhile says so instead. */
static bool sent(kvf_status status)
{
    return (status != KVF_OK && kvf_sender_poll(one.sender) == KVF_FAILED) || taken(status);
}

static bool expected(kvf_status status)
{
    return (status != KVF_OK && kvf_receiver_poll(one.receiver) == KVF_FAILED) || taken(status);
}

static bool begin_room(uint64_t room)
{
    return taken(kvf_receiver_open(one.decode.manager, one.bootstrap.address, room, NULL,
                                   &one.receiver)) &&
           expected(kvf_receiver_expect(one.receiver, pages, PAGES, 1)) &&
           taken(kvf_sender_open(one.prefill.manager, room, NULL, &one.sender)) &&
           sent(kvf_sender_expect(one.sender, PAGES, 2)) &&
           sent(kvf_sender_send(one.sender, pages, PAGES));
}

/* The other side is told, or gives up as a router would have it. */
static void count_end(uint64_t number, kvf_status status, const char *text)
{
    if (status == KVF_NO_MEMORY)
        one.rooms++;
    else if (status == KVF_TIMEOUT)
        one.timeouts++;
    else if (status != KVF_OK && status != KVF_ABORTED && status != KVF_PEER_FAILED)
        fail_msg("failure number %llu ends a room with %s: %s", (unsigned long long)number,
                 kvf_status_name(status), text);
}

/* As a router does: who hears that one side has failed for want of memory gives the other one up. */
static void end_room(uint64_t number)
{
    kvf_event event;
    while (kvf_receiver_poll(one.receiver) != KVF_SUCCESS &&
           kvf_receiver_poll(one.receiver) != KVF_FAILED &&
           kvf_sender_status(one.sender) != KVF_NO_MEMORY)
        (void)kvf_manager_wait(one.decode.manager, &event, 1, 10);
    if (kvf_receiver_poll(one.receiver) == KVF_FAILED)
        kvf_sender_abort(one.sender);
    else
        kvf_receiver_abort(one.receiver);
    test_sender_settles(&one.prefill, one.sender);
    test_receiver_settles(&one.decode, one.receiver);
    count_end(number, kvf_sender_status(one.sender), kvf_sender_failure_text(one.sender));
    count_end(number, kvf_receiver_status(one.receiver), kvf_receiver_failure_text(one.receiver));
    if (kvf_receiver_poll(one.receiver) == KVF_SUCCESS) {
        one.unharmed++;
        for (size_t i = 0; i < PAGES; i++)
            assert_true(test_page_arrived(&one.prefill, pages[i], &one.decode, pages[i]));
    }
}

/* One room whose allocation of that number fails; false when it has fewer. */
static bool one_failure(uint64_t number, bool warm)
{
    test_bootstrap_open(&one.bootstrap);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, one.bootstrap.address, hasty);
    test_worker_open(&one.decode, KVF_DECODE, NULL, NULL, hasty);
    test_wait_statistic(&one.prefill, registered, 1);
    if (warm)
        test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 7, PAGES);
    test_worker_fill(&one.prefill);
    test_worker_fill(&one.decode);
    one.sender = NULL;
    one.receiver = NULL;
    fail_allocation(number);
    if (begin_room(1))
        end_room(number);
    bool failed = end_of_failures();
    kvf_sender_close(one.sender);
    kvf_receiver_close(one.receiver);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 2, PAGES);
    test_worker_close(&one.prefill);
    test_worker_close(&one.decode);
    test_bootstrap_close(&one.bootstrap);
    return failed;
}

/* With an old UCX what it can't destroy without ending the process is left behind, also where nothing fails. */
static bool may_leave_something(const char *engine)
{
    return strcmp(engine, "loop") != 0 && !kvf_ucx_is_at_least(19);
}

static void each_allocation_of_a_room(const char *engine, bool warm)
{
    test_use_engine(engine);
    one.calls = one.rooms = one.timeouts = one.unharmed = 0;
    size_t before = live_allocations();
    uint64_t number = 1;
    while (one_failure(number, warm)) {
        if (live_allocations() != before && !may_leave_something(engine))
            fail_msg("%zu allocations are left after the failure of number %llu",
                     live_allocations() - before, (unsigned long long)number);
        number++;
    }
    print_message(
        "%llu allocations: %u calls and %u ends of rooms with KVF_NO_MEMORY, %u with KVF_TIMEOUT, "
        "%u rooms succeeded\n",
        (unsigned long long)number - 1, one.calls, one.rooms, one.timeouts, one.unharmed);
    assert_true(number > 5);
    assert_true(one.calls > 0);
    assert_true(one.rooms > 0);
    /* Where even the agent that asks, or its connection, can't be remembered, nobody can be told. */
    assert_true(!warm || one.timeouts == 0);
}

static void the_first_room_of_two_managers(void **state)
{
    each_allocation_of_a_room(*state, false);
}

static void a_later_room(void **state)
{
    each_allocation_of_a_room(*state, true);
}

/* ---- Managers -------------------------------------------------------------------------------------- */

static void a_manager_that_cannot_be_opened(void **state)
{
    test_use_engine(*state);
    size_t before = live_allocations();
    for (uint64_t number = 1;; number++) {
        test_worker worker;
        kvf_settings *settings;
        test_worker_build(&worker, NULL);
        assert_int_equal(kvf_settings_open(&settings), KVF_OK);
        assert_int_equal(kvf_settings_set(settings, "engine", "loop"), KVF_OK);
        assert_int_equal(kvf_settings_set(settings, "advertise_address", "127.0.0.1"), KVF_OK);
        fail_allocation(number);
        kvf_status status =
            kvf_manager_open(&worker.manager, KVF_PREFILL, &worker.layout, settings);
        bool failed = end_of_failures();
        if (!taken(status))
            assert_null(worker.manager);
        kvf_settings_close(settings);
        test_worker_close(&worker);
        if (live_allocations() != before)
            fail_msg("%zu allocations are left after the failure of number %llu",
                     live_allocations() - before, (unsigned long long)number);
        if (!failed)
            break;
    }
}

#define ON(engine, name)                                                                           \
    {                                                                                              \
#name " (" engine ")", name, NULL, NULL, (void *)(uintptr_t)engine                         \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON("loop", a_manager_that_cannot_be_opened),
        ON("loop", the_first_room_of_two_managers),
        ON("loop", a_later_room),
        ON("shm", a_later_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
