#include "room/formers.h"

#include <stdlib.h>
#include <string.h>

struct kvf_former {
    kvf_room_memory ids;
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

void kvf_formers_keep(kvf_formers *formers, const char *name, kvf_room_memory *memory)
{
    kvf_former **known = find(formers, name);
    if (*known != NULL)
        forget(formers, known);
    size_t length = strlen(name) + 1;
    kvf_former *former = memory->count > 0 ? malloc(sizeof *former + length) : NULL;
    if (former == NULL) {
        kvf_room_memory_free(memory);
        return;
    }
    memcpy(former->name, name, length);
    former->ids = *memory;
    kvf_room_memory_init(memory, memory->limit);
    former->next = formers->all;
    formers->all = former;
    if (++formers->count > KVF_FORMERS_MAX)
        forget_the_oldest(formers);
}

void kvf_formers_recall(kvf_formers *formers, const char *name, kvf_room_memory *memory)
{
    kvf_former **known = find(formers, name);
    if (*known == NULL)
        return;
    kvf_room_memory_free(memory);
    *memory = (*known)->ids;
    kvf_room_memory_init(&(*known)->ids, 0);
    forget(formers, known);
}
