#include "rpc/job_spec.h"

#include <stdio.h>
#include <string.h>

#include "core/random.h"

#define NAME_PATTERN "^[a-z][a-z0-9-]{0,62}$"
// Names below the data root: never absolute, no "..", nothing hidden.
#define FILE_PATTERN "^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$"
#define GLOB_PATTERN "^[A-Za-z0-9_*-][A-Za-z0-9._*-]*(/[A-Za-z0-9_*-][A-Za-z0-9._*-]*)*$"
#define LABEL_PATTERN "^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$"
#define EXACT_IN_JAVASCRIPT 9007199254740991.0  // 2^53 - 1

static const char *const devices[] = {"auto", "cpu", NULL};
static const char *const later_devices[] = {"cuda", NULL};
static const char *const models[] = {"gpt2", "mlp", NULL};
static const char *const later_models[] = {"plugin", "command", NULL};
static const char *const batch_norms[] = {"local", "none", NULL};
static const char *const later_batch_norms[] = {"sync", NULL};
static const char *const precisions[] = {"fp32", NULL};
static const char *const later_precisions[] = {"tf32", "bf16", "fp16", NULL};
static const char *const data_kinds[] = {"synthetic", "bytes", "token_shards", "idx", NULL};
static const char *const later_data_kinds[] = {"plugin", NULL};
static const char *const optimizers[] = {"adamw", "adam", "sgd", NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", NULL};
static const char *const later_schedules[] = {"wsd", "step", NULL};
static const char *const plans[] = {"parity", "auto", NULL};
static const char *const hooks[] = {"allreduce", NULL};
static const char *const later_hooks[] = {
    "fp16",      "bf16", "int8",         "topk", "powersgd", "batched_powersgd",
    "local_sgd", "noop", "int8_channel", "auto", "plugin",   NULL};
static const char *const reduce_ops[] = {"mean", "sum", NULL};
static const char *const later_reduce_ops[] = {"sample_mean", NULL};
static const char *const buffer_modes[] = {"broadcast", "none", NULL};
static const char *const later_buffer_modes[] = {"average", NULL};
static const char *const backends[] = {"auto", "self", "shm", NULL};
static const char *const later_backends[] = {"gloo", "nccl", NULL};
static const char *const unused_modes[] = {"allow", "error", NULL};
static const char *const resume_modes[] = {"latest", "none", NULL};
static const char *const restart_actions[] = {"rescale", "restart", "fail", NULL};

// All offsets are from the start of gs_job_spec, so an object's own offset is 0.
#define AT(member) .offset = offsetof(gs_job_spec, member)
#define TEXT(member) AT(member), .capacity = sizeof((gs_job_spec *)0)->member
#define RANGE(low, high) .has_range = true, .least = (low), .most = (high)
#define WORDS(list) .type = GS_FIELD_ENUM, .words = (list)

static const gs_field label_fields[] = {
    {"key", .type = GS_FIELD_STRING, .offset = offsetof(gs_job_label, key),
     .capacity = GS_SPEC_NAME_LEN, .required = true, .pattern = LABEL_PATTERN,
     .help = "Name of the label."},
    {"value", .type = GS_FIELD_STRING, .offset = offsetof(gs_job_label, value),
     .capacity = GS_SPEC_NAME_LEN, .required = true, .help = "Its value."},
    {0},
};

static const gs_field world_fields[] = {
    {"min", GS_FIELD_INT, AT(world.min), RANGE(1, 4096), .default_value = "1",
     .help = "Fewest ranks that train; default max when only max is given."},
    {"max", GS_FIELD_INT, AT(world.max), RANGE(1, 4096), .default_value = "1",
     .help = "Most ranks; default min when only min is given; min = max is not elastic."},
    {"join_window_seconds", GS_FIELD_DOUBLE, AT(world.join_window_seconds), RANGE(0, 3600),
     .default_value = "3", .help = "How long to wait for more ranks once min have joined."},
    {"wait_seconds", GS_FIELD_DOUBLE, AT(world.wait_seconds), RANGE(0, 31536000),
     .default_value = "0", .help = "How long to wait for min ranks before failing; 0 is for ever."},
    {"device", WORDS(devices), AT(world.device), .later_words = later_devices,
     .default_value = "\"auto\"", .help = "Where ranks compute."},
    {"threads_per_rank", GS_FIELD_INT, AT(world.threads_per_rank), RANGE(0, 1024),
     .default_value = "0",
     .help = "Compute threads of a rank; 0 is the agent's cores divided by its slots."},
    {0},
};

static const gs_field gpt2_fields[] = {
    {"layers", GS_FIELD_INT, AT(model.gpt2.layers), RANGE(1, 256), .default_value = "4",
     .help = "Transformer blocks."},
    {"heads", GS_FIELD_INT, AT(model.gpt2.heads), RANGE(1, 256), .default_value = "4",
     .help = "Attention heads; they divide channels."},
    {"channels", GS_FIELD_INT, AT(model.gpt2.channels), RANGE(1, 65536), .default_value = "128",
     .help = "Width of the residual stream."},
    {"context", GS_FIELD_INT, AT(model.gpt2.context), RANGE(2, 65536), .default_value = "64",
     .help = "Tokens of a sample."},
    {"vocab", GS_FIELD_INT, AT(model.gpt2.vocab), RANGE(2, 1048576), .default_value = "256",
     .help = "Size of the vocabulary; at least 256 for data of kind bytes."},
    {0},
};

static const gs_field mlp_fields[] = {
    {"dims", GS_FIELD_INTS, AT(model.mlp.dims), .capacity = GS_SPEC_MAX_DIMS,
     .element_bytes = sizeof(int64_t), .count_offset = offsetof(gs_job_spec, model.mlp.num_dims),
     RANGE(1, 1048576), .default_value = "[784,256,128,10]",
     .help = "Inputs, hidden layers, classes."},
    {"batch_norm", WORDS(batch_norms), AT(model.mlp.batch_norm), .later_words = later_batch_norms,
     .default_value = "\"local\"", .help = "Batch normalisation after hidden layers."},
    {0},
};

static const gs_field model_fields[] = {
    {"kind", WORDS(models), AT(model.kind), .later_words = later_models, .required = true,
     .help = "The model."},
    {"gpt2", GS_FIELD_OBJECT, .fields = gpt2_fields, .help = "Shape of a gpt2 model."},
    {"mlp", GS_FIELD_OBJECT, .fields = mlp_fields, .help = "Shape of an mlp model."},
    {"precision", WORDS(precisions), AT(model.precision), .later_words = later_precisions,
     .default_value = "\"fp32\"", .help = "Type of the computation."},
    {"seed", GS_FIELD_INT, AT(model.seed), RANGE(0, EXACT_IN_JAVASCRIPT), .default_value = "1337",
     .help = "Seed of the initial parameters and of everything random in training."},
    {"init_from", GS_FIELD_STRING, TEXT(model.init_from), .pattern = FILE_PATTERN,
     .help = "A safetensors or llm.c model file below the data root; empty draws from the seed."},
    {0},
};

static const gs_field data_fields[] = {
    {"kind", WORDS(data_kinds), AT(data.kind), .later_words = later_data_kinds,
     .default_value = "\"synthetic\"",
     .help = "Where samples come from; synthetic needs no files."},
    {"train", GS_FIELD_STRINGS, AT(data.train), .capacity = GS_SPEC_MAX_PATTERNS,
     .element_bytes = GS_SPEC_PATTERN_LEN, .count_offset = offsetof(gs_job_spec, data.num_train),
     .pattern = GLOB_PATTERN,
     .help = "Files to train on, below the data root; * stands for any name."},
    {"eval", GS_FIELD_STRINGS, AT(data.eval), .capacity = GS_SPEC_MAX_PATTERNS,
     .element_bytes = GS_SPEC_PATTERN_LEN, .count_offset = offsetof(gs_job_spec, data.num_eval),
     .pattern = GLOB_PATTERN, .help = "Files to evaluate on."},
    {"train_labels", GS_FIELD_STRING, TEXT(data.train_labels), .pattern = FILE_PATTERN,
     .help = "Labels of the training samples; idx only."},
    {"eval_labels", GS_FIELD_STRING, TEXT(data.eval_labels), .pattern = FILE_PATTERN,
     .help = "Labels of the evaluation samples; idx only."},
    {"global_batch", GS_FIELD_INT, AT(data.global_batch), RANGE(0, 16777216), .default_value = "0",
     .help =
         "Samples of a step; 0 is logical_shards times micro_batch, of which it is a multiple."},
    {"micro_batch", GS_FIELD_INT, AT(data.micro_batch), RANGE(0, 65536), .default_value = "0",
     .help = "Samples of a forward pass; 0 is 8."},
    {"shuffle_seed", GS_FIELD_INT, AT(data.shuffle_seed), RANGE(0, EXACT_IN_JAVASCRIPT),
     .default_value = "1", .help = "Seed of the order of samples."},
    {"eval_every_steps", GS_FIELD_INT, AT(data.eval_every_steps), RANGE(0, 1e12),
     .default_value = "0", .help = "Steps between evaluations; 0 is never."},
    {"eval_batches", GS_FIELD_INT, AT(data.eval_batches), RANGE(1, 1e6), .default_value = "20",
     .help = "Global batches of an evaluation."},
    {0},
};

static const gs_field schedule_fields[] = {
    {"kind", WORDS(schedules), AT(optimizer.schedule.kind), .later_words = later_schedules,
     .default_value = "\"constant\"", .help = "How the learning rate goes after the warm-up."},
    {"warmup_steps", GS_FIELD_INT, AT(optimizer.schedule.warmup_steps), RANGE(0, 1e12),
     .default_value = "0", .help = "Steps of linear growth from 0."},
    {"final_ratio", GS_FIELD_DOUBLE, AT(optimizer.schedule.final_ratio), RANGE(0, 1),
     .default_value = "0.1", .help = "Learning rate at the last step as a share of lr."},
    {0},
};

static const gs_field optimizer_fields[] = {
    {"kind", WORDS(optimizers), AT(optimizer.kind), .default_value = "\"adamw\"",
     .help = "The update rule."},
    {"lr", GS_FIELD_DOUBLE, AT(optimizer.lr), RANGE(1e-12, 1000), .default_value = "0.0003",
     .help = "Learning rate."},
    {"beta1", GS_FIELD_DOUBLE, AT(optimizer.beta1), RANGE(0, 0.9999999), .default_value = "0.9",
     .help = "Decay of the first moment."},
    {"beta2", GS_FIELD_DOUBLE, AT(optimizer.beta2), RANGE(0, 0.9999999), .default_value = "0.999",
     .help = "Decay of the second moment."},
    {"eps", GS_FIELD_DOUBLE, AT(optimizer.eps), RANGE(0, 1), .default_value = "1e-8",
     .help = "Added to the denominator."},
    {"momentum", GS_FIELD_DOUBLE, AT(optimizer.momentum), RANGE(0, 0.9999999), .default_value = "0",
     .help = "sgd only."},
    {"weight_decay", GS_FIELD_DOUBLE, AT(optimizer.weight_decay), RANGE(0, 100),
     .default_value = "0", .help = "Decoupled in adamw, added to the gradient in adam and sgd."},
    {"grad_clip_norm", GS_FIELD_DOUBLE, AT(optimizer.grad_clip_norm), RANGE(0, 1e9),
     .default_value = "0", .help = "Largest norm of the whole gradient; 0 is off."},
    {"nesterov", GS_FIELD_BOOL, AT(optimizer.nesterov), .default_value = "false",
     .help = "sgd with momentum only."},
    {"schedule", GS_FIELD_OBJECT, .fields = schedule_fields,
     .help = "The learning rate over the steps."},
    {0},
};

static const gs_field hook_fields[] = {
    {"kind", WORDS(hooks), AT(reducer.hook.kind), .later_words = later_hooks,
     .default_value = "\"allreduce\"", .help = "How a bucket is communicated."},
    {0},
};

static const gs_field reducer_fields[] = {
    {"plan", WORDS(plans), AT(reducer.plan), .default_value = "\"parity\"",
     .help = "parity: buckets by size and caps; auto: from measurements."},
    {"first_bucket_bytes", GS_FIELD_INT, AT(reducer.first_bucket_bytes), RANGE(1, 1e12),
     .default_value = "1048576", .help = "Cap of the first bucket."},
    {"bucket_cap_bytes", GS_FIELD_INT, AT(reducer.bucket_cap_bytes), RANGE(1, 1e12),
     .default_value = "26214400", .help = "Cap of the others."},
    {"rebuild_after_steps", GS_FIELD_INT, AT(reducer.rebuild_after_steps), RANGE(0, 1e12),
     .default_value = "1",
     .help = "Steps before buckets follow the order gradients came in; this version keeps the first plan."},
    {"hook", GS_FIELD_OBJECT, .fields = hook_fields, .help = "The communication hook."},
    {"op", WORDS(reduce_ops), AT(reducer.op), .later_words = later_reduce_ops,
     .default_value = "\"mean\"", .help = "What a reduced gradient is."},
    {"buffers", WORDS(buffer_modes), AT(reducer.buffers), .later_words = later_buffer_modes,
     .default_value = "\"broadcast\"", .help = "Statistics of batch normalisation and the like."},
    {"backend", WORDS(backends), AT(reducer.backend), .later_words = later_backends,
     .default_value = "\"auto\"", .help = "The collectives; auto picks and says why."},
    {"unused_parameters", WORDS(unused_modes), AT(reducer.unused_parameters),
     .default_value = "\"allow\"",
     .help = "error: a step that leaves parameters unused fails and names them."},
    {"check_replicas_every_steps", GS_FIELD_INT, AT(reducer.check_replicas_every_steps),
     RANGE(0, 1e12), .default_value = "500",
     .help = "Steps between comparisons of parameters across ranks; 0 is never."},
    {"timeout_seconds", GS_FIELD_DOUBLE, AT(reducer.timeout_seconds), RANGE(0.001, 86400),
     .default_value = "30", .help = "How long a collective waits; then who did not come is named."},
    {0},
};

static const gs_field steps_fields[] = {
    {"target", GS_FIELD_INT, AT(steps.target), RANGE(1, 1e12), .required = true,
     .help = "The job succeeds after this step."},
    {"deadline_seconds", GS_FIELD_DOUBLE, AT(steps.deadline_seconds), RANGE(0, 31536000),
     .default_value = "0", .help = "Time the job may take from its first step; 0 is any."},
    {0},
};

static const gs_field checkpoint_fields[] = {
    {"every_steps", GS_FIELD_INT, AT(checkpoint.every_steps), RANGE(0, 1e12), .default_value = "0",
     .help = "Steps between checkpoints; 0 is only at the end and on stop."},
    {"keep_last", GS_FIELD_INT, AT(checkpoint.keep_last), RANGE(1, 1000), .default_value = "3",
     .help = "How many are kept."},
    {"on_stop", GS_FIELD_BOOL, AT(checkpoint.on_stop), .default_value = "true",
     .help = "Write one when the job is stopped gracefully."},
    {"resume", WORDS(resume_modes), AT(checkpoint.resume), .default_value = "\"latest\"",
     .help = "What a restart starts from."},
    {0},
};

static const gs_field sample_fields[] = {
    {"tokens", GS_FIELD_INT, AT(sample.tokens), RANGE(0, 65536), .default_value = "0",
     .help = "Tokens to generate at the end; 0 is none; gpt2 only."},
    {"prompt", GS_FIELD_STRING, TEXT(sample.prompt), .help = "What the sample goes on from."},
    {"temperature", GS_FIELD_DOUBLE, AT(sample.temperature), RANGE(0, 10), .default_value = "0.8",
     .help = "0 takes the likeliest token."},
    {0},
};

static const gs_field restart_fields[] = {
    {"on_worker_lost", WORDS(restart_actions), AT(restart.on_worker_lost),
     .default_value = "\"rescale\"", .help = "When a rank is killed or falls silent."},
    {"on_worker_error", WORDS(restart_actions), AT(restart.on_worker_error),
     .default_value = "\"fail\"",
     .help = "When a rank itself says that its input is bad: restart or fail."},
    {"max_restarts", GS_FIELD_INT, AT(restart.max_restarts), RANGE(0, 1e6), .default_value = "5",
     .help = "Restarts within window_seconds before the job fails."},
    {"window_seconds", GS_FIELD_DOUBLE, AT(restart.window_seconds), RANGE(0, 31536000),
     .default_value = "3600", .help = "Window of max_restarts."},
    {"healthy_after_steps", GS_FIELD_INT, AT(restart.healthy_after_steps), RANGE(0, 1e12),
     .default_value = "100", .help = "Committed steps that forgive a restart."},
    {"backoff_initial_seconds", GS_FIELD_DOUBLE, AT(restart.backoff_initial_seconds),
     RANGE(0, 86400), .default_value = "2", .help = "Pause before the first restart; it doubles."},
    {"backoff_max_seconds", GS_FIELD_DOUBLE, AT(restart.backoff_max_seconds), RANGE(0, 86400),
     .default_value = "120", .help = "Longest pause."},
    {0},
};

static const gs_field debug_fields[] = {
    {"step_delay_ms", GS_FIELD_INT, AT(debug.step_delay_ms), RANGE(0, 60000), .default_value = "0",
     .help = "Sleep in each step; for demonstrations and tests of faults."},
    {0},
};

const gs_field gs_job_spec_fields[] = {
    {"name", GS_FIELD_STRING, TEXT(name), .pattern = NAME_PATTERN,
     .help = "Unique among jobs that have not ended; generated when absent."},
    {"labels", GS_FIELD_OBJECTS, AT(labels), .capacity = 16, .element_bytes = sizeof(gs_job_label),
     .count_offset = offsetof(gs_job_spec, num_labels), .fields = label_fields,
     .help = "For people and filters; never in metrics."},
    {"world", GS_FIELD_OBJECT, .fields = world_fields, .help = "How many ranks, and where."},
    {"exact", GS_FIELD_BOOL, AT(exact), .default_value = "false",
     .help = "The same bits for every world size, crash and resume."},
    {"logical_shards", GS_FIELD_INT, AT(logical_shards), RANGE(0, 65536), .default_value = "0",
     .help = "Fixed slices of each batch that are dealt to ranks; 0 is world.max."},
    {"model", GS_FIELD_OBJECT, .fields = model_fields, .required = true,
     .help = "What is trained."},
    {"data", GS_FIELD_OBJECT, .fields = data_fields, .help = "On what."},
    {"optimizer", GS_FIELD_OBJECT, .fields = optimizer_fields,
     .help = "How parameters are updated."},
    {"reducer", GS_FIELD_OBJECT, .fields = reducer_fields, .help = "How gradients are reduced."},
    {"steps", GS_FIELD_OBJECT, .fields = steps_fields, .required = true, .help = "How long."},
    {"checkpoint", GS_FIELD_OBJECT, .fields = checkpoint_fields,
     .help = "What is saved, and when."},
    {"sample", GS_FIELD_OBJECT, .fields = sample_fields,
     .help = "Text that the trained model writes."},
    {"restart", GS_FIELD_OBJECT, .fields = restart_fields, .help = "What a failure leads to."},
    {"debug", GS_FIELD_OBJECT, .fields = debug_fields, .help = "For tests."},
    {0},
};

// Members of the specification's full form that this version does not have yet.
static const char *const later_members[] = {"/world/replicas_per_process",
                                            "/model/gpt2/layer_drop",
                                            "/data/split",
                                            "/data/uneven_inputs",
                                            "/data/join_divisor",
                                            "/optimizer/zero_grad",
                                            "/optimizer/loss_scale",
                                            "/reducer/wire_dtype",
                                            "/reducer/static_graph",
                                            "/reducer/sharding",
                                            "/reducer/partition",
                                            "/reducer/mirror",
                                            "/reducer/zero_overlap",
                                            "/reducer/zero_split_buckets",
                                            "/reducer/hook/rank",
                                            "/reducer/hook/error_feedback",
                                            "/reducer/hook/wrap",
                                            "/checkpoint/keep_every_steps",
                                            "/checkpoint/format",
                                            "/checkpoint/allow_change",
                                            "/restart/rules",
                                            "/tracing",
                                            NULL};

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
    snprintf(spec->name, sizeof spec->name, "%s-%s", models[spec->model.kind], suffix);
}

static void fill_dependent_defaults(gs_job_spec *spec, const gs_json *object) {
    const gs_json *world = gs_json_get(object, "world");
    bool has_min = gs_json_get(world, "min"), has_max = gs_json_get(world, "max");
    if (has_min && !has_max) spec->world.max = spec->world.min;
    if (has_max && !has_min) spec->world.min = spec->world.max;
    if (!spec->logical_shards) spec->logical_shards = spec->world.max;
    if (!spec->data.micro_batch) spec->data.micro_batch = 8;
    if (!spec->data.global_batch)
        spec->data.global_batch = spec->logical_shards * spec->data.micro_batch;
    if (!spec->name[0]) generate_name(spec);
}

// Rules between members speak of values that were given, or of defaults, but not of the default of
// one that was refused. `prefix`: "/world/max", or "/world/" for all of it.
static bool is_sound(const gs_field_errors *errors, const char *prefix) {
    for (int i = 0; i < errors->count && i < GS_MAX_FIELD_ERRORS; i++) {
        if (strncmp(errors->items[i].pointer, prefix, strlen(prefix)) == 0) return false;
    }
    return true;
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

static void check_model(const gs_job_spec *spec, const gs_json *object, gs_field_errors *errors) {
    const gs_json *model = gs_json_get(object, "model");
    bool is_mlp = spec->model.kind == GS_MODEL_MLP;
    const char *other = is_mlp ? "gpt2" : "mlp";
    char pointer[32];
    if (gs_json_get(model, other)) {
        snprintf(pointer, sizeof pointer, "/model/%s", other);
        gs_field_errors_add(errors, pointer, "not_applicable", NULL, "model.kind is %s",
                            models[spec->model.kind]);
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
                            data_kinds[spec->data.kind]);
    }
    if (!is_idx && spec->data.eval_labels[0]) {
        gs_field_errors_add(errors, "/data/eval_labels", "not_applicable", NULL, "data.kind is %s",
                            data_kinds[spec->data.kind]);
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
                                "%s is for model.kind %s", data_kinds[kind], models[wanted]);
        }
        if (spec->data.num_train == 0) {
            gs_field_errors_add(errors, "/data/train", "missing", NULL,
                                "must be given for data of kind %s", data_kinds[kind]);
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

gs_status gs_job_spec_decode(gs_job_spec *spec, const gs_json *object, gs_field_errors *errors) {
    memset(spec, 0, sizeof *spec);
    gs_status status = gs_fields_decode(spec, gs_job_spec_fields, object, errors);
    explain_later_members(errors);
    if (gs_json_type_of(object) != GS_JSON_OBJECT) return status;
    fill_dependent_defaults(spec, object);
    check_world(spec, errors);
    // Nothing can be said about a model or data of a kind that is not known.
    if (is_sound(errors, "/model/kind")) {
        check_model(spec, object, errors);
        if (is_sound(errors, "/data/kind")) check_data(spec, errors);
    }
    check_rest(spec, errors);
    if (errors->count == 0) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT, "%d problem%s found", errors->count,
                    errors->count == 1 ? "" : "s");
}

gs_json *gs_job_spec_encode(const gs_job_spec *spec) {
    gs_json *object = gs_fields_encode(spec, gs_job_spec_fields);
    // The other kind's shape is all defaults, and would be refused if it were sent back.
    gs_json *model = (gs_json *)(uintptr_t)gs_json_get(object, "model");
    gs_json_remove(model, spec->model.kind == GS_MODEL_MLP ? "gpt2" : "mlp");
    return object;
}

int64_t gs_job_spec_passes_per_shard(const gs_job_spec *spec) {
    return spec->data.global_batch / (spec->logical_shards * spec->data.micro_batch);
}
