/* The processes of a run: what they are started with, and how they end. */
#include "clock.h"
#include "torture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXTS = 32, TEXT_SIZE = 128, ARGUMENTS = 300, START_MS = 20000, END_MS = 5000 };

/* Arguments, and the texts that some of them point into. */
typedef struct arguments {
    const char *list[ARGUMENTS];
    size_t count;
    char texts[TEXTS][TEXT_SIZE];
    size_t text_count;
} arguments;

static void add(arguments *all, const char *word)
{
    all->list[all->count++] = word;
    all->list[all->count] = NULL;
}

static void add_number(arguments *all, const char *name, uint64_t value)
{
    char *text = all->texts[all->text_count++];
    (void)snprintf(text, TEXT_SIZE, "%llu", (unsigned long long)value);
    add(all, name);
    add(all, text);
}

static void set(arguments *all, const char *name, const char *value)
{
    char *text = all->texts[all->text_count++];
    (void)snprintf(text, TEXT_SIZE, "%s=%s", name, value);
    add(all, "--set");
    add(all, text);
}

static const char *transports_of(const char *name)
{
    if (strcmp(name, "shm") == 0)
        return "posix,sysv,cma,self";
    return strcmp(name, "tcp") == 0 ? "tcp,self" : name;
}

/* UCX's lists have commas, as ours has. */
static void add_common(const torture_processes *processes, arguments *all)
{
    const torture_options *options = processes->options;
    add(all, "--bootstrap");
    add(all, processes->bootstrap);
    set(all, "advertise_address", "127.0.0.1");
    set(all, "transports", transports_of(options->transports));
    set(all, "log_level", "error");
    set(all, "heartbeat_interval", "200ms");
    set(all, "heartbeat_timeout", TORTURE_HEARTBEAT_TIMEOUT);
    set(all, "bootstrap_timeout", TORTURE_BOOTSTRAP_TIMEOUT);
    set(all, "waiting_timeout", TORTURE_WAITING_TIMEOUT);
    set(all, "fence_timeout", TORTURE_FENCE_TIMEOUT);
    if (processes->stock)
        set(all, "extensions", "off");
    for (size_t i = 0; i < options->set.count; i++) {
        add(all, "--set");
        add(all, options->set.items[i]);
    }
}

static void set_faults(const torture_processes *processes, arguments *all)
{
    char value[TEXT_SIZE / 2] = "";
    if (processes->slow)
        (void)snprintf(value, sizeof value, "hold_ms=%u,transfer_stall=%u",
                       processes->slowness.hold_ms, processes->slowness.stall);
    if (processes->options->plant != NULL)
        (void)snprintf(value + strlen(value), sizeof value - strlen(value), "%sack_early=all",
                       processes->slow ? "," : "");
    if (value[0] != '\0')
        set(all, "fault", value);
}

/* Small pieces, few at a time: a transfer takes long enough to be met in its middle. */
static void list_prefill(const torture_processes *processes, arguments *all)
{
    add(all, "prefill");
    add_number(all, "--buffers", TORTURE_BUFFERS);
    add_number(all, "--pages", TORTURE_PAGES);
    add_number(all, "--item-len", TORTURE_ITEM);
    add_number(all, "--aux-slots", TORTURE_AUX_SLOTS);
    add_number(all, "--aux-item-len", TORTURE_AUX_ITEM);
    add(all, "--quiet");
    add_common(processes, all);
    set(all, "registration_check", "200ms");
    set(all, "write_size", "4KiB");
    set(all, "outstanding_bytes", "16KiB");
    char port[16];
    (void)snprintf(port, sizeof port, "%llu", (unsigned long long)processes->prefill_port);
    set(all, "control_port", port);
    set_faults(processes, all);
}

static void list_decode(torture_processes *processes, arguments *all)
{
    processes->decodes++;
    add(all, "torture-decode");
    add_common(processes, all);
    set(all, "retry_interval", "50ms");
    add_number(all, "--seed", processes->options->seed + processes->decodes);
    add_number(all, "--first-id", processes->decodes * TORTURE_ID_BASE);
    add_number(all, "--abort-here", processes->abort_here);
    add_number(all, "--abort-there", processes->abort_there);
    if (strcmp(processes->options->fence, "off") == 0)
        add(all, "--no-fence");
    if (processes->stock)
        add(all, "--fresh-ids");
}

/* The one process that doesn't speak JSON: its first line ends with where it listens. */
static bool await_bootstrap(torture_processes *processes, message *why)
{
    tool_child *child = &processes->children[TORTURE_BOOTSTRAP];
    uint64_t deadline = clock_now() + START_MS * UINT64_C(1000000);
    char *line = NULL;
    size_t length = 0;
    line_found found;
    while ((found = line_reader_next(&child->answers, &line, &length)) == LINE_NONE) {
        struct pollfd source = {child->answers.descriptor, POLLIN, 0};
        if (clock_now() > deadline)
            return message_set(why, "the bootstrap server is silent");
        if (poll(&source, 1, 100) > 0)
            (void)line_reader_fill(&child->answers);
    }
    const char *address = found == LINE_WHOLE ? strrchr(line, ' ') : NULL;
    if (address == NULL)
        return message_set(why, "the bootstrap server didn't start");
    (void)snprintf(processes->bootstrap, sizeof processes->bootstrap, "%s", address + 1);
    return true;
}

bool torture_start(torture_processes *processes, torture_victim which, message *why)
{
    arguments *all = calloc(1, sizeof *all);
    if (all == NULL)
        return message_set(why, "no memory for arguments");
    if (which == TORTURE_BOOTSTRAP) {
        add(all, "bootstrap");
        add(all, "--listen");
        add(all, processes->bootstrap);
    } else if (which == TORTURE_PREFILL) {
        list_prefill(processes, all);
    } else {
        list_decode(processes, all);
    }
    bool started = child_start(&processes->children[which], all->list, why);
    free(all);
    return started && (which != TORTURE_BOOTSTRAP || await_bootstrap(processes, why));
}

void torture_signal(torture_processes *processes, torture_victim which, int signal_number)
{
    if (processes->children[which].pid > 0)
        (void)kill(processes->children[which].pid, signal_number);
}

/* The lowest descriptor that is free: with this limit none can be opened, and those above it go on. */
static rlim_t first_free_descriptor(pid_t pid)
{
    char path[64];
    rlim_t number = 0;
    do
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%llu", (int)pid,
                       (unsigned long long)number++);
    while (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
    return number - 1;
}

bool torture_starve(torture_processes *processes, torture_victim which)
{
    struct rlimit *before = &processes->descriptors[which];
    pid_t pid = processes->children[which].pid;
    if (prlimit(pid, RLIMIT_NOFILE, NULL, before) != 0)
        return false;
    const struct rlimit used = {first_free_descriptor(pid), before->rlim_max};
    return prlimit(pid, RLIMIT_NOFILE, &used, NULL) == 0;
}

void torture_feed(torture_processes *processes, torture_victim which)
{
    /* If it has ended meanwhile, that is noticed by itself. */
    if (processes->children[which].pid > 0)
        (void)prlimit(processes->children[which].pid, RLIMIT_NOFILE, &processes->descriptors[which],
                      NULL);
}

int torture_reap(torture_processes *processes, torture_victim which)
{
    return child_end(&processes->children[which], END_MS);
}

const char *torture_how(int status, message *how)
{
    if (status < 0)
        (void)message_set(how, "of a signal");
    else
        (void)message_set(how, "with status %d", status);
    return how->text;
}
