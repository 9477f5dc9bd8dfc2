/* Letters. The input is cut into frames: each begins with its length in one byte. */
#include "wire/letter.h"

#include <stdlib.h>
#include <string.h>

enum { FRAMES_MAX = 8 };

static void require(bool truth)
{
    if (!truth)
        abort();
}

static size_t cut(kvf_slice input, kvf_slice frames[FRAMES_MAX])
{
    size_t count = 0;
    while (input.length > 0 && count < FRAMES_MAX) {
        size_t length = input.data[0];
        input = (kvf_slice){input.data + 1, input.length - 1};
        if (length > input.length)
            length = input.length;
        frames[count++] = (kvf_slice){input.data, length};
        input = (kvf_slice){input.data + length, input.length - length};
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvf_slice frames[FRAMES_MAX];
    size_t count = cut((kvf_slice){data, size}, frames);
    kvf_letter letter;
    kvf_error error = {0};
    (void)kvf_letter_is_one(frames, count);
    if (kvf_letter_decode(frames, count, &letter, &error) != KVF_OK) {
        require(error.status == KVF_PROTOCOL && error.text[0] != '\0');
        return 0;
    }
    require(letter.room <= KVF_ROOM_MAX && letter.epoch != 0 && letter.status <= KVF_STATUS_LAST);
    require(letter.agent_name.length > 0 && letter.agent_name.length <= KVF_AGENT_NAME_MAX);
    require(letter.text.length <= KVF_LETTER_TEXT_MAX);
    kvf_letter again;
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice written[KVF_LETTER_FRAMES];
    kvf_letter_encode(&letter, head, written);
    require(kvf_letter_decode(written, KVF_LETTER_FRAMES, &again, NULL) == KVF_OK);
    require(again.kind == letter.kind && again.status == letter.status &&
            again.room == letter.room && again.epoch == letter.epoch &&
            kvf_slice_equal(again.body, letter.body));
    return 0;
}
