#include "gradsync/bucket/bucket_tally.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"

#define NUM_PARAMS 3
#define COUNT 5
#define LAST (NUM_PARAMS - 1)  // the bucket of parameter 0
#define DEADLINE gs_deadline_in_seconds(60)

// Three parameters, the middle one of doubles: a bucket for each.
typedef struct fixture {
    gs_device *device;
    void *memory;
    gs_grad_layout layout;
    gs_bucket_tally tally;
    gs_comm *comm;  // of a tally apart
} fixture;

static void open_comm(fixture *f) {
    gs_comm_options options = {.world_size = 1, .generation = 1, .device = f->device};
    assert_ok(gs_comm_create(&f->comm, &options, DEADLINE));
}

static void open_fixture_with(fixture *f, bool sample_mean, gs_tally_carrier carrier) {
    gs_param_spec params[NUM_PARAMS];
    gs_bucket_plan plan;
    size_t bytes;
    for (size_t i = 0; i < NUM_PARAMS; i++)
        params[i] = gs_param_spec_make(i == 1 ? GS_FP64 : GS_FP32, COUNT, 0, "p%zu", i);
    *f = (fixture){.device = test_device_open(1)};
    if (carrier == GS_TALLY_APART) open_comm(f);
    const gs_grad_layout_shape shape = {.params = params,
                                        .num_params = NUM_PARAMS,
                                        .num_slots = 1,
                                        .device = f->device,
                                        .tally = carrier};
    assert_ok(gs_grad_layout_bytes(&bytes, &shape, NULL));
    f->memory = device_memory_alloc(f->device, bytes);
    assert_ok(gs_grad_layout_init(&f->layout, &shape, f->memory));
    assert_ok(gs_bucket_plan_parity(&plan, params, NUM_PARAMS, 1, 1, NULL));
    assert_ok(gs_grad_layout_set_plan(&f->layout, &plan));
    gs_bucket_plan_release(&plan);
    assert_int_equal(f->layout.plan.num_buckets, NUM_PARAMS);
    assert_ok(gs_bucket_tally_init(&f->tally, &f->layout, f->device, sample_mean));
    gs_bucket_tally_place(&f->tally);
}

static void open_fixture(fixture *f, bool sample_mean) {
    open_fixture_with(f, sample_mean, GS_TALLY_IN_BUCKETS);
}

static void close_fixture(fixture *f) {
    gs_comm_destroy(f->comm);
    gs_bucket_tally_release(&f->tally);
    gs_grad_layout_release(&f->layout);
    device_memory_free(f->device, f->memory);
    test_device_close(f->device);
}

// Every element of every gradient is `value`.
static void write_grads(fixture *f, double value) {
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        double wide[COUNT];
        float narrow[COUNT];
        for (int e = 0; e < COUNT; e++) narrow[e] = (float)(wide[e] = value);
        bool is_wide = f->layout.dtypes[i] == GS_FP64;
        device_memory_write(f->device, gs_grad_layout_grads(&f->layout, 0)[i],
                            is_wide ? (void *)wide : (void *)narrow,
                            is_wide ? sizeof wide : sizeof narrow);
    }
}

static double read_grad(fixture *f, size_t param) {
    double wide;
    float narrow;
    const void *grad = gs_grad_layout_grads(&f->layout, 0)[param];
    if (f->layout.dtypes[param] == GS_FP64) {
        device_memory_read(f->device, &wide, grad, sizeof wide);
        return wide;
    }
    device_memory_read(f->device, &narrow, grad, sizeof narrow);
    return (double)narrow;
}

static void begin(fixture *f, int num_ranks) {
    gs_bucket_tally_begin(&f->tally, &(gs_bucket_step){.step = 7,
                                                       .scale = 1,
                                                       .num_ranks = num_ranks,
                                                       .num_active = num_ranks,
                                                       .active = true,
                                                       .comm = f->comm});
}

static void write_shares(fixture *f) {
    for (size_t b = 0; b < NUM_PARAMS; b++)
        gs_bucket_tally_write(&f->tally, b, gs_work_stream_of(f->device));
}

// The sum of one rank is what it wrote.
static gs_status take_all(fixture *f) {
    for (size_t b = 0; b < NUM_PARAMS; b++) GS_TRY(gs_bucket_tally_take(&f->tally, b));
    GS_TRY(gs_bucket_tally_close(&f->tally, DEADLINE));
    return gs_bucket_tally_read(&f->tally, DEADLINE);
}

static void assert_refused(gs_status status, gs_code code, const char *words) {
    assert_int_equal(status.code, code);
    if (!strstr(status.message, words)) fail_msg("\"%s\" lacks \"%s\"", status.message, words);
}

static void check_what_is_read(gs_tally_carrier carrier) {
    fixture f;
    open_fixture_with(&f, false, carrier);
    write_grads(&f, 3);
    begin(&f, 1);
    f.tally.used[1] = 1;
    f.tally.samples = 12345;
    write_shares(&f);
    for (size_t b = 0; b < NUM_PARAMS; b++) assert_ok(gs_bucket_tally_take(&f.tally, b));
    // Without a wait, for what this rank used itself.
    const uint8_t *used = gs_bucket_tally_used(&f.tally);
    if (carrier == GS_TALLY_APART) assert_null(used);
    for (size_t i = 0; i < NUM_PARAMS && used; i++) assert_int_equal(used[i], i == 1);
    assert_true(used || carrier == GS_TALLY_APART);
    assert_ok(gs_bucket_tally_close(&f.tally, DEADLINE));
    assert_ok(gs_bucket_tally_read(&f.tally, DEADLINE));
    assert_int_equal(f.tally.total_samples, 12345);
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        assert_int_equal(f.tally.used_anywhere[i], i == 1);
        assert_true(f.tally.squares[i] == 9 * COUNT);
    }
    close_fixture(&f);
}

static void check_sample_mean(gs_tally_carrier carrier) {
    fixture f;
    open_fixture_with(&f, true, carrier);
    write_grads(&f, 8);
    begin(&f, 1);
    f.tally.samples = 4;
    write_shares(&f);
    assert_ok(take_all(&f));
    for (size_t i = 0; i < NUM_PARAMS; i++) {
        assert_true(read_grad(&f, i) == 2);
        assert_true(f.tally.squares[i] == 4 * COUNT);
    }
    close_fixture(&f);
}

static void check_changed(gs_tally_carrier carrier) {
    fixture f;
    open_fixture_with(&f, false, carrier);
    write_grads(&f, 1);
    begin(&f, 1);
    write_shares(&f);
    for (size_t b = 0; b < NUM_PARAMS; b++) assert_ok(gs_bucket_tally_take(&f.tally, b));
    assert_ok(gs_bucket_tally_close(&f.tally, DEADLINE));
    write_grads(&f, 2);
    gs_bucket_tally_measure(&f.tally, 0);
    gs_bucket_tally_measure(&f.tally, 1);
    assert_ok(gs_bucket_tally_read(&f.tally, DEADLINE));
    assert_true(f.tally.squares[0] == 4 * COUNT);
    assert_true(f.tally.squares[1] == 4 * COUNT);
    assert_true(f.tally.squares[2] == COUNT);
    write_grads(&f, (double)INFINITY);
    gs_bucket_tally_measure(&f.tally, 0);
    gs_bucket_tally_measure(&f.tally, 1);
    assert_ok(gs_bucket_tally_read(&f.tally, DEADLINE));
    assert_true(isnan(f.tally.squares[0]) && isnan(f.tally.squares[1]));
    close_fixture(&f);
}

static void what_a_rank_says_is_read_by_every_rank(void **state) {
    (void)state;
    check_what_is_read(GS_TALLY_IN_BUCKETS);
    check_what_is_read(GS_TALLY_APART);
}

static void sample_mean_is_divided_before_it_is_measured(void **state) {
    (void)state;
    check_sample_mean(GS_TALLY_IN_BUCKETS);
    check_sample_mean(GS_TALLY_APART);
}

static void changed_gradient_is_measured_anew(void **state) {
    (void)state;
    check_changed(GS_TALLY_IN_BUCKETS);
    check_changed(GS_TALLY_APART);
}

static void only_a_tally_apart_knows_parts(void **state) {
    (void)state;
    fixture f;
    const gs_segment all = {.tensor = 0, .count = COUNT},
                     few = {.tensor = 0, .first = 1, .count = 3};
    open_fixture(&f, false);
    begin(&f, 1);
    assert_refused(gs_bucket_tally_hold(&f.tally, LAST, &all, 1), GS_UNIMPLEMENTED,
                   "GS_TALLY_APART");
    close_fixture(&f);

    open_fixture_with(&f, false, GS_TALLY_APART);
    assert_int_equal(f.layout.buckets[LAST].reserved_count, 0);
    write_grads(&f, 3);
    begin(&f, 1);
    assert_ok(gs_bucket_tally_hold(&f.tally, LAST, &all, 1));
    assert_true(gs_bucket_tally_is_partial(&f.tally));
    assert_ok(take_all(&f));
    assert_true(f.tally.squares[0] == 9 * COUNT && f.tally.squares[1] == 9 * COUNT);
    begin(&f, 1);
    assert_false(gs_bucket_tally_is_partial(&f.tally));
    assert_ok(gs_bucket_tally_hold(&f.tally, LAST, &few, 1));
    assert_refused(
        take_all(&f), GS_FAILED_PRECONDITION,
        "bucket 2: ranks hold 3 elements of the result of parameter 0 \"p0\", which has 5");
    assert_true(f.tally.squares[0] == 9 * 3);
    close_fixture(&f);
}

static void segments_of_elsewhere_are_refused(void **state) {
    (void)state;
    fixture f;
    const gs_segment other = {.tensor = 1, .count = COUNT}, long_one = {.first = 3, .count = 3};
    const gs_segment twice[] = {{.first = 0, .count = 3}, {.first = 2, .count = 3}};
    open_fixture_with(&f, false, GS_TALLY_APART);
    begin(&f, 1);
    assert_refused(gs_bucket_tally_hold(&f.tally, LAST, &other, 1), GS_INVALID_ARGUMENT,
                   "elements 0 to 5 of parameter 1 are not of bucket 2");
    assert_refused(gs_bucket_tally_hold(&f.tally, LAST, &long_one, 1), GS_INVALID_ARGUMENT,
                   "elements 3 to 6 of parameter 0 are not of bucket 2");
    assert_refused(gs_bucket_tally_hold(&f.tally, LAST, twice, 2), GS_INVALID_ARGUMENT,
                   "element 2 of parameter 0 is in two segments");
    close_fixture(&f);
}

static void sums_that_cannot_be_are_refused(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, false);
    begin(&f, 2);
    write_shares(&f);
    assert_refused(take_all(&f), GS_DATA_LOSS, "step 7: bucket 0: 1 ranks are in the sum of 2");

    begin(&f, 1);
    f.tally.step.num_active = 0;
    write_shares(&f);
    assert_refused(take_all(&f), GS_FAILED_PRECONDITION, "1 ranks had data, 0 were announced");

    begin(&f, 1);
    gs_bucket_tally_write(&f.tally, 0, gs_work_stream_of(f.device));
    f.tally.samples = 1;
    gs_bucket_tally_write(&f.tally, 1, gs_work_stream_of(f.device));
    gs_bucket_tally_write(&f.tally, 2, gs_work_stream_of(f.device));
    assert_refused(take_all(&f), GS_DATA_LOSS, "bucket 1: carries 1 samples, earlier ones 0");
    close_fixture(&f);

    open_fixture(&f, true);
    begin(&f, 1);
    write_shares(&f);
    assert_refused(take_all(&f), GS_FAILED_PRECONDITION, "no rank has samples");
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_rank_says_is_read_by_every_rank),
        cmocka_unit_test(sample_mean_is_divided_before_it_is_measured),
        cmocka_unit_test(changed_gradient_is_measured_anew),
        cmocka_unit_test(only_a_tally_apart_knows_parts),
        cmocka_unit_test(segments_of_elsewhere_are_refused),
        cmocka_unit_test(sums_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
