// Hooks whose results are a rank's own: gradients that stay local, or with some of the ranks, while
// what ranks tell each other of a step stays common.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"

#define START_STEP 2
#define NUM_STEPS 5

// "HOOK LOCAL_RANKS OP WIRE"
typedef struct setting {
    char hook[GS_HOOK_NAME_LEN];
    int local_ranks, op, wire;
    gs_hook_number numbers[2];
    gs_hook_choice choice;
} setting;

static void read_setting(setting *set, const gs_rank_env *env) {
    *set = (setting){0};
    sscanf(env->arg, "%47s %d %d %d", set->hook, &set->local_ranks, &set->op, &set->wire);
    set->numbers[0] = (gs_hook_number){.name = "start_step", .number = START_STEP};
    set->numbers[1] = (gs_hook_number){.name = "local_ranks", .number = set->local_ranks};
    set->choice = (gs_hook_choice){.hook = gs_comm_hook_find(set->hook)};
    if (strcmp(set->hook, "local_sgd") == 0)
        set->choice.numbers = set->numbers, set->choice.num_numbers = 2;
}

static gs_status open_small(small_reducer *small, const setting *set, const gs_rank_env *env) {
    const gs_reducer_options options = {.op = (gs_reducer_op)set->op,
                                        .wire_dtype = (gs_dtype)set->wire,
                                        .hooks = &set->choice,
                                        .num_hooks = 1};
    small_reducer_prepare(small);
    return small_reducer_open(small, &options, env);
}

static double value_of(int rank, int64_t step, size_t param) {
    return (double)(rank * rank + 1) + (double)step / 4 + (double)param / 8;
}

// What a rank has after a step, added up serially.
static double wanted_of(const setting *set, int rank, int world_size, int64_t step, size_t param) {
    int size = strcmp(set->hook, "noop") == 0 ? 1 : set->local_ranks, first, last;
    if (step < START_STEP && size != 1) size = world_size;
    if (step < START_STEP && strcmp(set->hook, "local_sgd") == 0) size = world_size;
    if (size == 0 || size > world_size) size = world_size;
    first = rank / size * size;
    last = first + size < world_size ? first + size : world_size;
    double sum = 0;
    for (int r = first; r < last; r++) sum += value_of(r, step, param);
    return set->op == GS_MEAN ? sum / (last - first) : sum;
}

static gs_status check_step(small_reducer *small, const setting *set, int num_shards,
                            int64_t step) {
    double values[SMALL_PARAMS], squares = 0;
    gs_reduce_result result;
    for (size_t p = 0; p < SMALL_PARAMS; p++) values[p] = value_of(small->rank, step, p);
    // A parameter that rank 1 alone uses: that is known to all.
    if (small->rank != 1 && small->world_size > 1) values[3] = NAN;
    GS_TRY(gs_reducer_begin(small->reducer, step));
    // Of equal shards, so that their mean is one of them.
    for (int i = 0; i < num_shards / small->world_size; i++)
        GS_TRY(small_reducer_run_pass(small, values, 1));
    GS_TRY(gs_reducer_finish(small->reducer, &result, soon()));
    if (result.samples != num_shards || result.nonfinite || result.num_unused)
        return gs_error(GS_INTERNAL, "step %d: %lld samples, nonfinite %d, unused %zu", (int)step,
                        (long long)result.samples, result.nonfinite, result.num_unused);
    for (size_t p = 0; p < 3; p++) {
        double wanted = wanted_of(set, small->rank, small->world_size, step, p),
               got = small_reducer_grad(small, p, SMALL_COUNT - 1);
        char what[48];
        snprintf(what, sizeof what, "step %d, parameter %zu", (int)step, p);
        GS_TRY(check_near(what, got, wanted, (gs_near){.relative = set->wire ? 1e-2 : 1e-6}));
    }
    for (size_t p = 0; p < SMALL_PARAMS; p++)
        squares += SMALL_COUNT * pow(small_reducer_grad(small, p, 0), 2);
    return check_near("the norm", result.grad_norm, sqrt(squares), (gs_near){.relative = 1e-5});
}

static gs_status run_steps(const gs_rank_env *env) {
    small_reducer small;
    setting set;
    read_setting(&set, env);
    GS_TRY(open_small(&small, &set, env));
    gs_status status = gs_ok();
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++)
        status = check_step(&small, &set, env->world_size, step);
    small_reducer_close(&small);
    return status;
}

// Rank 1 overflows, in a step that is its own business otherwise: none makes the update.
static gs_status overflow(const gs_rank_env *env) {
    small_reducer small;
    setting set;
    gs_reduce_result result;
    read_setting(&set, env);
    GS_TRY(open_small(&small, &set, env));
    gs_status status = gs_ok();
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        bool overflows = step == START_STEP + 1;
        double value = overflows && env->rank == 1 ? (double)INFINITY : 1;
        status = small_reducer_run_step(&small, step, (const double[]){1, value, 1, 1}, &result);
        if (!status.code && (result.nonfinite != overflows || isnan(result.grad_norm) != overflows))
            status = gs_error(GS_INTERNAL, "step %d: nonfinite %d, norm %g", (int)step,
                              result.nonfinite, result.grad_norm);
    }
    small_reducer_close(&small);
    return status;
}

static gs_status expect(gs_status status, const char *words) {
    if (status.code && strstr(status.message, words)) return gs_ok();
    return gs_error(GS_INTERNAL, "not \"%s\" but: %s", words, status.message);
}

// Ranks would have to divide by samples that are another rank's, or to tell parts of what is whole.
static gs_status refuse(const gs_rank_env *env) {
    small_reducer small;
    gs_reduce_result result;
    const gs_hook_choice noop = {.hook = gs_comm_hook_find("noop")};
    gs_reducer_options options = {.op = GS_SAMPLE_MEAN, .hooks = &noop, .num_hooks = 1};
    small_reducer_prepare(&small);
    GS_TRY(expect(small_reducer_open(&small, &options, env), "sample mean"));
    options = (gs_reducer_options){.tally = GS_TALLY_APART, .hooks = &noop, .num_hooks = 1};
    small_reducer_prepare(&small);
    GS_TRY(small_reducer_open(&small, &options, env));
    gs_status status =
        expect(small_reducer_run_step(&small, 0, (const double[]){1, 1, 1, 1}, &result),
               "GS_TALLY_IN_BUCKETS");
    small_reducer_close(&small);
    GS_TRY(status);
    options = (gs_reducer_options){.shards.exact = true, .hooks = &noop, .num_hooks = 1};
    small_reducer_prepare(&small);
    return expect(small_reducer_open(&small, &options, env), "exact");
}

// A reset with another world: parts are made anew, and the old communicator's end is no matter.
static gs_status shrink(const gs_rank_env *env) {
    small_reducer small;
    setting set;
    read_setting(&set, env);
    GS_TRY(open_small(&small, &set, env));
    gs_status status = gs_ok();
    for (int64_t step = 0; step < 4 && !status.code; step++)
        status = check_step(&small, &set, env->world_size, step);
    if (!status.code) status = gs_comm_wait_ended(small.comm, soon());
    if (!status.code && env->rank < 3) {
        gs_comm *next = NULL;
        small.world_size = 3;
        const gs_comm_options options = {.rank = env->rank,
                                         .world_size = 3,
                                         .ranks = (const int[]){0, 1, 2},
                                         .generation = 2,
                                         .exchange = gs_rank_exchange,
                                         .exchange_ctx = env->exchange,
                                         .arena = small.arena,
                                         .device = small.device};
        status = gs_comm_create(&next, &options, soon());
        if (!status.code) status = gs_reducer_reset(small.reducer, next, soon());
        for (int64_t step = 4; step < 6 && !status.code; step++)
            status = check_step(&small, &set, env->world_size, step);
        gs_comm_destroy(small.comm);
        small.comm = next;
    }
    small_reducer_close(&small);
    // Nobody has ended before all have.
    char mine = 0, all[6];
    gs_status ended = gs_rank_exchange(env->exchange, "ended", NULL, 0, &mine, 1, all, soon());
    return status.code ? status : ended;
}

// Rank 3 dies in a step of its own; who waits for it in a part, and who does not, all hear of it.
static gs_status lose_rank(const gs_rank_env *env) {
    small_reducer small;
    setting set;
    read_setting(&set, env);
    GS_TRY(open_small(&small, &set, env));
    gs_status status = gs_ok();
    for (int64_t step = 0; step < 4 && !status.code; step++)
        status = check_step(&small, &set, env->world_size, step);
    if (!status.code && env->rank == 3) _Exit(0);
    gs_reduce_result result;
    for (int64_t step = 4; step < 6 && !status.code; step++)
        status = small_reducer_run_step(&small, step, (const double[]){1, 1, 1, 1}, &result);
    gs_comm_failure failure;
    gs_comm_explain(small.comm, &failure);
    status = expect(status, "rank 3");
    if (!status.code && !gs_comm_failure_names(&failure, 3))
        status = gs_error(GS_INTERNAL, "a failure of kind %d does not name rank 3", failure.kind);
    small_reducer_close(&small);
    return status;
}

static const gs_rank_body bodies[] = {{"steps", run_steps}, {"overflow", overflow},
                                      {"refuse", refuse},   {"shrink", shrink},
                                      {"lose", lose_rank},  {NULL, NULL}};

static void run(const char *body, int world_size, const char *arg) {
    gs_status status = gs_ranks_run(body, world_size, arg, soon());
    if (status.code) print_error("%s of %d ranks, %s: %s\n", body, world_size, arg, status.message);
    assert_int_equal(status.code, GS_OK);
}

static void gradients_stay_with_each_rank(void **state) {
    (void)state;
    run("steps", 1, "noop 0 0 0");
    run("steps", 3, "noop 0 0 0");
    run("steps", 2, "noop 0 1 0");
}

static void gradients_stay_in_each_part(void **state) {
    (void)state;
    run("steps", 4, "local_sgd 2 0 0");
    run("steps", 3, "local_sgd 2 0 0");
    run("steps", 2, "local_sgd 1 0 0");
    run("steps", 2, "local_sgd 0 0 0");
    run("steps", 3, "local_sgd 2 1 0");
    char half[48];
    snprintf(half, sizeof half, "local_sgd 2 0 %d", GS_BF16);
    run("steps", 4, half);
}

static void an_overflow_of_one_rank_is_left_out_by_all(void **state) {
    (void)state;
    run("overflow", 3, "local_sgd 1 0 0");
    run("overflow", 4, "local_sgd 2 0 0");
}

static void what_has_no_result_of_one_rank_is_refused(void **state) {
    (void)state;
    run("refuse", 2, "");
}

static void parts_follow_the_world(void **state) {
    (void)state;
    run("shrink", 6, "local_sgd 2 0 0");
}

static void a_rank_that_dies_ends_all_parts(void **state) {
    (void)state;
    gs_ranks *ranks;
    gs_status statuses[4];
    assert_ok(gs_ranks_start(&ranks, "lose", 4, "local_sgd 2 0 0", NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, soon()));
    gs_ranks_destroy(ranks);
    for (int i = 0; i < 3; i++) assert_ok(statuses[i]);
}

int main(int argc, char **argv) {
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_stay_with_each_rank),
        cmocka_unit_test(gradients_stay_in_each_part),
        cmocka_unit_test(an_overflow_of_one_rank_is_left_out_by_all),
        cmocka_unit_test(what_has_no_result_of_one_rank_is_refused),
        cmocka_unit_test(parts_follow_the_world),
        cmocka_unit_test(a_rank_that_dies_ends_all_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
