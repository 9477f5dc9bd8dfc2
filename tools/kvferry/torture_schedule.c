/* What happens when: all of it follows from the seed and the faults asked for, and from nothing else. */
#include "torture.h"

torture_slowness torture_draw_slowness(torture_random *random)
{
    torture_slowness slowness;
    slowness.hold_ms = (unsigned)torture_draw(random, 10);
    slowness.stall = 100 + (unsigned)torture_draw(random, 1000);
    return slowness;
}

static void fill_deck(torture_schedule *schedule, unsigned faults)
{
    for (unsigned i = 0; i < FAULT_COUNT; i++)
        if ((faults >> i & 1U) != 0 && torture_fault_is_scheduled((torture_fault)i))
            schedule->deck[schedule->left++] = (torture_fault)i;
}

static torture_fault take_card(torture_schedule *schedule)
{
    size_t index = (size_t)torture_draw(&schedule->random, schedule->left);
    torture_fault fault = schedule->deck[index];
    schedule->deck[index] = schedule->deck[--schedule->left];
    return fault;
}

/* Stops are too short for anybody to notice, or too long for anybody to wait. */
static unsigned draw_down(torture_random *random, torture_fault fault)
{
    unsigned gone = (unsigned)torture_draw(random, 500);
    bool noticed = torture_draw(random, 3) > 0;
    if (fault == FAULT_STOP_PREFILL || fault == FAULT_STOP_DECODE)
        return noticed ? 3000 : 300;
    if (fault == FAULT_RESTART_PREFILL || fault == FAULT_RESTART_DECODE)
        return 0;
    return fault == FAULT_STARVE_DESCRIPTORS ? 1000 + 4 * gone : gone;
}

bool torture_next_step(torture_schedule *schedule, unsigned faults, torture_step *step)
{
    if (schedule->left == 0)
        fill_deck(schedule, faults);
    if (schedule->left == 0)
        return false;
    step->pause_ms = 200 + (unsigned)torture_draw(&schedule->random, 1000);
    step->fault = take_card(schedule);
    step->down_ms = draw_down(&schedule->random, step->fault);
    torture_victim either =
        torture_draw(&schedule->random, 2) == 0 ? TORTURE_PREFILL : TORTURE_DECODE;
    step->victim = torture_fault_victim(step->fault, either);
    step->slowness = torture_draw_slowness(&schedule->random);
    return true;
}
