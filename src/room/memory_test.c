/* The memory of room ids against a plain list. */
#include "room/memory.h"

#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The oracle: ids in the order they were added, the newest last. */
typedef struct list {
    uint64_t ids[512];
    size_t count;
} list;

static bool list_has(const list *one, uint64_t id)
{
    for (size_t i = 0; i < one->count; i++)
        if (one->ids[i] == id)
            return true;
    return false;
}

static void list_add(list *one, uint64_t id, size_t limit)
{
    if (limit == 0 || list_has(one, id))
        return;
    if (one->count == limit)
        memmove(one->ids, one->ids + 1, --one->count * sizeof one->ids[0]);
    one->ids[one->count++] = id;
}

static void run(test_random *random, uint32_t limit, uint64_t ids)
{
    static list oracle;
    kvf_room_memory memory;
    oracle.count = 0;
    kvf_room_memory_init(&memory, limit);
    for (int i = 0; i < 2000; i++) {
        /* Ids with the same low or high half, as a router may choose them. */
        uint64_t id = test_random_below(random, ids) << (test_random_below(random, 2) * 32);
        assert_int_equal(kvf_room_memory_has(&memory, id), list_has(&oracle, id));
        if (test_random_below(random, 2) == 0) {
            assert_true(kvf_room_memory_add(&memory, id));
            list_add(&oracle, id, limit);
            assert_int_equal(kvf_room_memory_has(&memory, id), limit > 0);
        }
    }
    for (uint64_t id = 0; id < ids; id++)
        assert_int_equal(kvf_room_memory_has(&memory, id), list_has(&oracle, id));
    kvf_room_memory_free(&memory);
}

static void agrees_with_a_list(void **state)
{
    (void)state;
    static const uint32_t limits[] = {0, 1, 2, 63, 64, 65, 200, 512};
    test_random random = test_random_start();
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        for (uint64_t ids = 1; ids <= 1000; ids *= 10)
            run(&random, limits[i], ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_with_a_list)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
