/* The other side of `kvferry doctor --peer`: a bootstrap server and a prefill rank whose rooms are always
 * open. */
#include "doctor.h"
#include "doctor_route.h"
#include "doctor_trial.h"
#include "exit_codes.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 64, REGISTER_ATTEMPTS = 500 };

typedef struct trial_server {
    tool_pool pool;
    kvf_bootstrap *bootstrap;
    kvf_manager *manager;
    kvf_sender *senders[TRIAL_ROOMS];
    uint32_t pages[TRIAL_PAGES];
    int signals;
    char own[300]; /* host:port of the bootstrap server as seen from here */
} trial_server;

static bool catch_signals(trial_server *server, message *why)
{
    sigset_t stop;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &stop, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    server->signals = signalfd(-1, &stop, SFD_CLOEXEC);
    return server->signals >= 0 || message_set(why, "can't wait for signals: %s", strerror(errno));
}

/* "0.0.0.0:7" and "[::]:7" are reached at the loopback address. */
static void set_own_address(trial_server *server, const char *listen)
{
    const char *colon = strrchr(listen, ':');
    int length = colon == NULL ? 0 : (int)(colon - listen);
    char host[256];
    (void)snprintf(host, sizeof host, "%.*s", length < 255 ? length : 255, listen);
    const char *own = host;
    if (strcmp(host, "0.0.0.0") == 0)
        own = "127.0.0.1";
    else if (strcmp(host, "[::]") == 0)
        own = "[::1]";
    (void)snprintf(server->own, sizeof server->own, "%s:%u", own,
                   (unsigned)kvf_bootstrap_port(server->bootstrap));
}

/* The rooms wait for peers for as long as settings allow. */
static kvf_status change_settings(kvf_settings *settings, const char *bootstrap)
{
    static const char longest[] = "1440min";
    kvf_status status = kvf_settings_set(settings, "bootstrap_address", bootstrap);
    if (status == KVF_OK)
        status = kvf_settings_set(settings, "bootstrap_timeout", longest);
    if (status == KVF_OK)
        status = kvf_settings_set(settings, "waiting_timeout", longest);
    return status;
}

static kvf_status open_manager(trial_server *server, const doctor_subject *subject)
{
    const char *listen = subject->options->listen;
    kvf_status status = kvf_bootstrap_start(&server->bootstrap, listen, subject->settings);
    if (status != KVF_OK)
        return status;
    set_own_address(server, listen);
    status = change_settings(subject->settings, server->own);
    kvf_layout layout = trial_layout(&server->pool);
    if (status == KVF_OK)
        status = kvf_manager_open(&server->manager, KVF_PREFILL, &layout, subject->settings);
    return status;
}

static kvf_status open_room(trial_server *server, size_t index)
{
    kvf_sender **sender = &server->senders[index];
    kvf_status status = kvf_sender_open(server->manager, TRIAL_FIRST_ROOM + index, NULL, sender);
    if (status == KVF_OK)
        status = kvf_sender_expect(*sender, TRIAL_PAGES, 0);
    if (status == KVF_OK)
        status = kvf_sender_send(*sender, server->pages, TRIAL_PAGES);
    return status;
}

static int open_server(trial_server *server, const doctor_subject *subject, message *why)
{
    if (!catch_signals(server, why) || !pool_open(&server->pool, &trial_shape, false, why))
        return TOOL_ENVIRONMENT;
    pool_fill(&server->pool, TRIAL_SEED);
    trial_pages(KVF_PREFILL, server->pages);
    kvf_status status = open_manager(server, subject);
    for (size_t i = 0; i < TRIAL_ROOMS && status == KVF_OK; i++)
        status = open_room(server, i);
    if (status != KVF_OK)
        (void)message_set(why, "%s", kvf_error_text());
    return tool_exit_of(status);
}

static void close_server(trial_server *server)
{
    kvf_manager_close(server->manager);
    kvf_bootstrap_stop(server->bootstrap);
    pool_close(&server->pool);
    if (server->signals >= 0)
        (void)close(server->signals);
}

/* Tells where the rank is, as the bootstrap server tells peers. */
static bool announce(const trial_server *server, const char *listen, message *why)
{
    route_answer answer = {.status = 0};
    const struct timespec pause = {.tv_nsec = 10000000};
    kvf_statistics statistics = {.size = sizeof statistics};
    for (int i = 0; i < REGISTER_ATTEMPTS && statistics.registered == 0; i++) {
        (void)nanosleep(&pause, NULL);
        (void)kvf_manager_statistics(server->manager, &statistics);
    }
    route_client *client = route_open(server->own);
    if (client == NULL)
        return message_set(why, "no memory for a request");
    route_ask(client, 0, 0, &answer);
    route_close(client);
    const char *host = json_string_value(json_object_get(answer.object, "rank_ip"));
    if (host == NULL) {
        route_free(&answer);
        return message_set(why, "the rank doesn't get registered: %s", answer.trouble.text);
    }
    unsigned port = (unsigned)kvf_bootstrap_port(server->bootstrap);
    bool everywhere = strncmp(listen, "0.0.0.0:", 8) == 0 || strncmp(listen, "[::]:", 5) == 0;
    bool ipv6 = strchr(host, ':') != NULL;
    (void)printf("serving; peers are told %s port %lld\non the other machine: kvferry doctor "
                 "--peer ",
                 host, (long long)json_integer_value(json_object_get(answer.object, "rank_port")));
    if (everywhere)
        (void)printf("%s%s%s:%u\n", ipv6 ? "[" : "", host, ipv6 ? "]" : "", port);
    else
        (void)printf("%.*s:%u\n", (int)(strrchr(listen, ':') - listen), listen, port);
    (void)fflush(stdout);
    route_free(&answer);
    return true;
}

/* Tells how a room ended and opens it again. */
static bool renew_room(trial_server *server, const kvf_event *event, message *why)
{
    size_t index = (size_t)(event->room - TRIAL_FIRST_ROOM);
    kvf_sender *sender = server->senders[index];
    if (event->state == KVF_SUCCESS)
        (void)printf("sent %llu bytes\n", (unsigned long long)event->bytes);
    else
        (void)printf("failed: %s: %s\n", kvf_status_name((kvf_status)event->status),
                     kvf_sender_failure_text(sender));
    kvf_sender_close(sender);
    server->senders[index] = NULL;
    if (fflush(stdout) != 0)
        return message_set(why, "standard output is closed");
    return open_room(server, index) == KVF_OK || message_set(why, "%s", kvf_error_text());
}

static bool take_events(trial_server *server, message *why)
{
    kvf_event events[EVENTS_AT_ONCE];
    int count = kvf_manager_wait(server->manager, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++)
        if ((events[i].state == KVF_SUCCESS || events[i].state == KVF_FAILED) &&
            !renew_room(server, &events[i], why))
            return false;
    return true;
}

static bool serve_until_stopped(trial_server *server, message *why)
{
    struct pollfd sources[] = {{kvf_manager_fd(server->manager), POLLIN, 0},
                               {server->signals, POLLIN, 0}};
    while (sources[1].revents == 0) {
        if (poll(sources, 2, -1) < 0 && errno != EINTR)
            return message_set(why, "can't wait: %s", strerror(errno));
        if (sources[0].revents != 0 && !take_events(server, why))
            return false;
    }
    return true;
}

int doctor_serve(const doctor_subject *subject)
{
    trial_server *server = calloc(1, sizeof *server);
    message why = {""};
    if (server == NULL)
        return TOOL_ENVIRONMENT;
    server->signals = -1;
    int result = open_server(server, subject, &why);
    if (result == TOOL_FINE &&
        (!announce(server, subject->options->listen, &why) || !serve_until_stopped(server, &why)))
        result = TOOL_ENVIRONMENT;
    if (result != TOOL_FINE)
        (void)fprintf(stderr, "kvferry doctor: %s\n", why.text);
    close_server(server);
    free(server);
    return result;
}
