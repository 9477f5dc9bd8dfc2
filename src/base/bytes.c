#include "base/bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kvf_slice kvf_slice_of(const char *text)
{
    return (kvf_slice){(const uint8_t *)text, strlen(text)};
}

bool kvf_slice_equal(kvf_slice a, kvf_slice b)
{
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

bool kvf_slice_to_text(kvf_slice slice, char *text, size_t capacity)
{
    text[0] = '\0';
    if (slice.length >= capacity)
        return false;
    if (slice.length > 0 && memchr(slice.data, 0, slice.length) != NULL)
        return false;
    if (slice.length > 0)
        memcpy(text, slice.data, slice.length);
    text[slice.length] = '\0';
    return true;
}

uint32_t kvf_read_u32(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
           (uint32_t)data[3] << 24;
}

uint64_t kvf_read_u64(const uint8_t *data)
{
    return (uint64_t)kvf_read_u32(data) | (uint64_t)kvf_read_u32(data + 4) << 32;
}

void kvf_write_u32(uint8_t *data, uint32_t value)
{
    for (size_t i = 0; i < 4; i++)
        data[i] = (uint8_t)(value >> (8 * i));
}

void kvf_write_u64(uint8_t *data, uint64_t value)
{
    for (size_t i = 0; i < 8; i++)
        data[i] = (uint8_t)(value >> (8 * i));
}

void kvf_bytes_free(kvf_bytes *bytes)
{
    free(bytes->data);
    *bytes = (kvf_bytes){0};
}

void kvf_bytes_clear(kvf_bytes *bytes)
{
    bytes->length = 0;
    bytes->failed = false;
}

static bool reserve(kvf_bytes *bytes, size_t more)
{
    if (bytes->failed || more > SIZE_MAX / 2 - bytes->length) {
        bytes->failed = true;
        return false;
    }
    size_t needed = bytes->length + more;
    if (needed <= bytes->capacity)
        return true;
    size_t capacity = bytes->capacity < 64 ? 64 : bytes->capacity;
    while (capacity < needed)
        capacity *= 2;
    uint8_t *data = realloc(bytes->data, capacity);
    if (data == NULL) {
        bytes->failed = true;
        return false;
    }
    bytes->data = data;
    bytes->capacity = capacity;
    return true;
}

void kvf_bytes_append(kvf_bytes *bytes, const void *data, size_t length)
{
    if (length == 0 || !reserve(bytes, length))
        return;
    memcpy(bytes->data + bytes->length, data, length);
    bytes->length += length;
}

void kvf_bytes_append_text(kvf_bytes *bytes, const char *text)
{
    kvf_bytes_append(bytes, text, strlen(text));
}

void kvf_bytes_append_u64(kvf_bytes *bytes, uint64_t value)
{
    uint8_t data[8];
    kvf_write_u64(data, value);
    kvf_bytes_append(bytes, data, sizeof data);
}

void kvf_bytes_append_format(kvf_bytes *bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0)
        bytes->failed = true;
    else if (reserve(bytes, (size_t)length + 1)) {
        (void)vsnprintf((char *)bytes->data + bytes->length, (size_t)length + 1, format, again);
        bytes->length += (size_t)length;
    }
    va_end(again);
}

kvf_slice kvf_bytes_slice(const kvf_bytes *bytes)
{
    return (kvf_slice){bytes->data, bytes->length};
}

kvf_cursor kvf_cursor_over(kvf_slice slice)
{
    return (kvf_cursor){slice.data, slice.length, 0};
}

size_t kvf_cursor_left(const kvf_cursor *cursor)
{
    return cursor->length - cursor->position;
}

bool kvf_cursor_take(kvf_cursor *cursor, size_t length, kvf_slice *slice)
{
    if (length > kvf_cursor_left(cursor))
        return false;
    *slice = (kvf_slice){cursor->data + cursor->position, length};
    cursor->position += length;
    return true;
}

bool kvf_cursor_take_u64(kvf_cursor *cursor, uint64_t *value)
{
    kvf_slice slice;
    if (!kvf_cursor_take(cursor, 8, &slice))
        return false;
    *value = kvf_read_u64(slice.data);
    return true;
}

bool kvf_cursor_take_literal(kvf_cursor *cursor, const char *text)
{
    size_t length = strlen(text);
    if (length > kvf_cursor_left(cursor) ||
        (length > 0 && memcmp(cursor->data + cursor->position, text, length) != 0))
        return false;
    cursor->position += length;
    return true;
}
