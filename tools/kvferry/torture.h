/* `kvferry torture` in parts: the processes, the faults, the rooms and their pages, and the report.
 *
 *   kvferry torture            schedules faults, passes lines on, adds up
 *     ├── kvferry bootstrap
 *     ├── kvferry prefill      as everybody can use it
 *     └── kvferry torture-decode   opens rooms all the time and looks at every page
 */
#ifndef KVFERRY_TOOL_TORTURE_H
#define KVFERRY_TOOL_TORTURE_H

#include "child.h"
#include "options.h"
#include "pool.h"

typedef struct torture_options {
    uint64_t duration; /* seconds */
    uint64_t seed;
    uint64_t aborts;    /* 0: run for `duration` */
    const char *faults; /* names with commas; "all", "none" */
    const char *transports;
    const char *plant;
    const char *fence;
    const char *peers; /* kvferry, or stock */
    bool json;
    option_list set;
} torture_options;

/* What both workers' pools and all rooms look like. Half a MiB a room, in pages that rarely merge. */
enum {
    TORTURE_BUFFERS = 4,
    TORTURE_PAGES = 1024,
    TORTURE_ITEM = 4096,
    TORTURE_AUX_ITEM = 256,
    TORTURE_AUX_SLOTS = 64,
    TORTURE_ROOM_PAGES = 32,
    TORTURE_ROOMS = 6,              /* open at once */
    TORTURE_IDS = TORTURE_ROOMS * 4 /* in use at once: few, so that each is used again and again */
};
/* Room ids of the n-th decode process start at n times this. Between peers without epochs no id is used twice: each is
 * followed by the one TORTURE_IDS above it. */
#define TORTURE_ID_BASE UINT64_C(1000000000)

/* ---- Random numbers: the same ones for the same seed -------------------------------------------- */

typedef struct torture_random {
    uint64_t seed;
    uint64_t drawn;
} torture_random;

/* Below `limit`. */
uint64_t torture_draw(torture_random *random, uint64_t limit);

/* ---- Pages --------------------------------------------------------------------------------------- */

/* The decode pool. Every page that no room has holds the canary pattern, byte for byte. */
typedef struct torture_pages {
    tool_pool pool;
    uint64_t source_seed;
    uint32_t *idle; /* pages no room has */
    size_t idle_count;
    uint32_t *released; /* pages given back without a proof, which nobody gets again */
    size_t released_count;
    uint64_t bytes_checked; /* since the user took it */
    uint64_t corrupted;     /* pages of rooms with a byte that nobody was asked to write there */
    uint64_t canaries_corrupted;
    message first_corrupted;
} torture_pages;

/* What may lie in a room's pages: the source's bytes, and where those may be missing, the canary. */
typedef struct torture_claim {
    const uint32_t *pages;
    const uint32_t *source_pages;
    size_t page_count;
    uint32_t aux_slot;
    uint32_t source_aux_slot;
    bool whole; /* all must have arrived */
} torture_claim;

bool torture_pages_open(torture_pages *pages, message *why);
void torture_pages_close(torture_pages *pages);

/* Takes an idle page, whose canary must be untouched; the caller has seen that there is one. */
uint32_t torture_pages_take(torture_pages *pages, torture_random *random);
void torture_pages_put(torture_pages *pages, uint32_t page);

/* Checks each page of a room and gives it the canary again at once, so that what lands later is seen. */
void torture_pages_check(torture_pages *pages, const torture_claim *claim);

/* The share of the room's items that have arrived whole, from 0 to 1. */
double torture_pages_landed(const torture_pages *pages, const torture_claim *claim);

/* The room's pages are released, unproven: from now on what lands in them is counted. */
void torture_pages_release(torture_pages *pages, const torture_claim *claim);
/* How many of them something has landed in. */
uint64_t torture_pages_landed_late(const torture_pages *pages);

/* Looks at all idle pages. */
void torture_pages_check_idle(torture_pages *pages);

/* ---- Processes ------------------------------------------------------------------------------------ */

typedef enum torture_victim { TORTURE_BOOTSTRAP, TORTURE_PREFILL, TORTURE_DECODE } torture_victim;

enum { TORTURE_CHILDREN = 3 };

typedef struct torture_processes {
    const torture_options *options;
    torture_random random;
    tool_child children[TORTURE_CHILDREN];
    char bootstrap[32];    /* host:port */
    uint64_t prefill_port; /* 0 until it was told */
    uint64_t decodes;      /* how many were started */
    uint64_t abort_here;   /* of 100 rooms */
    uint64_t abort_there;
    bool stock; /* without extensions, and each room with a new id */
    bool slow;  /* transfers are held for a while, one of them forever */
} torture_processes;

/* Limits that keep a run short; a room that takes longer than all of them has hung. */
#define TORTURE_HEARTBEAT_TIMEOUT "1500ms"
#define TORTURE_BOOTSTRAP_TIMEOUT "6s"
#define TORTURE_WAITING_TIMEOUT "8s"
#define TORTURE_FENCE_TIMEOUT "4s"
#define TORTURE_ROOM_LIMIT UINT64_C(20000000000)

/* Starts one of them, on the address it had before. It says {"ready":true} later, except for the bootstrap server,
 * which is waited for. */
bool torture_start(torture_processes *processes, torture_victim which, message *why);
void torture_signal(torture_processes *processes, torture_victim which, int signal_number);

/* Kills it if it still runs, and waits for it. Returns its exit status, -1 for a signal. */
int torture_reap(torture_processes *processes, torture_victim which);

/* ---- Faults --------------------------------------------------------------------------------------- */

typedef enum torture_fault {
    FAULT_KILL_PREFILL,
    FAULT_STOP_PREFILL,
    FAULT_RESTART_PREFILL,
    FAULT_KILL_DECODE,
    FAULT_STOP_DECODE,
    FAULT_RESTART_DECODE,
    FAULT_KILL_BOOTSTRAP,
    FAULT_ABORT_DECODE,
    FAULT_ABORT_PREFILL,
    FAULT_SLOW,
    FAULT_COUNT
} torture_fault;

const char *torture_fault_name(torture_fault fault);

/* Whether a process is its victim, and which one. */
bool torture_fault_hits(torture_fault fault, torture_victim *victim);

/* Reads a list of names into a set of bits; false and a message that names them all. */
bool torture_faults_read(const char *list, unsigned *set, message *why);

/* ---- What came of it ------------------------------------------------------------------------------ */

typedef struct torture_effect {
    uint64_t injected;
    uint64_t rooms;           /* that failed of it */
    uint64_t worst_to_failed; /* nanoseconds */
    uint64_t worst_to_settled;
} torture_effect;

enum { TORTURE_NAMES = 24, TORTURE_BROKEN = 16 };

/* How often each word was said. */
typedef struct torture_tally {
    char names[TORTURE_NAMES][32];
    uint64_t counts[TORTURE_NAMES];
    size_t used;
} torture_tally;

typedef struct torture_result {
    torture_effect effects[FAULT_COUNT];
    torture_tally decode; /* statuses */
    torture_tally prefill;
    torture_tally proofs; /* of decode's rooms */
    uint64_t rooms;
    uint64_t ids_reused;
    uint64_t aborts;
    uint64_t aborts_midway; /* 1 % to 99 % had landed */
    uint64_t bytes_verified;
    uint64_t pages_corrupted; /* of rooms */
    uint64_t canaries_corrupted;
    uint64_t pages_released;   /* without a proof */
    uint64_t released_written; /* of those, with bytes that landed afterwards */
    uint64_t worst_heal;       /* from the end of a fault to the next room's Success */
    uint64_t began;
    uint64_t ended;
    size_t broken_count;
    message broken[TORTURE_BROKEN];
} torture_result;

void torture_count(torture_tally *tally, const char *name);

/* A promise was broken, or the run couldn't be carried through. */
__attribute__((format(printf, 2, 3))) void torture_break(torture_result *result, const char *format,
                                                         ...);

/* ---- A run ---------------------------------------------------------------------------------------- */

/* What is known of the latest room with one of the ids that the present decode process uses, or with one that followed
 * it. */
typedef struct torture_room {
    uint64_t id;
    json_t *line; /* for the prefill, while the decode's side is open; NULL otherwise */
    bool prefill_open;
    bool orphan_aborted;
    uint64_t abort_asked;  /* when the prefill was told to abort it; 0: not */
    uint64_t decode_ended; /* when, if it failed; 0: not */
} torture_room;

/* The latest fault of a process. */
typedef struct torture_last {
    torture_fault fault;
    uint64_t at; /* 0: none yet */
} torture_last;

typedef struct torture_run {
    const torture_options *options;
    unsigned faults; /* a bit for each kind */
    torture_random random;
    torture_processes processes;
    torture_result result;
    torture_room rooms[TORTURE_IDS];
    torture_last last[TORTURE_CHILDREN];
    bool ready[TORTURE_CHILDREN];
    bool ended[TORTURE_CHILDREN]; /* its output has ended */
    uint64_t healed_from; /* when the latest fault was over; 0: a room has succeeded since */
    uint64_t rooms_since; /* that have succeeded since then */
    bool summed_up;
    bool starved;     /* the decode has lost too many pages to rooms that were not proven safe */
    int stop_signals; /* a signalfd */
    bool interrupted;
} torture_run;

/* Passes lines on until `until` holds; false when that takes too long, or when something ended unasked. */
bool torture_pump(torture_run *run, bool (*until)(const torture_run *run), uint64_t timeout_ns);

/* Starts a process and waits until it is ready. */
bool torture_bring_up(torture_run *run, torture_victim which);

/* Injects a fault and undoes it: the process runs again afterwards. */
void torture_inject(torture_run *run, torture_fault fault);

/* Asks the decode process to end its rooms and to sum up. */
void torture_end_decode(torture_run *run);

void torture_report(const torture_options *options, unsigned faults, const torture_result *result);

#endif
