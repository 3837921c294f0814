// Wrong programs, one a row: what rank 1 does otherwise than the others.
#include <signal.h>
#include <string.h>

#include "tests/multiprocess/wrong_program.h"

static void use_helper_threads(grad_case *model) {
    model->helper = GS_HELPER_ON;
    model->exact = true;
}
static void use_nothing(grad_case *model) {
    model->unused_is_error = true;
    model->unused_percent = 100;
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
    return finish_step(rank, step);
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
    return finish_step(rank, step);
}
static gs_status mark_between_steps(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_mark_ready(rank->reducer, 1));
    return run_right_step(rank, step);
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
    return finish_step(rank, step);
}
static gs_status finish_inside_the_pass(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 1));
    return finish_step(rank, step);
}
static gs_status finish_with_all_marked(grad_rank *rank, int64_t step) {
    GS_TRY(open_pass(rank, step, 0));
    return finish_step(rank, step);
}
static gs_status run_no_pass(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_begin(rank->reducer, step));
    return finish_step(rank, step);
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
    return run_right_step(rank, step);
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
    GS_TRY(run_right_step(rank, step));
    return finish_step(rank, step);
}
static gs_status begin_pass_without_a_step(grad_rank *rank, int64_t step) {
    gs_reducer_pass pass;
    GS_TRY(gs_reducer_begin_pass(rank->reducer, &pass, 1));
    return run_right_step(rank, step);
}
static gs_status take_another_step(grad_rank *rank, int64_t step) {
    (void)step;
    return run_right_step(rank, 9);
}
static gs_status take_a_negative_step(grad_rank *rank, int64_t step) {
    (void)step;
    return run_right_step(rank, -4);
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
    return finish_step(rank, step);
}
static gs_status set_plan_alone(grad_rank *rank, int64_t step) {
    GS_TRY(gs_reducer_set_plan(rank->reducer, &rank->model->plan, step_deadline(step)));
    return run_right_step(rank, step);
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
    return run_right_step(rank, step);
}
static gs_status freeze_another(grad_rank *rank, int64_t step) {
    GS_TRY(refresh(rank, step, 1));
    return run_right_step(rank, step);
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
    return run_right_step(rank, step);
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
    return finish_step(rank, step);
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
    return finish_step(rank, step);
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
    return run_right_step(rank, step);
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
    GS_TRY(finish_step(rank, step));
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

int main(int argc, char **argv) {
    return wrong_programs_main(argc, argv, programs, sizeof programs / sizeof programs[0]);
}
