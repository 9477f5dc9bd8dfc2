#include "doctor_route.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CONNECT_TIMEOUT_MS = 2000, TIMEOUT_MS = 3000, BODY_MAX = 65536, RANKS_MAX = 65536 };

struct route_client {
    const char *address;
    CURL *handle;
    char body[BODY_MAX];
    size_t length;
    char error[CURL_ERROR_SIZE];
    char server[64];
};

static size_t take_body(char *bytes, size_t size, size_t count, void *user)
{
    route_client *client = user;
    size_t length = size * count;
    if (length > sizeof client->body - client->length)
        return 0; /* ends the request: no answer is that long */
    memcpy(client->body + client->length, bytes, length);
    client->length += length;
    return length;
}

static size_t take_header(char *bytes, size_t size, size_t count, void *user)
{
    static const char name[] = "Server:";
    route_client *client = user;
    size_t length = size * count;
    size_t skip = sizeof name - 1;
    if (length <= skip || strncasecmp(bytes, name, skip) != 0)
        return length;
    while (skip < length && bytes[skip] == ' ')
        skip++;
    char line[sizeof client->server];
    (void)snprintf(line, sizeof line, "%.*s", (int)(length - skip), bytes + skip);
    (void)snprintf(client->server, sizeof client->server, "%.*s", (int)strcspn(line, "\r\n"), line);
    return length;
}

route_client *route_open(const char *address)
{
    route_client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return NULL;
    client->address = address;
    client->handle = curl_easy_init();
    if (client->handle == NULL) {
        free(client);
        return NULL;
    }
    CURL *handle = client->handle;
    (void)curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(handle, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_TIMEOUT_MS);
    (void)curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, (long)TIMEOUT_MS);
    (void)curl_easy_setopt(handle, CURLOPT_ERRORBUFFER, client->error);
    (void)curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, take_body);
    (void)curl_easy_setopt(handle, CURLOPT_WRITEDATA, client);
    (void)curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, take_header);
    (void)curl_easy_setopt(handle, CURLOPT_HEADERDATA, client);
    return client;
}

void route_close(route_client *client)
{
    if (client == NULL)
        return;
    curl_easy_cleanup(client->handle);
    free(client);
}

static const char something_else[] =
    "Something else than a bootstrap server of SGLang 0.4.7 or kvferry listens there: correct the "
    "port.";

/* Why nothing came back. */
static void explain_silence(const route_client *client, CURLcode code, route_answer *answer)
{
    curl_off_t connected = 0; /* microseconds */
    (void)curl_easy_getinfo(client->handle, CURLINFO_CONNECT_TIME_T, &connected);
    const char *words = client->error[0] == '\0' ? curl_easy_strerror(code) : client->error;
    answer->advice = "Start the bootstrap server there, or correct the address; it is host:port.";
    if (code == CURLE_COULDNT_CONNECT)
        (void)message_set(&answer->trouble, "%s: nobody listens there: %s", client->address, words);
    else if (code == CURLE_OPERATION_TIMEDOUT && connected == 0) {
        answer->advice = "Look at the host, the route and the firewalls on the way.";
        (void)message_set(&answer->trouble, "%s: no connection within %d ms", client->address,
                          CONNECT_TIMEOUT_MS);
    } else if (code == CURLE_OPERATION_TIMEDOUT) {
        answer->advice = "What listens there hangs or isn't a bootstrap server: restart it, or "
                         "correct the port.";
        (void)message_set(&answer->trouble,
                          "%s: takes the connection but doesn't answer within %d ms",
                          client->address, TIMEOUT_MS);
    } else {
        if (connected != 0)
            answer->advice = something_else;
        (void)message_set(&answer->trouble, "%s: %s", client->address, words);
    }
}

/* Takes the body of an answer that came back. */
static void take_answer(route_client *client, route_answer *answer)
{
    json_error_t error;
    int shown = (int)(client->length < 160 ? client->length : 160);
    answer->advice = something_else;
    (void)curl_easy_getinfo(client->handle, CURLINFO_RESPONSE_CODE, &answer->status);
    (void)snprintf(answer->server, sizeof answer->server, "%s", client->server);
    if (answer->status == 200)
        answer->object = json_loadb(client->body, client->length, 0, &error);
    if (json_is_object(answer->object))
        return;
    json_decref(answer->object);
    answer->object = NULL;
    (void)message_set(&answer->trouble, "%s: answers with HTTP status %ld: %.*s", client->address,
                      answer->status, shown, client->body);
}

static bool names_port(const char *address)
{
    const char *colon = strrchr(address, ':');
    return colon != NULL && colon[1] != '\0' &&
           strspn(colon + 1, "0123456789") == strlen(colon + 1);
}

void route_ask(route_client *client, int64_t rank, int64_t group, route_answer *answer)
{
    char url[512];
    *answer = (route_answer){.status = 0, .advice = ""};
    if (!names_port(client->address)) {
        answer->advice = "Write host:port, e.g. 10.0.0.1:8998 or [::1]:8998.";
        (void)message_set(&answer->trouble, "\"%.200s\" names no port", client->address);
        return;
    }
    client->length = 0;
    client->error[0] = '\0';
    client->server[0] = '\0';
    (void)snprintf(url, sizeof url, "http://%.400s/route?engine_rank=%lld&target_dp_group=%lld",
                   client->address, (long long)rank, (long long)group);
    (void)curl_easy_setopt(client->handle, CURLOPT_URL, url);
    CURLcode code = curl_easy_perform(client->handle);
    if (code == CURLE_OK)
        take_answer(client, answer);
    else
        explain_silence(client, code, answer);
}

void route_free(route_answer *answer)
{
    json_decref(answer->object);
    answer->object = NULL;
}

/* SGLang from 0.5 on answers the same question with other keys, or with 503 before all ranks are there. */
static void explain_other_profile(const route_client *client, route_answer *answer)
{
    bool newer = answer->status == 503 || json_object_get(answer->object, "attn_tp_size") != NULL;
    if (newer)
        answer->advice = "kvferry speaks the control plane of SGLang 0.4.7; use that there.";
    if (newer)
        (void)message_set(&answer->trouble, "%s: a bootstrap server of another SGLang than 0.4.7",
                          client->address);
    else if (answer->object != NULL)
        (void)message_set(&answer->trouble, "%s: answers without the prefill side's sizes",
                          client->address);
}

bool route_ask_sizes(route_client *client, route_sizes *sizes, route_answer *answer)
{
    *sizes = (route_sizes){.tensor_ranks = 0};
    route_ask(client, -1, -1, answer);
    const json_t *tensor_ranks = json_object_get(answer->object, "prefill_tp_size");
    const json_t *groups = json_object_get(answer->object, "prefill_dp_size");
    if (json_is_null(tensor_ranks) && json_is_null(groups))
        return true;
    sizes->tensor_ranks = json_integer_value(tensor_ranks);
    sizes->groups = json_integer_value(groups);
    if (sizes->groups >= 1 && sizes->tensor_ranks >= sizes->groups &&
        sizes->tensor_ranks <= RANKS_MAX && sizes->tensor_ranks % sizes->groups == 0)
        return true;
    explain_other_profile(client, answer);
    return false;
}
