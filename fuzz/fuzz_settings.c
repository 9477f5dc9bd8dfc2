/* Settings. Input: lines of name=value, each assigned, and then all together taken from an environment. What is taken
 * must come out of the formatter as text that is taken alike; what isn't must say why and change nothing. An
 * environment is taken as its variables one after the other are, or refused whole. */
#include "base/settings.h"

#include "support.h"

#include <stdio.h>
#include <string.h>

enum { LINES_MAX = 64 };

/* Texts of their exact size, so that the sanitizer guards each. */
typedef struct lines {
    char *names[LINES_MAX];
    char *values[LINES_MAX]; /* NULL: there was no '=' */
    size_t count;
} lines;

static char *make_text(const char *begin, size_t length)
{
    char *text = malloc(length + 1);
    require(text != NULL);
    memcpy(text, begin, length);
    text[length] = '\0';
    return text;
}

static void split(lines *all, const char *text)
{
    all->count = 0;
    while (*text != '\0' && all->count < LINES_MAX) {
        size_t length = strcspn(text, "\n");
        size_t name = strcspn(text, "=\n");
        all->names[all->count] = make_text(text, name);
        all->values[all->count++] =
            name < length ? make_text(text + name + 1, length - name - 1) : NULL;
        text += text[length] == '\n' ? length + 1 : length;
    }
}

static void free_lines(lines *all)
{
    for (size_t i = 0; i < all->count; i++) {
        free(all->names[i]);
        free(all->values[i]);
    }
}

static void format(kvf_settings *settings, const char *name, char text[KVF_SETTING_TEXT_MAX])
{
    const char *value = kvf_settings_format(settings, name);
    (void)snprintf(text, KVF_SETTING_TEXT_MAX, "%s", value == NULL ? "" : value);
}

static void check_assignment(kvf_settings *settings, const char *name, const char *value)
{
    char before[KVF_SETTING_TEXT_MAX];
    char after[KVF_SETTING_TEXT_MAX];
    char again[KVF_SETTING_TEXT_MAX];
    kvf_error error = {0};
    format(settings, name, before);
    kvf_status status = kvf_settings_assign(settings, name, value, &error);
    format(settings, name, after);
    if (status != KVF_OK) {
        require(status == KVF_BAD_SETTING && error.text[0] != '\0' && strcmp(before, after) == 0);
        return;
    }
    require(kvf_settings_assign(settings, name, after, &error) == KVF_OK);
    format(settings, name, again);
    require(strcmp(after, again) == 0);
}

/* ---- the environment ---- */

static void change_case(char *text, char first, char last, int by)
{
    for (; *text != '\0'; text++)
        if (*text >= first && *text <= last)
            *text = (char)(*text + by);
}

static char *make_variable(const char *name, const char *value)
{
    kvf_bytes bytes = {0};
    kvf_bytes_append_text(&bytes, "KVFERRY_");
    kvf_bytes_append_text(&bytes, name);
    if (value != NULL) {
        kvf_bytes_append_text(&bytes, "=");
        kvf_bytes_append_text(&bytes, value);
    }
    char *variable = make_text((const char *)bytes.data, bytes.length);
    kvf_bytes_free(&bytes);
    return variable;
}

/* Variables that are the Python package's. */
static bool is_foreign(const char *name, const char *value)
{
    return (strcmp(name, "SGLANG") == 0 && value != NULL) || strncmp(name, "SGLANG_", 7) == 0 ||
           strncmp(name, "PYTHON_", 7) == 0;
}

/* What each variable by itself would do; false when one of them can't be taken. */
static bool assign_each(kvf_settings *settings, const lines *all)
{
    kvf_settings_defaults(settings);
    for (size_t i = 0; i < all->count; i++) {
        if (is_foreign(all->names[i], all->values[i]))
            continue;
        char *name = make_text(all->names[i], strlen(all->names[i]));
        change_case(name, 'A', 'Z', 'a' - 'A');
        bool taken = all->values[i] != NULL &&
                     kvf_settings_assign(settings, name, all->values[i], NULL) == KVF_OK;
        free(name);
        if (!taken)
            return false;
    }
    return true;
}

static void require_same(kvf_settings *a, kvf_settings *b)
{
    kvf_setting row = {.size = sizeof row};
    char text[KVF_SETTING_TEXT_MAX];
    for (size_t i = 0; kvf_settings_describe(i, &row) == KVF_OK; i++) {
        format(a, row.name, text);
        require(strcmp(text, kvf_settings_get(b, row.name)) == 0);
    }
}

extern char **environ;

/* An environment of our own: setenv() would keep each text for ever, and allow no name twice. */
static kvf_status open_in(char **variables, kvf_settings **settings)
{
    char **real = environ;
    environ = variables;
    kvf_status status = kvf_settings_open(settings);
    environ = real;
    return status;
}

static void check_environment(lines *all)
{
    static kvf_settings expected;
    char *variables[LINES_MAX + 2];
    kvf_settings *settings;
    variables[0] = make_text("PATH=/bin", 9);
    variables[all->count + 1] = NULL;
    for (size_t i = 0; i < all->count; i++) {
        change_case(all->names[i], 'a', 'z', 'A' - 'a');
        variables[i + 1] = make_variable(all->names[i], all->values[i]);
    }
    bool should = assign_each(&expected, all);
    kvf_status status = open_in(variables, &settings);
    require(status == (should ? KVF_OK : KVF_BAD_SETTING));
    require(should == (settings != NULL));
    if (should)
        require_same(&expected, settings);
    else
        require(strstr(kvf_error_text(), "KVFERRY_") != NULL);
    kvf_settings_close(settings);
    for (size_t i = 0; i <= all->count; i++)
        free(variables[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kvf_settings settings;
    lines all;
    char *text = make_text(size > 0 ? (const char *)data : "", size);
    split(&all, text);
    free(text);
    kvf_settings_defaults(&settings);
    for (size_t i = 0; i < all.count; i++)
        if (all.values[i] != NULL)
            check_assignment(&settings, all.names[i], all.values[i]);
    check_environment(&all);
    free_lines(&all);
    return 0;
}
