#include "commands.h"
#include "exit_codes.h"
#include "worker_options.h"

#include <signal.h>
#include <string.h>

typedef struct bootstrap_options {
    const char *listen;
    option_list set;
} bootstrap_options;

static const option_row rows[] = {
    {"listen", "HOST:PORT", OPTION_TEXT, offsetof(bootstrap_options, listen), 0, 0,
     "where to listen (0.0.0.0:8998); port 0: any free one"},
    {"set", "NAME=VALUE", OPTION_LIST, offsetof(bootstrap_options, set), 0, 0,
     "any setting of `kvferry settings`"}};

static const option_table table = {
    "bootstrap", "serves as the HTTP server at which workers find each other",
    "Prints the address it listens on and runs until SIGINT or SIGTERM.\n"
    "Exit status: 0 stopped by a signal, 2 wrong options, 3 it can't listen there.\n",
    rows, sizeof rows / sizeof rows[0]};

static int serve_until_stopped(const bootstrap_options *options, const kvf_settings *settings)
{
    sigset_t stop;
    int signal_number = 0;
    kvf_bootstrap *bootstrap = NULL;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
    kvf_status status = kvf_bootstrap_start(&bootstrap, options->listen, settings);
    if (status != KVF_OK) {
        (void)fprintf(stderr, "kvferry bootstrap: %s\n", kvf_error_text());
        return tool_exit_of(status);
    }
    const char *colon = strrchr(options->listen, ':');
    int host_length = colon == NULL ? 0 : (int)(colon - options->listen);
    (void)printf("listening on %.*s:%u\n", host_length, options->listen,
                 (unsigned)kvf_bootstrap_port(bootstrap));
    (void)fflush(stdout);
    while (sigwait(&stop, &signal_number) != 0)
        continue;
    kvf_bootstrap_stop(bootstrap);
    return TOOL_FINE;
}

int command_bootstrap(int count, char **arguments)
{
    bootstrap_options options = {.listen = "0.0.0.0:8998"};
    int result = TOOL_FINE;
    message why;
    if (!options_begin(&table, count, arguments, &options, &result))
        return result;
    kvf_settings *settings = settings_from_options(&options.set, &why);
    if (settings == NULL) {
        (void)fprintf(stderr, "kvferry bootstrap: %s\n", why.text);
        return TOOL_USAGE;
    }
    result = serve_until_stopped(&options, settings);
    kvf_settings_close(settings);
    return result;
}
