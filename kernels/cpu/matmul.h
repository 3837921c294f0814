// Matrix products through BLAS: the launcher, and the plain product that attention builds on.
#ifndef KERNELS_CPU_MATMUL_H
#define KERNELS_CPU_MATMUL_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"

void gs_cpu_matmul(gs_stream *stream, float *c, const float *a, const float *b,
                   const gs_matmul *shape);

// One product in the calling thread. Sizes and strides must fit an int, strides must be given.
void gs_cpu_multiply(float *c, const float *a, const float *b, const gs_matmul *shape);

#endif
