// Calls of a trainer that must not be lost: each is repeated until it is acknowledged, in order, by
// a thread of its own. Bounded: what does not fit is dropped, and said in the log.
#ifndef WORKER_CONTROL_OUTBOX_H
#define WORKER_CONTROL_OUTBOX_H

#include <stdbool.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"

typedef struct gs_outbox gs_outbox;

// Borrows the client until destroy.
GS_NODISCARD gs_status gs_outbox_create(gs_outbox **out, gs_rpc_client *client);
void gs_outbox_destroy(gs_outbox *outbox);  // what was not acknowledged is gone

// Takes the request. Any thread, never blocks.
void gs_outbox_push(gs_outbox *outbox, gs_method method, gs_json *request);
// While held nothing is sent, and no refusal is final: it is that of a coordinator that does not
// know this trainer.
void gs_outbox_hold(gs_outbox *outbox, bool held);
// Waits until everything is acknowledged, or the deadline.
void gs_outbox_flush(gs_outbox *outbox, gs_deadline deadline);

#endif
