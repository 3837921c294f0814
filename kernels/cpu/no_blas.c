// Products without BLAS: for builds that reduce gradients and leave products to others. One order
// of additions, along k, whatever the shape.
#include <stdio.h>

#include "kernels/cpu/blas.h"
#include "kernels/host_blas.h"

static float element(const float *matrix, bool transposed, size_t row, size_t col, size_t stride) {
    return transposed ? matrix[col * stride + row] : matrix[row * stride + col];
}

void gs_blas_multiply(float *c, const float *a, const float *b, const gs_matmul *shape) {
    for (size_t i = 0; i < shape->m; i++) {
        float *row = c + i * shape->stride_c;
        for (size_t j = 0; j < shape->n; j++) row[j] = shape->beta == 0 ? 0 : shape->beta * row[j];
        for (size_t p = 0; p < shape->k; p++) {
            float factor = shape->alpha * element(a, shape->transpose_a, i, p, shape->stride_a);
            for (size_t j = 0; j < shape->n; j++)
                row[j] += factor * element(b, shape->transpose_b, p, j, shape->stride_b);
        }
    }
}

void gs_blas_describe(char *text, size_t text_bytes) {
    snprintf(text, text_bytes, "none/plain");
}

void gs_blas_describe_limit(char *text, size_t text_bytes) {
    if (text_bytes) text[0] = '\0';
}

void gs_host_blas_own(void) {}
