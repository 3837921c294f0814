// Kind hook: the 16-bit hooks as PyTorch's round, between two processes, bit for bit; any NaN equals any
// NaN. Both ways to have them: the hook that divides after the cast, and the wrapper around a plain sum.
//
// A first step compares the results. What each rank sends, `compressed`, is what arrives when the other one
// sends negative zeros, to which adding changes nothing, a zero's sign included.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/replica.h"
#include "tests/conformance/training.h"
#include "tests/support/grad_case.h"

#define CASE_SECONDS 60.0
#define WORLD 2

typedef struct sums {
    gs_dtype wire_dtype;
    float *in, *out;  // (WORLD, count), (count); owned
    size_t count;
    const gs_safetensor *compressed;  // (WORLD, count), of the wire's type
} sums;

static void release_sums(sums *self) {
    free(self->in);
    free(self->out);
}

static gs_status read_sums(sums *self, const gs_safetensors *file, const char *dtype) {
    size_t in_count;
    char name[32];
    self->wire_dtype = gs_dtype_from_name(dtype);
    GS_TRY(vector_floats(&self->in, &in_count, file, "%s.in", dtype));
    GS_TRY(vector_floats(&self->out, &self->count, file, "%s.out", dtype));
    snprintf(name, sizeof name, "%s.compressed", dtype);
    self->compressed = gs_safetensors_find(file, name);
    if (!self->compressed) return gs_error(GS_NOT_FOUND, "no tensor \"%s\"", name);
    if (!self->count || in_count != WORLD * self->count ||
        self->compressed->bytes != WORLD * self->count * sizeof(uint16_t))
        return gs_error(GS_INVALID_ARGUMENT, "%s: %zu, %zu and %zu elements do not fit", dtype,
                        in_count, self->count, self->compressed->bytes / sizeof(uint16_t));
    return gs_ok();
}

static float sent_by(const sums *self, int rank, size_t i) {
    uint16_t bits;
    memcpy(&bits,
           (const char *)self->compressed->data + ((size_t)rank * self->count + i) * sizeof bits,
           sizeof bits);
    return self->wire_dtype == GS_FP16 ? gs_fp16_to_fp32(bits) : gs_bf16_to_fp32(bits);
}

// `alone`: the rank that has its gradient, while the other has zeros; -1: both.
static gs_status run_step(const sums *self, grad_rank *rank, int64_t step, int alone) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    bool has_own = alone < 0 || alone == rank->rank;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    float *grad = pass.grads[0];
    for (size_t i = 0; i < self->count; i++)
        grad[i] = has_own ? self->in[(size_t)rank->rank * self->count + i] : -0.0f;
    GS_TRY(gs_reducer_mark_ready(rank->reducer, 0));
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    GS_TRY(gs_reducer_finish(rank->reducer, &result, gs_deadline_in_seconds(CASE_SECONDS / 3)));
    const float *got = gs_reducer_grads(rank->reducer)[0];
    for (size_t i = 0; i < self->count; i++) {
        float wanted = alone < 0 ? self->out[i] : sent_by(self, alone, i);
        if (isnan(got[i]) && isnan(wanted)) continue;
        if (memcmp(&got[i], &wanted, sizeof wanted) != 0)
            return gs_error(GS_DATA_LOSS, "%s of rank %d: element %zu: %a, expected %a",
                            alone < 0 ? "result" : "sent", alone < 0 ? rank->rank : alone, i,
                            (double)got[i], (double)wanted);
    }
    return gs_ok();
}

static gs_status run_steps(const sums *self, const gs_rank_env *env, const gs_hook_choice *hook) {
    grad_rank rank;
    grad_case model = {
        .num_params = 1, .num_shards = WORLD, .passes_per_shard = 1, .hook = *hook};
    model.params[0] = gs_param_spec_make(GS_FP32, (int64_t)self->count, 0, "bucket");
    GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, 1, 1 << 20, 1 << 20, NULL));
    gs_status status = grad_rank_open(&rank, &model, env, NULL, gs_deadline_in_seconds(20));
    for (int alone = -1; alone < WORLD && !status.code; alone++)
        status = run_step(self, &rank, alone + 1, alone);
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

// arg: "fp16 FILE", "wrap_fp16 FILE"
gs_status conformance_hook_rank(const gs_rank_env *env) {
    char name[GS_HOOK_NAME_LEN];
    int used = 0;
    if (sscanf(env->arg, "%47s %n", name, &used) != 1)
        return gs_error(GS_INVALID_ARGUMENT, "no hook in \"%s\"", env->arg);
    const gs_hook_number divides = {"divide_after_cast", 1};
    const gs_hook_choice plain = {.hook = gs_comm_hook_find("allreduce")};
    gs_hook_choice hook = {.hook = gs_comm_hook_find(name)};
    if (!hook.hook) return gs_error(GS_NOT_FOUND, "no hook \"%s\"", name);
    if (hook.hook->wraps) hook.inner = &plain;
    if (!hook.hook->wraps) hook.numbers = &divides, hook.num_numbers = 1;
    gs_safetensors *file;
    sums self = {0};
    GS_TRY(gs_safetensors_load(&file, env->arg + used));
    gs_status status = read_sums(&self, file, strrchr(name, '_') ? strrchr(name, '_') + 1 : name);
    if (!status.code) status = run_steps(&self, env, &hook);
    release_sums(&self);
    gs_safetensors_close(file);
    return status;
}

gs_status conformance_hook(conformance *run, char **args, int num_args) {
    static const char *const hooks[] = {"fp16", "bf16", "wrap_fp16", "wrap_bf16"};
    if (num_args != 1) return gs_error(GS_INVALID_ARGUMENT, "hook: one file expected");
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++) {
        char arg[1024];
        snprintf(arg, sizeof arg, "%s %s", hooks[i], args[0]);
        conformance_case(run, hooks[i],
                         gs_ranks_run("hook", WORLD, arg, gs_deadline_in_seconds(CASE_SECONDS)));
    }
    return gs_ok();
}
