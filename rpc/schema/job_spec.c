#include "rpc/schema/job_spec.h"

#include <stdio.h>
#include <string.h>

#include "core/random.h"
#include "rpc/schema/job_words.h"

// Members of the specification's full form that this version does not have yet.
static const char *const later_members[] = {
                                            "/reducer/mirror",
                                            "/checkpoint/keep_every_steps",
                                            "/checkpoint/format",
                                            "/checkpoint/allow_change",
                                            "/restart/rules",
                                            NULL};

#define HOOK "/reducer/hook"

static void explain_later_members(gs_field_errors *errors) {
    for (int i = 0; i < errors->count && i < GS_MAX_FIELD_ERRORS; i++) {
        gs_field_error *error = &errors->items[i];
        if (strcmp(error->code, "unknown_member") != 0) continue;
        for (int j = 0; later_members[j]; j++) {
            if (strcmp(error->pointer, later_members[j]) != 0) continue;
            snprintf(error->message, sizeof error->message, "not in this version");
            error->hint[0] = '\0';
        }
    }
}

static void generate_name(gs_job_spec *spec) {
    static const char digits[] = "abcdefghijklmnopqrstuvwxyz234567";
    uint64_t bits = gs_random_from_system();
    char suffix[7] = "";
    for (int i = 0; i < 6; i++, bits >>= 5) suffix[i] = digits[bits & 31];
    snprintf(spec->name, sizeof spec->name, "%s-%s", gs_model_words[spec->model.kind], suffix);
}

// Caps that are given are meant. A sharded job's plan stays, whatever is measured; and what a hook makes of a whole bucket
// should not turn on the speed of a link.
static bool may_plan_itself(const gs_job_spec *spec, const gs_json *reducer) {
    return !gs_json_get(reducer, "bucket_cap_bytes") && !gs_json_get(reducer, "first_bucket_bytes") &&
           !gs_json_get(reducer, "small_bucket") && spec->reducer.sharding == GS_SHARDING_NONE &&
           gs_job_hook_is_by_element(&spec->reducer.hook);
}

static void fill_dependent_defaults(gs_job_spec *spec, const gs_json *object) {
    const gs_json *world = gs_json_get(object, "world");
    bool has_min = gs_json_get(world, "min"), has_max = gs_json_get(world, "max");
    if (has_min && !has_max) spec->world.max = spec->world.min;
    if (has_max && !has_min) spec->world.min = spec->world.max;
    if (!spec->logical_shards)
        spec->logical_shards = spec->world.max * spec->world.replicas_per_process;
    if (!spec->data.micro_batch) spec->data.micro_batch = 8;
    if (!spec->data.global_batch)
        spec->data.global_batch = spec->logical_shards * spec->data.micro_batch;
    // Who sets caps means them: no small first one beside them, unless it is given too.
    const gs_json *reducer = gs_json_get(object, "reducer");
    if (gs_json_get(reducer, "bucket_cap_bytes") && !gs_json_get(reducer, "first_bucket_bytes"))
        spec->reducer.first_bucket_bytes = 0;
    const gs_json *checkpoint = gs_json_get(object, "checkpoint");
    gs_job_hook_fill(&spec->reducer.hook, gs_json_get(reducer, "hook"));
    if (!gs_json_get(reducer, "plan") && !may_plan_itself(spec, reducer)) spec->reducer.plan = GS_PLAN_PARITY;
    if (gs_job_hook_carries(&spec->reducer.hook) && !gs_json_get(checkpoint, "parts"))
        spec->checkpoint.parts = GS_CHECKPOINT_PARTS_RANKS;
    // Each rank has what it owns, and nobody all of it.
    bool is_sharded = spec->reducer.sharding != GS_SHARDING_NONE;
    if (is_sharded && !gs_json_get(checkpoint, "parts"))
        spec->checkpoint.parts = GS_CHECKPOINT_PARTS_RANKS;
    if (is_sharded && !gs_json_get(reducer, "rebuild_after_steps"))
        spec->reducer.rebuild_after_steps = 0;
    if (!spec->name[0]) generate_name(spec);
}

// `prefix`: "/world/max", or "/world/" for all of it.
static bool is_sound(const gs_field_errors *errors, const char *prefix) {
    return !gs_field_errors_lie_in(errors, prefix);
}

static void check_world(const gs_job_spec *spec, gs_field_errors *errors) {
    long long max = (long long)spec->world.max;
    if (!is_sound(errors, "/world/m")) return;  // min, max
    if (spec->world.min > spec->world.max) {
        gs_field_errors_add(errors, "/world/min", "out_of_range", NULL,
                            "must be between 1 and world.max (%lld)", max);
    }
    if (spec->logical_shards < spec->world.max && is_sound(errors, "/logical_shards")) {
        gs_field_errors_add(errors, "/logical_shards", "out_of_range", NULL,
                            "must be at least world.max (%lld)", max);
    }
    if (spec->reducer.backend == GS_BACKEND_SELF && spec->world.max > 1) {
        gs_field_errors_add(errors, "/reducer/backend", "not_applicable", NULL,
                            "self is for one rank, world.max is %lld", max);
    }
}

// What is done on GPUs alone, and what on CPUs alone.
static void check_device(const gs_job_spec *spec, gs_field_errors *errors) {
    bool on_cpu = spec->world.device == GS_SPEC_DEVICE_CPU;
    if (on_cpu && spec->reducer.backend == GS_BACKEND_NCCL)
        gs_field_errors_add(errors, "/reducer/backend", "not_applicable", NULL,
                            "nccl reduces on GPUs, world.device is cpu");
    if (on_cpu && spec->model.precision == GS_PRECISION_TF32)
        gs_field_errors_add(errors, "/model/precision", "not_applicable", NULL,
                            "tf32 is of GPUs, world.device is cpu");
    bool in_host_memory =
        spec->reducer.backend == GS_BACKEND_SHM || spec->reducer.backend == GS_BACKEND_NET;
    const char *backend = spec->reducer.backend == GS_BACKEND_NET ? "net" : "shm";
    if (spec->world.device == GS_SPEC_DEVICE_CUDA && in_host_memory)
        gs_field_errors_add(errors, "/reducer/backend", "not_applicable", NULL,
                            "%s reduces in the memory of a host, world.device is cuda", backend);
    if (gs_job_spec_needs_gpu(spec) && !on_cpu && spec->world.replicas_per_process > 1)
        gs_field_errors_add(errors, "/world/replicas_per_process", "not_applicable", NULL,
                            "on GPUs a process has one replica");
    bool gpus_only =
        spec->reducer.backend == GS_BACKEND_NCCL || spec->model.precision == GS_PRECISION_TF32;
    if (gpus_only && in_host_memory)
        gs_field_errors_add(errors, "/model/precision", "not_applicable", NULL,
                            "tf32 is of GPUs, reducer.backend %s of CPUs", backend);
}

// What inputs, batch norm and sparse gradients cannot do with several replicas is said with them.
static void check_replicas(const gs_job_spec *spec, gs_field_errors *errors) {
    long long count = (long long)spec->world.replicas_per_process;
    bool by_processes = spec->reducer.replica_divisor == GS_DIVISOR_PROCESSES;
    if (by_processes && spec->reducer.op != GS_REDUCER_MEAN)
        gs_field_errors_add(errors, "/reducer/replica_divisor", "not_applicable", NULL,
                            "processes is for reducer.op mean");
    if (by_processes && spec->exact)
        gs_field_errors_add(errors, "/reducer/replica_divisor", "not_applicable", NULL,
                            "exact divides by logical shards");
    if (!is_sound(errors, "/world/replicas_per_process")) return;
    if (spec->logical_shards >= spec->world.max &&
        spec->logical_shards < spec->world.max * count && is_sound(errors, "/world/m") &&
        is_sound(errors, "/logical_shards"))
        gs_field_errors_add(errors, "/logical_shards", "out_of_range", NULL,
                            "must be at least world.max times replicas_per_process (%lld)",
                            (long long)spec->world.max * count);
}

static void check_model(const gs_job_spec *spec, const gs_json *object, gs_field_errors *errors) {
    const gs_json *model = gs_json_get(object, "model");
    bool is_mlp = spec->model.kind == GS_MODEL_MLP;
    const char *other = is_mlp ? "gpt2" : "mlp";
    char pointer[32];
    if (gs_json_get(model, other)) {
        snprintf(pointer, sizeof pointer, "/model/%s", other);
        gs_field_errors_add(errors, pointer, "not_applicable", NULL, "model.kind is %s",
                            gs_model_words[spec->model.kind]);
    }
    if (!is_mlp && spec->model.gpt2.channels % spec->model.gpt2.heads &&
        is_sound(errors, "/model/gpt2/channels") && is_sound(errors, "/model/gpt2/heads")) {
        gs_field_errors_add(errors, "/model/gpt2/heads", "out_of_range", NULL,
                            "must divide channels (%lld)", (long long)spec->model.gpt2.channels);
    }
    if (is_mlp && spec->model.mlp.num_dims < 2 && is_sound(errors, "/model/mlp/dims")) {
        gs_field_errors_add(errors, "/model/mlp/dims", "out_of_range", NULL,
                            "must have at least 2 entries: inputs and classes");
    }
    if (is_mlp && spec->model.mlp.num_dims > 2 &&
        spec->model.mlp.batch_norm == GS_BATCH_NORM_LOCAL && spec->data.micro_batch < 2) {
        gs_field_errors_add(errors, "/data/micro_batch", "out_of_range", NULL,
                            "must be at least 2 with batch_norm local");
    }
    if (is_mlp && spec->sample.tokens > 0) {
        gs_field_errors_add(errors, "/sample/tokens", "not_applicable", NULL,
                            "only a gpt2 model writes text");
    }
}

static void check_idx(const gs_job_spec *spec, gs_field_errors *errors) {
    bool is_idx = spec->data.kind == GS_DATA_IDX;
    if (is_idx && !spec->data.train_labels[0]) {
        gs_field_errors_add(errors, "/data/train_labels", "missing", NULL,
                            "must be given for data of kind idx");
    }
    if (is_idx && spec->data.num_eval > 0 && !spec->data.eval_labels[0]) {
        gs_field_errors_add(errors, "/data/eval_labels", "missing", NULL,
                            "must be given with data.eval of kind idx");
    }
    if (!is_idx && spec->data.train_labels[0]) {
        gs_field_errors_add(errors, "/data/train_labels", "not_applicable", NULL, "data.kind is %s",
                            gs_data_words[spec->data.kind]);
    }
    if (!is_idx && spec->data.eval_labels[0]) {
        gs_field_errors_add(errors, "/data/eval_labels", "not_applicable", NULL, "data.kind is %s",
                            gs_data_words[spec->data.kind]);
    }
}

static void check_data(const gs_job_spec *spec, gs_field_errors *errors) {
    int kind = spec->data.kind, wanted = kind == GS_DATA_IDX ? GS_MODEL_MLP : GS_MODEL_GPT2;
    if (kind == GS_DATA_SYNTHETIC) {
        if (spec->data.num_train || spec->data.num_eval) {
            gs_field_errors_add(errors, spec->data.num_train ? "/data/train" : "/data/eval",
                                "not_applicable", NULL, "data of kind synthetic reads no files");
        }
    } else {
        if (spec->model.kind != wanted) {
            gs_field_errors_add(errors, "/data/kind", "not_applicable", NULL,
                                "%s is for model.kind %s", gs_data_words[kind], gs_model_words[wanted]);
        }
        if (spec->data.num_train == 0) {
            gs_field_errors_add(errors, "/data/train", "missing", NULL,
                                "must be given for data of kind %s", gs_data_words[kind]);
        }
    }
    if (kind == GS_DATA_BYTES && spec->model.kind == GS_MODEL_GPT2 &&
        spec->model.gpt2.vocab < 256) {
        gs_field_errors_add(errors, "/model/gpt2/vocab", "out_of_range", NULL,
                            "must be at least 256 for data of kind bytes");
    }
    check_idx(spec, errors);
    int64_t unit = spec->logical_shards * spec->data.micro_batch;
    bool known = is_sound(errors, "/world/m") && is_sound(errors, "/logical_shards") &&
                 is_sound(errors, "/data/micro_batch") && is_sound(errors, "/data/global_batch");
    if (known && spec->data.global_batch % unit) {
        gs_field_errors_add(errors, "/data/global_batch", "out_of_range", NULL,
                            "must be a multiple of logical_shards times micro_batch (%lld)",
                            (long long)unit);
    }
}

static void check_rest(const gs_job_spec *spec, gs_field_errors *errors) {
    bool is_sgd = spec->optimizer.kind == GS_OPTIMIZER_SGD;
    bool known = is_sound(errors, "/optimizer/kind") && is_sound(errors, "/optimizer/momentum");
    if (known && !is_sgd && spec->optimizer.momentum > 0) {
        gs_field_errors_add(errors, "/optimizer/momentum", "not_applicable", NULL, "only for sgd");
    }
    if (known && spec->optimizer.nesterov && (!is_sgd || !(spec->optimizer.momentum > 0))) {
        gs_field_errors_add(errors, "/optimizer/nesterov", "not_applicable", NULL,
                            "only for sgd with momentum");
    }
    if (spec->restart.on_worker_error == GS_ON_RESCALE) {
        gs_field_errors_add(errors, "/restart/on_worker_error", "bad_word", NULL,
                            "must be one of: restart, fail");
    }
    if (spec->restart.backoff_max_seconds < spec->restart.backoff_initial_seconds &&
        is_sound(errors, "/restart/backoff")) {
        gs_field_errors_add(errors, "/restart/backoff_max_seconds", "out_of_range", NULL,
                            "must be at least backoff_initial_seconds");
    }
    // Statistics that stay with a rank follow the ranks, not the shards.
    if (spec->exact && spec->model.kind == GS_MODEL_MLP &&
        spec->model.mlp.batch_norm == GS_BATCH_NORM_LOCAL &&
        spec->reducer.buffers == GS_SPEC_BUFFERS_NONE) {
        gs_field_errors_add(errors, "/exact", "not_applicable", NULL,
                            "batch_norm local with reducer.buffers none depends on the ranks");
    }
}

static void check_precision(const gs_job_spec *spec, const gs_json *object,
                            gs_field_errors *errors) {
    if (!is_sound(errors, "/model/precision")) return;
    const gs_json *loss_scale = gs_json_get(gs_json_get(object, "optimizer"), "loss_scale");
    if (loss_scale && spec->model.precision != GS_PRECISION_FP16) {
        gs_field_errors_add(errors, "/optimizer/loss_scale", "not_applicable", NULL,
                            "only for model.precision fp16");
    } else if (!(spec->optimizer.loss_scale.backoff_factor < 1) &&
               is_sound(errors, "/optimizer/loss_scale/backoff_factor")) {
        gs_field_errors_add(errors, "/optimizer/loss_scale/backoff_factor", "out_of_range", NULL,
                            "must be less than 1, else an overflow stays for ever");
    } else if (spec->optimizer.loss_scale.min > spec->optimizer.loss_scale.init &&
               is_sound(errors, "/optimizer/loss_scale/min") &&
               is_sound(errors, "/optimizer/loss_scale/init")) {
        gs_field_errors_add(errors, "/optimizer/loss_scale/min", "out_of_range", NULL,
                            "must be at most optimizer.loss_scale.init");
    }
    // What is rounded on the way follows from which shards a rank adds up itself.
    if (spec->exact && spec->reducer.wire_dtype != GS_WIRE_FP32) {
        gs_field_errors_add(errors, "/reducer/wire_dtype", "not_applicable", NULL,
                            "exact: what 16 bits round depends on the number of ranks");
    }
}

static void refuse(gs_field_errors *errors, const char *pointer, const char *reason) {
    gs_field_errors_add(errors, pointer, "not_applicable", NULL, "%s", reason);
}

// Data that is dealt to ranks, and ranks that run out of it.
static void check_split(const gs_job_spec *spec, gs_field_errors *errors) {
    bool by_rank = spec->data.split == GS_SPLIT_BY_RANK;
    bool uneven = spec->data.uneven_inputs != GS_UNEVEN_EVEN;
    if (!is_sound(errors, "/data/split") || !is_sound(errors, "/data/uneven_inputs")) return;
    if (spec->data.join_divisor == GS_JOIN_ACTIVE && spec->data.uneven_inputs != GS_UNEVEN_JOIN)
        refuse(errors, "/data/join_divisor", "only with data.uneven_inputs join");
    else if (spec->data.join_divisor == GS_JOIN_ACTIVE && spec->reducer.op == GS_REDUCER_MEAN &&
             spec->logical_shards != spec->world.max)
        refuse(errors, "/data/join_divisor",
               "a mean over active ranks needs one logical shard for each; or reducer.op sample_mean");
    if (!by_rank) {
        if (uneven)
            refuse(errors, "/data/uneven_inputs",
                   "all ranks have data in every step unless data.split is by_rank");
        return;
    }
    if (spec->world.min != spec->world.max && is_sound(errors, "/world/m"))
        refuse(errors, "/data/split", "parts are dealt to ranks: world.min must be world.max");
    if (spec->exact) refuse(errors, "/exact", "data.split by_rank depends on the ranks");
    if (spec->world.replicas_per_process > 1)
        refuse(errors, "/world/replicas_per_process", "data.split by_rank deals parts to ranks, not to their replicas");
    if (uneven && spec->reducer.static_graph)
        refuse(errors, "/reducer/static_graph",
               "a restart may begin where ranks have no data to learn it from, and passes without "
               "rows use no parameter");
}

static void check_sync_norm(const gs_job_spec *spec, gs_field_errors *errors) {
    if (spec->model.kind != GS_MODEL_MLP || spec->model.mlp.batch_norm != GS_BATCH_NORM_SYNC)
        return;
    if (spec->exact)
        refuse(errors, "/exact", "batch_norm sync adds up over ranks: equal to rounding only");
    if (spec->data.uneven_inputs != GS_UNEVEN_EVEN)
        refuse(errors, "/data/uneven_inputs",
               "batch_norm sync takes its statistics from all ranks in every pass");
    if (spec->reducer.op == GS_REDUCER_SUM)
        refuse(errors, "/reducer/op", "batch_norm sync has one loss for all ranks: mean only");
    if (spec->world.replicas_per_process > 1)
        refuse(errors, "/world/replicas_per_process", "batch_norm sync gathers statistics over ranks, not over their replicas");
    if (spec->model.mlp.num_dims > 2 && spec->logical_shards * spec->data.micro_batch < 2)
        gs_field_errors_add(errors, "/data/micro_batch", "out_of_range", NULL,
                            "must be at least 2 with batch_norm sync of one logical shard");
}

static void check_buffers(const gs_job_spec *spec, gs_field_errors *errors) {
    if (spec->exact && spec->reducer.buffers == GS_SPEC_BUFFERS_AVERAGE)
        refuse(errors, "/reducer/buffers", "an average over ranks depends on their number");
}

// Ranks whose parameters differ between averages.
static void check_apart(const gs_job_spec *spec, gs_field_errors *errors) {
    if (spec->reducer.op != GS_REDUCER_MEAN)
        refuse(errors, "/reducer/op", "ranks that train apart have means of their own gradients: mean only");
    if (spec->reducer.sparse_embedding != GS_SPARSE_OFF)
        refuse(errors, "/reducer/sparse_embedding", "rows are exchanged by all ranks, which train apart");
    if (spec->data.uneven_inputs == GS_UNEVEN_JOIN)
        refuse(errors, "/data/uneven_inputs", "a rank without data has nothing to train with by itself");
    if (spec->model.kind == GS_MODEL_MLP && spec->model.mlp.batch_norm == GS_BATCH_NORM_SYNC)
        refuse(errors, "/model/mlp/batch_norm", "batch_norm sync is a mean over samples of all ranks, which train apart");
    if (spec->world.replicas_per_process > 1)
        refuse(errors, "/world/replicas_per_process", "ranks train apart, not their replicas");
    if (spec->optimizer.in_backward)
        refuse(errors, "/optimizer/in_backward", "ranks that train apart update behind the last bucket");
    if (spec->model.precision == GS_PRECISION_BF16 && is_sound(errors, "/model/precision"))
        refuse(errors, "/model/precision", "masters of bf16 are not averaged in this version");
}

// A group of all ranks would average them more often than `period` says.
static void check_groups(const gs_job_spec *spec, gs_field_errors *errors) {
    const gs_job_hook *hook = &spec->reducer.hook;
    if (!is_sound(errors, HOOK "/group_averages") || !is_sound(errors, "/world/")) return;
    for (int i = 0; i < hook->num_group_averages; i++) {
        char pointer[128];
        snprintf(pointer, sizeof pointer, HOOK "/group_averages/%d/group_size", i);
        if (hook->group_averages[i].group_size >= spec->world.max)
            gs_field_errors_add(errors, pointer, "out_of_range", NULL, "must be less than world.max, %lld",
                                (long long)spec->world.max);
    }
}

// A hook, and what else is asked of a reduction. Nothing can be said about one of a kind that is not known.
static void check_hook(const gs_job_spec *spec, const gs_json *object, gs_field_errors *errors) {
    const gs_job_hook *hook = &spec->reducer.hook;
    bool is_plain = hook->kind == GS_JOB_HOOK_ALLREDUCE;
    if (!is_sound(errors, HOOK "/kind")) return;
    gs_job_hook_check(hook, gs_json_get(gs_json_get(object, "reducer"), "hook"), HOOK, errors);
    if (spec->reducer.wire_dtype != GS_WIRE_FP32 && (!is_plain || hook->wrap))
        refuse(errors, "/reducer/wire_dtype",
               is_plain ? "reducer.hook.wrap says the type" : "short for reducer.hook.kind fp16 and bf16: give one");
    // What is rounded on the way follows from which shards a rank adds up itself.
    if (spec->exact && (!is_plain || hook->wrap))
        refuse(errors, is_plain ? HOOK "/wrap" : HOOK "/kind",
               "exact: what it rounds depends on the number of ranks");
    if (gs_job_hook_chooses(hook) && gs_job_spec_needs_gpu(spec))
        refuse(errors, HOOK "/kind", "auto goes by times that hosts measure: no GPUs");
    if (gs_job_hook_trains_apart(hook)) check_apart(spec, errors);
    check_groups(spec, errors);
    if (!gs_job_hook_carries(hook) || !is_sound(errors, HOOK "/error_feedback")) return;
    if (spec->reducer.op == GS_REDUCER_SAMPLE_MEAN)
        refuse(errors, HOOK "/error_feedback",
               "reducer.op sample_mean divides each step by another number; give false");
    if (spec->model.kind == GS_MODEL_MLP && spec->model.mlp.batch_norm == GS_BATCH_NORM_SYNC)
        refuse(errors, HOOK "/error_feedback",
               "batch_norm sync weighs by the samples of each step; give false");
    // Ranks on CPUs share the memory of their host, in which residuals lie.
    if (spec->checkpoint.parts == GS_CHECKPOINT_PARTS_ONE && gs_job_spec_may_use_gpu(spec) &&
        is_sound(errors, "/checkpoint/parts"))
        refuse(errors, "/checkpoint/parts",
               "reducer.hook.error_feedback: no rank reaches the residuals of others on GPUs; ranks, or world.device cpu");
}

static void refuse_sparse(gs_field_errors *errors, const char *why) {
    gs_field_errors_add(errors, "/reducer/sparse_embedding", "not_applicable", NULL, "%s", why);
}

static void check_sparse(const gs_job_spec *spec, gs_field_errors *errors) {
    if (spec->reducer.sparse_embedding == GS_SPARSE_OFF) return;
    if (spec->model.kind != GS_MODEL_GPT2) refuse_sparse(errors, "only a gpt2 model has an embedding");
    if (spec->exact)
        refuse_sparse(errors, "exact: which rows are added first depends on the number of ranks");
    if (spec->data.uneven_inputs == GS_UNEVEN_JOIN)
        refuse_sparse(errors, "uneven_inputs join: ranks without data take no part in the exchange of rows");
    if (spec->world.replicas_per_process > 1)
        refuse_sparse(errors, "replicas_per_process: rows are added by one compute thread");
}

// What an update that does not wait for the last bucket cannot have.
static void check_in_backward(const gs_job_spec *spec, gs_field_errors *errors) {
    const char *pointer = "/optimizer/in_backward";
    bool syncs_norm = spec->model.kind == GS_MODEL_MLP && spec->model.mlp.batch_norm == GS_BATCH_NORM_SYNC;
    if (!spec->optimizer.in_backward) return;
    if (spec->optimizer.grad_clip_norm > 0)
        refuse(errors, pointer, "grad_clip_norm needs the norm of all gradients before the first update");
    if (spec->reducer.op == GS_REDUCER_SAMPLE_MEAN)
        refuse(errors, pointer, "reducer.op sample_mean is divided behind the last bucket");
    else if (syncs_norm)
        refuse(errors, pointer, "batch_norm sync is a mean over samples, divided behind the last bucket");
    if (spec->world.replicas_per_process > 1)
        refuse(errors, pointer, "replicas of a process read the same parameters, each in a backward of its own");
}

// Its state is the host's, which makes whole updates.
static void check_offload(const gs_job_spec *spec, gs_field_errors *errors) {
    const char *pointer = "/optimizer/offload";
    if (!spec->optimizer.offload) return;
    if (spec->optimizer.in_backward || spec->reducer.zero_overlap != GS_ZERO_OVERLAP_OFF)
        refuse(errors, pointer, "optimizer.in_backward and reducer.zero_overlap update beside the backward pass, on the device");
    if (gs_job_hook_trains_apart(&spec->reducer.hook))
        refuse(errors, pointer, "ranks that train apart average the optimizer's state on the device");
}

// With less a rank does not come so far that it could say what it lacks.
static void check_limits(const gs_job_spec *spec, gs_field_errors *errors) {
    if (spec->limits.memory_bytes && spec->limits.memory_bytes < GS_SPEC_LEAST_MEMORY && is_sound(errors, "/limits/memory_bytes"))
        gs_field_errors_add(errors, "/limits/memory_bytes", "out_of_range", NULL, "must be 0 or at least %d", GS_SPEC_LEAST_MEMORY);
    if (spec->limits.open_files && spec->limits.open_files < GS_SPEC_LEAST_OPEN_FILES && is_sound(errors, "/limits/open_files"))
        gs_field_errors_add(errors, "/limits/open_files", "out_of_range", NULL, "must be 0 or at least %d", GS_SPEC_LEAST_OPEN_FILES);
}

// Which layers a step uses is drawn.
static void check_layer_drop(const gs_job_spec *spec, gs_field_errors *errors) {
    const char *pointer = "/model/gpt2/layer_drop";
    if (spec->model.kind != GS_MODEL_GPT2 || !(spec->model.gpt2.layer_drop > 0)) return;
    if (spec->reducer.static_graph)
        gs_field_errors_add(errors, pointer, "not_applicable", NULL,
                            "reducer.static_graph promises the same parameters in every step");
    if (spec->reducer.unused_parameters == GS_UNUSED_ERROR)
        gs_field_errors_add(errors, pointer, "not_applicable", NULL,
                            "reducer.unused_parameters is error, and a layer may be dropped by all");
}

gs_status gs_job_spec_decode(gs_job_spec *spec, const gs_json *object, gs_field_errors *errors) {
    memset(spec, 0, sizeof *spec);
    gs_status status = gs_fields_decode(spec, gs_job_spec_fields, object, errors);
    explain_later_members(errors);
    if (gs_json_type_of(object) != GS_JSON_OBJECT) return status;
    fill_dependent_defaults(spec, object);
    check_world(spec, errors);
    check_replicas(spec, errors);
    // Nothing can be said about a model or data of a kind that is not known.
    if (is_sound(errors, "/model/kind")) {
        check_model(spec, object, errors);
        check_sparse(spec, errors);
        check_layer_drop(spec, errors);
        if (is_sound(errors, "/data/kind")) check_data(spec, errors);
    }
    check_rest(spec, errors);
    check_split(spec, errors);
    check_sync_norm(spec, errors);
    check_buffers(spec, errors);
    check_device(spec, errors);
    check_precision(spec, object, errors);
    check_hook(spec, object, errors);
    check_in_backward(spec, errors);
    check_offload(spec, errors);
    gs_job_spec_check_sharding(spec, errors);
    gs_job_spec_check_freeze(spec, errors);
    check_limits(spec, errors);
    gs_job_spec_check_environment(spec, errors);
    if (errors->count == 0) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "%d problem%s found", errors->count,
                    errors->count == 1 ? "" : "s");
}

gs_status gs_job_spec_decode_stored(gs_job_spec *spec, const gs_json *object, gs_field_errors *errors) {
    memset(spec, 0, sizeof *spec);
    gs_status status = gs_fields_decode_stored(spec, gs_job_spec_fields, object, errors);
    if (gs_json_type_of(object) == GS_JSON_OBJECT) fill_dependent_defaults(spec, object);
    // What was written before plans measured links had caps.
    if (!gs_json_get(gs_json_get(object, "reducer"), "plan")) spec->reducer.plan = GS_PLAN_PARITY;
    return status;
}

gs_json *gs_job_spec_encode(const gs_job_spec *spec) {
    gs_json *object = gs_fields_encode(spec, gs_job_spec_fields);
    // What does not apply is all defaults, and would be refused if it were sent back.
    gs_json *model = (gs_json *)(uintptr_t)gs_json_get(object, "model");
    gs_json_remove(model, spec->model.kind == GS_MODEL_MLP ? "gpt2" : "mlp");
    gs_json *optimizer = (gs_json *)(uintptr_t)gs_json_get(object, "optimizer");
    if (spec->model.precision != GS_PRECISION_FP16) gs_json_remove(optimizer, "loss_scale");
    gs_job_hook_trim((gs_json *)(uintptr_t)gs_json_get(gs_json_get(object, "reducer"), "hook"),
                     &spec->reducer.hook);
    return object;
}
