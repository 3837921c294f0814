// The files of a job's log: append with numbering, read with filters. The thread of logs alone.
//
// Segments are DATA/jobs/ID/log-N.ndjson, one record a line, its cursor inside; above the cap of a job
// the oldest segment is dropped.
#ifndef COORDINATOR_STORE_LOG_DISK_H
#define COORDINATOR_STORE_LOG_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/store/leftovers.h"
#include "core/status.h"
#include "rpc/json/json.h"

#define GS_LOG_SEGMENT_BYTES (INT64_C(8) << 20)
#define GS_LOG_MAX_SEGMENTS 8

typedef struct gs_log_disk gs_log_disk;

// Nothing is touched before the first use. NULL: out of memory.
gs_log_disk *gs_log_disk_create(const char *directory);
void gs_log_disk_destroy(gs_log_disk *disk);

// `line` is a JSON object without cursor; `key` tells repeats. Repeats are dropped. A failure takes back all lines behind the
// last flush, reads nothing for that, and leaves nothing of them that is ever shown.
GS_NODISCARD gs_status gs_log_disk_append(gs_log_disk *disk, const char *line, uint64_t key);
GS_NODISCARD gs_status gs_log_disk_flush(gs_log_disk *disk);
// Nothing is open or remembered until the next use.
void gs_log_disk_rest(gs_log_disk *disk);
// Its job is deleted: all files are put aside (leftovers.h).
GS_NODISCARD gs_status gs_log_disk_put_aside(gs_log_disk *disk, char aside[GS_ASIDE_LEN]);

#define GS_LOG_MAX_RANKS 64
typedef struct gs_log_query {
    bool all_ranks;       // false and no ranks: rank 0, and warnings of all
    int num_ranks;
    int64_t ranks[GS_LOG_MAX_RANKS];
    char stream[16];      // "": any
    int least_level;      // 0 debug … 3 error
    char grep[256];       // literal text, never a pattern: strangers write it; "": any
    int64_t tail;         // the last that many; 0: from the beginning, or since
    uint64_t since;       // cursors above
    int64_t generation;   // −1: any
    int64_t limit;
} gs_log_query;

typedef struct gs_log_answer {
    gs_json *records;  // the caller's
    uint64_t cursor;   // everything up to it has been looked at
    bool at_end;
} gs_log_answer;

GS_NODISCARD gs_status gs_log_disk_read(gs_log_disk *disk, gs_log_answer *answer,
                                        const gs_log_query *query);
int gs_log_level_rank(const char *name);  // "warning", "warn" …; −1: no such level

#endif
