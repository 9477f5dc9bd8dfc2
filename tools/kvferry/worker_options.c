#include "worker_options.h"

#include "model.h"

#include <limits.h>
#include <string.h>

#define AT(field) offsetof(worker_options, field)

#define SHAPE_ROWS                                                                                  \
    {"model",                                                                                       \
     "NAME",                                                                                        \
     OPTION_TEXT,                                                                                   \
     AT(model),                                                                                     \
     0,                                                                                             \
     0,                                                                                             \
     "take buffers and item length from a model of the table below"},                               \
        {"page-size",                                                                               \
         "TOKENS",                                                                                  \
         OPTION_COUNT,                                                                              \
         AT(page_size),                                                                             \
         1,                                                                                         \
         65536,                                                                                     \
         "with --model: tokens of a page (16)"},                                                    \
        {"kv-type", "TYPE", OPTION_TEXT, AT(kv_type), 0, 0, "with --model: bf16 (default) or fp8"}, \
        {"buffers", "N", OPTION_COUNT, AT(buffers), 1, 32768, "KV buffers (1)"},                    \
        {"pages", "N", OPTION_COUNT, AT(pages), 1, UINT32_MAX, "pages of the pool (1024)"},         \
        {"item-len",                                                                                \
         "BYTES",                                                                                   \
         OPTION_BYTES,                                                                              \
         AT(item_length),                                                                           \
         1,                                                                                         \
         UINT64_C(1) << 40,                                                                         \
         "bytes of one page in one buffer (4096)"},                                                 \
        {"aux", "N", OPTION_COUNT, AT(aux), 0, 64, "aux buffers (1)"},                              \
        {"aux-slots",                                                                               \
         "N",                                                                                       \
         OPTION_COUNT,                                                                              \
         AT(aux_slots),                                                                             \
         1,                                                                                         \
         UINT32_MAX,                                                                                \
         "slots of each aux buffer (64)"},                                                          \
        {"aux-item-len",                                                                            \
         "BYTES",                                                                                   \
         OPTION_BYTES,                                                                              \
         AT(aux_item_length),                                                                       \
         1,                                                                                         \
         UINT64_C(1) << 30,                                                                         \
         "bytes of one aux slot (64)"},                                                             \
        {"rank", "N", OPTION_COUNT, AT(rank), 0, 65535, "global tensor-parallel rank (0)"},         \
        {"tp", "N", OPTION_COUNT, AT(tp), 1, 65536, "tensor-parallel ranks of all groups (1)"},     \
        {"dp", "N", OPTION_COUNT, AT(dp), 1, 65536, "dp-attention groups (1)"},                     \
        {"mla",                                                                                     \
         NULL,                                                                                      \
         OPTION_FLAG,                                                                               \
         AT(mla),                                                                                   \
         0,                                                                                         \
         0,                                                                                         \
         "every rank holds the whole KV; a model decides this itself"},                             \
    {                                                                                               \
        "device", "N", OPTION_COUNT, AT(device), 0, 65535,                                          \
            "number peers know this rank's accelerator by (0)"                                      \
    }

#define COMMON_ROWS                                                                                \
    {"set", "NAME=VALUE", OPTION_LIST, AT(set), 0, 0, "any setting of `kvferry settings`"},        \
        {"huge", NULL, OPTION_FLAG, AT(huge), 0, 0, "advise huge pages for the pool"},             \
    {                                                                                              \
        "quiet", NULL, OPTION_FLAG, AT(quiet), 0, 0, "nothing but mistakes on standard error"      \
    }

static const option_row prefill_rows[] = {
    SHAPE_ROWS,
    {"seed", "N", OPTION_COUNT, AT(seed), 0, INT64_MAX, "seed of the pool's pattern (1)"},
    {"bootstrap", "HOST:PORT", OPTION_TEXT, AT(bootstrap), 0, 0, "bootstrap server to register at"},
    COMMON_ROWS};

static const option_row decode_rows[] = {
    SHAPE_ROWS,
    {"seed", "N", OPTION_COUNT, AT(seed), 0, INT64_MAX,
     "seed of the source's pattern, for lines without source_seed (1)"},
    {"bootstrap", "HOST:PORT", OPTION_TEXT, AT(bootstrap), 0, 0,
     "bootstrap server of the source, for lines without address"},
    {"no-verify", NULL, OPTION_FLAG, AT(no_verify), 0, 0, "don't compare the bytes that arrived"},
    {"verify-when-idle", NULL, OPTION_FLAG, AT(verify_when_idle), 0, 0,
     "compare and answer when no room is open: keeps the check out of measurements"},
    COMMON_ROWS};

#define ROW_COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

static const option_table prefill_table = {
    "prefill", "serves a pool filled with the pattern; reads rooms from standard input",
    "Reads JSON lines from standard input until its end:\n"
    "  {\"room\":7,\"pages\":[3,4,9],\"chunks\":[2,1],\"aux_slot\":0}\n"
    "  {\"room\":8,\"pages\":{\"range\":[16,256]}}\n"
    "  {\"abort\":8}   {\"statistics\":true}   {\"quit\":true}\n"
    "and answers with JSON lines on standard output: first {\"ready\":true,...}, then how each\n"
    "room ended. docs/tool.md and kvferry(1) have every key, docs/pattern.md the pattern.\n"
    "Exit status: 0 all is well, 1 a room failed or a line wasn't understood, 2 wrong options,\n"
    "3 the machine refused.\n",
    prefill_rows, ROW_COUNT(prefill_rows)};

static const option_table decode_table = {
    "decode", "serves a poisoned pool; reads rooms from standard input and checks every byte",
    "Reads JSON lines from standard input until its end:\n"
    "  "
    "{\"room\":7,\"pages\":[5,1,2],\"source_pages\":[3,4,9],\"aux_slot\":0,\"source_aux_slot\":0}\n"
    "  {\"room\":8,\"pages\":{\"range\":[16,256]},\"address\":\"10.0.0.1:8998\",\"dp_rank\":0}\n"
    "  {\"abort\":8}   {\"statistics\":true}   {\"poison\":true}   {\"quit\":true}\n"
    "and answers with JSON lines on standard output: first {\"ready\":true,...}, then how each\n"
    "room ended, with \"verified\". docs/tool.md and kvferry(1) have every key, docs/pattern.md\n"
    "the pattern.\n"
    "Exit status: 0 all is well, 1 a room failed, a byte was wrong or a line wasn't understood,\n"
    "2 wrong options, 3 the machine refused.\n",
    decode_rows, ROW_COUNT(decode_rows)};

static void print_models(void)
{
    (void)printf("\nModels (layers, KV heads, elements a head and token)\n");
    for (size_t i = 0; model_at(i) != NULL; i++)
        (void)printf("  %-16s %3u %2u %4u%s\n", model_at(i)->name, (unsigned)model_at(i)->layers,
                     (unsigned)model_at(i)->kv_heads, (unsigned)model_at(i)->head_elements,
                     model_at(i)->mla ? "  MLA" : "");
}

bool worker_options_read(kvf_role role, int count, char **arguments, worker_options *options,
                         int *exit_code)
{
    *options = (worker_options){.kv_type = "bf16",
                                .page_size = 16,
                                .buffers = 1,
                                .pages = 1024,
                                .item_length = 4096,
                                .aux = 1,
                                .aux_slots = 64,
                                .aux_item_length = 64,
                                .tp = 1,
                                .dp = 1,
                                .seed = 1};
    const option_table *table = role == KVF_PREFILL ? &prefill_table : &decode_table;
    if (options_begin(table, count, arguments, options, exit_code))
        return true;
    if (*exit_code == 0)
        print_models();
    return false;
}

bool worker_options_shape(worker_options *options, pool_shape *shape, message *why)
{
    *shape = (pool_shape){.buffer_count = options->buffers,
                          .page_count = options->pages,
                          .item_length = options->item_length,
                          .aux_count = options->aux,
                          .aux_slots = options->aux_slots,
                          .aux_item_length = options->aux_item_length};
    if (options->tp % options->dp != 0)
        return message_set(why, "--dp %llu doesn't divide --tp %llu",
                           (unsigned long long)options->dp, (unsigned long long)options->tp);
    if (options->model == NULL)
        return true;
    const tool_model *model = model_find(options->model, why);
    if (model == NULL)
        return false;
    bool fp8 = strcmp(options->kv_type, "fp8") == 0;
    if (!fp8 && strcmp(options->kv_type, "bf16") != 0)
        return message_set(why, "--kv-type: \"%.64s\" is neither bf16 nor fp8", options->kv_type);
    options->mla = model->mla;
    return model_shape(model, options->page_size, options->tp / options->dp, fp8 ? 1 : 2, shape,
                       why);
}

static bool set_one(kvf_settings *settings, const char *assignment, message *why)
{
    const char *equals = strchr(assignment, '=');
    char name[64];
    if (equals == NULL || (size_t)(equals - assignment) >= sizeof name)
        return message_set(why, "--set %.64s: not NAME=VALUE", assignment);
    (void)snprintf(name, sizeof name, "%.*s", (int)(equals - assignment), assignment);
    if (kvf_settings_set(settings, name, equals + 1) == KVF_OK)
        return true;
    return message_set(why, "--set %.64s: %s", assignment, kvf_error_text());
}

kvf_settings *settings_from_options(const option_list *set, message *why)
{
    kvf_settings *settings = NULL;
    if (kvf_settings_open(&settings) != KVF_OK) {
        (void)message_set(why, "%s", kvf_error_text());
        return NULL;
    }
    for (size_t i = 0; i < set->count; i++) {
        if (set_one(settings, set->items[i], why))
            continue;
        kvf_settings_close(settings);
        return NULL;
    }
    return settings;
}
