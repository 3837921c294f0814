// What sharding goes together with: rules between reducer.sharding, what says how it deals, and the rest of a job
// specification. A refusal is lifted when the option matrix has seen that the pair trains as a serial run does.
#include "rpc/schema/job_spec.h"

#define SHARDING "/reducer/sharding"
#define PARTITION "/reducer/partition"
#define OVERLAP "/reducer/zero_overlap"
#define SPLIT "/reducer/zero_split_buckets"

static void refuse(gs_field_errors *errors, const char *pointer, const char *why) {
    if (gs_field_errors_lie_in(errors, pointer)) return;
    gs_field_errors_add(errors, pointer, "not_applicable", NULL, "%s", why);
}

static void check_unsharded(const gs_job_spec *spec, gs_field_errors *errors) {
    const char *why = "nothing is dealt: reducer.sharding is none";
    if (spec->reducer.partition != GS_SHARD_FLAT) refuse(errors, PARTITION, why);
    if (spec->reducer.zero_overlap != GS_ZERO_OVERLAP_OFF) refuse(errors, OVERLAP, why);
    if (spec->reducer.zero_split_buckets) refuse(errors, SPLIT, why);
}

// Small tensors of an owner in one bucket, of at most one cap.
static void check_owner_plan(const gs_job_spec *spec, gs_field_errors *errors) {
    const char *pointer = "/reducer/plan";
    bool is_dealt = spec->reducer.sharding != GS_SHARDING_NONE && spec->reducer.partition != GS_SHARD_FLAT;
    if (spec->reducer.plan != GS_PLAN_OWNER) return;
    if (!is_dealt) refuse(errors, pointer, "owner: buckets of whole tensors' owners; reducer.partition oss or zero");
    if (spec->reducer.num_bucket_caps > 1)
        refuse(errors, "/reducer/bucket_cap_bytes", "reducer.plan owner: one cap, of each owner's bucket");
    if (spec->model.num_freezes)
        refuse(errors, pointer, "owner: model.freeze keeps apart what is frozen at other times");
    if (spec->reducer.max_buckets > 0)
        refuse(errors, "/reducer/max_buckets", "reducer.plan owner: as many as owners and tensors above the cap");
}

// Ranks have a part of the sum, which these need whole, or of each rank.
static void check_reduction(const gs_job_spec *spec, gs_field_errors *errors) {
    if (!gs_job_hook_is_sum(&spec->reducer.hook))
        refuse(errors, SHARDING, "reducer.hook: only sums, in fp32 or 16 bits, go to their owner alone");
    if (spec->reducer.hook.divide_after_cast)
        refuse(errors, SHARDING, "reducer.hook.divide_after_cast: sums for owners are divided during the cast");
    if (spec->reducer.sparse_embedding != GS_SPARSE_OFF)
        refuse(errors, SHARDING, "reducer.sparse_embedding adds rows on all ranks");
    if (spec->world.replicas_per_process > 1)
        refuse(errors, SHARDING, "world.replicas_per_process: replicas add up among themselves first");
}

// Another plan is another partition, and what a rank owns stays with it while it trains.
static void check_plan(const gs_job_spec *spec, gs_field_errors *errors) {
    if (spec->reducer.rebuild_after_steps > 0)
        refuse(errors, "/reducer/rebuild_after_steps",
               "reducer.sharding: who owns what follows from the plan, which stays; 0");
    bool too_few = spec->reducer.max_buckets > 0 && spec->reducer.max_buckets < spec->world.min;
    if (too_few && spec->reducer.partition != GS_SHARD_FLAT)
        refuse(errors, "/reducer/max_buckets", "reducer.partition: tensors of two owners share no bucket; as many as world.min at least");
}

static void check_update(const gs_job_spec *spec, gs_field_errors *errors) {
    if (spec->optimizer.in_backward)
        refuse(errors, SHARDING, "optimizer.in_backward updates whole buckets on every rank");
    if (spec->checkpoint.parts == GS_CHECKPOINT_PARTS_ONE)
        refuse(errors, "/checkpoint/parts", "reducer.sharding: no rank has all of the optimizer state; ranks");
}

static void check_overlap(const gs_job_spec *spec, gs_field_errors *errors) {
    bool overlaps = spec->reducer.zero_overlap != GS_ZERO_OVERLAP_OFF;
    if (spec->reducer.zero_split_buckets && !overlaps)
        refuse(errors, SPLIT, "buckets are dealt whole or in parts with zero_overlap alone");
    if (!overlaps) return;
    if (spec->reducer.partition != GS_SHARD_FLAT)
        refuse(errors, PARTITION, "zero_overlap deals buckets");
    if (spec->reducer.sharding == GS_SHARDING_GRADIENTS)
        refuse(errors, OVERLAP, "each bucket is summed for all ranks, so that owners know at once what was used: sharding optimizer");
    if (spec->reducer.op == GS_REDUCER_SAMPLE_MEAN)
        refuse(errors, OVERLAP, "reducer.op sample_mean is divided behind the last bucket");
    if (spec->model.kind == GS_MODEL_MLP && spec->model.mlp.batch_norm == GS_BATCH_NORM_SYNC)
        refuse(errors, OVERLAP, "batch_norm sync is a mean over samples, divided behind the last bucket");
}

// Into as many for each rank of every world that there may be.
static bool shards_divide(const gs_job_spec *spec) {
    for (int64_t ranks = spec->world.min; ranks <= spec->world.max; ranks++) {
        if (spec->logical_shards % ranks) return false;
    }
    return true;
}

// What others own of a gradient has a place until it is reduced: in each pass, of which all ranks have as many.
static void check_windows(const gs_job_spec *spec, gs_field_errors *errors) {
    if (spec->reducer.sharding != GS_SHARDING_GRADIENTS) return;
    if (spec->reducer.partition != GS_SHARD_FLAT)
        refuse(errors, PARTITION, "reducer.sharding gradients keeps an even part of each bucket; flat");
    if (gs_field_errors_lie_in(errors, "/world") || gs_field_errors_lie_in(errors, "/data") ||
        gs_field_errors_lie_in(errors, "/logical_shards"))
        return;
    if (!shards_divide(spec))
        refuse(errors, SHARDING,
               "gradients: as many logical shards on each rank; every world from min to max divides logical_shards");
    bool has_passes = spec->logical_shards > spec->world.min || gs_job_spec_passes_per_shard(spec) > 1;
    if (has_passes && spec->exact)
        refuse(errors, SHARDING, "gradients: each pass is reduced, which exact adds up in another order");
    if (has_passes && spec->reducer.static_graph)
        refuse(errors, SHARDING, "gradients: each pass is reduced, of which a static graph counts the last alone");
}

void gs_job_spec_check_sharding(const gs_job_spec *spec, gs_field_errors *errors) {
    if (gs_field_errors_lie_in(errors, SHARDING)) return;
    check_owner_plan(spec, errors);
    if (spec->reducer.sharding == GS_SHARDING_NONE) {
        check_unsharded(spec, errors);
        return;
    }
    check_reduction(spec, errors);
    check_plan(spec, errors);
    check_update(spec, errors);
    check_overlap(spec, errors);
    check_windows(spec, errors);
}
