// Gradients that travel in 16 bits, between real processes: against a serial reference that rounds
// at the same two places, bit for bit; and what overflows is seen by all ranks alike.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/grad_case.h"
#include "tests/support/soon.h"

#define NUM_PARAMS 5
#define NUM_STEPS 3
#define MAX_WORLD 4

static const int64_t counts[NUM_PARAMS] = {3000, 17, 1, 700, 64};

static float rounded(gs_dtype dtype, float value) {
    return dtype == GS_FP16 ? gs_fp16_to_fp32(gs_fp32_to_fp16(value))
                            : gs_bf16_to_fp32(gs_fp32_to_bf16(value));
}

static void init_case(grad_case *model, int world_size, gs_dtype wire_dtype) {
    *model = (grad_case){.seed = 77,
                         .num_params = NUM_PARAMS,
                         .num_shards = world_size,
                         .passes_per_shard = 1,
                         .wire_dtype = wire_dtype};
    for (size_t p = 0; p < NUM_PARAMS; p++)
        model->params[p] = gs_param_spec_make(GS_FP32, counts[p], 0, "p%zu", p);
    gs_status status =
        gs_bucket_plan_parity(&model->plan, model->params, NUM_PARAMS, 256, 4096, NULL);
    if (status.code) abort();
}

// Parameter 1 is used by rank 0 alone, 2 by nobody.
static bool is_used(size_t param, int rank) {
    return param != 2 && (param != 1 || rank == 0);
}

// Parameter 0: about 100000 up or down, too much for fp16 before the division and not after it.
static void draw_grad(float *grad, size_t param, int64_t step, int rank, int world_size) {
    size_t count = (size_t)counts[param];
    gs_random_key key = {.seed = 5,
                         .stream = gs_random_stream(param, (uint64_t)step, (uint64_t)rank)};
    float sign = rank % 2 ? -1.0f : 1.0f, large = world_size == 1 ? 60000.0f : 100000.0f;
    float most = param == 3 ? 1e-6f : 3.0f;
    if (!is_used(param, rank))
        memset(grad, 0, count * sizeof *grad);
    else if (param == 0)
        gs_random_fill_uniform(grad, count, key, 0, 0.8f * sign * large, sign * large);
    else
        gs_random_fill_uniform(grad, count, key, 0, -most, most);
}

static void reference(float *sum, size_t param, int64_t step, int world_size, gs_dtype dtype) {
    size_t count = (size_t)counts[param];
    float *grad = calloc(count, sizeof *grad), scale = (float)(1.0 / world_size);
    for (int rank = 0; rank < world_size; rank++) {
        draw_grad(grad, param, step, rank, world_size);
        for (size_t i = 0; i < count; i++) {
            float sent = rounded(dtype, grad[i] * scale);
            sum[i] = rank ? sum[i] + sent : sent;
        }
    }
    for (size_t i = 0; i < count; i++) sum[i] = rounded(dtype, sum[i]);
    free(grad);
}

static gs_status run_pass(grad_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1000 + rank->rank));
    for (size_t p = NUM_PARAMS; p-- > 0;) {
        if (!is_used(p, rank->rank)) continue;
        draw_grad(pass.grads[p], p, step, rank->rank, rank->world_size);
        GS_TRY(gs_reducer_mark_ready(rank->reducer, p));
    }
    return gs_reducer_end_pass(rank->reducer);
}

static gs_status check_grads(const grad_rank *rank, int64_t step, gs_dtype dtype) {
    float *wanted = calloc((size_t)counts[0], sizeof *wanted);
    gs_status status = gs_ok();
    for (size_t p = 0; p < NUM_PARAMS && !status.code; p++) {
        const float *got = gs_reducer_grads(rank->reducer)[p];
        reference(wanted, p, step, rank->world_size, dtype);
        for (size_t i = 0; i < (size_t)counts[p] && !status.code; i++) {
            if (got[i] != wanted[i])
                status = gs_error(GS_INTERNAL, "step %lld: p%zu[%zu]: %.9g, expected %.9g",
                                  (long long)step, p, i, (double)got[i], (double)wanted[i]);
        }
    }
    free(wanted);
    return status;
}

static gs_status check_result(const grad_rank *rank, const gs_reduce_result *result) {
    int64_t samples = 0;
    for (int r = 0; r < rank->world_size; r++) samples += 1000 + r;
    if (result->samples != samples)
        return gs_error(GS_INTERNAL, "%lld samples", (long long)result->samples);
    if (result->num_unused != 1 || result->used[2] || !result->used[1])
        return gs_error(GS_INTERNAL, "%zu unused", result->num_unused);
    if (result->nonfinite) return gs_error(GS_INTERNAL, "something overflowed");
    return gs_ok();
}

// Half of the gradients' bytes, and a few exact elements.
static gs_status check_bytes(const grad_rank *rank) {
    const gs_reduce_stats *stats = gs_reducer_stats(rank->reducer);
    uint64_t bytes = 0, wire_bytes = 0;
    for (size_t b = 0; b < stats->num_buckets; b++) {
        bytes += stats->buckets[b].bytes;
        wire_bytes += stats->buckets[b].wire_bytes;
        if (stats->buckets[b].wire_bytes > stats->buckets[b].bytes / 2 + 64)
            return gs_error(GS_INTERNAL, "bucket %zu: %llu bytes on the wire", b,
                            (unsigned long long)stats->buckets[b].wire_bytes);
    }
    return wire_bytes > bytes / 2 ? gs_ok() : gs_error(GS_INTERNAL, "bytes are missing");
}

static gs_dtype wire_of(const gs_rank_env *env) {
    return gs_dtype_from_name(env->arg);
}

static gs_status body_reduce(const gs_rank_env *env) {
    grad_case model;
    init_case(&model, env->world_size, wire_of(env));
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    gs_status status = gs_ok();
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        gs_reduce_result result;
        status = run_pass(&rank, step);
        if (!status.code) status = gs_reducer_finish(rank.reducer, &result, soon());
        if (!status.code) status = check_result(&rank, &result);
        if (!status.code) status = check_grads(&rank, step, model.wire_dtype);
        if (!status.code) status = check_bytes(&rank);
    }
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

// The last rank alone sends one value too much, in steps 1 and 3 of 4.
static gs_status run_overflows(grad_rank *rank, float too_much) {
    for (int64_t step = 0; step < 4; step++) {
        gs_reducer_pass pass;
        gs_reduce_result result;
        GS_TRY(gs_reducer_begin(rank->reducer, step));
        GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
        for (size_t p = 0; p < NUM_PARAMS; p++) {
            for (int64_t i = 0; i < counts[p]; i++) ((float *)pass.grads[p])[i] = 1;
            if (p == 3 && step % 2 && rank->rank == rank->world_size - 1)
                ((float *)pass.grads[p])[600] = too_much;
            GS_TRY(gs_reducer_mark_ready(rank->reducer, p));
        }
        GS_TRY(gs_reducer_end_pass(rank->reducer));
        GS_TRY(gs_reducer_finish(rank->reducer, &result, soon()));
        float at = ((float *)gs_reducer_grads(rank->reducer)[3])[600];
        bool overflows = step % 2;
        if (result.nonfinite != overflows || isinf(at) != overflows)
            return gs_error(GS_INTERNAL, "step %lld: not finite %d, value %g", (long long)step,
                            result.nonfinite, (double)at);
        if (result.samples != rank->world_size) return gs_error(GS_INTERNAL, "samples are wrong");
    }
    return gs_ok();
}

static gs_status body_overflow(const gs_rank_env *env) {
    grad_case model;
    init_case(&model, env->world_size, wire_of(env));
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    // The mean of it fits into fp32, but not into the wire dtype.
    float too_much = model.wire_dtype == GS_FP16 ? 65520.0f * (float)env->world_size : 3.4e38f;
    if (model.wire_dtype == GS_BF16) too_much = INFINITY;
    gs_status status = run_overflows(&rank, too_much);
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

// What is cast before it is divided has no more room than one rank's gradient. arg: a hook's name
static gs_status body_early_overflow(const gs_rank_env *env) {
    const gs_hook_number divides = {"divide_after_cast", 1};
    const gs_hook_choice plain = {.hook = gs_comm_hook_find("allreduce")};
    grad_case model;
    init_case(&model, env->world_size, GS_DTYPE_UNSET);
    model.hook.hook = gs_comm_hook_find(env->arg);
    if (model.hook.hook->wraps) model.hook.inner = &plain;
    if (!model.hook.hook->wraps) model.hook.numbers = &divides, model.hook.num_numbers = 1;
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    // The largest fp32 is no bf16.
    gs_status status = run_overflows(&rank, strstr(env->arg, "bf16") ? 3.4e38f : 65520.0f);
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

// 98304 is no fp16, half of it is. A hook that casts before it divides makes infinity of it.
static gs_status run_large(grad_rank *rank) {
    gs_reducer_pass pass;
    gs_reduce_result result;
    GS_TRY(gs_reducer_begin(rank->reducer, 0));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    for (int64_t i = 0; i < counts[3]; i++)
        ((float *)pass.grads[3])[i] = rank->rank ? -32768.0f : 98304.0f;
    GS_TRY(gs_reducer_mark_ready(rank->reducer, 3));
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    GS_TRY(gs_reducer_finish(rank->reducer, &result, soon()));
    const float *got = gs_reducer_grads(rank->reducer)[3];
    for (int64_t i = 0; i < counts[3]; i++) {
        if (got[i] != 32768.0f) return gs_error(GS_INTERNAL, "%g", (double)got[i]);
    }
    return result.nonfinite ? gs_error(GS_INTERNAL, "not finite") : gs_ok();
}

static gs_status body_large(const gs_rank_env *env) {
    grad_case model;
    init_case(&model, env->world_size, wire_of(env));
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    gs_status status = run_large(&rank);
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

// Rank 1 says another wire dtype than rank 0.
static gs_status body_mismatch(const gs_rank_env *env) {
    grad_case model;
    init_case(&model, env->world_size, env->rank == 1 ? GS_BF16 : GS_FP16);
    grad_rank rank;
    gs_status status = grad_rank_open(&rank, &model, env, NULL, soon());
    if (!status.code) grad_rank_close(&rank);
    grad_case_release(&model);
    // Whoever was told by the other's abort has its words.
    bool is_told = status.code == GS_FAILED_PRECONDITION || status.code == GS_ABORTED;
    if (is_told && strstr(status.message, "rank 1 against rank 0: wire dtype")) return gs_ok();
    return gs_error(GS_INTERNAL, "status %d: %.150s", status.code, status.message);
}

static void run(const char *body, int world_size, const char *dtype) {
    gs_status status = gs_ranks_run(body, world_size, dtype, gs_deadline_in_seconds(60));
    if (status.code) fail_msg("%d ranks, %s: %s", world_size, dtype, status.message);
}

static void sums_are_the_serial_ones_that_round_twice_bit_for_bit(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= MAX_WORLD; world_size++) {
        run("reduce", world_size, "fp16");
        run("reduce", world_size, "bf16");
    }
}

static void what_fits_after_the_division_does_not_overflow_before_it(void **state) {
    (void)state;
    run("large", 2, "fp16");
}

static void overflow_of_one_rank_is_seen_by_all(void **state) {
    (void)state;
    run("overflow", 1, "fp16");
    run("overflow", 3, "fp16");
    run("overflow", 3, "bf16");
    static const char *const early[] = {"fp16", "bf16", "wrap_fp16", "wrap_bf16"};
    for (size_t i = 0; i < sizeof early / sizeof *early; i++) run("early_overflow", 3, early[i]);
}

static void ranks_that_disagree_about_the_wire_are_told(void **state) {
    (void)state;
    run("mismatch", 2, "fp16");
}

static void exact_mode_is_refused_with_the_reason(void **state) {
    (void)state;
    grad_case model;
    init_case(&model, 1, GS_FP16);
    model.exact = true;
    grad_rank rank;
    gs_status status = grad_rank_open(&rank, &model, NULL, NULL, soon());
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_non_null(strstr(status.message, "exact mode"));
    grad_case_release(&model);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"reduce", body_reduce},
                                          {"overflow", body_overflow},
                                          {"early_overflow", body_early_overflow},
                                          {"large", body_large},
                                          {"mismatch", body_mismatch},
                                          {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_the_serial_ones_that_round_twice_bit_for_bit),
        cmocka_unit_test(what_fits_after_the_division_does_not_overflow_before_it),
        cmocka_unit_test(overflow_of_one_rank_is_seen_by_all),
        cmocka_unit_test(ranks_that_disagree_about_the_wire_are_told),
        cmocka_unit_test(exact_mode_is_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
