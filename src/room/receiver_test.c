/* Every row of the receiver's rules, then random notifications against a model made of sets. */
#include "room/receiver.h"

#include "support/machine.h"
#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { BOOTSTRAP = 100, WAITING = 1000, FENCE = 50, CHUNKS_MAX = 256 };

static const kvf_room_timeouts timeouts = {BOOTSTRAP, WAITING, FENCE};
static const kvf_error failure = {KVF_PEER_GONE, "it is gone"};

/* ---- The table ------------------------------------------------------------------------------------- */

/* One event as text; what is done; where that leads. "!" in front of what is done: it meant nothing. */
typedef struct step {
    const char *event;
    const char *does;
    const char *state;
} step;

enum { STEPS = 16 };

typedef struct row {
    const char *name;
    kvf_status status; /* at the end */
    const char *text;
    step steps[STEPS];
} row;

#define OPEN                                                                                       \
    {                                                                                              \
        "open", "timer 100", "bootstrapping"                                                       \
    }
#define FOUND                                                                                      \
    {                                                                                              \
        "found", "publish, timer none", "waiting"                                                  \
    }
#define OPEN_TO_REQUEST                                                                            \
    OPEN, FOUND,                                                                                   \
    {                                                                                              \
        "expect 3", "request, timer 1000", "waiting"                                               \
    }

#define OPEN_TO_DISCLOSED                                                                          \
    OPEN_TO_REQUEST,                                                                               \
    {                                                                                              \
        "disclosed", "", "waiting"                                                                 \
    }

static const row rows[] = {
    {"one chunk, then aux",
     KVF_OK,
     "",
     {OPEN_TO_REQUEST,
      {"kv a 0 1", "publish", "transferring"},
      {"aux a", "publish, leave, timer none", "success"}}},
    {"aux, then the only chunk: one publication",
     KVF_OK,
     "",
     {OPEN_TO_REQUEST,
      {"aux a", "", "waiting"},
      {"kv a 0 1", "publish, leave, timer none", "success"}}},
    {"last=0 is not last (B53)",
     KVF_OK,
     "",
     {OPEN_TO_REQUEST,
      {"kv a 0 0", "publish", "transferring"},
      {"aux a", "", "transferring"},
      {"kv a 2 1", "", "transferring"},
      {"kv a 1 0", "publish, leave, timer none", "success"}}},
    {"expect before found",
     KVF_OK,
     "",
     {OPEN,
      {"@5 expect 3", "", "bootstrapping"},
      {"found", "publish, request, timer 1005", "waiting"},
      {"abort", "stop, publish, leave, timer none", "failed"}}},
    {"repeated ones mean nothing",
     KVF_OK,
     "",
     {OPEN_TO_REQUEST,
      {"found", "!", "waiting"},
      {"expect 3", "!", "waiting"},
      {"aux a", "", "waiting"},
      {"aux a", "!", "waiting"},
      {"kv a 1 1", "publish", "transferring"},
      {"kv a 1 1", "!", "transferring"},
      {"kv a 0 0", "publish, leave, timer none", "success"},
      {"kv a 0 0", "!", "success"},
      {"aux a", "!", "success"},
      {"aux b", "!", "success"},
      {"kv a 9 1", "!", "success"},
      {"abort", "!", "success"}}},
    {"other agents don't count",
     KVF_OK,
     "",
     {OPEN_TO_REQUEST,
      {"kv a 0 0", "publish", "transferring"},
      {"kv b 1 1", "!", "transferring"},
      {"aux b", "!", "transferring"},
      {"kv b 99 1", "!", "transferring"},
      {"aux a", "", "transferring"},
      {"kv a 1 1", "publish, leave, timer none", "success"}}},
    {"an unknown kind doesn't pin",
     KVF_OK,
     "",
     {OPEN_TO_REQUEST,
      {"unknown b", "!", "waiting"},
      {"aux a", "", "waiting"},
      {"kv a 0 1", "publish, leave, timer none", "success"}}},
    {"before the request nothing counts",
     KVF_OK,
     "",
     {OPEN,
      {"kv a 0 1", "!", "bootstrapping"},
      FOUND,
      {"aux a", "!", "waiting"},
      {"expect 1", "request, timer 1000", "waiting"},
      {"kv b 0 1", "publish", "transferring"},
      {"aux b", "publish, leave, timer none", "success"}}},
    {"a room of no pages",
     KVF_OK,
     "",
     {OPEN,
      FOUND,
      {"expect 0", "request, timer 1000", "waiting"},
      {"kv a 0 1", "publish", "transferring"},
      {"aux a", "publish, leave, timer none", "success"}}},
    {"a room of no pages has one chunk",
     KVF_PROTOCOL,
     "at most 1 chunks",
     {OPEN,
      FOUND,
      {"expect 0", "request, timer 1000", "waiting"},
      {"kv a 1 1", "stop, publish, leave, timer none", "failed"}}},
    {"more chunks than pages",
     KVF_PROTOCOL,
     "agent a sent chunk 3",
     {OPEN_TO_REQUEST, {"kv a 3 0", "stop, publish, leave, timer none", "failed"}}},
    {"the largest chunk number",
     KVF_PROTOCOL,
     "4294967295",
     {OPEN_TO_REQUEST, {"kv a 4294967295 1", "stop, publish, leave, timer none", "failed"}}},
    {"after the last",
     KVF_PROTOCOL,
     "after chunk 1 was marked last",
     {OPEN_TO_REQUEST,
      {"kv a 1 1", "publish", "transferring"},
      {"kv a 2 0", "stop, publish, leave, timer none", "failed"}}},
    {"a second last",
     KVF_PROTOCOL,
     "after chunk 1 was marked last",
     {OPEN_TO_REQUEST,
      {"kv a 1 1", "publish", "transferring"},
      {"kv a 0 1", "stop, publish, leave, timer none", "failed"}}},
    {"last, then not",
     KVF_PROTOCOL,
     "marked not last",
     {OPEN_TO_REQUEST,
      {"kv a 1 1", "publish", "transferring"},
      {"kv a 1 0", "stop, publish, leave, timer none", "failed"}}},
    {"not last, then last",
     KVF_PROTOCOL,
     "the second time marked last",
     {OPEN_TO_REQUEST,
      {"kv a 1 0", "publish", "transferring"},
      {"kv a 1 1", "stop, publish, leave, timer none", "failed"}}},
    {"last below what has arrived",
     KVF_PROTOCOL,
     "chunk 2 had arrived",
     {OPEN_TO_REQUEST,
      {"kv a 2 0", "publish", "transferring"},
      {"kv a 1 1", "stop, publish, leave, timer none", "failed"}}},
    {"not found in time",
     KVF_TIMEOUT,
     "within bootstrap_timeout",
     {OPEN,
      {"@99 timer", "!", "bootstrapping"},
      {"@100 timer", "stop, publish, leave, timer none", "failed"}}},
    {"the waiting time ends first",
     KVF_TIMEOUT,
     "nothing arrived within waiting_timeout",
     {{"@0 open", "timer 100", "bootstrapping"},
      {"@50 expect 3", "", "bootstrapping"},
      {"@60 found", "publish, request, timer 1050", "waiting"},
      {"@1049 timer", "!", "waiting"},
      {"@1050 timer", "stop, publish, leave, timer none", "failed"}}},
    {"nothing arrives",
     KVF_TIMEOUT,
     "was the request given to it?",
     {OPEN_TO_REQUEST, {"@1000 timer", "stop, publish, leave, timer none", "failed"}}},
    {"not everything arrives",
     KVF_TIMEOUT,
     "after 1 chunks (the last among them)",
     {OPEN_TO_REQUEST,
      {"kv a 1 1", "publish", "transferring"},
      {"aux a", "", "transferring"},
      {"@1000 timer", "stop, publish, leave, timer none", "failed"},
      {"kv a 0 0", "!", "failed"}}},
    {"a found room waits for its caller without end",
     KVF_ABORTED,
     "aborted",
     {OPEN, FOUND, {"@9999 timer", "!", "waiting"}, {"abort", "stop, publish, leave", "failed"}}},
    {"a failure stays (B38, B39)",
     KVF_PEER_GONE,
     "it is gone",
     {OPEN_TO_REQUEST,
      {"fail", "stop, publish, leave, timer none", "failed"},
      {"kv a 0 1", "!", "failed"},
      {"aux a", "!", "failed"},
      {"found", "!", "failed"},
      {"fail", "!", "failed"},
      {"abort", "!", "failed"},
      {"timer", "!", "failed"},
      {"shutdown", "!", "failed"}}},
    {"aborted after the request: proven",
     KVF_ABORTED,
     "",
     {OPEN_TO_DISCLOSED,
      {"@7 abort", "stop, publish, fence, timer 57", "failed"},
      {"@8 timer", "!", "failed"},
      {"abort", "!", "failed"},
      {"proven", "publish, leave, timer none", "failed"},
      {"proven", "!", "failed"},
      {"kv a 0 1", "!", "failed"}}},
    {"aborted after the request: everything arrives after all",
     KVF_ABORTED,
     "",
     {OPEN_TO_DISCLOSED,
      {"kv a 1 1", "publish", "transferring"},
      {"@7 abort", "stop, publish, fence, timer 57", "failed"},
      {"kv a 0 0", "", "failed"},
      {"kv a 0 0", "!", "failed"},
      {"aux b", "!", "failed"},
      {"aux a", "publish, leave, timer none", "failed"},
      {"aux a", "!", "failed"}}},
    {"aborted after the request: only the deadline passes",
     KVF_ABORTED,
     "",
     {OPEN_TO_DISCLOSED,
      {"@7 abort", "stop, publish, fence, timer 57", "failed"},
      {"@56 timer", "!", "failed"},
      {"@57 timer", "publish, leave, timer none", "failed"},
      {"proven", "!", "failed"}}},
    {"who contradicts itself proves nothing by completing",
     KVF_PROTOCOL,
     "at most 3 chunks",
     {OPEN_TO_DISCLOSED,
      {"kv a 0 1", "publish", "transferring"},
      {"@7 kv a 9 1", "stop, publish, fence, timer 57", "failed"},
      {"aux a", "", "failed"},
      {"@57 timer", "publish, leave, timer none", "failed"}}},
    {"aborted before anything",
     KVF_ABORTED,
     "",
     {OPEN, {"abort", "stop, publish, leave, timer none", "failed"}, {"expect 3", "!", "failed"}}},
    {"shutdown",
     KVF_SHUTDOWN,
     "",
     {OPEN_TO_REQUEST, {"shutdown", "stop, publish, leave, timer none", "failed"}}},
};

/* The agent's name is one letter, in static storage. */
static kvf_slice agent_slice(char agent)
{
    static const char letters[] = "abcdefgh";
    return (kvf_slice){(const uint8_t *)&letters[agent - 'a'], 1};
}

static void read_event(const char *text, kvf_receiver_event *event, kvf_notice *notice)
{
    static const struct {
        const char *word;
        kvf_receiver_event_kind kind;
        kvf_notice_kind notice;
    } words[] = {{"open", KVF_RECEIVER_OPENED, 0},
                 {"found", KVF_RECEIVER_FOUND, 0},
                 {"expect", KVF_RECEIVER_EXPECTED, 0},
                 {"kv", KVF_RECEIVER_NOTICE, KVF_NOTICE_CHUNK},
                 {"aux", KVF_RECEIVER_NOTICE, KVF_NOTICE_AUX},
                 {"unknown", KVF_RECEIVER_NOTICE, KVF_NOTICE_UNKNOWN},
                 {"disclosed", KVF_RECEIVER_DISCLOSED, 0},
                 {"proven", KVF_RECEIVER_PROVEN, 0},
                 {"fail", KVF_RECEIVER_FAILED, 0},
                 {"abort", KVF_RECEIVER_ABORTED, 0},
                 {"shutdown", KVF_RECEIVER_SHUTDOWN, 0},
                 {"timer", KVF_RECEIVER_TIMER, 0}};
    char word[16];
    char agent = 'a';
    unsigned last = 0;
    assert_true(sscanf(text, "%15s", word) == 1);
    size_t i = 0;
    while (strcmp(words[i].word, word) != 0)
        i++;
    *notice = (kvf_notice){.kind = words[i].notice, .room = 7};
    *event = (kvf_receiver_event){.kind = words[i].kind, .notice = notice};
    (void)sscanf(text, "%*s %u", &event->page_count);
    (void)sscanf(text, "%*s %c %u %u", &agent, &notice->chunk, &last);
    notice->last = last != 0;
    if (event->kind == KVF_RECEIVER_NOTICE)
        event->agent_name = agent_slice(agent);
    if (event->kind == KVF_RECEIVER_FAILED)
        event->error = &failure;
    if (event->kind == KVF_RECEIVER_PROVEN)
        event->proof = KVF_PROOF_ACKNOWLEDGED;
}

static void run_row(const row *one)
{
    kvf_receiver_machine machine;
    test_watch watch = test_watch_start();
    kvf_receiver_machine_init(&machine, &timeouts);
    for (size_t i = 0; i < STEPS && one->steps[i].event != NULL; i++) {
        const step *each = &one->steps[i];
        const char *text = each->event;
        unsigned now = 0;
        kvf_receiver_event event;
        kvf_notice notice;
        kvf_actions actions = {.count = 0};
        if (sscanf(text, "@%u", &now) == 1)
            text = strchr(text, ' ') + 1;
        read_event(text, &event, &notice);
        bool meant = kvf_receiver_machine_step(&machine, &event, now, &actions);
        test_watch_step(&watch, &machine.outcome, machine.deadline, &actions, meant);
        bool should = each->does[0] != '!';
        if (meant != should || strcmp(test_actions_text(&actions), each->does + !should) != 0 ||
            strcmp(test_state_text(machine.outcome.state), each->state) != 0)
            fail_msg("%s: step %zu, \"%s\": %s, does \"%s\" and is %s", one->name, i, each->event,
                     meant ? "taken" : "ignored", test_actions_text(&actions),
                     test_state_text(machine.outcome.state));
    }
    if (machine.outcome.state == KVF_FAILED && one->status != KVF_OK &&
        (machine.outcome.error.status != one->status ||
         strstr(machine.outcome.error.text, one->text) == NULL))
        fail_msg("%s: ends with %s: %s", one->name, kvf_status_name(machine.outcome.error.status),
                 machine.outcome.error.text);
    kvf_receiver_machine_free(&machine);
}

static void every_row_holds(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        run_row(&rows[i]);
}

static void what_was_missing_is_in_the_text(void **state)
{
    (void)state;
    kvf_receiver_machine machine;
    kvf_actions actions = {.count = 0};
    kvf_error problem = {KVF_BOOTSTRAP, "10.0.0.1:8998 doesn't know rank 3"};
    kvf_receiver_event event = {.kind = KVF_RECEIVER_OPENED};
    kvf_receiver_machine_init(&machine, &timeouts);
    (void)kvf_receiver_machine_step(&machine, &event, 0, &actions);
    event = (kvf_receiver_event){.kind = KVF_RECEIVER_TIMER, .error = &problem};
    (void)kvf_receiver_machine_step(&machine, &event, BOOTSTRAP, &actions);
    assert_non_null(strstr(machine.outcome.error.text, problem.text));
    kvf_receiver_machine_free(&machine);
}

/* Agent names that don't fit pin nothing and don't count. */
static void odd_agent_names_do_not_count(void **state)
{
    (void)state;
    kvf_receiver_machine machine;
    char name[KVF_AGENT_NAME_MAX + 1];
    kvf_notice notice = {.kind = KVF_NOTICE_AUX};
    kvf_receiver_event events[] = {{.kind = KVF_RECEIVER_OPENED},
                                   {.kind = KVF_RECEIVER_FOUND},
                                   {.kind = KVF_RECEIVER_EXPECTED, .page_count = 1}};
    memset(name, 'n', sizeof name);
    kvf_receiver_machine_init(&machine, &timeouts);
    for (size_t i = 0; i < 3; i++) {
        kvf_actions actions = {.count = 0};
        assert_true(kvf_receiver_machine_step(&machine, &events[i], 0, &actions));
    }
    const kvf_slice odd[] = {{(const uint8_t *)name, 0},
                             {(const uint8_t *)name, sizeof name},
                             {(const uint8_t *)"a\0b", 3}};
    for (size_t i = 0; i < 3; i++) {
        kvf_receiver_event event = {
            .kind = KVF_RECEIVER_NOTICE, .agent_name = odd[i], .notice = &notice};
        kvf_actions actions = {.count = 0};
        assert_false(kvf_receiver_machine_step(&machine, &event, 0, &actions));
    }
    kvf_receiver_event event = {.kind = KVF_RECEIVER_NOTICE,
                                .agent_name = {(const uint8_t *)name, KVF_AGENT_NAME_MAX},
                                .notice = &notice};
    kvf_actions actions = {.count = 0};
    assert_true(kvf_receiver_machine_step(&machine, &event, 0, &actions));
    kvf_receiver_machine_free(&machine);
}

/* ---- The model -------------------------------------------------------------------------------------- */

/* What has been said; what follows is derived each time anew. */
typedef struct model {
    bool found;
    bool expected;
    uint32_t pages;
    char agent;                /* whose notices count; 0: nobody's yet */
    bool heard[CHUNKS_MAX][2]; /* chunk, last */
    bool impossible;           /* a chunk beyond CHUNKS_MAX */
    bool contradicted;         /* by a notice that isn't among those heard */
    bool aux;
    uint64_t opened_at;
    uint64_t expected_at;
    kvf_status ended; /* by something else */
    bool disclosed;   /* before it failed */
    bool proven;
    bool given_up; /* the fence deadline passed first */
    uint64_t failed_at;
} model;

static size_t heard_count(const model *one)
{
    size_t count = 0;
    for (size_t i = 0; i < CHUNKS_MAX; i++)
        count += one->heard[i][0] || one->heard[i][1];
    return count;
}

/* The set of notices contradicts itself or the room. */
static bool is_absurd(const model *one)
{
    uint32_t limit = one->pages == 0 ? 1 : one->pages;
    for (size_t i = 0; i < CHUNKS_MAX; i++) {
        if ((one->heard[i][0] || one->heard[i][1]) && i >= limit)
            return true;
        if (one->heard[i][0] && one->heard[i][1])
            return true;
        for (size_t j = i + 1; one->heard[i][1] && j < CHUNKS_MAX; j++)
            if (one->heard[j][0] || one->heard[j][1])
                return true;
    }
    return one->impossible;
}

static bool is_whole(const model *one)
{
    for (size_t i = 0; i < CHUNKS_MAX && (one->heard[i][0] || one->heard[i][1]); i++)
        if (one->heard[i][1])
            return one->aux;
    return false;
}

static kvf_status model_status(const model *one)
{
    return one->ended != KVF_OK ? one->ended : one->contradicted ? KVF_PROTOCOL : KVF_OK;
}

static kvf_poll model_state(const model *one)
{
    if (model_status(one) != KVF_OK)
        return KVF_FAILED;
    if (is_whole(one))
        return KVF_SUCCESS;
    if (heard_count(one) > 0)
        return KVF_TRANSFERRING;
    return one->found ? KVF_WAITING_FOR_INPUT : KVF_BOOTSTRAPPING;
}

/* What one writer has said, without contradicting itself, proves as much after the failure as before. */
static bool is_complete(const model *one)
{
    return is_whole(one) && !one->contradicted;
}

static kvf_safety model_safety(const model *one)
{
    kvf_poll state = model_state(one);
    if (one->given_up)
        return KVF_PAGES_RELEASED;
    bool safe = state == KVF_SUCCESS ||
                (state == KVF_FAILED && (!one->disclosed || one->proven || is_complete(one)));
    return safe ? KVF_PAGES_SAFE : KVF_PAGES_IN_USE;
}

static kvf_proof model_proof(const model *one)
{
    if (model_safety(one) != KVF_PAGES_SAFE)
        return KVF_PROOF_NONE;
    if (one->proven)
        return KVF_PROOF_ACKNOWLEDGED;
    return model_state(one) == KVF_FAILED && !one->disclosed ? KVF_PROOF_NEVER_DISCLOSED
                                                             : KVF_PROOF_COMPLETED;
}

static uint64_t model_deadline(const model *one)
{
    uint64_t waiting = one->expected ? one->expected_at + WAITING : KVF_NO_DEADLINE;
    uint64_t bootstrap = one->found ? KVF_NO_DEADLINE : one->opened_at + BOOTSTRAP;
    if (model_state(one) == KVF_FAILED && model_safety(one) == KVF_PAGES_IN_USE)
        return one->failed_at + FENCE;
    if (model_state(one) == KVF_FAILED || model_state(one) == KVF_SUCCESS)
        return KVF_NO_DEADLINE;
    return waiting < bootstrap ? waiting : bootstrap;
}

static bool model_notice(model *one, const kvf_receiver_event *event)
{
    char agent = (char)event->agent_name.data[0];
    const kvf_notice *notice = event->notice;
    if (!one->found || !one->expected || notice->kind == KVF_NOTICE_UNKNOWN ||
        (one->agent != 0 && one->agent != agent))
        return false;
    one->agent = agent;
    bool *fact = notice->kind == KVF_NOTICE_AUX ? &one->aux
                 : notice->chunk < CHUNKS_MAX   ? &one->heard[notice->chunk][notice->last]
                                                : &one->impossible;
    if (*fact)
        return false;
    *fact = true;
    if (!is_absurd(one))
        return true;
    *fact = false;
    one->contradicted = true;
    return true;
}

/* After the failure: only proofs and the deadline mean something. */
static bool model_fence(model *one, const kvf_receiver_event *event, uint64_t now)
{
    if (model_safety(one) != KVF_PAGES_IN_USE)
        return false;
    if (event->kind == KVF_RECEIVER_NOTICE)
        return model_notice(one, event);
    if (event->kind == KVF_RECEIVER_PROVEN)
        return one->proven = true;
    return event->kind == KVF_RECEIVER_TIMER && now >= model_deadline(one) &&
           (one->given_up = true);
}

static bool model_open_step(model *one, const kvf_receiver_event *event, uint64_t now)
{
    switch (event->kind) {
    case KVF_RECEIVER_OPENED:
        one->opened_at = now;
        return true;
    case KVF_RECEIVER_FOUND:
        if (one->found)
            return false;
        one->found = true;
        return true;
    case KVF_RECEIVER_EXPECTED:
        if (one->expected)
            return false;
        one->expected = true;
        one->pages = event->page_count;
        one->expected_at = now;
        return true;
    case KVF_RECEIVER_NOTICE:
        return model_notice(one, event);
    case KVF_RECEIVER_TIMER:
        if (now < model_deadline(one))
            return false;
        one->ended = KVF_TIMEOUT;
        return true;
    case KVF_RECEIVER_DISCLOSED:
        return one->disclosed = true;
    case KVF_RECEIVER_PROVEN:
        return false;
    case KVF_RECEIVER_FAILED:
        one->ended = event->error->status;
        return true;
    case KVF_RECEIVER_ABORTED:
        one->ended = KVF_ABORTED;
        return true;
    case KVF_RECEIVER_SHUTDOWN:
        one->ended = KVF_SHUTDOWN;
        return true;
    }
    return false;
}

static bool model_step(model *one, const kvf_receiver_event *event, uint64_t now)
{
    kvf_poll before = model_state(one);
    if (before == KVF_SUCCESS)
        return false;
    if (before == KVF_FAILED)
        return model_fence(one, event, now);
    bool meant = model_open_step(one, event, now);
    if (model_state(one) == KVF_FAILED)
        one->failed_at = now;
    return meant;
}

/* ---- Random events ---------------------------------------------------------------------------------- */

/* A room's true notices, drawn in any order, with noise in between. */
typedef struct plan {
    uint32_t pages;
    uint32_t chunks;
    unsigned noise; /* one event in so many is anything at all */
} plan;

static void random_notice(test_random *random, const plan *room, bool noisy,
                          kvf_receiver_event *event, kvf_notice *notice)
{
    *notice = (kvf_notice){.kind = KVF_NOTICE_CHUNK};
    event->agent_name = agent_slice('a');
    notice->chunk = (uint32_t)test_random_below(random, room->chunks);
    notice->last = notice->chunk == room->chunks - 1;
    if (test_random_below(random, room->chunks + 1) == 0)
        notice->kind = KVF_NOTICE_AUX;
    if (!noisy)
        return;
    event->agent_name = agent_slice((char)('a' + test_random_below(random, 3)));
    notice->kind = (kvf_notice_kind)test_random_below(random, 3);
    if (test_random_below(random, 3) == 0) {
        notice->chunk = (uint32_t)test_random_edgy(random);
        notice->last = test_random_below(random, 2) == 0;
    }
}

static void random_event(test_random *random, const plan *room, kvf_receiver_event *event,
                         kvf_notice *notice)
{
    static const kvf_receiver_event_kind kinds[] = {
        KVF_RECEIVER_FOUND,   KVF_RECEIVER_EXPECTED, KVF_RECEIVER_DISCLOSED, KVF_RECEIVER_TIMER,
        KVF_RECEIVER_ABORTED, KVF_RECEIVER_FAILED,   KVF_RECEIVER_SHUTDOWN,  KVF_RECEIVER_PROVEN};
    bool noisy = test_random_below(random, room->noise) == 0;
    *event = (kvf_receiver_event){.kind = KVF_RECEIVER_NOTICE, .notice = notice};
    if (test_random_below(random, 4) == 0)
        event->kind = kinds[test_random_below(random, noisy ? 8 : 4)];
    if (event->kind == KVF_RECEIVER_NOTICE)
        random_notice(random, room, noisy, event, notice);
    if (event->kind == KVF_RECEIVER_EXPECTED)
        event->page_count = noisy ? (uint32_t)test_random_below(random, CHUNKS_MAX) : room->pages;
    if (event->kind == KVF_RECEIVER_FAILED)
        event->error = &failure;
    if (event->kind == KVF_RECEIVER_PROVEN)
        event->proof = KVF_PROOF_ACKNOWLEDGED;
}

static void check_requests(const model *one, const kvf_actions *actions, bool *requested)
{
    size_t requests = test_actions_count(actions, KVF_ACTION_REQUEST);
    bool should = one->found && one->expected && model_state(one) != KVF_FAILED && !*requested;
    assert_int_equal(requests, should);
    *requested = *requested || should;
}

/* How often each state and, among the failed, each safety was seen. */
typedef struct visits {
    size_t states[5];
    size_t failed[3];
} visits;

static void check_outcome(const kvf_receiver_machine *machine, const model *one, visits *seen)
{
    const kvf_outcome *outcome = &machine->outcome;
    assert_true(machine->deadline == model_deadline(one));
    assert_int_equal(outcome->safety, model_safety(one));
    assert_int_equal(outcome->proof, model_proof(one));
    seen->states[outcome->state]++;
    if (outcome->state == KVF_FAILED)
        seen->failed[outcome->safety]++;
}

static void run_random(test_random *random, visits *seen)
{
    static const uint32_t sizes[] = {0, 1, 2, 3, 8, 63, 64, 65, 130, CHUNKS_MAX};
    uint32_t pages = sizes[test_random_below(random, sizeof sizes / sizeof sizes[0])];
    plan room = {pages, 1 + (uint32_t)test_random_below(random, pages == 0 ? 1 : pages),
                 2 + (unsigned)test_random_below(random, 300)};
    kvf_receiver_machine machine;
    static model one;
    test_watch watch = test_watch_start();
    bool requested = false;
    uint64_t now = test_random_below(random, 1000);
    one = (model){.found = false};
    kvf_receiver_machine_init(&machine, &timeouts);
    for (size_t i = 0; i < 40 + 8 * room.chunks; i++) {
        kvf_receiver_event event = {.kind = KVF_RECEIVER_OPENED};
        kvf_notice notice;
        kvf_actions actions = {.count = 0};
        if (i > 0)
            random_event(random, &room, &event, &notice);
        now += test_random_below(random, 100) == 0 ? test_random_below(random, BOOTSTRAP / 2) : 0;
        bool should = model_step(&one, &event, now);
        bool meant = kvf_receiver_machine_step(&machine, &event, now, &actions);
        kvf_poll after = model_state(&one);
        test_watch_step(&watch, &machine.outcome, machine.deadline, &actions, meant);
        if (meant != should || machine.outcome.state != after ||
            machine.outcome.error.status != model_status(&one))
            fail_msg("event %zu of kind %d: %s and %s (%s), the model says %s and %s", i,
                     (int)event.kind, meant ? "taken" : "ignored",
                     test_state_text(machine.outcome.state), machine.outcome.error.text,
                     should ? "taken" : "ignored", test_state_text(after));
        check_outcome(&machine, &one, seen);
        check_requests(&one, &actions, &requested);
    }
    kvf_receiver_machine_free(&machine);
}

static void random_events_agree_with_the_model(void **state)
{
    (void)state;
    test_random random = test_random_start();
    visits seen = {.states = {0}};
    for (int i = 0; i < 2000; i++)
        run_random(&random, &seen);
    for (size_t i = 0; i < 5; i++)
        assert_true(seen.states[i] > 1000);
    for (size_t i = 0; i < 3; i++)
        assert_true(seen.failed[i] > 1000);
}

/* All chunks of a room of many, in a random order and with the aux record anywhere. */
static void any_order_of_many_chunks_ends_in_success(void **state)
{
    (void)state;
    test_random random = test_random_start();
    for (uint32_t chunks = 1; chunks < 200; chunks++) {
        kvf_receiver_machine machine;
        uint32_t order[201];
        kvf_notice notice;
        kvf_receiver_event event = {.kind = KVF_RECEIVER_OPENED};
        kvf_actions actions = {.count = 0};
        kvf_receiver_machine_init(&machine, &timeouts);
        (void)kvf_receiver_machine_step(&machine, &event, 0, &actions);
        event.kind = KVF_RECEIVER_FOUND;
        (void)kvf_receiver_machine_step(&machine, &event, 0, &actions);
        event = (kvf_receiver_event){.kind = KVF_RECEIVER_EXPECTED, .page_count = chunks};
        actions.count = 0;
        (void)kvf_receiver_machine_step(&machine, &event, 0, &actions);
        for (uint32_t i = 0; i <= chunks; i++) {
            uint32_t place = (uint32_t)test_random_below(&random, i + 1);
            order[i] = order[place];
            order[place] = i; /* the number after the last chunk's stands for aux */
        }
        event = (kvf_receiver_event){
            .kind = KVF_RECEIVER_NOTICE, .agent_name = agent_slice('c'), .notice = &notice};
        for (uint32_t i = 0; i <= chunks; i++) {
            assert_true(machine.outcome.state != KVF_SUCCESS);
            notice = (kvf_notice){.kind = order[i] == chunks ? KVF_NOTICE_AUX : KVF_NOTICE_CHUNK,
                                  .chunk = order[i],
                                  .last = order[i] == chunks - 1};
            actions.count = 0;
            assert_true(kvf_receiver_machine_step(&machine, &event, 0, &actions));
        }
        assert_int_equal(machine.outcome.state, KVF_SUCCESS);
        kvf_receiver_machine_free(&machine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_holds),
        cmocka_unit_test(what_was_missing_is_in_the_text),
        cmocka_unit_test(odd_agent_names_do_not_count),
        cmocka_unit_test(random_events_agree_with_the_model),
        cmocka_unit_test(any_order_of_many_chunks_ends_in_success),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
