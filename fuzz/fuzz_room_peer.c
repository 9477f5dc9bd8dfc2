/* What a prefill remembers of its peers, who come, end rooms, go and come back. Input: one byte of limit, which may
 * also say that as many have been here as are remembered (before a few events only: it takes time), then three bytes
 * an event: kind and peer, id, epoch. The oracle keeps plain lists: an epoch is news once, and only above those that
 * were asked for or given up; nothing is acknowledged at or below what was never flushed; the latest ids of a name
 * come back with it, of the names that went last, and nobody else's. */
#include "room/formers.h"
#include "room/peer.h"

#include "support.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

enum { PEERS = 4, IDS_MAX = 6, NAMES = 300, CROWD = 255, CROWD_SIZE_MAX = 48 };

/* Oldest first. */
typedef struct list {
    uint64_t ids[IDS_MAX];
    size_t count;
} list;

typedef struct peer {
    kvf_peer_past past;
    bool here;
    uint64_t seen_epoch;
    uint64_t unflushed_epoch;
    list ended;
} peer;

typedef struct former {
    unsigned name;
    list ended;
} former;

/* Names from 0 on are the peers', those after them the passers-by's. */
typedef struct stage {
    uint32_t limit;
    kvf_formers formers;
    peer peers[PEERS];
    former gone[KVF_FORMERS_MAX + 1]; /* latest last */
    size_t gone_count;
    unsigned passed;
} stage;

static bool list_has(const list *one, uint64_t id)
{
    for (size_t i = 0; i < one->count; i++)
        if (one->ids[i] == id)
            return true;
    return false;
}

static void list_add(list *one, uint64_t id, size_t limit)
{
    if (limit == 0 || list_has(one, id))
        return;
    if (one->count == limit)
        memmove(one->ids, one->ids + 1, --one->count * sizeof one->ids[0]);
    one->ids[one->count++] = id;
}

/* Ids that differ in the low or in the high half, as a router may choose them. */
static uint64_t make_id(unsigned number)
{
    return (uint64_t)(number & 15) << ((number & 16) != 0 ? 32 : 0);
}

static uint64_t make_epoch(uint8_t byte)
{
    return byte < 250 ? byte : UINT64_MAX - 255 + byte;
}

static void make_name(unsigned number, char name[32])
{
    (void)snprintf(name, 32, "%u", number);
}

static void check_ids(const kvf_peer_past *past, const list *ended)
{
    for (unsigned i = 0; i < 32; i++)
        require(kvf_peer_has_had(past, make_id(i)) == list_has(ended, make_id(i)));
    require(past->ended.count == ended->count);
}

/* ---- coming and going ---- */

static void forget(stage *stage, size_t index)
{
    stage->gone_count--;
    memmove(stage->gone + index, stage->gone + index + 1,
            (stage->gone_count - index) * sizeof stage->gone[0]);
}

static size_t find(const stage *stage, unsigned name)
{
    size_t index = 0;
    while (index < stage->gone_count && stage->gone[index].name != name)
        index++;
    return index;
}

/* `early`: it had ended a room before it was known who it is. */
static void come(stage *stage, unsigned name, peer *peer, bool early)
{
    char text[32];
    size_t index = find(stage, name);
    memset(peer, 0, sizeof *peer);
    peer->here = true;
    kvf_peer_past_init(&peer->past, stage->limit);
    make_name(name, text);
    if (early) {
        kvf_peer_ended(&peer->past, make_id(1));
        list_add(&peer->ended, make_id(1), stage->limit);
    }
    kvf_formers_recall(&stage->formers, text, &peer->past.ended);
    if (index < stage->gone_count) {
        peer->ended = stage->gone[index].ended;
        forget(stage, index);
    }
    check_ids(&peer->past, &peer->ended);
}

static void go(stage *stage, unsigned name, peer *peer)
{
    char text[32];
    size_t index = find(stage, name);
    make_name(name, text);
    kvf_formers_keep(&stage->formers, text, &peer->past.ended);
    require(peer->past.ended.count == 0);
    kvf_peer_past_free(&peer->past);
    peer->here = false;
    if (index < stage->gone_count)
        forget(stage, index);
    if (peer->ended.count == 0)
        return;
    stage->gone[stage->gone_count++] = (former){name, peer->ended};
    if (stage->gone_count > KVF_FORMERS_MAX)
        forget(stage, 0);
}

static void end_room(stage *stage, peer *peer, uint64_t id)
{
    kvf_peer_ended(&peer->past, id);
    list_add(&peer->ended, id, stage->limit);
}

/* Somebody who comes for one room: a stranger, whose name may come by again, or a second incarnation of a peer. */
static void pass_by(stage *stage, unsigned name, uint64_t id)
{
    peer passer;
    come(stage, name, &passer, false);
    end_room(stage, &passer, id);
    go(stage, name, &passer);
}

/* As many as are remembered go at once: coming and going one by one would take too long. */
static void crowd_goes(stage *stage)
{
    char text[32];
    while (stage->limit > 0 && stage->gone_count < KVF_FORMERS_MAX) {
        kvf_room_memory memory;
        unsigned name = PEERS + stage->passed++;
        kvf_room_memory_init(&memory, stage->limit);
        require(kvf_room_memory_add(&memory, make_id(name)));
        make_name(name, text);
        kvf_formers_keep(&stage->formers, text, &memory);
        former *former = &stage->gone[stage->gone_count++];
        former->name = name;
        list_add(&former->ended, make_id(name), stage->limit);
    }
}

/* ---- one peer ---- */

static void ask(peer *peer, uint64_t id, uint64_t epoch)
{
    kvf_news expected = epoch == 0 ? (list_has(&peer->ended, id) ? KVF_NEWS_USED_ID : KVF_NEWS)
                                   : (epoch > peer->seen_epoch ? KVF_NEWS : KVF_NEWS_REPEATED);
    require(kvf_peer_asks(&peer->past, id, epoch) == expected);
    if (epoch != 0)
        require(kvf_peer_asks(&peer->past, id, epoch) == KVF_NEWS_REPEATED);
    if (epoch > peer->seen_epoch)
        peer->seen_epoch = epoch;
}

static void give_up(peer *peer, uint64_t id, uint64_t epoch)
{
    kvf_peer_gives_up(&peer->past, epoch);
    if (epoch > peer->seen_epoch)
        peer->seen_epoch = epoch;
    if (epoch != 0)
        require(kvf_peer_asks(&peer->past, id, epoch) == KVF_NEWS_REPEATED);
}

static void leave_unflushed(peer *peer, uint64_t epoch)
{
    kvf_peer_unflushed(&peer->past, epoch);
    if (epoch > peer->unflushed_epoch)
        peer->unflushed_epoch = epoch;
    for (unsigned i = 0; i < 256; i++)
        require(kvf_peer_may_acknowledge(&peer->past, make_epoch((uint8_t)i)) ==
                (make_epoch((uint8_t)i) > peer->unflushed_epoch));
}

/* Its own lease unless nobody could be that quick; twice our own where it says none. */
static void check_patience(peer *peer, uint8_t number, uint8_t lease)
{
    const uint64_t least = 100 * KVF_MILLISECOND;
    uint64_t timeout = number * KVF_MILLISECOND;
    peer->past.lease = (uint64_t)lease << (lease % 56);
    uint64_t expected = peer->past.lease > least ? peer->past.lease : least;
    require(kvf_peer_patience(&peer->past, timeout) ==
            (peer->past.lease == 0 ? 2 * timeout : expected));
}

static void step(stage *stage, const uint8_t *data)
{
    enum { ASK, END, GIVE_UP, UNFLUSHED, LEASE, GO, PASS, KINDS };
    unsigned name = data[0] >> 6;
    peer *peer = &stage->peers[name];
    uint64_t id = make_id(data[1]);
    uint64_t epoch = make_epoch(data[2]);
    if (!peer->here)
        come(stage, name, peer, (data[0] & 32) != 0);
    switch (data[0] % KINDS) {
    case ASK:
        ask(peer, id, epoch);
        break;
    case END:
        end_room(stage, peer, id);
        break;
    case GIVE_UP:
        give_up(peer, id, epoch);
        break;
    case UNFLUSHED:
        leave_unflushed(peer, epoch);
        break;
    case LEASE:
        check_patience(peer, data[1], data[2]);
        break;
    case GO:
        go(stage, name, peer);
        break;
    default:
        pass_by(stage, epoch % 2 == 0 ? PEERS + stage->passed++ % NAMES : name, id);
        break;
    }
    require(stage->formers.count == stage->gone_count);
    if (peer->here)
        check_ids(&peer->past, &peer->ended);
}

/* Everybody goes, and those who are remembered come back with what was theirs. */
static void end(stage *stage)
{
    for (unsigned i = 0; i < PEERS; i++)
        if (stage->peers[i].here)
            go(stage, i, &stage->peers[i]);
    while (stage->gone_count > 0) {
        peer peer;
        come(stage, stage->gone[stage->gone_count - 1].name, &peer, true);
        kvf_peer_past_free(&peer.past);
    }
    require(stage->formers.count == 0);
    kvf_formers_free(&stage->formers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    stage *stage = calloc(1, sizeof *stage);
    require(stage != NULL);
    stage->limit = data[0] % (IDS_MAX + 1);
    if (data[0] == CROWD && size <= CROWD_SIZE_MAX)
        crowd_goes(stage);
    for (data++, size--; size >= 3; data += 3, size -= 3)
        step(stage, data);
    end(stage);
    free(stage);
    return 0;
}
