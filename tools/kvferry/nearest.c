#include "nearest.h"

#include <stdint.h>
#include <string.h>

enum { WORD_MAX = 63 };

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

/* Edits (insert, drop, change one letter) that turn `from` into `to`; both are cut at WORD_MAX. */
static size_t edit_distance(const char *from, const char *to)
{
    size_t from_length = strnlen(from, WORD_MAX);
    size_t to_length = strnlen(to, WORD_MAX);
    size_t row[WORD_MAX + 1];
    for (size_t j = 0; j <= to_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= from_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= to_length; j++) {
            size_t changed = diagonal + (from[i - 1] != to[j - 1]);
            diagonal = row[j];
            row[j] = smallest(row[j] + 1, row[j - 1] + 1, changed);
        }
    }
    return row[to_length];
}

nearest nearest_to(const char *word)
{
    return (nearest){.word = word, .best = NULL, .distance = SIZE_MAX};
}

void nearest_consider(nearest *search, const char *candidate)
{
    size_t distance = edit_distance(search->word, candidate);
    if (distance < search->distance) {
        search->distance = distance;
        search->best = candidate;
    }
}
