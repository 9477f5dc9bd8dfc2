#include "room/memory.h"

#include <stdlib.h>
#include <string.h>

enum { SMALLEST = 64 };

void kvf_room_memory_init(kvf_room_memory *memory, uint32_t limit)
{
    memset(memory, 0, sizeof *memory);
    memory->limit = limit;
}

void kvf_room_memory_free(kvf_room_memory *memory)
{
    free(memory->ids);
    free(memory->places);
    kvf_room_memory_init(memory, memory->limit);
}

/* Routers choose ids at random, but need not. */
static uint32_t hash(uint64_t id)
{
    id ^= id >> 33;
    id *= UINT64_C(0xff51afd7ed558ccd);
    id ^= id >> 33;
    return (uint32_t)id;
}

static uint32_t mask(const kvf_room_memory *memory)
{
    return 2 * memory->capacity - 1;
}

/* Where the id is, or where it would be put. */
static uint32_t find(const kvf_room_memory *memory, uint64_t id)
{
    uint32_t place = hash(id) & mask(memory);
    while (memory->places[place] != 0 && memory->ids[memory->places[place] - 1] != id)
        place = (place + 1) & mask(memory);
    return place;
}

bool kvf_room_memory_has(const kvf_room_memory *memory, uint64_t id)
{
    return memory->count > 0 && memory->places[find(memory, id)] != 0;
}

/* Takes an entry out of the hash; those that were put further because of it move up. */
static void forget(kvf_room_memory *memory, uint64_t id)
{
    uint32_t hole = find(memory, id);
    uint32_t place = hole;
    for (;;) {
        place = (place + 1) & mask(memory);
        if (memory->places[place] == 0)
            break;
        uint32_t home = hash(memory->ids[memory->places[place] - 1]) & mask(memory);
        if (((place - home) & mask(memory)) >= ((place - hole) & mask(memory))) {
            memory->places[hole] = memory->places[place];
            hole = place;
        }
    }
    memory->places[hole] = 0;
}

/* Only while nothing has been overwritten: the ring is then in order. */
static bool grow(kvf_room_memory *memory)
{
    uint32_t capacity = memory->capacity == 0 ? SMALLEST : 2 * memory->capacity;
    uint64_t *ids = realloc(memory->ids, capacity * sizeof *ids);
    if (ids == NULL)
        return false;
    memory->ids = ids;
    uint32_t *places = calloc(2 * (size_t)capacity, sizeof *places);
    if (places == NULL)
        return false;
    free(memory->places);
    memory->places = places;
    memory->capacity = capacity;
    for (uint32_t i = 0; i < memory->count; i++)
        memory->places[find(memory, memory->ids[i])] = i + 1;
    return true;
}

bool kvf_room_memory_add(kvf_room_memory *memory, uint64_t id)
{
    if (memory->limit == 0 || kvf_room_memory_has(memory, id))
        return true;
    if (memory->count < memory->limit && memory->count == memory->capacity && !grow(memory))
        return false;
    if (memory->count == memory->limit)
        forget(memory, memory->ids[memory->next]);
    else
        memory->count++;
    memory->ids[memory->next] = id;
    memory->places[find(memory, id)] = memory->next + 1;
    memory->next = (memory->next + 1) % memory->limit;
    return true;
}
