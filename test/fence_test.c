/* What a failed room's pages are worth: which proof is found, and how soon, between real managers. */
#include "support/raw.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGES = 8 };

typedef struct scene {
    test_bootstrap bootstrap;
    test_bootstrap hiding; /* knows of the prefill, but not that it is kvferry */
    test_worker prefill;
    test_worker decode;
} scene;

static scene one;

static void start(const char *engine, const char *const *prefill, const char *const *decode)
{
    test_use_engine(engine);
    test_bootstrap_open(&one.bootstrap);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, one.bootstrap.address, prefill);
    test_worker_open(&one.decode, KVF_DECODE, NULL, one.bootstrap.address, decode);
    test_worker_fill(&one.prefill);
    test_worker_fill(&one.decode);
}

static int stop(void **state)
{
    (void)state;
    test_worker_close(&one.decode);
    test_worker_close(&one.prefill);
    test_bootstrap_close(&one.bootstrap);
    test_bootstrap_close(&one.hiding);
    memset(&one, 0, sizeof one);
    return 0;
}

static kvf_receiver *ask(uint64_t room, uint32_t first)
{
    uint32_t pages[PAGES];
    for (uint32_t i = 0; i < PAGES; i++)
        pages[i] = first + i;
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, room);
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, 1), KVF_OK);
    return receiver;
}

static kvf_sender *give(uint64_t room)
{
    static const uint32_t pages[PAGES] = {7, 6, 5, 4, 3, 2, 1, 0};
    kvf_sender *sender = test_sender_open(&one.prefill, room);
    assert_int_equal(kvf_sender_expect(sender, PAGES, 1), KVF_OK);
    assert_int_equal(kvf_sender_send(sender, pages, PAGES), KVF_OK);
    return sender;
}

static void arrived(uint32_t first)
{
    for (uint32_t i = 0; i < PAGES; i++)
        assert_true(test_page_arrived(&one.prefill, 7 - i, &one.decode, first + i));
}

static void untouched(uint32_t first)
{
    for (uint32_t i = 0; i < PAGES; i++)
        assert_true(test_page_untouched(&one.decode, first + i));
}

static void proven(kvf_receiver *receiver, kvf_proof proof)
{
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    if (kvf_receiver_proof(receiver) != proof)
        fail_msg("proven by %s, not %s", kvf_proof_name(kvf_receiver_proof(receiver)),
                 kvf_proof_name(proof));
    kvf_receiver_close(receiver);
}

static void wait_until_nothing_is_fenced(void)
{
    uint64_t deadline = kvf_clock_now() + 30 * KVF_SECOND;
    while (test_statistics(&one.decode).rooms_fencing > 0 && kvf_clock_now() < deadline)
        continue;
    assert_int_equal(test_statistics(&one.decode).rooms_fencing, 0);
}

/* ---- Between kvferry peers ------------------------------------------------------------------------ */

static const char *const patient[] = {"fence_timeout", "60s", NULL};
static const char *const stalling[] = {"fault", "transfer_stall=1", "fence_timeout", "60s", NULL};

static void nobody_was_told(void **state)
{
    start(*state, patient, patient);
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.bootstrap.address, 1);
    kvf_receiver_abort(receiver);
    proven(receiver, KVF_PROOF_NEVER_DISCLOSED);
}

static void nobody_asked(void **state)
{
    static const char *const hasty[] = {"bootstrap_timeout", "1s", "fence_timeout", "60s", NULL};
    start(*state, hasty, patient);
    kvf_sender *sender = give(1);
    test_sender_ends(&one.prefill, sender, KVF_TIMEOUT, "bootstrap_timeout");
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_sender_proof(sender), KVF_PROOF_TRANSPORT_DONE);
    kvf_sender_close(sender);
}

/* The request is held at the prefill, no sender is open: it is forgotten, and the room id is free at once. */
static void an_abort_before_the_sender_is_acknowledged(void **state)
{
    start(*state, patient, patient);
    kvf_receiver *receiver = ask(1, 0);
    test_wait_statistic(&one.prefill, requests_held, 1);
    kvf_receiver_abort(receiver);
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
    assert_int_equal(test_statistics(&one.prefill).requests_held, 0);
    receiver = ask(1, 16);
    kvf_sender *sender = give(1);
    test_receiver_ends(&one.decode, receiver, KVF_OK, NULL);
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    arrived(16);
    untouched(0);
    proven(receiver, KVF_PROOF_COMPLETED);
    kvf_sender_close(sender);
}

/* In the middle of a transfer: the prefill stops, its room fails with our reason, and the same id works. */
static void an_abort_during_the_transfer_is_acknowledged(void **state)
{
    start(*state, stalling, patient);
    kvf_receiver *receiver = ask(1, 0);
    kvf_sender *sender = give(1);
    test_wait_statistic(&one.prefill, transfers_active, 1);
    kvf_receiver_abort(receiver);
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
    test_sender_ends(&one.prefill, sender, KVF_PEER_FAILED, "gave the room up: aborted");
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    assert_int_equal(kvf_sender_proof(sender), KVF_PROOF_TRANSPORT_DONE);
    kvf_sender_close(sender);
    untouched(0);
    receiver = ask(1, 16);
    sender = give(1);
    test_receiver_ends(&one.decode, receiver, KVF_OK, NULL);
    arrived(16);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

/* The fault that checks of the promise are tried with: told that its pages are safe, the decode sees them filled. */
static void an_early_acknowledgement_is_a_lie(void **state)
{
    static const char *const lying[] = {"fault", "hold_ms=1000,ack_early=1", NULL};
    start(*state, lying, patient);
    kvf_receiver *receiver = ask(1, 0);
    kvf_sender *sender = give(1);
    test_wait_statistic(&one.prefill, transfers_active, 1);
    kvf_receiver_abort(receiver);
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
    untouched(0);
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    arrived(0);
    kvf_sender_close(sender);
}

/* The decode hears why within a round trip, and has its proof. */
static void a_senders_failure_is_told(void **state)
{
    start(*state, stalling, patient);
    kvf_receiver *receiver = ask(1, 0);
    kvf_sender *sender = give(1);
    test_wait_statistic(&one.prefill, transfers_active, 1);
    kvf_sender_abort(sender);
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "aborted by this side");
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
    assert_int_equal(kvf_sender_wait(sender, -1), KVF_PAGES_SAFE);
    kvf_sender_close(sender);
}

/* Also when the decode asks only afterwards, as long as the failed room's handle is there; and although the decode had
 * a room of that id before. */
static void a_failure_before_the_request_is_told(void **state)
{
    start(*state, patient, patient);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 1, PAGES);
    kvf_sender *sender = give(1);
    kvf_sender_abort(sender);
    test_sender_ends(&one.prefill, sender, KVF_ABORTED, NULL);
    kvf_receiver *receiver = ask(1, 0);
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "aborted by this side");
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
    kvf_sender_close(sender);
}

static void a_mismatch_is_told(void **state)
{
    static const uint32_t page = 3;
    start(*state, patient, patient);
    kvf_receiver *receiver = ask(1, 0);
    kvf_sender *sender = test_sender_open(&one.prefill, 1);
    assert_int_equal(kvf_sender_expect(sender, 1, 1), KVF_OK);
    (void)kvf_sender_send(sender, &page, 1);
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "mismatch");
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
    kvf_sender_close(sender);
    untouched(0);
}

/* One that was refused before anything was kept of who made it; nothing of it is under way either. */
static void a_peer_too_many_is_told(void **state)
{
    static const char *const few[] = {"max_peers", "1", NULL};
    start(*state, few, patient);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 1, PAGES);
    test_worker first = one.decode;
    test_worker_open(&one.decode, KVF_DECODE, NULL, one.bootstrap.address, patient);
    test_worker_fill(&one.decode);
    kvf_receiver *receiver = ask(2, 0);
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "max_peers");
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
    kvf_sender *sender = test_sender_open(&one.prefill, 2);
    test_sender_ends(&one.prefill, sender, KVF_LIMIT, "max_peers");
    kvf_sender_close(sender);
    test_room_works(&one.prefill, &first, one.bootstrap.address, 3, PAGES);
    test_worker_close(&first);
}

/* As many at once as docs/memory.md says: each takes a connection that max_peers doesn't count. */
static void many_peers_too_many_are_told(void **state)
{
    enum { MANY = 16 };
    static const char *const few[] = {"max_peers", "1", NULL};
    static const uint32_t pages[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
    test_worker others[MANY];
    kvf_receiver *receivers[MANY];
    start(*state, few, patient);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 1, PAGES);
    for (size_t i = 0; i < MANY; i++)
        test_worker_open(&others[i], KVF_DECODE, NULL, one.bootstrap.address, patient);
    for (size_t i = 0; i < MANY; i++) {
        receivers[i] = test_receiver_open(&others[i], one.bootstrap.address, 2 + i);
        assert_int_equal(kvf_receiver_expect(receivers[i], pages, PAGES, 1), KVF_OK);
    }
    for (size_t i = 0; i < MANY; i++)
        test_receiver_ends(&others[i], receivers[i], KVF_PEER_FAILED, "max_peers");
    for (size_t i = 0; i < MANY; i++)
        test_worker_close(&others[i]);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 100, PAGES);
}

static void a_request_nobody_takes_is_told(void **state)
{
    static const char *const hasty[] = {"hold_timeout", "50ms", NULL};
    start(*state, hasty, patient);
    kvf_receiver *receiver = ask(1, 0);
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "hold_timeout");
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
}

/* Closed while a write may still come: the room lives on without its handle until that is over. */
static void a_closed_room_is_fenced_without_its_handle(void **state)
{
    start(*state, stalling, patient);
    kvf_receiver *receiver = ask(1, 0);
    kvf_sender *sender = give(1);
    test_wait_statistic(&one.prefill, transfers_active, 1);
    kvf_receiver_close(receiver);
    receiver = ask(1, 16); /* the id is free at once */
    test_sender_ends(&one.prefill, sender, KVF_PEER_FAILED, NULL);
    kvf_sender_close(sender);
    sender = give(1);
    test_receiver_ends(&one.decode, receiver, KVF_OK, NULL);
    arrived(16);
    untouched(0);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
    wait_until_nothing_is_fenced();
}

/* The prefill's transport loses the decode, but not its control connection: the agent is still known, so that the decode
 * hears of the failure and has its answer, and the next room works. */
static void a_lost_transport_is_told(void **state)
{
    static const char *const losing[] = {"fault", "peer_fail=1", NULL};
    start(*state, losing, patient);
    kvf_receiver *receiver = ask(1, 0);
    kvf_sender *sender = give(1);
    test_sender_ends(&one.prefill, sender, KVF_PEER_GONE, "injected: the peer failed");
    test_receiver_ends(&one.decode, receiver, KVF_PEER_FAILED, "injected: the peer failed");
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
    kvf_sender_close(sender);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 2, PAGES);
}

/* Of which prefill. One that closes says so, but its connection may be over before that is out. */
static void is_told_gone(kvf_receiver *receiver)
{
    char who[96];
    test_receiver_settles(&one.decode, receiver);
    const char *text = kvf_receiver_failure_text(receiver);
    bool said = kvf_receiver_status(receiver) == KVF_PEER_FAILED;
    (void)snprintf(who, sizeof who, "prefill rank 0 of %s%s", one.bootstrap.address,
                   said ? ": shutdown: the manager was closed" : " at 127.0.0.1:");
    if (!said)
        assert_int_equal(kvf_receiver_status(receiver), KVF_PEER_GONE);
    if (strncmp(text, who, strlen(who)) != 0)
        fail_msg("\"%s\" doesn't begin with \"%s\"", text, who);
    assert_true(said || strstr(text, "closed by the peer") != NULL);
}

/* The prefill goes while it may be writing. Over what we place ourselves, closing the inbox is the proof. */
static void a_lost_prefill_is_fenced_by_closing(void **state)
{
    if (test_ends_with_its_peer(*state))
        skip();
    start(*state, stalling, patient);
    kvf_receiver *receiver = ask(1, 0);
    kvf_sender *sender = give(1);
    test_wait_statistic(&one.prefill, transfers_active, 1);
    (void)sender; /* goes with its manager */
    test_worker_close(&one.prefill);
    one.prefill.manager = NULL;
    is_told_gone(receiver);
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_SAFE);
    untouched(0);
    proven(receiver, KVF_PROOF_RECEIVER_CLOSED);
}

/* ---- Towards a stock peer, which hears nothing ----------------------------------------------------- */

static const char *const stock[] = {"extensions", "off", NULL};

static void a_stock_prefill_completes_after_the_abort(void **state)
{
    start(*state, stock, patient);
    kvf_receiver *receiver = ask(1, 0);
    test_wait_statistic(&one.prefill, requests_held, 1);
    kvf_receiver_abort(receiver);
    test_receiver_ends(&one.decode, receiver, KVF_ABORTED, NULL);
    assert_int_equal(kvf_receiver_wait(receiver, 20), KVF_PAGES_IN_USE);
    kvf_sender *sender = give(1);
    proven(receiver, KVF_PROOF_COMPLETED);
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
}

static void without_a_proof_the_deadline_gives_back(void **state)
{
    static const char *const hasty[] = {"fence_timeout", "50ms", NULL};
    start(*state, stock, hasty);
    kvf_receiver *receiver = ask(1, 0);
    test_wait_statistic(&one.prefill, requests_held, 1);
    kvf_receiver_abort(receiver);
    assert_int_equal(kvf_receiver_wait(receiver, -1), KVF_PAGES_RELEASED);
    assert_int_equal(kvf_receiver_proof(receiver), KVF_PROOF_NONE);
    kvf_receiver_close(receiver);
    assert_int_equal(test_statistics(&one.decode).rooms_released, 1);
}

/* fence=strict: the inbox is closed at the deadline; later rooms have another one. */
static void strict_closes_the_inbox_of_a_stock_prefill(void **state)
{
    static const char *const strict[] = {"fence", "strict", "fence_timeout", "50ms", NULL};
    start(*state, stock, strict);
    kvf_receiver *receiver = ask(1, 0);
    test_wait_statistic(&one.prefill, requests_held, 1);
    kvf_receiver_abort(receiver);
    proven(receiver, KVF_PROOF_RECEIVER_CLOSED);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 2, PAGES);
    untouched(0);
}

/* Shared memory maps the pool, and there is nothing else: the rank is told nothing. */
static void strict_offers_a_stock_prefill_no_mapping(void **state)
{
    static const char *const strict[] = {"fence", "strict", NULL};
    start(*state, stock, strict);
    kvf_receiver *receiver = ask(1, 0);
    test_receiver_ends(&one.decode, receiver, KVF_UNSUPPORTED, "fence=strict");
    proven(receiver, KVF_PROOF_NEVER_DISCLOSED);
}

static uint64_t bytes_at_the_end(uint64_t room)
{
    kvf_event event = {.room = 0};
    while (event.room != room || event.state != KVF_SUCCESS)
        assert_int_equal(kvf_manager_wait(one.decode.manager, &event, 1, -1), 1);
    assert_int_equal(event.verified, 0);
    return event.bytes;
}

/* peer_extensions=assume was wrong: what only a kvferry peer bears isn't sent until it has shown itself. */
static void is_harmless(const char *engine, const char *const *assuming)
{
    start(engine, stock, assuming);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 3, PAGES);
    uint64_t messages = test_statistics(&one.prefill).messages_received;
    kvf_receiver *receiver = ask(1, 0);
    test_wait_statistic(&one.prefill, requests_held, 1);
    kvf_receiver_abort(receiver);
    test_receiver_ends(&one.decode, receiver, KVF_ABORTED, NULL);
    kvf_sender *sender = give(1);
    proven(receiver, KVF_PROOF_COMPLETED);
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    assert_int_equal(test_statistics(&one.prefill).messages_received, messages + 1);
    /* No more is claimed than arrives: of the aux buffers the first. */
    receiver = ask(2, 0);
    sender = give(2);
    const test_shape *shape = &one.decode.shape;
    assert_true(bytes_at_the_end(2) ==
                shape->buffers * shape->item_length * PAGES + shape->aux_item_length);
    kvf_receiver_close(receiver);
    kvf_sender_close(sender);
}

static void an_assumption_that_is_wrong_does_no_harm(void **state)
{
    static const char *const assuming[] = {"peer_extensions", "assume", "fence_timeout", "60s",
                                           NULL};
    is_harmless(*state, assuming);
}

/* Sums are waited for until a notification shows that none will come. */
static void nor_does_it_where_rooms_are_verified(void **state)
{
    static const char *const assuming[] = {
        "peer_extensions", "assume", "fence_timeout", "60s", "verify", "on", NULL};
    is_harmless(*state, assuming);
}

static void nor_does_it_where_the_inbox_is_retired(void **state)
{
    static const char *const assuming[] = {
        "peer_extensions", "assume", "fence_timeout", "60s", "verify", "on", "fence",
        "strict",          NULL};
    is_harmless(*state, assuming);
}

/* Everything is written nevertheless, and said to be: the failed room's pages are safe. */
static void a_room_that_must_be_verified_says_that_it_was_wrong(void **state)
{
    static const char *const assuming[] = {
        "peer_extensions", "assume", "fence_timeout", "60s", "verify", "required", NULL};
    start(*state, stock, assuming);
    kvf_receiver *receiver = ask(1, 0);
    kvf_sender *sender = give(1);
    test_receiver_ends(&one.decode, receiver, KVF_UNSUPPORTED, "peer_extensions=assume is wrong");
    proven(receiver, KVF_PROOF_COMPLETED);
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
}

/* It was right, and the hello says so before anything is written: the prefill can be asked to stop. */
static void a_hello_shows_who_was_assumed(void **state)
{
    static const char *const assuming[] = {"peer_extensions", "assume", "fence_timeout", "60s",
                                           NULL};
    start(*state, patient, assuming);
    test_bootstrap_open(&one.hiding);
    raw_register(one.hiding.address, kvf_manager_port(one.prefill.manager), 0, 1, 1);
    kvf_receiver *receiver = test_receiver_open(&one.decode, one.hiding.address, 1);
    static const uint32_t pages[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, 1), KVF_OK);
    test_wait_statistic(&one.decode, messages_received, 1);
    kvf_receiver_abort(receiver);
    proven(receiver, KVF_PROOF_ACKNOWLEDGED);
    test_room_works(&one.prefill, &one.decode, one.hiding.address, 1, PAGES); /* the same id */
}

static void a_used_id_is_refused_by_name(void **state)
{
    start(*state, stock, patient);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 5, PAGES);
    kvf_receiver *receiver = ask(5, 0);
    test_receiver_ends(&one.decode, receiver, KVF_BUSY, "used before");
    proven(receiver, KVF_PROOF_NEVER_DISCLOSED);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 6, PAGES);
}

/* Whatever is remembered: what the prefill writes and notifies for the first room would count for the second. */
static void an_id_is_refused_while_it_is_fenced(const char *engine, const char *const *forgetful)
{
    start(engine, stock, forgetful);
    kvf_receiver *receiver = ask(1, 0);
    test_wait_statistic(&one.prefill, requests_held, 1);
    kvf_receiver_close(receiver);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 2, PAGES);
    test_worker_fill(&one.decode);
    receiver = ask(1, 16);
    test_receiver_ends(&one.decode, receiver, KVF_BUSY, "may still write to an earlier room 1");
    proven(receiver, KVF_PROOF_NEVER_DISCLOSED);
    kvf_sender *sender = give(1);
    test_sender_ends(&one.prefill, sender, KVF_OK, NULL);
    kvf_sender_close(sender);
    wait_until_nothing_is_fenced();
    arrived(0);
    untouched(16);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 3, PAGES);
}

static void a_fenced_id_is_refused_without_a_memory(void **state)
{
    static const char *const forgetful[] = {"remembered_rooms", "0", "fence_timeout", "60s", NULL};
    an_id_is_refused_while_it_is_fenced(*state, forgetful);
}

static void a_fenced_id_is_refused_when_others_took_its_place(void **state)
{
    static const char *const forgetful[] = {"remembered_rooms", "1", "fence_timeout", "60s", NULL};
    an_id_is_refused_while_it_is_fenced(*state, forgetful);
}

/* The rank has another inbox by then. */
static void a_fenced_id_is_refused_where_its_inbox_was_retired(void **state)
{
    static const char *const strict[] = {"remembered_rooms", "0", "fence_timeout", "60s", "fence",
                                         "strict",           NULL};
    an_id_is_refused_while_it_is_fenced(*state, strict);
}

/* There the key is an epoch, and the room is found by its id. */
static void a_fenced_id_is_refused_where_kvferry_was_assumed(void **state)
{
    static const char *const forgetful[] = {
        "remembered_rooms", "0", "fence_timeout", "60s", "peer_extensions", "assume", NULL};
    an_id_is_refused_while_it_is_fenced(*state, forgetful);
}

static void start_prefill_again(const char *const *settings)
{
    uint64_t lost = test_statistics(&one.decode).peers_lost;
    test_worker_close(&one.prefill);
    test_wait_statistic(&one.decode, peers_lost, lost + 1);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, one.bootstrap.address, settings);
    test_worker_fill(&one.prefill);
}

/* At the port it had it may be the same process, to which only the connection was lost; at another one it is not. */
static void a_used_id_is_forgotten_when_the_rank_restarts(void **state)
{
    char port[8];
    const char *const there[] = {"extensions", "off", "control_port", port, NULL};
    start(*state, stock, patient);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 5, PAGES);
    (void)snprintf(port, sizeof port, "%u", kvf_manager_port(one.prefill.manager));
    start_prefill_again(there);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 6, PAGES);
    kvf_receiver *receiver = ask(5, 0);
    test_receiver_ends(&one.decode, receiver, KVF_BUSY, "used before");
    kvf_receiver_close(receiver);
    start_prefill_again(stock);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 5, PAGES);
}

/* One that ends without a word, and another process at its address: what belonged to the old one has ended, and nothing
 * of it is used for the new one. */
static void a_restarted_prefill_is_a_new_peer(void **state)
{
    char port[8];
    const char *const there[] = {"control_port", port, NULL};
    raw_prefill old;
    if (test_ends_with_its_peer(*state))
        skip();
    test_use_engine(*state);
    test_bootstrap_open(&one.bootstrap);
    raw_prefill_open(&old, one.bootstrap.address);
    test_worker_open(&one.decode, KVF_DECODE, NULL, NULL, patient);
    test_worker_fill(&one.decode);
    kvf_receiver *asked = ask(1, 0);
    raw_prefill_requested(&old, 1);
    kvf_receiver *found = test_receiver_open(&one.decode, one.bootstrap.address, 2);
    test_receiver_reaches(&one.decode, found, KVF_WAITING_FOR_INPUT);
    (void)snprintf(port, sizeof port, "%u", old.port);
    raw_prefill_close(&old);
    test_receiver_ends(&one.decode, asked, KVF_PEER_GONE, "prefill rank 0");
    test_receiver_ends(&one.decode, found, KVF_PEER_GONE, "prefill rank 0");
    proven(asked, KVF_PROOF_RECEIVER_CLOSED);
    proven(found, KVF_PROOF_NEVER_DISCLOSED);
    untouched(0);
    assert_int_equal(test_statistics(&one.decode).peers_lost, 1);
    test_worker_open(&one.prefill, KVF_PREFILL, NULL, one.bootstrap.address, there);
    assert_int_equal(kvf_manager_port(one.prefill.manager), strtoul(port, NULL, 10));
    test_wait_statistic(&one.prefill, registered, 1); /* until then the old row is there */
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 1, PAGES);
    test_room_works(&one.prefill, &one.decode, one.bootstrap.address, 3, PAGES);
}

#define ON(engine, name)                                                                           \
    {                                                                                              \
#name " (" engine ")", name, NULL, stop, (void *)(uintptr_t)engine                         \
    }
#define ON_EACH(name) ON("loop", name), ON("shm", name), ON("tcp", name)
/* Where the writer can't bypass the inbox. */
#define ON_PLACED(name) ON("loop", name), ON("tcp", name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_EACH(nobody_was_told),
        ON("loop", nobody_asked),
        ON_EACH(an_abort_before_the_sender_is_acknowledged),
        ON_EACH(an_abort_during_the_transfer_is_acknowledged),
        ON_EACH(an_early_acknowledgement_is_a_lie),
        ON_EACH(a_senders_failure_is_told),
        ON_EACH(a_failure_before_the_request_is_told),
        ON_EACH(a_mismatch_is_told),
        ON_EACH(a_peer_too_many_is_told),
        ON("loop", many_peers_too_many_are_told),
        ON_EACH(a_request_nobody_takes_is_told),
        ON_EACH(a_closed_room_is_fenced_without_its_handle),
        ON_EACH(a_lost_transport_is_told),
        ON_PLACED(a_lost_prefill_is_fenced_by_closing),
        ON_EACH(a_stock_prefill_completes_after_the_abort),
        ON_EACH(without_a_proof_the_deadline_gives_back),
        ON_PLACED(strict_closes_the_inbox_of_a_stock_prefill),
        ON("all", strict_closes_the_inbox_of_a_stock_prefill),
        ON("shm", strict_offers_a_stock_prefill_no_mapping),
        ON_EACH(an_assumption_that_is_wrong_does_no_harm),
        ON_EACH(nor_does_it_where_rooms_are_verified),
        ON_EACH(nor_does_it_where_the_inbox_is_retired),
        ON_EACH(a_room_that_must_be_verified_says_that_it_was_wrong),
        ON_EACH(a_hello_shows_who_was_assumed),
        ON_EACH(a_used_id_is_refused_by_name),
        ON_EACH(a_fenced_id_is_refused_without_a_memory),
        ON_EACH(a_fenced_id_is_refused_when_others_took_its_place),
        ON_PLACED(a_fenced_id_is_refused_where_its_inbox_was_retired),
        ON_EACH(a_fenced_id_is_refused_where_kvferry_was_assumed),
        ON("loop", a_used_id_is_forgotten_when_the_rank_restarts),
        ON_PLACED(a_restarted_prefill_is_a_new_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
