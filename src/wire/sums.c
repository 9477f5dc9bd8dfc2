#include "wire/sums.h"

#define PAGE_SUMS_HEAD 16

static void append_u32(kvf_bytes *bytes, uint32_t value)
{
    uint8_t data[4];
    kvf_write_u32(data, value);
    kvf_bytes_append(bytes, data, sizeof data);
}

static kvf_status cut(kvf_slice body, const char *what, kvf_error *error)
{
    return kvf_error_set(error, KVF_PROTOCOL, "a letter with %s has a body of %zu bytes", what,
                         body.length);
}

void kvf_chunk_sums_begin(const kvf_chunk_sums *sums, kvf_bytes *bytes)
{
    append_u32(bytes, sums->chunk);
    append_u32(bytes, sums->page_count);
    append_u32(bytes, sums->last ? 1 : 0);
    append_u32(bytes, sums->buffer_count);
    append_u32(bytes, sums->aux_count);
}

kvf_status kvf_chunk_sums_decode(kvf_slice body, kvf_chunk_sums *sums, kvf_error *error)
{
    if (body.length < KVF_CHUNK_SUMS_HEAD)
        return cut(body, "a chunk's sums", error);
    uint32_t last = kvf_read_u32(body.data + 8);
    *sums = (kvf_chunk_sums){
        .chunk = kvf_read_u32(body.data),
        .page_count = kvf_read_u32(body.data + 4),
        .buffer_count = kvf_read_u32(body.data + 12),
        .aux_count = kvf_read_u32(body.data + 16),
        .last = last == 1,
        .sums = {body.data + KVF_CHUNK_SUMS_HEAD, body.length - KVF_CHUNK_SUMS_HEAD}};
    if (body.length != kvf_chunk_sums_size(sums->buffer_count, sums->aux_count))
        return cut(body, "a chunk's sums", error);
    if (last > 1 || (last == 0 && sums->aux_count > 0))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the sums of chunk %u say %u for last, with %u aux buffers",
                             sums->chunk, last, sums->aux_count);
    return KVF_OK;
}

void kvf_page_sums_begin(const kvf_page_sums *sums, kvf_bytes *bytes)
{
    append_u32(bytes, sums->chunk);
    append_u32(bytes, sums->buffer);
    append_u32(bytes, sums->first);
    append_u32(bytes, sums->page_count);
}

kvf_status kvf_page_sums_decode(kvf_slice body, kvf_page_sums *sums, kvf_error *error)
{
    if (body.length < PAGE_SUMS_HEAD)
        return cut(body, "page sums", error);
    *sums = (kvf_page_sums){.chunk = kvf_read_u32(body.data),
                            .buffer = kvf_read_u32(body.data + 4),
                            .first = kvf_read_u32(body.data + 8),
                            .page_count = kvf_read_u32(body.data + 12),
                            .sums = {body.data + PAGE_SUMS_HEAD, body.length - PAGE_SUMS_HEAD}};
    if (sums->page_count == 0 || sums->page_count > KVF_PAGE_SUMS_MAX ||
        sums->sums.length != (size_t)8 * sums->page_count)
        return cut(body, "page sums", error);
    return KVF_OK;
}

void kvf_verdict_encode(uint32_t chunk, uint8_t body[KVF_VERDICT_SIZE])
{
    kvf_write_u32(body, chunk);
}

kvf_status kvf_verdict_decode(kvf_slice body, uint32_t *chunk, kvf_error *error)
{
    if (body.length != KVF_VERDICT_SIZE)
        return cut(body, "a verdict", error);
    *chunk = kvf_read_u32(body.data);
    return KVF_OK;
}

void kvf_want_pages_encode(const kvf_page_sums *wanted, uint8_t body[KVF_WANT_PAGES_SIZE])
{
    kvf_write_u32(body, wanted->chunk);
    kvf_write_u32(body + 4, wanted->buffer);
    kvf_write_u32(body + 8, wanted->first);
}

kvf_status kvf_want_pages_decode(kvf_slice body, kvf_page_sums *wanted, kvf_error *error)
{
    if (body.length != KVF_WANT_PAGES_SIZE)
        return cut(body, "a question for page sums", error);
    *wanted = (kvf_page_sums){.chunk = kvf_read_u32(body.data),
                              .buffer = kvf_read_u32(body.data + 4),
                              .first = kvf_read_u32(body.data + 8)};
    return KVF_OK;
}
