#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/model/job_table.h"
#include "coordinator/model/run.h"
#include "coordinator/model/transitions.h"

static bool may_follow(int from, int to) { return gs_transition_find(GS_MACHINE_JOB, from, to) >= 0; }

static void every_state_has_a_name_of_its_own(void **state) {
    (void)state;
    for (int i = 0; i < GS_NUM_JOB_STATES; i++) {
        gs_job_state back = GS_NUM_JOB_STATES;
        assert_true(gs_job_state_from_name(&back, gs_job_state_name((gs_job_state)i)));
        assert_int_equal(back, i);
    }
    gs_job_state none;
    assert_false(gs_job_state_from_name(&none, "paused"));
}

static void a_terminal_job_never_changes_again(void **state) {
    (void)state;
    for (int from = GS_JOB_SUCCEEDED; from < GS_NUM_JOB_STATES; from++) {
        assert_true(gs_job_state_terminal((gs_job_state)from));
        for (int to = 0; to < GS_NUM_JOB_STATES; to++) {
            assert_false(may_follow(from, to));
        }
    }
}

// But a job that trains is stopping before it is cancelled.
static void every_live_state_can_end_in_every_way(void **state) {
    (void)state;
    for (int from = 0; from < GS_JOB_SUCCEEDED; from++) {
        assert_false(gs_job_state_terminal((gs_job_state)from));
        assert_true(may_follow(from, GS_JOB_SUCCEEDED));
        assert_true(may_follow(from, GS_JOB_FAILED));
        assert_int_equal(may_follow(from, GS_JOB_CANCELLED), from != GS_JOB_RUNNING);
    }
}

static void a_stopping_job_only_ends(void **state) {
    (void)state;
    for (int to = 0; to < GS_JOB_SUCCEEDED; to++) {
        assert_false(may_follow(GS_JOB_STOPPING, to));
    }
}

static void training_comes_after_starting_or_recovering_alone(void **state) {
    (void)state;
    for (int from = 0; from < GS_NUM_JOB_STATES; from++) {
        bool may = from == GS_JOB_STARTING || from == GS_JOB_RECOVERING;
        assert_int_equal(may_follow(from, GS_JOB_RUNNING), may);
    }
}

// Ids follow the time of creation: below a full list of what was deleted, whatever is not there has been deleted too.
static void what_was_deleted_is_gone_and_what_nobody_knows_is_not(void **state) {
    (void)state;
    gs_job_table table = {0};
    for (uint64_t id = GS_MAX_TOMBSTONES; id > 1; id--)
        gs_job_table_bury(&table, &(gs_tombstone){.job = 2 * id, .generation = 5});
    assert_true(gs_job_table_is_gone(&table, 4, false));
    assert_false(gs_job_table_is_gone(&table, 3, true));
    assert_false(gs_job_table_is_gone(&table, 5, true));
    gs_job_table_bury(&table, &(gs_tombstone){.job = 4, .generation = 6});  // once more
    assert_int_equal(table.num_tombstones, GS_MAX_TOMBSTONES - 1);
    assert_int_equal(gs_job_table_tombstone(&table, 4)->generation, 6);
    gs_job_table_bury(&table, &(gs_tombstone){.job = 50001});
    gs_job_table_bury(&table, &(gs_tombstone){.job = 50003});
    assert_int_equal(table.num_tombstones, GS_MAX_TOMBSTONES);
    assert_null(gs_job_table_tombstone(&table, 4));
    assert_true(gs_job_table_is_gone(&table, 4, true));
    assert_false(gs_job_table_is_gone(&table, 4, false));  // nobody says that it was ours
    assert_false(gs_job_table_is_gone(&table, 50005, true));
    assert_false(gs_job_table_is_gone(&table, 50002, true));
    gs_job_table_add_unreadable(&table, 3);  // older than all of them, and on the disk
    assert_false(gs_job_table_is_gone(&table, 3, true));
    assert_true(gs_job_table_is_gone(&table, 2, true));
    gs_job_table_release(&table);
}

// It is on the disk, and nobody sees more of it than its id.
static void a_job_whose_record_cannot_be_read_is_not_unknown(void **state) {
    (void)state;
    gs_job_table table = {0};
    char kept[GS_JOB_ID_LEN], other[GS_JOB_ID_LEN];
    gs_job *job = NULL;
    size_t candidates = 7;
    gs_job_id_format(kept, 3);
    gs_job_id_format(other, 4);
    gs_job_table_add_unreadable(&table, 3);
    gs_status status = gs_job_table_find(&table, &job, &candidates, kept);
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "the record of job "));
    assert_int_equal(candidates, 0);
    assert_int_equal(gs_job_table_find(&table, &job, &candidates, other).code, GS_NOT_FOUND);
    assert_int_equal(gs_job_table_find(&table, &job, &candidates, "name").code, GS_NOT_FOUND);
    // Its trainers told what is needed of it: it has a record again, and is as others are, also behind its deletion.
    job = gs_job_create(3, &(gs_job_spec){0});
    gs_job_table_add(&table, job);
    assert_int_equal(table.num_unreadable, 0);
    gs_job_table_unlink(&table, job);
    gs_job_destroy(job);
    assert_int_equal(gs_job_table_find(&table, &job, &candidates, kept).code, GS_NOT_FOUND);
    gs_job_table_release(&table);
}

// As worker/launch.h says them; who boots has no place in any generation yet.
static void words_of_a_trainer_say_where_it_stands(void **state) {
    (void)state;
    const struct {
        const char *word;
        gs_membership means;
    } words[] = {{NULL, GS_MEMBERSHIP_UNTOLD},         {"booting", GS_MEMBERSHIP_UNTOLD},   {"thinks", GS_MEMBERSHIP_UNTOLD},
                 {"waiting", GS_MEMBERSHIP_FORMS},     {"prepared", GS_MEMBERSHIP_FORMS},   {"connecting", GS_MEMBERSHIP_FORMS},
                 {"connected", GS_MEMBERSHIP_WAITS},   {"running", GS_MEMBERSHIP_TRAINS},   {"aborting", GS_MEMBERSHIP_LEAVES},
                 {"leaving", GS_MEMBERSHIP_LEAVES}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        assert_int_equal(gs_membership_of(words[i].word), words[i].means);
}

// A record is of those that a job has had here; of an adopted one there is none until its first generation.
static void what_older_generations_left_is_the_jobs_up_to_its_adoption(void **state) {
    (void)state;
    gs_job job = {.generation = 7, .begun_generation = 7};
    gs_job_savers savers = gs_job_savers_of(&job);
    assert_true(gs_job_savers_include(&savers, 7, 90, "step"));
    assert_true(gs_job_savers_include(&savers, 0, 90, "step"));  // it does not say whose it is
    assert_false(gs_job_savers_include(&savers, 6, 0, "step"));
    job.adopted_step = 40;
    job.least_generation = 1000008;
    savers = gs_job_savers_of(&job);
    assert_true(gs_job_savers_include(&savers, 7, 90, "step"));
    assert_true(gs_job_savers_include(&savers, 6, 40, "step"));
    assert_false(gs_job_savers_include(&savers, 6, 41, "step"));  // it was left: its ranks had gone back
    job.generation = job.least_generation;  // it may come to nothing
    savers = gs_job_savers_of(&job);
    assert_true(gs_job_savers_include(&savers, 7, 90, "step"));
    assert_true(gs_job_savers_include(&savers, 6, 40, "step"));
    job.begun_generation = job.generation;
    job.begun_step = 44;
    savers = gs_job_savers_of(&job);
    assert_false(gs_job_savers_include(&savers, 7, 40, "step"));
    assert_true(gs_job_savers_include(&savers, 7, 44, "step"));  // its last start went on from that, also where no row could be written
}

// Ranks that nobody heard came to the same step, of a branch that was left.
static void what_a_start_went_on_from_is_that_one_and_no_other_of_its_step(void **state) {
    (void)state;
    gs_job job = {.generation = 1001, .begun_generation = 1001, .begun_step = 134, .begun_directory = "step-134-g3-final"};
    gs_job_savers savers = gs_job_savers_of(&job);
    assert_true(gs_job_savers_include(&savers, 3, 134, "step-134-g3-final"));
    assert_false(gs_job_savers_include(&savers, 2, 134, "step-134-g2-final"));
    job.begun_directory[0] = '\0';  // a record of before
    savers = gs_job_savers_of(&job);
    assert_true(gs_job_savers_include(&savers, 2, 134, "step-134-g2-final"));
}

// Until its new ranks have a generation, files of the last one are of the newest that there is.
static void what_was_given_up_with_a_disk_is_not_found_again(void **state) {
    (void)state;
    gs_job job = {.generation = 7, .begun_generation = 7, .left_generation = 7, .left_step = 30};
    gs_job_savers savers = gs_job_savers_of(&job);
    assert_false(gs_job_savers_include(&savers, 7, 31, "step"));
    assert_true(gs_job_savers_include(&savers, 7, 30, "step"));
    assert_true(gs_job_savers_include(&savers, 8, 31, "step"));
    assert_true(gs_job_savers_include(&savers, 0, 31, "step"));  // it does not say whose it is
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_a_trainer_say_where_it_stands),
        cmocka_unit_test(every_state_has_a_name_of_its_own),
        cmocka_unit_test(a_terminal_job_never_changes_again),
        cmocka_unit_test(every_live_state_can_end_in_every_way),
        cmocka_unit_test(a_stopping_job_only_ends),
        cmocka_unit_test(what_older_generations_left_is_the_jobs_up_to_its_adoption),
        cmocka_unit_test(what_a_start_went_on_from_is_that_one_and_no_other_of_its_step),
        cmocka_unit_test(what_was_given_up_with_a_disk_is_not_found_again),
        cmocka_unit_test(a_job_whose_record_cannot_be_read_is_not_unknown),
        cmocka_unit_test(what_was_deleted_is_gone_and_what_nobody_knows_is_not),
        cmocka_unit_test(training_comes_after_starting_or_recovering_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
