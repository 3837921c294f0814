#include "gradsync/sparse/sparse_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/soon.h"

static const int32_t three[] = {7, 2, 7};
static const float values[] = {1, 2, 3, 4, 5, 6};

// A world of one.
typedef struct alone {
    gs_device *device;
    gs_comm *comm;
    gs_sparse_rows *rows;
    gs_param_spec param;
    float *values;  // of the device: what rows are made of
} alone;

static void open_alone(alone *self, const gs_sparse_rows_options *wanted) {
    *self = (alone){.param = gs_param_spec_make(GS_FP32, 10, 2, "table")};
    gs_sparse_rows_options options = *wanted;
    self->device = test_device_open(1);
    gs_comm_options comm = {
        .backend = "self", .world_size = 1, .generation = 1, .device = self->device};
    assert_ok(gs_comm_create(&self->comm, &comm, soon()));
    if (!options.param) options.param = &self->param;
    options.device = self->device;
    self->values = device_memory_copy(self->device, values, sizeof values);
    assert_ok(gs_sparse_rows_create(&self->rows, &options, self->comm, soon()));
}

static void close_alone(alone *self) {
    gs_sparse_rows_destroy(self->rows);
    gs_comm_destroy(self->comm);
    device_memory_free(self->device, self->values);
    test_device_close(self->device);
}


static void duplicates_add_up_and_rows_come_sorted(void **state) {
    (void)state;
    alone self;
    open_alone(&self, &(gs_sparse_rows_options){.max_rows = 3, .op = GS_SUM});
    gs_sparse_rows_result result;
    assert_ok(gs_sparse_rows_begin(self.rows, 0));
    assert_ok(gs_sparse_rows_add(self.rows, three, GS_I32, self.values, 3));
    assert_ok(gs_sparse_rows_finish(self.rows, &result, soon()));
    const float wanted[] = {3, 4, 6, 8};
    assert_int_equal(result.num_rows, 2);
    assert_int_equal(result.indices[0], 2);
    assert_int_equal(result.indices[1], 7);
    float rows[4], dense[20] = {[14] = 1};
    device_memory_read(self.device, rows, result.rows, sizeof rows);
    assert_memory_equal(rows, wanted, sizeof wanted);
    assert_true(result.squares == 9 + 16 + 36 + 64);
    assert_int_equal(result.row_bytes, 0);
    float *sums = device_memory_copy(self.device, dense, sizeof dense);
    assert_ok(gs_sparse_rows_add_to(self.rows, sums));
    device_memory_read(self.device, dense, sums, sizeof dense);
    device_memory_free(self.device, sums);
    assert_true(dense[4] == 3 && dense[5] == 4 && dense[14] == 7 && dense[15] == 8);
    close_alone(&self);
}

// Nothing of a step is left in the next.
static void a_step_without_rows_is_empty(void **state) {
    (void)state;
    alone self;
    open_alone(&self, &(gs_sparse_rows_options){.max_rows = 3});
    gs_sparse_rows_result result;
    assert_ok(gs_sparse_rows_begin(self.rows, 0));
    assert_ok(gs_sparse_rows_add(self.rows, three, GS_I32, self.values, 3));
    assert_ok(gs_sparse_rows_finish(self.rows, &result, soon()));
    assert_ok(gs_sparse_rows_begin(self.rows, 1));
    assert_ok(gs_sparse_rows_finish(self.rows, &result, soon()));
    assert_int_equal(result.num_rows, 0);
    assert_true(result.squares == 0 && !result.nonfinite);
    float dense[20] = {0}, zeros[20] = {0};
    float *sums = device_memory_copy(self.device, dense, sizeof dense);
    assert_ok(gs_sparse_rows_add_to(self.rows, sums));
    device_memory_read(self.device, dense, sums, sizeof dense);
    device_memory_free(self.device, sums);
    assert_memory_equal(dense, zeros, sizeof zeros);
    close_alone(&self);
}

static void a_row_that_is_not_finite_is_told(void **state) {
    (void)state;
    alone self;
    open_alone(&self, &(gs_sparse_rows_options){.max_rows = 3});
    gs_sparse_rows_result result;
    const float bad[] = {1, NAN};
    device_memory_write(self.device, self.values, bad, sizeof bad);
    assert_ok(gs_sparse_rows_begin(self.rows, 0));
    assert_ok(gs_sparse_rows_add(self.rows, three, GS_I32, self.values, 1));
    assert_ok(gs_sparse_rows_finish(self.rows, &result, soon()));
    assert_true(result.nonfinite);
    close_alone(&self);
}

enum misuse {
    BEGIN_TWICE,
    ADD_BEFORE_BEGIN,
    NEGATIVE_SAMPLES,
    NO_SAMPLES,
    POST_INDICES_TWICE,
    NEW_ROW_LATE,
    TOO_MANY,
    NEGATIVE,
    FLOATS,
    FINISH_UNOPENED,
    ADD_AFTER_POST,
    NUM_MISUSES
};

static gs_status misuse(alone *self, enum misuse which) {
    gs_sparse_rows *rows = self->rows;
    gs_sparse_rows_result result;
    const int32_t many[] = {1, 2, 3, 4}, negative[] = {4, -1};
    if (which == FINISH_UNOPENED) return gs_sparse_rows_finish(rows, &result, soon());
    if (which == ADD_BEFORE_BEGIN) return gs_sparse_rows_add(rows, three, GS_I32, self->values, 3);
    GS_TRY(gs_sparse_rows_begin(rows, 5));
    if (which == BEGIN_TWICE) return gs_sparse_rows_begin(rows, 6);
    if (which == TOO_MANY) return gs_sparse_rows_touch(rows, many, GS_I32, 4);
    if (which == NEGATIVE) return gs_sparse_rows_touch(rows, negative, GS_I32, 2);
    if (which == FLOATS) return gs_sparse_rows_touch(rows, values, GS_FP32, 2);
    if (which == NEGATIVE_SAMPLES) return gs_sparse_rows_post_indices(rows, -1);
    if (which == NO_SAMPLES) return gs_sparse_rows_post(rows, soon());
    GS_TRY(gs_sparse_rows_post_indices(rows, 1));
    if (which == POST_INDICES_TWICE) return gs_sparse_rows_post_indices(rows, 1);
    if (which == NEW_ROW_LATE) return gs_sparse_rows_add(rows, three, GS_I32, self->values, 3);
    GS_TRY(gs_sparse_rows_post(rows, soon()));
    return gs_sparse_rows_add(rows, three, GS_I32, self->values, 3);
}

static void every_misuse_is_an_error_that_names_rank_step_and_parameter_and_sticks(void **state) {
    (void)state;
    static const char *const words[NUM_MISUSES] = {
        [BEGIN_TWICE] = "rank 0, step 5: rows of \"table\": a step is open, finish it first",
        [ADD_BEFORE_BEGIN] = "rows of \"table\": rows are added between begin and post",
        [NEGATIVE_SAMPLES] = "step 5: rows of \"table\": samples: -1",
        [NO_SAMPLES] = "step 5: rows of \"table\": a sample mean wants post_indices with samples",
        [POST_INDICES_TWICE] = "step 5: rows of \"table\": indices are posted once, after begin",
        [NEW_ROW_LATE] =
            "step 5: rows of \"table\": row 7 was not touched before indices were posted",
        [TOO_MANY] = "step 5: rows of \"table\": more than max_rows (3) rows in a step",
        [NEGATIVE] = "step 5: rows of \"table\": index 1 is -1, not in [0, 10)",
        [FLOATS] = "step 5: rows of \"table\": indices of fp32",
        [FINISH_UNOPENED] = "rows of \"table\": no step is open",
        [ADD_AFTER_POST] = "step 5: rows of \"table\": rows are added between begin and post"};
    for (int which = 0; which < NUM_MISUSES; which++) {
        alone self;
        gs_reducer_op op = which == NO_SAMPLES ? GS_SAMPLE_MEAN : GS_MEAN;
        open_alone(&self, &(gs_sparse_rows_options){.max_rows = 3, .op = op});
        gs_status status = misuse(&self, (enum misuse)which);
        if (!strstr(status.message, words[which])) fail_msg("%d said: %s", which, status.message);
        gs_status again = gs_sparse_rows_begin(self.rows, 6);
        assert_string_equal(again.message, status.message);
        close_alone(&self);
    }
}

static void options_that_make_no_sense_are_refused(void **state) {
    (void)state;
    gs_param_spec table = gs_param_spec_make(GS_FP32, 10, 2, "table"), scalar = table, wide = table;
    scalar.num_dims = 0;
    wide.dtype = GS_FP64;
    const int64_t unsorted[] = {3, 1}, outside[] = {3, 10};
    const struct {
        gs_sparse_rows_options options;
        const char *words;
    } cases[] = {{{.param = &scalar}, "\"table\" is a scalar, it has no rows"},
                 {{.param = &wide, .max_rows = 1}, "rows are fp32"},
                 {{.param = &table, .max_rows = 3, .most_rows = 2},
                  "max_rows: 3, most_rows of all ranks: 2"},
                 {{.param = &table, .mode = GS_ROWS_GATHER, .stay_with_owner = true},
                  "none stays with its owner"},
                 {{.param = &table, .indices = unsorted, .num_indices = 2}, "indices[1] is 1"},
                 {{.param = &table, .indices = outside, .num_indices = 2}, "indices[1] is 10"},
                 {{.param = &table, .op = (gs_reducer_op)3}, "op: 3"},
                 {{.param = &table, .divisor = -1}, "divisor: -1"},
                 {{.param = &table, .divisor = NAN}, "divisor: nan"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        gs_status status = gs_sparse_rows_bytes(&bytes, &cases[i].options, 2);
        assert_int_equal(status.code, GS_INVALID_ARGUMENT);
        if (!strstr(status.message, cases[i].words)) fail_msg("%s", status.message);
    }
}

static void rows_pay_up_to_half_of_the_table(void **state) {
    (void)state;
    assert_true(gs_sparse_rows_pays(1000, 250, 2));
    assert_false(gs_sparse_rows_pays(1000, 251, 2));
    assert_true(gs_sparse_rows_pays(50257, 4096, 4));
    assert_false(gs_sparse_rows_pays(256, 256, 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(duplicates_add_up_and_rows_come_sorted),
        cmocka_unit_test(a_step_without_rows_is_empty),
        cmocka_unit_test(a_row_that_is_not_finite_is_told),
        cmocka_unit_test(every_misuse_is_an_error_that_names_rank_step_and_parameter_and_sticks),
        cmocka_unit_test(options_that_make_no_sense_are_refused),
        cmocka_unit_test(rows_pay_up_to_half_of_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
