/* Codec of the HTTP bodies of /route, spaced as Python's json module spaces them. */
#ifndef KVF_WIRE_ROUTE_H
#define KVF_WIRE_ROUTE_H

#include "base/error.h"
#include "base/text.h"

/* What a prefill rank registers. */
typedef struct kvf_route_registration {
    char rank_ip[KVF_HOST_MAX];
    uint16_t rank_port;
    uint32_t tp_size; /* all dp groups together */
    uint32_t dp_size;
    uint32_t engine_rank; /* global */
    bool is_prefill;      /* role was "Prefill"; others are accepted and ignored, as stock does */
    bool extended;        /* our extra key was there: the rank is kvferry */
} kvf_route_registration;

/* Where a rank can be reached. */
typedef struct kvf_route_rank {
    char rank_ip[KVF_HOST_MAX];
    uint16_t rank_port;
    bool extended;
} kvf_route_rank;

/* The prefill side's sizes; not known before the first registration. */
typedef struct kvf_route_topology {
    bool known;
    uint32_t tp_size;
    uint32_t dp_size;
} kvf_route_topology;

/* Encoders append to `bytes`; check bytes->failed. */
void kvf_route_registration_encode(const kvf_route_registration *registration, kvf_bytes *bytes);
void kvf_route_rank_encode(const kvf_route_rank *rank, kvf_bytes *bytes);
void kvf_route_topology_encode(const kvf_route_topology *topology, kvf_bytes *bytes);

/* Decoders: KVF_PROTOCOL with a text that names the key. Numbers may come as JSON integers, rank_port
 * and engine_rank also as decimal text (stock casts them with int()). Sizes must be 1 to 65536, dp_size
 * must divide tp_size, engine_rank must be below tp_size. Unknown keys are ignored. */
kvf_status kvf_route_registration_decode(kvf_slice body, kvf_route_registration *registration,
                                         kvf_error *error);
kvf_status kvf_route_rank_decode(kvf_slice body, kvf_route_rank *rank, kvf_error *error);
kvf_status kvf_route_topology_decode(kvf_slice body, kvf_route_topology *topology,
                                     kvf_error *error);

/* Python's int() of a query value: surrounding spaces, one sign, single underscores between digits. */
bool kvf_route_integer(kvf_slice text, int64_t *value);

#endif
