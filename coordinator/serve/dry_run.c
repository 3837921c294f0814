#include "coordinator/serve/dry_run.h"

#include <stdlib.h>

#include "coordinator/observe/views/plan_view.h"
#include "core/digest.h"
#include "rpc/schema/job_memory.h"
#include "rpc/schema/job_plan.h"
#include "rpc/schema/model_params.h"

// The plan before any rank runs: {num_buckets, total_bytes, total_wire_bytes, hash}, and what its ranks hold in memory.
// An error for a model that could not be made.
static gs_status foresee(gs_json **summary, gs_json **memory, const gs_job_spec *spec) {
    gs_param_spec *params = NULL;
    size_t num_params = 0;
    GS_TRY(gs_model_params_of_spec(&params, &num_params, spec));
    gs_bucket_plan plan = {0};
    gs_hook_rule hook = gs_job_spec_hook_rule(spec);
    gs_status status = gs_job_plan_make(&plan, spec, (int)spec->world.max, params, num_params, NULL);
    int64_t wire_bytes = status.code ? 0 : gs_plan_total_wire_bytes(&plan, params, &hook);
    if (!status.code)
        status = gs_job_memory_to_json(memory, &(gs_job_memory_request){.spec = spec,
                                                                        .plan = &plan,
                                                                        .params = params,
                                                                        .num_params = num_params,
                                                                        .world_size = (int)spec->world.max,
                                                                        .on_gpu = gs_job_spec_needs_gpu(spec)});
    free(params);
    if (status.code) {
        gs_bucket_plan_release(&plan);
        return status;
    }
    char hash[GS_DIGEST_TEXT_LEN];
    gs_digest_format(hash, gs_bucket_plan_digest(&plan));
    *summary = gs_json_new_object();
    gs_json_set_int(*summary, "num_buckets", (int64_t)plan.num_buckets);
    gs_json_set_int(*summary, "total_bytes", gs_plan_total_bytes(&plan));
    gs_json_set_int(*summary, "total_wire_bytes", wire_bytes);
    gs_json_set_string(*summary, "hash", hash);
    gs_bucket_plan_release(&plan);
    return gs_ok();
}

// A specification that is accepted gets its answer even when its plan cannot be foreseen.
gs_json *gs_dry_run(const gs_job_spec *spec) {
    gs_json *reply = gs_json_new_object(), *plan = NULL, *memory = NULL;
    gs_json_set(reply, "spec", gs_job_spec_encode(spec));
    gs_status status = foresee(&plan, &memory, spec);
    if (!status.code) gs_json_set(reply, "plan", plan);
    if (!status.code) gs_json_set(reply, "memory", memory);
    return reply;
}
