#include "child.h"

#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_LIMIT = 1 << 20, ARGUMENTS_MAX = 320, EXEC_FAILED = 127 };

static void close_pair(const int pair[2])
{
    (void)close(pair[0]);
    (void)close(pair[1]);
}

/* The child's ends become its standard input and output; all else closes by itself at exec. It is killed when this
 * process dies, also while it is stopped, and in a group of its own: what a terminal sends at Ctrl-C is for this process,
 * which ends its children in order. Between fork and exec only what is safe in a signal handler may be called. */
static int spawn(tool_child *child, char *const *arguments, int input, int output)
{
    pid_t parent = getpid();
    child->pid = fork();
    if (child->pid < 0)
        return errno;
    if (child->pid > 0)
        return 0;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpgid(0, 0);
    if (getppid() == parent && dup2(input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0)
        (void)execve("/proc/self/exe", arguments, environ);
    _exit(EXEC_FAILED);
}

/* exec takes pointers to char, but doesn't write there: they are copied as they are. */
static bool copy_arguments(const char *const *arguments, char **copies, message *why)
{
    static char program[] = "kvferry";
    size_t count = 0;
    while (arguments[count] != NULL)
        count++;
    if (count + 2 > ARGUMENTS_MAX)
        return message_set(why, "too many arguments for another process");
    copies[0] = program;
    memcpy(&copies[1], arguments, (count + 1) * sizeof *copies);
    return true;
}

bool child_start(tool_child *child, const char *const *arguments, message *why)
{
    char *copies[ARGUMENTS_MAX];
    int input[2];
    int output[2];
    *child = (tool_child){.name = arguments[0], .input = -1};
    if (!copy_arguments(arguments, copies, why))
        return false;
    if (pipe2(input, O_CLOEXEC) != 0)
        return message_set(why, "no pipe: %s", strerror(errno));
    if (pipe2(output, O_CLOEXEC) != 0) {
        close_pair(input);
        return message_set(why, "no pipe: %s", strerror(errno));
    }
    int error = spawn(child, copies, input[0], output[1]);
    (void)close(input[0]);
    (void)close(output[1]);
    if (error != 0) {
        child->pid = 0;
        (void)close(input[1]);
        (void)close(output[0]);
        return message_set(why, "can't start the %s process: %s", child->name, strerror(error));
    }
    child->input = input[1];
    line_reader_open(&child->answers, output[0], ANSWER_LIMIT);
    return true;
}

static bool write_all(int descriptor, const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t count = write(descriptor, bytes, length);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return false;
        bytes += count;
        length -= (size_t)count;
    }
    return true;
}

bool child_tell(tool_child *child, json_t *object, message *why)
{
    char *text = object == NULL ? NULL : json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (text == NULL)
        return message_set(why, "no memory for a line to the %s process", child->name);
    bool written = write_all(child->input, text, strlen(text)) && write_all(child->input, "\n", 1);
    free(text);
    return written ||
           message_set(why, "the %s process takes no more lines: %s", child->name, strerror(errno));
}

static json_t *parse_answer(const tool_child *child, const char *line, size_t length, message *why)
{
    json_error_t error;
    json_t *answer = json_loadb(line, length, 0, &error);
    const char *mistake = json_string_value(json_object_get(answer, "error"));
    if (answer == NULL)
        (void)message_set(why, "the %s process answered something else than JSON", child->name);
    else if (mistake != NULL)
        (void)message_set(why, "the %s process: %s", child->name, mistake);
    else
        return answer;
    json_decref(answer);
    return NULL;
}

/* Waits for more of the child's output. */
static bool wait_for_bytes(tool_child *child, uint64_t deadline, message *why)
{
    uint64_t now = clock_now();
    int left = now >= deadline ? 0 : (int)((deadline - now) / 1000000 + 1);
    struct pollfd source = {child->answers.descriptor, POLLIN, 0};
    int ready = poll(&source, 1, left);
    if (ready < 0 && errno == EINTR)
        return true;
    if (ready <= 0)
        return message_set(why, "the %s process is silent", child->name);
    return line_reader_fill(&child->answers) ||
           message_set(why, "the %s process: %s", child->name, strerror(errno));
}

json_t *child_answer(tool_child *child, int timeout_ms, message *why)
{
    uint64_t deadline = clock_now() + (uint64_t)timeout_ms * 1000000;
    for (;;) {
        char *line = NULL;
        size_t length = 0;
        switch (line_reader_next(&child->answers, &line, &length)) {
        case LINE_WHOLE:
            return parse_answer(child, line, length, why);
        case LINE_NONE:
            if (!wait_for_bytes(child, deadline, why))
                return NULL;
            break;
        case LINE_END:
            (void)message_set(why, "the %s process ended", child->name);
            return NULL;
        case LINE_TOO_LONG:
            (void)message_set(why, "the %s process answered with an endless line", child->name);
            return NULL;
        }
    }
}

/* Waits for the end of the child's output, which is the end of the child unless it misbehaves. */
static void wait_for_end(tool_child *child, uint64_t deadline)
{
    char *line = NULL;
    size_t length = 0;
    message ignored;
    for (;;) {
        line_found found = line_reader_next(&child->answers, &line, &length);
        if (found == LINE_END)
            return;
        if (found == LINE_NONE && !wait_for_bytes(child, deadline, &ignored)) {
            (void)kill(child->pid, SIGKILL);
            return;
        }
    }
}

int child_end(tool_child *child, int timeout_ms)
{
    if (child->pid == 0)
        return 0;
    int status = 0;
    (void)close(child->input);
    wait_for_end(child, clock_now() + (uint64_t)timeout_ms * 1000000);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    (void)close(child->answers.descriptor);
    line_reader_close(&child->answers);
    child->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
