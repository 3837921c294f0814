// PowerSGD between ranks, and what goes wrong with it elsewhere: numbers that are none behind
// gradients of zero, several buckets in flight, memory that grows without end or belongs to a
// bucket's number, a batched form that does not work. A rank's bits do not depend on its CPU, nor
// on how often a step was begun.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/hooks/random_factor.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/hook_trial.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/sample.h"
#include "tests/support/soon.h"

#define START 2
#define NUM_STEPS 10
#define FAILING_STEP 6
#define REPLAN_STEP 4
#define RUN_SECONDS 100.0

// A hook with its options: what `arg` of a rank's body begins with.
typedef struct recipe {
    const char *name, *hook, *inner;
    gs_hook_number numbers[4];
    double tolerance;  // of what is lost on the way
} recipe;

static const recipe recipes[] = {
    {"rank2", "powersgd", NULL, {{"rank", 2}, {"start_step", START}}, 2e-5},
    {"rank4", "powersgd", NULL, {{"rank", 4}, {"start_step", START}}, 2e-5},
    {"epsilon",
     "powersgd",
     NULL,
     {{"rank", 4}, {"start_step", START}, {"orthogonalization_epsilon", 1e-8}},
     2e-5},
    {"cold", "powersgd", NULL, {{"rank", 2}, {"start_step", START}, {"warm_start", 0}}, 2e-5},
    {"batched", "batched_powersgd", NULL, {{"rank", 2}, {"start_step", START}}, 2e-5},
    {"narrow", "wrap_bf16", "powersgd", {{"rank", 2}, {"start_step", START}}, 0.05},
};
enum { NUM_RECIPES = sizeof recipes / sizeof recipes[0] };

static const recipe *find_recipe(const char *name) {
    for (size_t i = 0; i < NUM_RECIPES; i++)
        if (strcmp(recipes[i].name, name) == 0) return &recipes[i];
    return NULL;
}

// What the hook reported of the last step that counts; of one inside a wrapper nothing.
static const gs_comm_hook *reporting;
static gs_hook_report reported;

static void commit_and_report(void *state) {
    reported = (gs_hook_report){0};
    reporting->report(state, &reported);
    reporting->commit(state);
}

static const gs_comm_hook *report_of(const gs_comm_hook *hook) {
    static gs_comm_hook wrapped;
    reporting = hook;
    wrapped = *hook;
    wrapped.commit = commit_and_report;
    return &wrapped;
}

static const gs_hook_choice *choose(const recipe *chosen) {
    static gs_hook_choice choices[2];
    gs_hook_choice choice = {.hook =
                                 gs_comm_hook_find(chosen->inner ? chosen->inner : chosen->hook),
                             .numbers = chosen->numbers};
    while (choice.num_numbers < 4 && chosen->numbers[choice.num_numbers].name) choice.num_numbers++;
    choice.hook = report_of(choice.hook);
    choices[0] = choice;
    if (!chosen->inner) return &choices[0];
    choices[1] = (gs_hook_choice){.hook = gs_comm_hook_find(chosen->hook), .inner = &choices[0]};
    return &choices[1];
}

// Ranks on CPUs of three kinds, as far as this machine plays them.
static const char *isa_of(int rank) {
    static const char *const isas[] = {"baseline", "avx2", NULL};
    const char *isa = isas[rank % 3];
    gs_device *device;
    if (gs_device_open(&device, "cpu", &(gs_device_options){.isa = isa}).code) return NULL;
    gs_device_close(device);
    return isa;
}

// Zero on every rank in some steps, for one matrix from the first on.
static double value_with_zeros(const hook_trial *trial, int64_t step, int shard, size_t param,
                               size_t index) {
    const bool is_zero = param == 0 ? step < FAILING_STEP : step == START || step == START + 3;
    return is_zero ? 0 : hook_trial_drawn(trial, step, shard, param, index);
}

static bool is_zero_result(const hook_trial *trial, size_t param) {
    const size_t bytes = gs_param_spec_bytes(&trial->params[param]);
    float *result = calloc(1, bytes);
    bool is_zero = true;
    device_memory_read(trial->device, result, gs_reducer_grads(trial->reducer)[param], bytes);
    for (size_t i = 0; i < bytes / sizeof *result; i++) is_zero &= result[i] == 0;
    free(result);
    return is_zero;
}

// Within a square zeros are not alone.
static gs_status step_with_zeros(hook_trial *trial, int64_t step, bool by_tensor) {
    GS_TRY(hook_trial_step(trial, step));
    const bool may_be_zero = step < FAILING_STEP;
    if (is_zero_result(trial, 0) == may_be_zero || (may_be_zero && !by_tensor)) return gs_ok();
    return gs_error(GS_INTERNAL, "step %d: the gradient that was zero is %s", (int)step,
                    step < FAILING_STEP ? "not" : "for ever");
}

// Of a square it counts what lies between tensors, too.
static gs_status check_report(const hook_trial *trial, bool is_square) {
    const double owed = hook_trial_owed(trial);
    if (!reported.carries || reported.elements_sent >= reported.elements ||
        !is_near(sqrt(reported.residual_squares), owed,
                 (gs_near){.relative = is_square ? 1e-2 : 1e-5}))
        return gs_error(GS_INTERNAL, "%llu elements became %llu, residuals %g, wanted %g",
                        (unsigned long long)reported.elements,
                        (unsigned long long)reported.elements_sent, sqrt(reported.residual_squares),
                        owed);
    return gs_ok();
}

// What a factor was drawn as, on any device: another rank's would still lose nothing, and approximate worse.
static gs_status check_factors(const hook_trial *trial, uint64_t draw) {
    gs_hook_state_tensor state;
    gs_status status = gs_ok();
    for (size_t i = 0; gs_reducer_hook_state(&state, trial->reducer, i) && !status.code; i++) {
        const gs_hook_tensor *factor = &state.tensor;
        const size_t bytes = factor->count * gs_dtype_bytes(factor->dtype);
        if (factor->is_own) continue;
        void *got = malloc(bytes), *wanted = malloc(bytes);
        device_memory_read(trial->device, got, factor->data, bytes);
        gs_random_factor_fill(wanted, factor->dtype, factor->count,
                              (gs_random_factor){.draw = draw, .key = (uint64_t)factor->param});
        if (memcmp(got, wanted, bytes) != 0)
            status = gs_error(GS_INTERNAL, "%s is not its draw %d", state.name, (int)draw);
        free(got);
        free(wanted);
    }
    return status;
}

// Nothing is lost, through a replan either: what results lack is what ranks owe. All ranks have the
// same bits.
static gs_status body_sums(const gs_rank_env *env) {
    const recipe *chosen = find_recipe(env->arg);
    hook_trial trial;
    gs_status status = hook_trial_open(&trial, env, choose(chosen), isa_of(env->rank));
    bool has_factors = !chosen->inner && strcmp(chosen->hook, "powersgd") == 0;
    bool is_cold = strcmp(chosen->name, "cold") == 0;
    trial.value = value_with_zeros;
    if (!status.code && has_factors) status = check_factors(&trial, 0);
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        if (step == REPLAN_STEP)
            status = gs_reducer_set_plan(trial.reducer, &trial.plans[1], soon());
        if (!status.code) status = step_with_zeros(&trial, step, strcmp(env->arg, "batched") != 0);
    }
    if (!status.code && is_cold) status = check_factors(&trial, NUM_STEPS);
    if (!status.code) status = hook_trial_check(&trial, chosen->tolerance);
    if (!status.code) status = check_report(&trial, strcmp(env->arg, "batched") == 0);
    hook_trial_close(&trial);
    return status;
}

static void run_sums(int world_size, const recipe *chosen) {
    gs_status status =
        gs_ranks_run("sums", world_size, chosen->name, gs_deadline_in_seconds(RUN_SECONDS));
    if (status.code) fail_msg("%s, %d ranks: %s", chosen->name, world_size, status.message);
}

// On a device two ranks; where runs are sampled, with one recipe.
static void results_lack_what_ranks_owe_and_zeros_are_survived(void **state) {
    (void)state;
    const sample drawn = sample_from_environment();
    if (!test_device_is_host() && drawn.share > 1) {
        if (!sample_takes_all_of("PowerSGD on a device")) return;
        sample_say(&drawn, "the recipes");
        run_sums(2, &recipes[drawn.seed % NUM_RECIPES]);
        return;
    }
    for (int world_size = 1; world_size <= 8; world_size++) {
        if (!test_device_is_host() && world_size != 2) continue;
        if (world_size > 4 && !sample_takes(&drawn, 0x3051d, (uint64_t)world_size)) continue;
        for (size_t i = 0; i < NUM_RECIPES; i++)
            if (world_size == 2 || world_size == 4 || i == (size_t)world_size % NUM_RECIPES) run_sums(world_size, &recipes[i]);
    }
}

// Each rank differs from the mean by the same in every step.
static double value_of_different_ranks(const hook_trial *trial, int64_t step, int shard,
                                       size_t param, size_t index) {
    const double own = hook_trial_drawn(trial, 1000, shard, param, index);
    return own + hook_trial_drawn(trial, step, 0, param, index) / 4;
}

static gs_status body_bounded(const gs_rank_env *env) {
    hook_trial trial;
    double early = 0;
    gs_status status = hook_trial_open(&trial, env, choose(find_recipe(env->arg)), NULL);
    trial.value = value_of_different_ranks;
    for (int64_t step = 0; step < 200 && !status.code; step++) {
        gs_reduce_result result;
        status = hook_trial_reduce(&trial, step, &result);
        if (!status.code) status = gs_reducer_commit(trial.reducer);
        if (step == 50) early = hook_trial_owed(&trial);
    }
    const double late = hook_trial_owed(&trial);
    if (!status.code && !(early > 0 && late < 2 * early))
        status = gs_error(GS_INTERNAL, "owed after 50 steps %g, after 200 steps %g", early, late);
    hook_trial_close(&trial);
    return status;
}

static void errors_of_ranks_that_differ_stay_bounded(void **state) {
    (void)state;
    assert_ok(gs_ranks_run("bounded", 2, "rank2", gs_deadline_in_seconds(RUN_SECONDS)));
}

// What may come between in FAILING_STEP.
static double value_that_overflows(const hook_trial *trial, int64_t step, int shard, size_t param,
                                   size_t index) {
    if (shard == 1 && param == 2 && index == 7) return NAN;
    return hook_trial_drawn(trial, step, shard, param, index);
}

static gs_status undo_step(hook_trial *trial, bool is_finite) {
    gs_reduce_result result;
    trial->value = is_finite ? NULL : value_that_overflows;
    GS_TRY(hook_trial_reduce(trial, FAILING_STEP, &result));
    trial->value = NULL;
    if (result.nonfinite == is_finite)
        return gs_error(GS_INTERNAL, "not finite: %d", result.nonfinite);
    return gs_reducer_rollback(trial->reducer);
}

// State into memory, and into another reducer.
static gs_status reload(hook_trial *trial, const gs_rank_env *env, const gs_hook_choice *choice) {
    void *kept[4 * HOOK_TRIAL_PARAMS];
    size_t num_kept = 0;
    gs_hook_state_tensor state;
    gs_digest_stream *digest = trial->digest;
    for (; gs_reducer_hook_state(&state, trial->reducer, num_kept); num_kept++) {
        const size_t bytes = state.tensor.count * gs_dtype_bytes(state.tensor.dtype);
        kept[num_kept] = calloc(1, bytes);
        if (state.tensor.is_on_host)
            memcpy(kept[num_kept], state.tensor.data, bytes);
        else
            device_memory_read(trial->device, kept[num_kept], state.tensor.data, bytes);
    }
    trial->digest = NULL;
    hook_trial_close(trial);
    GS_TRY(hook_trial_open(trial, env, choice, NULL));
    gs_digest_stream_destroy(trial->digest);
    trial->digest = digest;
    for (size_t i = 0; gs_reducer_hook_state(&state, trial->reducer, i); i++) {
        const size_t bytes = state.tensor.count * gs_dtype_bytes(state.tensor.dtype);
        if (state.tensor.is_on_host)
            memcpy(state.tensor.data, kept[i], bytes);
        else
            device_memory_write(trial->device, state.tensor.data, kept[i], bytes);
        free(kept[i]);
    }
    return gs_reducer_hook_state_loaded(trial->reducer);
}

static gs_status interrupt(hook_trial *trial, const gs_rank_env *env, const recipe *chosen,
                           const char *how) {
    if (strcmp(how, "redo") == 0) return undo_step(trial, true);
    if (strcmp(how, "overflow") == 0) return undo_step(trial, false);
    if (strcmp(how, "replan") == 0)
        return gs_reducer_set_plan(trial->reducer, &trial->plans[1], soon());
    if (strcmp(how, "reset") == 0) return hook_trial_reset(trial, env->world_size);
    if (strcmp(how, "reload") == 0) return reload(trial, env, choose(chosen));
    return gs_ok();
}

static void note_digest(const gs_rank_env *env, hook_trial *trial) {
    char note[32];
    snprintf(note, sizeof note, "%016llx", (unsigned long long)hook_trial_digest(trial));
    gs_rank_note(env, note);
}

// arg: "HOW RECIPE"
static gs_status body_interrupted(const gs_rank_env *env) {
    char how[16], name[16];
    if (sscanf(env->arg, "%15s %15s", how, name) != 2) return gs_error(GS_INTERNAL, "what?");
    const recipe *chosen = find_recipe(name);
    hook_trial trial;
    gs_status status = hook_trial_open(&trial, env, choose(chosen), NULL);
    for (int64_t step = 0; step < NUM_STEPS && !status.code; step++) {
        if (step == FAILING_STEP) status = interrupt(&trial, env, chosen, how);
        if (!status.code) status = hook_trial_step(&trial, step);
    }
    if (!status.code) note_digest(env, &trial);
    hook_trial_close(&trial);
    return status;
}

// Nobody is a step behind.
static gs_status meet(const gs_rank_env *env) {
    char here = 1, all[4];
    return gs_rank_exchange(env->exchange, "here", NULL, 0, &here, 1, all, soon());
}

// Rank 1 fails at a failpoint of FAILING_STEP, and all begin it again; or the last rank is killed
// there, or leaves before, and the others go on. arg: "HOW RECIPE"
static gs_status body_failing(const gs_rank_env *env) {
    char how[16], name[16];
    if (sscanf(env->arg, "%15s %15s", how, name) != 2) return gs_error(GS_INTERNAL, "what?");
    hook_trial trial;
    gs_reduce_result result;
    gs_status status = hook_trial_open(&trial, env, choose(find_recipe(name)), NULL);
    for (int64_t step = 0; step < FAILING_STEP && !status.code; step++)
        status = hook_trial_step(&trial, step);
    if (!status.code) status = meet(env);
    const bool shrinks = strcmp(how, "error") != 0, leaves = strcmp(how, "leave") == 0;
    if (!status.code && leaves && env->rank == env->world_size - 1) {
        hook_trial_close(&trial);
        return gs_ok();
    }
    if (!status.code && !leaves && !hook_trial_reduce(&trial, FAILING_STEP, &result).code)
        status = gs_error(GS_INTERNAL, "the failure went by");
    if (!status.code) status = hook_trial_reset(&trial, env->world_size - shrinks);
    for (int64_t step = FAILING_STEP; step < NUM_STEPS && !status.code; step++)
        status = hook_trial_step(&trial, step);
    if (!status.code) note_digest(env, &trial);
    hook_trial_close(&trial);
    return status;
}

// The note of rank 0; the others' are the same.
static void run_noting(char note[32], const char *body, int world_size, int num_survivors,
                       const char *how, const char *name, const char *failpoints) {
    char arg[40], variable[64];
    const char *environment[] = {failpoints ? variable : NULL, NULL};
    gs_ranks *ranks;
    gs_status statuses[4];
    snprintf(arg, sizeof arg, "%s %s", how, name);
    snprintf(variable, sizeof variable, "GRADSYNC_FAILPOINTS=%s", failpoints ? failpoints : "");
    assert_ok(gs_ranks_start(&ranks, body, world_size, arg, environment));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(RUN_SECONDS)));
    for (int r = 0; r < num_survivors; r++) {
        if (statuses[r].code) fail_msg("%s, rank %d: %s", arg, r, statuses[r].message);
        assert_string_equal(gs_ranks_note(ranks, r), gs_ranks_note(ranks, 0));
    }
    snprintf(note, 32, "%s", gs_ranks_note(ranks, 0));
    assert_true(*note);
    gs_ranks_destroy(ranks);
}

static void a_step_that_comes_again_and_a_replan_change_no_bit(void **state) {
    (void)state;
    static const char *const ways[] = {"redo", "overflow", "replan", "reset", "reload"};
    static const char *const names[] = {"rank2", "cold", "batched"};
    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
        char wanted[32], note[32];
        run_noting(wanted, "interrupted", 2, 2, "plain", names[n], NULL);
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
            // Another plan makes other squares.
            if (strcmp(names[n], "batched") == 0 && strcmp(ways[i], "replan") == 0) continue;
            run_noting(note, "interrupted", 2, 2, ways[i], names[n], NULL);
            if (strcmp(note, wanted) != 0) fail_msg("%s, %s: other bits", ways[i], names[n]);
        }
    }
}

#ifdef GRADSYNC_FAILPOINTS
// Buckets of a parameter each: so many passes of a step come to each failpoint.
#define AT(step, bucket) ((step)*HOOK_TRIAL_PARAMS + (bucket) + 1)

static void a_failure_between_phases_changes_no_bit(void **state) {
    (void)state;
    char wanted[32], note[32], failpoints[64];
    run_noting(wanted, "interrupted", 2, 2, "plain", "rank2", NULL);
    static const char *const places[] = {"reducer.launch", "reducer.phase"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(failpoints, sizeof failpoints, "%s#1=error@%d", places[i], AT(FAILING_STEP, 4));
        run_noting(note, "failing", 2, 2, "error", "rank2", failpoints);
        if (strcmp(note, wanted) != 0) fail_msg("%s: other bits", places[i]);
    }
}

static void survivors_of_a_killed_rank_go_on_as_if_it_had_left(void **state) {
    (void)state;
    char wanted[32], note[32], failpoints[64];
    run_noting(wanted, "failing", 3, 2, "leave", "rank2", NULL);
    snprintf(failpoints, sizeof failpoints, "reducer.phase#2=kill@%d", AT(FAILING_STEP, 4));
    run_noting(note, "failing", 3, 2, "kill", "rank2", failpoints);
    assert_string_equal(note, wanted);
}
#endif

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"sums", body_sums},
                                          {"bounded", body_bounded},
                                          {"interrupted", body_interrupted},
                                          {"failing", body_failing},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    if (!test_device_is_there()) return TEST_SKIPPED;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_lack_what_ranks_owe_and_zeros_are_survived),
        cmocka_unit_test(errors_of_ranks_that_differ_stay_bounded),
        cmocka_unit_test(a_step_that_comes_again_and_a_replan_change_no_bit),
#ifdef GRADSYNC_FAILPOINTS
        cmocka_unit_test(a_failure_between_phases_changes_no_bit),
        cmocka_unit_test(survivors_of_a_killed_rank_go_on_as_if_it_had_left),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
