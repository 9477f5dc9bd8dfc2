/* The data plane alone: one engine, one region, as an agent that a stock NIXL agent meets without SGLang.
 * Lines of JSON, simple enough for printf.
 *
 * bare_agent target FLAVOUR KIND     prints its metadata, waits for a notification and says whether the bytes came
 * bare_agent initiator FLAVOUR KIND  reads a peer's metadata as hex from standard input, writes, notifies
 */
#include "data/engine.h"
#include "wire/metadata.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 1 << 20, HEX_MAX = 1 << 20 };

static kvf_slice got; /* the notification's text */
static char text[KVF_NOTICE_PAYLOAD_MAX];
static int outcome = -1;

static void fail(const char *why)
{
    printf("{\"error\":\"%s\"}\n", why);
    exit(1);
}

static void notified(void *user, kvf_slice payload)
{
    (void)user;
    kvf_slice name;
    kvf_slice words;
    kvf_error error;
    if (kvf_notice_payload_decode(payload, &name, &words, &error) != KVF_OK ||
        !kvf_slice_to_text(words, text, sizeof text))
        fail("a notification that can't be read");
    got = words;
}

static void peer_failed(void *user, kvf_engine_peer *peer, const char *why)
{
    (void)user;
    (void)peer;
    fail(why);
}

static void done(kvf_transfer *transfer, kvf_status status, const char *why)
{
    (void)transfer;
    if (status != KVF_OK)
        fail(why);
    outcome = 0;
}

static void turn(kvf_engine *engine)
{
    if (engine->operations->progress(engine, KVF_MILLISECOND) || !engine->operations->arm(engine))
        return;
    struct pollfd descriptor = {.fd = engine->operations->descriptor(engine), .events = POLLIN};
    (void)poll(&descriptor, 1, 10);
}

static void print_metadata(kvf_engine *engine, const kvf_buffer *buffer, uint32_t region,
                           kvf_flavour flavour, uint32_t kind)
{
    kvf_descriptor descriptor = {.base = buffer->base,
                                 .length = buffer->length,
                                 .kind = kind,
                                 .key = engine->operations->portable_region_key(engine, region)};
    kvf_metadata metadata = {.agent_name = kvf_slice_of("kvferry-bare"),
                             .worker_address = engine->operations->address(engine),
                             .descriptors = &descriptor,
                             .descriptor_count = 1};
    kvf_bytes bytes = {0};
    kvf_error error;
    if (kvf_metadata_encode(&metadata, flavour, &bytes, &error) != KVF_OK)
        fail(error.text);
    printf("{\"address\":%llu,\"length\":%d,\"metadata\":\"", (unsigned long long)buffer->base,
           LENGTH);
    for (size_t i = 0; i < bytes.length; i++)
        printf("%02x", bytes.data[i]);
    printf("\"}\n");
    kvf_bytes_free(&bytes);
}

static void be_target(kvf_engine *engine, const unsigned char *memory)
{
    while (got.length == 0)
        turn(engine);
    bool good = true;
    for (size_t i = 0; i < LENGTH; i++)
        good = good && memory[i] == (unsigned char)(i * 7 + i / 4096);
    printf("{\"notification\":\"%s\",\"verified\":%s}\n", text, good ? "true" : "false");
}

static kvf_slice read_hex(void)
{
    static char line[2 * HEX_MAX + 2];
    static uint8_t bytes[HEX_MAX];
    size_t length = 0;
    unsigned value;
    if (fgets(line, sizeof line, stdin) == NULL)
        fail("no metadata on standard input");
    while (sscanf(line + 2 * length, "%2x", &value) == 1)
        bytes[length++] = (uint8_t)value;
    return (kvf_slice){bytes, length};
}

static void be_initiator(kvf_engine *engine, unsigned char *memory, uint32_t region)
{
    static const uint32_t page = 0;
    for (size_t i = 0; i < LENGTH; i++)
        memory[i] = (unsigned char)(i * 7 + i / 4096);
    kvf_metadata metadata;
    kvf_engine_peer *peer = NULL;
    kvf_error error;
    uint32_t remote = 0;
    if (kvf_metadata_decode(read_hex(), 64, &metadata, &error) != KVF_OK ||
        engine->operations->connect(engine, metadata.worker_address, NULL, &peer, &error) !=
            KVF_OK ||
        engine->operations->add_remote_region(peer, metadata.descriptors[0].key, &remote, &error) !=
            KVF_OK)
        fail(error.text);
    kvf_span span = {.source_base = (uint64_t)(uintptr_t)memory,
                     .destination_base = metadata.descriptors[0].base,
                     .item_length = LENGTH,
                     .source_region = region,
                     .destination_region = remote};
    static kvf_transfer transfer;
    transfer = (kvf_transfer){.peer = peer, .part_count = 1, .done = done};
    kvf_writes_begin(&transfer.parts[0].writes, &span, 1, &page, &page, 1);
    transfer.parts[0].payload_length = (uint32_t)kvf_notice_payload_encode(
        kvf_slice_of("kvferry-bare"), kvf_slice_of("7_kv_0_1"), transfer.parts[0].payload);
    if (engine->operations->post(engine, &transfer, &error) != KVF_OK)
        fail(error.text);
    while (outcome != 0)
        turn(engine);
    printf("{\"written\":%d}\n", LENGTH);
    kvf_metadata_free(&metadata);
    /* The peer must be able to take what we have sent: stay until it says that it is done. */
    char line[16];
    struct pollfd input = {.fd = 0, .events = POLLIN};
    while (poll(&input, 1, 0) == 0)
        turn(engine);
    if (fgets(line, sizeof line, stdin) == NULL)
        return;
}

int main(int count, char **words)
{
    static unsigned char memory[LENGTH] __attribute__((aligned(4096)));
    if (count != 4)
        fail("usage: bare_agent target|initiator p031|p051|p060 KIND");
    kvf_flavour flavour = strcmp(words[2], "p031") == 0   ? KVF_FLAVOUR_P031
                          : strcmp(words[2], "p051") == 0 ? KVF_FLAVOUR_P051
                                                          : KVF_FLAVOUR_P060;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    memset(memory, 0xa5, sizeof memory);
    kvf_settings *settings;
    if (kvf_settings_open(&settings) != KVF_OK)
        fail(kvf_error_text());
    kvf_engine_callbacks callbacks = {.notified = notified, .peer_failed = peer_failed};
    kvf_buffer buffer = {.size = sizeof buffer,
                         .base = (uint64_t)(uintptr_t)memory,
                         .length = LENGTH,
                         .item_length = LENGTH};
    kvf_engine *engine;
    kvf_error error;
    uint32_t region;
    if (kvf_engine_open(settings, flavour, &callbacks, &engine, &error) != KVF_OK ||
        engine->operations->add_region(engine, &buffer, &region, &error) != KVF_OK)
        fail(error.text);
    if (strcmp(words[1], "target") == 0) {
        print_metadata(engine, &buffer, region, flavour, (uint32_t)strtoul(words[3], NULL, 10));
        be_target(engine, memory);
    } else {
        be_initiator(engine, memory, region);
    }
    engine->operations->close(engine);
    kvf_settings_close(settings);
    return 0;
}
