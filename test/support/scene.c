#include "support/scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- files and JSON ---- */

kvf_bytes test_file(const char *path_below_vectors)
{
    char path[512], block[4096];
    (void)snprintf(path, sizeof path, KVF_TEST_VECTORS "/%s", path_below_vectors);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("can't open %s", path);
    kvf_bytes bytes = {0};
    for (size_t count; (count = fread(block, 1, sizeof block, file)) > 0;)
        kvf_bytes_append(&bytes, block, count);
    (void)fclose(file);
    assert_false(bytes.failed);
    return bytes;
}

kvf_bytes test_from_hex(const char *hex)
{
    kvf_bytes bytes = {0};
    assert_int_equal(strlen(hex) % 2, 0);
    for (; *hex != '\0'; hex += 2) {
        char pair[3] = {hex[0], hex[1], '\0'};
        char *end;
        uint8_t byte = (uint8_t)strtoul(pair, &end, 16);
        assert_ptr_equal(end, pair + 2);
        kvf_bytes_append(&bytes, &byte, 1);
    }
    return bytes;
}

static const json_t *get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("the scene has no %s where one is needed", key);
    return value;
}

static uint64_t get_number(const json_t *object, const char *key)
{
    const json_t *value = get(object, key);
    assert_true(json_is_integer(value) && json_integer_value(value) >= 0);
    return (uint64_t)json_integer_value(value);
}

static size_t get_numbers(const json_t *object, const char *key, uint64_t *numbers, size_t capacity)
{
    const json_t *array = get(object, key);
    size_t count = json_array_size(array);
    assert_true(count <= capacity);
    for (size_t i = 0; i < count; i++)
        numbers[i] = (uint64_t)json_integer_value(json_array_get(array, i));
    return count;
}

const char *test_event_text(const json_t *event, const char *key)
{
    const json_t *value = get(event, key);
    assert_true(json_is_string(value));
    return json_string_value(value);
}

const json_t *test_event_next(const test_rank *rank, const char *what, const json_t *previous)
{
    bool behind = previous == NULL;
    for (size_t i = 0; i < json_array_size(rank->events); i++) {
        const json_t *event = json_array_get(rank->events, i);
        if (behind && strcmp(test_event_text(event, "what"), what) == 0)
            return event;
        behind = behind || event == previous;
    }
    return NULL;
}

/* ---- loading ---- */

static void load_regions(const json_t *pool, const char *bases, const char *lengths,
                         test_regions *regions)
{
    regions->count = get_numbers(pool, bases, regions->bases, TEST_SCENE_REGIONS);
    assert_int_equal(get_numbers(pool, lengths, regions->lengths, TEST_SCENE_REGIONS),
                     regions->count);
}

/* False when the scene has no such rank. */
static bool load_rank(test_scene *scene, const char *side, uint32_t index)
{
    char key[32];
    (void)snprintf(key, sizeof key, "%s%u", side, (unsigned)index);
    const json_t *events = json_object_get(scene->root, key);
    if (events == NULL)
        return false;
    assert_true(scene->rank_count < TEST_SCENE_RANKS);
    test_rank *rank = &scene->ranks[scene->rank_count++];
    *rank = (test_rank){.is_prefill = side[0] == 'p', .events = events, .tp_size = 1};
    const json_t *shapes =
        json_object_get(get(scene->root, "ranks_and_shapes"), rank->is_prefill ? "p" : "d");
    if (shapes != NULL) { /* a scene of two ranks doesn't list them */
        const json_t *shape = json_array_get(shapes, index);
        rank->tp_rank = (uint32_t)get_number(shape, "tp_rank");
        rank->tp_size = (uint32_t)get_number(shape, "tp_size");
    }
    const json_t *pool = test_event_next(rank, "pool", NULL);
    const json_t *agent = test_event_next(rank, "agent", NULL);
    load_regions(pool, "kv_ptrs", "kv_lens", &rank->buffers);
    load_regions(pool, "aux_ptrs", "aux_lens", &rank->aux);
    rank->agent_name = test_event_text(agent, "name");
    rank->captured_metadata = test_from_hex(test_event_text(agent, "metadata_hex"));
    assert_int_equal(rank->captured_metadata.length, get_number(agent, "metadata_bytes"));
    return true;
}

static void load_request(test_scene *scene)
{
    const json_t *request = get(scene->root, "request");
    uint64_t pages[TEST_SCENE_PAGES];
    scene->room = get_number(request, "room");
    scene->chunks = (uint32_t)get_number(request, "chunks");
    scene->page_count = get_numbers(request, "dst", pages, TEST_SCENE_PAGES);
    for (size_t i = 0; i < scene->page_count; i++)
        scene->pages[i] = (uint32_t)pages[i];
    scene->aux_slots = (uint32_t)get_number(get(scene->root, "ranks_and_shapes"), "aux_slots");
}

static const kvf_profile *profile_of(const char *dialect)
{
    const kvf_profile *profile;
    for (size_t i = 0; (profile = kvf_profile_at(i)) != NULL; i++)
        if (strcmp(profile->name + strlen("sglang-"), dialect) == 0)
            return profile;
    fail_msg("no profile for %s", dialect);
    return NULL;
}

static void load(test_scene *scene, const char *dialect, const char *name)
{
    char path[128];
    *scene = (test_scene){.profile = profile_of(dialect)};
    (void)snprintf(scene->name, sizeof scene->name, "%s/%s", dialect, name);
    (void)snprintf(path, sizeof path, "%s.json", scene->name);
    kvf_bytes text = test_file(path);
    json_error_t error;
    scene->root = json_loadb((const char *)text.data, text.length, 0, &error);
    kvf_bytes_free(&text);
    if (scene->root == NULL)
        fail_msg("%s: %s", path, error.text);
    assert_string_equal(test_event_text(scene->root, "dialect"), dialect);
    load_request(scene);
    for (uint32_t i = 0; load_rank(scene, "decode", i);)
        i++;
    for (uint32_t i = 0; load_rank(scene, "prefill", i);)
        i++;
    assert_true(scene->rank_count >= 2);
}

void test_scenes_each(void (*check)(const test_scene *scene))
{
    static const char *const dialects[] = {"0.4.7", "0.4.7.post1"};
    static const char *const names[] = {"pair", "mla_p2_d1", "mla_p1_d2"};
    for (size_t dialect = 0; dialect < 2; dialect++)
        for (size_t name = 0; name < 3; name++) {
            test_scene scene;
            load(&scene, dialects[dialect], names[name]);
            check(&scene);
            for (size_t i = 0; i < scene.rank_count; i++)
                kvf_bytes_free(&scene.ranks[i].captured_metadata);
            json_decref(scene.root);
        }
}

/* ---- what follows from the inputs ---- */

static uint32_t tp_size_of(const test_scene *scene, bool prefill)
{
    for (size_t i = 0; i < scene->rank_count; i++)
        if (scene->ranks[i].is_prefill == prefill)
            return scene->ranks[i].tp_size;
    fail_msg("%s has one side only", scene->name);
    return 0;
}

test_targets test_targets_of(const test_scene *scene, const test_rank *decode)
{
    uint32_t prefill_size = tp_size_of(scene, true);
    if (decode->tp_size >= prefill_size) {
        uint32_t share = decode->tp_size / prefill_size;
        return (test_targets){decode->tp_rank / share, 1, share};
    }
    uint32_t share = prefill_size / decode->tp_size;
    return (test_targets){decode->tp_rank * share, share, 1};
}

uint16_t test_port_of(const test_scene *scene, const test_rank *prefill)
{
    for (size_t i = 0; i < scene->rank_count; i++) {
        const test_rank *rank = &scene->ranks[i];
        if (rank->is_prefill)
            continue;
        uint32_t target = test_targets_of(scene, rank).first;
        for (const json_t *event = NULL;
             (event = test_event_next(rank, "zmq transfer", event)) != NULL; target++)
            if (target == prefill->tp_rank)
                return (uint16_t)strtoul(strrchr(test_event_text(event, "to"), ':') + 1, NULL, 10);
    }
    fail_msg("%s: nobody connects to prefill rank %u", scene->name, (unsigned)prefill->tp_rank);
    return 0;
}

/* ---- opaque parts of captured metadata ---- */

/* Where `needle` lies in the blob; must be there once. */
static size_t find(kvf_slice blob, const void *needle, size_t length)
{
    const uint8_t *found = memmem(blob.data, blob.length, needle, length);
    assert_non_null(found);
    return (size_t)(found - blob.data);
}

static kvf_slice find_worker_address(kvf_slice blob)
{
    size_t at = find(blob, "UCX|c", 5) + 5;
    return (kvf_slice){blob.data + at + 8, kvf_read_u64(blob.data + at)};
}

static kvf_slice find_key(kvf_slice blob, uint64_t base, uint64_t length)
{
    uint8_t fixed[24] = {0}; /* device 0 */
    kvf_write_u64(fixed, base);
    kvf_write_u64(fixed + 8, length);
    size_t at = find(blob, fixed, sizeof fixed);
    return (kvf_slice){blob.data + at + 24, kvf_read_u64(blob.data + at - 8) - 24};
}

kvf_metadata test_metadata_of(const test_rank *rank)
{
    kvf_slice blob = kvf_bytes_slice(&rank->captured_metadata);
    const test_regions *both[] = {&rank->buffers, &rank->aux};
    const uint32_t kinds[] = {KVF_NIXL_VRAM, KVF_NIXL_DRAM};
    kvf_metadata metadata = {.agent_name = kvf_slice_of(rank->agent_name),
                             .worker_address = find_worker_address(blob)};
    metadata.descriptors =
        calloc(rank->buffers.count + rank->aux.count, sizeof *metadata.descriptors);
    assert_non_null(metadata.descriptors);
    for (size_t side = 0; side < 2; side++)
        for (size_t i = 0; i < both[side]->count; i++)
            metadata.descriptors[metadata.descriptor_count++] = (kvf_descriptor){
                .base = both[side]->bases[i],
                .length = both[side]->lengths[i],
                .kind = kinds[side],
                .key = find_key(blob, both[side]->bases[i], both[side]->lengths[i])};
    return metadata;
}

void test_assert_bytes(const test_scene *scene, const char *what, kvf_slice built,
                       kvf_slice captured)
{
    size_t same = 0;
    while (same < built.length && same < captured.length && built.data[same] == captured.data[same])
        same++;
    if (same != built.length || same != captured.length)
        fail_msg("%s: %s differs at byte %zu (%zu bytes built, %zu captured)", scene->name, what,
                 same, built.length, captured.length);
}
