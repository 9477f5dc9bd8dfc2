/* What a room publishes is seen whole: as an event, and without a call. */
#include "manager/manager.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sys/eventfd.h>

enum { EVENTS = 300000, VIEWS = 3000000 };

typedef struct scene {
    kvf_manager manager;
    kvf_room room;
    int publications;    /* at least */
    atomic_uint changes; /* of what a reader has seen; the publisher goes on until there was one */
    atomic_bool over;
} scene;

static void ignore(void *user, kvf_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

/* As much of a manager as a room needs to publish. */
static scene *start(int publications)
{
    scene *made = calloc(1, sizeof *made);
    assert_non_null(made);
    kvf_settings_defaults(&made->manager.settings);
    made->manager.settings.log.callback = ignore;
    made->manager.event_fd = eventfd(0, EFD_NONBLOCK);
    assert_true(made->manager.event_fd >= 0);
    pthread_mutex_init(&made->manager.lock, NULL);
    pthread_cond_init(&made->manager.settled, NULL);
    made->room.manager = &made->manager;
    made->publications = publications;
    made->room.in_table = true;
    return made;
}

static void stop(scene *one)
{
    (void)close(one->manager.event_fd);
    pthread_mutex_destroy(&one->manager.lock);
    pthread_cond_destroy(&one->manager.settled);
    free(one);
}

/* Two outcomes that have nothing in common, in turns: no real room does that, but each pair of moments that a reader
 * could mix up comes by again and again. */
static void *publish_in_turns(void *user)
{
    scene *one = user;
    kvf_outcome under_way = {.state = KVF_TRANSFERRING, .safety = KVF_PAGES_IN_USE};
    kvf_outcome over = {.state = KVF_FAILED,
                        .safety = KVF_PAGES_SAFE,
                        .proof = KVF_PROOF_TRANSPORT_DONE,
                        .error.status = KVF_ABORTED};
    for (int i = 0; i < one->publications || atomic_load(&one->changes) == 0; i++) {
        kvf_room_publish(&one->room, &under_way, 1);
        kvf_room_publish(&one->room, &over, 2);
    }
    atomic_store(&one->over, true);
    return NULL;
}

static void check_event(const kvf_event *event)
{
    bool under_way = event->state == KVF_TRANSFERRING && event->status == KVF_OK &&
                     event->safety == KVF_PAGES_IN_USE && event->proof == KVF_PROOF_NONE &&
                     event->bytes == 1;
    bool over = event->state == KVF_FAILED && event->status == KVF_ABORTED &&
                event->safety == KVF_PAGES_SAFE && event->proof == KVF_PROOF_TRANSPORT_DONE &&
                event->bytes == 2;
    if (!under_way && !over)
        fail_msg("an event of state %u, status %u, safety %u, proof %u, %llu bytes", event->state,
                 event->status, event->safety, event->proof, (unsigned long long)event->bytes);
}

static void an_event_tells_of_one_publication(void **state)
{
    (void)state;
    scene *one = start(EVENTS);
    pthread_t publisher;
    assert_int_equal(pthread_create(&publisher, NULL, publish_in_turns, one), 0);
    while (!atomic_load(&one->over)) {
        kvf_event event;
        if (kvf_events_take(&one->manager, &event, 1) != 1)
            continue;
        check_event(&event);
        atomic_fetch_add(&one->changes, 1);
    }
    pthread_join(publisher, NULL);
    stop(one);
}

/* Both bytes in one load, which is stricter than what is promised of two. */
static void the_view_is_of_one_publication(void **state)
{
    (void)state;
    scene *one = start(VIEWS);
    pthread_t publisher;
    unsigned char before = KVF_TRANSFERRING;
    kvf_room_publish(&one->room,
                     &(kvf_outcome){.state = KVF_TRANSFERRING, .safety = KVF_PAGES_IN_USE}, 1);
    assert_int_equal(pthread_create(&publisher, NULL, publish_in_turns, one), 0);
    while (!atomic_load(&one->over)) {
        unsigned short both = atomic_load_explicit(&one->room.view, memory_order_relaxed);
        unsigned char view[sizeof both];
        memcpy(view, &both, sizeof both);
        if (!(view[0] == KVF_TRANSFERRING && view[1] == KVF_PAGES_IN_USE) &&
            !(view[0] == KVF_FAILED && view[1] == KVF_PAGES_SAFE))
            fail_msg("state %u is seen with safety %u", view[0], view[1]);
        if (view[0] != before)
            atomic_fetch_add(&one->changes, 1);
        before = view[0];
    }
    pthread_join(publisher, NULL);
    stop(one);
}

/* The bytes that callers were given a pointer to, in their order. */
static void the_view_is_state_and_safety(void **state)
{
    (void)state;
    scene *one = start(0);
    kvf_room_publish(&one->room,
                     &(kvf_outcome){.state = KVF_SUCCESS,
                                    .safety = KVF_PAGES_SAFE,
                                    .proof = KVF_PROOF_COMPLETED},
                     1);
    const uint8_t *view = (const uint8_t *)&one->room.state;
    assert_int_equal(view[0], KVF_SUCCESS);
    assert_int_equal(view[1], KVF_PAGES_SAFE);
    assert_int_equal(atomic_load(&one->room.state), KVF_SUCCESS);
    assert_int_equal(atomic_load(&one->room.safety), KVF_PAGES_SAFE);
    stop(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_tells_of_one_publication),
        cmocka_unit_test(the_view_is_of_one_publication),
        cmocka_unit_test(the_view_is_state_and_safety),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
