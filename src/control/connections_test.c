/* The table against the truth: a pretended ZeroMQ knows which connection each message belongs to, while the
 * table hears of it only what ZeroMQ tells. */
#include "control/connections.h"

#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DESCRIPTORS = 4, CONNECTIONS = 400, STEPS = 4000, MESSAGES = 64 };

typedef struct truth {
    uint32_t descriptor;
    bool open, asked, admitted, gone;
    uint64_t key, number;
    size_t queued;
} truth;

typedef struct event {
    bool accepted;
    uint32_t descriptor;
} event;

typedef struct network {
    kvf_connections table;
    truth connections[CONNECTIONS];
    size_t connection_count;
    truth *holder[DESCRIPTORS];
    event events[4 * CONNECTIONS];
    size_t event_count, events_read;
    size_t delivered, reported;
} network;

static void io_accept(network *world, uint32_t descriptor)
{
    if (world->holder[descriptor] != NULL || world->connection_count == CONNECTIONS)
        return;
    truth *connection = &world->connections[world->connection_count++];
    *connection = (truth){.descriptor = descriptor, .open = true};
    world->holder[descriptor] = connection;
    world->events[world->event_count++] = (event){true, descriptor};
    connection->asked = true;
}

static void io_disconnect(network *world, uint32_t descriptor)
{
    if (world->holder[descriptor] == NULL)
        return;
    world->holder[descriptor]->open = false;
    world->holder[descriptor] = NULL;
    world->events[world->event_count++] = (event){false, descriptor};
}

static void io_message(network *world, uint32_t descriptor)
{
    truth *connection = world->holder[descriptor];
    if (connection != NULL && connection->admitted && connection->queued < MESSAGES)
        connection->queued++;
}

static void io_step(network *world, test_random *random)
{
    uint32_t descriptor = (uint32_t)test_random_below(random, DESCRIPTORS);
    switch (test_random_below(random, 6)) {
    case 0:
    case 1:
        io_accept(world, descriptor);
        break;
    case 2:
        io_disconnect(world, descriptor);
        break;
    default:
        io_message(world, descriptor);
    }
}

static void read_events(network *world)
{
    for (; world->events_read < world->event_count; world->events_read++) {
        event each = world->events[world->events_read];
        if (each.accepted)
            kvf_connections_accepted(&world->table, each.descriptor);
        else
            kvf_connections_disconnected(&world->table, each.descriptor);
    }
}

static void admit(network *world, truth *connection)
{
    read_events(world);
    connection->asked = false;
    connection->key = kvf_connections_key(&world->table);
    /* The answer to a connection that has died meanwhile goes nowhere. */
    connection->admitted = connection->open;
}

static void deliver(network *world, truth *connection)
{
    connection->queued--;
    read_events(world);
    uint64_t number =
        kvf_connections_number(&world->table, connection->descriptor, connection->key);
    assert_int_not_equal(number, 0);
    assert_false(connection->gone);
    if (connection->number == 0) {
        for (size_t i = 0; i < world->connection_count; i++)
            assert_int_not_equal(world->connections[i].number, number);
        connection->number = number;
    }
    assert_int_equal(number, connection->number);
    world->delivered++;
}

static void report_gone(network *world)
{
    uint64_t number = 0;
    while (kvf_connections_take_settled(&world->table, &number)) {
        truth *connection = NULL;
        for (size_t i = 0; i < world->connection_count; i++)
            if (world->connections[i].number == number)
                connection = &world->connections[i];
        assert_non_null(connection);
        assert_false(connection->open);
        assert_false(connection->gone);
        assert_int_equal(connection->queued, 0);
        connection->gone = true;
        world->reported++;
    }
}

/* One round of process(): one question or message, or else what is gone. */
static void loop_step(network *world, test_random *random)
{
    kvf_connections_settle(&world->table);
    size_t start = test_random_below(random, CONNECTIONS);
    for (size_t i = 0; i < world->connection_count; i++) {
        truth *connection = &world->connections[(start + i) % world->connection_count];
        if (connection->asked) {
            admit(world, connection);
            return;
        }
        if (connection->queued > 0) {
            deliver(world, connection);
            return;
        }
    }
    read_events(world);
    report_gone(world);
}

static void test_against_truth(void **state)
{
    (void)state;
    test_random random = test_random_start();
    for (int run = 0; run < 50; run++) {
        network *world = calloc(1, sizeof *world);
        assert_non_null(world);
        for (int i = 0; i < STEPS; i++) {
            if (test_random_below(&random, 2) == 0)
                io_step(world, &random);
            else
                loop_step(world, &random);
        }
        for (uint32_t i = 0; i < DESCRIPTORS; i++)
            io_disconnect(world, i);
        for (int i = 0; i < STEPS * 4; i++)
            loop_step(world, &random);
        size_t spoke = 0;
        for (size_t i = 0; i < world->connection_count; i++)
            spoke += world->connections[i].number != 0;
        assert_int_equal(world->reported, spoke);
        assert_true(spoke > 10);
        kvf_connections_free(&world->table);
        free(world);
    }
}

static void test_late_message_gets_a_number_that_ends(void **state)
{
    (void)state;
    kvf_connections table = {0};
    kvf_connections_accepted(&table, 7);
    uint64_t key = kvf_connections_key(&table);
    uint64_t first = kvf_connections_number(&table, 7, key);
    kvf_connections_disconnected(&table, 7);
    kvf_connections_settle(&table);
    uint64_t number = 0;
    assert_true(kvf_connections_take_settled(&table, &number));
    assert_int_equal(number, first);

    kvf_connections_accepted(&table, 7);
    uint64_t late = kvf_connections_number(&table, 7, key);
    uint64_t second = kvf_connections_number(&table, 7, kvf_connections_key(&table));
    assert_true(late != first && late != second && second != first);
    assert_int_equal(kvf_connections_number(&table, 7, key), late);
    assert_true(kvf_connections_unsettled(&table));
    kvf_connections_settle(&table);
    assert_true(kvf_connections_take_settled(&table, &number));
    assert_int_equal(number, late);
    assert_false(kvf_connections_take_settled(&table, &number));
    kvf_connections_free(&table);
}

static void test_silent_connections_are_not_reported(void **state)
{
    (void)state;
    kvf_connections table = {0};
    for (uint32_t i = 0; i < 1000; i++) {
        kvf_connections_accepted(&table, i);
        (void)kvf_connections_key(&table);
        kvf_connections_disconnected(&table, i);
    }
    assert_false(kvf_connections_unsettled(&table));
    kvf_connections_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_truth),
        cmocka_unit_test(test_late_message_gets_a_number_that_ends),
        cmocka_unit_test(test_silent_connections_are_not_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
