// Over many steps: what the order of gradients is, and whether it has changed for good.
//
// Parameters that a step does not use keep their place, so that unused sets that differ from step
// to step change nothing; places are averaged over a window of steps, so that jitter cancels out.
// An order is told once it differs from the one told before in more than a sixteenth of the
// parameters, in two windows running that agree with each other; and after each telling twice as
// long must pass as after the one before, so that no job is busy with changing its plan.
//
// One rank watches. Nothing is allocated after create; a step like the one before costs a
// comparison of two lists, one that only leaves out others a nanosecond for each parameter.
//
// Threads: one at a time, any.
#ifndef GRADSYNC_REDUCER_ORDER_WATCH_H
#define GRADSYNC_REDUCER_ORDER_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/status.h"

GS_BEGIN_DECLS

#define GS_ORDER_WINDOW 16

typedef enum gs_order_verdict {
    GS_ORDER_SAME = 0,
    GS_ORDER_SEEN,    // the first pass: what somebody may ask for before it is settled
    GS_ORDER_SETTLED  // a plan may be made from it
} gs_order_verdict;

typedef struct gs_order_watch gs_order_watch;

// `planned` is the order of the plan in use. `is_observed`: it was made from an observed order;
// else the order is told after first_passes (at least 1), settled, and before that after one, seen.
GS_NODISCARD gs_status gs_order_watch_create(gs_order_watch **out, const size_t *planned,
                                             size_t num_params, bool is_observed,
                                             int64_t first_passes);
void gs_order_watch_destroy(gs_order_watch *watch);
size_t gs_order_watch_num_params(const gs_order_watch *watch);

// A pass in which the parameters of `ready` got their gradients, in this order; unused ones are not
// in it.
gs_order_verdict gs_order_watch_add(gs_order_watch *watch, const size_t *ready, size_t num_ready);
// What there is to tell after a verdict that is not SAME: num_params parameters.
const size_t *gs_order_watch_order(const gs_order_watch *watch);
// All parameters as the passes so far have shown them, whether that has settled or not.
const size_t *gs_order_watch_estimate(const gs_order_watch *watch);

GS_END_DECLS

#endif
