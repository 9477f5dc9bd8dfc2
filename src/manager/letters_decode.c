/* Decode: letters from kvferry prefills. A letter counts only for a request that this side made. Its agent name proves
 * who writes: it is random, and told to that prefill alone. Its epoch, which counts from 1, says which request. */
#include "manager/inbox.h"
#include "wire/letter.h"

#include <stdlib.h>
#include <string.h>

static kvf_letter letter_of(const kvf_target *target, uint32_t kind, kvf_status status,
                            const char *text, char plain[KVF_LETTER_TEXT_MAX])
{
    return (kvf_letter){.kind = kind,
                        .status = status,
                        .room = target->receiver->room.id,
                        .epoch = target->key,
                        .agent_name = kvf_slice_of(target->inbox->agent_name),
                        .text = kvf_letter_text(text, plain)};
}

void kvf_letters_write(kvf_target *target, uint32_t kind, kvf_slice body, const kvf_error *reason,
                       bool *put_off)
{
    char plain[KVF_LETTER_TEXT_MAX];
    kvf_letter letter = letter_of(target, kind, reason == NULL ? KVF_OK : reason->status,
                                  reason == NULL ? "" : reason->text, plain);
    letter.body = body;
    *put_off = !kvf_link_send_letter(&target->rank->link, &letter);
}

/* ---- Aborts of rooms that have been left --------------------------------------------------------- */

static void drop_oldest(kvf_rank *rank)
{
    kvf_abort_owed *owed = rank->owed;
    DL_DELETE(rank->owed, owed);
    rank->owed_count--;
    free(owed);
}

static kvf_abort_owed *new_owed(const kvf_letter *letter)
{
    kvf_abort_owed *owed = malloc(sizeof *owed + letter->agent_name.length + letter->text.length);
    if (owed == NULL)
        return NULL;
    uint8_t *text = owed->data + letter->agent_name.length;
    memcpy(owed->data, letter->agent_name.data, letter->agent_name.length);
    memcpy(text, letter->text.data, letter->text.length);
    owed->letter = *letter;
    owed->letter.agent_name.data = owed->data;
    owed->letter.text.data = text;
    return owed;
}

void kvf_letters_owe_abort(const kvf_target *target)
{
    kvf_rank *rank = target->rank;
    char plain[KVF_LETTER_TEXT_MAX];
    if (target->inbox == NULL || !kvf_link_is_open(&rank->link))
        return;
    const kvf_error *reason = &target->receiver->machine.outcome.error;
    kvf_letter letter = letter_of(target, KVF_LETTER_ABORT, reason->status, reason->text, plain);
    kvf_abort_owed *owed =
        rank->owed_count < rank->manager->settings.max_waiting_letters ? new_owed(&letter) : NULL;
    if (owed == NULL) {
        kvf_log_warning(&rank->manager->settings.log,
                        "prefill rank %u of %.*s won't hear that room %llu was given up: "
                        "max_waiting_letters or memory is used up",
                        rank->tp_rank, (int)rank->address_length, rank->key,
                        (unsigned long long)letter.room);
        return;
    }
    DL_APPEND(rank->owed, owed);
    rank->owed_count++;
}

bool kvf_letters_pay_aborts(kvf_rank *rank)
{
    while (rank->owed != NULL && kvf_link_send_letter(&rank->link, &rank->owed->letter))
        drop_oldest(rank);
    return rank->owed == NULL;
}

void kvf_letters_drop_aborts(kvf_rank *rank)
{
    while (rank->owed != NULL)
        drop_oldest(rank);
}

/* ---- Reading ------------------------------------------------------------------------------------- */

static void room_failed(kvf_target *target, const kvf_letter *letter)
{
    const kvf_rank *rank = target->rank;
    kvf_error error;
    kvf_error_set(&error, KVF_PEER_FAILED, "%s: %.*s", kvf_status_name(letter->status),
                  (int)letter->text.length, (const char *)letter->text.data);
    kvf_rank_prefix(rank, &error);
    kvf_suspect_old_ucx(rank->manager, letter->status, &error);
    kvf_receiver_fail(target->receiver, &error);
}

void kvf_letters_message(void *user, uint64_t connection, const kvf_slice *frames, size_t count)
{
    kvf_manager *manager = user;
    kvf_letter letter;
    kvf_error error;
    kvf_count(manager, KVF_COUNT_MESSAGES, 1);
    if (!kvf_letter_is_one(frames, count)) {
        kvf_drop_message(manager, "a decode takes only letters of kvferry peers");
        return;
    }
    if (kvf_letter_decode(frames, count, &letter, &error) != KVF_OK) {
        kvf_drop_message(manager, error.text);
        return;
    }
    kvf_inbox *inbox = kvf_inbox_find(manager, letter.agent_name);
    kvf_target *target = inbox == NULL ? NULL : kvf_inbox_target(inbox, letter.epoch, letter.room);
    if (inbox != NULL)
        kvf_rank_wrote(inbox->rank, connection);
    if (letter.kind == KVF_LETTER_HELLO)
        kvf_log_debug(&manager->settings.log, "kvferry %.*s answers", (int)letter.text.length,
                      (const char *)letter.text.data);
    else if (target == NULL)
        kvf_drop_message(manager, NULL); /* usual: the room has ended meanwhile */
    else if (letter.kind == KVF_LETTER_FAILED)
        room_failed(target, &letter);
    else if (letter.kind == KVF_LETTER_STOPPED)
        kvf_receiver_prove(target->receiver, KVF_PROOF_ACKNOWLEDGED);
    else if (letter.kind == KVF_LETTER_SUMS)
        kvf_checking_sums(target->receiver, letter.status, letter.text, letter.body);
    else if (letter.kind == KVF_LETTER_PAGE_SUMS)
        kvf_checking_pages(target->receiver, letter.body);
    else
        kvf_drop_message(manager, "a letter of an unknown kind");
}
