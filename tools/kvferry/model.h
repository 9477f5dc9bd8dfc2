/* KV cache shapes of known models, so that nobody has to work out item lengths by hand. */
#ifndef KVFERRY_TOOL_MODEL_H
#define KVFERRY_TOOL_MODEL_H

#include "message.h"
#include "pool.h"

typedef struct tool_model {
    const char *name;
    uint32_t layers;
    uint32_t kv_heads;      /* 1 for MLA: the latent */
    uint32_t head_elements; /* elements of one token in one buffer, per head */
    bool mla;               /* one buffer a layer instead of K and V; every rank holds all of it */
} tool_model;

/* Row `index` of the table; NULL past its end. */
const tool_model *model_at(size_t index);

/* By name, capitals or not; NULL and a message that names the nearest otherwise. */
const tool_model *model_find(const char *name, message *why);

/* Sets what a model decides: buffers and the bytes of a page in each, on one of `tensor_ranks` ranks.
 * Fewer heads than ranks are replicated, as engines do. */
bool model_shape(const tool_model *model, uint64_t page_tokens, uint64_t tensor_ranks,
                 uint64_t element_bytes, pool_shape *shape, message *why);

/* Bytes of one token over all buffers, on one of one rank. */
uint64_t model_token_bytes(const tool_model *model, uint64_t element_bytes);

#endif
