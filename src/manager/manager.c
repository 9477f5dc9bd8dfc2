/* Opening and closing a manager, waiting for its events, its statistics. */
#include "manager/agent.h"
#include "manager/inbox.h"
#include "manager/messenger.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <uuid/uuid.h>

/* ---- Opening ------------------------------------------------------------------------------------- */

static kvf_status take_settings(kvf_manager *manager, const kvf_settings *settings,
                                kvf_error *error)
{
    if (settings != NULL) {
        manager->settings = *settings;
    } else {
        kvf_status status = kvf_settings_from_environment(&manager->settings, error);
        if (status != KVF_OK)
            return status;
    }
    const kvf_settings *own = &manager->settings;
    char host[KVF_HOST_MAX];
    uint16_t port;
    if (own->bootstrap_address[0] != '\0' &&
        !kvf_parse_address(own->bootstrap_address, false, false, host, &port))
        return kvf_error_set(error, KVF_BAD_SETTING,
                             "setting bootstrap_address: \"%.64s\" is not host:port",
                             own->bootstrap_address);
    if (strlen(own->advertise_address) >= KVF_HOST_MAX)
        return kvf_error_set(error, KVF_BAD_SETTING, "setting advertise_address is too long");
    if (kvf_control_is_wildcard(own->advertise_address))
        return kvf_error_set(error, KVF_BAD_SETTING,
                             "setting advertise_address: peers can't connect to %s, which means "
                             "every address of a machine; name one, or leave it empty to have it "
                             "found (the setting control_address says where to bind)",
                             own->advertise_address);
    manager->profile = kvf_profile_at((size_t)own->profile);
    manager->flavour =
        own->nixl_flavour == 0 ? manager->profile->flavour : (kvf_flavour)own->nixl_flavour;
    manager->timeouts = (kvf_room_timeouts){
        .bootstrap = own->bootstrap_timeout,
        .waiting = own->waiting_timeout,
        .fence = own->fence_timeout,
    };
    manager->server_policy =
        (kvf_lookup_policy){own->retry_interval, (uint32_t)own->http_attempts, false};
    manager->rank_policy =
        (kvf_lookup_policy){own->retry_interval, (uint32_t)own->http_attempts, true};
    return KVF_OK;
}

static kvf_status open_descriptors(kvf_manager *manager, kvf_error *error)
{
    manager->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    manager->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    manager->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (manager->wake_fd < 0 || manager->event_fd < 0 || manager->epoll_fd < 0)
        return kvf_error_set(error, KVF_SYSTEM, "no descriptors for the event loop: %s",
                             strerror(errno));
    return kvf_loop_watch(manager, manager->wake_fd, manager, error);
}

static kvf_status register_buffers(kvf_manager *manager, const char *what,
                                   const kvf_buffer *buffers, size_t count, kvf_error *error)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t region;
        kvf_status status =
            manager->engine->operations->add_region(manager->engine, &buffers[i], &region, error);
        if (status != KVF_OK) {
            kvf_error_prefix(error, "%s %zu (%llu bytes at 0x%llx)", what, i,
                             (unsigned long long)buffers[i].length,
                             (unsigned long long)buffers[i].base);
            return status;
        }
        kvf_bytes_append_u64(&manager->pointers, buffers[i].base);
    }
    return KVF_OK;
}

/* Nobody is told of the engine's own inbox. */
static void notified_unasked(void *user, kvf_slice payload)
{
    (void)payload;
    kvf_count(user, KVF_COUNT_NOTIFICATIONS, 1);
    kvf_drop_notification(user, "it came to an address that no peer was told");
}

static kvf_status open_engine(kvf_manager *manager, kvf_error *error)
{
    kvf_engine_callbacks callbacks = {
        .user = manager, .notified = notified_unasked, .peer_failed = kvf_agent_transport_failed};
    kvf_status status =
        kvf_engine_open(&manager->settings, manager->flavour, &callbacks, &manager->engine, error);
    if (status != KVF_OK)
        return status;
    const kvf_pool *pool = &manager->pool;
    status = register_buffers(manager, "KV buffer", pool->buffers, pool->buffer_count, error);
    if (status == KVF_OK)
        status = register_buffers(manager, "aux buffer", pool->aux, pool->aux_count, error);
    if (status == KVF_OK && manager->pointers.failed)
        status = kvf_error_set(error, KVF_NO_MEMORY, "no memory for the layout");
    if (status == KVF_OK)
        status = kvf_loop_watch(manager, manager->engine->operations->descriptor(manager->engine),
                                manager->engine, error);
    return status;
}

/* Decode listens only to kvferry peers' letters; with extensions off there are none. */
static kvf_status open_control(kvf_manager *manager, kvf_error *error)
{
    kvf_status status = kvf_control_open(&manager->settings, &manager->control, error);
    if (status != KVF_OK || (manager->role == KVF_DECODE && manager->settings.extensions == 0))
        return status;
    const char *host = manager->settings.control_address[0] != '\0'
                           ? manager->settings.control_address
                           : manager->host;
    kvf_control_pull_callbacks callbacks = {
        .user = manager,
        .message = manager->role == KVF_PREFILL ? kvf_incoming_message : kvf_letters_message,
        .gone = manager->role == KVF_PREFILL ? kvf_agent_connection_gone : kvf_rank_letters_gone};
    status = kvf_control_pull_open(manager->control, host, (uint16_t)manager->settings.control_port,
                                   &callbacks, &manager->pull, error);
    if (status != KVF_OK)
        return status;
    manager->port = kvf_control_pull_port(manager->pull);
    manager->told_port = manager->settings.advertise_port == 0
                             ? manager->port
                             : (uint16_t)manager->settings.advertise_port;
    manager->pull_busy = true;
    int descriptors[2];
    size_t count = kvf_control_pull_descriptors(manager->pull, descriptors);
    for (size_t i = 0; status == KVF_OK && i < count; i++)
        status = kvf_loop_watch(manager, descriptors[i], manager->pull, error);
    return status;
}

static kvf_status open_client(kvf_manager *manager, kvf_error *error)
{
    kvf_status status = kvf_bootstrap_client_open(&manager->settings, &manager->client, error);
    if (status != KVF_OK)
        return status;
    return kvf_loop_watch(manager, kvf_bootstrap_client_descriptor(manager->client),
                          manager->client, error);
}

/* The loop's thread takes no signals: they are the application's. */
static kvf_status start_thread(kvf_manager *manager, kvf_error *error)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(&manager->thread, NULL, kvf_loop_run, manager);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure != 0)
        return kvf_error_set(error, KVF_SYSTEM, "no thread for the event loop: %s",
                             strerror(failure));
    (void)pthread_setname_np(manager->thread, "kvferry-loop");
    return KVF_OK;
}

/* Timers that live as long as the manager. */
static kvf_status join_timers(kvf_manager *manager, kvf_error *error)
{
    manager->held_timer.fire = kvf_held_timer;
    manager->registration.timer.fire = kvf_registration_timer;
    if (!kvf_timers_join(&manager->timers) || !kvf_timers_join(&manager->timers))
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory for timers");
    return KVF_OK;
}

static void choose_agent_name(kvf_manager *manager)
{
    uuid_t uuid;
    uuid_generate_random(uuid);
    uuid_unparse_lower(uuid, manager->agent_name);
}

static kvf_status build(kvf_manager *manager, const kvf_layout *layout,
                        const kvf_settings *settings, kvf_error *error)
{
    kvf_status status = take_settings(manager, settings, error);
    if (status == KVF_OK)
        status =
            kvf_pool_build(layout, (size_t)manager->settings.max_buffers, &manager->pool, error);
    if (status != KVF_OK)
        return status;
    choose_agent_name(manager);
    kvf_control_local_host(&manager->settings, manager->host);
    if ((status = open_descriptors(manager, error)) == KVF_OK &&
        (status = join_timers(manager, error)) == KVF_OK &&
        (status = open_engine(manager, error)) == KVF_OK &&
        (status = open_control(manager, error)) == KVF_OK &&
        (status = open_client(manager, error)) == KVF_OK)
        status = start_thread(manager, error);
    return status;
}

/* ---- Closing ------------------------------------------------------------------------------------- */

static void free_senders(kvf_manager *manager)
{
    kvf_room *room;
    kvf_room *next;
    HASH_ITER(by_id, manager->rooms, room, next)
    {
        HASH_DELETE(by_id, manager->rooms, room);
        kvf_sender_free((kvf_sender *)room);
    }
    while (manager->lingering != NULL)
        kvf_sender_free(manager->lingering);
    kvf_incoming_free_all_held(manager);
    kvf_agents_free(manager);
    kvf_messengers_free(manager);
}

static void free_receivers(kvf_manager *manager)
{
    kvf_room *room;
    kvf_room *next;
    HASH_ITER(by_id, manager->rooms, room, next)
    {
        HASH_DELETE(by_id, manager->rooms, room);
        kvf_receiver_free((kvf_receiver *)room);
    }
    while (manager->fencing != NULL)
        kvf_receiver_free(manager->fencing);
    kvf_ranks_free(manager);
    kvf_servers_free(manager);
    kvf_inboxes_free(manager);
}

static void close_descriptor(int descriptor)
{
    if (descriptor >= 0)
        (void)close(descriptor);
}

/* The engine goes first: after that nothing reads or writes what the rooms own. */
static void destroy(kvf_manager *manager)
{
    if (manager->engine != NULL)
        manager->engine->operations->close(manager->engine);
    manager->engine = NULL;
    if (manager->role == KVF_PREFILL)
        free_senders(manager);
    else
        free_receivers(manager);
    kvf_formers_free(&manager->formers);
    if (manager->client != NULL)
        kvf_bootstrap_client_close(manager->client);
    /* Before the peers see their connections to us end. */
    if (manager->control != NULL)
        kvf_control_hand_over(manager->control);
    if (manager->pull != NULL)
        kvf_control_pull_close(manager->pull);
    if (manager->control != NULL)
        kvf_control_close(manager->control);
    kvf_timers_free(&manager->timers);
    kvf_bytes_free(&manager->pointers);
    kvf_pool_free(&manager->pool);
    close_descriptor(manager->epoll_fd);
    close_descriptor(manager->event_fd);
    close_descriptor(manager->wake_fd);
    pthread_cond_destroy(&manager->settled);
    pthread_mutex_destroy(&manager->lock);
    free(manager);
}

/* On the clock that isn't set. */
static void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

kvf_status kvf_manager_open(kvf_manager **manager, kvf_role role, const kvf_layout *layout,
                            const kvf_settings *settings)
{
    if (manager != NULL)
        *manager = NULL;
    if (manager == NULL || layout == NULL)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT, "kvf_manager_open: an argument is NULL");
    if (role != KVF_PREFILL && role != KVF_DECODE)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT,
                                  "role %d is neither KVF_PREFILL nor KVF_DECODE", (int)role);
    kvf_manager *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return kvf_last_error_set(KVF_NO_MEMORY, "no memory for a manager");
    opened->role = role;
    opened->wake_fd = opened->event_fd = opened->epoll_fd = -1;
    pthread_mutex_init(&opened->lock, NULL);
    init_condition(&opened->settled);
    kvf_error error;
    if (build(opened, layout, settings, &error) != KVF_OK) {
        destroy(opened);
        return kvf_last_error_keep(&error);
    }
    *manager = opened;
    return KVF_OK;
}

void kvf_manager_close(kvf_manager *manager)
{
    if (manager == NULL)
        return;
    pthread_mutex_lock(&manager->lock);
    manager->stopping = true;
    pthread_mutex_unlock(&manager->lock);
    kvf_wake(manager);
    (void)pthread_join(manager->thread, NULL);
    destroy(manager);
}

/* ---- Waiting and watching ------------------------------------------------------------------------ */

int kvf_manager_wait(kvf_manager *manager, kvf_event *events, size_t capacity, int timeout_ms)
{
    if (manager == NULL || events == NULL || capacity == 0)
        return -(int)kvf_last_error_set(KVF_INVALID_ARGUMENT,
                                        "kvf_manager_wait: an argument is NULL or 0");
    uint64_t deadline =
        timeout_ms < 0 ? KVF_NEVER
                       : kvf_clock_after(kvf_clock_now(), (uint64_t)timeout_ms * KVF_MILLISECOND);
    for (;;) {
        int count = kvf_events_take(manager, events, capacity);
        if (count > 0 || timeout_ms == 0)
            return count;
        uint64_t now = kvf_clock_now();
        if (now >= deadline)
            return 0;
        struct pollfd descriptor = {.fd = manager->event_fd, .events = POLLIN};
        if (poll(&descriptor, 1, kvf_clock_wait(now, deadline)) < 0 && errno != EINTR)
            return -(int)kvf_last_error_set(KVF_SYSTEM, "poll: %s", strerror(errno));
    }
}

int kvf_manager_fd(const kvf_manager *manager)
{
    return manager->event_fd;
}

uint16_t kvf_manager_port(const kvf_manager *manager)
{
    return manager->port;
}

static void read_counters(kvf_manager *manager, kvf_statistics *statistics)
{
    uint64_t *const fields[KVF_COUNTERS] = {
        [KVF_COUNT_ROOMS_OPENED] = &statistics->rooms_opened,
        [KVF_COUNT_ROOMS_SUCCEEDED] = &statistics->rooms_succeeded,
        [KVF_COUNT_ROOMS_FAILED] = &statistics->rooms_failed,
        [KVF_COUNT_REQUESTS_HELD] = &statistics->requests_held,
        [KVF_COUNT_REQUESTS_EXPIRED] = &statistics->requests_expired,
        [KVF_COUNT_PEERS] = &statistics->peers,
        [KVF_COUNT_PEERS_LOST] = &statistics->peers_lost,
        [KVF_COUNT_MESSAGES] = &statistics->messages_received,
        [KVF_COUNT_MESSAGES_DROPPED] = &statistics->messages_dropped,
        [KVF_COUNT_NOTIFICATIONS] = &statistics->notifications_received,
        [KVF_COUNT_NOTIFICATIONS_DROPPED] = &statistics->notifications_dropped,
        [KVF_COUNT_PAGES_SENT] = &statistics->pages_sent,
        [KVF_COUNT_WRITES] = &statistics->writes_posted,
        [KVF_COUNT_BYTES] = &statistics->bytes_written,
        [KVF_COUNT_TRANSFERS] = &statistics->transfers_active,
        [KVF_COUNT_REGISTERED] = &statistics->registered,
        [KVF_COUNT_ROOMS_FENCING] = &statistics->rooms_fencing,
        [KVF_COUNT_ROOMS_RELEASED] = &statistics->rooms_released,
    };
    for (size_t i = 0; i < KVF_COUNTERS; i++)
        *fields[i] = kvf_counter_value(manager, (kvf_counter)i);
}

/* A caller built against an earlier version has a shorter struct, and gets as much as it knows. */
kvf_status kvf_manager_statistics(kvf_manager *manager, kvf_statistics *statistics)
{
    kvf_statistics all = {.size = sizeof all};
    if (manager == NULL || statistics == NULL || statistics->size < sizeof statistics->size)
        return kvf_last_error_set(KVF_INVALID_ARGUMENT,
                                  "kvf_manager_statistics: set size to sizeof(kvf_statistics)");
    pthread_mutex_lock(&manager->lock);
    all.rooms_open = HASH_CNT(by_id, manager->rooms);
    pthread_mutex_unlock(&manager->lock);
    read_counters(manager, &all);
    if (statistics->size < all.size)
        all.size = statistics->size;
    memcpy(statistics, &all, all.size);
    return KVF_OK;
}
