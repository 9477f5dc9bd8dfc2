#include "wire/quote.h"

#include <string.h>

static bool printable(uint8_t byte)
{
    return byte >= 0x20 && byte <= 0x7e;
}

const char *kvf_quote(kvf_slice slice, char text[KVF_QUOTE_MAX])
{
    const size_t room = KVF_QUOTE_MAX - sizeof "\"...\"";
    bool cut = slice.length > room;
    size_t kept = cut ? room : slice.length;
    size_t length = 0;
    text[length++] = '"';
    for (size_t i = 0; i < kept; i++)
        text[length++] = printable(slice.data[i]) ? (char)slice.data[i] : '?';
    memcpy(text + length, cut ? "...\"" : "\"", cut ? 5 : 2);
    return text;
}

bool kvf_is_printable(kvf_slice slice)
{
    for (size_t i = 0; i < slice.length; i++)
        if (!printable(slice.data[i]))
            return false;
    return true;
}
