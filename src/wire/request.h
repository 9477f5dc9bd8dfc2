/* Codec of the request message: 12 frames, and a tail frame between kvferry peers.
 * Frame by frame in docs/wire.md; the source is SGLang 0.4.7's NIXL connector.
 *
 * The tail frame: the 8 bytes "KVFERRY1", a u64 of extension flags (wire/event.h), little-endian; with
 * KVF_EXTENSION_EPOCH the epoch, with KVF_EXTENSION_LEASE the lease, each a u64 that isn't 0; what follows is
 * ignored, so that it can grow. A 13th frame without that magic is ignored whole, as stock ignores ours. */
#ifndef KVF_WIRE_REQUEST_H
#define KVF_WIRE_REQUEST_H

#include "wire/profile.h"

#define KVF_REQUEST_FRAMES 12
#define KVF_REQUEST_FRAMES_EXTENDED 13

/* An encoded message. Frames point into `storage` or at the slices of the request it was made from,
 * which must outlive it. */
typedef struct kvf_message {
    kvf_slice frames[KVF_REQUEST_FRAMES_EXTENDED];
    size_t frame_count;
    uint8_t storage[160];
} kvf_message;

/* `request->pages` must already be in the profile's width. With request->extended a tail frame is
 * added. The message must not be moved or copied afterwards. */
void kvf_request_encode(const kvf_profile *profile, const kvf_request *request,
                        kvf_message *message);

/* Which room a refused message meant, so that the room can be told. */
typedef struct kvf_refusal {
    bool room_known;
    uint64_t room;
} kvf_refusal;

/* Takes apart a message of any number of frames.
 * KVF_PROTOCOL: not a request, or malformed. KVF_PROFILE: recognised as another release's message; the
 * text names it, and `refusal` the room where the message has one. Bounds: agent name 1 to
 * KVF_AGENT_NAME_MAX printable ASCII bytes, room up to KVF_ROOM_MAX, pointer frames of whole u64s, page
 * frame of whole indices, numbers within their fields, `required` at least 1. Page bytes that are whole
 * indices of another profile's width only are KVF_PROFILE, with the room. */
kvf_status kvf_request_decode(const kvf_profile *profile, const kvf_slice *frames,
                              size_t frame_count, kvf_request *request, kvf_refusal *refusal,
                              kvf_error *error);

/* Page `index` of the request, as the profile's signed index. False when negative or above 2^32 - 1. */
bool kvf_request_page(const kvf_request *request, size_t index, uint32_t *page);

/* Appends `count` page indices in the profile's width, little-endian. Check bytes->failed, which is also
 * set by an index that a 4-byte profile can't say (2^31 and above). */
void kvf_request_pages_encode(const kvf_profile *profile, const uint32_t *pages, size_t count,
                              kvf_bytes *bytes);

/* What a page count that can't be right means: "...: the peer speaks sglang-0.4.7.post1 (4-byte page
 * indices)..." when the bytes fit the other width, a plain mismatch otherwise. Fills `error`, returns
 * its status (KVF_PROFILE or KVF_MISMATCH). */
kvf_status kvf_request_explain_count(const kvf_profile *profile, const kvf_request *request,
                                     uint64_t expected, kvf_error *error);

#endif
