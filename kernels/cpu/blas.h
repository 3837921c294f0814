// The BLAS of the process, behind one door: OpenBLAS (blas.c), or loops of our own in a build
// without it (no_blas.c, -DGRADSYNC_BLAS=OFF).
#ifndef KERNELS_CPU_BLAS_H
#define KERNELS_CPU_BLAS_H

#include <stddef.h>

#include "kernels/kernels.h"

// C = alpha · op(A) · op(B) + beta · C in the calling thread, with what threads BLAS has of its
// own. Nothing is zero, strides are given, all fits an int.
void gs_blas_multiply(float *c, const float *a, const float *b, const gs_matmul *shape);

// "0.3.21/SkylakeX": the version and the kernels in use; "/4-threads" behind it when BLAS has
// several.
void gs_blas_describe(char *text, size_t text_bytes);
// "openblas held below AVX-512 by OPENBLAS_CORETYPE=Haswell"; "" when nothing holds it.
void gs_blas_describe_limit(char *text, size_t text_bytes);

#endif
