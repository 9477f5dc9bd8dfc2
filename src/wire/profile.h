/* A profile: one exact dialect of the control plane. Always configured, never guessed; what a peer
 * speaks instead is recognised well enough to be named in an error. */
#ifndef KVF_WIRE_PROFILE_H
#define KVF_WIRE_PROFILE_H

#include "base/error.h"
#include "wire/event.h"

/* How NIXL itself writes. */
typedef enum kvf_flavour {
    KVF_FLAVOUR_P031 = 1, /* NIXL 0.3.1 to 0.5.0: "s" record, notifications on AM id 1 */
    KVF_FLAVOUR_P051 = 2, /* 0.5.1: "s" record, AM id 0 */
    KVF_FLAVOUR_P060 = 3  /* 0.6.0 on: no "s" record, AM id 0 */
} kvf_flavour;

/* Segment kinds of NIXL's metadata. */
enum { KVF_NIXL_DRAM = 0, KVF_NIXL_VRAM = 1 };

typedef struct kvf_profile {
    const char *name;     /* "sglang-0.4.7" */
    uint32_t page_width;  /* bytes of a page index on the wire */
    kvf_flavour flavour;  /* the NIXL flavour it comes with */
    uint32_t buffer_kind; /* how KV regions are labelled in metadata, whatever the memory is */
    uint32_t aux_kind;
} kvf_profile;

/* Index as in the setting "profile": 0 sglang-0.4.7, 1 sglang-0.4.7.post1. NULL past the end. */
const kvf_profile *kvf_profile_at(size_t index);

/* AM id on which a flavour carries notifications. */
unsigned kvf_flavour_notification_id(kvf_flavour flavour);

#endif
