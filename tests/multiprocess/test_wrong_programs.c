// Wrong programs, one a row: rank 1 of three does something else than the others. Each program ends
// within its deadline on every rank, and every rank's error names rank 1 and what it did.
//
//   WRONG_PROGRAM=name   runs that row alone
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gradsync/reducer/reducer.h"
#include "tests/support/grad_case.h"

#define WORLD 3
#define CULPRIT 1
#define WRONG_STEP 2
#define NUM_STEPS 5
// A rank that hangs is seen by the deadline alone: short, but only where one hangs.
#define PATIENCE_SECONDS 60.0
#define HANG_SECONDS 4.0

typedef gs_status (*step_body)(grad_rank *rank, int64_t step);

typedef struct wrong_program {
    const char *name;
    void (*everywhere)(grad_case *model);  // what all ranks have in this program
    void (*culprit)(grad_case *model);     // and what rank 1 alone has
    step_body right;                       // how ranks take a step; NULL: run_step
    step_body wrong;                       // how rank 1 takes step WRONG_STEP
    const char *words, *more_words;        // in the error of every rank; NULL: none needed
    const char *culprit_words;             // in the culprit's, if others than these
    bool hangs;                            // rank 1 stops, and is woken when the others have ended
    bool dies, culprit_ends_well;
} wrong_program;

static const wrong_program *this_program;  // of a rank: its row

// What rank 1 has otherwise than the others.

static void replan(grad_case *model, uint64_t cap_bytes, const size_t *order) {
    gs_bucket_plan_release(&model->plan);
    if (gs_bucket_plan_parity(&model->plan, model->params, model->num_params, cap_bytes, cap_bytes,
                              order)
            .code)
        abort();
}
static void change_shape(grad_case *model) {
    model->params[2].shape[1] = 99;
}
static void swap_dimensions(grad_case *model) {
    model->params[2].shape[0] = 100;
    model->params[2].shape[1] = 12;
}
static void change_name(grad_case *model) {
    snprintf(model->params[2].name, sizeof model->params[2].name, "head.weight");
}
static void change_dtype(grad_case *model) {
    model->params[2].dtype = GS_BF16;
}
static void swap_params(grad_case *model) {
    gs_param_spec swapped = model->params[1];
    model->params[1] = model->params[2];
    model->params[2] = swapped;
}
static void leave_param_out(grad_case *model) {
    model->num_params--;
}
static void add_param(grad_case *model) {
    model->params[model->num_params++] = gs_param_spec_make(GS_FP32, 5, 0, "extra.bias");
}
static void make_sparse(grad_case *model) {
    model->params[2].sparse = true;
}
static void change_op(grad_case *model) {
    model->op = GS_SUM;
}
static void change_divisor(grad_case *model) {
    model->num_shards = 2 * WORLD;
}
static void change_passes(grad_case *model) {
    model->passes_per_shard = 2;
}
static void make_exact(grad_case *model) {
    model->exact = true;
}
static void use_helper_threads(grad_case *model) {
    model->helper = GS_HELPER_ON;
    model->exact = true;
}
static void make_unused_an_error(grad_case *model) {
    model->unused_is_error = true;
}
static void make_static(grad_case *model) {
    model->static_graph = true;
}
static void send_bf16(grad_case *model) {
    model->wire_dtype = GS_BF16;
}
static void use_nothing(grad_case *model) {
    model->unused_is_error = true;
    model->unused_percent = 100;
}
static void change_hook(grad_case *model) {
    static gs_comm_hook other_hook;
    other_hook = gs_hook_allreduce;
    other_hook.name = "allreduce_of_my_own";
    model->hook.hook = &other_hook;
}
static const gs_hook_option hook_options[] = {
    {.name = "rank", .fallback = 2, .least = 1, .most = 64, .is_whole = true}};
static void use_options(grad_case *model) {
    static gs_comm_hook hook;
    hook = gs_hook_allreduce;
    hook.name = "ranked";
    hook.options = hook_options;
    hook.num_options = 1;
    model->hook.hook = &hook;
}
static void change_option(grad_case *model) {
    static const gs_hook_number number = {"rank", 3};
    model->hook.numbers = &number;
    model->hook.num_numbers = 1;
}
static void change_buckets(grad_case *model) {
    replan(model, 4, NULL);
}
static void change_order_of_buckets(grad_case *model) {
    const size_t order[] = {1, 0, 3, 2};
    replan(model, 8000, order);
}
static void lose_a_bucket(grad_case *model) {
    replan(model, 8000, NULL);
    model->plan.num_buckets--;  // a plan that does not hold all parameters
}

// Steps, right and wrong ones.

static gs_deadline step_deadline(int64_t step) {
    bool short_of_time = this_program->hangs && step >= WRONG_STEP;
    return gs_deadline_in_seconds(short_of_time ? HANG_SECONDS : PATIENCE_SECONDS);
}

static gs_status finish(grad_rank *rank, int64_t step) {
    gs_reduce_result result;
    GS_TRY(gs_reducer_finish(rank->reducer, &result, step_deadline(step)));
    // What must not be applied is an error to these programs.
    return result.nonfinite ? gs_error(GS_DATA_LOSS, "step %d: not finite", (int)step) : gs_ok();
}

static gs_status run_step(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(grad_rank_run_passes(rank, step));
    return finish(rank, step);
}

// Opens a step and a pass, writes all gradients and marks the parameters from `first` on.
static gs_status open_pass(grad_rank *rank, int64_t step, size_t first) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    for (size_t p = rank->model->num_params; p-- > 0;) {
        grad_case_write(rank->model, pass.grads[p], p, step, pass.shard, pass.pass, false);
        if (p >= first) GS_TRY(gs_reducer_mark_ready(rank->reducer, p));
    }
    return gs_ok();
}

static gs_status close_step(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    return finish(rank, step);
}

static gs_status mark_twice(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 0));
    gs_reducer_ready_callback(rank->reducer, 2);  // cannot return the error: it sticks
    return close_step(rank, step);
}
static gs_status mark_after_the_pass(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 0));
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    GS_TRY(gs_reducer_mark_ready(rank->reducer, 2));
    return finish(rank, step);
}
static gs_status mark_between_steps(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_mark_ready(rank->reducer, 1));
    return run_step(rank, step);
}
static gs_status mark_an_unknown_param(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 0));
    GS_TRY(gs_reducer_mark_ready(rank->reducer, 77));
    return close_step(rank, step);
}
static gs_status mark_what_is_unused(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 2));
    GS_TRY(gs_reducer_mark_unused(rank->reducer, 1));
    GS_TRY(gs_reducer_mark_ready(rank->reducer, 1));
    return close_step(rank, step);
}
static gs_status disown_what_is_ready(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 0));
    gs_reducer_unused_callback(rank->reducer, 2);
    return close_step(rank, step);
}
static gs_status disown_outside_a_pass(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_mark_unused(rank->reducer, 2));
    GS_TRY(grad_rank_run_passes(rank, step));
    return finish(rank, step);
}
static gs_status finish_inside_the_pass(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 1));
    return finish(rank, step);
}
static gs_status finish_with_all_marked(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 0));
    return finish(rank, step);
}
static gs_status run_no_pass(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    return finish(rank, step);
}
static gs_status run_one_pass(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 0));
    return close_step(rank, step);
}
static gs_status run_pass_too_many(grad_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(grad_rank_run_passes(rank, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    return close_step(rank, step);
}
static gs_status begin_twice(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    return run_step(rank, step);
}
static gs_status begin_pass_twice(grad_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(open_pass(rank, step, 0));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    return close_step(rank, step);
}
static gs_status end_pass_twice(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 0));
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    return close_step(rank, step);
}
static gs_status finish_twice(grad_rank *rank, int64_t step) {
    GS_TRY(run_step(rank, step));
    return finish(rank, step);
}
static gs_status begin_pass_without_a_step(grad_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    return run_step(rank, step);
}
static gs_status take_another_step(grad_rank *rank, int64_t step) {
    (void)step;
    return run_step(rank, 9);
}
static gs_status take_a_negative_step(grad_rank *rank, int64_t step) {
    (void)step;
    return run_step(rank, -4);
}
static gs_status claim_too_many_samples(grad_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, (INT64_C(1) << 32) + 1));
    return close_step(rank, step);
}
static gs_status claim_negative_samples(grad_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, -3));
    return close_step(rank, step);
}
static gs_status write_infinity(grad_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    for (size_t p = rank->model->num_params; p-- > 0;) {
        grad_case_write(rank->model, pass.grads[p], p, step, pass.shard, pass.pass, false);
        if (p == 2) ((float *)pass.grads[p])[7] = 1e38f * 1e10f;
        GS_TRY(gs_reducer_mark_ready(rank->reducer, p));
    }
    return close_step(rank, step);
}

// Plans and collectives at the wrong time.

static gs_status set_plan_in_a_step(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_set_plan(rank->reducer, &rank->model->plan, step_deadline(step)));
    GS_TRY(grad_rank_run_passes(rank, step));
    return finish(rank, step);
}
static gs_status set_plan_alone(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_set_plan(rank->reducer, &rank->model->plan, step_deadline(step)));
    return run_step(rank, step);
}
static gs_status set_same_plan(grad_rank *rank, int64_t step) {
    return set_plan_alone(rank, step);
}
static gs_status set_another_plan(grad_rank *rank, int64_t step) {
    gs_bucket_plan plan;
    GS_TRY(gs_bucket_plan_parity(&plan, rank->model->params, rank->model->num_params, 4, 4, NULL));
    gs_status status = gs_reducer_set_plan(rank->reducer, &plan, step_deadline(step));
    gs_bucket_plan_release(&plan);
    return status;
}
static gs_status refresh(grad_rank *rank, int64_t step, size_t frozen) {
    bool trainable[GRAD_CASE_MAX_PARAMS];
    for (size_t i = 0; i < rank->model->num_params; i++) trainable[i] = i != frozen;
    return gs_reducer_set_trainable(rank->reducer, trainable, NULL, step_deadline(step));
}
static gs_status freeze_nothing(grad_rank *rank, int64_t step) {
    GS_TRY(refresh(rank, step, SIZE_MAX));
    return run_step(rank, step);
}
static gs_status freeze_another(grad_rank *rank, int64_t step) {
    GS_TRY(refresh(rank, step, 1));
    return run_step(rank, step);
}
static gs_status freeze_and_mark(grad_rank *rank, int64_t step) {
    GS_TRY(refresh(rank, step, 2));
    GS_TRY(open_pass(rank, step, rank->model->num_params));
    if (step == WRONG_STEP && rank->rank == CULPRIT) GS_TRY(gs_reducer_mark_ready(rank->reducer, 2));
    for (size_t p = 2; p-- > 0;) GS_TRY(gs_reducer_mark_ready(rank->reducer, p));
    return close_step(rank, step);
}
static gs_status run_collective(grad_rank *rank, int64_t step, gs_collective_kind kind) {
    int64_t mine = 1, all[WORLD];
    return gs_comm_run(rank->comm,
                       &(gs_collective){.kind = kind,
                                        .send = &mine,
                                        .recv = all,
                                        .count = 1,
                                        .dtype = GS_I64,
                                        .step = step,
                                        .bucket = -1},
                       step_deadline(step));
}
static gs_status slip_a_collective_in(grad_rank *rank, int64_t step) {
    GS_TRY(run_collective(rank, step, GS_ALLGATHER));
    return run_step(rank, step);
}

// Work behind the buckets.

static gs_status gather_in_tail(void *ctx, void *const *grads, gs_deadline deadline) {
    (void)grads;
    (void)deadline;
    return run_collective(ctx, WRONG_STEP, GS_ALLGATHER);
}
static gs_status sum_in_tail(void *ctx, void *const *grads, gs_deadline deadline) {
    (void)grads;
    (void)deadline;
    return run_collective(ctx, WRONG_STEP, GS_ALLREDUCE);
}
static gs_status step_with_tails(grad_rank *rank, int64_t step, bool gather_first, bool sum_too) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    gs_reducer_tail gather = {.finish = gather_in_tail, .ctx = rank};
    gs_reducer_tail sum = {.finish = sum_in_tail, .ctx = rank};
    if (gather_first) GS_TRY(gs_reducer_add_tail(rank->reducer, &gather));
    if (sum_too) GS_TRY(gs_reducer_add_tail(rank->reducer, &sum));
    if (!gather_first) GS_TRY(gs_reducer_add_tail(rank->reducer, &gather));
    GS_TRY(grad_rank_run_passes(rank, step));
    return finish(rank, step);
}
static gs_status add_two_tails(grad_rank *rank, int64_t step) {
    return step_with_tails(rank, step, true, true);
}
static gs_status swap_tails(grad_rank *rank, int64_t step) {
    return step_with_tails(rank, step, false, true);
}
static gs_status forget_a_tail(grad_rank *rank, int64_t step) {
    return step_with_tails(rank, step, true, false);
}

// The static graph: parameter 2 is used twice in a pass, parameter 0 never.

static gs_status mark_times(grad_rank *rank, int64_t step, const int *times) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    for (size_t p = rank->model->num_params; p-- > 0;) {
        grad_case_write(rank->model, pass.grads[p], p, step, pass.shard, pass.pass, false);
        for (int i = 0; i < times[p]; i++) GS_TRY(gs_reducer_mark_ready(rank->reducer, p));
    }
    return close_step(rank, step);
}
static gs_status keep_the_promise(grad_rank *rank, int64_t step) {
    return mark_times(rank, step, (const int[]){0, 1, 2, 1});
}
static gs_status mark_once_more(grad_rank *rank, int64_t step) {
    return mark_times(rank, step, (const int[]){0, 1, 3, 1});
}
static gs_status mark_once_less(grad_rank *rank, int64_t step) {
    return mark_times(rank, step, (const int[]){0, 1, 1, 1});
}
static gs_status use_the_unused(grad_rank *rank, int64_t step) {
    return mark_times(rank, step, (const int[]){1, 1, 2, 1});
}

// Uneven inputs: from step 1 on rank 2 has no data.

static gs_status run_round(grad_rank *rank, int64_t step, const gs_join_round *round,
                           bool has_data) {
    GS_TRY(gs_reducer_begin_uneven(rank->reducer, step, round));
    if (has_data) GS_TRY(grad_rank_run_passes(rank, step));
    return finish(rank, step);
}
static gs_status announce(gs_join_round *round, grad_rank *rank, int64_t step) {
    return gs_join_announce(round, rank->comm, step == 0 || rank->rank < 2, GS_DIVIDE_BY_ACTIVE,
                            step, step_deadline(step));
}
static gs_status join_step(grad_rank *rank, int64_t step) {
    gs_join_round round;
    GS_TRY(announce(&round, rank, step));
    return run_round(rank, step, &round, round.active);
}
static gs_status claim_another_round(grad_rank *rank, int64_t step) {
    gs_join_round round;
    GS_TRY(announce(&round, rank, step));
    round.num_active++;
    return run_round(rank, step, &round, true);
}
static gs_status change_join_divisor(grad_rank *rank, int64_t step) {
    gs_join_round round;
    GS_TRY(announce(&round, rank, step));
    round.divisor = GS_DIVIDE_BY_INITIAL;
    return run_round(rank, step, &round, true);
}
static gs_status announce_data_and_bring_none(grad_rank *rank, int64_t step) {
    gs_join_round round;
    GS_TRY(announce(&round, rank, step));
    return run_round(rank, step, &round, false);
}
static gs_status shadow_with_a_pass(grad_rank *rank, int64_t step) {
    gs_join_round round;
    GS_TRY(gs_join_announce(&round, rank->comm, false, GS_DIVIDE_BY_ACTIVE, step,
                            step_deadline(step)));
    return run_round(rank, step, &round, true);
}
static gs_status forget_to_announce(grad_rank *rank, int64_t step) {
    return run_step(rank, step);
}

// Ranks that leave, hang or die.

static gs_status leave(grad_rank *rank, int64_t step) {
    (void)step;
    gs_reducer_destroy(rank->reducer);
    rank->reducer = NULL;
    return gs_ok();
}
static gs_status leave_within_the_step(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 1));
    return leave(rank, step);
}
static gs_status signal_in(grad_rank *rank, int64_t step, int signal, int phase) {
    if (phase == 0) raise(signal);
    GS_TRY(open_pass(rank, step, 2));
    if (phase == 1) raise(signal);
    for (size_t p = 2; p-- > 0;) GS_TRY(gs_reducer_mark_ready(rank->reducer, p));
    GS_TRY(gs_reducer_end_pass(rank->reducer));
    if (phase == 2) raise(signal);
    GS_TRY(finish(rank, step));
    if (phase == 3) raise(signal);
    return gs_ok();
}
static gs_status stop_before_the_step(grad_rank *rank, int64_t step) {
    return signal_in(rank, step, SIGSTOP, 0);
}
static gs_status stop_in_the_pass(grad_rank *rank, int64_t step) {
    return signal_in(rank, step, SIGSTOP, 1);
}
static gs_status die_before_the_step(grad_rank *rank, int64_t step) {
    return signal_in(rank, step, SIGKILL, 0);
}
static gs_status die_in_the_pass(grad_rank *rank, int64_t step) {
    return signal_in(rank, step, SIGKILL, 1);
}
static gs_status die_before_finish(grad_rank *rank, int64_t step) {
    return signal_in(rank, step, SIGKILL, 2);
}
static gs_status die_after_the_step(grad_rank *rank, int64_t step) {
    return signal_in(rank, step, SIGKILL, 3);
}

#define AT_STEP "rank 1, step 2: "
static const wrong_program programs[] = {
    // Told before the first step, by comparing what all ranks have.
    {"another shape", .culprit = change_shape,
     .words = "rank 1 against rank 0: parameter 2 \"fc2.weight\": shape [12,99] against [12,100]"},
    {"dimensions swapped", .culprit = swap_dimensions,
     .words = "parameter 2 \"fc2.weight\": shape [100,12] against [12,100]"},
    {"another name", .culprit = change_name,
     .words = "rank 1 against rank 0: parameter 2: name \"head.weight\" against \"fc2.weight\""},
    {"another dtype", .culprit = change_dtype,
     .words = "rank 1 against rank 0: parameter 2 \"fc2.weight\": dtype bf16 against fp32"},
    {"parameters in another order", .culprit = swap_params,
     .words = "rank 1 against rank 0: parameter 1: name \"fc2.weight\" against \"fc1.weight\""},
    {"a parameter less", .culprit = leave_param_out, .words = "rank 1 against rank 0",
     .more_words = "3 parameters against 4"},
    {"a parameter more", .culprit = add_param, .words = "rank 1 against rank 0",
     .more_words = "5 parameters against 4"},
    {"a sparse gradient", .culprit = make_sparse,
     .words = "rank 1 against rank 0: parameter 2 \"fc2.weight\": gradient sparse against dense"},
    {"other buckets", .culprit = change_buckets, .words = "rank 1 against rank 0: bucket plan"},
    {"buckets in another order", .culprit = change_order_of_buckets,
     .words = "rank 1 against rank 0: bucket plan: place 0 holds parameter"},
    {"another hook", .culprit = change_hook,
     .words = "rank 1 against rank 0: communication hook \"allreduce_of_my_own\""},
    {"another option of a hook", .everywhere = use_options, .culprit = change_option,
     .words = "rank 1 against rank 0: communication hook \"ranked\": option rank 3 against 2"},
    {"sum against mean", .culprit = change_op, .words = "rank 1 against rank 0: reduction"},
    {"another divisor", .culprit = change_divisor,
     .words = "rank 1 against rank 0: logical shards 6 against 3"},
    {"more accumulation", .culprit = change_passes,
     .words = "rank 1 against rank 0: passes per shard 2 against 1"},
    {"exact mode alone", .culprit = make_exact, .words = "rank 1 against rank 0: exact mode"},
    {"strict about unused ones alone", .culprit = make_unused_an_error,
     .words = "rank 1 against rank 0: unused_is_error"},
    {"static graph alone", .culprit = make_static, .words = "rank 1 against rank 0: static graph"},
    {"another wire dtype", .culprit = send_bf16, .words = "rank 1 against rank 0: wire dtype"},
    {"a plan without all parameters", .culprit = lose_a_bucket, .words = "rank 1",
     .culprit_words = "plan"},

    // Marks.
    {"marks twice", .wrong = mark_twice,
     .words = AT_STEP "parameter 2 \"fc2.weight\" marked ready twice"},
    {"marks after its pass", .wrong = mark_after_the_pass,
     .words = AT_STEP "parameter 2 \"fc2.weight\" marked ready outside a pass"},
    {"marks between steps", .wrong = mark_between_steps, .words = "rank 1, step ",
     .more_words = "parameter 1 \"fc1.weight\" marked ready outside a pass"},
    {"marks an unknown parameter", .wrong = mark_an_unknown_param,
     .words = AT_STEP "there is no parameter 77"},
    {"marks what it called unused", .wrong = mark_what_is_unused,
     .words = AT_STEP "parameter 1 \"fc1.weight\"", .more_words = "unused"},
    {"calls unused what it marked", .wrong = disown_what_is_ready,
     .words = AT_STEP "parameter 2 \"fc2.weight\"", .more_words = "unused"},
    {"calls unused outside a pass", .wrong = disown_outside_a_pass,
     .words = AT_STEP "parameter 2 \"fc2.weight\"", .more_words = "outside a pass"},
    {"forgets every parameter", .everywhere = use_nothing,
     .words = "step 0: parameter 0 \"fc0.weight\" was used by no rank"},

    // Passes and steps.
    {"forgets a parameter and the end of the pass", .wrong = finish_inside_the_pass,
     .words = AT_STEP "parameter 0 \"fc0.weight\" is not ready"},
    {"forgets the end of the pass", .wrong = finish_with_all_marked,
     .words = AT_STEP "the last pass was not ended"},
    {"runs no pass", .wrong = run_no_pass, .words = AT_STEP "0 of 1 passes run"},
    {"runs a pass less", .everywhere = change_passes, .wrong = run_one_pass,
     .words = AT_STEP "1 of 2 passes run"},
    {"runs a pass more", .wrong = run_pass_too_many, .words = AT_STEP "all passes of the step"},
    {"begins twice", .wrong = begin_twice, .words = AT_STEP "a step is open"},
    {"begins a pass twice", .wrong = begin_pass_twice, .words = AT_STEP "a pass is open"},
    {"begins a pass without a step", .wrong = begin_pass_without_a_step,
     .words = "a pass needs an open step"},
    {"ends a pass twice", .wrong = end_pass_twice, .words = AT_STEP "no pass is open"},
    {"finishes twice", .wrong = finish_twice, .words = AT_STEP "no step is open"},
    {"takes another step", .wrong = take_another_step, .words = "rank 1 posted",
     .more_words = "step 9"},
    {"takes a negative step", .wrong = take_a_negative_step, .words = "rank 1",
     .more_words = "step: -4"},
    {"claims too many samples", .wrong = claim_too_many_samples,
     .words = AT_STEP "samples of a pass: 4294967297"},
    {"claims negative samples", .wrong = claim_negative_samples,
     .words = AT_STEP "samples of a pass: -3"},
    {"writes infinity", .wrong = write_infinity, .words = "step 2: not finite"},

    // Plans, collectives, tails.
    {"takes a plan within a step", .wrong = set_plan_in_a_step, .words = "rank 1, step 2"},
    {"takes a plan alone", .wrong = set_plan_alone, .words = "rank 1 posted all-gather"},
    {"takes another plan", .right = set_same_plan, .wrong = set_another_plan,
     .words = "rank 1 against rank 0: bucket plan"},
    {"freezes a parameter alone", .right = freeze_nothing, .wrong = freeze_another,
     .words = "rank 1 against rank 0: parameter 1 \"fc1.weight\": frozen against trainable"},
    {"freezes without the others", .wrong = freeze_nothing, .words = "rank 1 posted all-gather"},
    {"marks what is frozen", .right = freeze_and_mark, .wrong = freeze_and_mark,
     .words = AT_STEP "parameter 2 \"fc2.weight\" marked ready, but it is frozen"},
    {"slips a collective in", .wrong = slip_a_collective_in, .words = "rank 1 posted all-gather"},
    {"tails in another order", .right = add_two_tails, .wrong = swap_tails,
     .words = "rank 1 posted all-reduce"},
    {"a tail less", .right = add_two_tails, .wrong = forget_a_tail, .words = "rank 1 posted"},

    // The static graph.
    {"static: a mark more", .everywhere = make_static, .right = keep_the_promise,
     .wrong = mark_once_more, .words = AT_STEP "parameter 2 \"fc2.weight\"",
     .more_words = "static graph"},
    {"static: a mark less", .everywhere = make_static, .right = keep_the_promise,
     .wrong = mark_once_less, .words = AT_STEP "parameter 2 \"fc2.weight\"",
     .more_words = "static graph"},
    {"static: uses the unused", .everywhere = make_static, .right = keep_the_promise,
     .wrong = use_the_unused, .words = AT_STEP "parameter 0 \"fc0.weight\"",
     .more_words = "static graph"},

    // Uneven inputs.
    {"join: another round", .right = join_step, .wrong = claim_another_round, .words = "rank 1"},
    {"join: another divisor", .right = join_step, .wrong = change_join_divisor, .words = "rank 1"},
    {"join: data announced, none brought", .right = join_step,
     .wrong = announce_data_and_bring_none, .words = AT_STEP "0 of 1 passes run"},
    {"join: a shadow that runs a pass", .right = join_step, .wrong = shadow_with_a_pass,
     .words = AT_STEP},
    {"join: forgets to announce", .right = join_step, .wrong = forget_to_announce,
     .words = "rank 1 posted"},

    // Leaving, hanging, dying.
    {"takes fewer steps", .wrong = leave, .words = "rank 1", .culprit_ends_well = true},
    {"leaves within a step", .wrong = leave_within_the_step, .words = "destroyed within a step",
     .more_words = "rank 1", .culprit_ends_well = true},
    {"leaves within a step, with helper threads", .everywhere = use_helper_threads,
     .wrong = leave_within_the_step, .words = "destroyed within a step", .more_words = "rank 1",
     .culprit_ends_well = true},
    {"stops before a step", .wrong = stop_before_the_step, .words = "rank 1", .hangs = true},
    {"stops in a pass", .wrong = stop_in_the_pass, .words = "rank 1", .hangs = true},
    {"dies before a step", .wrong = die_before_the_step, .words = "rank 1", .dies = true},
    {"dies in a pass", .wrong = die_in_the_pass, .words = "rank 1", .dies = true},
    {"dies before finish", .wrong = die_before_finish, .words = "rank 1", .dies = true},
    {"dies after a step", .wrong = die_after_the_step, .words = "rank 1", .dies = true},
};
#define NUM_PROGRAMS (sizeof programs / sizeof programs[0])

static gs_status run_steps(grad_rank *rank) {
    for (int64_t step = 0; step < NUM_STEPS && rank->reducer; step++) {
        bool goes_wrong = rank->rank == CULPRIT && step == WRONG_STEP && this_program->wrong;
        step_body right = this_program->right ? this_program->right : run_step;
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
    this_program = &programs[strtoul(env->arg, NULL, 10)];
    grad_case model = {.seed = 1, .num_params = 4, .num_shards = WORLD, .passes_per_shard = 1};
    for (size_t i = 0; i < model.num_params; i++)
        model.params[i] = gs_param_spec_make(GS_FP32, 10 + (int64_t)i, 100, "fc%zu.weight", i);
    if (this_program->everywhere) this_program->everywhere(&model);
    if (this_program->culprit && env->rank == CULPRIT) this_program->culprit(&model);
    if (!model.plan.num_buckets) replan(&model, 8000, NULL);
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
    snprintf(number, sizeof number, "%zu", (size_t)(program - programs));
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

int main(int argc, char **argv) {
    static const gs_rank_body bodies[] = {{"program", body_program}, {NULL, NULL}};
    int exit_code;
    if (gs_ranks_main(argc, argv, bodies, &exit_code)) return exit_code;
    const char *only = getenv("WRONG_PROGRAM");
    struct CMUnitTest tests[NUM_PROGRAMS];
    size_t num_tests = 0;
    for (size_t i = 0; i < NUM_PROGRAMS; i++) {
        if (only && strcmp(only, programs[i].name) != 0) continue;
        tests[num_tests++] = (struct CMUnitTest){.name = programs[i].name,
                                                 .test_func = run_program,
                                                 .initial_state = (void *)(uintptr_t)&programs[i]};
    }
    return _cmocka_run_group_tests("wrong programs", tests, num_tests, NULL, NULL);
}
