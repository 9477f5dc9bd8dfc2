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

#include <sys/resource.h>

typedef struct torture_options {
    uint64_t duration; /* seconds; 0: not given */
    uint64_t seed;
    uint64_t aborts;     /* 0: run for `duration` */
    uint64_t room_limit; /* seconds until a room that hasn't ended has hung */
    const char *faults;  /* names with commas; "all", "none"; NULL: not given */
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

/* Checks each page of a room and its aux slot, and gives them the canary again at once, so that what lands later is
 * seen. */
void torture_pages_check(torture_pages *pages, const torture_claim *claim);

/* The share of the room's items that have arrived whole, from 0 to 1. */
double torture_pages_landed(const torture_pages *pages, const torture_claim *claim);

/* The room's pages, which hold the canary, are released, unproven: from now on what lands in them is counted. */
void torture_pages_release(torture_pages *pages, const torture_claim *claim);
/* How many of them something has landed in. */
uint64_t torture_pages_landed_late(const torture_pages *pages);

/* Looks at the aux slot of a room that has been settled: it holds the canary. */
void torture_pages_check_slot(torture_pages *pages, uint32_t slot);
/* Looks at all idle pages. */
void torture_pages_check_idle(torture_pages *pages);

/* ---- Processes ------------------------------------------------------------------------------------ */

typedef enum torture_victim { TORTURE_BOOTSTRAP, TORTURE_PREFILL, TORTURE_DECODE } torture_victim;

enum { TORTURE_CHILDREN = 3 };

/* The faults of the data plane that a prefill process has for life. */
typedef struct torture_slowness {
    unsigned hold_ms; /* each transfer starts so late */
    unsigned stall;   /* this transfer, counted from 1, never starts */
} torture_slowness;

typedef struct torture_processes {
    const torture_options *options;
    tool_child children[TORTURE_CHILDREN];
    char bootstrap[32];    /* host:port */
    uint64_t prefill_port; /* 0 until it was told */
    uint64_t decodes;      /* how many were started */
    uint64_t abort_here;   /* of 100 rooms */
    uint64_t abort_there;
    bool stock; /* without extensions, and each room with a new id */
    bool slow;  /* the next prefill process has this slowness */
    torture_slowness slowness;
    struct rlimit descriptors[TORTURE_CHILDREN]; /* before they were taken away */
} torture_processes;

/* Limits that keep a run short; a room that takes longer than all of them has hung. */
#define TORTURE_HEARTBEAT_TIMEOUT "1500ms"
#define TORTURE_BOOTSTRAP_TIMEOUT "6s"
#define TORTURE_WAITING_TIMEOUT "8s"
#define TORTURE_FENCE_TIMEOUT "4s"

/* Starts one of them, on the address it had before. It says {"ready":true} later, except for the bootstrap server,
 * which is waited for. A process that has been started may have to be reaped also after a failure. */
bool torture_start(torture_processes *processes, torture_victim which, message *why);
void torture_signal(torture_processes *processes, torture_victim which, int signal_number);

/* Leaves it with the descriptors it has open and not one more, or gives it back what it had before. */
bool torture_starve(torture_processes *processes, torture_victim which);
void torture_feed(torture_processes *processes, torture_victim which);

/* Waits for its end, and kills it where that takes longer than 5 s. Returns its exit status, -1 for a signal. */
int torture_reap(torture_processes *processes, torture_victim which);
/* That status in words. */
const char *torture_how(int status, message *how);

/* ---- Faults --------------------------------------------------------------------------------------- */

typedef enum torture_fault {
    FAULT_KILL_PREFILL,
    FAULT_STOP_PREFILL,
    FAULT_RESTART_PREFILL,
    FAULT_KILL_DECODE,
    FAULT_STOP_DECODE,
    FAULT_RESTART_DECODE,
    FAULT_KILL_BOOTSTRAP,
    FAULT_STARVE_DESCRIPTORS,
    FAULT_ABORT_DECODE,
    FAULT_ABORT_PREFILL,
    FAULT_SLOW,
    FAULT_COUNT
} torture_fault;

const char *torture_fault_name(torture_fault fault);

/* Whether it comes now and then, or is there all the time. */
bool torture_fault_is_scheduled(torture_fault fault);
/* The process it hits: `either` one where that is open. */
torture_victim torture_fault_victim(torture_fault fault, torture_victim either);

/* Reads a list of names into a set of bits; false and a message that names them all. */
bool torture_faults_read(const char *list, unsigned *set, message *why);

/* One fault of the schedule. All its draws are made at once, whatever becomes of them, so that the next ones don't
 * depend on how long anything takes. */
typedef struct torture_step {
    torture_fault fault;
    torture_victim victim;
    unsigned pause_ms;         /* in peace, before it */
    unsigned down_ms;          /* the victim is stopped, gone or starved for so long */
    torture_slowness slowness; /* of the prefill process that it starts, if it does */
} torture_step;

/* Each kind of fault comes once before any comes again, in an order of its own each time. */
typedef struct torture_schedule {
    torture_random random;
    torture_fault deck[FAULT_COUNT];
    size_t left;
} torture_schedule;

torture_slowness torture_draw_slowness(torture_random *random);

/* False: among the faults there is none to schedule. Aborts and slowness are there all the time. */
bool torture_next_step(torture_schedule *schedule, unsigned faults, torture_step *step);

/* ---- What came of it ------------------------------------------------------------------------------ */

typedef struct torture_effect {
    uint64_t injected;
    uint64_t rooms;           /* that failed of it, on either side */
    uint64_t worst_to_failed; /* nanoseconds */
    uint64_t worst_to_settled;
} torture_effect;

enum { TORTURE_NAMES = 24, TORTURE_BROKEN = 16, TORTURE_STEPS = 1000 };

/* How often each word was said. */
typedef struct torture_tally {
    char names[TORTURE_NAMES][32];
    uint64_t counts[TORTURE_NAMES];
    size_t used;
} torture_tally;

/* The worst times of all rooms of one side, in nanoseconds from the opening. */
typedef struct torture_worst {
    uint64_t end;     /* until Success or Failed */
    uint64_t settled; /* until the pages were not in use any more */
} torture_worst;

typedef struct torture_result {
    torture_effect effects[FAULT_COUNT];
    torture_step schedule[TORTURE_STEPS]; /* the first ones that were injected */
    size_t steps;
    uint64_t starved_restarts; /* of decode, for want of pages: no fault */
    uint64_t unexplained;      /* rooms that failed on decode, and not of a fault */
    message first_unexplained;
    torture_worst worst_decode;
    torture_worst worst_prefill;
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
    bool interrupted; /* by a signal; it was wound up nevertheless */
    bool abandoned;   /* by a second signal; what remained to look at wasn't */
    int refused;      /* the exit status if a process couldn't be started; 0: all could */
    message refusal;
    size_t broken_count;
    message broken[TORTURE_BROKEN];
} torture_result;

void torture_count(torture_tally *tally, const char *name);

/* A promise was broken. Nothing counts any more in an abandoned run. */
__attribute__((format(printf, 2, 3))) void torture_break(torture_result *result, const char *format,
                                                         ...);

/* ---- A run ---------------------------------------------------------------------------------------- */

/* What is known of the latest room with one of the ids that the present decode process uses, or with one that followed
 * it; or of a room of an earlier decode process whose sender hasn't ended. */
typedef struct torture_room {
    uint64_t id;
    json_t *line; /* for the prefill, while the decode's side is open; NULL otherwise */
    /* The time in which the side's process was stopped isn't held against it: these are put off by it. */
    uint64_t opened; /* by decode */
    uint64_t told;   /* when the prefill was told of it; 0: the sender's side isn't open */
    uint64_t sender_began;
    bool sender_failed; /* and its pages are in use still */
    bool orphan_aborted;
    bool attributed; /* its failure, to this fault */
    torture_fault fault;
    bool receiver_hung;     /* told already */
    bool sender_hung;       /* told already */
    uint64_t abort_asked;   /* when the prefill was told to abort it; 0: not */
    uint64_t decode_ended;  /* 0: not */
    char decode_status[24]; /* what it ended with */
} torture_room;

/* The latest fault of a process. */
typedef struct torture_last {
    torture_fault fault;
    uint64_t at;   /* 0: none yet */
    uint64_t over; /* 0: not yet */
} torture_last;

enum { TORTURE_LEFT = 1024 };

typedef struct torture_run {
    const torture_options *options;
    unsigned faults; /* a bit for each kind */
    torture_schedule schedule;
    torture_processes processes;
    torture_result result;
    torture_room rooms[TORTURE_IDS];
    torture_room left[TORTURE_LEFT]; /* senders that earlier decode processes have left behind */
    size_t left_count;
    torture_last last[TORTURE_CHILDREN];
    bool ready[TORTURE_CHILDREN];
    bool ended[TORTURE_CHILDREN]; /* its output has ended */
    bool told[TORTURE_CHILDREN];  /* that it ended by itself */
    bool stopped[TORTURE_CHILDREN];
    bool stall_seen;      /* of the present prefill process's one stalled transfer */
    uint64_t healed_from; /* when the latest fault was over; 0: a room has succeeded since */
    uint64_t rooms_since; /* that have succeeded since then */
    bool summed_up;
    bool starved;      /* the decode has lost too many pages to rooms that were not proven safe */
    bool given_up;     /* a process doesn't start */
    bool winding_up;   /* the first signal has no more to say */
    int stop_signals;  /* a signalfd */
    uint64_t signaled; /* when the first signal came; 0: none has */
} torture_run;

/* Whether it is ready and hasn't ended. One that is stopped reads its lines later. */
bool torture_takes_lines(const torture_run *run, torture_victim which);
/* Whether it isn't stopped either. */
bool torture_runs(const torture_run *run, torture_victim which);

/* Passes lines on until `until` holds; false when that takes too long, or when the run is abandoned. */
bool torture_pump(torture_run *run, bool (*until)(const torture_run *run), uint64_t timeout_ns);

/* Starts a process and waits until it is ready. */
bool torture_bring_up(torture_run *run, torture_victim which);

/* Asks it to end and looks at its exit status. The decode process ends its rooms first, and sums up. */
void torture_quit(torture_run *run, torture_victim which);

/* Injects a fault and undoes it: the process runs again afterwards. */
void torture_inject(torture_run *run, const torture_step *step);

/* Whether a signal has asked for the end, which isn't under way yet. */
bool torture_interrupted(const torture_run *run);

/* ---- Its rooms ------------------------------------------------------------------------------------ */

void torture_tell(torture_run *run, torture_victim which, json_t *line);

/* Where a new room is kept: NULL for one of a decode process that is gone. */
torture_room *torture_room_place(torture_run *run, uint64_t id);
/* NULL for a room that nobody has open any more. */
torture_room *torture_room_find(torture_run *run, uint64_t id);

/* Tells the decode process if the room's id may be used again: when both sides have ended it. */
void torture_room_free(torture_run *run, const torture_room *room);
void torture_sender_over(torture_run *run, torture_room *room);

/* The decode process is gone. Its senders must end still. */
void torture_rooms_forget(torture_run *run);
/* What a dead prefill had open is over. */
void torture_senders_drop(torture_run *run);
/* A router would send the rooms that are open still to the prefill that has come back. */
void torture_senders_tell(torture_run *run);
/* After a while without the decode's side a sender is aborted, as a router would. */
void torture_orphans_abort(torture_run *run);

/* A process has been stopped for so long, until now. */
void torture_rooms_excuse(torture_run *run, torture_victim which, uint64_t stopped);
/* Whether no room has a sender any more. */
bool torture_senders_are_over(const torture_run *run);
/* Breaks the promise of each room that should have ended. */
void torture_rooms_check(torture_run *run);
void torture_receiver_check(torture_run *run, torture_room *room, uint64_t now);

/* ---- Which fault a room has failed of ------------------------------------------------------------- */

/* `line` is what its process said of its end. */
void torture_receiver_failed(torture_run *run, torture_room *room, const json_t *line);
void torture_sender_failed(torture_run *run, torture_room *room, const json_t *line);

const char *torture_text_of(const json_t *line, const char *key);
uint64_t torture_number_of(const json_t *line, const char *key);

void torture_report(const torture_options *options, unsigned faults, const torture_result *result);

#endif
