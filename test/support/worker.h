/* Prefill and decode workers of any small shape inside the test's process, and what tests do with them. All
 * helpers fail the test (or, in a forked child, end it with a message) when something doesn't work. */
#ifndef KVF_TEST_SUPPORT_WORKER_H
#define KVF_TEST_SUPPORT_WORKER_H

#include "kvferry/kvferry.h"

#include <stdbool.h>

#define TEST_BUFFERS_MAX 72

typedef struct test_shape {
    size_t buffers; /* at most TEST_BUFFERS_MAX with aux */
    size_t pages;
    size_t item_length;
    size_t aux;
    size_t slots;
    size_t aux_item_length;
    uint32_t rank;
    uint32_t tp_size;
    uint32_t dp_size;
    uint32_t mla;
} test_shape;

/* 2 buffers of 32 pages of 512 bytes, 2 aux buffers of 8 slots of 64 bytes. */
extern const test_shape test_small_shape;

typedef struct test_worker {
    kvf_manager *manager;
    kvf_role role;
    test_shape shape;
    unsigned char *memory; /* all buffers, then all aux buffers */
    size_t memory_length;
    kvf_buffer buffers[TEST_BUFFERS_MAX];
    kvf_layout layout;
} test_worker;

/* The pool and its layout, without a manager. `shape` NULL: the small one. */
void test_worker_build(test_worker *worker, const test_shape *shape);

/* Opens the manager of a built worker. `settings` is name, value, …, NULL; engine and transports have been
 * set before from the environment of the test (test_use_engine()). */
kvf_status test_worker_start(test_worker *worker, kvf_role role, const char *bootstrap,
                             const char *const *settings);

/* Both of the above; fails the test with the error text. */
void test_worker_open(test_worker *worker, kvf_role role, const test_shape *shape,
                      const char *bootstrap, const char *const *settings);
void test_worker_close(test_worker *worker); /* one that was never opened is fine */

/* Of the workers opened from now on. Names for transports: "loop", "shm", "tcp", "all". */
void test_use_engine(const char *name);
const char *test_engine_name(void);
/* Whether UCX would end the test's process when a peer that it has a connection with goes: says so for the record, and
 * the caller skips. Before 1.19 that is so over TCP, now and then. */
bool test_ends_with_its_peer(const char *engine);

unsigned char *test_page(const test_worker *worker, size_t buffer, size_t page);
unsigned char *test_slot(const test_worker *worker, size_t aux, size_t slot);
/* Every byte of prefill's pool gets a value of its place; decode's pool gets 0xee. */
void test_worker_fill(test_worker *worker);
/* Whether decode's page holds what prefill's does; and whether it's untouched, while it may be written to. */
bool test_page_arrived(const test_worker *from, size_t source, const test_worker *to,
                       size_t destination);
bool test_page_untouched(const test_worker *to, size_t page);

/* Waits until the room has ended, and checks how: KVF_OK is Success. A failure's text must contain `part`
 * (NULL: anything but ""). */
void test_sender_ends(test_worker *worker, kvf_sender *sender, kvf_status status, const char *part);
void test_receiver_ends(test_worker *worker, kvf_receiver *receiver, kvf_status status,
                        const char *part);

/* Waits until it is in that state, which it has to come to. */
void test_sender_reaches(test_worker *worker, kvf_sender *sender, kvf_poll state);
void test_receiver_reaches(test_worker *worker, kvf_receiver *receiver, kvf_poll state);

/* Waits until it has ended, however. */
void test_sender_settles(test_worker *worker, kvf_sender *sender);
void test_receiver_settles(test_worker *worker, kvf_receiver *receiver);

kvf_sender *test_sender_open(test_worker *worker, uint64_t room);
kvf_receiver *test_receiver_open(test_worker *worker, const char *bootstrap, uint64_t room);

/* Hands `count` pages over, checks every byte of them and closes both ends. */
void test_room_works(test_worker *prefill, test_worker *decode, const char *bootstrap,
                     uint64_t room, uint32_t count);

kvf_statistics test_statistics(const test_worker *worker);
/* Waits until the field at `offset` of the statistics is at least `value`. */
#define test_wait_statistic(worker, field, value)                                                  \
    test_wait_statistic_at((worker), offsetof(kvf_statistics, field), (value), #field)
void test_wait_statistic_at(const test_worker *worker, size_t offset, uint64_t value,
                            const char *name);

/* A bootstrap server on the loopback address. */
typedef struct test_bootstrap {
    kvf_bootstrap *server;
    char address[64];
} test_bootstrap;
void test_bootstrap_open(test_bootstrap *bootstrap);
void test_bootstrap_close(test_bootstrap *bootstrap); /* the same */

/* Bytes that this process has allocated and not freed; 0 where a sanitizer replaces malloc(). */
size_t test_heap_in_use(void);

/* Sanitizers make everything slower and larger; figures mean nothing then. */
bool test_is_sanitized(void);

#endif
