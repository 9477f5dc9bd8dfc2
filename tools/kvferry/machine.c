#include "machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The processor's name as the kernel tells it; the architecture where it doesn't. */
static void find_processor(char *name, size_t capacity, const char *architecture)
{
    char line[256];
    (void)snprintf(name, capacity, "%s", architecture);
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon == NULL || strncmp(line, "model name", strlen("model name")) != 0)
            continue;
        (void)snprintf(name, capacity, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    (void)fclose(file);
}

void machine_describe(char *text, size_t capacity)
{
    struct utsname system;
    char processor[128];
    if (uname(&system) != 0)
        memset(&system, 0, sizeof system);
    find_processor(processor, sizeof processor, system.machine);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    (void)snprintf(text, capacity, "%s, %ld cores, %.0f GB, %s %s", processor, cores, memory / 1e9,
                   system.sysname, system.release);
}
