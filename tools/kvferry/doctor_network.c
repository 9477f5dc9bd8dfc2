/* Names, addresses and ports: what this machine calls itself, what peers are told, who answers. */
#include "doctor.h"

#include "clock.h"
#include "doctor_route.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- The host's name ---- */

static void list_addresses(const struct addrinfo *addresses, char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (const struct addrinfo *each = addresses; each != NULL && used < capacity;
         each = each->ai_next) {
        char host[256] = "?";
        (void)getnameinfo(each->ai_addr, each->ai_addrlen, host, sizeof host, NULL, 0,
                          NI_NUMERICHOST);
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", used == 0 ? "" : ", ", host);
    }
}

void doctor_host_name(const doctor_subject *subject, doctor_finding *finding)
{
    static const char advice[] =
        "Add the host to /etc/hosts or mend the name server (/etc/resolv.conf). kvferry needs the "
        "name only where there is no route and no advertise_address.";
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses = NULL;
    char name[256] = "";
    char text[512];
    (void)subject;
    (void)gethostname(name, sizeof name - 1);
    uint64_t began = clock_now();
    int result = getaddrinfo(name, NULL, &hints, &addresses);
    double seconds = (double)(clock_now() - began) / 1e9;
    if (result != 0) {
        doctor_warn(finding, advice, "%s: %s", name,
                    result == EAI_SYSTEM ? strerror(errno) : gai_strerror(result));
        return;
    }
    list_addresses(addresses, text, sizeof text);
    freeaddrinfo(addresses);
    if (seconds > 1)
        doctor_warn(finding, advice, "%s is %s, but looking it up took %.1f s", name, text,
                    seconds);
    else
        doctor_fine(finding, "%s is %s", name, text);
}

/* ---- A prefill rank as peers would see it ---- */

typedef struct trial_rank {
    uint8_t page[4096];
    kvf_bootstrap *bootstrap;
    kvf_manager *manager;
} trial_rank;

/* Opens a prefill manager that needs no UCX: its control port and its registration are real. */
static kvf_status open_rank(trial_rank *rank, kvf_settings *settings, const char *bootstrap)
{
    const kvf_buffer buffer = {.size = sizeof buffer,
                               .base = (uint64_t)(uintptr_t)rank->page,
                               .length = sizeof rank->page,
                               .item_length = sizeof rank->page};
    const kvf_layout layout = {.size = sizeof layout, .buffers = &buffer, .buffer_count = 1};
    kvf_status status = kvf_settings_set(settings, "engine", "loop");
    if (status == KVF_OK)
        status = kvf_settings_set(settings, "bootstrap_address", bootstrap);
    if (status == KVF_OK)
        status = kvf_manager_open(&rank->manager, KVF_PREFILL, &layout, settings);
    return status;
}

static void close_rank(trial_rank *rank)
{
    kvf_manager_close(rank->manager);
    kvf_bootstrap_stop(rank->bootstrap);
}

void doctor_control_port(const doctor_subject *subject, doctor_finding *finding)
{
    static trial_rank rank;
    char wanted[16];
    (void)snprintf(wanted, sizeof wanted, "%s",
                   kvf_settings_get(subject->settings, "control_port"));
    kvf_status status = open_rank(&rank, subject->settings, "");
    if (status == KVF_ADDRESS_IN_USE)
        doctor_complain(finding,
                        "Stop what has the port (ss -ltnp), or set another control_port; 0: any "
                        "free one.",
                        "%s", kvf_error_text());
    else if (status != KVF_OK)
        doctor_complain(finding,
                        "Look at the settings control_address, control_port and "
                        "advertise_address.",
                        "%s", kvf_error_text());
    else if (strcmp(wanted, "0") == 0)
        doctor_fine(finding, "any free one, now %u", (unsigned)kvf_manager_port(rank.manager));
    else
        doctor_fine(finding, "%s is free", wanted);
    close_rank(&rank);
}

/* Starts a bootstrap server and a rank that registers at it, and asks it for the rank. */
static bool ask_own_row(trial_rank *rank, kvf_settings *settings, route_answer *answer)
{
    char address[32];
    *answer = (route_answer){.advice = "Look at the settings control_address and "
                                       "advertise_address."};
    kvf_status status = kvf_bootstrap_start(&rank->bootstrap, "127.0.0.1:0", settings);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u",
                   (unsigned)kvf_bootstrap_port(rank->bootstrap));
    if (status == KVF_OK)
        status = kvf_settings_set(settings, "control_port", "0");
    if (status == KVF_OK)
        status = open_rank(rank, settings, address);
    if (status != KVF_OK)
        return message_set(&answer->trouble, "%s", kvf_error_text());
    kvf_statistics statistics = {.size = sizeof statistics};
    const struct timespec pause = {.tv_nsec = 10000000};
    uint64_t deadline = clock_now() + UINT64_C(4000000000);
    while (statistics.registered == 0 && clock_now() < deadline) {
        (void)nanosleep(&pause, NULL);
        (void)kvf_manager_statistics(rank->manager, &statistics);
    }
    route_client *client = route_open(address);
    if (client == NULL)
        return message_set(&answer->trouble, "no memory for a request");
    route_ask(client, 0, 0, answer);
    route_close(client);
    return answer->object != NULL;
}

static bool is_loopback(const char *host)
{
    struct in_addr ipv4;
    struct in6_addr ipv6;
    if (inet_pton(AF_INET, host, &ipv4) == 1)
        return ntohl(ipv4.s_addr) >> 24 == 127;
    return strcmp(host, "localhost") == 0 ||
           (inet_pton(AF_INET6, host, &ipv6) == 1 && IN6_IS_ADDR_LOOPBACK(&ipv6));
}

static void judge_address(const char *host, int port, bool set, doctor_finding *finding)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses = NULL;
    const char *origin = set ? "as the setting says" : "found by a route lookup";
    int result = getaddrinfo(host, NULL, &hints, &addresses);
    if (result == 0)
        freeaddrinfo(addresses);
    if (result != 0)
        doctor_complain(finding, "Set advertise_address to an address that peers can connect to.",
                        "peers would be told %s, which nobody can look up: %s", host,
                        gai_strerror(result));
    else if (is_loopback(host))
        doctor_warn(finding,
                    "Peers on other machines would connect to themselves: set advertise_address to "
                    "an address of the network they are in.",
                    "peers are told %s port %d, %s: it is this machine's own loopback", host, port,
                    origin);
    else
        doctor_fine(finding, "peers are told %s port %d, %s", host, port, origin);
}

void doctor_advertised_address(const doctor_subject *subject, doctor_finding *finding)
{
    static trial_rank rank;
    route_answer answer;
    bool set = kvf_settings_get(subject->settings, "advertise_address")[0] != '\0';
    if (ask_own_row(&rank, subject->settings, &answer)) {
        const char *host = json_string_value(json_object_get(answer.object, "rank_ip"));
        judge_address(host == NULL ? "" : host,
                      (int)json_integer_value(json_object_get(answer.object, "rank_port")), set,
                      finding);
    } else
        doctor_complain(finding, answer.advice, "%s", answer.trouble.text);
    route_free(&answer);
    close_rank(&rank);
}

/* ---- The bootstrap server ---- */

enum { RANKS_ASKED_MAX = 256 };

typedef struct rank_census {
    int64_t asked;
    int64_t kvferry;
    int64_t stock;
} rank_census;

static bool count_ranks(route_client *client, const route_sizes *sizes, rank_census *census,
                        route_answer *answer)
{
    int64_t group_size = sizes->tensor_ranks / sizes->groups;
    for (int64_t i = 0; i < sizes->tensor_ranks && i < RANKS_ASKED_MAX; i++) {
        route_ask(client, i % group_size, i / group_size, answer);
        if (answer->status == 0)
            return false;
        census->asked++;
        if (json_object_get(answer->object, "kvferry") != NULL)
            census->kvferry++;
        else if (answer->object != NULL)
            census->stock++;
        route_free(answer);
    }
    return true;
}

static void judge_ranks(const char *address, const char *server, const route_sizes *sizes,
                        const rank_census *census, doctor_finding *finding)
{
    bool stock_server = strstr(server, "aiohttp") != NULL;
    const char *kind = stock_server ? "SGLang's" : "kvferry's";
    const char *who = "kvferry and stock";
    if (stock_server)
        who = "kvferry or stock"; /* it doesn't hand on what tells them apart */
    else if (census->stock == 0 || census->kvferry == 0)
        who = census->stock == 0 ? "all kvferry" : "all stock";
    long long missing = (long long)(census->asked - census->kvferry - census->stock);
    if (sizes->tensor_ranks == 0)
        doctor_fine(finding, "%s: %s bootstrap server; no prefill rank has registered yet", address,
                    kind);
    else if (missing > 0)
        doctor_warn(finding, "Rooms wait until they register: look at those prefill ranks.",
                    "%s: %s bootstrap server; %lld of %lld prefill ranks have not registered",
                    address, kind, missing, (long long)census->asked);
    else
        doctor_fine(finding,
                    "%s: %s bootstrap server; prefill tp %lld, dp %lld; ranks registered: %lld, %s",
                    address, kind, (long long)sizes->tensor_ranks, (long long)sizes->groups,
                    (long long)census->asked, who);
}

void doctor_bootstrap_server(const doctor_subject *subject, doctor_finding *finding)
{
    char address[256];
    route_sizes sizes;
    rank_census census = {.asked = 0};
    route_answer answer;
    (void)snprintf(address, sizeof address, "%s",
                   kvf_settings_get(subject->settings, "bootstrap_address"));
    if (address[0] == '\0') {
        doctor_fine(finding, "the setting bootstrap_address is empty: nothing to ask");
        return;
    }
    route_client *client = route_open(address);
    if (client == NULL) {
        doctor_complain(finding, "", "no memory for a request");
        return;
    }
    bool known = route_ask_sizes(client, &sizes, &answer);
    char server[sizeof answer.server];
    (void)snprintf(server, sizeof server, "%s", answer.server);
    if (known && sizes.tensor_ranks > 0) {
        route_free(&answer);
        known = count_ranks(client, &sizes, &census, &answer);
    }
    if (known)
        judge_ranks(address, server, &sizes, &census, finding);
    else
        doctor_complain(finding, answer.advice, "%s", answer.trouble.text);
    route_free(&answer);
    route_close(client);
}
