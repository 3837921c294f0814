#include "gradsync/buffers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    gs_device *device;
    gs_comm *comm;
    gs_buffers *buffers;
} fixture;

static void assert_ok(gs_status status) {
    assert_string_equal(status.message, "");
}

static void open_fixture(fixture *f, gs_buffers_policy policy, bool exact) {
    const gs_param_spec specs[] = {gs_param_spec_make(GS_FP32, 3, 0, "bn.running_mean"),
                                   gs_param_spec_make(GS_I64, 0, 0, "bn.num_batches_tracked")};
    assert_ok(gs_device_open(&f->device, "cpu", &(gs_device_options){0}));
    assert_ok(gs_comm_create(
        &f->comm, &(gs_comm_options){.backend = "self", .world_size = 1, .device = f->device},
        gs_deadline_in_seconds(5)));
    assert_ok(gs_buffers_create(&f->buffers, specs, 2, policy, exact, f->device));
}

static void close_fixture(fixture *f) {
    gs_buffers_destroy(f->buffers);
    gs_comm_destroy(f->comm);
    gs_device_close(f->device);
}

static float committed(const fixture *f) {
    return ((const float *)gs_buffers_committed(f->buffers)[0])[0];
}

static void begin(fixture *f) {
    assert_ok(gs_buffers_begin(f->buffers, f->comm, gs_deadline_in_seconds(5)));
}

// A pass that adds `value`; returns what it read.
static float run_pass(fixture *f, int shard, bool first_of_shard, float value) {
    const void *const *from;
    void *const *to;
    gs_buffers_pass(f->buffers, shard, first_of_shard, &from, &to);
    assert_ptr_not_equal(from[0], to[0]);
    float seen = ((const float *)from[0])[0];
    ((float *)to[0])[0] = seen + value;
    gs_buffers_end_pass(f->buffers);
    return seen;
}

static void committed_values_change_at_adopt_only(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, false);
    begin(&f);
    run_pass(&f, 0, true, 1);
    assert_float_equal(run_pass(&f, 0, false, 1), 1, 0);
    assert_float_equal(run_pass(&f, 1, true, 1), 2, 0);
    assert_float_equal(committed(&f), 0, 0);
    gs_buffers_adopt(f.buffers);
    assert_float_equal(committed(&f), 3, 0);
    close_fixture(&f);
}

static void undone_step_leaves_nothing(void **state) {
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        fixture f;
        open_fixture(&f, GS_BUFFERS_BROADCAST, exact);
        gs_digest before = gs_buffers_digest(f.buffers);
        begin(&f);
        run_pass(&f, 0, true, 5);
        begin(&f);
        assert_float_equal(run_pass(&f, 0, true, 7), 0, 0);
        assert_true(gs_digest_equal(gs_buffers_digest(f.buffers), before));
        gs_buffers_adopt(f.buffers);
        assert_float_equal(committed(&f), 7, 0);
        assert_false(gs_digest_equal(gs_buffers_digest(f.buffers), before));
        close_fixture(&f);
    }
}

static void buffer_that_a_pass_leaves_alone_keeps_its_value(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_LOCAL, false);
    *(int64_t *)gs_buffers_committed(f.buffers)[1] = 42;
    begin(&f);
    run_pass(&f, 0, true, 1);
    run_pass(&f, 0, false, 1);
    gs_buffers_adopt(f.buffers);
    assert_int_equal(*(const int64_t *)gs_buffers_committed(f.buffers)[1], 42);
    close_fixture(&f);
}

static void exact_shards_start_from_committed_and_shard_0_is_adopted(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, true);
    begin(&f);
    assert_float_equal(run_pass(&f, 0, true, 1), 0, 0);
    assert_float_equal(run_pass(&f, 0, false, 1), 1, 0);
    assert_float_equal(run_pass(&f, 1, true, 10), 0, 0);
    assert_float_equal(run_pass(&f, 2, true, 20), 0, 0);
    gs_buffers_adopt(f.buffers);
    assert_float_equal(committed(&f), 2, 0);
    close_fixture(&f);
}

static void exact_rank_without_shard_0_adopts_nothing(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_LOCAL, true);
    begin(&f);
    run_pass(&f, 3, true, 1);
    gs_buffers_adopt(f.buffers);
    assert_float_equal(committed(&f), 0, 0);
    close_fixture(&f);
}

static void share_keeps_what_is_committed(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, false);
    begin(&f);
    run_pass(&f, 0, true, 4);
    assert_ok(gs_buffers_share(f.buffers, f.comm, gs_deadline_in_seconds(5)));
    assert_float_equal(committed(&f), 0, 0);
    gs_buffers_adopt(f.buffers);
    assert_float_equal(committed(&f), 4, 0);
    close_fixture(&f);
}

static void model_without_buffers_is_fine(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, GS_BUFFERS_BROADCAST, false);
    gs_buffers *none;
    assert_ok(gs_buffers_create(&none, NULL, 0, GS_BUFFERS_BROADCAST, true, f.device));
    assert_ok(gs_buffers_begin(none, f.comm, gs_deadline_in_seconds(5)));
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
