/* A real small transfer from another machine's `kvferry doctor --serve` to here. */
#include "clock.h"
#include "doctor.h"
#include "doctor_route.h"
#include "doctor_trial.h"

#include <stdio.h>
#include <unistd.h>

static const char start_server[] =
    "Run `kvferry doctor --serve` on the other machine and give the address it prints.";

typedef struct trial_peer {
    tool_pool pool;
    kvf_manager *manager;
    char rank[300]; /* where the other side is, for a person */
} trial_peer;

typedef struct trial_result {
    uint64_t bytes;
    uint64_t took; /* nanoseconds */
} trial_result;

/* Whether the server there is one of kvferry's with one rank: nothing is sent to another. */
static bool find_rank(const char *address, trial_peer *peer, doctor_finding *finding)
{
    route_answer answer;
    route_sizes sizes;
    route_client *client = route_open(address);
    if (client == NULL) {
        doctor_complain(finding, "", "no memory for a request");
        return false;
    }
    bool known = route_ask_sizes(client, &sizes, &answer);
    if (known && sizes.tensor_ranks == 1) {
        route_free(&answer);
        route_ask(client, 0, 0, &answer);
    }
    const char *host = json_string_value(json_object_get(answer.object, "rank_ip"));
    bool ours = json_object_get(answer.object, "kvferry") != NULL && host != NULL;
    if (ours)
        (void)snprintf(peer->rank, sizeof peer->rank, "%.255s port %lld", host,
                       (long long)json_integer_value(json_object_get(answer.object, "rank_port")));
    else if (known && answer.status == 200)
        doctor_complain(finding, start_server,
                        "%s: a bootstrap server, but not of `kvferry doctor --serve`; nothing was "
                        "sent to it",
                        address);
    else
        doctor_complain(finding, answer.advice, "%s", answer.trouble.text);
    route_free(&answer);
    route_close(client);
    return ours;
}

static bool open_peer(trial_peer *peer, const doctor_subject *subject, message *why)
{
    char timeout[32];
    if (!pool_open(&peer->pool, &trial_shape, false, why))
        return false;
    (void)snprintf(timeout, sizeof timeout, "%llus", (unsigned long long)subject->options->timeout);
    kvf_layout layout = trial_layout(&peer->pool);
    if (kvf_settings_set(subject->settings, "bootstrap_timeout", timeout) == KVF_OK &&
        kvf_settings_set(subject->settings, "waiting_timeout", timeout) == KVF_OK &&
        kvf_manager_open(&peer->manager, KVF_DECODE, &layout, subject->settings) == KVF_OK)
        return true;
    return message_set(why, "%s", kvf_error_text());
}

static void close_peer(trial_peer *peer)
{
    kvf_manager_close(peer->manager);
    pool_close(&peer->pool);
}

/* Waits for the room's end. False with a message when it failed. */
static bool wait_for_end(const trial_peer *peer, const kvf_receiver *receiver, uint64_t limit,
                         uint64_t *bytes, message *why)
{
    kvf_event event = {.state = KVF_BOOTSTRAPPING};
    uint64_t deadline = clock_now() + (limit + 5) * 1000000000;
    while (event.state != KVF_SUCCESS && event.state != KVF_FAILED && clock_now() < deadline)
        if (kvf_manager_wait(peer->manager, &event, 1, 200) < 0)
            return message_set(why, "%s", kvf_error_text());
    *bytes = event.bytes;
    return event.state == KVF_SUCCESS ||
           message_set(why, "%s: %s", kvf_status_name(kvf_receiver_status(receiver)),
                       kvf_receiver_failure_text(receiver));
}

static bool check_bytes(const trial_peer *peer, message *why)
{
    uint32_t pages[TRIAL_PAGES];
    uint32_t source[TRIAL_PAGES];
    trial_pages(KVF_DECODE, pages);
    trial_pages(KVF_PREFILL, source);
    const pool_claim claim = {.seed = TRIAL_SEED,
                              .pages = pages,
                              .source_pages = source,
                              .page_count = TRIAL_PAGES,
                              .aux_count = 1};
    return pool_check(&peer->pool, &claim, why);
}

static bool move_room(trial_peer *peer, const doctor_options *options, uint64_t room,
                      trial_result *result, message *why)
{
    uint32_t pages[TRIAL_PAGES];
    kvf_receiver *receiver = NULL;
    trial_pages(KVF_DECODE, pages);
    pool_poison(&peer->pool);
    uint64_t began = clock_now();
    if (kvf_receiver_open(peer->manager, options->peer, room, NULL, &receiver) != KVF_OK)
        return message_set(why, "%s", kvf_error_text());
    bool moved = kvf_receiver_expect(receiver, pages, TRIAL_PAGES, 0) == KVF_OK ||
                 message_set(why, "%s", kvf_error_text());
    moved = moved && wait_for_end(peer, receiver, options->timeout, &result->bytes, why);
    result->took = clock_now() - began;
    kvf_receiver_close(receiver);
    return moved && check_bytes(peer, why);
}

/* Two rooms: the first one connects. */
static bool run_trial(trial_peer *peer, const doctor_subject *subject, doctor_finding *finding,
                      message *why)
{
    trial_result first = {.bytes = 0};
    trial_result second = {.bytes = 0};
    uint64_t pick = clock_now() / 1000 + (uint64_t)getpid() * 7919;
    uint64_t room = TRIAL_FIRST_ROOM + pick % (TRIAL_ROOMS - 1);
    if (!move_room(peer, subject->options, room, &first, why) ||
        !move_room(peer, subject->options, room + 1, &second, why))
        return false;
    doctor_fine(finding,
                "%llu bytes from %s, every one right: %.1f ms with the connection, %.1f ms once "
                "more",
                (unsigned long long)first.bytes, peer->rank, (double)first.took / 1e6,
                (double)second.took / 1e6);
    return true;
}

void doctor_peer(const doctor_subject *subject, doctor_finding *finding)
{
    static const char advice[] =
        "See that it is `kvferry doctor --serve` that runs there, and compare both machines' "
        "`kvferry doctor`: UCX versions and transports, the address told to peers, firewalls "
        "between them (the data plane takes ports of its own).";
    trial_peer peer = {.manager = NULL};
    message why;
    if (!find_rank(subject->options->peer, &peer, finding))
        return;
    if (!open_peer(&peer, subject, &why))
        doctor_complain(finding, "See the other checks.", "%s", why.text);
    else if (!run_trial(&peer, subject, finding, &why))
        doctor_complain(finding, advice, "%s found, but: %s", peer.rank, why.text);
    close_peer(&peer);
}
