/* Turns pages times buffers into merged writes, one at a time, without ever making a list of them. */
#ifndef KVF_PLAN_WRITES_H
#define KVF_PLAN_WRITES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One buffer on both sides. Regions are the data engine's indices. Bases and item length have been checked
 * against both pools for every page that follows: base + page * item_length + item_length can't wrap. */
typedef struct kvf_span {
    uint64_t source_base;
    uint64_t destination_base;
    uint64_t item_length;
    uint32_t source_region;
    uint32_t destination_region;
} kvf_span;

/* One write. */
typedef struct kvf_write {
    uint64_t source;
    uint64_t destination;
    uint64_t length;
    uint32_t source_region;
    uint32_t destination_region;
    bool starts_run; /* false: a further piece of the same merged write */
} kvf_write;

/* A position in pages × spans. Plain data: copy it to start over. Span by span, run by run; a run is
 * consecutive pages on both sides. */
typedef struct kvf_writes {
    const kvf_span *spans;
    const uint32_t *source_pages;
    const uint32_t *destination_pages;
    uint32_t span_count;
    uint32_t page_count;
    uint32_t span;   /* current */
    uint32_t page;   /* first page of the current run */
    uint32_t run;    /* its length; 0: not measured yet */
    uint64_t offset; /* bytes of the run already given */
} kvf_writes;

void kvf_writes_begin(kvf_writes *writes, const kvf_span *spans, size_t span_count,
                      const uint32_t *source_pages, const uint32_t *destination_pages,
                      size_t page_count);

/* The next write of at most max_length bytes; false at the end. A piece that is cut is cut at a
 * multiple of 64 bytes from the run's start where max_length allows. */
bool kvf_writes_next(kvf_writes *writes, uint64_t max_length, kvf_write *write);

/* True when nothing is left. */
bool kvf_writes_done(const kvf_writes *writes);

#endif
