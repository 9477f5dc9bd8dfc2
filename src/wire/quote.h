/* A peer's bytes made fit for an error text. */
#ifndef KVF_WIRE_QUOTE_H
#define KVF_WIRE_QUOTE_H

#include "base/bytes.h"

#define KVF_QUOTE_MAX 48

/* In quotes, cut short with "...", everything but printable ASCII as '?': what a stranger sent must not
 * be able to forge a line of the log. Returns `text`. */
const char *kvf_quote(kvf_slice slice, char text[KVF_QUOTE_MAX]);

/* 0x20 to 0x7e throughout; true when empty. */
bool kvf_is_printable(kvf_slice slice);

#endif
