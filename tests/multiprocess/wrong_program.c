#include "tests/multiprocess/wrong_program.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NUM_STEPS 5
#define MOST_PROGRAMS 64
// A rank that hangs is seen by the deadline alone: short, but only where one hangs.
#define PATIENCE_SECONDS 60.0
#define HANG_SECONDS 4.0

static const wrong_program *table, *this_program;  // all; and of a rank its own

void plan_again(grad_case *model, uint64_t cap_bytes, const size_t *order) {
    gs_bucket_plan_release(&model->plan);
    if (gs_bucket_plan_parity(&model->plan, model->params, model->num_params, cap_bytes, cap_bytes,
                              order)
            .code)
        abort();
}

void change_passes(grad_case *model) { model->passes_per_shard = 2; }

void make_static(grad_case *model) { model->static_graph = true; }

gs_deadline step_deadline(int64_t step) {
    bool short_of_time = this_program->hangs && step >= WRONG_STEP;
    return gs_deadline_in_seconds(short_of_time ? HANG_SECONDS : PATIENCE_SECONDS);
}

gs_status finish_step(grad_rank *rank, int64_t step) {
    gs_reduce_result result;
    GS_TRY(gs_reducer_finish(rank->reducer, &result, step_deadline(step)));
    return result.nonfinite ? gs_error(GS_DATA_LOSS, "step %d: not finite", (int)step) : gs_ok();
}

gs_status run_right_step(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(grad_rank_run_passes(rank, step));
    return finish_step(rank, step);
}

static gs_status run_steps(grad_rank *rank) {
    for (int64_t step = 0; step < NUM_STEPS && rank->reducer; step++) {
        bool goes_wrong = rank->rank == CULPRIT && step == WRONG_STEP && this_program->wrong;
        wrong_step_body right = this_program->right ? this_program->right : run_right_step;
        gs_status status = (goes_wrong ? this_program->wrong : right)(rank, step);
        if (!status.code) continue;
        if (status.code == GS_DATA_LOSS) return status;  // the reducer has no complaint
        // The error of a call is the step's: finish says it again, at once.
        gs_reduce_result result;
        gs_status again = gs_reducer_finish(rank->reducer, &result, gs_deadline_in_seconds(1));
        return again.code ? status : gs_status_prefix(status, "forgotten by finish");
    }
    return gs_ok();
}

static gs_status body_program(const gs_rank_env *env) {
    this_program = &table[strtoul(env->arg, NULL, 10)];
    grad_case model = {.seed = 1, .num_params = 4, .num_shards = WORLD, .passes_per_shard = 1};
    for (size_t i = 0; i < model.num_params; i++)
        model.params[i] = gs_param_spec_make(GS_FP32, 10 + (int64_t)i, 100, "fc%zu.weight", i);
    if (this_program->everywhere) this_program->everywhere(&model);
    if (this_program->culprit && env->rank == CULPRIT) this_program->culprit(&model);
    if (!model.plan.num_buckets) plan_again(&model, 8000, NULL);
    grad_rank rank;
    gs_status status = grad_rank_open(&rank, &model, env, NULL, step_deadline(0));
    if (!status.code) {
        status = run_steps(&rank);
        grad_rank_close(&rank);
    }
    grad_case_release(&model);
    gs_rank_note(env, "ended");
    return status;
}

static bool says(const gs_status *status, const char *words) {
    return !words || (status->code && strstr(status->message, words));
}

static void check_rank(const wrong_program *program, int rank, const gs_status *status) {
    if (rank == CULPRIT && program->dies) {
        assert_int_equal(status->code, GS_ABORTED);
        return;
    }
    if (rank == CULPRIT && program->culprit_ends_well) {
        assert_string_equal(status->message, "");
        return;
    }
    bool ok = says(status, program->words) && says(status, program->more_words);
    if (rank == CULPRIT && program->culprit_words) ok = says(status, program->culprit_words);
    // Who was stopped finds that the others have gone.
    if (rank == CULPRIT && program->hangs) ok = status->code;
    if (!ok)
        fail_msg("%s: rank %d: \"%s\", expected \"%s\" and \"%s\"", program->name, rank,
                 status->message, program->words, program->more_words);
}

static void run_program(void **state) {
    const wrong_program *program = *state;
    char number[16];
    snprintf(number, sizeof number, "%zu", (size_t)(program - table));
    gs_ranks *ranks;
    gs_status statuses[WORLD], status;
    gs_deadline deadline = gs_deadline_in_seconds(PATIENCE_SECONDS + 10);
    status = gs_ranks_start(&ranks, "program", WORLD, number, NULL);
    assert_string_equal(status.message, "");
    if (program->hangs) {
        for (int r = 0; r < WORLD; r++) {
            if (r != CULPRIT && !status.code)
                status = gs_ranks_wait_note(ranks, r, "ended", deadline);
        }
        gs_ranks_signal(ranks, CULPRIT, SIGCONT);
    }
    gs_status ended = gs_ranks_wait(ranks, statuses, deadline);
    gs_ranks_destroy(ranks);
    assert_string_equal(status.message, "");
    assert_string_equal(ended.message, "");
    for (int r = 0; r < WORLD; r++) check_rank(program, r, &statuses[r]);
}

int wrong_programs_main(int argc, char **argv, const wrong_program *programs, size_t num_programs) {
    static const gs_rank_body bodies[] = {{"program", body_program}, {NULL, NULL}};
    int exit_code;
    table = programs;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const char *only = getenv("WRONG_PROGRAM");
    struct CMUnitTest tests[MOST_PROGRAMS];
    size_t num_tests = 0;
    for (size_t i = 0; i < num_programs && num_tests < MOST_PROGRAMS; i++) {
        if (only && strcmp(only, programs[i].name) != 0) continue;
        tests[num_tests++] = (struct CMUnitTest){.name = programs[i].name,
                                                 .test_func = run_program,
                                                 .initial_state = (void *)(uintptr_t)&programs[i]};
    }
    return _cmocka_run_group_tests("wrong programs", tests, num_tests, NULL, NULL);
}
