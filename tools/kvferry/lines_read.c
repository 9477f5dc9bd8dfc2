#include "lines.h"

#include "nearest.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef bool (*key_reader)(const json_t *value, const char *key, tool_line *line, message *why);

enum { FOR_PREFILL = 1, FOR_DECODE = 2, FOR_BOTH = 3 };

typedef struct key_row {
    const char *key;
    unsigned roles;
    line_kind kind; /* the kind of line the key makes; 0: it belongs to a room's line */
    key_reader read;
} key_row;

static bool read_number(const json_t *value, const char *key, uint64_t maximum, uint64_t *number,
                        message *why)
{
    json_int_t given = json_is_integer(value) ? json_integer_value(value) : -1;
    if (given < 0 || (uint64_t)given > maximum)
        return message_set(why, "\"%s\" is not a whole number from 0 to %llu", key,
                           (unsigned long long)maximum);
    *number = (uint64_t)given;
    return true;
}

static bool read_room(const json_t *value, const char *key, tool_line *line, message *why)
{
    line->room_known = read_number(value, key, INT64_MAX, &line->room, why);
    return line->room_known;
}

static bool read_true(const json_t *value, const char *key, tool_line *line, message *why)
{
    (void)line;
    return json_is_true(value) || message_set(why, "\"%s\" can only be true", key);
}

static bool allocate(number_list *list, size_t count, message *why)
{
    free(list->numbers);
    list->count = count;
    list->numbers = calloc(count == 0 ? 1 : count, sizeof *list->numbers);
    return list->numbers != NULL || message_set(why, "no memory for %zu numbers", count);
}

/* {"range":[first,count]} */
static bool read_range(const json_t *value, const char *key, number_list *list, message *why)
{
    const json_t *range = json_object_get(value, "range");
    uint64_t first = 0;
    uint64_t count = 0;
    if (json_object_size(value) != 1 || json_array_size(range) != 2)
        return message_set(why, "\"%s\" is neither a list nor {\"range\":[first,count]}", key);
    if (!read_number(json_array_get(range, 0), key, UINT32_MAX, &first, why) ||
        !read_number(json_array_get(range, 1), key, UINT32_MAX - first, &count, why) ||
        !allocate(list, (size_t)count, why))
        return false;
    for (size_t i = 0; i < list->count; i++)
        list->numbers[i] = (uint32_t)(first + i);
    return true;
}

static bool read_array(const json_t *value, const char *key, number_list *list, message *why)
{
    if (!allocate(list, json_array_size(value), why))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        uint64_t number = 0;
        if (!read_number(json_array_get(value, i), key, UINT32_MAX, &number, why))
            return false;
        list->numbers[i] = (uint32_t)number;
    }
    return true;
}

static bool read_list(const json_t *value, const char *key, number_list *list, message *why)
{
    if (json_is_object(value))
        return read_range(value, key, list, why);
    if (json_is_array(value))
        return read_array(value, key, list, why);
    return message_set(why, "\"%s\" is neither a list nor {\"range\":[first,count]}", key);
}

static bool read_pages(const json_t *value, const char *key, tool_line *line, message *why)
{
    return read_list(value, key, &line->pages, why);
}

static bool read_source_pages(const json_t *value, const char *key, tool_line *line, message *why)
{
    return read_list(value, key, &line->source_pages, why);
}

static bool read_chunks(const json_t *value, const char *key, tool_line *line, message *why)
{
    return read_list(value, key, &line->chunks, why);
}

static bool read_aux_slot(const json_t *value, const char *key, tool_line *line, message *why)
{
    return read_number(value, key, UINT32_MAX, &line->aux_slot, why);
}

static bool read_source_slot(const json_t *value, const char *key, tool_line *line, message *why)
{
    return read_number(value, key, UINT32_MAX, &line->source_aux_slot, why);
}

static bool read_source_seed(const json_t *value, const char *key, tool_line *line, message *why)
{
    return read_number(value, key, INT64_MAX, &line->source_seed, why);
}

static bool read_dp_rank(const json_t *value, const char *key, tool_line *line, message *why)
{
    uint64_t rank = 0;
    if (!read_number(value, key, UINT32_MAX, &rank, why))
        return false;
    line->dp_rank = (int64_t)rank;
    return true;
}

static bool read_address(const json_t *value, const char *key, tool_line *line, message *why)
{
    if (!json_is_string(value))
        return message_set(why, "\"%s\" is not a text", key);
    line->address = strdup(json_string_value(value));
    return line->address != NULL || message_set(why, "no memory");
}

static const key_row keys[] = {{"room", FOR_BOTH, LINE_ROOM, read_room},
                               {"abort", FOR_BOTH, LINE_ABORT, read_room},
                               {"statistics", FOR_BOTH, LINE_STATISTICS, read_true},
                               {"poison", FOR_DECODE, LINE_POISON, read_true},
                               {"quit", FOR_BOTH, LINE_QUIT, read_true},
                               {"pages", FOR_BOTH, 0, read_pages},
                               {"aux_slot", FOR_BOTH, 0, read_aux_slot},
                               {"chunks", FOR_PREFILL, 0, read_chunks},
                               {"source_pages", FOR_DECODE, 0, read_source_pages},
                               {"source_aux_slot", FOR_DECODE, 0, read_source_slot},
                               {"source_seed", FOR_DECODE, 0, read_source_seed},
                               {"address", FOR_DECODE, 0, read_address},
                               {"dp_rank", FOR_DECODE, 0, read_dp_rank}};

static const key_row *find_key(const char *key, kvf_role role, message *why)
{
    unsigned mask = role == KVF_PREFILL ? FOR_PREFILL : FOR_DECODE;
    nearest search = nearest_to(key);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if ((keys[i].roles & mask) == 0)
            continue;
        if (strcmp(keys[i].key, key) == 0)
            return &keys[i];
        nearest_consider(&search, keys[i].key);
    }
    (void)message_set(why, "unknown key \"%.64s\"; nearest is \"%s\"", key, search.best);
    return NULL;
}

static bool read_keys(json_t *object, kvf_role role, tool_line *line, message *why)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        const key_row *row = find_key(key, role, why);
        if (row == NULL)
            return false;
        if (row->kind != 0)
            continue;
        if (line->kind != LINE_ROOM && line->kind != 0)
            return message_set(why, "\"%s\" belongs to a line with \"room\"", key);
        if (!row->read(value, key, line, why))
            return false;
    }
    return true;
}

/* The one key that says what the line is about; the room is read first, for error answers. */
static bool find_kind(json_t *object, kvf_role role, tool_line *line, message *why)
{
    const char *key;
    json_t *value;
    bool all_known = true;
    json_object_foreach(object, key, value)
    {
        const key_row *row = find_key(key, role, why);
        all_known = all_known && row != NULL;
        if (row == NULL || row->kind == 0)
            continue;
        if (line->kind != 0)
            return message_set(why, "\"%s\" on a line that is about something else already", key);
        line->kind = row->kind;
        if (!row->read(value, key, line, why))
            return false;
    }
    if (line->kind != 0)
        return true;
    if (!all_known)
        return read_keys(object, role, line, why); /* names the unknown one */
    return message_set(why, "the line names no \"room\", \"abort\", \"statistics\"%s or \"quit\"",
                       role == KVF_DECODE ? ", \"poison\"" : "");
}

static bool copy_list(const number_list *from, number_list *to, message *why)
{
    if (!allocate(to, from->count, why))
        return false;
    memcpy(to->numbers, from->numbers, from->count * sizeof *from->numbers);
    return true;
}

static bool check_chunks(tool_line *line, message *why)
{
    uint64_t sum = 0;
    if (line->chunks.numbers == NULL) {
        if (!allocate(&line->chunks, 1, why))
            return false;
        line->chunks.numbers[0] = (uint32_t)line->pages.count;
    }
    for (size_t i = 0; i < line->chunks.count; i++)
        sum += line->chunks.numbers[i];
    if (line->chunks.count > 0 && sum == line->pages.count)
        return true;
    return message_set(why, "\"chunks\" add up to %llu pages, but the room has %zu",
                       (unsigned long long)sum, line->pages.count);
}

/* Fills in what may be left out, and checks what must agree. */
static bool complete_room(tool_line *line, json_t *object, kvf_role role, message *why)
{
    if (line->pages.numbers == NULL)
        return message_set(why, "a room needs \"pages\"");
    if (role == KVF_PREFILL)
        return check_chunks(line, why);
    if (json_object_get(object, "source_aux_slot") == NULL)
        line->source_aux_slot = line->aux_slot;
    if (line->source_pages.numbers == NULL)
        return copy_list(&line->pages, &line->source_pages, why);
    if (line->source_pages.count == line->pages.count)
        return true;
    return message_set(why, "%zu \"source_pages\" for %zu \"pages\"", line->source_pages.count,
                       line->pages.count);
}

static bool parse_object(json_t *object, kvf_role role, tool_line *line, message *why)
{
    if (!json_is_object(object))
        return message_set(why, "not a JSON object");
    if (!find_kind(object, role, line, why) || !read_keys(object, role, line, why))
        return false;
    return line->kind != LINE_ROOM || complete_room(line, object, role, why);
}

bool line_parse(const char *text, size_t length, kvf_role role, uint64_t source_seed,
                tool_line *line, message *why)
{
    *line = (tool_line){.source_seed = source_seed, .dp_rank = -1};
    json_error_t error;
    json_t *object = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL)
        return message_set(why, "not JSON: %s (column %d)", error.text, error.column);
    bool fine = parse_object(object, role, line, why);
    json_decref(object);
    return fine;
}

void line_free(tool_line *line)
{
    free(line->pages.numbers);
    free(line->source_pages.numbers);
    free(line->chunks.numbers);
    free(line->address);
    *line = (tool_line){.kind = 0};
}
