// The mark of this life of the coordinator among the checkpoints (rpc/checkpoint/place_mark.h): left behind readiness, on the thread
// of looks and before any of them, and where that failed (a full disk) again each minute, or every few seconds where the disk is
// away, from the start on or since somebody has missed something there. Before it is there no worker can find it, and what one says of another directory says nothing.
#ifndef COORDINATOR_OBSERVE_HOSTS_LEFT_MARK_H
#define COORDINATOR_OBSERVE_HOSTS_LEFT_MARK_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/model/agent.h"
#include "coordinator/store/files/marked_root.h"
#include "coordinator/store/writer.h"

typedef struct gs_left_mark gs_left_mark;

// Asks for it at once. All are borrowed; `agents` that are there then may have looked before it was left. NULL: no memory.
gs_left_mark *gs_left_mark_create(gs_writer *writer, gs_marked_root *root, const gs_agent_table *agents);
void gs_left_mark_destroy(gs_left_mark *mark);  // behind the writer's end; NULL is fine
void gs_left_mark_tick(gs_left_mark *mark, int64_t now_ns);
// Who looks has found it by now, if it sees this directory. True of NULL.
bool gs_left_mark_is_to_be_seen(const gs_left_mark *mark, int64_t now_ns);

#endif
