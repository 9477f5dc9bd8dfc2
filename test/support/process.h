/* What this process has, as the kernel shows it. */
#ifndef KVF_TEST_SUPPORT_PROCESS_H
#define KVF_TEST_SUPPORT_PROCESS_H

#include <stddef.h>

/* How many names a folder has: of /proc/self/fd descriptors, of /proc/self/task threads, and always the same few more. */
size_t test_entries(const char *folder);

#endif
