// Kind zero-train: training under ZeroRedundancyOptimizer with overlap_with_ddp. Real processes
// deal the recorded buckets to ranks, whole or split; owners update while other buckets are on
// their way, behind the passes ("step") and within backward ("interleaved"). When all buckets are
// reduced and nothing is sent yet, each rank has updated what it owns and nothing else; after a
// step every rank has all parameters of the trace.
//
// The original's first steps update nothing; ours starts where its updates do.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/overlap_assignment.h"
#include "core/strbuf.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/replica.h"
#include "tests/conformance/training.h"
#include "worker/models/registry.h"

#define FILE_SECONDS 100.0
#define MAX_DIMS 16

static const tolerance allowed = {.relative = 2e-5, .floor = 1e-3};

typedef struct zero_trace {
    const gs_safetensors *file;
    int64_t dims[MAX_DIMS];
    int num_dims, world_size;
    size_t first_step, steps, rows;
    char names[REPLICA_MAX_PARAMS][64];
    size_t num_params;
    gs_bucket_plan plan;
    int owners[REPLICA_MAX_PARAMS];
} zero_trace;

// "7,6;4,5,3": numbers, and where ';' stands a bucket ends.
static gs_status read_buckets(zero_trace *self) {
    const char *text = gs_safetensors_metadata(self->file, "buckets");
    gs_bucket_plan *plan = &self->plan;
    plan->buckets = calloc(REPLICA_MAX_PARAMS, sizeof *plan->buckets);
    plan->params = calloc(REPLICA_MAX_PARAMS, sizeof *plan->params);
    if (!text || !plan->buckets || !plan->params)
        return gs_error(GS_INVALID_ARGUMENT, "no buckets");
    for (char *end; *text && plan->num_params < REPLICA_MAX_PARAMS; text = *end ? end + 1 : end) {
        bool begins = plan->num_params == 0 || text[-1] == ';';
        if (begins)
            plan->buckets[plan->num_buckets++] =
                (gs_plan_bucket){.dtype = GS_FP32, .first = plan->num_params};
        plan->params[plan->num_params++] = strtoul(text, &end, 10);
        plan->buckets[plan->num_buckets - 1].num_params++;
        if (end == text || plan->params[plan->num_params - 1] >= self->num_params)
            return gs_error(GS_INVALID_ARGUMENT, "buckets: \"%.40s\"", text);
    }
    return gs_ok();
}

static void read_names(zero_trace *self) {
    const char *text = gs_safetensors_metadata(self->file, "param_order");
    while (text && *text && self->num_params < REPLICA_MAX_PARAMS) {
        int length = (int)strcspn(text, ",");
        snprintf(self->names[self->num_params++], sizeof self->names[0], "%.*s", length, text);
        text += length + (text[length] == ',');
    }
}

static gs_status read_trace(zero_trace *self, const gs_safetensors *file) {
    *self = (zero_trace){.file = file};
    self->world_size = (int)vector_number(file, "world");
    self->first_step = (size_t)vector_number(file, "steps_without_update");
    self->steps = (size_t)vector_number(file, "steps");
    self->rows = (size_t)vector_number(file, "batch");
    const char *dims = gs_safetensors_metadata(file, "dims");
    for (char *end; dims && *dims && self->num_dims < MAX_DIMS; dims = *end ? end + 1 : end)
        self->dims[self->num_dims++] = strtol(dims, &end, 10);
    read_names(self);
    if (self->num_dims < 2 || self->world_size < 1 || self->rows < 1 ||
        self->first_step >= self->steps)
        return gs_error(GS_INVALID_ARGUMENT, "not a trace of ZeRO overlap");
    return read_buckets(self);
}

static gs_status make_model(void *ctx, gs_model *model, gs_device *device) {
    const zero_trace *self = ctx;
    gs_mlp_options options = {
        .dims = self->dims, .num_dims = self->num_dims, .micro_batch = (int64_t)self->rows};
    return gs_mlp_create(model, &options, device);
}

static bool splits_buckets(const zero_trace *self) {
    return vector_number(self->file, "shard_buckets") != 0;
}

// Who has to update what, whatever the replica makes of it.
static gs_status assign_owners(zero_trace *self, const replica *rank) {
    const gs_bucket_plan *plan = &self->plan;
    gs_overlap_assignment dealt = {0};
    size_t counts[REPLICA_MAX_PARAMS];
    for (size_t i = 0; i < rank->num_params; i++) counts[i] = gs_param_spec_count(&rank->specs[i]);
    GS_TRY(gs_overlap_assign(&dealt, plan, counts, self->world_size, splits_buckets(self)));
    for (size_t r = 0; r < dealt.num_runs; r++) {
        const gs_overlap_run *run = &dealt.runs[r];
        const size_t *members = plan->params + plan->buckets[run->bucket].first + run->first;
        for (size_t i = 0; i < run->num_params; i++) self->owners[members[i]] = run->rank;
    }
    gs_overlap_assignment_release(&dealt);
    return gs_ok();
}

static gs_status load_start(replica *rank, const zero_trace *self) {
    if (rank->num_params != self->num_params)
        return gs_error(GS_INVALID_ARGUMENT, "%zu parameters, the model has %zu", self->num_params,
                        rank->num_params);
    for (size_t i = 0; i < rank->num_params; i++) {
        size_t bytes = gs_param_spec_bytes(&rank->specs[i]);
        float *values = malloc(bytes);
        if (!values) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
        gs_status status =
            vector_slice(values, bytes, self->file, "param.", self->names[i], self->first_step);
        if (!status.code) status = replica_write(rank, rank->params[i], values, bytes);
        free(values);
        GS_TRY(status);
    }
    return gs_ok();
}

static gs_status compare_param(const replica *rank, const zero_trace *self, size_t param,
                               size_t at) {
    const char *name = self->names[param];
    size_t bytes = gs_param_spec_bytes(&rank->specs[param]), count = bytes / sizeof(float);
    float *wanted = malloc(2 * bytes), *got = wanted + count;
    if (!wanted) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = vector_slice(wanted, bytes, self->file, "param.", name, at);
    if (!status.code) status = replica_read(rank, got, rank->params[param], bytes);
    if (!status.code) status = compare_floats(name, got, wanted, count, allowed);
    free(wanted);
    return status;
}

// Own parameters are a step ahead.
static gs_status compare_reduced(void *ctx, replica *rank) {
    const zero_trace *self = ctx;
    size_t step = self->first_step + (size_t)rank->step;
    for (size_t i = 0; i < rank->num_params; i++) {
        bool is_own = self->owners[i] == rank->rank;
        GS_TRY(gs_status_prefix(compare_param(rank, self, i, step + is_own),
                                is_own ? "all reduced, own" : "all reduced, another's"));
    }
    return gs_ok();
}

static gs_status compare_params(const replica *rank, const zero_trace *self, size_t at) {
    for (size_t i = 0; i < rank->num_params; i++) GS_TRY(compare_param(rank, self, i, at));
    return gs_ok();
}

static gs_status run_step(replica *rank, zero_trace *self, float *features, int32_t *labels,
                          size_t step) {
    size_t row_features = (size_t)self->dims[0];
    size_t at = step * (size_t)self->world_size + (size_t)rank->rank;
    GS_TRY(vector_slice(features, self->rows * row_features * sizeof *features, self->file, "",
                        "input", at));
    GS_TRY(vector_slice(labels, self->rows * sizeof *labels, self->file, "", "label", at));
    const gs_batch batch = {.rows = self->rows,
                            .positions = 1,
                            .row_features = row_features,
                            .features = features,
                            .targets = labels};
    GS_TRY(replica_step(rank, &batch, (float)vector_number(self->file, "lr"), 0.0, compare_reduced,
                        self));
    // Every other one of interleaved steps is left alone, so that the next begins with parameters
    // on their way.
    bool interleaved = rank->shards.overlap == REPLICA_OVERLAP_INTERLEAVED;
    if (interleaved && step % 2 && step + 1 < self->steps) return gs_ok();
    GS_TRY(replica_await(rank));
    return compare_params(rank, self, step + 1);
}

static gs_status run_trace(replica *rank, zero_trace *self) {
    float *features = calloc(self->rows * (size_t)self->dims[0], sizeof *features);
    int32_t *labels = calloc(self->rows, sizeof *labels);
    gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    if (features && labels) status = load_start(rank, self);
    if (!status.code) status = assign_owners(self, rank);
    if (!status.code) status = replica_share(rank);
    for (size_t step = self->first_step; step < self->steps && !status.code; step++)
        status = gs_status_prefix(run_step(rank, self, features, labels, step), "step %zu", step);
    free(features);
    free(labels);
    return status;
}

static gs_status train(const gs_rank_env *env, zero_trace *self, replica_overlap overlap) {
    const replica_shards_options sharded = {.overlap = overlap,
                                            .split_buckets = splits_buckets(self)};
    const replica_options options = {.env = env,
                                     .passes_per_shard = 1,
                                     .optimizer = vector_optimizer(self->file),
                                     .decay_all = true,
                                     .plan = &self->plan,
                                     .sharded = &sharded};
    replica rank;
    GS_TRY(replica_open(&rank, &options, make_model, self));
    gs_status status = run_trace(&rank, self);
    replica_close(&rank);
    return status;
}

// arg: "step FILE", "interleaved FILE"
gs_status conformance_zero_train_rank(const gs_rank_env *env) {
    bool interleaved = strncmp(env->arg, "interleaved ", 12) == 0;
    gs_safetensors *file;
    zero_trace self;
    GS_TRY(gs_safetensors_load(&file, strchr(env->arg, ' ') + 1));
    gs_status status = read_trace(&self, file);
    if (!status.code)
        status =
            train(env, &self, interleaved ? REPLICA_OVERLAP_INTERLEAVED : REPLICA_OVERLAP_STEP);
    gs_bucket_plan_release(&self.plan);
    gs_safetensors_close(file);
    return status;
}

static gs_status check_file(conformance *run, const char *path) {
    static const char *const ways[] = {"step", "interleaved"};
    gs_safetensors *file;
    GS_TRY(gs_safetensors_load(&file, path));
    int world_size = (int)vector_number(file, "world");
    gs_safetensors_close(file);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; i < 2; i++) {
        gs_strbuf arg = {0}, label = {0};
        gs_strbuf_printf(&arg, "%s %s", ways[i], path);
        gs_strbuf_printf(&label, "%s %s", name, ways[i]);
        if (world_size < 1)
            conformance_fail(run, gs_strbuf_text(&label), "says no world");
        else
            conformance_case(run, gs_strbuf_text(&label),
                             gs_ranks_run("zero-train", world_size, gs_strbuf_text(&arg),
                                          conformance_deadline(FILE_SECONDS)));
        gs_strbuf_release(&arg);
        gs_strbuf_release(&label);
    }
    return gs_ok();
}

gs_status conformance_zero_train(conformance *run, char **args, int num_args) {
    for (int i = 0; i < num_args; i++) GS_TRY(check_file(run, args[i]));
    return gs_ok();
}
