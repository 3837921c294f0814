// The field table of a job specification. Rules between members are in job_spec.c.
#include "rpc/schema/job_environment.h"
#include "rpc/schema/job_freeze.h"
#include "rpc/schema/job_spec.h"
#include "rpc/schema/job_words.h"

#define NAME_PATTERN "^[a-z][a-z0-9-]{0,62}$"
// Names below the data root: never absolute, no "..", nothing hidden.
#define FILE_PATTERN "^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$"
#define GLOB_PATTERN "^[A-Za-z0-9_*-][A-Za-z0-9._*-]*(/[A-Za-z0-9_*-][A-Za-z0-9._*-]*)*$"
#define LABEL_PATTERN "^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$"
#define EXACT_IN_JAVASCRIPT 9007199254740991.0  // 2^53 - 1

static const char *const devices[] = {"auto", "cpu", "cuda", NULL};
const char *const gs_model_words[] = {"gpt2", "mlp", NULL};
static const char *const later_models[] = {"plugin", "command", NULL};
const char *const gs_batch_norm_words[] = {"local", "none", "sync", NULL};
static const char *const precisions[] = {"fp32", "bf16", "fp16", "tf32", NULL};
static const char *const splits[] = {"global", "by_rank", NULL};
const char *const gs_uneven_words[] = {"even", "join", "stop", NULL};
static const char *const join_divisors[] = {"initial", "active", NULL};
static const char *const zero_grads[] = {"undefined", "zero", NULL};
static const char *const wire_dtypes[] = {"fp32", "bf16", "fp16", NULL};
static const char *const shardings[] = {"none", "optimizer", "gradients", NULL};
static const char *const shard_partitions[] = {"flat", "oss", "zero", NULL};
static const char *const zero_overlaps[] = {"off", "step", "interleaved", NULL};
static const char *const small_buckets[] = {"first", "last", NULL};
static const char *const sparse_modes[] = {"off", "gather", "owner", "auto", NULL};
static const char *const replica_divisors[] = {"replicas", "processes", NULL};
const char *const gs_data_words[] = {"synthetic", "bytes", "token_shards", "idx", NULL};
static const char *const later_data_kinds[] = {"plugin", NULL};
static const char *const optimizers[] = {"adamw", "adam", "sgd", NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", NULL};
static const char *const later_schedules[] = {"wsd", "step", NULL};
static const char *const plans[] = {"parity", "auto", "owner", NULL};
static const char *const reduce_ops[] = {"mean", "sum", "sample_mean", NULL};
const char *const gs_buffer_words[] = {"broadcast", "none", "average", NULL};
static const char *const backend_synonyms[] = {"gloo", "net", NULL};
static const char *const backends[] = {"auto", "self", "shm", "net", "nccl", NULL};
static const char *const unused_modes[] = {"allow", "error", NULL};
static const char *const resume_modes[] = {"latest", "none", NULL};
static const char *const checkpoint_parts[] = {"one", "ranks", NULL};
static const char *const restart_actions[] = {"rescale", "restart", "fail", NULL};

// All offsets are from the start of gs_job_spec, so an object's own offset is 0; but for the hook, whose table is of
// its own struct.
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
    {"device", WORDS(devices), AT(world.device), .default_value = "\"auto\"",
     .help = "Where ranks compute; auto takes GPUs when workers offer enough of them for world.min, never for exact jobs."},
    {"threads_per_rank", GS_FIELD_INT, AT(world.threads_per_rank), RANGE(0, 1024),
     .default_value = "0",
     .help = "Compute threads of a rank; 0 is the agent's cores divided by its slots."},
    {"replicas_per_process", GS_FIELD_INT, AT(world.replicas_per_process), RANGE(1, 64),
     .default_value = "1",
     .help = "Replicas that one rank owns, each with memory and a compute thread; it reduces over them first."},
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
    {"layer_drop", GS_FIELD_DOUBLE, AT(model.gpt2.layer_drop), RANGE(0, 0.95),
     .default_value = "0", .help = "Stochastic depth: probability that a shard skips a layer in a step."},
    {0},
};

static const gs_field mlp_fields[] = {
    {"dims", GS_FIELD_INTS, AT(model.mlp.dims), .capacity = GS_SPEC_MAX_DIMS,
     .element_bytes = sizeof(int64_t), .count_offset = offsetof(gs_job_spec, model.mlp.num_dims),
     RANGE(1, 1048576), .default_value = "[784,256,128,10]",
     .help = "Inputs, hidden layers, classes."},
    {"batch_norm", WORDS(gs_batch_norm_words), AT(model.mlp.batch_norm),
     .default_value = "\"local\"", .help = "Batch normalisation after hidden layers."},
    {0},
};

static const gs_field model_fields[] = {
    {"kind", WORDS(gs_model_words), AT(model.kind), .later_words = later_models, .required = true,
     .help = "The model."},
    {"gpt2", GS_FIELD_OBJECT, .fields = gpt2_fields, .help = "Shape of a gpt2 model."},
    {"mlp", GS_FIELD_OBJECT, .fields = mlp_fields, .help = "Shape of an mlp model."},
    {"precision", WORDS(precisions), AT(model.precision),
     .default_value = "\"fp32\"",
     .help = "Type of parameters and of arithmetic on GPUs; masters and sums are fp32, and so is CPU arithmetic; tf32 is fp32 with products on tensor cores."},
    {"seed", GS_FIELD_INT, AT(model.seed), RANGE(0, EXACT_IN_JAVASCRIPT), .default_value = "1337",
     .help = "Seed of the initial parameters and of everything random in training."},
    {"init_from", GS_FIELD_STRING, TEXT(model.init_from), .pattern = FILE_PATTERN,
     .help = "A safetensors or llm.c model file below the data root; empty draws from the seed."},
    {"freeze", GS_FIELD_OBJECTS, AT(model.freeze), .capacity = GS_SPEC_MAX_FREEZES,
     .element_bytes = sizeof(gs_job_freeze), .count_offset = offsetof(gs_job_spec, model.num_freezes),
     .fields = gs_job_freeze_fields,
     .help = "Parameters that do not train for some steps: no gradient, no update, no decay; their optimizer state waits."},
    {0},
};

static const gs_field data_fields[] = {
    {"kind", WORDS(gs_data_words), AT(data.kind), .later_words = later_data_kinds,
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
    {"split", WORDS(splits), AT(data.split), .default_value = "\"global\"",
     .help = "global: each batch is dealt to the ranks; by_rank: each rank reads its own part."},
    {"uneven_inputs", WORDS(gs_uneven_words), AT(data.uneven_inputs), .default_value = "\"even\"",
     .help = "When a rank of split by_rank runs out: cut to the shortest, shadow the others, or stop all."},
    {"join_divisor", WORDS(join_divisors), AT(data.join_divisor), .default_value = "\"initial\"",
     .help = "With uneven_inputs join a mean is over all ranks, or over those that have data."},
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

static const gs_field loss_scale_fields[] = {
    {"init", GS_FIELD_DOUBLE, AT(optimizer.loss_scale.init), RANGE(1e-30, 1e38),
     .default_value = "65536", .help = "Scale of the first step."},
    {"growth_factor", GS_FIELD_DOUBLE, AT(optimizer.loss_scale.growth_factor), RANGE(1, 1e6),
     .default_value = "2", .help = "Factor after growth_interval steps without overflow."},
    {"backoff_factor", GS_FIELD_DOUBLE, AT(optimizer.loss_scale.backoff_factor), RANGE(1e-6, 1),
     .default_value = "0.5", .help = "Factor after a step with overflow, which is skipped."},
    {"growth_interval", GS_FIELD_INT, AT(optimizer.loss_scale.growth_interval), RANGE(1, 1e12),
     .default_value = "2000", .help = "Steps without overflow before the scale grows."},
    {"hysteresis", GS_FIELD_INT, AT(optimizer.loss_scale.hysteresis),
     RANGE(1, GS_SPEC_MAX_HYSTERESIS), .default_value = "1",
     .help =
         "The overflow after a growth from which on the scale falls; those before are forgiven."},
    {"min", GS_FIELD_DOUBLE, AT(optimizer.loss_scale.min), RANGE(0, 1e38), .default_value = "0",
     .help = "The scale falls no further; at most init."},
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
    {"zero_grad", WORDS(zero_grads), AT(optimizer.zero_grad), .default_value = "\"undefined\"",
     .help = "What a parameter that nobody used has: no gradient (skipped), or zero (momentum and decay go on)."},
    {"in_backward", GS_FIELD_BOOL, AT(optimizer.in_backward), .default_value = "false",
     .help = "Update each bucket's parameters as soon as it is reduced, while others travel. Without clipping; takes the "
             "memory of parameters and state once more. On CPUs at the end of the step where no core is to spare, and the log "
             "of a rank says so."},
    {"offload", GS_FIELD_BOOL, AT(optimizer.offload), .default_value = "false",
     .help = "On GPUs: keep the optimizer's state in the host's memory, and update there. Elsewhere it has no effect."},
    {"loss_scale", GS_FIELD_OBJECT, .fields = loss_scale_fields,
     .help = "Dynamic loss scale; precision fp16 only."},
    {"schedule", GS_FIELD_OBJECT, .fields = schedule_fields,
     .help = "The learning rate over the steps."},
    {0},
};

static const gs_field reducer_fields[] = {
    {"plan", WORDS(plans), AT(reducer.plan), .default_value = "\"auto\"",
     .help = "auto: small buckets that stay in cache where ranks share memory, between hosts what the measured link asks for, on "
             "GPUs the caps; parity: by size and caps as in PyTorch, the default where caps are given, with sharding, and with "
             "hooks that make something of a bucket as a whole; owner: with reducer.partition "
             "oss or zero, small tensors of an owner in one bucket of at most bucket_cap_bytes, large ones alone."},
    {"first_bucket_bytes", GS_FIELD_INT, AT(reducer.first_bucket_bytes), RANGE(0, 1e12),
     .default_value = "1048576",
     .help = "Small cap of the first bucket; 0 is none, and so is caps without it."},
    {"bucket_cap_bytes", GS_FIELD_INTS, AT(reducer.bucket_cap_bytes), .capacity = GS_SPEC_MAX_CAPS,
     .element_bytes = sizeof(int64_t), .count_offset = offsetof(gs_job_spec, reducer.num_bucket_caps),
     RANGE(1, 1e12), .default_value = "[26214400]",
     .help = "Cap of the others in a parity plan; a list is used one after the other, the last repeats."},
    {"max_buckets", GS_FIELD_INT, AT(reducer.max_buckets), RANGE(0, 1e6), .default_value = "0",
     .help = "Most buckets of a plan, caps grow until they fit; 0 is any number."},
    {"small_bucket", WORDS(small_buckets), AT(reducer.small_bucket), .default_value = "\"first\"",
     .help = "Where the first cap applies in a rebuilt plan."},
    {"rebuild_after_steps", GS_FIELD_INT, AT(reducer.rebuild_after_steps), RANGE(0, 1e12),
     .default_value = "1",
     .help = "Steps before buckets follow the order in which gradients came; 0 is only when asked to."},
    {"hook", GS_FIELD_OBJECT, AT(reducer.hook), .fields = gs_job_hook_fields,
     .help = "The communication hook."},
    {"op", WORDS(reduce_ops), AT(reducer.op),
     .default_value = "\"mean\"", .help = "What a reduced gradient is."},
    {"buffers", WORDS(gs_buffer_words), AT(reducer.buffers),
     .default_value = "\"broadcast\"", .help = "Statistics of batch normalisation and the like."},
    {"backend", WORDS(backends), AT(reducer.backend), .synonyms = backend_synonyms,
     .default_value = "\"auto\"", .help = "What collectives run over: self one rank, shm the memory of a host, net TCP between hosts (where others say "
             "gloo), nccl GPUs; auto picks and says why."},
    {"unused_parameters", WORDS(unused_modes), AT(reducer.unused_parameters),
     .default_value = "\"allow\"",
     .help = "error: a step that leaves parameters unused fails and names them."},
    {"wire_dtype", WORDS(wire_dtypes), AT(reducer.wire_dtype), .default_value = "\"fp32\"",
     .help = "Type of gradients on their way between ranks; sums are fp32. Short for hook kinds fp16 and bf16."},
    {"sharding", WORDS(shardings), AT(reducer.sharding), .default_value = "\"none\"",
     .help = "What each rank keeps only its part of: optimizer state, or reduced gradients too. Gradients are reduced to "
             "their owner, which updates; then parameters are gathered."},
    {"partition", WORDS(shard_partitions), AT(reducer.partition), .default_value = "\"flat\"",
     .help = "With sharding. flat: each bucket in equal parts, tensors may straddle; oss, zero: whole tensors, in registration "
             "order to whoever has least, or the largest first."},
    {"zero_overlap", WORDS(zero_overlaps), AT(reducer.zero_overlap), .default_value = "\"off\"",
     .help = "With sharding. Buckets are dealt to ranks whole, and an owner updates while others are reduced: behind the "
             "last gradient (step) or as each bucket is reduced (interleaved). With clipping, or on CPUs without a core to "
             "spare, at the end of the step, and the log of a rank says so."},
    {"zero_split_buckets", GS_FIELD_BOOL, AT(reducer.zero_split_buckets), .default_value = "false",
     .help = "With zero_overlap: a bucket may have several owners, so that ranks have about equal parts."},
    {"static_graph", GS_FIELD_BOOL, AT(reducer.static_graph), .default_value = "false",
     .help = "The promise that every step uses the same parameters."},
    {"sparse_embedding", WORDS(sparse_modes), AT(reducer.sparse_embedding), .default_value = "\"off\"",
     .help = "gpt2: rows of the token embedding travel apart, to all or by the owner of each row; the dense half goes "
             "early. For slow links: no gain to speak of within one host."},
    {"replica_divisor", WORDS(replica_divisors), AT(reducer.replica_divisor), .default_value = "\"replicas\"",
     .help = "A mean with replicas_per_process is over all replicas, or over processes."},
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
     .help = "Steps between checkpoints; 0 is by the clock."},
    {"every_seconds", GS_FIELD_DOUBLE, AT(checkpoint.every_seconds), RANGE(0, 31536000),
     .default_value = "300",
     .help = "Seconds between checkpoints where every_steps is 0, the first ones sooner; 0 is only at the end and on stop."},
    {"keep_last", GS_FIELD_INT, AT(checkpoint.keep_last), RANGE(1, 1000), .default_value = "3",
     .help = "How many are kept."},
    {"on_stop", GS_FIELD_BOOL, AT(checkpoint.on_stop), .default_value = "true",
     .help = "Write one when the job is stopped gracefully."},
    {"resume", WORDS(resume_modes), AT(checkpoint.resume), .default_value = "\"latest\"",
     .help = "What a restart starts from."},
    {"parts", WORDS(checkpoint_parts), AT(checkpoint.parts), .default_value = "\"one\"",
     .help = "one: rank 0 writes all of it. ranks: each rank writes an equal part."},
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
     .help = "Restarts within window_seconds, after runs that got no further than those before, until the job fails."},
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

static const gs_field limits_fields[] = {
    {"memory_bytes", GS_FIELD_INT, AT(limits.memory_bytes), RANGE(0, 1e15), .default_value = "0",
     .help = "Memory that a rank may take, 64 MiB or more; at most what its worker gives a slot, which is what 0 stands for."},
    {"open_files", GS_FIELD_INT, AT(limits.open_files), RANGE(0, 1e9), .default_value = "0",
     .help = "Descriptors that a rank may have open, 64 or more; at most what its worker gives a slot, which is what 0 stands for."},
    {0},
};

static const gs_field tracing_fields[] = {
    {"ring_steps", GS_FIELD_INT, AT(tracing.ring_steps), RANGE(1, 1024), .default_value = "64",
     .help = "Steps that each rank keeps for timelines."},
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
    {"limits", GS_FIELD_OBJECT, .fields = limits_fields, .help = "What a rank may take of its host."},
    {"environment", GS_FIELD_OBJECTS, AT(environment), .capacity = GS_SPEC_MAX_VARIABLES,
     .element_bytes = sizeof(gs_job_variable), .count_offset = offsetof(gs_job_spec, num_variables),
     .fields = gs_job_variable_fields,
     .help = "Variables of the ranks; a secret is named here, and its value is known to their worker alone."},
    {"tracing", GS_FIELD_OBJECT, .fields = tracing_fields, .help = "What is recorded of each step."},
    {"debug", GS_FIELD_OBJECT, .fields = debug_fields, .help = "For tests."},
    {0},
};
