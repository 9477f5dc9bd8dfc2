/* The settings table and the values a manager or server runs with. */
#ifndef KVF_BASE_SETTINGS_H
#define KVF_BASE_SETTINGS_H

#include "base/error.h"
#include "base/log.h"

#include <stdbool.h>

#define KVF_SETTING_TEXT_MAX 512

/* TEXT(name, default, help)
 * CHOICE(name, default index, "a b c", help)      value: index into the choices
 * NUMBER(name, type, default, minimum, maximum, help)   TIME in nanoseconds, BYTES in bytes
 * The order is the order of `kvferry settings` and docs/settings.md. */
#define KVF_SETTINGS(TEXT, CHOICE, NUMBER)                                                         \
    CHOICE(profile, 0, "sglang-0.4.7 sglang-0.4.7.post1",                                          \
           "exact dialect of the control plane; both sides must speak the same")                   \
    CHOICE(nixl_flavour, 0, "auto p031 p051 p060",                                                 \
           "how our NIXL metadata is written and notifications are numbered; auto: the profile's") \
    CHOICE(extensions, 1, "off on",                                                                \
           "tell peers that this is kvferry; off: exactly the stock bytes")                        \
    CHOICE(peer_extensions, 0, "detect assume",                                                    \
           "assume: prefill peers are kvferry although a stock bootstrap server hides it")         \
    CHOICE(fence, 0, "default strict",                                                             \
           "strict: to stock peers only transports whose writes we can end, and they are ended")   \
    CHOICE(verify, 0, "off on required",                                                           \
           "decode: check all bytes end to end, from kvferry peers and in host memory; required: " \
           "rooms where that can't be fail")                                                       \
    CHOICE(same_host, 0, "detect assume",                                                          \
           "decode: offer shared memory to peers seen on this host; assume: to all")               \
    TEXT(bootstrap_address, "", "prefill: host:port of the bootstrap server to register at")       \
    TEXT(advertise_address, "",                                                                    \
         "address peers are told to connect to; empty: found by a route lookup")                   \
    NUMBER(advertise_port, PORT, 0, 0, 65535, "port peers are told; 0: the bound control port")    \
    TEXT(control_address, "", "address the control port binds; empty: the advertised one")         \
    NUMBER(control_port, PORT, 0, 0, 65535, "control port (SGLang's rank_port); 0: any free one")  \
    CHOICE(engine, 0, "ucx loop", "data plane; loop moves bytes inside one process, for tests")    \
    TEXT(transports, "", "UCX transports, e.g. tcp or posix,sysv,cma; empty: UCX_TLS, else all")   \
    TEXT(fault, "", "faults to inject into the data plane, for tests: docs/settings-fault.md")     \
    NUMBER(bootstrap_timeout, TIME, 120 * KVF_SECOND, KVF_MILLISECOND, 86400 * KVF_SECOND,         \
           "from open until the other side is known")                                              \
    NUMBER(waiting_timeout, TIME, 300 * KVF_SECOND, KVF_MILLISECOND, 86400 * KVF_SECOND,           \
           "receiver: from expect() until the end; sender: from a send() until it is delivered")   \
    NUMBER(hold_timeout, TIME, 300 * KVF_SECOND, KVF_MILLISECOND, 86400 * KVF_SECOND,              \
           "prefill: how long a request is held for a sender that has not been opened")            \
    NUMBER(fence_timeout, TIME, 10 * KVF_SECOND, KVF_MILLISECOND, 86400 * KVF_SECOND,              \
           "how long a failed room's pages are held while a proof is sought that they are safe")   \
    NUMBER(close_timeout, TIME, 1 * KVF_SECOND, 0, 600 * KVF_SECOND,                               \
           "how long closing a manager waits for writes under way")                                \
    NUMBER(http_connect_timeout, TIME, 2 * KVF_SECOND, KVF_MILLISECOND, 600 * KVF_SECOND,          \
           "client: to connect to a bootstrap server")                                             \
    NUMBER(http_timeout, TIME, 5 * KVF_SECOND, KVF_MILLISECOND, 600 * KVF_SECOND,                  \
           "client: for a whole request to a bootstrap server")                                    \
    NUMBER(http_attempts, COUNT, 3, 1, 1000,                                                       \
           "client: failed requests in a row before a lookup is given up (not yet registered is "  \
           "no failure)")                                                                          \
    NUMBER(retry_interval, TIME, 200 * KVF_MILLISECOND, KVF_MILLISECOND, 60 * KVF_SECOND,          \
           "first pause before a lookup, connection or registration is tried again; doubles up "   \
           "to 16 times")                                                                          \
    NUMBER(registration_check, TIME, 5 * KVF_SECOND, 100 * KVF_MILLISECOND, 86400 * KVF_SECOND,    \
           "prefill: how often a rank looks for its own row at the bootstrap server")              \
    NUMBER(server_header_timeout, TIME, 10 * KVF_SECOND, KVF_SECOND, 600 * KVF_SECOND,             \
           "bootstrap server: for a whole request to arrive")                                      \
    NUMBER(server_idle_timeout, TIME, 75 * KVF_SECOND, KVF_SECOND, 3600 * KVF_SECOND,              \
           "bootstrap server: for a kept-alive connection without a request")                      \
    NUMBER(heartbeat_interval, TIME, 1 * KVF_SECOND, 10 * KVF_MILLISECOND, 600 * KVF_SECOND,       \
           "pause between ZMTP heartbeats")                                                        \
    NUMBER(heartbeat_timeout, TIME, 3 * KVF_SECOND, 100 * KVF_MILLISECOND, 600 * KVF_SECOND,       \
           "silence after which a peer counts as gone; a decode's also bounds how late the loop "  \
           "of its prefills may be")                                                               \
    NUMBER(outstanding_writes, COUNT, 64, 1, 65536,                                                \
           "writes posted to the transport and not completed, per manager")                        \
    NUMBER(outstanding_bytes, BYTES, 2 << 20, 4096, UINT64_C(1) << 40,                             \
           "bytes posted to the transport and not completed, per manager")                         \
    NUMBER(write_size, BYTES, 256 << 10, 4096, UINT64_C(1) << 40,                                  \
           "longest write posted in one piece")                                                    \
    NUMBER(spin, TIME, 0, 0, KVF_SECOND,                                                           \
           "how long the event loop polls before it sleeps; costs a core")                         \
    NUMBER(max_rooms, COUNT, 65536, 1, 1 << 24, "open rooms of one manager")                       \
    NUMBER(remembered_rooms, COUNT, 8192, 0, 1 << 24,                                              \
           "room ids remembered per stock peer, which can't tell a new room from an old one")      \
    NUMBER(max_waiting_letters, COUNT, 4096, 1, 1 << 20,                                           \
           "letters to one kvferry peer that wait for its connection, or for room in it")          \
    NUMBER(max_peers, COUNT, 4096, 1, 1 << 20, "peers known to one manager")                       \
    NUMBER(max_pages, COUNT, 1 << 20, 1, UINT64_C(1) << 31, "pages of one room")                   \
    NUMBER(max_buffers, COUNT, 4096, 1, 1 << 16,                                                   \
           "buffers of a layout, and regions in a peer's metadata")                                \
    NUMBER(max_destinations, COUNT, 256, 1, 65536, "decode ranks one sender writes to")            \
    NUMBER(max_held_requests, COUNT, 65536, 1, 1 << 24,                                            \
           "requests held for senders not opened yet")                                             \
    NUMBER(max_held_bytes, BYTES, 256 << 20, 4096, UINT64_C(1) << 40, "memory of held requests")   \
    NUMBER(max_sums_bytes, BYTES, 256 << 20, 4096, UINT64_C(1) << 40,                              \
           "decode: memory of sums that came ahead of what they check, all rooms together")        \
    NUMBER(max_frame_bytes, BYTES, 16 << 20, 1024, UINT64_C(1) << 31,                              \
           "one frame of a control message")                                                       \
    NUMBER(max_message_frames, COUNT, 64, 12, 1024, "frames of a control message")                 \
    NUMBER(max_http_body, BYTES, 1 << 20, 256, 1 << 30, "body of an HTTP request or answer")       \
    NUMBER(max_http_connections, COUNT, 1024, 1, 65536, "bootstrap server: connections at once")   \
    NUMBER(max_registered_ranks, COUNT, 65536, 1, 1 << 20, "bootstrap server: rows in the table")  \
    CHOICE(log_level, 2, "off error warning info debug", "what is logged")

#include "base/clock.h"

#define KVF_SETTING_TEXT_FIELD(name, value, help) char name[KVF_SETTING_TEXT_MAX];
#define KVF_SETTING_CHOICE_FIELD(name, value, choices, help) uint64_t name;
#define KVF_SETTING_NUMBER_FIELD(name, type, value, minimum, maximum, help) uint64_t name;

/* One field per row: settings->waiting_timeout is in nanoseconds. */
struct kvf_settings {
    KVF_SETTINGS(KVF_SETTING_TEXT_FIELD, KVF_SETTING_CHOICE_FIELD, KVF_SETTING_NUMBER_FIELD)
    kvf_log log; /* its level follows log_level */
    char scratch[KVF_SETTING_TEXT_MAX];
};

/* Values of the choices that code asks for. */
enum { KVF_ENGINE_UCX = 0, KVF_ENGINE_LOOP = 1 };

void kvf_settings_defaults(kvf_settings *settings);
kvf_status kvf_settings_from_environment(kvf_settings *settings, kvf_error *error);
kvf_status kvf_settings_assign(kvf_settings *settings, const char *name, const char *value,
                               kvf_error *error);
const char *kvf_settings_format(kvf_settings *settings, const char *name);

#endif
