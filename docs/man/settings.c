/* Prints the settings table as the list of kvferry(1)'s section ENVIRONMENT, in mdoc. */
#include <ctype.h>
#include <kvferry/kvferry.h>
#include <stdio.h>

static void print_escaped(const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stdout);
    for (; *text != '\0'; text++) {
        if (*text == '\\')
            fputs("\\e", stdout);
        else
            putchar(*text);
    }
}

/* A description is a short sentence; mdoc wants lines below 80 bytes. */
static void print_filled(const char *text)
{
    size_t column = 0;
    for (; *text != '\0'; text++) {
        if (*text == ' ' && column > 60) {
            putchar('\n');
            column = 0;
            continue;
        }
        if (*text == '\\')
            fputs("\\e", stdout);
        else
            putchar(*text);
        column++;
    }
    fputs(".\n", stdout);
}

int main(void)
{
    kvf_setting row = {.size = sizeof row};

    puts(".Bl -tag -width Ds");
    for (size_t index = 0; kvf_settings_describe(index, &row) == KVF_OK; index++) {
        fputs(".It Ev KVFERRY_", stdout);
        for (const char *letter = row.name; *letter != '\0'; letter++)
            putchar(toupper((unsigned char)*letter));
        printf(" Pq %s", row.type);
        putchar('\n');
        print_filled(row.help);
        if (row.range[0] != '\0') {
            fputs("Range: ", stdout);
            print_escaped(row.range);
            puts(".");
        }
        if (row.default_value[0] != '\0') {
            fputs("Default: ", stdout);
            print_escaped(row.default_value);
            puts(".");
        }
    }
    puts(".El");
    return 0;
}
