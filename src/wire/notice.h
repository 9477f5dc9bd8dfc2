/* Codec of notifications: the text SGLang sends, and the NIXL envelope around it. */
#ifndef KVF_WIRE_NOTICE_H
#define KVF_WIRE_NOTICE_H

#include "base/error.h"
#include "wire/event.h"

#define KVF_NOTICE_TEXT_MAX 72
#define KVF_NOTICE_PAYLOAD_MAX (36 + KVF_AGENT_NAME_MAX + KVF_NOTICE_TEXT_MAX)

/* "7_kv_0_1", "7_aux"; with an epoch "7_kvferry_5_0_1", "7_kvferryaux_5", whose tags a stock peer ignores.
 * Returns the length. KVF_NOTICE_UNKNOWN must not be given. */
size_t kvf_notice_format(const kvf_notice *notice, char text[KVF_NOTICE_TEXT_MAX]);

/* Strict: decimal numbers, last exactly "0" or "1", nothing after. An unknown tag after a valid room is
 * KVF_NOTICE_UNKNOWN and KVF_OK, as later releases use them. Otherwise KVF_PROTOCOL. */
kvf_status kvf_notice_parse(kvf_slice text, kvf_notice *notice, kvf_error *error);

/* The bytes of the active message: NIXL's serialised (name, msg). Returns the length, or 0 when the name
 * is longer than KVF_AGENT_NAME_MAX or the text than KVF_NOTICE_TEXT_MAX. */
size_t kvf_notice_payload_encode(kvf_slice agent_name, kvf_slice text,
                                 uint8_t payload[KVF_NOTICE_PAYLOAD_MAX]);

/* Slices point into the payload. KVF_PROTOCOL for anything that isn't a notification: bare agent names
 * (connection checks of NIXL up to 0.5.0), truncated records, wrong terminators, bytes after the end. */
kvf_status kvf_notice_payload_decode(kvf_slice payload, kvf_slice *agent_name, kvf_slice *text,
                                     kvf_error *error);

#endif
