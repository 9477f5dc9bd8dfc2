#include "child.h"
#include "demo.h"
#include "progress.h"

#include <stdlib.h>

enum { START_TIMEOUT_MS = 60000, ANSWER_TIMEOUT_MS = 120000, END_TIMEOUT_MS = 15000 };

/* A slow case isn't repeated once its rounds have taken this long. */
static const double enough_seconds = 3;

typedef struct demo_pair {
    tool_child prefill;
    tool_child decode;
    uint64_t next_room; /* ids are never used twice */
} demo_pair;

typedef struct demo_round {
    uint64_t began; /* the earliest expect() */
    uint64_t ended; /* the latest Success */
    uint64_t bytes;
    uint64_t writes;
} demo_round;

enum { TEXT_COUNT = 8, TEXT_SIZE = 256, LIST_SIZE = 300 };

/* A worker's arguments, and the texts that some of them point into. */
typedef struct argument_list {
    const char *arguments[LIST_SIZE];
    size_t count;
    char texts[TEXT_COUNT][TEXT_SIZE];
    size_t text_count;
} argument_list;

static void add(argument_list *list, const char *name, const char *value)
{
    list->arguments[list->count++] = name;
    if (value != NULL)
        list->arguments[list->count++] = value;
}

static void add_number(argument_list *list, const char *name, uint64_t value)
{
    char *text = list->texts[list->text_count++];
    (void)snprintf(text, TEXT_SIZE, "%llu", (unsigned long long)value);
    add(list, name, text);
}

/* Both workers get the same shape, so that page numbers mean the same on both sides. */
static void list_arguments(argument_list *list, const demo_case *each, const char *command)
{
    *list = (argument_list){.count = 0};
    char *transports = list->texts[list->text_count++];
    (void)snprintf(transports, TEXT_SIZE, "transports=%s", each->transport->setting);
    add(list, command, NULL);
    add_number(list, "--buffers", each->shape.buffer_count);
    add_number(list, "--pages", each->shape.page_count);
    add_number(list, "--item-len", each->shape.item_length);
    add_number(list, "--aux-slots", each->shape.aux_slots);
    add_number(list, "--aux-item-len", each->shape.aux_item_length);
    add(list, "--bootstrap", each->bootstrap);
    add(list, "--quiet", NULL);
    if (!each->options->small_pages)
        add(list, "--huge", NULL);
    add(list, "--set", transports);
    add(list, "--set", "bootstrap_timeout=30s");
    add(list, "--set", "waiting_timeout=60s");
    for (size_t i = 0; i < each->options->set.count; i++)
        add(list, "--set", each->options->set.items[i]);
}

static bool start_worker(tool_child *child, argument_list *list, message *why)
{
    if (!child_start(child, list->arguments, why))
        return false;
    json_t *ready = child_answer(child, START_TIMEOUT_MS, why);
    json_decref(ready);
    return ready != NULL;
}

static bool start_pair(const demo_case *each, demo_pair *pair, message *why)
{
    argument_list list;
    list_arguments(&list, each, "prefill");
    add(&list, "--set", "advertise_address=127.0.0.1");
    if (!start_worker(&pair->prefill, &list, why))
        return false;
    list_arguments(&list, each, "decode");
    add(&list, "--verify-when-idle", NULL);
    return start_worker(&pair->decode, &list, why);
}

static json_t *page_array(const uint32_t *pages, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        (void)json_array_append_new(array, json_integer(pages[i]));
    return array;
}

static bool tell_prefill(const demo_case *each, demo_pair *pair, uint64_t room, size_t first,
                         size_t count, message *why)
{
    return child_tell(&pair->prefill,
                      json_pack("{s:I, s:o, s:I}", "room", (json_int_t)room, "pages",
                                page_array(each->source + first, count), "aux_slot",
                                (json_int_t)(first / each->pages_per_room)),
                      why);
}

static bool tell_decode(const demo_case *each, demo_pair *pair, uint64_t room, size_t first,
                        size_t count, message *why)
{
    return child_tell(&pair->decode,
                      json_pack("{s:I, s:o, s:o, s:I}", "room", (json_int_t)room, "pages",
                                page_array(each->target + first, count), "source_pages",
                                page_array(each->source + first, count), "aux_slot",
                                (json_int_t)(first / each->pages_per_room)),
                      why);
}

/* Asks, and takes the one answer; NULL and a message otherwise. */
static json_t *ask(tool_child *child, const char *key, const char *answer_key, message *why)
{
    if (!child_tell(child, json_pack("{s:b}", key, 1), why))
        return NULL;
    json_t *answer = child_answer(child, ANSWER_TIMEOUT_MS, why);
    if (answer == NULL || json_object_get(answer, answer_key) != NULL)
        return answer;
    const char *reason = json_string_value(json_object_get(answer, "reason"));
    (void)message_set(why, "a room ended early: %s", reason == NULL ? "no reason given" : reason);
    json_decref(answer);
    return NULL;
}

static bool ask_writes(demo_pair *pair, uint64_t *writes, message *why)
{
    json_t *answer = ask(&pair->prefill, "statistics", "statistics", why);
    const json_t *counters = json_object_get(answer, "statistics");
    *writes = (uint64_t)json_integer_value(json_object_get(counters, "writes_posted"));
    json_decref(answer);
    return answer != NULL;
}

static bool judge(const tool_child *child, const json_t *answer, message *why)
{
    const json_t *verified = json_object_get(answer, "verified");
    const char *state = json_string_value(json_object_get(answer, "state"));
    const char *reason = json_string_value(json_object_get(answer, "reason"));
    const char *mismatch = json_string_value(json_object_get(answer, "mismatch"));
    if (state == NULL || state[0] != 's')
        return message_set(why, "the %s process: %s", child->name,
                           reason == NULL ? "a room failed" : reason);
    bool checked = json_is_true(verified) || child->name[0] == 'p'; /* only decode can check */
    return checked || message_set(why, "%s", mismatch == NULL ? "not verified" : mismatch);
}

static uint64_t time_of(const json_t *answer, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(answer, key));
}

static bool take_answers(tool_child *child, uint64_t count, demo_round *round, message *why)
{
    *round = (demo_round){.began = UINT64_MAX};
    for (uint64_t i = 0; i < count; i++) {
        json_t *answer = child_answer(child, ANSWER_TIMEOUT_MS, why);
        if (answer == NULL)
            return false;
        uint64_t began = time_of(answer, "began_ns");
        uint64_t ended = time_of(answer, "ended_ns");
        round->began = began < round->began ? began : round->began;
        round->ended = ended > round->ended ? ended : round->ended;
        round->bytes += time_of(answer, "bytes");
        bool fine = judge(child, answer, why);
        json_decref(answer);
        if (!fine)
            return false;
    }
    return true;
}

/* Moves `rooms` rooms of `count` pages each. The prefill side goes first: what it sends is held until
 * the decode side asks for it, so that only the transfer is measured. */
static bool move_rooms(const demo_case *each, demo_pair *pair, uint64_t rooms, size_t count,
                       demo_round *round, message *why)
{
    demo_round senders;
    uint64_t writes_before = 0;
    uint64_t writes_after = 0;
    uint64_t first_room = pair->next_room;
    pair->next_room += rooms;
    for (uint64_t i = 0; i < rooms; i++)
        if (!tell_prefill(each, pair, first_room + i, i * each->pages_per_room, count, why))
            return false;
    if (!ask_writes(pair, &writes_before, why)) /* also shows that all rooms are open */
        return false;
    for (uint64_t i = 0; i < rooms; i++)
        if (!tell_decode(each, pair, first_room + i, i * each->pages_per_room, count, why))
            return false;
    if (!take_answers(&pair->decode, rooms, round, why) ||
        !take_answers(&pair->prefill, rooms, &senders, why) ||
        !ask_writes(pair, &writes_after, why))
        return false;
    round->writes = writes_after - writes_before;
    return true;
}

static bool run_round(const demo_case *each, demo_pair *pair, demo_round *round, message *why)
{
    json_t *poisoned = ask(&pair->decode, "poison", "poisoned", why);
    json_decref(poisoned);
    return poisoned != NULL &&
           move_rooms(each, pair, each->options->rooms, each->pages_per_room, round, why);
}

static bool run_rounds(const demo_case *each, demo_pair *pair, demo_result *result)
{
    double seconds[DEMO_ROUNDS_MAX];
    double sum = 0;
    demo_round round;
    if (!move_rooms(each, pair, 1, 1, &round, &result->problem)) /* connects */
        return false;
    for (result->rounds = 0; result->rounds < each->options->rounds && sum < enough_seconds;) {
        if (progress_is_live())
            progress_show("%s, %s: round %zu", each->transport->name, each->pattern->name,
                          result->rounds + 1);
        if (!run_round(each, pair, &round, &result->problem))
            return false;
        seconds[result->rounds] = (double)(round.ended - round.began) / 1e9;
        sum += seconds[result->rounds++];
    }
    result->bytes = round.bytes;
    result->writes = round.writes;
    result->seconds = demo_median(seconds, result->rounds);
    return true;
}

void demo_case_run(const demo_case *each, demo_result *result)
{
    demo_pair pair = {.next_room = 1};
    progress_show("%s, %s: starting both processes", each->transport->name, each->pattern->name);
    result->verified = start_pair(each, &pair, &result->problem) && run_rounds(each, &pair, result);
    /* The writer first: UCX complains of an endpoint whose other side has gone. */
    int prefill = child_end(&pair.prefill, END_TIMEOUT_MS);
    int decode = child_end(&pair.decode, END_TIMEOUT_MS);
    if (result->verified && (decode != 0 || prefill != 0))
        result->verified = message_set(&result->problem, "exit status %d of decode, %d of prefill",
                                       decode, prefill);
}
