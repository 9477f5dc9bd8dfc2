/* What the two sides of a trial transfer, --serve and --peer, know of each other beforehand. */
#ifndef KVFERRY_TOOL_DOCTOR_TRIAL_H
#define KVFERRY_TOOL_DOCTOR_TRIAL_H

#include "pool.h"

/* The server has this many rooms open at any time, from the first on; a peer picks some at random.
 * Routers draw room numbers from 2^63, so no request is ever given one of these. */
#define TRIAL_FIRST_ROOM (UINT64_C(1) << 62)
enum { TRIAL_ROOMS = 1024, TRIAL_PAGES = 64, TRIAL_SEED = 62 };

/* 2 MiB in eight buffers, and one aux record; the pool holds twice the pages. */
extern const pool_shape trial_shape;

/* Which pages are sent and, in the same order, which are filled: half of them lie side by side on both
 * sides and become one long write (for which UCX takes another way, e.g. CMA), half don't. */
void trial_pages(kvf_role role, uint32_t pages[TRIAL_PAGES]);

kvf_layout trial_layout(const tool_pool *pool);

#endif
