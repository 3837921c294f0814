// By which key a trainer is known to the coordinator: one of its own, which is good for that rank alone and ends with it, where
// the coordinator takes such keys; else the worker's.
#ifndef WORKER_AGENT_RANK_KEY_H
#define WORKER_AGENT_RANK_KEY_H

#include <stdbool.h>

#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "worker/agent/slot.h"

// `own`: whether it is to have one of its own, which is drawn once and kept in the slot. `key` is the caller's to wipe.
GS_NODISCARD gs_status gs_rank_key_choose(gs_key_file *key, gs_slot *slot, const gs_key_file *workers, const char *worker, bool own);
// Tells the coordinator of those that trainers of these slots have.
void gs_rank_key_tell(gs_rpc_client *client, const gs_slot *slots, int num_slots);

#endif
