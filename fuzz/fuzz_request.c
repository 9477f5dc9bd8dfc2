/* Requests. Input: one byte that picks the profile, one that picks the page count a prefill expects, then frames of a
 * u16 length and their bytes. What is taken must lie inside its frame and come out of the encoder as a message that
 * is taken alike. */
#include "wire/request.h"

#include "support.h"

#include <string.h>

#define FRAMES_MAX 40

/* Another size: a field was added, which belongs into the comparison below. */
_Static_assert(sizeof(kvf_request) == 160, "same() compares every field of a request");

static bool same(const kvf_request *a, const kvf_request *b)
{
    return a->room == b->room && a->port == b->port && kvf_slice_equal(a->host, b->host) &&
           kvf_slice_equal(a->agent_name, b->agent_name) &&
           kvf_slice_equal(a->agent_metadata, b->agent_metadata) &&
           kvf_slice_equal(a->buffers, b->buffers) && kvf_slice_equal(a->pages, b->pages) &&
           a->page_width == b->page_width && kvf_slice_equal(a->aux, b->aux) &&
           a->aux_slot == b->aux_slot && a->device == b->device && a->required == b->required &&
           a->extended == b->extended && a->extensions == b->extensions && a->epoch == b->epoch &&
           a->lease == b->lease;
}

static void check_fields(const kvf_profile *profile, const kvf_slice *frames,
                         const kvf_request *request)
{
    require(fuzz_is_inside(request->host, frames[2]) &&
            fuzz_is_inside(request->agent_metadata, frames[4]) &&
            fuzz_is_inside(request->agent_name, frames[5]) &&
            fuzz_is_inside(request->buffers, frames[6]) &&
            fuzz_is_inside(request->pages, frames[7]) && fuzz_is_inside(request->aux, frames[8]));
    require(request->room <= KVF_ROOM_MAX && request->required > 0 &&
            request->page_width == profile->page_width);
    require(request->extended || request->extensions == 0);
    require((request->epoch != 0) == ((request->extensions & KVF_EXTENSION_EPOCH) != 0));
    require((request->lease != 0) == ((request->extensions & KVF_EXTENSION_LEASE) != 0));
}

/* Half and twice what was asked for is what the other width would have made of it. */
static uint64_t expected_count(uint8_t choice, size_t asked)
{
    const uint64_t counts[] = {asked / 2, 2 * asked, choice / 4, asked + 1};
    return counts[choice % 4];
}

/* What the peer's indices are in the other width, said the long way: eight bytes of two small indices are no index,
 * four bytes are half of a small one where every second is 0. */
static bool is_other_width(const kvf_request *request)
{
    uint32_t page;
    size_t count = kvf_request_page_count(request);
    bool wide = request->page_width == 8;
    for (size_t i = wide ? 0 : 1; i < count; i += wide ? 1 : 2) {
        bool readable = kvf_request_page(request, i, &page);
        if (wide && !readable)
            return true;
        if (!wide && (!readable || page != 0))
            return false;
    }
    return !wide;
}

static void check_count(const kvf_profile *profile, const kvf_request *request, uint8_t choice)
{
    const kvf_profile *other = kvf_profile_at(profile == kvf_profile_at(0) ? 1 : 0);
    uint64_t expected = expected_count(choice, kvf_request_page_count(request));
    if (expected == kvf_request_page_count(request))
        return;
    size_t length = request->pages.length;
    bool fits =
        length > 0 && length % other->page_width == 0 && length / other->page_width == expected;
    bool foreign = fits && is_other_width(request);
    kvf_error error = {0};
    kvf_status status = kvf_request_explain_count(profile, request, expected, &error);
    require(status == (foreign ? KVF_PROFILE : KVF_MISMATCH) && fuzz_is_explained(&error, status));
    require((strstr(error.text, "the peer speaks") != NULL) == fits);
}

static void check_again(const kvf_profile *profile, const kvf_request *request)
{
    kvf_message message;
    kvf_request again;
    kvf_refusal refusal;
    kvf_request_encode(profile, request, &message);
    require(kvf_request_decode(profile, message.frames, message.frame_count, &again, &refusal,
                               NULL) == KVF_OK);
    require(same(request, &again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const kvf_profile *profile = kvf_profile_at(data[0] % 2);
    kvf_slice frames[FRAMES_MAX];
    size_t count = fuzz_frames((kvf_slice){data + 2, size - 2}, frames, FRAMES_MAX);
    kvf_request request;
    kvf_refusal refusal;
    kvf_error error = {0};
    kvf_status status = kvf_request_decode(profile, frames, count, &request, &refusal, &error);
    if (status == KVF_OK) {
        check_fields(profile, frames, &request);
        check_count(profile, &request, data[1]);
        check_again(profile, &request);
    } else {
        require(status == KVF_PROTOCOL || status == KVF_PROFILE);
        require(fuzz_is_explained(&error, status));
        require(status == KVF_PROFILE || !refusal.room_known);
        require(!refusal.room_known || refusal.room <= KVF_ROOM_MAX);
    }
    fuzz_frames_free(frames, count);
    return 0;
}
