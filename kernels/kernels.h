// What a device can do: every kernel once, with its shapes. kernels/cpu is the specification.
//
// A launcher takes (stream, outputs, inputs, counts, scalars); it never allocates and never
// synchronises. Tensors are device memory; single numbers that a kernel writes, and tables of items
// that it reads, are device or pinned memory; descriptors behind a pointer are the host's and may go when
// the launcher returns. All matrices are row-major. rows = B·T or the batch; C = channels. Sums run in a fixed
// order that does not depend on the number of threads. fp32 unless said.
// `accumulate` false: the output is overwritten; true: the result is added to it.
//
// Threads: a launcher's is the one that its stream's device serves at the time (device.h).
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/dtype.h"

GS_BEGIN_DECLS

typedef struct gs_stream gs_stream;

typedef enum gs_reduce_op { GS_OP_SUM = 0, GS_OP_MAX, GS_OP_MIN } gs_reduce_op;

#define GS_REDUCE_MAX_INPUTS 64

// outputs[*][i] = scale · (inputs[0][i] op inputs[1][i] op …). Outputs may be inputs.
//   merges  NULL: folded left to right. Else a postfix program: after input k is pushed, the top two
//           are combined merges[k] times (left op right); one value must remain. That is how sums along
//           a fixed tree are written.
//   scale   fp16, bf16, fp32, fp64: multiplies what was accumulated, itself rounded to the type of that;
//           else must be 1
// 16-bit types accumulate in fp32 and are rounded once, behind the scale; others accumulate in themselves.
//   wire_dtype  unset; or fp16 or bf16, for a sum of fp32 or fp64 without merges that is as if 16 bits had been
//               sent: each input · wire_scale is rounded to it before it is added, in fp32, and the scaled sum
//               once more. The bits are those of cast, reduce and cast.
//   wire_scale_after  each input is rounded, multiplied by wire_scale and rounded again before it is added: what
//               does not fit before the multiplication is infinite
typedef struct gs_reduction {
    void *const *outputs;
    const void *const *inputs;
    int num_outputs, num_inputs;
    const uint8_t *merges;
    gs_dtype dtype;
    gs_reduce_op op;
    double scale;
    size_t count;
    gs_dtype wire_dtype;
    float wire_scale;  // looked at with a wire dtype alone, as the next
    bool wire_scale_after;
} gs_reduction;

// C (m×n) = alpha · op(A) (m×k) · op(B) (k×n) + beta · C. Strides are elements between rows; 0: tight.
typedef struct gs_matmul {
    bool transpose_a, transpose_b;  // A is stored (k×m) / B is stored (n×k)
    size_t m, n, k;
    size_t stride_a, stride_b, stride_c;
    float alpha, beta;
} gs_matmul;

// What grad_factor leaves for updates behind it (gs_stream_set_factor): what gradients are multiplied by, and whether
// there is an update at all.
typedef struct gs_grad_factor {
    float value;       // 0 where it does not apply
    uint32_t applies;  // 0: the update leaves everything as it is; else 1
} gs_grad_factor;

// How a factor comes of a norm: gradients are the loss scale too large.
typedef struct gs_grad_clip {
    double max_norm;    // of gradients without the loss scale; 0: they are not clipped
    double loss_scale;
    float unscaling;    // 1 / loss_scale, as the update takes it
} gs_grad_clip;

typedef struct gs_adamw {
    float lr, beta1, beta2, eps, weight_decay;
    float grad_scale;                  // folded into the read of the gradient (clipping)
    double correction1, correction2;   // 1 - beta^t, t counted from 1; hoisted out of the loop
    bool decoupled;                    // true: AdamW; false: Adam, decay added to the gradient
} gs_adamw;

typedef struct gs_sgd {
    float lr, momentum, dampening, weight_decay;
    float grad_scale;
    bool nesterov;
    bool first_step;  // the momentum buffer starts as the gradient
} gs_sgd;

// One of many tensors that one launch serves. Tables of them are made once, in pinned memory.
typedef struct gs_cast_item {
    void *to;
    const void *from;
    size_t count;
} gs_cast_item;

typedef struct gs_square_item {
    const float *from;
    double *sum;
    size_t count;
} gs_square_item;

// A parameter of AdamW. `remainder` NULL: `param` is fp32. Else the master of 32 bits is in two halves:
// `value`, bf16, what kernels read, is the master rounded to nearest, ties upwards in magnitude; `remainder`
// is the master's lower half: bits = ((value << 16) - (remainder ≥ 0x8000 ? 0x10000 : 0)) | remainder.
typedef struct gs_adamw_item {
    float *param;         // NULL with a remainder
    uint16_t *value;      // bf16, or NULL; without a remainder: also written, rounded to nearest even
    uint16_t *remainder;
    float *m, *v;
    const float *grad;
    size_t count;
    float weight_decay;
    double correction1, correction2;  // 1 - beta^t of its own number of updates
} gs_adamw_item;

// A matrix of rows × cols (row-major) that is approximated by P·Qᵀ. P and Q are stored by columns: column c
// of P begins at p + c·rows, that of Q at q + c·cols. All of the launch's dtype, GS_FP32 or GS_FP64.
typedef struct gs_low_rank_item {
    void *grad;          // the gradient, then the approximation
    const void *held;    // the error that is owed, or NULL
    void *error;         // where M is kept, and then the next error. NULL: nothing is owed, M is made in `grad`
    void *p, *q;
    void *local_q;       // this rank's q before it was summed; with an error alone. May be q
    size_t rows, cols;
    int rank;            // [1, 64]
    double *row_squares; // NULL, or `rows` numbers: Σ (the next error)² of each row
} gs_low_rank_item;

typedef struct gs_orthogonal_item {
    void *matrix;        // (rank, rows): by columns
    size_t rows;
    int rank;
    const void *spare;   // NULL, or as many columns: a column that is zero when its turn comes is replaced by its own
} gs_orthogonal_item;

// A parameter of a bucket that is compressed, with what its rank still owes of it.
typedef struct gs_residual_item {
    void *grad;        // in the bucket
    const void *held;  // owed since the step before; NULL: nothing
    void *error;       // what is compressed, then what is owed next; may be `grad`
    size_t count;
    size_t first;  // of the bucket's elements, where it begins: a multiple of 8
} gs_residual_item;

// The largest elements of items' `error` by magnitude: a NaN before infinity, of equal ones the first.
typedef struct gs_selection {
    const gs_residual_item *items;  // in order of `first`
    size_t num_items, num_places;  // of the bucket, gaps between items included
    gs_dtype dtype;       // fp32 or fp64
    gs_dtype wire_dtype;  // values are rounded to it, and stay `dtype`; unset: they are not
    size_t num_chosen;    // at most as many elements as all items have
    void *values;         // num_chosen of `dtype`, in order of their places
    uint32_t *places;     // where they are in the bucket
} gs_selection;

// One bit for each element, two numbers for each item: the mean of its elements that are not below zero, and of
// those that are.
typedef struct gs_signs {
    const gs_residual_item *items;
    size_t num_items;
    gs_dtype dtype;  // fp32 or fp64
    void *means;     // 2 · num_items of `dtype`; 0 of none
    uint8_t *bits;   // bit k of byte b: element 8·b + k of the bucket is below zero
} gs_signs;

// Numbers in 8 bits. Those of segment s, elements [s · segment_count, (s + 1) · segment_count), stand for
// scale · (code − zero).
typedef struct gs_quantized {
    uint8_t *codes;  // count
    void *scales;    // `dtype`: scale and zero of segment 0, of segment 1, …; zero is whole, 0 to 255
    size_t count, segment_count;
    gs_dtype dtype;  // of the numbers: fp32 or fp64
} gs_quantized;

typedef struct gs_attention {
    size_t batch, positions, heads, head_channels;  // C = heads · head_channels
} gs_attention;

typedef struct gs_batchnorm {
    size_t rows, channels;
    float momentum, eps;
} gs_batchnorm;

typedef struct gs_kernels {
    const char *name;  // "cpu/avx2"

    // elementwise
    void (*fill)(gs_stream *stream, float *out, float value, size_t count);
    void (*copy)(gs_stream *stream, void *out, const void *in, size_t bytes);
    void (*add)(gs_stream *stream, float *out, const float *a, const float *b, size_t count);
    void (*scale)(gs_stream *stream, float *out, const float *in, float factor, size_t count);
    void (*axpy)(gs_stream *stream, float *y, const float *x, float a, size_t count);  // y += a·x
    // *out = Σ in², chunked the same way for any number of threads; fp64 between chunks.
    void (*sum_squares)(gs_stream *stream, double *out, const float *in, size_t count);
    // *out = how many are infinite or NaN
    void (*count_nonfinite)(gs_stream *stream, uint64_t *out, const float *in, size_t count);

    // bytes
    void (*clear)(gs_stream *stream, void *out, size_t bytes);
    // *sum += Σ in / count: the mean of a pass beside those of others; fp64, fixed order
    void (*add_mean)(gs_stream *stream, double *sum, const float *in, size_t count);

    // one launch for many tensors; `items` as long as the work may run
    void (*cast_many)(gs_stream *stream, const gs_cast_item *items, size_t num_items, gs_dtype to,
                      gs_dtype from, float scale);
    // *items[i].sum = sum_squares of it, the same bits
    void (*sum_squares_many)(gs_stream *stream, const gs_square_item *items, size_t num_items);
    // adamw on each; the step's weight_decay and corrections are not looked at
    void (*adamw_many)(gs_stream *stream, const gs_adamw_item *items, size_t num_items,
                       const gs_adamw *step);
    // master (count) ⇄ its halves, as in gs_adamw_item
    void (*split_master)(gs_stream *stream, uint16_t *value, uint16_t *remainder, const float *master,
                         size_t count);
    void (*join_master)(gs_stream *stream, float *master, const uint16_t *value,
                        const uint16_t *remainder, size_t count);

    // reduce and cast
    void (*reduce)(gs_stream *stream, const gs_reduction *reduction);
    void (*cast)(gs_stream *stream, void *out, gs_dtype out_dtype, const void *in,
                 gs_dtype in_dtype, float scale, size_t count);
    // out[i] = in[i] rounded to fp16 or bf16 and kept as fp32; out may be in.
    void (*round)(gs_stream *stream, float *out, const float *in, gs_dtype dtype, size_t count,
                  bool accumulate);

    // matrix products
    void (*matmul)(gs_stream *stream, float *c, const float *a, const float *b,
                   const gs_matmul *shape);

    // linear layers: x (rows, cols)
    void (*bias_add)(gs_stream *stream, float *x, const float *bias, size_t rows, size_t cols);
    void (*bias_gelu)(gs_stream *stream, float *out, float *x, const float *bias, size_t rows,
                      size_t cols);  // x += bias, out = gelu(x)
    void (*bias_backward)(gs_stream *stream, float *dbias, const float *dy, size_t rows,
                          size_t cols, bool accumulate);
    // GELU in the tanh form; backward in place: dx may be dy
    void (*gelu_backward)(gs_stream *stream, float *dx, const float *dy, const float *x,
                          size_t count);
    void (*relu)(gs_stream *stream, float *out, const float *in, size_t count);
    void (*relu_backward)(gs_stream *stream, float *dx, const float *dy, const float *out,
                          size_t count);

    // layer norm over the last dimension, eps 1e-5, variance / C; mean, rstd: one fp32 for each row
    void (*layernorm)(gs_stream *stream, float *out, float *mean, float *rstd, const float *x,
                      const float *weight, const float *bias, size_t rows, size_t channels);
    // residual = a + b (with b's bias added when bias_b is not NULL), out = layernorm(residual)
    void (*residual_layernorm)(gs_stream *stream, float *residual, float *out, float *mean,
                               float *rstd, const float *a, const float *b, const float *bias_b,
                               const float *weight, const float *bias, size_t rows,
                               size_t channels);
    // dx += …; dweight and dbias overwritten or accumulated. scratch: 2·64·C floats
    void (*layernorm_backward)(gs_stream *stream, float *dx, float *dweight, float *dbias,
                               float *scratch, const float *dy, const float *x, const float *weight,
                               const float *mean, const float *rstd, size_t rows, size_t channels,
                               bool accumulate);

    // out (B·T, C) = wte (vocab, C)[token] + wpe (≥ T, C)[position]. A token outside [0, vocab) makes
    // the stream fail, here and in backward, and leaves the outputs alone.
    void (*embedding)(gs_stream *stream, float *out, const int32_t *tokens, const float *wte,
                      const float *wpe, size_t batch, size_t positions, size_t channels,
                      size_t vocab);
    // dwte (vocab, C) always adds (the classifier half is in it), NULL leaves it out; dwpe (T, C) rows, by
    // `accumulate`.
    void (*embedding_backward)(gs_stream *stream, float *dwte, float *dwpe, const float *dout,
                               const int32_t *tokens, size_t batch, size_t positions,
                               size_t channels, size_t vocab, bool accumulate);
    // out[rows[i]] += in[i], in the order of i; `in` (num_rows, cols). The caller vouches for rows.
    void (*add_rows)(gs_stream *stream, float *out, const int32_t *rows, const float *in,
                     size_t num_rows, size_t cols);

    // causal self-attention. qkv (B, T, 3C), out (B, T, C), logsumexp (B, NH, T)
    void (*attention)(gs_stream *stream, float *out, float *logsumexp, const float *qkv,
                      const gs_attention *shape);
    void (*attention_backward)(gs_stream *stream, float *dqkv, const float *dout, const float *qkv,
                               const float *out, const float *logsumexp, const gs_attention *shape);

    // logits (rows, stride): the first `classes` columns count. losses (rows) = -log softmax[target].
    // gradient: logits become dlogits = (softmax - onehot) · dloss, columns ≥ classes become 0;
    // otherwise logits are left alone. A target outside [0, classes) makes the stream fail.
    // *num_correct (when not NULL) = rows whose largest logit is the target.
    void (*softmax_loss)(gs_stream *stream, float *losses, float *logits, int64_t *num_correct,
                         const int32_t *targets, size_t rows, size_t classes, size_t stride,
                         float dloss, bool gradient);

    // batch norm over rows for each channel. Training: batch statistics (biased variance), saved for
    // backward; running' = (1 - momentum)·running + momentum·batch (unbiased variance), written beside.
    void (*batchnorm)(gs_stream *stream, float *out, float *save_mean, float *save_rstd,
                      float *next_running_mean, float *next_running_var, const float *x,
                      const float *weight, const float *bias, const float *running_mean,
                      const float *running_var, const gs_batchnorm *shape);
    void (*batchnorm_eval)(gs_stream *stream, float *out, const float *x, const float *weight,
                           const float *bias, const float *running_mean, const float *running_var,
                           const gs_batchnorm *shape);
    void (*batchnorm_backward)(gs_stream *stream, float *dx, float *dweight, float *dbias,
                               const float *dy, const float *x, const float *weight,
                               const float *save_mean, const float *save_rstd,
                               const gs_batchnorm *shape, bool accumulate);

    // The same in parts, for statistics over more rows than these: what lies between them is the caller's.
    // Distances from the mean and sums of this part's rows, zero without rows; (C) doubles each.
    //   mean, m2: Σx / rows and Σ(x − mean)². Parts are put together by Chan's formula.
    void (*batchnorm_measure)(gs_stream *stream, double *mean, double *m2, const float *x,
                              const gs_batchnorm *shape);
    // batchnorm with the statistics of `total_rows` rows.
    void (*batchnorm_apply)(gs_stream *stream, float *out, float *save_mean, float *save_rstd,
                            float *next_running_mean, float *next_running_var, const float *x,
                            const float *weight, const float *bias, const float *running_mean,
                            const float *running_var, const double *mean, const double *m2,
                            double total_rows, const gs_batchnorm *shape);
    // sum = Σdy, dot = Σdy·x̂ of this part; dweight, dbias are this part's.
    void (*batchnorm_sums)(gs_stream *stream, double *sum, double *dot, float *dweight,
                           float *dbias, const float *dy, const float *x, const float *save_mean,
                           const float *save_rstd, const gs_batchnorm *shape, bool accumulate);
    // dx from the sums over `total_rows` rows.
    void (*batchnorm_backward_apply)(gs_stream *stream, float *dx, const float *dy, const float *x,
                                     const float *weight, const float *save_mean,
                                     const float *save_rstd, const double *sum, const double *dot,
                                     double total_rows, const gs_batchnorm *shape);

    // optimizers, in place over flat memory
    void (*adamw)(gs_stream *stream, float *param, float *m, float *v, const float *grad,
                  const gs_adamw *step, size_t count);
    void (*sgd)(gs_stream *stream, float *param, float *momentum, const float *grad,
                const gs_sgd *step, size_t count);  // momentum may be NULL when it is 0
    // The same bits in steps that can be taken back: `was` becomes what param was, and the next moments lie
    // beside those that are read. Nothing overlaps. A host writes all but param past its caches.
    void (*adamw_beside)(gs_stream *stream, float *param, float *was, float *next_m, float *next_v,
                         const float *m, const float *v, const float *grad, const gs_adamw *step,
                         size_t count);
    void (*sgd_beside)(gs_stream *stream, float *param, float *was, float *next_momentum,
                       const float *momentum, const float *grad, const gs_sgd *step, size_t count);

    // low-rank approximations of many matrices (PowerSGD); `items` as long as the work may run. Infinities and
    // NaNs in M come out as such in p and q. Bytes of memory for an element of fp32: 12, 4 and 12.
    // M = grad·grad_scale + held·held_scale; p = M·q
    void (*low_rank_project)(gs_stream *stream, const gs_low_rank_item *items, size_t num_items,
                             gs_dtype dtype, double grad_scale, double held_scale);
    // q = Mᵀ·p
    void (*low_rank_back_project)(gs_stream *stream, const gs_low_rank_item *items,
                                  size_t num_items, gs_dtype dtype);
    // grad = p·qᵀ; error = (M − p·local_qᵀ)·error_scale
    void (*low_rank_rebuild)(gs_stream *stream, const gs_low_rank_item *items, size_t num_items,
                             gs_dtype dtype, double error_scale);
    // Columns become orthonormal, from the first to the last. A column of zeros without a spare one stays that, and
    // one of which rounding alone is left becomes it; one whose norm is not finite becomes NaN, and those behind
    // it. `epsilon` is added to the norms of one or two columns.
    void (*orthogonalize_many)(gs_stream *stream, const gs_orthogonal_item *items,
                               size_t num_items, gs_dtype dtype, double epsilon);

    // compression with residuals; items are a table as of the other launches for many tensors
    // error = grad · grad_scale + held · held_scale
    void (*add_residuals)(gs_stream *stream, const gs_residual_item *items, size_t num_items,
                          gs_dtype dtype, double grad_scale, double held_scale);
    // Takes the chosen out of `error`: zero is left of them, or what rounding left.
    void (*select_largest)(gs_stream *stream, const gs_selection *selection);
    // out[places[i]] += values[i]. Places ascend, all below num_places. Nothing else is written if they do not, but
    // out[0] is NaN then, and the rest of `out` means nothing: another rank may have sent them.
    void (*add_at)(gs_stream *stream, void *out, const void *values, const uint32_t *places,
                   size_t count, size_t num_places, gs_dtype dtype);
    // Takes what the bits say out of `error`. A NaN is not below zero.
    void (*take_signs)(gs_stream *stream, const gs_signs *signs);
    // grad = what num_ranks of them say, added in their order; rank r's means are stride_bytes · r behind those of the
    // first, and so are its bits
    void (*add_signs)(gs_stream *stream, const gs_signs *signs, int num_ranks, size_t stride_bytes);

    // 8 bits; fp32 or fp64, in which all of it is computed. Of a segment lo = min(0, in), hi = max(0, in);
    // scale = (hi − lo) / 255, at least least_scale, which is normal; zero = round(−lo / scale), code =
    // round(in / scale) + zero, ties to even, both limited to 0 … 255: a 0 stays 0. The scale is NaN, and so
    // is all that its codes stand for, with a NaN or an infinity in the segment, or where hi − lo is too large.
    void (*quantize)(gs_stream *stream, const gs_quantized *to, const void *in, double least_scale);
    // out = factor · Σ of what the codes of num_inputs messages stand for, added in their order. `from` is the
    // first; codes and scales of each other lie stride_bytes behind those of the one before.
    void (*dequantize)(gs_stream *stream, void *out, const gs_quantized *from, size_t num_inputs,
                       size_t stride_bytes, double factor);

    // Of gradients whose sums of squares these are: norm = √(Σ squares, in order) / loss_scale; value =
    // min(1, max_norm / (norm + 1e-6)), rounded to fp32, · unscaling. It applies where the sum is finite and no error
    // sticks to the stream, also of a kernel that the host had not heard of when this was enqueued: it may hear of it in a wait for
    // an earlier point before this runs. Not in a graph.
    void (*grad_factor)(gs_stream *stream, gs_grad_factor *out, const double *squares, size_t count,
                        const gs_grad_clip *clip);
} gs_kernels;

GS_END_DECLS

#endif
