/* kvf_sim: runs seeds, prints the first that breaks a promise and how to replay it. */
#include "base/clock.h"
#include "sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Most plants are found by the first ten seeds, one or two by one in a thousand. */
enum { SEEDS_FOR_A_PLANT = 5000, SEEDS_WITHOUT_PLANT = 1000 };

typedef struct sim_command {
    sim_options options;
    uint64_t first;
    uint64_t last;
    uint64_t seconds;
    bool coverage;   /* zeros in the table and odd rates are failures */
    bool all_plants; /* each must be found, none may be found without */
} sim_command;

static void usage(void)
{
    printf("usage: kvf_sim [--seed N | --seeds A..B | --seconds N] [--trace] [--coverage]\n"
           "               [--plant NAME | --plants]\n"
           "  --seed N       one seed; with --trace what happens in it\n"
           "  --seeds A..B   these seeds; without B all from A on that fit\n"
           "  --seconds N    as many seeds as fit (default 10)\n"
           "  --coverage     fail on a zero in the table of faults, or an odd rate of success\n"
           "  --plant NAME   with a planted bug; names:");
    for (unsigned i = 1; i < SIM_PLANTS; i++)
        printf(" %s", sim_plant_name((sim_plant)i));
    printf("\n  --plants       plant each in turn: all must be found within the seeds\n");
}

static bool take_option(sim_command *command, const char *name, const char *value)
{
    if (strcmp(name, "--seed") == 0 && value != NULL) {
        command->first = command->last = strtoull(value, NULL, 10);
    } else if (strcmp(name, "--seeds") == 0 && value != NULL) {
        char *end;
        command->first = strtoull(value, &end, 10);
        bool range = strncmp(end, "..", 2) == 0;
        command->last = range ? strtoull(end + 2, NULL, 10) : command->first;
        if (range && end[2] == '\0')
            command->last = UINT64_MAX;
    } else if (strcmp(name, "--seconds") == 0 && value != NULL) {
        command->seconds = strtoull(value, NULL, 10);
    } else if (strcmp(name, "--plant") == 0 && value != NULL) {
        return sim_plant_find(value, &command->options.plant);
    } else {
        return false;
    }
    return true;
}

static bool parse(int count, char **words, sim_command *command)
{
    for (int i = 1; i < count; i++) {
        if (strcmp(words[i], "--trace") == 0)
            command->options.trace = true;
        else if (strcmp(words[i], "--coverage") == 0)
            command->coverage = true;
        else if (strcmp(words[i], "--plants") == 0)
            command->all_plants = true;
        else if (take_option(command, words[i], i + 1 < count ? words[i + 1] : NULL))
            i++;
        else
            return false;
    }
    return true;
}

/* ---- The sum -------------------------------------------------------------------------------------- */

/* States in which a fault can't meet a side, by its nature. */
static bool impossible(sim_fault fault, bool prefill, unsigned state)
{
    switch (fault) {
    case SIM_FAULT_LATE: /* a second request, to a prefill that is writing for the first one */
        return !prefill || state != KVF_TRANSFERRING;
    case SIM_FAULT_MISMATCH: /* one prefill rank is told another number, and born with it */
        return !prefill || state != KVF_BOOTSTRAPPING;
    case SIM_FAULT_USED_ID: /* the rooms are born with it */
        return state != KVF_BOOTSTRAPPING;
    case SIM_FAULT_LIMIT: /* once it waits for input a sender has all its requests: none finds no place */
        /* Nor does a receiver ask before all are found; its own success needs no letter any more. */
        return prefill ? state != KVF_BOOTSTRAPPING && state != KVF_FAILED
                       : state == KVF_BOOTSTRAPPING || state == KVF_SUCCESS;
    case SIM_FAULT_TRUNCATION: /* before its request nothing is sent to a receiver, nor after its success */
        return !prefill && (state == KVF_BOOTSTRAPPING || state == KVF_SUCCESS);
    case SIM_FAULT_REPEAT:
        return !prefill && state == KVF_BOOTSTRAPPING;
    default:
        return false;
    }
}

static unsigned print_row(const sim_tally *tally, sim_fault fault, bool prefill)
{
    static const unsigned order[] = {KVF_BOOTSTRAPPING, KVF_WAITING_FOR_INPUT, KVF_TRANSFERRING,
                                     KVF_SUCCESS,       SIM_FENCING,           KVF_FAILED};
    unsigned zeros = 0;
    printf("%-10s %-8s", sim_fault_names[fault], prefill ? "prefill" : "decode");
    for (unsigned i = 0; i < sizeof order / sizeof order[0]; i++) {
        uint64_t met = tally->faults[fault][prefill ? 0 : 1][order[i]];
        if (impossible(fault, prefill, order[i])) {
            printf(" %13s", "-");
            continue;
        }
        zeros += met == 0;
        printf(" %13" PRIu64, met);
    }
    printf("\n");
    return zeros;
}

static unsigned print_faults(const sim_tally *tally)
{
    unsigned zeros = 0;
    printf("%-19s %13s %13s %13s %13s %13s %13s\n", "fault met in", "bootstrapping", "waiting",
           "transferring", "success", "fencing", "failed");
    for (unsigned fault = 0; fault < SIM_FAULTS; fault++) {
        zeros += print_row(tally, (sim_fault)fault, true);
        zeros += print_row(tally, (sim_fault)fault, false);
    }
    return zeros;
}

static unsigned missing_proofs(const sim_tally *tally)
{
    unsigned missing = 0;
    for (unsigned i = 1; i <= KVF_PROOF_TRANSPORT_DONE; i++)
        missing += tally->proofs[i] == 0;
    return missing;
}

static bool print_sum(const sim_command *command, const sim_tally *tally, double seconds)
{
    uint64_t ended = tally->succeeded + tally->failed + tally->lost;
    double rate = ended == 0 ? 0 : 100.0 * (double)tally->succeeded / (double)ended;
    unsigned zeros = print_faults(tally);
    printf("failed as:");
    for (unsigned i = 0; i <= KVF_STATUS_LAST; i++)
        if (tally->statuses[i] > 0)
            printf(" %s %" PRIu64 ",", kvf_status_name((kvf_status)i), tally->statuses[i]);
    printf("\n%" PRIu64 " rooms (%" PRIu64 " met no fault, %" PRIu64 " with a used id), %" PRIu64
           " sides: %.1f %% succeeded, %" PRIu64 " failed, %" PRIu64 " lost with their process\n",
           tally->rooms, tally->untouched, tally->reused_ids, tally->sides, rate, tally->failed,
           tally->lost);
    printf("%" PRIu64 " cells landed, %" PRIu64
           " of them in pages of failed rooms in use still, %" PRIu64
           " in pages released unproven\n",
           tally->cells, tally->landed_late, tally->landed_released);
    printf("pages safe:");
    for (unsigned i = 1; i <= KVF_PROOF_TRANSPORT_DONE; i++)
        printf(" %s %" PRIu64 ",", kvf_proof_name((kvf_proof)i), tally->proofs[i]);
    printf(" released by %" PRIu64 " senders, %" PRIu64 " receivers\n", tally->released[0],
           tally->released[1]);
    printf("%" PRIu64 " seeds, %" PRIu64 " steps, %.0f virtual s in %.1f s: %.0f seeds/s\n",
           tally->seeds, tally->steps, (double)tally->virtual_time / 1e9, seconds,
           (double)tally->seeds / (seconds > 0 ? seconds : 1));
    bool fresh = 10 * tally->fresh >= 9 * tally->seeds;
    printf("%" PRIu64 " seeds had a fresh room after everything had healed\n", tally->fresh);
    if (!command->coverage)
        return true;
    if (!fresh)
        printf("FAILED: in more than a tenth of the seeds every fresh room was exempt\n");
    if (zeros > 0)
        printf("FAILED: %u zeros in the table: those faults met no room in that state\n", zeros);
    unsigned missing = missing_proofs(tally);
    if (missing > 0)
        printf("FAILED: %u kinds of proof never occurred\n", missing);
    if (rate < 20 || rate > 90)
        printf("FAILED: %.1f %% succeeded; the mix is right between 20 and 90\n", rate);
    return zeros == 0 && missing == 0 && fresh && rate >= 20 && rate <= 90;
}

/* ---- Running -------------------------------------------------------------------------------------- */

static bool run_seeds(const sim_command *command)
{
    sim_tally tally = {0};
    uint64_t start = kvf_clock_now();
    printf("seeds from %" PRIu64 " on\n", command->first);
    uint64_t deadline = command->seconds == 0 ? KVF_NEVER : start + command->seconds * KVF_SECOND;
    bool held = true;
    for (uint64_t seed = command->first; held && seed <= command->last; seed++) {
        held = sim_run(seed, &command->options, &tally);
        if (kvf_clock_now() >= deadline)
            break;
    }
    double seconds = (double)(kvf_clock_now() - start) / 1e9;
    if (!held)
        return false;
    return print_sum(command, &tally, seconds);
}

static bool run_plants(const sim_command *command)
{
    bool all = true;
    for (unsigned plant = 0; plant < SIM_PLANTS; plant++) {
        sim_options options = command->options;
        sim_tally tally = {0};
        options.plant = (sim_plant)plant;
        uint64_t seed = command->first;
        uint64_t last = command->last;
        if (plant == SIM_PLANT_NONE && last - seed >= SEEDS_WITHOUT_PLANT)
            last = seed + SEEDS_WITHOUT_PLANT - 1;
        while (seed <= last && sim_run(seed, &options, &tally))
            seed++;
        bool found = seed <= last;
        if (!found)
            printf("%-24s not found in %" PRIu64 " seeds\n", sim_plant_name(options.plant),
                   tally.seeds);
        else
            printf("%-24s found by seed %" PRIu64 "\n", sim_plant_name(options.plant), seed);
        all = all && found == (plant != SIM_PLANT_NONE);
    }
    printf(all ? "each planted bug is found, and nothing without one\n" : "FAILED\n");
    return all;
}

int main(int count, char **words)
{
    sim_command command = {.options = {.program = words[0]}, .first = 1, .last = UINT64_MAX};
    if (!parse(count, words, &command)) {
        usage();
        return 2;
    }
    if (command.all_plants) {
        if (command.last == UINT64_MAX)
            command.last = command.first + SEEDS_FOR_A_PLANT - 1;
        return run_plants(&command) ? 0 : 1;
    }
    if (command.last == UINT64_MAX && command.seconds == 0)
        command.seconds = 10;
    return run_seeds(&command) ? 0 : 1;
}
