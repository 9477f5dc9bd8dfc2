/* Decode: comparing what has arrived with its sums. A chunk is checked in place when its notification and its sums are
 * there and all earlier ones were right; only then the room hears of its notification, and the prefill of the verdict.
 * Where a buffer's sum differs its page sums are asked for, piece by piece, until the page is found; the room fails with
 * it. */
#include "manager/checking.h"

#include <stdlib.h>

/* ---- Failing ------------------------------------------------------------------------------------- */

void kvf_checking_distrust(kvf_checking *checking, kvf_error *error)
{
    checking->distrusted = true;
    kvf_rank_prefix(kvf_checking_rank(checking), error);
    kvf_receiver_fail(checking->receiver, error);
}

static void fail_page(kvf_checking *checking, uint64_t source, uint64_t own)
{
    const kvf_receiver *receiver = checking->receiver;
    uint32_t position = checking->first_page + checking->page;
    kvf_error error;
    kvf_error_set(&error, KVF_CORRUPT,
                  "what arrived is not what was sent: buffer %u, page %u (number %u of the room, "
                  "from 0; in chunk %u): sum 0x%016llx at the source, 0x%016llx here",
                  checking->item, receiver->expect->pages[position], position, checking->passed,
                  (unsigned long long)source, (unsigned long long)own);
    kvf_rank_prefix(kvf_checking_rank(checking), &error);
    kvf_receiver_fail(checking->receiver, &error);
}

static void fail_aux(kvf_checking *checking, uint64_t source, uint64_t own)
{
    kvf_error error;
    kvf_error_set(&error, KVF_CORRUPT,
                  "what arrived is not what was sent: aux buffer %zu, slot %u: sum 0x%016llx at "
                  "the source, 0x%016llx here",
                  checking->item - kvf_checking_pool(checking)->buffer_count,
                  checking->receiver->expect->aux_slot, (unsigned long long)source,
                  (unsigned long long)own);
    kvf_rank_prefix(kvf_checking_rank(checking), &error);
    kvf_receiver_fail(checking->receiver, &error);
}

static void fail_unlocated(kvf_checking *checking)
{
    kvf_error error;
    kvf_error_set(&error, KVF_CORRUPT,
                  "what arrived was not what was sent: buffer %u, chunk %u: sum 0x%016llx at the "
                  "source, 0x%016llx here; no page's sum differs any more: the bytes of one side "
                  "have changed meanwhile",
                  checking->item, checking->passed, (unsigned long long)checking->source_sum,
                  (unsigned long long)checking->own_sum);
    kvf_rank_prefix(kvf_checking_rank(checking), &error);
    kvf_receiver_fail(checking->receiver, &error);
}

/* ---- Checking ------------------------------------------------------------------------------------ */

static void feed(kvf_checking *checking, const kvf_notice *notice)
{
    kvf_receiver_feed(checking->receiver, &(kvf_receiver_event){.kind = KVF_RECEIVER_NOTICE,
                                                                .agent_name = kvf_slice_of(
                                                                    checking->arrivals.agent_name),
                                                                .notice = notice});
}

void kvf_checking_feed_chunk(kvf_checking *checking, uint32_t chunk)
{
    bool last = checking->arrivals.last_known && chunk == checking->arrivals.last_chunk;
    feed(checking, &(kvf_notice){.kind = KVF_NOTICE_CHUNK,
                                 .room = checking->receiver->room.id,
                                 .chunk = chunk,
                                 .last = last});
}

void kvf_checking_feed_aux(kvf_checking *checking)
{
    feed(checking, &(kvf_notice){.kind = KVF_NOTICE_AUX, .room = checking->receiver->room.id});
}

static bool has_work(const kvf_checking *checking)
{
    if (checking->stopped || checking->receiver->targets[0].letter_wanted)
        return false;
    if (checking->stage != KVF_CHECKING_SUMS)
        return checking->stage != KVF_CHECKING_AWAIT;
    if (checking->sums == NULL || !kvf_arrivals_has(&checking->arrivals, checking->passed))
        return false;
    return checking->item < kvf_checking_pool(checking)->buffer_count || !checking->sums->last ||
           checking->arrivals.aux_arrived;
}

void kvf_checking_go_on(kvf_checking *checking)
{
    if (has_work(checking))
        kvf_work_add(kvf_checking_manager(checking), &checking->work);
}

/* False when it is to be tried again. */
static bool write_letter(kvf_checking *checking, uint32_t kind, const uint8_t *body, size_t length)
{
    kvf_target *target = &checking->receiver->targets[0];
    kvf_letters_write(target, kind, (kvf_slice){body, length}, NULL, &target->letter_wanted);
    return !target->letter_wanted;
}

void kvf_checking_drop_sums(kvf_checking *checking)
{
    kvf_held_sums *head = checking->sums;
    checking->sums_held -= (uint64_t)8 * head->item_count;
    kvf_checking_manager(checking)->sums_bytes -= sizeof *head + (size_t)8 * head->item_count;
    DL_DELETE(checking->sums, head);
    free(head);
}

/* The verdict first: afterwards the room may be over. */
static void pass_chunk(kvf_checking *checking)
{
    uint8_t body[KVF_VERDICT_SIZE];
    uint32_t chunk = checking->passed;
    bool last = checking->sums->last;
    kvf_verdict_encode(chunk, body);
    if (!write_letter(checking, KVF_LETTER_VERDICT, body, sizeof body))
        return;
    checking->first_page += checking->sums->page_count;
    checking->passed++;
    checking->item = 0;
    checking->passed_all = last;
    kvf_checking_drop_sums(checking);
    kvf_checking_feed_chunk(checking, chunk);
    if (last)
        kvf_checking_feed_aux(checking);
}

/* Both say which chunk is the last. */
static bool last_chunks_agree(kvf_checking *checking)
{
    bool notified_last =
        checking->arrivals.last_known && checking->arrivals.last_chunk == checking->passed;
    kvf_error error;
    if (checking->sums->last == notified_last)
        return true;
    kvf_error_set(&error, KVF_PROTOCOL, "chunk %u is the last by its %s alone", checking->passed,
                  notified_last ? "notification" : "sums");
    kvf_checking_distrust(checking, &error);
    return false;
}

static void check_sums(kvf_checking *checking, uint64_t *budget)
{
    const kvf_pool *pool = kvf_checking_pool(checking);
    const kvf_call *expect = checking->receiver->expect;
    const kvf_held_sums *sums = checking->sums;
    bool is_aux = checking->item >= pool->buffer_count;
    uint64_t own;
    if (checking->item == sums->item_count) {
        if (last_chunks_agree(checking))
            pass_chunk(checking);
        return;
    }
    bool done =
        is_aux ? kvf_sum_run(&checking->sum, &pool->aux[checking->item - pool->buffer_count],
                             &expect->aux_slot, 1, budget, &own)
               : kvf_sum_run(&checking->sum, &pool->buffers[checking->item],
                             expect->pages + checking->first_page, sums->page_count, budget, &own);
    if (!done)
        return;
    uint64_t source = kvf_read_u64(sums->sums + (size_t)8 * checking->item);
    if (own == source) {
        checking->item++;
    } else if (is_aux) {
        fail_aux(checking, source, own);
    } else {
        checking->source_sum = source;
        checking->own_sum = own;
        checking->page = 0;
        checking->stage = KVF_CHECKING_ASK;
    }
}

static void ask(kvf_checking *checking)
{
    uint8_t body[KVF_WANT_PAGES_SIZE];
    kvf_want_pages_encode(&(kvf_page_sums){.chunk = checking->passed,
                                           .buffer = checking->item,
                                           .first = checking->page},
                          body);
    if (write_letter(checking, KVF_LETTER_WANT_PAGES, body, sizeof body))
        checking->stage = KVF_CHECKING_AWAIT;
}

static void compare_page(kvf_checking *checking, uint64_t *budget)
{
    const uint32_t *page =
        &checking->receiver->expect->pages[checking->first_page + checking->page];
    uint64_t own;
    if (!kvf_sum_run(&checking->sum, &kvf_checking_pool(checking)->buffers[checking->item], page, 1,
                     budget, &own))
        return;
    uint64_t source = kvf_read_u64(checking->page_sums.data +
                                   (size_t)8 * (checking->page - checking->pages_begin));
    if (own != source) {
        fail_page(checking, source, own);
        return;
    }
    checking->page++;
    if (checking->page == checking->sums->page_count)
        fail_unlocated(checking);
    else if (checking->page == checking->pages_end)
        checking->stage = KVF_CHECKING_ASK;
}

void kvf_checking_run(kvf_work *work, uint64_t *budget)
{
    kvf_checking *checking = (kvf_checking *)work;
    while (*budget > 0 && has_work(checking)) {
        if (checking->stage == KVF_CHECKING_SUMS)
            check_sums(checking, budget);
        else if (checking->stage == KVF_CHECKING_ASK)
            ask(checking);
        else
            compare_page(checking, budget);
    }
    if (!has_work(checking))
        kvf_work_remove(kvf_checking_manager(checking), work);
}

void kvf_checking_resume(kvf_receiver *receiver)
{
    receiver->targets[0].letter_wanted = false;
    if (receiver->checking != NULL)
        kvf_checking_go_on(receiver->checking);
}
