// Kind train-mlp: traces of PyTorch's DistributedDataParallel on an MLP with batch norm, or on the
// model branches, of which ranks leave parts unused; with inputs that may end earlier on some
// ranks. Real processes train with the product's parts and compare every step: losses, averaged
// gradients and which of them exist, parameters, and each rank's own buffers.
//
// --sharded: the same training with gradients and optimizer state sharded, cut evenly ("flat") and
// by the owners that fairscale's OSS chose ("owners"), on the files that have its end.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/strbuf.h"
#include "tests/conformance/branches.h"
#include "tests/conformance/conformance.h"
#include "tests/conformance/replica.h"
#include "tests/conformance/training.h"
#include "worker/models/registry.h"

#define FILE_SECONDS 100.0
#define MAX_PASSES 16
#define MAX_DIMS 8

static const tolerance loose = {.relative = 1e-4, .floor = 1e-3};   // loss, grad, buffer
static const tolerance strict = {.relative = 2e-5, .floor = 1e-3};  // param

typedef struct trace {
    const gs_safetensors *file;
    int64_t dims[MAX_DIMS];
    int num_dims;
    int world_size, steps, accumulate;
    size_t rows;
    bool has_branches;       // the model is branches
    const int32_t *used;     // (steps, ranks, 2); NULL: everything
    const int32_t *defined;  // (steps, parameters): the gradient exists; NULL: always
    const int32_t *batches;  // of each rank; NULL: one in every step
    bool sharded;            // state and gradients; the file has how that ended
    int32_t used_now[2];     // of this rank in this step
} trace;

static bool is_active(const trace *self, const replica *rank, int64_t step) {
    return !self->batches || step < self->batches[rank->rank];
}

// Files give no alignment: copied, and the caller's. NULL when there is no such tensor of `count`.
static int32_t *read_ints(const gs_safetensors *file, const char *name, size_t count) {
    const gs_safetensor *tensor = gs_safetensors_find(file, name);
    if (!tensor || tensor->bytes != count * sizeof(int32_t)) return NULL;
    int32_t *values = malloc(tensor->bytes + 1);
    if (values) memcpy(values, tensor->data, tensor->bytes);
    return values;
}

static void read_settings(trace *self, const gs_safetensors *file) {
    *self = (trace){.file = file};
    self->world_size = (int)vector_number(file, "world");
    self->steps = (int)vector_number(file, "steps");
    self->accumulate = (int)vector_number(file, "accumulate");
    if (self->accumulate < 1) self->accumulate = 1;
    self->rows = (size_t)vector_number(file, "batch");
    const char *dims = gs_safetensors_metadata(file, "dims");
    for (char *end; dims && *dims && self->num_dims < MAX_DIMS; dims = *end ? end + 1 : end)
        self->dims[self->num_dims++] = strtol(dims, &end, 10);
    const char *model = gs_safetensors_metadata(file, "model");
    self->has_branches = model && strcmp(model, "branches") == 0;
}

static gs_status read_unevenness(trace *self, size_t num_params) {
    size_t steps = (size_t)self->steps, world_size = (size_t)self->world_size;
    self->used = read_ints(self->file, "used", steps * world_size * 2);
    self->defined = read_ints(self->file, "grad_defined", steps * num_params);
    self->batches = read_ints(self->file, "batches", world_size);
    if (self->has_branches && (!self->used || !self->defined))
        return gs_error(GS_NOT_FOUND, "no tensors \"used\" and \"grad_defined\"");
    if (gs_safetensors_find(self->file, "batches") && !self->batches)
        return gs_error(GS_INVALID_ARGUMENT, "\"batches\" is not one number for each rank");
    return gs_ok();
}

static void release_unevenness(trace *self) {
    free((void *)(uintptr_t)self->used);
    free((void *)(uintptr_t)self->defined);
    free((void *)(uintptr_t)self->batches);
}

static gs_status make_model(void *ctx, gs_model *model, gs_device *device) {
    const trace *self = ctx;
    if (self->has_branches) {
        branches_options branches = {.max_rows = self->rows, .used = self->used_now};
        if (self->num_dims != 4)
            return gs_error(GS_INVALID_ARGUMENT, "branches: %d dims, wanted 4", self->num_dims);
        memcpy(branches.dims, self->dims, sizeof branches.dims);
        return branches_create(model, &branches, device);
    }
    gs_mlp_options options = {.dims = self->dims,
                              .num_dims = self->num_dims,
                              .batch_norm = true,
                              .micro_batch = (int64_t)self->rows};
    return gs_mlp_create(model, &options, device);
}

static gs_status compare_slice(const replica *rank, const void *tensor, const gs_param_spec *spec,
                               const gs_safetensors *file, const char *prefix, size_t at,
                               const char *what, tolerance allowed) {
    size_t bytes = gs_param_spec_bytes(spec);
    float *wanted = malloc(2 * bytes + 1);
    if (!wanted) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    void *got = (char *)wanted + bytes;
    char name[256];
    snprintf(name, sizeof name, "%s %s", what, spec->name);
    gs_status status = replica_read(rank, got, tensor, bytes);
    if (!status.code) status = vector_slice(wanted, bytes, file, prefix, spec->name, at);
    if (!status.code && spec->dtype == GS_FP32)
        status = compare_floats(name, got, wanted, gs_param_spec_count(spec), allowed);
    else if (!status.code && memcmp(got, wanted, bytes) != 0)
        status = gs_error(GS_DATA_LOSS, "%s differs", name);
    free(wanted);
    return status;
}

static gs_status load_slice(replica *rank, void *tensor, const gs_param_spec *spec,
                            const gs_safetensors *file, const char *prefix, size_t at) {
    size_t bytes = gs_param_spec_bytes(spec);
    void *values = malloc(bytes + 1);
    if (!values) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = vector_slice(values, bytes, file, prefix, spec->name, at);
    if (!status.code) status = replica_write(rank, tensor, values, bytes);
    free(values);
    return status;
}

static gs_status load_start(replica *rank, const trace *self) {
    void *const *buffers = gs_buffers_committed(rank->buffers);
    for (size_t i = 0; i < rank->num_params; i++)
        GS_TRY(load_slice(rank, rank->params[i], &rank->specs[i], self->file, "before_wrap.param.",
                          (size_t)rank->rank));
    for (size_t i = 0; i < rank->num_buffers; i++)
        GS_TRY(load_slice(rank, buffers[i], &rank->buffer_specs[i], self->file,
                          "before_wrap.buffer.", (size_t)rank->rank));
    return replica_share(rank);
}

// Fairscale's wrapper takes rank 0's buffers in the last micro-batch, ours and DDP's in the first: with several of
// them the buffers of others differ, until the next step takes rank 0's.
static const char *buffers_of(const trace *self, const replica *rank) {
    bool as_wrapped = self->sharded && (self->accumulate == 1 || rank->rank == 0);
    return as_wrapped ? "sharded.buffer." : "buffer.";
}

static gs_status compare_state(const replica *rank, const trace *self, const char *what) {
    void *const *buffers = gs_buffers_committed(rank->buffers);
    size_t step = (size_t)rank->step;
    size_t own = step * (size_t)self->world_size + (size_t)rank->rank;
    for (size_t i = 0; i < rank->num_params; i++)
        GS_TRY(compare_slice(rank, rank->params[i], &rank->specs[i], self->file, "param.", step, what,
                             strict));
    // The trace has no buffers of ranks that had no batch in the step.
    size_t num_buffers = step && !is_active(self, rank, rank->step - 1) ? 0 : rank->num_buffers;
    for (size_t i = 0; i < num_buffers; i++)
        GS_TRY(compare_slice(rank, buffers[i], &rank->buffer_specs[i], self->file, buffers_of(self, rank),
                             own, what, loose));
    return gs_ok();
}

static gs_status compare_sharded_end(const replica *rank, const trace *self) {
    for (size_t i = 0; i < rank->num_params; i++)
        GS_TRY(compare_slice(rank, rank->params[i], &rank->specs[i], self->file,
                             "sharded.final.param.", 0, "at the end:", strict));
    return gs_ok();
}

static gs_status compare_end(const replica *rank, const trace *self) {
    void *const *buffers = gs_buffers_committed(rank->buffers);
    for (size_t i = 0; i < rank->num_params; i++)
        GS_TRY(compare_slice(rank, rank->params[i], &rank->specs[i], self->file, "final.param.", 0,
                             "at the end:", strict));
    for (size_t i = 0; i < rank->num_buffers; i++)
        GS_TRY(compare_slice(rank, buffers[i], &rank->buffer_specs[i], self->file, "final.buffer.", 0,
                             "at the end:", loose));
    return gs_ok();
}

// Of a parameter, what this rank owns: a piece in the place of the trace's, the rest of which it is not to know.
static gs_status compare_piece(const replica *rank, gs_segment piece, const trace *self) {
    const gs_param_spec *spec = &rank->specs[piece.tensor];
    const float *grad = gs_reducer_grads(rank->reducer)[piece.tensor];
    size_t count = gs_param_spec_count(spec);
    float *wanted = malloc((2 * count + 1) * sizeof *wanted), *got = wanted + count;
    char name[256];
    if (!wanted) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    snprintf(name, sizeof name, "gradient of %s", spec->name);
    gs_status status = vector_slice(wanted, count * sizeof *wanted, self->file, "grad.", spec->name,
                                  (size_t)rank->step);
    if (!status.code) {
        memcpy(got, wanted, count * sizeof *got);
        status = replica_read(rank, got + piece.first, grad + piece.first,
                              piece.count * sizeof *got);
    }
    if (!status.code) status = compare_floats(name, got, wanted, count, loose);
    free(wanted);
    return status;
}

static gs_status compare_pieces(const replica *rank, const trace *self) {
    size_t num_own;
    const gs_segment *own = replica_shards_own(&rank->shards, &num_own);
    for (size_t i = 0; i < num_own; i++) GS_TRY(compare_piece(rank, own[i], self));
    return gs_ok();
}

static gs_status compare_gradients(void *ctx, replica *rank) {
    const trace *self = ctx;
    void *const *grads = gs_reducer_grads(rank->reducer);
    size_t step = (size_t)rank->step;
    if (self->sharded) return compare_pieces(rank, self);
    for (size_t i = 0; i < rank->num_params; i++) {
        bool defined = !self->defined || self->defined[step * rank->num_params + i];
        if (defined != (rank->has_grad[i] != 0))
            return gs_error(GS_DATA_LOSS, "gradient of %s is %s", rank->specs[i].name,
                            defined ? "undefined" : "defined");
        if (!defined) continue;
        GS_TRY(compare_slice(rank, grads[i], &rank->specs[i], self->file, "grad.", step, "gradient of",
                             loose));
    }
    return gs_ok();
}

// Where micro-batch `pass` of this rank lies among (steps, passes, ranks).
static size_t micro_batch_at(const replica *rank, const trace *self, int pass) {
    size_t passes = (size_t)self->accumulate, world = (size_t)self->world_size;
    return ((size_t)rank->step * passes + (size_t)pass) * world + (size_t)rank->rank;
}

static gs_status compare_losses(const replica *rank, const trace *self) {
    for (int pass = 0; pass < self->accumulate; pass++) {
        float wanted, got = (float)rank->losses[pass];
        GS_TRY(vector_slice(&wanted, sizeof wanted, self->file, "", "loss",
                          micro_batch_at(rank, self, pass)));
        GS_TRY(compare_floats("loss", &got, &wanted, 1, loose));
    }
    return gs_ok();
}

static gs_status run_step(replica *rank, trace *self, float *features, int32_t *labels) {
    gs_batch batches[MAX_PASSES];
    size_t row_features = (size_t)self->dims[0], rows = self->rows;
    for (int pass = 0; pass < self->accumulate; pass++) {
        float *input = features + (size_t)pass * rows * row_features;
        int32_t *label = labels + (size_t)pass * rows;
        size_t at = micro_batch_at(rank, self, pass);
        GS_TRY(vector_slice(input, rows * row_features * sizeof *input, self->file, "", "input", at));
        GS_TRY(vector_slice(label, rows * sizeof *label, self->file, "", "label", at));
        batches[pass] = (gs_batch){.rows = rows,
                                   .positions = 1,
                                   .row_features = row_features,
                                   .features = input,
                                   .targets = label};
    }
    size_t use = ((size_t)rank->step * (size_t)self->world_size + (size_t)rank->rank) * 2;
    if (self->used) memcpy(self->used_now, self->used + use, sizeof self->used_now);
    const gs_batch *mine = is_active(self, rank, rank->step) ? batches : NULL;
    GS_TRY(replica_step(rank, mine, (float)vector_number(self->file, "lr"), 0.0, compare_gradients,
                        self));
    GS_TRY(replica_await(rank));
    rank->step--;  // losses are those of the step that has just ended
    gs_status status = compare_losses(rank, self);
    rank->step++;
    if (status.code) return status;
    return compare_state(rank, self, "after the step:");
}

static gs_status run_trace(replica *rank, trace *self) {
    GS_TRY(load_start(rank, self));
    GS_TRY(compare_state(rank, self, "after wrapping:"));
    size_t rows = self->rows * (size_t)self->accumulate;
    float *features = calloc(rows * (size_t)self->dims[0], sizeof *features);
    int32_t *labels = calloc(rows, sizeof *labels);
    gs_status status = gs_ok();
    if (!features || !labels) status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (int step = 0; step < self->steps && !status.code; step++)
        status = gs_status_prefix(run_step(rank, self, features, labels), "step %d", step);
    free(features);
    free(labels);
    if (!status.code && self->sharded) status = compare_sharded_end(rank, self);
    if (status.code || !self->batches) return status;
    GS_TRY(replica_finish(rank));
    return compare_end(rank, self);
}

static gs_status read_owners(int owners[REPLICA_MAX_PARAMS], const gs_safetensors *file) {
    const gs_safetensor *tensor = gs_safetensors_find(file, "sharded.owner");
    if (!tensor || tensor->num_dims != 1 || tensor->shape[0] > REPLICA_MAX_PARAMS)
        return gs_error(GS_NOT_FOUND, "no tensor \"sharded.owner\"");
    size_t num_params = (size_t)tensor->shape[0];
    int32_t *recorded = read_ints(file, "sharded.owner", num_params);
    if (!recorded) return gs_error(GS_INVALID_ARGUMENT, "\"sharded.owner\" is not one number each");
    for (size_t i = 0; i < num_params; i++) owners[i] = recorded[i];
    free(recorded);
    return gs_ok();
}

// arg: "whole FILE", "flat FILE", "owners FILE"
gs_status conformance_train_mlp_rank(const gs_rank_env *env) {
    const char *path = strchr(env->arg, ' ') + 1;
    bool flat = strncmp(env->arg, "flat ", 5) == 0, owned = strncmp(env->arg, "owners ", 7) == 0;
    int owners[REPLICA_MAX_PARAMS];
    const replica_shards_options sharded = {.owners = owned ? owners : NULL};
    gs_safetensors *file;
    GS_TRY(gs_safetensors_load(&file, path));
    trace self;
    read_settings(&self, file);
    self.sharded = flat || owned;
    const char *zero_grad = gs_safetensors_metadata(file, "zero_grad");
    replica_options options = {
        .env = env,
        .passes_per_shard = self.accumulate,
        .optimizer = vector_optimizer(file),
        .decay_all = true,
        .zero_grads = zero_grad && strcmp(zero_grad, "zero") == 0,
        .uneven = gs_safetensors_find(file, "batches") != NULL,
        .divisor = vector_number(file, "divide_by_initial_world_size") != 0.0 ? GS_DIVIDE_BY_INITIAL
                                                                              : GS_DIVIDE_BY_ACTIVE,
        .first_bucket_bytes = (uint64_t)vector_number(file, "first_bucket_bytes"),
        .bucket_cap_bytes = (uint64_t)vector_number(file, "bucket_cap_bytes"),
        .sharded = self.sharded ? &sharded : NULL,
    };
    replica rank;
    gs_status status = owned ? read_owners(owners, file) : gs_ok();
    bool opened = false;
    if (!status.code) {
        status = replica_open(&rank, &options, make_model, &self);
        opened = !status.code;
    }
    if (opened) {
        status = read_unevenness(&self, rank.num_params);
        if (!status.code) status = run_trace(&rank, &self);
        replica_close(&rank);
        release_unevenness(&self);
    }
    gs_safetensors_close(file);
    return status;
}

static void run_ways(conformance *run, const char *path, const char *name, const trace *self) {
    static const char *const whole[] = {"whole", NULL}, *const cut[] = {"flat", "owners", NULL};
    for (const char *const *way = self->sharded ? cut : whole; *way; way++) {
        gs_strbuf arg = {0}, label = {0};
        gs_strbuf_printf(&arg, "%s %s", *way, path);
        gs_strbuf_printf(&label, self->sharded ? "%s %s" : "%s", name, *way);
        conformance_case(run, gs_strbuf_text(&label),
                         gs_ranks_run("train-mlp", self->world_size, gs_strbuf_text(&arg),
                                      conformance_deadline(FILE_SECONDS)));
        gs_strbuf_release(&arg);
        gs_strbuf_release(&label);
    }
}

static gs_status check_file(conformance *run, const char *path, bool sharded) {
    gs_safetensors *file;
    GS_TRY(gs_safetensors_load(&file, path));
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *model = gs_safetensors_metadata(file, "model");
    trace self;
    read_settings(&self, file);
    self.sharded = sharded;
    if (!model || (strcmp(model, "mlp") != 0 && !self.has_branches) || self.num_dims < 2 ||
        self.world_size < 1 || self.accumulate > MAX_PASSES || self.steps < 1 || self.rows < 1)
        conformance_fail(run, name, "not a trace of the models mlp or branches");
    else if (sharded && !gs_safetensors_find(file, "sharded.owner"))
        printf("none %s: it was not trained sharded\n", name);
    else
        run_ways(run, path, name, &self);
    gs_safetensors_close(file);
    return gs_ok();
}

gs_status conformance_train_mlp(conformance *run, char **args, int num_args) {
    bool sharded = false;
    for (int i = 0; i < num_args; i++) sharded |= strcmp(args[i], "--sharded") == 0;
    for (int i = 0; i < num_args; i++) {
        if (strcmp(args[i], "--sharded") != 0) GS_TRY(check_file(run, args[i], sharded));
    }
    return gs_ok();
}
