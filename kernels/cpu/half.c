// Kernels of 16-bit training on the CPU: what the type's kernels are specified to do, as fp32 kernels on
// wide copies. Each reads gs_half, computes in fp32 and rounds once where it stores. They are there to be
// compared with, and for small models: unlike all other launchers they allocate (the copies, which go with
// the call), and are slower than fp32 itself.
#include "kernels/half.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/table.h"
#include "kernels/device.h"

#define MAX_COPIES 8

// The fp32 tensors of one call.
typedef struct copies {
    gs_stream *stream;
    gs_dtype dtype;  // of what they are copies of
    float *tensors[MAX_COPIES];  // owned
    int count;
    bool failed;
} copies;

static float *add_blank(copies *all, size_t count) {
    float *tensor = calloc(count ? count : 1, sizeof *tensor);
    if (!tensor) {
        if (!all->failed)
            gs_stream_fail(all->stream,
                           gs_error(GS_RESOURCE_EXHAUSTED, "cpu %s kernel: no memory for %zu floats",
                                    gs_dtype_name(all->dtype), count));
        all->failed = true;
        return NULL;
    }
    all->tensors[all->count++] = tensor;
    return tensor;
}

static void widen_block(gs_dtype dtype, float *out, const gs_half *in, size_t count) {
    if (dtype == GS_BF16) GS_CPU(widen_bf16)(out, in, count);
    else GS_CPU(widen_fp16)(out, in, count);
}

static void narrow_block(gs_dtype dtype, gs_half *out, const float *in, size_t count) {
    if (dtype == GS_BF16) GS_CPU(narrow_bf16)(out, in, count);
    else GS_CPU(narrow_fp16)(out, in, count);
}

static float *add_wide(copies *all, const gs_half *in, size_t count) {
    float *tensor = add_blank(all, count);
    if (tensor) widen_block(all->dtype, tensor, in, count);
    return tensor;
}

// (rows, cols) of a matrix with rows `stride` apart, packed.
static float *add_wide_rows(copies *all, const gs_half *in, size_t rows, size_t cols,
                            size_t stride) {
    float *tensor = add_blank(all, rows * cols);
    for (size_t row = 0; tensor && row < rows; row++)
        widen_block(all->dtype, tensor + row * cols, in + row * stride, cols);
    return tensor;
}

static void store(const copies *all, gs_half *out, const float *in, size_t count) {
    narrow_block(all->dtype, out, in, count);
}

static void store_rows(const copies *all, gs_half *out, const float *in, size_t rows, size_t cols,
                       size_t stride) {
    for (size_t row = 0; row < rows; row++) store(all, out + row * stride, in + row * cols, cols);
}

static void drop_copies(copies *all) {
    for (int i = 0; i < all->count; i++) free(all->tensors[i]);
}

static bool are_below(const int32_t *ids, size_t count, size_t limit) {
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= limit) return false;
    return true;
}

// Operands of a product, packed: `shape` becomes that of the copies but for C.
typedef struct operands {
    const float *a, *b;
    gs_matmul shape;
    size_t stride_c;
} operands;

static operands add_operands(copies *all, const gs_half *a, const gs_half *b,
                             const gs_matmul *shape) {
    operands of = {.shape = *shape, .stride_c = shape->stride_c ? shape->stride_c : shape->n};
    size_t rows_a = shape->transpose_a ? shape->k : shape->m;
    size_t cols_a = shape->transpose_a ? shape->m : shape->k;
    size_t rows_b = shape->transpose_b ? shape->n : shape->k;
    size_t cols_b = shape->transpose_b ? shape->k : shape->n;
    of.a = add_wide_rows(all, a, rows_a, cols_a, shape->stride_a ? shape->stride_a : cols_a);
    of.b = add_wide_rows(all, b, rows_b, cols_b, shape->stride_b ? shape->stride_b : cols_b);
    of.shape.stride_a = of.shape.stride_b = of.shape.stride_c = 0;
    return of;
}

// What is stored beside C, and C itself, which becomes what the epilogue makes of it.
static void run_epilogue(copies *all, float *c, const gs_half_matmul *product, size_t stride_c) {
    const size_t m = product->shape.m, n = product->shape.n;
    if (product->epilogue == GS_EPILOGUE_DGELU) {
        const float *aux = add_wide_rows(all, product->aux, m, n, stride_c);
        if (aux) GS_CPU(gelu_backward)(all->stream, c, c, aux, m * n);
        return;
    }
    const float *bias = add_wide(all, product->bias, n);
    if (product->epilogue == GS_EPILOGUE_BIAS) {
        const float *residual =
            product->residual ? add_wide_rows(all, product->residual, m, n, stride_c) : NULL;
        if (all->failed) return;
        GS_CPU(bias_add)(all->stream, c, bias, m, n);
        if (residual) GS_CPU(add)(all->stream, c, c, residual, m * n);
        return;
    }
    float *aux = add_blank(all, m * n);
    if (all->failed) return;
    memcpy(aux, c, m * n * sizeof *aux);
    GS_CPU(bias_gelu)(all->stream, c, aux, bias, m, n);
    store_rows(all, product->aux, aux, m, n, stride_c);
}

static void run_matmul(copies *all, gs_half *c, const gs_half *a, const gs_half *b,
                       const gs_half_matmul *product) {
    const size_t m = product->shape.m, n = product->shape.n;
    operands of = add_operands(all, a, b, &product->shape);
    float *wide = product->shape.beta != 0.0f ? add_wide_rows(all, c, m, n, of.stride_c)
                                              : add_blank(all, m * n);
    if (all->failed) return;
    gs_cpu_matmul(all->stream, wide, of.a, of.b, &of.shape);
    if (product->epilogue != GS_EPILOGUE_NONE) run_epilogue(all, wide, product, of.stride_c);
    if (!all->failed) store_rows(all, c, wide, m, n, of.stride_c);
}

static void run_matmul_grad(copies *all, float *c, const gs_half *a, const gs_half *b,
                            const gs_matmul *shape) {
    operands of = add_operands(all, a, b, shape);
    of.shape.stride_c = of.stride_c;
    if (!all->failed) gs_cpu_matmul(all->stream, c, of.a, of.b, &of.shape);
}

static void run_bias_backward(copies *all, float *dbias, const gs_half *dy, size_t rows,
                              size_t cols, bool accumulate) {
    const float *wide = add_wide(all, dy, rows * cols);
    if (wide) GS_CPU(bias_backward)(all->stream, dbias, wide, rows, cols, accumulate);
}

static void run_linear_grads(copies *all, float *dweight, float *dbias, const gs_half *dy,
                             const gs_half *x, const gs_matmul *shape) {
    run_matmul_grad(all, dweight, dy, x, shape);
    run_bias_backward(all, dbias, dy, shape->k, shape->m, shape->beta != 0.0f);
}

static void run_embedding(copies *all, gs_half *out, const int32_t *tokens, const gs_half *wte,
                          const gs_half *wpe, size_t batch, size_t positions, size_t channels,
                          size_t vocab) {
    const size_t rows = batch * positions;
    const float *wide_wte = add_wide(all, wte, vocab * channels);
    const float *wide_wpe = add_wide(all, wpe, positions * channels);
    float *wide = add_blank(all, rows * channels);
    if (all->failed) return;
    GS_CPU(embedding)(all->stream, wide, tokens, wide_wte, wide_wpe, batch, positions, channels,
                      vocab);
    if (are_below(tokens, rows, vocab)) store(all, out, wide, rows * channels);
}

static void run_embedding_backward(copies *all, float *dwte, float *dwpe, const gs_half *dout,
                                   const int32_t *tokens, size_t batch, size_t positions,
                                   size_t channels, size_t vocab, bool accumulate) {
    const float *wide = add_wide(all, dout, batch * positions * channels);
    if (wide)
        GS_CPU(embedding_backward)(all->stream, dwte, dwpe, wide, tokens, batch, positions,
                                   channels, vocab, accumulate);
}

static void run_layernorm(copies *all, gs_half *out, float *mean, float *rstd, const gs_half *x,
                          const gs_half *weight, const gs_half *bias, size_t rows,
                          size_t channels) {
    const float *wide_x = add_wide(all, x, rows * channels);
    const float *wide_weight = add_wide(all, weight, channels);
    const float *wide_bias = add_wide(all, bias, channels);
    float *wide = add_blank(all, rows * channels);
    if (all->failed) return;
    GS_CPU(layernorm)(all->stream, wide, mean, rstd, wide_x, wide_weight, wide_bias, rows,
                      channels);
    store(all, out, wide, rows * channels);
}

static void run_residual_layernorm(copies *all, gs_half *residual, gs_half *out, float *mean,
                                   float *rstd, const gs_half *a, const gs_half *b,
                                   const gs_half *weight, const gs_half *bias, size_t rows,
                                   size_t channels) {
    const size_t count = rows * channels;
    float *sum = add_wide(all, a, count);
    const float *wide_b = add_wide(all, b, count);
    if (all->failed) return;
    GS_CPU(add)(all->stream, sum, sum, wide_b, count);
    store(all, residual, sum, count);
    run_layernorm(all, out, mean, rstd, residual, weight, bias, rows, channels);
}

static void run_layernorm_backward(copies *all, gs_half *dx, float *dweight, float *dbias,
                                   float *scratch, const gs_half *dy, const gs_half *x,
                                   const gs_half *weight, const float *mean, const float *rstd,
                                   size_t rows, size_t channels, bool first, bool accumulate) {
    const size_t count = rows * channels;
    const float *wide_dy = add_wide(all, dy, count), *wide_x = add_wide(all, x, count);
    const float *wide_weight = add_wide(all, weight, channels);
    float *wide = first ? add_blank(all, count) : add_wide(all, dx, count);
    if (all->failed) return;
    GS_CPU(layernorm_backward)(all->stream, wide, dweight, dbias, scratch, wide_dy, wide_x,
                               wide_weight, mean, rstd, rows, channels, accumulate);
    store(all, dx, wide, count);
}

static void run_attention(copies *all, gs_half *out, float *logsumexp, const gs_half *qkv,
                          const gs_attention *shape) {
    const size_t count =
        shape->batch * shape->positions * shape->heads * shape->head_channels;
    const float *wide_qkv = add_wide(all, qkv, 3 * count);
    float *wide = add_blank(all, count);
    if (all->failed) return;
    GS_CPU(attention)(all->stream, wide, logsumexp, wide_qkv, shape);
    store(all, out, wide, count);
}

static void run_attention_backward(copies *all, gs_half *dqkv, const gs_half *dout,
                                   const gs_half *qkv, const gs_half *out, const float *logsumexp,
                                   const gs_attention *shape) {
    const size_t count =
        shape->batch * shape->positions * shape->heads * shape->head_channels;
    const float *wide_dout = add_wide(all, dout, count), *wide_out = add_wide(all, out, count);
    const float *wide_qkv = add_wide(all, qkv, 3 * count);
    float *wide = add_blank(all, 3 * count);
    if (all->failed) return;
    GS_CPU(attention_backward)(all->stream, wide, wide_dout, wide_qkv, wide_out, logsumexp, shape);
    store(all, dqkv, wide, 3 * count);
}

static void run_softmax_loss(copies *all, float *losses, gs_half *logits, int64_t *num_correct,
                             const int32_t *targets, size_t rows, size_t classes, size_t stride,
                             float dloss, bool gradient) {
    float *wide = add_wide(all, logits, rows * stride);
    if (!wide) return;
    GS_CPU(softmax_loss)(all->stream, losses, wide, num_correct, targets, rows, classes, stride,
                         dloss, gradient);
    if (gradient && are_below(targets, rows, classes)) store(all, logits, wide, rows * stride);
}

// A launcher for each type: the copies around the work. `signature` begins with the stream.
#define UNPACK(...) __VA_ARGS__
#define DTYPE_bf16 GS_BF16
#define DTYPE_fp16 GS_FP16
#define DEFINE_FOR(type, slot, signature, arguments)                                               \
    static void type##_##slot signature {                                                          \
        copies all = {.stream = stream, .dtype = DTYPE_##type};                                    \
        run_##slot(&all, UNPACK arguments);                                                        \
        drop_copies(&all);                                                                         \
    }
#define DEFINE(slot, signature, arguments)                                                         \
    DEFINE_FOR(bf16, slot, signature, arguments)                                                   \
    DEFINE_FOR(fp16, slot, signature, arguments)

DEFINE(matmul,
       (gs_stream * stream, gs_half *c, const gs_half *a, const gs_half *b,
        const gs_half_matmul *product),
       (c, a, b, product))
DEFINE(matmul_grad,
       (gs_stream * stream, float *c, const gs_half *a, const gs_half *b, const gs_matmul *shape),
       (c, a, b, shape))
DEFINE(linear_grads,
       (gs_stream * stream, float *dweight, float *dbias, const gs_half *dy, const gs_half *x,
        const gs_matmul *shape),
       (dweight, dbias, dy, x, shape))
DEFINE(bias_backward,
       (gs_stream * stream, float *dbias, const gs_half *dy, size_t rows, size_t cols,
        bool accumulate),
       (dbias, dy, rows, cols, accumulate))
DEFINE(embedding,
       (gs_stream * stream, gs_half *out, const int32_t *tokens, const gs_half *wte,
        const gs_half *wpe, size_t batch, size_t positions, size_t channels, size_t vocab),
       (out, tokens, wte, wpe, batch, positions, channels, vocab))
DEFINE(embedding_backward,
       (gs_stream * stream, float *dwte, float *dwpe, const gs_half *dout, const int32_t *tokens,
        size_t batch, size_t positions, size_t channels, size_t vocab, bool accumulate),
       (dwte, dwpe, dout, tokens, batch, positions, channels, vocab, accumulate))
DEFINE(layernorm,
       (gs_stream * stream, gs_half *out, float *mean, float *rstd, const gs_half *x,
        const gs_half *weight, const gs_half *bias, size_t rows, size_t channels),
       (out, mean, rstd, x, weight, bias, rows, channels))
DEFINE(residual_layernorm,
       (gs_stream * stream, gs_half *residual, gs_half *out, float *mean, float *rstd,
        const gs_half *a, const gs_half *b, const gs_half *weight, const gs_half *bias, size_t rows,
        size_t channels),
       (residual, out, mean, rstd, a, b, weight, bias, rows, channels))
DEFINE(layernorm_backward,
       (gs_stream * stream, gs_half *dx, float *dweight, float *dbias, float *scratch,
        const gs_half *dy, const gs_half *x, const gs_half *weight, const float *mean,
        const float *rstd, size_t rows, size_t channels, bool first, bool accumulate),
       (dx, dweight, dbias, scratch, dy, x, weight, mean, rstd, rows, channels, first, accumulate))
DEFINE(attention,
       (gs_stream * stream, gs_half *out, float *logsumexp, const gs_half *qkv,
        const gs_attention *shape),
       (out, logsumexp, qkv, shape))
DEFINE(attention_backward,
       (gs_stream * stream, gs_half *dqkv, const gs_half *dout, const gs_half *qkv,
        const gs_half *out, const float *logsumexp, const gs_attention *shape),
       (dqkv, dout, qkv, out, logsumexp, shape))
DEFINE(softmax_loss,
       (gs_stream * stream, float *losses, gs_half *logits, int64_t *num_correct,
        const int32_t *targets, size_t rows, size_t classes, size_t stride, float dloss,
        bool gradient),
       (losses, logits, num_correct, targets, rows, classes, stride, dloss, gradient))

#define FILL_BF16(slot) .slot = bf16_##slot,
#define FILL_FP16(slot) .slot = fp16_##slot,

const gs_half_kernels GS_CPU(half_tables)[2] = {
    {.name = "cpu/" GS_ISA_NAME "/bf16", .dtype = GS_BF16, GS_HALF_SLOTS(FILL_BF16)},
    {.name = "cpu/" GS_ISA_NAME "/fp16", .dtype = GS_FP16, GS_HALF_SLOTS(FILL_FP16)}};
