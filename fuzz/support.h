/* What the fuzzers share. libFuzzer itself hands each input over in a heap block of its exact size; what a fuzzer
 * takes out of the middle of one is copied, so that AddressSanitizer sees the first byte read past it. */
#ifndef KVF_FUZZ_SUPPORT_H
#define KVF_FUZZ_SUPPORT_H

#include "base/bytes.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdlib.h>

static inline void require(bool truth)
{
    if (!truth)
        abort();
}

/* A copy in a heap block that ends where the slice does. */
kvf_slice fuzz_copy(kvf_slice slice);
void fuzz_free(kvf_slice copy);

/* The next `length` bytes of the input, or what is left of it. */
kvf_slice fuzz_take(kvf_slice *input, size_t length);

/* Cuts the input into frames of a u16 length and their bytes, each a copy. Returns how many. */
size_t fuzz_frames(kvf_slice input, kvf_slice *frames, size_t limit);
void fuzz_frames_free(const kvf_slice *frames, size_t count);

bool fuzz_is_inside(kvf_slice slice, kvf_slice block);

/* A refusal says which it is and why, in printable ASCII, whatever bytes it is about. */
bool fuzz_is_explained(const kvf_error *error, kvf_status status);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
