/* Requests. Input: one byte that picks the profile, then frames of a u16 length and their bytes. What is
 * taken must lie inside its frame and come out of the encoder as a message that is taken alike. */
#include "wire/request.h"

#include <stdlib.h>
#include <string.h>

#define FRAMES_MAX 40

static void require(bool truth)
{
    if (!truth)
        abort();
}

/* The frames are copied to their exact sizes, so that the sanitizer guards each. */
static size_t split(const uint8_t *data, size_t size, kvf_slice frames[FRAMES_MAX])
{
    size_t count = 0;
    while (count < FRAMES_MAX && size >= 2) {
        size_t length = (size_t)data[0] | (size_t)data[1] << 8;
        data += 2;
        size -= 2;
        if (length > size)
            length = size;
        uint8_t *copy = malloc(length);
        require(copy != NULL || length == 0);
        if (length > 0)
            memcpy(copy, data, length);
        frames[count++] = (kvf_slice){copy, length};
        data += length;
        size -= length;
    }
    return count;
}

static bool inside(kvf_slice slice, kvf_slice frame)
{
    return slice.length == 0 || (slice.data >= frame.data && slice.length <= frame.length &&
                                 (size_t)(slice.data - frame.data) <= frame.length - slice.length);
}

static bool same(const kvf_request *a, const kvf_request *b)
{
    return a->room == b->room && a->port == b->port && kvf_slice_equal(a->host, b->host) &&
           kvf_slice_equal(a->agent_name, b->agent_name) &&
           kvf_slice_equal(a->agent_metadata, b->agent_metadata) &&
           kvf_slice_equal(a->buffers, b->buffers) && kvf_slice_equal(a->pages, b->pages) &&
           a->page_width == b->page_width && kvf_slice_equal(a->aux, b->aux) &&
           a->aux_slot == b->aux_slot && a->device == b->device && a->required == b->required &&
           a->extended == b->extended && a->extensions == b->extensions;
}

static void check_taken(const kvf_profile *profile, const kvf_slice *frames,
                        const kvf_request *request)
{
    require(inside(request->host, frames[2]) && inside(request->agent_metadata, frames[4]) &&
            inside(request->agent_name, frames[5]) && inside(request->buffers, frames[6]) &&
            inside(request->pages, frames[7]) && inside(request->aux, frames[8]));
    uint32_t page;
    for (size_t i = 0; i <= kvf_request_page_count(request); i++)
        (void)kvf_request_page(request, i, &page);
    kvf_error error;
    (void)kvf_request_explain_count(profile, request, request->room, &error);

    kvf_message message;
    kvf_request again;
    kvf_refusal refusal;
    kvf_request_encode(profile, request, &message);
    require(kvf_request_decode(profile, message.frames, message.frame_count, &again, &refusal,
                               &error) == KVF_OK);
    require(same(request, &again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const kvf_profile *profile = kvf_profile_at(data[0] % 2);
    kvf_slice frames[FRAMES_MAX];
    size_t count = split(data + 1, size - 1, frames);
    kvf_request request;
    kvf_refusal refusal;
    kvf_error error = {0};
    kvf_status status = kvf_request_decode(profile, frames, count, &request, &refusal, &error);
    if (status == KVF_OK)
        check_taken(profile, frames, &request);
    else
        require((status == KVF_PROTOCOL || status == KVF_PROFILE) && error.text[0] != '\0' &&
                (status == KVF_PROFILE || !refusal.room_known));
    for (size_t i = 0; i < count; i++)
        free((void *)(uintptr_t)frames[i].data);
    return 0;
}
