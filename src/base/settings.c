#include "base/settings.h"

#include "base/bytes.h"
#include "base/last_error.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum setting_type { TEXT, CHOICE, COUNT, BYTES, TIME, PORT } setting_type;

typedef struct setting_row {
    const char *name;
    setting_type type;
    const char *text_default;
    uint64_t number_default;
    uint64_t minimum;
    uint64_t maximum;
    const char *choices;
    const char *help;
    size_t offset;
} setting_row;

#define TEXT_ROW(name, value, help)                                                                \
    {#name, TEXT, value, 0, 0, 0, "", help, offsetof(struct kvf_settings, name)},
#define CHOICE_ROW(name, value, choices, help)                                                     \
    {#name, CHOICE, "", value, 0, 0, choices, help, offsetof(struct kvf_settings, name)},
#define NUMBER_ROW(name, type, value, minimum, maximum, help)                                      \
    {#name, type, "", value, minimum, maximum, "", help, offsetof(struct kvf_settings, name)},

static const setting_row rows[] = {KVF_SETTINGS(TEXT_ROW, CHOICE_ROW, NUMBER_ROW)};
static const size_t row_count = sizeof rows / sizeof rows[0];

typedef struct unit {
    const char *suffix;
    uint64_t factor;
} unit;

static const unit time_units[] = {{"ns", 1},
                                  {"us", KVF_MICROSECOND},
                                  {"ms", KVF_MILLISECOND},
                                  {"min", 60 * KVF_SECOND},
                                  {"s", KVF_SECOND},
                                  {NULL, 0}};
static const unit byte_units[] = {{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
                                  {"K", 1 << 10},   {"M", 1 << 20},   {"G", 1 << 30},
                                  {"B", 1},         {"", 1},          {NULL, 0}};
static const unit count_units[] = {{"", 1}, {NULL, 0}};

static const unit *units_of(setting_type type)
{
    if (type == TIME)
        return time_units;
    return type == BYTES ? byte_units : count_units;
}

static uint64_t *number_at(kvf_settings *settings, const setting_row *row)
{
    return (uint64_t *)(void *)((char *)settings + row->offset);
}

static char *text_at(kvf_settings *settings, const setting_row *row)
{
    return (char *)settings + row->offset;
}

static const setting_row *find_row(const char *name)
{
    for (size_t i = 0; i < row_count; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

static void copy_text(char *target, const char *source)
{
    (void)snprintf(target, KVF_SETTING_TEXT_MAX, "%s", source);
}

static void follow_log_level(kvf_settings *settings)
{
    settings->log.level = (kvf_log_level)settings->log_level;
}

void kvf_settings_defaults(kvf_settings *settings)
{
    memset(settings, 0, sizeof *settings);
    for (size_t i = 0; i < row_count; i++) {
        if (rows[i].type == TEXT)
            copy_text(text_at(settings, &rows[i]), rows[i].text_default);
        else
            *number_at(settings, &rows[i]) = rows[i].number_default;
    }
    follow_log_level(settings);
}

/* The word at `index` of a list separated by spaces; an empty slice past its end. */
static kvf_slice choice_at(const char *choices, uint64_t index)
{
    const char *word = choices;
    for (; index > 0; index--) {
        word = strchr(word, ' ');
        if (word == NULL)
            return (kvf_slice){NULL, 0};
        word++;
    }
    return (kvf_slice){(const uint8_t *)word, strcspn(word, " ")};
}

static bool parse_choice(const setting_row *row, const char *value, uint64_t *index)
{
    for (*index = 0;; (*index)++) {
        kvf_slice word = choice_at(row->choices, *index);
        if (word.length == 0)
            return false;
        if (kvf_slice_equal(word, kvf_slice_of(value)))
            return true;
    }
}

static bool parse_number(const setting_row *row, const char *value, uint64_t *number)
{
    size_t digits = strspn(value, "0123456789");
    if (!kvf_parse_decimal((kvf_slice){(const uint8_t *)value, digits}, UINT64_MAX, number))
        return false;
    for (const unit *each = units_of(row->type); each->suffix != NULL; each++) {
        bool bare_zero = *number == 0 && value[digits] == '\0';
        if (strcmp(value + digits, each->suffix) != 0 && !bare_zero)
            continue;
        if (*number > UINT64_MAX / each->factor)
            return false;
        *number *= each->factor;
        return *number >= row->minimum && *number <= row->maximum;
    }
    return false;
}

/* A number in the largest unit that divides it, so that it can be read and parsed again. */
static void format_number(const setting_row *row, uint64_t number, char *text, size_t capacity)
{
    const unit *best = NULL;
    for (const unit *each = units_of(row->type); each->suffix != NULL; each++)
        if (number % each->factor == 0 && (best == NULL || each->factor > best->factor))
            best = each;
    if (row->type == TIME && number == 0)
        best = &time_units[4];
    (void)snprintf(text, capacity, "%llu%s",
                   (unsigned long long)(number / (best == NULL ? 1 : best->factor)),
                   best == NULL || row->type == COUNT || row->type == PORT ? "" : best->suffix);
}

static void format_range(const setting_row *row, char *text, size_t capacity)
{
    if (row->type == TEXT || row->type == CHOICE) {
        (void)snprintf(text, capacity, "%s", row->choices);
        return;
    }
    char minimum[32];
    char maximum[32];
    format_number(row, row->minimum, minimum, sizeof minimum);
    format_number(row, row->maximum, maximum, sizeof maximum);
    (void)snprintf(text, capacity, "%s to %s", minimum, maximum);
}

/* The known name that shares the longest beginning with a wrong one: a typing error's likely meaning. */
static const char *nearest_name(const char *name)
{
    size_t best_length = 0;
    const char *best = rows[0].name;
    for (size_t i = 0; i < row_count; i++) {
        size_t length = 0;
        while (name[length] != '\0' && name[length] == rows[i].name[length])
            length++;
        if (length > best_length) {
            best_length = length;
            best = rows[i].name;
        }
    }
    return best;
}

kvf_status kvf_settings_assign(kvf_settings *settings, const char *name, const char *value,
                               kvf_error *error)
{
    const setting_row *row = find_row(name);
    if (row == NULL)
        return kvf_error_set(
            error, KVF_BAD_SETTING,
            "there is no setting %.64s; nearest is %s, `kvferry settings` lists all", name,
            nearest_name(name));
    if (row->type == TEXT) {
        if (strlen(value) >= KVF_SETTING_TEXT_MAX)
            return kvf_error_set(error, KVF_BAD_SETTING, "setting %s: text longer than %d bytes",
                                 name, KVF_SETTING_TEXT_MAX - 1);
        copy_text(text_at(settings, row), value);
        return KVF_OK;
    }
    uint64_t number = 0;
    bool understood =
        row->type == CHOICE ? parse_choice(row, value, &number) : parse_number(row, value, &number);
    if (!understood) {
        char range[KVF_SETTING_TEXT_MAX];
        format_range(row, range, sizeof range);
        return kvf_error_set(error, KVF_BAD_SETTING, "setting %s: \"%.64s\" is not %s%s", name,
                             value, row->type == CHOICE ? "one of: " : "in the range ", range);
    }
    *number_at(settings, row) = number;
    follow_log_level(settings);
    return KVF_OK;
}

static const char prefix[] = "KVFERRY_";

/* What else has our prefix in the environment: switches of the Python package, which checks them itself. */
static const char *const foreign_names[] = {"SGLANG=", "SGLANG_", "PYTHON_"};

static bool is_foreign(const char *name)
{
    for (size_t i = 0; i < sizeof foreign_names / sizeof foreign_names[0]; i++)
        if (strncmp(name, foreign_names[i], strlen(foreign_names[i])) == 0)
            return true;
    return false;
}

/* Turns KVFERRY_WAITING_TIMEOUT=5s into an assignment. */
static kvf_status assign_variable(kvf_settings *settings, const char *variable, kvf_error *error)
{
    const char *equals = strchr(variable, '=');
    size_t length = equals == NULL ? 0 : (size_t)(equals - variable) - strlen(prefix);
    char name[64];
    if (equals == NULL || length >= sizeof name)
        return kvf_error_set(error, KVF_BAD_SETTING, "there is no setting %.64s", variable);
    for (size_t i = 0; i < length; i++) {
        char letter = variable[strlen(prefix) + i];
        name[i] = letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
    }
    name[length] = '\0';
    kvf_status status = kvf_settings_assign(settings, name, equals + 1, error);
    if (status != KVF_OK)
        kvf_error_prefix(error, "environment variable %.*s", (int)(equals - variable), variable);
    return status;
}

extern char **environ;

kvf_status kvf_settings_from_environment(kvf_settings *settings, kvf_error *error)
{
    kvf_settings_defaults(settings);
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        if (strncmp(*variable, prefix, strlen(prefix)) != 0 ||
            is_foreign(*variable + strlen(prefix)))
            continue;
        kvf_status status = assign_variable(settings, *variable, error);
        if (status != KVF_OK)
            return status;
    }
    return KVF_OK;
}

const char *kvf_settings_format(kvf_settings *settings, const char *name)
{
    const setting_row *row = find_row(name);
    if (row == NULL)
        return NULL;
    if (row->type == TEXT)
        return text_at(settings, row);
    if (row->type == CHOICE) {
        kvf_slice word = choice_at(row->choices, *number_at(settings, row));
        (void)kvf_slice_to_text(word, settings->scratch, sizeof settings->scratch);
    } else {
        format_number(row, *number_at(settings, row), settings->scratch, sizeof settings->scratch);
    }
    return settings->scratch;
}

kvf_status kvf_settings_open(kvf_settings **settings)
{
    if (settings == NULL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "kvf_settings_open: settings is NULL");
    *settings = NULL;
    kvf_settings *opened = malloc(sizeof *opened);
    if (opened == NULL)
        return kvf_last_error_set(KVF_NO_MEMORY, "no memory for settings");
    kvf_error error;
    if (kvf_settings_from_environment(opened, &error) != KVF_OK) {
        free(opened);
        return kvf_last_error_keep(&error);
    }
    *settings = opened;
    return KVF_OK;
}

void kvf_settings_close(kvf_settings *settings)
{
    free(settings);
}

kvf_status kvf_settings_set(kvf_settings *settings, const char *name, const char *value)
{
    if (settings == NULL || name == NULL || value == NULL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "kvf_settings_set: an argument is NULL");
    kvf_error error;
    if (kvf_settings_assign(settings, name, value, &error) != KVF_OK)
        return kvf_last_error_keep(&error);
    return KVF_OK;
}

const char *kvf_settings_get(kvf_settings *settings, const char *name)
{
    return settings == NULL || name == NULL ? NULL : kvf_settings_format(settings, name);
}

kvf_status kvf_settings_log(kvf_settings *settings, kvf_log_callback callback, void *user)
{
    if (settings == NULL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "kvf_settings_log: settings is NULL");
    settings->log.callback = callback;
    settings->log.user = user;
    return KVF_OK;
}

kvf_status kvf_settings_describe(size_t index, kvf_setting *row)
{
    static const char *const type_names[] = {"text", "choice", "count", "bytes", "time", "port"};
    static _Thread_local char range[KVF_SETTING_TEXT_MAX];
    static _Thread_local char default_value[64];
    if (row == NULL || row->size < sizeof(kvf_setting))
        return kvf_last_error_set(KVF_INVALID_ARGUMENT,
                                  "kvf_settings_describe: set row->size to sizeof(kvf_setting)");
    if (index >= row_count)
        return kvf_last_error_set(KVF_OUT_OF_RANGE, "there are %zu settings", row_count);
    const setting_row *found = &rows[index];
    kvf_settings defaults;
    kvf_settings_defaults(&defaults);
    format_range(found, range, sizeof range);
    (void)snprintf(default_value, sizeof default_value, "%s",
                   kvf_settings_format(&defaults, found->name));
    row->name = found->name;
    row->type = type_names[found->type];
    row->default_value = default_value;
    row->range = range;
    row->help = found->help;
    return KVF_OK;
}
