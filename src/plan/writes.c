#include "plan/writes.h"

/* What a cut piece is a multiple of: a cache line, and more than any transport's own alignment. */
#define PIECE_MULTIPLE UINT64_C(64)

void kvf_writes_begin(kvf_writes *writes, const kvf_span *spans, size_t span_count,
                      const uint32_t *source_pages, const uint32_t *destination_pages,
                      size_t page_count)
{
    *writes = (kvf_writes){
        .spans = spans,
        .source_pages = source_pages,
        .destination_pages = destination_pages,
        .span_count = page_count == 0 ? 0 : (uint32_t)span_count,
        .page_count = (uint32_t)page_count,
    };
}

/* How many pages from `first` on are consecutive on both sides. Compared in 64 bits, so that the last
 * index of all isn't followed by 0. */
static uint32_t measure_run(const kvf_writes *writes, uint32_t first)
{
    uint32_t next = first + 1;
    while (next < writes->page_count &&
           writes->source_pages[next] == (uint64_t)writes->source_pages[next - 1] + 1 &&
           writes->destination_pages[next] == (uint64_t)writes->destination_pages[next - 1] + 1)
        next++;
    return next - first;
}

static void leave_run(kvf_writes *writes)
{
    writes->page += writes->run;
    writes->run = 0;
    writes->offset = 0;
    if (writes->page >= writes->page_count) {
        writes->page = 0;
        writes->span++;
    }
}

bool kvf_writes_next(kvf_writes *writes, uint64_t max_length, kvf_write *write)
{
    if (max_length == 0 || kvf_writes_done(writes))
        return false;
    const kvf_span *span = &writes->spans[writes->span];
    if (writes->run == 0)
        writes->run = measure_run(writes, writes->page);

    uint64_t left = writes->run * span->item_length - writes->offset;
    uint64_t length = left;
    if (left > max_length) {
        length = max_length;
        if (max_length >= PIECE_MULTIPLE)
            length -= length % PIECE_MULTIPLE;
    }
    *write = (kvf_write){
        .source = span->source_base + writes->source_pages[writes->page] * span->item_length +
                  writes->offset,
        .destination = span->destination_base +
                       writes->destination_pages[writes->page] * span->item_length + writes->offset,
        .length = length,
        .source_region = span->source_region,
        .destination_region = span->destination_region,
        .starts_run = writes->offset == 0,
    };
    writes->offset += length;
    if (length == left)
        leave_run(writes);
    return true;
}

bool kvf_writes_done(const kvf_writes *writes)
{
    return writes->span >= writes->span_count;
}
