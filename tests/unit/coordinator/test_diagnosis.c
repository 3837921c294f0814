#include "coordinator/observe/metrics/diagnosis.h"
#include "tests/support/asserts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

// 100 ms a step, 95 of them computing.
static gs_diagnosis_facts healthy_job(void) {
    return (gs_diagnosis_facts){.state = GS_JOB_RUNNING,
                                .message = "2 ranks train",
                                .failure = {.rank = -1},
                                .steps = 100,
                                .world_size = 2,
                                .step_seconds = 0.1,
                                .data = 0.001,
                                .forward = 0.03,
                                .backward = 0.06,
                                .exposed = 0.003,
                                .optimizer = 0.005,
                                .backward_seconds = 0.06,
                                .plan_revision = 2,
                                .rebuild_after_steps = 1,
                                .loss = 2};
}

static const gs_diagnosis_bucket exposed_buckets[] = {
    {.index = 0, .bytes = 1 << 20, .ready = 0.01, .launched = 0.01, .finished = 0.02},
    {.index = 1, .bytes = 24 << 20, .ready = 0.0198, .launched = 0.02, .finished = 0.095},
    {.index = 2, .bytes = 1 << 20, .ready = 0.06, .launched = 0.0601, .finished = 0.1}};

static gs_diagnosis_facts exposed_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.step_seconds = 0.14;
    facts.exposed = 0.04;
    facts.buckets = exposed_buckets;
    facts.num_buckets = 3;
    return facts;
}

static gs_diagnosis_facts held_bucket_job(void) {
    static const gs_diagnosis_bucket buckets[] = {
        {.index = 0, .bytes = 1 << 20, .ready = 0.059, .launched = 0.059, .finished = 0.06},
        {.index = 1, .bytes = 24 << 20, .ready = 0.01, .launched = 0.059, .finished = 0.095}};
    gs_diagnosis_facts facts = exposed_job();
    facts.buckets = buckets;
    facts.num_buckets = 2;
    return facts;
}

static gs_diagnosis_facts straggler_job(void) {
    static const gs_straggler_view ranks[] = {
        {.phase = ""},
        {.phase = "data", .flagged = true, .median_lag_seconds = 0.041, .share_last = 0.88,
         .blame_seconds = 4.1}};
    gs_diagnosis_facts facts = exposed_job();
    facts.ranks = ranks;
    facts.num_ranks = 2;
    facts.whatif_step_seconds = 0.099;
    return facts;
}

static gs_diagnosis_facts uneven_job(void) {
    static const gs_straggler_view ranks[] = {{.phase = ""}, {.phase = ""}};
    gs_diagnosis_facts facts = exposed_job();
    facts.ranks = ranks;
    facts.num_ranks = 2;
    facts.waiting = 0.03;
    return facts;
}

static gs_diagnosis_facts data_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.step_seconds = 0.15;
    facts.data = 0.05;
    return facts;
}

static gs_diagnosis_facts checkpoint_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.step_seconds = 0.12;
    facts.checkpoint = 0.02;
    facts.checkpoint_failures = 3;
    return facts;
}

static gs_diagnosis_facts mismatched_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.order_mismatches = 92;
    facts.rebuild_after_steps = 0;
    facts.could_be_static = true;
    return facts;
}

static gs_diagnosis_facts changed_order_job(void) {
    gs_diagnosis_facts facts = mismatched_job();
    facts.rebuild_after_steps = 1;
    return facts;
}

static gs_diagnosis_facts sharded_job(void) {
    gs_diagnosis_facts facts = mismatched_job();
    facts.plan_is_fixed = true;
    return facts;
}

static gs_diagnosis_facts unused_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.unused_parameters = 4;
    facts.unused_bytes = 2 << 20;
    facts.could_be_static = true;
    return facts;
}

static gs_diagnosis_facts layer_drop_job(void) {
    gs_diagnosis_facts facts = unused_job();
    facts.could_be_static = false;
    return facts;
}

// Parameters that a rank does not use come at the end of its pass, others every step: no plan has that order.
static gs_diagnosis_facts shuffled_job(void) {
    gs_diagnosis_facts facts = mismatched_job();
    facts.could_be_static = false;
    return facts;
}

static gs_diagnosis_facts skipping_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.skipped_steps = 7;
    facts.loss = NAN;
    return facts;
}

static gs_diagnosis_facts collapsed_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.skipped_steps = 30;
    facts.loss_scale = 0.125;
    return facts;
}

// Some skipped steps are how a loss scale finds its place.
static gs_diagnosis_facts scaling_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.skipped_steps = 2;
    facts.loss_scale = 4096;
    return facts;
}

static gs_diagnosis_facts copying_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.copies = 0.01;
    return facts;
}

static gs_diagnosis_facts queued_job(void) {
    return (gs_diagnosis_facts){.state = GS_JOB_QUEUED,
                                .message = "3 slots are needed, 1 is free",
                                .failure = {.rank = -1},
                                .slots_needed = 3,
                                .slots_free = 1,
                                .waiting_seconds = 12.5};
}

static gs_diagnosis_facts starting_job(void) {
    return (gs_diagnosis_facts){
        .state = GS_JOB_STARTING, .message = "2 ranks start", .failure = {.rank = -1}};
}

static gs_diagnosis_facts silent_job(void) {
    return (gs_diagnosis_facts){
        .state = GS_JOB_RUNNING, .message = "Training", .failure = {.rank = -1}};
}

static gs_diagnosis_facts failed_job(void) {
    return (gs_diagnosis_facts){.state = GS_JOB_FAILED,
                                .message = "rank 1: could not open its data",
                                .failed_once = true,
                                .failure = {.rank = 1,
                                            .host = "h2",
                                            .step = 40,
                                            .class = "user",
                                            .message = "could not open its data",
                                            .hint = "mount the data directory"}};
}

static gs_diagnosis_facts recovered_job(void) {
    gs_diagnosis_facts facts = healthy_job();
    facts.failed_once = true;
    facts.failure = (gs_diagnosis_failure){.rank = 0, .host = "h1", .step = 9, .restarts = 2,
                                           .message = "ended by signal 9", .class = "infrastructure"};
    return facts;
}

static gs_diagnosis_facts succeeded_job(void) {
    gs_diagnosis_facts facts = exposed_job();
    facts.state = GS_JOB_SUCCEEDED;
    facts.message = "60 steps are done";
    return facts;
}

typedef struct diagnosis_case {
    const char *name;
    gs_diagnosis_facts (*job)(void);
    const char *verdict;
    const char *summary;   // a part of it
    const char *kinds;     // of all findings, in order, each with a space behind
    const char *detail;    // a part of the first finding's; NULL: none
    const char *suggests;  // a part of what it suggests
} diagnosis_case;

static const diagnosis_case cases[] = {
    {"healthy", healthy_job, "healthy", "95 % of a step of 100 ms is computing", "", NULL, NULL},
    {"exposed", exposed_job, "communication",
     "29 % of step time is exposed communication; bucket 1 (24 MiB) starts 40 ms before backward ends",
     "exposed_bucket exposed_bucket ",
     "bucket 1 (24 MiB) starts 40 ms before backward ends and is exposed for 35 ms; it was ready 200 us "
     "before it started",
     "smaller buckets start earlier"},
    {"held bucket", held_bucket_job, "communication", "bucket 1 (24 MiB) starts 1 ms before",
     "exposed_bucket ", "it was ready 49 ms before it started", "held back by its place"},
    {"straggler", straggler_job, "straggler", "rank 1 holds the others up by 41 ms in a step of 140 ms",
     "straggler ", "wait 41 ms a step for rank 1 (data), which was last in 88 %", "check its disk"},
    {"uneven", uneven_job, "communication", "ranks wait 21 % of it for each other", "uneven_ranks ",
     "ranks wait 30 ms a step for each other (21 %)", "pin them to cores"},
    {"data", data_job, "data", "ranks wait 50 ms of 150 ms a step for data (33 %)", "data ",
     "ranks wait 50 ms of 150 ms a step for data (33 %)", "faster disk"},
    {"checkpoint", checkpoint_job, "checkpoint", "saving takes 20 ms of 120 ms a step (17 %)",
     "checkpoint checkpoint_failures ", "saving takes 20 ms a step from rank 0", "save less often"},
    {"order", mismatched_job, "compute", "95 % of a step of 100 ms is computing",
     "ready_order_mismatch ", "differs from plan revision 2 in 92 of 100 steps",
     "POST replan, or set reducer.rebuild_after_steps to 1"},
    {"order again", changed_order_job, "compute", "see the findings", "ready_order_mismatch ",
     "92 of 100 steps", "POST replan: the order changed"},
    {"fixed order", sharded_job, "compute", "see the findings", "ready_order_mismatch ",
     "92 of 100 steps", "nothing: the plan of a sharded job is fixed"},
    {"no order", shuffled_job, "compute", "see the findings", "ready_order_mismatch ",
     "92 of 100 steps", "no order suits all steps"},
    {"unused", unused_job, "compute", "see the findings", "unused_parameters ",
     "4 parameters (2 MiB) were used by no rank", "reducer.static_graph"},
    {"layer drop", layer_drop_job, "compute", "see the findings", "unused_parameters ",
     "4 parameters (2 MiB) were used by no rank", "nothing, if the model means it"},
    {"not finite", skipping_job, "compute", "see the findings", "skipped_steps loss ",
     "7 of 100 steps were left out", "grad_clip_norm"},
    {"collapsed scale", collapsed_job, "compute", "see the findings", "skipped_steps loss_scale ",
     "30 of 100 steps were left out", "lower optimizer.lr"},
    {"scale at work", scaling_job, "healthy", "nothing to improve", "", NULL, NULL},
    {"copies", copying_job, "compute", "see the findings", "copies ",
     "copying gradients into buckets and out takes 10 ms a step (10 %)", "views"},
    {"queued", queued_job, "waiting", "queued: 3 slots are needed", "queue ",
     "3 slots are needed and 1 are free; it has waited for 12.50 s", "start more workers"},
    {"starting", starting_job, "waiting", "starting: 2 ranks start", "", NULL, NULL},
    {"silent", silent_job, "waiting", "none has reported a step yet", "", NULL, NULL},
    {"failed", failed_job, "failed", "failed at step 40: rank 1: could not open its data",
     "first_failure ", "rank 1 on h2 failed first, at step 40: could not open its data",
     "mount the data directory"},
    {"recovered", recovered_job, "compute", "see the findings", "first_failure ",
     "rank 0 on h1 failed first, at step 9: ended by signal 9", "read the last lines of its log"},
    {"succeeded", succeeded_job, "not_running", "succeeded: 60 steps are done",
     "exposed_bucket exposed_bucket ", "bucket 1 (24 MiB)", "smaller buckets"},
};

static void assert_has(const diagnosis_case *of, const char *text, const char *part) {
    if (strstr(text, part)) return;
    print_error("%s: \"%s\" is not in \"%s\"\n", of->name, part, text);
    fail();
}

static void every_case_has_its_verdict_sentence_and_findings(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const diagnosis_case *of = &cases[i];
        gs_diagnosis_facts facts = of->job();
        gs_json *out = gs_diagnose(&facts);
        assert_has(of, gs_json_string_or(out, "verdict", ""), of->verdict);
        assert_string_equal(gs_json_string_or(out, "verdict", ""), of->verdict);
        assert_has(of, gs_json_string_or(out, "summary", ""), of->summary);
        const gs_json *findings = gs_json_get(out, "findings");
        char kinds[300] = "";
        for (size_t k = 0; k < gs_json_count(findings); k++) {
            const gs_json *finding = gs_json_at(findings, k);
            size_t used = strlen(kinds);
            snprintf(kinds + used, sizeof kinds - used, "%s ", gs_json_string_or(finding, "kind", "?"));
            assert_true(strlen(gs_json_string_or(finding, "detail", "")) > 5);
            assert_true(strlen(gs_json_string_or(finding, "suggest", "")) > 5);
        }
        assert_has(of, kinds, of->kinds);
        assert_string_equal(kinds, of->kinds);
        if (of->detail) {
            assert_has(of, gs_json_string_or(gs_json_at(findings, 0), "detail", ""), of->detail);
            assert_has(of, gs_json_string_or(gs_json_at(findings, 0), "suggest", ""), of->suggests);
        }
        gs_json_release(out);
    }
}

static void findings_carry_their_numbers(void **state) {
    (void)state;
    gs_diagnosis_facts facts = straggler_job();
    gs_json *out = gs_diagnose(&facts);
    const gs_json *finding = gs_json_at(gs_json_get(out, "findings"), 0);
    assert_int_equal(gs_json_int_or(finding, "rank", -1), 1);
    assert_near(gs_json_double_or(finding, "lag_seconds", 0), 0.041, 0);
    assert_near(gs_json_double_or(finding, "share_of_steps_last", 0), 0.88, 0);
    assert_string_equal(gs_json_string_or(finding, "phase", ""), "data");
    gs_json_release(out);
    facts = exposed_job();
    out = gs_diagnose(&facts);
    finding = gs_json_at(gs_json_get(out, "findings"), 0);
    assert_int_equal(gs_json_int_or(finding, "bucket", -1), 1);
    assert_near(gs_json_double_or(finding, "exposed_seconds", 0), 0.035, 1e-9);
    gs_json_release(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_has_its_verdict_sentence_and_findings),
        cmocka_unit_test(findings_carry_their_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
