/* Every row of the sender's rules, then random events against a slow model of what a sender is. */
#include "room/sender.h"

#include "support/machine.h"
#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BOOTSTRAP = 100, WAITING = 1000, FENCE = 50, LIMIT = 3, PAGES_MAX = 16 };

static const kvf_room_timeouts timeouts = {BOOTSTRAP, WAITING, FENCE};
static const uint8_t zeros[8 * PAGES_MAX];
static const uint8_t ones[8 * PAGES_MAX] = {1};

/* A request of an agent named by one letter. `variant` makes it another request of the same size. */
static kvf_request make_request(char agent, uint32_t required, uint32_t pages, unsigned variant)
{
    static const char letters[] = "abcdefgh";
    return (kvf_request){.room = 7,
                         .agent_name = {(const uint8_t *)&letters[agent - 'a'], 1},
                         .pages = {variant == 0 ? zeros : ones, 8 * pages},
                         .page_width = 8,
                         .required = required};
}

/* ---- The table ------------------------------------------------------------------------------------- */

/* One event as text; what is done; where that leads. "!" in front of what is done: it meant nothing. */
typedef struct step {
    const char *event;
    const char *does;
    const char *state;
} step;

typedef struct row {
    const char *name;
    kvf_status status; /* at the end */
    step steps[12];
} row;

#define READY                                                                                      \
    {                                                                                              \
        "ask a 1 3", "timer none, publish", "waiting"                                              \
    }
#define OPEN                                                                                       \
    {                                                                                              \
        "open", "timer 100", "bootstrapping"                                                       \
    }

static const row rows[] = {
    {"one destination, one chunk",
     KVF_OK,
     {OPEN,
      READY,
      {"expect 3", "", "waiting"},
      {"@7 send 3", "post 0 1, publish, timer 1007", "transferring"},
      {"written", "timer none, publish", "success"}}},
    {"each chunk moves the deadline on",
     KVF_OK,
     {OPEN,
      READY,
      {"expect 3", "", "waiting"},
      {"@10 send 1", "post 0 1, publish, timer 1010", "transferring"},
      {"@20 send 1", "post 1 1, timer 1020", "transferring"},
      {"@30 written", "timer 1030", "transferring"},
      {"@40 written", "timer none", "transferring"},
      {"@50 send 1", "post 2 1, timer 1050", "transferring"},
      {"@60 written", "timer none, publish", "success"}}},
    {"sends are held until the destination asks",
     KVF_OK,
     {OPEN,
      {"expect 3", "", "bootstrapping"},
      {"send 2", "", "bootstrapping"},
      {"send 1", "", "bootstrapping"},
      {"@5 ask a 1 3", "timer none, post 0 2, publish, timer 1005", "transferring"},
      {"written", "timer 1000", "transferring"},
      {"written", "timer none, publish", "success"}}},
    {"all required destinations must ask",
     KVF_OK,
     {OPEN,
      {"expect 1", "", "bootstrapping"},
      {"send 1", "", "bootstrapping"},
      {"ask a 2 1", "", "bootstrapping"},
      {"ask b 2 1", "timer none, post 0 1, publish, timer 1000", "transferring"},
      {"written b", "", "transferring"},
      {"written b", "!", "transferring"},
      {"written c", "!", "transferring"},
      {"written a", "timer none, publish", "success"}}},
    {"a room of no pages",
     KVF_OK,
     {OPEN,
      {"empty a 1", "timer none, publish", "waiting"},
      {"expect 0", "", "waiting"},
      {"send 0", "post 0 1, publish, timer 1000", "transferring"},
      {"send 0", "!", "transferring"},
      {"written", "timer none, publish", "success"}}},
    {"dummies only (B25): an end without a write",
     KVF_OK,
     {OPEN,
      {"dummy a 1", "timer none, publish", "waiting"},
      {"expect 2", "", "waiting"},
      {"send 1", "post 0 1, publish", "transferring"},
      {"send 1", "post 1 1, publish", "success"}}},
    {"dummies only, all sent before: one publication",
     KVF_OK,
     {OPEN,
      {"expect 2", "", "bootstrapping"},
      {"send 2", "", "bootstrapping"},
      {"dummy a 1", "timer none, post 0 1, publish", "success"}}},
    {"a dummy beside a real one (B25)",
     KVF_OK,
     {OPEN,
      {"expect 2", "", "bootstrapping"},
      {"send 2", "", "bootstrapping"},
      {"dummy a 2", "", "bootstrapping"},
      {"ask b 2 2", "timer none, post 0 1, publish, timer 1000", "transferring"},
      {"written a", "!", "transferring"},
      {"written b", "timer none, publish", "success"}}},
    {"an identical request is ignored",
     KVF_OK,
     {OPEN,
      READY,
      {"ask a 1 3", "!", "waiting"},
      {"expect 3", "", "waiting"},
      {"send 3", "post 0 1, publish, timer 1000", "transferring"},
      {"ask a 1 3", "!", "transferring"},
      {"written", "timer none, publish", "success"},
      {"ask a 1 3", "!", "success"},
      {"ask b 1 3", "!", "success"}}},
    {"a different one wins before the first byte",
     KVF_OK,
     {OPEN,
      READY,
      {"other a 1 3", "", "waiting"},
      {"expect 3", "", "waiting"},
      {"send 3", "post 0 1, publish, timer 1000", "transferring"},
      {"written", "timer none, publish", "success"}}},
    {"a dummy becomes real",
     KVF_OK,
     {OPEN,
      {"dummy a 1", "timer none, publish", "waiting"},
      {"ask a 1 3", "", "waiting"},
      {"expect 3", "", "waiting"},
      {"send 3", "post 0 1, publish, timer 1000", "transferring"},
      {"written", "timer none, publish", "success"}}},
    {"a real one becomes a dummy",
     KVF_OK,
     {OPEN,
      READY,
      {"dummy a 1", "", "waiting"},
      {"expect 3", "", "waiting"},
      {"send 3", "post 0 1, publish", "success"}}},
    {"a lone one changes its mind about how many",
     KVF_OK,
     {OPEN,
      {"ask a 2 3", "", "bootstrapping"},
      {"ask a 1 3", "timer none, publish", "waiting"},
      {"abort", "stop, publish, timer 50", "failed"}}},
    {"a different one after the first byte (B31)",
     KVF_PROTOCOL,
     {OPEN,
      READY,
      {"expect 3", "", "waiting"},
      {"send 1", "post 0 1, publish, timer 1000", "transferring"},
      {"other a 1 3", "!stop, publish, timer 50", "failed"},
      {"written", "!", "failed"},
      {"ask a 1 3", "!", "failed"}}},
    {"more ranks asked for when all have reported",
     KVF_PROTOCOL,
     {OPEN, READY, {"ask a 2 3", "!stop, publish, timer 50", "failed"}}},
    {"one too many",
     KVF_PROTOCOL,
     {OPEN, READY, {"ask b 1 3", "!stop, publish, timer 50", "failed"}}},
    {"ranks that disagree how many they are",
     KVF_PROTOCOL,
     {OPEN,
      {"ask a 2 3", "", "bootstrapping"},
      {"ask b 3 3", "!stop, publish, timer 50", "failed"}}},
    {"more than the limit", KVF_LIMIT, {OPEN, {"ask a 4 3", "!stop, publish, timer 50", "failed"}}},
    {"none required", KVF_PROTOCOL, {OPEN, {"ask a 0 3", "!stop, publish, timer 50", "failed"}}},
    {"another number of pages, known before",
     KVF_MISMATCH,
     {OPEN,
      {"expect 2", "", "bootstrapping"},
      {"ask a 1 3", "!stop, publish, timer 50", "failed"}}},
    {"another number of pages, known after",
     KVF_MISMATCH,
     {OPEN, READY, {"expect 2", "stop, publish, timer 50", "failed"}, {"send 2", "!", "failed"}}},
    {"half the pages: perhaps the other index width",
     KVF_MISMATCH,
     {OPEN, READY, {"expect 6", "stop, publish, timer 50", "failed"}}},
    {"a dummy has no number of pages",
     KVF_OK,
     {OPEN,
      {"expect 2", "", "bootstrapping"},
      {"dummy a 1", "timer none, publish", "waiting"},
      {"abort", "stop, publish, timer 50", "failed"}}},
    {"a dummy of an earlier room of the id, then the room's own",
     KVF_OK,
     {OPEN,
      {"dummy a 1", "timer none, publish", "waiting"},
      {"expect 3", "", "waiting"},
      {"send 1", "post 0 1, publish", "transferring"},
      {"later a 1 0", "!", "transferring"},
      {"send 2", "post 1 1, publish", "success"}}},
    {"nobody asks",
     KVF_TIMEOUT,
     {OPEN,
      {"@99 timer", "!", "bootstrapping"},
      {"@100 timer", "stop, publish, timer 150", "failed"},
      {"ask a 1 3", "!", "failed"}}},
    {"not all ask",
     KVF_TIMEOUT,
     {OPEN,
      {"ask a 2 3", "", "bootstrapping"},
      {"@100 timer", "stop, publish, timer 150", "failed"}}},
    {"a ready room waits for its caller without end",
     KVF_OK,
     {OPEN,
      READY,
      {"@99999 timer", "!", "waiting"},
      {"abort", "stop, publish, timer 50", "failed"}}},
    {"writes that don't end",
     KVF_TIMEOUT,
     {OPEN,
      READY,
      {"expect 3", "", "waiting"},
      {"send 3", "post 0 1, publish, timer 1000", "transferring"},
      {"@999 timer", "!", "transferring"},
      {"@1000 timer", "stop, publish, timer 1050", "failed"},
      {"written", "!", "failed"}}},
    {"a write that fails",
     KVF_TRANSPORT,
     {OPEN,
      READY,
      {"expect 3", "", "waiting"},
      {"send 1", "post 0 1, publish, timer 1000", "transferring"},
      {"fail", "stop, publish, timer 50", "failed"},
      {"send 2", "!", "failed"},
      {"fail", "!", "failed"},
      {"abort", "!", "failed"},
      {"timer", "!", "failed"}}},
    {"a message that was refused",
     KVF_TRANSPORT,
     {OPEN, {"refuse", "stop, publish, timer 50", "failed"}}},
    {"the agent is gone",
     KVF_PEER_GONE,
     {OPEN,
      READY,
      {"gone b", "!", "waiting"},
      {"gone a", "stop, publish, timer 50", "failed"},
      {"gone a", "!", "failed"}}},
    {"gone when it has everything, and the room waits for another",
     KVF_PEER_GONE,
     {OPEN,
      {"expect 2", "", "bootstrapping"},
      {"ask a 2 2", "", "bootstrapping"},
      {"ask b 2 2", "timer none, publish", "waiting"},
      {"send 1", "post 0 1, publish, timer 1000", "transferring"},
      {"written a", "", "transferring"},
      {"written b", "timer none", "transferring"},
      {"send 1", "post 1 1, timer 1000", "transferring"},
      {"written a", "", "transferring"},
      {"gone a", "!", "transferring"},
      {"gone b", "stop, publish, timer 50", "failed"}}},
    {"gone between two chunks",
     KVF_PEER_GONE,
     {OPEN,
      READY,
      {"expect 3", "", "waiting"},
      {"send 1", "post 0 1, publish, timer 1000", "transferring"},
      {"written", "timer none", "transferring"},
      {"gone a", "stop, publish, timer 50", "failed"}}},
    {"gone after the end",
     KVF_OK,
     {OPEN,
      {"expect 1", "", "bootstrapping"},
      {"send 1", "", "bootstrapping"},
      {"ask a 1 1", "timer none, post 0 1, publish, timer 1000", "transferring"},
      {"written", "timer none, publish", "success"},
      {"gone a", "!", "success"},
      {"fail", "!", "success"},
      {"abort", "!", "success"},
      {"shutdown", "!", "success"}}},
    {"a failed room's pages are safe when the transport has finished",
     KVF_ABORTED,
     {OPEN,
      READY,
      {"expect 3", "", "waiting"},
      {"drained", "!", "waiting"},
      {"send 3", "post 0 1, publish, timer 1000", "transferring"},
      {"abort", "stop, publish, timer 50", "failed"},
      {"written", "!", "failed"},
      {"@49 timer", "!", "failed"},
      {"drained", "timer none, publish", "failed"},
      {"drained", "!", "failed"},
      {"@50 timer", "!", "failed"}}},
    {"a transport that doesn't finish holds the pages until the deadline",
     KVF_ABORTED,
     {OPEN,
      READY,
      {"expect 3", "", "waiting"},
      {"send 3", "post 0 1, publish, timer 1000", "transferring"},
      {"abort", "stop, publish, timer 50", "failed"},
      {"@50 timer", "timer none, publish", "failed"},
      {"drained", "!", "failed"}}},
    {"abort before anything", KVF_ABORTED, {OPEN, {"abort", "stop, publish, timer 50", "failed"}}},
    {"shutdown", KVF_SHUTDOWN, {OPEN, READY, {"shutdown", "stop, publish, timer 50", "failed"}}},
    {"what the caller must not do does nothing",
     KVF_OK,
     {OPEN,
      {"send 1", "!", "bootstrapping"},
      {"written", "!", "bootstrapping"},
      READY,
      {"expect 3", "", "waiting"},
      {"expect 3", "!", "waiting"},
      {"send 4", "!", "waiting"},
      {"written", "!", "waiting"},
      {"send 3", "post 0 1, publish, timer 1000", "transferring"},
      {"send 1", "!", "transferring"},
      {"written", "timer none, publish", "success"}}},
};

/* Fills the event; requests live in `requests`, for as long as the machine. */
static void read_event(const char *text, kvf_request *request, kvf_sender_event *event)
{
    static const kvf_error failure = {KVF_TRANSPORT, "it failed"};
    static const kvf_error loss = {KVF_PEER_GONE, "it is gone"};
    char word[16];
    char agent = 'a';
    unsigned required = 1;
    unsigned pages = 0;
    *event = (kvf_sender_event){.error = &failure};
    assert_true(sscanf(text, "%15s", word) == 1);
    if (sscanf(text, "%*s %c %u %u", &agent, &required, &pages) >= 2) {
        *request = make_request(agent, required, pages, strcmp(word, "other") == 0);
        if (strcmp(word, "empty") == 0)
            request->extensions = KVF_EXTENSION_NO_DUMMY;
        if (strcmp(word, "later") == 0) {
            request->aux_slot = 1;
            request->epoch = 1;
        }
        event->kind = KVF_SENDER_REQUESTED;
        event->request = request;
        return;
    }
    static const struct {
        const char *word;
        kvf_sender_event_kind kind;
    } words[] = {{"open", KVF_SENDER_OPENED},       {"refuse", KVF_SENDER_REFUSED},
                 {"expect", KVF_SENDER_EXPECTED},   {"send", KVF_SENDER_SENT},
                 {"written", KVF_SENDER_WRITTEN},   {"fail", KVF_SENDER_FAILED},
                 {"gone", KVF_SENDER_PEER_GONE},    {"abort", KVF_SENDER_ABORTED},
                 {"shutdown", KVF_SENDER_SHUTDOWN}, {"timer", KVF_SENDER_TIMER},
                 {"drained", KVF_SENDER_DRAINED}};
    size_t i = 0;
    while (strcmp(words[i].word, word) != 0)
        i++;
    event->kind = words[i].kind;
    (void)sscanf(text, "%*s %u", &event->page_count);
    if (event->kind == KVF_SENDER_PEER_GONE)
        event->error = &loss;
    if (event->kind == KVF_SENDER_PEER_GONE || event->kind == KVF_SENDER_WRITTEN) {
        (void)sscanf(text, "%*s %c", &agent);
        *request = make_request(agent, 1, 0, 0);
        event->agent_name = request->agent_name;
    }
}

static void run_row(const row *one)
{
    kvf_sender_machine machine;
    kvf_request requests[12];
    test_watch watch = test_watch_start();
    kvf_sender_machine_init(&machine, kvf_profile_at(0), &timeouts, LIMIT);
    for (size_t i = 0; i < 12 && one->steps[i].event != NULL; i++) {
        const step *each = &one->steps[i];
        const char *text = each->event;
        unsigned now = 0;
        kvf_sender_event event;
        kvf_actions actions = {.count = 0};
        if (sscanf(text, "@%u", &now) == 1)
            text = strchr(text, ' ') + 1;
        read_event(text, &requests[i], &event);
        bool meant = kvf_sender_machine_step(&machine, &event, now, &actions);
        test_watch_step(&watch, &machine.outcome, machine.deadline, &actions, meant);
        bool should = each->does[0] != '!';
        const char *does = each->does + !should;
        if (meant != should || strcmp(test_actions_text(&actions), does) != 0 ||
            strcmp(test_state_text(machine.outcome.state), each->state) != 0)
            fail_msg("%s: step %zu, \"%s\": %s, does \"%s\" and is %s", one->name, i, each->event,
                     meant ? "taken" : "ignored", test_actions_text(&actions),
                     test_state_text(machine.outcome.state));
    }
    if (one->status != KVF_OK && machine.outcome.error.status != one->status)
        fail_msg("%s: ends with %s: %s", one->name, kvf_status_name(machine.outcome.error.status),
                 machine.outcome.error.text);
    kvf_sender_machine_free(&machine);
}

static void every_row_holds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        run_row(&rows[i]);
}

/* Deadlines that can't be reckoned are none. */
static void deadlines_do_not_wrap(void **state)
{
    (void)state;
    kvf_sender_machine machine;
    kvf_actions actions = {.count = 0};
    kvf_sender_machine_init(&machine, kvf_profile_at(0), &timeouts, LIMIT);
    kvf_sender_event event = {.kind = KVF_SENDER_OPENED};
    (void)kvf_sender_machine_step(&machine, &event, UINT64_MAX - 50, &actions);
    assert_true(machine.deadline == KVF_NO_DEADLINE);
    assert_int_equal(actions.count, 0);
    kvf_sender_machine_free(&machine);
}

/* ---- The model -------------------------------------------------------------------------------------- */

/* What has been said so far, and nothing derived from it. */
typedef struct model {
    bool asked[8]; /* by agent */
    kvf_request requests[8];
    bool ready; /* at one moment all had asked */
    bool expected;
    uint32_t total;
    uint32_t sent[64]; /* pages of each chunk */
    uint32_t chunks;
    uint32_t written[8]; /* chunks, by agent */
    uint64_t opened_at;
    uint64_t moved_at; /* the last event that meant something */
    unsigned reasons;  /* statuses (bits) any of which explains that it has failed */
    uint64_t failed_at;
    bool drained;  /* of a failed room, before it was given up */
    bool given_up; /* the fence deadline passed first */
} model;

static uint32_t asked_count(const model *one)
{
    uint32_t count = 0;
    for (size_t i = 0; i < 8; i++)
        count += one->asked[i];
    return count;
}

static uint32_t required_of(const model *one)
{
    for (size_t i = 0; i < 8; i++)
        if (one->asked[i])
            return one->requests[i].required;
    return 0;
}

static bool is_dummy(const kvf_request *request)
{
    return request->pages.length == 0 && request->extensions == 0;
}

static uint64_t outstanding(const model *one)
{
    uint64_t left = 0;
    for (size_t i = 0; i < 8; i++)
        if (one->ready && one->asked[i] && !is_dummy(&one->requests[i]))
            left += one->chunks - one->written[i];
    return left;
}

static uint32_t given(const model *one)
{
    uint32_t pages = 0;
    for (uint32_t i = 0; i < one->chunks; i++)
        pages += one->sent[i];
    return pages;
}

static bool all_given(const model *one)
{
    return one->expected && one->chunks > 0 && given(one) == one->total;
}

static kvf_poll model_state(const model *one)
{
    if (one->reasons != 0)
        return KVF_FAILED;
    if (!one->ready)
        return KVF_BOOTSTRAPPING;
    if (all_given(one) && outstanding(one) == 0)
        return KVF_SUCCESS;
    return one->chunks > 0 ? KVF_TRANSFERRING : KVF_WAITING_FOR_INPUT;
}

static uint64_t model_deadline(const model *one)
{
    kvf_poll state = model_state(one);
    if (state == KVF_BOOTSTRAPPING)
        return one->opened_at + BOOTSTRAP;
    if (state == KVF_FAILED && !one->drained && !one->given_up)
        return one->failed_at + FENCE;
    return state != KVF_FAILED && outstanding(one) > 0 ? one->moved_at + WAITING : KVF_NO_DEADLINE;
}

static bool pages_disagree(const model *one, const kvf_request *request)
{
    return one->expected && !is_dummy(request) && request->pages.length / 8 != one->total;
}

static bool model_requested(model *one, const kvf_request *request)
{
    size_t agent = (size_t)(request->agent_name.data[0] - 'a');
    const kvf_request *former = &one->requests[agent];
    if (one->asked[agent] && former->required == request->required &&
        former->extensions == request->extensions &&
        former->pages.length == request->pages.length &&
        (request->pages.length == 0 || former->pages.data == request->pages.data))
        return false;
    bool alone = one->asked[agent] && asked_count(one) == 1 && !one->ready;
    if (request->required == 0)
        one->reasons |= 1u << KVF_PROTOCOL;
    if (request->required > LIMIT)
        one->reasons |= 1u << KVF_LIMIT;
    if (asked_count(one) > 0 && required_of(one) != request->required && !alone)
        one->reasons |= 1u << KVF_PROTOCOL;
    if (one->asked[agent] && one->ready && one->chunks > 0)
        one->reasons |= 1u << KVF_PROTOCOL;
    if (!one->asked[agent] && asked_count(one) >= request->required)
        one->reasons |= 1u << KVF_PROTOCOL;
    if (pages_disagree(one, request))
        one->reasons |= 1u << KVF_MISMATCH | 1u << KVF_PROFILE;
    if (one->reasons != 0)
        return false;
    one->asked[agent] = true;
    one->requests[agent] = *request;
    one->ready = one->ready || asked_count(one) == request->required;
    return true;
}

static bool model_fail(model *one, kvf_status status)
{
    one->reasons = 1u << status;
    return true;
}

static kvf_safety model_safety(const model *one)
{
    if (one->given_up)
        return KVF_PAGES_RELEASED;
    return one->drained || model_state(one) == KVF_SUCCESS ? KVF_PAGES_SAFE : KVF_PAGES_IN_USE;
}

/* A failed room waits for its transport, until the deadline. */
static bool model_fence(model *one, const kvf_sender_event *event, uint64_t now)
{
    if (model_safety(one) != KVF_PAGES_IN_USE)
        return false;
    if (event->kind == KVF_SENDER_DRAINED)
        return one->drained = true;
    return event->kind == KVF_SENDER_TIMER && now >= model_deadline(one) && (one->given_up = true);
}

/* Whether the event means something to an open room; changes the model. */
static bool model_open_step(model *one, const kvf_sender_event *event, uint64_t now)
{
    size_t agent = event->agent_name.length > 0 ? (size_t)(event->agent_name.data[0] - 'a') : 0;
    switch (event->kind) {
    case KVF_SENDER_OPENED:
        one->opened_at = now;
        return true;
    case KVF_SENDER_REQUESTED:
        return model_requested(one, event->request);
    case KVF_SENDER_EXPECTED:
        if (one->expected)
            return false;
        one->expected = true;
        one->total = event->page_count;
        for (size_t i = 0; i < 8; i++)
            if (one->asked[i] && pages_disagree(one, &one->requests[i]))
                one->reasons |= 1u << KVF_MISMATCH | 1u << KVF_PROFILE;
        return true;
    case KVF_SENDER_SENT:
        if (!one->expected || all_given(one) || event->page_count > one->total - given(one))
            return false;
        one->sent[one->chunks++] = event->page_count;
        return true;
    case KVF_SENDER_WRITTEN:
        if (!one->ready || !one->asked[agent] || is_dummy(&one->requests[agent]) ||
            one->written[agent] == one->chunks)
            return false;
        one->written[agent]++;
        return true;
    case KVF_SENDER_PEER_GONE:
        if (!one->asked[agent] || (all_given(one) && !is_dummy(&one->requests[agent]) &&
                                   one->written[agent] == one->chunks))
            return false;
        return model_fail(one, event->error->status);
    case KVF_SENDER_TIMER:
        return now >= model_deadline(one) && model_fail(one, KVF_TIMEOUT);
    case KVF_SENDER_ABORTED:
        return model_fail(one, KVF_ABORTED);
    case KVF_SENDER_SHUTDOWN:
        return model_fail(one, KVF_SHUTDOWN);
    case KVF_SENDER_REFUSED:
    case KVF_SENDER_FAILED:
        return model_fail(one, event->error->status);
    case KVF_SENDER_DRAINED:
        return false;
    }
    return false;
}

static bool model_step(model *one, const kvf_sender_event *event, uint64_t now)
{
    kvf_poll before = model_state(one);
    if (before == KVF_SUCCESS)
        return false;
    if (before == KVF_FAILED)
        return model_fence(one, event, now);
    bool meant = model_open_step(one, event, now);
    if (meant)
        one->moved_at = now;
    if (model_state(one) == KVF_FAILED)
        one->failed_at = now;
    return meant;
}

/* ---- Random events ---------------------------------------------------------------------------------- */

static const kvf_error random_error = {KVF_TRANSPORT, "a random failure"};

/* Mostly what a sane room sees, so that many get far; `plan` has the room's true numbers. */
typedef struct plan {
    uint32_t pages;
    uint32_t required;
    unsigned noise; /* one event in so many is anything at all */
} plan;

static void random_request(test_random *random, const plan *room, bool noisy, kvf_request *request)
{
    uint32_t required = room->required;
    uint32_t pages = room->pages;
    char agent = (char)('a' + test_random_below(random, room->required));
    if (noisy) {
        agent = (char)('a' + test_random_below(random, 5));
        required = (uint32_t)test_random_below(random, LIMIT + 2);
        pages = (uint32_t)test_random_below(random, PAGES_MAX);
    }
    bool dummy = test_random_below(random, 5) == 0;
    *request = make_request(agent, required, dummy ? 0 : pages,
                            noisy && test_random_below(random, 2) == 0);
    if (!dummy)
        request->extensions = KVF_EXTENSION_NO_DUMMY;
}

static void random_event(test_random *random, const plan *room, const model *one,
                         kvf_request *request, kvf_sender_event *event)
{
    bool noisy = test_random_below(random, room->noise) == 0;
    *event = (kvf_sender_event){.error = &random_error};
    unsigned kind = (unsigned)test_random_below(random, noisy ? 12 : 6);
    static const kvf_sender_event_kind kinds[] = {
        KVF_SENDER_REQUESTED, KVF_SENDER_EXPECTED, KVF_SENDER_SENT,      KVF_SENDER_WRITTEN,
        KVF_SENDER_WRITTEN,   KVF_SENDER_TIMER,    KVF_SENDER_PEER_GONE, KVF_SENDER_REFUSED,
        KVF_SENDER_FAILED,    KVF_SENDER_ABORTED,  KVF_SENDER_SHUTDOWN,  KVF_SENDER_DRAINED};
    event->kind = kinds[kind];
    if (event->kind == KVF_SENDER_REQUESTED) {
        random_request(random, room, noisy, request);
        event->request = request;
    } else if (event->kind == KVF_SENDER_EXPECTED) {
        event->page_count = noisy ? (uint32_t)test_random_below(random, PAGES_MAX) : room->pages;
    } else if (event->kind == KVF_SENDER_SENT) {
        uint32_t left = one->expected ? one->total - given(one) : room->pages;
        event->page_count = noisy ? (uint32_t)test_random_below(random, PAGES_MAX)
                                  : 1 + (uint32_t)test_random_below(random, left);
        if (room->pages == 0 && !noisy)
            event->page_count = 0;
    } else if (event->kind == KVF_SENDER_PEER_GONE || event->kind == KVF_SENDER_WRITTEN) {
        uint64_t agents = noisy ? 5 : room->required;
        *request = make_request((char)('a' + test_random_below(random, agents)), 1, 0, 0);
        event->agent_name = request->agent_name;
    }
}

/* Each chunk is posted once, in order, and never before all have asked. */
static void check_posts(const model *one, const kvf_actions *actions, uint32_t *posted)
{
    assert_true(test_actions_count(actions, KVF_ACTION_POST) <= 1);
    const kvf_action *post = test_actions_last(actions, KVF_ACTION_POST);
    if (post != NULL) {
        assert_true(one->ready);
        assert_int_equal(post->first_chunk, *posted);
        assert_true(post->chunk_count > 0);
        *posted += post->chunk_count;
    }
    if (one->ready && one->reasons == 0)
        assert_int_equal(*posted, one->chunks);
    assert_true(*posted <= one->chunks);
}

/* How often each state and, among the failed, each safety was seen. */
typedef struct visits {
    size_t states[5];
    size_t failed[3];
} visits;

static void check_outcome(const kvf_sender_machine *machine, const model *one, visits *seen)
{
    const kvf_outcome *outcome = &machine->outcome;
    assert_true(machine->deadline == model_deadline(one));
    assert_int_equal(outcome->safety, model_safety(one));
    if (one->reasons != 0 && (one->reasons >> outcome->error.status & 1) == 0)
        fail_msg("\"%s\", the model's reasons are 0x%x", outcome->error.text, one->reasons);
    seen->states[outcome->state]++;
    if (outcome->state == KVF_FAILED)
        seen->failed[outcome->safety]++;
}

static void run_random(test_random *random, visits *seen)
{
    enum { EVENTS = 60 };
    static kvf_request requests[EVENTS];
    plan room = {(uint32_t)test_random_below(random, 6),
                 1 + (uint32_t)test_random_below(random, LIMIT),
                 2 + (unsigned)test_random_below(random, 200)};
    kvf_sender_machine machine;
    model one = {.total = 0};
    test_watch watch = test_watch_start();
    uint32_t posted = 0;
    uint64_t now = test_random_below(random, 1000);
    kvf_sender_machine_init(&machine, kvf_profile_at(0), &timeouts, LIMIT);
    for (size_t i = 0; i < EVENTS; i++) {
        kvf_sender_event event = {.kind = KVF_SENDER_OPENED};
        kvf_actions actions = {.count = 0};
        if (i > 0)
            random_event(random, &room, &one, &requests[i], &event);
        now += test_random_below(random, 8);
        if (test_random_below(random, 400) == 0)
            now += WAITING;
        bool should = model_step(&one, &event, now);
        bool meant = kvf_sender_machine_step(&machine, &event, now, &actions);
        test_watch_step(&watch, &machine.outcome, machine.deadline, &actions, meant);
        if (meant != should || machine.outcome.state != model_state(&one))
            fail_msg("event %zu of kind %d: %s and %s, the model says %s and %s", i,
                     (int)event.kind, meant ? "taken" : "ignored",
                     test_state_text(machine.outcome.state), should ? "taken" : "ignored",
                     test_state_text(model_state(&one)));
        check_outcome(&machine, &one, seen);
        check_posts(&one, &actions, &posted);
    }
    kvf_sender_machine_free(&machine);
}

static void random_events_agree_with_the_model(void **state)
{
    (void)state;
    test_random random = test_random_start();
    visits seen = {.states = {0}};
    for (int i = 0; i < 30000; i++)
        run_random(&random, &seen);
    /* Otherwise the events say little. */
    for (size_t i = 0; i < 5; i++)
        assert_true(seen.states[i] > 30000);
    for (size_t i = 0; i < 3; i++)
        assert_true(seen.failed[i] > 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_holds),
        cmocka_unit_test(deadlines_do_not_wrap),
        cmocka_unit_test(random_events_agree_with_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
