// Runs the families of kernel cases: all, or the families and cases named on the command line.
// --slots: whether every slot of the tables has a case. --self-test: whether the checks see wrong
// kernels.
//
// Exit code 77, which CTest knows as skipped, where there is no CUDA device (1 where one is demanded,
// tests/support/test_device.h). GRADSYNC_TEST_SEED
// draws other shapes and numbers.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "tests/gpu/kernel_case.h"
#include "tests/gpu/kernel_test.h"
#include "tests/support/device_library.h"
#include "tests/support/test_device.h"

#define SKIPPED 77

// GPU_FAMILIES is X(activation) X(attention) …, from CMakeLists.txt.
#define X(family) extern const kernel_family kernel_family_##family;
GPU_FAMILIES
#undef X

typedef struct named_family {
    const char *name;
    const kernel_family *family;
} named_family;

static const named_family families[] = {
#define X(family) {#family, &kernel_family_##family},
    GPU_FAMILIES
#undef X
};
#define NUM_FAMILIES (sizeof families / sizeof *families)

static bool slot_is_empty(const void *table, size_t offset) {
    void *slot;
    memcpy(&slot, (const char *)table + offset, sizeof slot);
    return !slot;
}

// False when it failed.
static bool run_case(kernel_test *test, const kernel_case *chosen, gs_dtype dtype) {
    char name[96];
    snprintf(name, sizeof name, "%s%s%s", chosen->name, dtype ? " " : "",
             dtype ? gs_dtype_name(dtype) : "");
    test->case_name = name;
    test->num_cases++;
    test->half_dtype = dtype;
    test->failed = false;
    test->num_checks = test->num_left_out = 0;
    test->drawn = 0;
    test->stream = gs_random_stream(chosen->slot, chosen->half, (uint64_t)dtype);
    snprintf(test->shape, sizeof test->shape, "before its first shape");
    gs_device *const devices[] = {test->cpu, test->cuda};
    for (int i = 0; i < 2; i++) {
        const void *table = dtype ? (const void *)gs_device_half_kernels(devices[i], dtype)
                                  : (const void *)gs_device_kernels(devices[i]);
        if (table && !slot_is_empty(table, chosen->slot)) continue;
        kernel_fail(test, "%s has no such kernel", gs_device_name(devices[i]));
        return false;
    }
    test->host = (kernel_run){.kernels = gs_device_kernels(test->cpu),
                              .half = dtype ? gs_device_half_kernels(test->cpu, dtype) : NULL,
                              .stream = gs_device_stream(test->cpu)};
    const int64_t begun_ns = gs_now_ns();
    chosen->run(test);
    const double seconds = (double)(gs_now_ns() - begun_ns) * 1e-9;
    if (!test->failed)
        printf("ok   %s (%d checks, %.1f s)\n", name, test->num_checks - test->num_left_out, seconds);
    fflush(stdout);
    kernel_forget_tensors(test);
    return !test->failed;
}

static int run_family(kernel_test *test, const kernel_family *family, const char *only) {
    int num_failed = 0;
    for (size_t i = 0; i < family->num_cases; i++) {
        const kernel_case *chosen = &family->cases[i];
        if (only && strcmp(only, chosen->name) != 0) continue;
        if (chosen->half) {
            num_failed += !run_case(test, chosen, GS_BF16);
            num_failed += !run_case(test, chosen, GS_FP16);
        } else {
            num_failed += !run_case(test, chosen, GS_DTYPE_UNSET);
        }
    }
    return num_failed;
}

static bool has_case(size_t slot, bool half) {
    for (size_t i = 0; i < NUM_FAMILIES; i++) {
        const kernel_family *family = families[i].family;
        for (size_t k = 0; k < family->num_cases; k++) {
            if (family->cases[k].slot == slot && family->cases[k].half == half) return true;
        }
    }
    return false;
}

static int count_untested_slots(void) {
    int num_missing = 0;
    for (size_t slot = offsetof(gs_kernels, fill); slot < sizeof(gs_kernels);
         slot += sizeof(void *)) {
        if (has_case(slot, false)) continue;
        printf("FAIL slot %zu of gs_kernels has no case\n", slot / sizeof(void *));
        num_missing++;
    }
    for (size_t slot = offsetof(gs_half_kernels, matmul); slot < sizeof(gs_half_kernels);
         slot += sizeof(void *)) {
        if (has_case(slot, true)) continue;
        printf("FAIL slot %zu of gs_half_kernels has no case\n", slot / sizeof(void *));
        num_missing++;
    }
    return num_missing;
}

// `name`: a family, or a case of any.
static int run_named(kernel_test *test, const char *name) {
    const int num_run = test->num_cases;
    int num_failed = 0;
    for (size_t i = 0; i < NUM_FAMILIES; i++) {
        const bool whole = strcmp(name, families[i].name) == 0;
        num_failed += run_family(test, families[i].family, whole ? NULL : name);
    }
    if (test->num_cases == num_run) {
        printf("FAIL there is no family or case '%s'\n", name);
        num_failed++;
    }
    return num_failed;
}

static bool open_devices(kernel_test *test) {
    gs_device_options options = {.num_threads = 1};
    gs_status status = gs_device_open(&test->cpu, "cpu", &options);
    if (!status.code) status = gs_device_open(&test->cuda, "cuda:0", &options);
    if (!status.code) return true;
    gs_test_miss_device(status.message);
    printf("skipped: %s\n", status.message);
    return false;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--slots") == 0) return count_untested_slots() > 0;
    static kernel_test test;
    const char *seed = getenv("GRADSYNC_TEST_SEED");
    test.seed = seed ? strtoull(seed, NULL, 10) : 1;
    int num_failed = 0;
    if (!open_devices(&test)) {
        gs_device_close(test.cuda);
        gs_device_close(test.cpu);
        return SKIPPED;
    }
    printf("seed %" PRIu64 "\n", test.seed);
    const bool is_self_test = argc == 2 && strcmp(argv[1], "--self-test") == 0;
    if (is_self_test) num_failed = kernel_self_test(&test);
    num_failed += !gs_test_has_libraries(test.cuda);
    if (!is_self_test) test.sample = sample_from_environment();
    sample_say(&test.sample, "each kernel's checks");
    for (int i = 1; i < argc && !is_self_test; i++) num_failed += run_named(&test, argv[i]);
    for (size_t i = 0; argc == 1 && i < NUM_FAMILIES; i++) {
        num_failed += run_family(&test, families[i].family, NULL);
    }
    gs_device_close(test.cuda);
    gs_device_close(test.cpu);
    if (num_failed) printf("%d cases failed\n", num_failed);
    return num_failed > 0;
}
