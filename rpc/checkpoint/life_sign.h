// Ranks that no coordinator hears say where their checkpoints lie that they live: a network that has lost the one may still
// reach the other. Whoever looks twice and finds another number knows that they do.
//
//   CHECKPOINTS/JOB/ALIVE.json   cluster, generation and a number that grows; sealed and written atomically
#ifndef RPC_CHECKPOINT_LIFE_SIGN_H
#define RPC_CHECKPOINT_LIFE_SIGN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/checkpoint/fence.h"

GS_NODISCARD gs_status gs_life_sign_leave(const char *directory, const gs_fence *mine, int64_t number);
// 0: there is none of theirs.
GS_NODISCARD gs_status gs_life_sign_read(int64_t *number, const char *directory, const gs_fence *theirs);

#endif
