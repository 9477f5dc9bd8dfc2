#include "base/text.h"

#include <stdio.h>
#include <string.h>

bool kvf_parse_decimal(kvf_slice text, uint64_t maximum, uint64_t *value)
{
    if (text.length == 0 || text.length > 20)
        return false;
    uint64_t number = 0;
    for (size_t i = 0; i < text.length; i++) {
        uint8_t character = text.data[i];
        if (character < '0' || character > '9')
            return false;
        uint64_t digit = (uint64_t)(character - '0');
        if (number > (maximum - digit) / 10 || digit > maximum)
            return false;
        number = number * 10 + digit;
    }
    *value = number;
    return true;
}

/* Leading zeros would make addresses of any length. */
enum { PORT_DIGITS = 5 };

bool kvf_parse_address(const char *text, bool empty_host, bool zero_port, char host[KVF_HOST_MAX],
                       uint16_t *port)
{
    const char *colon = strrchr(text, ':');
    if (colon == NULL)
        return false;
    uint64_t number;
    if (strlen(colon + 1) > PORT_DIGITS ||
        !kvf_parse_decimal(kvf_slice_of(colon + 1), UINT16_MAX, &number))
        return false;
    if (number == 0 && !zero_port)
        return false;
    kvf_slice name = {(const uint8_t *)text, (size_t)(colon - text)};
    if (name.length >= 2 && name.data[0] == '[' && name.data[name.length - 1] == ']') {
        name.data++;
        name.length -= 2;
    }
    if (name.length == 0 && !empty_host)
        return false;
    for (size_t i = 0; i < name.length; i++)
        if (name.data[i] <= ' ' || name.data[i] >= 0x7f ||
            strchr("[]/@?#\\\"", name.data[i]) != NULL)
            return false;
    if (!kvf_slice_to_text(name, host, KVF_HOST_MAX))
        return false;
    *port = (uint16_t)number;
    return true;
}

void kvf_format_address(const char *host, uint16_t port, char text[KVF_ADDRESS_MAX])
{
    bool literal = strchr(host, ':') != NULL;
    (void)snprintf(text, KVF_ADDRESS_MAX, literal ? "[%.*s]:%u" : "%.*s:%u", KVF_HOST_MAX - 1, host,
                   (unsigned)port);
}
