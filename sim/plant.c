#include "sim/plant.h"

#include <stddef.h>
#include <string.h>

static const char *const names[SIM_PLANTS] = {
    [SIM_PLANT_NONE] = "none",
    [SIM_PLANT_JUNK_DEAFENS] = "B23-junk-deafens",
    [SIM_PLANT_DUMMY_IGNORED] = "B25-dummy-ignored",
    [SIM_PLANT_SOCKET_RECONNECTS] = "B27-socket-reconnects",
    [SIM_PLANT_LATE_REQUEST_WINS] = "B31-late-request-wins",
    [SIM_PLANT_STALE_ADDRESSES] = "B37-stale-addresses",
    [SIM_PLANT_LATE_FAILURE] = "B38-late-failure",
    [SIM_PLANT_FAILED_LIFTED] = "B39-failed-lifted",
    [SIM_PLANT_GHOST_ROOMS] = "B43-ghost-rooms",
    [SIM_PLANT_LAST_ALWAYS_TRUE] = "B53-last-always-true",
    [SIM_PLANT_ABORT_FREES_PAGES] = "B83-abort-frees-pages",
    [SIM_PLANT_WRITE_AFTER_SUCCESS] = "write-after-success",
    [SIM_PLANT_DEATH_UNSEEN] = "B92-death-unseen",
    [SIM_PLANT_DEADLINE_LOST] = "deadline-lost",
    [SIM_PLANT_LAST_NOT_AWAITED] = "last-chunk-not-awaited",
    [SIM_PLANT_OTHER_AGENT_COUNTED] = "other-agent-counted",
    [SIM_PLANT_SUCCESS_BEFORE_FLUSH] = "success-before-flush",
    [SIM_PLANT_CANCEL_IGNORED] = "cancel-ignored",
    [SIM_PLANT_HELD_FOR_EVER] = "held-for-ever",
    [SIM_PLANT_TWO_ENDS] = "two-ends",
    [SIM_PLANT_BAD_METADATA_STICKS] = "bad-metadata-sticks",
    [SIM_PLANT_DUMMY_FORGOTTEN] = "dummy-forgotten",
    [SIM_PLANT_DEATH_FAILS_ALL] = "death-fails-all",
    [SIM_PLANT_ACK_EARLY] = "acknowledge-before-flush",
    [SIM_PLANT_DEATH_IS_SAFE] = "death-means-safe",
    [SIM_PLANT_LOSS_IS_SAFE_DIRECT] = "loss-means-safe-direct",
    [SIM_PLANT_DEADLINE_IS_SAFE] = "deadline-means-safe",
    [SIM_PLANT_SOURCE_FREED_EARLY] = "source-freed-early",
    [SIM_PLANT_EPOCH_IGNORED] = "epoch-ignored",
    [SIM_PLANT_REPLAY_TAKEN] = "replay-taken",
    [SIM_PLANT_AGENT_FORGOTTEN] = "agent-forgotten",
    [SIM_PLANT_USED_ID_TAKEN] = "used-id-taken",
    [SIM_PLANT_IMPATIENT] = "impatient",
    [SIM_PLANT_LEASE_IGNORED] = "lease-ignored",
    [SIM_PLANT_STALE_REQUEST_TAKEN] = "stale-request-taken",
    [SIM_PLANT_LOSS_FORGETS_IDS] = "loss-forgets-ids",
    [SIM_PLANT_STRANGER_SHOWN] = "stranger-shown",
};

const char *sim_plant_name(sim_plant plant)
{
    return (unsigned)plant < SIM_PLANTS ? names[plant] : NULL;
}

/* The id before the dash is enough. */
bool sim_plant_find(const char *name, sim_plant *plant)
{
    size_t length = strlen(name);
    for (unsigned i = 0; i < SIM_PLANTS; i++) {
        bool whole = strcmp(name, names[i]) == 0;
        bool id = name[0] == 'B' && strncmp(name, names[i], length) == 0 && names[i][length] == '-';
        if (whole || id) {
            *plant = (sim_plant)i;
            return true;
        }
    }
    return false;
}
