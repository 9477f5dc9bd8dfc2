/* Eight threads share one prefill and one decode manager: each opens, fills, aborts and closes rooms of its own, while
 * the main thread takes everybody's events. Every byte of every room that succeeds is checked. */
#include "support/worker.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { THREADS = 8, ROOMS = 60, ROOM_PAGES = 8 };

static const test_shape shape = {.buffers = 4,
                                 .pages = THREADS * ROOM_PAGES,
                                 .item_length = 4096,
                                 .aux = 1,
                                 .slots = THREADS,
                                 .aux_item_length = 64};

typedef struct scene {
    test_bootstrap bootstrap;
    test_worker prefill;
    test_worker decode;
    atomic_int running;
} scene;

typedef struct user {
    pthread_t thread;
    scene *scene;
    uint32_t number;
    uint32_t given[ROOM_PAGES];
    uint32_t filled[ROOM_PAGES];
    unsigned succeeded;
    unsigned aborted;
    char mistake[256]; /* a thread can't fail the test by itself */
} user;

static bool complain(user *one, uint64_t room, const char *what, const char *text)
{
    (void)snprintf(one->mistake, sizeof one->mistake, "room %llu: %s: %.180s",
                   (unsigned long long)room, what, text);
    return false;
}

static bool open_both(user *one, uint64_t room, kvf_sender **sender, kvf_receiver **receiver)
{
    scene *all = one->scene;
    *receiver = NULL;
    if (kvf_sender_open(all->prefill.manager, room, NULL, sender) != KVF_OK ||
        kvf_receiver_open(all->decode.manager, all->bootstrap.address, room, NULL, receiver) !=
            KVF_OK ||
        kvf_receiver_expect(*receiver, one->filled, ROOM_PAGES, one->number) != KVF_OK ||
        kvf_sender_expect(*sender, ROOM_PAGES, one->number) != KVF_OK)
        return complain(one, room, "opening", kvf_error_text());
    kvf_status status = kvf_sender_send(*sender, one->given, ROOM_PAGES);
    return status == KVF_OK || kvf_sender_poll(*sender) == KVF_FAILED ||
           complain(one, room, "sending", kvf_error_text());
}

/* Each third room is aborted on the decode side, each third one on the prefill side. */
static void abort_some(uint64_t room, kvf_sender *sender, kvf_receiver *receiver)
{
    if (room % 3 == 0)
        kvf_receiver_abort(receiver);
    else if (room % 3 == 1)
        kvf_sender_abort(sender);
}

static bool check(user *one, uint64_t room, const kvf_sender *sender, const kvf_receiver *receiver)
{
    if (kvf_receiver_poll(receiver) == KVF_FAILED) {
        one->aborted++;
        return room % 3 != 2 ||
               complain(one, room, "nobody aborted it", kvf_receiver_failure_text(receiver));
    }
    one->succeeded++;
    if (room % 3 == 2 && kvf_sender_poll(sender) != KVF_SUCCESS)
        return complain(one, room, "the sender failed", kvf_sender_failure_text(sender));
    for (uint32_t i = 0; i < ROOM_PAGES; i++)
        if (!test_page_arrived(&one->scene->prefill, one->given[i], &one->scene->decode,
                               one->filled[i]))
            return complain(one, room, "a page is wrong", "");
    if (memcmp(test_slot(&one->scene->prefill, 0, one->number),
               test_slot(&one->scene->decode, 0, one->number), shape.aux_item_length) != 0)
        return complain(one, room, "the aux record is wrong", "");
    return true;
}

static void wipe(const user *one)
{
    for (uint32_t i = 0; i < ROOM_PAGES; i++)
        for (size_t b = 0; b < shape.buffers; b++)
            memset(test_page(&one->scene->decode, b, one->filled[i]), 0xee, shape.item_length);
    memset(test_slot(&one->scene->decode, 0, one->number), 0xee, shape.aux_item_length);
}

/* The same few ids again and again: they are free when both ends are closed. */
static bool one_room(user *one, unsigned turn)
{
    uint64_t room = one->number * 1000 + turn % 7;
    kvf_sender *sender = NULL;
    kvf_receiver *receiver = NULL;
    bool fine = open_both(one, room, &sender, &receiver);
    if (fine) {
        abort_some(room, sender, receiver);
        if (kvf_receiver_wait(receiver, 30000) != KVF_PAGES_SAFE)
            fine = complain(one, room, "not safe", kvf_receiver_failure_text(receiver));
        kvf_sender_abort(sender); /* its request may never have been sent */
        if (kvf_sender_wait(sender, 30000) != KVF_PAGES_SAFE)
            fine = complain(one, room, "the source is not safe", kvf_sender_failure_text(sender));
        fine = fine && check(one, room, sender, receiver);
    }
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
    wipe(one);
    return fine;
}

static void *use(void *argument)
{
    user *one = argument;
    for (unsigned turn = 0; turn < ROOMS; turn++)
        if (!one_room(one, turn))
            break;
    (void)atomic_fetch_sub(&one->scene->running, 1);
    return NULL;
}

static void start_users(scene *all, user users[THREADS])
{
    atomic_init(&all->running, THREADS);
    for (uint32_t i = 0; i < THREADS; i++) {
        users[i] = (user){.scene = all, .number = i};
        for (uint32_t p = 0; p < ROOM_PAGES; p++) {
            users[i].given[p] = i * ROOM_PAGES + p;
            users[i].filled[p] = i * ROOM_PAGES + (p * 5 + i) % ROOM_PAGES;
        }
        assert_int_equal(pthread_create(&users[i].thread, NULL, use, &users[i]), 0);
    }
}

static void eight_threads_share_two_managers(void **state)
{
    static scene all;
    user users[THREADS];
    kvf_event events[16];
    unsigned succeeded = 0;
    unsigned aborted = 0;
    test_use_engine(*state);
    test_bootstrap_open(&all.bootstrap);
    test_worker_open(&all.prefill, KVF_PREFILL, &shape, all.bootstrap.address, NULL);
    test_worker_open(&all.decode, KVF_DECODE, &shape, NULL, NULL);
    test_worker_fill(&all.prefill);
    test_worker_fill(&all.decode);
    start_users(&all, users);
    while (atomic_load(&all.running) > 0) {
        (void)kvf_manager_wait(all.decode.manager, events, 16, 1);
        (void)kvf_manager_wait(all.prefill.manager, events, 16, 1);
    }
    for (size_t i = 0; i < THREADS; i++) {
        (void)pthread_join(users[i].thread, NULL);
        succeeded += users[i].succeeded;
        aborted += users[i].aborted;
    }
    for (size_t i = 0; i < THREADS; i++)
        if (users[i].mistake[0] != '\0')
            fail_msg("thread %zu: %s", i, users[i].mistake);
    print_message("%s: %u rooms succeeded, %u failed\n", test_engine_name(), succeeded, aborted);
    assert_int_equal(succeeded + aborted, THREADS * ROOMS);
    assert_true(succeeded >= THREADS * ROOMS / 4); /* a third isn't aborted */
    assert_true(aborted > 0);
    assert_int_equal(test_statistics(&all.decode).rooms_open, 0);
    assert_int_equal(test_statistics(&all.prefill).rooms_open, 0);
    test_worker_close(&all.decode);
    test_worker_close(&all.prefill);
    test_bootstrap_close(&all.bootstrap);
}

#define ON(engine)                                                                                 \
    {                                                                                              \
        "eight threads share two managers (" engine ")", eight_threads_share_two_managers, NULL,   \
            NULL, (void *)(uintptr_t)engine                                                        \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {ON("loop"), ON("shm"), ON("tcp")};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
