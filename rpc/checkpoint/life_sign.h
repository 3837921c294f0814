// Ranks that no coordinator hears say where their checkpoints lie that they live: a network that has lost the one may still
// reach the other. Whoever looks twice and finds another number knows that they do.
//
//   CHECKPOINTS/JOB/ALIVE.json   cluster, generation and a number that grows; sealed and replaced as a whole, and never forced
//                                out: a disk that takes its time does not make who lives look dead
#ifndef RPC_CHECKPOINT_LIFE_SIGN_H
#define RPC_CHECKPOINT_LIFE_SIGN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/checkpoint/fence.h"

// Who leaves signs leaves one so often, and reads the fence as often.
#define GS_LIFE_SIGN_EVERY_NS GS_NS_PER_SEC
// Who has heard no coordinator for so long, and not seen either that the fence is open, takes no step. A coordinator that raises
// the fence waits for three times an agent's silence (coordinator/engine/runs/absence.c), more than twice this, before it has
// others begin.
#define GS_LIFE_UNSEEN_NS (4 * GS_LIFE_SIGN_EVERY_NS)

GS_NODISCARD gs_status gs_life_sign_leave(const char *directory, const gs_fence *mine, int64_t number);
// 0: there is none of theirs that can be read.
GS_NODISCARD gs_status gs_life_sign_read(int64_t *number, const char *directory, const gs_fence *theirs);

#endif
