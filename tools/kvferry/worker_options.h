/* The options of `kvferry prefill` and `kvferry decode`, and what they amount to. */
#ifndef KVFERRY_TOOL_WORKER_OPTIONS_H
#define KVFERRY_TOOL_WORKER_OPTIONS_H

#include "options.h"
#include "pool.h"

typedef struct worker_options {
    const char *model; /* NULL: buffers and item_length */
    const char *kv_type;
    uint64_t page_size;
    uint64_t buffers;
    uint64_t pages;
    uint64_t item_length;
    uint64_t aux;
    uint64_t aux_slots;
    uint64_t aux_item_length;
    uint64_t rank;
    uint64_t tp;
    uint64_t dp;
    bool mla;
    uint64_t device;
    uint64_t seed;
    const char *bootstrap; /* NULL: the setting bootstrap_address (prefill), none (decode) */
    option_list set;
    bool huge;
    bool no_verify;
    bool verify_when_idle;
    bool quiet;
} worker_options;

/* False: end now with *exit_code. */
bool worker_options_read(kvf_role role, int count, char **arguments, worker_options *options,
                         int *exit_code);

/* The pool's shape; also sets options->mla where the model decides it. */
bool worker_options_shape(worker_options *options, pool_shape *shape, message *why);

/* Opens settings from the environment and applies --set. NULL and a message on a mistake. */
kvf_settings *settings_from_options(const option_list *set, message *why);

#endif
