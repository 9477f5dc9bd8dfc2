/* Each injected fault once, over the loop engine. */
#include "data/engine.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE = 64, PAGES = 8 };

typedef struct side {
    kvf_engine *engine;
    uint8_t pool[PAGE * PAGES];
    uint32_t region;
    unsigned notified;
    unsigned failed_peers;
} side;

typedef struct job {
    kvf_transfer transfer;
    kvf_span span;
    unsigned done;
    kvf_status status;
} job;

typedef struct pair {
    side writer;
    side target;
    kvf_engine_peer *peer;
    uint32_t remote;
} pair;

static void notified(void *user, kvf_slice payload)
{
    assert_int_equal(payload.length, 5);
    ((side *)user)->notified++;
}

static void peer_failed(void *user, kvf_engine_peer *peer, const char *text)
{
    assert_non_null(peer);
    assert_non_null(strstr(text, "injected"));
    ((side *)user)->failed_peers++;
}

static kvf_status open_side(side *s, const char *faults, kvf_error *error)
{
    kvf_settings settings;
    kvf_settings_defaults(&settings);
    settings.engine = KVF_ENGINE_LOOP;
    strcpy(settings.fault, faults);
    memset(s, 0, sizeof *s);
    kvf_engine_callbacks callbacks = {s, notified, peer_failed};
    return kvf_engine_open(&settings, KVF_FLAVOUR_P031, &callbacks, &s->engine, error);
}

static kvf_status add_region(side *s, kvf_error *error)
{
    kvf_buffer buffer = {.size = sizeof buffer, .base = (uint64_t)(uintptr_t)s->pool};
    buffer.length = sizeof s->pool;
    buffer.item_length = PAGE;
    return s->engine->operations->add_region(s->engine, &buffer, &s->region, error);
}

static void open_pair(pair *p, const char *faults)
{
    kvf_error error;
    assert_int_equal(open_side(&p->writer, faults, &error), KVF_OK);
    assert_int_equal(open_side(&p->target, "", &error), KVF_OK);
    assert_int_equal(add_region(&p->writer, &error), KVF_OK);
    assert_int_equal(add_region(&p->target, &error), KVF_OK);
    const kvf_engine_operations *to = p->target.engine->operations;
    const kvf_engine_operations *from = p->writer.engine->operations;
    assert_int_equal(
        from->connect(p->writer.engine, to->address(p->target.engine), p, &p->peer, &error),
        KVF_OK);
    assert_ptr_equal(from->peer_user(p->peer), p);
    assert_int_equal(from->add_remote_region(p->peer,
                                             to->region_key(p->target.engine, p->target.region),
                                             &p->remote, &error),
                     KVF_OK);
    memset(p->writer.pool, 1, sizeof p->writer.pool);
}

static void close_pair(pair *p)
{
    p->writer.engine->operations->disconnect(p->writer.engine, p->peer);
    p->writer.engine->operations->close(p->writer.engine);
    p->target.engine->operations->close(p->target.engine);
}

static void job_done(kvf_transfer *transfer, kvf_status status, const char *text)
{
    (void)text;
    job *j = transfer->user;
    j->done++;
    j->status = status;
}

static void post(pair *p, job *j)
{
    static const uint32_t page[] = {3};
    memset(j, 0, sizeof *j);
    j->span = (kvf_span){(uint64_t)(uintptr_t)p->writer.pool, (uint64_t)(uintptr_t)p->target.pool,
                         PAGE, p->writer.region, p->remote};
    j->transfer.peer = p->peer;
    j->transfer.part_count = 1;
    j->transfer.done = job_done;
    j->transfer.user = j;
    j->transfer.parts[0].payload_length = 5;
    kvf_writes_begin(&j->transfer.parts[0].writes, &j->span, 1, page, page, 1);
    kvf_error error;
    assert_int_equal(p->writer.engine->operations->post(p->writer.engine, &j->transfer, &error),
                     KVF_OK);
}

static void progress_both(pair *p)
{
    (void)p->writer.engine->operations->progress(p->writer.engine, KVF_MILLISECOND);
    (void)p->target.engine->operations->progress(p->target.engine, KVF_MILLISECOND);
}

static kvf_status run_one(pair *p)
{
    job j;
    post(p, &j);
    progress_both(p);
    assert_int_equal(j.done, 1);
    assert_int_equal(j.transfer.parts[0].payload_length, 5); /* given back as it was */
    return j.status;
}

static void wrong_faults_are_named(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "put",     "=",         "corrupt",     "corrupt=",  "corrupt=0",
        "hold_ms", "corrupt=x", "hold_ms=all", "nothing=1", ",,"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        side s;
        kvf_error error;
        assert_int_equal(open_side(&s, wrong[i], &error), KVF_BAD_SETTING);
        assert_null(s.engine);
        assert_non_null(strstr(error.text, "transfer_fail"));
    }
}

static void registering_and_connecting_fail(void **state)
{
    (void)state;
    side s;
    kvf_error error;
    kvf_engine_peer *peer;
    assert_int_equal(open_side(&s, "register_fail=2,connect_fail=all", &error), KVF_OK);
    assert_int_equal(add_region(&s, &error), KVF_OK);
    assert_int_equal(add_region(&s, &error), KVF_REGISTRATION);
    assert_int_equal(add_region(&s, &error), KVF_OK);
    const kvf_engine_operations *do_ = s.engine->operations;
    for (int i = 0; i < 2; i++)
        assert_int_equal(do_->connect(s.engine, do_->address(s.engine), NULL, &peer, &error),
                         KVF_TRANSPORT);
    do_->close(s.engine);
}

static void the_second_transfer_fails(void **state)
{
    (void)state;
    pair p;
    open_pair(&p, "transfer_fail=2");
    assert_int_equal(run_one(&p), KVF_OK);
    assert_int_equal(run_one(&p), KVF_TRANSPORT);
    assert_int_equal(run_one(&p), KVF_OK);
    assert_int_equal(p.target.notified, 2);
    close_pair(&p);
}

static void a_notification_is_dropped(void **state)
{
    (void)state;
    pair p;
    open_pair(&p, "notify_drop=1");
    assert_int_equal(run_one(&p), KVF_OK);
    assert_int_equal(p.target.notified, 0);
    assert_int_equal(p.target.pool[3 * PAGE], 1);
    assert_int_equal(run_one(&p), KVF_OK);
    assert_int_equal(p.target.notified, 1);
    close_pair(&p);
}

static void a_byte_is_corrupted(void **state)
{
    (void)state;
    pair p;
    open_pair(&p, "corrupt=1");
    assert_int_equal(run_one(&p), KVF_OK);
    assert_int_equal(p.target.pool[3 * PAGE], 0xfe);
    assert_int_equal(p.target.pool[3 * PAGE + 1], 1);
    assert_int_equal(p.writer.pool[3 * PAGE], 1);
    assert_int_equal(run_one(&p), KVF_OK);
    assert_int_equal(p.target.pool[3 * PAGE], 1);
    close_pair(&p);
}

/* Two buffers of four pages each in one pool; the aux record is the first buffer's last page. */
static void post_last_chunk(pair *p, job *j, kvf_span spans[2])
{
    static const uint32_t pages[] = {0, 1, 2};
    static const uint32_t aux[] = {3};
    memset(j, 0, sizeof *j);
    for (uint64_t i = 0; i < 2; i++)
        spans[i] = (kvf_span){(uint64_t)(uintptr_t)p->writer.pool + i * 4 * PAGE,
                              (uint64_t)(uintptr_t)p->target.pool + i * 4 * PAGE, PAGE,
                              p->writer.region, p->remote};
    j->transfer.peer = p->peer;
    j->transfer.part_count = 2;
    j->transfer.done = job_done;
    j->transfer.user = j;
    j->transfer.parts[0].payload_length = j->transfer.parts[1].payload_length = 5;
    kvf_writes_begin(&j->transfer.parts[0].writes, spans, 2, pages, pages, 3);
    kvf_writes_begin(&j->transfer.parts[1].writes, spans, 1, aux, aux, 1);
    kvf_error error;
    assert_int_equal(p->writer.engine->operations->post(p->writer.engine, &j->transfer, &error),
                     KVF_OK);
}

static void a_page_is_corrupted(void **state)
{
    (void)state;
    pair p;
    job j;
    kvf_span spans[2];
    open_pair(&p, "corrupt_page=1");
    assert_int_equal(run_one(&p), KVF_OK); /* carries no aux record: not the last of a room */
    assert_int_equal(p.target.pool[3 * PAGE], 1);
    post_last_chunk(&p, &j, spans);
    progress_both(&p);
    assert_int_equal(j.status, KVF_OK);
    assert_int_equal(j.done, 1);
    for (size_t i = 0; i < 7 * PAGE; i++) {
        assert_int_equal(p.target.pool[i], i / PAGE == 5 ? 0xfe : 1);
        assert_int_equal(p.writer.pool[i], 1);
    }
    post_last_chunk(&p, &j, spans);
    progress_both(&p);
    assert_int_equal(p.target.pool[5 * PAGE], 1);
    close_pair(&p);
}

static void a_peer_fails(void **state)
{
    (void)state;
    pair p;
    open_pair(&p, "peer_fail=1");
    assert_int_equal(run_one(&p), KVF_OK);
    assert_int_equal(p.writer.failed_peers, 1);
    close_pair(&p);
}

static void a_stalled_transfer_ends_when_canceled(void **state)
{
    (void)state;
    pair p;
    job j;
    open_pair(&p, "transfer_stall=1");
    post(&p, &j);
    for (int i = 0; i < 10; i++)
        progress_both(&p);
    assert_int_equal(j.done, 0);
    assert_int_equal(run_one(&p), KVF_OK);
    p.writer.engine->operations->cancel(p.writer.engine, &j.transfer);
    assert_false(p.writer.engine->operations->arm(p.writer.engine));
    progress_both(&p);
    assert_int_equal(j.done, 1);
    assert_int_equal(j.status, KVF_ABORTED);
    post(&p, &j); /* and closing forgets what is active */
    p.writer.engine->operations->cancel(p.writer.engine, &j.transfer);
    close_pair(&p);
    assert_int_equal(j.done, 0);
}

/* Sleeping on the descriptor is enough: the timer wakes it, also where the last progress() was before the post. */
static void a_held_transfer_starts_by_itself(void **state)
{
    (void)state;
    pair p;
    job j;
    open_pair(&p, "hold_ms=30");
    const kvf_engine_operations *do_ = p.writer.engine->operations;
    uint64_t started = kvf_clock_now();
    post(&p, &j);
    while (j.done == 0) {
        struct pollfd descriptor = {.fd = do_->descriptor(p.writer.engine), .events = POLLIN};
        if (do_->arm(p.writer.engine))
            assert_true(poll(&descriptor, 1, 10000) > 0);
        (void)do_->progress(p.writer.engine, KVF_MILLISECOND);
    }
    assert_true(kvf_clock_now() - started >= 30 * KVF_MILLISECOND);
    assert_int_equal(j.status, KVF_OK);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_faults_are_named),
        cmocka_unit_test(registering_and_connecting_fail),
        cmocka_unit_test(the_second_transfer_fails),
        cmocka_unit_test(a_notification_is_dropped),
        cmocka_unit_test(a_byte_is_corrupted),
        cmocka_unit_test(a_page_is_corrupted),
        cmocka_unit_test(a_peer_fails),
        cmocka_unit_test(a_stalled_transfer_ends_when_canceled),
        cmocka_unit_test(a_held_transfer_starts_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
