// A launcher for each slot that notes its launch and calls the device's own. A slot that is not in the lists below is called
// as it is and not timed; tests/unit/kernels/test_kernel_times.c sees to it that there is none.
#include "kernels/timed_table.h"

#include <stdlib.h>

#include "kernels/backend.h"
#include "kernels/launch_notes.h"

#define VARIABLE "GRADSYNC_KERNEL_TIMES"

// ---- what a launch moves: each input and output once, as kernels/README.md counts

static gs_launch_cost moves(double bytes) {
    return (gs_launch_cost){.bytes = bytes};
}

static gs_launch_cost each(double bytes, size_t count) {
    return moves(bytes * (double)count);
}

static double cells(size_t rows, size_t cols) {
    return (double)rows * (double)cols;
}

// Σ over items of count · bytes, where the host can read them.
#define MOVES_ITEMS(items, num_items, bytes) (host_reads(stream, items) ? moves(SUM_ITEMS(items, num_items, bytes)) : moves(0))
#define SUM_ITEMS(items, num_items, bytes)                                                                   \
    __extension__({                                                                                          \
        double sum = 0;                                                                                      \
        for (size_t i = 0; i < (num_items); i++) sum += (double)(items)[i].count * (double)(bytes);          \
        sum;                                                                                                 \
    })

static bool host_reads(const gs_stream *stream, const void *items) {
    gs_device *device = stream->notes->device;
    return !device->backend->is_device_memory || !device->backend->is_device_memory(device, items);
}

static gs_launch_cost low_rank_cost(const gs_stream *stream, const gs_low_rank_item *items, size_t num_items,
                                    gs_dtype dtype, int num_reads) {
    double bytes = 0;
    if (!host_reads(stream, items)) return moves(0);
    for (size_t i = 0; i < num_items; i++)
        bytes += cells(items[i].rows, items[i].cols) * (double)gs_dtype_bytes(dtype) * num_reads;
    return moves(bytes);
}

static gs_launch_cost reduce_cost(const gs_reduction *reduction) {
    double copies = reduction->num_inputs + reduction->num_outputs;
    return moves(copies * cells(reduction->count, gs_dtype_bytes(reduction->dtype)));
}

static gs_launch_cost sgd_cost(size_t count, const gs_sgd *step, double beside) {
    return moves((double)count * (step->momentum != 0 ? 20 + 2 * beside : 12 + beside));
}

// ---- what one computes

static gs_launch_cost product_cost(const gs_matmul *shape, gs_epilogue epilogue, double in_bytes, double out_bytes) {
    double outputs = cells(shape->m, shape->n) * (shape->beta != 0 ? 2 : 1);
    if (epilogue == GS_EPILOGUE_BIAS_GELU || epilogue == GS_EPILOGUE_DGELU) outputs += cells(shape->m, shape->n);
    return (gs_launch_cost){
        .bytes = in_bytes * (cells(shape->m, shape->k) + cells(shape->k, shape->n)) + out_bytes * outputs,
        .flops = 2 * cells(shape->m, shape->n) * (double)shape->k,
        .shape = {.form = GS_LAUNCH_PRODUCT,
                  .transpose_a = shape->transpose_a,
                  .transpose_b = shape->transpose_b,
                  .adds = shape->beta != 0,
                  .epilogue = epilogue,
                  .sizes = {shape->m, shape->n, shape->k}}};
}

// Half of the positions' square is masked. Forward has 2 products, backward 5, whatever a kernel computes again.
static gs_launch_cost attention_cost(const gs_attention *shape, int num_products) {
    double channels = cells(shape->heads, shape->head_channels);
    return (gs_launch_cost){
        .flops = num_products * (double)shape->batch * cells(shape->positions, shape->positions) * channels,
        .shape = {.form = GS_LAUNCH_ATTENTION,
                  .sizes = {shape->batch, shape->positions, shape->heads, shape->head_channels}}};
}

// ---- launchers

// X(slot, parameters, arguments, cost)
#define KERNELS(X)                                                                                                      \
    X(fill, (gs_stream *stream, float *out, float value, size_t count), (stream, out, value, count), each(4, count)) \
    X(copy, (gs_stream *stream, void *out, const void *in, size_t bytes), (stream, out, in, bytes), each(2, bytes)) \
    X(add, (gs_stream *stream, float *out, const float *a, const float *b, size_t count), (stream, out, a, b, count),   \
      each(12, count))                                                                                              \
    X(scale, (gs_stream *stream, float *out, const float *in, float factor, size_t count),                              \
      (stream, out, in, factor, count), each(8, count))                                                             \
    X(axpy, (gs_stream *stream, float *y, const float *x, float a, size_t count), (stream, y, x, a, count),             \
      each(12, count))                                                                                              \
    X(sum_squares, (gs_stream *stream, double *out, const float *in, size_t count), (stream, out, in, count),           \
      each(4, count))                                                                                               \
    X(count_nonfinite, (gs_stream *stream, uint64_t *out, const float *in, size_t count), (stream, out, in, count),     \
      each(4, count))                                                                                               \
    X(clear, (gs_stream *stream, void *out, size_t bytes), (stream, out, bytes), each(1, bytes))                    \
    X(add_mean, (gs_stream *stream, double *sum, const float *in, size_t count), (stream, sum, in, count),              \
      each(4, count))                                                                                               \
    X(cast_many, (gs_stream *stream, const gs_cast_item *items, size_t num_items, gs_dtype to, gs_dtype from, float scale), \
      (stream, items, num_items, to, from, scale),                                                                      \
      MOVES_ITEMS(items, num_items, gs_dtype_bytes(to) + gs_dtype_bytes(from)))                                         \
    X(sum_squares_many, (gs_stream *stream, const gs_square_item *items, size_t num_items), (stream, items, num_items), \
      MOVES_ITEMS(items, num_items, 4))                                                                                 \
    X(grad_factor, (gs_stream *stream, gs_grad_factor *out, const double *squares, size_t count, const gs_grad_clip *clip), \
      (stream, out, squares, count, clip), each(8, count))                                                              \
    X(adamw_many, (gs_stream *stream, const gs_adamw_item *items, size_t num_items, const gs_adamw *step),              \
      (stream, items, num_items, step),                                                                                 \
      MOVES_ITEMS(items, num_items, items[i].param && items[i].value ? 30 : 28))                                        \
    X(split_master, (gs_stream *stream, uint16_t *value, uint16_t *remainder, const float *master, size_t count),       \
      (stream, value, remainder, master, count), each(8, count))                                                    \
    X(join_master, (gs_stream *stream, float *master, const uint16_t *value, const uint16_t *remainder, size_t count),  \
      (stream, master, value, remainder, count), each(8, count))                                                    \
    X(reduce, (gs_stream *stream, const gs_reduction *reduction), (stream, reduction), reduce_cost(reduction))          \
    X(cast, (gs_stream *stream, void *out, gs_dtype out_dtype, const void *in, gs_dtype in_dtype, float scale,          \
             size_t count),                                                                                             \
      (stream, out, out_dtype, in, in_dtype, scale, count),                                                             \
      moves(cells(count, gs_dtype_bytes(out_dtype) + gs_dtype_bytes(in_dtype))))                                        \
    X(round, (gs_stream *stream, float *out, const float *in, gs_dtype dtype, size_t count, bool accumulate),           \
      (stream, out, in, dtype, count, accumulate), each(accumulate ? 12 : 8, count))                            \
    X(matmul, (gs_stream *stream, float *c, const float *a, const float *b, const gs_matmul *shape),                    \
      (stream, c, a, b, shape), product_cost(shape, GS_EPILOGUE_NONE, 4, 4))                                            \
    X(bias_add, (gs_stream *stream, float *x, const float *bias, size_t rows, size_t cols),                             \
      (stream, x, bias, rows, cols), moves(8 * cells(rows, cols)))                                                      \
    X(bias_gelu, (gs_stream *stream, float *out, float *x, const float *bias, size_t rows, size_t cols),                \
      (stream, out, x, bias, rows, cols), moves(12 * cells(rows, cols)))                                                \
    X(bias_backward, (gs_stream *stream, float *dbias, const float *dy, size_t rows, size_t cols, bool accumulate),     \
      (stream, dbias, dy, rows, cols, accumulate), moves(4 * cells(rows, cols)))                                        \
    X(gelu_backward, (gs_stream *stream, float *dx, const float *dy, const float *x, size_t count),                     \
      (stream, dx, dy, x, count), each(12, count))                                                                  \
    X(relu, (gs_stream *stream, float *out, const float *in, size_t count), (stream, out, in, count),                   \
      each(8, count))                                                                                               \
    X(relu_backward, (gs_stream *stream, float *dx, const float *dy, const float *out, size_t count),                   \
      (stream, dx, dy, out, count), each(12, count))                                                                \
    X(layernorm, (gs_stream *stream, float *out, float *mean, float *rstd, const float *x, const float *weight,         \
                  const float *bias, size_t rows, size_t channels),                                                     \
      (stream, out, mean, rstd, x, weight, bias, rows, channels), moves(8 * cells(rows, channels)))                     \
    X(residual_layernorm, (gs_stream *stream, float *residual, float *out, float *mean, float *rstd, const float *a,    \
                           const float *b, const float *bias_b, const float *weight, const float *bias, size_t rows,    \
                           size_t channels),                                                                            \
      (stream, residual, out, mean, rstd, a, b, bias_b, weight, bias, rows, channels), moves(16 * cells(rows, channels))) \
    X(layernorm_backward, (gs_stream *stream, float *dx, float *dweight, float *dbias, float *scratch, const float *dy, \
                           const float *x, const float *weight, const float *mean, const float *rstd, size_t rows,      \
                           size_t channels, bool accumulate),                                                           \
      (stream, dx, dweight, dbias, scratch, dy, x, weight, mean, rstd, rows, channels, accumulate),                     \
      moves(16 * cells(rows, channels)))                                                                                \
    X(embedding, (gs_stream *stream, float *out, const int32_t *tokens, const float *wte, const float *wpe,             \
                  size_t batch, size_t positions, size_t channels, size_t vocab),                                       \
      (stream, out, tokens, wte, wpe, batch, positions, channels, vocab),                                               \
      moves(12 * cells(batch * positions, channels)))                                                                   \
    X(embedding_backward, (gs_stream *stream, float *dwte, float *dwpe, const float *dout, const int32_t *tokens,       \
                           size_t batch, size_t positions, size_t channels, size_t vocab, bool accumulate),             \
      (stream, dwte, dwpe, dout, tokens, batch, positions, channels, vocab, accumulate),                                \
      moves(8 * cells(batch * positions, channels)))                                                                    \
    X(add_rows, (gs_stream *stream, float *out, const int32_t *rows, const float *in, size_t num_rows, size_t cols),    \
      (stream, out, rows, in, num_rows, cols), moves(12 * cells(num_rows, cols)))                                       \
    X(attention, (gs_stream *stream, float *out, float *logsumexp, const float *qkv, const gs_attention *shape),        \
      (stream, out, logsumexp, qkv, shape), attention_cost(shape, 2))                                                   \
    X(attention_backward, (gs_stream *stream, float *dqkv, const float *dout, const float *qkv, const float *out,       \
                           const float *logsumexp, const gs_attention *shape),                                          \
      (stream, dqkv, dout, qkv, out, logsumexp, shape), attention_cost(shape, 5))                                       \
    X(softmax_loss, (gs_stream *stream, float *losses, float *logits, int64_t *num_correct, const int32_t *targets,     \
                     size_t rows, size_t classes, size_t stride, float dloss, bool gradient),                           \
      (stream, losses, logits, num_correct, targets, rows, classes, stride, dloss, gradient),                           \
      moves((gradient ? 8 : 4) * cells(rows, stride)))                                                                  \
    X(batchnorm, (gs_stream *stream, float *out, float *save_mean, float *save_rstd, float *next_running_mean,          \
                  float *next_running_var, const float *x, const float *weight, const float *bias,                      \
                  const float *running_mean, const float *running_var, const gs_batchnorm *shape),                      \
      (stream, out, save_mean, save_rstd, next_running_mean, next_running_var, x, weight, bias, running_mean,           \
       running_var, shape),                                                                                             \
      moves(8 * cells(shape->rows, shape->channels)))                                                                   \
    X(batchnorm_eval, (gs_stream *stream, float *out, const float *x, const float *weight, const float *bias,           \
                       const float *running_mean, const float *running_var, const gs_batchnorm *shape),                 \
      (stream, out, x, weight, bias, running_mean, running_var, shape), moves(8 * cells(shape->rows, shape->channels))) \
    X(batchnorm_backward, (gs_stream *stream, float *dx, float *dweight, float *dbias, const float *dy, const float *x, \
                           const float *weight, const float *save_mean, const float *save_rstd,                         \
                           const gs_batchnorm *shape, bool accumulate),                                                 \
      (stream, dx, dweight, dbias, dy, x, weight, save_mean, save_rstd, shape, accumulate),                             \
      moves(12 * cells(shape->rows, shape->channels)))                                                                  \
    X(batchnorm_measure, (gs_stream *stream, double *mean, double *m2, const float *x, const gs_batchnorm *shape),      \
      (stream, mean, m2, x, shape), moves(4 * cells(shape->rows, shape->channels)))                                     \
    X(batchnorm_apply, (gs_stream *stream, float *out, float *save_mean, float *save_rstd, float *next_running_mean,    \
                        float *next_running_var, const float *x, const float *weight, const float *bias,                \
                        const float *running_mean, const float *running_var, const double *mean, const double *m2,      \
                        double total_rows, const gs_batchnorm *shape),                                                  \
      (stream, out, save_mean, save_rstd, next_running_mean, next_running_var, x, weight, bias, running_mean,           \
       running_var, mean, m2, total_rows, shape),                                                                       \
      moves(8 * cells(shape->rows, shape->channels)))                                                                   \
    X(batchnorm_sums, (gs_stream *stream, double *sum, double *dot, float *dweight, float *dbias, const float *dy,      \
                       const float *x, const float *save_mean, const float *save_rstd, const gs_batchnorm *shape,       \
                       bool accumulate),                                                                                \
      (stream, sum, dot, dweight, dbias, dy, x, save_mean, save_rstd, shape, accumulate),                               \
      moves(8 * cells(shape->rows, shape->channels)))                                                                   \
    X(batchnorm_backward_apply, (gs_stream *stream, float *dx, const float *dy, const float *x, const float *weight,    \
                                 const float *save_mean, const float *save_rstd, const double *sum, const double *dot,  \
                                 double total_rows, const gs_batchnorm *shape),                                         \
      (stream, dx, dy, x, weight, save_mean, save_rstd, sum, dot, total_rows, shape),                                   \
      moves(12 * cells(shape->rows, shape->channels)))                                                                  \
    X(adamw, (gs_stream *stream, float *param, float *m, float *v, const float *grad, const gs_adamw *step,             \
              size_t count),                                                                                            \
      (stream, param, m, v, grad, step, count), each(28, count))                                                    \
    X(sgd, (gs_stream *stream, float *param, float *momentum, const float *grad, const gs_sgd *step, size_t count),     \
      (stream, param, momentum, grad, step, count), sgd_cost(count, step, 0))                                           \
    X(adamw_beside, (gs_stream *stream, float *param, float *was, float *next_m, float *next_v, const float *m,         \
                     const float *v, const float *grad, const gs_adamw *step, size_t count),                            \
      (stream, param, was, next_m, next_v, m, v, grad, step, count), each(32, count))                               \
    X(sgd_beside, (gs_stream *stream, float *param, float *was, float *next_momentum, const float *momentum,            \
                   const float *grad, const gs_sgd *step, size_t count),                                                \
      (stream, param, was, next_momentum, momentum, grad, step, count), sgd_cost(count, step, 4))                       \
    X(low_rank_project, (gs_stream *stream, const gs_low_rank_item *items, size_t num_items, gs_dtype dtype,            \
                         double grad_scale, double held_scale),                                                         \
      (stream, items, num_items, dtype, grad_scale, held_scale), low_rank_cost(stream, items, num_items, dtype, 3))     \
    X(low_rank_back_project, (gs_stream *stream, const gs_low_rank_item *items, size_t num_items, gs_dtype dtype),      \
      (stream, items, num_items, dtype), low_rank_cost(stream, items, num_items, dtype, 1))                             \
    X(low_rank_rebuild, (gs_stream *stream, const gs_low_rank_item *items, size_t num_items, gs_dtype dtype,            \
                         double error_scale),                                                                           \
      (stream, items, num_items, dtype, error_scale), low_rank_cost(stream, items, num_items, dtype, 3))                \
    X(orthogonalize_many, (gs_stream *stream, const gs_orthogonal_item *items, size_t num_items, gs_dtype dtype,        \
                           double epsilon),                                                                             \
      (stream, items, num_items, dtype, epsilon), moves(0))                                                             \
    X(add_residuals, (gs_stream *stream, const gs_residual_item *items, size_t num_items, gs_dtype dtype,               \
                      double grad_scale, double held_scale),                                                            \
      (stream, items, num_items, dtype, grad_scale, held_scale),                                                        \
      MOVES_ITEMS(items, num_items, gs_dtype_bytes(dtype) * (items[i].held ? 3 : 2)))                                   \
    X(select_largest, (gs_stream *stream, const gs_selection *selection), (stream, selection), moves(0))                \
    X(add_at, (gs_stream *stream, void *out, const void *values, const uint32_t *places, size_t count,                  \
               size_t num_places, gs_dtype dtype),                                                                      \
      (stream, out, values, places, count, num_places, dtype), moves(cells(count, 4 + 3 * gs_dtype_bytes(dtype))))      \
    X(take_signs, (gs_stream *stream, const gs_signs *signs), (stream, signs),                                          \
      MOVES_ITEMS(signs->items, signs->num_items, 3 * gs_dtype_bytes(signs->dtype)))                                    \
    X(add_signs, (gs_stream *stream, const gs_signs *signs, int num_ranks, size_t stride_bytes),                        \
      (stream, signs, num_ranks, stride_bytes),                                                                         \
      MOVES_ITEMS(signs->items, signs->num_items, gs_dtype_bytes(signs->dtype)))                                        \
    X(quantize, (gs_stream *stream, const gs_quantized *to, const void *in, double least_scale),                        \
      (stream, to, in, least_scale), moves(cells(to->count, 1 + 2 * gs_dtype_bytes(to->dtype))))                        \
    X(dequantize, (gs_stream *stream, void *out, const gs_quantized *from, size_t num_inputs, size_t stride_bytes,      \
                   double factor),                                                                                      \
      (stream, out, from, num_inputs, stride_bytes, factor),                                                            \
      moves(cells(from->count, gs_dtype_bytes(from->dtype) + num_inputs)))

#define HALF_KERNELS(X)                                                                                                 \
    X(matmul, (gs_stream *stream, gs_half *c, const gs_half *a, const gs_half *b, const gs_half_matmul *product),       \
      (stream, c, a, b, product), product_cost(&product->shape, product->epilogue, 2, 2))                               \
    X(matmul_grad, (gs_stream *stream, float *c, const gs_half *a, const gs_half *b, const gs_matmul *shape),           \
      (stream, c, a, b, shape), product_cost(shape, GS_EPILOGUE_NONE, 2, 4))                                            \
    X(linear_grads, (gs_stream *stream, float *dweight, float *dbias, const gs_half *dy, const gs_half *x,              \
                     const gs_matmul *shape),                                                                           \
      (stream, dweight, dbias, dy, x, shape), product_cost(shape, GS_EPILOGUE_NONE, 2, 4))                              \
    X(bias_backward, (gs_stream *stream, float *dbias, const gs_half *dy, size_t rows, size_t cols, bool accumulate),   \
      (stream, dbias, dy, rows, cols, accumulate), moves(2 * cells(rows, cols)))                                        \
    X(embedding, (gs_stream *stream, gs_half *out, const int32_t *tokens, const gs_half *wte, const gs_half *wpe,       \
                  size_t batch, size_t positions, size_t channels, size_t vocab),                                       \
      (stream, out, tokens, wte, wpe, batch, positions, channels, vocab),                                               \
      moves(6 * cells(batch * positions, channels)))                                                                    \
    X(embedding_backward, (gs_stream *stream, float *dwte, float *dwpe, const gs_half *dout, const int32_t *tokens,     \
                           size_t batch, size_t positions, size_t channels, size_t vocab, bool accumulate),             \
      (stream, dwte, dwpe, dout, tokens, batch, positions, channels, vocab, accumulate),                                \
      moves(4 * cells(batch * positions, channels)))                                                                    \
    X(layernorm, (gs_stream *stream, gs_half *out, float *mean, float *rstd, const gs_half *x, const gs_half *weight,   \
                  const gs_half *bias, size_t rows, size_t channels),                                                   \
      (stream, out, mean, rstd, x, weight, bias, rows, channels), moves(4 * cells(rows, channels)))                     \
    X(residual_layernorm, (gs_stream *stream, gs_half *residual, gs_half *out, float *mean, float *rstd,                \
                           const gs_half *a, const gs_half *b, const gs_half *weight, const gs_half *bias,              \
                           size_t rows, size_t channels),                                                               \
      (stream, residual, out, mean, rstd, a, b, weight, bias, rows, channels), moves(8 * cells(rows, channels)))        \
    X(layernorm_backward, (gs_stream *stream, gs_half *dx, float *dweight, float *dbias, float *scratch,                \
                           const gs_half *dy, const gs_half *x, const gs_half *weight, const float *mean,               \
                           const float *rstd, size_t rows, size_t channels, bool first, bool accumulate),               \
      (stream, dx, dweight, dbias, scratch, dy, x, weight, mean, rstd, rows, channels, first, accumulate),              \
      moves((first ? 6 : 8) * cells(rows, channels)))                                                                   \
    X(attention, (gs_stream *stream, gs_half *out, float *logsumexp, const gs_half *qkv, const gs_attention *shape),    \
      (stream, out, logsumexp, qkv, shape), attention_cost(shape, 2))                                                   \
    X(attention_backward, (gs_stream *stream, gs_half *dqkv, const gs_half *dout, const gs_half *qkv,                   \
                           const gs_half *out, const float *logsumexp, const gs_attention *shape),                      \
      (stream, dqkv, dout, qkv, out, logsumexp, shape), attention_cost(shape, 5))                                       \
    X(softmax_loss, (gs_stream *stream, float *losses, gs_half *logits, int64_t *num_correct, const int32_t *targets,   \
                     size_t rows, size_t classes, size_t stride, float dloss, bool gradient),                           \
      (stream, losses, logits, num_correct, targets, rows, classes, stride, dloss, gradient),                           \
      moves((gradient ? 4 : 2) * cells(rows, stride)))

#define TIMED(prefix, type, own, slot, parameters, arguments, cost_of_it)                    \
    static void prefix##_##slot parameters {                                                 \
        gs_launch_notes *notes = stream->notes;                                              \
        gs_event *end = NULL;                                                                \
        if (atomic_load(&notes->is_running)) {                                               \
            const gs_launch_cost cost = cost_of_it;                                          \
            end = gs_launch_notes_add(notes, stream, #slot, type, &cost);                    \
        }                                                                                    \
        notes->own->slot arguments;                                                          \
        gs_launch_notes_end(notes, end, stream);                                             \
    }
#define TIMED_FP32(slot, parameters, arguments, cost) TIMED(fp32, GS_FP32, kernels, slot, parameters, arguments, cost)
#define TIMED_BF16(slot, parameters, arguments, cost) TIMED(bf16, GS_BF16, half_kernels[0], slot, parameters, arguments, cost)
#define TIMED_FP16(slot, parameters, arguments, cost) TIMED(fp16, GS_FP16, half_kernels[1], slot, parameters, arguments, cost)
KERNELS(TIMED_FP32)
HALF_KERNELS(TIMED_BF16)
HALF_KERNELS(TIMED_FP16)

#define TAKE_FP32(slot, ...) \
    if (notes->timed.slot) notes->timed.slot = fp32_##slot;
#define TAKE_BF16(slot, ...) \
    if (notes->timed_half[0].slot) notes->timed_half[0].slot = bf16_##slot;
#define TAKE_FP16(slot, ...) \
    if (notes->timed_half[1].slot) notes->timed_half[1].slot = fp16_##slot;

static void fill_tables(gs_launch_notes *notes) {
    notes->timed = *notes->kernels;
    for (int i = 0; i < 2; i++)
        if (notes->half_kernels[i]) notes->timed_half[i] = *notes->half_kernels[i];
    KERNELS(TAKE_FP32)
    HALF_KERNELS(TAKE_BF16)
    HALF_KERNELS(TAKE_FP16)
}

// -1: nobody asks.
static gs_status read_step(int64_t *step) {
    const char *text = getenv(VARIABLE);
    char *end = NULL;
    *step = -1;
    if (!text || !*text) return gs_ok();
    long long value = strtoll(text, &end, 10);
    if (*end || value < 0) return gs_error(GS_INVALID_ARGUMENT, VARIABLE "='%.40s' is no step", text);
    *step = value;
    return gs_ok();
}

gs_status gs_timed_table_attach(gs_device *device) {
    int64_t step;
    GS_TRY(read_step(&step));
    if (step < 0) return gs_ok();
    gs_launch_notes *notes = calloc(1, sizeof *notes);
    if (!notes) return gs_error(GS_RESOURCE_EXHAUSTED, "times of kernels: out of memory");
    pthread_mutex_init(&notes->lock, NULL);
    notes->device = device;
    notes->step = step;
    notes->kernels = device->kernels;
    for (int i = 0; i < 2; i++) notes->half_kernels[i] = device->half_kernels[i];
    fill_tables(notes);
    device->kernels = &notes->timed;
    for (int i = 0; i < 2; i++)
        if (notes->half_kernels[i]) device->half_kernels[i] = &notes->timed_half[i];
    device->stream->notes = notes;
    device->notes = notes;
    return gs_ok();
}
