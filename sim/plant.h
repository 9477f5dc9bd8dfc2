/* Bugs that can be planted, to see that the invariants find them: known faults of existing systems
 * (by their ids in the project's list) and some of our own fears. They live in the simulator's
 * carriers-out, never in src/. */
#ifndef KVF_SIM_PLANT_H
#define KVF_SIM_PLANT_H

#include <stdbool.h>

typedef enum sim_plant {
    SIM_PLANT_NONE,
    SIM_PLANT_JUNK_DEAFENS,      /* B23: the listener ends at a foreign message */
    SIM_PLANT_DUMMY_IGNORED,     /* B25: dummies aren't counted */
    SIM_PLANT_SOCKET_RECONNECTS, /* B27: what is kept for a dead process reaches the next one there */
    SIM_PLANT_LATE_REQUEST_WINS, /* B31: a late request changes destinations */
    SIM_PLANT_STALE_ADDRESSES,   /* B37: a reused id starts with the last use's addresses */
    SIM_PLANT_LATE_FAILURE,      /* B38: a late failure meets the id's next user */
    SIM_PLANT_FAILED_LIFTED,     /* B39: a later success lifts Failed */
    SIM_PLANT_GHOST_ROOMS,       /* B43: a late notification makes an entry that stays */
    SIM_PLANT_LAST_ALWAYS_TRUE,  /* B53: bool("0") */
    SIM_PLANT_ABORT_FREES_PAGES, /* B83: pages are free at the abort, writes go on */
    SIM_PLANT_WRITE_AFTER_SUCCESS,
    SIM_PLANT_DEATH_UNSEEN,     /* B92: the decode side doesn't see a prefill die */
    SIM_PLANT_DEADLINE_LOST,    /* no timer of a receiver is ever set */
    SIM_PLANT_LAST_NOT_AWAITED, /* the last chunk counts for all before it */
    SIM_PLANT_OTHER_AGENT_COUNTED,
    SIM_PLANT_SUCCESS_BEFORE_FLUSH,
    SIM_PLANT_CANCEL_IGNORED,
    SIM_PLANT_HELD_FOR_EVER,
    SIM_PLANT_TWO_ENDS,            /* a room ends twice */
    SIM_PLANT_DEATH_FAILS_ALL,     /* a decode's death fails the rooms of others */
    SIM_PLANT_BAD_METADATA_STICKS, /* an agent is remembered by a message that was refused */
    SIM_PLANT_DUMMY_FORGOTTEN,     /* put off, and the room succeeds before it is sent */
    SIM_PLANT_ACK_EARLY,           /* the answer to an abort doesn't await the flush */
    SIM_PLANT_DEATH_IS_SAFE,       /* a lost writer's inbox isn't closed, but called a proof */
    SIM_PLANT_LOSS_IS_SAFE_DIRECT, /* by direct mapping a lost connection is taken for an exit */
    SIM_PLANT_DEADLINE_IS_SAFE,    /* what is given back at the deadline is called safe */
    SIM_PLANT_SOURCE_FREED_EARLY,  /* a failed sender's pages are safe at once */
    SIM_PLANT_EPOCH_IGNORED,       /* notices and letters are matched by the room's id alone */
    SIM_PLANT_REPLAY_TAKEN,        /* requests with old epochs are taken */
    SIM_PLANT_AGENT_FORGOTTEN,     /* with its transport, although its control connection lives */
    SIM_PLANT_USED_ID_TAKEN,       /* ids used before with a stock peer are taken */
    SIM_PLANT_IMPATIENT,           /* after any stop the peers are taken to have given up */
    SIM_PLANT_LEASE_IGNORED,       /* a node that was stopped asks only what it would wait itself */
    SIM_PLANT_STALE_REQUEST_TAKEN, /* and takes what was asked for before it was given up */
    SIM_PLANT_LOSS_FORGETS_IDS,    /* with its connection a stock agent's used ids are forgotten */
    SIM_PLANT_STRANGER_SHOWN, /* whoever is assumed to be kvferry is treated as one that has said so */
    SIM_PLANTS
} sim_plant;

/* "B23-junk-deafens". NULL past the end. */
const char *sim_plant_name(sim_plant plant);
bool sim_plant_find(const char *name, sim_plant *plant);

#endif
