/* Neutral types: what the two sides say to each other, free of any profile's bytes. The codecs of
 * wire/ turn bytes into these and back; the machines of room/ take and give only these. */
#ifndef KVF_WIRE_EVENT_H
#define KVF_WIRE_EVENT_H

#include "base/bytes.h"

#define KVF_ROOM_MAX ((UINT64_C(1) << 63) - 1)

/* Longest agent name taken from a peer; stock names are UUIDs of 36 characters. */
#define KVF_AGENT_NAME_MAX 63

/* What a kvferry decode adds to its request. */
enum {
    KVF_EXTENSION_ALL_AUX = 1,  /* write all aux buffers, not only the first */
    KVF_EXTENSION_NO_DUMMY = 2, /* an empty page list is a room of no pages, not a dummy */
    KVF_EXTENSION_EPOCH = 4,    /* an epoch follows, which everything about the request repeats */
    KVF_EXTENSION_VERIFY = 8,   /* send sums of the source's bytes; needs ALL_AUX and EPOCH */
    KVF_EXTENSION_LEASE = 16    /* a lease follows */
};

/* A decode rank asks a prefill rank for a room's pages. Slices point into the message. */
typedef struct kvf_request {
    uint64_t room;
    kvf_slice host; /* where the decode rank says it is; informational */
    uint16_t port;
    kvf_slice agent_name;
    kvf_slice agent_metadata;
    kvf_slice buffers;   /* u64 little-endian each: base of each of decode's KV buffers */
    kvf_slice pages;     /* destination page indices, page_width bytes each, little-endian */
    uint32_t page_width; /* 8 or 4, by profile */
    kvf_slice aux;       /* u64 little-endian each: base of each of decode's aux buffers */
    uint32_t aux_slot;
    uint32_t device;   /* device id of the KV regions in decode's metadata */
    uint32_t required; /* how many decode ranks report to this prefill rank for this room */
    bool extended;     /* the tail frame of a kvferry peer was there */
    uint64_t extensions;
    uint64_t epoch; /* with KVF_EXTENSION_EPOCH: grows with each request of this agent; else 0 */
    uint64_t
        lease; /* with KVF_EXTENSION_LEASE: nanoseconds of silence, never fewer, after which it gives a
                     * prefill up; else 0 */
} kvf_request;

static inline size_t kvf_request_page_count(const kvf_request *request)
{
    return request->pages.length / request->page_width;
}

/* Only the agent counts: nothing is written to a dummy. */
static inline bool kvf_request_is_dummy(const kvf_request *request)
{
    return request->pages.length == 0 && (request->extensions & KVF_EXTENSION_NO_DUMMY) == 0;
}

/* Its decode checks the bytes: letters with their sums go to it. */
static inline bool kvf_request_is_verified(const kvf_request *request)
{
    const uint64_t needed = KVF_EXTENSION_VERIFY | KVF_EXTENSION_ALL_AUX | KVF_EXTENSION_EPOCH;
    return (request->extensions & needed) == needed && !kvf_request_is_dummy(request);
}

/* A notification that travelled with a write. */
typedef enum kvf_notice_kind {
    KVF_NOTICE_CHUNK,
    KVF_NOTICE_AUX,
    KVF_NOTICE_UNKNOWN
} kvf_notice_kind;

typedef struct kvf_notice {
    kvf_notice_kind kind;
    uint64_t room;
    uint64_t epoch; /* of the request; 0 where it had none */
    uint32_t chunk; /* KVF_NOTICE_CHUNK */
    bool last;      /* KVF_NOTICE_CHUNK */
} kvf_notice;

#endif
