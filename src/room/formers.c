#include "room/formers.h"

#include <stdlib.h>
#include <string.h>

struct kvf_former {
    kvf_room_memory ids;
    uint64_t highest_epoch;
    uint64_t unflushed_epoch;
    kvf_former *next;
    char name[];
};

/* The link that leads to it, or to where the list ends. */
static kvf_former **find(kvf_formers *formers, const char *name)
{
    kvf_former **link = &formers->all;
    while (*link != NULL && strcmp((*link)->name, name) != 0)
        link = &(*link)->next;
    return link;
}

static void forget(kvf_formers *formers, kvf_former **link)
{
    kvf_former *former = *link;
    *link = former->next;
    formers->count--;
    kvf_room_memory_free(&former->ids);
    free(former);
}

static void forget_the_oldest(kvf_formers *formers)
{
    kvf_former **link = &formers->all;
    while ((*link)->next != NULL)
        link = &(*link)->next;
    forget(formers, link);
}

void kvf_formers_free(kvf_formers *formers)
{
    while (formers->all != NULL)
        forget(formers, &formers->all);
}

/* NULL without memory. */
static kvf_former *find_or_add(kvf_formers *formers, const char *name)
{
    kvf_former *known = *find(formers, name);
    if (known != NULL)
        return known;
    size_t length = strlen(name) + 1;
    kvf_former *former = calloc(1, sizeof *former + length);
    if (former == NULL)
        return NULL;
    if (formers->count == KVF_FORMERS_MAX)
        forget_the_oldest(formers);
    memcpy(former->name, name, length);
    former->next = formers->all;
    formers->all = former;
    formers->count++;
    return former;
}

static void forget_if_empty(kvf_formers *formers, const char *name)
{
    kvf_former **link = find(formers, name);
    const kvf_former *known = *link;
    if (known != NULL && known->ids.count == 0 && known->highest_epoch == 0 &&
        known->unflushed_epoch == 0)
        forget(formers, link);
}

void kvf_formers_keep(kvf_formers *formers, const char *name, kvf_room_memory *memory)
{
    bool known = *find(formers, name) != NULL;
    kvf_former *former = known || memory->count > 0 ? find_or_add(formers, name) : NULL;
    if (former == NULL) {
        kvf_room_memory_free(memory);
        return;
    }
    kvf_room_memory_free(&former->ids);
    former->ids = *memory;
    kvf_room_memory_init(memory, memory->limit);
    forget_if_empty(formers, name);
}

void kvf_formers_recall(kvf_formers *formers, const char *name, kvf_room_memory *memory)
{
    kvf_former *known = *find(formers, name);
    if (known == NULL || known->ids.count == 0)
        return;
    kvf_room_memory_free(memory);
    *memory = known->ids;
    kvf_room_memory_init(&known->ids, 0);
    forget_if_empty(formers, name);
}

void kvf_formers_keep_epochs(kvf_formers *formers, const char *name, uint64_t highest,
                             uint64_t unflushed)
{
    kvf_former *former = highest == 0 && unflushed == 0 ? NULL : find_or_add(formers, name);
    if (former == NULL)
        return;
    former->highest_epoch = highest;
    former->unflushed_epoch = unflushed;
}

void kvf_formers_recall_epochs(kvf_formers *formers, const char *name, uint64_t *highest,
                               uint64_t *unflushed)
{
    kvf_former *known = *find(formers, name);
    if (known == NULL || (known->highest_epoch == 0 && known->unflushed_epoch == 0))
        return;
    *highest = known->highest_epoch;
    *unflushed = known->unflushed_epoch;
    known->highest_epoch = known->unflushed_epoch = 0;
    forget_if_empty(formers, name);
}
