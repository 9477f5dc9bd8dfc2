#include "data/transfers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a transfer. In POSTING it is in its peer's ring; when a later stage has nothing outstanding any
 * more it is in the list of ready ones. */
enum stage { POSTING = 1, DRAINING, FLUSHING, NOTIFYING };

/* Work of one advance(): small enough to look at the clock in between. */
enum { POSTS_AT_ONCE = 64, STEPS_AT_ONCE = 64 };

kvf_status kvf_transfers_open(kvf_transfers *transfers, const kvf_settings *settings,
                              const kvf_transport *transport, kvf_engine *engine, kvf_error *error)
{
    memset(transfers, 0, sizeof *transfers);
    transfers->transport = transport;
    transfers->engine = engine;
    transfers->write_limit = (uint32_t)settings->outstanding_writes;
    transfers->byte_limit = settings->outstanding_bytes;
    transfers->write_size = settings->write_size < settings->outstanding_bytes
                                ? settings->write_size
                                : settings->outstanding_bytes;
    transfers->puts = calloc(transfers->write_limit, sizeof *transfers->puts);
    if (transfers->puts == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for %u outstanding writes",
                             transfers->write_limit);
    for (uint32_t i = 0; i < transfers->write_limit; i++) {
        transfers->puts[i].next = transfers->free_puts;
        transfers->free_puts = &transfers->puts[i];
    }
    return KVF_OK;
}

void kvf_transfers_close(kvf_transfers *transfers)
{
    free(transfers->puts);
    memset(transfers, 0, sizeof *transfers);
}

static kvf_transfers_peer *peer_of(const kvf_transfer *transfer)
{
    return (kvf_transfers_peer *)(void *)transfer->peer;
}

/* ---- Lists ---- */

static void peer_enter(kvf_transfers *transfers, kvf_transfers_peer *peer)
{
    if (transfers->peers == NULL) {
        transfers->peers = peer->next = peer->previous = peer;
        return;
    }
    peer->next = transfers->peers;
    peer->previous = transfers->peers->previous;
    peer->previous->next = peer->next->previous = peer;
}

static void peer_leave(kvf_transfers *transfers, kvf_transfers_peer *peer)
{
    if (transfers->peers == peer)
        transfers->peers = peer->next == peer ? NULL : peer->next;
    peer->previous->next = peer->next;
    peer->next->previous = peer->previous;
}

static void ring_enter(kvf_transfers *transfers, kvf_transfer *transfer)
{
    kvf_transfers_peer *peer = peer_of(transfer);
    transfer->private.stage = POSTING;
    if (peer->transfers == NULL) {
        peer->transfers = transfer->private.next = transfer->private.previous = transfer;
        peer_enter(transfers, peer);
        return;
    }
    transfer->private.next = peer->transfers;
    transfer->private.previous = peer->transfers->private.previous;
    transfer->private.previous->private.next = transfer;
    transfer->private.next->private.previous = transfer;
}

static void ready_enter(kvf_transfers *transfers, kvf_transfer *transfer)
{
    transfer->private.next = NULL;
    if (transfers->ready == NULL)
        transfers->ready = transfer;
    else
        transfers->ready_last->private.next = transfer;
    transfers->ready_last = transfer;
}

static kvf_transfer *ready_take(kvf_transfers *transfers)
{
    kvf_transfer *transfer = transfers->ready;
    if (transfer != NULL)
        transfers->ready = transfer->private.next;
    return transfer;
}

/* Posts no more of it. */
static void ring_leave(kvf_transfers *transfers, kvf_transfer *transfer)
{
    kvf_transfers_peer *peer = peer_of(transfer);
    if (peer->transfers == transfer)
        peer->transfers = transfer->private.next == transfer ? NULL : transfer->private.next;
    transfer->private.previous->private.next = transfer->private.next;
    transfer->private.next->private.previous = transfer->private.previous;
    if (peer->transfers == NULL)
        peer_leave(transfers, peer);
    transfer->private.stage = DRAINING;
    if (transfer->private.outstanding == 0)
        ready_enter(transfers, transfer);
}

/* ---- Bounds ---- */

/* Would a peer, with `more` added to its `used` of a pool, still leave as much free? `used` is part of
 * `all`, which is part of `limit`. */
static bool leaves_as_much(uint64_t used, uint64_t all, uint64_t more, uint64_t limit)
{
    return more <= limit - all && used + more <= limit - all - more;
}

static kvf_put *take_put(kvf_transfers *transfers, kvf_transfers_peer *peer, uint64_t length)
{
    kvf_put *put = NULL;
    if (peer->own.transfer == NULL) {
        put = &peer->own;
    } else if (leaves_as_much(peer->writes, transfers->writes, 1, transfers->write_limit) &&
               leaves_as_much(peer->bytes, transfers->bytes, length, transfers->byte_limit)) {
        put = transfers->free_puts;
        transfers->free_puts = put->next;
        transfers->bytes += length;
        peer->bytes += length;
        transfers->writes++;
        peer->writes++;
    }
    if (put != NULL)
        put->pooled = put != &peer->own;
    return put;
}

static void give_put(kvf_transfers *transfers, kvf_put *put)
{
    kvf_transfers_peer *peer = peer_of(put->transfer);
    put->transfer = NULL;
    if (!put->pooled)
        return;
    transfers->bytes -= put->write.length;
    peer->bytes -= put->write.length;
    transfers->writes--;
    peer->writes--;
    put->next = transfers->free_puts;
    transfers->free_puts = put;
}

/* ---- Posting ---- */

/* The part whose writes are next, or NULL. */
static kvf_transfer_part *next_part(kvf_transfer *transfer)
{
    for (; transfer->private.part < transfer->part_count; transfer->private.part++) {
        kvf_transfer_part *part = &transfer->parts[transfer->private.part];
        if (!kvf_writes_done(&part->writes))
            return part;
    }
    return NULL;
}

static void put_done(kvf_transfers *transfers, kvf_put *put)
{
    kvf_transfer *transfer = put->transfer;
    give_put(transfers, put);
    transfer->private.outstanding--;
}

/* Posts one write of the peer whose turn it is; false when the bounds don't allow it. */
static bool post_one(kvf_transfers *transfers, kvf_transfers_peer *peer)
{
    kvf_transfer *transfer = peer->transfers;
    kvf_transfer_part *part = next_part(transfer);
    /* Measured on a copy: a write that the bounds refuse must stay to be given again. */
    kvf_writes after = part->writes;
    kvf_write write;
    bool given = kvf_writes_next(&after, transfers->write_size, &write);
    kvf_put *put = given ? take_put(transfers, peer, write.length) : NULL;
    if (given && put == NULL) {
        if (after.page == part->writes.page)
            part->writes.run = after.run; /* measuring a long run again and again takes time */
        return false;
    }
    part->writes = after;
    if (given) {
        put->transfer = transfer;
        put->write = write;
        transfer->private.outstanding++;
        transfer->bytes_posted += write.length;
        transfer->writes_posted += write.starts_run;
        if (transfers->transport->put(transfers->engine, put) != KVF_OUTCOME_PENDING)
            put_done(transfers, put);
    }
    if (transfer->private.stage != POSTING)
        return true; /* the peer failed meanwhile */
    if (transfer->private.error.status != KVF_OK || next_part(transfer) == NULL)
        ring_leave(transfers, transfer);
    else
        peer->transfers = transfer->private.next;
    return true;
}

/* The process may be stopped between any two posts: the clock is looked at before each. */
static bool post_some(kvf_transfers *transfers)
{
    kvf_transfers_peer *refused = NULL; /* the first of a row that the bounds stopped */
    bool late = false;
    int posts = 0;
    while (posts < POSTS_AT_ONCE && transfers->peers != NULL) {
        kvf_transfers_peer *peer = transfers->peers;
        if (peer == refused)
            break;
        late = !kvf_engine_may_post(transfers->engine);
        if (late)
            break;
        if (post_one(transfers, peer)) {
            refused = NULL;
            posts++;
        } else if (refused == NULL) {
            refused = peer;
        }
        if (transfers->peers == peer)
            transfers->peers = peer->next;
    }
    transfers->stirred = posts == POSTS_AT_ONCE || late;
    return posts > 0;
}

/* ---- Stages ---- */

static void finish(kvf_transfer *transfer, kvf_status status, const char *text)
{
    peer_of(transfer)->active--;
    transfer->private.stage = 0;
    transfer->done(transfer, status, text);
}

static void notify_all(kvf_transfers *transfers, kvf_transfer *transfer)
{
    transfer->private.stage = NOTIFYING;
    /* One more than there are, so that none that completes at once makes the transfer ready. */
    transfer->private.outstanding = 1;
    for (uint32_t i = 0; i < transfer->part_count; i++) {
        if (transfer->parts[i].payload_length == 0 || transfer->private.error.status != KVF_OK)
            continue;
        if (transfers->transport->notify(transfers->engine, transfer, &transfer->parts[i]) ==
            KVF_OUTCOME_PENDING)
            transfer->private.outstanding++;
    }
    kvf_transfers_step_ended(transfers, transfer);
}

/* A canceled transfer is flushed too: once it is done nothing of it lands any more. */
static void flush(kvf_transfers *transfers, kvf_transfer *transfer)
{
    transfer->private.stage = FLUSHING;
    transfer->private.outstanding = 1;
    if (transfer->bytes_posted == 0 ||
        transfers->transport->flush(transfers->engine, transfer) != KVF_OUTCOME_PENDING)
        kvf_transfers_step_ended(transfers, transfer);
}

/* Everything of the present stage has ended. */
static void step(kvf_transfers *transfers, kvf_transfer *transfer)
{
    kvf_error *error = &transfer->private.error;
    bool last = transfer->private.stage == NOTIFYING;
    if (transfer->private.stage == FLUSHING)
        transfer->flushed = error->status == KVF_OK;
    if (transfer->private.canceled &&
        (transfer->private.stage != DRAINING || error->status != KVF_OK))
        finish(transfer, KVF_ABORTED, "the transfer was canceled");
    else if (error->status != KVF_OK)
        finish(transfer, error->status, error->text);
    else if (last)
        finish(transfer, KVF_OK, "");
    else if (transfer->private.stage == DRAINING)
        flush(transfers, transfer);
    else
        notify_all(transfers, transfer);
}

bool kvf_transfers_advance(kvf_transfers *transfers)
{
    bool moved = false;
    for (int steps = 0; steps < STEPS_AT_ONCE && transfers->ready != NULL &&
                        kvf_engine_may_post(transfers->engine);
         steps++) {
        step(transfers, ready_take(transfers));
        moved = true;
    }
    return post_some(transfers) || moved;
}

bool kvf_transfers_have_work(const kvf_transfers *transfers)
{
    return transfers->ready != NULL || (transfers->stirred && transfers->peers != NULL);
}

/* ---- From outside ---- */

kvf_status kvf_transfers_post(kvf_transfers *transfers, kvf_transfer *transfer, kvf_error *error)
{
    kvf_transfers_peer *peer = peer_of(transfer);
    if (peer->failed)
        return kvf_error_set(error, KVF_PEER_GONE, "%s", peer->failure);
    if (transfer->part_count > KVF_TRANSFER_PARTS)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT, "a transfer of %u parts",
                             transfer->part_count);
    memset(&transfer->private, 0, sizeof transfer->private);
    transfer->bytes_posted = 0;
    transfer->writes_posted = 0;
    transfer->flushed = false;
    peer->active++;
    transfers->stirred = true;
    if (next_part(transfer) != NULL) {
        ring_enter(transfers, transfer);
    } else {
        transfer->private.stage = DRAINING;
        ready_enter(transfers, transfer);
    }
    return KVF_OK;
}

void kvf_transfers_cancel(kvf_transfers *transfers, kvf_transfer *transfer)
{
    transfer->private.canceled = true;
    if (transfer->private.stage == POSTING)
        ring_leave(transfers, transfer);
}

void kvf_transfers_put_ended(kvf_transfers *transfers, kvf_put *put)
{
    kvf_transfer *transfer = put->transfer;
    put_done(transfers, put);
    transfers->stirred = true;
    if (transfer->private.stage == POSTING) {
        if (transfer->private.error.status != KVF_OK)
            ring_leave(transfers, transfer);
    } else if (transfer->private.outstanding == 0) {
        ready_enter(transfers, transfer);
    }
}

void kvf_transfers_step_ended(kvf_transfers *transfers, kvf_transfer *transfer)
{
    if (--transfer->private.outstanding == 0)
        ready_enter(transfers, transfer);
}

void kvf_transfers_fail(kvf_transfer *transfer, kvf_status status, const char *format, ...)
{
    kvf_error *error = &transfer->private.error;
    if (error->status != KVF_OK)
        return;
    va_list arguments;
    va_start(arguments, format);
    error->status = status;
    (void)vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
}

void kvf_transfers_peer_failed(kvf_transfers *transfers, kvf_transfers_peer *peer, const char *text)
{
    if (peer->failed)
        return;
    peer->failed = true;
    (void)snprintf(peer->failure, sizeof peer->failure, "%s", text);
    while (peer->transfers != NULL) {
        kvf_transfers_fail(peer->transfers, KVF_PEER_GONE, "%s", text);
        ring_leave(transfers, peer->transfers);
    }
}
