// What a start reads is what was written, also by versions that wrote less.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/model/job_table.h"
#include "coordinator/model/run.h"
#include "coordinator/store/record/job_record.h"
#include "core/clock.h"

#define ID UINT64_C(470653578011114852)
#define CREATED_MS INT64_C(1795400000000)
#define NOW_NS (50 * GS_NS_PER_SEC)

static const char spec[] = "{\"name\":\"r\",\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":100}}";

// Of a job that trains with two ranks: `members` is the rest of the record, `run` of its run.
static gs_job *read_job_in(const char *phase, gs_job_documents *documents, const char *members, const char *run) {
    char text[4000];
    snprintf(text, sizeof text,
             "{\"spec\":%s,\"state\":\"running\",\"created_ms\":%lld,\"generation\":7,\"world_size\":2,"
             "\"step\":40,\"committed\":true%s,\"run\":{\"phase\":\"%s\",\"generation\":7,"
             "\"base_step\":10%s,\"members\":["
             "{\"worker\":\"w0\",\"host\":\"h\",\"slot\":0,\"rank\":0,\"pid\":5,\"incarnation\":\"11\","
             "\"launch_token\":\"12\"},"
             "{\"worker\":\"w1\",\"host\":\"h\",\"slot\":1,\"rank\":1,\"pid\":6,\"incarnation\":\"21\","
             "\"launch_token\":\"22\"}]}}",
             spec, (long long)CREATED_MS, members, phase, run);
    gs_job *job = NULL;
    gs_status status = gs_job_from_record(&job, documents, ID, text, NOW_NS, CREATED_MS + 90000);
    assert_string_equal(status.message, "");
    return job;
}

static gs_job *read_job(gs_job_documents *documents, const char *members, const char *run) {
    return read_job_in("training", documents, members, run);
}

static void release(gs_job *job, gs_job_documents *documents) {
    gs_job_destroy(job);
    gs_job_documents_release(documents);
}

static void what_is_written_is_read(void **state) {
    (void)state;
    gs_job_documents documents, again;
    gs_job *job = read_job(&documents,
                           ",\"age_ms\":60000,\"restart_times_ms\":[1795400001000,1795400030000],"
                           "\"plan_revision\":3,\"plan\":{\"hash\":\"xxh3:1\",\"reason\":\"ready_order\","
                           "\"since_step\":12,\"buckets\":[{},{}]},\"ready_order\":[2,0,1],"
                           "\"order_reason\":\"operator\",\"sample\":\"text\",\"disk_given_up\":true,\"adopted_step\":40,\"begun_step\":44,\"begun_directory\":\"step-44-a\",\"left_generation\":9,\"left_step\":30,\"gone\":[\"step-60-a\"],\"written_as\":\"c-first\",\"least_generation\":1000003",
                           ",\"step\":38,\"draining\":true,\"saving\":true");
    assert_int_equal(job->plan.revision, 3);
    assert_int_equal(job->plan.num_buckets, 2);
    assert_int_equal(job->plan.since_step, 12);
    assert_int_equal(job->ready_order.count, 3);
    assert_int_equal(job->run->step, 38);
    assert_true(job->run->saving);
    char *first = NULL, *second = NULL;
    assert_int_equal(gs_job_to_record(&first, job, &documents, NOW_NS).code, GS_OK);
    gs_job *copy = NULL;
    assert_int_equal(gs_job_from_record(&copy, &again, ID, first, NOW_NS, CREATED_MS + 90000).code, GS_OK);
    assert_int_equal(gs_job_to_record(&second, copy, &again, NOW_NS).code, GS_OK);
    // A run that is read again waits for its members, whatever it was.
    char *phase = strstr(first, "\"training\"");
    assert_null(phase);
    assert_string_equal(first, second);
    assert_true(copy->checkpoints.is_given_up);  // what an operator was told is so
    assert_int_equal(copy->adopted_step, 40);
    assert_int_equal(copy->begun_step, 44);
    assert_string_equal(copy->begun_directory, "step-44-a");
    assert_int_equal(copy->left_generation, 9);
    assert_int_equal(copy->left_step, 30);
    gs_checkpoints_load(&copy->checkpoints, "step-60-a", &(gs_checkpoint){.step = 60, .state = GS_CHECKPOINT_GOOD});
    gs_checkpoints_load(&copy->checkpoints, "step-30-b", &(gs_checkpoint){.step = 30, .state = GS_CHECKPOINT_GOOD});
    assert_int_equal(gs_checkpoints_newest_step(&copy->checkpoints), 30);
    assert_int_equal(copy->checkpoints.count, 2);
    assert_string_equal(copy->written_as, "c-first");
    assert_int_equal(copy->least_generation, 1000003);
    free(first);
    free(second);
    release(job, &documents);
    release(copy, &again);
}

static void a_run_waits_for_members_that_were_in(void **state) {
    (void)state;
    gs_job_documents documents;
    gs_job *job = read_job(&documents, "", "");
    gs_run *run = job->run;
    assert_int_equal(run->phase, GS_RUN_RELOADING);
    assert_int_equal(run->step, 40);  // nothing else is known
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run->members[i].stage, GS_MEMBER_UP);
        assert_true(run->members[i].was_up);
        assert_int_equal(run->members[i].stream.call, 0);
        assert_int_equal(run->members[i].applied_step, 40);
    }
    assert_int_equal(run->members[1].launch_token, 22);
    release(job, &documents);
}

static gs_job *read_plain(gs_job_documents *documents, const char *state, const char *run) {
    char text[2000];
    snprintf(text, sizeof text, "{\"spec\":%s,\"state\":\"%s\",\"created_ms\":%lld,\"generation\":7,\"world_size\":1,\"step\":1%s}", spec, state,
             (long long)CREATED_MS, run);
    gs_job *job = NULL;
    assert_string_equal(gs_job_from_record(&job, documents, ID, text, NOW_NS, CREATED_MS + 90000).message, "");
    return job;
}

// Else no row of the tables would lead out of it.
static void what_its_state_says_by_itself_is_so(void **state) {
    (void)state;
    const struct {
        const char *state;
        bool committed, stop_asked;
    } rows[] = {{"queued", false, false}, {"starting", false, false}, {"running", true, false}, {"recovering", true, false}, {"stopping", false, true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        gs_job_documents documents;
        gs_job *job = read_plain(&documents, rows[i].state, "");
        assert_int_equal(job->committed, rows[i].committed);
        assert_int_equal(job->stop_asked, rows[i].stop_asked);
        assert_int_equal(job->stop_outcome, GS_JOB_CANCELLED);
        release(job, &documents);
    }
}

// Its next step is its first then, and commits.
static void a_job_that_has_committed_nothing_has_not_seen_its_first_step(void **state) {
    (void)state;
    const char *run = ",\"run\":{\"phase\":\"training\",\"generation\":7,\"base_step\":0,\"members\":[{\"worker\":\"w\",\"host\":\"h\",\"slot\":0,"
                      "\"rank\":0,\"pid\":5,\"incarnation\":\"11\",\"launch_token\":\"12\"}]}";
    gs_job_documents documents;
    gs_job *job = read_plain(&documents, "starting", run);
    assert_int_equal(job->run->step, 1);
    assert_false(job->run->first_step_seen);
    release(job, &documents);
    job = read_plain(&documents, "running", run);
    assert_true(job->run->first_step_seen);
    release(job, &documents);
}

static void assert_settles(const char *phase, const char *run, bool settles) {
    gs_job_documents documents;
    gs_job *job = read_job_in(phase, &documents, "", run);
    if (settles) assert_int_equal(job->run->phase, GS_RUN_SETTLING);
    else assert_null(job->run);
    release(job, &documents);
}

// Records of before do not say whether it had trained when it failed: it has when it made a step.
static void a_run_that_had_failed_settles_if_it_has_trained(void **state) {
    (void)state;
    assert_settles("settling", ",\"step\":10,\"trained\":true", true);
    assert_settles("ending", ",\"step\":10,\"trained\":true", true);
    assert_settles("settling", ",\"step\":11,\"trained\":false", false);
    assert_settles("settling", ",\"step\":11", true);
    assert_settles("ending", ",\"step\":10", false);
    assert_settles("connecting", ",\"step\":11,\"trained\":true", false);
}

// What is decided by the plan does not hang on what people are shown of it; a record of before has nothing else.
static void a_plan_is_known_without_its_document(void **state) {
    (void)state;
    gs_job_documents documents, none = {0};
    gs_job *job = read_job(&documents,
                           ",\"plan_revision\":3,\"plan\":{\"hash\":\"xxh3:1\",\"reason\":\"operator\",\"since_step\":12,"
                           "\"buckets\":[{},{}]}", "");
    char *text = NULL;
    none.spec = documents.spec;
    assert_int_equal(gs_job_to_record(&text, job, &none, NOW_NS).code, GS_OK);
    release(job, &documents);
    assert_int_equal(gs_job_from_record(&job, &documents, ID, text, NOW_NS, CREATED_MS).code, GS_OK);
    free(text);
    assert_string_equal(job->plan.hash, "xxh3:1");
    assert_string_equal(job->plan.reason, "operator");
    assert_int_equal(job->plan.revision, 3);
    assert_int_equal(job->plan.since_step, 12);
    assert_int_equal(job->plan.num_buckets, 2);
    release(job, &documents);
}

static void ages_go_on_where_they_were(void **state) {
    (void)state;
    gs_job_documents documents;
    gs_job *job = read_job(&documents, ",\"age_ms\":60000,\"restart_times_ms\":[1795400045000]", "");
    assert_int_equal(gs_job_age_ns(job, NOW_NS + 5 * GS_NS_PER_SEC), 65 * GS_NS_PER_SEC);
    assert_int_equal(job->num_restart_ages, 1);
    assert_int_equal(job->restart_ages_ns[0], 45 * GS_NS_PER_SEC);
    release(job, &documents);
    // Records of before have none: then it is what the wall clock says, and no restart is in the future.
    job = read_job(&documents, ",\"restart_times_ms\":[1795400045000,1795409999000,5]", "");
    assert_int_equal(gs_job_age_ns(job, NOW_NS), 90 * GS_NS_PER_SEC);
    assert_int_equal(job->restart_ages_ns[0], 45 * GS_NS_PER_SEC);
    assert_int_equal(job->restart_ages_ns[1], 90 * GS_NS_PER_SEC);
    assert_int_equal(job->restart_ages_ns[2], 0);
    release(job, &documents);
}

static void an_order_that_is_none_is_forgotten(void **state) {
    (void)state;
    static const char *const orders[] = {"[0,0]", "[0,2]", "[0,-1]", "[\"0\"]", "7"};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        char members[80];
        snprintf(members, sizeof members, ",\"ready_order\":%s", orders[i]);
        gs_job_documents documents;
        gs_job *job = read_job(&documents, members, "");
        assert_int_equal(job->ready_order.count, 0);
        release(job, &documents);
    }
}

static void what_is_no_job_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"", "{}", "[]", "{\"spec\":{\"model\":{\"kind\":\"mlp\"}},\"state\":\"running\"}",
                                        "{\"spec\":{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":1}},\"state\":\"paused\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        gs_job *job = NULL;
        gs_job_documents documents;
        assert_int_not_equal(gs_job_from_record(&job, &documents, ID, texts[i], NOW_NS, CREATED_MS).code, GS_OK);
        assert_null(job);
    }
}

// There may be ten thousand jobs that rest, and a sample may be long. It ends with a whole character.
// Who had ranks of the run before is asked about them, when they come back as another cluster's.
static void workers_of_the_last_run_are_known_after_a_start(void **state) {
    (void)state;
    gs_job_documents documents;
    gs_job *job = read_job(&documents, ",\"final_workers\":[{\"worker\":\"w5\"},{\"worker\":\"w5\"},{\"worker\":\"w6\"},{\"worker\":\"w7\"}]", "");
    assert_true(gs_job_had_worker(job, "w5"));
    assert_true(gs_job_had_worker(job, "w6"));
    assert_true(gs_job_had_worker(job, "w7"));
    assert_false(gs_job_had_worker(job, "w0"));  // of the run that lives
    assert_int_equal(job->num_last_workers, 3);
    release(job, &documents);
}

static void a_job_that_rests_has_the_begin_of_its_sample(void **state) {
    (void)state;
    char text[2002];
    for (int i = 0; i < 2000; i += 2) memcpy(text + i, "\xc3\xa9", 2);
    text[2000] = '\0';
    for (int shift = 0; shift < 2; shift++) {
        gs_job_documents documents = {.sample = strdup(text)};
        if (shift) documents.sample[1] = documents.sample[0] = 'a';  // one byte each: characters begin elsewhere
        if (shift) memmove(documents.sample, documents.sample + 1, 2000);
        gs_job_documents_rest(&documents);
        assert_int_equal(strlen(documents.sample), GS_SAMPLE_SHORT_BYTES - shift);
        gs_job_documents_release(&documents);
    }
    gs_job_documents brief = {.sample = strdup("once")};
    gs_job_documents_rest(&brief);
    assert_string_equal(brief.sample, "once");
    gs_job_documents_release(&brief);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(a_run_waits_for_members_that_were_in),
        cmocka_unit_test(ages_go_on_where_they_were),
        cmocka_unit_test(a_run_that_had_failed_settles_if_it_has_trained),
        cmocka_unit_test(what_its_state_says_by_itself_is_so),
        cmocka_unit_test(a_job_that_has_committed_nothing_has_not_seen_its_first_step),
        cmocka_unit_test(a_plan_is_known_without_its_document),
        cmocka_unit_test(an_order_that_is_none_is_forgotten),
        cmocka_unit_test(what_is_no_job_is_refused),
        cmocka_unit_test(workers_of_the_last_run_are_known_after_a_start),
        cmocka_unit_test(a_job_that_rests_has_the_begin_of_its_sample),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
