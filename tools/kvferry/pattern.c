#include "pattern.h"

#include <endian.h>
#include <string.h>

enum { WORD = sizeof(uint64_t), BLOCK = 4096 };

/* The step and the finalizer of splitmix64: one to one, so different inputs give different words. */
static uint64_t mix(uint64_t value)
{
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static uint64_t start_of(uint64_t seed, uint32_t buffer)
{
    return mix(seed) ^ ((uint64_t)buffer << 48);
}

uint64_t pattern_word(uint64_t seed, uint32_t buffer, uint64_t offset)
{
    return mix(start_of(seed, buffer) ^ (offset / WORD));
}

void pattern_fill(uint64_t seed, uint32_t buffer, uint64_t offset, uint8_t *bytes, size_t length)
{
    uint64_t start = start_of(seed, buffer);
    uint64_t number = offset / WORD;
    size_t skip = (size_t)(offset % WORD); /* bytes of the first word that lie before the range */
    while (length > 0) {
        uint64_t word = htole64(mix(start ^ number++));
        size_t take = WORD - skip < length ? WORD - skip : length;
        if (take == WORD)
            memcpy(bytes, &word, WORD); /* a constant length becomes one store */
        else
            memcpy(bytes, (const uint8_t *)&word + skip, take);
        bytes += take;
        length -= take;
        skip = 0;
    }
}

size_t pattern_compare(uint64_t seed, uint32_t buffer, uint64_t offset, const uint8_t *bytes,
                       size_t length)
{
    uint8_t expected[BLOCK];
    for (size_t done = 0; done < length;) {
        size_t block = length - done < BLOCK ? length - done : BLOCK;
        pattern_fill(seed, buffer, offset + done, expected, block);
        if (memcmp(expected, bytes + done, block) != 0) {
            size_t at = 0;
            while (expected[at] == bytes[done + at])
                at++;
            return done + at;
        }
        done += block;
    }
    return length;
}
