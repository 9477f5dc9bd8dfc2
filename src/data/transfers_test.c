/* Turns, bounds and stages over a transport that completes only when told. */
#include "data/transfers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE = 4096, QUEUE = 256 };

typedef struct fake {
    kvf_engine base;
    kvf_transfers transfers;
    kvf_put *puts[QUEUE]; /* pending, oldest first */
    size_t put_count;
    uint64_t bytes;
    kvf_transfer *flushes[QUEUE];
    size_t flush_count;
    unsigned notices;
    bool at_once;   /* complete everything inside the call */
    bool refuse;    /* fail puts inside the call */
    int posts_left; /* until the moment passes after which nothing may be posted; 0: never */
} fake;

struct kvf_engine_peer {
    kvf_transfers_peer base;
};

typedef struct job {
    kvf_transfer transfer;
    kvf_span span;
    unsigned done;
    kvf_status status;
} job;

static const uint32_t pages[] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};

static kvf_outcome fake_put(void *engine, kvf_put *put)
{
    fake *f = engine;
    if (f->posts_left > 0 && --f->posts_left == 0)
        f->base.post_until = 1;
    if (f->refuse) {
        kvf_transfers_fail(put->transfer, KVF_TRANSPORT, "refused");
        return KVF_OUTCOME_FAILED;
    }
    if (f->at_once)
        return KVF_OUTCOME_DONE;
    f->puts[f->put_count++] = put;
    f->bytes += put->write.length;
    return KVF_OUTCOME_PENDING;
}

static kvf_outcome fake_flush(void *engine, kvf_transfer *transfer)
{
    fake *f = engine;
    if (f->at_once)
        return KVF_OUTCOME_DONE;
    f->flushes[f->flush_count++] = transfer;
    return KVF_OUTCOME_PENDING;
}

static kvf_outcome fake_notify(void *engine, kvf_transfer *transfer, const kvf_transfer_part *part)
{
    (void)transfer;
    (void)part;
    ((fake *)engine)->notices++;
    return KVF_OUTCOME_DONE;
}

static const kvf_transport transport = {fake_put, fake_flush, fake_notify};

static void open_fake(fake *f, uint64_t writes, uint64_t bytes)
{
    kvf_settings settings;
    kvf_settings_defaults(&settings);
    settings.outstanding_writes = writes;
    settings.outstanding_bytes = bytes;
    settings.write_size = PAGE;
    memset(f, 0, sizeof *f);
    assert_int_equal(kvf_transfers_open(&f->transfers, &settings, &transport, &f->base, NULL),
                     KVF_OK);
}

static void job_done(kvf_transfer *transfer, kvf_status status, const char *text)
{
    (void)text;
    job *j = transfer->user;
    j->done++;
    j->status = status;
}

static void post(fake *f, job *j, kvf_engine_peer *peer, size_t count)
{
    memset(j, 0, sizeof *j);
    j->span = (kvf_span){.source_base = PAGE, .destination_base = PAGE, .item_length = PAGE};
    j->transfer.peer = peer;
    j->transfer.part_count = 1;
    j->transfer.parts[0].payload_length = 1;
    j->transfer.done = job_done;
    j->transfer.user = j;
    kvf_writes_begin(&j->transfer.parts[0].writes, &j->span, 1, pages, pages, count);
    assert_int_equal(kvf_transfers_post(&f->transfers, &j->transfer, NULL), KVF_OK);
}

static void advance(fake *f)
{
    while (kvf_transfers_advance(&f->transfers))
        continue;
    assert_false(kvf_transfers_have_work(&f->transfers));
}

/* Ends the oldest pending put. */
static kvf_transfer *end_put(fake *f)
{
    kvf_put *put = f->puts[0];
    kvf_transfer *transfer = put->transfer;
    memmove(f->puts, f->puts + 1, --f->put_count * sizeof f->puts[0]);
    f->bytes -= put->write.length;
    kvf_transfers_put_ended(&f->transfers, put);
    return transfer;
}

static size_t pending_of(const fake *f, const kvf_engine_peer *peer)
{
    size_t count = 0;
    for (size_t i = 0; i < f->put_count; i++)
        count += f->puts[i]->transfer->peer == peer;
    return count;
}

static void bounds_hold_and_peers_share(void **state)
{
    (void)state;
    static fake f;
    static job jobs[3];
    kvf_engine_peer peers[3] = {0};
    open_fake(&f, 8, 100 * PAGE);
    post(&f, &jobs[0], &peers[0], 16);
    advance(&f);
    assert_int_equal(f.put_count, 1 + 4); /* its own, and half of the pool */
    post(&f, &jobs[1], &peers[1], 16);
    post(&f, &jobs[2], &peers[2], 16);
    advance(&f);
    for (int i = 0; i < 3; i++)
        assert_true(pending_of(&f, &peers[i]) >= 2); /* nobody waits for a peer that is stuck */
    while (f.put_count > 0) {
        assert_true(f.put_count <= 8 + 3);
        (void)end_put(&f);
        advance(&f);
    }
    assert_int_equal(f.flush_count, 3);
    kvf_transfers_close(&f.transfers);
}

static void bytes_are_bounded_too(void **state)
{
    (void)state;
    static fake f;
    static job j;
    kvf_engine_peer peer = {0};
    open_fake(&f, 100, 4 * PAGE);
    post(&f, &j, &peer, 16);
    for (unsigned written = 0; written < 16; written++) {
        advance(&f);
        assert_true(f.bytes <= (1 + 2) * PAGE && f.put_count > 0);
        (void)end_put(&f);
    }
    kvf_transfers_close(&f.transfers);
}

static void a_limit_of_one_still_moves(void **state)
{
    (void)state;
    static fake f;
    static job j;
    kvf_engine_peer peer = {0};
    open_fake(&f, 1, PAGE);
    post(&f, &j, &peer, 16);
    for (unsigned written = 0; written < 16; written++) {
        advance(&f);
        assert_int_equal(f.put_count, 1);
        (void)end_put(&f);
    }
    advance(&f);
    assert_int_equal(f.flush_count, 1);
    kvf_transfers_close(&f.transfers);
}

static void transfers_of_a_peer_take_turns(void **state)
{
    (void)state;
    static fake f;
    static job jobs[2];
    kvf_engine_peer peer = {0};
    open_fake(&f, 4, 100 * PAGE);
    post(&f, &jobs[0], &peer, 16);
    post(&f, &jobs[1], &peer, 16);
    for (unsigned written = 0; written < 32; written += 2) {
        advance(&f);
        const kvf_transfer *first = end_put(&f);
        advance(&f);
        assert_ptr_not_equal(first, end_put(&f));
    }
    advance(&f);
    assert_int_equal(f.flush_count, 2);
    kvf_transfers_close(&f.transfers);
}

static void stages_follow_one_another(void **state)
{
    (void)state;
    static fake f;
    static job j;
    kvf_engine_peer peer = {0};
    open_fake(&f, 64, 100 * PAGE);
    post(&f, &j, &peer, 2);
    advance(&f);
    (void)end_put(&f);
    advance(&f);
    assert_int_equal(f.flush_count, 0);
    (void)end_put(&f);
    advance(&f);
    assert_int_equal(f.flush_count, 1);
    assert_int_equal(f.notices, 0);
    kvf_transfers_step_ended(&f.transfers, f.flushes[0]);
    assert_int_equal(j.done, 0);
    advance(&f);
    assert_int_equal(f.notices, 1);
    assert_int_equal(j.done, 1);
    assert_int_equal(j.status, KVF_OK);
    assert_int_equal(peer.base.active, 0);
    kvf_transfers_close(&f.transfers);
}

static void a_failed_put_is_not_hidden_by_the_flush(void **state)
{
    (void)state;
    static fake f;
    static job j;
    kvf_engine_peer peer = {0};
    open_fake(&f, 64, 100 * PAGE);
    post(&f, &j, &peer, 3);
    advance(&f);
    kvf_transfers_fail(&j.transfer, KVF_TRANSPORT, "first");
    kvf_transfers_fail(&j.transfer, KVF_PEER_GONE, "second");
    (void)end_put(&f);
    advance(&f);
    assert_int_equal(j.done, 0); /* the others may still read the pages */
    (void)end_put(&f);
    (void)end_put(&f);
    advance(&f);
    assert_int_equal(j.status, KVF_TRANSPORT);
    assert_int_equal(f.notices, 0);

    f.refuse = true;
    post(&f, &j, &peer, 3);
    advance(&f);
    assert_int_equal(j.done, 1);
    assert_int_equal(j.status, KVF_TRANSPORT);
    kvf_transfers_close(&f.transfers);
}

static void cancel_waits_for_what_was_posted(void **state)
{
    (void)state;
    static fake f;
    static job j;
    kvf_engine_peer peer = {0};
    open_fake(&f, 4, 100 * PAGE);
    post(&f, &j, &peer, 16);
    advance(&f);
    size_t posted = f.put_count;
    kvf_transfers_cancel(&f.transfers, &j.transfer);
    kvf_transfers_cancel(&f.transfers, &j.transfer);
    while (f.put_count > 0) {
        assert_int_equal(j.done, 0);
        (void)end_put(&f);
        advance(&f);
    }
    assert_int_equal(j.transfer.writes_posted, posted);
    kvf_transfers_step_ended(&f.transfers, f.flushes[0]);
    advance(&f);
    assert_int_equal(j.done, 1);
    assert_int_equal(j.status, KVF_ABORTED);
    assert_int_equal(f.notices, 0);
    kvf_transfers_close(&f.transfers);
}

static void a_failed_peer_ends_its_transfers_only(void **state)
{
    (void)state;
    static fake f;
    static job jobs[3];
    kvf_engine_peer peers[2] = {0};
    open_fake(&f, 8, 100 * PAGE);
    post(&f, &jobs[0], &peers[0], 16);
    post(&f, &jobs[1], &peers[0], 16);
    post(&f, &jobs[2], &peers[1], 16);
    advance(&f);
    kvf_transfers_peer_failed(&f.transfers, &peers[0].base, "gone");
    kvf_error error;
    assert_int_equal(kvf_transfers_post(&f.transfers, &jobs[0].transfer, &error), KVF_PEER_GONE);
    for (unsigned i = 0; f.put_count > 0; i++) {
        (void)end_put(&f);
        advance(&f);
    }
    assert_int_equal(jobs[0].status, KVF_PEER_GONE);
    assert_int_equal(jobs[1].status, KVF_PEER_GONE);
    assert_int_equal(jobs[2].transfer.writes_posted, 16);
    assert_int_equal(f.flush_count, 1);
    kvf_transfers_close(&f.transfers);
}

static void one_advance_is_a_bounded_piece_of_work(void **state)
{
    (void)state;
    static uint32_t many[1000];
    static fake f;
    static job j;
    kvf_engine_peer peer = {0};
    open_fake(&f, 64, 100 * PAGE);
    f.at_once = true;
    for (uint32_t i = 0; i < 1000; i++)
        many[i] = 2 * i;
    post(&f, &j, &peer, 1);
    kvf_writes_begin(&j.transfer.parts[0].writes, &j.span, 1, many, many, 1000);
    assert_true(kvf_transfers_advance(&f.transfers));
    assert_in_range(j.transfer.writes_posted, 1, 100);
    assert_true(kvf_transfers_have_work(&f.transfers));
    advance(&f);
    assert_int_equal(j.status, KVF_OK);
    assert_int_equal(j.transfer.writes_posted, 1000);
    kvf_transfers_close(&f.transfers);
}

/* The moment after which nothing may be posted can pass between any two posts. */
static void no_post_follows_the_moment(void **state)
{
    (void)state;
    fake f;
    kvf_engine_peer peer = {0};
    job j;
    open_fake(&f, 64, 1 << 20);
    post(&f, &j, &peer, 10);
    f.posts_left = 3;
    (void)kvf_transfers_advance(&f.transfers);
    (void)kvf_transfers_advance(&f.transfers);
    assert_int_equal(f.put_count, 3);
    assert_true(kvf_transfers_have_work(&f.transfers));
    f.base.post_until = KVF_NEVER;
    advance(&f);
    assert_int_equal(f.put_count, 10);
    while (f.put_count > 0)
        (void)end_put(&f);
    /* Nor a flush, nor a notification. */
    f.base.post_until = 1;
    (void)kvf_transfers_advance(&f.transfers);
    assert_int_equal(f.flush_count, 0);
    f.base.post_until = 0;
    advance(&f);
    assert_int_equal(f.flush_count, 1);
    kvf_transfers_close(&f.transfers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_hold_and_peers_share),
        cmocka_unit_test(bytes_are_bounded_too),
        cmocka_unit_test(a_limit_of_one_still_moves),
        cmocka_unit_test(transfers_of_a_peer_take_turns),
        cmocka_unit_test(stages_follow_one_another),
        cmocka_unit_test(a_failed_put_is_not_hidden_by_the_flush),
        cmocka_unit_test(cancel_waits_for_what_was_posted),
        cmocka_unit_test(a_failed_peer_ends_its_transfers_only),
        cmocka_unit_test(one_advance_is_a_bounded_piece_of_work),
        cmocka_unit_test(no_post_follows_the_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
