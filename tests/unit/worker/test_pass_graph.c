#include "worker/pass/pass_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/log.h"
#include "kernels/kernel_times.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/soon.h"

#define COUNT ((size_t)2048)
#define NUM_PARAMS 3

// A model whose gradient i is (i + 1) · grad_factor · the batch's features. The last parameter is ready first.
typedef struct fake_model {
    gs_device *device;
    bool repeats, uploads;  // uploads: forward does what cannot be captured
    int num_forwards;
} fake_model;

static gs_status fake_forward(void *state, gs_model_pass *pass) {
    fake_model *model = state;
    gs_stream *stream = gs_device_stream(model->device);
    model->num_forwards++;
    if (model->uploads) {
        const float zero = 0;
        GS_TRY(gs_device_upload(model->device, pass->params[0], &zero, sizeof zero));
    }
    gs_device_kernels(model->device)
        ->scale(stream, pass->params[0], pass->batch->features, pass->grad_factor, COUNT);
    return gs_ok();
}

static gs_status fake_backward(void *state, gs_model_pass *pass) {
    const fake_model *model = state;
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    for (int i = NUM_PARAMS - 1; i >= 0; i--) {
        if (!pass->accumulate) k->clear(stream, pass->grads[i], COUNT * sizeof(float));
        k->axpy(stream, pass->grads[i], pass->params[0], (float)(i + 1), COUNT);
        pass->ready(pass->ready_ctx, (size_t)i);
    }
    return gs_ok();
}

static bool fake_repeats(void *state, const gs_model_pass *pass) {
    (void)pass;
    return ((const fake_model *)state)->repeats;
}

static const gs_model_ops fake_ops = {
    .name = "fake", .forward = fake_forward, .backward = fake_backward, .repeats = fake_repeats};

// Marks do what a reducer does: another stream takes the gradient as soon as it is final.
typedef struct fixture {
    gs_device *device;
    gs_stream *side;
    fake_model fake;
    gs_model model;
    gs_pass_graphs *graphs;
    float *features, *values, *taken[NUM_PARAMS];
    void *grads[NUM_PARAMS], *others[NUM_PARAMS];
    void *params[NUM_PARAMS];
    size_t order[NUM_PARAMS];
    void *const *finished;  // what the device's half of a mark doubles
    int num_marks, num_finished, num_turns;
    gs_bucket_plan plan;
    gs_plan_bucket buckets[2];
    size_t members[NUM_PARAMS];
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    float *drawn = malloc(COUNT * sizeof *drawn);
    assert_true(f && drawn);
    gs_log_set_level(GS_LOG_OFF);
    f->device = test_device_open(1);
    for (size_t i = 0; i < COUNT; i++) drawn[i] = (float)(i % 61) - 30;
    f->features = device_memory_copy(f->device, drawn, COUNT * sizeof(float));
    f->values = device_memory_alloc(f->device, COUNT * sizeof(float));
    for (int i = 0; i < NUM_PARAMS; i++) {
        f->grads[i] = device_memory_alloc(f->device, COUNT * sizeof(float));
        f->others[i] = device_memory_alloc(f->device, COUNT * sizeof(float));
        f->taken[i] = device_memory_alloc(f->device, COUNT * sizeof(float));
        f->params[i] = f->values;
    }
    f->finished = f->grads;
    assert_ok(gs_stream_create(&f->side, f->device, GS_STREAM_HIGH));
    f->fake = (fake_model){.device = f->device, .repeats = true};
    f->model = (gs_model){.ops = &fake_ops, .state = &f->fake};
    // Two buckets: the last parameter alone, and the other two.
    f->members[0] = 2;
    f->members[1] = 1;
    f->buckets[0] = (gs_plan_bucket){.first = 0, .num_params = 1};
    f->buckets[1] = (gs_plan_bucket){.first = 1, .num_params = 2};
    f->plan = (gs_bucket_plan){.num_buckets = 2,
                               .num_params = NUM_PARAMS,
                               .buckets = f->buckets,
                               .params = f->members};
    assert_ok(gs_pass_graphs_create(
        &f->graphs, &(gs_pass_graphs_options){.device = f->device, .num_params = NUM_PARAMS}));
    assert_int_equal(f->graphs == NULL, !gs_device_has_graphs(f->device));
    free(drawn);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    gs_pass_graphs_destroy(f->graphs);
    gs_stream_destroy(f->side);
    device_memory_free(f->device, f->features);
    device_memory_free(f->device, f->values);
    for (int i = 0; i < NUM_PARAMS; i++) {
        device_memory_free(f->device, f->grads[i]);
        device_memory_free(f->device, f->others[i]);
        device_memory_free(f->device, f->taken[i]);
    }
    test_device_close(f->device);
    free(f);
    return 0;
}

// The device's half of a mark: the gradient is doubled before others see it.
static void double_grad(void *ctx, size_t param) {
    fixture *f = ctx;
    f->num_finished++;
    gs_device_kernels(f->device)
        ->scale(gs_device_stream(f->device), f->finished[param], f->grads[param], 2, COUNT);
}

static void take_grad(void *ctx, size_t param) {
    fixture *f = ctx;
    if (f->num_marks < NUM_PARAMS) f->order[f->num_marks] = param;
    f->num_marks++;
    gs_stream_follow(f->side, gs_device_stream(f->device));
    gs_device_kernels(f->device)
        ->copy(f->side, f->taken[param], f->finished[param], COUNT * sizeof(float));
}

static gs_status count_turn(void *ctx, bool is_backward) {
    fixture *f = ctx;
    f->num_turns += is_backward ? 100 : 1;
    return gs_ok();
}

static void run(fixture *f, float grad_factor, int64_t step) {
    gs_batch batch = {.rows = 1, .positions = 1, .row_features = COUNT, .features = f->features};
    gs_model_pass pass = {.batch = &batch,
                          .training = true,
                          .step = step,
                          .params = f->params,
                          .grads = f->grads,
                          .grad_factor = grad_factor};
    gs_pass_marks marks = {.finish = double_grad,
                           .finish_ctx = f,
                           .finished = f->finished,
                           .ready = take_grad,
                           .ctx = f};
    f->num_marks = f->num_turns = 0;
    assert_ok(gs_pass_graphs_run(f->graphs, &(gs_pass_run){.pass = &pass,
                                                           .model = &f->model,
                                                           .marks = &marks,
                                                           .plan = &f->plan,
                                                           .turn = count_turn,
                                                           .turn_ctx = f}));
    assert_int_equal(f->num_turns, 101);
}

// Each gradient was taken once, in order, and when it was final.
static void check(fixture *f, float grad_factor) {
    float found[COUNT];
    assert_ok(gs_stream_wait(f->side, gs_deadline_in_seconds(60)));
    assert_int_equal(f->num_marks, NUM_PARAMS);
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        assert_int_equal(f->order[i], NUM_PARAMS - 1 - i);
        device_memory_read(f->device, found, f->taken[i], sizeof found);
        for (size_t j = 0; j < COUNT; j++)
            if (found[j] != 2 * (float)(i + 1) * grad_factor * ((float)(j % 61) - 30))
                fail_msg("gradient %zu, element %zu is %g", i, j, (double)found[j]);
    }
}

static void check_counts(const fixture *f, int64_t plain, int64_t captured, int64_t launched) {
    gs_pass_graph_counts counts = gs_pass_graphs_count(f->graphs);
    if (!f->graphs) plain = captured = launched = 0;
    assert_int_equal(counts.plain, plain);
    assert_int_equal(counts.captured, captured);
    assert_int_equal(counts.launched, launched);
}

static void repeated_pass_is_captured_once_and_launched(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 5; i++) {
        run(f, 3, i);
        check(f, 3);
    }
    check_counts(f, 1, 1, 4);
    // The model is asked when it runs and when it is captured, and then no more.
    assert_int_equal(f->fake.num_forwards, f->graphs ? 2 : 5);
}

static void other_scalars_are_another_pass(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 6; i++) {
        run(f, (float)(1 + i % 2), i);
        check(f, (float)(1 + i % 2));
    }
    check_counts(f, 2, 2, 4);
}

// A gradient of 16-bit precision is added to a main gradient that the model itself never sees.
static void same_gradients_finished_elsewhere_are_another_pass(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 6; i++) {
        f->finished = i % 2 ? f->others : f->grads;
        run(f, 3, i);
        check(f, 3);
    }
    check_counts(f, 2, 2, 4);
}

// More kinds than are kept: those that rested longest give way.
static void kinds_beyond_the_bound_run_and_stay_right(void **state) {
    fixture *f = *state;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 20; i++) {
            run(f, (float)(1 + i), i);
            check(f, (float)(1 + i));
        }
    }
    check_counts(f, 60, 0, 0);
}

static void model_that_does_not_repeat_runs_plainly(void **state) {
    fixture *f = *state;
    f->fake.repeats = false;
    for (int i = 0; i < 3; i++) {
        run(f, 1, i);
        check(f, 1);
    }
    assert_int_equal(f->fake.num_forwards, 3);
    assert_int_equal(gs_pass_graphs_count(f->graphs).captured, 0);
}

static void pass_that_cannot_be_captured_runs_plainly(void **state) {
    fixture *f = *state;
    f->fake.uploads = true;
    for (int i = 0; i < 4; i++) {
        run(f, 1, i);
        check(f, 1);
    }
    check_counts(f, 4, 0, 0);
    assert_int_equal(gs_pass_graphs_count(f->graphs).failed, f->graphs ? 1 : 0);
}

static void cleared_graphs_are_captured_anew(void **state) {
    fixture *f = *state;
    for (int i = 0; i < 3; i++) run(f, 1, i);
    assert_ok(gs_pass_graphs_clear(f->graphs));
    for (int i = 0; i < 3; i++) {
        run(f, 1, i);
        check(f, 1);
    }
    check_counts(f, 2, 2, 4);
}

static int set_up_timed(void **state) {
    setenv("GRADSYNC_KERNEL_TIMES", "0", 1);
    int failed = set_up(state);
    unsetenv("GRADSYNC_KERNEL_TIMES");
    return failed;
}

static void pass_whose_kernels_are_timed_runs_plainly(void **state) {
    fixture *f = *state;
    gs_kernel_table table;
    for (int i = 0; i < 3; i++) run(f, 1, i);
    assert_ok(gs_kernel_times_begin(f->device));
    run(f, 1, 3);
    assert_ok(gs_kernel_times_end(&table, f->device, soon()));
    check(f, 1);
    run(f, 1, 4);
    check(f, 1);
    check_counts(f, 2, 1, 3);
    int64_t calls = 0;
    for (size_t i = 0; i < table.num_rows; i++)
        if (strcmp(table.rows[i].kernel, "axpy") == 0) calls = table.rows[i].calls;
    assert_int_equal(calls, NUM_PARAMS);
    gs_kernel_table_release(&table);
}

static void environment_turns_graphs_off(void **state) {
    fixture *f = *state;
    gs_pass_graphs *graphs;
    setenv("GRADSYNC_GRAPHS", "0", 1);
    gs_status status = gs_pass_graphs_create(
        &graphs, &(gs_pass_graphs_options){.device = f->device, .num_params = NUM_PARAMS});
    unsetenv("GRADSYNC_GRAPHS");
    assert_ok(status);
    assert_null(graphs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(repeated_pass_is_captured_once_and_launched, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_scalars_are_another_pass, set_up, tear_down),
        cmocka_unit_test_setup_teardown(same_gradients_finished_elsewhere_are_another_pass, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(kinds_beyond_the_bound_run_and_stay_right, set_up, tear_down),
        cmocka_unit_test_setup_teardown(model_that_does_not_repeat_runs_plainly, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pass_that_cannot_be_captured_runs_plainly, set_up, tear_down),
        cmocka_unit_test_setup_teardown(cleared_graphs_are_captured_anew, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pass_whose_kernels_are_timed_runs_plainly, set_up_timed, tear_down),
        cmocka_unit_test_setup_teardown(environment_turns_graphs_off, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
