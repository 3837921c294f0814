// What a rank does with a step that is reduced when its generation ends: it applies it when told
// to, keeps what it had when not, and needs no second copy of its state for either, nor for the
// save that follows.
//
// The step is cut off between reduction and commit by a failpoint.
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"
#include "worker/trainer/trainer.h"

// All entries count the steps that are reduced in this process, those that are cut off among them.
// Behind them the fourth save, which takes its time.
#define CUT_OFF                                                                                    \
    "step.reduced=error@3,step.reduced=error@6,step.reduced=error@12,step.reduced=error@15,"       \
    "checkpoint.write=sleep:4000@4"
#define APPLIED_STEPS 2

static atomic_bool counts;
static atomic_size_t largest_bytes;

static void note(size_t bytes) {
    size_t largest = atomic_load(&largest_bytes);
    while (atomic_load(&counts) && bytes > largest &&
           !atomic_compare_exchange_weak(&largest_bytes, &largest, bytes)) {
    }
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t boundary, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t boundary, size_t bytes);

void *__wrap_malloc(size_t bytes) {
    note(bytes);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    note(count * bytes);
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes) {
    note(bytes);
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t boundary, size_t bytes) {
    note(bytes);
    return __real_aligned_alloc(boundary, bytes);
}

// A trainer alone in its world.
typedef struct fixture {
    char *dir;
    gs_job_spec spec;
    gs_control control;
    gs_trainer *trainer;
    gs_trainer_outcome outcome;
    gs_settlement settlement;
    gs_settle_verdict verdict;
    gs_status no_verdict;  // what settling ends with
    char reason[16];       // of the last save
    int num_settles, num_saves;
    gs_digest when_settling;
} fixture;

static gs_status exchange_alone(void *ctx, const char *tag, const int *ranks, int num_ranks,
                                const void *mine, size_t bytes, void *all, gs_deadline deadline) {
    (void)ctx;
    (void)tag;
    (void)ranks;
    (void)num_ranks;
    (void)deadline;
    memcpy(all, mine, bytes);
    return gs_ok();
}

static bool drop_report(void *ctx, const gs_step_report *report) {
    (void)ctx;
    (void)report;
    return true;
}

static void count_save(void *ctx, const gs_checkpoint_result *result) {
    fixture *f = ctx;
    f->num_saves += !result->status.code;
    snprintf(f->reason, sizeof f->reason, "%s", result->request.reason);
}

// The first word of a trainer that gives up: from here on it settles.
static void begin_counting(void *ctx, const gs_fault *fault) {
    (void)ctx;
    (void)fault;
    atomic_store(&largest_bytes, 0);
    atomic_store(&counts, true);
}

static void drop_order(void *ctx, const gs_order_report *report) {
    (void)ctx;
    (void)report;
}

static gs_status settle_as_told(void *ctx, gs_settle_verdict *verdict,
                                const gs_settlement *settlement) {
    fixture *f = ctx;
    f->num_settles++;
    f->settlement = *settlement;
    f->when_settling = gs_trainer_state_digest(gs_trainer_get_state(f->trainer));
    *verdict = f->verdict;
    return f->no_verdict;
}

static const gs_control_ops ops = {.exchange = exchange_alone,
                                   .report = drop_report,
                                   .checkpointed = count_save,
                                   .fault = begin_counting,
                                   .ordered = drop_order,
                                   .settle = settle_as_told};

static void open_trainer(fixture *f, const char *text) {
    gs_json *json;
    gs_field_errors errors = {0};
    assert_ok(gs_json_parse(&json, text, strlen(text)));
    assert_ok(gs_job_spec_decode(&f->spec, json, &errors));
    gs_json_release(json);
    gs_trainer_options options = {.spec = &f->spec,
                                  .control = &f->control,
                                  .job = "j-000000000001",
                                  .data_root = f->dir,
                                  .checkpoints_dir = f->dir,
                                  .num_threads = 1};
    assert_ok(gs_trainer_create(&f->trainer, &options));
    const gs_trainer_state *state = gs_trainer_get_state(f->trainer);
    gs_bucket_plan plan;
    assert_ok(
        gs_bucket_plan_parity(&plan, state->param_specs, state->num_params, 1024, 4096, NULL));
    gs_assignment assignment = {.place = {.generation = 5, .world_size = 1},
                                .num_shards = (int)f->spec.logical_shards,
                                .plan = &plan};
    assert_ok(gs_trainer_prepare(f->trainer, &assignment));
    assert_ok(gs_trainer_connect(f->trainer, gs_deadline_in_seconds(60)));
    gs_bucket_plan_release(&plan);
}

// The state of some four million parameters is three times as much as the bound.
#define MODEL "\"kind\":\"mlp\",\"mlp\":{\"dims\":[512,2048,1400,3]}"
#define SPEC(steps) "{\"name\":\"t\",\"model\":{" MODEL "},\"steps\":{\"target\":" steps "}}"
#define BOUND_BYTES ((size_t)12 << 20)

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->dir = gs_temp_dir_make();
    gs_control_init(&f->control, &ops, f);
    gs_log_set_level(GS_LOG_OFF);
    *state = f;
    return 0;
}

static void close_trainer(fixture *f) {
    gs_trainer_destroy(f->trainer);
    gs_trainer_outcome_release(&f->outcome);
    f->trainer = NULL;
}

static int tear_down(void **state) {
    fixture *f = *state;
    close_trainer(f);
    gs_control_release(&f->control);
    gs_temp_dir_remove(f->dir);
    free(f);
    return 0;
}

static gs_digest digest_of(const fixture *f) {
    return gs_trainer_state_digest(gs_trainer_get_state(f->trainer));
}

// Runs until the failpoint; then does what it was told.
static void run_into_the_cut(fixture *f) {
    open_trainer(f, SPEC("1000000"));
    gs_trainer_run(f->trainer, &f->outcome);
    atomic_store(&counts, false);
    assert_int_equal(f->num_settles, 1);
    assert_true(f->settlement.complete);
    assert_int_equal(f->settlement.applied_step, APPLIED_STEPS);
    assert_int_equal(f->num_saves, 1);
    assert_true(gs_trainer_get_state(f->trainer)->params_bytes > BOUND_BYTES);
    if (atomic_load(&largest_bytes) > BOUND_BYTES)
        fail_msg("%zu bytes at once were allocated while settling", atomic_load(&largest_bytes));
}

static void a_step_that_others_applied_is_applied(void **state) {
    fixture *f = *state;
    f->verdict = (gs_settle_verdict){.apply = true, .save = true};
    run_into_the_cut(f);
    gs_digest applied = digest_of(f);
    assert_false(gs_digest_equal(applied, f->when_settling));
    assert_int_equal(gs_trainer_get_state(f->trainer)->position.step, APPLIED_STEPS + 1);
    close_trainer(f);

    open_trainer(f, SPEC("3"));
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_TARGET_REACHED);
    assert_true(gs_digest_equal(applied, digest_of(f)));
}

static void a_step_that_nobody_else_has_is_not(void **state) {
    fixture *f = *state;
    f->verdict = (gs_settle_verdict){.save = true};
    run_into_the_cut(f);
    assert_true(gs_digest_equal(digest_of(f), f->when_settling));
    assert_int_equal(gs_trainer_get_state(f->trainer)->position.step, APPLIED_STEPS);
}

// Others may have applied it or not: each saves what it knows for certain.
static void without_a_verdict_the_applied_step_is_saved(void **state) {
    fixture *f = *state;
    f->no_verdict = gs_error(GS_UNAVAILABLE, "no coordinator");
    f->verdict = (gs_settle_verdict){.apply = true};  // which nobody gave
    run_into_the_cut(f);
    assert_string_equal(f->reason, "orphaned");
    assert_true(gs_digest_equal(digest_of(f), f->when_settling));
    assert_int_equal(gs_trainer_get_state(f->trainer)->position.step, APPLIED_STEPS);
}

// As long as the disk takes its time.
static void a_save_in_flight_is_waited_for_until_the_deadline(void **state) {
    fixture *f = *state;
    open_trainer(f, "{\"name\":\"t\",\"model\":{" MODEL "},\"steps\":{\"target\":1000000},"
                    "\"checkpoint\":{\"every_steps\":2}}");
    gs_trainer_run(f->trainer, &f->outcome);
    atomic_store(&counts, false);
    assert_int_equal(f->num_settles, 1);
    int64_t since_ns = gs_now_ns();
    assert_false(gs_trainer_await_saves(f->trainer, gs_deadline_in_ms(20)));
    assert_true(gs_now_ns() - since_ns < 20 * GS_NS_PER_SEC);
    assert_true(gs_trainer_await_saves(f->trainer, gs_deadline_in_seconds(60)));
    assert_int_equal(f->num_saves, 1);
}

int main(void) {
#ifndef GRADSYNC_FAILPOINTS
    return 77;  // nothing cuts a step off in this build
#endif
    setenv("GRADSYNC_FAILPOINTS", CUT_OFF, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_step_that_nobody_else_has_is_not, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_step_that_others_applied_is_applied, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_save_in_flight_is_waited_for_until_the_deadline, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(without_a_verdict_the_applied_step_is_saved, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
