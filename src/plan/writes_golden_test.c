/* The writes that the unmodified connector made, rebuilt from each scene's pools and page lists. */
#include "plan/writes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

enum { SCENE_PAGES = 64, SCENE_BUFFERS = 8 };

static uint64_t number_at(const json_t *array, size_t index)
{
    return (uint64_t)json_integer_value(json_array_get(array, index));
}

static const json_t *event_of(const json_t *events, const char *what)
{
    size_t index;
    json_t *event;
    json_array_foreach(events, index, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "what")), what) == 0)
            return event;
    }
    return NULL;
}

/* The events of the rank whose agent is called `name`. */
static const json_t *rank_of_agent(json_t *scene, const char *name)
{
    const char *key;
    json_t *events;
    json_object_foreach(scene, key, events)
    {
        const json_t *agent = json_is_array(events) ? event_of(events, "agent") : NULL;
        if (agent != NULL && strcmp(json_string_value(json_object_get(agent, "name")), name) == 0)
            return events;
    }
    return NULL;
}

static size_t spans_of(const json_t *source, const json_t *destination, const char *list,
                       kvf_span spans[SCENE_BUFFERS])
{
    char pointers[16];
    char lengths[24];
    (void)snprintf(pointers, sizeof pointers, "%s_ptrs", list);
    (void)snprintf(lengths, sizeof lengths, "%s_item_lens", list);
    size_t count = json_array_size(json_object_get(source, pointers));
    assert_in_range(count, 1, SCENE_BUFFERS);
    for (size_t i = 0; i < count; i++)
        spans[i] = (kvf_span){
            .source_base = number_at(json_object_get(source, pointers), i),
            .destination_base = number_at(json_object_get(destination, pointers), i),
            .item_length = number_at(json_object_get(source, lengths), i),
        };
    return count;
}

static void assert_writes(const json_t *event, kvf_writes *writes)
{
    const json_t *sources = json_object_get(event, "source");
    const json_t *destinations = json_object_get(event, "destination");
    kvf_write write;
    size_t count = 0;
    for (; kvf_writes_next(writes, UINT64_MAX, &write); count++) {
        const json_t *source = json_array_get(sources, count);
        const json_t *destination = json_array_get(destinations, count);
        assert_non_null(source);
        assert_true(number_at(source, 0) == write.source);
        assert_true(number_at(source, 1) == write.length);
        assert_true(number_at(destination, 0) == write.destination);
        assert_true(number_at(destination, 1) == write.length);
    }
    assert_int_equal(count, json_array_size(sources));
}

/* Chunk `index` of a request whose chunks are equally long, or its aux record. */
static void check_write(json_t *scene, const json_t *source, const json_t *event)
{
    const json_t *request = json_object_get(scene, "request");
    const json_t *rank = rank_of_agent(scene, json_string_value(json_object_get(event, "peer")));
    assert_non_null(rank);
    const char *notice = json_string_value(json_object_get(event, "notification"));
    uint64_t room = (uint64_t)json_integer_value(json_object_get(request, "room"));
    const char *rest = strchr(notice, '_');
    kvf_span spans[SCENE_BUFFERS];
    uint32_t from[SCENE_PAGES];
    uint32_t to[SCENE_PAGES];
    size_t pages = 1;
    size_t span_count = 1;
    if (strcmp(rest, "_aux") == 0) {
        from[0] = to[0] = (uint32_t)(room % 4); /* README: aux slot = room mod 4 */
        (void)spans_of(source, event_of(rank, "pool"), "aux",
                       spans); /* 0.4.7 sends buffer 0 only */
    } else {
        span_count = spans_of(source, event_of(rank, "pool"), "kv", spans);
        size_t total = (size_t)json_integer_value(json_object_get(request, "npages"));
        pages = total / (size_t)json_integer_value(json_object_get(request, "chunks"));
        size_t first = strtoul(rest + strlen("_kv_"), NULL, 10) * pages;
        for (size_t i = 0; i < pages; i++) {
            from[i] = (uint32_t)number_at(json_object_get(request, "src"), first + i);
            to[i] = (uint32_t)number_at(json_object_get(request, "dst"), first + i);
        }
    }
    kvf_writes writes;
    kvf_writes_begin(&writes, spans, span_count, from, to, pages);
    assert_writes(event, &writes);
}

static size_t check_rank(json_t *scene, const json_t *events)
{
    size_t index;
    size_t checked = 0;
    json_t *event;
    json_array_foreach(events, index, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "what")), "write") != 0)
            continue;
        check_write(scene, event_of(events, "pool"), event);
        checked++;
    }
    return checked;
}

static void check_scene(const char *path, size_t expected)
{
    json_error_t problem;
    char full[512];
    (void)snprintf(full, sizeof full, "%s/%s", KVF_TEST_VECTORS, path);
    json_t *scene = json_load_file(full, 0, &problem);
    if (scene == NULL)
        fail_msg("%s: %s", full, problem.text);
    size_t checked = 0;
    const char *key;
    json_t *events;
    json_object_foreach(scene, key, events)
    {
        if (json_is_array(events))
            checked += check_rank(scene, events);
    }
    assert_int_equal(checked, expected);
    json_decref(scene);
}

static void scenes_are_rebuilt(void **state)
{
    (void)state;
    static const char *const releases[] = {"0.4.7", "0.4.7.post1"};
    for (size_t i = 0; i < 2; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, "%s/pair.json", releases[i]);
        check_scene(path, 3);
        (void)snprintf(path, sizeof path, "%s/mla_p1_d2.json", releases[i]);
        check_scene(path, 6);
        (void)snprintf(path, sizeof path, "%s/mla_p2_d1.json", releases[i]);
        check_scene(path, 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scenes_are_rebuilt)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
