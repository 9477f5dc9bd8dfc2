/* A prefill rank's row at the bootstrap server: put there, looked at from time to time, and put there again
 * when the server has lost it. */
#include "manager/manager.h"

static void pause(kvf_manager *manager, uint64_t duration)
{
    kvf_timers_set(&manager->timers, &manager->registration.timer,
                   kvf_clock_after(manager->now, duration));
}

/* Tries again, ever more slowly. The trouble is logged when it starts. */
static void retry(kvf_manager *manager, const kvf_error *error)
{
    kvf_registration *registration = &manager->registration;
    if (!registration->troubled)
        kvf_log_warning(&manager->settings.log,
                        "registering at %s does not work, and is tried again: %s",
                        manager->settings.bootstrap_address, error->text);
    registration->troubled = true;
    pause(manager, kvf_backoff(manager->settings.retry_interval, registration->pauses++));
}

static void mark(kvf_manager *manager, bool registered)
{
    kvf_registration *registration = &manager->registration;
    if (registration->registered == registered)
        return;
    registration->registered = registered;
    if (registered)
        kvf_count(manager, KVF_COUNT_REGISTERED, 1);
    else
        kvf_uncount(manager, KVF_COUNT_REGISTERED, 1);
}

static void put_answered(void *user, const kvf_bootstrap_answer *answer)
{
    kvf_manager *manager = user;
    kvf_registration *registration = &manager->registration;
    registration->call = NULL;
    if (answer->outcome != KVF_BOOTSTRAP_ANSWERED) {
        mark(manager, false);
        retry(manager, &answer->error);
        return;
    }
    kvf_log_info(&manager->settings.log, "registered at %s as rank %u, reached at %s port %u",
                 manager->settings.bootstrap_address, registration->row.engine_rank,
                 registration->row.rank_ip, (unsigned)registration->row.rank_port);
    registration->troubled = false;
    registration->pauses = 0;
    mark(manager, true);
    pause(manager, manager->settings.registration_check);
}

static void put(kvf_manager *manager)
{
    kvf_registration *registration = &manager->registration;
    kvf_error error;
    if (kvf_bootstrap_put(manager->client, manager->settings.bootstrap_address, &registration->row,
                          put_answered, manager, &registration->call, &error) != KVF_OK) {
        registration->call = NULL;
        retry(manager, &error);
    }
}

static bool is_our_row(const kvf_registration *registration, const kvf_route_rank *rank)
{
    return rank->rank_port == registration->row.rank_port &&
           strcmp(rank->rank_ip, registration->row.rank_ip) == 0;
}

/* A server that doesn't answer now still has the row, as far as we know; one that answers without it, or with
 * another address, has been restarted or overwritten. */
static void check_answered(void *user, const kvf_bootstrap_answer *answer)
{
    kvf_manager *manager = user;
    kvf_registration *registration = &manager->registration;
    registration->call = NULL;
    bool lost =
        answer->outcome == KVF_BOOTSTRAP_NOT_YET ||
        (answer->outcome == KVF_BOOTSTRAP_ANSWERED && !is_our_row(registration, &answer->rank));
    if (!lost) {
        pause(manager, manager->settings.registration_check);
        return;
    }
    kvf_log_warning(&manager->settings.log, "%s has lost this rank's row; registering again",
                    manager->settings.bootstrap_address);
    mark(manager, false);
    put(manager);
}

static void check(kvf_manager *manager)
{
    kvf_registration *registration = &manager->registration;
    uint32_t per_group = registration->row.tp_size / registration->row.dp_size;
    kvf_error error;
    if (kvf_bootstrap_get_rank(manager->client, manager->settings.bootstrap_address,
                               registration->row.engine_rank / per_group,
                               registration->row.engine_rank % per_group, check_answered, manager,
                               &registration->call, &error) != KVF_OK) {
        registration->call = NULL;
        pause(manager, manager->settings.registration_check);
    }
}

void kvf_registration_timer(kvf_timer *timer, uint64_t now)
{
    (void)now;
    kvf_manager *manager =
        (kvf_manager *)((char *)timer - offsetof(kvf_manager, registration.timer));
    if (manager->registration.registered)
        check(manager);
    else
        put(manager);
}

void kvf_registration_start(kvf_manager *manager)
{
    kvf_registration *registration = &manager->registration;
    registration->row = (kvf_route_registration){
        .rank_port = manager->told_port,
        .tp_size = manager->pool.tp_size,
        .dp_size = manager->pool.dp_size,
        .engine_rank = manager->pool.engine_rank,
        .is_prefill = true,
        .extended = manager->settings.extensions != 0,
    };
    memcpy(registration->row.rank_ip, manager->host, sizeof registration->row.rank_ip);
    put(manager);
}
