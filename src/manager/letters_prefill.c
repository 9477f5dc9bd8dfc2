/* Prefill: letters from kvferry decodes, who give rooms up, and to them: a room has failed here; nothing of a room
 * that was given up is under way any more. */
#include "manager/agent.h"

#include <stdlib.h>
#include <string.h>

/* ---- The way there ------------------------------------------------------------------------------- */

static kvf_agent *agent_of(kvf_link *link)
{
    return (kvf_agent *)((char *)link - offsetof(kvf_agent, link));
}

/* Takes it from those that wait. */
static kvf_letter_kept *take_waiting(kvf_agent *agent)
{
    kvf_letter_kept *kept = agent->letters;
    DL_DELETE(agent->letters, kept);
    agent->letter_bytes -= (uint32_t)kept->letter.body.length;
    agent->letter_count--;
    return kept;
}

static void add_waiting(kvf_agent *agent, kvf_letter_kept *kept)
{
    DL_APPEND(agent->letters, kept);
    agent->letter_bytes += (uint32_t)kept->letter.body.length;
    agent->letter_count++;
}

static kvf_letter_kept *take_sent(kvf_agent *agent)
{
    kvf_letter_kept *kept = agent->sent;
    DL_DELETE(agent->sent, kept);
    agent->sent_count--;
    return kept;
}

static void drop_letters(kvf_agent *agent)
{
    while (agent->letters != NULL)
        free(take_waiting(agent));
    while (agent->sent != NULL)
        free(take_sent(agent));
}

/* What a room waits for, and nothing else tells. It may come twice: it is about one request, known by its epoch, and
 * says what has happened to it for good. */
static bool ends_a_room(const kvf_letter *letter)
{
    return letter->kind == KVF_LETTER_FAILED || letter->kind == KVF_LETTER_STOPPED;
}

/* A heartbeat that was sent later has been answered by then, or the connection is lost. */
static void forget_arrived(kvf_agent *agent)
{
    const kvf_settings *settings = &agent->manager->settings;
    uint64_t surely = settings->heartbeat_interval + 2 * settings->heartbeat_timeout;
    while (agent->sent != NULL &&
           kvf_clock_after(agent->sent->sent_at, surely) <= agent->manager->now)
        free(take_sent(agent));
}

static void keep_sent(kvf_agent *agent, kvf_letter_kept *kept)
{
    kept->sent_at = agent->manager->now;
    DL_APPEND(agent->sent, kept);
    agent->sent_count++;
}

static void send_waiting(kvf_link *link)
{
    kvf_agent *agent = agent_of(link);
    agent->connected = true;
    while (agent->letters != NULL && kvf_link_send_letter(&agent->link, &agent->letters->letter)) {
        kvf_letter_kept *kept = take_waiting(agent);
        if (ends_a_room(&kept->letter))
            keep_sent(agent, kept);
        else
            free(kept);
    }
    if (agent->letters == NULL)
        kvf_sums_resume(agent);
}

/* What ends rooms is tried once more, with the next connection; the rest is dropped. How many are lost. */
static size_t try_again(kvf_agent *agent)
{
    kvf_letter_kept *all = NULL;
    size_t lost = 0;
    while (agent->sent != NULL || agent->letters != NULL) {
        kvf_letter_kept *kept = agent->sent != NULL ? take_sent(agent) : take_waiting(agent);
        DL_APPEND(all, kept);
    }
    while (all != NULL) {
        kvf_letter_kept *kept = all;
        DL_DELETE(all, kept);
        if (ends_a_room(&kept->letter) && !kept->again && !agent->dead) {
            kept->again = true;
            add_waiting(agent, kept);
            continue;
        }
        free(kept);
        lost++;
    }
    return lost;
}

/* Whether the agent lives is told by the connection it opened to us. Without ours it hears nothing; what it waits for
 * is worth another connection, and where that one fails too its own deadlines end it. */
static void gone(kvf_link *link, const char *text)
{
    kvf_agent *agent = agent_of(link);
    agent->greeted = agent->greeted &&
                     !agent->connected; /* one that never heard us isn't tried again and again */
    agent->connected = false;
    forget_arrived(agent);
    size_t lost = try_again(agent);
    if (lost > 0 && !agent->dead)
        kvf_log_warning(&agent->manager->settings.log,
                        "%zu letters to decode agent %s are lost: %s", lost, agent->name, text);
    kvf_sums_unheard(agent, text);
    if (agent->letters != NULL)
        kvf_link_attend(link);
}

/* Opened here, as letters are written inside callbacks of all kinds. */
static void attended(kvf_link *link)
{
    kvf_agent *agent = agent_of(link);
    kvf_error error;
    if (agent->letters == NULL || kvf_link_is_open(link))
        return;
    if (kvf_link_open(link, agent->host, agent->port, &error) != KVF_OK)
        gone(link, error.text);
}

void kvf_letters_init(kvf_agent *agent)
{
    static const kvf_link_callbacks callbacks = {send_waiting, send_waiting, gone, attended};
    kvf_link_init(&agent->link, agent->manager, &callbacks);
}

void kvf_letters_free(kvf_agent *agent)
{
    kvf_link_close(&agent->link);
    drop_letters(agent);
}

/* ---- Writing ------------------------------------------------------------------------------------- */

static kvf_letter_kept *new_kept(kvf_agent *agent, const kvf_letter *letter)
{
    const uint64_t most = agent->manager->settings.max_waiting_letters;
    forget_arrived(agent);
    if (agent->letter_count + (uint64_t)agent->sent_count >= most && agent->sent != NULL)
        free(take_sent(agent)); /* those that were sent make room */
    if (agent->letter_count + (uint64_t)agent->sent_count >= most ||
        letter->body.length > KVF_LETTERS_KEPT_MAX - agent->letter_bytes)
        return NULL;
    kvf_letter_kept *kept =
        malloc(sizeof(kvf_letter_kept) + letter->text.length + letter->body.length);
    if (kept == NULL)
        return NULL;
    kept->letter = *letter;
    kept->again = false;
    memcpy(kept->data, letter->text.data, letter->text.length);
    if (letter->body.length > 0)
        memcpy(kept->data + letter->text.length, letter->body.data, letter->body.length);
    kept->letter.text = (kvf_slice){kept->data, letter->text.length};
    kept->letter.body = (kvf_slice){kept->data + letter->text.length, letter->body.length};
    kept->letter.agent_name = kvf_slice_of(agent->name);
    return kept;
}

/* False: it is lost. */
static bool keep_letter(kvf_agent *agent, const kvf_letter *letter)
{
    kvf_letter_kept *kept = new_kept(agent, letter);
    if (kept == NULL) {
        kvf_log_warning(&agent->manager->settings.log,
                        "a letter to decode agent %s is lost: max_waiting_letters or memory is "
                        "used up",
                        agent->name);
        return false;
    }
    add_waiting(agent, kept);
    kvf_link_attend(&agent->link);
    return true;
}

/* False: it has to wait. */
static bool send_now(kvf_agent *agent, const kvf_letter *letter)
{
    if (!agent->connected || agent->letters != NULL || !kvf_link_send_letter(&agent->link, letter))
        return false;
    kvf_letter_kept *kept = ends_a_room(letter) ? new_kept(agent, letter) : NULL;
    if (kept != NULL)
        keep_sent(agent, kept);
    return true;
}

/* False when the agent won't hear of it. */
static bool write_letter(kvf_agent *agent, kvf_letter_kind kind, const kvf_request *request,
                         kvf_status status, const char *text, kvf_slice body)
{
    char plain[KVF_LETTER_TEXT_MAX];
    if (request->epoch == 0 || agent->dead || agent->host[0] == '\0' || agent->port == 0)
        return false;
    kvf_letter letter = {.kind = kind,
                         .status = status,
                         .room = request->room,
                         .epoch = request->epoch,
                         .agent_name = kvf_slice_of(agent->name),
                         .text = kvf_letter_text(text, plain),
                         .body = body};
    return send_now(agent, &letter) || keep_letter(agent, &letter);
}

static const kvf_slice no_body = {NULL, 0};

/* The hello makes the connection that a failure's notice would have to wait for, and shows who this is where the
 * bootstrap server couldn't. */
void kvf_letters_address(kvf_agent *agent, const kvf_request *request)
{
    if (request->epoch == 0 || !kvf_slice_to_text(request->host, agent->host, sizeof agent->host))
        agent->host[0] = '\0';
    agent->port = request->port;
    if (!agent->greeted)
        agent->greeted =
            write_letter(agent, KVF_LETTER_HELLO, request, KVF_OK, kvf_version(), no_body);
}

void kvf_letters_failed(kvf_agent *agent, const kvf_request *request, const kvf_error *error)
{
    (void)write_letter(agent, KVF_LETTER_FAILED, request, error->status, error->text, no_body);
}

void kvf_letters_stopped(kvf_agent *agent, const kvf_request *request)
{
    if (kvf_peer_may_acknowledge(&agent->past, request->epoch))
        (void)write_letter(agent, KVF_LETTER_STOPPED, request, KVF_OK, "", no_body);
}

bool kvf_letters_sums(kvf_incoming *incoming, kvf_letter_kind kind, kvf_slice body,
                      const kvf_error *error)
{
    return write_letter(incoming->agent, kind, &incoming->request,
                        error == NULL ? KVF_OK : error->status, error == NULL ? "" : error->text,
                        body);
}

/* ---- Reading ------------------------------------------------------------------------------------- */

static kvf_incoming *find_incoming(const kvf_agent *agent, const kvf_letter *letter)
{
    kvf_incoming *incoming;
    DL_FOREACH2(agent->incoming, incoming, agent_next)
    {
        if (incoming->request.epoch == letter->epoch && incoming->request.room == letter->room)
            return incoming;
    }
    return NULL;
}

/* Answered when the request is freed: then nothing of it is under way. One that hasn't come can't any more,
 * and one that is gone has ended. */
static void stop(kvf_agent *agent, kvf_incoming *incoming, const kvf_letter *letter)
{
    kvf_manager *manager = agent->manager;
    kvf_error error;
    kvf_peer_gives_up(&agent->past, letter->epoch);
    if (incoming == NULL) {
        kvf_letters_stopped(agent, &(kvf_request){.room = letter->room, .epoch = letter->epoch});
        return;
    }
    if (kvf_fault_acks_early(manager->engine)) {
        kvf_letters_stopped(agent, &incoming->request);
        return;
    }
    incoming->stop_wanted = true;
    kvf_sender *sender = incoming->sender;
    if (sender == NULL) {
        kvf_incoming_free(manager, incoming);
        return;
    }
    kvf_error_set(&error, KVF_PEER_FAILED, "decode agent %s gave the room up: %.*s", agent->name,
                  (int)letter->text.length, (const char *)letter->text.data);
    kvf_suspect_old_ucx(manager, letter->status, &error);
    bool meant =
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_PEER_GONE,
                                                    .agent_name = kvf_slice_of(agent->name),
                                                    .error = &error});
    if (!meant && !kvf_outcome_is_final(&sender->machine.outcome)) {
        incoming->stop_wanted = false; /* it has all, and the room only waits for others */
        kvf_letters_stopped(agent, &incoming->request);
    }
    kvf_sender_release(sender);
}

void kvf_letters_take(kvf_manager *manager, uint64_t connection, const kvf_slice *frames,
                      size_t count)
{
    kvf_letter letter;
    kvf_error error;
    if (kvf_letter_decode(frames, count, &letter, &error) != KVF_OK) {
        kvf_drop_message(manager, error.text);
        return;
    }
    kvf_agent *agent = kvf_agent_named(manager, letter.agent_name);
    if (agent == NULL || agent->connection != connection) {
        kvf_drop_message(manager, "a letter not from who it names");
        return;
    }
    kvf_incoming *incoming = find_incoming(agent, &letter);
    if (letter.kind == KVF_LETTER_ABORT)
        stop(agent, incoming, &letter);
    else if (letter.kind != KVF_LETTER_VERDICT && letter.kind != KVF_LETTER_WANT_PAGES)
        kvf_drop_message(manager, "a letter of no kind this side takes");
    else if (incoming == NULL)
        kvf_drop_message(manager, NULL); /* usual: the room has ended meanwhile */
    else if (letter.kind == KVF_LETTER_VERDICT)
        kvf_sums_verdict(incoming, letter.body);
    else
        kvf_sums_wanted(incoming, letter.body);
}
