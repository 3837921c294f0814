// What the kernel tests share: devices, reproducible data, comparisons with a stated tolerance.
#ifndef TESTS_UNIT_KERNELS_KERNEL_TEST_H
#define TESTS_UNIT_KERNELS_KERNEL_TEST_H

// cmocka wants these before it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/device.h"

// Asserts that it opens.
gs_device *open_cpu_device(const char *isa, int num_threads);
// cmocka group fixtures: *state is a gs_device of the best instruction set and two threads.
int open_test_device(void **state);
int close_test_device(void **state);

// Zeroed, or uniform in [low, high); the caller frees. The same seed gives the same numbers.
float *make_zeros(size_t count);
float *make_uniform(size_t count, uint64_t seed, float low, float high);
double *widen(const float *values, size_t count);

// |got - want| <= absolute + relative·|want| for every element; says which one is not.
void assert_close(const float *got, const double *want, size_t count, double absolute,
                  double relative);
void assert_same_bits(const void *got, const void *want, size_t bytes);

// got[i] = ∂f/∂x[i] by central differences in fp64, within `tolerance` of the largest of them (or
// of 1 when that is smaller). f reads x through ctx.
void assert_gradient(const float *got, double *x, size_t count, double (*f)(void *ctx), void *ctx,
                     double tolerance);

void assert_stream_ok(gs_device *device);
// The stream failed with INVALID_ARGUMENT and a message that contains `text`; it is clean again.
void assert_stream_failed(gs_device *device, const char *text);

#endif
