#include "wire/notice.h"

#include "base/text.h"
#include "wire/quote.h"
#include "wire/serdes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

size_t kvf_notice_format(const kvf_notice *notice, char text[KVF_NOTICE_TEXT_MAX])
{
    char epoch[24] = "";
    const char *own = notice->epoch == 0 ? "" : "ferry";
    int length;
    if (notice->epoch != 0)
        (void)snprintf(epoch, sizeof epoch, "_%" PRIu64, notice->epoch);
    if (notice->kind == KVF_NOTICE_CHUNK)
        length = snprintf(text, KVF_NOTICE_TEXT_MAX, "%" PRIu64 "_kv%s%s_%" PRIu32 "_%c",
                          notice->room, own, epoch, notice->chunk, notice->last ? '1' : '0');
    else
        length = snprintf(text, KVF_NOTICE_TEXT_MAX, "%" PRIu64 "_%saux%s", notice->room,
                          notice->epoch == 0 ? "" : "kvferry", epoch);
    return (size_t)length;
}

/* Everything up to the next '_' or the end; `rest` is what follows the '_'. False when there is no '_',
 * and then `rest` is empty. */
static bool split(kvf_slice text, kvf_slice *field, kvf_slice *rest)
{
    const uint8_t *mark = text.length == 0 ? NULL : memchr(text.data, '_', text.length);
    if (mark == NULL) {
        *field = text;
        *rest = (kvf_slice){NULL, 0};
        return false;
    }
    *field = (kvf_slice){text.data, (size_t)(mark - text.data)};
    *rest = (kvf_slice){mark + 1, text.length - field->length - 1};
    return true;
}

static bool parse_chunk(kvf_slice fields, kvf_notice *notice)
{
    kvf_slice chunk, last;
    uint64_t number;
    if (!split(fields, &chunk, &last) || !kvf_parse_decimal(chunk, UINT32_MAX, &number))
        return false;
    /* Compared as text: "00" or "01" is nothing a peer of this dialect writes. */
    if (last.length != 1 || (last.data[0] != '0' && last.data[0] != '1'))
        return false;
    notice->kind = KVF_NOTICE_CHUNK;
    notice->chunk = (uint32_t)number;
    notice->last = last.data[0] == '1';
    return true;
}

static bool parse_epoch(kvf_slice field, kvf_notice *notice)
{
    return kvf_parse_decimal(field, UINT64_MAX, &notice->epoch) && notice->epoch != 0;
}

/* A kvferry peer's own: the stock fields behind the request's epoch. False when it isn't one. */
static bool parse_own(kvf_slice tag, kvf_slice fields, kvf_notice *notice, bool *sound)
{
    kvf_slice epoch, rest;
    bool chunk = kvf_slice_equal(tag, kvf_slice_of("kvferry"));
    if (!chunk && !kvf_slice_equal(tag, kvf_slice_of("kvferryaux")))
        return false;
    bool more = split(fields, &epoch, &rest);
    *sound = more == chunk && parse_epoch(epoch, notice) && (!chunk || parse_chunk(rest, notice));
    if (!chunk)
        notice->kind = KVF_NOTICE_AUX;
    return true;
}

kvf_status kvf_notice_parse(kvf_slice text, kvf_notice *notice, kvf_error *error)
{
    char quoted[KVF_QUOTE_MAX];
    kvf_slice room, tag, rest, fields;
    *notice = (kvf_notice){.kind = KVF_NOTICE_UNKNOWN};
    if (!kvf_is_printable(text))
        return kvf_error_set(error, KVF_PROTOCOL, "the notification %s isn't ASCII text",
                             kvf_quote(text, quoted));
    if (!split(text, &room, &rest) || !kvf_parse_decimal(room, KVF_ROOM_MAX, &notice->room))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the notification %s doesn't begin with a room and '_'",
                             kvf_quote(text, quoted));
    bool more = split(rest, &tag, &fields);
    if (kvf_slice_equal(tag, kvf_slice_of("kv"))) {
        if (more && parse_chunk(fields, notice))
            return KVF_OK;
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the notification %s isn't room_kv_chunk_last; SGLang after 0.5.6 "
                             "writes further fields, which this profile doesn't know",
                             kvf_quote(text, quoted));
    }
    if (kvf_slice_equal(tag, kvf_slice_of("aux"))) {
        if (more)
            return kvf_error_set(error, KVF_PROTOCOL,
                                 "the notification %s has fields after aux, which this profile "
                                 "doesn't know",
                                 kvf_quote(text, quoted));
        notice->kind = KVF_NOTICE_AUX;
        return KVF_OK;
    }
    bool sound;
    if (parse_own(tag, fields, notice, &sound))
        return sound ? KVF_OK
                     : kvf_error_set(error, KVF_PROTOCOL,
                                     "the notification %s isn't what a kvferry peer writes",
                                     kvf_quote(text, quoted));
    if (tag.length == 0)
        return kvf_error_set(error, KVF_PROTOCOL, "the notification %s has no tag after its room",
                             kvf_quote(text, quoted));
    return KVF_OK;
}

static uint8_t *put(uint8_t *at, const void *data, size_t length)
{
    if (length > 0)
        memcpy(at, data, length);
    return at + length;
}

static uint8_t *put_record(uint8_t *at, const char *tag, kvf_slice value)
{
    at = put(at, tag, strlen(tag));
    kvf_write_u64(at, value.length);
    at = put(at + 8, value.data, value.length);
    return put(at, "|", 1);
}

size_t kvf_notice_payload_encode(kvf_slice agent_name, kvf_slice text,
                                 uint8_t payload[KVF_NOTICE_PAYLOAD_MAX])
{
    if (agent_name.length > KVF_AGENT_NAME_MAX || text.length > KVF_NOTICE_TEXT_MAX)
        return 0;
    uint8_t *at = put(payload, KVF_SERDES_MAGIC, strlen(KVF_SERDES_MAGIC));
    at = put_record(at, "name", agent_name);
    at = put_record(at, "msg", text);
    return (size_t)(at - payload);
}

kvf_status kvf_notice_payload_decode(kvf_slice payload, kvf_slice *agent_name, kvf_slice *text,
                                     kvf_error *error)
{
    char quoted[KVF_QUOTE_MAX];
    kvf_cursor cursor = kvf_cursor_over(payload);
    if (!kvf_cursor_take_literal(&cursor, KVF_SERDES_MAGIC))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the active message %s isn't a notification of NIXL",
                             kvf_quote(payload, quoted));
    if (!kvf_serdes_take(&cursor, "name", agent_name) || agent_name->length == 0)
        return kvf_error_set(error, KVF_PROTOCOL,
                             "a notification of %zu bytes names no agent, or is cut short",
                             payload.length);
    if (!kvf_serdes_take(&cursor, "msg", text))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the notification of agent %s has no text, or is cut short",
                             kvf_quote(*agent_name, quoted));
    if (kvf_cursor_left(&cursor) != 0)
        return kvf_error_set(error, KVF_PROTOCOL,
                             "the notification of agent %s goes on for %zu bytes after its end",
                             kvf_quote(*agent_name, quoted), kvf_cursor_left(&cursor));
    return KVF_OK;
}
