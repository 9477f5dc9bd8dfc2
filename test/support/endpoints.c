#include "support/endpoints.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void on_message(void *user, uint64_t connection, const kvf_slice *frames, size_t frame_count)
{
    test_pull *pull = user;
    assert_int_not_equal(connection, 0);
    pull->messages++;
    pull->too_many_frames += frame_count == 0;
    pull->last_connection = connection;
    if (pull->look != NULL)
        pull->look(pull->user, connection, frames, frame_count);
}

static void on_pull_gone(void *user, uint64_t connection)
{
    test_pull *pull = user;
    pull->gone++;
    pull->last_gone = connection;
    pull->last_gone_at = kvf_clock_now();
    if (pull->look_gone != NULL)
        pull->look_gone(pull->user, connection);
}

static void on_connected(void *user)
{
    test_push *push = user;
    push->connected++;
}

static void on_writable(void *user)
{
    test_push *push = user;
    push->writable++;
}

static void on_gone(void *user, const char *text)
{
    test_push *push = user;
    push->gone++;
    push->gone_at = kvf_clock_now();
    (void)snprintf(push->text, sizeof push->text, "%s", text);
}

void test_endpoints_open(test_endpoints *endpoints)
{
    memset(endpoints, 0, sizeof *endpoints);
    kvf_settings_defaults(&endpoints->settings);
    test_endpoints_reopen(endpoints);
}

void test_endpoints_reopen(test_endpoints *endpoints)
{
    kvf_control_close(endpoints->control);
    kvf_error error = {0};
    if (kvf_control_open(&endpoints->settings, &endpoints->control, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

void test_endpoints_close(test_endpoints *endpoints)
{
    kvf_control_close(endpoints->control);
    endpoints->control = NULL;
}

/* Puts `item` into the first free place, or takes it out. */
static void change(void **places, const void *old, void *new)
{
    for (size_t i = 0; i < TEST_ENDPOINTS_MAX; i++)
        if (places[i] == old) {
            places[i] = new;
            return;
        }
    fail_msg("too many endpoints in a test");
}

void test_pull_open(test_endpoints *endpoints, test_pull *pull)
{
    *pull = (test_pull){.look = pull->look, .look_gone = pull->look_gone, .user = pull->user};
    kvf_control_pull_callbacks callbacks = {pull, on_message, on_pull_gone};
    kvf_error error = {0};
    if (kvf_control_pull_open(endpoints->control, "127.0.0.1", 0, &callbacks, &pull->pull,
                              &error) != KVF_OK)
        fail_msg("%s", error.text);
    change((void **)endpoints->pulls, NULL, pull);
}

void test_pull_close(test_endpoints *endpoints, test_pull *pull)
{
    change((void **)endpoints->pulls, pull, NULL);
    kvf_control_pull_close(pull->pull);
    pull->pull = NULL;
}

void test_push_open(test_endpoints *endpoints, test_push *push, uint16_t port, uint64_t timeout)
{
    test_push_open_host(endpoints, push, "127.0.0.1", port, timeout);
}

void test_push_open_host(test_endpoints *endpoints, test_push *push, const char *host,
                         uint16_t port, uint64_t timeout)
{
    *push = (test_push){0};
    kvf_control_push_callbacks callbacks = {push, on_connected, on_writable, on_gone};
    kvf_error error = {0};
    if (kvf_control_push_open(endpoints->control, host, port, timeout, &callbacks, &push->push,
                              &error) != KVF_OK)
        fail_msg("%s", error.text);
    change((void **)endpoints->pushes, NULL, push);
}

void test_push_close(test_endpoints *endpoints, test_push *push)
{
    change((void **)endpoints->pushes, push, NULL);
    kvf_control_push_close(push->push);
    push->push = NULL;
}

void test_push_send(test_push *push, const char *text, size_t count)
{
    kvf_slice frames[64];
    assert_true(count <= 64);
    for (size_t i = 0; i < count; i++)
        frames[i] = kvf_slice_of(text);
    bool put_off = false;
    kvf_error error = {0};
    if (kvf_control_push_send(push->push, frames, count, &put_off, &error) != KVF_OK)
        fail_msg("%s", error.text);
    assert_false(put_off);
}

static nfds_t process_all(test_endpoints *endpoints, struct pollfd *descriptors)
{
    int found[2];
    nfds_t count = 0;
    for (size_t i = 0; i < TEST_ENDPOINTS_MAX; i++) {
        if (endpoints->pulls[i] != NULL) {
            while (kvf_control_pull_process(endpoints->pulls[i]->pull))
                ;
            size_t filled = kvf_control_pull_descriptors(endpoints->pulls[i]->pull, found);
            for (size_t k = 0; k < filled; k++)
                descriptors[count++] = (struct pollfd){.fd = found[k], .events = POLLIN};
        }
        if (endpoints->pushes[i] != NULL) {
            while (kvf_control_push_process(endpoints->pushes[i]->push))
                ;
            size_t filled = kvf_control_push_descriptors(endpoints->pushes[i]->push, found);
            for (size_t k = 0; k < filled; k++)
                descriptors[count++] = (struct pollfd){.fd = found[k], .events = POLLIN};
        }
    }
    return count;
}

bool test_endpoints_wait(test_endpoints *endpoints, const size_t *counter, size_t target,
                         uint64_t milliseconds)
{
    uint64_t deadline = kvf_clock_now() + milliseconds * KVF_MILLISECOND;
    struct pollfd descriptors[4 * TEST_ENDPOINTS_MAX];
    for (;;) {
        nfds_t count = process_all(endpoints, descriptors);
        if (*counter >= target)
            return true;
        uint64_t now = kvf_clock_now();
        if (now >= deadline)
            return false;
        if (poll(descriptors, count, kvf_clock_wait(now, deadline)) < 0)
            assert_int_equal(errno, EINTR);
        endpoints->wakeups++;
    }
}

void test_endpoints_expect(test_endpoints *endpoints, const size_t *counter, size_t target)
{
    if (!test_endpoints_wait(endpoints, counter, target, 20000))
        fail_msg("waited for %zu events, saw %zu", target, *counter);
}
