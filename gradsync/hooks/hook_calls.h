// What hooks call: to read their options, to declare and take memory, to post.
#ifndef GRADSYNC_HOOKS_HOOK_CALLS_H
#define GRADSYNC_HOOKS_HOOK_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"
#include "gradsync/hooks/comm_hook.h"

GS_BEGIN_DECLS

// The value of an option: as given, or its fallback. Only for options that the hook declares.
double gs_hook_option_value(const gs_hook_choice *choice, const char *name);

// For `measure`. Exact mode, in which only what is added up along its tree gives the same bits in every world.
GS_NODISCARD gs_status gs_hook_refuse_exact(const gs_hook_setup *setup);
// Of a hook with option "error_feedback": with it on, neither exact mode nor a mean over samples, whose residuals
// of different steps would have different units.
GS_NODISCARD gs_status gs_hook_check_feedback(const gs_hook_setup *setup);

// Of a hook whose results are a rank's own: neither exact mode nor a mean over the samples of all ranks.
GS_NODISCARD gs_status gs_hook_check_own(const gs_hook_setup *setup);

// Room for element_bytes for each element of each bucket, padding included, whatever the plan;
// SIZE_MAX, which no hook gets, when there is no such number.
size_t gs_hook_most_bytes(const gs_hook_setup *setup, size_t element_bytes);

// The next `bytes` of the memory that was declared for buckets, on 256 bytes. RESOURCE_EXHAUSTED, naming
// what was declared, when it is not enough.
GS_NODISCARD gs_status gs_hook_place(void **memory, const gs_hook_plan *plan, size_t bytes);

// Posts a collective of the bucket: lane, step, bucket and active ranks are filled in. FAILED_PRECONDITION when
// it is one more than the hook declared for a phase. The last one of a
// phase is what the phase waits for, so the largest goes last: its times are the phase's.
GS_NODISCARD gs_status gs_hook_post(gs_hook_work *work, const gs_hook_bucket *bucket,
                                    const gs_collective *collective);

// What turns a sum over `num_ranks` of the ranks, not all of them, into what these ranks would have
// as a result if there were no others: a mean over them, or their sum.
double gs_hook_scale_for(const gs_hook_bucket *bucket, int num_ranks);
// Posts an all-reduce of the reserved elements alone, for hooks that leave gradients out of it.
GS_NODISCARD gs_status gs_hook_post_reserved(gs_hook_work *work, const gs_hook_bucket *bucket);

// Slots of a hook that keeps nothing from step to step.
void gs_hook_decide_nothing(void *state);  // commit, rollback
bool gs_hook_no_tensor(void *state, size_t index, gs_hook_tensor *tensor);
gs_status gs_hook_load_nothing(void *state);

GS_END_DECLS

#endif
