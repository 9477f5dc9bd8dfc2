/* The documents that say what the code does are checked against the code: docs/settings.md against the
 * settings table, docs/failures.md against the header and the tree. KVF_UPDATE_DOCS=1 rewrites the former. */
#include "kvferry/kvferry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <regex.h>
#include <unistd.h>

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

static void must_exist(const char *path, void *user)
{
    (void)user;
    char whole[512];
    (void)snprintf(whole, sizeof whole, ROOT "%s", path);
    if (access(whole, R_OK) != 0)
        fail_msg("docs/failures.md names the test %s, which doesn't exist", path);
}

static void failures_name_what_exists(void **state)
{
    (void)state;
    char *failures = read_file(ROOT "docs/failures.md");
    char *header = read_file(ROOT "include/kvferry/kvferry.h");
    assert_true(each_match(failures, "KVF_[A-Z_]+", must_be_in, header) > 20);
    assert_true(each_match(failures, "(test|src)/[a-z0-9_/]+\\.(c|sh|py)", must_exist, NULL) > 20);
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
        cmocka_unit_test(failures_name_what_exists),
        cmocka_unit_test(every_status_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
