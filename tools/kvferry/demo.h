/* `kvferry demo` in parts: what a case is, how it is run, what it is compared with, how it is told. */
#ifndef KVFERRY_TOOL_DEMO_H
#define KVFERRY_TOOL_DEMO_H

#include "model.h"
#include "options.h"
#include "pool.h"

typedef struct demo_options {
    const char *model_name;
    uint64_t rooms;
    uint64_t tokens; /* of each room */
    uint64_t rounds;
    bool json;
    bool small_pages;
    option_list set;
} demo_options;

typedef struct demo_transport {
    const char *name;
    const char *setting; /* the setting "transports" */
} demo_transport;

typedef struct demo_pattern {
    const char *name;
    uint64_t page_tokens;
    bool scattered;
} demo_pattern;

/* Page k of the source goes to page k of the target; each room has the next pages_per_room. */
typedef struct demo_case {
    const demo_options *options;
    const demo_transport *transport;
    const demo_pattern *pattern;
    const char *bootstrap; /* host:port */
    pool_shape shape;
    size_t pages_per_room;
    size_t page_count;
    uint32_t *source;
    uint32_t *target;
} demo_case;

typedef struct demo_result {
    size_t rounds;
    uint64_t bytes;        /* of one round */
    uint64_t writes;       /* merged */
    double seconds;        /* median of the rounds */
    double memcpy_seconds; /* the same pages by memcpy in one thread; median of the rounds */
    bool verified;         /* every byte of every round */
    message problem;       /* unless verified */
} demo_result;

enum { DEMO_ROUNDS_MAX = 100 };

/* Lists the pages and works out the shape. */
bool demo_case_open(demo_case *each, const tool_model *model, message *why);
void demo_case_close(demo_case *each);

/* Starts both processes, moves every room once a round and checks all bytes. */
void demo_case_run(const demo_case *each, demo_result *result);

/* Copies the same pages between two pools of this process. */
bool demo_measure_memcpy(const demo_case *each, double *seconds, message *why);

/* Sorts the values. */
double demo_median(double *values, size_t count);

typedef struct demo_report {
    const demo_options *options;
    const tool_model *model;
    void *list; /* of the JSON document */
} demo_report;

void demo_report_begin(demo_report *report);
void demo_report_case(demo_report *report, const demo_case *each, const demo_result *result);
void demo_report_end(demo_report *report, bool all_verified);

#endif
