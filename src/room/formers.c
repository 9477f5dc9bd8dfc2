#include "room/formers.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

struct kvf_former {
    kvf_room_memory ids;
    kvf_former *prev;
    kvf_former *next;
    char name[];
};

static void forget(kvf_formers *formers, kvf_former *former)
{
    DL_DELETE(formers->all, former);
    formers->count--;
    kvf_room_memory_free(&former->ids);
    free(former);
}

void kvf_formers_free(kvf_formers *formers)
{
    while (formers->all != NULL)
        forget(formers, formers->all);
}

static kvf_former *find(const kvf_formers *formers, const char *name)
{
    kvf_former *former;
    DL_FOREACH(formers->all, former)
    {
        if (strcmp(former->name, name) == 0)
            return former;
    }
    return NULL;
}

void kvf_formers_keep(kvf_formers *formers, const char *name, kvf_room_memory *memory)
{
    kvf_former *former = find(formers, name);
    if (former != NULL)
        forget(formers, former);
    size_t length = strlen(name) + 1;
    former = memory->count > 0 ? malloc(sizeof *former + length) : NULL;
    if (former == NULL) {
        kvf_room_memory_free(memory);
        return;
    }
    memcpy(former->name, name, length);
    former->ids = *memory;
    kvf_room_memory_init(memory, memory->limit);
    DL_APPEND(formers->all, former);
    if (++formers->count > KVF_FORMERS_MAX)
        forget(formers, formers->all);
}

void kvf_formers_recall(kvf_formers *formers, const char *name, kvf_room_memory *memory)
{
    kvf_former *former = find(formers, name);
    if (former == NULL)
        return;
    kvf_room_memory_free(memory);
    *memory = former->ids;
    kvf_room_memory_init(&former->ids, 0);
    forget(formers, former);
}
