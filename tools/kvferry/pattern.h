/* What pools are filled with, so that any program can tell whether a byte is right: docs/pattern.md. */
#ifndef KVFERRY_TOOL_PATTERN_H
#define KVFERRY_TOOL_PATTERN_H

#include <stddef.h>
#include <stdint.h>

/* Aux buffer i counts as buffer PATTERN_AUX + i. */
#define PATTERN_AUX UINT32_C(0x8000)

/* Every byte of a poisoned pool. */
#define PATTERN_POISON 0xA5

/* The little-endian word at byte `offset` (a multiple of 8, below 2^51) of a buffer. */
uint64_t pattern_word(uint64_t seed, uint32_t buffer, uint64_t offset);

/* Writes the pattern's bytes offset to offset + length - 1 of a buffer. */
void pattern_fill(uint64_t seed, uint32_t buffer, uint64_t offset, uint8_t *bytes, size_t length);

/* Where `bytes` first differ from the pattern at `offset`; `length` if they don't. */
size_t pattern_compare(uint64_t seed, uint32_t buffer, uint64_t offset, const uint8_t *bytes,
                       size_t length);

#endif
