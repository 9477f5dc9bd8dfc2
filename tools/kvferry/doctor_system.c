/* What the system allows this process: memory, descriptors, writing to another process. */
#include "doctor.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static const double mebibyte = 1 << 20;

void doctor_zeromq(const doctor_subject *subject, doctor_finding *finding)
{
    int major = 0;
    int minor = 0;
    int patch = 0;
    (void)subject;
    zmq_version(&major, &minor, &patch);
    if (major > 4 || (major == 4 && minor >= 3))
        doctor_fine(finding, "%d.%d.%d, built with %d.%d.%d", major, minor, patch,
                    ZMQ_VERSION_MAJOR, ZMQ_VERSION_MINOR, ZMQ_VERSION_PATCH);
    else
        doctor_complain(finding, "Install libzmq 4.3 or newer.", "%d.%d.%d is older than 4.3",
                        major, minor, patch);
}

/* The number after `key` in this process's status, which has numbers of this base; `otherwise` without. */
static unsigned long long status_number(const char *key, int base, unsigned long long otherwise)
{
    char line[256];
    FILE *file = fopen("/proc/self/status", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            otherwise = strtoull(line + strlen(key), NULL, base);
    if (file != NULL)
        (void)fclose(file);
    return otherwise;
}

/* ---- Cross-memory attach ---- */

enum { CROSS_MEMORY_BYTES = 1 << 16, CROSS_MEMORY_BYTE = 0x5a };

static uint8_t cross_memory_target[CROSS_MEMORY_BYTES];

/* Writes to its parent as a prefill process writes to a decode process; exits with errno. */
static _Noreturn void write_to_parent(pid_t parent)
{
    static uint8_t source[CROSS_MEMORY_BYTES];
    struct iovec local = {source, sizeof source};
    struct iovec remote = {cross_memory_target, sizeof cross_memory_target};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    memset(source, CROSS_MEMORY_BYTE, sizeof source);
    ssize_t written = process_vm_writev(parent, &local, 1, &remote, 1, 0);
    if (written == (ssize_t)sizeof source)
        _exit(0);
    _exit(written < 0 ? errno : EIO);
}

/* 0, or an errno. */
static int try_cross_memory(void)
{
    int status = 0;
    pid_t parent = getpid();
    /* As UCX does: with ptrace_scope 1 a process says who may write to it. */
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pid_t child = fork();
    if (child < 0)
        return errno;
    if (child == 0)
        write_to_parent(parent);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    if (!WIFEXITED(status))
        return EINTR;
    for (size_t i = 0; WEXITSTATUS(status) == 0 && i < CROSS_MEMORY_BYTES; i++)
        if (cross_memory_target[i] != CROSS_MEMORY_BYTE)
            return EIO;
    return WEXITSTATUS(status);
}

/* -1: this kernel has no such switch. */
static int ptrace_scope(void)
{
    char line[16] = "-1";
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (file != NULL) {
        if (fgets(line, sizeof line, file) == NULL)
            (void)snprintf(line, sizeof line, "-1");
        (void)fclose(file);
    }
    return (int)strtol(line, NULL, 10);
}

/* UCX looks at ptrace_scope and tries a write to itself; where both are fine it relies on CMA. */
static const char *spare_advice(int scope)
{
    if (scope >= 2)
        return "Pages go through a shared buffer instead, with one more copy. To spare it, set "
               "kernel.yama.ptrace_scope to 0 or 1, or give the workers CAP_SYS_PTRACE.";
    if (status_number("Seccomp:", 10, 0) != 0)
        return "A system call filter, e.g. the container's, forbids it. Pages go through a shared "
               "buffer instead, with one more copy. To spare it, allow process_vm_writev (docker "
               "run --cap-add SYS_PTRACE).";
    return "Pages go through a shared buffer instead, with one more copy. To spare it, use a UCX "
           "with CMA and see that the kernel allows it.";
}

void doctor_cross_memory(const doctor_subject *subject, doctor_finding *finding)
{
    char scope_text[64] = "ptrace_scope isn't set";
    int scope = ptrace_scope();
    if (scope >= 0)
        (void)snprintf(scope_text, sizeof scope_text, "ptrace_scope is %d", scope);
    bool limited =
        kvf_settings_get(subject->settings, "transports")[0] != '\0' || getenv("UCX_TLS") != NULL;
    bool offered = doctor_ucx_offers(subject, "cma");
    int error = try_cross_memory();
    const char *result = error == 0 ? "one process can write to another's memory" : strerror(error);
    if (offered && error != 0)
        doctor_complain(finding,
                        "The kernel or a security module forbids it, and UCX doesn't notice: leave "
                        "CMA out for all workers of this machine: transports=^cma.",
                        "one process can't write to another's memory: %s; %s; UCX tries it, so "
                        "rooms inside this machine will fail",
                        result, scope_text);
    else if (!offered && !limited)
        doctor_warn(finding, spare_advice(scope), "UCX doesn't use it: %s; %s", result, scope_text);
    else
        doctor_fine(finding, "%s%s; %s", offered ? "" : "left out by the settings: ", result,
                    scope_text);
}

/* ---- Memory and descriptors ---- */

void doctor_shared_memory(const doctor_subject *subject, doctor_finding *finding)
{
    static const char advice[] =
        "Give the container more (docker run --shm-size=1g; an emptyDir with medium Memory), or "
        "mount -o remount,size=1G /dev/shm. A worker takes about 5 MiB of it.";
    struct statvfs file_system;
    (void)subject;
    if (statvfs("/dev/shm", &file_system) != 0) {
        doctor_warn(finding, "Mount a tmpfs at /dev/shm.", "/dev/shm: %s", strerror(errno));
        return;
    }
    double size = (double)file_system.f_blocks * (double)file_system.f_frsize / mebibyte;
    double available = (double)file_system.f_bavail * (double)file_system.f_frsize / mebibyte;
    if (access("/dev/shm", W_OK) != 0)
        doctor_warn(finding, "Make it writable (mode 1777).", "/dev/shm: %s", strerror(errno));
    else if (available < 16)
        doctor_complain(finding, advice, "/dev/shm has %.0f MiB, %.0f MiB free", size, available);
    else if (available < 64)
        doctor_warn(finding, advice, "/dev/shm has %.0f MiB, %.0f MiB free", size, available);
    else
        doctor_fine(finding, "/dev/shm has %.0f MiB, %.0f MiB free", size, available);
}

void doctor_rdma_devices(char *names, size_t capacity)
{
    const struct dirent *entry = NULL;
    size_t used = 0;
    names[0] = '\0';
    DIR *folder = opendir("/sys/class/infiniband");
    while (folder != NULL && used < capacity && (entry = readdir(folder)) != NULL)
        if (entry->d_name[0] != '.')
            used += (size_t)snprintf(names + used, capacity - used, "%s%.64s",
                                     used == 0 ? "" : ", ", entry->d_name);
    if (folder != NULL)
        (void)closedir(folder);
}

static bool may_lock_all(rlim_t limit)
{
    enum { CAPABILITY_IPC_LOCK = 14 };
    return limit == RLIM_INFINITY ||
           (status_number("CapEff:", 16, 0) >> CAPABILITY_IPC_LOCK & 1) != 0;
}

void doctor_locked_memory(const doctor_subject *subject, doctor_finding *finding)
{
    struct rlimit limit = {0, 0};
    char devices[256];
    (void)subject;
    doctor_rdma_devices(devices, sizeof devices);
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    double size = (double)limit.rlim_cur / mebibyte;
    if (limit.rlim_cur == RLIM_INFINITY)
        doctor_fine(finding, "unlimited");
    else if (may_lock_all(limit.rlim_cur))
        doctor_fine(finding, "%.0f MiB, but this process may exceed it (CAP_IPC_LOCK)", size);
    else if (devices[0] == '\0')
        doctor_fine(finding, "%.0f MiB; only RDMA locks the pools, and there is no RDMA device",
                    size);
    else
        doctor_warn(finding,
                    "Raise it for the workers: ulimit -l unlimited, LimitMEMLOCK=infinity in a "
                    "systemd unit, docker run --ulimit memlock=-1.",
                    "%.0f MiB: a larger pool can't be registered with RDMA (%s)", size, devices);
}

void doctor_open_files(const doctor_subject *subject, doctor_finding *finding)
{
    struct rlimit limit = {0, 0};
    (void)subject;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        doctor_complain(finding, "", "the limit can't be read: %s", strerror(errno));
    else if (limit.rlim_cur < 1024)
        doctor_warn(finding,
                    "Raise it: ulimit -n 65536, LimitNOFILE=65536 in a systemd unit. Each peer "
                    "takes a few, a worker 10 to begin with.",
                    "%llu", (unsigned long long)limit.rlim_cur);
    else
        doctor_fine(finding, "%llu", (unsigned long long)limit.rlim_cur);
}
