/* Codec of NIXL agent metadata: who an agent is, how to reach it, which memory it offers. */
#ifndef KVF_WIRE_METADATA_H
#define KVF_WIRE_METADATA_H

#include "wire/profile.h"

/* One offered region. */
typedef struct kvf_descriptor {
    uint64_t base;
    uint64_t length;
    uint64_t device;
    uint32_t kind; /* KVF_NIXL_DRAM or KVF_NIXL_VRAM */
    kvf_slice key; /* packed rkey */
} kvf_descriptor;

typedef struct kvf_metadata {
    kvf_slice agent_name;
    kvf_slice worker_address; /* of the backend "UCX" */
    kvf_descriptor *descriptors;
    size_t descriptor_count;
    kvf_flavour
        flavour; /* told apart on input: P031 stands for P051 too; irrelevant without regions */
} kvf_metadata;

/* Writes the metadata: DRAM section before VRAM, descriptors sorted by (device, base, length), exact
 * duplicates once, no empty section. Sorts `descriptors` in place and drops the duplicates from them.
 * KVF_INVALID_ARGUMENT for what no peer would load: no name, no address, another kind, one region with two
 * different keys. KVF_NO_MEMORY. */
kvf_status kvf_metadata_encode(kvf_metadata *metadata, kvf_flavour flavour, kvf_bytes *bytes,
                               kvf_error *error);

/* Takes metadata apart. Slices point into `blob`; `descriptors` is allocated, free it with
 * kvf_metadata_free(). Everything is checked: tags, exact lengths, terminators, base + length without
 * wrapping, the structure of each rkey, at most max_descriptors, name and address not empty. Sections
 * of other backends and kinds are walked and skipped; empty sections are accepted; bytes after the last
 * section are ignored, as NIXL does. KVF_PROTOCOL, KVF_LIMIT, KVF_NO_MEMORY: `metadata` is then empty. */
kvf_status kvf_metadata_decode(kvf_slice blob, size_t max_descriptors, kvf_metadata *metadata,
                               kvf_error *error);
void kvf_metadata_free(kvf_metadata *metadata);

/* Walks a packed UCX rkey (u64 memory-domain map, u8 memory type, then {u8 size, bytes} for each bit of
 * the map, then what newer releases add): false where UCX would read past its end. */
bool kvf_rkey_is_sound(kvf_slice key);

/* Takes out of a sound key the memory domains that have no bytes of their own. UCX before 1.19 names domains
 * that need no key, TCP's and CMA's among them; from 1.19 on it refuses a key that does. Returns the new
 * length. */
size_t kvf_rkey_leave_out_empty(uint8_t *key, size_t length);

/* The minor version of the UCX that wrote a v2 worker address, modulo 16; -1 when the address doesn't
 * tell (v1, empty). */
int kvf_worker_address_ucx_minor(kvf_slice address);

#endif
