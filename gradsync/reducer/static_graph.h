// The promise of a static graph: every step marks the same parameters equally often. Here is what
// the first step was like, and whether a later one keeps to it.
//
// Marks are counted in the reducing pass alone: how often gradients become final in the pass that
// is synchronised, whatever was accumulated before. Used sets are those of whole steps.
#ifndef GRADSYNC_REDUCER_STATIC_GRAPH_H
#define GRADSYNC_REDUCER_STATIC_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_static_graph {
    bool on;     // the promise was made
    bool known;  // the first step is finished
    size_t num_params;
    uint32_t *counts;      // marks in the reducing pass of the first step
    uint32_t *num_marked;  // in this reducing pass
    uint8_t *used;         // by this rank in the first step
    uint8_t *used_anywhere;
    size_t *unused, num_unused;  // parameters whose count is 0
} gs_static_graph;

GS_NODISCARD gs_status gs_static_graph_init(gs_static_graph *graph, size_t num_params);
void gs_static_graph_release(gs_static_graph *graph);
// The next step is the first one again.
void gs_static_graph_forget(gs_static_graph *graph);

typedef enum gs_static_mark {
    GS_MARK_WAITS = 0,  // more are to come, or nothing is known yet
    GS_MARK_FINAL,
    GS_MARK_EXTRA  // there were fewer in the first step
} gs_static_mark;

void gs_static_graph_begin_pass(gs_static_graph *graph);  // the reducing one
static inline gs_static_mark gs_static_graph_mark(gs_static_graph *graph, size_t param) {
    uint32_t num_marked = ++graph->num_marked[param];
    if (!graph->known || num_marked < graph->counts[param]) return GS_MARK_WAITS;
    return num_marked == graph->counts[param] ? GS_MARK_FINAL : GS_MARK_EXTRA;
}

// The first parameter that was marked too seldom, or not used, in the step whose reducing pass
// ends; num_params when there is none.
size_t gs_static_graph_find_broken(const gs_static_graph *graph, const uint8_t *used);
// The first step is finished: this rank's used set, and that of all ranks.
void gs_static_graph_learn(gs_static_graph *graph, const uint8_t *used,
                           const uint8_t *used_anywhere);

#endif
