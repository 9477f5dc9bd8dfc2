#include "room/action.h"

void kvf_actions_add(kvf_actions *actions, kvf_action_kind kind)
{
    if (actions->count < KVF_ACTIONS_MAX)
        actions->items[actions->count++] = (kvf_action){.kind = kind};
}

void kvf_actions_publish(kvf_actions *actions)
{
    size_t kept = 0;
    for (size_t i = 0; i < actions->count; i++)
        if (actions->items[i].kind != KVF_ACTION_PUBLISH)
            actions->items[kept++] = actions->items[i];
    actions->count = kept;
    kvf_actions_add(actions, KVF_ACTION_PUBLISH);
}

void kvf_actions_add_timer(kvf_actions *actions, uint64_t deadline)
{
    if (actions->count < KVF_ACTIONS_MAX)
        actions->items[actions->count++] =
            (kvf_action){.kind = KVF_ACTION_TIMER, .deadline = deadline};
}
