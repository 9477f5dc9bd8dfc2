/* Last words to decode processes that are no peers of this prefill: a request was refused before anything was kept of who
 * made it. Each has a connection of its own, for as long as a letter may take. */
#ifndef KVF_MANAGER_MESSENGER_H
#define KVF_MANAGER_MESSENGER_H

#include "manager/manager.h"
#include "wire/request.h"

/* At once; who is refused meanwhile isn't told, and waits until its own deadline. */
#define KVF_MESSENGERS_MAX 16

/* Tells who made the request, if it is kvferry, that the room has failed here, and why; `stopped`: also that nothing of it
 * is under way. */
void kvf_messenger_send(kvf_manager *manager, const kvf_request *request, const kvf_error *error,
                        bool stopped);
void kvf_messengers_free(kvf_manager *manager);

#endif
