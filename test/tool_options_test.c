/* The command's options, its model table, and what its pools check. */
#include "../tools/kvferry/message.c"
#include "../tools/kvferry/model.c"
#include "../tools/kvferry/nearest.c"
#include "../tools/kvferry/options.c"
#include "../tools/kvferry/pattern.c"
#include "../tools/kvferry/pool.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef struct sample {
    uint64_t pages;
    uint64_t size;
    const char *name;
    bool huge;
    option_list set;
} sample;

static const option_row rows[] = {
    {"pages", "N", OPTION_COUNT, offsetof(sample, pages), 1, 100, ""},
    {"item-len", "BYTES", OPTION_BYTES, offsetof(sample, size), 1, 1 << 20, ""},
    {"name", "TEXT", OPTION_TEXT, offsetof(sample, name), 0, 0, ""},
    {"huge", NULL, OPTION_FLAG, offsetof(sample, huge), 0, 0, ""},
    {"set", "NAME=VALUE", OPTION_LIST, offsetof(sample, set), 0, 0, ""}};
static const option_table table = {"sample", "", NULL, rows, sizeof rows / sizeof rows[0]};

static option_result parse(sample *target, message *why, const char *const *words, int count)
{
    char *arguments[16];
    for (int i = 0; i < count; i++)
        arguments[i] = (char *)(uintptr_t)words[i];
    *target = (sample){.pages = 7};
    return options_parse(&table, count, arguments, target, why);
}

static void every_kind_of_option(void **state)
{
    (void)state;
    sample given;
    message why;
    const char *const words[] = {"--pages=12", "--item_len", "64K", "--name",   "x=y",
                                 "--huge",     "--set",      "a=1", "--set=b=2"};
    assert_int_equal(parse(&given, &why, words, 9), OPTIONS_PARSED);
    assert_int_equal(given.pages, 12);
    assert_int_equal(given.size, 64 << 10);
    assert_string_equal(given.name, "x=y");
    assert_true(given.huge);
    assert_int_equal(given.set.count, 2);
    assert_string_equal(given.set.items[1], "b=2");
}

static void defaults_stay(void **state)
{
    (void)state;
    sample given;
    message why;
    assert_int_equal(parse(&given, &why, NULL, 0), OPTIONS_PARSED);
    assert_int_equal(given.pages, 7);
    const char *const help[] = {"--pages", "3", "-h"};
    assert_int_equal(parse(&given, &why, help, 3), OPTIONS_HELP);
}

static void wrong_options_are_named(void **state)
{
    (void)state;
    const struct {
        const char *words[2];
        int count;
        const char *part;
    } cases[] = {{{"--page", "3"}, 2, "nearest is --pages"},
                 {{"--itemlen=3", NULL}, 1, "nearest is --item-len"},
                 {{"--pages", NULL}, 1, "needs a value"},
                 {{"--pages", "0"}, 2, "from 1 to 100"},
                 {{"--pages", "101"}, 2, "from 1 to 100"},
                 {{"--pages", "1K"}, 2, "from 1 to 100"},
                 {{"--pages", "-1"}, 2, "from 1 to 100"},
                 {{"--pages", ""}, 2, "from 1 to 100"},
                 {{"--item-len", "99999999999999999999"}, 2, "from 1 to"},
                 {{"--item-len", "17179869184G"}, 2, "from 1 to"},
                 {{"--huge=yes", NULL}, 1, "takes no value"},
                 {{"7", NULL}, 1, "is not an option"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sample given;
        message why = {""};
        assert_int_equal(parse(&given, &why, cases[i].words, cases[i].count), OPTIONS_WRONG);
        if (strstr(why.text, cases[i].part) == NULL)
            fail_msg("%s: \"%s\" doesn't say \"%s\"", cases[i].words[0], why.text, cases[i].part);
    }
}

/* Bytes of a token in bf16, as the field's tables have them. */
static void model_sizes_are_the_published_ones(void **state)
{
    (void)state;
    const struct {
        const char *name;
        uint64_t token_bytes;
    } known[] = {{"llama-3.1-8b", 131072},    {"Llama-3.1-70B", 327680}, {"Qwen3-8B", 147456},
                 {"Qwen3-235B-A22B", 192512}, {"gpt-oss-20b", 49152},    {"gpt-oss-120b", 73728},
                 {"DeepSeek-V3", 70272}};
    message why;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const tool_model *model = model_find(known[i].name, &why);
        assert_non_null(model);
        assert_int_equal(model_token_bytes(model, 2), known[i].token_bytes);
        pool_shape shape;
        assert_true(model_shape(model, 16, 1, 2, &shape, &why));
        assert_int_equal(shape.buffer_count * shape.item_length, 16 * known[i].token_bytes);
    }
    assert_null(model_find("llama-8b", &why));
    assert_non_null(strstr(why.text, "nearest is Llama-3.1-8B"));
}

static void heads_are_shared_or_replicated(void **state)
{
    (void)state;
    message why;
    pool_shape shape;
    const tool_model *big = model_find("Llama-3.1-70B", &why);
    assert_true(model_shape(big, 16, 4, 2, &shape, &why));
    assert_int_equal(shape.item_length, 8 << 10);
    assert_true(model_shape(big, 16, 16, 2, &shape, &why)); /* one head each, twice */
    assert_int_equal(shape.item_length, 4 << 10);
    assert_false(model_shape(big, 16, 3, 2, &shape, &why));
    const tool_model *latent = model_find("deepseek-v3", &why);
    assert_true(model_shape(latent, 64, 8, 2, &shape, &why));
    assert_int_equal(shape.item_length, 72 << 10);
    assert_int_equal(shape.buffer_count, 61);
}

static void a_pool_knows_its_bytes(void **state)
{
    (void)state;
    const pool_shape shape = {.buffer_count = 3,
                              .page_count = 5,
                              .item_length = 1001,
                              .aux_count = 2,
                              .aux_slots = 4,
                              .aux_item_length = 13};
    tool_pool source;
    tool_pool target;
    message why = {""};
    assert_true(pool_open(&source, &shape, false, &why));
    assert_true(pool_open(&target, &shape, true, &why));
    pool_fill(&source, 6);
    pool_poison(&target);

    const uint32_t pages[] = {4, 0};
    const uint32_t source_pages[] = {1, 2};
    const pool_claim claim = {.seed = 6,
                              .pages = pages,
                              .source_pages = source_pages,
                              .page_count = 2,
                              .aux_slot = 3,
                              .source_aux_slot = 1,
                              .aux_count = 1};
    assert_false(pool_check(&target, &claim, &why));
    assert_non_null(strstr(why.text, "nothing was written there"));
    for (uint64_t i = 0; i < shape.buffer_count; i++)
        for (size_t k = 0; k < 2; k++)
            memcpy(pool_item(&target, i, pages[k]), pool_item(&source, i, source_pages[k]), 1001);
    assert_false(pool_check(&target, &claim, &why));
    assert_non_null(strstr(why.text, "aux buffer 0, slot 3"));
    memcpy(item_at(&target, pool_aux(&target), 3), item_at(&source, pool_aux(&source), 1), 13);
    assert_true(pool_check(&target, &claim, &why));

    pool_item(&target, 2, 0)[1000] ^= 1;
    assert_false(pool_check(&target, &claim, &why));
    assert_non_null(strstr(why.text, "buffer 2, page 0: byte 1000 "));
    pool_close(&source);
    pool_close(&target);
}

static void impossible_pools_are_refused(void **state)
{
    (void)state;
    tool_pool pool;
    message why;
    const pool_shape shapes[] = {
        {.buffer_count = 0, .page_count = 1, .item_length = 1},
        {.buffer_count = 40000, .page_count = 1, .item_length = 1},
        {.buffer_count = 2, .page_count = UINT64_MAX / 2, .item_length = 8},
        {.buffer_count = 32768, .page_count = UINT32_MAX, .item_length = 1 << 20},
        {.buffer_count = 1, .page_count = 1, .item_length = 1, .aux_count = 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        assert_false(pool_open(&pool, &shapes[i], false, &why));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind_of_option),
                                       cmocka_unit_test(defaults_stay),
                                       cmocka_unit_test(wrong_options_are_named),
                                       cmocka_unit_test(model_sizes_are_the_published_ones),
                                       cmocka_unit_test(heads_are_shared_or_replicated),
                                       cmocka_unit_test(a_pool_knows_its_bytes),
                                       cmocka_unit_test(impossible_pools_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
