// Gradients stay where they are: each rank trains as if it were alone, and replicas drift apart. To
// measure what communication costs. What ranks tell each other of a step travels as ever.
#include "gradsync/bucket/main_grad.h"
#include "gradsync/hooks/hook_calls.h"

static gs_status measure(gs_hook_needs *needs, const gs_hook_setup *setup) {
    GS_TRY(gs_hook_check_own(setup));
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
    return gs_hook_post_reserved(work, bucket);
}

static gs_status finish(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    (void)state, (void)deadline;
    result->is_own = true;
    gs_main_grad_scale(bucket->data, gs_hook_scale_for(bucket, 1), bucket->dtype, bucket->count,
                       gs_work_stream_of(bucket->device));
    return gs_ok();
}

static void destroy(void *state) {
    (void)state;
}

const gs_comm_hook gs_hook_noop = {.name = "noop",
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
