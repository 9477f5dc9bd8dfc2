/* Remembers the latest room ids that were used with one peer. Needed where the peer's dialect can't tell a new
 * room from an old one of the same id. */
#ifndef KVF_ROOM_MEMORY_H
#define KVF_ROOM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kvf_room_memory {
    uint64_t *ids; /* ring, oldest at `next` once it is full */
    uint32_t
        *places; /* hash of ids: index in the ring + 1; 0: free. Twice the ring, a power of two */
    uint32_t limit; /* ids remembered at most */
    uint32_t capacity;
    uint32_t count;
    uint32_t next;
} kvf_room_memory;

/* `limit` 0: remembers nothing. */
void kvf_room_memory_init(kvf_room_memory *memory, uint32_t limit);
void kvf_room_memory_free(kvf_room_memory *memory);
bool kvf_room_memory_has(const kvf_room_memory *memory, uint64_t id);
/* An id that is remembered already stays where it is. False without memory: then it isn't remembered. */
bool kvf_room_memory_add(kvf_room_memory *memory, uint64_t id);

#endif
