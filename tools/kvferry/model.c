#include "model.h"

#include "nearest.h"

#include <strings.h>

static const tool_model models[] = {
    {"Llama-3.1-8B", 32, 8, 128, false},   {"Llama-3.1-70B", 80, 8, 128, false},
    {"Qwen3-8B", 36, 8, 128, false},       {"Qwen3-235B-A22B", 94, 4, 128, false},
    {"gpt-oss-20b", 24, 8, 64, false},     {"gpt-oss-120b", 36, 8, 64, false},
    {"DeepSeek-V3", 61, 1, 512 + 64, true}};

static const size_t model_count = sizeof models / sizeof models[0];

const tool_model *model_at(size_t index)
{
    return index < model_count ? &models[index] : NULL;
}

const tool_model *model_find(const char *name, message *why)
{
    nearest search = nearest_to(name);
    for (size_t i = 0; i < model_count; i++) {
        if (strcasecmp(models[i].name, name) == 0)
            return &models[i];
        nearest_consider(&search, models[i].name);
    }
    message_set(why, "there is no model \"%.64s\" in the table; nearest is %s, --help lists all",
                name, search.best);
    return NULL;
}

bool model_shape(const tool_model *model, uint64_t page_tokens, uint64_t tensor_ranks,
                 uint64_t element_bytes, pool_shape *shape, message *why)
{
    uint64_t heads = model->kv_heads;
    if (!model->mla && tensor_ranks > 1) {
        bool even = tensor_ranks <= heads ? heads % tensor_ranks == 0 : tensor_ranks % heads == 0;
        if (!even)
            return message_set(why, "%s has %llu KV heads, which %llu ranks can't share evenly",
                               model->name, (unsigned long long)heads,
                               (unsigned long long)tensor_ranks);
        heads = tensor_ranks < heads ? heads / tensor_ranks : 1;
    }
    shape->buffer_count = (uint64_t)model->layers * (model->mla ? 1 : 2);
    shape->item_length = page_tokens * heads * model->head_elements * element_bytes;
    return true;
}

uint64_t model_token_bytes(const tool_model *model, uint64_t element_bytes)
{
    uint64_t buffers = (uint64_t)model->layers * (model->mla ? 1 : 2);
    return buffers * model->kv_heads * model->head_elements * element_bytes;
}
