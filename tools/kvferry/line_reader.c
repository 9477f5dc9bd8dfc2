#include "line_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_SIZE = 1 << 16 };

void line_reader_open(line_reader *reader, int descriptor, size_t limit)
{
    *reader = (line_reader){.descriptor = descriptor, .limit = limit};
}

void line_reader_close(line_reader *reader)
{
    free(reader->bytes);
    reader->bytes = NULL;
}

/* Room for one more read and the zero that ends a last line. */
static bool make_room(line_reader *reader)
{
    if (reader->start > 0) {
        memmove(reader->bytes, reader->bytes + reader->start, reader->length - reader->start);
        reader->length -= reader->start;
        reader->scanned -= reader->start;
        reader->start = 0;
    }
    if (reader->capacity - reader->length > READ_SIZE)
        return true;
    size_t capacity = 2 * reader->capacity + READ_SIZE + 1;
    char *bytes = realloc(reader->bytes, capacity);
    if (bytes == NULL)
        return false;
    reader->bytes = bytes;
    reader->capacity = capacity;
    return true;
}

bool line_reader_fill(line_reader *reader)
{
    if (reader->ended)
        return true;
    if (!make_room(reader)) {
        reader->ended = true;
        return false;
    }
    ssize_t count = read(reader->descriptor, reader->bytes + reader->length, READ_SIZE);
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return true;
    reader->ended = count <= 0;
    if (count > 0)
        reader->length += (size_t)count;
    return count >= 0;
}

/* Takes the line that ends at `end`; the next one begins at `next`. LINE_NONE: it was told before. */
static line_found take(line_reader *reader, size_t end, size_t next, char **line, size_t *length)
{
    *line = reader->bytes + reader->start;
    *length = end - reader->start;
    reader->bytes[end] = '\0';
    reader->start = next;
    reader->scanned = next;
    bool told = reader->skipping;
    reader->skipping = false;
    if (told)
        return LINE_NONE;
    return *length <= reader->limit ? LINE_WHOLE : LINE_TOO_LONG;
}

/* No newline yet: a line past the limit is told now and dropped as it comes. */
static line_found unfinished(line_reader *reader)
{
    reader->scanned = reader->length;
    if (reader->length - reader->start <= reader->limit && !reader->skipping)
        return LINE_NONE;
    bool told = reader->skipping;
    reader->skipping = true;
    reader->start = reader->length;
    return told ? LINE_NONE : LINE_TOO_LONG;
}

line_found line_reader_next(line_reader *reader, char **line, size_t *length)
{
    while (reader->length > reader->start) {
        const char *from = reader->bytes + reader->scanned;
        const char *newline = memchr(from, '\n', reader->length - reader->scanned);
        if (newline == NULL && !reader->ended)
            return unfinished(reader);
        size_t end = newline == NULL ? reader->length : (size_t)(newline - reader->bytes);
        line_found found = take(reader, end, newline == NULL ? end : end + 1, line, length);
        if (found != LINE_NONE)
            return found;
    }
    return reader->ended ? LINE_END : LINE_NONE;
}
