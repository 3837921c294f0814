// How much each hook sends, counted by a backend of the test's own below the communicator, against the formula of
// the hook; and what the reducer says that it has sent.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/low_rank.h"
#include "gradsync/bucket/bucket.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/counting_backend.h"
#include "tests/support/grad_case.h"
#include "tests/support/soon.h"

#define NUM_PARAMS 4
#define NUM_STEPS 2

// Where tallies travel apart, buckets are gradients alone; each parameter is rounded up to a line.
typedef struct bucket_shape {
    const gs_param_spec *params;
    size_t num_params;
    int world_size;
} bucket_shape;

typedef struct sent_bytes {
    double handed_over, in_a_ring;
} sent_bytes;

static size_t count_elements(const bucket_shape *shape) {
    size_t count = 0;
    for (size_t i = 0; i < shape->num_params; i++) count += gs_bucket_room(&shape->params[i]);
    return count;
}

// 2 (world - 1) / world of what is added up.
static sent_bytes of_allreduce(const bucket_shape *shape, size_t num_bytes) {
    double bytes = (double)num_bytes;
    return (sent_bytes){bytes, bytes * 2 * (shape->world_size - 1) / shape->world_size};
}

static sent_bytes of_fp32(const bucket_shape *shape) {
    return of_allreduce(shape, 4 * count_elements(shape));
}

static sent_bytes of_halves(const bucket_shape *shape) {
    return of_allreduce(shape, 2 * count_elements(shape));
}

// The reserved elements alone: four, and one for each member, in whole lines.
static sent_bytes of_tally(const bucket_shape *shape) {
    return of_allreduce(shape, (4 * (shape->num_params + 4) + 63) / 64 * 64);
}

// Two factors of a gradient that is worth it, all others as they are.
static sent_bytes of_factors(const bucket_shape *shape) {
    size_t count = 0;
    for (size_t i = 0; i < shape->num_params; i++) {
        gs_low_rank matrix = gs_low_rank_of(&shape->params[i], 1, 2);
        count += matrix.rank ? gs_low_rank_sent(matrix) : gs_bucket_room(&shape->params[i]);
    }
    return of_allreduce(shape, 4 * count);
}

// A byte for each element and two numbers for each row, both in pieces of 16; all ranks' are gathered.
static sent_bytes of_rows(const bucket_shape *shape, size_t row_count) {
    size_t count = count_elements(shape), num_rows = (count + row_count - 1) / row_count;
    double bytes = (double)((count + 15) / 16 * 16 + (8 * num_rows + 15) / 16 * 16);
    return (sent_bytes){bytes, bytes * (shape->world_size - 1)};
}

static sent_bytes of_codes(const bucket_shape *shape) {
    return of_rows(shape, count_elements(shape));
}

static sent_bytes of_channels(const bucket_shape *shape) {
    return of_rows(shape, 512);
}

// PowerSGD from the first step on, which carries nothing then.
static const gs_hook_number from_the_start[] = {
    {"start_step", 0}, {"error_feedback", 0}, {"warm_start", 0}};

static const struct {
    const char *name, *inner;
    sent_bytes (*formula)(const bucket_shape *shape);
    gs_tally_carrier tally;
} hooks[] = {
    {"allreduce", NULL, of_fp32, GS_TALLY_APART},
    {"fp16", NULL, of_halves, GS_TALLY_APART},
    {"bf16", NULL, of_halves, GS_TALLY_APART},
    {"wrap_fp16", "allreduce", of_halves, GS_TALLY_APART},
    {"wrap_bf16", "bf16", of_halves, GS_TALLY_APART},
    {"noop", NULL, of_tally, GS_TALLY_IN_BUCKETS},
    {"powersgd", NULL, of_factors, GS_TALLY_APART},
    {"int8", NULL, of_codes, GS_TALLY_APART},
    {"int8_channel", NULL, of_channels, GS_TALLY_APART},
    {"wrap_fp16", "noop", of_tally, GS_TALLY_IN_BUCKETS},
};
#define NUM_HOOKS (sizeof hooks / sizeof *hooks)

static void init_case(grad_case *model, int world_size, size_t which,
                      const gs_hook_choice *hook) {
    static const int64_t shapes[NUM_PARAMS][2] = {{40, 60}, {17, 0}, {300, 0}, {64, 33}};
    *model = (grad_case){.seed = 9,
                         .num_params = NUM_PARAMS,
                         .num_shards = world_size,
                         .passes_per_shard = 1,
                         .tally = hooks[which].tally,
                         .hook = *hook,
                         .own_backend = &counting_backend};
    for (size_t p = 0; p < NUM_PARAMS; p++)
        model->params[p] = gs_param_spec_make(GS_FP32, shapes[p][0], shapes[p][1], "p%zu", p);
    gs_status status =
        gs_bucket_plan_parity(&model->plan, model->params, NUM_PARAMS, 4096, 12000, NULL);
    if (status.code || model->plan.num_buckets < 2) abort();
}

static sent_bytes sum_formula(const grad_case *model, int world_size, size_t which) {
    sent_bytes all = {0, 0};
    for (size_t b = 0; b < model->plan.num_buckets; b++) {
        const gs_plan_bucket *bucket = &model->plan.buckets[b];
        gs_param_spec members[NUM_PARAMS];
        for (size_t i = 0; i < bucket->num_params; i++)
            members[i] = model->params[model->plan.params[bucket->first + i]];
        sent_bytes own = hooks[which].formula(
            &(bucket_shape){members, bucket->num_params, world_size});
        all.handed_over += own.handed_over;
        all.in_a_ring += own.in_a_ring;
    }
    return all;
}

static gs_status run_step(grad_rank *rank, int64_t step, sent_bytes wanted) {
    gs_reduce_result result;
    uint64_t said = 0;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    counting_backend_take();
    GS_TRY(grad_rank_run_passes(rank, step));
    GS_TRY(gs_reducer_finish(rank->reducer, &result, soon()));
    counted_bytes counted = counting_backend_take();
    const gs_reduce_stats *stats = gs_reducer_stats(rank->reducer);
    for (size_t b = 0; b < stats->num_buckets; b++) said += stats->buckets[b].wire_bytes;
    if ((double)counted.of_buckets != wanted.handed_over || said != counted.of_buckets ||
        fabs(counted.in_a_ring - wanted.in_a_ring) > 1e-6 * wanted.in_a_ring)
        return gs_error(GS_INTERNAL,
                        "step %lld: %llu bytes counted, %llu said, %.0f by the formula; in a ring "
                        "%.1f, by the formula %.1f",
                        (long long)step, (unsigned long long)counted.of_buckets,
                        (unsigned long long)said, wanted.handed_over, counted.in_a_ring,
                        wanted.in_a_ring);
    return gs_ok();
}

// arg: which hook
static gs_status body_count(const gs_rank_env *env) {
    size_t which = strtoul(env->arg, NULL, 10);
    bool is_low_rank = strcmp(hooks[which].name, "powersgd") == 0;
    const gs_hook_choice inner = {
        .hook = hooks[which].inner ? gs_comm_hook_find(hooks[which].inner) : NULL};
    const gs_hook_choice hook = {.hook = gs_comm_hook_find(hooks[which].name),
                                 .inner = inner.hook ? &inner : NULL,
                                 .numbers = from_the_start,
                                 .num_numbers = is_low_rank ? 3 : 0};
    if (!hook.hook) return gs_error(GS_NOT_FOUND, "no such hook");
    grad_case model;
    grad_rank rank;
    init_case(&model, env->world_size, which, &hook);
    gs_status status = grad_rank_open(&rank, &model, env, NULL, soon());
    sent_bytes wanted = sum_formula(&model, env->world_size, which);
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++)
        status = run_step(&rank, step, wanted);
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

static void hooks_send_what_their_formulas_say(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_HOOKS; i++) {
        char arg[16];
        snprintf(arg, sizeof arg, "%zu", i);
        gs_status status = gs_ranks_run("count", 3, arg, gs_deadline_in_seconds(60));
        if (status.code)
            fail_msg("%s%s%s: %s", hooks[i].name, hooks[i].inner ? " around " : "",
                     hooks[i].inner ? hooks[i].inner : "", status.message);
    }
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"count", body_count}, {0}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {cmocka_unit_test(hooks_send_what_their_formulas_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
