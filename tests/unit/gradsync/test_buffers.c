#include "gradsync/step/buffers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"

typedef struct fixture {
    gs_device *device;
    gs_comm *comm;
    gs_buffers *buffers;
} fixture;

static void open_fixture(fixture *f, gs_buffers_policy policy, bool exact) {
    const gs_param_spec specs[] = {gs_param_spec_make(GS_FP32, 3, 0, "bn.running_mean"),
                                   gs_param_spec_make(GS_I64, 0, 0, "bn.num_batches_tracked")};
    f->device = test_device_open(1);
    assert_ok(gs_comm_create(
        &f->comm, &(gs_comm_options){.backend = "self", .world_size = 1, .device = f->device},
        gs_deadline_in_seconds(60)));
    assert_ok(gs_buffers_create(&f->buffers, specs, 2, policy, exact, f->device));
}

static void close_fixture(fixture *f) {
    gs_buffers_destroy(f->buffers);
    gs_comm_destroy(f->comm);
    test_device_close(f->device);
}

static float first_of(gs_device *device, const void *buffer) {
    float value;
    device_memory_read(device, &value, buffer, sizeof value);
    return value;
}

static void set_first(gs_device *device, void *buffer, float value) {
    device_memory_write(device, buffer, &value, sizeof value);
}

static float committed(const fixture *f) {
    return first_of(f->device, gs_buffers_committed(f->buffers)[0]);
}

// All that is committed: three floats and a count.
typedef struct committed_values {
    float mean[3];
    int64_t num_batches;
} committed_values;

static committed_values read_committed(const fixture *f) {
    committed_values values;
    memset(&values, 0, sizeof values);
    void *const *buffers = gs_buffers_committed(f->buffers);
    device_memory_read(f->device, values.mean, buffers[0], sizeof values.mean);
    device_memory_read(f->device, &values.num_batches, buffers[1], sizeof values.num_batches);
    return values;
}

static void begin(fixture *f) {
    assert_ok(gs_buffers_begin(f->buffers, f->comm, gs_deadline_in_seconds(60)));
}

// A pass that adds `value`; returns what it read.
static float run_pass(fixture *f, int shard, bool first_of_shard, float value) {
    const void *const *from;
    void *const *to;
    gs_buffers_pass(f->buffers, shard, first_of_shard, &from, &to);
    assert_ptr_not_equal(from[0], to[0]);
    float seen = first_of(f->device, from[0]);
    set_first(f->device, to[0], seen + value);
    gs_buffers_end_pass(f->buffers);
    return seen;
}

static gs_status add_one(void *ctx, void *const *values, const gs_param_spec *specs,
                         size_t num_buffers, const gs_join_round *round, gs_comm *comm,
                         gs_deadline deadline) {
    (void)ctx;
    (void)deadline;
    gs_device *device = gs_comm_device(comm);
    assert_int_equal(num_buffers, 2);
    assert_string_equal(specs[1].name, "bn.num_batches_tracked");
    assert_int_equal(round->num_active, 1);
    set_first(device, values[0], first_of(device, values[0]) + 1);
    return gs_ok();
}

static gs_status fail_always(void *ctx, void *const *values, const gs_param_spec *specs,
                             size_t num_buffers, const gs_join_round *round, gs_comm *comm,
                             gs_deadline deadline) {
    (void)ctx;
    (void)values;
    (void)specs;
    (void)num_buffers;
    (void)round;
    (void)comm;
    (void)deadline;
    return gs_error(GS_DATA_LOSS, "no");
}

static void committed_values_change_at_adopt_only(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, false);
    begin(&f);
    run_pass(&f, 0, true, 1);
    assert_near(run_pass(&f, 0, false, 1), 1, 0);
    assert_near(run_pass(&f, 1, true, 1), 2, 0);
    assert_near(committed(&f), 0, 0);
    gs_buffers_adopt(f.buffers);
    assert_near(committed(&f), 3, 0);
    close_fixture(&f);
}

static void undone_step_leaves_nothing(void **state) {
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        fixture f;
        open_fixture(&f, GS_BUFFERS_BROADCAST, exact);
        const committed_values before = read_committed(&f);
        begin(&f);
        run_pass(&f, 0, true, 5);
        begin(&f);
        assert_near(run_pass(&f, 0, true, 7), 0, 0);
        const committed_values undone = read_committed(&f);
        assert_memory_equal(&undone, &before, sizeof before);
        gs_buffers_adopt(f.buffers);
        assert_near(committed(&f), 7, 0);
        const committed_values adopted = read_committed(&f);
        assert_memory_not_equal(&adopted, &before, sizeof before);
        close_fixture(&f);
    }
}

static void buffer_that_a_pass_leaves_alone_keeps_its_value(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_LOCAL, false);
    int64_t count = 42;
    device_memory_write(f.device, gs_buffers_committed(f.buffers)[1], &count, sizeof count);
    begin(&f);
    run_pass(&f, 0, true, 1);
    run_pass(&f, 0, false, 1);
    gs_buffers_adopt(f.buffers);
    count = 0;
    device_memory_read(f.device, &count, gs_buffers_committed(f.buffers)[1], sizeof count);
    assert_int_equal(count, 42);
    close_fixture(&f);
}

static void exact_shards_start_from_committed_and_shard_0_is_adopted(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, true);
    begin(&f);
    assert_near(run_pass(&f, 0, true, 1), 0, 0);
    assert_near(run_pass(&f, 0, false, 1), 1, 0);
    assert_near(run_pass(&f, 1, true, 10), 0, 0);
    assert_near(run_pass(&f, 2, true, 20), 0, 0);
    gs_buffers_adopt(f.buffers);
    assert_near(committed(&f), 2, 0);
    close_fixture(&f);
}

static void exact_rank_without_shard_0_adopts_nothing(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_LOCAL, true);
    begin(&f);
    run_pass(&f, 3, true, 1);
    gs_buffers_adopt(f.buffers);
    assert_near(committed(&f), 0, 0);
    close_fixture(&f);
}

static void share_keeps_what_is_committed(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, false);
    begin(&f);
    run_pass(&f, 0, true, 4);
    assert_ok(gs_buffers_share(f.buffers, f.comm, gs_deadline_in_seconds(60)));
    assert_near(committed(&f), 0, 0);
    gs_buffers_adopt(f.buffers);
    assert_near(committed(&f), 4, 0);
    close_fixture(&f);
}

static void model_without_buffers_is_fine(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, false);
    gs_buffers *none;
    assert_ok(gs_buffers_create(&none, NULL, 0, GS_BUFFERS_BROADCAST, true, f.device));
    assert_ok(gs_buffers_begin(none, f.comm, gs_deadline_in_seconds(60)));
    const void *const *from;
    void *const *to;
    gs_buffers_pass(none, 0, true, &from, &to);
    gs_buffers_end_pass(none);
    gs_buffers_adopt(none);
    gs_buffers_destroy(none);
    close_fixture(&f);
}

static void buffers_beyond_memory_are_refused(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, false);
    gs_param_spec specs[4];
    for (size_t i = 0; i < 4; i++)
        specs[i] = gs_param_spec_make(GS_FP32, INT64_C(1) << 31, INT64_C(1) << 29, "b%zu", i);
    gs_buffers *buffers;
    gs_status status = gs_buffers_create(&buffers, specs, 4, GS_BUFFERS_LOCAL, false, f.device);
    assert_int_equal(status.code, GS_RESOURCE_EXHAUSTED);
    assert_null(buffers);
    close_fixture(&f);
}

// The original copies into buffers in place and breaks a backward that still needs the old values.
static void two_forwards_before_one_backward_keep_what_they_read(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_LOCAL, false);
    gs_buffers_hook hook = {.run = add_one, .before_forward = true};
    gs_buffers_set_hook(f.buffers, &hook);
    const void *const *first, *const *second;
    void *const *written;
    begin(&f);
    gs_buffers_pass(f.buffers, 0, true, &first, &written);
    const float *seen_first = first[0];
    set_first(f.device, written[0], 10);
    gs_buffers_end_pass(f.buffers);
    assert_near(first_of(f.device, seen_first), 1, 0);
    // The second forward of the same step, and one behind a new collective.
    gs_buffers_pass(f.buffers, 0, false, &second, &written);
    const float *seen_second = second[0];
    set_first(f.device, written[0], 20);
    gs_buffers_end_pass(f.buffers);
    begin(&f);
    gs_buffers_pass(f.buffers, 0, true, &first, &written);
    set_first(f.device, written[0], 30);
    assert_near(first_of(f.device, seen_first), 1, 0);
    assert_near(first_of(f.device, seen_second), 10, 0);
    assert_near(committed(&f), 0, 0);
    close_fixture(&f);
}

static void hook_takes_the_place_of_the_policy(void **state) {
    (void)state;
    for (int before = 0; before < 2; before++) {
        fixture f;
        open_fixture(&f, GS_BUFFERS_BROADCAST, false);
        gs_buffers_hook hook = {.run = add_one, .before_forward = before};
        gs_buffers_set_hook(f.buffers, &hook);
        begin(&f);
        assert_near(run_pass(&f, 0, true, 4), before, 0);
        assert_ok(gs_buffers_share(f.buffers, f.comm, gs_deadline_in_seconds(60)));
        assert_near(committed(&f), 0, 0);
        gs_buffers_adopt(f.buffers);
        assert_near(committed(&f), 5, 0);
        close_fixture(&f);
    }
}

static void failing_hook_ends_the_step_and_leaves_committed_values(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, false);
    gs_buffers_hook hook = {.run = fail_always, .before_forward = true};
    gs_buffers_set_hook(f.buffers, &hook);
    gs_status status = gs_buffers_begin(f.buffers, f.comm, gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_DATA_LOSS);
    assert_non_null(strstr(status.message, "rank 0"));
    assert_near(committed(&f), 0, 0);
    close_fixture(&f);
}

static void exact_mode_does_not_average(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_AVERAGE, false);
    gs_buffers *buffers;
    const gs_param_spec spec = gs_param_spec_make(GS_FP32, 3, 0, "bn.running_mean");
    gs_status status = gs_buffers_create(&buffers, &spec, 1, GS_BUFFERS_AVERAGE, true, f.device);
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    assert_null(buffers);
    close_fixture(&f);
}

static void step_without_any_data_is_refused(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, false);
    gs_join_round nobody = {.source = -1};
    gs_status status =
        gs_buffers_begin_uneven(f.buffers, &nobody, f.comm, gs_deadline_in_seconds(60));
    assert_int_equal(status.code, GS_FAILED_PRECONDITION);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(committed_values_change_at_adopt_only),
        cmocka_unit_test(undone_step_leaves_nothing),
        cmocka_unit_test(buffer_that_a_pass_leaves_alone_keeps_its_value),
        cmocka_unit_test(exact_shards_start_from_committed_and_shard_0_is_adopted),
        cmocka_unit_test(exact_rank_without_shard_0_adopts_nothing),
        cmocka_unit_test(share_keeps_what_is_committed),
        cmocka_unit_test(buffers_beyond_memory_are_refused),
        cmocka_unit_test(model_without_buffers_is_fine),
        cmocka_unit_test(two_forwards_before_one_backward_keep_what_they_read),
        cmocka_unit_test(hook_takes_the_place_of_the_policy),
        cmocka_unit_test(failing_hook_ends_the_step_and_leaves_committed_values),
        cmocka_unit_test(exact_mode_does_not_average),
        cmocka_unit_test(step_without_any_data_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
