#include "control/connections.h"

#include <stdlib.h>

/* libzmq's turns aren't promised to be exact. */
enum { SPARE_TURNS = 4 };

/* While there is something to receive, libzmq looks only every 100 receives which connections have got something new
 * (its inbound_poll_rate). */
enum { UNSEEN_RECEIVES = 100 };

struct kvf_connection {
    uint64_t key;
    uint64_t number;
    uint64_t turn; /* how many messages had been taken at its last one, or when it settled */
    uint32_t descriptor;
    kvf_connection *next; /* in one of the lists */
};

struct kvf_connection_slot {
    uint64_t accepted; /* where in the sequence; 0: never */
    bool open;
    kvf_connection *connection; /* of the latest accept, ended or not; NULL: no message yet */
};

static void append(kvf_connection_list *list, kvf_connection *connection)
{
    connection->next = NULL;
    if (list->last == NULL)
        list->first = connection;
    else
        list->last->next = connection;
    list->last = connection;
}

static kvf_connection *take_first(kvf_connection_list *list)
{
    kvf_connection *connection = list->first;
    if (connection == NULL)
        return NULL;
    list->first = connection->next;
    if (list->first == NULL)
        list->last = NULL;
    return connection;
}

static kvf_connection *find(const kvf_connection_list *list, uint64_t key)
{
    kvf_connection *connection = list->first;
    while (connection != NULL && connection->key != key)
        connection = connection->next;
    return connection;
}

/* NULL when there is no memory. Descriptors are small numbers: the system gives the lowest free one. */
static kvf_connection_slot *slot_of(kvf_connections *connections, uint32_t descriptor)
{
    if (descriptor >= connections->slot_count) {
        size_t wanted = ((size_t)descriptor + 64) / 64 * 64;
        kvf_connection_slot *grown =
            reallocarray(connections->slots, wanted, sizeof connections->slots[0]);
        if (grown == NULL)
            return NULL;
        for (size_t i = connections->slot_count; i < wanted; i++)
            grown[i] = (kvf_connection_slot){0};
        connections->slots = grown;
        connections->slot_count = wanted;
    }
    return &connections->slots[descriptor];
}

void kvf_connections_free(kvf_connections *connections)
{
    for (size_t i = 0; i < connections->slot_count; i++)
        if (connections->slots[i].open)
            free(connections->slots[i].connection);
    kvf_connection *connection;
    while ((connection = take_first(&connections->ended)) != NULL)
        free(connection);
    while ((connection = take_first(&connections->settled)) != NULL)
        free(connection);
    free(connections->slots);
    *connections = (kvf_connections){0};
}

void kvf_connections_disconnected(kvf_connections *connections, uint32_t descriptor)
{
    kvf_connection_slot *slot = slot_of(connections, descriptor);
    if (slot == NULL || !slot->open)
        return;
    slot->open = false;
    connections->open--;
    if (slot->connection != NULL)
        append(&connections->ended, slot->connection);
    else
        connections->silent++;
}

void kvf_connections_accepted(kvf_connections *connections, uint32_t descriptor)
{
    /* A number that is accepted again was closed before, whether we heard of it or not. */
    kvf_connections_disconnected(connections, descriptor);
    kvf_connection_slot *slot = slot_of(connections, descriptor);
    if (slot == NULL)
        return;
    slot->accepted = ++connections->sequence;
    slot->open = true;
    slot->connection = NULL;
    connections->open++;
}

uint64_t kvf_connections_key(kvf_connections *connections)
{
    return ++connections->sequence;
}

uint64_t kvf_connections_number(kvf_connections *connections, uint32_t descriptor, uint64_t key)
{
    kvf_connection_slot *slot = slot_of(connections, descriptor);
    if (slot == NULL)
        return 0;
    kvf_connection *known = slot->connection;
    if (known == NULL || known->key != key)
        known = find(&connections->ended, key);
    if (known == NULL)
        known = find(&connections->settled, key);
    connections->messages++;
    if (known != NULL) {
        known->turn = connections->messages;
        return known->number;
    }

    kvf_connection *connection = malloc(sizeof *connection);
    if (connection == NULL)
        return 0;
    *connection =
        (kvf_connection){key, ++connections->last_number, connections->messages, descriptor, NULL};
    bool latest = slot->accepted < key;
    if (latest)
        slot->connection = connection;
    if (!latest || !slot->open)
        append(&connections->ended, connection);
    return connection->number;
}

void kvf_connections_settle(kvf_connections *connections)
{
    if (connections->ended.first == NULL)
        return;
    for (kvf_connection *each = connections->ended.first; each != NULL; each = each->next)
        each->turn = connections->messages;
    if (connections->settled.last == NULL)
        connections->settled.first = connections->ended.first;
    else
        connections->settled.last->next = connections->ended.first;
    connections->settled.last = connections->ended.last;
    connections->ended = (kvf_connection_list){NULL, NULL};
}

static uint64_t leave(kvf_connections *connections, kvf_connection *connection)
{
    uint64_t number = connection->number;
    kvf_connection_slot *slot = &connections->slots[connection->descriptor];
    if (slot->connection == connection)
        slot->connection = NULL;
    free(connection);
    return number;
}

bool kvf_connections_take_settled(kvf_connections *connections, uint64_t *number)
{
    kvf_connection *connection = take_first(&connections->settled);
    connections->silent = 0;
    if (connection == NULL)
        return false;
    *number = leave(connections, connection);
    return true;
}

/* How many messages may come between two of one connection: each that may have some left takes a turn. */
static uint64_t between_turns(const kvf_connections *connections)
{
    uint64_t queues = connections->open + connections->silent;
    for (const kvf_connection *each = connections->ended.first; each != NULL; each = each->next)
        queues++;
    for (const kvf_connection *each = connections->settled.first; each != NULL; each = each->next)
        queues++;
    return queues;
}

bool kvf_connections_take_drained(kvf_connections *connections, uint64_t *number)
{
    if (connections->settled.first == NULL)
        return false;
    uint64_t enough = SPARE_TURNS * between_turns(connections) + UNSEEN_RECEIVES;
    size_t count = 0;
    for (const kvf_connection *each = connections->settled.first; each != NULL; each = each->next)
        count++;
    for (; count > 0; count--) {
        kvf_connection *connection = take_first(&connections->settled);
        if (connections->messages - connection->turn > enough) {
            *number = leave(connections, connection);
            return true;
        }
        append(&connections->settled, connection);
    }
    return false;
}

bool kvf_connections_unsettled(const kvf_connections *connections)
{
    return connections->ended.first != NULL;
}
