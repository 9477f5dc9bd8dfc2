/* Decode: checking what has arrived. Notifications of a verified room are held back here. A chunk is checked in place
 * when its notification and its sums are there and all earlier ones were right; only then the room hears of its
 * notification, and the prefill of the verdict. Where a buffer's sum differs its page sums are asked for, piece by
 * piece, until the page is found; the room fails with it. */
#include "manager/inbox.h"
#include "manager/work.h"
#include "wire/letter.h"
#include "wire/sums.h"

#include <stdlib.h>

/* Sums of a chunk that has not been checked yet. */
typedef struct held_sums {
    struct held_sums *prev;
    struct held_sums *next;
    uint32_t page_count;
    uint32_t item_count;
    bool last;
    uint8_t sums[]; /* as in the letter */
} held_sums;

typedef enum checking_stage {
    STAGE_SUMS,  /* comparing the sums of whole buffers */
    STAGE_ASK,   /* one differs: its page sums are to be asked for */
    STAGE_AWAIT, /* and have been */
    STAGE_PAGES  /* comparing them */
} checking_stage;

struct kvf_checking {
    kvf_work work;
    kvf_receiver *receiver;
    kvf_sum sum;
    bool stopped;    /* nothing is checked any more */
    bool released;   /* notifications go to the room at once */
    bool distrusted; /* the prefill contradicted itself: what it notifies proves nothing */
    bool passed_all;
    /* What the prefill has told. */
    held_sums *sums; /* of the chunk that is being checked, and of later ones */
    uint64_t sums_held;
    uint32_t chunks_told;
    uint32_t pages_told;
    bool last_told;
    kvf_arrivals arrivals;
    /* How far it has been checked. */
    uint32_t passed;     /* chunks */
    uint32_t first_page; /* of the next one */
    uint32_t item;       /* buffer, then aux buffer of it */
    checking_stage stage;
    uint64_t source_sum; /* of the buffer that differs */
    uint64_t own_sum;
    uint32_t page;       /* of the chunk, that is compared or asked for next */
    uint32_t pages_end;  /* the answer reaches to here */
    kvf_bytes page_sums; /* the answer, from `pages_begin` on */
    uint32_t pages_begin;
};

static kvf_manager *manager_of(const kvf_checking *checking)
{
    return checking->receiver->room.manager;
}

static const kvf_pool *pool_of(const kvf_checking *checking)
{
    return &manager_of(checking)->pool;
}

static const kvf_rank *rank_of(const kvf_checking *checking)
{
    return checking->receiver->targets[0].rank;
}

/* ---- Whether ------------------------------------------------------------------------------------- */

static bool can_verify(const kvf_receiver *receiver)
{
    return kvf_rank_is_extended(receiver->targets[0].rank) &&
           kvf_pool_is_host(&receiver->room.manager->pool);
}

static void checking_run(kvf_work *work, uint64_t *budget);

static kvf_checking *new_checking(kvf_receiver *receiver)
{
    kvf_checking *checking = calloc(1, sizeof *checking);
    if (checking == NULL || !kvf_sum_begin(&checking->sum)) {
        free(checking);
        return NULL;
    }
    checking->work.run = checking_run;
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

/* ---- Failing ------------------------------------------------------------------------------------- */

/* What the prefill said can't be: its notifications aren't taken for a proof either. */
static void distrust(kvf_checking *checking, kvf_error *error)
{
    checking->distrusted = true;
    kvf_rank_prefix(rank_of(checking), error);
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
    kvf_rank_prefix(rank_of(checking), &error);
    kvf_receiver_fail(checking->receiver, &error);
}

static void fail_aux(kvf_checking *checking, uint64_t source, uint64_t own)
{
    kvf_error error;
    kvf_error_set(&error, KVF_CORRUPT,
                  "what arrived is not what was sent: aux buffer %zu, slot %u: sum 0x%016llx at "
                  "the source, 0x%016llx here",
                  checking->item - pool_of(checking)->buffer_count,
                  checking->receiver->expect->aux_slot, (unsigned long long)source,
                  (unsigned long long)own);
    kvf_rank_prefix(rank_of(checking), &error);
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
    kvf_rank_prefix(rank_of(checking), &error);
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

static void feed_chunk(kvf_checking *checking, uint32_t chunk)
{
    bool last = checking->arrivals.last_known && chunk == checking->arrivals.last_chunk;
    feed(checking, &(kvf_notice){.kind = KVF_NOTICE_CHUNK,
                                 .room = checking->receiver->room.id,
                                 .chunk = chunk,
                                 .last = last});
}

static void feed_aux(kvf_checking *checking)
{
    feed(checking, &(kvf_notice){.kind = KVF_NOTICE_AUX, .room = checking->receiver->room.id});
}

static bool has_work(const kvf_checking *checking)
{
    if (checking->stopped || checking->receiver->targets[0].letter_wanted)
        return false;
    if (checking->stage != STAGE_SUMS)
        return checking->stage != STAGE_AWAIT;
    if (checking->sums == NULL || !kvf_arrivals_has(&checking->arrivals, checking->passed))
        return false;
    return checking->item < pool_of(checking)->buffer_count || !checking->sums->last ||
           checking->arrivals.aux_arrived;
}

static void go_on(kvf_checking *checking)
{
    if (has_work(checking))
        kvf_work_add(manager_of(checking), &checking->work);
}

/* False when it is to be tried again. */
static bool write_letter(kvf_checking *checking, uint32_t kind, const uint8_t *body, size_t length)
{
    kvf_target *target = &checking->receiver->targets[0];
    kvf_letters_write(target, kind, (kvf_slice){body, length}, NULL, &target->letter_wanted);
    return !target->letter_wanted;
}

static void drop_sums(kvf_checking *checking)
{
    held_sums *head = checking->sums;
    checking->sums_held -= (uint64_t)8 * head->item_count;
    manager_of(checking)->sums_bytes -= sizeof *head + (size_t)8 * head->item_count;
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
    drop_sums(checking);
    feed_chunk(checking, chunk);
    if (last)
        feed_aux(checking);
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
    distrust(checking, &error);
    return false;
}

static void check_sums(kvf_checking *checking, uint64_t *budget)
{
    const kvf_pool *pool = pool_of(checking);
    const kvf_call *expect = checking->receiver->expect;
    const held_sums *sums = checking->sums;
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
        checking->stage = STAGE_ASK;
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
        checking->stage = STAGE_AWAIT;
}

static void compare_page(kvf_checking *checking, uint64_t *budget)
{
    const uint32_t *page =
        &checking->receiver->expect->pages[checking->first_page + checking->page];
    uint64_t own;
    if (!kvf_sum_run(&checking->sum, &pool_of(checking)->buffers[checking->item], page, 1, budget,
                     &own))
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
        checking->stage = STAGE_ASK;
}

static void checking_run(kvf_work *work, uint64_t *budget)
{
    kvf_checking *checking = (kvf_checking *)work;
    while (*budget > 0 && has_work(checking)) {
        if (checking->stage == STAGE_SUMS)
            check_sums(checking, budget);
        else if (checking->stage == STAGE_ASK)
            ask(checking);
        else
            compare_page(checking, budget);
    }
    if (!has_work(checking))
        kvf_work_remove(manager_of(checking), work);
}

void kvf_checking_resume(kvf_receiver *receiver)
{
    receiver->targets[0].letter_wanted = false;
    if (receiver->checking != NULL)
        go_on(receiver->checking);
}

/* ---- Sums ---------------------------------------------------------------------------------------- */

static kvf_status check_chunk_sums(const kvf_checking *checking, const kvf_chunk_sums *sums,
                                   kvf_error *error)
{
    const kvf_pool *pool = pool_of(checking);
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
    kvf_manager *manager = manager_of(checking);
    size_t size = sizeof(held_sums) + sums->sums.length;
    if (manager->sums_bytes + size > manager->settings.max_sums_bytes)
        return kvf_error_set(error, KVF_LIMIT,
                             "the sums of chunk %u find no room: those of all rooms would take "
                             "more than %llu bytes (setting max_sums_bytes)",
                             sums->chunk, (unsigned long long)manager->settings.max_sums_bytes);
    held_sums *held = malloc(size);
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
    kvf_rank_prefix(rank_of(checking), &error);
    if (receiver->verify == KVF_VERIFY_REQUIRED) {
        kvf_receiver_fail(receiver, &error);
        return;
    }
    kvf_log_line(&manager_of(checking)->settings.log, KVF_LOG_DEBUG, "room %llu: %s",
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
        distrust(checking, &error);
        return;
    }
    if (keep_sums(checking, &sums, &error) != KVF_OK) {
        kvf_rank_prefix(rank_of(checking), &error);
        kvf_receiver_fail(receiver, &error);
        return;
    }
    go_on(checking);
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
    if (checking->stage == STAGE_AWAIT && sums->chunk == checking->passed &&
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
        distrust(checking, &error);
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
    checking->stage = STAGE_PAGES;
    go_on(checking);
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
        distrust(checking, &error);
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
    go_on(checking);
}

bool kvf_checking_problem(const kvf_receiver *receiver, kvf_error *error)
{
    const kvf_checking *checking = receiver->checking;
    if (checking == NULL || checking->stopped)
        return false;
    bool lacks_sums =
        checking->sums == NULL && kvf_arrivals_has(&checking->arrivals, checking->passed);
    if (!lacks_sums && checking->stage != STAGE_AWAIT)
        return false;
    kvf_error_set(error, KVF_TIMEOUT,
                  "chunk %u has arrived, but %s for checking it did not come within "
                  "waiting_timeout",
                  checking->passed, lacks_sums ? "its sums" : "the page sums");
    kvf_rank_prefix(rank_of(checking), error);
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
        drop_sums(checking);
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
            feed_chunk(checking, chunk);
    if (checking->arrivals.aux_arrived && !checking->passed_all)
        feed_aux(checking);
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
