/* Regions of the UCX engine: registering memory and packing the keys that peers write with. */
#include "data/ucx.h"
#include "wire/metadata.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* UCX maps memory that isn't there without a word and crashes when it moves the bytes. The kernel's list,
 * sorted by address, tells: all of the range must be readable and writable. Without /proc we trust. */
static kvf_status check_mapped(const kvf_buffer *buffer, kvf_error *error)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return KVF_OK;
    uint64_t covered = buffer->base;
    uint64_t end = buffer->base + buffer->length;
    char line[512];
    bool line_begins = true;
    while (covered < end && fgets(line, sizeof line, maps) != NULL) {
        uint64_t low;
        uint64_t high;
        char access[5];
        if (line_begins && sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &low, &high, access) == 3) {
            if (low > covered)
                break;
            if (high > covered && (access[0] != 'r' || access[1] != 'w'))
                break;
            if (high > covered)
                covered = high;
        }
        line_begins = strchr(line, '\n') != NULL;
    }
    (void)fclose(maps);
    if (covered >= end)
        return KVF_OK;
    return kvf_error_set(error, KVF_REGISTRATION,
                         "the buffer at 0x%" PRIx64 " of %" PRIu64
                         " bytes isn't mapped for reading and writing from 0x%" PRIx64 " on",
                         buffer->base, buffer->length, covered);
}

static kvf_status check_kind(ucp_mem_h memory, const kvf_buffer *buffer, kvf_error *error)
{
    if (buffer->memory != KVF_MEMORY_CUDA)
        return KVF_OK;
    ucp_mem_attr_t attributes = {.field_mask = UCP_MEM_ATTR_FIELD_MEM_TYPE};
    ucs_status_t status = ucp_mem_query(memory, &attributes);
    if (status == UCS_OK && (attributes.mem_type == UCS_MEMORY_TYPE_CUDA ||
                             attributes.mem_type == UCS_MEMORY_TYPE_CUDA_MANAGED))
        return KVF_OK;
    return kvf_error_set(
        error, KVF_REGISTRATION,
        "the buffer at 0x%" PRIx64
        " is said to be CUDA memory, but UCX %s sees none there: is this UCX built "
        "with CUDA, and do the transports include cuda?",
        buffer->base, kvf_ucx_version());
}

/* Room for one more; registered memory is what can't be moved, not its list. */
static kvf_ucx_region *next_region(kvf_ucx *engine)
{
    kvf_ucx_region *regions =
        realloc(engine->regions, (engine->region_count + 1) * sizeof *regions);
    if (regions == NULL)
        return NULL;
    engine->regions = regions;
    return &regions[engine->region_count];
}

static void free_region(kvf_ucx *engine, kvf_ucx_region *region)
{
    free(region->portable_key);
    if (region->key != NULL)
        ucp_rkey_buffer_release(region->key);
    if (region->memory != NULL)
        (void)ucp_mem_unmap(engine->context, region->memory);
}

/* From UCX 1.19 on the key is portable as it is. What an older one packs makes a newer peer refuse the whole
 * key, and a stock prefill ends when its UCX does that. */
static kvf_status make_portable(kvf_ucx_region *region, kvf_error *error)
{
    region->portable_key = malloc(region->key_length);
    if (region->portable_key == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a region's key");
    memcpy(region->portable_key, region->key, region->key_length);
    region->portable_key_length = region->key_length;
    kvf_slice key = {region->key, region->key_length};
    if (!kvf_ucx_is_at_least(19) && kvf_rkey_is_sound(key))
        region->portable_key_length = kvf_rkey_leave_out_empty(region->portable_key, key.length);
    return KVF_OK;
}

kvf_status kvf_ucx_add_region(kvf_engine *base, const kvf_buffer *buffer, uint32_t *region,
                              kvf_error *error)
{
    kvf_ucx *engine = kvf_ucx_of(base);
    if (buffer->memory == KVF_MEMORY_HOST) {
        kvf_status status = check_mapped(buffer, error);
        if (status != KVF_OK)
            return status;
    }
    kvf_ucx_region *made = next_region(engine);
    if (made == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for a region");
    memset(made, 0, sizeof *made);
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .address = (void *)(uintptr_t)buffer->base,
        .length = buffer->length,
        .flags = 0,
    };
    ucs_status_t mapped = ucp_mem_map(engine->context, &params, &made->memory);
    if (mapped == UCS_OK)
        mapped = ucp_rkey_pack(engine->context, made->memory, &made->key, &made->key_length);
    kvf_status status = KVF_OK;
    if (mapped != UCS_OK)
        status =
            kvf_error_set(error, KVF_REGISTRATION,
                          "UCX can't register the buffer at 0x%" PRIx64 " of %" PRIu64 " bytes: %s",
                          buffer->base, buffer->length, ucs_status_string(mapped));
    else
        status = check_kind(made->memory, buffer, error);
    if (status == KVF_OK)
        status = make_portable(made, error);
    if (status != KVF_OK) {
        free_region(engine, made);
        return status;
    }
    *region = (uint32_t)engine->region_count++;
    return KVF_OK;
}

kvf_slice kvf_ucx_region_key(const kvf_engine *base, uint32_t region)
{
    const kvf_ucx *engine = (const kvf_ucx *)(const void *)base;
    return (kvf_slice){engine->regions[region].key, engine->regions[region].key_length};
}

kvf_slice kvf_ucx_portable_region_key(const kvf_engine *base, uint32_t region)
{
    const kvf_ucx *engine = (const kvf_ucx *)(const void *)base;
    const kvf_ucx_region *found = &engine->regions[region];
    return (kvf_slice){found->portable_key, found->portable_key_length};
}

void kvf_ucx_free_regions(kvf_ucx *engine)
{
    for (size_t i = 0; i < engine->region_count; i++)
        free_region(engine, &engine->regions[i]);
    free(engine->regions);
    engine->regions = NULL;
    engine->region_count = 0;
}
