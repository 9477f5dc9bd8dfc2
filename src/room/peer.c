#include "room/peer.h"

#include "base/clock.h"

void kvf_peer_past_init(kvf_peer_past *past, uint32_t remembered_rooms)
{
    past->highest_epoch = 0;
    past->unflushed_epoch = 0;
    past->lease = 0;
    kvf_room_memory_init(&past->ended, remembered_rooms);
}

void kvf_peer_past_free(kvf_peer_past *past)
{
    kvf_room_memory_free(&past->ended);
}

static void raise(uint64_t *mark, uint64_t epoch)
{
    if (epoch > *mark)
        *mark = epoch;
}

kvf_news kvf_peer_asks(kvf_peer_past *past, uint64_t room, uint64_t epoch)
{
    if (epoch == 0)
        return kvf_room_memory_has(&past->ended, room) ? KVF_NEWS_USED_ID : KVF_NEWS;
    if (epoch <= past->highest_epoch)
        return KVF_NEWS_REPEATED;
    past->highest_epoch = epoch;
    return KVF_NEWS;
}

void kvf_peer_gives_up(kvf_peer_past *past, uint64_t epoch)
{
    raise(&past->highest_epoch, epoch);
}

/* Without memory it isn't remembered: the peer's next room of that id is then its own business. */
void kvf_peer_ended(kvf_peer_past *past, uint64_t room)
{
    (void)kvf_room_memory_add(&past->ended, room);
}

bool kvf_peer_has_had(const kvf_peer_past *past, uint64_t room)
{
    return kvf_room_memory_has(&past->ended, room);
}

void kvf_peer_unflushed(kvf_peer_past *past, uint64_t epoch)
{
    raise(&past->unflushed_epoch, epoch);
}

bool kvf_peer_may_acknowledge(const kvf_peer_past *past, uint64_t epoch)
{
    return epoch > past->unflushed_epoch;
}

/* A peer that wanted to hear from us more often than that would get no room through. */
#define LEAST_LEASE (100 * KVF_MILLISECOND)

uint64_t kvf_peer_patience(const kvf_peer_past *past, uint64_t timeout)
{
    if (past->lease == 0)
        return 2 * timeout;
    return past->lease > LEAST_LEASE ? past->lease : LEAST_LEASE;
}
