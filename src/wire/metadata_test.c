/* Captured agent metadata rebuilt byte by byte; every lie a blob can tell; random and damaged ones. */
#include "wire/metadata.h"

#include "support/random.h"
#include "support/scene.h"
#include "wire/serdes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MANY 1024

/* One memory domain of two bytes, then what newer releases add. */
static const uint8_t sound_key[] = {4, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0xaa, 0xbb, 0xff};

static kvf_slice key_slice(void)
{
    return (kvf_slice){sound_key, sizeof sound_key};
}

/* ---- golden ---- */

static void compare_descriptors(const kvf_metadata *a, const kvf_metadata *b)
{
    assert_true(kvf_slice_equal(a->agent_name, b->agent_name));
    assert_true(kvf_slice_equal(a->worker_address, b->worker_address));
    assert_int_equal(a->descriptor_count, b->descriptor_count);
    for (size_t i = 0; i < a->descriptor_count; i++) {
        const kvf_descriptor *x = &a->descriptors[i];
        const kvf_descriptor *y = &b->descriptors[i];
        assert_true(x->base == y->base && x->length == y->length && x->device == y->device &&
                    x->kind == y->kind && kvf_slice_equal(x->key, y->key));
    }
}

static void check_rank(const test_scene *scene, const test_rank *rank)
{
    kvf_slice captured = kvf_bytes_slice(&rank->captured_metadata);
    kvf_metadata metadata = test_metadata_of(rank), decoded;
    kvf_bytes built = {0};
    kvf_error error = {0};
    assert_int_equal(kvf_metadata_encode(&metadata, scene->profile->flavour, &built, &error),
                     KVF_OK);
    test_assert_bytes(scene, "metadata", kvf_bytes_slice(&built), captured);
    if (kvf_metadata_decode(captured, MANY, &decoded, &error) != KVF_OK)
        fail_msg("%s", error.text);
    compare_descriptors(&metadata, &decoded);
    assert_int_equal(decoded.flavour, KVF_FLAVOUR_P031);
    assert_int_equal(kvf_worker_address_ucx_minor(decoded.worker_address), 3); /* UCX 1.19 */
    kvf_metadata_free(&decoded);
    if (strstr(scene->name, "/pair") != NULL && !rank->is_prefill) {
        char path[96];
        (void)snprintf(path, sizeof path, "%.*s/agent-metadata.bin",
                       (int)(strchr(scene->name, '/') - scene->name), scene->name);
        kvf_bytes file = test_file(path);
        test_assert_bytes(scene, path, kvf_bytes_slice(&built), kvf_bytes_slice(&file));
        kvf_bytes_free(&file);
    }
    kvf_bytes_free(&built);
    free(metadata.descriptors);
}

static void check_scene(const test_scene *scene)
{
    for (size_t i = 0; i < scene->rank_count; i++)
        check_rank(scene, &scene->ranks[i]);
}

static void captured_metadata_is_rebuilt(void **state)
{
    (void)state;
    test_scenes_each(check_scene);
}

/* What nixl-wire.md 2.5 names as its inputs. */
static kvf_bytes build_example(kvf_flavour flavour, kvf_slice key)
{
    kvf_descriptor descriptor = {
        .base = 0x7f0000001000, .length = 0x2000, .kind = KVF_NIXL_DRAM, .key = key};
    kvf_metadata metadata = {.agent_name = kvf_slice_of("decode-0"),
                             .worker_address = kvf_slice_of("\1\2\3\4"),
                             .descriptors = &descriptor,
                             .descriptor_count = 1};
    kvf_bytes built = {0};
    assert_int_equal(kvf_metadata_encode(&metadata, flavour, &built, NULL), KVF_OK);
    return built;
}

static void each_flavour_is_written_and_told_apart(void **state)
{
    (void)state;
    static const struct {
        kvf_flavour flavour, seen;
        const char *file;
    } cases[] = {{KVF_FLAVOUR_P031, KVF_FLAVOUR_P031, "nixl-metadata-p031.bin"},
                 {KVF_FLAVOUR_P051, KVF_FLAVOUR_P031, "nixl-metadata-p031.bin"},
                 {KVF_FLAVOUR_P060, KVF_FLAVOUR_P060, "nixl-metadata-p060.bin"}};
    for (size_t i = 0; i < 3; i++) {
        kvf_bytes golden = test_file(cases[i].file);
        kvf_bytes built = build_example(cases[i].flavour, kvf_slice_of("RKEY"));
        assert_int_equal(built.length, golden.length);
        assert_memory_equal(built.data, golden.data, golden.length);
        kvf_metadata decoded;
        kvf_error error;
        /* Its key is a placeholder that UCX would read past. */
        assert_int_equal(kvf_metadata_decode(kvf_bytes_slice(&golden), MANY, &decoded, &error),
                         KVF_PROTOCOL);
        assert_non_null(strstr(error.text, "key of 4 bytes"));
        kvf_bytes_free(&golden);
        kvf_bytes_free(&built);

        built = build_example(cases[i].flavour, key_slice());
        assert_int_equal(kvf_metadata_decode(kvf_bytes_slice(&built), MANY, &decoded, NULL),
                         KVF_OK);
        assert_int_equal(decoded.flavour, cases[i].seen);
        assert_int_equal(decoded.descriptor_count, 1);
        kvf_metadata_free(&decoded);
        kvf_bytes_free(&built);
    }
}

/* ---- what the encoder does and refuses ---- */

static void regions_are_sorted_and_named_once(void **state)
{
    (void)state;
    kvf_descriptor descriptors[] = {
        {.base = UINT64_MAX - 9, .length = 9, .kind = KVF_NIXL_VRAM, .key = key_slice()},
        {.base = 8, .length = 2, .device = 1, .kind = KVF_NIXL_VRAM, .key = key_slice()},
        {.base = 16, .length = 2, .kind = KVF_NIXL_VRAM, .key = key_slice()},
        {.base = 16, .length = 1, .kind = KVF_NIXL_VRAM, .key = key_slice()},
        {.base = 99, .length = 1, .device = 7, .kind = KVF_NIXL_DRAM, .key = key_slice()},
        {.base = 16, .length = 2, .kind = KVF_NIXL_VRAM, .key = key_slice()}};
    static const uint64_t order[] = {99, 16, 16, UINT64_MAX - 9, 8};
    kvf_metadata metadata = {kvf_slice_of("a"), kvf_slice_of("b"), descriptors, 6, 0};
    kvf_metadata decoded;
    kvf_bytes bytes = {0};
    assert_int_equal(kvf_metadata_encode(&metadata, KVF_FLAVOUR_P060, &bytes, NULL), KVF_OK);
    assert_int_equal(kvf_metadata_decode(kvf_bytes_slice(&bytes), 5, &decoded, NULL), KVF_OK);
    assert_int_equal(decoded.descriptor_count, 5);
    for (size_t i = 0; i < 5; i++)
        assert_true(decoded.descriptors[i].base == order[i]);
    assert_true(decoded.descriptors[1].length == 1 && decoded.descriptors[2].length == 2);
    kvf_metadata_free(&decoded);
    assert_int_equal(kvf_metadata_decode(kvf_bytes_slice(&bytes), 4, &decoded, NULL), KVF_LIMIT);
    kvf_bytes_free(&bytes);
}

static void what_no_peer_would_load_is_not_written(void **state)
{
    (void)state;
    kvf_descriptor descriptors[] = {
        {.base = 16, .length = 2, .kind = KVF_NIXL_VRAM, .key = key_slice()},
        {.base = 16, .length = 2, .kind = KVF_NIXL_VRAM, .key = kvf_slice_of("other key")}};
    kvf_metadata metadata = {kvf_slice_of("a"), kvf_slice_of("b"), descriptors, 2, 0};
    kvf_bytes bytes = {0};
    kvf_error error;
    assert_int_equal(kvf_metadata_encode(&metadata, KVF_FLAVOUR_P031, &bytes, &error),
                     KVF_INVALID_ARGUMENT);
    descriptors[1] = descriptors[0];
    descriptors[1].kind = 2;
    assert_int_equal(kvf_metadata_encode(&metadata, KVF_FLAVOUR_P031, &bytes, &error),
                     KVF_INVALID_ARGUMENT);
    metadata = (kvf_metadata){kvf_slice_of(""), kvf_slice_of("b"), NULL, 0, 0};
    assert_int_equal(kvf_metadata_encode(&metadata, KVF_FLAVOUR_P031, &bytes, &error),
                     KVF_INVALID_ARGUMENT);
    metadata = (kvf_metadata){kvf_slice_of("a"), kvf_slice_of(""), NULL, 0, 0};
    assert_int_equal(kvf_metadata_encode(&metadata, KVF_FLAVOUR_P031, &bytes, &error),
                     KVF_INVALID_ARGUMENT);
    assert_int_equal(bytes.length, 0);
    kvf_bytes_free(&bytes);
}

/* ---- blobs written by hand ---- */

static void put_number(kvf_bytes *bytes, const char *tag, uint64_t number, size_t width)
{
    uint8_t data[8];
    kvf_write_u64(data, number);
    kvf_serdes_append(bytes, tag, (kvf_slice){data, width});
}

static void put_head(kvf_bytes *bytes, uint64_t connections)
{
    kvf_bytes_append_text(bytes, "nixlSerDes|");
    kvf_serdes_append(bytes, "Agent", kvf_slice_of("agent"));
    put_number(bytes, "Conns", connections, 8);
}

static void put_connection(kvf_bytes *bytes, const char *backend, const char *address)
{
    kvf_serdes_append(bytes, "t", kvf_slice_of(backend));
    kvf_serdes_append(bytes, "c", kvf_slice_of(address));
}

static void put_sections(kvf_bytes *bytes, uint64_t count)
{
    kvf_serdes_append(bytes, "", kvf_slice_of("MemSection"));
    put_number(bytes, "nixlSecElms", count, 8);
}

static void put_list(kvf_bytes *bytes, const char *backend, uint32_t kind, bool sorted,
                     uint64_t count)
{
    kvf_serdes_append(bytes, "bknd", kvf_slice_of(backend));
    kvf_serdes_append(bytes, "nixlDList", kvf_slice_of("nixlSDList"));
    put_number(bytes, "t", kind, 4);
    if (sorted)
        put_number(bytes, "s", 1, 1);
    put_number(bytes, "n", count, 8);
}

static void put_region(kvf_bytes *bytes, uint64_t base, uint64_t length, kvf_slice key)
{
    kvf_bytes value = {0};
    kvf_bytes_append_u64(&value, base);
    kvf_bytes_append_u64(&value, length);
    kvf_bytes_append_u64(&value, 0);
    kvf_bytes_append(&value, key.data, key.length);
    kvf_serdes_append(bytes, "", kvf_bytes_slice(&value));
    kvf_bytes_free(&value);
}

/* Decodes, frees the blob; the decoded slices are not to be looked at. */
static kvf_status decode(kvf_bytes *bytes, const char *words, size_t *count)
{
    kvf_metadata metadata;
    kvf_error error = {0};
    kvf_status status = kvf_metadata_decode(kvf_bytes_slice(bytes), MANY, &metadata, &error);
    if (strstr(error.text, words) == NULL)
        fail_msg("\"%s\" doesn't speak of \"%s\"", error.text, words);
    if (count != NULL)
        *count = metadata.descriptor_count;
    kvf_metadata_free(&metadata);
    kvf_bytes_free(bytes);
    *bytes = (kvf_bytes){0};
    return status;
}

static void other_backends_and_kinds_are_skipped(void **state)
{
    (void)state;
    kvf_bytes bytes = {0};
    size_t count;
    put_head(&bytes, 2);
    put_connection(&bytes, "GDS", "x");
    put_connection(&bytes, "UCX", "address");
    put_sections(&bytes, 5);
    put_list(&bytes, "GDS", KVF_NIXL_DRAM, false, 1);
    put_region(&bytes, UINT64_MAX, 2, kvf_slice_of("")); /* not ours to judge */
    put_list(&bytes, "UCX", KVF_NIXL_DRAM, false, 0);    /* stock, after a failed registration */
    put_list(&bytes, "UCX", 4, false, 1);
    put_region(&bytes, 0, 2, kvf_slice_of("file"));
    put_list(&bytes, "UCX", KVF_NIXL_VRAM, false, 1);
    put_region(&bytes, UINT64_MAX - 5, 5, key_slice());
    put_list(&bytes, "UCX", KVF_NIXL_DRAM, false, 1);
    put_region(&bytes, 5, 5, key_slice());
    kvf_bytes_append_text(&bytes, "what a later release adds");
    assert_int_equal(decode(&bytes, "", &count), KVF_OK);
    assert_int_equal(count, 2);

    put_head(&bytes, 1);
    put_connection(&bytes, "UCX", "address");
    put_sections(&bytes, 0);
    assert_int_equal(decode(&bytes, "", &count), KVF_OK);
    assert_int_equal(count, 0);
}

static void lies_about_connections_are_refused(void **state)
{
    (void)state;
    kvf_bytes bytes = {0};
    put_head(&bytes, 0);
    put_sections(&bytes, 0);
    assert_int_equal(decode(&bytes, "no address", NULL), KVF_PROTOCOL);
    put_head(&bytes, 1);
    put_connection(&bytes, "GDS", "x");
    put_sections(&bytes, 0);
    assert_int_equal(decode(&bytes, "no address", NULL), KVF_PROTOCOL);
    put_head(&bytes, 2);
    put_connection(&bytes, "UCX", "x");
    put_connection(&bytes, "UCX", "y");
    put_sections(&bytes, 0);
    assert_int_equal(decode(&bytes, "two addresses", NULL), KVF_PROTOCOL);
    put_head(&bytes, 1);
    put_connection(&bytes, "UCX", "");
    assert_int_equal(decode(&bytes, "connection address", NULL), KVF_PROTOCOL);
    put_head(&bytes, UINT64_MAX);
    put_connection(&bytes, "UCX", "x");
    put_sections(&bytes, 0);
    assert_int_equal(decode(&bytes, "backend name", NULL), KVF_PROTOCOL);
    kvf_bytes_append_text(&bytes, "nixlSerDes|");
    kvf_serdes_append(&bytes, "Agent", kvf_slice_of(""));
    assert_int_equal(decode(&bytes, "agent name", NULL), KVF_PROTOCOL);
}

static void put_one_region(kvf_bytes *bytes, uint64_t count, uint64_t base, uint64_t length,
                           kvf_slice key)
{
    put_head(bytes, 1);
    put_connection(bytes, "UCX", "x");
    put_sections(bytes, 1);
    put_list(bytes, "UCX", KVF_NIXL_VRAM, true, count);
    put_region(bytes, base, length, key);
}

static void lies_about_regions_are_refused(void **state)
{
    (void)state;
    kvf_bytes bytes = {0};
    put_one_region(&bytes, 1, 1, UINT64_MAX, key_slice());
    assert_int_equal(decode(&bytes, "past the end of memory", NULL), KVF_PROTOCOL);
    put_one_region(&bytes, 1, 0, 1, (kvf_slice){sound_key, 11});
    assert_int_equal(decode(&bytes, "cut short", NULL), KVF_PROTOCOL);
    put_one_region(&bytes, 2, 0, 1, key_slice());
    assert_int_equal(decode(&bytes, "descriptor count", NULL), KVF_PROTOCOL);
    put_one_region(&bytes, UINT64_MAX / 33 + 2, 0, 1, key_slice());
    assert_int_equal(decode(&bytes, "descriptor count", NULL), KVF_PROTOCOL);
    put_one_region(&bytes, 1, 0, 1, key_slice());
    kvf_write_u64(bytes.data + bytes.length - 1 - sizeof sound_key - 24 - 8, UINT64_MAX - 8);
    assert_int_equal(decode(&bytes, "no valid descriptor there", NULL), KVF_PROTOCOL);
    put_one_region(&bytes, 1, 0, 1, key_slice());
    bytes.data[bytes.length - 1] = '!';
    assert_int_equal(decode(&bytes, "descriptor", NULL), KVF_PROTOCOL);

    put_head(&bytes, 1);
    put_connection(&bytes, "UCX", "x");
    put_sections(&bytes, 2);
    put_list(&bytes, "UCX", KVF_NIXL_DRAM, true, 0);
    put_list(&bytes, "UCX", KVF_NIXL_VRAM, false, 0);
    assert_int_equal(decode(&bytes, "mixes lists", NULL), KVF_PROTOCOL);

    bytes = test_file("nixl-metadata-hostile-wrapped-length.bin");
    assert_int_equal(decode(&bytes, "descriptor count", NULL), KVF_PROTOCOL);
}

static void every_cut_is_refused(void **state)
{
    (void)state;
    for (int flavour = KVF_FLAVOUR_P031; flavour <= KVF_FLAVOUR_P060; flavour++) {
        kvf_bytes bytes = build_example((kvf_flavour)flavour, key_slice());
        for (size_t cut = 0; cut < bytes.length; cut++) {
            kvf_slice copy = test_copy((kvf_slice){bytes.data, cut});
            kvf_metadata metadata;
            assert_int_equal(kvf_metadata_decode(copy, MANY, &metadata, NULL), KVF_PROTOCOL);
            assert_null(metadata.descriptors);
            free((void *)(uintptr_t)copy.data);
        }
        kvf_bytes_free(&bytes);
    }
}

static void keys_are_walked_to_their_end(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
        bool sound;
    } cases[] = {{"\1\0\0\0\0\0\0\0\0\0", 10, true}, /* as captured: host memory, UCX 1.19 */
                 {"\1\0\0\0\0\0\0\0\0", 9, false},
                 {"\0\0\0\0\0\0\0\0\0", 9, true},
                 {"\0\0\0\0\0\0\0\0", 8, false},
                 {"", 0, false},
                 {"\x13\0\0\0\0\0\0\0\0\0\0\0", 12, true}, /* three domains, UCX 1.13 */
                 {"\x13\0\0\0\0\0\0\0\0\0\0", 11, false},
                 {"\0\0\0\0\0\0\0\x80\0\3abc", 13, true},
                 {"\0\0\0\0\0\0\0\x80\0\4abc", 13, false},
                 {"\xff\xff\xff\xff\xff\xff\xff\xff\0\0", 10, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvf_slice copy = test_copy((kvf_slice){(const uint8_t *)cases[i].bytes, cases[i].length});
        if (kvf_rkey_is_sound(copy) != cases[i].sound)
            fail_msg("key %zu", i);
        free((void *)(uintptr_t)copy.data);
    }
}

static void keys_lose_their_empty_domains(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
        const char *expected;
        size_t expected_length;
    } cases[] = {
        {"\x13\0\0\0\0\0\0\0\0\0\0\0", 12, "\0\0\0\0\0\0\0\0\0", 9}, /* UCX 1.13, host memory */
        {"\0\0\0\0\0\0\0\0\1", 9, "\0\0\0\0\0\0\0\0\1", 9},
        {"\0\0\0\0\0\0\0\x80\0\3abc", 13, "\0\0\0\0\0\0\0\x80\0\3abc", 13},
        {"\7\0\0\0\0\0\0\0\0\0\2ab\0tail", 18, "\2\0\0\0\0\0\0\0\0\2abtail", 16},
        {"\3\0\0\0\0\0\0\0\0\1x\1y", 13, "\3\0\0\0\0\0\0\0\0\1x\1y", 13},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t key[32];
        memcpy(key, cases[i].bytes, cases[i].length);
        assert_int_equal(kvf_rkey_leave_out_empty(key, cases[i].length), cases[i].expected_length);
        assert_memory_equal(key, cases[i].expected, cases[i].expected_length);
    }
}

static void an_address_tells_its_ucx(void **state)
{
    (void)state;
    assert_int_equal(kvf_worker_address_ucx_minor(kvf_slice_of("\x31\x02")), 3);
    assert_int_equal(kvf_worker_address_ucx_minor(kvf_slice_of("\xd1")), 13);
    assert_int_equal(kvf_worker_address_ucx_minor(kvf_slice_of("\x20")), -1); /* v1 */
    assert_int_equal(kvf_worker_address_ucx_minor(kvf_slice_of("")), -1);
}

/* ---- random ---- */

#define RANDOM_REGIONS 24

typedef struct random_blob {
    uint8_t name[40], address[60], keys[RANDOM_REGIONS][40];
    kvf_descriptor descriptors[RANDOM_REGIONS];
    kvf_metadata metadata;
} random_blob;

static kvf_slice random_key(test_random *random, uint8_t key[40])
{
    unsigned domains = (unsigned)test_random_below(random, 4);
    size_t length = 9;
    memset(key, 0, 40);
    for (unsigned i = 0; i < domains; i++) {
        key[2 * i] = (uint8_t)(1u << test_random_below(random, 8));
        uint8_t size = (uint8_t)test_random_below(random, 8);
        key[length] = size;
        test_random_fill(random, key + length + 1, size, false);
        length += 1u + size;
    }
    return (kvf_slice){key, length + test_random_below(random, 3)};
}

static void fill(test_random *random, random_blob *blob)
{
    blob->metadata =
        (kvf_metadata){.agent_name = {blob->name, 1 + test_random_below(random, 40)},
                       .worker_address = {blob->address, 1 + test_random_below(random, 60)},
                       .descriptors = blob->descriptors,
                       .descriptor_count = (size_t)test_random_below(random, RANDOM_REGIONS + 1)};
    test_random_fill(random, blob->name, sizeof blob->name, true);
    test_random_fill(random, blob->address, sizeof blob->address, false);
    for (size_t i = 0; i < blob->metadata.descriptor_count; i++) {
        kvf_descriptor *descriptor = &blob->descriptors[i];
        if (i > 0 && test_random_below(random, 8) == 0) {
            *descriptor = blob->descriptors[i - 1];
            continue;
        }
        /* The low bits tell the regions apart: only copies are duplicates. */
        uint64_t base = (test_random_edgy(random) & ~UINT64_C(31)) | i;
        uint64_t length = test_random_edgy(random);
        *descriptor =
            (kvf_descriptor){.base = base,
                             .length = length > UINT64_MAX - base ? UINT64_MAX - base : length,
                             .device = test_random_below(random, 3),
                             .kind = (uint32_t)test_random_below(random, 2),
                             .key = random_key(random, blob->keys[i])};
    }
}

static void decode_damaged(test_random *random, kvf_slice blob)
{
    kvf_slice damaged = test_random_damage(random, blob);
    kvf_metadata metadata;
    kvf_error error = {0};
    kvf_status status = kvf_metadata_decode(damaged, RANDOM_REGIONS, &metadata, &error);
    if (status == KVF_OK) {
        assert_true(test_lies_inside(metadata.agent_name, damaged));
        assert_true(test_lies_inside(metadata.worker_address, damaged));
        assert_true(metadata.descriptor_count <= RANDOM_REGIONS);
        for (size_t i = 0; i < metadata.descriptor_count; i++) {
            const kvf_descriptor *descriptor = &metadata.descriptors[i];
            assert_true(test_lies_inside(descriptor->key, damaged));
            assert_true(descriptor->base <= UINT64_MAX - descriptor->length);
        }
        kvf_metadata_free(&metadata);
    } else {
        assert_true(status == KVF_PROTOCOL || status == KVF_LIMIT);
        assert_true(error.text[0] != '\0' && metadata.descriptors == NULL);
    }
    free((void *)(uintptr_t)damaged.data);
}

static void random_metadata_survives_round_trip_and_damage(void **state)
{
    (void)state;
    test_random random = test_random_start();
    static random_blob blob;
    for (unsigned round = 0; round < 2000; round++) {
        fill(&random, &blob);
        kvf_flavour flavour = (kvf_flavour)(1 + test_random_below(&random, 3));
        kvf_bytes bytes = {0};
        kvf_metadata decoded;
        kvf_error error = {0};
        if (kvf_metadata_encode(&blob.metadata, flavour, &bytes, &error) != KVF_OK)
            fail_msg("%s", error.text);
        if (kvf_metadata_decode(kvf_bytes_slice(&bytes), RANDOM_REGIONS, &decoded, &error) !=
            KVF_OK)
            fail_msg("%s", error.text);
        compare_descriptors(&blob.metadata, &decoded);
        if (decoded.descriptor_count > 0)
            assert_int_equal(decoded.flavour == KVF_FLAVOUR_P060, flavour == KVF_FLAVOUR_P060);
        kvf_metadata_free(&decoded);
        for (unsigned i = 0; i < 10; i++)
            decode_damaged(&random, kvf_bytes_slice(&bytes));
        kvf_bytes_free(&bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_metadata_is_rebuilt),
        cmocka_unit_test(each_flavour_is_written_and_told_apart),
        cmocka_unit_test(regions_are_sorted_and_named_once),
        cmocka_unit_test(what_no_peer_would_load_is_not_written),
        cmocka_unit_test(other_backends_and_kinds_are_skipped),
        cmocka_unit_test(lies_about_connections_are_refused),
        cmocka_unit_test(lies_about_regions_are_refused),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(keys_are_walked_to_their_end),
        cmocka_unit_test(keys_lose_their_empty_domains),
        cmocka_unit_test(an_address_tells_its_ucx),
        cmocka_unit_test(random_metadata_survives_round_trip_and_damage),
    };
    return cmocka_run_group_tests_name("wire/metadata", tests, NULL, NULL);
}
