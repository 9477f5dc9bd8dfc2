#include "options.h"

#include "exit_codes.h"
#include "nearest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool same_letter(char given, char known)
{
    return given == known || (given == '_' && known == '-');
}

static bool name_matches(const char *given, size_t length, const char *known)
{
    if (strlen(known) != length)
        return false;
    for (size_t i = 0; i < length; i++)
        if (!same_letter(given[i], known[i]))
            return false;
    return true;
}

static const option_row *find_row(const option_table *table, const char *name, size_t length)
{
    for (size_t i = 0; i < table->row_count; i++)
        if (name_matches(name, length, table->rows[i].name))
            return &table->rows[i];
    return NULL;
}

static bool unknown_option(const option_table *table, const char *name, size_t length, message *why)
{
    char word[64];
    (void)snprintf(word, sizeof word, "%.*s", (int)(length < 63 ? length : 63), name);
    nearest search = nearest_to(word);
    for (size_t i = 0; i < table->row_count; i++)
        nearest_consider(&search, table->rows[i].name);
    return message_set(why, "there is no option --%s; nearest is --%s, `kvferry %s --help` has all",
                       word, search.best == NULL ? "help" : search.best, table->command);
}

static uint64_t factor_of(const char *suffix)
{
    static const struct {
        const char *suffix;
        uint64_t factor;
    } units[] = {{"", 1},        {"B", 1},         {"K", 1 << 10}, {"KiB", 1 << 10},
                 {"M", 1 << 20}, {"MiB", 1 << 20}, {"G", 1 << 30}, {"GiB", 1 << 30}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(units[i].suffix, suffix) == 0)
            return units[i].factor;
    return 0;
}

bool options_number(option_kind kind, const char *text, uint64_t *number)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0)
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, NULL, 10);
    uint64_t factor = kind == OPTION_BYTES ? factor_of(text + digits) : text[digits] == '\0';
    if (errno != 0 || factor == 0 || value > UINT64_MAX / factor)
        return false;
    *number = value * factor;
    return true;
}

static bool assign_number(const option_row *row, const char *value, uint64_t *field, message *why)
{
    uint64_t number = 0;
    if (options_number(row->kind, value, &number) && number >= row->minimum &&
        number <= row->maximum) {
        *field = number;
        return true;
    }
    return message_set(why, "--%s: \"%.64s\" is not a number from %llu to %llu%s", row->name, value,
                       (unsigned long long)row->minimum, (unsigned long long)row->maximum,
                       row->kind == OPTION_BYTES ? " bytes (K, M and G are understood)" : "");
}

static bool assign_item(const option_row *row, const char *value, option_list *list, message *why)
{
    if (list->count == OPTION_LIST_MAX)
        return message_set(why, "--%s is given more than %d times", row->name, OPTION_LIST_MAX);
    list->items[list->count++] = value;
    return true;
}

static bool assign(const option_row *row, const char *value, void *target, message *why)
{
    void *field = (char *)target + row->offset;
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)field = true;
        return true;
    case OPTION_COUNT:
    case OPTION_BYTES:
        return assign_number(row, value, field, why);
    case OPTION_TEXT:
        *(const char **)field = value;
        return true;
    case OPTION_LIST:
        return assign_item(row, value, field, why);
    }
    return false;
}

/* Takes one option, and the argument after it where that is its value. */
static bool parse_one(const option_table *table, int count, char **arguments, int *index,
                      void *target, message *why)
{
    const char *name = arguments[*index] + 2;
    const char *equals = strchr(name, '=');
    size_t length = equals == NULL ? strlen(name) : (size_t)(equals - name);
    const option_row *row = find_row(table, name, length);
    if (row == NULL)
        return unknown_option(table, name, length, why);
    if (row->kind == OPTION_FLAG && equals != NULL)
        return message_set(why, "--%s takes no value", row->name);
    const char *value = equals == NULL ? NULL : equals + 1;
    if (row->kind != OPTION_FLAG && value == NULL) {
        if (*index + 1 >= count)
            return message_set(why, "--%s needs a value: %s", row->name, row->argument);
        value = arguments[++*index];
    }
    return assign(row, value, target, why);
}

option_result options_parse(const option_table *table, int count, char **arguments, void *target,
                            message *why)
{
    for (int index = 0; index < count; index++) {
        const char *argument = arguments[index];
        if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0)
            return OPTIONS_HELP;
        if (strncmp(argument, "--", 2) != 0) {
            message_set(why, "\"%.64s\" is not an option; `kvferry %s --help` has all", argument,
                        table->command);
            return OPTIONS_WRONG;
        }
        if (!parse_one(table, count, arguments, &index, target, why))
            return OPTIONS_WRONG;
    }
    return OPTIONS_PARSED;
}

void options_print_help(const option_table *table, FILE *stream)
{
    (void)fprintf(stream, "kvferry %s: %s\n\nOptions\n", table->command, table->summary);
    for (size_t i = 0; i < table->row_count; i++) {
        const option_row *row = &table->rows[i];
        char left[64];
        (void)snprintf(left, sizeof left, "--%s%s%s", row->name, row->argument == NULL ? "" : " ",
                       row->argument == NULL ? "" : row->argument);
        (void)fprintf(stream, "  %-24s %s\n", left, row->help);
    }
    (void)fprintf(stream, "  %-24s %s\n", "--help", "this text");
    if (table->description != NULL)
        (void)fprintf(stream, "\n%s", table->description);
}

bool options_begin(const option_table *table, int count, char **arguments, void *target,
                   int *exit_code)
{
    message why;
    switch (options_parse(table, count, arguments, target, &why)) {
    case OPTIONS_PARSED:
        return true;
    case OPTIONS_HELP:
        options_print_help(table, stdout);
        *exit_code = TOOL_FINE;
        return false;
    case OPTIONS_WRONG:
        break;
    }
    (void)fprintf(stderr, "kvferry %s: %s\n", table->command, why.text);
    *exit_code = TOOL_USAGE;
    return false;
}
