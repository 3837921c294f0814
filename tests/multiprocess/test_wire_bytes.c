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

#include "core/hook_volume.h"
#include "core/low_rank.h"
#include "gradsync/bucket/bucket.h"
#include "gradsync/reducer/reducer.h"
#include "tests/support/counting_backend.h"
#include "tests/support/grad_case.h"
#include "tests/support/soon.h"

#define NUM_PARAMS 5
#define NUM_STEPS 2

// Where tallies travel apart, buckets are gradients alone; each parameter is rounded up to a line.
typedef struct bucket_shape {
    const gs_param_spec *params;
    size_t num_params;
    int world_size;
} bucket_shape;

static size_t count_elements(const bucket_shape *shape) {
    size_t count = 0;
    for (size_t i = 0; i < shape->num_params; i++) count += gs_bucket_room(&shape->params[i]);
    return count;
}

// Formulas are of what leaves a rank in a ring: 2 (world - 1) / world of what is added up.
static double of_allreduce(const bucket_shape *shape, size_t num_bytes) {
    return (double)num_bytes * 2 * (shape->world_size - 1) / shape->world_size;
}

static double of_fp32(const bucket_shape *shape) {
    return of_allreduce(shape, 4 * count_elements(shape));
}

static double of_halves(const bucket_shape *shape) {
    return of_allreduce(shape, 2 * count_elements(shape));
}

// The reserved elements alone: four, and one for each member, in whole lines.
static double of_tally(const bucket_shape *shape) {
    return of_allreduce(shape, (4 * (shape->num_params + 4) + 63) / 64 * 64);
}

// Two factors of a gradient that is worth it, all others as they are.
static double of_factors(const bucket_shape *shape) {
    size_t count = 0;
    for (size_t i = 0; i < shape->num_params; i++) {
        gs_low_rank matrix = gs_low_rank_of(&shape->params[i], 1, 2);
        count += matrix.rank ? gs_low_rank_sent(matrix) : gs_bucket_room(&shape->params[i]);
    }
    return of_allreduce(shape, 4 * count);
}

// The same of the square that all of it makes.
static double of_square(const bucket_shape *shape) {
    size_t side = 0;
    while (side * side < count_elements(shape)) side++;
    return of_allreduce(shape, 4 * 2 * side);
}

// What goes to every other rank.
static double of_allgather(const bucket_shape *shape, size_t num_bytes) {
    return (double)num_bytes * (shape->world_size - 1);
}

static size_t up_to(size_t boundary, size_t bytes) {
    return (bytes + boundary - 1) / boundary * boundary;
}

// A byte for each, a scale and a zero for each segment.
static size_t count_codes(size_t num_elements, size_t segment_count) {
    size_t num_segments = up_to(segment_count, num_elements) / segment_count;
    return up_to(16, num_elements) + up_to(16, 2 * 4 * num_segments);
}

static double of_bytes(const bucket_shape *shape) {
    return of_allgather(shape, count_codes(count_elements(shape), count_elements(shape)));
}

static double of_rows(const bucket_shape *shape) {
    return of_allgather(shape, count_codes(count_elements(shape), 512));
}

// Sums of a part, its codes, and what is left over; small buckets are sums.
static double of_parts(const bucket_shape *shape) {
    size_t all = count_elements(shape), world_size = (size_t)shape->world_size;
    size_t part = all / world_size / 64 * 64;
    if (part < 4096) return of_fp32(shape);
    return of_allreduce(shape, 4 * (all - world_size * part)) +
           of_allgather(shape, 4 * part + count_codes(part, 65536));
}

static size_t count_gradients(const bucket_shape *shape) {
    size_t count = 0;
    for (size_t i = 0; i < shape->num_params; i++) count += gs_param_spec_count(&shape->params[i]);
    return count;
}

// A value and a place for one in a hundred; in 16 bits the value is half as long.
static double of_largest(const bucket_shape *shape) {
    size_t chosen = (count_gradients(shape) + 99) / 100;
    return of_allgather(shape, up_to(64, 8 * chosen));
}

static double of_largest_in_halves(const bucket_shape *shape) {
    size_t chosen = (count_gradients(shape) + 99) / 100;
    return of_allgather(shape, up_to(64, up_to(4, 2 * chosen) + 4 * chosen));
}

// A bit for each, two means for each parameter, whose bits may be 16 apart.
static double of_signs(const bucket_shape *shape) {
    size_t bits = count_gradients(shape) + 16 * shape->num_params;
    return of_allgather(shape, up_to(64, 8 * shape->num_params + bits / 8 + 1));
}

// From the first step on; PowerSGD carries nothing then, and local SGD's ranks are alone.
static const gs_hook_number from_the_start[] = {
    {"start_step", 0}, {"error_feedback", 0}, {"warm_start", 0}, {"local_ranks", 1}};

static const struct {
    const char *name, *inner;
    double (*formula)(const bucket_shape *shape);
    gs_tally_carrier tally;
} hooks[] = {
    {"allreduce", NULL, of_fp32, GS_TALLY_APART},
    {"fp16", NULL, of_halves, GS_TALLY_APART},
    {"bf16", NULL, of_halves, GS_TALLY_APART},
    {"wrap_fp16", "allreduce", of_halves, GS_TALLY_APART},
    {"wrap_bf16", "bf16", of_halves, GS_TALLY_APART},
    {"noop", NULL, of_tally, GS_TALLY_IN_BUCKETS},
    {"powersgd", NULL, of_factors, GS_TALLY_APART},
    {"wrap_fp16", "noop", of_tally, GS_TALLY_IN_BUCKETS},
    {"batched_powersgd", NULL, of_square, GS_TALLY_APART},
    {"int8", NULL, of_bytes, GS_TALLY_APART},
    {"int8_channel", NULL, of_rows, GS_TALLY_APART},
    {"uint8_gather", NULL, of_parts, GS_TALLY_APART},
    {"topk", NULL, of_largest, GS_TALLY_APART},
    {"wrap_fp16", "topk", of_largest_in_halves, GS_TALLY_APART},
    {"onebit", NULL, of_signs, GS_TALLY_APART},
    {"local_sgd", NULL, of_tally, GS_TALLY_IN_BUCKETS},
};
#define NUM_HOOKS (sizeof hooks / sizeof *hooks)

static void init_case(grad_case *model, int world_size, size_t which,
                      const gs_hook_choice *hook) {
    static const int64_t shapes[NUM_PARAMS][2] = {{40, 60}, {17, 0}, {300, 0}, {64, 33},
                                                     {130, 100}};
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

static double sum_formula(const grad_case *model, int world_size, size_t which) {
    double all = 0;
    for (size_t b = 0; b < model->plan.num_buckets; b++) {
        const gs_plan_bucket *bucket = &model->plan.buckets[b];
        gs_param_spec members[NUM_PARAMS];
        for (size_t i = 0; i < bucket->num_params; i++)
            members[i] = model->params[model->plan.params[bucket->first + i]];
        all += hooks[which].formula(&(bucket_shape){members, bucket->num_params, world_size});
    }
    return all;
}

// What the coordinator says of the plan, before any rank has run.
static double sum_volumes(const grad_case *model, int world_size, size_t which) {
    const bool is_wrapped = hooks[which].inner != NULL;
    const gs_hook_rule rule = {
        .kind = is_wrapped ? hooks[which].inner : hooks[which].name,
        .wire_dtype = is_wrapped ? gs_dtype_from_name(hooks[which].name + strlen("wrap_"))
                                 : GS_DTYPE_UNSET,
        .world_size = world_size,
        .local_ranks = 1,
        .rank = 1,
        .min_compression_rate = 2,
        .ratio = 0.01};
    double bytes = 0;
    for (size_t b = 0; b < model->plan.num_buckets; b++) {
        const gs_plan_bucket *bucket = &model->plan.buckets[b];
        bytes += (double)gs_hook_volume_of(&rule, model->params, model->plan.params + bucket->first,
                                           bucket->num_params)
                     .wire_bytes;
    }
    return bytes;
}

// What is said is in bytes of an all-reduce.
static bool says_so(double said, int world_size, double in_a_ring) {
    return fabs(said * 2 * (world_size - 1) / world_size - in_a_ring) <= 1e-6 * in_a_ring;
}

static gs_status check_volumes(const grad_case *model, int world_size, size_t which, double wanted) {
    double said = sum_volumes(model, world_size, which);
    // Tallies come on top, and are all that these hooks send.
    if (hooks[which].tally == GS_TALLY_IN_BUCKETS) wanted = 0;
    if (says_so(said, world_size, wanted)) return gs_ok();
    return gs_error(GS_INTERNAL, "the plan says %.0f bytes, by the formula %.0f are sent", said, wanted);
}

static gs_status run_step(grad_rank *rank, int64_t step, double wanted) {
    gs_reduce_result result;
    uint64_t said = 0;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    counting_backend_take();
    GS_TRY(grad_rank_run_passes(rank, step));
    GS_TRY(gs_reducer_finish(rank->reducer, &result, soon()));
    counted_bytes counted = counting_backend_take();
    const gs_reduce_stats *stats = gs_reducer_stats(rank->reducer);
    for (size_t b = 0; b < stats->num_buckets; b++) said += stats->buckets[b].wire_bytes;
    if (!says_so((double)said, rank->world_size, wanted) ||
        fabs(counted.in_a_ring - wanted) > 1e-6 * wanted)
        return gs_error(GS_INTERNAL, "step %lld: %.1f bytes counted, by the formula %.1f; %llu said",
                        (long long)step, counted.in_a_ring, wanted, (unsigned long long)said);
    return gs_ok();
}

// Those that the hook has.
static size_t choose_numbers(gs_hook_number *numbers, const gs_comm_hook *hook) {
    size_t count = 0;
    for (size_t k = 0; k < sizeof from_the_start / sizeof *from_the_start; k++)
        for (size_t i = 0; i < hook->num_options; i++)
            if (strcmp(hook->options[i].name, from_the_start[k].name) == 0)
                numbers[count++] = from_the_start[k];
    return count;
}

// arg: which hook
static gs_status body_count(const gs_rank_env *env) {
    size_t which = strtoul(env->arg, NULL, 10);
    const gs_hook_choice inner = {
        .hook = hooks[which].inner ? gs_comm_hook_find(hooks[which].inner) : NULL};
    gs_hook_number numbers[sizeof from_the_start / sizeof *from_the_start];
    gs_hook_choice hook = {.hook = gs_comm_hook_find(hooks[which].name),
                           .inner = inner.hook ? &inner : NULL,
                           .numbers = numbers};
    if (!hook.hook) return gs_error(GS_NOT_FOUND, "no such hook");
    hook.num_numbers = choose_numbers(numbers, hook.hook);
    grad_case model;
    grad_rank rank;
    init_case(&model, env->world_size, which, &hook);
    gs_status status = grad_rank_open(&rank, &model, env, NULL, soon());
    double wanted = sum_formula(&model, env->world_size, which);
    if (!status.code) status = check_volumes(&model, env->world_size, which, wanted);
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
