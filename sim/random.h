/* Numbers from a seed (splitmix64): the same on every machine. */
#ifndef KVF_SIM_RANDOM_H
#define KVF_SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_random {
    uint64_t state;
} sim_random;

static inline uint64_t sim_mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static inline uint64_t sim_random_next(sim_random *random)
{
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    return sim_mix(random->state);
}

static inline uint64_t sim_random_below(sim_random *random, uint64_t limit)
{
    return sim_random_next(random) % limit;
}

static inline uint64_t sim_random_between(sim_random *random, uint64_t low, uint64_t high)
{
    return low + sim_random_below(random, high - low + 1);
}

static inline bool sim_random_chance(sim_random *random, unsigned per_thousand)
{
    return sim_random_below(random, 1000) < per_thousand;
}

#endif
