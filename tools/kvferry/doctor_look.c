/* One check in a process of its own. What UCX prints there is caught: it is part of the finding. */
#include "clock.h"
#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUTPUT_LIMIT = 16384 };

typedef struct looking_child {
    pid_t pid;
    int findings; /* readable when the child has found something or has ended */
    int output;   /* what it printed */
} looking_child;

static _Noreturn void look_in_child(const doctor_check *check, const doctor_subject *subject,
                                    int findings, int output)
{
    doctor_finding finding = {.state = DOCTOR_PROBLEM};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)dup2(output, STDOUT_FILENO);
    (void)dup2(output, STDERR_FILENO);
    check->look(subject, &finding);
    (void)fflush(stdout);
    _exit(write(findings, &finding, sizeof finding) == (ssize_t)sizeof finding ? 0 : 1);
}

static bool start_child(looking_child *child, const doctor_check *check,
                        const doctor_subject *subject, message *why)
{
    int pair[2];
    child->output = memfd_create("kvferry doctor", MFD_CLOEXEC);
    if (child->output < 0)
        return message_set(why, "no memory for what a check prints: %s", strerror(errno));
    if (pipe2(pair, O_CLOEXEC) != 0) {
        (void)message_set(why, "no pipe: %s", strerror(errno));
        (void)close(child->output);
        return false;
    }
    (void)fflush(NULL); /* or the child would write it once more */
    child->pid = fork();
    if (child->pid == 0)
        look_in_child(check, subject, pair[1], child->output);
    (void)close(pair[1]);
    child->findings = pair[0];
    if (child->pid > 0)
        return true;
    (void)message_set(why, "can't start a process: %s", strerror(errno));
    (void)close(pair[0]);
    (void)close(child->output);
    return false;
}

/* Whether the finding has come in time. */
static bool take_finding(const looking_child *child, uint64_t deadline, doctor_finding *finding,
                         bool *late)
{
    struct pollfd source = {child->findings, POLLIN, 0};
    for (;;) {
        uint64_t now = clock_now();
        int left = now >= deadline ? 0 : (int)((deadline - now) / 1000000 + 1);
        int ready = poll(&source, 1, left);
        if (ready < 0 && errno == EINTR)
            continue;
        *late = ready == 0;
        return ready > 0 &&
               read(child->findings, finding, sizeof *finding) == (ssize_t)sizeof *finding;
    }
}

static void explain_end(const doctor_check *check, uint64_t limit, bool late, int status,
                        doctor_finding *finding)
{
    if (late)
        doctor_complain(finding,
                        "Something this check asks doesn't answer: a name server, a file "
                        "system or a device driver.",
                        "no result within %llu s", (unsigned long long)limit);
    else
        doctor_complain(finding,
                        "A library ended the process; run it again with UCX_LOG_LEVEL=info.",
                        "the check of %s was ended by %s", check->title,
                        WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "the library it calls");
}

/* "[1796.2] [host:4711:0]  ucp_context.c:1492 UCX  WARN  transport ..." without what comes before the word. */
static const char *without_prefix(const char *line)
{
    const char *word = strstr(line, "UCX  ");
    return word == NULL ? line : word;
}

static bool matters(const char *line, bool any)
{
    return strstr(line, "UCX  WARN") != NULL || strstr(line, "UCX  ERROR") != NULL ||
           strstr(line, "UCX  FATAL") != NULL || (any && line[0] != '\0');
}

/* Appends the first line the child printed that matters: UCX's complaints, or anything where `any`. */
static bool quote_output(const looking_child *child, bool any, doctor_finding *finding)
{
    char output[OUTPUT_LIMIT];
    char *rest = NULL;
    ssize_t length = pread(child->output, output, sizeof output - 1, 0);
    output[length > 0 ? length : 0] = '\0';
    for (char *line = strtok_r(output, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (!matters(line, any))
            continue;
        size_t used = strlen(finding->text);
        (void)snprintf(finding->text + used, sizeof finding->text - used, "; printed: %.400s",
                       without_prefix(line));
        return true;
    }
    return false;
}

bool doctor_look(const doctor_check *check, const doctor_subject *subject, doctor_finding *finding,
                 message *why)
{
    looking_child child = {.pid = -1, .findings = -1, .output = -1};
    bool late = false;
    int status = 0;
    uint64_t limit = check->limit == 0 ? 2 * subject->options->timeout + 15 : check->limit;
    if (!start_child(&child, check, subject, why))
        return false;
    bool found = take_finding(&child, clock_now() + limit * 1000000000, finding, &late);
    if (!found)
        (void)kill(child.pid, SIGKILL);
    while (waitpid(child.pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!found)
        explain_end(check, limit, late, status, finding);
    if (quote_output(&child, !found, finding) && finding->state == DOCTOR_FINE) {
        finding->state = DOCTOR_WARNING;
        (void)snprintf(finding->advice, sizeof finding->advice, "See what UCX printed.");
    }
    (void)close(child.findings);
    (void)close(child.output);
    return true;
}
