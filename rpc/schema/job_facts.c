// What follows from a job specification: how much runs at once, how it becomes buckets and travels, on what it can run.
#include <stdio.h>

#include "rpc/schema/job_spec.h"

// With synchronised batch norm a rank's shards run as one, and the smallest world has most of them.
int64_t gs_job_spec_most_rows(const gs_job_spec *spec) {
    bool joined = spec->model.kind == GS_MODEL_MLP &&
                  spec->model.mlp.batch_norm == GS_BATCH_NORM_SYNC;
    int64_t shards = joined ? (spec->logical_shards + spec->world.min - 1) / spec->world.min : 1;
    return shards * spec->data.micro_batch;
}

int64_t gs_job_spec_passes_per_shard(const gs_job_spec *spec) {
    return spec->data.global_batch / (spec->logical_shards * spec->data.micro_batch);
}

_Static_assert(GS_SPEC_MAX_CAPS <= GS_PLAN_MAX_CAPS, "a policy holds the caps of a specification");

gs_plan_policy gs_job_spec_plan_policy(const gs_job_spec *spec) {
    gs_plan_policy policy = {.one_host = spec->reducer.plan == GS_PLAN_AUTO,
                             .first_bytes = (uint64_t)spec->reducer.first_bucket_bytes,
                             .num_caps = (size_t)spec->reducer.num_bucket_caps,
                             .small_last = spec->reducer.small_bucket == GS_SMALL_BUCKET_LAST,
                             .max_buckets = (size_t)spec->reducer.max_buckets};
    for (size_t i = 0; i < policy.num_caps; i++)
        policy.caps_bytes[i] = (uint64_t)spec->reducer.bucket_cap_bytes[i];
    return policy;
}

// wire_dtype is short for the kind of that name.
static const char *hook_kind(const gs_job_spec *spec) {
    static const char *const kinds[] = {NULL, "bf16", "fp16"};
    const char *kind = kinds[spec->reducer.wire_dtype];
    return kind ? kind : gs_job_hook_kind_of(&spec->reducer.hook)->name;
}

gs_hook_rule gs_job_spec_hook_rule(const gs_job_spec *spec) {
    static const gs_dtype dtypes[] = {GS_DTYPE_UNSET, GS_FP16, GS_BF16};
    const gs_job_hook *hook = &spec->reducer.hook;
    return (gs_hook_rule){.kind = hook_kind(spec),
                          .wire_dtype = dtypes[hook->wrap],
                          .world_size = (int)spec->world.max,
                          .local_ranks = (int)hook->local_ranks,
                          .rank = (int)hook->rank,
                          .min_compression_rate = hook->min_compression_rate,
                          .ratio = hook->ratio};
}

void gs_job_spec_hook_name(char *text, size_t text_bytes, const gs_job_spec *spec) {
    int wrap = spec->reducer.hook.wrap;
    snprintf(text, text_bytes, "%s%s%s", hook_kind(spec), wrap ? "+" : "", wrap ? gs_wrap_words[wrap] : "");
}

bool gs_job_spec_needs_gpu(const gs_job_spec *spec) {
    return spec->world.device == GS_SPEC_DEVICE_CUDA ||
           spec->reducer.backend == GS_BACKEND_NCCL || spec->model.precision == GS_PRECISION_TF32;
}

// What of sharding there is on CPUs alone (job_sharding.c).
static bool shards_on_cpus_alone(const gs_job_spec *spec) {
    return spec->reducer.sharding != GS_SHARDING_NONE && *spec->model.init_from;
}

bool gs_job_spec_may_use_gpu(const gs_job_spec *spec) {
    // Exact is exact on either, but not across: a restart must not find the other.
    return spec->world.device != GS_SPEC_DEVICE_CPU && spec->reducer.backend != GS_BACKEND_SHM &&
           spec->reducer.backend != GS_BACKEND_NET &&
           spec->world.replicas_per_process == 1 && !spec->exact && !shards_on_cpus_alone(spec) &&
           !gs_job_hook_chooses(&spec->reducer.hook);
}
