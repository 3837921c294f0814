// Whom the coordinator names for what a rank reports, and that the report's values reach who asks: the job's
// failure, its diagnosis, its events. One table; the texts of the reports accuse somebody else each time.
// Row M10 of docs/faults.md.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpc/json/json.h"
#include "tests/support/asserts.h"
#include "tests/support/coordinator_stage.h"
#include "tests/support/soon.h"

#define NUM_RANKS 3
#define TEXT "\"code\":\"ABORTED\",\"text\":\"rank 0 did it\""

typedef struct verdict_case {
    const char *name;
    const char *report, *late_report;  // of rank 0, and of rank 2 when it hears of the end; NULL: none
    const char *reason;                // the job's
    int rank;                          // the verdict's; −1: nobody
    const char *kind, *accused;        // as they are told
    int reporter, bucket;              // −1: not told
} verdict_case;

static const verdict_case cases[] = {
    {"several are late",
     "{\"kind\":\"timeout\",\"reporter\":0,\"accused\":[1,2],\"lane\":1,\"collective\":7,"
     "\"collective_step\":1,\"bucket\":5," TEXT "}",
     NULL, "WorkerHung", 1, "timeout", "[1,2]", 0, 5},
    {"seen by another", "{\"kind\":\"timeout\",\"reporter\":1,\"accused\":[2]," TEXT "}", NULL,
     "WorkerHung", 2, "timeout", "[2]", 1, -1},
    {"nobody is known", "{\"kind\":\"timeout\",\"reporter\":0,\"accused\":[]," TEXT "}", NULL,
     "WorkerHung", -1, "timeout", "[]", 0, -1},
    {"lost", "{\"kind\":\"peer_lost\",\"reporter\":0,\"accused\":[2]," TEXT "}", NULL, "WorkerLost", 2,
     "peer_lost", "[2]", 0, -1},
    {"posted something else", "{\"kind\":\"mismatch\",\"reporter\":0,\"accused\":[1]," TEXT "}", NULL,
     "WorkerError", 1, "mismatch", "[1]", 0, -1},
    {"its own mistake", "{\"kind\":\"mismatch\",\"reporter\":0,\"accused\":[]," TEXT "}", NULL,
     "WorkerError", 0, "mismatch", "[]", 0, -1},
    {"damaged", "{\"kind\":\"damaged\",\"reporter\":2,\"accused\":[1]," TEXT "}", NULL, "WorkerLost", 1,
     "damaged", "[1]", 2, -1},
    {"its device", "{\"kind\":\"device\",\"reporter\":0,\"accused\":[0]," TEXT "}", NULL, "WorkerError", 0,
     "device", "[0]", 0, -1},
    {"aborted by another", "{\"kind\":\"aborted\",\"reporter\":2,\"accused\":[]," TEXT "}", NULL,
     "WorkerLost", 2, "aborted", "[]", 2, -1},
    {"which then says why", "{\"kind\":\"aborted\",\"reporter\":2,\"accused\":[]," TEXT "}",
     "{\"kind\":\"data\",\"reporter\":2,\"accused\":[]," TEXT "}", "WorkerError", 2, "data", "[]", 2, -1},
    {"what came first stays", "{\"kind\":\"peer_lost\",\"reporter\":0,\"accused\":[1]," TEXT "}",
     "{\"kind\":\"data\",\"reporter\":2,\"accused\":[]," TEXT "}", "WorkerLost", 1, "peer_lost", "[1]", 0,
     -1},
    {"also of itself", "{\"kind\":\"peer_lost\",\"reporter\":0,\"accused\":[2]," TEXT "}",
     "{\"kind\":\"data\",\"reporter\":2,\"accused\":[]," TEXT "}", "WorkerLost", 2, "peer_lost", "[2]", 0, -1},
    {"only of itself", "{\"kind\":\"aborted\",\"reporter\":1,\"accused\":[]," TEXT "}",
     "{\"kind\":\"data\",\"reporter\":2,\"accused\":[]," TEXT "}", "WorkerLost", 1, "aborted", "[]", 1, -1},
    {"of a worker of before", "{\"kind\":\"timeout\",\"suspects\":[2],\"collective\":3,\"bucket\":-1," TEXT
     "}", NULL, "WorkerHung", 2, "timeout", "[2]", 0, -1},
    {"ranks that are none", "{\"kind\":\"peer_lost\",\"reporter\":9,\"accused\":[-1,7,1,5000]," TEXT "}",
     NULL, "WorkerLost", 1, "peer_lost", "[1]", 0, -1},
    {"a word of later", "{\"kind\":\"gremlins\",\"accused\":[]," TEXT "}", NULL, "WorkerError", 0,
     "internal", "[]", 0, -1},
};

static void assert_told(const gs_json *where, const char *kind_key, const verdict_case *how) {
    char *accused = NULL;
    assert_string_equal(gs_json_string_or(where, kind_key, ""), how->kind);
    assert_ok(gs_json_encode(&accused, NULL, gs_json_get(where, "accused"), false));
    assert_string_equal(accused, how->accused);
    free(accused);
    assert_int_equal(gs_json_int_or(where, "reporter", -1), how->reporter);
}

static void assert_diagnosed(gs_stage *stage, const verdict_case *how) {
    gs_json *diagnosis = gs_stage_get(stage, GS_GET_JOB_DIAGNOSIS, stage->job);
    const gs_json *finding = gs_json_at(gs_json_get(diagnosis, "findings"), 0);
    assert_string_equal(gs_json_string_or(finding, "kind", ""), "first_failure");
    assert_told(finding, "fault", how);
    gs_json_release(diagnosis);
}

// The event keeps what was known when it happened.
static void assert_event(gs_stage *stage, const verdict_case *how) {
    gs_json *events = gs_stage_get(stage, GS_LIST_EVENTS, stage->job);
    const gs_json *items = gs_json_get(events, "items"), *found = NULL;
    for (size_t i = 0; i < gs_json_count(items) && !found; i++) {
        if (gs_json_get(gs_json_at(items, i), "accused")) found = gs_json_at(items, i);
    }
    assert_non_null(found);
    assert_string_equal(gs_json_string_or(found, "severity", ""), "warning");
    if (!how->late_report) assert_told(found, "kind", how);
    gs_json_release(events);
}

static void judge(gs_stage *stage, int index, const verdict_case *how) {
    char spec[400];
    print_message("%s\n", how->name);
    atomic_store(&stage->faults.slot, 0);
    atomic_store(&stage->faults.late_slot, 2);
    atomic_store(&stage->faults.report, how->report);
    atomic_store(&stage->faults.late_report, how->late_report);
    snprintf(spec, sizeof spec,
             "{\"name\":\"verdict-%d\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":%d},"
             "\"steps\":{\"target\":100000},"
             "\"restart\":{\"on_worker_lost\":\"fail\",\"on_worker_error\":\"fail\"}}",
             index, NUM_RANKS);
    gs_stage_submit(stage, spec);
    gs_json *job = gs_stage_wait_for_state(stage, stage->job, "failed");
    const gs_json *first = gs_json_get(gs_json_get(job, "failure"), "first");
    assert_string_equal(gs_json_string_or(job, "reason", ""), how->reason);
    assert_int_equal(gs_json_int_or(first, "rank", -1), how->rank);
    assert_int_equal(gs_json_int_or(first, "bucket", -1), how->bucket);
    assert_told(first, "kind", how);
    gs_json_release(job);
    assert_diagnosed(stage, how);
    assert_event(stage, how);
}

static void a_verdict_follows_the_values_of_a_report(void **state) {
    gs_stage *stage = *state;
    gs_fake_worker_options options = {.slots = NUM_RANKS, .step_ms = 2};
    gs_stage_start_worker(stage, 0, &options);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) judge(stage, (int)i, &cases[i]);
}

// Rank 0 accuses another of the others in each generation, and there are no other slots. Each generation ends and names who
// reported, nobody loses a slot for it, and a job that gets on all the same is not ended (of one that does not, its budget).
static void who_accuses_everybody_in_turn_costs_restarts_and_nobody_his_slot(void **state) {
    static const char *const reports[] = {"{\"kind\":\"peer_lost\",\"reporter\":0,\"accused\":[1]," TEXT "}",
                                          "{\"kind\":\"peer_lost\",\"reporter\":0,\"accused\":[2]," TEXT "}"};
    gs_stage *stage = *state;
    gs_fake_worker_options options = {.slots = NUM_RANKS, .step_ms = 20};
    gs_stage_start_worker(stage, 0, &options);
    atomic_store(&stage->faults.slot, 0);
    atomic_store(&stage->faults.late_report, NULL);
    atomic_store(&stage->faults.report, reports[0]);
    gs_stage_submit(stage, "{\"name\":\"accused\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":3},\"steps\":{\"target\":100}}");
    int64_t restarts = 0;
    for (gs_deadline limit = soon(); restarts < 6; gs_sleep_ns(GS_NS_PER_MS)) {
        gs_json *job = gs_stage_get(stage, GS_GET_JOB, stage->job);
        restarts = gs_json_int_or(job, "restarts", 0);
        gs_json_release(job);
        atomic_store(&stage->faults.report, reports[restarts / 2 % 2]);
        assert_false(gs_deadline_passed(limit));
    }
    atomic_store(&stage->faults.report, NULL);
    gs_json *job = gs_stage_wait_for_state(stage, stage->job, "succeeded");
    assert_int_equal(gs_json_int_or(job, "world_size", 0), NUM_RANKS);
    gs_json_release(job);
    gs_json *events = gs_stage_get(stage, GS_LIST_EVENTS, stage->job);
    const gs_json *items = gs_json_get(events, "items");
    int accused[NUM_RANKS] = {0};
    for (size_t i = 0; i < gs_json_count(items); i++) {
        const gs_json *names = gs_json_get(gs_json_at(items, i), "accused");
        int64_t rank = -1;
        if (gs_json_count(names) != 1 || !gs_json_int(&rank, gs_json_at(names, 0))) continue;
        assert_in_range(rank, 0, NUM_RANKS - 1);
        assert_int_equal(gs_json_int_or(gs_json_at(items, i), "reporter", -1), 0);
        accused[rank]++;
    }
    gs_json_release(events);
    assert_true(accused[1] > 0 && accused[2] > 0);
    assert_int_equal(accused[0], 0);
}

#define NUM_HOSTS 4

static bool runs_on(gs_stage *stage, size_t num_ranks, const char *worker) {
    gs_json *workers = gs_stage_get(stage, GS_GET_JOB_WORKERS, stage->job);
    const gs_json *ranks = gs_json_get(workers, "items");
    bool found = false;
    assert_int_equal(gs_json_count(ranks), num_ranks);
    for (size_t i = 0; i < gs_json_count(ranks); i++)
        found |= !strcmp(gs_json_string_or(gs_json_at(ranks, i), "worker", ""), worker);
    gs_json_release(workers);
    return found;
}

static int64_t count_restarts(gs_stage *stage) {
    gs_json *job = gs_stage_get(stage, GS_GET_JOB, stage->job);
    int64_t restarts = gs_json_int_or(job, "restarts", 0);
    gs_json_release(job);
    return restarts;
}

static size_t count_workers(gs_stage *stage) {
    gs_json *workers = NULL;
    assert_ok(gs_stage_ask(stage, &workers, GS_LIST_WORKERS, "{}"));
    size_t count = gs_json_count(gs_json_get(workers, "items"));
    gs_json_release(workers);
    return count;
}

// It is among the ranks of a generation that has come to a step, and reports once.
static void have_it_accuse(gs_stage *stage, const char *worker, const char *report) {
    int64_t before = count_restarts(stage);
    atomic_store(&stage->faults.worker, worker);
    atomic_store(&stage->faults.report, report);
    for (gs_deadline limit = soon(); count_restarts(stage) == before; gs_sleep_ns(GS_NS_PER_MS)) assert_false(gs_deadline_passed(limit));
    gs_json_release(gs_stage_wait_for_state(stage, stage->job, "running"));
}

// Four hosts, three ranks. The one on the first host accuses each of the others once: what both generations have in common is
// that host, so the next one does without it, and the host that one false word had spoken of is in use.
static void who_accuses_hosts_in_turn_is_left_out(void **state) {
    gs_stage *stage = *state;
    gs_fake_worker_options options = {.slots = 1, .step_ms = 10};
    for (int i = 0; i < NUM_HOSTS - 1; i++) gs_stage_start_worker(stage, i, &options);
    gs_stage_submit(stage, "{\"name\":\"accused\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":3},\"steps\":{\"target\":100000}}");
    gs_json_release(gs_stage_wait_for_state(stage, stage->job, "running"));
    gs_stage_start_worker(stage, NUM_HOSTS - 1, &options);
    for (gs_deadline limit = soon(); count_workers(stage) < NUM_HOSTS; gs_sleep_ns(GS_NS_PER_MS)) assert_false(gs_deadline_passed(limit));
    assert_true(runs_on(stage, NUM_RANKS, "w1") && !runs_on(stage, NUM_RANKS, "w4"));
    have_it_accuse(stage, "w1", "{\"kind\":\"peer_lost\",\"reporter\":0,\"accused\":[1]," TEXT "}");
    assert_true(runs_on(stage, NUM_RANKS, "w1") && !runs_on(stage, NUM_RANKS, "w4"));  // one word is none
    have_it_accuse(stage, "w1", "{\"kind\":\"timeout\",\"reporter\":0,\"accused\":[2]," TEXT "}");
    assert_true(!runs_on(stage, NUM_RANKS, "w1") && runs_on(stage, NUM_RANKS, "w2") && runs_on(stage, NUM_RANKS, "w3") && runs_on(stage, NUM_RANKS, "w4"));
    gs_json *events = gs_stage_get(stage, GS_LIST_EVENTS, stage->job);
    const gs_json *items = gs_json_get(events, "items"), *told = NULL;
    for (size_t i = 0; i < gs_json_count(items) && !told; i++)
        if (!strcmp(gs_json_string_or(gs_json_at(items, i), "reason", ""), "SlotsAvoided")) told = gs_json_at(items, i);
    assert_non_null(told);
    assert_non_null(strstr(gs_json_string_or(told, "message", ""), "on worker w1"));
    gs_json_release(events);
}

// The same with no host to spare, of a job that may go on with fewer ranks.
static void a_job_that_may_shrink_leaves_out_who_accuses_everybody(void **state) {
    gs_stage *stage = *state;
    gs_fake_worker_options options = {.slots = 1, .step_ms = 10};
    for (int i = 0; i < NUM_RANKS; i++) gs_stage_start_worker(stage, i, &options);
    gs_stage_submit(stage, "{\"name\":\"accused\",\"model\":{\"kind\":\"mlp\"},\"world\":{\"min\":2,\"max\":3,\"join_window_seconds\":30},"
                           "\"steps\":{\"target\":100000}}");
    gs_json_release(gs_stage_wait_for_state(stage, stage->job, "running"));
    have_it_accuse(stage, "w1", "{\"kind\":\"peer_lost\",\"reporter\":0,\"accused\":[1]," TEXT "}");
    assert_true(runs_on(stage, NUM_RANKS, "w1"));
    have_it_accuse(stage, "w1", "{\"kind\":\"peer_lost\",\"reporter\":0,\"accused\":[2]," TEXT "}");
    assert_true(!runs_on(stage, NUM_RANKS - 1, "w1") && runs_on(stage, NUM_RANKS - 1, "w2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_job_that_may_shrink_leaves_out_who_accuses_everybody, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(who_accuses_hosts_in_turn_is_left_out, gs_stage_set_up, gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(a_verdict_follows_the_values_of_a_report, gs_stage_set_up,
                                        gs_stage_tear_down),
        cmocka_unit_test_setup_teardown(who_accuses_everybody_in_turn_costs_restarts_and_nobody_his_slot, gs_stage_set_up,
                                        gs_stage_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
