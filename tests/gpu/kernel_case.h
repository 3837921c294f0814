// A kernel on a device against its CPU twin: the same random tensors, launched on "cpu" and
// "cuda:0".
//
// A case draws a shape, names its tensors in the order in which the launch will find them, and
// calls kernel_check. What the check does with them: every tensor lies between guard zones of NaN,
// at a random offset from the 64-byte boundary; outputs are poisoned; the launch runs on the CPU
// once and on the device three times: twice directly, with two poisons, and once from a graph. Then
// on the device
//   - guards and inputs are what they were,
//   - the three runs gave the same bits,
//   - outputs agree with the CPU's, to the bit or within the tensor's bound.
// kernel_check_fails: both streams fail with the text, and on the device every tensor is what it
// was.
//
// A family is one file kernels_<family>.c that defines `const kernel_family
// kernel_family_<family>`, and one word in CMakeLists.txt. Every slot needs a case: the program
// fails for those without.
//
//     static void launch_relu(const kernel_run *run) {
//         const size_t *count = run->shape;
//         run->kernels->relu(run->stream, run->at[0], run->at[1], *count);
//     }
//
//     static void test_relu(kernel_test *test) {
//         for (int round = 0; round < 30; round++) {
//             size_t count = kernel_count(test, 1 << 20);
//             kernel_begin(test, "count %zu", count);
//             kernel_output(test, "out", GS_FP32, count, KERNEL_SAME_BITS);
//             kernel_input(test, "in", GS_FP32, count, KERNEL_SPECIAL);
//             kernel_check(test, launch_relu, &count);
//         }
//     }
//
//     static const kernel_case cases[] = {KERNEL_CASE(relu)};
//     const kernel_family kernel_family_activation = {cases, sizeof cases / sizeof *cases};
#ifndef TESTS_GPU_KERNEL_CASE_H
#define TESTS_GPU_KERNEL_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "kernels/half.h"

#define KERNEL_MAX_TENSORS 40

typedef struct kernel_test kernel_test;

// What a launch sees, on either device. It may be called several times, and between graph_begin and
// _end.
typedef struct kernel_run {
    const gs_kernels *kernels;
    const gs_half_kernels *half;  // in half cases: of the type that kernel_half_dtype says
    gs_stream *stream;
    void *at[KERNEL_MAX_TENSORS];  // tensors in the order in which they were named
    const void *shape;             // as given to kernel_check
} kernel_run;

typedef void (*kernel_launch)(const kernel_run *run);

// How far an output may be from the CPU's. norm: ‖got − want‖₂ ≤ norm·‖want‖₂. worst: for each
// element |got − want| ≤ worst·(|want| + rms(want)); 0: 32·norm. Infinities and NaNs must be in the
// same places. All zero: the same bits, but a NaN is a NaN.
typedef struct kernel_bound {
    double norm, worst;
    const char *why;  // where a difference comes from
} kernel_bound;

#define KERNEL_SAME_BITS ((kernel_bound){0})

typedef enum kernel_fill {
    KERNEL_ZEROS = 0,
    KERNEL_UNIT,      // uniform in [-2, 2)
    KERNEL_POSITIVE,  // uniform in [0.1, 2)
    KERNEL_WIDE,      // either sign, magnitudes from 2^-20 to 2^10
    KERNEL_SPECIAL  // all magnitudes of the type, with zeros of both signs, subnormals, infinities,
                    // NaN
} kernel_fill;

// ---- shapes

uint64_t kernel_random(kernel_test *test, uint64_t limit);  // in [0, limit); limit ≥ 1
float kernel_real(kernel_test *test, float low, float high);
// In [smallest, largest]: often tiny, odd, or beside a multiple of 32; spread over all magnitudes.
size_t kernel_dim(kernel_test *test, size_t smallest, size_t largest);
// The same, for what makes a launch large: the simulator is slow, there `largest` is divided by 32.
size_t kernel_count(kernel_test *test, size_t largest);
size_t kernel_count_from(kernel_test *test, size_t smallest, size_t largest);
bool kernel_in_simulator(
    void);  // or elsewhere where every thread is slow: GRADSYNC_TEST_SMALL is set
gs_dtype kernel_half_dtype(const kernel_test *test);  // of a half case: GS_BF16, then GS_FP16

// ---- tensors of one check

// Forgets the tensors of the check before. The text says the shape and is printed when the check
// fails.
void kernel_begin(kernel_test *test, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Tensors of this check begin on 64-byte boundaries.
void kernel_align(kernel_test *test);

// Each returns the tensor's index in kernel_run.at. `name` as in kernels.h.
int kernel_input(kernel_test *test, const char *name, gs_dtype dtype, size_t count,
                 kernel_fill fill);
int kernel_tokens(kernel_test *test, const char *name, size_t count,
                  size_t limit);  // [0, limit); few hot
int kernel_output(kernel_test *test, const char *name, gs_dtype dtype, size_t count,
                  kernel_bound bound);
// Its rows, of `row` numbers, have `num_parts` parts of equal length side by side; each part is
// held to twice the bound's norm by itself as well, so that a small one is not lost beside a large
// one.
void kernel_split(kernel_test *test, int tensor, size_t row, int num_parts);
// Read and written: filled as an input, compared as an output.
int kernel_inout(kernel_test *test, const char *name, gs_dtype dtype, size_t count,
                 kernel_fill fill, kernel_bound bound);
// A single number that a kernel writes: in device memory or pinned, by chance.
int kernel_number(kernel_test *test, const char *name, gs_dtype dtype, kernel_bound bound);
int kernel_scratch(kernel_test *test, size_t bytes);
// Pinned memory that the launch fills, for tables of items. Not compared.
int kernel_table(kernel_test *test, size_t bytes);

// The host's image of a tensor, as it is before the launch: to set what must be special or
// consistent.
void *kernel_data(kernel_test *test, int tensor);
// The CPU's kernels, for kernel_data that follows from other kernel_data (`at` is not filled).
const kernel_run *kernel_cpu(kernel_test *test);
// Host memory until the next kernel_begin, zeroed.
void *kernel_memory(kernel_test *test, size_t bytes);
// Text in such memory.
const char *kernel_text(kernel_test *test, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// ---- the check

void kernel_check(kernel_test *test, kernel_launch launch, const void *shape);
void kernel_check_fails(kernel_test *test, kernel_launch launch, const void *shape,
                        const char *text);
// The device alone fails with the text: what the CPU can and the device cannot.
void kernel_check_device_fails(kernel_test *test, kernel_launch launch, const void *shape,
                               const char *text);

// ---- registration

typedef struct kernel_case {
    const char *name;
    void (*run)(kernel_test *test);
    size_t slot;  // offset in gs_kernels or gs_half_kernels
    bool half;    // run for bf16 and for fp16
} kernel_case;

#define KERNEL_CASE_NAMED(slot, name, body)                                                        \
    { name, body, offsetof(gs_kernels, slot), false }
#define KERNEL_CASE(slot) KERNEL_CASE_NAMED(slot, #slot, test_##slot)
#define KERNEL_HALF_CASE_NAMED(slot, name, body)                                                   \
    { name, body, offsetof(gs_half_kernels, slot), true }
#define KERNEL_HALF_CASE(slot) KERNEL_HALF_CASE_NAMED(slot, "half_" #slot, test_half_##slot)

typedef struct kernel_family {
    const kernel_case *cases;
    size_t num_cases;
} kernel_family;

#endif
