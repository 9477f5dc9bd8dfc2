#include "wire/route.h"

#include "wire/quote.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#define SIZE_LIMIT 65536
#define EXTENSION_KEY "kvferry"

/* ---- encode ---- */

/* The code point at the head of `text` and its length; a broken sequence is one byte and U+FFFD. */
static uint32_t take_code_point(const uint8_t *text, size_t *length)
{
    static const struct {
        uint8_t mask, head;
        uint32_t minimum;
    } forms[] = {{0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    *length = 1;
    if (text[0] < 0x80)
        return text[0];
    for (size_t form = 0; form < 3; form++) {
        if ((text[0] & forms[form].mask) != forms[form].head)
            continue;
        uint32_t point = text[0] & (uint8_t)~forms[form].mask;
        for (size_t i = 1; i <= form + 1; i++) {
            if ((text[i] & 0xc0) != 0x80) /* also stops at the NUL */
                return 0xfffd;
            point = point << 6 | (text[i] & 0x3fu);
        }
        if (point < forms[form].minimum || point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
            return 0xfffd;
        *length = form + 2;
        return point;
    }
    return 0xfffd;
}

static void append_escaped(kvf_bytes *bytes, uint32_t point)
{
    static const char letters[] = "\bb\tt\nn\ff\rr\"\"\\\\";
    for (size_t i = 0; i + 1 < sizeof letters; i += 2)
        if (point == (uint8_t)letters[i]) {
            kvf_bytes_append_format(bytes, "\\%c", letters[i + 1]);
            return;
        }
    if (point >= 0x20 && point < 0x7f)
        kvf_bytes_append_format(bytes, "%c", (char)point);
    else if (point < 0x10000)
        kvf_bytes_append_format(bytes, "\\u%04" PRIx32, point);
    else
        kvf_bytes_append_format(bytes, "\\u%04" PRIx32 "\\u%04" PRIx32,
                                0xd800 + ((point - 0x10000) >> 10),
                                0xdc00 + ((point - 0x10000) & 0x3ff));
}

/* As Python's json.dumps writes a string: everything but printable ASCII escaped, in lower case. */
static void append_string(kvf_bytes *bytes, const char *text)
{
    kvf_bytes_append_text(bytes, "\"");
    for (size_t length; *text != '\0'; text += length)
        append_escaped(bytes, take_code_point((const uint8_t *)text, &length));
    kvf_bytes_append_text(bytes, "\"");
}

static void append_end(kvf_bytes *bytes, bool extended)
{
    kvf_bytes_append_text(bytes, extended ? ", \"" EXTENSION_KEY "\": 1}" : "}");
}

void kvf_route_registration_encode(const kvf_route_registration *registration, kvf_bytes *bytes)
{
    kvf_bytes_append_format(bytes,
                            "{\"role\": \"%s\", \"tp_size\": %" PRIu32 ", \"dp_size\": %" PRIu32
                            ", \"rank_ip\": ",
                            registration->is_prefill ? "Prefill" : "Decode", registration->tp_size,
                            registration->dp_size);
    append_string(bytes, registration->rank_ip);
    kvf_bytes_append_format(bytes, ", \"rank_port\": %u, \"engine_rank\": %" PRIu32,
                            (unsigned)registration->rank_port, registration->engine_rank);
    append_end(bytes, registration->extended);
}

void kvf_route_rank_encode(const kvf_route_rank *rank, kvf_bytes *bytes)
{
    kvf_bytes_append_text(bytes, "{\"rank_ip\": ");
    append_string(bytes, rank->rank_ip);
    kvf_bytes_append_format(bytes, ", \"rank_port\": %u", (unsigned)rank->rank_port);
    append_end(bytes, rank->extended);
}

void kvf_route_topology_encode(const kvf_route_topology *topology, kvf_bytes *bytes)
{
    if (topology->known)
        kvf_bytes_append_format(
            bytes, "{\"prefill_tp_size\": %" PRIu32 ", \"prefill_dp_size\": %" PRIu32 "}",
            topology->tp_size, topology->dp_size);
    else
        kvf_bytes_append_text(bytes, "{\"prefill_tp_size\": null, \"prefill_dp_size\": null}");
}

/* ---- decode ---- */

/* Duplicates are refused: two readers of one body must not see two different ranks. jansson bounds the
 * nesting (2048), and refuses what comes after the object. */
static json_t *parse_object(kvf_slice body, kvf_error *error)
{
    json_error_t reason;
    json_t *object = json_loadb(body.length == 0 ? "" : (const char *)body.data, body.length,
                                JSON_REJECT_DUPLICATES, &reason);
    if (object == NULL) {
        char quoted[KVF_QUOTE_MAX];
        (void)kvf_error_set(error, KVF_PROTOCOL, "a body that isn't JSON: %s at byte %d",
                            kvf_quote(kvf_slice_of(reason.text), quoted), reason.position);
        return NULL;
    }
    if (!json_is_object(object)) {
        (void)kvf_error_set(error, KVF_PROTOCOL, "a body that isn't a JSON object");
        json_decref(object);
        return NULL;
    }
    return object;
}

/* Keys of SGLang from 0.5.3 on, whose absence from these bodies would otherwise puzzle. */
static const char *later_release(const json_t *object)
{
    static const char *const keys[] = {"attn_tp_size", "prefill_attn_tp_size"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (json_object_get(object, keys[i]) != NULL)
            return "; its other keys are those of SGLang 0.5.3 or later";
    return "";
}

static kvf_status get(const json_t *object, const char *key, json_t **value, kvf_error *error)
{
    *value = json_object_get(object, key);
    if (*value != NULL)
        return KVF_OK;
    return kvf_error_set(error, KVF_PROTOCOL, "the key %s is missing%s", key,
                         later_release(object));
}

static kvf_status get_number(const json_t *object, const char *key, bool text_too, int64_t minimum,
                             int64_t maximum, int64_t *number, kvf_error *error)
{
    json_t *value;
    kvf_status status = get(object, key, &value, error);
    if (status != KVF_OK)
        return status;
    bool is_text = text_too && json_is_string(value);
    if (is_text) {
        kvf_slice text = {(const uint8_t *)json_string_value(value), json_string_length(value)};
        if (!kvf_route_integer(text, number))
            return kvf_error_set(error, KVF_PROTOCOL, "the key %s isn't a number", key);
    } else if (json_is_integer(value)) {
        *number = json_integer_value(value);
    } else {
        return kvf_error_set(error, KVF_PROTOCOL, "the key %s isn't an integer", key);
    }
    if (*number < minimum || *number > maximum)
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the key %s is %" PRId64 " and not from %" PRId64 " to %" PRId64, key,
                             *number, minimum, maximum);
    return KVF_OK;
}

static kvf_status get_address(const json_t *object, char rank_ip[KVF_HOST_MAX], uint16_t *rank_port,
                              kvf_error *error)
{
    json_t *value;
    kvf_status status = get(object, "rank_ip", &value, error);
    if (status != KVF_OK)
        return status;
    kvf_slice text = {(const uint8_t *)json_string_value(value), json_string_length(value)};
    if (!json_is_string(value) || text.length == 0 ||
        !kvf_slice_to_text(text, rank_ip, KVF_HOST_MAX))
        return kvf_error_set(error, KVF_PROTOCOL, "the key rank_ip isn't a string of 1 to %d bytes",
                             KVF_HOST_MAX - 1);
    for (size_t i = 0; i < text.length; i++)
        if (text.data[i] <= 0x20 || text.data[i] == 0x7f)
            return kvf_error_set(error, KVF_PROTOCOL,
                                 "the key rank_ip holds a space or a control character");
    int64_t port;
    status = get_number(object, "rank_port", true, 1, UINT16_MAX, &port, error);
    if (status == KVF_OK)
        *rank_port = (uint16_t)port;
    return status;
}

static bool is_extended(const json_t *object)
{
    const json_t *value = json_object_get(object, EXTENSION_KEY);
    return json_is_integer(value) && json_integer_value(value) >= 1;
}

static kvf_status get_sizes(const json_t *object, const char *tp_key, const char *dp_key,
                            uint32_t *tp_size, uint32_t *dp_size, kvf_error *error)
{
    int64_t tp, dp;
    kvf_status status = get_number(object, tp_key, false, 1, SIZE_LIMIT, &tp, error);
    if (status == KVF_OK)
        status = get_number(object, dp_key, false, 1, SIZE_LIMIT, &dp, error);
    if (status != KVF_OK)
        return status;
    if (tp % dp != 0)
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the key %s is %" PRId64 ", which doesn't divide %s, %" PRId64, dp_key,
                             dp, tp_key, tp);
    *tp_size = (uint32_t)tp;
    *dp_size = (uint32_t)dp;
    return KVF_OK;
}

static kvf_status read_registration(const json_t *object, kvf_route_registration *registration,
                                    kvf_error *error)
{
    json_t *role;
    kvf_status status = get(object, "role", &role, error);
    if (status != KVF_OK)
        return status;
    if (!json_is_string(role))
        return kvf_error_set(error, KVF_PROTOCOL, "the key role isn't a string");
    registration->is_prefill = strcmp(json_string_value(role), "Prefill") == 0;
    status = get_sizes(object, "tp_size", "dp_size", &registration->tp_size, &registration->dp_size,
                       error);
    if (status == KVF_OK)
        status = get_address(object, registration->rank_ip, &registration->rank_port, error);
    int64_t rank;
    if (status == KVF_OK)
        status = get_number(object, "engine_rank", true, 0, (int64_t)registration->tp_size - 1,
                            &rank, error);
    if (status != KVF_OK)
        return status;
    registration->engine_rank = (uint32_t)rank;
    registration->extended = is_extended(object);
    return KVF_OK;
}

kvf_status kvf_route_registration_decode(kvf_slice body, kvf_route_registration *registration,
                                         kvf_error *error)
{
    *registration = (kvf_route_registration){0};
    json_t *object = parse_object(body, error);
    if (object == NULL)
        return KVF_PROTOCOL;
    kvf_status status = read_registration(object, registration, error);
    json_decref(object);
    if (status != KVF_OK)
        kvf_error_prefix(error, "the registration of a prefill rank");
    return status;
}

kvf_status kvf_route_rank_decode(kvf_slice body, kvf_route_rank *rank, kvf_error *error)
{
    *rank = (kvf_route_rank){0};
    json_t *object = parse_object(body, error);
    if (object == NULL)
        return KVF_PROTOCOL;
    kvf_status status = get_address(object, rank->rank_ip, &rank->rank_port, error);
    rank->extended = is_extended(object);
    json_decref(object);
    if (status != KVF_OK)
        kvf_error_prefix(error, "the bootstrap server's answer for a rank");
    return status;
}

kvf_status kvf_route_topology_decode(kvf_slice body, kvf_route_topology *topology, kvf_error *error)
{
    *topology = (kvf_route_topology){0};
    json_t *object = parse_object(body, error);
    if (object == NULL)
        return KVF_PROTOCOL;
    kvf_status status = KVF_OK;
    /* Both null: nobody has registered yet. */
    if (!json_is_null(json_object_get(object, "prefill_tp_size")) ||
        !json_is_null(json_object_get(object, "prefill_dp_size"))) {
        status = get_sizes(object, "prefill_tp_size", "prefill_dp_size", &topology->tp_size,
                           &topology->dp_size, error);
        topology->known = status == KVF_OK;
    }
    json_decref(object);
    if (status != KVF_OK)
        kvf_error_prefix(error, "the bootstrap server's topology");
    return status;
}

/* ---- Python's int() ---- */

static bool is_space(uint8_t byte)
{
    return byte == ' ' || (byte >= 0x09 && byte <= 0x0d) || (byte >= 0x1c && byte <= 0x1f);
}

/* Digits with single underscores between them; the value's magnitude. */
static bool take_digits(kvf_slice text, uint64_t maximum, uint64_t *value)
{
    uint64_t number = 0;
    bool after_digit = false;
    for (size_t i = 0; i < text.length; i++) {
        uint8_t byte = text.data[i];
        if (byte == '_' && after_digit) {
            after_digit = false;
            continue;
        }
        if (byte < '0' || byte > '9')
            return false;
        uint64_t digit = (uint64_t)(byte - '0');
        if (number > (maximum - digit) / 10)
            return false;
        number = number * 10 + digit;
        after_digit = true;
    }
    *value = number;
    return after_digit;
}

bool kvf_route_integer(kvf_slice text, int64_t *value)
{
    while (text.length > 0 && is_space(text.data[text.length - 1]))
        text.length--;
    while (text.length > 0 && is_space(text.data[0]))
        text = (kvf_slice){text.data + 1, text.length - 1};
    bool negative = text.length > 0 && text.data[0] == '-';
    if (negative || (text.length > 0 && text.data[0] == '+'))
        text = (kvf_slice){text.data + 1, text.length - 1};
    uint64_t magnitude;
    if (!take_digits(text, (uint64_t)INT64_MAX + (negative ? 1 : 0), &magnitude))
        return false;
    if (negative && magnitude > INT64_MAX)
        *value = INT64_MIN;
    else
        *value = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}
