/* Codec of the bodies of letters about verification (wire/letter.h). Numbers are little-endian:
 *   SUMS        u32 chunk, u32 pages, u32 1 if it is the last else 0, u32 buffers, u32 aux buffers (0 unless it is the
 *               last), then a u64 sum each: of a buffer's bytes of the chunk's pages, in their order; of a slot
 *   VERDICT     u32 chunk
 *   WANT_PAGES  u32 chunk, u32 buffer, u32 first: position in the chunk
 *   PAGE_SUMS   u32 chunk, u32 buffer, u32 first, u32 pages, then a u64 sum each
 * Sums are XXH3's 64 bits with seed 0. */
#ifndef KVF_WIRE_SUMS_H
#define KVF_WIRE_SUMS_H

#include "base/error.h"
#include "wire/event.h"

/* Bytes of SUMS bodies that decode keeps for one room; prefill sums no further ahead of the verdicts than half of
 * that, and one chunk. */
#define KVF_SUMS_HELD_MAX (UINT64_C(16) << 20)

/* In one answer, which has at least one page. */
#define KVF_PAGE_SUMS_MAX 1024
#define KVF_PAGE_SUMS_BYTES_MAX (UINT64_C(16) << 20) /* of the source */

typedef struct kvf_chunk_sums {
    uint32_t chunk;
    uint32_t page_count;
    uint32_t buffer_count;
    uint32_t aux_count;
    bool last;
    kvf_slice sums; /* 8 bytes each: buffers, then aux buffers */
} kvf_chunk_sums;

typedef struct kvf_page_sums {
    uint32_t chunk;
    uint32_t buffer;
    uint32_t first;
    uint32_t page_count; /* 0 in a question */
    kvf_slice sums;      /* empty in a question */
} kvf_page_sums;

/* Bytes of a SUMS body. */
#define KVF_CHUNK_SUMS_HEAD 20
static inline uint64_t kvf_chunk_sums_size(uint64_t buffer_count, uint64_t aux_count)
{
    return KVF_CHUNK_SUMS_HEAD + 8 * (buffer_count + aux_count);
}

/* Appends the part before the sums, which the caller appends. Check bytes->failed. */
void kvf_chunk_sums_begin(const kvf_chunk_sums *sums, kvf_bytes *bytes);
void kvf_page_sums_begin(const kvf_page_sums *sums, kvf_bytes *bytes);

/* KVF_PROTOCOL for a body that isn't as long as its counts say, more than KVF_PAGE_SUMS_MAX pages or none, a flag that
 * is neither 0 nor 1, aux sums before the last chunk. Sums point into the body. */
kvf_status kvf_chunk_sums_decode(kvf_slice body, kvf_chunk_sums *sums, kvf_error *error);
kvf_status kvf_page_sums_decode(kvf_slice body, kvf_page_sums *sums, kvf_error *error);

#define KVF_VERDICT_SIZE 4
void kvf_verdict_encode(uint32_t chunk, uint8_t body[KVF_VERDICT_SIZE]);
kvf_status kvf_verdict_decode(kvf_slice body, uint32_t *chunk, kvf_error *error);

#define KVF_WANT_PAGES_SIZE 12
void kvf_want_pages_encode(const kvf_page_sums *wanted, uint8_t body[KVF_WANT_PAGES_SIZE]);
kvf_status kvf_want_pages_decode(kvf_slice body, kvf_page_sums *wanted, kvf_error *error);

#endif
