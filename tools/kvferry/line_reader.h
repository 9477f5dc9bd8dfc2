/* Cuts what arrives on a descriptor into lines. Reads only when told to, so it fits under poll(). */
#ifndef KVFERRY_TOOL_LINE_READER_H
#define KVFERRY_TOOL_LINE_READER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct line_reader {
    int descriptor;
    char *bytes;
    size_t start;   /* of the first line not yet taken */
    size_t scanned; /* no newline lies before this */
    size_t length;
    size_t capacity;
    size_t limit;  /* the longest line */
    bool skipping; /* inside a line that was too long */
    bool ended;
} line_reader;

typedef enum line_found {
    LINE_NONE, /* nothing whole yet: read more */
    LINE_WHOLE,
    LINE_TOO_LONG, /* told once; the line's rest is skipped */
    LINE_END       /* the last line was taken and the descriptor has ended */
} line_found;

void line_reader_open(line_reader *reader, int descriptor, size_t limit);
void line_reader_close(line_reader *reader);

/* One read(); false on an error or when memory is short, which ends the reader. */
bool line_reader_fill(line_reader *reader);

/* Takes the next line. It has no newline but a zero at its end and is valid until the next call. */
line_found line_reader_next(line_reader *reader, char **line, size_t *length);

#endif
