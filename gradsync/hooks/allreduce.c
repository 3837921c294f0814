// The plain hook: one all-reduce for each bucket, in place, the scale folded into it.
#include "gradsync/hooks/hook_calls.h"

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    (void)setup;
    *needs = (gs_hook_needs){.num_phases = 1, .most_posts = 1};
    return gs_ok();
}

static gs_status create(void **state, const gs_hook_setup *setup) {
    (void)setup;
    *state = NULL;
    return gs_ok();
}

static gs_status on_plan(void *state, const gs_hook_plan *plan) {
    (void)state, (void)plan;
    return gs_ok();
}

static gs_status run(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    (void)state;
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_ALLREDUCE,
                                         .send = bucket->data,
                                         .recv = bucket->data,
                                         .count = bucket->count + bucket->reserved_count,
                                         .dtype = bucket->dtype,
                                         .op = GS_OP_SUM,
                                         .scale = bucket->scale,
                                         .tree = bucket->tree,
                                         .part_stride_bytes = bucket->part_stride_bytes});
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    (void)state, (void)bucket, (void)result, (void)deadline;
    return gs_ok();
}

static void destroy(void *state) {
    (void)state;
}

const gs_comm_hook gs_hook_allreduce = {.name = "allreduce",
                                        .measure = measure,
                                        .create = create,
                                        .on_plan = on_plan,
                                        .run = run,
                                        .finish = finish,
                                        .commit = gs_hook_decide_nothing,
                                        .rollback = gs_hook_decide_nothing,
                                        .tensor = gs_hook_no_tensor,
                                        .loaded = gs_hook_load_nothing,
                                        .destroy = destroy};
