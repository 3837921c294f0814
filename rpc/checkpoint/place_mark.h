// A mark in the directory of all checkpoints, by which processes on several hosts find out whether they see the same one: a path
// says nothing, for each host may have a directory of that name. Each life of a coordinator leaves its own, so that a copy of the
// directory is not taken for it.
//
//   CHECKPOINTS/PLACE-<cluster>.json   the coordinator's life; sealed and written atomically
#ifndef RPC_CHECKPOINT_PLACE_MARK_H
#define RPC_CHECKPOINT_PLACE_MARK_H

#include <stdint.h>

#include "core/status.h"

GS_NODISCARD gs_status gs_place_mark_leave(const char *directory, const char *cluster, uint64_t life);
// NOT_FOUND: there is none of this cluster.
GS_NODISCARD gs_status gs_place_mark_read(uint64_t *life, const char *directory, const char *cluster);

#endif
