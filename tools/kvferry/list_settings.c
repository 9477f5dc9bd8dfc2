#include "commands.h"
#include "exit_codes.h"
#include "kvferry/kvferry.h"
#include "options.h"

#include <ctype.h>
#include <jansson.h>
#include <string.h>

typedef struct settings_options {
    bool json;
} settings_options;

static const option_row rows[] = {{"json", NULL, OPTION_FLAG, offsetof(settings_options, json), 0,
                                   0, "one JSON array instead of a table"}};

static const option_table table = {
    "settings", "lists every setting: name, value, range, meaning",
    "The value is the one in force here: the environment's, or the default.\n"
    "Set them with KVFERRY_<NAME>=VALUE, with --set NAME=VALUE, or with kvf_settings_set().\n"
    "Exit status: 0, or 2 when the environment holds a wrong one.\n",
    rows, sizeof rows / sizeof rows[0]};

static void variable_of(const char *name, char *text, size_t capacity)
{
    (void)snprintf(text, capacity, "KVFERRY_%s", name);
    for (char *letter = text; *letter != '\0'; letter++)
        *letter = (char)toupper((unsigned char)*letter);
}

static void print_table(kvf_settings *settings)
{
    kvf_setting row = {.size = sizeof row};
    (void)printf("%-22s %-7s %-14s %s\n", "NAME", "TYPE", "VALUE", "MEANING");
    for (size_t i = 0; kvf_settings_describe(i, &row) == KVF_OK; i++) {
        const char *value = kvf_settings_get(settings, row.name);
        bool changed = strcmp(value, row.default_value) != 0;
        (void)printf("%-22s %-7s %-14s %s", row.name, row.type, *value == '\0' ? "-" : value,
                     row.help);
        if (*row.range != '\0')
            (void)printf(" (%s%s)", strcmp(row.type, "choice") == 0 ? "one of: " : "", row.range);
        if (changed)
            (void)printf(" [default: %s]", *row.default_value == '\0' ? "-" : row.default_value);
        (void)putchar('\n');
    }
}

static void print_json(kvf_settings *settings)
{
    json_t *list = json_array();
    kvf_setting row = {.size = sizeof row};
    for (size_t i = 0; kvf_settings_describe(i, &row) == KVF_OK; i++) {
        char variable[96];
        variable_of(row.name, variable, sizeof variable);
        (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "name",
                                                    row.name, "type", row.type, "value",
                                                    kvf_settings_get(settings, row.name), "default",
                                                    row.default_value, "range", row.range, "help",
                                                    row.help, "environment", variable));
    }
    (void)json_dumpf(list, stdout, JSON_INDENT(2));
    (void)putchar('\n');
    json_decref(list);
}

int command_settings(int count, char **arguments)
{
    settings_options options = {.json = false};
    kvf_settings *settings = NULL;
    int result = TOOL_FINE;
    if (!options_begin(&table, count, arguments, &options, &result))
        return result;
    if (kvf_settings_open(&settings) != KVF_OK) {
        (void)fprintf(stderr, "kvferry settings: %s\n", kvf_error_text());
        return TOOL_USAGE;
    }
    if (options.json)
        print_json(settings);
    else
        print_table(settings);
    kvf_settings_close(settings);
    return TOOL_FINE;
}
