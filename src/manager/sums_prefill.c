/* Prefill: sums of what is written, for destinations that check it. A chunk is summed before it is posted, and its sums
 * go to each such destination in a letter. A destination's verdict on a chunk counts as much as the end of the writing:
 * the room succeeds when it has both for each chunk, so until then the source stays and can be asked about. */
#include "manager/agent.h"
#include "manager/work.h"
#include "wire/sums.h"

#include <stdlib.h>

/* Bytes of sums that a destination may be behind; it allows twice as many. */
#define WINDOW (KVF_SUMS_HELD_MAX / 2)

/* Letters that may wait for a connection before no more sums are made for it. */
#define LETTERS_AHEAD 64

/* Of a room: chunks posted by the machine that have not been summed yet. */
struct kvf_summing {
    kvf_work work;
    kvf_sender *sender;
    kvf_sum sum;
    kvf_bytes body;       /* of the letter in the making */
    uint32_t chunk;       /* index of the sender's first unposted one */
    uint32_t chunks_left; /* from that one on */
    uint32_t item;        /* buffer, then aux buffer, that is summed */
    bool begun;           /* with that chunk */
};

/* Of one destination. */
struct kvf_check {
    kvf_work work; /* answering a question */
    kvf_incoming *incoming;
    uint32_t delivered; /* chunks whose writing has ended well */
    uint32_t verified;  /* chunks it has found to be right: so many from the first on */
    uint32_t counted;   /* of both, as the machine knows */
    bool asked;
    kvf_page_sums question; /* with as many pages as are answered at once */
    const kvf_call *chunk;  /* that it asks about */
    uint32_t answered;      /* pages */
    kvf_sum sum;
    kvf_bytes answer;
};

static kvf_manager *manager_of(const kvf_summing *summing)
{
    return summing->sender->room.manager;
}

static const char untold[] =
    "the sums of what is written can't be told: memory or max_waiting_letters is used up, or a "
    "decode that wants them listens nowhere";

static void fail(kvf_sender *sender, kvf_status status, const char *text)
{
    kvf_error error;
    kvf_error_set(&error, status, "%s", text);
    kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_FAILED, .error = &error});
}

/* ---- Who checks ---------------------------------------------------------------------------------- */

/* What we can't read we can't sum; decode decides what that means. */
static void refuse(kvf_incoming *incoming)
{
    kvf_error error;
    kvf_error_set(&error, KVF_UNSUPPORTED, "not all of the prefill's buffers are in host memory");
    (void)kvf_letters_sums(incoming, KVF_LETTER_SUMS, (kvf_slice){NULL, 0}, &error);
}

static void answer_run(kvf_work *work, uint64_t *budget);

static bool add_check(kvf_incoming *incoming)
{
    incoming->check = calloc(1, sizeof *incoming->check);
    if (incoming->check == NULL)
        return false;
    incoming->check->incoming = incoming;
    incoming->check->work.run = answer_run;
    return true;
}

void kvf_check_free(kvf_incoming *incoming)
{
    kvf_check *check = incoming->check;
    if (check == NULL)
        return;
    kvf_work_remove(incoming->agent->manager, &check->work);
    kvf_sum_free(&check->sum);
    kvf_bytes_free(&check->answer);
    free(check);
    incoming->check = NULL;
}

static void chunks_run(kvf_work *work, uint64_t *budget);

static bool add_summing(kvf_sender *sender)
{
    kvf_summing *summing = calloc(1, sizeof *summing);
    if (summing == NULL)
        return false;
    sender->summing = summing;
    summing->sender = sender;
    summing->work.run = chunks_run;
    return kvf_sum_begin(&summing->sum);
}

/* Decided with the first chunk, when all destinations are there. */
static bool prepare(kvf_sender *sender)
{
    bool readable = kvf_pool_is_host(&sender->room.manager->pool);
    bool prepared = true;
    kvf_incoming *incoming;
    DL_FOREACH(sender->incoming, incoming)
    {
        if (!kvf_request_is_verified(&incoming->request))
            continue;
        if (!readable)
            refuse(incoming);
        else if (!add_check(incoming) || (sender->summing == NULL && !add_summing(sender)))
            prepared = false;
    }
    return prepared;
}

/* Its room is open, and it is sent sums. */
static bool is_open(const kvf_incoming *incoming)
{
    return incoming->sender != NULL && incoming->check != NULL &&
           !kvf_outcome_is_final(&incoming->sender->machine.outcome);
}

/* ---- Summing ------------------------------------------------------------------------------------- */

static uint32_t items_of(const kvf_summing *summing, bool last)
{
    const kvf_pool *pool = &manager_of(summing)->pool;
    return (uint32_t)(pool->buffer_count + (last ? pool->aux_count : 0));
}

/* False while a destination is too far behind with its verdicts, or with taking letters. */
static bool window_is_open(const kvf_summing *summing)
{
    const kvf_pool *pool = &manager_of(summing)->pool;
    uint64_t size = kvf_chunk_sums_size(pool->buffer_count, pool->aux_count);
    const kvf_incoming *incoming;
    DL_FOREACH(summing->sender->incoming, incoming)
    {
        if (incoming->check == NULL)
            continue;
        uint64_t behind = summing->chunk - incoming->check->verified;
        if ((behind > 0 && (behind + 1) * size > WINDOW) ||
            incoming->agent->letter_count >= LETTERS_AHEAD)
            return false;
    }
    return true;
}

/* Goes on with the chunk's sums; true when they are complete. */
static bool sum_chunk(kvf_summing *summing, const kvf_call *chunk, bool last, uint64_t *budget)
{
    const kvf_pool *pool = &manager_of(summing)->pool;
    uint32_t items = items_of(summing, last);
    while (summing->item < items) {
        bool is_aux = summing->item >= pool->buffer_count;
        uint64_t sum;
        bool done = is_aux
                        ? kvf_sum_run(&summing->sum, &pool->aux[summing->item - pool->buffer_count],
                                      &summing->sender->aux_slot, 1, budget, &sum)
                        : kvf_sum_run(&summing->sum, &pool->buffers[summing->item], chunk->pages,
                                      chunk->page_count, budget, &sum);
        if (!done)
            return false;
        kvf_bytes_append_u64(&summing->body, sum);
        summing->item++;
    }
    return true;
}

static void begin_chunk(kvf_summing *summing, const kvf_call *chunk, bool last)
{
    const kvf_pool *pool = &manager_of(summing)->pool;
    summing->begun = true;
    summing->item = 0;
    kvf_bytes_clear(&summing->body);
    kvf_chunk_sums_begin(&(kvf_chunk_sums){.chunk = summing->chunk,
                                           .page_count = chunk->page_count,
                                           .buffer_count = (uint32_t)pool->buffer_count,
                                           .aux_count = last ? (uint32_t)pool->aux_count : 0,
                                           .last = last},
                         &summing->body);
}

/* False when the sums can't be told to somebody who waits for them. */
static bool tell_sums(kvf_summing *summing)
{
    bool told = !summing->body.failed;
    kvf_incoming *incoming;
    DL_FOREACH(summing->sender->incoming, incoming)
    {
        if (told && incoming->check != NULL)
            told =
                kvf_letters_sums(incoming, KVF_LETTER_SUMS, kvf_bytes_slice(&summing->body), NULL);
    }
    return told;
}

/* The letter goes first: it is small, and the bytes take longer. */
static void send_chunk(kvf_summing *summing)
{
    kvf_sender *sender = summing->sender;
    uint32_t chunk = summing->chunk;
    summing->begun = false;
    summing->chunk++;
    summing->chunks_left--;
    if (tell_sums(summing))
        kvf_deliver_chunks(sender, chunk, 1);
    else
        fail(sender, KVF_LIMIT, untold);
}

static void chunks_run(kvf_work *work, uint64_t *budget)
{
    kvf_summing *summing = (kvf_summing *)work;
    kvf_sender *sender = summing->sender;
    while (*budget > 0 && summing->chunks_left > 0 && window_is_open(summing)) {
        const kvf_call *chunk = sender->unposted;
        bool last = kvf_chunk_is_last(sender, chunk);
        if (!summing->begun)
            begin_chunk(summing, chunk, last);
        if (!sum_chunk(summing, chunk, last, budget))
            return;
        send_chunk(summing);
    }
    if (summing->chunks_left == 0 || !window_is_open(summing))
        kvf_work_remove(manager_of(summing), work);
    kvf_sender_release(sender);
}

void kvf_sums_post(kvf_sender *sender, uint32_t first_chunk, uint32_t chunk_count)
{
    if (first_chunk == 0 && !prepare(sender)) {
        fail(sender, KVF_NO_MEMORY, "no memory to sum what is sent");
        return;
    }
    kvf_summing *summing = sender->summing;
    if (summing == NULL) {
        kvf_deliver_chunks(sender, first_chunk, chunk_count);
        return;
    }
    summing->chunks_left += chunk_count;
    kvf_work_add(sender->room.manager, &summing->work);
}

void kvf_sums_resume(const kvf_agent *agent)
{
    const kvf_incoming *incoming;
    DL_FOREACH2(agent->incoming, incoming, agent_next)
    {
        if (is_open(incoming) && incoming->sender->summing->chunks_left > 0)
            kvf_work_add(agent->manager, &incoming->sender->summing->work);
    }
}

/* ---- Counting ------------------------------------------------------------------------------------ */

static void written(const kvf_incoming *incoming)
{
    kvf_sender_feed(incoming->sender,
                    &(kvf_sender_event){.kind = KVF_SENDER_WRITTEN,
                                        .agent_name = incoming->request.agent_name});
}

static void count(kvf_check *check)
{
    uint32_t both = check->delivered < check->verified ? check->delivered : check->verified;
    for (; check->counted < both; check->counted++)
        written(check->incoming);
}

static void answer(kvf_check *check);

void kvf_sums_delivered(kvf_incoming *incoming)
{
    kvf_check *check = incoming->check;
    if (check == NULL) {
        written(incoming);
        return;
    }
    check->delivered++;
    if (check->asked)
        answer(check);
    count(check);
}

bool kvf_sums_all_verified(const kvf_sender *sender)
{
    bool any = false;
    const kvf_incoming *incoming;
    DL_FOREACH(sender->incoming, incoming)
    {
        if (kvf_request_is_dummy(&incoming->request))
            continue;
        if (incoming->check == NULL)
            return false;
        any = true;
    }
    return any;
}

/* Counts once, in order, and only for chunks whose sums it was told. */
void kvf_sums_verdict(kvf_incoming *incoming, kvf_slice body)
{
    kvf_manager *manager = incoming->agent->manager;
    kvf_sender *sender = incoming->sender;
    kvf_check *check = incoming->check;
    kvf_error error;
    uint32_t chunk;
    if (kvf_verdict_decode(body, &chunk, &error) != KVF_OK) {
        kvf_drop_message(manager, error.text);
        return;
    }
    if (!is_open(incoming) || chunk != check->verified || chunk >= sender->summing->chunk) {
        kvf_drop_message(manager, "a verdict on a chunk that none is expected of");
        return;
    }
    check->verified++;
    count(check);
    if (sender->summing->chunks_left > 0)
        kvf_work_add(manager, &sender->summing->work);
    kvf_sender_release(sender);
}

bool kvf_sums_problem(const kvf_sender *sender, kvf_error *error)
{
    const kvf_incoming *incoming;
    DL_FOREACH(sender->incoming, incoming)
    {
        const kvf_check *check = is_open(incoming) ? incoming->check : NULL;
        if (check == NULL || check->delivered <= check->verified)
            continue;
        kvf_error_set(error, KVF_TIMEOUT,
                      "agent %s was sent %u chunks to check, but confirmed only %u within "
                      "waiting_timeout",
                      incoming->agent->name, check->delivered, check->verified);
        return true;
    }
    return false;
}

/* ---- Answering ----------------------------------------------------------------------------------- */

static const kvf_call *chunk_at(const kvf_sender *sender, uint32_t index)
{
    const kvf_call *chunk = sender->chunks;
    for (; chunk != NULL && index > 0; index--)
        chunk = chunk->next;
    return chunk;
}

static uint32_t pages_of_answer(const kvf_check *check)
{
    const kvf_pool *pool = &check->incoming->agent->manager->pool;
    uint64_t fitting = KVF_PAGE_SUMS_BYTES_MAX / pool->buffers[check->question.buffer].item_length;
    uint32_t left = check->chunk->page_count - check->question.first;
    uint32_t most = left < KVF_PAGE_SUMS_MAX ? left : KVF_PAGE_SUMS_MAX;
    if (fitting == 0)
        return 1;
    return fitting < most ? (uint32_t)fitting : most;
}

static bool is_under_way(const kvf_incoming *incoming, uint32_t chunk)
{
    const kvf_delivery *delivery;
    DL_FOREACH(incoming->sender->deliveries, delivery)
    {
        if (delivery->incoming == incoming && delivery->chunk == chunk)
            return true;
    }
    return false;
}

/* When the transport has finished with the chunk: its notification may be heard of before that. */
static void answer(kvf_check *check)
{
    if (is_under_way(check->incoming, check->question.chunk))
        return;
    check->question.page_count = pages_of_answer(check);
    check->answered = 0;
    kvf_bytes_clear(&check->answer);
    kvf_page_sums_begin(&check->question, &check->answer);
    kvf_work_add(check->incoming->agent->manager, &check->work);
}

static void send_answer(kvf_check *check)
{
    kvf_incoming *incoming = check->incoming;
    kvf_sender *sender = incoming->sender;
    check->asked = false;
    kvf_work_remove(incoming->agent->manager, &check->work);
    if (!check->answer.failed &&
        kvf_letters_sums(incoming, KVF_LETTER_PAGE_SUMS, kvf_bytes_slice(&check->answer), NULL))
        return;
    fail(sender, KVF_LIMIT, untold);
    kvf_sender_release(sender);
}

static void answer_run(kvf_work *work, uint64_t *budget)
{
    kvf_check *check = (kvf_check *)work;
    const kvf_page_sums *question = &check->question;
    const kvf_buffer *buffer = &check->incoming->agent->manager->pool.buffers[question->buffer];
    const uint32_t *pages = check->chunk->pages + question->first;
    uint64_t sum;
    while (check->answered < question->page_count &&
           kvf_sum_run(&check->sum, buffer, &pages[check->answered], 1, budget, &sum)) {
        kvf_bytes_append_u64(&check->answer, sum);
        check->answered++;
    }
    if (check->answered == question->page_count)
        send_answer(check);
}

/* One question at a time, and only about the chunk whose verdict is due. */
void kvf_sums_wanted(kvf_incoming *incoming, kvf_slice body)
{
    kvf_manager *manager = incoming->agent->manager;
    kvf_check *check = incoming->check;
    kvf_page_sums question;
    kvf_error error;
    if (kvf_want_pages_decode(body, &question, &error) != KVF_OK) {
        kvf_drop_message(manager, error.text);
        return;
    }
    bool due = is_open(incoming) && !check->asked && question.chunk == check->verified &&
               question.chunk < incoming->sender->summing->chunk &&
               question.buffer < manager->pool.buffer_count;
    const kvf_call *chunk = due ? chunk_at(incoming->sender, question.chunk) : NULL;
    if (chunk == NULL || question.first >= chunk->page_count || !kvf_sum_begin(&check->sum)) {
        kvf_drop_message(manager, "a question for pages that aren't in question");
        return;
    }
    check->asked = true;
    check->question = question;
    check->chunk = chunk;
    answer(check);
}

/* ---- Ending -------------------------------------------------------------------------------------- */

/* What was under way on the lost connection is lost with it; which letters those were nobody knows. */
void kvf_sums_unheard(kvf_agent *agent, const char *why)
{
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_GONE,
                  "the connection to decode agent %s, which checks what is written by its sums, is "
                  "lost: %s",
                  agent->name, why);
    kvf_incoming *incoming;
    kvf_incoming *next;
    DL_FOREACH_SAFE2(agent->incoming, incoming, next, agent_next)
    {
        if (!is_open(incoming))
            continue;
        kvf_sender *sender = incoming->sender;
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_PEER_GONE,
                                                    .agent_name = kvf_slice_of(agent->name),
                                                    .error = &error});
        kvf_sender_release(sender);
    }
}

void kvf_sums_stop(kvf_sender *sender)
{
    kvf_manager *manager = sender->room.manager;
    kvf_incoming *incoming;
    DL_FOREACH(sender->incoming, incoming)
    {
        if (incoming->check == NULL)
            continue;
        incoming->check->asked = false;
        kvf_work_remove(manager, &incoming->check->work);
    }
    if (sender->summing == NULL)
        return;
    sender->summing->chunks_left = 0;
    kvf_work_remove(manager, &sender->summing->work);
}

void kvf_sums_free(kvf_sender *sender)
{
    kvf_summing *summing = sender->summing;
    if (summing == NULL)
        return;
    kvf_work_remove(sender->room.manager, &summing->work);
    kvf_sum_free(&summing->sum);
    kvf_bytes_free(&summing->body);
    free(summing);
    sender->summing = NULL;
}
