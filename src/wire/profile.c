#include "wire/profile.h"

static const kvf_profile profiles[] = {
    {"sglang-0.4.7", 8, KVF_FLAVOUR_P031, KVF_NIXL_VRAM, KVF_NIXL_DRAM},
    {"sglang-0.4.7.post1", 4, KVF_FLAVOUR_P031, KVF_NIXL_VRAM, KVF_NIXL_DRAM},
};

const kvf_profile *kvf_profile_at(size_t index)
{
    return index < sizeof profiles / sizeof profiles[0] ? &profiles[index] : NULL;
}

unsigned kvf_flavour_notification_id(kvf_flavour flavour)
{
    return flavour == KVF_FLAVOUR_P031 ? 1 : 0;
}
