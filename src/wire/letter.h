/* Codec of letters: what kvferry peers tell each other beside the stock messages. A stock peer gets none.
 *
 * Frames: 0 the 8 bytes "KVFERRY1"; 1 u32 kind, u32 status, u64 room, u64 epoch, little-endian; 2 the agent
 * name of the decode side, whose request it is about; 3 text for a person; 4 the kind's own bytes. What
 * follows in frame 1, and further frames, are ignored, so that letters can grow. */
#ifndef KVF_WIRE_LETTER_H
#define KVF_WIRE_LETTER_H

#include "base/error.h"
#include "wire/event.h"

#define KVF_LETTER_FRAMES 5
#define KVF_LETTER_HEAD 24
#define KVF_LETTER_TEXT_MAX 512

typedef enum kvf_letter_kind {
    KVF_LETTER_ABORT = 1,   /* decode: write nothing more of this request, and say so */
    KVF_LETTER_STOPPED = 2, /* prefill: nothing of it is under way, and nothing will be */
    KVF_LETTER_FAILED = 3,  /* prefill: the room has failed; status and text say why */
    /* Verification; the bodies are in wire/sums.h. */
    KVF_LETTER_SUMS = 4,       /* prefill: of a chunk; with a status: there will be none, and why */
    KVF_LETTER_VERDICT = 5,    /* decode: a chunk's bytes are the source's */
    KVF_LETTER_WANT_PAGES = 6, /* decode: they aren't: which page of that buffer? */
    KVF_LETTER_PAGE_SUMS = 7,  /* prefill: of some pages of one buffer */
    KVF_LETTER_HELLO = 8       /* prefill: to an agent's first request; text says which kvferry */
} kvf_letter_kind;

typedef struct kvf_letter {
    uint32_t kind; /* kvf_letter_kind, or one of a later version */
    kvf_status status;
    uint64_t room;
    uint64_t epoch;
    kvf_slice agent_name;
    kvf_slice text;
    kvf_slice body;
} kvf_letter;

/* A text as a letter may hold it: cut to KVF_LETTER_TEXT_MAX, '?' for what isn't printable ASCII, which texts of
 * the operating system may hold. The slice points into `plain`. */
kvf_slice kvf_letter_text(const char *text, char plain[KVF_LETTER_TEXT_MAX]);

/* Frames point at the letter's slices and into `head`, which must outlive them. */
void kvf_letter_encode(const kvf_letter *letter, uint8_t head[KVF_LETTER_HEAD],
                       kvf_slice frames[KVF_LETTER_FRAMES]);

/* True when the first frame is a letter's: the message is no request, whatever else it holds. */
bool kvf_letter_is_one(const kvf_slice *frames, size_t frame_count);

/* KVF_PROTOCOL for frames missing or cut short, a room or epoch out of range, a name or text that is no
 * printable ASCII or too long. A status this version doesn't know becomes KVF_PEER_FAILED. */
kvf_status kvf_letter_decode(const kvf_slice *frames, size_t frame_count, kvf_letter *letter,
                             kvf_error *error);

#endif
