/* Decode: whether a room is checked, and what comes for that. Sums are kept until their turn, and notifications of a
 * verified room are held back here; compare_decode.c compares. */
#include "manager/checking.h"

#include <stdlib.h>

/* ---- Whether ------------------------------------------------------------------------------------- */

static bool can_verify(const kvf_receiver *receiver)
{
    return kvf_rank_is_extended(receiver->targets[0].rank) &&
           kvf_pool_is_host(&receiver->room.manager->pool);
}

static kvf_checking *new_checking(kvf_receiver *receiver)
{
    kvf_checking *checking = calloc(1, sizeof *checking);
    if (checking == NULL || !kvf_sum_begin(&checking->sum)) {
        free(checking);
        return NULL;
    }
    checking->work.run = kvf_checking_run;
    checking->receiver = receiver;
    checking->arrivals.page_count = receiver->expect->page_count;
    return checking;
}

kvf_status kvf_checking_decide(kvf_receiver *receiver, kvf_error *error)
{
    bool able = can_verify(receiver);
    kvf_checking_free(receiver);
    if (receiver->verify == KVF_VERIFY_OFF || (receiver->verify == KVF_VERIFY_ON && !able))
        return KVF_OK;
    if (!able)
        return kvf_error_set(error, KVF_UNSUPPORTED,
                             "the room must be verified, which needs a kvferry prefill and all KV "
                             "buffers in host memory; verify=on takes what can be had");
    receiver->checking = new_checking(receiver);
    return receiver->checking == NULL
               ? kvf_error_set(error, KVF_NO_MEMORY, "no memory to check what arrives")
               : KVF_OK;
}

bool kvf_checking_has_passed(const kvf_receiver *receiver)
{
    return receiver->checking != NULL && receiver->checking->passed_all;
}

/* ---- Sums ---------------------------------------------------------------------------------------- */

static kvf_status check_chunk_sums(const kvf_checking *checking, const kvf_chunk_sums *sums,
                                   kvf_error *error)
{
    const kvf_pool *pool = kvf_checking_pool(checking);
    uint32_t pages = checking->receiver->expect->page_count;
    uint32_t left = pages - checking->pages_told;
    if (checking->last_told || sums->chunk != checking->chunks_told)
        return kvf_error_set(
            error, KVF_PROTOCOL, "sums of chunk %u came after those of %u chunks%s", sums->chunk,
            checking->chunks_told, checking->last_told ? ", the last among them" : "");
    if (sums->buffer_count != pool->buffer_count ||
        sums->aux_count != (sums->last ? pool->aux_count : 0))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "chunk %u has sums of %u buffers and %u aux buffers", sums->chunk,
                             sums->buffer_count, sums->aux_count);
    if (sums->page_count > left || (sums->page_count == 0 && pages > 0) ||
        sums->last != (sums->page_count == left))
        return kvf_error_set(
            error, KVF_PROTOCOL, "chunk %u%s has sums of %u pages, where %u of %u are left",
            sums->chunk, sums->last ? ", the last," : "", sums->page_count, left, pages);
    if (checking->sums_held + sums->sums.length > KVF_SUMS_HELD_MAX)
        return kvf_error_set(error, KVF_PROTOCOL,
                             "sums run ahead of the verdicts by more than %llu bytes",
                             (unsigned long long)KVF_SUMS_HELD_MAX);
    return KVF_OK;
}

static kvf_status keep_sums(kvf_checking *checking, const kvf_chunk_sums *sums, kvf_error *error)
{
    kvf_manager *manager = kvf_checking_manager(checking);
    size_t size = sizeof(kvf_held_sums) + sums->sums.length;
    if (manager->sums_bytes + size > manager->settings.max_sums_bytes)
        return kvf_error_set(error, KVF_LIMIT,
                             "the sums of chunk %u find no room: those of all rooms would take "
                             "more than %llu bytes (setting max_sums_bytes)",
                             sums->chunk, (unsigned long long)manager->settings.max_sums_bytes);
    kvf_held_sums *held = malloc(size);
    if (held == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for the sums of a chunk");
    held->page_count = sums->page_count;
    held->item_count = (uint32_t)(sums->sums.length / 8);
    held->last = sums->last;
    memcpy(held->sums, sums->sums.data, sums->sums.length);
    DL_APPEND(checking->sums, held);
    checking->sums_held += sums->sums.length;
    manager->sums_bytes += size;
    checking->chunks_told++;
    checking->pages_told += sums->page_count;
    checking->last_told = sums->last;
    return KVF_OK;
}

/* There will be no sums. */
static void unverifiable(kvf_checking *checking, kvf_slice why)
{
    kvf_receiver *receiver = checking->receiver;
    kvf_error error;
    kvf_error_set(&error, KVF_UNSUPPORTED, "the room can't be verified: %.*s", (int)why.length,
                  (const char *)why.data);
    kvf_rank_prefix(kvf_checking_rank(checking), &error);
    if (receiver->verify == KVF_VERIFY_REQUIRED) {
        kvf_receiver_fail(receiver, &error);
        return;
    }
    kvf_log_line(&kvf_checking_manager(checking)->settings.log, KVF_LOG_DEBUG, "room %llu: %s",
                 (unsigned long long)receiver->room.id, error.text);
    kvf_checking_stop(receiver);
    kvf_checking_release(receiver);
}

void kvf_checking_sums(kvf_receiver *receiver, kvf_status status, kvf_slice text, kvf_slice body)
{
    kvf_checking *checking = receiver->checking;
    kvf_chunk_sums sums;
    kvf_error error;
    if (checking == NULL || checking->stopped) {
        kvf_drop_message(receiver->room.manager, NULL); /* usual: the room has failed meanwhile */
        return;
    }
    if (status != KVF_OK && checking->chunks_told == 0) {
        unverifiable(checking, text);
        return;
    }
    if (kvf_chunk_sums_decode(body, &sums, &error) != KVF_OK ||
        check_chunk_sums(checking, &sums, &error) != KVF_OK) {
        kvf_checking_distrust(checking, &error);
        return;
    }
    if (keep_sums(checking, &sums, &error) != KVF_OK) {
        kvf_rank_prefix(kvf_checking_rank(checking), &error);
        kvf_receiver_fail(receiver, &error);
        return;
    }
    kvf_checking_go_on(checking);
}

void kvf_checking_mistaken(kvf_receiver *receiver)
{
    kvf_checking *checking = receiver->checking;
    if (checking != NULL && !checking->stopped)
        unverifiable(checking, kvf_slice_of("it notifies as a stock prefill does; "
                                            "peer_extensions=assume is wrong about it"));
}

static kvf_status check_page_sums(const kvf_checking *checking, const kvf_page_sums *sums,
                                  kvf_error *error)
{
    if (checking->stage == KVF_CHECKING_AWAIT && sums->chunk == checking->passed &&
        sums->buffer == checking->item && sums->first == checking->page &&
        sums->page_count <= checking->sums->page_count - checking->page)
        return KVF_OK;
    return kvf_error_set(error, KVF_PROTOCOL,
                         "sums of %u pages from %u on of buffer %u, chunk %u, which were not asked "
                         "for",
                         sums->page_count, sums->first, sums->buffer, sums->chunk);
}

void kvf_checking_pages(kvf_receiver *receiver, kvf_slice body)
{
    kvf_checking *checking = receiver->checking;
    kvf_page_sums sums;
    kvf_error error;
    if (checking == NULL || checking->stopped) {
        kvf_drop_message(receiver->room.manager, NULL);
        return;
    }
    if (kvf_page_sums_decode(body, &sums, &error) != KVF_OK ||
        check_page_sums(checking, &sums, &error) != KVF_OK) {
        kvf_checking_distrust(checking, &error);
        return;
    }
    kvf_bytes_clear(&checking->page_sums);
    kvf_bytes_append(&checking->page_sums, sums.sums.data, sums.sums.length);
    if (checking->page_sums.failed) {
        kvf_error_set(&error, KVF_NO_MEMORY, "no memory for page sums");
        kvf_receiver_fail(receiver, &error);
        return;
    }
    checking->pages_begin = sums.first;
    checking->pages_end = sums.first + sums.page_count;
    checking->stage = KVF_CHECKING_PAGES;
    kvf_checking_go_on(checking);
}

/* ---- Notifications ------------------------------------------------------------------------------- */

/* Contradictions are what the room would find itself, if it were told in this order. */
static bool note(kvf_checking *checking, const kvf_receiver_event *event)
{
    kvf_error error;
    if (checking->distrusted ||
        !kvf_arrivals_take(&checking->arrivals, event->agent_name, event->notice, &error))
        return false;
    if (error.status == KVF_PROTOCOL)
        kvf_checking_distrust(checking, &error);
    else if (error.status != KVF_OK)
        kvf_receiver_fail(checking->receiver, &error);
    return true;
}

void kvf_checking_notice(kvf_receiver *receiver, const kvf_receiver_event *event)
{
    kvf_checking *checking = receiver->checking;
    if (checking == NULL || checking->released) {
        kvf_receiver_feed(receiver, event);
        return;
    }
    if (!note(checking, event))
        kvf_count(receiver->room.manager, KVF_COUNT_NOTIFICATIONS_DROPPED, 1);
    kvf_checking_go_on(checking);
}

bool kvf_checking_problem(const kvf_receiver *receiver, kvf_error *error)
{
    const kvf_checking *checking = receiver->checking;
    if (checking == NULL || checking->stopped)
        return false;
    bool lacks_sums =
        checking->sums == NULL && kvf_arrivals_has(&checking->arrivals, checking->passed);
    if (!lacks_sums && checking->stage != KVF_CHECKING_AWAIT)
        return false;
    kvf_error_set(error, KVF_TIMEOUT,
                  "chunk %u has arrived, but %s for checking it did not come within "
                  "waiting_timeout",
                  checking->passed, lacks_sums ? "its sums" : "the page sums");
    kvf_rank_prefix(kvf_checking_rank(checking), error);
    return true;
}

/* ---- Ending -------------------------------------------------------------------------------------- */

void kvf_checking_stop(kvf_receiver *receiver)
{
    kvf_checking *checking = receiver->checking;
    if (checking == NULL)
        return;
    checking->stopped = true;
    kvf_work_remove(receiver->room.manager, &checking->work);
    while (checking->sums != NULL)
        kvf_checking_drop_sums(checking);
    kvf_bytes_free(&checking->page_sums);
}

/* What a failed room's notifications still prove is that nothing is written any more, whatever was. */
void kvf_checking_release(kvf_receiver *receiver)
{
    kvf_checking *checking = receiver->checking;
    if (checking == NULL || checking->released || checking->distrusted)
        return;
    checking->released = true;
    for (uint32_t chunk = checking->passed; chunk <= checking->arrivals.highest_chunk; chunk++)
        if (kvf_arrivals_has(&checking->arrivals, chunk))
            kvf_checking_feed_chunk(checking, chunk);
    if (checking->arrivals.aux_arrived && !checking->passed_all)
        kvf_checking_feed_aux(checking);
}

void kvf_checking_free(kvf_receiver *receiver)
{
    kvf_checking *checking = receiver->checking;
    if (checking == NULL)
        return;
    kvf_checking_stop(receiver);
    kvf_arrivals_free(&checking->arrivals);
    kvf_sum_free(&checking->sum);
    free(checking);
    receiver->checking = NULL;
}
