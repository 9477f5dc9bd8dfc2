/* The sender machine under any stream of events. Input: four bytes an event: kind, and three of content.
 * What must hold whatever comes: Failed and Success are final, each chunk is posted once and in order, to
 * nobody before all have reported, Success only when every chunk was given and every write has ended. */
#include "room/sender.h"

#include "support.h"

#include <string.h>

enum { REQUESTS_MAX = 256 };

static const char *const names[] = {"decode-a", "decode-b", "decode-c", "decode-d"};

/* Requests stay where they are while the machine may refer to them. */
typedef struct stage {
    kvf_request requests[REQUESTS_MAX];
    size_t request_count;
    uint32_t posted;
    uint64_t writes_open;
    uint64_t pages_given;
    bool drained;
    bool settled;
    bool ended;
    kvf_poll end;
} stage;

static const kvf_request *make_request(stage *stage, const kvf_profile *profile,
                                       const uint8_t *data)
{
    size_t index = stage->request_count++;
    uint8_t pages[64];
    memset(pages, data[3], sizeof pages);
    stage->requests[index] = (kvf_request){
        .room = 7,
        .agent_name = kvf_slice_of(names[data[1] & 3]),
        .agent_metadata = kvf_slice_of("metadata"),
        .pages = fuzz_copy((kvf_slice){pages, (size_t)(data[2] & 7) * profile->page_width}),
        .page_width = profile->page_width,
        .aux_slot = data[3] & 1,
        .required = data[1] >> 2 & 7,
        .extended = (data[1] & 32) != 0,
        .extensions = (data[1] & 64) != 0 ? KVF_EXTENSION_NO_DUMMY : 0};
    return &stage->requests[index];
}

static void check_actions(const kvf_sender_machine *machine, const kvf_actions *actions,
                          stage *stage)
{
    unsigned published = 0;
    require(actions->count <= KVF_ACTIONS_MAX && (!stage->settled || actions->count == 0));
    for (size_t i = 0; i < actions->count; i++) {
        const kvf_action *action = &actions->items[i];
        published += action->kind == KVF_ACTION_PUBLISH;
        if (action->kind == KVF_ACTION_STOP)
            require(machine->outcome.state == KVF_FAILED);
        if (action->kind != KVF_ACTION_POST)
            continue;
        require(action->first_chunk == stage->posted && action->chunk_count > 0);
        require(machine->destination_count == machine->required);
        stage->posted += action->chunk_count;
        for (uint32_t j = 0; j < machine->destination_count; j++)
            if (!kvf_request_is_dummy(machine->destinations[j].request))
                stage->writes_open += action->chunk_count;
    }
    require(published <= 1);
}

static void check_state(const kvf_sender_machine *machine, stage *stage)
{
    const kvf_outcome *outcome = &machine->outcome;
    require(!stage->ended || outcome->state == stage->end);
    require(machine->destination_count <= machine->destination_limit);
    if (outcome->state == KVF_SUCCESS)
        require(machine->expected && stage->pages_given == machine->pages_total &&
                stage->writes_open == 0 && stage->posted == machine->chunk_count &&
                outcome->safety == KVF_PAGES_SAFE);
    if (outcome->state == KVF_FAILED)
        require(outcome->error.status != KVF_OK && outcome->error.text[0] != '\0' &&
                (outcome->safety != KVF_PAGES_SAFE || stage->drained));
    if (outcome->state == KVF_FAILED && outcome->safety == KVF_PAGES_IN_USE)
        require(machine->deadline < KVF_NO_DEADLINE);
    stage->settled = kvf_outcome_is_settled(outcome);
    if (!kvf_outcome_is_final(outcome) && stage->writes_open > 0)
        require(machine->deadline < KVF_NO_DEADLINE);
    if (kvf_outcome_is_final(outcome)) {
        stage->ended = true;
        stage->end = outcome->state;
    }
}

static void step(kvf_sender_machine *machine, stage *stage, const kvf_profile *profile,
                 const uint8_t *data, uint64_t now)
{
    kvf_actions actions = {.count = 0};
    kvf_error error;
    kvf_error_set(&error, KVF_TRANSPORT, "a write failed");
    kvf_sender_event event = {.kind = (kvf_sender_event_kind)(data[0] % (KVF_SENDER_TIMER + 1)),
                              .page_count = data[1] & 15,
                              .agent_name = kvf_slice_of(names[data[1] & 3]),
                              .error = &error};
    if (event.kind == KVF_SENDER_REQUESTED)
        event.request = make_request(stage, profile, data);
    if (event.kind == KVF_SENDER_DRAINED && stage->ended)
        stage->drained = true;
    bool meant = kvf_sender_machine_step(machine, &event, now, &actions);
    if (event.kind == KVF_SENDER_SENT && meant)
        stage->pages_given += event.page_count;
    if (event.kind == KVF_SENDER_WRITTEN && meant)
        stage->writes_open--;
    check_actions(machine, &actions, stage);
    check_state(machine, stage);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const kvf_room_timeouts timeouts = {1000, 2000, 500};
    if (size == 0)
        return 0;
    const kvf_profile *profile = kvf_profile_at(data[0] % 2);
    stage *stage = calloc(1, sizeof *stage);
    kvf_sender_machine machine;
    uint64_t now = 0;
    require(stage != NULL);
    kvf_sender_machine_init(&machine, profile, &timeouts, 3);
    for (data++, size--; size >= 4 && stage->request_count < REQUESTS_MAX; data += 4, size -= 4) {
        now += data[0] >> 4;
        if ((data[3] & 128) != 0 && machine.deadline != KVF_NO_DEADLINE)
            now = machine.deadline;
        step(&machine, stage, profile, data, now);
    }
    kvf_sender_machine_free(&machine);
    for (size_t i = 0; i < stage->request_count; i++)
        fuzz_free(stage->requests[i].pages);
    free(stage);
    return 0;
}
