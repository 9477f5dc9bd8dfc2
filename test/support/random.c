#include "support/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

test_random test_random_start(void)
{
    const char *text = getenv("KVF_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : 0;
    if (text == NULL) {
        struct timespec now;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        seed = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    (void)fprintf(stderr, "KVF_TEST_SEED=%" PRIu64 "\n", seed);
    return (test_random){seed};
}

/* splitmix64 */
uint64_t test_random_next(test_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t test_random_below(test_random *random, uint64_t bound)
{
    return bound == 0 ? 0 : test_random_next(random) % bound;
}

uint64_t test_random_edgy(test_random *random)
{
    switch (test_random_below(random, 4)) {
    case 0:
        return test_random_below(random, 16);
    case 1:
        return UINT64_MAX - test_random_below(random, 64);
    case 2:
        return (UINT64_C(1) << test_random_below(random, 64)) - test_random_below(random, 2);
    default:
        return test_random_next(random);
    }
}

void test_random_fill(test_random *random, uint8_t *data, size_t length, bool printable)
{
    for (size_t i = 0; i < length; i++)
        data[i] = (uint8_t)(printable ? 0x21 + test_random_below(random, 0x5e)
                                      : test_random_below(random, 256));
}

kvf_slice test_copy(kvf_slice slice)
{
    uint8_t *data = malloc(slice.length);
    if (data == NULL && slice.length > 0)
        abort();
    if (slice.length > 0)
        memcpy(data, slice.data, slice.length);
    return (kvf_slice){data, slice.length};
}

static void damage_in_place(test_random *random, uint8_t *data, size_t length)
{
    if (test_random_below(random, 3) == 0 && length >= 8) {
        kvf_write_u64(data + test_random_below(random, length - 7), test_random_edgy(random));
        return;
    }
    for (uint64_t flips = 1 + test_random_below(random, 4); flips > 0 && length > 0; flips--)
        data[test_random_below(random, length)] ^= (uint8_t)(1u << test_random_below(random, 8));
}

/* `original` with the piece [from, from + length) repeated after itself. */
static kvf_slice repeat_piece(kvf_slice original, size_t from, size_t length)
{
    uint8_t *data = malloc(original.length + length);
    if (data == NULL)
        abort();
    memcpy(data, original.data, from + length);
    memcpy(data + from + length, original.data + from, original.length - from);
    return (kvf_slice){data, original.length + length};
}

kvf_slice test_random_damage(test_random *random, kvf_slice original)
{
    uint64_t choice = test_random_below(random, 4);
    if (choice == 0) {
        original.length = (size_t)test_random_below(random, original.length + 1);
        return test_copy(original);
    }
    if (choice == 1 && original.length > 0) {
        size_t from = (size_t)test_random_below(random, original.length);
        return repeat_piece(original, from,
                            1 + (size_t)test_random_below(random, original.length - from));
    }
    kvf_slice copy = test_copy(original);
    damage_in_place(random, (uint8_t *)(uintptr_t)copy.data, copy.length);
    return copy;
}

bool test_lies_inside(kvf_slice slice, kvf_slice outer)
{
    if (slice.length == 0)
        return true;
    if (slice.data < outer.data || slice.length > outer.length ||
        (size_t)(slice.data - outer.data) > outer.length - slice.length)
        return false;
    volatile uint8_t seen = 0;
    for (size_t i = 0; i < slice.length; i++)
        seen = (uint8_t)(seen ^ slice.data[i]);
    return true;
}
