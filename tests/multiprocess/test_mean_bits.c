// The mean that a reducer leaves has known bits: the ranks' gradients added in the order of ranks, times 1/world
// once. Said three times without the reducer's own reduction: a serial sum, a gather that this test sums itself,
// and a hook that does the same with what it is handed. PyTorch has other last bits with a hook than without.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/hooks/hook_calls.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/asserts.h"
#include "tests/support/grad_case.h"
#include "tests/support/soon.h"

#define MAX_BUCKETS 64

// Every rank uses every parameter, in one pass.
static void init_model(grad_case *model, int world_size) {
    grad_case_init(model, 12, world_size);
    model->passes_per_shard = 1;
    model->unused_percent = 0;
    model->op = GS_MEAN;
}

// all: world · count, one rank after the other.
static void average(float *mean, const float *all, size_t count, int world_size, double scale) {
    for (size_t i = 0; i < count; i++) {
        float sum = all[i];
        for (int r = 1; r < world_size; r++) sum += all[(size_t)r * count + i];
        mean[i] = sum * (float)scale;
    }
}

// A hook of this test: gathers the bucket and adds it up itself, reserved elements too.
typedef struct gatherer {
    int world_size;
    float *all[MAX_BUCKETS];
} gatherer;

static gs_status create_gatherer(void **state, const gs_hook_setup *setup) {
    gatherer *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    self->world_size = setup->world_size;
    *state = self;
    return gs_ok();
}

static gs_status place_nothing(void *state, const gs_hook_plan *plan) {
    (void)state, (void)plan;
    return gs_ok();
}

static gs_status gather(void *state, const gs_hook_bucket *bucket, gs_hook_work *work) {
    gatherer *self = state;
    size_t count = bucket->count + bucket->reserved_count;
    if (bucket->index >= MAX_BUCKETS) return gs_error(GS_INTERNAL, "too many buckets");
    self->all[bucket->index] = malloc((size_t)self->world_size * count * sizeof(float));
    return gs_hook_post(work, bucket,
                        &(gs_collective){.kind = GS_ALLGATHER,
                                         .send = bucket->data,
                                         .recv = self->all[bucket->index],
                                         .count = count,
                                         .dtype = bucket->dtype});
}

static gs_status add_up(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline) {
    (void)result, (void)deadline;
    gatherer *self = state;
    average(bucket->data, self->all[bucket->index], bucket->count + bucket->reserved_count,
            self->world_size, bucket->scale);
    free(self->all[bucket->index]);
    return gs_ok();
}

// The mean of one parameter, serially; false when dividing before the sum would have had the same bits, so that
// these numbers could not tell.
static bool serial_mean(float *mean, const grad_case *model, size_t param, int world_size) {
    size_t count = gs_param_spec_count(&model->params[param]);
    float *all = malloc((size_t)world_size * count * sizeof *all);
    float *other = malloc(count * sizeof *other);
    if (!all || !other) abort();
    for (int r = 0; r < world_size; r++)
        grad_case_write(model, all + (size_t)r * count, param, 0, r, 0, false);
    average(mean, all, count, world_size, 1.0 / world_size);
    for (size_t i = 0; i < (size_t)world_size * count; i++) all[i] *= (float)(1.0 / world_size);
    average(other, all, count, world_size, 1);
    bool can_tell = memcmp(mean, other, count * sizeof *mean) != 0;
    free(other);
    free(all);
    return can_tell;
}

// What an embedder would do who has a communicator and no reducer.
static gs_status gathered_mean(float *mean, const grad_rank *rank, size_t param) {
    size_t count = gs_param_spec_count(&rank->model->params[param]);
    float *own = malloc(count * sizeof *own);
    float *all = malloc((size_t)rank->world_size * count * sizeof *all);
    if (!own || !all) abort();
    grad_case_write(rank->model, own, param, 0, rank->rank, 0, false);
    gs_status status = gs_comm_run(rank->comm,
                                   &(gs_collective){.kind = GS_ALLGATHER,
                                                    .send = own,
                                                    .recv = all,
                                                    .count = count,
                                                    .dtype = GS_FP32,
                                                    .bucket = -1},
                                   soon());
    if (!status.code) average(mean, all, count, rank->world_size, 1.0 / rank->world_size);
    free(all);
    free(own);
    return status;
}

static gs_status check_param(const grad_rank *rank, size_t param, int *num_telling) {
    const float *got = gs_reducer_grads(rank->reducer)[param];
    size_t bytes = gs_param_spec_bytes(&rank->model->params[param]);
    float *serial = malloc(bytes), *gathered = malloc(bytes);
    if (!serial || !gathered) abort();
    *num_telling += serial_mean(serial, rank->model, param, rank->world_size);
    gs_status status = gathered_mean(gathered, rank, param);
    if (!status.code && memcmp(gathered, serial, bytes) != 0)
        status = gs_error(GS_INTERNAL, "parameter %zu: a gather has other bits", param);
    if (!status.code && memcmp(got, serial, bytes) != 0)
        status = gs_error(GS_INTERNAL, "parameter %zu: the reducer has other bits", param);
    free(gathered);
    free(serial);
    return status;
}

static gs_status check_hook(const gs_rank_env *env, const gs_comm_hook *hook) {
    grad_case model;
    init_model(&model, env->world_size);
    model.hook.hook = hook;
    grad_rank rank;
    gs_reduce_result result;
    int num_telling = 0;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, soon()));
    gs_status status = grad_rank_run_step(&rank, 0, &result, soon());
    for (size_t p = 0; p < model.num_params && !status.code; p++)
        status = check_param(&rank, p, &num_telling);
    bool is_power_of_two = (env->world_size & (env->world_size - 1)) == 0;
    if (!status.code && !num_telling && !is_power_of_two)
        status = gs_error(GS_INTERNAL, "these numbers cannot tell when the division happens");
    grad_rank_close(&rank);
    grad_case_release(&model);
    return gs_status_prefix(status, "%s", hook ? hook->name : "no hook");
}

static gs_status body_bits(const gs_rank_env *env) {
    GS_TRY(check_hook(env, NULL));
    GS_TRY(check_hook(env, &gs_hook_allreduce));
    gs_comm_hook gather_hook = gs_hook_allreduce;
    gather_hook.name = "gather";
    gather_hook.create = create_gatherer;
    gather_hook.on_plan = place_nothing;
    gather_hook.run = gather;
    gather_hook.finish = add_up;
    gather_hook.destroy = free;
    return check_hook(env, &gather_hook);
}

static void with_and_without_a_hook_the_mean_has_the_bits_of_the_serial_one(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= 5; world_size++) {
        gs_status status = gs_ranks_run("bits", world_size, "", gs_deadline_in_seconds(60));
        assert_ok(status);
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"bits", body_bits}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_and_without_a_hook_the_mean_has_the_bits_of_the_serial_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
