// The launchers of matrix products. A product goes, in this order, to cuBLASLt whole; to cuBLASLt without
// its epilogue, which an own kernel adds (one more rounding to 16 bits in between); to own tiles.
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/table.h"

static void resolve_strides(gs_matmul *shape) {
    if (!shape->stride_a) shape->stride_a = shape->transpose_a ? shape->m : shape->k;
    if (!shape->stride_b) shape->stride_b = shape->transpose_b ? shape->k : shape->n;
    if (!shape->stride_c) shape->stride_c = shape->n;
}

static bool offer_library(gs_cuda_products *products, gs_stream *stream,
                          const gs_cuda_product *product) {
    // Streams beside the compute stream have no workspace that is theirs alone, and A · B is not read
    // where k is 0.
    if (!products || product->shape.k == 0) return false;
    if (gs_cuda_products_run(products, product) == GS_CUDA_TAKEN) return true;
    if (product->epilogue == GS_EPILOGUE_NONE) return false;
    gs_cuda_product plain = *product;
    plain.epilogue = GS_EPILOGUE_NONE;
    plain.residual = NULL;
    if (product->epilogue == GS_EPILOGUE_BIAS_GELU) plain.c = product->aux;
    if (gs_cuda_products_run(products, &plain) != GS_CUDA_TAKEN) return false;
    gs_cuda_tile_epilogue(stream, product);
    return true;
}

static void run_product(gs_stream *stream, gs_cuda_product *product) {
    resolve_strides(&product->shape);
    if (product->shape.m == 0 || product->shape.n == 0) return;
    if (offer_library(gs_cuda_stream_of(stream)->products, stream, product)) return;
    gs_cuda_tile_product(stream, product);
}

void gs_cuda_matmul(gs_stream *stream, float *c, const float *a, const float *b,
                    const gs_matmul *shape) {
    gs_cuda_product product = {
        .c = c, .a = a, .b = b, .in = GS_FP32, .out = GS_FP32, .shape = *shape};
    run_product(stream, &product);
}

static void run_half(gs_stream *stream, gs_dtype dtype, gs_half *c, const gs_half *a,
                     const gs_half *b, const gs_half_matmul *half) {
    gs_cuda_product product = {.c = c,
                               .a = a,
                               .b = b,
                               .bias = half->bias,
                               .residual = half->residual,
                               .aux = half->aux,
                               .in = dtype,
                               .out = dtype,
                               .epilogue = half->epilogue,
                               .shape = half->shape};
    run_product(stream, &product);
}

static void run_grad(gs_stream *stream, gs_dtype dtype, float *c, const gs_half *a,
                     const gs_half *b, const gs_matmul *shape) {
    gs_cuda_product product = {
        .c = c, .a = a, .b = b, .in = dtype, .out = GS_FP32, .shape = *shape};
    run_product(stream, &product);
}

// Into dbias itself, or beside it and then added.
static bool offer_bias_grad(gs_stream *stream, gs_cuda_product product, float *dbias) {
    gs_cuda_stream *cuda = gs_cuda_stream_of(stream);
    const size_t m = product.shape.m;
    if (!gs_device_chooses(&cuda->device->base, GS_CHOICE_BIAS_GRAD_IN_PRODUCT)) return false;
    if (!cuda->products || !m || !product.shape.n || !product.shape.k) return false;
    resolve_strides(&product.shape);
    const bool adds = product.shape.beta != 0.0f;
    product.bias_grad = adds ? gs_cuda_products_bias_room(cuda->products, m) : dbias;
    if (!product.bias_grad) return false;
    if (gs_cuda_products_run(cuda->products, &product) != GS_CUDA_TAKEN) return false;
    if (adds) gs_cuda_axpy(stream, dbias, product.bias_grad, 1.0f, m);
    return true;
}

// False: nothing was done.
static bool offer_linear_grads(gs_stream *stream, gs_dtype dtype, float *dweight, float *dbias,
                               const gs_half *dy, const gs_half *x, const gs_matmul *shape) {
    const gs_cuda_product product = {
        .c = dweight, .a = dy, .b = x, .in = dtype, .out = GS_FP32, .shape = *shape};
    return offer_bias_grad(stream, product, dbias);
}

void gs_cuda_bf16_matmul(gs_stream *stream, gs_half *c, const gs_half *a, const gs_half *b,
                         const gs_half_matmul *product) {
    run_half(stream, GS_BF16, c, a, b, product);
}

void gs_cuda_fp16_matmul(gs_stream *stream, gs_half *c, const gs_half *a, const gs_half *b,
                         const gs_half_matmul *product) {
    run_half(stream, GS_FP16, c, a, b, product);
}

void gs_cuda_bf16_matmul_grad(gs_stream *stream, float *c, const gs_half *a, const gs_half *b,
                              const gs_matmul *shape) {
    run_grad(stream, GS_BF16, c, a, b, shape);
}

void gs_cuda_fp16_matmul_grad(gs_stream *stream, float *c, const gs_half *a, const gs_half *b,
                              const gs_matmul *shape) {
    run_grad(stream, GS_FP16, c, a, b, shape);
}

void gs_cuda_bf16_linear_grads(gs_stream *stream, float *dweight, float *dbias, const gs_half *dy,
                               const gs_half *x, const gs_matmul *shape) {
    if (offer_linear_grads(stream, GS_BF16, dweight, dbias, dy, x, shape)) return;
    run_grad(stream, GS_BF16, dweight, dy, x, shape);
    gs_cuda_bf16_bias_backward(stream, dbias, dy, shape->k, shape->m, shape->beta != 0.0f);
}

void gs_cuda_fp16_linear_grads(gs_stream *stream, float *dweight, float *dbias, const gs_half *dy,
                               const gs_half *x, const gs_matmul *shape) {
    if (offer_linear_grads(stream, GS_FP16, dweight, dbias, dy, x, shape)) return;
    run_grad(stream, GS_FP16, dweight, dy, x, shape);
    gs_cuda_fp16_bias_backward(stream, dbias, dy, shape->k, shape->m, shape->beta != 0.0f);
}
