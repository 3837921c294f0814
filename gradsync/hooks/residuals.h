// What hooks have in common that send a part of what they know and owe the rest: a launch table for the parameters of
// each bucket, what is owed of each parameter from step to step, and the plain all-reduce before they start.
//
// What is compressed, M, is the gradient in units of the result, without the loss scale, plus what is owed. So what is owed
// outlives another loss scale and another number of ranks. All ranks' payloads reach all ranks, who add them up
// in the same order.
#ifndef GRADSYNC_HOOKS_RESIDUALS_H
#define GRADSYNC_HOOKS_RESIDUALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/work_stream.h"
#include "gradsync/hooks/comm_hook.h"
#include "gradsync/hooks/param_state.h"

// The options that such a hook has, for its table.
#define GS_RESIDUAL_OPTIONS                                                                        \
    {.name = "error_feedback", .fallback = 1, .least = 0, .most = 1, .is_whole = true},            \
    {.name = "start_step", .fallback = 0, .least = 0, .most = 1e12, .is_whole = true}

// A bucket of the plan.
typedef struct gs_residual_bucket {
    gs_residual_item *items;
    const gs_hook_param *params;
    size_t num_items, num_elements;
    // Every rank's payload, in order of ranks; this one's is where it sends from.
    char *payloads;
    size_t payload_bytes;
    void *scratch;
} gs_residual_bucket;

// Such a hook's state.
typedef struct gs_residuals {
    const gs_hook_choice *choice;  // borrowed
    bool error_feedback;
    int64_t start_step;
    gs_dtype wire_dtype;
    int rank, world_size;
    void *plain;  // an all-reduce, for steps before it starts
    gs_device *device;  // borrowed
    gs_param_state errors;
    gs_residual_item *items;  // of all parameters; pinned
    gs_residual_bucket *buckets;
    uint64_t elements, elements_sent;  // of the step in hand
} gs_residuals;

// How much a bucket sends: of a hook's own making.
typedef struct gs_residual_sizes {
    size_t payload_bytes, scratch_bytes;
} gs_residual_sizes;
// Of `num_elements` in `num_items` parameters. It may not be more for two buckets together than for one each.
typedef gs_residual_sizes (*gs_residual_size)(const gs_hook_choice *choice, gs_dtype dtype,
                                              gs_dtype wire_dtype, size_t num_elements,
                                              size_t num_items);

GS_NODISCARD gs_status gs_residuals_measure(gs_hook_needs *needs, const gs_hook_setup *setup,
                                            gs_residual_size size);
GS_NODISCARD gs_status gs_residuals_place(gs_residuals *self, const gs_hook_plan *plan,
                                          gs_residual_size size);

// Whether there is something to compress in this step; else the bucket goes as it is.
bool gs_residuals_compress(const gs_residuals *self, const gs_hook_bucket *bucket);
GS_NODISCARD gs_status gs_residuals_send_plain(const gs_residuals *self, const gs_hook_bucket *bucket,
                                               gs_hook_work *work);
// The reserved elements go, and M is in the items' `error`, for work on the stream that is returned.
GS_NODISCARD gs_status gs_residuals_open(gs_work_stream *on, gs_residuals *self,
                                         const gs_hook_bucket *bucket, gs_hook_work *work);
char *gs_residuals_own_payload(const gs_residuals *self, const gs_residual_bucket *bucket);
// `elements_sent`: what it took of the bucket, for the report.
GS_NODISCARD gs_status gs_residuals_send(gs_residuals *self, const gs_hook_bucket *bucket,
                                         size_t elements_sent, gs_hook_work *work);
// The sum of what ranks sent is in the bucket: it gets its loss scale back.
void gs_residuals_close(const gs_hook_bucket *bucket);

// Slots of the hook.
GS_NODISCARD gs_status gs_residuals_create(void **state, const gs_hook_setup *setup);
void gs_residuals_commit(void *state);
void gs_residuals_rollback(void *state);
bool gs_residuals_tensor(void *state, size_t index, gs_hook_tensor *out);
void gs_residuals_report(void *state, gs_hook_report *report);
void gs_residuals_destroy(void *state);

#endif
