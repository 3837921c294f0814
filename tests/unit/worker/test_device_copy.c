#include "worker/state/device_copy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"

// More than the pieces that a transfer goes through hold, and no multiple of anything.
#define LARGE_COUNT ((size_t)5000011)
#define SMALL_COUNT ((size_t)33)

typedef struct collected {
    char *bytes;
    size_t num_bytes;
} collected;

static void collect(void *ctx, const void *bytes, size_t num_bytes) {
    collected *into = ctx;
    memcpy(into->bytes + into->num_bytes, bytes, num_bytes);
    into->num_bytes += num_bytes;
}

static void hand_out(void *ctx, void *bytes, size_t num_bytes) {
    collected *from = ctx;
    memcpy(bytes, from->bytes + from->num_bytes, num_bytes);
    from->num_bytes += num_bytes;
}

static float *draw(size_t count, uint64_t seed) {
    float *values = malloc(count * sizeof *values);
    assert_non_null(values);
    gs_random_fill_normal(values, count, (gs_random_key){seed, 1}, 0, 0, 1);
    return values;
}

// Three runs: one larger than all pieces, one of the host's memory, a small one.
static void runs_come_back_in_order_and_whole(void **state) {
    (void)state;
    gs_device *device = test_device_open(1);
    gs_device_copy *copy;
    assert_ok(gs_device_copy_create(&copy, device));
    float *large = draw(LARGE_COUNT, 1), *small = draw(SMALL_COUNT, 2);
    int64_t counts[3] = {7, 8, 9};
    gs_copy_run runs[] = {{.data = device_memory_copy(device, large, LARGE_COUNT * sizeof(float)),
                           .bytes = LARGE_COUNT * sizeof(float)},
                          {.data = counts, .bytes = sizeof counts, .is_on_host = true},
                          {.data = device_memory_copy(device, small, SMALL_COUNT * sizeof(float)),
                           .bytes = SMALL_COUNT * sizeof(float)}};
    collected out = {.bytes = malloc((LARGE_COUNT + SMALL_COUNT) * sizeof(float) + sizeof counts)};
    assert_non_null(out.bytes);
    assert_ok(gs_device_copy_read(copy, runs, 3, collect, &out));
    assert_int_equal(out.num_bytes, (LARGE_COUNT + SMALL_COUNT) * sizeof(float) + sizeof counts);
    assert_memory_equal(out.bytes, large, LARGE_COUNT * sizeof(float));
    assert_memory_equal(out.bytes + runs[0].bytes, counts, sizeof counts);
    assert_memory_equal(out.bytes + runs[0].bytes + sizeof counts, small, runs[2].bytes);
    device_memory_free(device, runs[0].data);
    device_memory_free(device, runs[2].data);
    gs_device_copy_destroy(copy);
    test_device_close(device);
    free(out.bytes);
    free(large);
    free(small);
}

static void what_was_written_is_read_by_work_that_follows(void **state) {
    (void)state;
    gs_device *device = test_device_open(1);
    gs_device_copy *copy;
    assert_ok(gs_device_copy_create(&copy, device));
    float *values = draw(LARGE_COUNT, 3), *found = malloc(LARGE_COUNT * sizeof *found);
    assert_non_null(found);
    gs_copy_run run = {.data = device_memory_alloc(device, LARGE_COUNT * sizeof(float)),
                       .bytes = LARGE_COUNT * sizeof(float)};
    collected from = {.bytes = (char *)values};
    assert_ok(gs_device_copy_write(copy, &run, 1, hand_out, &from));
    gs_device_kernels(device)->scale(gs_device_stream(device), run.data, run.data, 2, LARGE_COUNT);
    device_memory_read(device, found, run.data, run.bytes);
    for (size_t i = 0; i < LARGE_COUNT; i += 997) assert_true(found[i] == 2 * values[i]);
    assert_true(found[LARGE_COUNT - 1] == 2 * values[LARGE_COUNT - 1]);
    device_memory_free(device, run.data);
    gs_device_copy_destroy(copy);
    test_device_close(device);
    free(values);
    free(found);
}

// Begun before the compute stream is given more, ended after: what it was given then is not waited for.
static void read_is_of_the_moment_it_began(void **state) {
    (void)state;
    gs_device *device = test_device_open(1);
    gs_device_copy *copy;
    assert_ok(gs_device_copy_create(&copy, device));
    const float before[4] = {1, 2, 3, 4};
    float found[4];
    void *memory = device_memory_copy(device, before, sizeof before);
    void *other = device_memory_alloc(device, sizeof before);
    gs_copy_run run = {.data = memory, .bytes = sizeof before};
    gs_device_kernels(device)->scale(gs_device_stream(device), memory, memory, 10, 4);
    gs_device_copy_begin_read(copy, &run, 1);
    gs_device_kernels(device)->scale(gs_device_stream(device), other, memory, 10, 4);
    collected out = {.bytes = (char *)found};
    assert_ok(gs_device_copy_end_read(copy, collect, &out));
    for (int i = 0; i < 4; i++) assert_true(found[i] == 10 * before[i]);
    device_memory_free(device, memory);
    device_memory_free(device, other);
    gs_device_copy_destroy(copy);
    test_device_close(device);
}

// Only GPUs keep masters in halves.
static void halves_are_read_and_written_as_one(void **state) {
    (void)state;
    if (test_device_is_host()) skip();
    gs_device *device = test_device_open(1);
    gs_device_copy *copy;
    assert_ok(gs_device_copy_create(&copy, device));
    float *masters = draw(LARGE_COUNT, 4), *found = malloc(LARGE_COUNT * sizeof *found);
    assert_non_null(found);
    gs_copy_run run = {.value = device_memory_alloc(device, LARGE_COUNT * 2),
                       .remainder = device_memory_alloc(device, LARGE_COUNT * 2),
                       .bytes = LARGE_COUNT * sizeof(float)};
    collected from = {.bytes = (char *)masters}, out = {.bytes = (char *)found};
    assert_ok(gs_device_copy_write(copy, &run, 1, hand_out, &from));
    assert_ok(gs_device_copy_read(copy, &run, 1, collect, &out));
    assert_memory_equal(found, masters, LARGE_COUNT * sizeof(float));
    device_memory_free(device, run.value);
    device_memory_free(device, run.remainder);
    gs_device_copy_destroy(copy);
    test_device_close(device);
    free(masters);
    free(found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_come_back_in_order_and_whole),
        cmocka_unit_test(what_was_written_is_read_by_work_that_follows),
        cmocka_unit_test(read_is_of_the_moment_it_began),
        cmocka_unit_test(halves_are_read_and_written_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
