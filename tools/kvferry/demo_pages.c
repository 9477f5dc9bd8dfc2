#include "demo.h"
#include "pattern.h"

#include <stdlib.h>

enum { SOURCE_ORDER = 11, TARGET_ORDER = 12 };

/* Fisher-Yates, the same order each time: the pattern serves as the random numbers. */
static void shuffle(uint32_t *pages, size_t count, uint64_t seed)
{
    for (size_t i = count; i > 1; i--) {
        size_t other = (size_t)(pattern_word(seed, 0, 8 * (uint64_t)i) % i);
        uint32_t page = pages[i - 1];
        pages[i - 1] = pages[other];
        pages[other] = page;
    }
}

static uint32_t *list_pages(size_t count, bool scattered, uint64_t seed)
{
    uint32_t *pages = calloc(count, sizeof *pages);
    if (pages == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++)
        pages[i] = (uint32_t)i;
    if (scattered)
        shuffle(pages, count, seed);
    return pages;
}

bool demo_case_open(demo_case *each, const tool_model *model, message *why)
{
    const demo_options *options = each->options;
    bool scattered = each->pattern->scattered;
    each->pages_per_room = (size_t)(options->tokens / each->pattern->page_tokens);
    each->page_count = each->pages_per_room * (size_t)options->rooms;
    each->shape = (pool_shape){.page_count = each->page_count,
                               .aux_count = 1,
                               .aux_slots = options->rooms,
                               .aux_item_length = 64};
    if (!model_shape(model, each->pattern->page_tokens, 1, 2, &each->shape, why))
        return false;
    each->source = list_pages(each->page_count, scattered, SOURCE_ORDER);
    each->target = list_pages(each->page_count, scattered, TARGET_ORDER);
    return (each->source != NULL && each->target != NULL) ||
           message_set(why, "no memory for the list of pages");
}

void demo_case_close(demo_case *each)
{
    free(each->source);
    free(each->target);
    each->source = NULL;
    each->target = NULL;
}
