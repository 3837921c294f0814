// Passes that repeat, kept as graphs of their device: a model's forward and backward are launched as a
// whole instead of kernel by kernel.
//
// A pass is known by all that it gives the model: pointers and scalars, except step and shard, which must
// not matter to a model that `repeats` (gradsync/step/model.h). It runs plainly when it is first seen, so that
// libraries make their choices; is captured when it comes again; and is launched from then on. While it
// is captured the host's half of a gradient that became final (the reducer's mark) is written down; at
// every launch the host walks the list, and the compute stream's point is the event behind the gradients
// of that mark's bucket. So buckets start while the graph runs.
//
// What cannot be captured runs plainly, with one warning; and so does all while kernels are timed (kernels/kernel_times.h). The environment variable GRADSYNC_GRAPHS=0 turns
// graphs off. Thread of the device.
#ifndef WORKER_PASS_PASS_GRAPH_H
#define WORKER_PASS_PASS_GRAPH_H

#include <stdbool.h>
#include <stddef.h>

#include "core/bucket_plan.h"
#include "core/status.h"
#include "gradsync/step/model.h"
#include "kernels/device.h"

typedef struct gs_pass_graphs gs_pass_graphs;

typedef struct gs_pass_graphs_options {
    gs_device *device;  // borrows until destroy
    size_t num_params, num_buffers;
} gs_pass_graphs_options;

// *out stays NULL where there are no graphs or nobody wants them; destroy and clear take NULL.
GS_NODISCARD gs_status gs_pass_graphs_create(gs_pass_graphs **out,
                                             const gs_pass_graphs_options *options);
void gs_pass_graphs_destroy(gs_pass_graphs *graphs);
// Forgets all: gradients lie elsewhere, buckets end elsewhere. Waits for what is under way.
GS_NODISCARD gs_status gs_pass_graphs_clear(gs_pass_graphs *graphs);

// The two halves of a gradient that became final, in place of pass->ready: what the device does, captured
// with the pass; and what the host does, each time. `finish` may be NULL.
typedef struct gs_pass_marks {
    void (*finish)(void *ctx, size_t param);
    void *finish_ctx;
    void *const
        *finished;  // what finish writes, one for each parameter: a part of what the pass is
    void (*ready)(void *ctx, size_t param);
    void (*skipped)(void *ctx, size_t param);
    void *ctx;  // of both
} gs_pass_marks;

// One pass, begun: forward, then backward. NULL runs it plainly.
//   pass   its ready and skipped are overwritten
//   plan   the buckets of the gradients; NULL: they are looked at behind the pass
//   turn   called with `turn_ctx` when forward has been given to the device, and when backward has
typedef struct gs_pass_run {
    gs_model_pass *pass;
    const gs_model *model;
    const gs_pass_marks *marks;
    const gs_bucket_plan *plan;
    gs_status (*turn)(void *ctx, bool is_backward);
    void *turn_ctx;
} gs_pass_run;
GS_NODISCARD gs_status gs_pass_graphs_run(gs_pass_graphs *graphs, const gs_pass_run *run);

typedef struct gs_pass_graph_counts {
    int64_t plain, captured, launched;  // passes, a captured one is launched as well
    int64_t failed;                     // that could not be captured
} gs_pass_graph_counts;
gs_pass_graph_counts gs_pass_graphs_count(const gs_pass_graphs *graphs);

#endif
