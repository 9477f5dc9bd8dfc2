#include "demo.h"
#include "machine.h"

#include <jansson.h>

static double gigabytes_a_second(uint64_t bytes, double seconds)
{
    return seconds > 0 ? (double)bytes / seconds / 1e9 : 0;
}

static uint64_t round_bytes(const demo_report *report)
{
    return report->options->rooms * report->options->tokens * model_token_bytes(report->model, 2);
}

void demo_report_begin(demo_report *report)
{
    const demo_options *options = report->options;
    report->list = json_array();
    if (options->json)
        return;
    (void)printf("The KV cache of %llu requests of %s, %llu tokens each (%llu KiB a token, %.2f GB "
                 "in all),\nfrom one process to another:\n\n",
                 (unsigned long long)options->rooms, report->model->name,
                 (unsigned long long)options->tokens,
                 (unsigned long long)(model_token_bytes(report->model, 2) >> 10),
                 (double)round_bytes(report) / 1e9);
    (void)printf("%-14s %-11s %5s %6s %9s %8s %8s %6s %7s %7s  %s\n", "transport", "pages are",
                 "rooms", "pages", "bytes", "writes", "time", "GB/s", "memcpy", "share",
                 "verified");
    (void)fflush(stdout);
}

static void print_case(const demo_case *each, const demo_result *result)
{
    double speed = gigabytes_a_second(result->bytes, result->seconds);
    double copy = gigabytes_a_second(result->bytes, result->memcpy_seconds);
    (void)printf("%-14s %-11s %5llu %6zu ", each->transport->name, each->pattern->name,
                 (unsigned long long)each->options->rooms, each->page_count);
    if (result->verified)
        (void)printf("%6.0f MB %8llu %5.0f ms %6.2f %7.2f %5.0f %%  yes\n",
                     (double)result->bytes / 1e6, (unsigned long long)result->writes,
                     result->seconds * 1e3, speed, copy, copy > 0 ? 100 * speed / copy : 0);
    else
        (void)printf("%9s %8s %8s %6s %7s %7s  NO: %s\n", "-", "-", "-", "-", "-", "-",
                     result->problem.text);
    (void)fflush(stdout);
}

static json_t *case_object(const demo_case *each, const demo_result *result)
{
    double speed = gigabytes_a_second(result->bytes, result->seconds);
    double copy = gigabytes_a_second(result->bytes, result->memcpy_seconds);
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:b}", "transport", each->transport->name,
                  "transports", each->transport->setting, "pattern", each->pattern->name,
                  "page_tokens", (json_int_t)each->pattern->page_tokens, "item_bytes",
                  (json_int_t)each->shape.item_length, "rooms", (json_int_t)each->options->rooms,
                  "pages", (json_int_t)each->page_count, "verified", result->verified);
    json_t *more = result->verified
                       ? json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "rounds",
                                   (json_int_t)result->rounds, "bytes", (json_int_t)result->bytes,
                                   "writes", (json_int_t)result->writes, "seconds", result->seconds,
                                   "gigabytes_per_second", speed, "memcpy_gigabytes_per_second",
                                   copy, "share_of_memcpy", copy > 0 ? speed / copy : 0)
                       : json_pack("{s:s}", "problem", result->problem.text);
    (void)json_object_update(object, more);
    json_decref(more);
    return object;
}

void demo_report_case(demo_report *report, const demo_case *each, const demo_result *result)
{
    if (report->options->json)
        (void)json_array_append_new(report->list, case_object(each, result));
    else
        print_case(each, result);
}

static void print_end(const demo_report *report, const char *machine, bool all_verified)
{
    (void)printf("\n%s.\ntime: the decode side's, from the first expect() to the last Success. "
                 "memcpy: GB/s of one thread that\ncopies the same pages inside one process. Both "
                 "are medians of up to %llu rounds.\nkvferry %s, UCX %s, %s\n",
                 all_verified ? "Every byte of every round was compared and is right"
                              : "NOT VERIFIED: at least one case failed",
                 (unsigned long long)report->options->rounds, kvf_version(), kvf_ucx_version(),
                 machine);
}

void demo_report_end(demo_report *report, bool all_verified)
{
    char machine[256];
    machine_describe(machine, sizeof machine);
    if (!report->options->json) {
        print_end(report, machine, all_verified);
        json_decref(report->list);
        return;
    }
    json_t *document = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:b, s:o}", "kvferry", kvf_version(), "ucx",
        kvf_ucx_version(), "machine", machine, "model", report->model->name, "tokens",
        (json_int_t)report->options->tokens, "rounds", (json_int_t)report->options->rounds,
        "verified", all_verified, "cases", (json_t *)report->list);
    (void)json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    (void)putchar('\n');
    json_decref(document);
}
