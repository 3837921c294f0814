// What a user asks for: a job specification as a struct, its field table, its limits.
//
// Rules that look at more than one member (min ≤ max, V ≥ world.max, divisibility, data for the
// model …) are in gs_job_spec_decode; all errors are reported at once. The stored spec is the full
// effective one.
#ifndef RPC_SCHEMA_JOB_SPEC_H
#define RPC_SCHEMA_JOB_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/hook_volume.h"
#include "core/plan_policy.h"
#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/schema/fields.h"
#include "rpc/schema/job_hook.h"

#define GS_SPEC_NAME_LEN 64
#define GS_SPEC_PATTERN_LEN 192
#define GS_SPEC_MAX_PATTERNS 16
#define GS_SPEC_MAX_DIMS 16
#define GS_SPEC_MAX_CAPS 16
#define GS_SPEC_MAX_FREEZES 16
#define GS_SPEC_MAX_VARIABLES 8
#define GS_SPEC_LEAST_MEMORY (64 << 20)
#define GS_SPEC_LEAST_OPEN_FILES 64
// Of the loss scale: fewer than the steps that a job without one may skip in a row.
#define GS_SPEC_MAX_HYSTERESIS 99

enum { GS_MODEL_GPT2 = 0, GS_MODEL_MLP };
enum { GS_BATCH_NORM_LOCAL = 0, GS_BATCH_NORM_NONE, GS_BATCH_NORM_SYNC };
enum { GS_PRECISION_FP32 = 0, GS_PRECISION_BF16, GS_PRECISION_FP16, GS_PRECISION_TF32 };
enum { GS_SPEC_DEVICE_AUTO = 0, GS_SPEC_DEVICE_CPU, GS_SPEC_DEVICE_CUDA };
enum { GS_SPLIT_GLOBAL = 0, GS_SPLIT_BY_RANK };
enum { GS_UNEVEN_EVEN = 0, GS_UNEVEN_JOIN, GS_UNEVEN_STOP };
enum { GS_JOIN_INITIAL = 0, GS_JOIN_ACTIVE };
enum { GS_ZERO_GRAD_UNDEFINED = 0, GS_ZERO_GRAD_ZERO };
enum { GS_DATA_SYNTHETIC = 0, GS_DATA_BYTES, GS_DATA_TOKEN_SHARDS, GS_DATA_IDX };
enum { GS_OPTIMIZER_ADAMW = 0, GS_OPTIMIZER_ADAM, GS_OPTIMIZER_SGD };
enum { GS_SCHEDULE_CONSTANT = 0, GS_SCHEDULE_LINEAR, GS_SCHEDULE_COSINE };
enum { GS_PLAN_PARITY = 0, GS_PLAN_AUTO, GS_PLAN_OWNER };
enum { GS_REDUCER_MEAN = 0, GS_REDUCER_SUM, GS_REDUCER_SAMPLE_MEAN };
enum { GS_WIRE_FP32 = 0, GS_WIRE_BF16, GS_WIRE_FP16 };
enum { GS_SMALL_BUCKET_FIRST = 0, GS_SMALL_BUCKET_LAST };
enum { GS_SPARSE_OFF = 0, GS_SPARSE_GATHER, GS_SPARSE_OWNER, GS_SPARSE_AUTO };
enum { GS_DIVISOR_REPLICAS = 0, GS_DIVISOR_PROCESSES };
enum { GS_SPEC_BUFFERS_BROADCAST = 0, GS_SPEC_BUFFERS_NONE, GS_SPEC_BUFFERS_AVERAGE };
enum { GS_BACKEND_AUTO = 0, GS_BACKEND_SELF, GS_BACKEND_SHM, GS_BACKEND_NET, GS_BACKEND_NCCL };
enum { GS_RESUME_LATEST = 0, GS_RESUME_NONE };
enum { GS_CHECKPOINT_PARTS_ONE = 0, GS_CHECKPOINT_PARTS_RANKS };
enum { GS_ON_RESCALE = 0, GS_ON_RESTART, GS_ON_FAIL };
enum { GS_UNUSED_ALLOW = 0, GS_UNUSED_ERROR };
enum { GS_SHARDING_NONE = 0, GS_SHARDING_OPTIMIZER, GS_SHARDING_GRADIENTS };
enum { GS_SHARD_FLAT = 0, GS_SHARD_OSS, GS_SHARD_ZERO };
enum { GS_ZERO_OVERLAP_OFF = 0, GS_ZERO_OVERLAP_STEP, GS_ZERO_OVERLAP_INTERLEAVED };

typedef struct gs_job_label {
    char key[GS_SPEC_NAME_LEN], value[GS_SPEC_NAME_LEN];
} gs_job_label;

// Of the environment of its ranks (job_environment.h): a value, or the name of a secret.
typedef struct gs_job_variable {
    char name[GS_SPEC_NAME_LEN], value[128], secret[GS_SPEC_NAME_LEN];
} gs_job_variable;

// Parameters that do not train in steps [from_step, until_step) (job_freeze.h).
typedef struct gs_job_freeze {
    char params[GS_SPEC_NAME_LEN];  // "*.bias"
    int64_t from_step, until_step;  // until 0: for ever
} gs_job_freeze;

typedef struct gs_job_spec {
    char name[GS_SPEC_NAME_LEN];  // "" in a request: generated
    gs_job_label labels[16];
    int num_labels;
    struct {
        int64_t min, max;  // ranks; 1 ≤ min ≤ max
        double join_window_seconds, wait_seconds;
        int device;  // GS_SPEC_DEVICE_…
        int64_t threads_per_rank, replicas_per_process;
    } world;
    bool exact;
    int64_t logical_shards;  // 0 in a request: world.max
    struct {
        int kind;
        struct {
            int64_t layers, heads, channels, context, vocab;
            double layer_drop;  // probability that a shard skips a layer in a step
        } gpt2;
        struct {
            int64_t dims[GS_SPEC_MAX_DIMS];
            int num_dims;
            int batch_norm;
        } mlp;
        int precision;
        int64_t seed;
        char init_from[GS_SPEC_PATTERN_LEN];
        gs_job_freeze freeze[GS_SPEC_MAX_FREEZES];
        int num_freezes;
    } model;
    struct {
        int kind;
        char train[GS_SPEC_MAX_PATTERNS][GS_SPEC_PATTERN_LEN];
        int num_train;
        char eval[GS_SPEC_MAX_PATTERNS][GS_SPEC_PATTERN_LEN];
        int num_eval;
        char train_labels[GS_SPEC_PATTERN_LEN], eval_labels[GS_SPEC_PATTERN_LEN];
        int64_t global_batch, micro_batch;  // samples; 0 in a request: V · micro_batch, 8
        int64_t shuffle_seed;
        int64_t eval_every_steps, eval_batches;
        int split, uneven_inputs, join_divisor;
    } data;
    struct {
        int kind;
        double lr, beta1, beta2, eps, momentum, weight_decay, grad_clip_norm;  // clip 0: off
        bool nesterov, in_backward, offload;
        int zero_grad;  // what a parameter that nobody used has
        struct {
            double init, growth_factor, backoff_factor, min;
            int64_t growth_interval, hysteresis;
        } loss_scale;  // precision fp16 only
        struct {
            int kind;
            int64_t warmup_steps;
            double final_ratio;
        } schedule;
    } optimizer;
    struct {
        int plan;
        int64_t first_bucket_bytes;  // 0: none, the caps alone
        int64_t bucket_cap_bytes[GS_SPEC_MAX_CAPS];
        int num_bucket_caps;
        int64_t max_buckets;  // 0: any number
        int small_bucket;
        int64_t rebuild_after_steps;  // 0: never
        gs_job_hook hook;
        int op, buffers, backend, unused_parameters, wire_dtype, sparse_embedding, replica_divisor;
        int sharding, partition, zero_overlap;  // GS_SHARDING_…, GS_SHARD_…, GS_ZERO_OVERLAP_…
        bool zero_split_buckets, static_graph;
        int64_t check_replicas_every_steps;  // 0: never
        double timeout_seconds;              // of a collective: who does not come is named after it
    } reducer;
    struct {
        int64_t target;
        double deadline_seconds;  // 0: none
    } steps;
    struct {
        int64_t every_steps, keep_last;  // every_steps 0: by the clock
        double every_seconds;            // where every_steps is 0; 0: only at the end and on stop
        bool on_stop;
        int resume, parts;
    } checkpoint;
    struct {
        int64_t tokens;  // 0: no sample at the end
        char prompt[256];
        double temperature;
    } sample;
    struct {
        int on_worker_lost, on_worker_error;
        int64_t max_restarts, healthy_after_steps;
        double window_seconds, backoff_initial_seconds, backoff_max_seconds;
    } restart;
    struct {
        int64_t memory_bytes, open_files;  // of each rank; 0: what its worker allows
    } limits;
    gs_job_variable environment[GS_SPEC_MAX_VARIABLES];
    int num_variables;
    struct {
        int64_t ring_steps;  // kept by each rank for timelines
    } tracing;
    struct {
        int64_t
            step_delay_ms;  // for demonstrations and tests of faults: sleep in each step; default 0
    } debug;
} gs_job_spec;

extern const gs_field gs_job_spec_fields[];

// Decodes, fills defaults that depend on others, checks everything. INVALID_ARGUMENT: see errors.
GS_NODISCARD gs_status gs_job_spec_decode(gs_job_spec *spec, const gs_json *object,
                                          gs_field_errors *errors);
// Of a stored job: limits and rules between members are those of the version that accepted it. INVALID_ARGUMENT: it
// cannot be held.
GS_NODISCARD gs_status gs_job_spec_decode_stored(gs_job_spec *spec, const gs_json *object, gs_field_errors *errors);
gs_json *gs_job_spec_encode(const gs_job_spec *spec);
// Of gs_job_spec_decode: what sharding goes together with (job_sharding.c).
void gs_job_spec_check_sharding(const gs_job_spec *spec, gs_field_errors *errors);
// What is frozen when (job_freeze.c).
void gs_job_spec_check_freeze(const gs_job_spec *spec, gs_field_errors *errors);
// Which variables its ranks may be given (job_environment.c).
void gs_job_spec_check_environment(const gs_job_spec *spec, gs_field_errors *errors);

// Micro-batches that a logical shard runs one after the other in a step.
int64_t gs_job_spec_passes_per_shard(const gs_job_spec *spec);
// Rows of the largest pass that a rank may run.
int64_t gs_job_spec_most_rows(const gs_job_spec *spec);
// How its parameters become buckets.
gs_plan_policy gs_job_spec_plan_policy(const gs_job_spec *spec);
// How they travel among world.max ranks.
gs_hook_rule gs_job_spec_hook_rule(const gs_job_spec *spec);
// The same for people: "powersgd", "powersgd+fp16" with a wrapper.
void gs_job_spec_hook_name(char *text, size_t text_bytes, const gs_job_spec *spec);

// Whether the job can run on GPUs alone, whether it may. Between the two (world.device auto) the
// coordinator decides by what workers offer.
bool gs_job_spec_needs_gpu(const gs_job_spec *spec);
bool gs_job_spec_may_use_gpu(const gs_job_spec *spec);

#endif
