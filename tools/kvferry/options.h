/* One table of options per command; it drives the parser and --help. */
#ifndef KVFERRY_TOOL_OPTIONS_H
#define KVFERRY_TOOL_OPTIONS_H

#include "message.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum option_kind {
    OPTION_FLAG,  /* bool */
    OPTION_COUNT, /* uint64_t */
    OPTION_BYTES, /* uint64_t; takes K, M, G (powers of 1024) */
    OPTION_TEXT,  /* const char * */
    OPTION_LIST   /* option_list; may be given again and again */
} option_kind;

enum { OPTION_LIST_MAX = 128 };

typedef struct option_list {
    const char *items[OPTION_LIST_MAX];
    size_t count;
} option_list;

typedef struct option_row {
    const char *name;     /* without the dashes */
    const char *argument; /* what --help calls its value; NULL for a flag */
    option_kind kind;
    size_t offset; /* of its field in the structure the parser fills */
    uint64_t minimum;
    uint64_t maximum;
    const char *help;
} option_row;

typedef struct option_table {
    const char *command;
    const char *summary;     /* one line, no full stop */
    const char *description; /* paragraphs of --help after the options; may be NULL */
    const option_row *rows;
    size_t row_count;
} option_table;

typedef enum option_result { OPTIONS_PARSED, OPTIONS_HELP, OPTIONS_WRONG } option_result;

/* Reads the arguments after the command's name into `target`, which holds the defaults. Takes
 * "--name value" and "--name=value", and '_' for '-'. */
option_result options_parse(const option_table *table, int count, char **arguments, void *target,
                            message *why);

void options_print_help(const option_table *table, FILE *stream);

/* The whole start of a command: prints help or the mistake. False: end now with *exit_code. */
bool options_begin(const option_table *table, int count, char **arguments, void *target,
                   int *exit_code);

/* "64K" with `kind` OPTION_BYTES, "64" with OPTION_COUNT. False for anything else. */
bool options_number(option_kind kind, const char *text, uint64_t *number);

#endif
