// Matrix products through CBLAS: the launcher, and the plain product that attention builds on.
#ifndef KERNELS_CPU_MATMUL_H
#define KERNELS_CPU_MATMUL_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/kernels.h"

void gs_cpu_matmul(gs_stream *stream, float *c, const float *a, const float *b,
                   const gs_matmul *shape);

// One product in the calling thread. Sizes and strides must fit an int, strides must be given.
void gs_cpu_multiply(float *c, const float *a, const float *b, const gs_matmul *shape);

// Once for the process, before the first product: one BLAS thread, and kernels that fit the
// machine. Warns when the environment asks for lesser ones.
void gs_cpu_prepare_blas(void);

// "0.3.21/SkylakeX": the version and the kernels in use.
void gs_cpu_describe_blas(char *text, size_t text_bytes);
// "openblas held below AVX-512 by OPENBLAS_CORETYPE=Haswell"; "" when nothing holds it.
void gs_cpu_describe_limit(char *text, size_t text_bytes);

#endif
