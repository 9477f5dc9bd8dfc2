#include "torture.h"

#include <jansson.h>

static double seconds(uint64_t nanoseconds)
{
    return (double)nanoseconds / 1e9;
}

static bool was_kept(const torture_result *result)
{
    return result->broken_count == 0 && result->refused == 0 && !result->abandoned;
}

/* ---- For a person --------------------------------------------------------------------------------- */

static void print_tally(const char *title, const torture_tally *tally)
{
    (void)printf("%-28s", title);
    for (size_t i = 0; i < tally->used; i++)
        (void)printf("%s%s %llu", i == 0 ? "" : ", ", tally->names[i],
                     (unsigned long long)tally->counts[i]);
    (void)printf("%s\n", tally->used == 0 ? "-" : "");
}

static void print_time(uint64_t nanoseconds)
{
    if (nanoseconds == 0)
        (void)printf(" %12s", "-");
    else
        (void)printf(" %10.4f s", seconds(nanoseconds));
}

static void print_effects(unsigned faults, const torture_result *result)
{
    (void)printf("%-16s %9s %12s %12s %12s\n", "fault", "injected", "rooms failed", "to Failed",
                 "to settled");
    for (unsigned i = 0; i < FAULT_COUNT; i++) {
        const torture_effect *effect = &result->effects[i];
        if ((faults >> i & 1U) == 0 && effect->injected == 0)
            continue;
        (void)printf("%-16s %9llu %12llu", torture_fault_name((torture_fault)i),
                     (unsigned long long)effect->injected, (unsigned long long)effect->rooms);
        print_time(effect->worst_to_failed);
        print_time(effect->worst_to_settled);
        (void)printf("\n");
    }
    (void)printf(
        "Times are the worst ones, from the fault until the other side's room has failed, and "
        "until its\npages were not in use any more.\n\n");
}

static void print_worst(const char *title, const torture_worst *worst)
{
    (void)printf("%-28s%.3f s at worst, %.3f s until its pages were not in use\n", title,
                 seconds(worst->end), seconds(worst->settled));
}

/* Failures on decode that no fault explains, and restarts that are none. */
static void print_others(const torture_result *result)
{
    (void)printf("%-28s%llu%s%s\n", "rooms failed of no fault",
                 (unsigned long long)result->unexplained,
                 result->unexplained == 0 ? "" : ", first ", result->first_unexplained.text);
    (void)printf("%-28s%llu\n", "decodes out of safe pages",
                 (unsigned long long)result->starved_restarts);
}

static void print_broken(const torture_result *result)
{
    for (size_t i = 0; i < result->broken_count && i < TORTURE_BROKEN; i++)
        (void)printf("BROKEN: %s\n", result->broken[i].text);
    if (result->broken_count > TORTURE_BROKEN)
        (void)printf("BROKEN: and %zu more\n", result->broken_count - TORTURE_BROKEN);
    if (result->refused != 0)
        (void)printf("REFUSED: %s\n", result->refusal.text);
    if (result->abandoned)
        (void)printf(
            "Abandoned: what the rooms, unused pages and processes would have shown at the "
            "end is not known.\n");
    else if (was_kept(result))
        (void)printf("%sEvery promise was kept.\n",
                     result->interrupted ? "Interrupted before its time, and wound up. " : "");
}

static void print_report(const torture_options *options, unsigned faults,
                         const torture_result *result)
{
    (void)printf("seed %llu, transports %s, %.1f s, UCX %s\n\n", (unsigned long long)options->seed,
                 options->transports, seconds(result->ended - result->began), kvf_ucx_version());
    print_effects(faults, result);
    (void)printf("%-28s%llu, %llu of them with an id used before\n", "rooms",
                 (unsigned long long)result->rooms, (unsigned long long)result->ids_reused);
    print_tally("ended on decode", &result->decode);
    print_tally("ended on prefill", &result->prefill);
    print_tally("decode's pages proven by", &result->proofs);
    (void)printf("%-28s%llu, %llu of them with 1 %% to 99 %% of the bytes there\n",
                 "aborted by decode", (unsigned long long)result->aborts,
                 (unsigned long long)result->aborts_midway);
    print_worst("opening to end on decode", &result->worst_decode);
    print_worst("opening to end on prefill", &result->worst_prefill);
    (void)printf("%-28s%.3f s\n", "a fault's end to a Success", seconds(result->worst_heal));
    (void)printf("%-28s%.1f MB\n", "bytes verified", (double)result->bytes_verified / 1e6);
    (void)printf("%-28s%llu, %llu of them written to afterwards\n", "pages released, unproven",
                 (unsigned long long)result->pages_released,
                 (unsigned long long)result->released_written);
    (void)printf("%-28s%llu of rooms, %llu unused\n", "pages corrupted",
                 (unsigned long long)result->pages_corrupted,
                 (unsigned long long)result->canaries_corrupted);
    print_others(result);
    (void)putchar('\n');
    print_broken(result);
}

/* ---- For a machine -------------------------------------------------------------------------------- */

static json_t *tally_object(const torture_tally *tally)
{
    json_t *object = json_object();
    for (size_t i = 0; i < tally->used; i++)
        (void)json_object_set_new(object, tally->names[i],
                                  json_integer((json_int_t)tally->counts[i]));
    return object;
}

static json_t *effects_object(unsigned faults, const torture_result *result)
{
    json_t *object = json_object();
    for (unsigned i = 0; i < FAULT_COUNT; i++) {
        const torture_effect *effect = &result->effects[i];
        if ((faults >> i & 1U) == 0 && effect->injected == 0)
            continue;
        (void)json_object_set_new(object, torture_fault_name((torture_fault)i),
                                  json_pack("{s:I, s:I, s:f, s:f}", "injected",
                                            (json_int_t)effect->injected, "rooms_failed",
                                            (json_int_t)effect->rooms, "seconds_to_failed",
                                            seconds(effect->worst_to_failed), "seconds_to_settled",
                                            seconds(effect->worst_to_settled)));
    }
    return object;
}

static json_t *worst_object(const torture_worst *worst)
{
    return json_pack("{s:f, s:f}", "end", seconds(worst->end), "settled", seconds(worst->settled));
}

static json_t *schedule_array(const torture_result *result)
{
    static const char *const victims[] = {"bootstrap", "prefill", "decode"};
    json_t *array = json_array();
    for (size_t i = 0; i < result->steps; i++) {
        const torture_step *step = &result->schedule[i];
        (void)json_array_append_new(
            array,
            json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "fault", torture_fault_name(step->fault),
                      "victim", victims[step->victim], "pause_ms", (json_int_t)step->pause_ms,
                      "down_ms", (json_int_t)step->down_ms, "hold_ms",
                      (json_int_t)step->slowness.hold_ms, "transfer_stall",
                      (json_int_t)step->slowness.stall));
    }
    return array;
}

static json_t *broken_array(const torture_result *result)
{
    json_t *array = json_array();
    for (size_t i = 0; i < result->broken_count && i < TORTURE_BROKEN; i++)
        (void)json_array_append_new(array, json_string(result->broken[i].text));
    return array;
}

/* What the document says of how the run went, beside what it measured. */
static void add_outcome(json_t *document, const torture_result *result)
{
    json_t *outcome = json_pack(
        "{s:o, s:o, s:I, s:s, s:I, s:o, s:b, s:b, s:s, s:b, s:o}", "seconds_to_end_on_decode",
        worst_object(&result->worst_decode), "seconds_to_end_on_prefill",
        worst_object(&result->worst_prefill), "rooms_failed_of_no_fault",
        (json_int_t)result->unexplained, "first_failed_of_no_fault", result->first_unexplained.text,
        "restarts_for_want_of_pages", (json_int_t)result->starved_restarts, "schedule",
        schedule_array(result), "interrupted", result->interrupted, "abandoned", result->abandoned,
        "refused", result->refusal.text, "kept", was_kept(result), "broken", broken_array(result));
    (void)json_object_update(document, outcome);
    json_decref(outcome);
}

static void print_json(const torture_options *options, unsigned faults,
                       const torture_result *result)
{
    json_t *document = json_pack(
        "{s:I, s:s, s:s, s:f, s:o, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:f, s:I, s:I, s:I, s:I, "
        "s:I}",
        "seed", (json_int_t)options->seed, "transports", options->transports, "ucx",
        kvf_ucx_version(), "seconds", seconds(result->ended - result->began), "faults",
        effects_object(faults, result), "rooms", (json_int_t)result->rooms, "ids_reused",
        (json_int_t)result->ids_reused, "decode", tally_object(&result->decode), "prefill",
        tally_object(&result->prefill), "proofs", tally_object(&result->proofs), "aborts",
        (json_int_t)result->aborts, "aborts_midway", (json_int_t)result->aborts_midway,
        "seconds_to_success", seconds(result->worst_heal), "bytes_verified",
        (json_int_t)result->bytes_verified, "pages_corrupted", (json_int_t)result->pages_corrupted,
        "canaries_corrupted", (json_int_t)result->canaries_corrupted, "pages_released",
        (json_int_t)result->pages_released, "released_written",
        (json_int_t)result->released_written);
    add_outcome(document, result);
    (void)json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    (void)putchar('\n');
    json_decref(document);
}

void torture_report(const torture_options *options, unsigned faults, const torture_result *result)
{
    if (options->json)
        print_json(options, faults, result);
    else
        print_report(options, faults, result);
}
