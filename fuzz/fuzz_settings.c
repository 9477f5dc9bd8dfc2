/* Settings. Input: lines of name=value. What is taken must come out of the formatter as text that is taken
 * alike; what isn't must say why and change nothing. */
#include "base/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool truth)
{
    if (!truth)
        abort();
}

static void format(kvf_settings *settings, const char *name, char text[KVF_SETTING_TEXT_MAX])
{
    const char *value = kvf_settings_format(settings, name);
    (void)snprintf(text, KVF_SETTING_TEXT_MAX, "%s", value == NULL ? "" : value);
}

static void check(kvf_settings *settings, const char *name, const char *value)
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static kvf_settings settings;
    kvf_settings_defaults(&settings);
    char *text = malloc(size + 1);
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    for (char *line = text; line != NULL && *line != '\0';) {
        char *next = strchr(line, '\n');
        if (next != NULL)
            *next++ = '\0';
        char *equals = strchr(line, '=');
        if (equals != NULL) {
            *equals = '\0';
            check(&settings, line, equals + 1);
        }
        line = next;
    }
    free(text);
    return 0;
}
