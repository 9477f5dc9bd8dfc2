/* The HTTP bodies of /route, and the integers of its query. Whatever is taken is written and taken again. */
#include "wire/route.h"

#include "support.h"

#include <string.h>

static void check_registration(kvf_slice body, kvf_bytes *bytes)
{
    kvf_route_registration taken, again;
    kvf_error error = {0};
    if (kvf_route_registration_decode(body, &taken, &error) != KVF_OK) {
        require(fuzz_is_explained(&error, KVF_PROTOCOL));
        return;
    }
    require(taken.tp_size >= 1 && taken.dp_size >= 1 && taken.tp_size % taken.dp_size == 0 &&
            taken.engine_rank < taken.tp_size && taken.rank_port != 0 && taken.rank_ip[0] != '\0');
    kvf_bytes_clear(bytes);
    kvf_route_registration_encode(&taken, bytes);
    require(kvf_route_registration_decode(kvf_bytes_slice(bytes), &again, NULL) == KVF_OK);
    require(strcmp(again.rank_ip, taken.rank_ip) == 0 && again.rank_port == taken.rank_port &&
            again.tp_size == taken.tp_size && again.dp_size == taken.dp_size &&
            again.engine_rank == taken.engine_rank && again.is_prefill == taken.is_prefill &&
            again.extended == taken.extended);
}

static void check_rank(kvf_slice body, kvf_bytes *bytes)
{
    kvf_route_rank taken, again;
    kvf_error error = {0};
    if (kvf_route_rank_decode(body, &taken, &error) != KVF_OK) {
        require(fuzz_is_explained(&error, KVF_PROTOCOL));
        return;
    }
    kvf_bytes_clear(bytes);
    kvf_route_rank_encode(&taken, bytes);
    require(kvf_route_rank_decode(kvf_bytes_slice(bytes), &again, NULL) == KVF_OK);
    require(strcmp(again.rank_ip, taken.rank_ip) == 0 && again.rank_port == taken.rank_port &&
            again.extended == taken.extended);
}

static void check_topology(kvf_slice body, kvf_bytes *bytes)
{
    kvf_route_topology taken, again;
    kvf_error error = {0};
    if (kvf_route_topology_decode(body, &taken, &error) != KVF_OK) {
        require(fuzz_is_explained(&error, KVF_PROTOCOL));
        return;
    }
    kvf_bytes_clear(bytes);
    kvf_route_topology_encode(&taken, bytes);
    require(kvf_route_topology_decode(kvf_bytes_slice(bytes), &again, NULL) == KVF_OK);
    require(again.known == taken.known && again.tp_size == taken.tp_size &&
            again.dp_size == taken.dp_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvf_slice body = {data, size};
    kvf_bytes bytes = {0};
    int64_t value;
    check_registration(body, &bytes);
    check_rank(body, &bytes);
    check_topology(body, &bytes);
    (void)kvf_route_integer(body, &value);
    kvf_bytes_free(&bytes);
    return 0;
}
