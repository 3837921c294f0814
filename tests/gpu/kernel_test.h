// Inside of the kernel tests: what kernel_case.c fills, kernel_check.c runs and main.c counts.
#ifndef TESTS_GPU_KERNEL_TEST_H
#define TESTS_GPU_KERNEL_TEST_H

#include "core/random.h"
#include "tests/gpu/kernel_case.h"
#include "tests/support/sample.h"

typedef enum kernel_role {
    KERNEL_INPUT = 0,
    KERNEL_OUTPUT,
    KERNEL_INOUT,
    KERNEL_SCRATCH,
    KERNEL_TABLE
} kernel_role;

typedef struct kernel_tensor {
    const char *name;
    kernel_role role;
    gs_dtype dtype;
    size_t count, bytes, offset_bytes;  // offset: from the boundary behind the guard
    bool pinned;
    size_t row;  // compared in parts: kernel_split
    int num_parts;
    kernel_bound bound;
    unsigned char *initial;  // owned, (bytes)
    unsigned char *want;     // owned, (bytes): what the CPU made of it
} kernel_tensor;

struct kernel_test {
    gs_device *cpu, *cuda;
    kernel_run host;  // for kernel_cpu
    const char *case_name;
    gs_dtype half_dtype;
    uint64_t seed, stream, drawn;
    bool failed;  // this case has; it runs no more checks
    bool quiet;   // failures are kept, not printed
    char failure[512];
    bool is_aligned;
    int num_checks, num_cases;
    sample sample;  // of the checks of a case; the first one always runs
    int num_left_out;
    char shape[256];
    int num_tensors;
    kernel_tensor tensors[KERNEL_MAX_TENSORS];
    void *memory[8];
    int num_memory;
};

// Prints what failed, with case, shape and seed. The first one of a case wins.
void kernel_fail(kernel_test *test, const char *format, ...) __attribute__((format(printf, 2, 3)));
void kernel_forget_tensors(kernel_test *test);
// How many of the misdeeds that the checks are there for went unseen.
int kernel_self_test(kernel_test *test);

#endif
