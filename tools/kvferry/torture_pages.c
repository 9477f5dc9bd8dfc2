/* Which bytes may lie where. Canary bytes and the source's bytes differ in every word, so what was written to a page
 * by a room that no longer has it is seen, wherever it lands. */
#include "pattern.h"
#include "torture.h"

#include <stdlib.h>
#include <string.h>

uint64_t torture_draw(torture_random *random, uint64_t limit)
{
    return pattern_word(random->seed, 0, 8 * random->drawn++) % limit;
}

bool torture_pages_open(torture_pages *pages, message *why)
{
    const pool_shape shape = {.buffer_count = TORTURE_BUFFERS,
                              .page_count = TORTURE_PAGES,
                              .item_length = TORTURE_ITEM,
                              .aux_count = 1,
                              .aux_slots = TORTURE_AUX_SLOTS,
                              .aux_item_length = TORTURE_AUX_ITEM};
    *pages = (torture_pages){.source_seed = 1};
    if (!pool_open(&pages->pool, &shape, false, why))
        return false;
    pages->idle = calloc(TORTURE_PAGES, sizeof *pages->idle);
    pages->released = calloc(TORTURE_PAGES, sizeof *pages->released);
    if (pages->idle == NULL || pages->released == NULL)
        return message_set(why, "no memory for a list of pages");
    pool_poison(&pages->pool);
    for (uint32_t page = 0; page < TORTURE_PAGES; page++)
        torture_pages_put(pages, page);
    return true;
}

void torture_pages_close(torture_pages *pages)
{
    pool_close(&pages->pool);
    free(pages->idle);
    free(pages->released);
}

static bool all_canary(const uint8_t *bytes, size_t length)
{
    return bytes[0] == PATTERN_POISON && memcmp(bytes, bytes + 1, length - 1) == 0;
}

/* An item that may be in part what the source has and in part what was there before. */
static bool only_either(const uint8_t *bytes, const uint8_t *source, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != source[i] && bytes[i] != PATTERN_POISON)
            return false;
    return true;
}

/* Checks one item and gives it the canary again. */
static bool check_item(torture_pages *pages, uint32_t buffer, uint8_t *bytes, size_t length,
                       uint64_t offset, bool whole)
{
    uint8_t source[TORTURE_ITEM];
    pages->bytes_checked += length;
    bool right = !whole && all_canary(bytes, length);
    if (!right) {
        pattern_fill(pages->source_seed, buffer, offset, source, length);
        right = memcmp(bytes, source, length) == 0;
        if (!right && !whole)
            right = only_either(bytes, source, length);
    }
    memset(bytes, PATTERN_POISON, length);
    return right;
}

static void corrupted(torture_pages *pages, const char *what, uint32_t page)
{
    if (pages->corrupted++ == 0)
        (void)message_set(&pages->first_corrupted, "%s %u", what, (unsigned)page);
}

void torture_pages_check(torture_pages *pages, const torture_claim *claim)
{
    for (size_t i = 0; i < claim->page_count; i++) {
        bool right = true;
        for (uint32_t b = 0; b < TORTURE_BUFFERS; b++)
            right = check_item(pages, b, pool_item(&pages->pool, b, claim->pages[i]), TORTURE_ITEM,
                               claim->source_pages[i] * (uint64_t)TORTURE_ITEM, claim->whole) &&
                    right;
        if (!right)
            corrupted(pages, claim->whole ? "a succeeded room's page" : "a failed room's page",
                      claim->pages[i]);
    }
    if (!check_item(pages, PATTERN_AUX, pool_item(&pages->pool, TORTURE_BUFFERS, claim->aux_slot),
                    TORTURE_AUX_ITEM, claim->source_aux_slot * (uint64_t)TORTURE_AUX_ITEM,
                    claim->whole))
        corrupted(pages, "aux slot", claim->aux_slot);
}

static bool item_landed(const uint8_t *bytes)
{
    return !all_canary(bytes, sizeof(uint64_t)) &&
           !all_canary(bytes + TORTURE_ITEM - sizeof(uint64_t), sizeof(uint64_t));
}

double torture_pages_landed(const torture_pages *pages, const torture_claim *claim)
{
    size_t landed = 0;
    for (uint32_t b = 0; b < TORTURE_BUFFERS; b++)
        for (size_t i = 0; i < claim->page_count; i++)
            landed += item_landed(pool_item(&pages->pool, b, claim->pages[i])) ? 1 : 0;
    return (double)landed / (double)(claim->page_count * TORTURE_BUFFERS);
}

static bool holds_canary(const torture_pages *pages, uint32_t page)
{
    for (uint32_t b = 0; b < TORTURE_BUFFERS; b++)
        if (!all_canary(pool_item(&pages->pool, b, page), TORTURE_ITEM))
            return false;
    return true;
}

static void give_canary(torture_pages *pages, uint32_t page)
{
    for (uint32_t b = 0; b < TORTURE_BUFFERS; b++)
        memset(pool_item(&pages->pool, b, page), PATTERN_POISON, TORTURE_ITEM);
}

static void check_canary(torture_pages *pages, uint32_t page)
{
    pages->bytes_checked += (uint64_t)TORTURE_BUFFERS * TORTURE_ITEM;
    if (holds_canary(pages, page))
        return;
    give_canary(pages, page);
    pages->canaries_corrupted++;
}

uint32_t torture_pages_take(torture_pages *pages, torture_random *random)
{
    size_t index = (size_t)torture_draw(random, pages->idle_count);
    uint32_t page = pages->idle[index];
    pages->idle[index] = pages->idle[--pages->idle_count];
    check_canary(pages, page);
    return page;
}

void torture_pages_put(torture_pages *pages, uint32_t page)
{
    pages->idle[pages->idle_count++] = page;
}

void torture_pages_release(torture_pages *pages, const torture_claim *claim)
{
    for (size_t i = 0; i < claim->page_count; i++)
        pages->released[pages->released_count++] = claim->pages[i];
}

uint64_t torture_pages_landed_late(const torture_pages *pages)
{
    uint64_t written = 0;
    for (size_t i = 0; i < pages->released_count; i++)
        written += holds_canary(pages, pages->released[i]) ? 0 : 1;
    return written;
}

void torture_pages_check_slot(torture_pages *pages, uint32_t slot)
{
    uint8_t *bytes = pool_item(&pages->pool, TORTURE_BUFFERS, slot);
    pages->bytes_checked += TORTURE_AUX_ITEM;
    if (all_canary(bytes, TORTURE_AUX_ITEM))
        return;
    memset(bytes, PATTERN_POISON, TORTURE_AUX_ITEM);
    pages->canaries_corrupted++;
}

void torture_pages_check_idle(torture_pages *pages)
{
    for (size_t i = 0; i < pages->idle_count; i++)
        check_canary(pages, pages->idle[i]);
}
