/* What a room and a peer cost. A struct that grows past its bound is a decision, made here and in docs. The room's
 * error text alone is KVF_ERROR_TEXT_MAX bytes; chunks, pages and the table's share come on top, by size. */
#include "manager/agent.h"
#include "manager/rank.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* docs/memory.md has one row for the struct, with the same bound. */
static void check_document(const char *name, size_t bound)
{
    char line[512];
    char row[64];
    unsigned rows = 0;
    FILE *file = fopen(KVF_TEST_VECTORS "/../../docs/memory.md", "r");
    assert_non_null(file);
    size_t length = (size_t)snprintf(row, sizeof row, "| `%s` | ", name);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, row, length) != 0)
            continue;
        rows++;
        if (strtoul(line + length, NULL, 10) != bound)
            fail_msg("docs/memory.md gives another bound of %s", name);
    }
    (void)fclose(file);
    if (rows != 1)
        fail_msg("docs/memory.md has %u rows for %s", rows, name);
}

static void structs_stay_within_their_bounds(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t size;
        size_t bound;
        bool is_part; /* of a kvf_sender or kvf_receiver, whose rows count it */
    } structs[] = {
        {"kvf_room", sizeof(kvf_room), 288, true},
        {"kvf_sender_machine", sizeof(kvf_sender_machine), 432, true},
        {"kvf_sender", sizeof(kvf_sender), 784, false},
        {"kvf_receiver_machine", sizeof(kvf_receiver_machine), 496, true},
        {"kvf_receiver", sizeof(kvf_receiver), 848, false},
        {"kvf_call", sizeof(kvf_call), 40, false},
        {"kvf_incoming", sizeof(kvf_incoming), 256, false},
        {"kvf_held", sizeof(kvf_held), 104, false},
        {"kvf_delivery", sizeof(kvf_delivery), 920, false},
        {"kvf_agent", sizeof(kvf_agent), 656, false},
        {"kvf_letter_kept", sizeof(kvf_letter_kept), 112, false},
        {"kvf_target", sizeof(kvf_target), 112, false},
        {"kvf_abort_owed", sizeof(kvf_abort_owed), 88, false},
        {"kvf_rank", sizeof(kvf_rank), 904, false},
        {"kvf_server", sizeof(kvf_server), 496, false},
    };
    for (size_t i = 0; i < sizeof structs / sizeof structs[0]; i++) {
        (void)printf("%-22s %4zu bytes, bound %4zu\n", structs[i].name, structs[i].size,
                     structs[i].bound);
        if (structs[i].size > structs[i].bound)
            fail_msg("%s has grown to %zu bytes", structs[i].name, structs[i].size);
        if (!structs[i].is_part)
            check_document(structs[i].name, structs[i].bound);
    }
}

/* Handed over between versions of the library: never another size in this SONAME. */
static void structs_of_the_interface_keep_their_sizes(void **state)
{
    (void)state;
    assert_int_equal(sizeof(kvf_event), 64);
    assert_int_equal(sizeof(kvf_buffer), 40);
    assert_int_equal(sizeof(kvf_layout), 64);
    assert_int_equal(sizeof(kvf_room_options), 32);
    assert_int_equal(sizeof(kvf_statistics), 8 + 19 * 8);
    assert_int_equal(sizeof(kvf_setting), 48);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(structs_stay_within_their_bounds),
        cmocka_unit_test(structs_of_the_interface_keep_their_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
