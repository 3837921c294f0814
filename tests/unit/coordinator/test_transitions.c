#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/model/transitions.h"

static int find(gs_machine machine, int from, int to) {
    int row = gs_transition_find(machine, from, to);
    assert_true(row >= 0);
    return row;
}

static bool may_job(const gs_job *job, gs_job_state from, gs_job_state to) {
    return gs_transition_may(GS_MACHINE_JOB, find(GS_MACHINE_JOB, (int)from, (int)to), job);
}

static bool may_run(const gs_run *run, gs_run_phase from, gs_run_phase to) {
    return gs_transition_may(GS_MACHINE_RUN, find(GS_MACHINE_RUN, (int)from, (int)to), run);
}

static bool may_member(const gs_member *member, gs_member_stage from, gs_member_stage to) {
    return gs_transition_may(GS_MACHINE_MEMBER, find(GS_MACHINE_MEMBER, (int)from, (int)to), member);
}

static bool may_checkpoint(const gs_checkpoint *checkpoint, gs_checkpoint_state from, gs_checkpoint_state to) {
    return gs_transition_may(GS_MACHINE_CHECKPOINT, find(GS_MACHINE_CHECKPOINT, (int)from, (int)to), checkpoint);
}

// A row that anybody may take says so; of a table whose guards were forgotten there would be many.
static void every_row_has_its_guard(void **state) {
    (void)state;
    for (int machine = 0; machine < GS_NUM_MACHINES; machine++) {
        const gs_transition_table *table = gs_transitions_of((gs_machine)machine);
        assert_true(table->num_rows > 0 && table->num_rows <= GS_MAX_TRANSITIONS);
        for (int i = 0; i < table->num_rows; i++) {
            const gs_transition *row = &table->rows[i];
            assert_true(row->guard.name && *row->guard.name && row->when && *row->when);
            bool is_free = machine == GS_MACHINE_CHECKPOINT && row->to == GS_CHECKPOINT_DELETING;
            assert_int_equal(row->guard.holds == NULL, is_free);
            assert_int_equal(gs_transition_find((gs_machine)machine, row->from, row->to), i);  // no row twice
        }
    }
}

// Its trainers would go on for a job that shows its end.
static void a_job_ends_and_waits_without_a_run_alone(void **state) {
    (void)state;
    gs_run run = {0};
    gs_job job = {.stop_asked = true, .stop_outcome = GS_JOB_CANCELLED, .committed = true};
    const gs_transition_table *table = gs_transitions_of(GS_MACHINE_JOB);
    int count = 0;
    for (int i = 0; i < table->num_rows; i++) {
        gs_job_state to = (gs_job_state)table->rows[i].to;
        if (to != GS_JOB_QUEUED && !gs_job_state_terminal(to)) continue;
        job.run = NULL;
        assert_true(gs_transition_may(GS_MACHINE_JOB, i, &job));
        job.run = &run;
        assert_false(gs_transition_may(GS_MACHINE_JOB, i, &job));
        count++;
    }
    assert_int_equal(count, 17);
}

static void a_job_is_cancelled_by_who_asked_for_that(void **state) {
    (void)state;
    gs_job job = {.stop_asked = true, .stop_outcome = GS_JOB_SUCCEEDED};
    assert_false(may_job(&job, GS_JOB_QUEUED, GS_JOB_CANCELLED));
    job.stop_outcome = GS_JOB_CANCELLED;
    assert_true(may_job(&job, GS_JOB_QUEUED, GS_JOB_CANCELLED));
    job.stop_asked = false;
    assert_false(may_job(&job, GS_JOB_STOPPING, GS_JOB_CANCELLED));
}

static void a_first_start_is_none_after_a_committed_step(void **state) {
    (void)state;
    gs_run run = {0};
    gs_job job = {.run = &run};
    assert_true(may_job(&job, GS_JOB_QUEUED, GS_JOB_STARTING));
    assert_true(may_job(&job, GS_JOB_STARTING, GS_JOB_STARTING));
    assert_false(may_job(&job, GS_JOB_QUEUED, GS_JOB_RECOVERING));
    assert_false(may_job(&job, GS_JOB_RECOVERING, GS_JOB_RECOVERING));
    assert_false(may_job(&job, GS_JOB_STARTING, GS_JOB_RUNNING));
    assert_false(may_job(&job, GS_JOB_RUNNING, GS_JOB_RECOVERING));
    job.committed = true;
    assert_false(may_job(&job, GS_JOB_QUEUED, GS_JOB_STARTING));
    assert_false(may_job(&job, GS_JOB_STARTING, GS_JOB_STARTING));
    assert_true(may_job(&job, GS_JOB_QUEUED, GS_JOB_RECOVERING));
    assert_true(may_job(&job, GS_JOB_STARTING, GS_JOB_RUNNING));
    job.run = NULL;
    assert_false(may_job(&job, GS_JOB_QUEUED, GS_JOB_RECOVERING));
    assert_false(may_job(&job, GS_JOB_RECOVERING, GS_JOB_RUNNING));
    assert_true(may_job(&job, GS_JOB_RUNNING, GS_JOB_RECOVERING));  // a coordinator that has started again
}

static void a_job_stops_because_it_was_asked_to(void **state) {
    (void)state;
    gs_run run = {0};
    gs_job job = {.run = &run};
    assert_false(may_job(&job, GS_JOB_RUNNING, GS_JOB_STOPPING));
    job.stop_asked = true;
    assert_true(may_job(&job, GS_JOB_RUNNING, GS_JOB_STOPPING));
    job.run = NULL;
    assert_false(may_job(&job, GS_JOB_RUNNING, GS_JOB_STOPPING));
}

static void a_run_forms_when_all_of_it_are_as_far(void **state) {
    (void)state;
    gs_member members[2] = {{.stage = GS_MEMBER_HERE}, {.stage = GS_MEMBER_HERE}};
    gs_run run = {.num_members = 2, .members = members, .generation = 7};
    assert_true(may_run(&run, GS_RUN_LAUNCHING, GS_RUN_PREPARING));
    run.generation = 0;
    assert_false(may_run(&run, GS_RUN_LAUNCHING, GS_RUN_PREPARING));
    run.generation = 7;
    members[1].stage = GS_MEMBER_LEAVING;
    assert_false(may_run(&run, GS_RUN_LAUNCHING, GS_RUN_PREPARING));
    members[0].stage = GS_MEMBER_READY;
    assert_false(may_run(&run, GS_RUN_PREPARING, GS_RUN_CONNECTING));
    members[1].stage = GS_MEMBER_READY;
    assert_true(may_run(&run, GS_RUN_PREPARING, GS_RUN_CONNECTING));
    members[0].stage = GS_MEMBER_UP;
    assert_false(may_run(&run, GS_RUN_CONNECTING, GS_RUN_TRAINING));
    members[1].stage = GS_MEMBER_UP;
    assert_true(may_run(&run, GS_RUN_CONNECTING, GS_RUN_TRAINING));
}

static void a_run_that_was_there_before_goes_on_with_who_is_back(void **state) {
    (void)state;
    gs_member members[2] = {{.stage = GS_MEMBER_UP}, {.stage = GS_MEMBER_LEAVING, .stream.call = 4}};
    gs_run run = {.num_members = 2, .members = members};
    assert_false(may_run(&run, GS_RUN_RELOADING, GS_RUN_TRAINING));
    members[0].stream.call = 5;
    assert_true(may_run(&run, GS_RUN_RELOADING, GS_RUN_TRAINING));
}

static void a_run_fails_for_a_cause_and_ends_when_nobody_asks(void **state) {
    (void)state;
    gs_member member = {.stage = GS_MEMBER_SETTLING, .settle.call = 9};
    gs_run run = {.num_members = 1, .members = &member};
    assert_false(may_run(&run, GS_RUN_TRAINING, GS_RUN_SETTLING));
    run.cause.set = true;
    assert_true(may_run(&run, GS_RUN_TRAINING, GS_RUN_SETTLING));
    assert_false(may_run(&run, GS_RUN_SETTLING, GS_RUN_ENDING));
    member.settle.call = 0;
    assert_true(may_run(&run, GS_RUN_SETTLING, GS_RUN_ENDING));
}

static void a_member_comes_as_far_as_its_run(void **state) {
    (void)state;
    gs_run run = {.phase = GS_RUN_LAUNCHING};
    gs_job job = {.run = &run};
    gs_member member = {.job = &job, .rank = -1};
    assert_false(may_member(&member, GS_MEMBER_LAUNCHED, GS_MEMBER_HERE));
    member.stream.call = 3;
    assert_true(may_member(&member, GS_MEMBER_LAUNCHED, GS_MEMBER_HERE));
    run.phase = GS_RUN_PREPARING;
    assert_false(may_member(&member, GS_MEMBER_HERE, GS_MEMBER_READY));
    member.rank = 0;
    assert_true(may_member(&member, GS_MEMBER_HERE, GS_MEMBER_READY));
    assert_false(may_member(&member, GS_MEMBER_READY, GS_MEMBER_UP));
    run.phase = GS_RUN_CONNECTING;
    assert_false(may_member(&member, GS_MEMBER_HERE, GS_MEMBER_READY));
    assert_true(may_member(&member, GS_MEMBER_READY, GS_MEMBER_UP));
}

// Each question is answered once: nobody goes with one.
static void a_member_that_asks_is_answered_before_anything_else(void **state) {
    (void)state;
    gs_member member = {.bye.reason = GS_BYE_OTHER};
    assert_false(may_member(&member, GS_MEMBER_UP, GS_MEMBER_SETTLING));
    assert_true(may_member(&member, GS_MEMBER_SETTLING, GS_MEMBER_SETTLED));
    assert_true(may_member(&member, GS_MEMBER_SETTLING, GS_MEMBER_LEAVING));
    assert_true(may_member(&member, GS_MEMBER_SETTLING, GS_MEMBER_EXITED));
    member.settle.call = 6;
    assert_true(may_member(&member, GS_MEMBER_UP, GS_MEMBER_SETTLING));
    assert_false(may_member(&member, GS_MEMBER_SETTLING, GS_MEMBER_SETTLED));
    assert_false(may_member(&member, GS_MEMBER_SETTLING, GS_MEMBER_LEAVING));
    assert_false(may_member(&member, GS_MEMBER_SETTLING, GS_MEMBER_EXITED));
    member = (gs_member){0};
    assert_false(may_member(&member, GS_MEMBER_UP, GS_MEMBER_LEAVING));  // without a word
}

static void a_checkpoint_that_is_gone_is_never_good(void **state) {
    (void)state;
    gs_checkpoint checkpoint = {.is_gone = true};
    assert_false(may_checkpoint(&checkpoint, GS_CHECKPOINT_VERIFYING, GS_CHECKPOINT_RECORDING));
    assert_false(may_checkpoint(&checkpoint, GS_CHECKPOINT_RECORDING, GS_CHECKPOINT_GOOD));
    assert_false(may_checkpoint(&checkpoint, GS_CHECKPOINT_DELETING, GS_CHECKPOINT_GOOD));
    assert_true(may_checkpoint(&checkpoint, GS_CHECKPOINT_GOOD, GS_CHECKPOINT_DELETING));
    checkpoint = (gs_checkpoint){.record_again_ns = 1};  // its row is not on its way
    assert_false(may_checkpoint(&checkpoint, GS_CHECKPOINT_RECORDING, GS_CHECKPOINT_GOOD));
    checkpoint.record_again_ns = 0;
    assert_true(may_checkpoint(&checkpoint, GS_CHECKPOINT_RECORDING, GS_CHECKPOINT_GOOD));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_its_guard),
        cmocka_unit_test(a_job_ends_and_waits_without_a_run_alone),
        cmocka_unit_test(a_job_is_cancelled_by_who_asked_for_that),
        cmocka_unit_test(a_first_start_is_none_after_a_committed_step),
        cmocka_unit_test(a_job_stops_because_it_was_asked_to),
        cmocka_unit_test(a_run_forms_when_all_of_it_are_as_far),
        cmocka_unit_test(a_run_that_was_there_before_goes_on_with_who_is_back),
        cmocka_unit_test(a_run_fails_for_a_cause_and_ends_when_nobody_asks),
        cmocka_unit_test(a_member_comes_as_far_as_its_run),
        cmocka_unit_test(a_member_that_asks_is_answered_before_anything_else),
        cmocka_unit_test(a_checkpoint_that_is_gone_is_never_good),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
