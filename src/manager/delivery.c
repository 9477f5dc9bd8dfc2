/* Chunks on their way: one transfer for each chunk and destination. */
#include "manager/agent.h"

#include <stdlib.h>

static void end_delivery(kvf_delivery *delivery, kvf_status status)
{
    kvf_sender *sender = delivery->sender;
    kvf_manager *manager = sender->room.manager;
    kvf_agent *agent = delivery->incoming->agent;
    kvf_count(manager, KVF_COUNT_BYTES, delivery->transfer.bytes_posted);
    kvf_count(manager, KVF_COUNT_WRITES, delivery->transfer.writes_posted);
    if (status == KVF_OK) {
        kvf_count(manager, KVF_COUNT_PAGES_SENT, delivery->page_count);
        (void)atomic_fetch_add_explicit(&sender->room.bytes, delivery->transfer.bytes_posted,
                                        memory_order_relaxed);
    }
    if (!delivery->transfer.flushed)
        kvf_peer_unflushed(&agent->past, delivery->incoming->request.epoch);
    kvf_uncount(manager, KVF_COUNT_TRANSFERS, 1);
    DL_DELETE(sender->deliveries, delivery);
    delivery->incoming->deliveries--;
    free(delivery);
    agent->deliveries--;
}

static void delivered(kvf_transfer *transfer, kvf_status status, const char *text)
{
    kvf_delivery *delivery = transfer->user;
    kvf_sender *sender = delivery->sender;
    kvf_error error;
    kvf_error_set(&error, status, "writing to agent %s: %s", delivery->incoming->agent->name,
                  text == NULL ? "" : text);
    kvf_incoming *incoming = delivery->incoming;
    end_delivery(delivery, status);
    if (status == KVF_OK)
        kvf_sums_delivered(incoming);
    else if (status != KVF_ABORTED)
        kvf_sender_feed(sender, &(kvf_sender_event){.kind = KVF_SENDER_FAILED, .error = &error});
    kvf_sender_release(sender);
}

static void add_notice(kvf_delivery *delivery, kvf_transfer_part *part, const kvf_notice *notice)
{
    char text[KVF_NOTICE_TEXT_MAX];
    size_t length = kvf_notice_format(notice, text);
    const char *agent_name = delivery->sender->room.manager->agent_name;
    part->payload_length = (uint32_t)kvf_notice_payload_encode(
        kvf_slice_of(agent_name), (kvf_slice){(const uint8_t *)text, length}, part->payload);
}

/* A chunk's pages, then its notification; with the last chunk the aux record and its own. */
static void plan(kvf_delivery *delivery, const kvf_call *chunk, uint32_t chunk_index,
                 uint32_t first_page, bool last)
{
    kvf_sender *sender = delivery->sender;
    kvf_incoming *incoming = delivery->incoming;
    const kvf_binding *binding = incoming->binding;
    kvf_transfer *transfer = &delivery->transfer;
    kvf_writes_begin(&transfer->parts[0].writes, binding->spans, binding->span_count, chunk->pages,
                     incoming->pages + first_page, chunk->page_count);
    add_notice(delivery, &transfer->parts[0],
               &(kvf_notice){.kind = KVF_NOTICE_CHUNK,
                             .room = sender->room.id,
                             .epoch = incoming->request.epoch,
                             .chunk = chunk_index,
                             .last = last});
    transfer->part_count = 1;
    if (!last)
        return;
    kvf_writes_begin(&transfer->parts[1].writes, binding->aux_spans, binding->aux_span_count,
                     &sender->aux_slot, &incoming->request.aux_slot, 1);
    add_notice(delivery, &transfer->parts[1],
               &(kvf_notice){.kind = KVF_NOTICE_AUX,
                             .room = sender->room.id,
                             .epoch = incoming->request.epoch});
    transfer->part_count = 2;
}

static kvf_status deliver(kvf_sender *sender, kvf_incoming *incoming, const kvf_call *chunk,
                          uint32_t chunk_index, uint32_t first_page, bool last, kvf_error *error)
{
    kvf_manager *manager = sender->room.manager;
    kvf_delivery *delivery = calloc(1, sizeof *delivery);
    if (delivery == NULL)
        return kvf_error_set(error, KVF_NO_MEMORY, "no memory to send a chunk");
    delivery->sender = sender;
    delivery->incoming = incoming;
    delivery->page_count = chunk->page_count;
    delivery->chunk = chunk_index;
    delivery->transfer.peer = incoming->agent->peer;
    delivery->transfer.done = delivered;
    delivery->transfer.user = delivery;
    plan(delivery, chunk, chunk_index, first_page, last);
    kvf_status status =
        manager->engine->operations->post(manager->engine, &delivery->transfer, error);
    if (status != KVF_OK) {
        free(delivery);
        return status;
    }
    DL_APPEND(sender->deliveries, delivery);
    incoming->deliveries++;
    incoming->agent->deliveries++;
    kvf_count(manager, KVF_COUNT_TRANSFERS, 1);
    return KVF_OK;
}

bool kvf_chunk_is_last(const kvf_sender *sender, const kvf_call *chunk)
{
    return sender->machine.last_sent && chunk->next == NULL;
}

void kvf_deliver_chunks(kvf_sender *sender, uint32_t first_chunk, uint32_t chunk_count)
{
    kvf_error error;
    for (uint32_t i = 0; i < chunk_count; i++) {
        kvf_call *chunk = sender->unposted;
        bool last = kvf_chunk_is_last(sender, chunk);
        kvf_incoming *incoming;
        DL_FOREACH(sender->incoming, incoming)
        {
            if (kvf_request_is_dummy(&incoming->request))
                continue;
            if (deliver(sender, incoming, chunk, first_chunk + i, sender->pages_posted, last,
                        &error) != KVF_OK) {
                kvf_sender_feed(sender,
                                &(kvf_sender_event){.kind = KVF_SENDER_FAILED, .error = &error});
                return;
            }
        }
        sender->pages_posted += chunk->page_count;
        sender->unposted = chunk->next;
    }
}

void kvf_deliveries_cancel(kvf_sender *sender)
{
    kvf_engine *engine = sender->room.manager->engine;
    kvf_delivery *delivery;
    kvf_delivery *next;
    DL_FOREACH_SAFE(sender->deliveries, delivery, next)
    {
        engine->operations->cancel(engine, &delivery->transfer);
    }
}

void kvf_deliveries_forget(kvf_sender *sender)
{
    kvf_delivery *delivery;
    kvf_delivery *next;
    DL_FOREACH_SAFE(sender->deliveries, delivery, next)
    {
        DL_DELETE(sender->deliveries, delivery);
        free(delivery);
    }
}
