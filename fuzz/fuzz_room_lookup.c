/* The lookup machine under any stream of events, also impossible ones. Input: three bytes of policy, then two bytes
 * an event: kind and whoever comes or leaves, and time. What must hold whatever comes: who waits is never forgotten,
 * which is to say that a call, a connection or a timer is under way that will end; one thing at a time is; pauses grow
 * as they should; it is given up after that many failures in a row and no earlier. And whatever came before: from
 * there, a waiter whose calls all fail is told within bounded attempts and time, one whose calls succeed is served. */
#include "room/lookup.h"

#include "support.h"

static const kvf_error problems[] = {{KVF_BOOTSTRAP, "one thing is wrong"},
                                     {KVF_PEER_GONE, "another is"}};

enum { PAUSE_GROWTH = 16 };

/* Seen from outside: what is under way, told by the actions alone. */
typedef struct outside {
    bool waits; /* somebody */
    bool call;
    bool connection; /* being made or there */
    bool ready;
    uint64_t timer;
    unsigned failures; /* in a row */
    unsigned pauses;
    uint64_t asks; /* since the beginning */
} outside;

typedef struct stage {
    kvf_lookup_policy policy;
    kvf_lookup_machine machine;
    outside seen;
    uint64_t now;
} stage;

/* Whether the event means anything: an answer to a call that is under way, a timer that was set. */
static bool is_possible(const stage *stage, kvf_lookup_event_kind kind)
{
    const outside *seen = &stage->seen;
    switch (kind) {
    case KVF_LOOKUP_ANSWERED:
    case KVF_LOOKUP_NOT_YET:
    case KVF_LOOKUP_FAILED:
        return seen->call;
    case KVF_LOOKUP_CONNECTED:
        return seen->connection && !seen->ready;
    case KVF_LOOKUP_GONE:
        return seen->connection || seen->ready;
    case KVF_LOOKUP_TIMER:
        return seen->timer <= stage->now;
    case KVF_LOOKUP_WANTED:
        return !seen->call && !seen->connection && !seen->ready && seen->timer == KVF_NO_DEADLINE;
    }
    return false;
}

static void end_what_is_over(outside *seen, kvf_lookup_event_kind kind)
{
    if (seen->call && kind == KVF_LOOKUP_FAILED)
        seen->failures++;
    else if (kind == KVF_LOOKUP_ANSWERED || kind == KVF_LOOKUP_NOT_YET)
        seen->failures = 0;
    if (kind == KVF_LOOKUP_ANSWERED || kind == KVF_LOOKUP_NOT_YET || kind == KVF_LOOKUP_FAILED)
        seen->call = false;
    if (kind == KVF_LOOKUP_GONE)
        seen->connection = false;
    if (kind == KVF_LOOKUP_TIMER)
        seen->timer = KVF_NO_DEADLINE;
}

static uint64_t expected_pause(const stage *stage)
{
    uint64_t pause = stage->policy.retry_interval;
    for (unsigned i = 0;
         i < stage->seen.pauses && pause < PAUSE_GROWTH * stage->policy.retry_interval; i++)
        pause *= 2;
    return pause;
}

static void start_over(outside *seen)
{
    seen->failures = 0;
    seen->pauses = 0;
}

static void follow_action(stage *stage, const kvf_action *action)
{
    outside *seen = &stage->seen;
    bool idle = !seen->call && !seen->connection && !seen->ready && seen->timer == KVF_NO_DEADLINE;
    switch (action->kind) {
    case KVF_ACTION_ASK:
        require(idle && seen->waits);
        seen->call = true;
        seen->asks++;
        break;
    case KVF_ACTION_CONNECT:
        require(idle && stage->policy.connects);
        seen->connection = true;
        break;
    case KVF_ACTION_READY:
        require(!seen->ready && (seen->connection || !stage->policy.connects));
        seen->ready = true;
        seen->waits = false;
        start_over(seen);
        break;
    case KVF_ACTION_LOST:
        require(seen->ready);
        seen->ready = false;
        break;
    case KVF_ACTION_GIVE_UP:
        require(idle && seen->failures == stage->policy.attempts);
        require(stage->machine.problem.status != KVF_OK);
        seen->waits = false;
        break;
    case KVF_ACTION_TIMER:
        require(idle && seen->waits && seen->failures < stage->policy.attempts);
        require(action->deadline == stage->now + expected_pause(stage));
        seen->timer = action->deadline;
        seen->pauses++;
        break;
    default:
        require(false);
    }
}

static void check_state(stage *stage)
{
    const outside *seen = &stage->seen;
    bool pending = seen->call || seen->connection || seen->timer != KVF_NO_DEADLINE;
    require(!seen->waits || pending || seen->ready);
    require((stage->machine.state == KVF_LOOKUP_READY) == seen->ready);
    require((stage->machine.state == KVF_LOOKUP_ASKING) == seen->call);
    require((stage->machine.state == KVF_LOOKUP_PAUSING) == (seen->timer != KVF_NO_DEADLINE));
    require((stage->machine.state == KVF_LOOKUP_IDLE) == (!pending && !seen->ready));
    require(!seen->ready || stage->machine.problem.status == KVF_OK);
    if (stage->machine.state == KVF_LOOKUP_IDLE)
        start_over(&stage->seen);
}

static void step(stage *stage, kvf_lookup_event_kind kind, const kvf_error *problem)
{
    outside *seen = &stage->seen;
    kvf_actions actions = {.count = 0};
    bool possible = is_possible(stage, kind);
    seen->waits = seen->waits || (kind == KVF_LOOKUP_WANTED && !seen->ready);
    kvf_lookup_event event = {.kind = kind, .wanted = seen->waits, .error = problem};
    kvf_lookup_machine before = stage->machine;
    kvf_lookup_machine_step(&stage->machine, &event, stage->now, &actions);
    require(actions.count < KVF_ACTIONS_MAX);
    if (!possible)
        require(actions.count == 0 && stage->machine.state == before.state);
    else
        end_what_is_over(seen, kind);
    for (size_t i = 0; i < actions.count; i++)
        follow_action(stage, &actions.items[i]);
    check_state(stage);
}

/* Someone may come or leave without the machine being told; it asks at each event. Who comes while nothing is under
 * way says so. */
static void step_by_input(stage *stage, const uint8_t *data)
{
    kvf_lookup_event_kind kind = (kvf_lookup_event_kind)(data[0] % (KVF_LOOKUP_TIMER + 1));
    if ((data[0] & 64) != 0)
        stage->seen.waits = false;
    else if ((data[0] & 128) != 0 && stage->machine.state != KVF_LOOKUP_IDLE)
        stage->seen.waits = true;
    stage->now += data[1] >> 1;
    if ((data[1] & 1) != 0 && stage->seen.timer != KVF_NO_DEADLINE &&
        stage->seen.timer > stage->now)
        stage->now = stage->seen.timer;
    step(stage, kind, &problems[data[1] >> 7]);
}

/* What the world answers from now on: everything fails, or nothing does. */
static void answer(stage *stage, bool good)
{
    const outside *seen = &stage->seen;
    if (seen->call)
        step(stage, good ? KVF_LOOKUP_ANSWERED : KVF_LOOKUP_FAILED, &problems[0]);
    else if (seen->connection)
        step(stage, good ? KVF_LOOKUP_CONNECTED : KVF_LOOKUP_GONE, &problems[0]);
    else {
        require(seen->timer != KVF_NO_DEADLINE);
        stage->now = seen->timer > stage->now ? seen->timer : stage->now;
        step(stage, KVF_LOOKUP_TIMER, &problems[0]);
    }
}

static void serve_or_tell(stage *stage, bool good)
{
    if (stage->seen.ready)
        return;
    /* A pause and a connection may be under way, before the first call of the row. */
    uint64_t asks = stage->seen.asks + (good ? 1 : stage->policy.attempts);
    uint64_t longest = PAUSE_GROWTH * stage->policy.retry_interval;
    uint64_t end = stage->now + longest * (good ? 1 : (uint64_t)stage->policy.attempts + 1);
    step(stage, KVF_LOOKUP_WANTED, NULL);
    while (stage->seen.waits)
        answer(stage, good);
    require(stage->seen.ready == good);
    require(stage->seen.asks <= asks && stage->now <= end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    stage stage = {.policy = {1 + (uint64_t)data[0], 1 + data[1] % 8, (data[2] & 1) != 0},
                   .seen = {.timer = KVF_NO_DEADLINE}};
    bool good = (data[2] & 2) != 0;
    kvf_lookup_machine_init(&stage.machine, &stage.policy);
    for (data += 3, size -= 3; size >= 2; data += 2, size -= 2)
        step_by_input(&stage, data);
    serve_or_tell(&stage, good);
    return 0;
}
