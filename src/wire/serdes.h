/* NIXL's record framing, shared by agent metadata and notifications: a magic, then records of
 * tag, u64 length, value, '|'. Tags carry no length; both sides know which one comes next. */
#ifndef KVF_WIRE_SERDES_H
#define KVF_WIRE_SERDES_H

#include "base/bytes.h"

#define KVF_SERDES_MAGIC "nixlSerDes|"

/* Bytes of a record besides its tag and value. */
#define KVF_SERDES_OVERHEAD 9

void kvf_serdes_append(kvf_bytes *bytes, const char *tag, kvf_slice value);

/* Takes one record. False, with the cursor where it was, when the tag is another, the value doesn't
 * fit or the terminator is wrong. */
bool kvf_serdes_take(kvf_cursor *cursor, const char *tag, kvf_slice *value);

/* The same for a record whose value is a u64. */
bool kvf_serdes_take_u64(kvf_cursor *cursor, const char *tag, uint64_t *value);

#endif
