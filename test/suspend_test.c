/* A prefill process that is stopped for longer than its peers wait, and then goes on: what it still had to write is
 * written no more, since the pages may be another room's by now. */
#include "support/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 8 };

/* Its one room's transfer is held for longer than the stop lasts; only giving it up can end it. */
static const char *const settings[] = {
    "heartbeat_interval", "100ms", "heartbeat_timeout", "300ms", "fault", "hold_ms=3000", NULL};
static const uint32_t pages[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};

static void be_prefill(const char *engine, int orders, int reports)
{
    test_worker worker;
    char address[64];
    ssize_t length = read(orders, address, sizeof address - 1);
    if (length <= 0)
        _exit(1);
    address[length] = '\0';
    test_use_engine(engine);
    test_worker_open(&worker, KVF_PREFILL, NULL, address, settings);
    test_worker_fill(&worker);
    kvf_sender *sender = test_sender_open(&worker, 1);
    if (kvf_sender_expect(sender, PAGES, 0) != KVF_OK ||
        kvf_sender_send(sender, pages, PAGES) != KVF_OK)
        _exit(2);
    test_wait_statistic(&worker, transfers_active, 1);
    (void)dprintf(reports, "active\n");
    test_sender_settles(&worker, sender);
    (void)dprintf(reports, "%d %s\n", kvf_sender_status(sender), kvf_sender_failure_text(sender));
    (void)kvf_sender_wait(sender, -1);
    (void)dprintf(reports, "%d\n", kvf_sender_safety(sender));
    test_worker_close(&worker);
    _exit(0);
}

typedef struct child {
    pid_t pid;
    int orders;
    FILE *reports;
} child;

/* Before this process uses UCX, which doesn't survive a fork. */
static child start(const char *engine)
{
    int orders[2];
    int reports[2];
    assert_int_equal(pipe(orders), 0);
    assert_int_equal(pipe(reports), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(orders[1]);
        (void)close(reports[0]);
        be_prefill(engine, orders[0], reports[1]);
    }
    (void)close(orders[0]);
    (void)close(reports[1]);
    return (child){pid, orders[1], fdopen(reports[0], "r")};
}

static void report(child *prefill, char *line, size_t capacity)
{
    if (fgets(line, (int)capacity, prefill->reports) == NULL)
        fail_msg("the prefill process says nothing more");
}

static void who_was_stopped_writes_no_more(void **state)
{
    const char *engine = *state;
    child prefill = start(engine);
    test_bootstrap bootstrap;
    test_worker decode;
    char line[512];
    int status = -1;
    test_use_engine(engine);
    test_bootstrap_open(&bootstrap);
    test_worker_open(&decode, KVF_DECODE, NULL, bootstrap.address, settings);
    test_worker_fill(&decode);
    assert_true(write(prefill.orders, bootstrap.address, strlen(bootstrap.address)) > 0);
    kvf_receiver *receiver = test_receiver_open(&decode, bootstrap.address, 1);
    assert_int_equal(kvf_receiver_expect(receiver, pages, PAGES, 0), KVF_OK);
    report(&prefill, line, sizeof line);
    assert_string_equal(line, "active\n");

    assert_int_equal(kill(prefill.pid, SIGSTOP), 0);
    test_receiver_ends(&decode, receiver, KVF_PEER_GONE, NULL);
    /* Stopped for longer than anybody waits, as it will see by its clock. */
    usleep(700 * 1000);
    assert_int_equal(kill(prefill.pid, SIGCONT), 0);

    report(&prefill, line, sizeof line);
    /* Over TCP UCX may have told first that the decode had closed what was to be written to. */
    bool told =
        strstr(line, "was stopped for") != NULL || strstr(line, "UCX lost the peer") != NULL;
    if (atoi(line) != KVF_PEER_GONE || !told)
        fail_msg("the prefill's room ended with: %s", line);
    report(&prefill, line, sizeof line);
    assert_int_equal(atoi(line), KVF_PAGES_SAFE);
    assert_int_equal(waitpid(prefill.pid, &status, 0), prefill.pid);
    assert_int_equal(status, 0);
    (void)fclose(prefill.reports);
    (void)close(prefill.orders);
    for (size_t i = 0; i < PAGES; i++)
        assert_true(test_page_untouched(&decode, i));
    kvf_receiver_close(receiver);
    test_worker_close(&decode);
    test_bootstrap_close(&bootstrap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"who_was_stopped_writes_no_more (shm)", who_was_stopped_writes_no_more, NULL, NULL,
         (void *)(uintptr_t) "shm"},
        {"who_was_stopped_writes_no_more (tcp)", who_was_stopped_writes_no_more, NULL, NULL,
         (void *)(uintptr_t) "tcp"},
    };
    /* Each in a process of its own: the second child must be made before UCX is used, too. */
    for (size_t i = 0; i < 2; i++) {
        int status = 0;
        pid_t pid = fork();
        if (pid == 0)
            exit(_cmocka_run_group_tests("suspend", &tests[i], 1, NULL, NULL));
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
            return 1;
    }
    return 0;
}
