#include "wire/request.h"

#include "base/text.h"
#include "wire/quote.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define GUARD "NixlMsgGuard"
#define TAIL_MAGIC "KVFERRY1"

/* ---- encode ---- */

/* Where the texts of a message are laid down in its storage. */
struct writer {
    kvf_message *message;
    size_t used;
};

static void add_frame(kvf_message *message, kvf_slice frame)
{
    message->frames[message->frame_count++] = frame;
}

static void add_decimal(struct writer *pen, uint64_t value)
{
    uint8_t *at = pen->message->storage + pen->used;
    int length = snprintf((char *)at, sizeof pen->message->storage - pen->used, "%" PRIu64, value);
    pen->used += (size_t)length;
    add_frame(pen->message, (kvf_slice){at, (size_t)length});
}

/* The magic, the flags, and what the flags announce. */
static void add_tail(struct writer *pen, const kvf_request *request)
{
    uint8_t *at = pen->message->storage + pen->used;
    size_t length = 16;
    memcpy(at, TAIL_MAGIC, 8);
    kvf_write_u64(at + 8, request->extensions);
    if ((request->extensions & KVF_EXTENSION_EPOCH) != 0) {
        kvf_write_u64(at + length, request->epoch);
        length += 8;
    }
    if ((request->extensions & KVF_EXTENSION_LEASE) != 0) {
        kvf_write_u64(at + length, request->lease);
        length += 8;
    }
    pen->used += length;
    add_frame(pen->message, (kvf_slice){at, length});
}

void kvf_request_encode(const kvf_profile *profile, const kvf_request *request,
                        kvf_message *message)
{
    (void)profile; /* the profiles differ only in the pages, which are given in their width */
    struct writer pen = {message, 0};
    message->frame_count = 0;
    add_frame(message, kvf_slice_of(GUARD));
    add_decimal(&pen, request->room);
    add_frame(message, request->host);
    add_decimal(&pen, request->port);
    add_frame(message, request->agent_metadata);
    add_frame(message, request->agent_name);
    add_frame(message, request->buffers);
    add_frame(message, request->pages);
    add_frame(message, request->aux);
    add_decimal(&pen, request->aux_slot);
    add_decimal(&pen, request->device);
    add_decimal(&pen, request->required);
    if (request->extended)
        add_tail(&pen, request);
}

/* ---- other releases ---- */

typedef struct release {
    size_t frame_count;
    const char *name;
} release;

static const release registrations[] = {
    {2, "older than 0.4.7"}, {9, "0.4.8.post1 to 0.5.1"}, {12, "0.5.2 to 0.5.6"},
    {13, "about 0.5.9"},     {20, "0.5.15 or 0.5.16"},    {24, "0.5.17 to 0.5.22"},
    {25, "0.5.23"},
};

static const release requests[] = {
    {8, "0.4.8.post1 to 0.5.6"},
    {9, "about 0.5.9"},
    {10, "about 0.5.11 to 0.5.16"},
    {11, "0.5.17 to 0.5.23"},
};

static const char *release_of(const release *releases, size_t count, size_t frame_count)
{
    for (size_t i = 0; i < count; i++)
        if (releases[i].frame_count == frame_count)
            return releases[i].name;
    return NULL;
}

static bool is_agent_name(kvf_slice name)
{
    return name.length >= 1 && name.length <= KVF_AGENT_NAME_MAX && kvf_is_printable(name);
}

static bool is_decimal(kvf_slice text)
{
    uint64_t value;
    return kvf_parse_decimal(text, UINT64_MAX, &value);
}

/* Later releases send the connection's data once, in a registration whose room is "None". */
static kvf_status refuse_registration(const kvf_profile *profile, size_t frame_count,
                                      kvf_error *error)
{
    const char *name =
        release_of(registrations, sizeof registrations / sizeof *registrations, frame_count);
    return kvf_error_set(
        error, KVF_PROFILE,
        "a registration of %zu frames: the peer speaks SGLang %s, this side is set "
        "to %s; set both to one release",
        frame_count, name == NULL ? "later than 0.4.8" : name, profile->name);
}

/* A control message of later releases that carries no guard; KVF_OK when it is none. */
static kvf_status refuse_unguarded(const kvf_profile *profile, const kvf_slice *frames,
                                   size_t frame_count, kvf_refusal *refusal, kvf_error *error)
{
    static const struct {
        const char *tag;
        bool has_room;
        const char *name;
    } messages[] = {
        {"ABORT", true, "about 0.5.14 or later"},
        {"STAGING_RSP", true, "about 0.5.13 or later"},
        {"WATERMARK", false, "about 0.5.13 or later"},
    };
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        if (!kvf_slice_equal(frames[0], kvf_slice_of(messages[i].tag)))
            continue;
        refusal->room_known = messages[i].has_room && frame_count > 1 &&
                              kvf_parse_decimal(frames[1], KVF_ROOM_MAX, &refusal->room);
        return kvf_error_set(error, KVF_PROFILE,
                             "an %s message: the peer speaks SGLang %s, this side is set to %s; "
                             "set both to one release",
                             messages[i].tag, messages[i].name, profile->name);
    }
    return KVF_OK;
}

/* A request of the releases that register first: guard, room, ip, port, name, pages, aux slot, required
 * and more. A 0.4.7 message cut short has metadata where these have the name. */
static kvf_status refuse_short_request(const kvf_profile *profile, const kvf_slice *frames,
                                       size_t frame_count, uint64_t room, kvf_refusal *refusal,
                                       kvf_error *error)
{
    const char *name = release_of(requests, sizeof requests / sizeof *requests, frame_count);
    if (name == NULL || !is_decimal(frames[3]) || !is_agent_name(frames[4]) ||
        frames[5].length % 4 != 0 ||
        !(is_decimal(frames[6]) || kvf_slice_equal(frames[6], kvf_slice_of("None"))) ||
        !is_decimal(frames[7]))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "a request of %zu frames, where %s has %d: it is cut short or torn",
                             frame_count, profile->name, KVF_REQUEST_FRAMES);
    *refusal = (kvf_refusal){true, room};
    return kvf_error_set(error, KVF_PROFILE,
                         "room %" PRIu64 ": a request of %zu frames: the peer speaks SGLang %s, "
                         "this side is set to %s; set both to one release",
                         room, frame_count, name, profile->name);
}

/* The profile whose indices are of another width that divides `length`, or NULL. */
static const kvf_profile *other_width(const kvf_profile *profile, size_t length)
{
    const kvf_profile *other;
    for (size_t i = 0; (other = kvf_profile_at(i)) != NULL; i++)
        if (other->page_width != profile->page_width && length % other->page_width == 0)
            return other;
    return NULL;
}

/* ---- decode ---- */

static kvf_status take_number(const kvf_slice *frames, size_t index, const char *what,
                              uint64_t minimum, uint64_t maximum, uint64_t *value, kvf_error *error)
{
    char quoted[KVF_QUOTE_MAX];
    if (kvf_parse_decimal(frames[index], maximum, value) && *value >= minimum)
        return KVF_OK;
    return kvf_error_set(error, KVF_PROTOCOL,
                         "frame %zu of a request, its %s, is %s and not a number from %" PRIu64
                         " to %" PRIu64,
                         index, what, kvf_quote(frames[index], quoted), minimum, maximum);
}

static kvf_status take_numbers(const kvf_slice *frames, kvf_request *request, kvf_error *error)
{
    uint64_t port, aux_slot, device, required;
    kvf_status status = take_number(frames, 3, "port", 0, UINT16_MAX, &port, error);
    if (status == KVF_OK)
        status = take_number(frames, 9, "aux slot", 0, UINT32_MAX, &aux_slot, error);
    if (status == KVF_OK)
        status = take_number(frames, 10, "device", 0, UINT32_MAX, &device, error);
    if (status == KVF_OK)
        status = take_number(frames, 11, "required count", 1, UINT32_MAX, &required, error);
    if (status != KVF_OK)
        return status;
    request->port = (uint16_t)port;
    request->aux_slot = (uint32_t)aux_slot;
    request->device = (uint32_t)device;
    request->required = (uint32_t)required;
    return KVF_OK;
}

static kvf_status take_texts(const kvf_slice *frames, kvf_request *request, kvf_error *error)
{
    char quoted[KVF_QUOTE_MAX];
    request->host = frames[2];
    request->agent_metadata = frames[4];
    request->agent_name = frames[5];
    if (frames[2].length == 0 || frames[2].length >= KVF_HOST_MAX || !kvf_is_printable(frames[2]))
        return kvf_error_set(error, KVF_PROTOCOL, "frame 2 of a request, its host, is %s",
                             kvf_quote(frames[2], quoted));
    if (!is_agent_name(frames[5]))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "frame 5 of a request, its agent name, is %s and not 1 to %d bytes of "
                             "ASCII",
                             kvf_quote(frames[5], quoted), KVF_AGENT_NAME_MAX);
    return KVF_OK;
}

static kvf_status take_pointers(const kvf_slice *frames, kvf_request *request, kvf_error *error)
{
    request->buffers = frames[6];
    request->aux = frames[8];
    for (size_t index = 6; index <= 8; index += 2)
        if (frames[index].length % 8 != 0)
            return kvf_error_set(error, KVF_PROTOCOL,
                                 "frame %zu of a request, its %s pointers, has %zu bytes, which "
                                 "isn't whole pointers of 8",
                                 index, index == 6 ? "buffer" : "aux", frames[index].length);
    return KVF_OK;
}

/* False when the number that the flag announces isn't there. */
static bool take_announced(kvf_cursor *cursor, const kvf_request *request, uint64_t flag,
                           uint64_t *number)
{
    return (request->extensions & flag) == 0 ||
           (kvf_cursor_take_u64(cursor, number) && *number != 0);
}

/* Stock accepts and ignores a 13th frame, so one that isn't ours is no fault. */
static kvf_status take_tail(kvf_slice tail, kvf_request *request, kvf_error *error)
{
    kvf_cursor cursor = kvf_cursor_over(tail);
    if (!kvf_cursor_take_literal(&cursor, TAIL_MAGIC))
        return KVF_OK;
    if (!kvf_cursor_take_u64(&cursor, &request->extensions))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the tail frame of a request has %zu bytes and no room for its flags",
                             tail.length);
    if (!take_announced(&cursor, request, KVF_EXTENSION_EPOCH, &request->epoch) ||
        !take_announced(&cursor, request, KVF_EXTENSION_LEASE, &request->lease))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the tail frame of a request has %zu bytes and no epoch or lease, "
                             "which its flags announce",
                             tail.length);
    request->extended = true;
    return KVF_OK;
}

static kvf_status take_pages(const kvf_profile *profile, kvf_slice pages, kvf_request *request,
                             kvf_refusal *refusal, kvf_error *error)
{
    request->pages = pages;
    request->page_width = profile->page_width;
    if (pages.length % profile->page_width == 0)
        return KVF_OK;
    const kvf_profile *other = other_width(profile, pages.length);
    if (other == NULL)
        return kvf_error_set(error, KVF_PROTOCOL,
                             "frame 7 of a request, its pages, has %zu bytes, which isn't whole "
                             "indices of %" PRIu32,
                             pages.length, profile->page_width);
    *refusal = (kvf_refusal){true, request->room};
    return kvf_error_set(error, KVF_PROFILE,
                         "room %" PRIu64 ": %zu bytes of page indices: the peer speaks %s "
                         "(%" PRIu32 "-byte indices), this side is set to %s; set both to one "
                         "release",
                         request->room, pages.length, other->name, other->page_width,
                         profile->name);
}

/* The shape is known: guard, room, and a number of frames this profile has. */
static kvf_status take_frames(const kvf_profile *profile, const kvf_slice *frames,
                              size_t frame_count, kvf_request *request, kvf_refusal *refusal,
                              kvf_error *error)
{
    kvf_status status = take_numbers(frames, request, error);
    if (status == KVF_OK)
        status = take_texts(frames, request, error);
    if (status == KVF_OK)
        status = take_pointers(frames, request, error);
    if (status == KVF_OK && frame_count == KVF_REQUEST_FRAMES_EXTENDED)
        status = take_tail(frames[12], request, error);
    if (status == KVF_OK)
        status = take_pages(profile, frames[7], request, refusal, error);
    return status;
}

kvf_status kvf_request_decode(const kvf_profile *profile, const kvf_slice *frames,
                              size_t frame_count, kvf_request *request, kvf_refusal *refusal,
                              kvf_error *error)
{
    char quoted[KVF_QUOTE_MAX];
    *request = (kvf_request){.page_width = profile->page_width};
    *refusal = (kvf_refusal){false, 0};
    if (frame_count == 0)
        return kvf_error_set(error, KVF_PROTOCOL, "a message without frames");
    if (!kvf_slice_equal(frames[0], kvf_slice_of(GUARD))) {
        kvf_status status = refuse_unguarded(profile, frames, frame_count, refusal, error);
        if (status != KVF_OK)
            return status;
        return kvf_error_set(error, KVF_PROTOCOL,
                             "a message of %zu frames that begins with %s and not with " GUARD
                             ": something else talks to this port",
                             frame_count, kvf_quote(frames[0], quoted));
    }
    if (frame_count == 1)
        return kvf_error_set(error, KVF_PROTOCOL, "a message of nothing but its guard");
    if (kvf_slice_equal(frames[1], kvf_slice_of("None")))
        return refuse_registration(profile, frame_count, error);
    kvf_status status = take_number(frames, 1, "room", 0, KVF_ROOM_MAX, &request->room, error);
    if (status != KVF_OK)
        return status;
    if (frame_count < KVF_REQUEST_FRAMES)
        return refuse_short_request(profile, frames, frame_count, request->room, refusal, error);
    if (frame_count > KVF_REQUEST_FRAMES_EXTENDED)
        return kvf_error_set(error, KVF_PROTOCOL, "a request of %zu frames, where %s has %d",
                             frame_count, profile->name, KVF_REQUEST_FRAMES);
    return take_frames(profile, frames, frame_count, request, refusal, error);
}

/* ---- pages ---- */

bool kvf_request_page(const kvf_request *request, size_t index, uint32_t *page)
{
    if (index >= kvf_request_page_count(request))
        return false;
    const uint8_t *at = request->pages.data + index * request->page_width;
    /* Signed on the wire: for a negative index the top bit makes it too large here. */
    uint64_t value = request->page_width == 8 ? kvf_read_u64(at) : kvf_read_u32(at);
    if (value > (request->page_width == 8 ? UINT32_MAX : (uint64_t)INT32_MAX))
        return false;
    *page = (uint32_t)value;
    return true;
}

void kvf_request_pages_encode(const kvf_profile *profile, const uint32_t *pages, size_t count,
                              kvf_bytes *bytes)
{
    uint8_t block[512];
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (profile->page_width == 8) {
            kvf_write_u64(block + used, pages[i]);
        } else {
            if (pages[i] > INT32_MAX) /* would arrive as a negative index */
                bytes->failed = true;
            kvf_write_u32(block + used, pages[i]);
        }
        used += profile->page_width;
        if (used == sizeof block || i + 1 == count) {
            kvf_bytes_append(bytes, block, used);
            used = 0;
        }
    }
}

/* Whether the indices make sense in the other width only. Real pages are small: eight bytes that hold two of
 * four show in a huge number, four bytes that are half of eight in every second index being 0. */
static bool reads_as_other_width(const kvf_request *request)
{
    const uint8_t *data = request->pages.data;
    if (request->page_width == 8) {
        for (size_t i = 0; i + 8 <= request->pages.length; i += 8)
            if (kvf_read_u64(data + i) > UINT32_MAX)
                return true;
        return false;
    }
    for (size_t i = 4; i + 4 <= request->pages.length; i += 8)
        if (kvf_read_u32(data + i) != 0)
            return false;
    return true;
}

kvf_status kvf_request_explain_count(const kvf_profile *profile, const kvf_request *request,
                                     uint64_t expected, kvf_error *error)
{
    size_t length = request->pages.length;
    const kvf_profile *other = other_width(profile, length);
    bool fits = other != NULL && length > 0 && length / other->page_width == expected;
    if (fits && reads_as_other_width(request))
        return kvf_error_set(error, KVF_PROFILE,
                             "room %" PRIu64 ": %zu bytes of page indices where %" PRIu64
                             " pages are expected: the peer speaks %s (%" PRIu32
                             "-byte page indices), this side is set to %s; set both to one release",
                             request->room, length, expected, other->name, other->page_width,
                             profile->name);
    return kvf_error_set(error, KVF_MISMATCH,
                         "room %" PRIu64 ": the decode rank asks for %zu pages, the prefill rank "
                         "has %" PRIu64 ": the two disagree on the prompt or on the page size%s%s",
                         request->room, kvf_request_page_count(request), expected,
                         fits ? ", or the peer speaks " : "", fits ? other->name : "");
}
