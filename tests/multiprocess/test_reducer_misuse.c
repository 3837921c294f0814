// Wrong programs: each must end within its deadline, on every rank, with the culprit named.
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/reducer.h"
#include "tests/support/grad_case.h"

#define WORLD 3
#define CULPRIT 1
#define DEADLINE_SECONDS 4.0

static void assert_ok(gs_status status) {
    assert_string_equal(status.message, "");
    assert_int_equal(status.code, GS_OK);
}

static void init_model(grad_case *model) {
    *model = (grad_case){.seed = 1, .num_params = 4, .num_shards = WORLD, .passes_per_shard = 1};
    for (size_t i = 0; i < model->num_params; i++)
        model->params[i] = gs_param_spec_make(GS_FP32, 10 + (int64_t)i, 100, "fc%zu.weight", i);
}

static gs_status plan_model(grad_case *model) {
    return gs_bucket_plan_parity(&model->plan, model->params, model->num_params, 4000, 8000, NULL);
}

static gs_status run_steps(const gs_rank_env *env, const grad_case *model, const char *wrong) {
    bool culprit = env->rank == CULPRIT;
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, model, env, NULL, gs_deadline_in_seconds(DEADLINE_SECONDS)));
    gs_status status = gs_ok();
    for (int64_t step = 0; step < 6 && !status.code; step++) {
        gs_reduce_result result;
        int64_t wrong_step = step;
        if (culprit && step == 3) {
            if (strcmp(wrong, "fewer-steps") == 0) break;
            if (strcmp(wrong, "other-step") == 0) wrong_step = 9;
        }
        status = gs_reducer_begin(rank.reducer, wrong_step);
        if (!status.code) status = grad_rank_run_passes(&rank, wrong_step);
        if (culprit && step == 3 && strcmp(wrong, "late-mark") == 0)
            gs_reducer_ready_callback(rank.reducer, 2);
        if (culprit && step == 3 && strcmp(wrong, "pass-too-many") == 0) {
            gs_reducer_pass pass;
            status = gs_reducer_begin_pass(rank.reducer, &pass);
        }
        gs_status finished =
            gs_reducer_finish(rank.reducer, &result, gs_deadline_in_seconds(DEADLINE_SECONDS));
        if (!status.code) status = finished;
    }
    grad_rank_close(&rank);
    return status;
}

static gs_status mark_twice(const gs_rank_env *env, const grad_case *model) {
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, model, env, NULL, gs_deadline_in_seconds(DEADLINE_SECONDS)));
    gs_reducer_pass pass;
    gs_reduce_result result;
    gs_status status = gs_reducer_begin(rank.reducer, 5);
    if (!status.code) status = gs_reducer_begin_pass(rank.reducer, &pass);
    for (size_t p = 0; p < model->num_params && !status.code; p++) {
        grad_case_write(model, pass.grads[p], p, 5, pass.shard, 0, false);
        gs_reducer_ready_callback(rank.reducer, p);
        if (p == 2 && env->rank == CULPRIT) gs_reducer_ready_callback(rank.reducer, p);
    }
    if (!status.code) status = gs_reducer_end_pass(rank.reducer, 1);
    gs_status finished =
        gs_reducer_finish(rank.reducer, &result, gs_deadline_in_seconds(DEADLINE_SECONDS));
    grad_rank_close(&rank);
    return status.code ? status : finished;
}

static gs_status body_mark_twice(const gs_rank_env *env) {
    grad_case model;
    init_model(&model);
    GS_TRY(plan_model(&model));
    gs_status status = mark_twice(env, &model);
    grad_case_release(&model);
    return status;
}

static gs_status body_wrong(const gs_rank_env *env) {
    const char *wrong = env->arg;
    bool culprit = env->rank == CULPRIT;
    grad_case model;
    init_model(&model);
    if (strcmp(wrong, "forgotten") == 0) {
        model.unused_is_error = true;
        model.unused_percent = 100;
    }
    if (culprit && strcmp(wrong, "other-shape") == 0) model.params[2].shape[1] = 99;
    if (culprit && strcmp(wrong, "other-count") == 0) model.num_params = 3;
    if (culprit && strcmp(wrong, "other-passes") == 0) model.passes_per_shard = 2;
    if (culprit && strcmp(wrong, "other-order") == 0) {
        gs_param_spec swapped = model.params[1];
        model.params[1] = model.params[2];
        model.params[2] = swapped;
    }
    GS_TRY(plan_model(&model));
    if (culprit && strcmp(wrong, "other-plan") == 0) {
        gs_bucket_plan_release(&model.plan);
        GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, model.num_params, 4, 4, NULL));
    }
    gs_status status = run_steps(env, &model, wrong);
    grad_case_release(&model);
    return status;
}

// Runs `body` and expects these words from every rank; `culprit_words` NULL: the culprit ends well.
static void expect_words(const char *body, const char *wrong, const char *words,
                         const char *culprit_words) {
    gs_ranks *ranks;
    gs_status statuses[WORLD];
    assert_ok(gs_ranks_start(&ranks, body, WORLD, wrong, NULL));
    assert_ok(gs_ranks_wait(ranks, statuses, gs_deadline_in_seconds(30)));
    gs_ranks_destroy(ranks);
    for (int r = 0; r < WORLD; r++) {
        const char *expected = r == CULPRIT ? culprit_words : words;
        if (!expected)
            assert_ok(statuses[r]);
        else if (!statuses[r].code || !strstr(statuses[r].message, expected))
            fail_msg("%s: rank %d: \"%s\", expected \"%s\"", wrong, r, statuses[r].message,
                     expected);
    }
}

static void double_mark_ends_the_step_everywhere_by_name(void **state) {
    (void)state;
    const char *words = "rank 1, step 5: parameter 2 \"fc2.weight\" marked ready twice";
    expect_words("mark_twice", "", words, words);
}

static void late_mark_and_extra_pass_end_the_step_everywhere(void **state) {
    (void)state;
    const char *words = "rank 1, step 3: parameter 2 \"fc2.weight\" marked ready outside a pass";
    expect_words("wrong", "late-mark", words, words);
    words = "rank 1, step 3: all passes of the step have been run";
    expect_words("wrong", "pass-too-many", words, words);
}

static void forgotten_parameter_is_named_everywhere(void **state) {
    (void)state;
    const char *words = "step 0: parameter 0 \"fc0.weight\" was used by no rank";
    expect_words("wrong", "forgotten", words, words);
}

static void other_shape_is_named_everywhere(void **state) {
    (void)state;
    const char *words =
        "rank 1 against rank 0: parameter 2 \"fc2.weight\": shape [12,99] against [12,100]";
    expect_words("wrong", "other-shape", words, words);
}

static void other_order_of_registration_is_named_everywhere(void **state) {
    (void)state;
    const char *words =
        "rank 1 against rank 0: parameter 1: name \"fc2.weight\" against \"fc1.weight\"";
    expect_words("wrong", "other-order", words, words);
}

static void other_number_of_parameters_is_named_everywhere(void **state) {
    (void)state;
    const char *words = "3 parameters against 4: parameter 3 \"fc3.weight\" has no counterpart";
    expect_words("wrong", "other-count", words, words);
}

static void other_plan_is_named_everywhere(void **state) {
    (void)state;
    const char *words =
        "rank 1 against rank 0: bucket plan: place 1 holds parameter 2 \"fc2.weight\" against 1";
    expect_words("wrong", "other-plan", words, words);
}

static void other_accumulation_is_named_everywhere(void **state) {
    (void)state;
    const char *words = "rank 1 against rank 0: passes per shard 2 against 1";
    expect_words("wrong", "other-passes", words, words);
}

static void rank_that_stops_early_is_named_by_the_others(void **state) {
    (void)state;
    expect_words("wrong", "fewer-steps", "rank 1", NULL);
}

static void rank_at_another_step_is_named_everywhere(void **state) {
    (void)state;
    const char *words = "rank 1 posted all-reduce";
    expect_words("wrong", "other-step", words, words);
    words = "step 9";
    expect_words("wrong", "other-step", words, words);
}

// Leaves in the middle of the passes, with buckets in flight: without the others these cannot end.
static gs_status body_destroy(const gs_rank_env *env) {
    grad_case model;
    grad_case_init(&model, 21, 2 * WORLD + 1);
    model.exact = true;
    model.helper = strcmp(env->arg, "helper") == 0 ? GS_HELPER_ON : GS_HELPER_OFF;
    model.unused_percent = 0;
    gs_bucket_plan_release(&model.plan);
    GS_TRY(gs_bucket_plan_parity(&model.plan, model.params, model.num_params, 4, 4, NULL));
    grad_rank rank;
    GS_TRY(grad_rank_open(&rank, &model, env, NULL, gs_deadline_in_seconds(DEADLINE_SECONDS)));
    gs_reduce_result result;
    gs_status status = grad_rank_run_step(&rank, 0, &result, gs_deadline_in_seconds(10));
    if (!status.code) status = gs_reducer_begin(rank.reducer, 1);
    if (!status.code && (env->rank != CULPRIT)) status = grad_rank_run_passes(&rank, 1);
    gs_reducer_pass pass;
    gs_logical_shards shards = {.num_shards = model.num_shards, .world_size = WORLD, .rank = 1};
    int num_passes = gs_logical_shards_count(&shards) * model.passes_per_shard;
    for (int i = 0; env->rank == CULPRIT && i < num_passes && !status.code; i++) {
        status = gs_reducer_begin_pass(rank.reducer, &pass);
        for (size_t p = model.num_params; p-- > 1 && !status.code;) {
            grad_case_write(&model, pass.grads[p], p, 1, pass.shard, pass.pass, pass.accumulate);
            status = gs_reducer_mark_ready(rank.reducer, p);
        }
        if (i < num_passes - 1 && !status.code) status = gs_reducer_end_pass(rank.reducer, 1);
    }
    if (env->rank != CULPRIT && !status.code)
        status = gs_reducer_finish(rank.reducer, &result, gs_deadline_in_seconds(10));
    gs_reducer_destroy(rank.reducer);
    rank.reducer = NULL;
    grad_rank_close(&rank);
    grad_case_release(&model);
    return status;
}

static void reducer_destroyed_within_a_step_ends_it_everywhere(void **state) {
    (void)state;
    expect_words("destroy", "", "destroyed within a step", NULL);
    expect_words("destroy", "helper", "destroyed within a step", NULL);
}

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"mark_twice", body_mark_twice},
                                          {"wrong", body_wrong},
                                          {"destroy", body_destroy},
                                          {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(double_mark_ends_the_step_everywhere_by_name),
        cmocka_unit_test(late_mark_and_extra_pass_end_the_step_everywhere),
        cmocka_unit_test(forgotten_parameter_is_named_everywhere),
        cmocka_unit_test(other_shape_is_named_everywhere),
        cmocka_unit_test(other_order_of_registration_is_named_everywhere),
        cmocka_unit_test(other_number_of_parameters_is_named_everywhere),
        cmocka_unit_test(other_plan_is_named_everywhere),
        cmocka_unit_test(other_accumulation_is_named_everywhere),
        cmocka_unit_test(rank_that_stops_early_is_named_by_the_others),
        cmocka_unit_test(rank_at_another_step_is_named_everywhere),
        cmocka_unit_test(reducer_destroyed_within_a_step_ends_it_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
