/* `kvferry doctor`: checks of one machine. Each looks at one thing and says "fine", or what is wrong and
 * what to do. */
#ifndef KVFERRY_TOOL_DOCTOR_H
#define KVFERRY_TOOL_DOCTOR_H

#include "kvferry/kvferry.h"
#include "message.h"
#include "options.h"

typedef enum doctor_state {
    DOCTOR_FINE,
    DOCTOR_WARNING, /* works, but not everywhere or not at its best */
    DOCTOR_PROBLEM  /* won't work */
} doctor_state;

typedef struct doctor_finding {
    doctor_state state;
    char text[1024];
    char advice[512]; /* what to do; "" when fine */
} doctor_finding;

typedef struct doctor_options {
    const char *peer; /* NULL: no transfer */
    const char *listen;
    uint64_t timeout; /* of the transfer, in seconds */
    bool serve;
    bool json;
    option_list set;
} doctor_options;

typedef struct doctor_subject {
    const doctor_options *options;
    kvf_settings *settings; /* a check has its own copy and may change it */
} doctor_subject;

typedef struct doctor_check {
    const char *name;  /* in the JSON document */
    const char *title; /* for a person */
    void (*look)(const doctor_subject *subject, doctor_finding *finding);
    uint64_t limit; /* seconds; 0: two rooms of the option timeout */
} doctor_check;

/* What a check found. The formatted part is the text. */
__attribute__((format(printf, 2, 3))) void doctor_fine(doctor_finding *finding, const char *format,
                                                       ...);
__attribute__((format(printf, 3, 4))) void doctor_warn(doctor_finding *finding, const char *advice,
                                                       const char *format, ...);
__attribute__((format(printf, 3, 4))) void
doctor_complain(doctor_finding *finding, const char *advice, const char *format, ...);

/* Looks in a process of its own, so that a check that hangs or that a library ends is a finding too.
 * False: no process could be had. */
bool doctor_look(const doctor_check *check, const doctor_subject *subject, doctor_finding *finding,
                 message *why);

/* The checks. */
void doctor_ucx_version(const doctor_subject *subject, doctor_finding *finding);
void doctor_ucx_transports(const doctor_subject *subject, doctor_finding *finding);
void doctor_ucx_environment(const doctor_subject *subject, doctor_finding *finding);
void doctor_zeromq(const doctor_subject *subject, doctor_finding *finding);
void doctor_cross_memory(const doctor_subject *subject, doctor_finding *finding);
void doctor_shared_memory(const doctor_subject *subject, doctor_finding *finding);
void doctor_locked_memory(const doctor_subject *subject, doctor_finding *finding);
void doctor_open_files(const doctor_subject *subject, doctor_finding *finding);
void doctor_host_name(const doctor_subject *subject, doctor_finding *finding);
void doctor_advertised_address(const doctor_subject *subject, doctor_finding *finding);
void doctor_control_port(const doctor_subject *subject, doctor_finding *finding);
void doctor_bootstrap_server(const doctor_subject *subject, doctor_finding *finding);
void doctor_peer(const doctor_subject *subject, doctor_finding *finding);

/* Whether UCX would use a transport of this name, with the settings of this place. */
bool doctor_ucx_offers(const doctor_subject *subject, const char *transport);

/* The names of the RDMA devices the kernel knows, separated by ", "; "" without any. */
void doctor_rdma_devices(char *names, size_t capacity);

/* Serves as the other side of `kvferry doctor --peer` until SIGINT or SIGTERM. Returns the exit status. */
int doctor_serve(const doctor_subject *subject);

#endif
