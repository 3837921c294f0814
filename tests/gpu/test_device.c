// The contract of a device (kernels/device.h) on "cuda:0": memory, who it is, how it is lost; in a SIM build on the software
// machine. Streams and graphs have files of their own. Without a device every test is skipped.
//
// What ends the device for its process (a sticky error) or needs another environment runs in a child: this
// binary with the name of a body.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/device.h"
#include "kernels/half.h"
#include "tests/gpu/device_case.h"
#include "tests/gpu/stuck.h"
#include "tests/support/asserts.h"

#define CHILD_SECONDS 40

// ---- memory

static void memory_is_zeroed_and_aligned(void **state) {
    (void)state;
    gs_device *device = take_device();
    unsigned char *host = malloc(COUNT);
    memset(host, 0xff, COUNT);
    unsigned char *memory = take_memory(COUNT);
    assert_int_equal((uintptr_t)memory % 256, 0);
    assert_ok(gs_device_download(device, host, memory, COUNT));
    for (size_t i = 0; i < COUNT; i++) assert_int_equal(host[i], 0);
    assert_true(gs_device_is_device_memory(device, memory));
    assert_true(gs_device_is_device_memory(device, memory + COUNT - 1));
    assert_false(gs_device_is_device_memory(device, host));
    assert_false(gs_device_is_host(device));
    gs_device_free(device, memory);
    gs_device_free(device, NULL);
    free(host);
    void *nothing = take_memory(0);
    assert_non_null(nothing);
    gs_device_free(device, nothing);
}

static void impossible_allocation_says_what_is_free(void **state) {
    (void)state;
    gs_device *device = take_device();
    void *memory = NULL;
    assert_status(gs_device_alloc(device, &memory, (size_t)1 << 50), GS_RESOURCE_EXHAUSTED,
                  "device cuda:0: no memory for 1125899906842624 bytes");
    assert_null(memory);
    // It was no sticky error.
    gs_device_free(device, take_memory(64));
}

// More than two staging buffers, and not a multiple of one.
static void large_copies_come_back(void **state) {
    (void)state;
    gs_device *device = take_device();
    const size_t bytes = ((size_t)13 << 20) + 77;
    unsigned char *out = malloc(bytes), *back = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) out[i] = (unsigned char)(i * 2654435761u >> 13);
    unsigned char *memory = take_memory(bytes + 1);
    assert_ok(gs_device_upload(device, memory + 1, out, bytes));
    assert_ok(gs_device_download(device, back, memory + 1, bytes));
    assert_memory_equal(out, back, bytes);
    gs_device_free(device, memory);
    free(out);
    free(back);
}

static void copies_wait_for_the_compute_stream(void **state) {
    (void)state;
    gs_device *device = take_device();
    float *memory = take_memory(COUNT * sizeof *memory);
    for (int i = 1; i <= 20; i++) {
        gs_device_kernels(device)->fill(gs_device_stream(device), memory, (float)i, COUNT);
        assert_true(read_float(memory + COUNT - 1) == (float)i);
    }
    gs_device_free(device, memory);
}

static void pinned_memory_passes_both_ways(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device);
    float *pinned = NULL, *memory = take_memory(64 * sizeof *memory);
    assert_ok(gs_device_alloc_pinned(device, (void **)&pinned, 64 * sizeof *pinned));
    assert_int_equal((uintptr_t)pinned % 64, 0);
    assert_false(gs_device_is_device_memory(device, pinned));
    for (int i = 0; i < 64; i++) assert_true(pinned[i] == 0.0f);
    for (int i = 0; i < 64; i++) pinned[i] = (float)i;
    gs_device_kernels(device)->scale(stream, memory, pinned, 2.0f, 64);
    gs_device_kernels(device)->copy(stream, pinned, memory, 64 * sizeof *pinned);
    assert_ok(gs_stream_wait(stream, PATIENCE));
    for (int i = 0; i < 64; i++) assert_true(pinned[i] == 2.0f * (float)i);
    gs_device_free_pinned(device, pinned);
    gs_device_free_pinned(device, NULL);
    gs_device_free(device, memory);
}

// ---- sums

static void many_sums_are_the_single_ones_to_the_bit(void **state) {
    (void)state;
    enum { NUM = 5 };
    static const size_t counts[NUM] = {1, 16384, 16385, 0, 70001};
    gs_device *device = take_device();
    gs_stream *stream = gs_device_stream(device);
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_square_item *items = NULL;
    double *sums = NULL;
    float *host = malloc(70002 * sizeof *host), *memory[NUM];
    assert_ok(gs_device_alloc_pinned(device, (void **)&items, NUM * sizeof *items));
    assert_ok(gs_device_alloc_pinned(device, (void **)&sums, 2 * NUM * sizeof *sums));
    for (size_t i = 0; i < 70002; i++) host[i] = (float)((i * 2654435761u >> 7) % 2003) * 0.37f - 300.0f;
    for (int i = 0; i < NUM; i++) {
        // One element into the allocation: the single sum sees another alignment than the table's.
        memory[i] = take_memory((counts[i] + 1) * sizeof **memory);
        assert_ok(gs_device_upload(device, memory[i] + 1, host, counts[i] * sizeof *host));
        items[i] = (gs_square_item){memory[i] + 1, sums + i, counts[i]};
    }
    kernels->sum_squares_many(stream, items, NUM);
    float *aligned = take_memory(70002 * sizeof *aligned);
    for (int i = 0; i < NUM; i++) {
        kernels->copy(stream, aligned, memory[i] + 1, counts[i] * sizeof *aligned);
        kernels->sum_squares(stream, sums + NUM + i, aligned, counts[i]);
    }
    assert_ok(gs_stream_wait(stream, PATIENCE));
    assert_memory_equal(sums, sums + NUM, NUM * sizeof *sums);
    assert_true(sums[4] > 0.0);
    for (int i = 0; i < NUM; i++) gs_device_free(device, memory[i]);
    gs_device_free(device, aligned);
    gs_device_free_pinned(device, items);
    gs_device_free_pinned(device, sums);
    free(host);
}

// ---- who it is

static void facts_describe_the_device(void **state) {
    (void)state;
    gs_device *device = take_device();
    gs_device_facts facts;
    char why[200], text[300];
    assert_true(gs_cuda_device_count(why, sizeof why) >= 1);
    assert_string_equal(why, "");
    assert_ok(gs_cuda_device_facts(&facts, 0));
    assert_true(strlen(facts.name) > 0);
    assert_int_equal(strlen(facts.uuid), 40);
    assert_memory_equal(facts.uuid, "GPU-", 4);
    assert_true(facts.memory_bytes >= facts.free_bytes && facts.free_bytes > 0);
    assert_true(facts.capability_major >= 8);
    assert_true(facts.driver_version >= 12000 && facts.runtime_version >= 12000);
    gs_device_arithmetic(device, text, sizeof text);
    char sm[16];
    snprintf(sm, sizeof sm, "sm_%d%d", facts.capability_major, facts.capability_minor);
    assert_non_null(strstr(text, "cuda "));
    assert_non_null(strstr(text, sm));
    assert_string_equal(gs_device_name(device), "cuda:0");
    assert_int_equal(gs_device_half_kernels(device, GS_BF16)->dtype, GS_BF16);
    assert_int_equal(gs_device_half_kernels(device, GS_FP16)->dtype, GS_FP16);
    assert_null(gs_device_half_kernels(device, GS_FP32));
}

static void a_device_that_is_not_there_is_unavailable(void **state) {
    (void)state;
    (void)take_device();
    gs_device *none = NULL;
    gs_device_facts facts;
    assert_status(gs_device_open(&none, "cuda:99", NULL), GS_UNAVAILABLE,
                  "device cuda:99: this process sees");
    assert_null(none);
    assert_status(gs_cuda_device_facts(&facts, 99), GS_UNAVAILABLE, "cuda:99");
}

// ---- children

static bool is_lost(gs_status status) {
    if (status.code == GS_INTERNAL && strstr(status.message, "device cuda:0: cuda") &&
        strstr(status.message, "the device is lost to this process"))
        return true;
    fprintf(stderr, "%s: '%s'\n", gs_code_name(status.code), status.message);
    return false;
}

// The exit code says which call did not repeat the error.
static int lose_device(void) {
    gs_device *device = NULL;
    if (gs_device_open(&device, "cuda:0", NULL).code) return 1;
    gs_stream *stream = gs_device_stream(device), *other = NULL;
    if (fault_begin(device).code) return 2;
    if (!is_lost(gs_stream_wait(stream, PATIENCE))) return 3;
    void *memory = NULL;
    char byte = 0;
    if (!is_lost(gs_device_alloc(device, &memory, 64))) return 4;
    if (!is_lost(gs_device_download(device, &byte, &byte, 1))) return 5;
    if (!is_lost(gs_stream_create(&other, device, GS_STREAM_NORMAL))) return 6;
    gs_device_kernels(device)->fill(stream, NULL, 1.0f, 100);
    if (!is_lost(gs_stream_wait(stream, PATIENCE))) return 7;
    gs_device_close(device);
    return 0;
}

static uint64_t free_bytes(void) {
    gs_device_facts facts;
    return gs_cuda_device_facts(&facts, 0).code ? 0 : facts.free_bytes;
}

// Eight buffers, of which each would be waited for, behind work that does not end; then one more when it has
// ended. run_child's alarm is the judge of the first.
static int free_behind_stuck_work(void) {
    enum { NUM = 8 };
    const size_t bytes = (size_t)64 << 20;
    gs_device *device = NULL;
    gs_stream *stream = NULL;
    void *memory[NUM + 1];
    atomic_bool released = false;
    if (gs_device_open(&device, "cuda:0", NULL).code) return 1;
    if (gs_stream_create(&stream, device, GS_STREAM_NORMAL).code) return 2;
    for (int i = 0; i < NUM; i++)
        if (gs_device_alloc(device, &memory[i], 100).code) return 3;
    if (gs_device_alloc(device, &memory[NUM], bytes).code) return 4;
    if (stuck_begin(stream, &released).code) return 5;
    for (int i = 0; i < NUM; i++) gs_device_free(device, memory[i]);
    atomic_store(&released, true);
    if (gs_stream_wait(stream, PATIENCE).code) return 6;
    const uint64_t before = free_bytes();
    gs_device_free(device, memory[NUM]);
    if (free_bytes() < before + bytes) return 7;
    gs_stream_destroy(stream);
    gs_device_close(device);
    return 0;
}

// What needs more than 48 KiB of shared memory on one device, while the thread's current device is another.
static int attend_on_the_second(void) {
    const gs_attention shape = {1, 33, 1, 128};
    gs_device *first = NULL, *second = NULL;
    void *qkv, *out, *logsumexp;
    if (gs_device_open(&second, "cuda:1", NULL).code) return 77;
    if (gs_device_alloc(second, &qkv, 33 * 384 * sizeof(float)).code) return 1;
    if (gs_device_alloc(second, &out, 33 * 128 * sizeof(float)).code) return 2;
    if (gs_device_alloc(second, &logsumexp, 33 * sizeof(float)).code) return 3;
    if (gs_device_open(&first, "cuda:0", NULL).code) return 4;
    gs_stream *stream = gs_device_stream(second);
    gs_device_kernels(second)->attention(stream, out, logsumexp, qkv, &shape);
    gs_status status = gs_stream_wait(stream, PATIENCE);
    if (status.code) fprintf(stderr, "%s\n", status.message);
    gs_device_free(second, qkv);
    gs_device_free(second, out);
    gs_device_free(second, logsumexp);
    gs_device_close(second);
    gs_device_close(first);
    return status.code ? 5 : 0;
}

static int find_nothing(const char *text) {
    char why[200];
    int count = gs_cuda_device_count(why, sizeof why);
    gs_device *device = NULL;
    gs_status status = gs_device_open(&device, "cuda:0", NULL);
    fprintf(stderr, "count %d, why '%s', open '%s'\n", count, why, status.message);
    return count == 0 && strstr(why, text) && status.code == GS_UNAVAILABLE &&
                   strstr(status.message, text)
               ? 0
               : 1;
}

static int run_child(const char *body, const char *setting) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (setting) putenv((char *)(uintptr_t)setting);
        alarm(CHILD_SECONDS);
        execl("/proc/self/exe", "test_device", body, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void a_kernel_that_crashes_loses_the_device_for_the_process(void **state) {
    (void)state;
    (void)take_device();
    assert_int_equal(run_child("lose_device", NULL), 0);
}

static void teardown_behind_stuck_work_waits_once(void **state) {
    (void)state;
    (void)take_device();
    assert_int_equal(run_child("free_behind_stuck_work", NULL), 0);
}

static void kernels_run_on_their_streams_device(void **state) {
    (void)state;
    (void)take_device();
    const int code = run_child("attend_on_the_second", "CUDA_SIM_DEVICES=2");
    if (code == 77) skip();
    assert_int_equal(code, 0);
}

static void a_hidden_device_is_said_to_be_hidden(void **state) {
    (void)state;
    (void)take_device();
    assert_int_equal(run_child("find_hidden", "CUDA_VISIBLE_DEVICES=-1"), 0);
}

#ifdef GRADSYNC_CUDA_SIM
static void a_machine_without_a_driver_is_said_to_be_one(void **state) {
    (void)state;
    assert_int_equal(run_child("find_no_driver", "CUDA_SIM_DRIVER=none"), 0);
}
#endif

int main(int argc, char **argv) {
    // What libraries hold of a lost device, the end of the process releases.
    if (argc == 2 && strcmp(argv[1], "lose_device") == 0) _exit(lose_device());
    if (argc == 2 && strcmp(argv[1], "free_behind_stuck_work") == 0) return free_behind_stuck_work();
    if (argc == 2 && strcmp(argv[1], "attend_on_the_second") == 0) return attend_on_the_second();
    if (argc == 2 && strcmp(argv[1], "find_hidden") == 0)
        return find_nothing("no CUDA device in CUDA_VISIBLE_DEVICES=-1");
    if (argc == 2 && strcmp(argv[1], "find_no_driver") == 0) return find_nothing("no NVIDIA driver");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(impossible_allocation_says_what_is_free),
        cmocka_unit_test(large_copies_come_back),
        cmocka_unit_test(copies_wait_for_the_compute_stream),
        cmocka_unit_test(pinned_memory_passes_both_ways),
        cmocka_unit_test(many_sums_are_the_single_ones_to_the_bit),
        cmocka_unit_test(facts_describe_the_device),
        cmocka_unit_test(a_device_that_is_not_there_is_unavailable),
        cmocka_unit_test(a_kernel_that_crashes_loses_the_device_for_the_process),
        cmocka_unit_test(teardown_behind_stuck_work_waits_once),
        cmocka_unit_test(kernels_run_on_their_streams_device),
        cmocka_unit_test(a_hidden_device_is_said_to_be_hidden),
#ifdef GRADSYNC_CUDA_SIM
        cmocka_unit_test(a_machine_without_a_driver_is_said_to_be_one),
#endif
    };
    return cmocka_run_group_tests(tests, open_first, close_first);
}
