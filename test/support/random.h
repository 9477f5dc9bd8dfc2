/* Random inputs for tests. The seed is printed first thing, so that it's there even when a sanitizer ends
 * the process, and is taken from KVF_TEST_SEED when that is set. */
#ifndef KVF_TEST_SUPPORT_RANDOM_H
#define KVF_TEST_SUPPORT_RANDOM_H

#include "base/bytes.h"

typedef struct test_random {
    uint64_t state;
} test_random;

test_random test_random_start(void);
uint64_t test_random_next(test_random *random);
uint64_t test_random_below(test_random *random, uint64_t bound); /* 0 when the bound is 0 */

/* Small numbers, extremes and powers of two far more often than chance would give. */
uint64_t test_random_edgy(test_random *random);

/* Fills `data`; printable: with 0x21 to 0x7e only. */
void test_random_fill(test_random *random, uint8_t *data, size_t length, bool printable);

/* A damaged copy: flipped bits, a changed 8-byte number, a cut, a repeated or inserted piece. Allocated in
 * its exact size, so that a sanitizer sees one byte too many; free() its data. */
kvf_slice test_random_damage(test_random *random, kvf_slice original);

/* A copy in its exact size, for free(). */
kvf_slice test_copy(kvf_slice slice);

/* Whether the slice is empty or lies inside `outer`; reads all of its bytes. */
bool test_lies_inside(kvf_slice slice, kvf_slice outer);

#endif
