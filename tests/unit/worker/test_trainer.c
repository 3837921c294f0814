#include "worker/trainer/trainer.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/log.h"
#include "tests/support/asserts.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_device.h"
#include "rpc/checkpoint/safetensors.h"
#ifdef GRADSYNC_CUDA_SIM
#include "tests/cuda_sim/machine.h"
#endif

// A trainer alone in its world; what it told is kept.
typedef struct fixture {
    char *dir;
    const char *resume;
    const char *model;  // of the specification; NULL: a small MLP
    gs_job_spec spec;
    gs_control control;
    gs_trainer *trainer;
    gs_trainer_outcome outcome;
    bool is_away;
    double eval_loss;  // the last one told; 0: none
    int num_reports, num_settles;
    pthread_mutex_t saves_lock;  // the writer and the loop both tell of saves; the test reads behind both
    int num_saves, num_failed_saves;
    char last_save[GS_CHECKPOINT_NAME_LEN], last_reason[24];
    gs_settle_verdict verdict;
    gs_status settle_status;
    gs_settlement settlement;
    gs_fault fault;  // the last
    int num_faults;
    int num_orders;
    bool order_settled;
    int64_t order_step;
    bool offers_plans;  // along the order, at once
    bool fails_update;  // of the step whose order is told
    gs_plan_policy policy;
    uint64_t offered_digest;
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

static bool keep_report(void *ctx, const gs_step_report *report) {
    fixture *f = ctx;
    if (gs_step_report_knows(report, GS_REPORT_EVAL_LOSS))
        f->eval_loss = gs_step_report_get(report, GS_REPORT_EVAL_LOSS, 0);
    if (f->is_away) return false;
    f->num_reports++;
    return true;
}

static void keep_save(void *ctx, const gs_checkpoint_result *result) {
    fixture *f = ctx;
    pthread_mutex_lock(&f->saves_lock);
    if (result->status.code) {
        f->num_failed_saves++;
    } else {
        f->num_saves++;
        snprintf(f->last_save, sizeof f->last_save, "%s", result->name);
        snprintf(f->last_reason, sizeof f->last_reason, "%s", result->request.reason);
    }
    pthread_mutex_unlock(&f->saves_lock);
}

static void keep_fault(void *ctx, const gs_fault *fault) {
    fixture *f = ctx;
    f->fault = *fault;
    f->num_faults++;
}

static gs_status settle_as_told(void *ctx, gs_settle_verdict *verdict,
                                const gs_settlement *settlement) {
    fixture *f = ctx;
    f->num_settles++;
    f->settlement = *settlement;
    *verdict = f->verdict;
    return f->settle_status;
}

static void keep_order(void *ctx, const gs_order_report *report) {
    fixture *f = ctx;
    f->num_orders++;
    f->order_settled = report->settled;
    f->order_step = report->step;
    if (f->fails_update)
        gs_stream_fail(gs_device_stream(gs_trainer_get_state(f->trainer)->device),
                       gs_error(GS_INTERNAL, "adamw_many: invalid configuration"));
    if (!f->offers_plans) return;
    const gs_trainer_state *state = gs_trainer_get_state(f->trainer);
    gs_plan_offer offer = {.generation = report->generation, .revision = 2};
    gs_status status = gs_plan_policy_apply(&offer.plan, &f->policy, state->param_specs,
                                            state->num_params, report->order);
    if (status.code) return;
    offer.digest = f->offered_digest = gs_digest_fold(gs_bucket_plan_digest(&offer.plan));
    gs_mailbox_offer_plan(&f->control.mailbox, &offer);
}

static const gs_control_ops ops = {.exchange = exchange_alone,
                                   .report = keep_report,
                                   .checkpointed = keep_save,
                                   .fault = keep_fault,
                                   .ordered = keep_order,
                                   .settle = settle_as_told};

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->dir = gs_temp_dir_make();
    pthread_mutex_init(&f->saves_lock, NULL);
    gs_control_init(&f->control, &ops, f);
    gs_log_set_level(GS_LOG_OFF);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    gs_trainer_destroy(f->trainer);
    gs_trainer_outcome_release(&f->outcome);
    gs_control_release(&f->control);
    pthread_mutex_destroy(&f->saves_lock);
    gs_temp_dir_remove(f->dir);
    free(f);
    return 0;
}

static void decode_spec(fixture *f, const char *more) {
    char text[1000];
    gs_json *json;
    gs_field_errors errors = {0};
    snprintf(text, sizeof text, "{\"name\":\"t\",\"model\":{%s},%s}",
             f->model ? f->model : "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,8,3]}", more);
    assert_ok(gs_json_parse(&json, text, strlen(text)));
    gs_status status = gs_job_spec_decode(&f->spec, json, &errors);
    if (status.code) fail_msg("%s: %s", errors.items[0].pointer, errors.items[0].message);
    gs_json_release(json);
}

static void prepare(fixture *f, const char *more) {
    decode_spec(f, more);
    gs_trainer_options options = {.spec = &f->spec,
                                  .control = &f->control,
                                  .job = "j-000000000001",
                                  .data_root = f->dir,
                                  .checkpoints_dir = f->dir,
                                  .resume = f->resume,
                                  .num_threads = 1,
                                  .device = gs_test_device_name()};
    assert_ok(gs_trainer_create(&f->trainer, &options));
    const gs_trainer_state *state = gs_trainer_get_state(f->trainer);
    gs_bucket_plan plan;
    assert_ok(gs_bucket_plan_parity(&plan, state->param_specs, state->num_params, 1024, 4096, NULL));
    gs_assignment assignment = {.place = {.generation = 5, .world_size = 1},
                                .num_shards = (int)f->spec.logical_shards,
                                .plan = &plan};
    assert_ok(gs_trainer_prepare(f->trainer, &assignment));
    assert_ok(gs_trainer_connect(f->trainer, gs_deadline_in_seconds(60)));
    gs_bucket_plan_release(&plan);
}

static gs_trainer_state *state_of(const fixture *f) {
    return (gs_trainer_state *)(uintptr_t)gs_trainer_get_state(f->trainer);
}

// The first elements of a parameter, wherever it lies.
static void read_values(const fixture *f, size_t param, float *values, size_t count) {
    float whole[1024];
    assert_true(state_of(f)->tensors[param].bytes <= sizeof whole);
    assert_ok(gs_trainer_state_read(state_of(f), param, whole));
    memcpy(values, whole, count * sizeof *values);
}

static void write_values(const fixture *f, size_t param, const float *values, size_t count) {
    float whole[1024];
    assert_true(state_of(f)->tensors[param].bytes <= sizeof whole);
    assert_ok(gs_trainer_state_read(state_of(f), param, whole));
    memcpy(whole, values, count * sizeof *values);
    assert_ok(gs_trainer_state_write(state_of(f), param, whole));
}

static int64_t step_of(const fixture *f) {
    return gs_trainer_get_state(f->trainer)->position.step;
}

static void the_order_is_told_and_a_plan_along_it_is_taken(void **state) {
    fixture *f = *state;
    f->offers_plans = true;
    f->policy = (gs_plan_policy){.first_bytes = 100, .caps_bytes = {300}, .num_caps = 1};
    prepare(f, "\"steps\":{\"target\":7}");
    uint64_t before = atomic_load(&f->control.progress.plan_digest);
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_TARGET_REACHED);
    assert_int_equal(f->num_orders, 1);
    assert_true(f->order_settled);
    assert_int_equal(f->order_step, 0);
    // Told at the end of step 0, voted for in step 1, in use from step 2 on.
    assert_true(atomic_load(&f->control.progress.plan_digest) == f->offered_digest);
    assert_true(f->offered_digest != before);
    assert_int_equal(atomic_load(&f->control.progress.plan_step), 2);
    assert_true(atomic_load(&f->control.progress.next_plan_digest) == 0);
}

static void before_an_order_has_settled_it_is_seen(void **state) {
    fixture *f = *state;
    prepare(f, "\"reducer\":{\"rebuild_after_steps\":100},\"steps\":{\"target\":7}");
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->num_orders, 1);
    assert_false(f->order_settled);
}

// The coordinator calls a plan back by offering the one in use.
static void a_plan_that_was_called_back_is_not_taken(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":7}");
    const gs_trainer_state *trained = gs_trainer_get_state(f->trainer);
    gs_plan_offer first = {.generation = 5, .revision = 2}, second = {.generation = 5, .revision = 1};
    assert_ok(gs_bucket_plan_parity(&first.plan, trained->param_specs, trained->num_params, 10, 10, NULL));
    assert_ok(gs_bucket_plan_parity(&second.plan, trained->param_specs, trained->num_params, 1024, 4096,
                                    NULL));
    first.digest = gs_digest_fold(gs_bucket_plan_digest(&first.plan));
    second.digest = gs_digest_fold(gs_bucket_plan_digest(&second.plan));
    uint64_t in_use = second.digest;
    gs_mailbox_offer_plan(&f->control.mailbox, &first);
    gs_mailbox_offer_plan(&f->control.mailbox, &second);
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_TARGET_REACHED);
    assert_true(atomic_load(&f->control.progress.plan_digest) == in_use);
    assert_int_equal(atomic_load(&f->control.progress.plan_step), 0);
}

static void reaching_the_target_ends_with_a_checkpoint(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":7},\"checkpoint\":{\"every_steps\":0}");
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_TARGET_REACHED);
    assert_int_equal(f->outcome.reason.exit_code, 0);
    assert_int_equal(step_of(f), 7);
    assert_int_equal(f->num_saves, 1);
    assert_string_equal(f->last_reason, "final");
    assert_true(f->num_reports >= 1);
}

static void the_position_counts_global_samples(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":3},\"data\":{\"micro_batch\":4,\"global_batch\":24}");
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(gs_trainer_get_state(f->trainer)->position.consumed, 72);
}

static void a_drain_finishes_the_step_and_saves(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":1000000}");
    gs_mailbox_ask_to_drain(&f->control.mailbox, true);
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_DRAINED);
    assert_int_equal(step_of(f), 1);
    assert_string_equal(f->last_reason, "stop");
}

static void a_drain_without_save_leaves_no_checkpoint(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":1000000}");
    gs_mailbox_ask_to_drain(&f->control.mailbox, false);
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_DRAINED);
    assert_int_equal(f->num_saves, 0);
}

// A learning rate that blows the parameters up: from then on no gradient is finite.
static void steps_without_finite_gradients_are_skipped_and_end_the_run(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":5000},\"optimizer\":{\"kind\":\"sgd\",\"lr\":1000}");
    write_values(f, 0, (const float[]){3e38f, 3e38f}, 2);
    gs_trainer_run(f->trainer, &f->outcome);
    const gs_position *position = &gs_trainer_get_state(f->trainer)->position;
    assert_int_equal(f->outcome.end, GS_TRAINER_FAILED);
    assert_string_equal(f->outcome.reason.error_class, "user");
    assert_int_equal(f->fault.kind, GS_FAULT_NUMERICS);
    assert_int_equal(position->skipped_in_a_row, 100);
    float weight;
    read_values(f, 0, &weight, 1);
    assert_true(weight == 3e38f);
    assert_int_equal(f->num_settles, 0);
}

// A master of 100000 is finite; what fp16 holds of it is not, and that is what the model is: neither
// a loss nor a sample can come of it.
static void evaluation_and_sample_are_of_the_rounded_parameters(void **state) {
    fixture *f = *state;
    f->model = "\"kind\":\"gpt2\",\"precision\":\"fp16\",\"gpt2\":{\"layers\":1,\"heads\":2,"
               "\"channels\":8,\"context\":8,\"vocab\":32}";
    for (int large = 0; large < 2; large++) {
        prepare(f, "\"steps\":{\"target\":1},\"sample\":{\"tokens\":8,\"prompt\":\"\\n\"},"
                   "\"data\":{\"micro_batch\":2,\"eval_every_steps\":1,\"eval_batches\":2}");
        gs_trainer_state *trained = state_of(f);
        assert_string_equal(trained->param_specs[trained->num_params - 2].name, "ln_f.weight");
        if (large) write_values(f, trained->num_params - 2, &(const float){100000}, 1);
        gs_trainer_state_refresh(trained);
        gs_trainer_run(f->trainer, &f->outcome);
        assert_int_equal(f->outcome.end, GS_TARGET_REACHED);
        assert_int_equal(trained->position.skipped_steps, large);
        assert_int_equal(isfinite(f->eval_loss), !large);
        assert_true(f->eval_loss != 0);
        assert_int_equal(f->outcome.sample == NULL, large);
        gs_trainer_outcome_release(&f->outcome);
        gs_trainer_destroy(f->trainer);
        f->trainer = NULL;
        f->eval_loss = 0;
    }
}

// The order is told between the commit of step 0 and its update: a launch of that fails.
static void update_that_failed_is_neither_applied_nor_saved(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":5},\"checkpoint\":{\"every_steps\":1},"
               "\"data\":{\"eval_every_steps\":1,\"eval_batches\":2},"
               "\"reducer\":{\"rebuild_after_steps\":100}");
    f->fails_update = true;
    f->verdict = (gs_settle_verdict){.save = true};
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->num_orders, 1);
    assert_int_equal(f->outcome.end, GS_TRAINER_FAILED);
    assert_string_equal(f->outcome.status.message, "adamw_many: invalid configuration");
    assert_int_equal(step_of(f), 0);
    assert_int_equal(f->num_settles, 1);
    assert_false(f->settlement.complete);
    assert_int_equal(f->num_saves, 0);
}

// What a kernel found in its data, say.
static void what_stuck_to_the_stream_ends_the_step_before_its_commit(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":5}");
    gs_stream_fail(gs_device_stream(state_of(f)->device),
                   gs_error(GS_INVALID_ARGUMENT, "softmax_loss: row 1: target 9 is not in [0, 3)"));
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_TRAINER_FAILED);
    if (!strstr(f->outcome.status.message, "row 1: target 9"))
        fail_msg("it says \"%s\"", f->outcome.status.message);
    assert_string_equal(f->outcome.reason.error_class, "user");
    assert_int_equal(step_of(f), 0);
    assert_int_equal(f->num_orders, 0);  // told behind the commit
    assert_int_equal(f->num_saves, 0);
}

static bool is_on_gpu(void) {
    return strcmp(gs_test_device_name(), "cpu") != 0;
}

#ifdef GRADSYNC_CUDA_SIM
static gs_sim_progress fail_for_good(void *ctx) {
    (void)ctx;
    return GS_SIM_FAILED;
}
#endif

// Work that fails as a kernel does that writes where nothing is: from then on the device answers nothing to
// this process. Only the software machine can be told to.
static void lost_gpu_ends_the_process_for_a_new_one(void **state) {
    if (!is_on_gpu()) skip();
#ifndef GRADSYNC_CUDA_SIM
    (void)state;
    skip();
#else
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":5}");
    gs_device *device = state_of(f)->device;
    const gs_sim_work work = {.name = "fails", .poll = fail_for_good};
    assert_int_equal(gs_sim_enqueue(gs_stream_native(gs_device_stream(device)), &work), 0);
    gs_trainer_run(f->trainer, &f->outcome);
    assert_true(gs_device_is_lost(device));
    assert_int_equal(f->outcome.end, GS_TRAINER_ABORTED);
    assert_int_equal(f->outcome.reason.exit_code, GS_EXIT_TEMPORARY);
    assert_string_equal(f->outcome.reason.error_class, "infrastructure");
    assert_int_equal(f->fault.kind, GS_FAULT_DEVICE_LOST);
    // Its state cannot be read: there is nothing to settle and nothing to save.
    assert_int_equal(f->num_settles, 0);
    assert_int_equal(f->num_saves, 0);
#endif
}

static gs_status try_create(fixture *f, const char *device, const char *more) {
    decode_spec(f, more);
    return gs_trainer_create(&f->trainer, &(gs_trainer_options){.spec = &f->spec,
                                                                .control = &f->control,
                                                                .job = "j-000000000001",
                                                                .data_root = f->dir,
                                                                .checkpoints_dir = f->dir,
                                                                .num_threads = 1,
                                                                .device = device,
                                                                .place = "rank 3 on worker b"});
}

static void model_too_large_for_a_gpu_is_told_with_its_bytes(void **state) {
    fixture *f = *state;
    if (!is_on_gpu()) skip();
    f->model = "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,400000,400000,3],\"batch_norm\":\"none\"}";
    gs_status status = try_create(f, "cuda:0", "\"steps\":{\"target\":1}");
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
    if (!strstr(status.message, "cuda:0")) fail_msg("it says \"%s\"", status.message);
    assert_int_equal(gs_exit_reason_of(status).exit_code, GS_EXIT_SYSTEM);
}

static void missing_gpu_is_for_people_to_mend(void **state) {
    fixture *f = *state;
    gs_status status = try_create(f, "cuda:77", "\"steps\":{\"target\":1}");
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    if (strncmp(status.message, "world.device cuda: rank 3 on worker b: device cuda:77: ", 55) != 0)
        fail_msg("it says \"%s\"", status.message);
    assert_int_equal(gs_exit_reason_of(status).exit_code, GS_EXIT_CONFIGURATION);
}

static void process_on_a_gpu_has_one_replica(void **state) {
    fixture *f = *state;
    gs_status status = try_create(f, "cuda:0",
                                  "\"steps\":{\"target\":1},\"world\":{\"replicas_per_process\":2}");
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    assert_non_null(strstr(status.message, "world.replicas_per_process 2"));
}

static void a_failed_save_does_not_stop_the_training(void **state) {
    fixture *f = *state;
    gs_temp_dir_remove(f->dir);
    f->dir = strdup("/proc/no-directory-can-be-made-here");
    prepare(f, "\"steps\":{\"target\":30},\"checkpoint\":{\"every_steps\":10}");
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_TARGET_REACHED);
    assert_int_equal(step_of(f), 30);
    assert_true(f->num_failed_saves >= 1);
    assert_int_equal(f->num_saves, 0);
}

static void an_abort_settles_and_asks_for_a_restart(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":1000000}");
    f->verdict = (gs_settle_verdict){.save = true};
    gs_mailbox_abort(&f->control.mailbox, 5, "rank 1 died");
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_TRAINER_ABORTED);
    assert_int_equal(f->outcome.reason.exit_code, 75);
    assert_int_equal(f->num_settles, 1);
    assert_int_equal(f->settlement.generation, 5);
    assert_false(f->settlement.complete);
    assert_string_equal(f->last_reason, "settled");
    assert_int_equal(f->num_faults, 0);
}

static void without_anybody_to_settle_with_it_saves_what_it_knows(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":1000000}");
    f->settle_status = gs_error(GS_UNAVAILABLE, "nobody there");
    gs_mailbox_abort(&f->control.mailbox, 5, "rank 1 died");
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.reason.exit_code, 75);
    assert_string_equal(f->last_reason, "orphaned");
}

static void missing_data_is_the_users_error(void **state) {
    fixture *f = *state;
    decode_spec(f, "\"steps\":{\"target\":5},"
                   "\"data\":{\"kind\":\"idx\",\"train\":\"no*\",\"train_labels\":\"none\"}");
    gs_trainer_options options = {.spec = &f->spec,
                                  .control = &f->control,
                                  .job = "j-000000000001",
                                  .data_root = f->dir,
                                  .checkpoints_dir = f->dir,
                                  .num_threads = 1};
    gs_status status = gs_trainer_create(&f->trainer, &options);
    assert_int_equal(status.code, GS_NOT_FOUND);
    assert_non_null(strstr(status.message, "no*"));
    assert_int_equal(gs_exit_reason_of(status).exit_code, 66);
}

// What a restart finds when the last run ended between its last save and its good-bye.
static void a_target_already_reached_reports_no_step(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":3}");
    gs_trainer_run(f->trainer, &f->outcome);
    gs_trainer_outcome_release(&f->outcome);
    f->num_reports = 0;
    gs_trainer_destroy(f->trainer);
    char resume[600];
    snprintf(resume, sizeof resume, "%s/%s", f->dir, f->last_save);
    f->resume = resume;
    prepare(f, "\"steps\":{\"target\":3}");
    gs_trainer_run(f->trainer, &f->outcome);
    f->resume = NULL;
    assert_int_equal(f->outcome.end, GS_TARGET_REACHED);
    assert_int_equal(step_of(f), 3);
    assert_int_equal(f->num_reports, 0);
}

static void what_nobody_heard_is_told_at_the_end(void **state) {
    fixture *f = *state;
    prepare(f, "\"steps\":{\"target\":600}");
    f->is_away = true;
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->num_reports, 0);
    assert_false(gs_trainer_report_rest(f->trainer));
    f->is_away = false;
    assert_true(gs_trainer_report_rest(f->trainer));
    assert_int_equal(f->num_reports, 3);  // 600 steps, 256 in each
}

static void an_initial_model_outside_the_data_root_is_refused(void **state) {
    fixture *f = *state;
    char link[600];
    decode_spec(f, "\"steps\":{\"target\":5}");
    snprintf(f->spec.model.init_from, sizeof f->spec.model.init_from, "link");
    snprintf(link, sizeof link, "%s/link", f->dir);
    assert_int_equal(symlink("/etc/passwd", link), 0);
    gs_trainer_options options = {.spec = &f->spec,
                                  .control = &f->control,
                                  .job = "j-000000000001",
                                  .data_root = f->dir,
                                  .checkpoints_dir = f->dir,
                                  .num_threads = 1};
    gs_status status = gs_trainer_create(&f->trainer, &options);
    assert_int_equal(status.code, GS_PERMISSION_DENIED);
    assert_non_null(strstr(status.message, "model.init_from"));
}

// A file of the model's own parameters; element i of tensor t is t + i / 1000.
static void write_initial_model(const fixture *f) {
    enum { MOST = 1024 };
    static float values[8][MOST];
    gs_safetensors_entry entries[8];
    const gs_trainer_state *model = state_of(f);
    char path[600];
    assert_true(model->num_params <= 8);
    for (size_t t = 0; t < model->num_params; t++) {
        const gs_state_tensor *tensor = &model->tensors[t];
        assert_true(tensor->bytes <= sizeof values[t]);
        for (size_t i = 0; i < MOST; i++) values[t][i] = (float)t + (float)i / 1000;
        entries[t] = (gs_safetensors_entry){.name = tensor->name,
                                            .dtype = GS_FP32,
                                            .num_dims = tensor->num_dims,
                                            .data = values[t]};
        memcpy(entries[t].shape, tensor->shape, sizeof entries[t].shape);
    }
    snprintf(path, sizeof path, "%s/first.safetensors", f->dir);
    assert_ok(gs_safetensors_write(path, entries, model->num_params, NULL, 0, NULL, NULL));
}

static void start_from_an_initial_model(fixture *f, const char *precision, const char *reducer) {
    char model[200], more[200];
    f->model = "\"kind\":\"mlp\",\"mlp\":{\"dims\":[12,8,3],\"batch_norm\":\"none\"}";
    prepare(f, "\"steps\":{\"target\":2}");
    write_initial_model(f);
    gs_trainer_destroy(f->trainer);
    f->trainer = NULL;
    snprintf(model, sizeof model, "%s,\"precision\":\"%s\",\"init_from\":\"first.safetensors\"", f->model,
             precision);
    snprintf(more, sizeof more, "\"steps\":{\"target\":2}%s", reducer);
    f->model = model;
    prepare(f, more);
    for (size_t t = 0; t < state_of(f)->num_params; t++) {
        float first[3];
        read_values(f, t, first, 3);
        for (int i = 0; i < 3; i++) assert_true(first[i] == (float)t + (float)i / 1000);
    }
    gs_trainer_run(f->trainer, &f->outcome);
    assert_int_equal(f->outcome.end, GS_TARGET_REACHED);
    gs_trainer_outcome_release(&f->outcome);
    gs_trainer_destroy(f->trainer);
    f->trainer = NULL;
    f->model = NULL;
}

static void an_initial_model_is_where_training_starts(void **state) {
    start_from_an_initial_model(*state, "fp32", "");
    start_from_an_initial_model(*state, "bf16", "");
}

static void an_initial_model_is_where_sharded_training_starts(void **state) {
    start_from_an_initial_model(*state, "fp32", ",\"reducer\":{\"sharding\":\"optimizer\"}");
    start_from_an_initial_model(*state, "bf16", ",\"reducer\":{\"sharding\":\"optimizer\"}");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_order_is_told_and_a_plan_along_it_is_taken),
        TEST(before_an_order_has_settled_it_is_seen),
        TEST(a_plan_that_was_called_back_is_not_taken),
        TEST(reaching_the_target_ends_with_a_checkpoint),
        TEST(the_position_counts_global_samples),
        TEST(a_drain_finishes_the_step_and_saves),
        TEST(a_drain_without_save_leaves_no_checkpoint),
        TEST(steps_without_finite_gradients_are_skipped_and_end_the_run),
        TEST(evaluation_and_sample_are_of_the_rounded_parameters),
        TEST(what_stuck_to_the_stream_ends_the_step_before_its_commit),
        TEST(update_that_failed_is_neither_applied_nor_saved),
        TEST(model_too_large_for_a_gpu_is_told_with_its_bytes),
        TEST(missing_gpu_is_for_people_to_mend),
        TEST(process_on_a_gpu_has_one_replica),
        TEST(a_failed_save_does_not_stop_the_training),
        TEST(an_abort_settles_and_asks_for_a_restart),
        TEST(without_anybody_to_settle_with_it_saves_what_it_knows),
        TEST(missing_data_is_the_users_error),
        TEST(a_target_already_reached_reports_no_step),
        TEST(what_nobody_heard_is_told_at_the_end),
        TEST(an_initial_model_outside_the_data_root_is_refused),
        TEST(an_initial_model_is_where_training_starts),
        TEST(an_initial_model_is_where_sharded_training_starts),
        TEST(lost_gpu_ends_the_process_for_a_new_one),  // last: nothing on the GPU works after it
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
