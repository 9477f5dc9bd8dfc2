/* The documents that say what the code does are checked against the code: docs/settings.md against the
 * settings table, docs/failures.md against the header and the tree. KVF_UPDATE_DOCS=1 rewrites the former. */
#include "kvferry/kvferry.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <regex.h>

#define ROOT KVF_TEST_VECTORS "/../../"

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("can't read %s", path);
    char *text = NULL;
    size_t capacity = 0;
    ssize_t length = getdelim(&text, &capacity, '\0', file);
    (void)fclose(file);
    if (length < 0)
        fail_msg("%s is empty", path);
    return text;
}

static const char preamble[] = "# Settings\n"
                               "\n"
                               "Made from the table in `src/base/settings.h`; a test compares the "
                               "two (`KVF_UPDATE_DOCS=1` rewrites this "
                               "file).\n"
                               "\n"
                               "A setting comes from its default, then from the environment "
                               "(`KVFERRY_` and the name in capitals), then from\n"
                               "`kvf_settings_set()`. Times take `ns us ms s min`, sizes `B K M G "
                               "KiB MiB GiB` (powers of two). An unknown "
                               "name or a\nmalformed value is an error that names the right ones. "
                               "The grammar of `fault` is in "
                               "settings-fault.md.\n"
                               "\n"
                               "| name | type | default | range | meaning |\n"
                               "| --- | --- | --- | --- | --- |\n";

static char *expected_settings(void)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    assert_non_null(stream);
    (void)fputs(preamble, stream);
    kvf_setting row = {.size = sizeof row};
    for (size_t i = 0; kvf_settings_describe(i, &row) == KVF_OK; i++)
        (void)fprintf(stream, "| `%s` | %s | %s | %s | %s |\n", row.name, row.type,
                      row.default_value, row.range, row.help);
    (void)fclose(stream);
    return text;
}

static void settings_are_documented(void **state)
{
    (void)state;
    char *expected = expected_settings();
    if (getenv("KVF_UPDATE_DOCS") != NULL) {
        FILE *file = fopen(ROOT "docs/settings.md", "w");
        assert_non_null(file);
        (void)fputs(expected, file);
        (void)fclose(file);
    }
    char *written = read_file(ROOT "docs/settings.md");
    if (strcmp(written, expected) != 0)
        fail_msg("docs/settings.md differs from the settings table; run this test with "
                 "KVF_UPDATE_DOCS=1");
    free(written);
    free(expected);
}

/* Calls `check` for each match of a pattern. Returns how many there were. */
static size_t each_match(const char *text, const char *pattern, void (*check)(const char *, void *),
                         void *user)
{
    regex_t regex;
    regmatch_t match;
    size_t count = 0;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED), 0);
    for (; regexec(&regex, text, 1, &match, 0) == 0; text += match.rm_eo) {
        char *word = strndup(text + match.rm_so, (size_t)(match.rm_eo - match.rm_so));
        check(word, user);
        free(word);
        count++;
    }
    regfree(&regex);
    return count;
}

static void must_be_in(const char *word, void *header)
{
    if (strstr(header, word) == NULL)
        fail_msg("docs/failures.md names %s, which the header doesn't", word);
}

/* Where `name` stands in `text` as a word, or NULL. */
static const char *find_word(const char *text, const char *name)
{
    size_t length = strlen(name);
    for (const char *found = strstr(text, name); found != NULL; found = strstr(found + 1, name)) {
        bool begins = found == text || (!isalnum((unsigned char)found[-1]) && found[-1] != '_');
        if (begins && !isalnum((unsigned char)found[length]) && found[length] != '_')
            return found;
    }
    return NULL;
}

/* It stands in a table of tests, by whatever macro. */
static bool runs_in_c(char *source, const char *name)
{
    static const char table[] = "const struct CMUnitTest tests[] = {";
    bool runs = false;
    for (char *start = strstr(source, table); start != NULL; start = strstr(start, table)) {
        char *end = strstr(start += strlen(table), "};\n    ");
        assert_non_null(end);
        *end = '\0';
        runs = runs || find_word(start, name) != NULL;
        start = end + 1;
    }
    return runs;
}

/* It is defined, and mentioned in another place: where the cases are listed, or by one that is. */
static bool runs_in_python(const char *source, const char *name)
{
    char definition[128];
    (void)snprintf(definition, sizeof definition, "\ndef %s(", name);
    const char *defined = strstr(source, definition);
    if (defined == NULL)
        return false;
    const char *first = find_word(source, name);
    const char *itself = defined + strlen("\ndef ");
    return first != itself || find_word(itself + strlen(name), name) != NULL;
}

/* `word` is `FILE`: `FUNCTION`, with its backquotes. */
static void must_run(const char *word, void *user)
{
    (void)user;
    char path[256];
    char name[128];
    char whole[512];
    if (sscanf(word, "`%255[^`]`: `%127[^`]`", path, name) != 2)
        fail_msg("docs/failures.md names no test with %s", word);
    (void)snprintf(whole, sizeof whole, ROOT "%s", path);
    char *source = read_file(whole);
    bool is_c = strcmp(path + strlen(path) - 2, ".c") == 0;
    if (!(is_c ? runs_in_c(source, name) : runs_in_python(source, name)))
        fail_msg("docs/failures.md names %s of %s, which isn't a test that runs", name, path);
    free(source);
}

#define TEST_NAMED "`(test|src)/[a-z0-9_/]+\\.(c|py)`: `[a-z0-9_]+`"

/* The last cell of a row, "FILE: FUNCTION; ...", and nothing else. */
static void check_row(const char *row)
{
    regex_t regex;
    assert_int_equal(
        regcomp(&regex, "\\| " TEST_NAMED "(; " TEST_NAMED ")* \\|$", REG_EXTENDED | REG_NOSUB), 0);
    if (regexec(&regex, row, 0, NULL, 0) != 0)
        fail_msg("docs/failures.md has a row that doesn't end with its tests: %s", row);
    regfree(&regex);
    assert_true(each_match(row, TEST_NAMED, must_run, NULL) > 0);
}

/* Of the first table. */
static void every_row_names_tests_that_run(void **state)
{
    (void)state;
    char *failures = read_file(ROOT "docs/failures.md");
    char *position = NULL;
    size_t rows = 0;
    char *table = strstr(failures, "\n| --- |");
    assert_non_null(table);
    char *end = strstr(table, "\n\n");
    assert_non_null(end);
    *end = '\0';
    (void)strtok_r(table, "\n", &position);
    for (const char *row = strtok_r(NULL, "\n", &position); row != NULL;
         row = strtok_r(NULL, "\n", &position)) {
        check_row(row);
        rows++;
    }
    assert_true(rows > 45);
    free(failures);
}

static void failures_name_statuses_of_the_header(void **state)
{
    (void)state;
    char *failures = read_file(ROOT "docs/failures.md");
    char *header = read_file(ROOT "include/kvferry/kvferry.h");
    assert_true(each_match(failures, "KVF_[A-Z_]+", must_be_in, header) > 20);
    free(header);
    free(failures);
}

static void must_be_documented(const char *word, void *failures)
{
    static const char *const elsewhere[] = {"KVF_OK", "KVF_INVALID_ARGUMENT", "KVF_WRONG_STATE",
                                            "KVF_BAD_SETTING", "KVF_SYSTEM"};
    char name[64];
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(word, " "), word);
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
        if (strcmp(elsewhere[i], name) == 0)
            return;
    if (strstr(failures, name) == NULL)
        fail_msg("docs/failures.md has no row with %s", name);
}

/* Every status but those of a caller's own mistakes has its row. */
static void every_status_has_a_row(void **state)
{
    (void)state;
    char *failures = read_file(ROOT "docs/failures.md");
    char *header = read_file(ROOT "include/kvferry/kvferry.h");
    char *start = strstr(header, "typedef enum kvf_status");
    char *end = strstr(header, "} kvf_status;");
    assert_non_null(start);
    assert_non_null(end);
    *end = '\0';
    assert_true(each_match(start, "KVF_[A-Z_]+ = [0-9]+", must_be_documented, failures) == 23);
    free(header);
    free(failures);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_are_documented),
        cmocka_unit_test(failures_name_statuses_of_the_header),
        cmocka_unit_test(every_row_names_tests_that_run),
        cmocka_unit_test(every_status_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
