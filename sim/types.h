/* Sizes and names that everything in the simulator shares. */
#ifndef KVF_SIM_TYPES_H
#define KVF_SIM_TYPES_H

#include "base/settings.h"
#include "base/text.h"
#include "base/timers.h"
#include "plan/ranks.h"
#include "plan/writes.h"
#include "room/formers.h"
#include "room/lookup.h"
#include "room/memory.h"
#include "room/receiver.h"
#include "room/sender.h"
#include "sim/plant.h"
#include "sim/random.h"
#include "wire/letter.h"
#include "wire/metadata.h"
#include "wire/notice.h"
#include "wire/request.h"
#include "wire/route.h"

#include <string.h>
#include <utlist.h>

enum {
    SIM_GROUPS = 2, /* prefill servers, and as many decode ones, at most */
    SIM_RANKS = 2,  /* of a group, at most */
    SIM_NODES = 2 * SIM_GROUPS * SIM_RANKS,
    SIM_CELL = 64, /* what lands at once; a write is torn between cells */
    SIM_BUFFERS = 2,
    SIM_AUX = 2,
    SIM_REGIONS = SIM_BUFFERS + SIM_AUX,
    SIM_PAGES = 1024, /* pages of failed rooms aren't given out again, so pools are roomy */
    SIM_SLOTS = 512,
    SIM_ITEM_CELLS_MAX = 3,
    SIM_ASKERS = 4, /* of one sender, at most */
    SIM_ROOM_PAGES = 12,
    SIM_PIECE_CELLS = 4,
    SIM_ADDRESS = 32,      /* of an inbox: node, incarnation, inbox, fenceable; 8 bytes each */
    SIM_REMEMBERED = 1024, /* room ids, of a stock peer */
    SIM_FRAMES_MAX = 16
};

typedef struct sim_world sim_world;
typedef struct sim_node sim_node;
typedef struct sim_task sim_task;
typedef struct sim_instance sim_instance;
typedef struct sim_side sim_side;
typedef struct sim_sender sim_sender;
typedef struct sim_receiver sim_receiver;
typedef struct sim_agent sim_agent;
typedef struct sim_incoming sim_incoming;
typedef struct sim_held sim_held;
typedef struct sim_transfer sim_transfer;
typedef struct sim_connection sim_connection;
typedef struct sim_server sim_server;
typedef struct sim_rank sim_rank;
typedef struct sim_target sim_target;
typedef struct sim_inbox sim_inbox;
typedef struct sim_link sim_link;

#endif
