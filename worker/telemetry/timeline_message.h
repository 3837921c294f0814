// Steps of the ring as Timeline calls: what the coordinator asked for, in pages of bounded size.
#ifndef WORKER_TELEMETRY_TIMELINE_MESSAGE_H
#define WORKER_TELEMETRY_TIMELINE_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "rpc/json/json.h"
#include "worker/telemetry/timeline.h"

#define GS_TIMELINE_PAGE_ROWS 3000  // spans and buckets of a page, at most 160 bytes each

// A walk over the steps that were asked for, oldest first. {0} with the timeline and a range.
typedef struct gs_timeline_pages {
    gs_timeline *timeline;  // borrowed
    int64_t next_step, last_step;
    bool ended;
} gs_timeline_pages;

typedef struct gs_timeline_range_asked {
    int64_t last;                // > 0: the last so many steps
    int64_t from_step, to_step;  // else these, both included
    size_t max_rows;             // spans and buckets of all steps; the oldest ones are left out
} gs_timeline_range_asked;
gs_timeline_pages gs_timeline_pages_begin(gs_timeline *timeline,
                                          const gs_timeline_range_asked *asked);
// The next page, to be completed with request and generation; there is always at least one, and the
// last one has "more" false. NULL: there was no more.
gs_json *gs_timeline_pages_next(gs_timeline_pages *pages);

#endif
