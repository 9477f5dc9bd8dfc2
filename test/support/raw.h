/* Peers made of bare parts, which can say what no sound peer would: a decode rank that is a plain PUSH socket
 * and a data engine, and a prefill rank that is a plain PULL socket and a data engine. */
#ifndef KVF_TEST_SUPPORT_RAW_H
#define KVF_TEST_SUPPORT_RAW_H

#include "support/worker.h"

#include "data/engine.h"
#include "wire/letter.h"
#include "wire/metadata.h"
#include "wire/request.h"
#include "wire/route.h"

/* Says anything to any control port. */
typedef struct raw_push {
    void *context;
    void *socket;
} raw_push;
void raw_push_open(raw_push *push, uint16_t port);
void raw_push_send(raw_push *push, const kvf_slice *frames, size_t count);
void raw_push_close(raw_push *push);

/* A decode rank. Its pool is small, its aux too; nothing checks what it asks for. */
typedef struct raw_decode {
    raw_push push;
    test_worker worker; /* the pool; no manager */
    kvf_engine *engine;
    char agent_name[40];
    kvf_bytes metadata;
    kvf_bytes pointers;
    uint32_t regions[TEST_BUFFERS_MAX];
    uint64_t notifications;
    char last_notification[KVF_NOTICE_TEXT_MAX + 1];
} raw_decode;

void raw_decode_open(raw_decode *decode, const char *agent_name, uint16_t port);
/* The same with another pool. */
void raw_decode_open_shaped(raw_decode *decode, const char *agent_name, uint16_t port,
                            const test_shape *shape);
void raw_decode_close(raw_decode *decode);
/* The same process goes by another name from now on. */
void raw_decode_rename(raw_decode *decode, const char *agent_name);
/* A sound request; its slices point into `decode` and `pages`, 8 bytes each, little-endian. */
kvf_request raw_decode_request(raw_decode *decode, uint64_t room, const uint64_t *pages,
                               size_t count);
void raw_decode_send(raw_decode *decode, const kvf_request *request);
/* Waits for notifications; true when at least `count` have come altogether. */
bool raw_decode_notified(raw_decode *decode, uint64_t count);
/* Takes in what has come; waits a moment where nothing has. */
void raw_decode_turn(raw_decode *decode);

/* A prefill rank: registered at the bootstrap server at `address` as rank 0 of 1. */
typedef struct raw_prefill {
    void *context;
    void *socket;
    uint16_t port;
    kvf_engine *engine;
    kvf_engine_peer *peer;
    uint64_t requests;
    /* Of the latest request: */
    uint64_t room;
    uint64_t epoch;
    uint64_t extensions;
    uint16_t decode_port; /* as told */
    char agent_name[KVF_AGENT_NAME_MAX + 1];
} raw_prefill;

void raw_prefill_open(raw_prefill *prefill, const char *address);
void raw_prefill_close(raw_prefill *prefill);
/* Waits for a decode rank's request, and connects the engine to it. */
void raw_prefill_requested(raw_prefill *prefill, uint64_t room);
void raw_prefill_payload(raw_prefill *prefill, kvf_slice payload);
/* A notification from an agent of that name. */
void raw_prefill_notify(raw_prefill *prefill, const char *agent_name, const char *text);

/* Says hello as a kvferry prefill does, in answer to the latest request; `push` leads to the decode's control port. */
void raw_prefill_greets(const raw_prefill *prefill, raw_push *push);
/* Takes messages in up to the next abort, and returns the room that it gives up. */
uint64_t raw_prefill_aborted(raw_prefill *prefill);

/* A letter; `push` leads to the other side's control port. */
void raw_letter(raw_push *push, const kvf_letter *letter);

/* Sends `body` as a PUT to /route and returns the answer's status. */
int raw_put(const char *address, const char *body);
void raw_register(const char *address, uint16_t port, uint32_t rank, uint32_t tp_size,
                  uint32_t dp_size);

#endif
