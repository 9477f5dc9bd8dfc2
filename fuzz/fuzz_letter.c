/* Letters. Input: frames of a u16 length and their bytes. */
#include "wire/letter.h"

#include "support.h"
#include "wire/quote.h"

#include <string.h>

enum { FRAMES_MAX = 8 };

static bool same(const kvf_letter *a, const kvf_letter *b)
{
    return a->kind == b->kind && a->status == b->status && a->room == b->room &&
           a->epoch == b->epoch && kvf_slice_equal(a->agent_name, b->agent_name) &&
           kvf_slice_equal(a->text, b->text) && kvf_slice_equal(a->body, b->body);
}

static void check_taken(const kvf_letter *letter, const kvf_slice *frames)
{
    require(letter->room <= KVF_ROOM_MAX && letter->epoch != 0 &&
            letter->status <= KVF_STATUS_LAST);
    require(letter->agent_name.length > 0 && letter->agent_name.length <= KVF_AGENT_NAME_MAX);
    require(letter->text.length <= KVF_LETTER_TEXT_MAX);
    require(kvf_is_printable(letter->agent_name) && kvf_is_printable(letter->text));
    require(fuzz_is_inside(letter->agent_name, frames[2]) &&
            fuzz_is_inside(letter->text, frames[3]) && fuzz_is_inside(letter->body, frames[4]));
    kvf_letter again;
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice written[KVF_LETTER_FRAMES];
    kvf_letter_encode(letter, head, written);
    require(kvf_letter_is_one(written, KVF_LETTER_FRAMES));
    require(kvf_letter_decode(written, KVF_LETTER_FRAMES, &again, NULL) == KVF_OK);
    require(same(letter, &again));
}

/* Any text fits into a letter once it is made to. */
static void check_text(kvf_slice frame)
{
    static const uint8_t end = '\0';
    kvf_bytes text = {0};
    char plain[KVF_LETTER_TEXT_MAX];
    kvf_bytes_append(&text, frame.data, frame.length);
    kvf_bytes_append(&text, &end, 1);
    size_t length = strlen((const char *)text.data);
    kvf_slice made = kvf_letter_text((const char *)text.data, plain);
    require(made.length == (length < KVF_LETTER_TEXT_MAX ? length : KVF_LETTER_TEXT_MAX));
    require(kvf_is_printable(made));
    for (size_t i = 0; i < made.length; i++)
        require(made.data[i] == text.data[i] ||
                (made.data[i] == '?' && (text.data[i] < ' ' || text.data[i] > '~')));
    kvf_bytes_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvf_slice frames[FRAMES_MAX];
    size_t count = fuzz_frames((kvf_slice){data, size}, frames, FRAMES_MAX);
    kvf_letter letter;
    kvf_error error = {0};
    (void)kvf_letter_is_one(frames, count);
    if (kvf_letter_decode(frames, count, &letter, &error) == KVF_OK)
        check_taken(&letter, frames);
    else
        require(fuzz_is_explained(&error, KVF_PROTOCOL));
    if (count > 3)
        check_text(frames[3]);
    fuzz_frames_free(frames, count);
    return 0;
}
