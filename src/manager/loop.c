/* The event loop: one thread, asleep in epoll unless something has happened, working in slices so that
 * nothing waits behind a big room. */
#include "manager/agent.h"
#include "manager/inbox.h"
#include "manager/work.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

/* What one slice gives to each part before the others have their turn. */
#define SLICE_CALLS 256
#define SLICE_TIMERS 256
#define SLICE_TRANSFERS (200 * KVF_MICROSECOND)
#define SLICE_EVENTS 64

#define MARK_INTERVAL (100 * KVF_MILLISECOND)

kvf_status kvf_loop_watch(kvf_manager *manager, int descriptor, void *tag, kvf_error *error)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = tag};
    if (epoll_ctl(manager->epoll_fd, EPOLL_CTL_ADD, descriptor, &event) != 0)
        return kvf_error_set(error, KVF_SYSTEM, "epoll_ctl: %s", strerror(errno));
    return KVF_OK;
}

void kvf_loop_forget(kvf_manager *manager, int descriptor)
{
    (void)epoll_ctl(manager->epoll_fd, EPOLL_CTL_DEL, descriptor, NULL);
}

static void run_call(kvf_manager *manager, kvf_call *call)
{
    if (manager->role == KVF_PREFILL)
        kvf_sender_call((kvf_sender *)call->room, call);
    else
        kvf_receiver_call((kvf_receiver *)call->room, call);
}

static bool run_calls(kvf_manager *manager)
{
    if (manager->taken_calls == NULL)
        manager->taken_calls = kvf_calls_take(manager);
    for (int i = 0; i < SLICE_CALLS && manager->taken_calls != NULL; i++) {
        kvf_call *call = manager->taken_calls;
        manager->taken_calls = call->next;
        run_call(manager, call);
    }
    return manager->taken_calls != NULL;
}

static bool run_control(kvf_manager *manager)
{
    bool more = kvf_links_process(manager);
    if (manager->pull_busy)
        manager->pull_busy = kvf_control_pull_process(manager->pull);
    return more || manager->pull_busy;
}

static void run_client(kvf_manager *manager)
{
    if (!manager->client_busy && kvf_bootstrap_client_deadline(manager->client) > manager->now)
        return;
    manager->client_busy = false;
    kvf_bootstrap_client_process(manager->client);
}

/* True when there is more to do at once. */
static bool slice(kvf_manager *manager)
{
    bool more = run_calls(manager);
    more |= run_control(manager);
    run_client(manager);
    more |= manager->engine->operations->progress(manager->engine, SLICE_TRANSFERS);
    more |= kvf_work_run(manager);
    manager->now = kvf_clock_now();
    more |= kvf_timers_run(&manager->timers, manager->now, SLICE_TIMERS);
    if (manager->dead_agents != NULL)
        kvf_agents_reap(manager);
    if (manager->reap_receivers)
        kvf_receivers_reap(manager);
    if (manager->reap_inboxes)
        kvf_inboxes_reap(manager);
    return more || manager->busy_links != NULL;
}

static void mark(kvf_manager *manager, void *tag)
{
    if (tag == manager->client)
        manager->client_busy = true;
    else if (tag == manager->pull)
        manager->pull_busy = true;
    else if (tag != manager && tag != manager->engine)
        ((kvf_watch *)tag)->ready(tag);
}

static uint64_t earlier(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

/* With peers to lose a prefill sleeps for half as long as it may be silent: else it couldn't tell sleep from having
 * been stopped. */
static uint64_t next_deadline(const kvf_manager *manager)
{
    uint64_t look = kvf_clock_after(manager->now, manager->patience / 2);
    return earlier(look, earlier(kvf_timers_next(&manager->timers),
                                 kvf_bootstrap_client_deadline(manager->client)));
}

/* What this thread worked isn't silence, however long one turn takes: ZeroMQ's own thread answers the heartbeats
 * meanwhile. That clock costs a system call, so it is read rarely; the few sleeps since then count as silence. */
static uint64_t silence_until(const kvf_manager *manager, uint64_t elapsed)
{
    uint64_t passed = elapsed - manager->mark;
    uint64_t worked = kvf_clock_worked() - manager->mark_worked;
    return worked < passed ? passed - worked : 0;
}

/* Who was stopped for longer than a peer waits may have been given up by it, and what it still had to write may be
 * another room's by now. Seen before anything else is done. */
static void look_for_a_stop(kvf_manager *manager)
{
    uint64_t elapsed = kvf_clock_elapsed();
    if (elapsed - manager->last_turn > manager->patience)
        kvf_agents_give_up(manager, silence_until(manager, elapsed));
    manager->last_turn = elapsed;
    if (elapsed - manager->mark > MARK_INTERVAL) {
        manager->mark = elapsed;
        manager->mark_worked = kvf_clock_worked();
    }
    if (manager->patience_stale)
        kvf_agents_find_patience(manager);
    manager->engine->post_until =
        manager->patience == KVF_NEVER ? 0 : kvf_clock_after(elapsed, manager->patience);
}

/* Sleeps until something happens, or only looks when there is more to do. */
static bool wait_for_events(kvf_manager *manager, bool look_only, uint64_t until)
{
    struct epoll_event events[SLICE_EVENTS];
    int timeout = 0;
    if (!look_only && manager->engine->operations->arm(manager->engine))
        timeout = kvf_clock_wait(kvf_clock_now(), earlier(next_deadline(manager), until));
    int count = epoll_wait(manager->epoll_fd, events, SLICE_EVENTS, timeout);
    manager->now = kvf_clock_now();
    look_for_a_stop(manager);
    for (int i = 0; i < count; i++)
        mark(manager, events[i].data.ptr);
    return count > 0;
}

static bool is_stopping(kvf_manager *manager)
{
    pthread_mutex_lock(&manager->lock);
    bool stopping = manager->stopping;
    pthread_mutex_unlock(&manager->lock);
    return stopping;
}

/* Whether to stop is asked after each slice, which empties the descriptor that the order comes with: asked before it,
 * the loop could sleep on the order. */
static void run(kvf_manager *manager)
{
    uint64_t last_activity = manager->now;
    for (;;) {
        bool more = slice(manager);
        if (is_stopping(manager))
            return;
        bool spin = manager->now - last_activity < manager->settings.spin;
        if (wait_for_events(manager, more || spin, KVF_NEVER) || more)
            last_activity = manager->now;
    }
}

static void shut_down(kvf_manager *manager, kvf_room *room)
{
    if (manager->role == KVF_DECODE) {
        kvf_receiver_feed((kvf_receiver *)room,
                          &(kvf_receiver_event){.kind = KVF_RECEIVER_SHUTDOWN});
        return;
    }
    kvf_sender_feed((kvf_sender *)room, &(kvf_sender_event){.kind = KVF_SENDER_SHUTDOWN});
    kvf_sender_release((kvf_sender *)room);
}

/* Writes that are under way, from our pages or perhaps into them: the caller may unmap them when we are done. */
static bool pages_are_in_use(kvf_manager *manager)
{
    return kvf_counter_value(manager, KVF_COUNT_TRANSFERS) > 0 ||
           kvf_counter_value(manager, KVF_COUNT_ROOMS_FENCING) > 0;
}

/* What peers are to hear and can still be told. */
static bool letters_wait(const kvf_manager *manager)
{
    for (const kvf_agent *agent = manager->agents; agent != NULL; agent = agent->by_name.next)
        if (agent->letters != NULL && (agent->link.busy || kvf_link_is_open(&agent->link)))
            return true;
    return false;
}

/* Ends every room, then waits a while for what may still touch their pages, and until the peers can be told. What the
 * connections have taken by then leaves when they are closed, in the time that is left. */
static void wind_up(kvf_manager *manager)
{
    kvf_error error;
    do {
        while (run_calls(manager))
            ;
        manager->taken_calls = kvf_calls_take(manager);
    } while (manager->taken_calls != NULL);
    kvf_room *room;
    kvf_room *next;
    HASH_ITER(by_id, manager->rooms, room, next)
    {
        shut_down(manager, room);
    }
    kvf_error_set(&error, KVF_SHUTDOWN, "the manager was closed");
    kvf_incoming_refuse_all_held(manager, &error);
    uint64_t deadline = kvf_clock_after(manager->now, manager->settings.close_timeout);
    while ((pages_are_in_use(manager) || letters_wait(manager)) && manager->now < deadline) {
        bool more = slice(manager);
        kvf_incoming_refuse_all_held(manager, &error);
        (void)wait_for_events(manager, more, deadline);
    }
    kvf_control_linger(manager->control, manager->now < deadline ? deadline - manager->now : 0);
}

void *kvf_loop_run(void *user)
{
    kvf_manager *manager = user;
    manager->now = kvf_clock_now();
    manager->last_turn = manager->mark = kvf_clock_elapsed();
    manager->mark_worked = kvf_clock_worked();
    manager->patience = KVF_NEVER;
    if (manager->role == KVF_PREFILL && manager->settings.bootstrap_address[0] != '\0')
        kvf_registration_start(manager);
    run(manager);
    wind_up(manager);
    return NULL;
}
