/* Wraps a data engine and makes it misbehave as told; docs/settings-fault.md has the grammar. Peers are the
 * inner engine's own; of the transfers only `done` is taken over while they are active. */
#include "base/text.h"
#include "data/engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define EVERY UINT64_MAX

/* The N-th one of something, counted from 1; EVERY for all, 0 for none. */
typedef struct occasion {
    uint64_t number;
    uint64_t seen;
} occasion;

typedef struct fault_plan {
    occasion register_fail;
    occasion connect_fail;
    occasion transfer_fail;
    occasion transfer_stall;
    occasion transfer_hang;
    occasion notify_drop;
    occasion corrupt;
    occasion corrupt_page;
    occasion peer_fail;
    occasion ack_early;
    uint64_t hold; /* nanoseconds */
} fault_plan;

/* An active transfer. */
typedef struct record {
    struct record *next;
    kvf_transfer *transfer;
    void (*done)(kvf_transfer *transfer, kvf_status status, const char *text);
    struct fault_engine *engine;
    uint32_t payload_lengths[KVF_TRANSFER_PARTS];
    uint8_t *flipped; /* source bytes that are upside down meanwhile */
    uint64_t flipped_length;
    uint64_t due; /* held until then; 0: posted */
    bool fail;
    bool hang;
    bool canceled;
} record;

typedef struct fault_engine {
    kvf_engine base;
    kvf_engine_operations operations; /* the inner one's, some replaced */
    kvf_engine *inner;
    kvf_engine_callbacks callbacks;
    fault_plan faults;
    record *records; /* oldest first */
    kvf_engine_peer *failed;
    int descriptor; /* epoll over the inner engine's and the timer */
    int timer;
} fault_engine;

static fault_engine *fault_of(kvf_engine *engine)
{
    return (fault_engine *)(void *)engine;
}

static bool happens(occasion *each)
{
    each->seen++;
    return each->number == EVERY || each->number == each->seen;
}

/* ---- Grammar ---- */

static bool parse_fault(fault_plan *faults, kvf_slice name, kvf_slice value)
{
    const struct {
        const char *name;
        occasion *occasion;
    } occasions[] = {
        {"register_fail", &faults->register_fail},
        {"connect_fail", &faults->connect_fail},
        {"transfer_fail", &faults->transfer_fail},
        {"transfer_stall", &faults->transfer_stall},
        {"transfer_hang", &faults->transfer_hang},
        {"notify_drop", &faults->notify_drop},
        {"corrupt", &faults->corrupt},
        {"corrupt_page", &faults->corrupt_page},
        {"peer_fail", &faults->peer_fail},
        {"ack_early", &faults->ack_early},
    };
    uint64_t number = EVERY;
    if (kvf_slice_equal(name, kvf_slice_of("hold_ms"))) {
        bool understood = kvf_parse_decimal(value, 3600 * 1000, &number);
        faults->hold = number * KVF_MILLISECOND;
        return understood;
    }
    if (!kvf_slice_equal(value, kvf_slice_of("all")) &&
        (!kvf_parse_decimal(value, EVERY - 1, &number) || number == 0))
        return false;
    for (size_t i = 0; i < sizeof occasions / sizeof occasions[0]; i++)
        if (kvf_slice_equal(name, kvf_slice_of(occasions[i].name))) {
            occasions[i].occasion->number = number;
            return true;
        }
    return false;
}

static kvf_status parse_faults(const char *text, fault_plan *faults, kvf_error *error)
{
    memset(faults, 0, sizeof *faults);
    while (*text != '\0') {
        size_t length = strcspn(text, ",");
        size_t name = strcspn(text, "=,");
        size_t equals = name < length ? 1 : 0;
        kvf_slice value = {(const uint8_t *)text + name + equals, length - name - equals};
        if (!parse_fault(faults, (kvf_slice){(const uint8_t *)text, name}, value))
            return kvf_error_set(
                error, KVF_BAD_SETTING,
                "setting fault: \"%.*s\" isn't NAME=N or NAME=all with one of "
                "register_fail connect_fail transfer_fail transfer_stall "
                "transfer_hang notify_drop corrupt corrupt_page peer_fail ack_early, nor "
                "hold_ms=N",
                (int)length, text);
        text += length + (text[length] == ',' ? 1 : 0);
    }
    return KVF_OK;
}

/* ---- Transfers ---- */

static record *find(fault_engine *engine, const kvf_transfer *transfer)
{
    record *found = engine->records;
    while (found != NULL && found->transfer != transfer)
        found = found->next;
    return found;
}

static void flip(record *active)
{
    for (uint64_t i = 0; i < active->flipped_length; i++)
        active->flipped[i] ^= 0xff;
}

/* Gives the transfer back as it was. */
static void forget(record *ended)
{
    record **link = &ended->engine->records;
    while (*link != ended)
        link = &(*link)->next;
    *link = ended->next;
    kvf_transfer *transfer = ended->transfer;
    transfer->done = ended->done;
    for (uint32_t i = 0; i < transfer->part_count; i++)
        transfer->parts[i].payload_length = ended->payload_lengths[i];
    flip(ended);
    free(ended);
}

static void finish(record *ended, kvf_status status, const char *text)
{
    kvf_transfer *transfer = ended->transfer;
    forget(ended);
    transfer->done(transfer, status, text);
}

/* Whose progress() runs on this thread: done() is only called from there. */
static _Thread_local fault_engine *progressing;

static void inner_done(kvf_transfer *transfer, kvf_status status, const char *text)
{
    record *ended = find(progressing, transfer);
    if (ended->fail && status == KVF_OK)
        finish(ended, KVF_TRANSPORT, "injected: the transfer failed");
    else
        finish(ended, status, text);
}

/* Picks a transfer's first source byte; a peer's pool is only ever reached by the real engine. */
static void pick_first_byte(record *made)
{
    for (uint32_t i = 0; i < made->transfer->part_count; i++) {
        kvf_writes writes = made->transfer->parts[i].writes;
        kvf_write write;
        if (kvf_writes_next(&writes, UINT64_MAX, &write)) {
            made->flipped = (uint8_t *)(uintptr_t)write.source;
            made->flipped_length = 1;
            return;
        }
    }
}

/* Picks the middle page of the middle buffer. */
static void pick_middle_page(record *made)
{
    const kvf_writes *writes = &made->transfer->parts[0].writes;
    if (writes->span_count == 0)
        return;
    const kvf_span *span = &writes->spans[writes->span_count / 2];
    uint64_t page = writes->source_pages[writes->page_count / 2];
    made->flipped = (uint8_t *)(uintptr_t)(span->source_base + page * span->item_length);
    made->flipped_length = span->item_length;
}

/* Whether it ends a room: the aux record goes with the last chunk only. */
static bool is_last(const kvf_transfer *transfer)
{
    return transfer->part_count == KVF_TRANSFER_PARTS;
}

static void plan_faults(fault_engine *engine, record *made)
{
    kvf_transfer *transfer = made->transfer;
    made->fail = happens(&engine->faults.transfer_fail);
    made->hang = happens(&engine->faults.transfer_hang);
    bool stall = happens(&engine->faults.transfer_stall) || made->hang;
    if (stall || engine->faults.hold > 0)
        made->due = stall ? KVF_NEVER : kvf_clock_after(kvf_clock_now(), engine->faults.hold);
    for (uint32_t i = 0; i < transfer->part_count; i++) {
        made->payload_lengths[i] = transfer->parts[i].payload_length;
        bool drop = made->payload_lengths[i] > 0 && happens(&engine->faults.notify_drop);
        if (drop || made->fail)
            transfer->parts[i].payload_length = 0;
    }
    if (happens(&engine->faults.corrupt))
        pick_first_byte(made);
    if (is_last(transfer) && happens(&engine->faults.corrupt_page))
        pick_middle_page(made);
    flip(made);
    if (happens(&engine->faults.peer_fail))
        engine->failed = transfer->peer;
}

static kvf_status fault_post(kvf_engine *base, kvf_transfer *transfer, kvf_error *error)
{
    fault_engine *engine = fault_of(base);
    record *made = calloc(1, sizeof *made);
    if (made == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a transfer");
    made->transfer = transfer;
    made->done = transfer->done;
    made->engine = engine;
    plan_faults(engine, made);
    record **link = &engine->records;
    while (*link != NULL)
        link = &(*link)->next;
    *link = made;
    transfer->done = inner_done;
    if (made->due != 0)
        return KVF_OK;
    kvf_status status = engine->inner->operations->post(engine->inner, transfer, error);
    if (status != KVF_OK)
        forget(made);
    return status;
}

static void fault_cancel(kvf_engine *base, kvf_transfer *transfer)
{
    fault_engine *engine = fault_of(base);
    record *found = find(engine, transfer);
    if (found != NULL && found->due != 0)
        found->canceled = !found->hang;
    else
        engine->inner->operations->cancel(engine->inner, transfer);
}

/* Posts what has been held long enough and ends what was canceled meanwhile; returns when to look again. */
static uint64_t release_held(fault_engine *engine)
{
    uint64_t now = kvf_clock_now();
    uint64_t next = KVF_NEVER;
    for (record *each = engine->records; each != NULL;) {
        record *held = each;
        each = each->next;
        kvf_error error;
        if (held->due == 0)
            continue;
        if (held->canceled) {
            held->transfer->flushed = true; /* nothing of it was posted */
            finish(held, KVF_ABORTED, "the transfer was canceled");
            return now; /* done() may have changed the list */
        }
        if (held->due > now) {
            next = held->due < next ? held->due : next;
            continue;
        }
        held->due = 0;
        if (engine->inner->operations->post(engine->inner, held->transfer, &error) != KVF_OK) {
            finish(held, error.status, error.text);
            return now;
        }
    }
    return next;
}

static void set_timer(fault_engine *engine, uint64_t due)
{
    struct itimerspec when = {0};
    if (due != KVF_NEVER) {
        when.it_value.tv_sec = (time_t)(due / KVF_SECOND);
        when.it_value.tv_nsec = (long)(due % KVF_SECOND);
    }
    (void)timerfd_settime(engine->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static bool fault_progress(kvf_engine *base, uint64_t budget)
{
    fault_engine *engine = fault_of(base);
    progressing = engine;
    if (engine->failed != NULL) {
        kvf_engine_peer *peer = engine->failed;
        engine->failed = NULL;
        engine->callbacks.peer_failed(engine->callbacks.user, peer, "injected: the peer failed");
    }
    uint64_t next = release_held(engine);
    engine->inner->post_until = base->post_until;
    bool more = engine->inner->operations->progress(engine->inner, budget);
    set_timer(engine, next);
    return more || next <= kvf_clock_now();
}

/* What was posted since the last progress() has no timer yet. */
static bool fault_arm(kvf_engine *base)
{
    fault_engine *engine = fault_of(base);
    uint64_t next = KVF_NEVER;
    for (record *each = engine->records; each != NULL; each = each->next) {
        if (each->due != 0 && (each->canceled || each->due <= kvf_clock_now()))
            return false;
        if (each->due != 0 && each->due < next)
            next = each->due;
    }
    set_timer(engine, next);
    return engine->failed == NULL && engine->inner->operations->arm(engine->inner);
}

static int fault_descriptor(const kvf_engine *base)
{
    return ((const fault_engine *)(const void *)base)->descriptor;
}

/* ---- The rest ---- */

static kvf_status fault_add_region(kvf_engine *base, const kvf_buffer *buffer, uint32_t *region,
                                   kvf_error *error)
{
    fault_engine *engine = fault_of(base);
    if (happens(&engine->faults.register_fail))
        return kvf_error_set(error, KVF_REGISTRATION, "injected: the registration failed");
    return engine->inner->operations->add_region(engine->inner, buffer, region, error);
}

static kvf_slice fault_address(const kvf_engine *base)
{
    const fault_engine *engine = (const fault_engine *)(const void *)base;
    return engine->inner->operations->address(engine->inner);
}

static kvf_status fault_open_inbox(kvf_engine *base, const kvf_inbox_options *options,
                                   kvf_engine_inbox **inbox, kvf_error *error)
{
    fault_engine *engine = fault_of(base);
    return engine->inner->operations->open_inbox(engine->inner, options, inbox, error);
}

static void fault_close_inbox(kvf_engine *base, kvf_engine_inbox *inbox)
{
    fault_engine *engine = fault_of(base);
    engine->inner->operations->close_inbox(engine->inner, inbox);
}

static kvf_slice fault_region_key(const kvf_engine *base, uint32_t region)
{
    const fault_engine *engine = (const fault_engine *)(const void *)base;
    return engine->inner->operations->region_key(engine->inner, region);
}

static kvf_slice fault_portable_region_key(const kvf_engine *base, uint32_t region)
{
    const fault_engine *engine = (const fault_engine *)(const void *)base;
    return engine->inner->operations->portable_region_key(engine->inner, region);
}

static kvf_status fault_connect(kvf_engine *base, kvf_slice address, void *user,
                                kvf_engine_peer **peer, kvf_error *error)
{
    fault_engine *engine = fault_of(base);
    *peer = NULL;
    if (happens(&engine->faults.connect_fail))
        return kvf_error_set(error, KVF_TRANSPORT, "injected: the connection failed");
    return engine->inner->operations->connect(engine->inner, address, user, peer, error);
}

static void fault_disconnect(kvf_engine *base, kvf_engine_peer *peer)
{
    fault_engine *engine = fault_of(base);
    if (engine->failed == peer)
        engine->failed = NULL;
    engine->inner->operations->disconnect(engine->inner, peer);
}

static void free_outside(fault_engine *engine)
{
    while (engine->records != NULL) {
        record *next = engine->records->next;
        free(engine->records);
        engine->records = next;
    }
    if (engine->descriptor >= 0)
        (void)close(engine->descriptor);
    if (engine->timer >= 0)
        (void)close(engine->timer);
    free(engine);
}

static void fault_close(kvf_engine *base)
{
    fault_engine *engine = fault_of(base);
    engine->inner->operations->close(engine->inner);
    free_outside(engine);
}

static kvf_status open_descriptors(fault_engine *engine, kvf_error *error)
{
    struct epoll_event readable = {.events = EPOLLIN};
    int inner = engine->inner->operations->descriptor(engine->inner);
    engine->descriptor = epoll_create1(EPOLL_CLOEXEC);
    engine->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (engine->descriptor < 0 || engine->timer < 0 ||
        epoll_ctl(engine->descriptor, EPOLL_CTL_ADD, inner, &readable) != 0 ||
        epoll_ctl(engine->descriptor, EPOLL_CTL_ADD, engine->timer, &readable) != 0)
        return kvf_error_set(error, KVF_SYSTEM, "descriptors for injected faults: %s",
                             strerror(errno));
    return KVF_OK;
}

static void replace_operations(fault_engine *engine)
{
    engine->operations = *engine->inner->operations;
    engine->operations.close = fault_close;
    engine->operations.add_region = fault_add_region;
    engine->operations.open_inbox = fault_open_inbox;
    engine->operations.close_inbox = fault_close_inbox;
    engine->operations.address = fault_address;
    engine->operations.region_key = fault_region_key;
    engine->operations.portable_region_key = fault_portable_region_key;
    engine->operations.connect = fault_connect;
    engine->operations.disconnect = fault_disconnect;
    engine->operations.post = fault_post;
    engine->operations.cancel = fault_cancel;
    engine->operations.progress = fault_progress;
    engine->operations.arm = fault_arm;
    engine->operations.descriptor = fault_descriptor;
    engine->base.operations = &engine->operations;
}

kvf_status kvf_fault_open(const char *text, const kvf_engine_callbacks *callbacks,
                          kvf_engine **engine, kvf_error *error)
{
    fault_plan parsed;
    kvf_status status = parse_faults(text, &parsed, error);
    if (status != KVF_OK)
        return status;
    fault_engine *made = calloc(1, sizeof *made);
    if (made == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for injected faults");
    made->inner = *engine;
    made->callbacks = *callbacks;
    made->faults = parsed;
    made->descriptor = made->timer = -1;
    status = open_descriptors(made, error);
    if (status != KVF_OK) {
        free_outside(made);
        return status;
    }
    replace_operations(made);
    *engine = &made->base;
    return KVF_OK;
}

/* Not the data plane's: the manager asks, since letters are none of the engine's business. */
bool kvf_fault_acks_early(kvf_engine *engine)
{
    return engine->operations->close == fault_close && happens(&fault_of(engine)->faults.ack_early);
}
