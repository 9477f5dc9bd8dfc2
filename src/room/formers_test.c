/* Ids kept for peers that are gone: given back once, to that name, and not without end. */
#include "room/formers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static kvf_room_memory ids(uint64_t first, uint32_t count)
{
    kvf_room_memory memory;
    kvf_room_memory_init(&memory, 8);
    for (uint32_t i = 0; i < count; i++)
        assert_true(kvf_room_memory_add(&memory, first + i));
    return memory;
}

static void ids_come_back_to_their_name_once(void **state)
{
    (void)state;
    kvf_formers formers = {0};
    kvf_room_memory one = ids(10, 2);
    kvf_room_memory other = ids(20, 2);
    kvf_formers_keep(&formers, "one", &one);
    kvf_formers_keep(&formers, "other", &other);
    assert_int_equal(one.count, 0);
    kvf_formers_recall(&formers, "nobody", &one);
    assert_int_equal(one.count, 0);
    kvf_formers_recall(&formers, "one", &one);
    assert_true(kvf_room_memory_has(&one, 11));
    assert_false(kvf_room_memory_has(&one, 20));
    assert_true(kvf_room_memory_add(&one, 12)); /* its limit came back with it */
    kvf_formers_recall(&formers, "one", &other);
    assert_int_equal(other.count, 0);
    kvf_room_memory_free(&one);
    kvf_formers_free(&formers);
}

static void the_latest_ids_of_a_name_count(void **state)
{
    (void)state;
    kvf_formers formers = {0};
    kvf_room_memory memory = ids(10, 2);
    kvf_formers_keep(&formers, "one", &memory);
    memory = ids(30, 1);
    kvf_formers_keep(&formers, "one", &memory);
    assert_int_equal(formers.count, 1);
    memory = ids(40, 1); /* replaced */
    kvf_formers_recall(&formers, "one", &memory);
    assert_true(kvf_room_memory_has(&memory, 30));
    assert_false(kvf_room_memory_has(&memory, 10));
    assert_false(kvf_room_memory_has(&memory, 40));
    kvf_room_memory_free(&memory);
    kvf_formers_keep(&formers, "one", &memory); /* none: nobody needs to be remembered */
    assert_int_equal(formers.count, 0);
    kvf_formers_free(&formers);
}

static void the_oldest_are_forgotten(void **state)
{
    (void)state;
    kvf_formers formers = {0};
    kvf_room_memory memory;
    char name[16];
    for (uint32_t i = 0; i < KVF_FORMERS_MAX + 2; i++) {
        memory = ids(100 + i, 1);
        (void)snprintf(name, sizeof name, "peer %u", i);
        kvf_formers_keep(&formers, name, &memory);
    }
    assert_int_equal(formers.count, KVF_FORMERS_MAX);
    kvf_formers_recall(&formers, "peer 1", &memory);
    assert_int_equal(memory.count, 0);
    kvf_formers_recall(&formers, "peer 2", &memory);
    assert_true(kvf_room_memory_has(&memory, 102));
    kvf_room_memory_free(&memory);
    kvf_formers_free(&formers);
}

/* Beside ids, which peers without epochs have. */
static void epochs_come_back_to_their_name_once(void **state)
{
    (void)state;
    kvf_formers formers = {0};
    kvf_room_memory memory = ids(10, 1);
    uint64_t highest = 0;
    uint64_t unflushed = 0;
    kvf_formers_keep(&formers, "with ids", &memory);
    kvf_formers_keep_epochs(&formers, "with epochs", 7, 5);
    kvf_formers_keep_epochs(&formers, "with none", 0, 0);
    assert_int_equal(formers.count, 2);
    memory = ids(20, 1);
    kvf_formers_recall(&formers, "with epochs", &memory); /* no ids: those it has stay */
    assert_true(kvf_room_memory_has(&memory, 20));
    kvf_formers_recall_epochs(&formers, "with epochs", &highest, &unflushed);
    assert_int_equal(highest, 7);
    assert_int_equal(unflushed, 5);
    kvf_formers_recall_epochs(&formers, "with epochs", &highest, &unflushed);
    assert_int_equal(highest, 7);
    assert_int_equal(formers.count, 1);
    kvf_room_memory_free(&memory);
    kvf_formers_free(&formers);
}

/* Who has both has each by itself. */
static void ids_and_epochs_do_not_meet(void **state)
{
    (void)state;
    kvf_formers formers = {0};
    kvf_room_memory memory = ids(10, 1);
    uint64_t highest = 0;
    uint64_t unflushed = 0;
    kvf_formers_keep(&formers, "one", &memory);
    kvf_formers_recall_epochs(&formers, "one", &highest, &unflushed);
    assert_int_equal(formers.count, 1);
    kvf_formers_keep_epochs(&formers, "one", 7, 5);
    assert_int_equal(formers.count, 1);
    kvf_formers_recall(&formers, "one", &memory);
    assert_true(kvf_room_memory_has(&memory, 10));
    kvf_formers_recall_epochs(&formers, "one", &highest, &unflushed);
    assert_int_equal(highest, 7);
    assert_int_equal(formers.count, 0);
    kvf_room_memory_free(&memory);
    kvf_formers_free(&formers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_come_back_to_their_name_once),
        cmocka_unit_test(the_latest_ids_of_a_name_count),
        cmocka_unit_test(the_oldest_are_forgotten),
        cmocka_unit_test(epochs_come_back_to_their_name_once),
        cmocka_unit_test(ids_and_epochs_do_not_meet),
    };
    return cmocka_run_group_tests_name("room/formers", tests, NULL, NULL);
}
