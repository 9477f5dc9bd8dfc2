/* Numbers and addresses as text, parsed strictly. */
#ifndef KVF_BASE_TEXT_H
#define KVF_BASE_TEXT_H

#include "base/bytes.h"

/* Longest host name, bracketed IPv6 literal or agent name that we keep. */
#define KVF_HOST_MAX 256
#define KVF_ADDRESS_MAX (KVF_HOST_MAX + 8)

/* Digits only, no sign, no space, nothing after; false when empty or above `maximum`. */
bool kvf_parse_decimal(kvf_slice text, uint64_t maximum, uint64_t *value);

/* Splits "host:port" at the last colon; brackets around the host are taken off. The host may be empty
 * only where `empty_host` says so; the port may be 0 only where `zero_port` does. */
bool kvf_parse_address(const char *text, bool empty_host, bool zero_port, char host[KVF_HOST_MAX],
                       uint16_t *port);

/* "host:port", with brackets around a host that contains a colon. */
void kvf_format_address(const char *host, uint16_t port, char text[KVF_ADDRESS_MAX]);

#endif
