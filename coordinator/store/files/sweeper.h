// Removes what saves have left that never became checkpoints: directories without a manifest in which nothing has changed for
// an hour. How long, it has seen itself: files bear the time of a clock that somebody may set, perhaps of another machine. So
// a coordinator that has just begun removes nothing yet. What it has not looked at for as long it forgets.
//
// Used by one thread, that of long work on files.
#ifndef COORDINATOR_STORE_FILES_SWEEPER_H
#define COORDINATOR_STORE_FILES_SWEEPER_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_sweeper gs_sweeper;

// Never NULL. Of more than `most_watched` directories one is watched when another is gone.
#define GS_SWEEPER_MOST_WATCHED 10000
gs_sweeper *gs_sweeper_create(int64_t age_ns, size_t most_watched);
void gs_sweeper_destroy(gs_sweeper *sweeper);   // NULL is fine
size_t gs_sweeper_count(const gs_sweeper *sweeper);  // what it watches
uint64_t gs_sweeper_num_refused(const gs_sweeper *sweeper);  // any thread: how often there was no room for one
// Below `directory`, at `now_ns` of a clock that nobody sets.
GS_NODISCARD gs_status gs_sweeper_run(gs_sweeper *sweeper, const char *directory, int64_t now_ns);

#endif
