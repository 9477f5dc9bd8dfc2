#include "commands.h"
#include "exit_codes.h"
#include "kvferry/kvferry.h"
#include "nearest.h"
#include "worker.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct command_row {
    const char *name;
    int (*run)(int count, char **arguments);
    const char *help; /* NULL: not for people */
} command_row;

static const command_row commands[] = {
    {"demo", command_demo, "move a real model's KV cache between two processes and check it"},
    {"bootstrap", command_bootstrap, "serve as the bootstrap server"},
    {"prefill", command_prefill, "serve a filled pool; rooms come as JSON lines"},
    {"decode", command_decode, "fill a pool from a prefill worker and check every byte"},
    {"doctor", command_doctor, "check this machine and say what is wrong and what to do"},
    {"torture", command_torture, "kill, stop, abort and restart, and look whether a byte is wrong"},
    {"torture-decode", command_torture_decode, NULL},
    {"settings", command_settings, "list every setting"}};

static const size_t command_count = sizeof commands / sizeof commands[0];

int command_prefill(int count, char **arguments)
{
    return worker_run(KVF_PREFILL, count, arguments);
}

int command_decode(int count, char **arguments)
{
    return worker_run(KVF_DECODE, count, arguments);
}

static int print_help(FILE *stream)
{
    (void)fputs("kvferry moves one request's paged KV cache from the prefill worker that computed\n"
                "it to the decode worker that will use it.\n\nUsage: kvferry COMMAND [OPTIONS]\n\n"
                "Commands\n",
                stream);
    for (size_t i = 0; i < command_count; i++)
        if (commands[i].help != NULL)
            (void)fprintf(stream, "  %-10s %s\n", commands[i].name, commands[i].help);
    (void)fputs("\n`kvferry help COMMAND` has a command's options, `kvferry --version` the "
                "versions.\nStart with `kvferry demo`. The manual is kvferry(1).\n\n"
                "Environment\n  KVFERRY_<SETTING>, e.g. KVFERRY_LOG_LEVEL=debug; "
                "`kvferry settings` lists them.\n\n"
                "Exit status\n  0  all is well\n"
                "  1  a room failed, a byte was wrong, a line wasn't understood, a promise was\n"
                "     broken, or the doctor found a problem\n"
                "  2  wrong options or settings\n"
                "  3  the machine refused: a port is taken, memory is short, UCX says no\n",
                stream);
    return TOOL_FINE;
}

static int print_version(void)
{
    (void)printf("kvferry %s\nUCX %s\n", kvf_version(), kvf_ucx_version());
    return TOOL_FINE;
}

static int unknown_command(const char *name)
{
    nearest search = nearest_to(name);
    for (size_t i = 0; i < command_count; i++)
        if (commands[i].help != NULL)
            nearest_consider(&search, commands[i].name);
    (void)fprintf(stderr,
                  "kvferry: there is no command \"%.64s\"; nearest is %s, `kvferry --help` has "
                  "all\n",
                  name, search.best);
    return TOOL_USAGE;
}

static int run_command(const char *name, int count, char **arguments)
{
    for (size_t i = 0; i < command_count; i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(count, arguments);
    return unknown_command(name);
}

/* `kvferry help` and `kvferry help COMMAND`. */
static int help(int count, char **arguments)
{
    static char option[] = "--help";
    char *only_help[] = {option, NULL};
    return count == 0 ? print_help(stdout) : run_command(arguments[0], 1, only_help);
}

/* UCX writes its warnings to descriptor 1, into the middle of our JSON lines. From here on that descriptor is
 * standard error, and our `stdout` has one of its own. */
static void keep_output_to_ourselves(void)
{
    (void)fflush(stdout);
    int output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    FILE *ours = output < 0 ? NULL : fdopen(output, "w");
    if (ours == NULL || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return;
    stdout = ours;
}

int main(int count, char **arguments)
{
    keep_output_to_ourselves();
    if (count < 2) {
        (void)print_help(stderr);
        return TOOL_USAGE;
    }
    const char *name = arguments[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0)
        return help(count - 2, arguments + 2);
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0)
        return print_version();
    return run_command(name, count - 2, arguments + 2);
}
