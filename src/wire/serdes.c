#include "wire/serdes.h"

void kvf_serdes_append(kvf_bytes *bytes, const char *tag, kvf_slice value)
{
    kvf_bytes_append_text(bytes, tag);
    kvf_bytes_append_u64(bytes, value.length);
    kvf_bytes_append(bytes, value.data, value.length);
    kvf_bytes_append_text(bytes, "|");
}

bool kvf_serdes_take(kvf_cursor *cursor, const char *tag, kvf_slice *value)
{
    kvf_cursor ahead = *cursor;
    uint64_t length;
    /* Compared as a u64 first: a size_t may be narrower. */
    if (!kvf_cursor_take_literal(&ahead, tag) || !kvf_cursor_take_u64(&ahead, &length) ||
        length > kvf_cursor_left(&ahead) || !kvf_cursor_take(&ahead, (size_t)length, value) ||
        !kvf_cursor_take_literal(&ahead, "|"))
        return false;
    *cursor = ahead;
    return true;
}

bool kvf_serdes_take_u64(kvf_cursor *cursor, const char *tag, uint64_t *value)
{
    kvf_cursor ahead = *cursor;
    kvf_slice record;
    if (!kvf_serdes_take(&ahead, tag, &record) || record.length != 8)
        return false;
    *value = kvf_read_u64(record.data);
    *cursor = ahead;
    return true;
}
