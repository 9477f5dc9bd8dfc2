#include "room/action.h"

void kvf_actions_add(kvf_actions *actions, kvf_action_kind kind)
{
    if (actions->count < KVF_ACTIONS_MAX)
        actions->items[actions->count++] = (kvf_action){.kind = kind};
}

void kvf_actions_add_timer(kvf_actions *actions, uint64_t deadline)
{
    if (actions->count < KVF_ACTIONS_MAX)
        actions->items[actions->count++] =
            (kvf_action){.kind = KVF_ACTION_TIMER, .deadline = deadline};
}
