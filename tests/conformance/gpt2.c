// Kind gpt2: a tiny GPT-2 trained by PyTorch. Logits, loss and every gradient of the first batch;
// then the whole training in one process and data parallel in two: losses, gradient norms, final
// parameters.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/conformance.h"
#include "tests/conformance/replica.h"
#include "tests/conformance/training.h"
#include "worker/models/registry.h"

#define FILE_SECONDS 100.0

static const tolerance close_values = {.absolute = 1e-5};  // loss, logits, norm
static const tolerance gradients = {.absolute = 1e-6,
                                    .relative = 1e-5};  // of each tensor's largest
static const tolerance final_params = {.absolute = 5e-5};

typedef struct tiny {
    const gs_safetensors *file;
    gs_gpt2_options model;
    int steps;
    size_t batch, T;
    int32_t *tokens, *targets;  // (steps, batch, T)
} tiny;

static gs_status read_ids(int32_t **out, const gs_safetensors *file, const char *name,
                          size_t count) {
    const gs_safetensor *tensor = gs_safetensors_find(file, name);
    if (!tensor || tensor->bytes != count * sizeof **out)
        return gs_error(GS_NOT_FOUND, "no tensor \"%s\" of %zu ids", name, count);
    *out = malloc(tensor->bytes + 1);
    if (!*out) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    memcpy(*out, tensor->data, tensor->bytes);
    return gs_ok();
}

static gs_status read_settings(tiny *self, const gs_safetensors *file) {
    *self = (tiny){.file = file};
    self->steps = (int)vector_number(file, "steps");
    self->batch = (size_t)vector_number(file, "batch");
    self->T = (size_t)vector_number(file, "T");
    self->model = (gs_gpt2_options){
        .layers = (int64_t)vector_number(file, "layers"),
        .heads = (int64_t)vector_number(file, "heads"),
        .channels = (int64_t)vector_number(file, "channels"),
        .context = (int64_t)vector_number(file, "T"),
        .vocab = (int64_t)vector_number(file, "vocab"),
        .micro_batch = (int64_t)self->batch,
    };
    if (self->steps < 1 || self->batch < 1 || self->T < 1)
        return gs_error(GS_DATA_LOSS, "steps, batch or T is missing");
    size_t count = (size_t)self->steps * self->batch * self->T;
    GS_TRY(read_ids(&self->tokens, file, "tokens", count));
    return read_ids(&self->targets, file, "targets", count);
}

static gs_status make_model(void *ctx, gs_model *model, gs_device *device) {
    const tiny *self = ctx;
    return gs_gpt2_create(model, &self->model, device);
}

static gs_status load_params(replica *rank, const tiny *self) {
    for (size_t i = 0; i < rank->num_params; i++) {
        float *values;
        size_t count;
        GS_TRY(vector_floats(&values, &count, self->file, "param.%s", rank->specs[i].name));
        bool fits = count == gs_param_spec_count(&rank->specs[i]);
        gs_status status = gs_ok();
        if (fits) status = replica_write(rank, rank->params[i], values, count * sizeof *values);
        free(values);
        GS_TRY(status);
        if (!fits) return gs_error(GS_DATA_LOSS, "param.%s: wrong size", rank->specs[i].name);
    }
    return gs_ok();
}

static gs_status compare_tensor(const char *what, const float *got, const tiny *self,
                                const char *name, tolerance allowed) {
    float *wanted;
    size_t count;
    GS_TRY(vector_floats(&wanted, &count, self->file, "%s", name));
    gs_status status = compare_floats(what, got, wanted, count, allowed);
    free(wanted);
    return status;
}

// The same of a tensor of the rank's device.
static gs_status compare_on_device(const replica *rank, const char *what, const float *tensor,
                                   size_t count, const tiny *self, const char *name,
                                   tolerance allowed) {
    float *got = malloc(count * sizeof *got + 1);
    if (!got) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status = replica_read(rank, got, tensor, count * sizeof *got);
    if (!status.code) status = compare_tensor(what, got, self, name, allowed);
    free(got);
    return status;
}

static gs_status compare_one(const char *what, double got, const tiny *self, const char *name,
                             size_t at) {
    float *wanted, value = (float)got;
    size_t count;
    GS_TRY(vector_floats(&wanted, &count, self->file, "%s", name));
    gs_status status = gs_error(GS_DATA_LOSS, "%s is too short", name);
    if (at < count) status = compare_floats(what, &value, &wanted[at], 1, close_values);
    free(wanted);
    return status;
}

// Predictions see growing prefixes, so that all positions' logits are compared.
static gs_status check_logits(replica *rank, const tiny *self) {
    size_t V = (size_t)self->model.vocab, T = self->T, rows = self->batch;
    float *got = calloc(rows * T * V, sizeof *got);
    int32_t *prefix = calloc(rows * T, sizeof *prefix);
    gs_status status = gs_ok();
    if (!got || !prefix) status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    for (size_t t = 1; t <= T && !status.code; t++) {
        for (size_t row = 0; row < rows; row++)
            memcpy(prefix + row * t, self->tokens + row * T, t * sizeof *prefix);
        gs_batch batch = {.rows = rows, .positions = t, .tokens = prefix};
        gs_batch staged;
        gs_model_pass pass = {.batch = &staged, .params = rank->params};
        const float *logits;
        size_t classes;
        status = replica_stage(rank, &staged, &batch);
        if (!status.code)
            status = rank->model.ops->predict(rank->model.state, &pass, &logits, &classes);
        for (size_t row = 0; row < rows && !status.code; row++)
            memcpy(got + (row * T + t - 1) * V, logits + row * V, V * sizeof *got);
    }
    if (!status.code) status = compare_tensor("logits", got, self, "logits", close_values);
    free(got);
    free(prefix);
    return status;
}

static gs_status check_gradients(void *ctx, replica *rank) {
    const tiny *self = ctx;
    void *const *grads = gs_reducer_grads(rank->reducer);
    for (size_t i = 0; i < rank->num_params; i++) {
        char name[256];
        snprintf(name, sizeof name, "grad.%s", rank->specs[i].name);
        GS_TRY(compare_on_device(rank, name, grads[i], gs_param_spec_count(&rank->specs[i]), self,
                                 name, gradients));
    }
    return gs_ok();
}

static gs_batch batch_of(const replica *rank, const tiny *self, int step) {
    size_t rows = self->batch / (size_t)rank->world_size;
    size_t at = ((size_t)step * self->batch + (size_t)rank->rank * rows) * self->T;
    return (gs_batch){.rows = rows,
                      .positions = self->T,
                      .tokens = self->tokens + at,
                      .targets = self->targets + at};
}

static gs_status check_start(replica *rank, tiny *self) {
    GS_TRY(check_logits(rank, self));
    gs_batch batch = batch_of(rank, self, 0);
    GS_TRY(replica_step(rank, &batch, 0.0f, 0.0, check_gradients, self));
    return compare_one("loss", rank->losses[0], self, "loss", 0);
}

// The K part of c_attn.bias has no effect on the loss: what the optimizer makes of its rounding
// noise is left out.
static gs_status compare_final(const replica *rank, const tiny *self, const char *prefix) {
    size_t C = (size_t)self->model.channels;
    for (size_t i = 0; i < rank->num_params; i++) {
        float *wanted;
        size_t count;
        GS_TRY(vector_floats(&wanted, &count, self->file, "%s.%s", prefix, rank->specs[i].name));
        float *got = malloc(count * sizeof *got + 1);
        gs_status status = gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
        if (got) status = replica_read(rank, got, rank->params[i], count * sizeof *got);
        if (!status.code && strstr(rank->specs[i].name, "c_attn.bias"))
            memcpy(wanted + C, got + C, C * sizeof *wanted);
        if (!status.code)
            status = compare_floats(rank->specs[i].name, got, wanted, count, final_params);
        free(got);
        free(wanted);
        if (status.code) return status;
    }
    return gs_ok();
}

static gs_status check_training(replica *rank, tiny *self) {
    bool alone = rank->world_size == 1;
    const char *losses = alone ? "loss_1_rank" : "loss_2_ranks";
    const char *norms = alone ? "norm_1_rank" : "norm_2_ranks";
    double clip = vector_number(self->file, "clip");
    float lr = (float)vector_number(self->file, "lr");
    for (int step = 0; step < self->steps; step++) {
        gs_batch batch = batch_of(rank, self, step);
        gs_status status = replica_step(rank, &batch, lr, clip, NULL, NULL);
        size_t at = (size_t)(step * rank->world_size + rank->rank);
        if (!status.code) status = compare_one("loss", rank->losses[0], self, losses, at);
        if (!status.code) status = compare_one("norm", rank->grad_norm, self, norms, (size_t)step);
        if (status.code) return gs_status_prefix(status, "step %d", step);
    }
    return compare_final(rank, self, alone ? "final_1_rank" : "final_2_ranks");
}

static gs_status run_rank(const gs_rank_env *env, gs_status (*check)(replica *rank, tiny *self)) {
    gs_safetensors *file;
    GS_TRY(gs_safetensors_load(&file, env->arg));
    tiny self;
    gs_status status = read_settings(&self, file);
    replica_options options = {
        .env = env,
        .passes_per_shard = 1,
        .optimizer = {.kind = "adamw",
                      .beta1 = (float)vector_number(file, "beta1"),
                      .beta2 = (float)vector_number(file, "beta2"),
                      .eps = (float)vector_number(file, "eps"),
                      .weight_decay = (float)vector_number(file, "weight_decay")},
        .first_bucket_bytes = 4096,
        .bucket_cap_bytes = 16384,
    };
    replica rank;
    if (!status.code) {
        status = replica_open(&rank, &options, make_model, &self);
        if (!status.code) {
            status = load_params(&rank, &self);
            if (!status.code) status = check(&rank, &self);
            replica_close(&rank);
        }
    }
    free(self.tokens);
    free(self.targets);
    gs_safetensors_close(file);
    return status;
}

gs_status conformance_gpt2_start_rank(const gs_rank_env *env) {
    return run_rank(env, check_start);
}

gs_status conformance_gpt2_train_rank(const gs_rank_env *env) {
    return run_rank(env, check_training);
}

static void run_case(conformance *run, const char *name, const char *body, int world_size,
                     const char *path) {
    conformance_case(run, name,
                     gs_ranks_run(body, world_size, path, conformance_deadline(FILE_SECONDS)));
}

// FILE… [--world 1|2]; without it both.
gs_status conformance_gpt2(conformance *run, char **args, int num_args) {
    int only = 0;
    for (int i = 0; i + 1 < num_args; i++)
        if (strcmp(args[i], "--world") == 0) only = atoi(args[i + 1]);
    if (only < 0 || only > 2)
        return gs_error(GS_INVALID_ARGUMENT, "--world takes 1 or 2, not %d", only);
    for (int i = 0; i < num_args; i++) {
        if (strcmp(args[i], "--world") == 0) {
            i++;
            continue;
        }
        if (only != 2) {
            run_case(run, "logits, loss and gradients of the first batch", "gpt2-start", 1,
                     args[i]);
            run_case(run, "training in one process", "gpt2-train", 1, args[i]);
        }
        if (only != 1) run_case(run, "data-parallel training in two", "gpt2-train", 2, args[i]);
    }
    return gs_ok();
}
