/* Pools whose cells know what lies in them, so that a byte in the wrong place is seen at once. */
#include "sim/sim.h"

#include <stdlib.h>

enum { NODE_SHIFT = 40, INCARNATION_SHIFT = 28, REGION_SHIFT = 20 };

/* Addresses of another incarnation lead nowhere: a restarted process has other memory. */
static uint64_t base_of(const sim_node *node, uint32_t region)
{
    return ((uint64_t)node->index + 1) << NODE_SHIFT |
           (uint64_t)node->incarnation << INCARNATION_SHIFT | (uint64_t)region << REGION_SHIFT;
}

static uint64_t item_length(uint32_t region)
{
    static const uint64_t cells[SIM_REGIONS] = {2, SIM_ITEM_CELLS_MAX, 1, 2};
    return cells[region] * SIM_CELL;
}

static uint32_t items_of(uint32_t region)
{
    return region < SIM_BUFFERS ? SIM_PAGES : SIM_SLOTS;
}

bool sim_pool_open(sim_node *node)
{
    sim_pool *pool = &node->pool;
    memset(pool, 0, sizeof *pool);
    for (uint32_t region = 0; region < SIM_REGIONS; region++) {
        uint64_t length = items_of(region) * item_length(region);
        pool->regions[region] = (kvf_buffer){.size = sizeof(kvf_buffer),
                                             .base = base_of(node, region),
                                             .length = length,
                                             .item_length = item_length(region)};
        pool->cells[region] = calloc(length / SIM_CELL, sizeof(uint64_t));
        if (pool->cells[region] == NULL)
            abort();
    }
    for (uint32_t i = SIM_PAGES; i > 0; i--)
        pool->free_pages[pool->free_page_count++] = i - 1;
    for (uint32_t i = SIM_SLOTS; i > 0; i--)
        pool->free_slots[pool->free_slot_count++] = i - 1;
    return true;
}

void sim_pool_close(sim_node *node)
{
    for (uint32_t region = 0; region < SIM_REGIONS; region++)
        free(node->pool.cells[region]);
    memset(&node->pool, 0, sizeof node->pool);
}

/* What the cell of the position-th page must hold: a mark of the room, the shard and the place. Under MLA all
 * ranks hold the same. */
uint64_t sim_content(const sim_side *side, uint32_t region, uint32_t position, uint32_t cell)
{
    const sim_world *world = side->node->world;
    uint64_t shard = world->mla ? 0 : side->node->rank + 1U;
    uint64_t place = (uint64_t)region << 40 | (uint64_t)position << 16 | cell;
    return sim_mix((uint64_t)side->instance->uid << 48 ^ shard << 44 ^ place) | 1;
}

static uint64_t *cell_at(sim_pool *pool, uint32_t region, uint32_t item, uint32_t cell)
{
    return &pool->cells[region][item * (item_length(region) / SIM_CELL) + cell];
}

static void fill_item(sim_side *side, uint32_t region, uint32_t item, uint32_t position)
{
    for (uint32_t cell = 0; cell < item_length(region) / SIM_CELL; cell++)
        *cell_at(&side->node->pool, region, item, cell) = sim_content(side, region, position, cell);
}

bool sim_memory_take(sim_side *side, uint32_t page_count)
{
    sim_pool *pool = &side->node->pool;
    if (pool->free_page_count < page_count || pool->free_slot_count == 0)
        return false;
    side->page_count = page_count;
    for (uint32_t i = 0; i < page_count; i++) {
        side->pages[i] = pool->free_pages[--pool->free_page_count];
        pool->page_owner[side->pages[i]] = side;
    }
    side->aux_slot = pool->free_slots[--pool->free_slot_count];
    pool->slot_owner[side->aux_slot] = side;
    side->has_memory = true;
    return true;
}

/* The next user of a page finds it dirty, so that what wasn't written shows. */
void sim_memory_give_back(sim_side *side)
{
    sim_pool *pool = &side->node->pool;
    if (!side->has_memory)
        return;
    side->has_memory = false;
    for (uint32_t i = side->page_count; i > 0; i--) {
        uint32_t page = side->pages[i - 1];
        pool->page_owner[page] = NULL;
        pool->free_pages[pool->free_page_count++] = page;
        for (uint32_t region = 0; region < SIM_BUFFERS; region++)
            for (uint32_t cell = 0; cell < item_length(region) / SIM_CELL; cell++)
                *cell_at(pool, region, page, cell) = 0;
    }
    pool->slot_owner[side->aux_slot] = NULL;
    pool->free_slots[pool->free_slot_count++] = side->aux_slot;
    for (uint32_t region = SIM_BUFFERS; region < SIM_REGIONS; region++)
        for (uint32_t cell = 0; cell < item_length(region) / SIM_CELL; cell++)
            *cell_at(pool, region, side->aux_slot, cell) = 0;
}

/* The model has run: these pages hold the room's KV, and with the last of them the aux slot its record. */
void sim_memory_fill(sim_side *sender, uint32_t first, uint32_t count, bool last)
{
    for (uint32_t i = first; i < first + count; i++)
        for (uint32_t region = 0; region < SIM_BUFFERS; region++)
            fill_item(sender, region, sender->pages[i], i);
    for (uint32_t region = SIM_BUFFERS; last && region < SIM_REGIONS; region++)
        fill_item(sender, region, sender->aux_slot, 0);
}

typedef struct place {
    sim_node *node;
    uint32_t region;
    uint32_t item;
    uint32_t cell;
    sim_side *owner;
} place;

/* False for memory that isn't there any more. */
static bool find(sim_world *world, uint64_t address, place *found)
{
    uint64_t index = (address >> NODE_SHIFT) - 1;
    uint32_t incarnation = (uint32_t)(address >> INCARNATION_SHIFT & 0xfff);
    uint32_t region = (uint32_t)(address >> REGION_SHIFT & 0xff);
    if (index >= world->node_count || region >= SIM_REGIONS)
        return false;
    sim_node *node = &world->nodes[index];
    if (!node->alive || node->incarnation != incarnation)
        return false;
    uint64_t offset = address - node->pool.regions[region].base;
    if (offset >= node->pool.regions[region].length)
        return false;
    *found = (place){.node = node,
                     .region = region,
                     .item = (uint32_t)(offset / item_length(region)),
                     .cell = (uint32_t)(offset % item_length(region) / SIM_CELL)};
    found->owner = region < SIM_BUFFERS ? node->pool.page_owner[found->item]
                                        : node->pool.slot_owner[found->item];
    return true;
}

uint64_t sim_memory_read(sim_world *world, uint64_t address, const sim_instance *instance)
{
    place source;
    if (!find(world, address, &source))
        return 0;
    const sim_side *owner = source.owner;
    if (owner == NULL || owner->instance != instance)
        sim_violate(world,
                    "room %llu: a write reads source %s %u of %s, which isn't its own (any "
                    "more)",
                    (unsigned long long)instance->id, source.region < SIM_BUFFERS ? "page" : "slot",
                    source.item, source.node->name);
    else if (owner->safety == KVF_PAGES_SAFE)
        sim_violate(world, "room %llu: a source page of %s is read after it was called safe",
                    (unsigned long long)instance->id, source.node->name);
    return *cell_at(&source.node->pool, source.region, source.item, source.cell);
}

/* A request of the id's last room that was held: it goes to pages that nobody was told are safe. */
static bool is_left_behind(const sim_side *owner, const sim_instance *instance)
{
    return owner->instance->id == instance->id && owner->state == KVF_FAILED &&
           owner->safety != KVF_PAGES_SAFE;
}

/* Whose page it is, and in which state, decides whether the write was allowed. */
void sim_memory_land(sim_world *world, uint64_t address, uint64_t content,
                     const sim_instance *instance)
{
    place target;
    world->tally->cells++;
    if (!find(world, address, &target))
        return;
    const sim_side *owner = target.owner;
    const char *kind = target.region < SIM_BUFFERS ? "page" : "slot";
    unsigned long long id = instance->id;
    if (owner == NULL)
        sim_violate(world, "room %llu writes %s %u of %s, which is nobody's", id, kind, target.item,
                    target.node->name);
    else if (owner->instance != instance && !is_left_behind(owner, instance))
        sim_violate(world, "room %llu (%u) writes %s %u of %s, which is room %llu's (%u)", id,
                    instance->uid, kind, target.item, target.node->name,
                    (unsigned long long)owner->instance->id, owner->instance->uid);
    else if (!owner->disclosed)
        sim_violate(world, "room %llu writes %s %u of %s, which no request disclosed", id, kind,
                    target.item, target.node->name);
    else if (sim_is_deceived(owner))
        world->tally->landed_late++;
    else if (owner->safety == KVF_PAGES_SAFE)
        sim_violate(world, "room %llu (%u): a write lands in %s %u of %s after it was called safe",
                    id, instance->uid, kind, target.item, target.node->name);
    else if (owner->safety == KVF_PAGES_RELEASED)
        world->tally->landed_released++;
    else if (owner->ended)
        world->tally->landed_late++;
    *cell_at(&target.node->pool, target.region, target.item, target.cell) = content;
}

/* Success is a promise about every byte: those of the pages, and of as many aux buffers as travel. */
void sim_memory_verify(sim_side *receiver, const sim_side *told)
{
    sim_world *world = receiver->node->world;
    sim_pool *pool = &receiver->node->pool;
    for (uint32_t region = 0; region < SIM_REGIONS; region++) {
        if (region > SIM_BUFFERS && (!receiver->all_aux || (told->node->stock && told != receiver)))
            break; /* a stock prefill means the first one alone */
        bool aux = region >= SIM_BUFFERS;
        for (uint32_t i = 0; i < (aux ? 1 : receiver->page_count); i++) {
            uint32_t item = aux ? receiver->aux_slot : receiver->pages[i];
            for (uint32_t cell = 0; cell < item_length(region) / SIM_CELL; cell++) {
                if (*cell_at(pool, region, item, cell) == sim_content(receiver, region, i, cell))
                    continue;
                sim_violate(world,
                            "room %llu: Success on %s, but cell %u of %s buffer %u, position %u "
                            "(item %u) isn't what was sent",
                            (unsigned long long)receiver->instance->id, told->node->name, cell,
                            aux ? "aux" : "KV", region, i, item);
                return;
            }
        }
    }
}
