// A step allocates nothing, copies no gradient and waits for a device once: counted where the linker lets us
// stand in between, and on the software CUDA machine.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "gradsync/sharded/shard_reduce.h"
#include "gradsync/sharded/shards.h"
#include "tests/support/asserts.h"
#include "tests/support/device_memory.h"
#include "tests/support/small_reducer.h"
#include "tests/support/soon.h"
#ifdef GRADSYNC_CUDA_SIM
#include "machine.h"
#endif

static size_t num_calls;
static size_t mapped_bytes;

// Shared libraries of the simulator call them as well.
#pragma GCC visibility push(default)
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) {
    num_calls++;
    return __real_malloc(bytes);
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    num_calls++;
    return __real_calloc(count, bytes);
}

void *__real_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes) {
    num_calls++;
    return __real_realloc(memory, bytes);
}

void *__real_aligned_alloc(size_t boundary, size_t bytes);
void *__wrap_aligned_alloc(size_t boundary, size_t bytes);
void *__wrap_aligned_alloc(size_t boundary, size_t bytes) {
    num_calls++;
    return __real_aligned_alloc(boundary, bytes);
}

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory) {
    num_calls += memory != NULL;
    __real_free(memory);
}

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    num_calls++;
    mapped_bytes += bytes;
    return __real_mmap(at, bytes, protection, flags, fd, offset);
}

#pragma GCC visibility pop

// Waits for a device's compute stream.
static const gs_stream *watched;
static size_t num_waits;

gs_status __real_gs_stream_wait(gs_stream *stream, gs_deadline deadline);
gs_status __wrap_gs_stream_wait(gs_stream *stream, gs_deadline deadline);
gs_status __wrap_gs_stream_wait(gs_stream *stream, gs_deadline deadline) {
    num_waits += stream == watched;
    return __real_gs_stream_wait(stream, deadline);
}

// Of one parameter nobody says anything but that it is unused.
static void run_steps(small_reducer *small, int num_steps, int num_passes) {
    for (int64_t step = 0; step < num_steps; step++) {
        gs_reduce_result result;
        assert_ok(gs_reducer_begin(small->reducer, step));
        for (int i = 0; i < num_passes; i++) {
            gs_reducer_pass pass;
            assert_ok(gs_reducer_begin_pass(small->reducer, &pass, 1));
            for (size_t p = 1; p < SMALL_PARAMS; p++)
                assert_ok(gs_reducer_mark_ready(small->reducer, p));
            assert_ok(gs_reducer_mark_unused(small->reducer, 0));
            assert_ok(gs_reducer_end_pass(small->reducer));
        }
        assert_ok(gs_reducer_finish(small->reducer, &result, soon()));
    }
}

// Counts what a device is asked for beside work: memory, and waits of the runtime's own. 0 where there is nothing
// that counts.
static uint64_t count_device_calls(void) {
#ifdef GRADSYNC_CUDA_SIM
    gs_sim_counters counted = gs_sim_count();
    return counted.mallocs + counted.frees + counted.pageable_copies + counted.host_waits;
#else
    return 0;
#endif
}

// Opens ranks' reducers in all modes and counts what steps call: nothing for memory, and for a device one wait,
// in which the result comes. A sample mean has one more: what it divides by comes first.
static void step_allocates_nothing_in_any_mode(void **state) {
    (void)state;
    enum { NUM_STEPS = 3 };
    gs_separate_grad separate[SMALL_PARAMS];
    const gs_reducer_options modes[] = {
        {0},
        {.op = GS_SUM, .passes_per_shard = 3},
        {.op = GS_SAMPLE_MEAN},
        {.static_graph = true},
        {.separate = separate},
        {.wire_dtype = GS_BF16},
        {.shards = {.num_shards = 7, .exact = true}},
        {.shards = {.num_shards = 7, .exact = true}, .static_graph = true, .separate = separate},
    };
    for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        small_reducer small;
        small_reducer_prepare(&small);
        small.device = test_device_open(1);
        double *tensors = device_memory_alloc(small.device, 64 * SMALL_PARAMS);
        for (size_t p = 0; p < SMALL_PARAMS; p++)
            separate[p] = (gs_separate_grad){tensors + 8 * p, p % 2 ? GS_FP64 : GS_BF16};
        assert_ok(small_reducer_open(&small, &modes[m], NULL));
        int shards = modes[m].shards.num_shards ? modes[m].shards.num_shards : 1;
        int passes = shards * (modes[m].passes_per_shard ? modes[m].passes_per_shard : 1);
        watched = gs_device_stream(small.device);
        num_calls = num_waits = 0;
        uint64_t device_calls = count_device_calls();
        run_steps(&small, NUM_STEPS, passes);
        if (num_calls) fail_msg("mode %zu: %zu calls for memory in three steps", m, num_calls);
        assert_int_equal(count_device_calls(), device_calls);
        if (!test_device_is_host())
            assert_int_equal(num_waits, (modes[m].op == GS_SAMPLE_MEAN ? 2 : 1) * NUM_STEPS);
        device_memory_free(small.device, tensors);
        small_reducer_close(&small);
    }
}

// Two buckets in one window, and results that are moved out of it and added up.
static void windows_allocate_nothing_in_a_step(void **state) {
    (void)state;
    small_reducer whole, small;
    gs_shards *shards;
    if (!test_device_is_host()) skip();
    small_reducer_prepare(&whole);
    assert_ok(small_reducer_open(&whole, &(gs_reducer_options){0}, NULL));
    assert_ok(gs_shards_create(&shards, &(gs_shards_options){.plan = &whole.plan,
                                                             .params = whole.params,
                                                             .num_params = SMALL_PARAMS,
                                                             .world_size = 1}));
    const gs_hook_choice choice = {.hook = gs_shard_reduce_hook(), .user = shards};
    const gs_reducer_options options = {
        .hooks = &choice, .num_hooks = 1, .tally = GS_TALLY_APART, .passes_per_shard = 2,
                                        .windows = {.num_windows = 1}};
    small_reducer_prepare(&small);
    assert_ok(small_reducer_open(&small, &options, NULL));
    num_calls = 0;
    for (int64_t step = 0; step < 3; step++) {
        const double values[SMALL_PARAMS] = {1, (double)NAN, 3, 4};
        gs_reducer_pass pass;
        gs_reduce_result result;
        assert_ok(gs_reducer_begin(small.reducer, step));
        for (int i = 0; i < 2; i++) {
            assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
            for (size_t p = SMALL_PARAMS; p-- > 0;) {
                if (isnan(values[p])) continue;
                assert_ok(gs_reducer_open_grad(small.reducer, p));
                small_reducer_write(&small, &pass, p, values[p]);
                assert_ok(gs_reducer_mark_ready(small.reducer, p));
            }
            assert_ok(gs_reducer_end_pass(small.reducer));
        }
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
    }
    assert_int_equal(num_calls, 0);
    small_reducer_close(&small);
    small_reducer_close(&whole);
    gs_shards_destroy(shards);
}

static void counter_sees_what_creation_allocates(void **state) {
    (void)state;
    small_reducer small;
    num_calls = 0;
    small_reducer_prepare(&small);
    assert_ok(small_reducer_open(&small, &(gs_reducer_options){0}, NULL));
    assert_true(num_calls > 10);
    small_reducer_close(&small);
}

static void gradients_lie_in_one_mapping_of_the_stated_size(void **state) {
    (void)state;
    small_reducer small;
    if (!test_device_is_host()) skip();  // a GPU's memory is no mapping of ours
    mapped_bytes = 0;
    small_reducer_prepare(&small);
    assert_ok(small_reducer_open(&small, &(gs_reducer_options){0}, NULL));
    assert_int_equal(mapped_bytes, gs_arena_bytes(small.arena));
    const char *first = gs_arena_data(small.arena), *end = first + gs_arena_bytes(small.arena);
    for (size_t p = 0; p < SMALL_PARAMS; p++) {
        const char *grad = (const char *)gs_reducer_grads(small.reducer)[p];
        assert_true(grad >= first && grad + SMALL_COUNT * sizeof(float) <= end);
    }
    small_reducer_close(&small);
}

// A view is written by the model and read by the optimizer at one address, step after step.
static void views_are_never_copied(void **state) {
    (void)state;
    small_reducer small;
    float *views[SMALL_PARAMS];
    small_reducer_prepare(&small);
    assert_ok(small_reducer_open(&small, &(gs_reducer_options){.passes_per_shard = 2}, NULL));
    memcpy(views, gs_reducer_grads(small.reducer), sizeof views);
    for (int64_t step = 0; step < 3; step++) {
        gs_reduce_result result;
        assert_ok(gs_reducer_begin(small.reducer, step));
        for (int i = 0; i < 2; i++) {
            gs_reducer_pass pass;
            assert_ok(gs_reducer_begin_pass(small.reducer, &pass, 1));
            for (size_t p = 0; p < SMALL_PARAMS; p++) {
                assert_ptr_equal(pass.grads[p], views[p]);
                small_reducer_write(&small, &pass, p, 1);
                assert_ok(gs_reducer_mark_ready(small.reducer, p));
            }
            assert_ok(gs_reducer_end_pass(small.reducer));
        }
        assert_ok(gs_reducer_finish(small.reducer, &result, soon()));
        assert_memory_equal(views, gs_reducer_grads(small.reducer), sizeof views);
        const gs_reduce_stats *stats = gs_reducer_stats(small.reducer);
        for (size_t b = 0; b < stats->num_buckets; b++)
            assert_int_equal(stats->buckets[b].copy_in_ns + stats->buckets[b].copy_out_ns, 0);
    }
    small_reducer_close(&small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_allocates_nothing_in_any_mode),
        cmocka_unit_test(windows_allocate_nothing_in_a_step),
        cmocka_unit_test(counter_sees_what_creation_allocates),
        cmocka_unit_test(gradients_lie_in_one_mapping_of_the_stated_size),
        cmocka_unit_test(views_are_never_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
