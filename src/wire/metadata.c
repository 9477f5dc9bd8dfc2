#include "wire/metadata.h"

#include "wire/quote.h"
#include "wire/serdes.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BACKEND "UCX"
#define DESCRIPTOR_FIXED 24 /* base, length, device; the rkey follows */
#define ELEMENT_MINIMUM (KVF_SERDES_OVERHEAD + DESCRIPTOR_FIXED)

/* ---- encode ---- */

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

/* The key is left out: two entries equal in all else are either the same or a mistake. */
static int compare_descriptors(const void *left, const void *right)
{
    const kvf_descriptor *a = left;
    const kvf_descriptor *b = right;
    int order = compare_u64(a->kind, b->kind);
    if (order == 0)
        order = compare_u64(a->device, b->device);
    if (order == 0)
        order = compare_u64(a->base, b->base);
    return order != 0 ? order : compare_u64(a->length, b->length);
}

/* Sorts, drops exact duplicates, refuses what a loader would refuse. */
static kvf_status put_in_order(kvf_metadata *metadata, kvf_error *error)
{
    kvf_descriptor *descriptors = metadata->descriptors;
    size_t count = metadata->descriptor_count;
    if (count > 1)
        qsort(descriptors, count, sizeof *descriptors, compare_descriptors);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (descriptors[i].kind != KVF_NIXL_DRAM && descriptors[i].kind != KVF_NIXL_VRAM)
            return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                                 "region 0x%" PRIx64 " is of kind %" PRIu32
                                 ", which can't be offered",
                                 descriptors[i].base, descriptors[i].kind);
        if (kept > 0 && compare_descriptors(&descriptors[kept - 1], &descriptors[i]) == 0) {
            if (kvf_slice_equal(descriptors[kept - 1].key, descriptors[i].key))
                continue;
            return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                                 "region 0x%" PRIx64 " of %" PRIu64
                                 " bytes is offered with two keys, which no peer would load",
                                 descriptors[i].base, descriptors[i].length);
        }
        descriptors[kept++] = descriptors[i];
    }
    metadata->descriptor_count = kept;
    return KVF_OK;
}

static void append_u64_record(kvf_bytes *bytes, const char *tag, uint64_t value)
{
    uint8_t data[8];
    kvf_write_u64(data, value);
    kvf_serdes_append(bytes, tag, (kvf_slice){data, sizeof data});
}

static void append_descriptor(kvf_bytes *bytes, const kvf_descriptor *descriptor)
{
    kvf_bytes_append_u64(bytes, DESCRIPTOR_FIXED + descriptor->key.length); /* the tag is empty */
    kvf_bytes_append_u64(bytes, descriptor->base);
    kvf_bytes_append_u64(bytes, descriptor->length);
    kvf_bytes_append_u64(bytes, descriptor->device);
    kvf_bytes_append(bytes, descriptor->key.data, descriptor->key.length);
    kvf_bytes_append_text(bytes, "|");
}

static void append_section(kvf_bytes *bytes, const kvf_descriptor *descriptors, size_t count,
                           kvf_flavour flavour)
{
    uint8_t kind[4];
    const uint8_t sorted = 1;
    kvf_write_u32(kind, descriptors[0].kind);
    kvf_serdes_append(bytes, "bknd", kvf_slice_of(BACKEND));
    kvf_serdes_append(bytes, "nixlDList", kvf_slice_of("nixlSDList"));
    kvf_serdes_append(bytes, "t", (kvf_slice){kind, sizeof kind});
    if (flavour != KVF_FLAVOUR_P060)
        kvf_serdes_append(bytes, "s", (kvf_slice){&sorted, 1});
    append_u64_record(bytes, "n", count);
    for (size_t i = 0; i < count; i++)
        append_descriptor(bytes, &descriptors[i]);
}

kvf_status kvf_metadata_encode(kvf_metadata *metadata, kvf_flavour flavour, kvf_bytes *bytes,
                               kvf_error *error)
{
    if (metadata->agent_name.length == 0 || metadata->worker_address.length == 0)
        return kvf_error_set(error, KVF_INVALID_ARGUMENT,
                             "metadata needs an agent name and a worker address");
    kvf_status status = put_in_order(metadata, error);
    if (status != KVF_OK)
        return status;
    size_t count = metadata->descriptor_count;
    size_t dram = 0;
    while (dram < count && metadata->descriptors[dram].kind == KVF_NIXL_DRAM)
        dram++;

    kvf_bytes_append_text(bytes, KVF_SERDES_MAGIC);
    kvf_serdes_append(bytes, "Agent", metadata->agent_name);
    append_u64_record(bytes, "Conns", 1);
    kvf_serdes_append(bytes, "t", kvf_slice_of(BACKEND));
    kvf_serdes_append(bytes, "c", metadata->worker_address);
    kvf_serdes_append(bytes, "", kvf_slice_of("MemSection"));
    append_u64_record(bytes, "nixlSecElms", (dram > 0 ? 1u : 0u) + (count > dram ? 1u : 0u));
    if (dram > 0)
        append_section(bytes, metadata->descriptors, dram, flavour);
    if (count > dram)
        append_section(bytes, metadata->descriptors + dram, count - dram, flavour);
    if (bytes->failed)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for metadata of %zu regions", count);
    return KVF_OK;
}

/* ---- decode ---- */

struct reader {
    kvf_cursor cursor;
    kvf_metadata *metadata;
    size_t max_descriptors;
    bool flavour_known;
    kvf_error *error;
};

static kvf_status torn(struct reader *reader, const char *what)
{
    return kvf_error_set(reader->error, KVF_PROTOCOL,
                         "metadata of %zu bytes is torn at byte %zu: no valid %s there",
                         reader->cursor.length, reader->cursor.position, what);
}

static kvf_status read_connections(struct reader *reader)
{
    uint64_t count;
    if (!kvf_serdes_take_u64(&reader->cursor, "Conns", &count))
        return torn(reader, "connection count");
    for (uint64_t i = 0; i < count; i++) {
        kvf_slice backend, address;
        if (!kvf_serdes_take(&reader->cursor, "t", &backend) || backend.length == 0)
            return torn(reader, "backend name");
        if (!kvf_serdes_take(&reader->cursor, "c", &address) || address.length == 0)
            return torn(reader, "connection address");
        if (!kvf_slice_equal(backend, kvf_slice_of(BACKEND)))
            continue;
        if (reader->metadata->worker_address.length != 0)
            return kvf_error_set(reader->error, KVF_PROTOCOL,
                                 "metadata holds two addresses for " BACKEND);
        reader->metadata->worker_address = address;
    }
    if (reader->metadata->worker_address.length == 0)
        return kvf_error_set(reader->error, KVF_PROTOCOL,
                             "metadata holds no address for the backend " BACKEND);
    return KVF_OK;
}

/* The byte after "t" tells how NIXL up to 0.5.1 and from 0.6.0 on write a list. */
static kvf_status read_flavour(struct reader *reader)
{
    kvf_slice sorted;
    kvf_cursor *cursor = &reader->cursor;
    kvf_flavour flavour = KVF_FLAVOUR_P060;
    if (kvf_cursor_left(cursor) > 0 && cursor->data[cursor->position] == 's') {
        if (!kvf_serdes_take(cursor, "s", &sorted) || sorted.length != 1 || sorted.data[0] > 1)
            return torn(reader, "sorted flag");
        flavour = KVF_FLAVOUR_P031;
    }
    if (reader->flavour_known && reader->metadata->flavour != flavour)
        return kvf_error_set(reader->error, KVF_PROTOCOL,
                             "metadata mixes lists of NIXL up to 0.5.1 and from 0.6.0 on");
    reader->metadata->flavour = flavour;
    reader->flavour_known = true;
    return KVF_OK;
}

/* Makes room for `count` more; `count` is already known to be bounded by the blob's length. */
static kvf_status reserve(struct reader *reader, size_t count)
{
    kvf_metadata *metadata = reader->metadata;
    if (count > reader->max_descriptors - metadata->descriptor_count)
        return kvf_error_set(reader->error, KVF_LIMIT,
                             "metadata offers more than %zu regions; raise the limit or offer "
                             "fewer",
                             reader->max_descriptors);
    if (count == 0)
        return KVF_OK;
    kvf_descriptor *grown =
        realloc(metadata->descriptors, (metadata->descriptor_count + count) * sizeof *grown);
    if (grown == NULL)
        return kvf_error_set(reader->error, KVF_NO_MEMORY, "no memory for %zu regions of a peer",
                             count);
    metadata->descriptors = grown;
    return KVF_OK;
}

static kvf_status read_element(struct reader *reader, uint32_t kind, bool wanted)
{
    kvf_slice element;
    if (!kvf_serdes_take(&reader->cursor, "", &element) || element.length < DESCRIPTOR_FIXED)
        return torn(reader, "descriptor");
    kvf_descriptor descriptor = {
        .base = kvf_read_u64(element.data),
        .length = kvf_read_u64(element.data + 8),
        .device = kvf_read_u64(element.data + 16),
        .kind = kind,
        .key = {element.data + DESCRIPTOR_FIXED, element.length - DESCRIPTOR_FIXED}};
    if (!wanted)
        return KVF_OK;
    if (descriptor.length > UINT64_MAX - descriptor.base)
        return kvf_error_set(reader->error, KVF_PROTOCOL,
                             "metadata offers a region at 0x%" PRIx64 " of %" PRIu64
                             " bytes, past the end of memory",
                             descriptor.base, descriptor.length);
    if (!kvf_rkey_is_sound(descriptor.key))
        return kvf_error_set(reader->error, KVF_PROTOCOL,
                             "metadata offers a region at 0x%" PRIx64
                             " whose key of %zu bytes is cut short",
                             descriptor.base, descriptor.key.length);
    reader->metadata->descriptors[reader->metadata->descriptor_count++] = descriptor;
    return KVF_OK;
}

static kvf_status read_section(struct reader *reader)
{
    kvf_cursor *cursor = &reader->cursor;
    kvf_slice backend, form, kind;
    uint64_t count;
    if (!kvf_serdes_take(cursor, "bknd", &backend) || backend.length == 0)
        return torn(reader, "section");
    if (!kvf_serdes_take(cursor, "nixlDList", &form) ||
        !kvf_slice_equal(form, kvf_slice_of("nixlSDList")))
        return torn(reader, "descriptor list");
    if (!kvf_serdes_take(cursor, "t", &kind) || kind.length != 4)
        return torn(reader, "memory kind");
    kvf_status status = read_flavour(reader);
    if (status != KVF_OK)
        return status;
    if (!kvf_serdes_take_u64(cursor, "n", &count) ||
        count > kvf_cursor_left(cursor) / ELEMENT_MINIMUM)
        return torn(reader, "descriptor count");
    uint32_t number = kvf_read_u32(kind.data);
    bool wanted = kvf_slice_equal(backend, kvf_slice_of(BACKEND)) &&
                  (number == KVF_NIXL_DRAM || number == KVF_NIXL_VRAM);
    if (wanted)
        status = reserve(reader, (size_t)count);
    for (uint64_t i = 0; i < count && status == KVF_OK; i++)
        status = read_element(reader, number, wanted);
    return status;
}

static kvf_status read_all(struct reader *reader)
{
    kvf_cursor *cursor = &reader->cursor;
    kvf_slice name;
    uint64_t sections;
    if (!kvf_cursor_take_literal(cursor, KVF_SERDES_MAGIC))
        return torn(reader, "nixlSerDes magic");
    if (!kvf_serdes_take(cursor, "Agent", &reader->metadata->agent_name) ||
        reader->metadata->agent_name.length == 0)
        return torn(reader, "agent name");
    kvf_status status = read_connections(reader);
    if (status != KVF_OK)
        return status;
    if (!kvf_serdes_take(cursor, "", &name) || !kvf_slice_equal(name, kvf_slice_of("MemSection")))
        return torn(reader, "MemSection");
    if (!kvf_serdes_take_u64(cursor, "nixlSecElms", &sections))
        return torn(reader, "section count");
    /* A count that lies ends the loop too: each turn takes bytes or fails. */
    for (uint64_t i = 0; i < sections && status == KVF_OK; i++)
        status = read_section(reader);
    return status;
}

kvf_status kvf_metadata_decode(kvf_slice blob, size_t max_descriptors, kvf_metadata *metadata,
                               kvf_error *error)
{
    *metadata = (kvf_metadata){.flavour = KVF_FLAVOUR_P031};
    struct reader reader = {.cursor = kvf_cursor_over(blob),
                            .metadata = metadata,
                            .max_descriptors = max_descriptors,
                            .error = error};
    kvf_status status = read_all(&reader);
    if (status != KVF_OK)
        kvf_metadata_free(metadata);
    return status;
}

void kvf_metadata_free(kvf_metadata *metadata)
{
    free(metadata->descriptors);
    *metadata = (kvf_metadata){0};
}

/* ---- what UCX packed ---- */

bool kvf_rkey_is_sound(kvf_slice key)
{
    kvf_cursor cursor = kvf_cursor_over(key);
    uint64_t map;
    kvf_slice part;
    if (!kvf_cursor_take_u64(&cursor, &map) || !kvf_cursor_take(&cursor, 1, &part))
        return false;
    for (; map != 0; map &= map - 1) /* once for each memory domain */
        if (!kvf_cursor_take(&cursor, 1, &part) || !kvf_cursor_take(&cursor, part.data[0], &part))
            return false;
    return true;
}

size_t kvf_rkey_leave_out_empty(uint8_t *key, size_t length)
{
    enum { PARTS = 9 }; /* behind the map and the memory type */
    uint64_t map = kvf_read_u64(key);
    uint64_t kept = map;
    size_t from = PARTS;
    size_t to = PARTS;
    for (uint64_t rest = map; rest != 0; rest &= rest - 1) {
        size_t size = 1 + (size_t)key[from];
        if (size == 1)
            kept &= ~(rest & -rest);
        else {
            memmove(key + to, key + from, size);
            to += size;
        }
        from += size;
    }
    memmove(key + to, key + from, length - from);
    kvf_write_u64(key, kept);
    return to + length - from;
}

int kvf_worker_address_ucx_minor(kvf_slice address)
{
    if (address.length == 0 || (address.data[0] & 0x0f) != 1)
        return -1;
    return address.data[0] >> 4;
}
