#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "bootstrap/registry.h"

static kvf_route_registration make(uint32_t rank, uint32_t tp_size, uint32_t dp_size, uint16_t port)
{
    kvf_route_registration registration = {.rank_port = port,
                                           .tp_size = tp_size,
                                           .dp_size = dp_size,
                                           .engine_rank = rank,
                                           .is_prefill = true};
    (void)snprintf(registration.rank_ip, sizeof registration.rank_ip, "10.0.0.%u", rank % 250);
    return registration;
}

static kvf_status put(kvf_registry *registry, uint32_t rank, uint32_t tp_size, uint32_t dp_size,
                      uint16_t port)
{
    kvf_route_registration registration = make(rank, tp_size, dp_size, port);
    kvf_error error;
    return kvf_registry_put(registry, &registration, &error);
}

static void test_empty(void **state)
{
    (void)state;
    kvf_registry *registry = kvf_registry_new(4);
    kvf_route_topology topology;
    kvf_route_rank rank;
    kvf_registry_topology(registry, &topology);
    assert_false(topology.known);
    assert_false(kvf_registry_rank(registry, 0, 0, &rank));
    assert_false(kvf_registry_rank(registry, -1, -1, &rank));
    kvf_registry_free(registry);
    kvf_registry_free(NULL);
}

/* The table's two indices are what Python's // and % make of the global rank. */
static void test_placement(void **state)
{
    (void)state;
    kvf_registry *registry = kvf_registry_new(8);
    for (uint32_t rank = 0; rank < 8; rank++)
        assert_int_equal(put(registry, rank, 8, 2, (uint16_t)(1000 + rank)), KVF_OK);
    for (uint32_t rank = 0; rank < 8; rank++) {
        kvf_route_rank found;
        assert_true(kvf_registry_rank(registry, rank / 4, rank % 4, &found));
        assert_int_equal(found.rank_port, 1000 + rank);
    }
    kvf_route_rank found;
    assert_false(kvf_registry_rank(registry, 2, 0, &found));
    assert_false(kvf_registry_rank(registry, 0, 4, &found));
    assert_false(kvf_registry_rank(registry, -1, 1, &found));
    assert_false(kvf_registry_rank(registry, 1, -1, &found));
    assert_false(kvf_registry_rank(registry, INT64_MAX, INT64_MAX, &found));
    assert_false(kvf_registry_rank(registry, INT64_MIN, 0, &found));
    kvf_registry_free(registry);
}

static void test_replace(void **state)
{
    (void)state;
    kvf_registry *registry = kvf_registry_new(1);
    assert_int_equal(put(registry, 0, 2, 1, 7), KVF_OK);
    kvf_route_registration again = make(0, 2, 1, 8);
    again.extended = true;
    (void)snprintf(again.rank_ip, sizeof again.rank_ip, "::1");
    assert_int_equal(kvf_registry_put(registry, &again, NULL), KVF_OK);
    kvf_route_rank found;
    assert_true(kvf_registry_rank(registry, 0, 0, &found));
    assert_string_equal(found.rank_ip, "::1");
    assert_int_equal(found.rank_port, 8);
    assert_true(found.extended);
    kvf_registry_free(registry);
}

static void test_refusals_change_nothing(void **state)
{
    (void)state;
    kvf_registry *registry = kvf_registry_new(1);
    kvf_route_topology topology;
    assert_int_equal(put(registry, 0, 0, 1, 7), KVF_INVALID_ARGUMENT);
    assert_int_equal(put(registry, 0, 1, 0, 7), KVF_INVALID_ARGUMENT);
    assert_int_equal(put(registry, 0, 3, 2, 7), KVF_INVALID_ARGUMENT);
    assert_int_equal(put(registry, 2, 2, 1, 7), KVF_INVALID_ARGUMENT);
    kvf_registry_topology(registry, &topology);
    assert_false(topology.known);
    assert_int_equal(put(registry, 0, 2, 1, 7), KVF_OK);
    assert_int_equal(put(registry, 0, 4, 1, 8), KVF_MISMATCH);
    assert_int_equal(put(registry, 0, 2, 2, 8), KVF_MISMATCH);
    assert_int_equal(put(registry, 1, 2, 1, 8), KVF_LIMIT);
    kvf_registry_topology(registry, &topology);
    assert_true(topology.known);
    assert_int_equal(topology.tp_size, 2);
    assert_int_equal(topology.dp_size, 1);
    kvf_route_rank found;
    assert_true(kvf_registry_rank(registry, 0, 0, &found));
    assert_int_equal(found.rank_port, 7);
    assert_false(kvf_registry_rank(registry, 0, 1, &found));
    kvf_registry_free(registry);
}

static void test_limit_of_none(void **state)
{
    (void)state;
    kvf_registry *registry = kvf_registry_new(0);
    kvf_route_topology topology;
    assert_int_equal(put(registry, 0, 1, 1, 7), KVF_LIMIT);
    kvf_registry_topology(registry, &topology);
    assert_false(topology.known);
    kvf_registry_free(registry);
}

static void test_other_roles_are_ignored(void **state)
{
    (void)state;
    kvf_registry *registry = kvf_registry_new(1);
    kvf_route_registration decode = make(0, 4, 1, 7);
    decode.is_prefill = false;
    assert_int_equal(kvf_registry_put(registry, &decode, NULL), KVF_OK);
    kvf_route_topology topology;
    kvf_registry_topology(registry, &topology);
    assert_false(topology.known);
    kvf_registry_free(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),         cmocka_unit_test(test_placement),
        cmocka_unit_test(test_replace),       cmocka_unit_test(test_refusals_change_nothing),
        cmocka_unit_test(test_limit_of_none), cmocka_unit_test(test_other_roles_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
