// Hooks that send a part and owe the rest, topk and onebit, against plain serial ones: results on all ranks, what each rank
// owes, steps that are redone or did not count, another plan, another loss scale, what is not finite.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/grad_case.h"
#include "tests/support/sample.h"
#include "tests/support/soon.h"

#define MAX_WORLD 8
#define NUM_STEPS 6
#define REDONE_STEP 2
#define SKIPPED_STEP 3
#define REPLAN_STEP 4

typedef struct settings {
    char hook[32];
    double ratio;
    int error_feedback, start_step;
    gs_dtype wire_dtype;
    double grad_unit;  // from step 1 on
} settings;

// Whose rank is out of its mind: each byte that it sends of its gradients. Values are finite, and places none.
static gs_device *garbage_of;
static unsigned char garbage;

gs_status __real_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective);
gs_status __wrap_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective);
gs_status __wrap_gs_comm_post(gs_comm *comm, gs_work *work, const gs_collective *collective) {
    if (garbage_of && collective->kind == GS_ALLGATHER) {
        void *bytes = malloc(collective->count);
        memset(bytes, garbage, collective->count);
        // Behind what writes the real ones.
        if (gs_comm_stream(comm))
            gs_stream_follow(gs_device_stream(garbage_of), gs_comm_stream(comm));
        device_memory_write(garbage_of, (void *)(uintptr_t)collective->send, bytes,
                            collective->count);
        free(bytes);
    }
    return __real_gs_comm_post(comm, work, collective);
}

// ---- serially

// Of all ranks, what each parameter's gradient lacks.
typedef struct referee {
    const settings *chosen;
    const grad_case *model;
    int world_size;
    float *owed[MAX_WORLD][GRAD_CASE_MAX_PARAMS], *next[MAX_WORLD][GRAD_CASE_MAX_PARAMS];
    float *result[GRAD_CASE_MAX_PARAMS];
} referee;

static size_t count_of(const grad_case *model, size_t param) {
    return gs_param_spec_count(&model->params[param]);
}

static void referee_init(referee *self, const settings *chosen, const grad_case *model,
                         int world_size) {
    *self = (referee){.chosen = chosen, .model = model, .world_size = world_size};
    for (size_t p = 0; p < model->num_params; p++) {
        self->result[p] = calloc(count_of(model, p), sizeof(float));
        for (int r = 0; r < world_size; r++) {
            self->owed[r][p] = calloc(count_of(model, p), sizeof(float));
            self->next[r][p] = calloc(count_of(model, p), sizeof(float));
        }
    }
}

static void referee_release(referee *self) {
    for (size_t p = 0; p < self->model->num_params; p++) {
        free(self->result[p]);
        for (int r = 0; r < self->world_size; r++) {
            free(self->owed[r][p]);
            free(self->next[r][p]);
        }
    }
}

typedef struct element {
    float magnitude;
    size_t place, param, index;
} element;

static int by_rank(const void *left, const void *right) {
    const element *a = left, *b = right;
    if (a->magnitude != b->magnitude) return a->magnitude > b->magnitude ? -1 : 1;
    return a->place < b->place ? -1 : 1;
}

static float round_to(gs_dtype dtype, float value) {
    if (dtype == GS_FP16) return gs_fp16_to_fp32(gs_fp32_to_fp16(value));
    if (dtype == GS_BF16) return gs_bf16_to_fp32(gs_fp32_to_bf16(value));
    return value;
}

// `next` holds M of each parameter of the bucket.
static void send_largest(referee *self, int rank, const size_t *params, size_t num_params) {
    size_t total = 0, n = 0;
    for (size_t i = 0; i < num_params; i++) total += count_of(self->model, params[i]);
    element *all = calloc(total + 1, sizeof *all);
    for (size_t i = 0; i < num_params; i++)
        for (size_t k = 0; k < count_of(self->model, params[i]); k++, n++)
            all[n] = (element){fabsf(self->next[rank][params[i]][k]), n, params[i], k};
    qsort(all, total, sizeof *all, by_rank);
    size_t chosen = (size_t)ceil(self->chosen->ratio * (double)total);
    for (size_t i = 0; i < chosen && i < total; i++) {
        float *owed = &self->next[rank][all[i].param][all[i].index];
        float sent = round_to(self->chosen->wire_dtype, *owed);
        *owed -= sent;
        self->result[all[i].param][all[i].index] += sent;
    }
    free(all);
}

static void send_signs(referee *self, int rank, size_t param) {
    float *owed = self->next[rank][param];
    double sums[2] = {0, 0}, nums[2] = {0, 0};
    for (size_t k = 0; k < count_of(self->model, param); k++) {
        sums[owed[k] < 0] += (double)owed[k];
        nums[owed[k] < 0]++;
    }
    for (size_t k = 0; k < count_of(self->model, param); k++) {
        int side = owed[k] < 0;
        float sent = (float)(sums[side] / nums[side]);
        owed[k] -= sent;
        self->result[param][k] += sent;
    }
}

// The step's results, and what is owed behind it.
static void take_step(referee *self, int64_t step, double unit, const gs_bucket_plan *plan) {
    const grad_case *model = self->model;
    const float scale = (float)(1.0 / self->world_size / unit);
    const bool is_plain = step < self->chosen->start_step;
    for (size_t p = 0; p < model->num_params; p++)
        memset(self->result[p], 0, count_of(model, p) * sizeof(float));
    for (int r = 0; r < self->world_size; r++) {
        for (size_t p = 0; p < model->num_params; p++) {
            size_t count = count_of(model, p);
            float *grad = self->next[r][p];
            grad_case_write(model, grad, p, step, r, 0, false);
            for (size_t k = 0; k < count && is_plain; k++) self->result[p][k] += grad[k];
            for (size_t k = 0; k < count; k++)
                grad[k] = round_to(self->chosen->wire_dtype, grad[k]) * scale + self->owed[r][p][k];
        }
        const size_t *params = plan->params;
        for (size_t b = 0; b < plan->num_buckets && !is_plain; b++) {
            size_t num_params = plan->buckets[b].num_params;
            if (!strcmp(self->chosen->hook, "topk")) send_largest(self, r, params, num_params);
            else
                for (size_t i = 0; i < num_params; i++) send_signs(self, r, params[i]);
            params += num_params;
        }
    }
    for (size_t p = 0; p < model->num_params; p++)
        for (size_t k = 0; k < count_of(model, p); k++) {
            float *result = &self->result[p][k];
            *result = is_plain ? *result * (float)(1.0 / self->world_size) : *result * (float)unit;
            *result = round_to(self->chosen->wire_dtype, *result);
        }
}

static void commit_step(referee *self, int64_t step) {
    for (int r = 0; r < self->world_size; r++)
        for (size_t p = 0; p < self->model->num_params; p++)
            if (self->chosen->error_feedback && step >= self->chosen->start_step)
                memcpy(self->owed[r][p], self->next[r][p],
                       count_of(self->model, p) * sizeof(float));
}

// ---- the real ones

// Sums of means may be in another order, and a plain mean's multiplication elsewhere.
static bool is_close_to(const settings *chosen, float got, float want, float largest) {
    if (!strcmp(chosen->hook, "topk") && !chosen->start_step && !chosen->wire_dtype)
        return got == want;
    float rounding = chosen->wire_dtype == GS_BF16 ? 0x1p-7f : chosen->wire_dtype ? 0x1p-10f : 1e-5f;
    return fabsf(got - want) <= rounding * (largest + fabsf(want));
}

static float largest_of(const float *values, size_t count) {
    float largest = 0;
    for (size_t k = 0; k < count; k++) largest = fmaxf(largest, fabsf(values[k]));
    return largest;
}

static gs_status compare(const settings *chosen, const char *what, size_t param, const float *got,
                         const float *want, size_t count) {
    float largest = largest_of(want, count);
    for (size_t k = 0; k < count; k++)
        if (!is_close_to(chosen, got[k], want[k], largest))
            return gs_error(GS_INTERNAL, "%s of parameter %zu, element %zu is %.9g, not %.9g", what,
                            param, k, (double)got[k], (double)want[k]);
    return gs_ok();
}

static gs_status compare_results(const grad_rank *rank, const referee *want) {
    for (size_t p = 0; p < rank->model->num_params; p++) {
        size_t count = count_of(rank->model, p);
        float *got = malloc((count + 1) * sizeof *got);
        device_memory_read(rank->device, got, gs_reducer_grads(rank->reducer)[p],
                           count * sizeof *got);
        gs_status status = compare(want->chosen, "the result", p, got, want->result[p], count);
        free(got);
        GS_TRY(status);
    }
    return gs_ok();
}

static gs_status compare_owed(const grad_rank *rank, const referee *want) {
    gs_hook_state_tensor tensor;
    size_t num = 0;
    for (; gs_reducer_hook_state(&tensor, rank->reducer, num); num++) {
        size_t param = (size_t)tensor.tensor.param, count = tensor.tensor.count;
        float *got = malloc((count + 1) * sizeof *got);
        if (!tensor.tensor.is_own || count != count_of(rank->model, param))
            return gs_error(GS_INTERNAL, "tensor \"%.100s\"", tensor.name);
        device_memory_read(rank->device, got, tensor.tensor.data, count * sizeof *got);
        gs_status status = compare(want->chosen, "what is owed", param, got,
                                   want->owed[rank->rank][param], count);
        free(got);
        GS_TRY(status);
    }
    if (num == (want->chosen->error_feedback ? rank->model->num_params : 0)) return gs_ok();
    return gs_error(GS_INTERNAL, "%zu tensors", num);
}

static gs_status take_real_step(grad_rank *rank, int64_t step, gs_reduce_result *result) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(grad_rank_run_passes(rank, step));
    return gs_reducer_finish(rank->reducer, result, soon());
}

static gs_status take_both(grad_rank *rank, referee *want, int64_t step,
                           const gs_bucket_plan *plan) {
    gs_reduce_result result;
    double unit = step ? want->chosen->grad_unit : 1;
    GS_TRY(gs_reducer_set_grad_unit(rank->reducer, unit));
    take_step(want, step, unit, plan);
    GS_TRY(take_real_step(rank, step, &result));
    GS_TRY(compare_results(rank, want));
    if (step == REDONE_STEP) {
        GS_TRY(gs_reducer_rollback(rank->reducer));
        GS_TRY(compare_owed(rank, want));
        GS_TRY(take_real_step(rank, step, &result));
        GS_TRY(compare_results(rank, want));
    }
    if (step == SKIPPED_STEP) return gs_reducer_rollback(rank->reducer);
    GS_TRY(gs_reducer_commit(rank->reducer));
    commit_step(want, step);
    return compare_owed(rank, want);
}

static void read_settings(settings *chosen, const char *arg) {
    int wire = 0;
    *chosen = (settings){0};
    sscanf(arg, "%31s %lf %d %d %d %lf", chosen->hook, &chosen->ratio, &chosen->error_feedback,
           &chosen->start_step, &wire, &chosen->grad_unit);
    chosen->wire_dtype = (gs_dtype)wire;
}

static gs_status body_steps(const gs_rank_env *env) {
    settings chosen;
    read_settings(&chosen, env->arg);
    gs_status status = gs_ok();
    for (uint64_t seed = 1; seed <= 2 && !status.code; seed++) {
        grad_case model, other;
        referee want;
        grad_rank rank;
        grad_case_init(&model, seed, env->world_size);
        grad_case_init(&other, seed, env->world_size);
        model.unused_percent = 0;
        model.passes_per_shard = 1;
        const gs_hook_number numbers[] = {{"error_feedback", chosen.error_feedback},
                                          {"start_step", chosen.start_step},
                                          {"ratio", chosen.ratio}};
        const gs_hook_choice inner = {.hook = gs_comm_hook_find(chosen.hook),
                                      .numbers = numbers,
                                      .num_numbers = strcmp(chosen.hook, "topk") ? 2 : 3};
        model.hook = inner;
        if (chosen.wire_dtype)
            model.hook = (gs_hook_choice){
                .hook = gs_comm_hook_find(chosen.wire_dtype == GS_FP16 ? "wrap_fp16" : "wrap_bf16"),
                .inner = &inner};
        // Every parameter in a bucket of its own.
        gs_bucket_plan_release(&other.plan);
        GS_TRY(gs_bucket_plan_parity(&other.plan, model.params, model.num_params, 1, 1, NULL));
        referee_init(&want, &chosen, &model, env->world_size);
        status = grad_rank_open(&rank, &model, env, NULL, soon());
        for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
            if (step == REPLAN_STEP) status = gs_reducer_set_plan(rank.reducer, &other.plan, soon());
            if (status.code) break;
            status = take_both(&rank, &want, step, step < REPLAN_STEP ? &model.plan : &other.plan);
            status = gs_status_prefix(status, "seed %d, step %d", (int)seed, (int)step);
        }
        char digest[32];
        snprintf(digest, sizeof digest, "%016llx",
                 status.code ? 0ull : (unsigned long long)grad_rank_digest(&rank));
        gs_rank_note(env, digest);
        grad_rank_close(&rank);
        referee_release(&want);
        grad_case_release(&model);
        grad_case_release(&other);
    }
    return status;
}

// On all ranks the same bits.
static void run_ranks(int world_size, const char *arg) {
    gs_ranks *ranks;
    gs_status statuses[MAX_WORLD];
    print_message("world %d: %s\n", world_size, arg);
    assert_ok(gs_ranks_start(&ranks, "steps", world_size, arg, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(60)));
    for (int r = 0; r < world_size; r++) {
        assert_ok(statuses[r]);
        assert_string_equal(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0));
    }
    gs_ranks_destroy(ranks);
}

static void run_worlds(const char *hook, double ratio) {
    char arg[96];
    const sample drawn = sample_from_environment();
    for (int world_size = 1; world_size <= 8; world_size++) {
        if (world_size > 4 && !sample_takes(&drawn, 0x3051d, (uint64_t)world_size)) continue;
        snprintf(arg, sizeof arg, "%s %g 1 0 0 %g", hook, ratio, world_size == 3 ? 1024.0 : 1.0);
        run_ranks(world_size, arg);
    }
    snprintf(arg, sizeof arg, "%s %g 0 2 0 1", hook, ratio);
    run_ranks(2, arg);
    snprintf(arg, sizeof arg, "%s %g 1 0 %d 1", hook, ratio, GS_BF16);
    run_ranks(2, arg);
}

static void largest_elements_are_those_of_the_serial_one(void **state) {
    (void)state;
    run_worlds("topk", 0.05);
    run_ranks(2, "topk 1 1 0 0 1");
    run_ranks(2, "topk 0.000001 1 0 0 1");
}

static void bits_and_means_are_those_of_the_serial_one(void **state) {
    (void)state;
    run_worlds("onebit", 0);
}

// One element of one rank makes the step not finite on all, which roll it back and go on.
static gs_status body_infinite(const gs_rank_env *env) {
    grad_case model;
    grad_rank rank;
    gs_reduce_result result;
    const gs_hook_choice choice = {.hook = gs_comm_hook_find(env->arg)};
    grad_case_init(&model, 5, env->world_size);
    model.unused_percent = 0;
    model.passes_per_shard = 1;
    model.hook = choice;
    gs_status status = grad_rank_open(&rank, &model, env, NULL, soon());
    for (int64_t step = 0; step < 3 && !status.code; step++) {
        gs_reducer_pass pass;
        static const float bad[] = {INFINITY, NAN, -INFINITY};
        status = gs_reducer_begin(rank.reducer, step);
        if (!status.code) status = gs_reducer_begin_pass(rank.reducer, &pass, 1);
        for (size_t p = 0; p < model.num_params && !status.code; p++) {
            size_t count = count_of(&model, p);
            float *grad = calloc(count, sizeof *grad);
            if (p == 0 && env->rank == 1) grad[count / 2] = bad[step];
            device_memory_write(rank.device, pass.grads[p], grad, count * sizeof *grad);
            free(grad);
            status = gs_reducer_mark_ready(rank.reducer, p);
        }
        if (!status.code) status = gs_reducer_end_pass(rank.reducer);
        if (!status.code) status = gs_reducer_finish(rank.reducer, &result, soon());
        if (!status.code && !result.nonfinite) status = gs_error(GS_INTERNAL, "it is finite");
        if (!status.code) status = gs_reducer_rollback(rank.reducer);
        // Zeros everywhere are zeros behind it.
        if (!status.code) status = take_real_step(&rank, 10 + step, &result);
        if (!status.code && result.nonfinite) status = gs_error(GS_INTERNAL, "it is not finite");
        if (!status.code) status = gs_reducer_rollback(rank.reducer);
    }
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

static void what_is_not_finite_is_so_on_all_ranks(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("infinite", 3, "topk", gs_deadline_in_seconds(60)));
    assert_ok(gs_ranks_run("infinite", 3, "onebit", gs_deadline_in_seconds(60)));
}

// The host says who it was and where; on a GPU the step does not count.
static gs_status check_garbage(grad_rank *rank, int64_t step) {
    static const char *const words[] = {
        "rank 1 sent place 1061109567, behind the bucket's last parameter ",
        "rank 1 sent place 0, which does not ascend, in parameter "};
    gs_reduce_result result;
    gs_status status = take_real_step(rank, step, &result);
    if (gs_device_is_host(rank->device))
        return status.code && strstr(status.message, words[step])
                   ? gs_ok()
                   : gs_error(GS_INTERNAL, "told: %.200s", status.message);
    GS_TRY(status);
    if (!result.nonfinite) return gs_error(GS_INTERNAL, "a place that is none is not told");
    return gs_reducer_rollback(rank->reducer);
}

// 0.747 at place 1061109567; or zeros, all of which go to place 0. Behind them a GPU goes on.
static gs_status body_garbage(const gs_rank_env *env) {
    static const unsigned char kinds[] = {63, 0};
    grad_case model;
    grad_rank rank;
    gs_reduce_result result;
    grad_case_init(&model, 5, env->world_size);
    model.passes_per_shard = 1;
    model.hook = (gs_hook_choice){.hook = &gs_hook_topk};
    gs_status status = grad_rank_open(&rank, &model, env, NULL, soon());
    bool ends = !status.code && gs_device_is_host(rank.device);
    for (int k = atoi(env->arg); k < 2 && !status.code; k++) {
        garbage = kinds[k];
        garbage_of = env->rank == 1 ? rank.device : NULL;
        status = check_garbage(&rank, k);
        if (ends) break;
    }
    garbage_of = NULL;
    if (!status.code && !ends) status = take_real_step(&rank, 0, &result);
    if (!status.code && !ends && result.nonfinite)
        status = gs_error(GS_INTERNAL, "it is not finite");
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

static void a_place_that_is_none_is_told_on_all_ranks(void **state) {
    (void)state;
    if (!test_device_is_host() && !sample_takes_all_of("places that are none on a device")) return;
    assert_ok(gs_ranks_run("garbage", 2, "0", gs_deadline_in_seconds(60)));
    if (test_device_is_host())
        assert_ok(gs_ranks_run("garbage", 2, "1", gs_deadline_in_seconds(60)));
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {
        {"steps", body_steps}, {"infinite", body_infinite}, {"garbage", body_garbage}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    if (!test_device_is_there()) return TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(largest_elements_are_those_of_the_serial_one),
        cmocka_unit_test(bits_and_means_are_those_of_the_serial_one),
        cmocka_unit_test(what_is_not_finite_is_so_on_all_ranks),
        cmocka_unit_test(a_place_that_is_none_is_told_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
