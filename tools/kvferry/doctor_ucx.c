/* The UCX of this process: which one it is, and what it offers with the settings of this place. */
#include "doctor.h"

#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

/* ---- Version ---- */

static const char use_newer[] =
    "Use UCX 1.19 or newer where stock peers or newer kvferry peers are to be met (a kvferry built "
    "against an older one runs on it: set LD_LIBRARY_PATH), 1.22 or newer towards NIXL 1.x.";

/* Where the library was loaded from, as the kernel maps it; "" where that can't be told. */
static void find_library(char *path, size_t capacity)
{
    char line[1024];
    path[0] = '\0';
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && path[0] == '\0' && fgets(line, sizeof line, maps) != NULL) {
        const char *start = strchr(line, '/');
        if (start != NULL && strstr(start, "/libucp.so") != NULL)
            (void)snprintf(path, capacity, " (%.*s)", (int)strcspn(start, "\n"), start);
    }
    if (maps != NULL)
        (void)fclose(maps);
}

/* major and minor in one number: 1.22 is 1022. */
static unsigned version_number(unsigned major, unsigned minor)
{
    return major * 1000 + minor;
}

/* The rows of the measured matrix; docs/tool.md has it as a table. */
static void judge_version(unsigned version, const char *which, doctor_finding *finding)
{
    if (version < version_number(1, 13))
        doctor_complain(finding, use_newer, "%s: kvferry needs 1.13 or newer", which);
    else if (version < version_number(1, 16))
        doctor_warn(finding, use_newer,
                    "%s: fine between kvferry peers of this version; with peers on 1.19 or newer, "
                    "stock NIXL included, only TCP works, slowly, and large writes over shared "
                    "memory hang or end a stock prefill",
                    which);
    else if (version < version_number(1, 19))
        doctor_warn(finding, use_newer,
                    "%s: works with kvferry peers and stock NIXL up to 0.7; towards a decode peer "
                    "on 1.19 or newer TCP has a quarter of its speed",
                    which);
    else if (version < version_number(1, 22))
        doctor_fine(finding,
                    "%s: works with kvferry peers and stock NIXL up to 0.7; towards NIXL 1.x use "
                    "1.22 or newer",
                    which);
    else
        doctor_fine(finding, "%s: works with kvferry peers and stock NIXL up to 1.5", which);
}

void doctor_ucx_version(const doctor_subject *subject, doctor_finding *finding)
{
    unsigned major = 0;
    unsigned minor = 0;
    unsigned release = 0;
    char path[512];
    char which[768];
    (void)subject;
    ucp_get_version(&major, &minor, &release);
    find_library(path, sizeof path);
    unsigned version = version_number(major, minor);
    bool older = version < version_number(UCP_API_MAJOR, UCP_API_MINOR);
    (void)snprintf(which, sizeof which, "%s%s, %s %s", kvf_ucx_version(), path,
                   older ? "older than what kvferry was built with," : "built with",
                   KVF_UCX_VERSION);
    judge_version(version, which, finding);
    if (!older || finding->state != DOCTOR_FINE)
        return;
    finding->state = DOCTOR_WARNING;
    (void)snprintf(finding->advice, sizeof finding->advice,
                   "Only newer ones than the one built with are tested: set LD_LIBRARY_PATH to "
                   "one, or build kvferry against this one.");
}

/* ---- Transports ---- */

enum { TRANSPORTS_MAX = 32, NAME_MAX_LENGTH = 32, DEVICES_MAX_LENGTH = 192 };

typedef struct ucx_transport {
    char name[NAME_MAX_LENGTH];
    char devices[DEVICES_MAX_LENGTH]; /* separated by ", " */
} ucx_transport;

typedef struct ucx_offer {
    ucx_transport transports[TRANSPORTS_MAX];
    size_t count;
} ucx_offer;

static bool is_one_of(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(name, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static bool is_shared_memory(const char *name)
{
    static const char *const names[] = {"sysv", "posix", "xpmem"};
    return is_one_of(name, names, sizeof names / sizeof names[0]);
}

static bool is_rdma(const char *name)
{
    static const char *const names[] = {"rc", "ud", "dc", "srd", "gga"};
    return is_one_of(name, names, sizeof names / sizeof names[0]);
}

/* Between machines; the loopback device isn't. */
static bool is_network(const ucx_transport *transport)
{
    return is_rdma(transport->name) ||
           (strcmp(transport->name, "tcp") == 0 && strcmp(transport->devices, "lo") != 0);
}

static ucx_transport *transport_named(ucx_offer *offer, const char *name)
{
    for (size_t i = 0; i < offer->count; i++)
        if (strcmp(offer->transports[i].name, name) == 0)
            return &offer->transports[i];
    if (offer->count == TRANSPORTS_MAX)
        return NULL;
    ucx_transport *transport = &offer->transports[offer->count++];
    (void)snprintf(transport->name, sizeof transport->name, "%s", name);
    return transport;
}

/* Takes "#  resource 1 : md 1 dev 1 flags -- tcp/eth0"; other lines say nothing of transports. */
static void take_resource(ucx_offer *offer, char *line)
{
    char *word = strrchr(line, ' ');
    char *slash = word == NULL ? NULL : strchr(word, '/');
    if (slash == NULL || strstr(line, " resource ") == NULL)
        return;
    *slash = '\0';
    ucx_transport *transport = transport_named(offer, word + 1);
    if (transport == NULL)
        return;
    size_t used = strlen(transport->devices);
    (void)snprintf(transport->devices + used, sizeof transport->devices - used, "%s%s",
                   used == 0 ? "" : ", ", slash + 1);
}

static bool list_transports(ucp_context_h context, ucx_offer *offer)
{
    char *text = NULL;
    char *rest = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (stream == NULL)
        return false;
    ucp_context_print_info(context, stream);
    (void)fclose(stream);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        take_resource(offer, line);
    free(text);
    return true;
}

/* A worker too: it is what opens the devices and takes the shared memory. */
static ucs_status_t ask_worker(ucp_context_h context)
{
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_worker_h worker = NULL;
    ucs_status_t status = ucp_worker_create(context, &params, &worker);
    if (status == UCS_OK)
        ucp_worker_destroy(worker);
    return status;
}

/* Opens UCX with the features the library asks for. */
static ucs_status_t ask_ucx(const char *transports, ucx_offer *offer)
{
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_RMA | UCP_FEATURE_AMO32 |
                                             UCP_FEATURE_AMO64 | UCP_FEATURE_AM |
                                             UCP_FEATURE_WAKEUP};
    ucp_config_t *config = NULL;
    ucp_context_h context = NULL;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK)
        return status;
    if (transports[0] != '\0')
        status = ucp_config_modify(config, "TLS", transports);
    if (status == UCS_OK)
        status = ucp_init(&params, config, &context);
    ucp_config_release(config);
    if (status != UCS_OK)
        return status;
    status = list_transports(context, offer) ? ask_worker(context) : UCS_ERR_NO_MEMORY;
    ucp_cleanup(context);
    return status;
}

bool doctor_ucx_offers(const doctor_subject *subject, const char *transport)
{
    ucx_offer offer = {.count = 0};
    (void)ask_ucx(kvf_settings_get(subject->settings, "transports"), &offer);
    for (size_t i = 0; i < offer.count; i++)
        if (strcmp(offer.transports[i].name, transport) == 0)
            return true;
    return false;
}

static void describe_offer(const ucx_offer *offer, const char *limited_by, char *text,
                           size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < offer->count && used < capacity; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s%s (%s)", i == 0 ? "" : ", ",
                                 offer->transports[i].name, offer->transports[i].devices);
    if (used < capacity && limited_by != NULL)
        (void)snprintf(text + used, capacity - used, "; limited by %s", limited_by);
}

static void judge_offer(const ucx_offer *offer, const char *limited_by, doctor_finding *finding)
{
    char text[768];
    char devices[256];
    bool network = false;
    bool shared_memory = false;
    bool rdma = false;
    for (size_t i = 0; i < offer->count; i++) {
        network = network || is_network(&offer->transports[i]);
        shared_memory = shared_memory || is_shared_memory(offer->transports[i].name);
        rdma = rdma || is_rdma(offer->transports[i].name);
    }
    describe_offer(offer, limited_by, text, sizeof text);
    doctor_rdma_devices(devices, sizeof devices);
    if (!network)
        doctor_warn(finding,
                    "Peers on other machines can't be reached: look at the network devices, the "
                    "setting transports, UCX_TLS and UCX_NET_DEVICES.",
                    "no transport to another machine: %s", text);
    else if (limited_by == NULL && !rdma && devices[0] != '\0')
        doctor_warn(finding,
                    "TCP is used instead: build against, or run with, a UCX that has RDMA; the "
                    "wheel libucx has none.",
                    "%s; not the RDMA devices of this machine: %s", text, devices);
    else if (limited_by == NULL && !shared_memory)
        doctor_warn(finding,
                    "Peers on this machine are reached over the network instead: look at /dev/shm "
                    "and the container's limits.",
                    "no shared memory: %s", text);
    else
        doctor_fine(finding, "%s", text);
}

void doctor_ucx_transports(const doctor_subject *subject, doctor_finding *finding)
{
    ucx_offer offer = {.count = 0};
    const char *transports = kvf_settings_get(subject->settings, "transports");
    const char *limited_by = NULL;
    if (getenv("UCX_TLS") != NULL)
        limited_by = "UCX_TLS";
    if (transports[0] != '\0')
        limited_by = "the setting transports";
    else if (getenv("UCX_NET_DEVICES") != NULL && limited_by == NULL)
        limited_by = "UCX_NET_DEVICES";
    ucs_status_t status = ask_ucx(transports, &offer);
    if (status == UCS_OK)
        judge_offer(&offer, limited_by, finding);
    else
        doctor_complain(finding,
                        limited_by == NULL
                            ? "Look at what UCX printed, and at /dev/shm and the network devices."
                            : "Allow more, e.g. transports=tcp,self or posix,sysv,cma,self.",
                        "UCX doesn't start%s%s: %s", limited_by == NULL ? "" : ", limited by ",
                        limited_by == NULL ? "" : limited_by, ucs_status_string(status));
}

/* ---- Environment ---- */

typedef struct ucx_variable {
    const char *name;
    const char *wanted; /* another value is a risk */
    const char *risk;
} ucx_variable;

static const ucx_variable variables[] = {
    {"UCX_RNDV_THRESH", "inf",
     "UCX_RNDV_THRESH other than inf: a longer notification is lost, and its room times out"},
    {"UCX_ADDRESS_VERSION", "v2",
     "UCX_ADDRESS_VERSION other than v2: peers can't tell which UCX this is, so they can't name a "
     "pair that is known not to work"},
    {"UCX_PROTO_ENABLE", "y", "UCX_PROTO_ENABLE other than y: not tested"},
    {"UCX_MAX_RMA_RAILS", "2", "UCX_MAX_RMA_RAILS other than 2, which NIXL and kvferry use"},
    {"UCX_MAX_COMPONENT_MDS", "32",
     "UCX_MAX_COMPONENT_MDS other than 32, which NIXL and kvferry use"}};

/* Appends every variable of the environment that UCX may read. */
static void list_variables(char *text, size_t capacity)
{
    size_t used = 0;
    text[0] = '\0';
    for (char **variable = environ; *variable != NULL && used < capacity; variable++)
        if (strncmp(*variable, "UCX_", strlen("UCX_")) == 0)
            used += (size_t)snprintf(text + used, capacity - used, "%s%.128s",
                                     used == 0 ? "" : ", ", *variable);
}

static const char *find_risk(void)
{
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i].name);
        if (value != NULL && strcmp(value, variables[i].wanted) != 0)
            return variables[i].risk;
    }
    return NULL;
}

void doctor_ucx_environment(const doctor_subject *subject, doctor_finding *finding)
{
    char text[512];
    list_variables(text, sizeof text);
    const char *risk = find_risk();
    const char *transports = kvf_settings_get(subject->settings, "transports");
    if (text[0] == '\0')
        doctor_fine(finding, "no UCX_ variable is set");
    else if (risk != NULL)
        doctor_warn(finding, "Take it out of the environment, unless it is there for a reason.",
                    "%s. %s", text, risk);
    else if (getenv("UCX_TLS") != NULL && transports[0] != '\0')
        doctor_warn(finding, "Set one of the two.", "%s. The setting transports overrules UCX_TLS",
                    text);
    else
        doctor_fine(finding, "%s", text);
}
