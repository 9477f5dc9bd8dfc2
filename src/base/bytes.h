/* Byte slices, a growing byte buffer, and a cursor that can't read past its end. */
#ifndef KVF_BASE_BYTES_H
#define KVF_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Somebody else's bytes. */
typedef struct kvf_slice {
    const uint8_t *data;
    size_t length;
} kvf_slice;

kvf_slice kvf_slice_of(const char *text); /* without the NUL */
bool kvf_slice_equal(kvf_slice a, kvf_slice b);
/* Copies a slice into a NUL-terminated array; false (and "") when it doesn't fit or contains a NUL. */
bool kvf_slice_to_text(kvf_slice slice, char *text, size_t capacity);

/* Little-endian numbers at any alignment. */
uint32_t kvf_read_u32(const uint8_t *data);
uint64_t kvf_read_u64(const uint8_t *data);
void kvf_write_u32(uint8_t *data, uint32_t value);
void kvf_write_u64(uint8_t *data, uint64_t value);

/* A buffer that grows. After a failed append `failed` stays set and further appends do nothing, so a
 * writer checks once, at the end. */
typedef struct kvf_bytes {
    uint8_t *data;
    size_t length;
    size_t capacity;
    bool failed;
} kvf_bytes;

void kvf_bytes_free(kvf_bytes *bytes);
void kvf_bytes_clear(kvf_bytes *bytes); /* keeps the memory */
void kvf_bytes_append(kvf_bytes *bytes, const void *data, size_t length);
void kvf_bytes_append_text(kvf_bytes *bytes, const char *text);
void kvf_bytes_append_u64(kvf_bytes *bytes, uint64_t value);
__attribute__((format(printf, 2, 3))) void kvf_bytes_append_format(kvf_bytes *bytes,
                                                                   const char *format, ...);
kvf_slice kvf_bytes_slice(const kvf_bytes *bytes);

/* Reads forward through a slice. */
typedef struct kvf_cursor {
    const uint8_t *data;
    size_t length;
    size_t position;
} kvf_cursor;

kvf_cursor kvf_cursor_over(kvf_slice slice);
size_t kvf_cursor_left(const kvf_cursor *cursor);
/* Each advances and returns true, or leaves the cursor where it is and returns false. */
bool kvf_cursor_take(kvf_cursor *cursor, size_t length, kvf_slice *slice);
bool kvf_cursor_take_u64(kvf_cursor *cursor, uint64_t *value);
bool kvf_cursor_take_literal(kvf_cursor *cursor, const char *text);

#endif
