/* The decode process of `kvferry torture`: opens rooms all the time, aborts some of them in the middle, looks at every
 * page, and gives the pages of a room that is proven safe to the next room in the same turn.
 *
 * It is told, one JSON object a line:      it says:
 *   {"free":ID}  both sides have ended it    {"open":ID,"pages":[...],"chunks":[...],"aux_slot":S}  to the prefill
 *   {"calm":true}  abort no more             {"abort_there":ID}
 *   {"quit":true}  open no more, then end    {"ended":ID,...}  when its pages are not in use any more
 *                                            {"summary":true,...}  at the end */
#include "clock.h"
#include "commands.h"
#include "exit_codes.h"
#include "torture.h"
#include "worker_options.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_LIMIT = 1 << 16, EVENTS = 32, CHUNKS = 4, SWAPPED = TORTURE_ROOM_PAGES / 8 };

/* How long the loop sleeps while it waits for the moment of an abort. */
static const long look_again = 50000; /* nanoseconds */
/* Between the end of the last room and the look at all pages. */
static const struct timespec last_look = {.tv_nsec = 200000000};

typedef struct decode_options {
    const char *bootstrap;
    uint64_t seed;
    uint64_t first_id;
    uint64_t abort_here;  /* of 100 rooms */
    uint64_t abort_there; /* of 100 rooms */
    bool no_fence;
    bool fresh_ids;
    option_list set;
} decode_options;

typedef enum lane_state { LANE_EMPTY, LANE_OPEN, LANE_FENCING, LANE_LOST } lane_state;

typedef enum abort_plan { ABORT_NOT, ABORT_HERE, ABORT_THERE } abort_plan;

/* A lane has one room after the other. Its pages and aux slot are its own for as long as they are proven safe. */
typedef struct torture_lane {
    lane_state state;
    uint64_t id;
    kvf_receiver *receiver;
    uint32_t pages[TORTURE_ROOM_PAGES];
    uint32_t source_pages[TORTURE_ROOM_PAGES];
    uint32_t aux_slot;
    uint32_t source_aux_slot;
    abort_plan plan;
    double plan_at; /* the share of the bytes at which the abort is due */
    double landed;  /* at the abort */
    uint64_t opened;
    uint64_t aborted;
    uint64_t failed;
} torture_lane;

typedef struct torture_driver {
    decode_options options;
    torture_random random;
    torture_pages pages;
    kvf_settings *settings;
    kvf_manager *manager;
    line_reader input;
    torture_lane lanes[TORTURE_ROOMS];
    uint64_t free_ids[TORTURE_IDS];
    size_t free_count;
    uint32_t next_aux_slot;
    uint64_t rooms_opened;
    bool calm;
    bool quitting;
    bool broken;
} torture_driver;

static void say(torture_driver *driver, json_t *object)
{
    bool written = object != NULL && json_dumpf(object, stdout, JSON_COMPACT) == 0 &&
                   fputc('\n', stdout) != EOF && fflush(stdout) == 0;
    json_decref(object);
    driver->broken = driver->broken || !written;
}

static torture_claim claim_of(const torture_lane *lane, bool whole)
{
    return (torture_claim){.pages = lane->pages,
                           .source_pages = lane->source_pages,
                           .page_count = TORTURE_ROOM_PAGES,
                           .aux_slot = lane->aux_slot,
                           .source_aux_slot = lane->source_aux_slot,
                           .whole = whole};
}

/* ---- Opening ------------------------------------------------------------------------------------- */

/* Some pages go to the unused ones and others come from there, in an order of their own. */
static void mix_pages(torture_driver *driver, torture_lane *lane)
{
    for (size_t i = 0; i < SWAPPED; i++) {
        uint32_t *given = &lane->pages[torture_draw(&driver->random, TORTURE_ROOM_PAGES)];
        uint32_t taken = torture_pages_take(&driver->pages, &driver->random);
        torture_pages_put(&driver->pages, *given);
        *given = taken;
    }
    for (size_t i = TORTURE_ROOM_PAGES; i > 1; i--) {
        size_t other = (size_t)torture_draw(&driver->random, i);
        uint32_t page = lane->pages[i - 1];
        lane->pages[i - 1] = lane->pages[other];
        lane->pages[other] = page;
    }
}

static void plan_abort(const torture_driver *driver, torture_lane *lane, torture_random *random)
{
    uint64_t dice = torture_draw(random, 100);
    lane->plan_at = (double)(2 + torture_draw(random, 80)) / 100;
    lane->plan = ABORT_NOT;
    if (driver->calm)
        return;
    if (dice < driver->options.abort_here)
        lane->plan = ABORT_HERE;
    else if (dice < driver->options.abort_here + driver->options.abort_there)
        lane->plan = ABORT_THERE;
}

static void tell_prefill(torture_driver *driver, const torture_lane *lane)
{
    json_t *pages = json_array();
    json_t *chunks = json_array();
    for (size_t i = 0; i < TORTURE_ROOM_PAGES; i++)
        (void)json_array_append_new(pages, json_integer(lane->source_pages[i]));
    for (size_t i = 0; i < CHUNKS; i++)
        (void)json_array_append_new(chunks, json_integer(TORTURE_ROOM_PAGES / CHUNKS));
    say(driver, json_pack("{s:I, s:o, s:o, s:I}", "open", (json_int_t)lane->id, "pages", pages,
                          "chunks", chunks, "aux_slot", (json_int_t)lane->source_aux_slot));
}

/* Which pages the source gives is drawn anew, so that bytes of an earlier room with the same number are wrong ones. */
static void plan_room(torture_driver *driver, torture_lane *lane)
{
    /* A generator of its own: the n-th room of a process is the same one however the rooms before it went. */
    torture_random random = {.seed = driver->options.seed ^ (++driver->rooms_opened << 32)};
    uint32_t first = (uint32_t)torture_draw(&random, TORTURE_PAGES);
    for (uint32_t i = 0; i < TORTURE_ROOM_PAGES; i++)
        lane->source_pages[i] = (first + i * 29) % TORTURE_PAGES;
    lane->source_aux_slot = (uint32_t)torture_draw(&random, TORTURE_AUX_SLOTS);
    plan_abort(driver, lane, &random);
}

/* Its pages hold the canary. */
static void open_room(torture_driver *driver, torture_lane *lane)
{
    const decode_options *options = &driver->options;
    if (driver->quitting || driver->free_count == 0)
        return;
    mix_pages(driver, lane);
    plan_room(driver, lane);
    lane->id = driver->free_ids[--driver->free_count]; /* the one that became free last */
    lane->opened = clock_now();
    lane->aborted = lane->failed = 0;
    lane->landed = 0;
    kvf_room_options room = {.size = sizeof room, .user = lane, .dp_rank = -1};
    kvf_status status =
        kvf_receiver_open(driver->manager, options->bootstrap, lane->id, &room, &lane->receiver);
    if (status == KVF_OK)
        (void)kvf_receiver_expect(lane->receiver, lane->pages, TORTURE_ROOM_PAGES, lane->aux_slot);
    else
        (void)fprintf(stderr, "kvferry torture-decode: %s\n", kvf_error_text());
    driver->broken = driver->broken || status != KVF_OK;
    lane->state = LANE_OPEN;
    tell_prefill(driver, lane);
}

static void open_rooms(torture_driver *driver)
{
    for (size_t i = 0; i < TORTURE_ROOMS; i++)
        if (driver->lanes[i].state == LANE_EMPTY)
            open_room(driver, &driver->lanes[i]);
}

/* Other pages for a lane whose old ones nobody proved safe. */
static void furnish(torture_driver *driver, torture_lane *lane)
{
    lane->state = LANE_LOST;
    if (driver->pages.idle_count < TORTURE_ROOM_PAGES + SWAPPED ||
        driver->next_aux_slot == TORTURE_AUX_SLOTS)
        return;
    for (size_t i = 0; i < TORTURE_ROOM_PAGES; i++)
        lane->pages[i] = torture_pages_take(&driver->pages, &driver->random);
    lane->aux_slot = driver->next_aux_slot++;
    lane->state = LANE_EMPTY;
}

/* ---- Ending -------------------------------------------------------------------------------------- */

/* Bytes compared since the last time. */
static uint64_t take_checked(torture_driver *driver)
{
    uint64_t checked = driver->pages.bytes_checked;
    driver->pages.bytes_checked = 0;
    return checked;
}

static void tell_ended(torture_driver *driver, const torture_lane *lane, const kvf_event *event,
                       uint64_t now, uint64_t wrong)
{
    bool failed = event->state == KVF_FAILED;
    static const char *const plans[] = {"", "here", "there"};
    say(driver,
        json_pack("{s:I, s:s, s:s, s:s, s:b, s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:s, s:I}", "ended",
                  (json_int_t)lane->id, "status", kvf_status_name((kvf_status)event->status),
                  "proof", kvf_proof_name((kvf_proof)event->proof), "reason",
                  failed ? kvf_receiver_failure_text(lane->receiver) : "", "released",
                  event->safety == KVF_PAGES_RELEASED, "abort", plans[lane->plan], "opened_ns",
                  (json_int_t)lane->opened, "aborted_ns", (json_int_t)lane->aborted, "failed_ns",
                  (json_int_t)lane->failed, "settled_ns", (json_int_t)now, "landed", lane->landed,
                  "wrong_pages", (json_int_t)wrong, "corrupted",
                  wrong > 0 ? driver->pages.first_corrupted.text : "", "bytes_checked",
                  (json_int_t)take_checked(driver)));
}

/* The room is over: its pages go to the next one at once, if they may. */
static void settle(torture_driver *driver, torture_lane *lane, const kvf_event *event, uint64_t now)
{
    uint64_t before = driver->pages.corrupted;
    torture_claim claim = claim_of(lane, event->state == KVF_SUCCESS);
    bool released = event->safety == KVF_PAGES_RELEASED;
    torture_pages_check(&driver->pages, &claim);
    if (released)
        torture_pages_release(&driver->pages, &claim);
    tell_ended(driver, lane, event, now, driver->pages.corrupted - before);
    kvf_receiver_close(lane->receiver);
    lane->receiver = NULL;
    lane->state = LANE_EMPTY;
    if (released)
        furnish(driver, lane);
    if (lane->state == LANE_EMPTY)
        open_room(driver, lane);
}

static void take_event(torture_driver *driver, const kvf_event *event)
{
    torture_lane *lane = event->user;
    uint64_t now = clock_now();
    if (event->state != KVF_FAILED && event->state != KVF_SUCCESS)
        return;
    if (event->state == KVF_FAILED && lane->failed == 0)
        lane->failed = now;
    lane->state = LANE_FENCING;
    if (event->safety != KVF_PAGES_IN_USE || driver->options.no_fence)
        settle(driver, lane, event, now);
}

static void take_events(torture_driver *driver)
{
    kvf_event events[EVENTS];
    /* One at a time: a room that is opened for an ended one must not meet the old one's later event. */
    while (kvf_manager_wait(driver->manager, events, 1, 0) == 1)
        take_event(driver, &events[0]);
}

/* ---- Aborts in the middle ------------------------------------------------------------------------ */

static bool abort_is_planned(const torture_lane *lane)
{
    return lane->state == LANE_OPEN && lane->plan != ABORT_NOT && lane->aborted == 0;
}

static void abort_when_due(torture_driver *driver, torture_lane *lane)
{
    torture_claim claim = claim_of(lane, false);
    double landed = torture_pages_landed(&driver->pages, &claim);
    if (landed < lane->plan_at)
        return;
    lane->landed = landed;
    lane->aborted = clock_now();
    if (lane->plan == ABORT_HERE)
        kvf_receiver_abort(lane->receiver);
    else
        say(driver, json_pack("{s:I}", "abort_there", (json_int_t)lane->id));
}

/* Whether the loop has to look again soon. */
static bool abort_rooms(torture_driver *driver)
{
    bool waiting = false;
    for (size_t i = 0; i < TORTURE_ROOMS; i++) {
        torture_lane *lane = &driver->lanes[i];
        if (abort_is_planned(lane))
            abort_when_due(driver, lane);
        waiting = waiting || abort_is_planned(lane);
    }
    return waiting;
}

/* ---- The loop ------------------------------------------------------------------------------------ */

static void take_line(torture_driver *driver, const char *text, size_t length)
{
    json_t *line = json_loadb(text, length, 0, NULL);
    const json_t *id = json_object_get(line, "free");
    if (id != NULL)
        driver->free_ids[driver->free_count++] =
            (uint64_t)json_integer_value(id) + (driver->options.fresh_ids ? TORTURE_IDS : 0);
    driver->calm = driver->calm || json_object_get(line, "calm") != NULL;
    driver->quitting = driver->quitting || json_object_get(line, "quit") != NULL;
    json_decref(line);
}

static void take_lines(torture_driver *driver)
{
    char *text = NULL;
    size_t length = 0;
    line_found found;
    (void)line_reader_fill(&driver->input);
    while ((found = line_reader_next(&driver->input, &text, &length)) == LINE_WHOLE)
        take_line(driver, text, length);
    if (found == LINE_END)
        driver->broken = true; /* nobody listens any more */
}

static bool has_open_rooms(const torture_driver *driver)
{
    for (size_t i = 0; i < TORTURE_ROOMS; i++)
        if (driver->lanes[i].receiver != NULL)
            return true;
    return false;
}

static bool is_starved(const torture_driver *driver)
{
    for (size_t i = 0; i < TORTURE_ROOMS; i++)
        if (driver->lanes[i].state != LANE_LOST)
            return false;
    return true;
}

static void serve(torture_driver *driver)
{
    const struct timespec soon = {.tv_nsec = look_again};
    bool told = false;
    while (!driver->broken && (!driver->quitting || has_open_rooms(driver))) {
        open_rooms(driver);
        bool waiting = abort_rooms(driver);
        struct pollfd sources[] = {{kvf_manager_fd(driver->manager), POLLIN, 0},
                                   {STDIN_FILENO, POLLIN, 0}};
        (void)ppoll(sources, 2, waiting ? &soon : NULL, NULL);
        if (sources[0].revents != 0)
            take_events(driver);
        if (sources[1].revents != 0)
            take_lines(driver);
        if (!told && is_starved(driver)) {
            say(driver, json_pack("{s:b}", "starved", 1));
            told = true;
        }
    }
}

/* What comes late would land most of all in the pages that were said to be safe last, and needs a moment for it. */
static void take_back(torture_driver *driver)
{
    (void)nanosleep(&last_look, NULL);
    for (size_t i = 0; i < TORTURE_ROOMS; i++) {
        torture_lane *lane = &driver->lanes[i];
        if (lane->state != LANE_EMPTY)
            continue;
        torture_pages_check_slot(&driver->pages, lane->aux_slot);
        for (size_t k = 0; k < TORTURE_ROOM_PAGES; k++)
            torture_pages_put(&driver->pages, lane->pages[k]);
    }
}

static void sum_up(torture_driver *driver)
{
    take_back(driver);
    torture_pages_check_idle(&driver->pages);
    say(driver, json_pack("{s:b, s:I, s:I, s:I, s:I}", "summary", 1, "bytes_checked",
                          (json_int_t)take_checked(driver), "canaries_corrupted",
                          (json_int_t)driver->pages.canaries_corrupted, "pages_released",
                          (json_int_t)driver->pages.released_count, "released_written",
                          (json_int_t)torture_pages_landed_late(&driver->pages)));
}

/* ---- Starting ------------------------------------------------------------------------------------ */

#define AT(field) offsetof(decode_options, field)

static const option_row rows[] = {
    {"bootstrap", "HOST:PORT", OPTION_TEXT, AT(bootstrap), 0, 0, "bootstrap server of the source"},
    {"seed", "N", OPTION_COUNT, AT(seed), 0, INT64_MAX, "what is drawn at random follows from it"},
    {"first-id", "N", OPTION_COUNT, AT(first_id), 0, INT64_MAX, "the lowest room number"},
    {"abort-here", "N", OPTION_COUNT, AT(abort_here), 0, 100, "of 100 rooms: aborted on this side"},
    {"abort-there", "N", OPTION_COUNT, AT(abort_there), 0, 100, "of 100 rooms: on the other side"},
    {"no-fence", NULL, OPTION_FLAG, AT(no_fence), 0, 0, "reuse pages before they are safe"},
    {"fresh-ids", NULL, OPTION_FLAG, AT(fresh_ids), 0, 0, "use no room number twice"},
    {"set", "NAME=VALUE", OPTION_LIST, AT(set), 0, 0, "any setting of `kvferry settings`"}};

static const option_table table = {"torture-decode", "the decode process of `kvferry torture`",
                                   NULL, rows, sizeof rows / sizeof rows[0]};

static bool open_manager(torture_driver *driver, message *why)
{
    const tool_pool *pool = &driver->pages.pool;
    kvf_layout layout = {.size = sizeof layout,
                         .buffers = pool->buffers,
                         .buffer_count = TORTURE_BUFFERS,
                         .aux = pool_aux(pool),
                         .aux_count = 1};
    driver->settings = settings_from_options(&driver->options.set, why);
    return driver->settings != NULL &&
           (kvf_manager_open(&driver->manager, KVF_DECODE, &layout, driver->settings) == KVF_OK ||
            message_set(why, "%s", kvf_error_text()));
}

static bool open_driver(torture_driver *driver, message *why)
{
    driver->random.seed = driver->options.seed;
    line_reader_open(&driver->input, STDIN_FILENO, LINE_LIMIT);
    if (!torture_pages_open(&driver->pages, why) || !open_manager(driver, why))
        return false;
    for (size_t i = 0; i < TORTURE_ROOMS; i++)
        furnish(driver, &driver->lanes[i]);
    for (uint64_t i = 0; i < TORTURE_IDS; i++)
        driver->free_ids[driver->free_count++] = driver->options.first_id + i;
    return true;
}

static void close_driver(torture_driver *driver)
{
    kvf_manager_close(driver->manager);
    kvf_settings_close(driver->settings);
    torture_pages_close(&driver->pages);
    line_reader_close(&driver->input);
    free(driver);
}

int command_torture_decode(int count, char **arguments)
{
    torture_driver *driver = calloc(1, sizeof *driver);
    int result = TOOL_ENVIRONMENT;
    message why;
    if (driver == NULL || !options_begin(&table, count, arguments, &driver->options, &result)) {
        free(driver);
        return result;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (open_driver(driver, &why)) {
        say(driver, json_pack("{s:b}", "ready", 1));
        serve(driver);
        sum_up(driver);
        result = driver->broken ? TOOL_ENVIRONMENT : TOOL_FINE;
    } else {
        (void)fprintf(stderr, "kvferry torture-decode: %s\n", why.text);
    }
    close_driver(driver);
    return result;
}
