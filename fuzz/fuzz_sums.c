/* Bodies of letters about verification. The input is taken as each of them. */
#include "wire/sums.h"

#include "support.h"

static void same(const kvf_bytes *written, kvf_slice body)
{
    require(kvf_slice_equal(kvf_bytes_slice(written), body));
}

static void check_chunk(kvf_slice body)
{
    kvf_chunk_sums sums;
    kvf_error error = {0};
    kvf_bytes again = {0};
    if (kvf_chunk_sums_decode(body, &sums, &error) != KVF_OK) {
        require(fuzz_is_explained(&error, KVF_PROTOCOL));
        return;
    }
    require(sums.last || sums.aux_count == 0);
    kvf_chunk_sums_begin(&sums, &again);
    kvf_bytes_append(&again, sums.sums.data, sums.sums.length);
    same(&again, body);
    kvf_bytes_free(&again);
}

static void check_pages(kvf_slice body)
{
    kvf_page_sums sums;
    kvf_error error = {0};
    kvf_bytes again = {0};
    if (kvf_page_sums_decode(body, &sums, &error) != KVF_OK) {
        require(fuzz_is_explained(&error, KVF_PROTOCOL));
        return;
    }
    require(sums.page_count > 0 && sums.page_count <= KVF_PAGE_SUMS_MAX);
    kvf_page_sums_begin(&sums, &again);
    kvf_bytes_append(&again, sums.sums.data, sums.sums.length);
    same(&again, body);
    kvf_bytes_free(&again);
}

static void check_short(kvf_slice body)
{
    uint8_t again[KVF_WANT_PAGES_SIZE];
    kvf_page_sums wanted;
    uint32_t chunk;
    if (kvf_want_pages_decode(body, &wanted, NULL) == KVF_OK) {
        kvf_want_pages_encode(&wanted, again);
        require(kvf_slice_equal((kvf_slice){again, KVF_WANT_PAGES_SIZE}, body));
    }
    if (kvf_verdict_decode(body, &chunk, NULL) == KVF_OK) {
        kvf_verdict_encode(chunk, again);
        require(kvf_slice_equal((kvf_slice){again, KVF_VERDICT_SIZE}, body));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvf_slice body = {data, size};
    check_chunk(body);
    check_pages(body);
    check_short(body);
    return 0;
}
