// The mark of this life of the coordinator among the checkpoints (rpc/checkpoint/place_mark.h): left at its start, and where that
// failed (a full disk) again each minute, on the thread of looks. Before it is there no worker can find it, and what one says of
// another directory says nothing.
#ifndef COORDINATOR_OBSERVE_HOSTS_LEFT_MARK_H
#define COORDINATOR_OBSERVE_HOSTS_LEFT_MARK_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/store/writer.h"

typedef struct gs_left_mark gs_left_mark;

// Tries at once. The writer is borrowed. NULL: no memory.
gs_left_mark *gs_left_mark_create(gs_writer *writer, const char *directory, const char *cluster, uint64_t life);
void gs_left_mark_destroy(gs_left_mark *mark);  // behind the writer's end; NULL is fine
void gs_left_mark_tick(gs_left_mark *mark, int64_t now_ns);
// Who looks has found it by now, if it sees this directory. True of NULL.
bool gs_left_mark_is_to_be_seen(const gs_left_mark *mark, int64_t now_ns);

#endif
