/* Agent metadata. What is taken must lie inside the blob and survive being written and read again. */
#include "wire/metadata.h"

#include <stdlib.h>
#include <string.h>

#define DESCRIPTORS_MAX 64

static void require(bool truth)
{
    if (!truth)
        abort();
}

static bool inside(kvf_slice slice, kvf_slice blob)
{
    return slice.length == 0 || (slice.data >= blob.data && slice.length <= blob.length &&
                                 (size_t)(slice.data - blob.data) <= blob.length - slice.length);
}

static void check_taken(kvf_slice blob, kvf_metadata *metadata)
{
    require(inside(metadata->agent_name, blob) && metadata->agent_name.length > 0);
    require(inside(metadata->worker_address, blob) && metadata->worker_address.length > 0);
    require(metadata->descriptor_count <= DESCRIPTORS_MAX);
    (void)kvf_worker_address_ucx_minor(metadata->worker_address);
    for (size_t i = 0; i < metadata->descriptor_count; i++) {
        const kvf_descriptor *descriptor = &metadata->descriptors[i];
        require(inside(descriptor->key, blob) && kvf_rkey_is_sound(descriptor->key));
        require(descriptor->length <= UINT64_MAX - descriptor->base);
        require(descriptor->kind == KVF_NIXL_DRAM || descriptor->kind == KVF_NIXL_VRAM);
    }
    kvf_bytes bytes = {0};
    kvf_metadata again;
    /* Refused when one region comes with two keys. */
    if (kvf_metadata_encode(metadata, metadata->flavour, &bytes, NULL) == KVF_OK) {
        require(kvf_metadata_decode(kvf_bytes_slice(&bytes), DESCRIPTORS_MAX, &again, NULL) ==
                KVF_OK);
        require(again.descriptor_count == metadata->descriptor_count);
        require(again.descriptor_count == 0 || again.flavour == metadata->flavour);
        for (size_t i = 0; i < again.descriptor_count; i++)
            require(again.descriptors[i].base == metadata->descriptors[i].base &&
                    kvf_slice_equal(again.descriptors[i].key, metadata->descriptors[i].key));
        kvf_metadata_free(&again);
    }
    kvf_bytes_free(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvf_slice blob = {data, size};
    kvf_metadata metadata;
    kvf_error error = {0};
    kvf_status status = kvf_metadata_decode(blob, DESCRIPTORS_MAX, &metadata, &error);
    if (status == KVF_OK)
        check_taken(blob, &metadata);
    else
        require((status == KVF_PROTOCOL || status == KVF_LIMIT) && error.text[0] != '\0' &&
                metadata.descriptors == NULL);
    kvf_metadata_free(&metadata);
    (void)kvf_rkey_is_sound(blob);
    return 0;
}
