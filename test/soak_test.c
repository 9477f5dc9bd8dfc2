/* A finished room leaves nothing behind: a hundred thousand of them, clean, aborted, failed, unclaimed, duplicate
 * and closed in the middle, over shared memory. Then tables, descriptors, threads and shared segments are as at room
 * 1,000, and the process is within 1 MiB of what it was after a tenth of them. KVF_SOAK_ROOMS=1000000 for more. */
#include "support/raw.h"

#include "base/clock.h"
#include "support/process.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Pages of a room lie at its place in the batch. Odd rooms, whose writes may still be under way when they have
 * ended, have pages of their own at the end of the pool. */
enum { FEWEST_ROOMS = 100000, BATCH = 60, PAGES = 256, ODD_PAGES = 64, WARM = 1000 };
#define RSS_LIMIT (1 << 20)
#define TIME_LIMIT (110 * KVF_SECOND) /* for FEWEST_ROOMS */

static const test_shape shape = {.buffers = 2,
                                 .pages = PAGES,
                                 .item_length = 512,
                                 .aux = 2,
                                 .slots = BATCH,
                                 .aux_item_length = 64};

static uint32_t all_rooms = FEWEST_ROOMS;
static test_bootstrap bootstrap;
static test_worker prefill;
static test_worker decode;
static raw_decode raw;
static uint64_t raw_expected; /* notifications */

typedef enum kind {
    ONE_CHUNK,
    TWO_CHUNKS,
    SENDER_ABORTS,
    RECEIVER_ABORTS,
    COUNTS_DIFFER,
    NOBODY_OPENS,
    RAW_NOBODY_OPENS,
    RAW_ASKS_TWICE,
    CLOSED_IN_THE_MIDDLE
} kind;

typedef struct room {
    kind kind;
    kvf_sender *sender;
    kvf_receiver *receiver;
    uint32_t source[2];
    uint32_t destination[2];
} room;

static kind kind_of(uint32_t number)
{
    static const kind mixed[20] = {ONE_CHUNK,       ONE_CHUNK, ONE_CHUNK,
                                   SENDER_ABORTS,   ONE_CHUNK, TWO_CHUNKS,
                                   RECEIVER_ABORTS, ONE_CHUNK, TWO_CHUNKS,
                                   COUNTS_DIFFER,   ONE_CHUNK, NOBODY_OPENS,
                                   TWO_CHUNKS,      ONE_CHUNK, RAW_NOBODY_OPENS,
                                   RAW_ASKS_TWICE,  ONE_CHUNK, CLOSED_IN_THE_MIDDLE,
                                   ONE_CHUNK,       ONE_CHUNK};
    return mixed[number % 20];
}

/* ---- One room --------------------------------------------------------------------------------------- */

static void ok(kvf_status status)
{
    if (status != KVF_OK)
        fail_msg("%s", kvf_error_text());
}

static void raw_ask(uint32_t number, int times)
{
    static const uint64_t pages[] = {3, 9};
    kvf_request request = raw_decode_request(&raw, number, pages, 2);
    for (int i = 0; i < times; i++)
        raw_decode_send(&raw, &request);
}

static void open_receiver(room *one, uint32_t number, uint32_t place)
{
    one->receiver = test_receiver_open(&decode, bootstrap.address, number);
    ok(kvf_receiver_expect(one->receiver, one->destination, 2, place));
}

static void open_sender(room *one, uint32_t number, uint32_t place, uint32_t pages)
{
    one->sender = test_sender_open(&prefill, number);
    ok(kvf_sender_expect(one->sender, pages, place));
}

static void choose_pages(room *one, uint32_t number, uint32_t place)
{
    bool odd = one->kind >= SENDER_ABORTS;
    for (uint32_t i = 0; i < 2; i++) {
        one->source[i] = (number * 7 + i * 5) % PAGES;
        one->destination[i] = odd ? PAGES - ODD_PAGES + (2 * place + i) % ODD_PAGES : 2 * place + i;
    }
}

static void begin(room *one, uint32_t number, uint32_t place)
{
    *one = (room){.kind = kind_of(number)};
    choose_pages(one, number, place);
    if (one->kind == RAW_ASKS_TWICE || one->kind == RAW_NOBODY_OPENS)
        raw_ask(number, one->kind == RAW_ASKS_TWICE ? 2 : 1);
    else if (place % 2 == 0)
        open_receiver(one, number, place);
    if (one->kind != NOBODY_OPENS && one->kind != RAW_NOBODY_OPENS) {
        open_sender(one, number, place, one->kind == COUNTS_DIFFER ? 3 : 2);
        if (one->kind == SENDER_ABORTS)
            kvf_sender_abort(one->sender);
        else if (one->kind == TWO_CHUNKS)
            ok(kvf_sender_send(one->sender, one->source, 1));
        else if (one->kind != COUNTS_DIFFER)
            ok(kvf_sender_send(one->sender, one->source, 2));
    }
    if (one->kind != RAW_ASKS_TWICE && one->kind != RAW_NOBODY_OPENS && one->receiver == NULL)
        open_receiver(one, number, place);
    if (one->kind == RECEIVER_ABORTS)
        kvf_receiver_abort(one->receiver);
    if (one->kind == TWO_CHUNKS)
        ok(kvf_sender_send(one->sender, one->source + 1, 1));
    if (one->kind == CLOSED_IN_THE_MIDDLE) {
        kvf_sender_close(one->sender);
        one->sender = NULL;
    }
}

static void end(room *one)
{
    switch (one->kind) {
    case ONE_CHUNK:
    case TWO_CHUNKS:
        test_receiver_ends(&decode, one->receiver, KVF_OK, NULL);
        test_sender_ends(&prefill, one->sender, KVF_OK, NULL);
        for (size_t i = 0; i < 2; i++)
            assert_true(test_page_arrived(&prefill, one->source[i], &decode, one->destination[i]));
        break;
    case SENDER_ABORTS:
        test_sender_ends(&prefill, one->sender, KVF_ABORTED, NULL);
        break;
    case RECEIVER_ABORTS:
        test_receiver_settles(&decode, one->receiver); /* it may have been too late */
        break;
    case COUNTS_DIFFER:
        test_sender_ends(&prefill, one->sender, KVF_MISMATCH, "2 pages");
        break;
    case RAW_ASKS_TWICE:
        raw_expected += 2;
        assert_true(raw_decode_notified(&raw, raw_expected));
        test_sender_ends(&prefill, one->sender, KVF_OK, NULL);
        break;
    case NOBODY_OPENS:
    case RAW_NOBODY_OPENS:
    case CLOSED_IN_THE_MIDDLE:
        break;
    }
    kvf_receiver_close(one->receiver);
    kvf_sender_close(one->sender);
}

static uint32_t run_until(uint32_t number, uint32_t limit)
{
    static room rooms[BATCH];
    while (number < limit) {
        uint32_t count = limit - number < BATCH ? limit - number : BATCH;
        for (uint32_t i = 0; i < count; i++)
            begin(&rooms[i], number + i, i);
        for (uint32_t i = 0; i < count; i++)
            end(&rooms[i]);
        number += count;
    }
    return number;
}

/* ---- What is left ------------------------------------------------------------------------------------ */

typedef struct remains {
    uint64_t rooms;
    uint64_t held;
    uint64_t transfers;
    uint64_t prefill_peers;
    uint64_t decode_peers;
    size_t descriptors;
    size_t threads;
    size_t segments;
    long rss;
} remains;

/* Of shared memory, as this process has it mapped. */
static size_t shared_segments(void)
{
    size_t count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "/dev/shm/") != NULL || strstr(line, "/SYSV") != NULL ||
                 strstr(line, "/memfd:") != NULL || strstr(line, "ucx_shm") != NULL;
    (void)fclose(maps);
    return count;
}

static long resident(void)
{
    long size = 0;
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &size, &pages), 2);
    (void)fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

/* When what was held has expired, and what was under way has ended. */
static remains look(void)
{
    uint64_t deadline = kvf_clock_after(kvf_clock_now(), 20 * KVF_SECOND);
    kvf_statistics sending;
    kvf_statistics receiving;
    do {
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        sending = test_statistics(&prefill);
        receiving = test_statistics(&decode);
    } while ((sending.requests_held > 0 || sending.transfers_active > 0) &&
             kvf_clock_now() < deadline);
    (void)malloc_trim(0);
    return (remains){.rooms = sending.rooms_open + receiving.rooms_open,
                     .held = sending.requests_held,
                     .transfers = sending.transfers_active,
                     .prefill_peers = sending.peers,
                     .decode_peers = receiving.peers,
                     .descriptors = test_entries("/proc/self/fd"),
                     .threads = test_entries("/proc/self/task"),
                     .segments = shared_segments(),
                     .rss = resident()};
}

static void print(const char *when, const remains *one)
{
    (void)printf("%s: %llu rooms, %llu held, %llu transfers, %llu and %llu peers, %zu descriptors, "
                 "%zu threads, %zu shared segments, %ld KiB\n",
                 when, (unsigned long long)one->rooms, (unsigned long long)one->held,
                 (unsigned long long)one->transfers, (unsigned long long)one->prefill_peers,
                 (unsigned long long)one->decode_peers, one->descriptors, one->threads,
                 one->segments, one->rss / 1024);
}

static void check_counts(void)
{
    kvf_statistics sending = test_statistics(&prefill);
    kvf_statistics receiving = test_statistics(&decode);
    (void)printf(
        "%llu of %llu senders and %llu of %llu receivers succeeded; %llu requests expired, "
        "%llu messages dropped\n",
        (unsigned long long)sending.rooms_succeeded, (unsigned long long)sending.rooms_opened,
        (unsigned long long)receiving.rooms_succeeded, (unsigned long long)receiving.rooms_opened,
        (unsigned long long)sending.requests_expired, (unsigned long long)sending.messages_dropped);
    assert_int_equal(sending.rooms_succeeded + sending.rooms_failed, sending.rooms_opened);
    assert_int_equal(receiving.rooms_succeeded + receiving.rooms_failed, receiving.rooms_opened);
    assert_true(receiving.rooms_succeeded >= all_rooms / 20 * 13);
    assert_true(sending.requests_expired >= all_rooms / 20);
    assert_true(sending.messages_dropped >= all_rooms / 20);
    assert_int_equal(sending.peers_lost + receiving.peers_lost, 0);
}

static void many_rooms_leave_nothing(void **state)
{
    (void)state;
    uint64_t start = kvf_clock_now();
    uint32_t number = run_until(0, WARM);
    remains at_first = look();
    print("room 1,000", &at_first);
    number = run_until(number, all_rooms / 10);
    remains measured = look();
    print("a tenth of the rooms", &measured);
    uint64_t limit = TIME_LIMIT * (all_rooms / FEWEST_ROOMS);
    while (number < all_rooms) {
        number = run_until(number, number + 5000 < all_rooms ? number + 5000 : all_rooms);
        if (kvf_clock_now() - start > limit)
            fail_msg("only %u rooms in %u s", number, (unsigned)(limit / KVF_SECOND));
    }
    remains at_last = look();
    print("all rooms", &at_last);
    (void)printf("%.1f s\n", (double)(kvf_clock_now() - start) / 1e9);
    check_counts();
    assert_int_equal(at_last.rooms, 0);
    assert_int_equal(at_last.held, 0);
    assert_int_equal(at_last.transfers, 0);
    assert_int_equal(at_last.prefill_peers, at_first.prefill_peers);
    assert_int_equal(at_last.decode_peers, at_first.decode_peers);
    /* An idle HTTP connection is closed after a while: fewer are fine. */
    assert_true(at_last.descriptors <= at_first.descriptors);
    assert_int_equal(at_last.threads, at_first.threads);
    assert_int_equal(at_last.segments, at_first.segments);
    if (!test_is_sanitized())
        assert_true(at_last.rss - measured.rss < RSS_LIMIT);
}

static int start(void **state)
{
    (void)state;
    static const char *const settings[] = {"hold_timeout", "100ms", NULL};
    const char *wanted = getenv("KVF_SOAK_ROOMS");
    if (wanted != NULL && strtoul(wanted, NULL, 10) > FEWEST_ROOMS)
        all_rooms = (uint32_t)strtoul(wanted, NULL, 10);
    test_use_engine("shm");
    test_bootstrap_open(&bootstrap);
    test_worker_open(&prefill, KVF_PREFILL, &shape, bootstrap.address, settings);
    test_worker_open(&decode, KVF_DECODE, &shape, NULL, NULL);
    raw_decode_open(&raw, "raw-decode", kvf_manager_port(prefill.manager));
    test_worker_fill(&prefill);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    raw_decode_close(&raw);
    test_worker_close(&prefill);
    test_worker_close(&decode);
    test_bootstrap_close(&bootstrap);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_rooms_leave_nothing)};
    return cmocka_run_group_tests(tests, start, stop);
}
