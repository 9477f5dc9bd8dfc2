#include "support/raw.h"

#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#define PATIENCE (20 * KVF_SECOND)

/* ---- PUSH ---- */

void raw_push_open(raw_push *push, uint16_t port)
{
    char address[64];
    int linger = 1000;
    (void)snprintf(address, sizeof address, "tcp://127.0.0.1:%u", port);
    push->context = zmq_ctx_new();
    push->socket = zmq_socket(push->context, ZMQ_PUSH);
    assert_int_equal(zmq_setsockopt(push->socket, ZMQ_LINGER, &linger, sizeof linger), 0);
    assert_int_equal(zmq_connect(push->socket, address), 0);
}

void raw_push_send(raw_push *push, const kvf_slice *frames, size_t count)
{
    for (size_t i = 0; i < count; i++)
        assert_int_equal(zmq_send(push->socket, frames[i].data, frames[i].length,
                                  i + 1 < count ? ZMQ_SNDMORE : 0),
                         (int)frames[i].length);
}

void raw_push_close(raw_push *push)
{
    if (push->socket == NULL)
        return;
    assert_int_equal(zmq_close(push->socket), 0);
    assert_int_equal(zmq_ctx_term(push->context), 0);
    push->socket = NULL;
}

/* ---- Engines ---- */

static kvf_engine *open_engine(kvf_engine_callbacks *callbacks)
{
    kvf_settings settings;
    kvf_error error;
    kvf_engine *engine;
    kvf_settings_defaults(&settings);
    const char *name = test_engine_name();
    settings.engine = strcmp(name, "loop") == 0 ? KVF_ENGINE_LOOP : KVF_ENGINE_UCX;
    if (strcmp(name, "shm") == 0)
        (void)strcpy(settings.transports, "posix,sysv,cma,self");
    else if (strcmp(name, "tcp") == 0)
        (void)strcpy(settings.transports, "tcp,self");
    if (kvf_engine_open(&settings, KVF_FLAVOUR_P031, callbacks, &engine, &error) != KVF_OK)
        fail_msg("%s", error.text);
    return engine;
}

static void peer_failed(void *user, kvf_engine_peer *peer, const char *text)
{
    (void)user;
    (void)peer;
    (void)text;
}

static void rest(kvf_engine *engine)
{
    if (!engine->operations->arm(engine))
        return;
    struct pollfd descriptor = {.fd = engine->operations->descriptor(engine), .events = POLLIN};
    (void)poll(&descriptor, 1, 10);
}

/* Moves the engine on, and sleeps a while when there is nothing to do. */
static void turn(kvf_engine *engine)
{
    if (!engine->operations->progress(engine, KVF_MILLISECOND))
        rest(engine);
}

/* ---- Decode ---- */

static void notified(void *user, kvf_slice payload)
{
    raw_decode *decode = user;
    kvf_slice name;
    kvf_slice text;
    kvf_error error;
    if (kvf_notice_payload_decode(payload, &name, &text, &error) != KVF_OK)
        fail_msg("%s", error.text);
    (void)kvf_slice_to_text(text, decode->last_notification, sizeof decode->last_notification);
    decode->notifications++;
}

static size_t count_regions(const raw_decode *decode)
{
    return decode->worker.layout.buffer_count + decode->worker.layout.aux_count;
}

static void add_regions(raw_decode *decode)
{
    kvf_error error;
    for (size_t i = 0; i < count_regions(decode); i++) {
        const kvf_buffer *buffer = &decode->worker.buffers[i];
        if (decode->engine->operations->add_region(decode->engine, buffer, &decode->regions[i],
                                                   &error) != KVF_OK)
            fail_msg("%s", error.text);
        kvf_bytes_append_u64(&decode->pointers, buffer->base);
    }
}

static void build_metadata(raw_decode *decode)
{
    const kvf_layout *layout = &decode->worker.layout;
    const kvf_engine_operations *operations = decode->engine->operations;
    kvf_descriptor descriptors[TEST_BUFFERS_MAX];
    kvf_error error;
    size_t count = count_regions(decode);
    for (size_t i = 0; i < count; i++)
        descriptors[i] =
            (kvf_descriptor){.base = decode->worker.buffers[i].base,
                             .length = decode->worker.buffers[i].length,
                             .kind = i < layout->buffer_count ? KVF_NIXL_VRAM : KVF_NIXL_DRAM,
                             .key = operations->region_key(decode->engine, decode->regions[i])};
    kvf_metadata metadata = {.agent_name = kvf_slice_of(decode->agent_name),
                             .worker_address = operations->address(decode->engine),
                             .descriptors = descriptors,
                             .descriptor_count = count};
    if (kvf_metadata_encode(&metadata, KVF_FLAVOUR_P031, &decode->metadata, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

void raw_decode_open(raw_decode *decode, const char *agent_name, uint16_t port)
{
    raw_decode_open_shaped(decode, agent_name, port, NULL);
}

void raw_decode_open_shaped(raw_decode *decode, const char *agent_name, uint16_t port,
                            const test_shape *shape)
{
    *decode = (raw_decode){0};
    kvf_engine_callbacks callbacks = {
        .user = decode, .notified = notified, .peer_failed = peer_failed};
    (void)snprintf(decode->agent_name, sizeof decode->agent_name, "%s", agent_name);
    test_worker_build(&decode->worker, shape);
    decode->worker.role = KVF_DECODE;
    if (shape == NULL)
        test_worker_fill(&decode->worker);
    decode->engine = open_engine(&callbacks);
    add_regions(decode);
    build_metadata(decode);
    raw_push_open(&decode->push, port);
}

void raw_decode_rename(raw_decode *decode, const char *agent_name)
{
    (void)snprintf(decode->agent_name, sizeof decode->agent_name, "%s", agent_name);
    kvf_bytes_clear(&decode->metadata);
    build_metadata(decode);
}

void raw_decode_close(raw_decode *decode)
{
    if (decode->engine == NULL)
        return;
    raw_push_close(&decode->push);
    decode->engine->operations->close(decode->engine);
    decode->engine = NULL;
    kvf_bytes_free(&decode->metadata);
    kvf_bytes_free(&decode->pointers);
    test_worker_close(&decode->worker);
}

kvf_request raw_decode_request(raw_decode *decode, uint64_t room, const uint64_t *pages,
                               size_t count)
{
    const kvf_layout *layout = &decode->worker.layout;
    size_t split = 8 * layout->buffer_count;
    return (kvf_request){.room = room,
                         .host = kvf_slice_of("127.0.0.1"),
                         .port = 4242,
                         .agent_name = kvf_slice_of(decode->agent_name),
                         .agent_metadata = kvf_bytes_slice(&decode->metadata),
                         .buffers = {decode->pointers.data, split},
                         .aux = {decode->pointers.data + split, 8 * layout->aux_count},
                         .pages = {(const uint8_t *)pages, count * sizeof *pages},
                         .page_width = 8,
                         .aux_slot = 1,
                         .required = 1};
}

void raw_decode_send(raw_decode *decode, const kvf_request *request)
{
    kvf_message message;
    kvf_request_encode(kvf_profile_at(0), request, &message);
    raw_push_send(&decode->push, message.frames, message.frame_count);
}

bool raw_decode_notified(raw_decode *decode, uint64_t count)
{
    uint64_t deadline = kvf_clock_after(kvf_clock_now(), PATIENCE);
    while (decode->notifications < count && kvf_clock_now() < deadline)
        turn(decode->engine);
    return decode->notifications >= count;
}

void raw_decode_turn(raw_decode *decode)
{
    turn(decode->engine);
}

/* ---- Prefill ---- */

static void ignore(void *user, kvf_slice payload)
{
    (void)user;
    (void)payload;
}

void raw_prefill_open(raw_prefill *prefill, const char *address)
{
    *prefill = (raw_prefill){0};
    kvf_engine_callbacks callbacks = {
        .user = prefill, .notified = ignore, .peer_failed = peer_failed};
    prefill->engine = open_engine(&callbacks);
    prefill->context = zmq_ctx_new();
    prefill->socket = zmq_socket(prefill->context, ZMQ_PULL);
    int patience = (int)(PATIENCE / KVF_MILLISECOND);
    char bound[64];
    size_t size = sizeof bound;
    assert_int_equal(zmq_setsockopt(prefill->socket, ZMQ_RCVTIMEO, &patience, sizeof patience), 0);
    assert_int_equal(zmq_bind(prefill->socket, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(prefill->socket, ZMQ_LAST_ENDPOINT, bound, &size), 0);
    prefill->port = (uint16_t)strtoul(strrchr(bound, ':') + 1, NULL, 10);
    if (address != NULL)
        raw_register(address, prefill->port, 0, 1, 1);
}

void raw_prefill_close(raw_prefill *prefill)
{
    if (prefill->engine == NULL)
        return;
    if (prefill->peer != NULL)
        prefill->engine->operations->disconnect(prefill->engine, prefill->peer);
    prefill->engine->operations->close(prefill->engine);
    prefill->engine = NULL;
    assert_int_equal(zmq_close(prefill->socket), 0);
    assert_int_equal(zmq_ctx_term(prefill->context), 0);
}

/* The metadata that the request carries leads to the decode rank's worker. */
static void connect_to(raw_prefill *prefill, const kvf_request *request)
{
    kvf_metadata metadata;
    kvf_error error;
    if (prefill->peer != NULL)
        return;
    if (kvf_metadata_decode(request->agent_metadata, 1024, &metadata, &error) != KVF_OK ||
        prefill->engine->operations->connect(prefill->engine, metadata.worker_address, NULL,
                                             &prefill->peer, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvf_metadata_free(&metadata);
}

typedef struct raw_message {
    zmq_msg_t parts[16];
    kvf_slice frames[16];
    size_t count;
} raw_message;

static bool receive(raw_prefill *prefill, raw_message *message)
{
    bool more = true;
    for (message->count = 0; more && message->count < 16; message->count++) {
        zmq_msg_t *part = &message->parts[message->count];
        (void)zmq_msg_init(part);
        if (zmq_msg_recv(part, prefill->socket, 0) < 0)
            return false;
        message->frames[message->count] = (kvf_slice){zmq_msg_data(part), zmq_msg_size(part)};
        more = zmq_msg_more(part) != 0;
    }
    return true;
}

static void release(raw_message *message)
{
    for (size_t i = 0; i < message->count; i++)
        (void)zmq_msg_close(&message->parts[i]);
}

void raw_prefill_requested(raw_prefill *prefill, uint64_t room)
{
    raw_message message;
    kvf_request request;
    kvf_refusal refusal;
    kvf_error error;
    if (!receive(prefill, &message))
        fail_msg("no request for room %llu came", (unsigned long long)room);
    if (kvf_request_decode(kvf_profile_at(0), message.frames, message.count, &request, &refusal,
                           &error) != KVF_OK)
        fail_msg("%s", error.text);
    prefill->requests++;
    prefill->room = request.room;
    prefill->epoch = request.epoch;
    prefill->extensions = request.extensions;
    prefill->decode_port = request.port;
    assert_true(
        kvf_slice_to_text(request.agent_name, prefill->agent_name, sizeof prefill->agent_name));
    connect_to(prefill, &request);
    release(&message);
    assert_int_equal(prefill->room, room);
}

uint64_t raw_prefill_aborted(raw_prefill *prefill)
{
    kvf_letter letter = {.kind = KVF_LETTER_HELLO};
    while (letter.kind != KVF_LETTER_ABORT) {
        raw_message message;
        kvf_error error;
        if (!receive(prefill, &message))
            fail_msg("no abort came");
        if (kvf_letter_is_one(message.frames, message.count) &&
            kvf_letter_decode(message.frames, message.count, &letter, &error) != KVF_OK)
            fail_msg("%s", error.text);
        release(&message);
    }
    return letter.room;
}

static void finished(kvf_transfer *transfer, kvf_status status, const char *text)
{
    (void)text;
    assert_int_equal(status, KVF_OK);
    *(bool *)transfer->user = true;
}

void raw_prefill_payload(raw_prefill *prefill, kvf_slice payload)
{
    bool done = false;
    kvf_error error;
    kvf_transfer transfer = {
        .peer = prefill->peer, .part_count = 1, .done = finished, .user = &done};
    assert_true(payload.length <= KVF_NOTICE_PAYLOAD_MAX);
    memcpy(transfer.parts[0].payload, payload.data, payload.length);
    transfer.parts[0].payload_length = (uint32_t)payload.length;
    if (prefill->engine->operations->post(prefill->engine, &transfer, &error) != KVF_OK)
        fail_msg("%s", error.text);
    for (;;) {
        bool more = prefill->engine->operations->progress(prefill->engine, KVF_MILLISECOND);
        if (done)
            return;
        if (!more)
            rest(prefill->engine);
    }
}

void raw_prefill_notify(raw_prefill *prefill, const char *agent_name, const char *text)
{
    uint8_t payload[KVF_NOTICE_PAYLOAD_MAX];
    size_t length =
        kvf_notice_payload_encode(kvf_slice_of(agent_name), kvf_slice_of(text), payload);
    assert_true(length > 0);
    raw_prefill_payload(prefill, (kvf_slice){payload, length});
}

/* ---- Letters ---- */

void raw_letter(raw_push *push, const kvf_letter *letter)
{
    uint8_t head[KVF_LETTER_HEAD];
    kvf_slice frames[KVF_LETTER_FRAMES];
    kvf_letter_encode(letter, head, frames);
    raw_push_send(push, frames, KVF_LETTER_FRAMES);
}

void raw_prefill_greets(const raw_prefill *prefill, raw_push *push)
{
    kvf_letter letter = {.kind = KVF_LETTER_HELLO,
                         .room = prefill->room,
                         .epoch = prefill->epoch,
                         .agent_name = kvf_slice_of(prefill->agent_name),
                         .text = kvf_slice_of("kvferry 0")};
    raw_letter(push, &letter);
}

/* ---- HTTP ---- */

int raw_put(const char *address, const char *body)
{
    char text[1024];
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    where.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    int length = snprintf(text, sizeof text,
                          "PUT /route HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                          "Content-Length: %zu\r\nConnection: close\r\n\r\n%s",
                          address, strlen(body), body);
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(connection, (struct sockaddr *)&where, sizeof where), 0);
    assert_int_equal(send(connection, text, (size_t)length, MSG_NOSIGNAL), length);
    ssize_t got = recv(connection, text, sizeof text - 1, MSG_WAITALL);
    (void)close(connection);
    assert_true(got > 12);
    text[got] = '\0';
    return atoi(text + strlen("HTTP/1.1 "));
}

void raw_register(const char *address, uint16_t port, uint32_t rank, uint32_t tp_size,
                  uint32_t dp_size)
{
    kvf_route_registration row = {.rank_ip = "127.0.0.1",
                                  .rank_port = port,
                                  .tp_size = tp_size,
                                  .dp_size = dp_size,
                                  .engine_rank = rank,
                                  .is_prefill = true};
    kvf_bytes body = {0};
    kvf_route_registration_encode(&row, &body);
    kvf_bytes_append(&body, "", 1);
    assert_false(body.failed);
    assert_int_equal(raw_put(address, (const char *)body.data), 200);
    kvf_bytes_free(&body);
}
