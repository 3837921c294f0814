// Matrix products of a CUDA device: cuBLASLt where it takes the product, own tiles where it does not.
// C and C++; internal to kernels/cuda/.
//
// matmul.c holds the launchers, matmul_plan.c what cuBLASLt is told once for each shape, cublaslt.c the
// library's functions, matmul_tile.cu the product and the epilogues in own kernels.
#ifndef KERNELS_CUDA_MATMUL_H
#define KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/types.h"
#include "kernels/half.h"

// One call of a launcher: types and strides are resolved. C (m×n) = epilogue(alpha · op(A) · op(B)) + beta · C,
// and with a bias + residual, which is not C
typedef struct gs_cuda_product {
    void *c;
    const void *a, *b, *bias, *residual;
    void *aux;
    float *bias_grad;  // NULL, or (m) of fp32 = Σ over k of op(A), which is overwritten; without an epilogue
    gs_dtype in, out;  // of A and B; of C, bias, residual and aux
    gs_epilogue epilogue;
    gs_matmul shape;
} gs_cuda_product;

#ifdef __cplusplus
extern "C" {
#endif

// What is known of cuBLASLt on one stream, whose scratch is its workspace. The thread of the device.
typedef struct gs_cuda_products gs_cuda_products;

// Also without the library: then nothing is ever taken, and a warning says so.
//   stream  borrows until close
GS_NODISCARD gs_status gs_cuda_products_open(gs_cuda_products **out, gs_cuda_stream *stream,
                                             bool same_bits);
//   idle  the device has nothing left to do; else the library's handle stays, since giving it back waits
void gs_cuda_products_close(gs_cuda_products *products, bool idle);
// "cublaslt=13.0.2 choice=timed": what the bits of a product depend on beside its shape.
void gs_cuda_products_describe(const gs_cuda_products *products, char *text, size_t text_bytes);

typedef enum gs_cuda_taken {
    GS_CUDA_REFUSED = 0,  // nothing was enqueued
    GS_CUDA_TAKEN,        // enqueued, or the stream has failed
} gs_cuda_taken;
gs_cuda_taken gs_cuda_products_run(gs_cuda_products *products, const gs_cuda_product *product);

// Where the gradients of m biases can wait to be added to others; NULL: there is no room for so many.
float *gs_cuda_products_bias_room(const gs_cuda_products *products, size_t m);

// matmul_tile.cu: any shape, any alignment, in fp32.
void gs_cuda_tile_product(gs_stream *stream, const gs_cuda_product *product);
// The epilogue alone, of a product that lies in `aux` (GELU) or in `c`.
void gs_cuda_tile_epilogue(gs_stream *stream, const gs_cuda_product *product);

#ifdef __cplusplus
}
#endif

#endif
