// What a host says of itself when an operator asks what is in the way of training on it: addresses, limits, shared memory,
// clocks, the place of checkpoints, settings that surprise; whether it reaches the others, and how fast; and what sums of all take.
//
// A thread of its own, since it waits for networks and disks. Nothing of it decides anything.
#ifndef WORKER_AGENT_EXAMINATION_H
#define WORKER_AGENT_EXAMINATION_H

#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"
#include "worker/agent/shared_place.h"

typedef struct gs_examination gs_examination;

typedef struct gs_examined_host {  // borrowed until stop
    const char *data_address, *coordinator, *data_root;  // data_address "": as workers find it
    gs_shared_place *place;
} gs_examined_host;

// Borrows the client until stop.
GS_NODISCARD gs_status gs_examination_start(gs_examination **out, gs_rpc_client *client, const gs_examined_host *host);
void gs_examination_stop(gs_examination *examination);  // NULL is fine

// An item of the coordinator, "examine", "reach", "sum", "exchanged" or "examined"; what is asked while another is answered is forgotten.
void gs_examination_take(gs_examination *examination, const gs_json *item);

#endif
