/* The rooms a worker has been told of and not yet answered, or whose pages are in use still. */
#ifndef KVFERRY_TOOL_ROOMS_H
#define KVFERRY_TOOL_ROOMS_H

#include "kvferry/kvferry.h"
#include "lines.h"

typedef struct tool_room {
    tool_line line; /* what was asked for; owned */
    kvf_sender *sender;
    kvf_receiver *receiver;
    bool final;    /* it has ended, or it couldn't be opened */
    bool answered; /* its end was told; it stays while its pages are in use */
    kvf_status status;
    kvf_safety safety;
    kvf_proof proof;
    uint64_t bytes;
    uint64_t began;
    uint64_t ended;
    message reason;
    struct tool_room *next_in_bucket;
    struct tool_room *next_final;
} tool_room;

enum { ROOM_BUCKETS = 4096 };

typedef struct room_table {
    tool_room *buckets[ROOM_BUCKETS];
    tool_room *first_final; /* in the order they ended */
    tool_room *last_final;
    size_t open;    /* not final */
    size_t fencing; /* answered, with pages that are in use still */
} room_table;

tool_room *rooms_find(room_table *table, uint64_t id);

/* Takes what the line owns. NULL when memory is short. */
tool_room *rooms_add(room_table *table, tool_line *line);

/* The room has ended at `now` with the status, safety and bytes already in it. */
void rooms_end(room_table *table, tool_room *room, uint64_t now);

/* The next room to answer; it stays in the table. NULL: none. */
tool_room *rooms_take_final(room_table *table);

/* The room was answered: it goes, unless its pages are in use. */
void rooms_answered(room_table *table, tool_room *room);

/* The pages of an answered room are not in use any more: it goes. */
void rooms_settled(room_table *table, tool_room *room);

void room_abort(tool_room *room);
void rooms_abort_all(room_table *table);

/* Closes and frees what is left, while the manager is still open. */
void rooms_free_all(room_table *table);

#endif
