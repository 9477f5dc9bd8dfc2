#include "wire/letter.h"

#include "wire/quote.h"

#define MAGIC "KVFERRY1"

kvf_slice kvf_letter_text(const char *text, char plain[KVF_LETTER_TEXT_MAX])
{
    size_t length = 0;
    for (; text[length] != '\0' && length < KVF_LETTER_TEXT_MAX; length++)
        plain[length] = text[length] >= ' ' && text[length] <= '~' ? text[length] : '?';
    return (kvf_slice){(const uint8_t *)plain, length};
}

void kvf_letter_encode(const kvf_letter *letter, uint8_t head[KVF_LETTER_HEAD],
                       kvf_slice frames[KVF_LETTER_FRAMES])
{
    kvf_write_u32(head, letter->kind);
    kvf_write_u32(head + 4, (uint32_t)letter->status);
    kvf_write_u64(head + 8, letter->room);
    kvf_write_u64(head + 16, letter->epoch);
    frames[0] = kvf_slice_of(MAGIC);
    frames[1] = (kvf_slice){head, KVF_LETTER_HEAD};
    frames[2] = letter->agent_name;
    frames[3] = letter->text;
    frames[4] = letter->body;
}

bool kvf_letter_is_one(const kvf_slice *frames, size_t frame_count)
{
    return frame_count > 0 && kvf_slice_equal(frames[0], kvf_slice_of(MAGIC));
}

static bool is_text(kvf_slice text, size_t limit)
{
    return text.length <= limit && kvf_is_printable(text);
}

kvf_status kvf_letter_decode(const kvf_slice *frames, size_t frame_count, kvf_letter *letter,
                             kvf_error *error)
{
    *letter = (kvf_letter){.kind = 0};
    if (frame_count < KVF_LETTER_FRAMES || frames[1].length < KVF_LETTER_HEAD)
        return kvf_error_set(error, KVF_PROTOCOL, "a letter of %zu frames is cut short",
                             frame_count);
    const uint8_t *head = frames[1].data;
    uint32_t status = kvf_read_u32(head + 4);
    letter->kind = kvf_read_u32(head);
    letter->status = status > KVF_STATUS_LAST ? KVF_PEER_FAILED : (kvf_status)status;
    letter->room = kvf_read_u64(head + 8);
    letter->epoch = kvf_read_u64(head + 16);
    letter->agent_name = frames[2];
    letter->text = frames[3];
    letter->body = frames[4];
    if (letter->room > KVF_ROOM_MAX || letter->epoch == 0)
        return kvf_error_set(error, KVF_PROTOCOL, "a letter names no room or no epoch");
    if (letter->agent_name.length == 0 || !is_text(letter->agent_name, KVF_AGENT_NAME_MAX) ||
        !is_text(letter->text, KVF_LETTER_TEXT_MAX))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "a letter's agent name or text is no printable ASCII, or too long");
    return KVF_OK;
}
