/* What is news, and what may be acknowledged. */
#include "room/peer.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void epochs_must_grow(void **state)
{
    (void)state;
    kvf_peer_past past;
    kvf_peer_past_init(&past, 8);
    assert_int_equal(kvf_peer_asks(&past, 7, 5), KVF_NEWS);
    assert_int_equal(kvf_peer_asks(&past, 7, 5), KVF_NEWS_REPEATED);
    assert_int_equal(kvf_peer_asks(&past, 8, 4), KVF_NEWS_REPEATED);
    assert_int_equal(kvf_peer_asks(&past, 7, 6), KVF_NEWS);
    kvf_peer_ended(&past, 7);
    assert_int_equal(kvf_peer_asks(&past, 7, UINT64_MAX), KVF_NEWS); /* the same id, told apart */
    kvf_peer_past_free(&past);
}

/* The letter overtook the request, or the request was lost and comes again from somewhere. */
static void what_was_given_up_is_no_news(void **state)
{
    (void)state;
    kvf_peer_past past;
    kvf_peer_past_init(&past, 8);
    kvf_peer_gives_up(&past, 9);
    assert_int_equal(kvf_peer_asks(&past, 7, 9), KVF_NEWS_REPEATED);
    kvf_peer_gives_up(&past, 3); /* an older one changes nothing */
    assert_int_equal(kvf_peer_asks(&past, 7, 9), KVF_NEWS_REPEATED);
    assert_int_equal(kvf_peer_asks(&past, 7, 10), KVF_NEWS);
    kvf_peer_past_free(&past);
}

static void without_epochs_an_ended_id_is_refused(void **state)
{
    (void)state;
    kvf_peer_past past;
    kvf_peer_past_init(&past, 2);
    assert_int_equal(kvf_peer_asks(&past, 7, 0), KVF_NEWS);
    assert_int_equal(kvf_peer_asks(&past, 7, 0), KVF_NEWS); /* not ended: the room decides */
    kvf_peer_ended(&past, 7);
    assert_true(kvf_peer_has_had(&past, 7));
    assert_int_equal(kvf_peer_asks(&past, 7, 0), KVF_NEWS_USED_ID);
    kvf_peer_ended(&past, 8);
    kvf_peer_ended(&past, 9); /* the oldest is forgotten */
    assert_int_equal(kvf_peer_asks(&past, 7, 0), KVF_NEWS);
    kvf_peer_past_free(&past);
}

static void what_was_never_flushed_is_not_acknowledged(void **state)
{
    (void)state;
    kvf_peer_past past;
    kvf_peer_past_init(&past, 8);
    assert_true(kvf_peer_may_acknowledge(&past, 1));
    kvf_peer_unflushed(&past, 5);
    kvf_peer_unflushed(&past, 4);
    assert_false(kvf_peer_may_acknowledge(&past, 4));
    assert_false(kvf_peer_may_acknowledge(&past, 5));
    assert_true(kvf_peer_may_acknowledge(&past, 6)); /* over a transport made anew */
    kvf_peer_past_free(&past);
}

static void patience_is_the_peers_own(void **state)
{
    (void)state;
    kvf_peer_past past;
    kvf_peer_past_init(&past, 8);
    assert_int_equal(kvf_peer_patience(&past, 3 * KVF_SECOND), 6 * KVF_SECOND); /* it didn't say */
    past.lease = KVF_SECOND;
    assert_int_equal(kvf_peer_patience(&past, 3 * KVF_SECOND), KVF_SECOND);
    past.lease = 600 * KVF_SECOND;
    assert_int_equal(kvf_peer_patience(&past, 3 * KVF_SECOND), 600 * KVF_SECOND);
    past.lease = 1; /* nobody can be that quick */
    assert_int_equal(kvf_peer_patience(&past, 3 * KVF_SECOND), 100 * KVF_MILLISECOND);
    kvf_peer_past_free(&past);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epochs_must_grow),
        cmocka_unit_test(what_was_given_up_is_no_news),
        cmocka_unit_test(without_epochs_an_ended_id_is_refused),
        cmocka_unit_test(what_was_never_flushed_is_not_acknowledged),
        cmocka_unit_test(patience_is_the_peers_own),
    };
    return cmocka_run_group_tests_name("room/peer", tests, NULL, NULL);
}
