// Timelines as clients see them: pages of ranks, as the coordinator passes them on → one document.
//
// Ranks of one host share a clock. Ranks of different hosts are moved so that commits of the steps they
// have in common end at the same time, which a collective does to within one network delay; that
// estimate is written beside. Pure functions.
#ifndef API_RENDER_TIMELINE_VIEW_H
#define API_RENDER_TIMELINE_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rpc/json/json.h"

typedef struct gs_timeline_pick {
    int64_t last;                // > 0: the newest so many steps that all ranks have
    int64_t from_step, to_step;  // else these
} gs_timeline_pick;
#define GS_TIMELINE_MOST_STEPS 1024
// "last:3", "100-102", "100", as the coordinator reads it. False: something else, of which it says what is wrong.
bool gs_timeline_pick_parse(gs_timeline_pick *pick, const char *steps);

//   pages   of {rank, steps:[…]}, in the order in which they came
//   about   the last item of the stream
// The document is the caller's.
gs_json *gs_timeline_view(const gs_json *const *pages, size_t num_pages, const gs_json *about,
                          const gs_timeline_pick *pick);

#endif
