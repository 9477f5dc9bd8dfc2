/* Notifications. The input is taken both as an envelope and as a bare text. */
#include "wire/notice.h"

#include "support.h"

static void check_text(kvf_slice text)
{
    kvf_notice notice, again;
    kvf_error error = {0};
    if (kvf_notice_parse(text, &notice, &error) != KVF_OK) {
        require(fuzz_is_explained(&error, KVF_PROTOCOL));
        return;
    }
    require(notice.room <= KVF_ROOM_MAX);
    if (notice.kind == KVF_NOTICE_UNKNOWN)
        return;
    char written[KVF_NOTICE_TEXT_MAX];
    kvf_slice slice = {(const uint8_t *)written, kvf_notice_format(&notice, written)};
    require(kvf_notice_parse(slice, &again, NULL) == KVF_OK);
    require(again.kind == notice.kind && again.room == notice.room && again.epoch == notice.epoch &&
            again.chunk == notice.chunk && again.last == notice.last);
}

static void check_envelope(kvf_slice payload)
{
    kvf_slice name, text;
    kvf_error error = {0};
    if (kvf_notice_payload_decode(payload, &name, &text, &error) != KVF_OK) {
        require(fuzz_is_explained(&error, KVF_PROTOCOL));
        return;
    }
    kvf_slice alone = fuzz_copy(text);
    check_text(alone);
    fuzz_free(alone);
    uint8_t again[KVF_NOTICE_PAYLOAD_MAX];
    size_t length = kvf_notice_payload_encode(name, text, again);
    require(length == 0 || kvf_slice_equal((kvf_slice){again, length}, payload));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_text((kvf_slice){data, size});
    check_envelope((kvf_slice){data, size});
    return 0;
}
