/* The contract of data/engine.h, the same tests over every engine: in one process, two engines that take
 * turns to progress. */
#include "data/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <poll.h>

enum { POOL = 8 << 20, PAGE = 4096, DEADLINE_SECONDS = 20 };

typedef struct variant {
    const char *name;
    const char *engine;
    const char *transports;
} variant;

static const variant variants[] = {
    {"loop", "loop", ""}, {"shm", "ucx", "posix,sysv,cma,self"}, {"tcp", "ucx", "tcp,self"}};

typedef struct side {
    kvf_engine *engine;
    uint8_t *pool;
    uint32_t region;
    unsigned notified;
    char last_payload[KVF_NOTICE_PAYLOAD_MAX + 1];
    unsigned failed_peers;
    /* Checked when a notification arrives: by then this many bytes must carry `mark`. */
    size_t expect_bytes;
    uint8_t mark;
} side;

typedef struct pair {
    const variant *variant;
    kvf_settings settings;
    side writer;
    side target;
    kvf_engine_peer *peer;
    uint32_t remote;
} pair;

/* ---- Scaffolding ---- */

static void notified(void *user, kvf_slice payload)
{
    side *s = user;
    s->notified++;
    assert_true(payload.length <= KVF_NOTICE_PAYLOAD_MAX);
    memcpy(s->last_payload, payload.data, payload.length);
    s->last_payload[payload.length] = '\0';
    for (size_t i = 0; i < s->expect_bytes; i++)
        if (s->pool[i] != s->mark)
            fail_msg("notified before byte %zu was there", i);
}

static void peer_failed(void *user, kvf_engine_peer *peer, const char *text)
{
    (void)peer;
    side *s = user;
    assert_true(strlen(text) > 0);
    s->failed_peers++;
}

static void open_side(side *s, const kvf_settings *settings)
{
    kvf_engine_callbacks callbacks = {s, notified, peer_failed};
    kvf_error error;
    if (kvf_engine_open(settings, KVF_FLAVOUR_P031, &callbacks, &s->engine, &error) != KVF_OK)
        fail_msg("%s", error.text);
    s->pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(s->pool != MAP_FAILED);
    kvf_buffer buffer = {
        sizeof buffer, (uint64_t)(uintptr_t)s->pool, POOL, PAGE, KVF_MEMORY_HOST, 0};
    if (s->engine->operations->add_region(s->engine, &buffer, &s->region, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void connect_pair(pair *p)
{
    const kvf_engine_operations *do_ = p->writer.engine->operations;
    kvf_error error;
    kvf_slice address = p->target.engine->operations->address(p->target.engine);
    if (do_->connect(p->writer.engine, address, p, &p->peer, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvf_slice key = p->target.engine->operations->region_key(p->target.engine, p->target.region);
    if (do_->add_remote_region(p->peer, key, &p->remote, &error) != KVF_OK)
        fail_msg("%s", error.text);
    assert_ptr_equal(do_->peer_user(p->peer), p);
}

static void set(pair *p, const char *name, const char *value)
{
    assert_int_equal(kvf_settings_assign(&p->settings, name, value, NULL), KVF_OK);
}

static void begin(pair *p, void **state)
{
    memset(p, 0, sizeof *p);
    p->variant = *state;
    kvf_settings_defaults(&p->settings);
    set(p, "engine", p->variant->engine);
    set(p, "transports", p->variant->transports);
}

static void open_pair(pair *p)
{
    open_side(&p->writer, &p->settings);
    kvf_settings plain = p->settings;
    plain.fault[0] = '\0';
    open_side(&p->target, &plain);
    connect_pair(p);
}

static void close_side(side *s)
{
    if (s->engine != NULL)
        s->engine->operations->close(s->engine);
    s->engine = NULL;
    if (s->pool != NULL)
        munmap(s->pool, POOL);
}

static void close_pair(pair *p)
{
    if (p->peer != NULL)
        p->writer.engine->operations->disconnect(p->writer.engine, p->peer);
    close_side(&p->writer);
    close_side(&p->target);
}

static void progress_both(pair *p)
{
    (void)p->writer.engine->operations->progress(p->writer.engine, KVF_MILLISECOND);
    if (p->target.engine != NULL)
        (void)p->target.engine->operations->progress(p->target.engine, KVF_MILLISECOND);
}

/* A transfer, its pages and its end. */
typedef struct job {
    kvf_transfer transfer;
    kvf_span span;
    const uint32_t *source_pages;
    const uint32_t *destination_pages;
    unsigned done;
    kvf_status status;
    char text[KVF_ERROR_TEXT_MAX];
    unsigned *order; /* counts up over several jobs */
    unsigned rank;
} job;

static void job_done(kvf_transfer *transfer, kvf_status status, const char *text)
{
    job *j = transfer->user;
    j->done++;
    j->status = status;
    (void)snprintf(j->text, sizeof j->text, "%s", text);
    if (j->order != NULL)
        j->rank = ++*j->order;
}

static void prepare(pair *p, job *j, const uint32_t *from, const uint32_t *to, size_t pages,
                    const char *payload)
{
    memset(j, 0, sizeof *j);
    j->span = (kvf_span){(uint64_t)(uintptr_t)p->writer.pool, (uint64_t)(uintptr_t)p->target.pool,
                         PAGE, p->writer.region, p->remote};
    j->transfer.peer = p->peer;
    j->transfer.part_count = 1;
    j->transfer.done = job_done;
    j->transfer.user = j;
    kvf_writes_begin(&j->transfer.parts[0].writes, &j->span, 1, from, to, pages);
    j->transfer.parts[0].payload_length = (uint32_t)strlen(payload);
    memcpy(j->transfer.parts[0].payload, payload, strlen(payload));
}

static void post(pair *p, job *j)
{
    kvf_error error;
    if (p->writer.engine->operations->post(p->writer.engine, &j->transfer, &error) != KVF_OK)
        fail_msg("%s", error.text);
    assert_int_equal(j->done, 0);
}

static void await(pair *p, const unsigned *count, unsigned wanted)
{
    uint64_t deadline = kvf_clock_now() + DEADLINE_SECONDS * KVF_SECOND;
    while (*count < wanted) {
        progress_both(p);
        if (kvf_clock_now() > deadline)
            fail_msg("%s: only %u of %u happened", p->variant->name, *count, wanted);
    }
}

static void await_done(pair *p, job *j, kvf_status status)
{
    await(p, &j->done, 1);
    if (j->status != status)
        fail_msg("%s: %s: %s", p->variant->name, kvf_status_name(j->status), j->text);
}

static void count_up(uint32_t *pages, size_t count, uint32_t first)
{
    for (size_t i = 0; i < count; i++)
        pages[i] = first + (uint32_t)i;
}

/* ---- Tests ---- */

static void one_write_and_its_notification(void **state)
{
    pair p;
    begin(&p, state);
    open_pair(&p);
    memset(p.writer.pool, 0x5a, 3 * PAGE);
    p.target.expect_bytes = 3 * PAGE;
    p.target.mark = 0x5a;
    static const uint32_t pages[] = {0, 1, 2};
    job j;
    prepare(&p, &j, pages, pages, 3, "7_kv_0_1");
    post(&p, &j);
    await_done(&p, &j, KVF_OK);
    assert_int_equal(j.transfer.bytes_posted, 3 * PAGE);
    assert_int_equal(j.transfer.writes_posted, 1);
    await(&p, &p.target.notified, 1);
    assert_string_equal(p.target.last_payload, "7_kv_0_1");
    assert_int_equal(p.target.pool[3 * PAGE], 0);
    close_pair(&p);
}

static void scattered_pages_in_small_pieces(void **state)
{
    enum { PAGES = 700 };
    static uint32_t from[PAGES];
    static uint32_t to[PAGES];
    pair p;
    begin(&p, state);
    set(&p, "outstanding_writes", "5");
    set(&p, "outstanding_bytes", "12288");
    set(&p, "write_size", "4096");
    open_pair(&p);
    for (uint32_t i = 0; i < PAGES; i++) {
        from[i] = i * 2 % 1999;
        to[i] = (PAGES - i) + (i % 3 == 0 ? 1000 : 0);
        memset(p.writer.pool + (size_t)from[i] * PAGE, (int)(i % 251 + 1), PAGE);
    }
    job j;
    prepare(&p, &j, from, to, PAGES, "x");
    post(&p, &j);
    await_done(&p, &j, KVF_OK);
    await(&p, &p.target.notified, 1);
    for (uint32_t i = 0; i < PAGES; i++)
        for (size_t k = 0; k < PAGE; k++)
            assert_int_equal(p.target.pool[(size_t)to[i] * PAGE + k], i % 251 + 1);
    close_pair(&p);
}

static void two_parts_notify_in_order(void **state)
{
    pair p;
    begin(&p, state);
    open_pair(&p);
    static const uint32_t page[] = {9};
    job j;
    prepare(&p, &j, page, page, 1, "1_kv_0_1");
    j.transfer.part_count = 2;
    j.transfer.parts[1] = j.transfer.parts[0];
    memcpy(j.transfer.parts[1].payload, "1_aux", 5);
    j.transfer.parts[1].payload_length = 5;
    post(&p, &j);
    await_done(&p, &j, KVF_OK);
    await(&p, &p.target.notified, 2);
    assert_string_equal(p.target.last_payload, "1_aux");
    assert_int_equal(j.transfer.writes_posted, 2);
    close_pair(&p);
}

static void no_pages_only_notify(void **state)
{
    pair p;
    begin(&p, state);
    open_pair(&p);
    job j;
    prepare(&p, &j, NULL, NULL, 0, "1_kv_0_1");
    post(&p, &j);
    await_done(&p, &j, KVF_OK);
    await(&p, &p.target.notified, 1);
    job silent;
    prepare(&p, &silent, NULL, NULL, 0, "");
    post(&p, &silent);
    await_done(&p, &silent, KVF_OK);
    for (int i = 0; i < 20; i++)
        progress_both(&p);
    assert_int_equal(p.target.notified, 1);
    close_pair(&p);
}

static void a_small_transfer_overtakes_a_big_one(void **state)
{
    enum { PAGES = POOL / PAGE };
    static uint32_t pages[PAGES];
    pair p;
    begin(&p, state);
    set(&p, "write_size", "65536");
    set(&p, "outstanding_bytes", "262144");
    open_pair(&p);
    count_up(pages, PAGES, 0);
    unsigned order = 0;
    static job big;
    static job small[20];
    prepare(&p, &big, pages, pages, PAGES, "big");
    big.order = &order;
    post(&p, &big);
    for (size_t i = 0; i < 20; i++) {
        prepare(&p, &small[i], pages, pages, 1, "small");
        small[i].order = &order;
        post(&p, &small[i]);
    }
    await_done(&p, &big, KVF_OK);
    for (size_t i = 0; i < 20; i++)
        await_done(&p, &small[i], KVF_OK);
    assert_int_equal(big.rank, 21);
    close_pair(&p);
}

/* The owner was stopped for so long that it has to look first. */
static void nothing_is_posted_past_the_moment(void **state)
{
    pair p;
    begin(&p, state);
    open_pair(&p);
    static const uint32_t pages[] = {0, 1, 2};
    job j;
    prepare(&p, &j, pages, pages, 3, "7_kv_0_1");
    post(&p, &j);
    p.writer.engine->post_until = 1;
    for (int i = 0; i < 100; i++)
        progress_both(&p);
    assert_int_equal(j.transfer.writes_posted, 0);
    assert_int_equal(j.done, 0);
    p.writer.engine->post_until = KVF_NEVER;
    await_done(&p, &j, KVF_OK);
    close_pair(&p);
}

static bool is_untouched(const uint8_t *pool, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (pool[i] != 0)
            return false;
    return true;
}

/* The first writes to a peer wait in the engine for its answer: the moment passes meanwhile. */
static void nothing_that_was_held_is_posted_past_the_moment(void **state)
{
    pair p;
    begin(&p, state);
    open_pair(&p);
    static const uint32_t pages[] = {0, 2, 4};
    job j;
    memset(p.writer.pool, 7, 5 * PAGE);
    prepare(&p, &j, pages, pages, 3, "7_kv_0_1");
    post(&p, &j);
    p.writer.engine->post_until = KVF_NEVER;
    while (j.transfer.writes_posted < 3 && j.done == 0)
        (void)p.writer.engine->operations->progress(p.writer.engine, 0);
    if (is_untouched(p.target.pool, 5 * PAGE)) {
        p.writer.engine->post_until = 1;
        for (int i = 0; i < 1000; i++)
            progress_both(&p);
        assert_int_equal(j.done, 0);
        assert_true(is_untouched(p.target.pool, 5 * PAGE));
        p.writer.engine->post_until = KVF_NEVER;
    }
    await_done(&p, &j, KVF_OK);
    close_pair(&p);
}

typedef struct two_jobs {
    pair *pair;
    job first;
    job second;
} two_jobs;

static void first_done(kvf_transfer *transfer, kvf_status status, const char *text)
{
    (void)text;
    two_jobs *two = transfer->user;
    two->first.done++;
    two->first.status = status;
    post(two->pair, &two->second);
    two->pair->writer.engine->post_until = 1;
}

/* In the middle of one call of progress(), between the end of a transfer and the next one's first write. */
static void nothing_is_posted_when_the_moment_passes_in_mid_progress(void **state)
{
    static const uint32_t pages[] = {0, 1, 2};
    pair p;
    two_jobs two = {.pair = &p};
    begin(&p, state);
    open_pair(&p);
    prepare(&p, &two.first, pages, pages, 3, "7_kv_0_1");
    prepare(&p, &two.second, pages, pages, 3, "8_kv_0_1");
    two.first.transfer.done = first_done;
    two.first.transfer.user = &two;
    p.writer.engine->post_until = KVF_NEVER;
    post(&p, &two.first);
    await_done(&p, &two.first, KVF_OK);
    for (int i = 0; i < 100; i++)
        progress_both(&p);
    assert_int_equal(two.second.transfer.writes_posted, 0);
    p.writer.engine->post_until = KVF_NEVER;
    await_done(&p, &two.second, KVF_OK);
    close_pair(&p);
}

static void cancel_ends_without_a_notification(void **state)
{
    enum { PAGES = POOL / PAGE };
    static uint32_t pages[PAGES];
    pair p;
    begin(&p, state);
    set(&p, "write_size", "4096");
    set(&p, "outstanding_writes", "4");
    open_pair(&p);
    const kvf_engine_operations *do_ = p.writer.engine->operations;
    count_up(pages, PAGES, 0);
    static job early;
    static job midway;
    prepare(&p, &early, pages, pages, PAGES, "early");
    post(&p, &early);
    do_->cancel(p.writer.engine, &early.transfer);
    assert_int_equal(early.done, 0);
    await_done(&p, &early, KVF_ABORTED);
    assert_int_equal(early.transfer.bytes_posted, 0);
    prepare(&p, &midway, pages, pages, PAGES, "midway");
    post(&p, &midway);
    while (midway.transfer.bytes_posted == 0)
        progress_both(&p);
    do_->cancel(p.writer.engine, &midway.transfer);
    await_done(&p, &midway, KVF_ABORTED);
    assert_true(midway.transfer.bytes_posted < POOL);
    /* What arrives next is the next transfer's. */
    job last;
    prepare(&p, &last, pages, pages, 1, "last");
    post(&p, &last);
    await_done(&p, &last, KVF_OK);
    await(&p, &p.target.notified, 1);
    assert_string_equal(p.target.last_payload, "last");
    assert_int_equal(midway.done, 1);
    close_pair(&p);
}

static void bad_addresses_and_keys_are_refused(void **state)
{
    pair p;
    begin(&p, state);
    open_pair(&p);
    const kvf_engine_operations *do_ = p.writer.engine->operations;
    static const uint8_t rubbish[] = "this isn't a worker address at all";
    kvf_engine_peer *peer = (void *)&p;
    kvf_error error;
    assert_int_equal(
        do_->connect(p.writer.engine, (kvf_slice){rubbish, sizeof rubbish}, NULL, &peer, &error),
        KVF_TRANSPORT);
    assert_null(peer);
    assert_int_equal(do_->connect(p.writer.engine, (kvf_slice){NULL, 0}, NULL, &peer, &error),
                     KVF_TRANSPORT);
    uint32_t region;
    kvf_slice key = p.target.engine->operations->region_key(p.target.engine, p.target.region);
    for (size_t cut = 0; cut < key.length && cut < 9; cut++)
        assert_int_not_equal(
            do_->add_remote_region(p.peer, (kvf_slice){key.data, cut}, &region, &error), KVF_OK);
    assert_int_equal(do_->add_remote_region(p.peer, key, &region, &error), KVF_OK);
    assert_int_equal(region, p.remote + 1);
    close_pair(&p);
}

static void unmapped_memory_is_refused(void **state)
{
    pair p;
    begin(&p, state);
    if (strcmp(p.variant->engine, "loop") == 0)
        skip(); /* it checks nothing */
    open_pair(&p);
    const kvf_engine_operations *do_ = p.writer.engine->operations;
    uint32_t region;
    kvf_error error;
    uint8_t *pages =
        mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    kvf_buffer buffer = {.size = sizeof buffer, .base = (uint64_t)(uintptr_t)pages};
    buffer.length = buffer.item_length = 3 * PAGE;
    assert_int_equal(mprotect(pages + PAGE, PAGE, PROT_NONE), 0);
    assert_int_equal(do_->add_region(p.writer.engine, &buffer, &region, &error), KVF_REGISTRATION);
    assert_non_null(strstr(error.text, "isn't mapped"));
    assert_int_equal(mprotect(pages + PAGE, PAGE, PROT_READ), 0);
    assert_int_equal(do_->add_region(p.writer.engine, &buffer, &region, &error), KVF_REGISTRATION);
    buffer.length = PAGE;
    assert_int_equal(do_->add_region(p.writer.engine, &buffer, &region, &error), KVF_OK);
    buffer.base = PAGE; /* the kernel maps nothing so low */
    assert_int_equal(do_->add_region(p.writer.engine, &buffer, &region, &error), KVF_REGISTRATION);
    buffer.base = (uint64_t)(uintptr_t)pages;
    buffer.memory = KVF_MEMORY_CUDA;
    assert_int_equal(do_->add_region(p.writer.engine, &buffer, &region, &error), KVF_REGISTRATION);
    assert_non_null(strstr(error.text, "CUDA"));
    close_pair(&p);
    munmap(pages, 3 * PAGE);
}

/* Sleeps on the descriptors as the event loop does: every wake-up that is lost is a second lost. */
static void armed_descriptors_wake(void **state)
{
    enum { ROUNDS = 200 };
    static const uint32_t pages[] = {1, 3, 5};
    pair p;
    begin(&p, state);
    open_pair(&p);
    uint64_t started = kvf_clock_now();
    for (unsigned round = 1; round <= ROUNDS; round++) {
        job j;
        prepare(&p, &j, pages, pages, 3, "x");
        post(&p, &j);
        while (p.target.notified < round || j.done == 0) {
            kvf_engine *engines[] = {p.writer.engine, p.target.engine};
            struct pollfd descriptors[2];
            bool asleep = true;
            for (int i = 0; i < 2; i++) {
                while (engines[i]->operations->progress(engines[i], KVF_MILLISECOND))
                    continue;
                asleep = engines[i]->operations->arm(engines[i]) && asleep;
                descriptors[i].fd = engines[i]->operations->descriptor(engines[i]);
                descriptors[i].events = POLLIN;
            }
            bool over = p.target.notified >= round && j.done != 0;
            (void)poll(descriptors, 2, asleep && !over ? 1000 : 0);
        }
    }
    assert_true(kvf_clock_now() - started < DEADLINE_SECONDS * KVF_SECOND);
    close_pair(&p);
}

/* Disconnecting and connecting again leaves nothing behind that grows, and closing works with peers and
 * transfers still there. */
static void peers_come_and_go(void **state)
{
    static const uint32_t pages[] = {0};
    pair p;
    begin(&p, state);
    open_pair(&p);
    for (unsigned round = 1; round <= 20; round++) {
        job j;
        prepare(&p, &j, pages, pages, 1, "x");
        post(&p, &j);
        await_done(&p, &j, KVF_OK);
        await(&p, &p.target.notified, round);
        p.writer.engine->operations->disconnect(p.writer.engine, p.peer);
        connect_pair(&p);
    }
    static job active;
    prepare(&p, &active, pages, pages, 1, "x");
    post(&p, &active);
    close_side(&p.writer);
    assert_int_equal(active.done, 0);
    close_side(&p.target);
}

/* The target goes away in good order; the writer mustn't hang at its end. */
static void a_closed_target_doesnt_hold_the_writer(void **state)
{
    static uint32_t pages[256];
    pair p;
    begin(&p, state);
    open_pair(&p);
    count_up(pages, 256, 0);
    job j;
    prepare(&p, &j, pages, pages, 1, "x");
    post(&p, &j);
    await_done(&p, &j, KVF_OK);
    p.target.engine->operations->close(p.target.engine);
    p.target.engine = NULL;
    static job late;
    prepare(&p, &late, pages, pages, 256, "x");
    kvf_error error;
    uint64_t until = kvf_clock_now() + 300 * KVF_MILLISECOND;
    if (p.writer.engine->operations->post(p.writer.engine, &late.transfer, &error) == KVF_OK)
        while (late.done == 0 && kvf_clock_now() < until)
            progress_both(&p);
    if (strcmp(p.variant->engine, "loop") == 0) {
        assert_int_equal(late.status, KVF_PEER_GONE);
        assert_int_equal(p.writer.failed_peers, 1);
    }
    p.writer.engine->operations->disconnect(p.writer.engine, p.peer);
    p.peer = NULL;
    close_pair(&p);
}

/* ---- What an inbox offers ---- */

/* Whether an inbox of that reach is made, and can be written past. */
static kvf_status offers(const side *s, unsigned reach, bool *direct)
{
    const kvf_engine_operations *do_ = s->engine->operations;
    kvf_inbox_options options = {.reach = reach, .user = (void *)s, .notified = notified};
    kvf_engine_inbox *inbox;
    kvf_error error;
    kvf_status status = do_->open_inbox(s->engine, &options, &inbox, &error);
    if (status != KVF_OK)
        return status;
    *direct = do_->inbox_is_direct(inbox);
    do_->close_inbox(s->engine, inbox);
    return KVF_OK;
}

/* Where shared memory maps the pool, a reach without that leaves the network alone, or nothing. */
static void a_reach_leaves_out_what_maps_the_pool(void **state)
{
    static const variant both = {"shm and tcp", "ucx", "posix,sysv,cma,self,tcp"};
    static const variant shm = {"shm alone", "ucx", "posix,sysv,cma,self"};
    static const variant *const offered[] = {&both, &shm};
    static const unsigned reaches[] = {KVF_REACH_FENCEABLE, KVF_REACH_NETWORK};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        pair p;
        bool direct = false;
        void *which = (void *)(uintptr_t)offered[i];
        begin(&p, &which);
        open_side(&p.target, &p.settings);
        assert_int_equal(offers(&p.target, 0, &direct), KVF_OK);
        if (!direct)
            fail_msg("no direct mapping among %s: nothing is tested", offered[i]->transports);
        for (size_t r = 0; r < 2; r++) {
            kvf_status status = offers(&p.target, reaches[r], &direct);
            assert_int_equal(status, offered[i] == &both ? KVF_OK : KVF_UNSUPPORTED);
            assert_true(status != KVF_OK || !direct);
        }
        close_side(&p.target);
    }
}

/* Without it there is nothing to leave out. */
static void a_reach_leaves_what_we_place_ourselves(void **state)
{
    static const variant tcp = {"tcp alone", "ucx", "tcp,self"};
    static const unsigned reaches[] = {0, KVF_REACH_FENCEABLE, KVF_REACH_NETWORK};
    (void)state;
    pair p;
    void *which = (void *)(uintptr_t)&tcp;
    begin(&p, &which);
    open_side(&p.target, &p.settings);
    for (size_t r = 0; r < sizeof reaches / sizeof reaches[0]; r++) {
        bool direct = true;
        assert_int_equal(offers(&p.target, reaches[r], &direct), KVF_OK);
        assert_false(direct);
    }
    close_side(&p.target);
}

int main(void)
{
    int failures = 0;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        void *which = (void *)(uintptr_t)&variants[i];
        print_message("# %s\n", variants[i].name);
        const struct CMUnitTest tests[] = {
            cmocka_unit_test_prestate(one_write_and_its_notification, which),
            cmocka_unit_test_prestate(scattered_pages_in_small_pieces, which),
            cmocka_unit_test_prestate(two_parts_notify_in_order, which),
            cmocka_unit_test_prestate(no_pages_only_notify, which),
            cmocka_unit_test_prestate(a_small_transfer_overtakes_a_big_one, which),
            cmocka_unit_test_prestate(nothing_is_posted_past_the_moment, which),
            cmocka_unit_test_prestate(nothing_that_was_held_is_posted_past_the_moment, which),
            cmocka_unit_test_prestate(nothing_is_posted_when_the_moment_passes_in_mid_progress,
                                      which),
            cmocka_unit_test_prestate(cancel_ends_without_a_notification, which),
            cmocka_unit_test_prestate(bad_addresses_and_keys_are_refused, which),
            cmocka_unit_test_prestate(unmapped_memory_is_refused, which),
            cmocka_unit_test_prestate(armed_descriptors_wake, which),
            cmocka_unit_test_prestate(peers_come_and_go, which),
            cmocka_unit_test_prestate(a_closed_target_doesnt_hold_the_writer, which),
        };
        failures += cmocka_run_group_tests_name(variants[i].name, tests, NULL, NULL);
    }
    const struct CMUnitTest reach[] = {
        cmocka_unit_test(a_reach_leaves_out_what_maps_the_pool),
        cmocka_unit_test(a_reach_leaves_what_we_place_ourselves),
    };
    return failures + cmocka_run_group_tests_name("reach", reach, NULL, NULL);
}
