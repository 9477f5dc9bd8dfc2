#include "room/arrivals.h"

#include <stdlib.h>
#include <string.h>

void kvf_arrivals_free(kvf_arrivals *arrivals)
{
    free(arrivals->more_chunks);
    arrivals->more_chunks = NULL;
    arrivals->more_bytes = 0;
}

bool kvf_arrivals_has(const kvf_arrivals *arrivals, uint32_t chunk)
{
    if (chunk < 64)
        return (arrivals->first_chunks >> chunk & 1) != 0;
    uint32_t bit = chunk - 64;
    return bit / 8 < arrivals->more_bytes && (arrivals->more_chunks[bit / 8] >> (bit % 8) & 1) != 0;
}

/* False without memory. Grows by doubling, at most to one bit a page. */
static bool add_chunk(kvf_arrivals *arrivals, uint32_t chunk)
{
    arrivals->chunk_count++;
    if (chunk > arrivals->highest_chunk)
        arrivals->highest_chunk = chunk;
    if (chunk < 64) {
        arrivals->first_chunks |= UINT64_C(1) << chunk;
        return true;
    }
    uint32_t bit = chunk - 64;
    if (bit / 8 >= arrivals->more_bytes) {
        uint32_t bytes =
            bit / 8 + 1 > 2 * arrivals->more_bytes ? bit / 8 + 1 : 2 * arrivals->more_bytes;
        uint8_t *grown = realloc(arrivals->more_chunks, bytes);
        if (grown == NULL)
            return false;
        memset(grown + arrivals->more_bytes, 0, bytes - arrivals->more_bytes);
        arrivals->more_chunks = grown;
        arrivals->more_bytes = bytes;
    }
    arrivals->more_chunks[bit / 8] = (uint8_t)(arrivals->more_chunks[bit / 8] | 1U << (bit % 8));
    return true;
}

/* A room of n pages has at most n chunks, an empty room one. */
static uint32_t chunk_limit(const kvf_arrivals *arrivals)
{
    return arrivals->page_count == 0 ? 1 : arrivals->page_count;
}

/* What speaks against a chunk; KVF_OK for nothing. */
static kvf_status check_chunk(const kvf_arrivals *arrivals, uint32_t chunk, bool last,
                              kvf_error *error)
{
    const char *who = arrivals->agent_name;
    if (chunk >= chunk_limit(arrivals))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "agent %s sent chunk %u, but a room of %u pages has at most %u chunks",
                             who, chunk, arrivals->page_count, chunk_limit(arrivals));
    if (arrivals->last_known &&
        (chunk > arrivals->last_chunk || last != (chunk == arrivals->last_chunk)))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "agent %s sent chunk %u marked %s, after chunk %u was marked last",
                             who, chunk, last ? "last" : "not last", arrivals->last_chunk);
    if (!arrivals->last_known && last && kvf_arrivals_has(arrivals, chunk))
        return kvf_error_set(error, KVF_PROTOCOL,
                             "agent %s sent chunk %u twice, the second time marked last", who,
                             chunk);
    if (!arrivals->last_known && last && arrivals->chunk_count > 0 &&
        arrivals->highest_chunk > chunk)
        return kvf_error_set(error, KVF_PROTOCOL,
                             "agent %s marked chunk %u last, but chunk %u had arrived", who, chunk,
                             arrivals->highest_chunk);
    return KVF_OK;
}

/* False when the chunk says nothing new; `error` is set where it can't be. */
static bool count_chunk(kvf_arrivals *arrivals, uint32_t chunk, bool last, kvf_error *error)
{
    if (check_chunk(arrivals, chunk, last, error) != KVF_OK) {
        arrivals->contradicted = true;
        return true;
    }
    if (kvf_arrivals_has(arrivals, chunk))
        return false;
    if (!add_chunk(arrivals, chunk)) {
        kvf_error_set(error, KVF_NO_MEMORY, "no memory to count chunks");
        return true;
    }
    if (last) {
        arrivals->last_known = true;
        arrivals->last_chunk = chunk;
    }
    return true;
}

static bool pin(kvf_arrivals *arrivals, kvf_slice agent_name)
{
    if (arrivals->agent_name[0] == '\0')
        return agent_name.length > 0 &&
               kvf_slice_to_text(agent_name, arrivals->agent_name, sizeof arrivals->agent_name);
    return kvf_slice_equal(kvf_slice_of(arrivals->agent_name), agent_name);
}

bool kvf_arrivals_take(kvf_arrivals *arrivals, kvf_slice agent_name, const kvf_notice *notice,
                       kvf_error *error)
{
    error->status = KVF_OK;
    error->text[0] = '\0';
    if (notice->kind == KVF_NOTICE_UNKNOWN || !pin(arrivals, agent_name))
        return false;
    if (notice->kind == KVF_NOTICE_CHUNK)
        return count_chunk(arrivals, notice->chunk, notice->last, error);
    if (arrivals->aux_arrived)
        return false;
    arrivals->aux_arrived = true;
    return true;
}

bool kvf_arrivals_are_complete(const kvf_arrivals *arrivals)
{
    return arrivals->aux_arrived && arrivals->last_known && !arrivals->contradicted &&
           arrivals->chunk_count == arrivals->last_chunk + 1;
}
