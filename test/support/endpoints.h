/* A small event loop for tests of the control endpoints: it sleeps in poll() on their descriptors, as the
 * manager does in epoll, and counts what they report. */
#ifndef KVF_TEST_SUPPORT_ENDPOINTS_H
#define KVF_TEST_SUPPORT_ENDPOINTS_H

#include "control/control.h"

enum { TEST_ENDPOINTS_MAX = 16 };

typedef struct test_pull {
    kvf_control_pull *pull;
    size_t messages;
    size_t too_many_frames;
    size_t gone;
    uint64_t last_connection;
    uint64_t last_gone;
    uint64_t last_gone_at; /* on the clock */
    /* What a test wants to know of each message or end, or NULL. */
    void (*look)(void *user, uint64_t connection, const kvf_slice *frames, size_t frame_count);
    void (*look_gone)(void *user, uint64_t connection);
    void *user;
} test_pull;

typedef struct test_push {
    kvf_control_push *push;
    size_t connected;
    size_t writable;
    size_t gone;
    uint64_t gone_at;
    char text[512];
} test_push;

typedef struct test_endpoints {
    kvf_settings settings;
    kvf_control *control;
    test_pull *pulls[TEST_ENDPOINTS_MAX];
    test_push *pushes[TEST_ENDPOINTS_MAX];
    size_t wakeups;
} test_endpoints;

void test_endpoints_open(test_endpoints *endpoints);
/* After a change of the settings. */
void test_endpoints_reopen(test_endpoints *endpoints);
void test_endpoints_close(test_endpoints *endpoints);

/* Zeroes the struct but for `look`, `look_gone` and `user`. Any free port of the loopback address. */
void test_pull_open(test_endpoints *endpoints, test_pull *pull);
void test_pull_close(test_endpoints *endpoints, test_pull *pull);
void test_push_open(test_endpoints *endpoints, test_push *push, uint16_t port, uint64_t timeout);
void test_push_open_host(test_endpoints *endpoints, test_push *push, const char *host,
                         uint16_t port, uint64_t timeout);
void test_push_close(test_endpoints *endpoints, test_push *push);
/* Sends one message of `count` frames that all hold `text`; fails the test when it isn't taken. */
void test_push_send(test_push *push, const char *text, size_t count);

/* Runs the loop until *counter reaches `target`; false after `milliseconds`. */
bool test_endpoints_wait(test_endpoints *endpoints, const size_t *counter, size_t target,
                         uint64_t milliseconds);
/* The same, and fails the test when it takes more than 20 s. */
void test_endpoints_expect(test_endpoints *endpoints, const size_t *counter, size_t target);

#endif
