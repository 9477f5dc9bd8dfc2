#include "support.h"

#include "wire/quote.h"

#include <string.h>

/* AddressSanitizer lets one byte of a block of none be read, so such a copy is the end of a block of one. */
kvf_slice fuzz_copy(kvf_slice slice)
{
    uint8_t *block = malloc(slice.length == 0 ? 1 : slice.length);
    require(block != NULL);
    if (slice.length == 0)
        return (kvf_slice){block + 1, 0};
    memcpy(block, slice.data, slice.length);
    return (kvf_slice){block, slice.length};
}

void fuzz_free(kvf_slice copy)
{
    uintptr_t block = (uintptr_t)copy.data - (copy.length == 0 ? 1 : 0);
    free((void *)block);
}

kvf_slice fuzz_take(kvf_slice *input, size_t length)
{
    kvf_slice taken = {input->data, length < input->length ? length : input->length};
    *input = (kvf_slice){input->data + taken.length, input->length - taken.length};
    return taken;
}

size_t fuzz_frames(kvf_slice input, kvf_slice *frames, size_t limit)
{
    size_t count = 0;
    while (count < limit && input.length >= 2) {
        kvf_slice head = fuzz_take(&input, 2);
        size_t length = (size_t)head.data[0] | (size_t)head.data[1] << 8;
        frames[count++] = fuzz_copy(fuzz_take(&input, length));
    }
    return count;
}

void fuzz_frames_free(const kvf_slice *frames, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fuzz_free(frames[i]);
}

bool fuzz_is_inside(kvf_slice slice, kvf_slice block)
{
    return slice.length == 0 || (slice.data >= block.data && slice.length <= block.length &&
                                 (size_t)(slice.data - block.data) <= block.length - slice.length);
}

bool fuzz_is_explained(const kvf_error *error, kvf_status status)
{
    return error->status == status && status != KVF_OK && error->text[0] != '\0' &&
           kvf_is_printable(kvf_slice_of(error->text));
}
