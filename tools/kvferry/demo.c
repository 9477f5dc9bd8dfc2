#include "demo.h"

#include "commands.h"
#include "exit_codes.h"
#include "progress.h"

#include <signal.h>
#include <stdlib.h>

static const demo_transport transports[] = {{"shared memory", "posix,sysv,cma,self"},
                                            {"TCP", "tcp,self"}};

static const demo_pattern patterns[] = {{"contiguous", 16, false}, {"scattered", 1, true}};

#define AT(field) offsetof(demo_options, field)

static const option_row rows[] = {
    {"model", "NAME", OPTION_TEXT, AT(model_name), 0, 0,
     "whose KV cache (Llama-3.1-8B); `kvferry prefill --help` lists them"},
    {"rooms", "N", OPTION_COUNT, AT(rooms), 1, 1024, "requests moved at once (4)"},
    {"tokens", "N", OPTION_COUNT, AT(tokens), 16, 1 << 20,
     "tokens of each, a multiple of 16 (1024)"},
    {"rounds", "N", OPTION_COUNT, AT(rounds), 1, DEMO_ROUNDS_MAX,
     "how often a case is run at most; times are medians (3)"},
    {"json", NULL, OPTION_FLAG, AT(json), 0, 0, "one JSON document instead of the table"},
    {"small-pages", NULL, OPTION_FLAG, AT(small_pages), 0, 0,
     "don't advise huge pages (MADV_HUGEPAGE) for the pools"},
    {"set", "NAME=VALUE", OPTION_LIST, AT(set), 0, 0,
     "any setting of `kvferry settings`, for both processes"}};

static const option_table table = {
    "demo", "moves a real model's KV cache between two processes and checks every byte",
    "Starts a bootstrap server here and, for each case, one prefill and one decode process of\n"
    "this program. The prefill pool is filled with the pattern of docs/pattern.md. Before each\n"
    "round the whole decode pool is poisoned; after it every byte of every page is compared.\n"
    "\n"
    "contiguous: pages of 16 tokens that lie side by side in both pools, so many merge into one\n"
    "write. scattered: pages of 1 token in random order, the worst that a long-running engine\n"
    "gets to. time: from the decode side's first expect() to the Success of its last room;\n"
    "connections were made by one room before. GB/s are 10^9. memcpy: one thread copies the\n"
    "same pages between two pools of the same kind of memory in one process, in this same run;\n"
    "the share says how much of that speed was reached. A case isn't repeated after 3 seconds. "
    "Pools lie in anonymous memory, in huge\n"
    "pages where the system allows them, and were touched before.\n"
    "\n"
    "By default it moves 4 rooms of 1024 tokens, 128 KiB a token, 512 MiB a round; it takes\n"
    "about 1.1 GB of memory and well under a minute.\n"
    "Exit status: 0 all bytes were right, 1 not, 2 wrong options, 3 the machine refused.\n",
    rows, sizeof rows / sizeof rows[0]};

/* A case that can't even be prepared is told like one that failed. */
static bool run_case(demo_case *each, const tool_model *model, demo_report *report)
{
    demo_result result = {.verified = false};
    progress_show("%s, %s: copying with memcpy", each->transport->name, each->pattern->name);
    if (demo_case_open(each, model, &result.problem) &&
        demo_measure_memcpy(each, &result.memcpy_seconds, &result.problem))
        demo_case_run(each, &result);
    progress_clear();
    demo_report_case(report, each, &result);
    demo_case_close(each);
    return result.verified;
}

static int run_cases(const demo_options *options, const tool_model *model, const char *bootstrap)
{
    demo_report report = {.options = options, .model = model};
    bool all_verified = true;
    demo_report_begin(&report);
    for (size_t t = 0; t < sizeof transports / sizeof transports[0]; t++) {
        for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++) {
            demo_case each = {.options = options,
                              .transport = &transports[t],
                              .pattern = &patterns[p],
                              .bootstrap = bootstrap};
            all_verified = run_case(&each, model, &report) && all_verified;
        }
    }
    demo_report_end(&report, all_verified);
    return all_verified ? TOOL_FINE : TOOL_ROOM;
}

static int serve_and_run(const demo_options *options, const tool_model *model)
{
    kvf_bootstrap *bootstrap = NULL;
    char address[32];
    kvf_status status = kvf_bootstrap_start(&bootstrap, "127.0.0.1:0", NULL);
    if (status != KVF_OK) {
        (void)fprintf(stderr, "kvferry demo: %s\n", kvf_error_text());
        return tool_exit_of(status);
    }
    (void)snprintf(address, sizeof address, "127.0.0.1:%u",
                   (unsigned)kvf_bootstrap_port(bootstrap));
    int result = run_cases(options, model, address);
    kvf_bootstrap_stop(bootstrap);
    return result;
}

int command_demo(int count, char **arguments)
{
    demo_options options = {.model_name = "Llama-3.1-8B", .rooms = 4, .tokens = 1024, .rounds = 3};
    int result = TOOL_FINE;
    message why;
    if (!options_begin(&table, count, arguments, &options, &result))
        return result;
    const tool_model *model = model_find(options.model_name, &why);
    if (model != NULL && options.tokens % patterns[0].page_tokens != 0)
        (void)message_set(&why, "--tokens: not a multiple of %u",
                          (unsigned)patterns[0].page_tokens);
    else if (model != NULL) {
        (void)signal(SIGPIPE, SIG_IGN);
        return serve_and_run(&options, model);
    }
    (void)fprintf(stderr, "kvferry demo: %s\n", why.text);
    return TOOL_USAGE;
}
