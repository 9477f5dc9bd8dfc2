/* The captured scenes of test/vectors, split into what went in and what came out. A golden test builds
 * from the inputs and compares with the captured output. Inputs are the request, the shapes and the
 * pools; names, addresses and keys are inputs too, because nothing determines them. */
#ifndef KVF_TEST_SUPPORT_SCENE_H
#define KVF_TEST_SUPPORT_SCENE_H

#include "wire/metadata.h"

#include <jansson.h>

#define TEST_SCENE_RANKS 4
#define TEST_SCENE_REGIONS 8
#define TEST_SCENE_PAGES 16

typedef struct test_regions {
    uint64_t bases[TEST_SCENE_REGIONS];
    uint64_t lengths[TEST_SCENE_REGIONS];
    size_t count;
} test_regions;

typedef struct test_rank {
    bool is_prefill;
    uint32_t tp_rank;
    uint32_t tp_size;
    test_regions buffers;
    test_regions aux;
    const char *agent_name;
    kvf_bytes captured_metadata; /* output */
    const json_t *events;        /* output */
} test_rank;

typedef struct test_scene {
    char name[64]; /* "0.4.7.post1/pair" */
    json_t *root;
    const kvf_profile *profile;
    uint64_t room;
    uint32_t pages[TEST_SCENE_PAGES]; /* destination */
    size_t page_count;
    uint32_t chunks;
    uint32_t aux_slots;
    test_rank ranks[TEST_SCENE_RANKS]; /* decode ranks, then prefill ranks */
    size_t rank_count;
} test_scene;

/* Calls `check` with every scene of every captured release. */
void test_scenes_each(void (*check)(const test_scene *scene));

/* The event of kind `what` after `previous` (NULL: the first) among a rank's, or NULL. */
const json_t *test_event_next(const test_rank *rank, const char *what, const json_t *previous);
const char *test_event_text(const json_t *event, const char *key);

/* A whole file, or hexadecimal text, as bytes for kvf_bytes_free(). */
kvf_bytes test_file(const char *path_below_vectors);
kvf_bytes test_from_hex(const char *hex);

/* The target prefill ranks of a decode rank: [first, first + count), the first is the real one. */
typedef struct test_targets {
    uint32_t first;
    uint32_t count;
    uint32_t required; /* decode ranks that report to each */
} test_targets;
test_targets test_targets_of(const test_scene *scene, const test_rank *decode);

/* The prefill rank's port. Opaque; taken from where decode connected to, not from what prefill sent. */
uint16_t test_port_of(const test_scene *scene, const test_rank *prefill);

/* The rank's metadata as an input to the encoder: regions from the pool, worker address and keys
 * picked out of the captured bytes. Free `descriptors`. */
kvf_metadata test_metadata_of(const test_rank *rank);

/* Fails the test unless both are the same bytes. */
void test_assert_bytes(const test_scene *scene, const char *what, kvf_slice built,
                       kvf_slice captured);

#endif
