// A step of the reducer, but for its passes: how it opens, and what finish reads from the buckets.
// Errors are returned; that they stick is reducer.c's business.
#ifndef GRADSYNC_REDUCER_REDUCER_STEP_H
#define GRADSYNC_REDUCER_REDUCER_STEP_H

#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/reducer/reducer_state.h"
#include "gradsync/step/join.h"

GS_NODISCARD gs_status gs_step_begin(gs_reducer *reducer, int64_t step, const gs_join_round *round);
GS_NODISCARD gs_status gs_step_add_tail(gs_reducer *reducer, const gs_reducer_tail *tail);
GS_NODISCARD gs_status gs_step_finish_buckets(gs_reducer *reducer, const double **squares, gs_deadline deadline);
GS_NODISCARD gs_status gs_step_finish(gs_reducer *reducer, gs_reduce_result *result,
                                      gs_deadline deadline);
// A step of which nothing has been posted is as if it had not begun.
GS_NODISCARD gs_status gs_step_abandon(gs_reducer *reducer);
GS_NODISCARD gs_status gs_step_check_finished(const gs_reducer *reducer);

// The last step counts, or not; its hooks are told once.
void gs_step_decide(gs_reducer *reducer, bool counts);
void gs_step_decide_by_result(gs_reducer *reducer);  // where nobody has said it: what is finite counts

// Which buckets a static graph lets travel; all of them as long as it is not known.
void gs_step_plan_travel(gs_reducer *reducer);

#endif
