#include "manager/inbox.h"
#include "room/fence.h"

#include <poll.h>
#include <stdlib.h>
#include <unistd.h>
#include <uuid/uuid.h>

/* ---- What peers are told ------------------------------------------------------------------------ */

/* KV regions are labelled and numbered as the profile's peers expect, whatever the memory is. */
static kvf_status build_metadata(kvf_inbox *inbox, kvf_error *error)
{
    const kvf_manager *manager = inbox->manager;
    const kvf_pool *pool = &manager->pool;
    const kvf_engine_operations *operations = manager->engine->operations;
    kvf_slice (*key_of)(const kvf_engine *, uint32_t) =
        inbox->extended ? operations->region_key : operations->portable_region_key;
    size_t count = pool->buffer_count + pool->aux_count;
    kvf_descriptor *descriptors = calloc(count, sizeof *descriptors);
    if (descriptors == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for an agent's metadata");
    for (size_t i = 0; i < count; i++) {
        bool is_aux = i >= pool->buffer_count;
        const kvf_buffer *buffer = is_aux ? &pool->aux[i - pool->buffer_count] : &pool->buffers[i];
        descriptors[i] = (kvf_descriptor){.base = buffer->base,
                                          .length = buffer->length,
                                          .device = is_aux ? 0 : pool->device,
                                          .kind = is_aux ? manager->profile->aux_kind
                                                         : manager->profile->buffer_kind,
                                          .key = key_of(manager->engine, (uint32_t)i)};
    }
    kvf_metadata metadata = {.agent_name = kvf_slice_of(inbox->agent_name),
                             .worker_address = operations->inbox_address(inbox->engine),
                             .descriptors = descriptors,
                             .descriptor_count = count};
    kvf_status status = kvf_metadata_encode(&metadata, manager->flavour, &inbox->metadata, error);
    free(descriptors);
    return status;
}

/* Memory of this host is offered only to who is seen here: what isn't offered needs no fence. */
static unsigned reach_of(const kvf_rank *rank)
{
    const kvf_settings *settings = &rank->manager->settings;
    unsigned reach = 0;
    if (rank->process.inode == 0 && settings->same_host == 0)
        reach |= KVF_REACH_NETWORK;
    if (kvf_rank_is_extended(rank))
        return reach;
    reach |= KVF_REACH_PORTABLE;
    return settings->fence == 0 ? reach : reach | KVF_REACH_FENCEABLE;
}

/* ---- What arrives ------------------------------------------------------------------------------- */

static kvf_target *find_room(const kvf_inbox *inbox, uint64_t room)
{
    kvf_target *target;
    kvf_target *next;
    if (!inbox->extended)
        return kvf_inbox_target(inbox, room, room);
    HASH_ITER(by_key, inbox->targets, target, next)
    {
        if (target->receiver->room.id == room)
            return target;
    }
    return NULL;
}

/* A rank that was only assumed to be kvferry, and isn't, knows no epochs, writes the first aux buffer alone, and sends
 * no sums. */
static kvf_target *find_mistaken(kvf_inbox *inbox, uint64_t room)
{
    kvf_target *target = find_room(inbox, room);
    if (target == NULL)
        return NULL;
    target->receiver->all_aux = false;
    kvf_checking_mistaken(target->receiver);
    return target;
}

static kvf_target *find_target(kvf_inbox *inbox, const kvf_notice *notice)
{
    if (!inbox->extended)
        return notice->epoch == 0 ? kvf_inbox_target(inbox, notice->room, notice->room) : NULL;
    if (notice->epoch == 0)
        return inbox->rank->shown ? NULL : find_mistaken(inbox, notice->room);
    kvf_target *target = kvf_inbox_target(inbox, notice->epoch, notice->room);
    if (target != NULL)
        kvf_rank_show(inbox->rank);
    return target;
}

/* A notification counts only for a room that asked for it through this very inbox. */
static void notified(void *user, kvf_slice payload)
{
    kvf_inbox *inbox = user;
    kvf_receiver_event event = {.kind = KVF_RECEIVER_NOTICE};
    kvf_notice notice;
    kvf_slice text;
    kvf_error error;
    kvf_count(inbox->manager, KVF_COUNT_NOTIFICATIONS, 1);
    if (kvf_notice_payload_decode(payload, &event.agent_name, &text, &error) != KVF_OK ||
        kvf_notice_parse(text, &notice, &error) != KVF_OK) {
        kvf_drop_notification(inbox->manager, error.text);
        return;
    }
    kvf_target *target = find_target(inbox, &notice);
    if (target == NULL) {
        kvf_drop_notification(inbox->manager, "no room of its peer waits for it");
        return;
    }
    event.notice = &notice;
    kvf_checking_notice(target->receiver, &event);
}

/* ---- Coming and going --------------------------------------------------------------------------- */

static void free_inbox(kvf_inbox *inbox)
{
    kvf_manager *manager = inbox->manager;
    HASH_DELETE(by_name, manager->inboxes, inbox);
    if (inbox->exit_fd >= 0) {
        kvf_loop_forget(manager, inbox->exit_fd);
        (void)close(inbox->exit_fd);
    }
    kvf_bytes_free(&inbox->metadata);
    free(inbox);
}

static bool is_unused(const kvf_inbox *inbox)
{
    return inbox->targets == NULL && inbox->holds == 0 && inbox->rank->inbox != inbox;
}

/* One that is retired or closed, without rooms, is of no use any more. This may be inside a callback of the engine, where
 * none can be closed. */
static void release(kvf_inbox *inbox)
{
    if (!is_unused(inbox))
        return;
    if (inbox->engine == NULL)
        free_inbox(inbox);
    else
        inbox->manager->reap_inboxes = true;
}

static void writer_exited(kvf_watch *watch);

static kvf_inbox *new_inbox(kvf_rank *rank)
{
    kvf_manager *manager = rank->manager;
    kvf_inbox *inbox = calloc(1, sizeof *inbox);
    if (inbox == NULL)
        return NULL;
    uuid_t uuid;
    uuid_generate_random(uuid);
    uuid_unparse_lower(uuid, inbox->agent_name);
    inbox->manager = manager;
    inbox->rank = rank;
    inbox->extended = kvf_rank_is_extended(rank);
    inbox->exit_fd = -1;
    inbox->exit_watch.ready = writer_exited;
    unsigned before = HASH_CNT(by_name, manager->inboxes);
    HASH_ADD(by_name, manager->inboxes, agent_name, strlen(inbox->agent_name), inbox);
    if (HASH_CNT(by_name, manager->inboxes) != before)
        return inbox;
    free(inbox);
    return NULL;
}

kvf_inbox *kvf_inbox_of(kvf_rank *rank, kvf_error *error)
{
    if (rank->inbox != NULL)
        return rank->inbox;
    const kvf_engine_operations *operations = rank->manager->engine->operations;
    kvf_inbox *inbox = new_inbox(rank);
    if (inbox == NULL) {
        kvf_error_set(error, KVF_NO_MEMORY, "no memory for an inbox");
        return NULL;
    }
    kvf_inbox_options options = {.reach = reach_of(rank), .user = inbox, .notified = notified};
    kvf_status status =
        operations->open_inbox(rank->manager->engine, &options, &inbox->engine, error);
    if (status == KVF_OK) {
        inbox->direct = operations->inbox_is_direct(inbox->engine);
        if (inbox->direct) /* then only the end of the writing process is a fence */
            kvf_peer_process_hold(&rank->process);
        status = build_metadata(inbox, error);
    }
    if (status != KVF_OK) {
        if (inbox->engine != NULL)
            operations->close_inbox(rank->manager->engine, inbox->engine);
        free_inbox(inbox);
        return NULL;
    }
    rank->inbox = inbox;
    return inbox;
}

kvf_inbox *kvf_inbox_find(kvf_manager *manager, kvf_slice agent_name)
{
    kvf_inbox *inbox = NULL;
    HASH_FIND(by_name, manager->inboxes, agent_name.data, agent_name.length, inbox);
    return inbox;
}

bool kvf_inbox_add(kvf_inbox *inbox, kvf_target *target, uint64_t key)
{
    unsigned before = HASH_CNT(by_key, inbox->targets);
    target->key = key;
    HASH_ADD(by_key, inbox->targets, key, sizeof target->key, target);
    if (HASH_CNT(by_key, inbox->targets) == before)
        return false;
    target->inbox = inbox;
    return true;
}

void kvf_inbox_remove(kvf_target *target)
{
    kvf_inbox *inbox = target->inbox;
    if (inbox == NULL)
        return;
    HASH_DELETE(by_key, inbox->targets, target);
    target->inbox = NULL;
    release(inbox);
}

kvf_target *kvf_inbox_target(const kvf_inbox *inbox, uint64_t key, uint64_t room)
{
    kvf_target *target = NULL;
    HASH_FIND(by_key, inbox->targets, &key, sizeof key, target);
    return target != NULL && target->receiver->room.id == room ? target : NULL;
}

bool kvf_inboxes_serve(const kvf_rank *rank, uint64_t room)
{
    const kvf_inbox *inbox;
    const kvf_inbox *next;
    HASH_ITER(by_name, rank->manager->inboxes, inbox, next)
    {
        if (inbox->rank == rank && find_room(inbox, room) != NULL)
            return true;
    }
    return false;
}

void kvf_inbox_retire(kvf_inbox *inbox)
{
    if (inbox->rank->inbox == inbox)
        inbox->rank->inbox = NULL;
}

/* ---- Closing, and what that proves -------------------------------------------------------------- */

/* Each room that is proven safe leaves the table; open rooms have failed before. */
static void prove_all(kvf_inbox *inbox, kvf_proof proof)
{
    kvf_target *target;
    kvf_target *next;
    inbox->holds++;
    HASH_ITER(by_key, inbox->targets, target, next)
    {
        kvf_receiver_prove(target->receiver, proof);
    }
    inbox->holds--;
}

static void writer_exited(kvf_watch *watch)
{
    kvf_inbox *inbox = (kvf_inbox *)((char *)watch - offsetof(kvf_inbox, exit_watch));
    kvf_loop_forget(inbox->manager, inbox->exit_fd);
    (void)close(inbox->exit_fd);
    inbox->exit_fd = -1;
    prove_all(inbox, kvf_fence_proof(inbox->direct, true));
    release(inbox);
}

/* epoll tells at once when the process is gone already. */
static void await_exit(kvf_inbox *inbox)
{
    kvf_error error;
    int process = inbox->rank->process.exit_fd;
    inbox->exit_fd = process < 0 ? -1 : dup(process);
    if (inbox->exit_fd < 0)
        return;
    if (kvf_loop_watch(inbox->manager, inbox->exit_fd, &inbox->exit_watch, &error) == KVF_OK)
        return;
    (void)close(inbox->exit_fd);
    inbox->exit_fd = -1;
}

void kvf_inbox_close(kvf_inbox *inbox)
{
    kvf_manager *manager = inbox->manager;
    kvf_inbox_retire(inbox);
    if (inbox->engine == NULL)
        return;
    manager->engine->operations->close_inbox(manager->engine, inbox->engine);
    inbox->engine = NULL;
    kvf_proof proof = kvf_fence_proof(inbox->direct, false);
    if (proof != KVF_PROOF_NONE)
        prove_all(inbox, proof);
    else if (inbox->targets != NULL)
        await_exit(inbox);
    release(inbox);
}

void kvf_inboxes_close(kvf_rank *rank)
{
    kvf_inbox *inbox;
    kvf_inbox *next;
    HASH_ITER(by_name, rank->manager->inboxes, inbox, next)
    {
        if (inbox->rank == rank)
            kvf_inbox_close(inbox);
    }
}

void kvf_inboxes_reap(kvf_manager *manager)
{
    kvf_inbox *inbox;
    kvf_inbox *next;
    manager->reap_inboxes = false;
    HASH_ITER(by_name, manager->inboxes, inbox, next)
    {
        if (is_unused(inbox))
            kvf_inbox_close(inbox);
    }
}

void kvf_inboxes_free(kvf_manager *manager)
{
    kvf_inbox *inbox;
    kvf_inbox *next;
    HASH_ITER(by_name, manager->inboxes, inbox, next)
    {
        free_inbox(inbox);
    }
}
