#include "gradsync/reducer/options_check.h"

#include <limits.h>

#include "gradsync/bucket/grad_copies.h"
#include "gradsync/step/trainability.h"

// All passes of one rank can be counted.
#define MAX_PASSES_PER_SHARD (INT_MAX / GS_MAX_LOGICAL_SHARDS)

#define MOST_WINDOWS 1024

static bool is_float(gs_dtype dtype) {
    return dtype == GS_FP32 || dtype == GS_FP64 || dtype == GS_FP16 || dtype == GS_BF16;
}

static gs_status check_dtypes(const gs_reducer_options *options) {
    for (size_t i = 0; i < options->num_params; i++) {
        if (!is_float(options->params[i].dtype))
            return gs_error(GS_INVALID_ARGUMENT, "parameter %zu \"%.100s\": %s has no gradient", i,
                            options->params[i].name, gs_dtype_name(options->params[i].dtype));
    }
    gs_dtype wire = options->wire_dtype;
    if (wire != GS_DTYPE_UNSET && wire != GS_FP16 && wire != GS_BF16)
        return gs_error(GS_INVALID_ARGUMENT, "wire dtype: %s, must be fp16, bf16 or unset",
                        gs_dtype_name(wire));
    if (wire && options->shards.exact)
        return gs_error(GS_INVALID_ARGUMENT,
                        "wire dtype: %s in exact mode: what is rounded would follow from the "
                        "number of ranks",
                        gs_dtype_name(wire));
    if (options->tally != GS_TALLY_IN_BUCKETS && options->tally != GS_TALLY_APART)
        return gs_error(GS_INVALID_ARGUMENT, "tally: %d is none", (int)options->tally);
    if (options->measured_by && options->tally == GS_TALLY_APART)
        return gs_error(GS_INVALID_ARGUMENT, "measured_by: of a tally apart ranks take turns");
    if (options->op < GS_MEAN || options->op > GS_SAMPLE_MEAN)
        return gs_error(GS_INVALID_ARGUMENT, "op: %d is none", (int)options->op);
    if (options->bucket_finished && options->op == GS_SAMPLE_MEAN)
        return gs_error(GS_INVALID_ARGUMENT,
                        "bucket_finished: a mean over samples divides behind the last bucket");
    return gs_ok();
}

static gs_status check_options(const gs_reducer_options *options) {
    const gs_logical_shards *shards = &options->shards;
    if (!options->num_params) return gs_error(GS_INVALID_ARGUMENT, "no parameters");
    GS_TRY(gs_param_specs_check(options->params, options->num_params));
    GS_TRY(check_dtypes(options));
    GS_TRY(gs_logical_shards_check(shards));
    if (shards->rank < 0 || shards->rank >= shards->world_size)
        return gs_error(GS_INVALID_ARGUMENT, "rank %d of %d", shards->rank, shards->world_size);
    if (options->passes_per_shard < 0 || options->passes_per_shard > MAX_PASSES_PER_SHARD)
        return gs_error(GS_INVALID_ARGUMENT, "passes per shard: %d, at most %d",
                        options->passes_per_shard, MAX_PASSES_PER_SHARD);
    return gs_ok();
}

gs_hook_set_options gs_reducer_hook_options(const gs_reducer_options *options) {
    return (gs_hook_set_options){.choices = options->hooks,
                                 .num_choices = options->num_hooks,
                                 .params = options->params,
                                 .num_params = options->num_params,
                                 .wire_dtype = options->wire_dtype,
                                 .exact = options->shards.exact,
                                 .divides_later = options->op == GS_SAMPLE_MEAN,
                                 .rank = options->shards.rank,
                                 .world_size = options->shards.world_size,
                                 .device = options->device};
}

static gs_status check_window_numbers(const gs_window_options *windows) {
    if (windows->num_windows < 0 || windows->num_windows > MOST_WINDOWS)
        return gs_error(GS_INVALID_ARGUMENT, "windows: %d, must be 0 to %d", windows->num_windows,
                        MOST_WINDOWS);
    if (!(windows->wait_seconds >= 0))
        return gs_error(GS_INVALID_ARGUMENT, "windows: a wait of %g seconds",
                        windows->wait_seconds);
    return gs_ok();
}

// More than one in a step, on each rank.
static bool has_passes(const gs_reducer_options *options) {
    return options->shards.num_shards > options->shards.world_size || options->passes_per_shard > 1;
}

// What lives in windows, and what is done with it, fits them.
static gs_status check_windows(const gs_reducer_options *options, const gs_hook_set_needs *hooks) {
    const gs_logical_shards *shards = &options->shards;
    GS_TRY(check_window_numbers(&options->windows));
    if (!options->windows.num_windows) return gs_ok();
    if (!hooks->even_parts || options->tally != GS_TALLY_APART)
        return gs_error(
            GS_INVALID_ARGUMENT,
            "windows: leave a part of each bucket on each rank; that is for a hook of even "
            "parts and GS_TALLY_APART");
    if (options->separate)
        return gs_error(GS_INVALID_ARGUMENT,
                        "windows: separate gradients have places of their own");
    if (shards->num_shards % shards->world_size)
        return gs_error(GS_INVALID_ARGUMENT,
                        "windows: each pass is reduced by all ranks, and %d logical shards on %d "
                        "are not as many passes on each",
                        shards->num_shards, shards->world_size);
    if (has_passes(options) && (shards->exact || options->static_graph))
        return gs_error(GS_UNIMPLEMENTED, "windows: several passes of a step %s",
                        shards->exact ? "in exact mode, which adds in another order"
                                      : "of a static graph, whose marks count in the last one");
    for (size_t i = 0; i < options->num_params; i++) {
        if (options->params[i].sparse)
            return gs_error(GS_INVALID_ARGUMENT, "windows: parameter %zu \"%.100s\" is sparse", i,
                            options->params[i].name);
    }
    if (!options->plan) return gs_error(GS_INVALID_ARGUMENT, "windows: need a plan");
    return gs_reducer_plan_check(options->plan, options);
}

gs_status gs_reducer_arena_parts(gs_arena_parts *parts, const gs_reducer_options *options) {
    GS_TRY(check_options(options));
    const gs_hook_set_options hooks = gs_reducer_hook_options(options);
    size_t bytes;
    GS_TRY(gs_hook_set_measure(&parts->hooks, &hooks));
    const gs_grad_layout_shape shape = gs_reducer_layout_shape(options, &parts->hooks);
    GS_TRY(check_windows(options, &parts->hooks));
    GS_TRY(gs_grad_layout_bytes(&parts->slot_bytes, &shape, options->plan));
    parts->state_bytes = parts->hooks.state_bytes;
    parts->bucket_bytes = parts->hooks.bucket_bytes;
    if (__builtin_add_overflow(parts->slot_bytes, parts->state_bytes, &bytes) ||
        __builtin_add_overflow(bytes, parts->bucket_bytes, &bytes))
        return gs_error(GS_RESOURCE_EXHAUSTED, "the memory of its hooks does not fit");
    return gs_ok();
}

size_t gs_arena_parts_bytes(const gs_arena_parts *parts) {
    return parts->state_bytes + parts->slot_bytes + parts->bucket_bytes;
}

gs_grad_layout_shape gs_reducer_layout_shape(const gs_reducer_options *options,
                                             const gs_hook_set_needs *hooks) {
    return (gs_grad_layout_shape){.params = options->params,
                                  .num_params = options->num_params,
                                  .num_slots = gs_logical_shards_num_slots(&options->shards),
                                  .device = options->device,
                                  .tally = options->tally,
                                  .num_parts =
                                      hooks->even_parts ? (size_t)options->shards.world_size : 1,
                                  .num_windows = (size_t)options->windows.num_windows,
                                  .own_part = (size_t)options->shards.rank,
                                  .opens_early = options->windows.opens_early,
                                  .adds_up = has_passes(options)};
}

gs_status gs_reducer_plan_check(const gs_bucket_plan *plan, const gs_reducer_options *options) {
    const gs_param_spec *params = options->params;
    int num_hooks = options->num_hooks ? (int)options->num_hooks : 1;
    GS_TRY(gs_bucket_plan_check(plan, params, options->num_params));
    for (size_t b = 0; b < plan->num_buckets; b++) {
        const gs_plan_bucket *bucket = &plan->buckets[b];
        if (bucket->hook >= num_hooks)
            return gs_error(GS_INVALID_ARGUMENT, "bucket %zu: hook %d of %d", b, bucket->hook,
                            num_hooks);
        for (size_t i = 0; i < bucket->num_params && bucket->num_params > 1; i++) {
            size_t param = plan->params[bucket->first + i];
            if (params[param].sparse)
                return gs_error(GS_INVALID_ARGUMENT,
                                "bucket %zu: sparse parameter %zu \"%.100s\" needs one of its own",
                                b, param, params[param].name);
        }
    }
    return gs_ok();
}

static gs_status check_lanes(const gs_reducer_options *options, const gs_hook_set_needs *needs,
                             const gs_comm *comm) {
    if (gs_comm_num_lanes(comm) >= needs->num_phases) return gs_ok();
    const gs_comm_hook *hook =
        options->num_hooks ? options->hooks[needs->of_most_phases].hook : NULL;
    return gs_error(GS_INVALID_ARGUMENT, "lanes: the communicator has %d, hook \"%.47s\" takes %d",
                    gs_comm_num_lanes(comm), hook ? hook->name : "default", needs->num_phases);
}

gs_status gs_reducer_options_check(const gs_reducer_options *options, const gs_comm *comm) {
    gs_arena_parts parts;
    GS_TRY(gs_reducer_arena_parts(&parts, options));
    size_t bytes = gs_arena_parts_bytes(&parts);
    GS_TRY(check_lanes(options, &parts.hooks, comm));
    if (!options->plan) return gs_error(GS_INVALID_ARGUMENT, "plan: none given");
    if (!options->device) return gs_error(GS_INVALID_ARGUMENT, "device: none given");
    if (!options->arena) return gs_error(GS_INVALID_ARGUMENT, "arena: none given");
    if (gs_arena_bytes(options->arena) < bytes)
        return gs_error(GS_INVALID_ARGUMENT, "arena: has %zu bytes, needs %zu",
                        gs_arena_bytes(options->arena), bytes);
    if (gs_device_is_host(options->device) != (gs_arena_fd(options->arena) >= 0))
        return gs_error(GS_INVALID_ARGUMENT, "arena: is not memory of %s (gs_arena_create_on)",
                        gs_device_name(options->device));
    if (options->shards.rank != gs_comm_rank(comm) ||
        options->shards.world_size != gs_comm_world_size(comm))
        return gs_error(GS_INVALID_ARGUMENT, "shards: rank %d of %d, the communicator is %d of %d",
                        options->shards.rank, options->shards.world_size, gs_comm_rank(comm),
                        gs_comm_world_size(comm));
    GS_TRY(gs_trainability_check(options->trainable, options->num_params));
    if (options->separate)
        GS_TRY(gs_separate_grads_check(options->separate, options->params, options->num_params));
    return gs_reducer_plan_check(options->plan, options);
}
