#include "rooms.h"

#include <stdlib.h>

static tool_room **bucket_of(room_table *table, uint64_t id)
{
    return &table->buckets[(id * UINT64_C(0x9e3779b97f4a7c15)) >> 52];
}

tool_room *rooms_find(room_table *table, uint64_t id)
{
    tool_room *room = *bucket_of(table, id);
    while (room != NULL && room->line.room != id)
        room = room->next_in_bucket;
    return room;
}

tool_room *rooms_add(room_table *table, tool_line *line)
{
    tool_room *room = calloc(1, sizeof *room);
    if (room == NULL)
        return NULL;
    room->line = *line;
    *line = (tool_line){.kind = 0};
    tool_room **bucket = bucket_of(table, room->line.room);
    room->next_in_bucket = *bucket;
    *bucket = room;
    table->open++;
    return room;
}

void rooms_end(room_table *table, tool_room *room, uint64_t now)
{
    room->final = true;
    room->ended = now;
    table->open--;
    if (table->last_final == NULL)
        table->first_final = room;
    else
        table->last_final->next_final = room;
    table->last_final = room;
}

static void remove_from_bucket(room_table *table, tool_room *room)
{
    tool_room **link = bucket_of(table, room->line.room);
    while (*link != room)
        link = &(*link)->next_in_bucket;
    *link = room->next_in_bucket;
}

tool_room *rooms_take_final(room_table *table)
{
    tool_room *room = table->first_final;
    if (room == NULL)
        return NULL;
    table->first_final = room->next_final;
    if (table->first_final == NULL)
        table->last_final = NULL;
    return room;
}

/* Closes the room's handle and frees it. */
static void free_room(tool_room *room)
{
    kvf_sender_close(room->sender);
    kvf_receiver_close(room->receiver);
    line_free(&room->line);
    free(room);
}

static void remove_room(room_table *table, tool_room *room)
{
    remove_from_bucket(table, room);
    free_room(room);
}

void rooms_answered(room_table *table, tool_room *room)
{
    room->answered = true;
    if (room->safety == KVF_PAGES_IN_USE)
        table->fencing++;
    else
        remove_room(table, room);
}

void rooms_settled(room_table *table, tool_room *room)
{
    table->fencing--;
    remove_room(table, room);
}

void room_abort(tool_room *room)
{
    if (room->final)
        return;
    if (room->sender != NULL)
        kvf_sender_abort(room->sender);
    if (room->receiver != NULL)
        kvf_receiver_abort(room->receiver);
}

void rooms_abort_all(room_table *table)
{
    for (size_t i = 0; i < ROOM_BUCKETS; i++)
        for (tool_room *room = table->buckets[i]; room != NULL; room = room->next_in_bucket)
            room_abort(room);
}

void rooms_free_all(room_table *table)
{
    for (size_t i = 0; i < ROOM_BUCKETS; i++) {
        while (table->buckets[i] != NULL) {
            tool_room *room = table->buckets[i];
            table->buckets[i] = room->next_in_bucket;
            free_room(room);
        }
    }
}
