// Whether a reducer can be made from its options: what one rank sees without asking the others.
#ifndef GRADSYNC_REDUCER_OPTIONS_CHECK_H
#define GRADSYNC_REDUCER_OPTIONS_CHECK_H

#include "gradsync/bucket/grad_layout.h"
#include "gradsync/comm/comm.h"
#include "gradsync/hooks/hook_set.h"
#include "gradsync/reducer/reducer_types.h"

// INVALID_ARGUMENT names the option, the parameter or the bucket.
GS_NODISCARD gs_status gs_reducer_options_check(const gs_reducer_options *options,
                                                const gs_comm *comm);
// Of any plan, also a later one: each parameter once, sparse ones alone in their buckets, and hooks that
// there are.
GS_NODISCARD gs_status gs_reducer_plan_check(const gs_bucket_plan *plan,
                                             const gs_reducer_options *options);

// How the options divide the arena: state of hooks, slots of gradients, buckets of hooks (hook_set.h).
typedef struct gs_arena_parts {
    size_t state_bytes, slot_bytes, bucket_bytes;
    gs_hook_set_needs hooks;
} gs_arena_parts;
// Of what the options ask for: checked, but for plan, arena and device.
GS_NODISCARD gs_status gs_reducer_arena_parts(gs_arena_parts *parts,
                                              const gs_reducer_options *options);
size_t gs_arena_parts_bytes(const gs_arena_parts *parts);
gs_grad_layout_shape gs_reducer_layout_shape(const gs_reducer_options *options,
                                             const gs_hook_set_needs *hooks);
gs_hook_set_options gs_reducer_hook_options(const gs_reducer_options *options);

#endif
