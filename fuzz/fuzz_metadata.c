/* Agent metadata. What is taken must lie inside the blob and survive being written and read again. */
#include "wire/metadata.h"

#include "support.h"

#define DESCRIPTORS_MAX 64

/* Sound by itself, and still so without what older UCX doesn't want in it. */
static void check_key(kvf_slice key)
{
    kvf_slice alone = fuzz_copy(key);
    require(kvf_rkey_is_sound(alone));
    kvf_bytes shorter = {0};
    kvf_bytes_append(&shorter, alone.data, alone.length);
    shorter.length = kvf_rkey_leave_out_empty(shorter.data, shorter.length);
    require(shorter.length <= key.length && kvf_rkey_is_sound(kvf_bytes_slice(&shorter)));
    kvf_bytes_free(&shorter);
    fuzz_free(alone);
}

static bool same(const kvf_descriptor *a, const kvf_descriptor *b)
{
    return a->base == b->base && a->length == b->length && a->device == b->device &&
           a->kind == b->kind && kvf_slice_equal(a->key, b->key);
}

static void check_taken(kvf_slice blob, kvf_metadata *metadata)
{
    require(fuzz_is_inside(metadata->agent_name, blob) && metadata->agent_name.length > 0);
    require(fuzz_is_inside(metadata->worker_address, blob) && metadata->worker_address.length > 0);
    require(metadata->descriptor_count <= DESCRIPTORS_MAX);
    kvf_slice address = fuzz_copy(metadata->worker_address);
    (void)kvf_worker_address_ucx_minor(address);
    fuzz_free(address);
    for (size_t i = 0; i < metadata->descriptor_count; i++) {
        const kvf_descriptor *descriptor = &metadata->descriptors[i];
        require(fuzz_is_inside(descriptor->key, blob));
        check_key(descriptor->key);
        require(descriptor->length <= UINT64_MAX - descriptor->base);
        require(descriptor->kind == KVF_NIXL_DRAM || descriptor->kind == KVF_NIXL_VRAM);
    }
}

static void check_again(kvf_metadata *metadata)
{
    kvf_bytes bytes = {0};
    kvf_metadata again;
    /* Refused when one region comes with two keys. */
    if (kvf_metadata_encode(metadata, metadata->flavour, &bytes, NULL) == KVF_OK) {
        require(kvf_metadata_decode(kvf_bytes_slice(&bytes), DESCRIPTORS_MAX, &again, NULL) ==
                KVF_OK);
        require(kvf_slice_equal(again.agent_name, metadata->agent_name) &&
                kvf_slice_equal(again.worker_address, metadata->worker_address));
        require(again.descriptor_count == metadata->descriptor_count);
        require(again.descriptor_count == 0 || again.flavour == metadata->flavour);
        for (size_t i = 0; i < again.descriptor_count; i++)
            require(same(&again.descriptors[i], &metadata->descriptors[i]));
        kvf_metadata_free(&again);
    }
    kvf_bytes_free(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvf_slice blob = {data, size};
    kvf_metadata metadata;
    kvf_error error = {0};
    kvf_status status = kvf_metadata_decode(blob, DESCRIPTORS_MAX, &metadata, &error);
    if (status == KVF_OK) {
        check_taken(blob, &metadata);
        check_again(&metadata);
    } else {
        require(status == KVF_PROTOCOL || status == KVF_LIMIT);
        require(fuzz_is_explained(&error, status) && metadata.descriptors == NULL);
    }
    kvf_metadata_free(&metadata);
    (void)kvf_rkey_is_sound(blob);
    return 0;
}
