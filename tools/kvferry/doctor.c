#include "doctor.h"

#include "commands.h"
#include "doctor_report.h"
#include "exit_codes.h"
#include "worker_options.h"

#include <string.h>

#define AT(field) offsetof(doctor_options, field)

static const option_row rows[] = {
    {"peer", "HOST:PORT", OPTION_TEXT, AT(peer), 0, 0,
     "also move 2 MiB from the `kvferry doctor --serve` there, and check it"},
    {"timeout", "SECONDS", OPTION_COUNT, AT(timeout), 1, 600, "how long that may take (20)"},
    {"json", NULL, OPTION_FLAG, AT(json), 0, 0, "one JSON object instead of the table"},
    {"serve", NULL, OPTION_FLAG, AT(serve), 0, 0,
     "don't check: serve as the other side of --peer until a signal"},
    {"listen", "HOST:PORT", OPTION_TEXT, AT(listen), 0, 0,
     "with --serve: where (0.0.0.0:0, any free port)"},
    {"set", "NAME=VALUE", OPTION_LIST, AT(set), 0, 0,
     "any setting of `kvferry settings`, as the workers will have it"}};

static const option_table table = {
    "doctor", "checks this machine, and says of each thing: fine, or what to do",
    "Checks UCX (version, transports, devices, environment), ZeroMQ, writing to another process's\n"
    "memory, /dev/shm, limits, the host's name, which address peers will be told, the control\n"
    "port and the bootstrap server of the settings. A warning is something that works, but not\n"
    "everywhere or not at its best. Give it the settings and environment of the workers.\n"
    "\n"
    "Between two machines: `kvferry doctor --serve` on one, and on the other the line it prints,\n"
    "`kvferry doctor --peer HOST:PORT`, which asks for 2 MiB over the transports of the settings\n"
    "and compares every byte. Nothing is sent to a server that isn't kvferry's.\n"
    "Exit status: 0 fine, warnings or not, 1 a problem was found, 2 wrong options or settings,\n"
    "3 it couldn't check or serve.\n",
    rows, sizeof rows / sizeof rows[0]};

static const doctor_check checks[] = {
    {"ucx_version", "UCX version", doctor_ucx_version, 10},
    {"ucx_transports", "UCX transports", doctor_ucx_transports, 15},
    {"ucx_environment", "UCX environment", doctor_ucx_environment, 10},
    {"zeromq", "ZeroMQ", doctor_zeromq, 10},
    {"cross_memory", "cross-memory attach", doctor_cross_memory, 10},
    {"shared_memory", "shared memory", doctor_shared_memory, 10},
    {"locked_memory", "locked memory", doctor_locked_memory, 10},
    {"open_files", "open files", doctor_open_files, 10},
    {"host_name", "host name", doctor_host_name, 10},
    {"advertised_address", "advertised address", doctor_advertised_address, 20},
    {"control_port", "control port", doctor_control_port, 20},
    {"bootstrap_server", "bootstrap server", doctor_bootstrap_server, 20},
    {"peer", "transfer", doctor_peer, 0}};

static int check_all(const doctor_subject *subject)
{
    doctor_report report = {.json = subject->options->json};
    message why;
    doctor_report_begin(&report);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        doctor_finding finding = {.state = DOCTOR_PROBLEM};
        if (checks[i].look == doctor_peer && subject->options->peer == NULL)
            continue;
        if (!doctor_look(&checks[i], subject, &finding, &why)) {
            (void)fprintf(stderr, "kvferry doctor: %s\n", why.text);
            json_decref(report.checks);
            return TOOL_ENVIRONMENT;
        }
        doctor_report_add(&report, &checks[i], &finding);
    }
    if (!doctor_report_end(&report)) {
        (void)fprintf(stderr, "kvferry doctor: standard output is closed\n");
        return TOOL_ENVIRONMENT;
    }
    return report.counts[DOCTOR_PROBLEM] == 0 ? TOOL_FINE : TOOL_ROOM;
}

static bool options_agree(const doctor_options *options, message *why)
{
    if (options->serve && (options->peer != NULL || options->json))
        return message_set(why, "--serve checks nothing: leave out --%s",
                           options->json ? "json" : "peer");
    if (!options->serve && options->listen != NULL)
        return message_set(why, "--listen needs --serve");
    if (options->peer != NULL && strchr(options->peer, ':') == NULL)
        return message_set(why, "--peer %.64s: not HOST:PORT", options->peer);
    return true;
}

int command_doctor(int count, char **arguments)
{
    doctor_options options = {.timeout = 20};
    doctor_subject subject = {.options = &options};
    int result = TOOL_FINE;
    message why;
    if (!options_begin(&table, count, arguments, &options, &result))
        return result;
    if (options_agree(&options, &why))
        subject.settings = settings_from_options(&options.set, &why);
    if (subject.settings == NULL) {
        (void)fprintf(stderr, "kvferry doctor: %s\n", why.text);
        return TOOL_USAGE;
    }
    if (options.listen == NULL)
        options.listen = "0.0.0.0:0";
    result = options.serve ? doctor_serve(&subject) : check_all(&subject);
    kvf_settings_close(subject.settings);
    return result;
}
