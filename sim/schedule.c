/* Virtual time: tasks in a heap, by time and then by the order in which they were added. */
#include "sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static bool before(const sim_task *a, const sim_task *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

static void push(sim_world *world, sim_task *task)
{
    if (world->task_count == world->task_capacity) {
        world->task_capacity = world->task_capacity == 0 ? 256 : 2 * world->task_capacity;
        sim_task **grown = realloc(world->tasks, world->task_capacity * sizeof(sim_task *));
        if (grown == NULL)
            abort();
        world->tasks = grown;
    }
    size_t i = world->task_count++;
    while (i > 0 && before(task, world->tasks[(i - 1) / 2])) {
        world->tasks[i] = world->tasks[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    world->tasks[i] = task;
}

static sim_task *pop(sim_world *world)
{
    if (world->task_count == 0)
        return NULL;
    sim_task *first = world->tasks[0];
    sim_task *moved = world->tasks[--world->task_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= world->task_count)
            break;
        if (child + 1 < world->task_count && before(world->tasks[child + 1], world->tasks[child]))
            child++;
        if (before(moved, world->tasks[child]))
            break;
        world->tasks[i] = world->tasks[child];
        i = child;
    }
    if (world->task_count > 0)
        world->tasks[i] = moved;
    return first;
}

void sim_task_add(sim_world *world, uint64_t time, sim_task_run run, sim_node *node,
                  uint32_t incarnation, void *subject, uint64_t number, const void *bytes,
                  size_t length)
{
    sim_task *task = calloc(1, sizeof *task + length);
    if (task == NULL)
        abort();
    *task = (sim_task){.time = time < world->now ? world->now : time,
                       .order = world->order++,
                       .run = run,
                       .node = node,
                       .incarnation = incarnation,
                       .subject = subject,
                       .number = number,
                       .length = length};
    if (length > 0)
        memcpy(task->bytes, bytes, length);
    push(world, task);
}

uint64_t sim_now(const sim_node *node)
{
    return node->world->now + node->clock_offset;
}

static void wake(sim_world *world, sim_task *task)
{
    sim_node *node = task->node;
    (void)world;
    if (task->time != node->wake_at && node->wake_at > task->time)
        return;
    node->wake_at = KVF_NEVER;
    while (kvf_timers_run(&node->timers, sim_now(node), 64))
        ;
}

void sim_node_arm(sim_node *node)
{
    if (!node->alive)
        return;
    uint64_t next = kvf_timers_next(&node->timers);
    if (next == KVF_NEVER)
        return;
    uint64_t at = next <= sim_now(node) ? node->world->now : next - node->clock_offset;
    if (at >= node->wake_at)
        return;
    node->wake_at = at;
    sim_task_add(node->world, at, wake, node, node->incarnation, NULL, 0, NULL, 0);
}

static void put_off(sim_node *node, sim_task *task)
{
    task->next = NULL;
    if (node->backlog == NULL)
        node->backlog = task;
    else
        node->backlog_tail->next = task;
    node->backlog_tail = task;
}

/* What came in the meantime happens now, in its order. */
void sim_node_continue(sim_node *node)
{
    sim_world *world = node->world;
    node->stopped = false;
    node->resumed_at = world->now;
    sim_task *task = node->backlog;
    node->backlog = NULL;
    while (task != NULL) {
        sim_task *next = task->next;
        if (task->run == wake)
            node->wake_at = world->now;
        task->time = world->now;
        task->order = world->order++;
        push(world, task);
        task = next;
    }
    sim_pairs_update(world);
    sim_node_slept(node, world->now - node->stopped_at);
}

void sim_node_slept(sim_node *node, uint64_t silence)
{
    if (node->prefill && !node->stock && !node->stopped)
        sim_agents_give_up(node, silence);
}

bool sim_step(sim_world *world)
{
    sim_task *task = pop(world);
    if (task == NULL)
        return false;
    world->now = task->time;
    sim_node *node = task->node;
    if (node != NULL && (!node->alive || node->incarnation != task->incarnation)) {
        free(task);
        return true;
    }
    if (node != NULL && node->stopped) {
        put_off(node, task);
        return true;
    }
    world->steps++;
    task->run(world, task);
    free(task);
    for (uint32_t i = 0; i < world->node_count; i++) {
        if (world->nodes[i].reap_receivers)
            sim_receivers_reap(&world->nodes[i]);
        sim_node_arm(&world->nodes[i]);
    }
    sim_check_step(world, node);
    return !world->violated;
}

void sim_tasks_free(sim_world *world)
{
    for (size_t i = 0; i < world->task_count; i++)
        free(world->tasks[i]);
    free(world->tasks);
    world->tasks = NULL;
    world->task_count = 0;
}

void sim_trace(sim_world *world, const sim_node *node, const char *format, ...)
{
    if (!world->trace)
        return;
    va_list arguments;
    va_start(arguments, format);
    printf("%12.6f %-12s ", (double)world->now / 1e9, node == NULL ? "" : node->name);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

/* The first one ends the run: what follows is only its consequence. */
void sim_violate(sim_world *world, const char *format, ...)
{
    if (world->violated)
        return;
    world->violated = true;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(world->violation, sizeof world->violation, format, arguments);
    va_end(arguments);
    sim_trace(world, NULL, "VIOLATION: %s", world->violation);
}
