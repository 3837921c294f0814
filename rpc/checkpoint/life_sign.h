// Ranks that no coordinator hears say where their checkpoints lie that they live: a network that has lost the one may still
// reach the other. Whoever looks twice and finds another number knows that they do.
//
//   CHECKPOINTS/JOB/ALIVE.json   cluster, generation and a number that grows; sealed and replaced as a whole, and never forced
//                                out: a disk that takes its time does not make who lives look dead
#ifndef RPC_CHECKPOINT_LIFE_SIGN_H
#define RPC_CHECKPOINT_LIFE_SIGN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/checkpoint/fence.h"

GS_NODISCARD gs_status gs_life_sign_leave(const char *directory, const gs_fence *mine, int64_t number);
// 0: there is none of theirs that can be read.
GS_NODISCARD gs_status gs_life_sign_read(int64_t *number, const char *directory, const gs_fence *theirs);

#endif
