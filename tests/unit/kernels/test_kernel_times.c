// Times of kernels, on a device of any kind.
#include "kernels/kernel_times.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/half.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/soon.h"

#define COUNT ((size_t)4096)
#define VARIABLE "GRADSYNC_KERNEL_TIMES"

typedef struct fixture {
    gs_device *device;
    float *x, *y, *z;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    setenv(VARIABLE, "7", 1);
    f->device = test_device_open(2);
    f->x = device_memory_alloc(f->device, COUNT * sizeof(float));
    f->y = device_memory_alloc(f->device, COUNT * sizeof(float));
    f->z = device_memory_alloc(f->device, COUNT * sizeof(float));
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    device_memory_free(f->device, f->x);
    device_memory_free(f->device, f->y);
    device_memory_free(f->device, f->z);
    test_device_close(f->device);
    unsetenv(VARIABLE);
    free(f);
    return 0;
}

static void fill(const fixture *f, float value) {
    gs_device_kernels(f->device)->fill(gs_device_stream(f->device), f->x, value, COUNT);
}

static void multiply(const fixture *f, size_t m, size_t n, size_t k) {
    const gs_matmul shape = {.m = m, .n = n, .k = k, .alpha = 1.0f};
    gs_device_kernels(f->device)->matmul(gs_device_stream(f->device), f->z, f->x, f->y, &shape);
}

static const gs_kernel_time *find(const gs_kernel_table *table, const char *kernel, const char *shape) {
    for (size_t i = 0; i < table->num_rows; i++)
        if (strcmp(table->rows[i].kernel, kernel) == 0 && strcmp(table->rows[i].shape, shape) == 0)
            return &table->rows[i];
    fail_msg("no row of %s %s", kernel, shape);
    return NULL;
}

static void without_the_variable_tables_are_the_devices_own(void **state) {
    (void)state;
    unsetenv(VARIABLE);
    gs_device *device = test_device_open(1);
    assert_int_equal(gs_kernel_times_step_of(device), -1);
    assert_false(gs_kernel_times_running(device));
    assert_int_equal(gs_kernel_times_begin(device).code, GS_FAILED_PRECONDITION);
    test_device_close(device);
}

static void what_is_no_step_is_refused(void **state) {
    (void)state;
    static const char *const words[] = {"first", "-1", "3rd"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        gs_device *device;
        setenv(VARIABLE, words[i], 1);
        assert_int_equal(gs_device_open(&device, "cpu", &(gs_device_options){0}).code, GS_INVALID_ARGUMENT);
    }
    setenv(VARIABLE, "0", 1);
    gs_device *device = test_device_open(1);
    assert_int_equal(gs_kernel_times_step_of(device), 0);
    test_device_close(device);
    unsetenv(VARIABLE);
}

// Every launcher is another than without the variable, from the first slot to the table's end.
static void check_slots(const void *timed, const void *own, size_t first, size_t end) {
    for (size_t at = first; at < end; at += sizeof(void (*)(void))) {
        void (*a)(void), (*b)(void);
        memcpy(&a, (const char *)timed + at, sizeof a);
        memcpy(&b, (const char *)own + at, sizeof b);
        if (b && a == b) fail_msg("slot %zu is not timed", (at - first) / sizeof a);
        assert_int_equal(a == NULL, b == NULL);
    }
}

static void every_slot_is_timed(void **state) {
    const fixture *f = *state;
    static const gs_dtype halves[] = {GS_BF16, GS_FP16};
    unsetenv(VARIABLE);
    gs_device *own = test_device_open(1);
    check_slots(gs_device_kernels(f->device), gs_device_kernels(own), offsetof(gs_kernels, fill), sizeof(gs_kernels));
    for (int i = 0; i < 2; i++)
        check_slots(gs_device_half_kernels(f->device, halves[i]), gs_device_half_kernels(own, halves[i]),
                    offsetof(gs_half_kernels, matmul), sizeof(gs_half_kernels));
    assert_string_equal(gs_device_kernels(f->device)->name, gs_device_kernels(own)->name);
    test_device_close(own);
}

static void launches_add_up_by_kernel_and_shape(void **state) {
    const fixture *f = *state;
    gs_kernel_table table;
    assert_int_equal(gs_kernel_times_step_of(f->device), 7);
    fill(f, 1);
    assert_ok(gs_kernel_times_begin(f->device));
    assert_true(gs_kernel_times_running(f->device));
    for (int i = 0; i < 3; i++) fill(f, 2);
    for (int i = 0; i < 2; i++) multiply(f, 32, 16, 8);
    multiply(f, 16, 32, 8);
    assert_ok(gs_kernel_times_end(&table, f->device, soon()));
    fill(f, 3);
    assert_ok(gs_stream_wait(gs_device_stream(f->device), soon()));

    assert_int_equal(table.num_rows, 3);
    const gs_kernel_time *fills = find(&table, "fill", ""), *products = find(&table, "matmul", "m=32 n=16 k=8 nn");
    assert_int_equal(fills->calls, 3);
    assert_true(fills->bytes == 3.0 * 4 * COUNT && fills->flops == 0);
    assert_int_equal(fills->dtype, GS_FP32);
    assert_int_equal(products->calls, 2);
    assert_true(products->flops == 2 * 2.0 * 32 * 16 * 8);
    assert_int_equal(find(&table, "matmul", "m=16 n=32 k=8 nn")->calls, 1);
    int64_t sum = 0;
    for (size_t i = 0; i < table.num_rows; i++) {
        assert_true(table.rows[i].ns >= 0);
        assert_true(i == 0 || table.rows[i].ns <= table.rows[i - 1].ns);
        sum += table.rows[i].ns;
    }
    assert_int_equal(sum, table.ns);
    assert_true(table.ns <= table.span_ns);
    gs_kernel_table_release(&table);
}

static void what_is_computed_is_the_same(void **state) {
    const fixture *f = *state;
    float got[2][256];
    gs_kernel_table table;
    fill(f, 0.5f);
    multiply(f, 16, 16, 16);
    device_memory_read(f->device, got[0], f->z, sizeof got[0]);
    assert_ok(gs_kernel_times_begin(f->device));
    multiply(f, 16, 16, 16);
    assert_ok(gs_kernel_times_end(&table, f->device, soon()));
    device_memory_read(f->device, got[1], f->z, sizeof got[1]);
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    gs_kernel_table_release(&table);
}

static void beginning_again_drops_what_was_begun(void **state) {
    const fixture *f = *state;
    gs_kernel_table table;
    assert_ok(gs_kernel_times_begin(f->device));
    fill(f, 1);
    assert_ok(gs_kernel_times_begin(f->device));
    multiply(f, 8, 8, 8);
    assert_ok(gs_kernel_times_end(&table, f->device, soon()));
    assert_int_equal(table.num_rows, 1);
    gs_kernel_table_release(&table);
    assert_int_equal(gs_kernel_times_end(&table, f->device, soon()).code, GS_FAILED_PRECONDITION);
    assert_ok(gs_kernel_times_begin(f->device));
    fill(f, 1);  // and a device that is closed meanwhile gives it all back
}

static void streams_beside_count(void **state) {
    const fixture *f = *state;
    gs_kernel_table table;
    gs_stream *side;
    assert_ok(gs_stream_create(&side, f->device, GS_STREAM_NORMAL));
    assert_ok(gs_kernel_times_begin(f->device));
    gs_device_kernels(f->device)->fill(side, f->y, 1, COUNT);
    fill(f, 1);
    assert_ok(gs_kernel_times_end(&table, f->device, soon()));
    assert_int_equal(find(&table, "fill", "")->calls, 2);
    gs_kernel_table_release(&table);
    gs_stream_destroy(side);
}

typedef struct party {
    gs_device *device;
    float memory[16];
} party;

static void *sum_often(void *ctx) {
    party *self = ctx;
    void *outputs[] = {self->memory};
    const void *inputs[] = {self->memory};
    const gs_reduction reduction = {.outputs = outputs,
                                    .inputs = inputs,
                                    .num_outputs = 1,
                                    .num_inputs = 1,
                                    .dtype = GS_FP32,
                                    .scale = 1,
                                    .count = 16};
    for (int i = 0; i < 500; i++)
        gs_device_kernels(self->device)->reduce(gs_device_stream(self->device), &reduction);
    return NULL;
}

// On a host communicators sum with the device of the one that they work for.
static void launches_of_several_threads_count(void **state) {
    const fixture *f = *state;
    party parties[3] = {{0}};
    pthread_t threads[3];
    gs_kernel_table table;
    if (!gs_device_is_host(f->device)) return;
    assert_ok(gs_kernel_times_begin(f->device));
    for (int i = 0; i < 3; i++) {
        parties[i].device = f->device;
        assert_int_equal(pthread_create(&threads[i], NULL, sum_often, &parties[i]), 0);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_ok(gs_kernel_times_end(&table, f->device, soon()));
    assert_int_equal(find(&table, "reduce", "")->calls, 1500);
    gs_kernel_table_release(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_the_variable_tables_are_the_devices_own),
        cmocka_unit_test(what_is_no_step_is_refused),
        cmocka_unit_test_setup_teardown(every_slot_is_timed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(launches_add_up_by_kernel_and_shape, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_computed_is_the_same, set_up, tear_down),
        cmocka_unit_test_setup_teardown(beginning_again_drops_what_was_begun, set_up, tear_down),
        cmocka_unit_test_setup_teardown(streams_beside_count, set_up, tear_down),
        cmocka_unit_test_setup_teardown(launches_of_several_threads_count, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
