// Bandwidth of a GPU's kernels beside the copy of the same run, and the speed of what computes.
//
//   bench_gpu_kernels [--small] [bandwidth] [matmul] [attention]      default: all three
//
// bandwidth: GB/s counted as bytes read plus bytes written, and their share of the copy, on tensors
// of 64 MiB or more, none of which the caches hold; marked are kernels of the reducer, of optimizers and elementwise ones that
// are below GOAL_PERCENT of it, and the last line counts them. matmul: the product that a model's FLOP/s are
// compared with. attention: causal, half of the products of all pairs; 5 products backward against
// 2 forward, however many a kernel makes. Medians of times between events, the least in brackets.
// --small: sizes for the simulator.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "kernels/device.h"
#include "kernels/half.h"
#include "tests/support/device_library.h"

#define SKIPPED 77
#define RUNS 21
#define WAIT_SECONDS 60.0
#define NUM_FLAT 7
#define NUM_ITEMS 64  // of launches for many tensors
#define GOAL_PERCENT 85.0
#define QUANTIZED_ROW ((size_t)512)  // as the hooks cut

typedef struct bench {
    gs_device *device;
    const gs_kernels *k;
    const gs_half_kernels *half;
    gs_stream *stream;
    size_t count;       // elements of fp32 of a flat tensor
    size_t rows, cols;  // of the same memory as a matrix of 16 bits
    bool small;
    char *flat[NUM_FLAT];
    float *few;  // weights and statistics
    void *pinned;
    gs_event *from, *to;
    double copy_gb_per_sec;
} bench;

static void must(gs_status status) {
    if (!status.code) return;
    fprintf(stderr, "bench_gpu_kernels: %s\n", status.message);
    exit(1);
}

// ---- what is measured

static float *fp32(const bench *b, int i) {
    return (float *)(void *)b->flat[i];
}

static gs_half *half(const bench *b, int i) {
    return (gs_half *)(void *)b->flat[i];
}

static void run_copy(const bench *b) {
    b->k->copy(b->stream, b->flat[0], b->flat[1], b->count * 4);
}

static void run_clear(const bench *b) {
    b->k->clear(b->stream, b->flat[0], b->count * 4);
}

static void run_add(const bench *b) {
    b->k->add(b->stream, fp32(b, 0), fp32(b, 1), fp32(b, 2), b->count);
}

static void run_scale(const bench *b) {
    b->k->scale(b->stream, fp32(b, 0), fp32(b, 1), 0.5f, b->count);
}

static void run_axpy(const bench *b) {
    b->k->axpy(b->stream, fp32(b, 0), fp32(b, 1), 1e-3f, b->count);
}

static void run_sum_squares(const bench *b) {
    b->k->sum_squares(b->stream, b->pinned, fp32(b, 1), b->count);
}

static void run_sum_squares_many(const bench *b) {
    gs_square_item *items = b->pinned;
    double *sums = (double *)(void *)(items + NUM_ITEMS);
    const size_t each = b->count / NUM_ITEMS;
    for (size_t i = 0; i < NUM_ITEMS; i++)
        items[i] = (gs_square_item){fp32(b, 1) + i * each, &sums[i], each};
    b->k->sum_squares_many(b->stream, items, NUM_ITEMS);
}

static void run_count_nonfinite(const bench *b) {
    b->k->count_nonfinite(b->stream, b->pinned, fp32(b, 1), b->count);
}

static void reduce(const bench *b, int num_inputs, gs_dtype dtype, size_t count) {
    const void *inputs[] = {b->flat[1], b->flat[2], b->flat[3], b->flat[4]};
    void *outputs[] = {b->flat[0]};
    const gs_reduction reduction = {.outputs = outputs,
                                    .inputs = inputs,
                                    .num_outputs = 1,
                                    .num_inputs = num_inputs,
                                    .dtype = dtype,
                                    .scale = 0.25,
                                    .count = count};
    b->k->reduce(b->stream, &reduction);
}

static void run_reduce_fp32(const bench *b) {
    reduce(b, 2, GS_FP32, b->count);
}

static void run_reduce_bf16(const bench *b) {
    reduce(b, 4, GS_BF16, 2 * b->count);
}

static void run_cast(const bench *b) {
    b->k->cast(b->stream, b->flat[0], GS_BF16, b->flat[1], GS_FP32, 0.5f, b->count);
}

static void run_cast_back(const bench *b) {
    b->k->cast(b->stream, b->flat[0], GS_FP32, b->flat[1], GS_BF16, 0.5f, b->count);
}

static void run_cast_many(const bench *b) {
    gs_cast_item *items = b->pinned;
    const size_t each = b->count / NUM_ITEMS;
    for (size_t i = 0; i < NUM_ITEMS; i++)
        items[i] = (gs_cast_item){half(b, 0) + i * each, fp32(b, 1) + i * each, each};
    b->k->cast_many(b->stream, items, NUM_ITEMS, GS_BF16, GS_FP32, 1.0f);
}

static void run_round(const bench *b) {
    b->k->round(b->stream, fp32(b, 0), fp32(b, 1), GS_BF16, b->count, false);
}

static const gs_adamw adamw = {.lr = 1e-4f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .eps = 1e-8f,
                               .weight_decay = 0.1f,
                               .grad_scale = 1.0f,
                               .correction1 = 0.5,
                               .correction2 = 0.5,
                               .decoupled = true};

static void run_adamw(const bench *b) {
    b->k->adamw(b->stream, fp32(b, 0), fp32(b, 2), fp32(b, 3), fp32(b, 1), &adamw, b->count);
}

static void run_adamw_beside(const bench *b) {
    b->k->adamw_beside(b->stream, fp32(b, 0), fp32(b, 4), fp32(b, 5), fp32(b, 6), fp32(b, 2), fp32(b, 3), fp32(b, 1), &adamw,
                       b->count);
}

static void run_adamw_halves(const bench *b) {
    gs_adamw_item *item = b->pinned;
    *item = (gs_adamw_item){.value = (uint16_t *)half(b, 0),
                            .remainder = (uint16_t *)half(b, 4),
                            .m = fp32(b, 2),
                            .v = fp32(b, 3),
                            .grad = fp32(b, 1),
                            .count = b->count,
                            .weight_decay = 0.1f,
                            .correction1 = 0.5,
                            .correction2 = 0.5};
    b->k->adamw_many(b->stream, item, 1, &adamw);
}

static const gs_sgd sgd = {.lr = 1e-3f, .momentum = 0.9f, .grad_scale = 1.0f};

static void run_sgd(const bench *b) {
    b->k->sgd(b->stream, fp32(b, 0), fp32(b, 2), fp32(b, 1), &sgd, b->count);
}

static void run_sgd_beside(const bench *b) {
    b->k->sgd_beside(b->stream, fp32(b, 0), fp32(b, 3), fp32(b, 4), fp32(b, 2), fp32(b, 1), &sgd, b->count);
}

static void run_split_master(const bench *b) {
    b->k->split_master(b->stream, half(b, 0), half(b, 2), fp32(b, 1), b->count);
}

static void run_join_master(const bench *b) {
    b->k->join_master(b->stream, fp32(b, 0), half(b, 1), half(b, 2), b->count);
}

// Codes, and behind them scale and zero of each row; a second message as far behind.
static gs_quantized message(const bench *b, int flat) {
    return (gs_quantized){.codes = (uint8_t *)b->flat[flat],
                          .scales = b->flat[flat] + b->count,
                          .count = b->count,
                          .segment_count = QUANTIZED_ROW,
                          .dtype = GS_FP32};
}

static void run_quantize(const bench *b) {
    const gs_quantized to = message(b, 0);
    b->k->quantize(b->stream, &to, fp32(b, 1), 1e-30);
}

static void run_dequantize(const bench *b) {
    const gs_quantized from = message(b, 1);
    b->k->dequantize(b->stream, fp32(b, 0), &from, 2, 2 * b->count, 0.5);
}

static void run_layernorm(const bench *b) {
    b->half->layernorm(b->stream, half(b, 0), b->few, b->few + b->rows, half(b, 1), half(b, 4),
                       half(b, 4), b->rows, b->cols);
}

static void run_residual_layernorm(const bench *b) {
    b->half->residual_layernorm(b->stream, half(b, 0), half(b, 1), b->few, b->few + b->rows,
                                half(b, 2), half(b, 3), half(b, 4), half(b, 4), b->rows, b->cols);
}

static void run_layernorm_backward(const bench *b) {
    float *weights = b->few + 2 * b->rows;
    b->half->layernorm_backward(b->stream, half(b, 0), weights, weights + b->cols,
                                weights + 2 * b->cols, half(b, 1), half(b, 2), half(b, 4), b->few,
                                b->few + b->rows, b->rows, b->cols, false, true);
}

// The matrix in fp32, with half as many rows.
static void run_bias_add(const bench *b) {
    b->k->bias_add(b->stream, fp32(b, 0), b->few, b->rows / 2, b->cols);
}

static void run_bias_gelu(const bench *b) {
    b->k->bias_gelu(b->stream, fp32(b, 1), fp32(b, 0), b->few, b->rows / 2, b->cols);
}

static void run_bias_backward(const bench *b) {
    b->half->bias_backward(b->stream, b->few, half(b, 1), b->rows, b->cols, false);
}

#define VOCAB ((size_t)50304)

static void run_softmax_loss(const bench *b) {
    const size_t classes = b->small ? 256 : VOCAB, rows = 2 * b->count / classes;
    b->half->softmax_loss(b->stream, b->few, half(b, 0), NULL,
                          (const int32_t *)(const void *)b->flat[3], rows, classes, classes, 1e-5f,
                          true);
}

static void run_gelu_backward(const bench *b) {
    b->k->gelu_backward(b->stream, fp32(b, 0), fp32(b, 1), fp32(b, 2), b->count);
}

static void run_relu(const bench *b) {
    b->k->relu(b->stream, fp32(b, 0), fp32(b, 1), b->count);
}

static void run_relu_backward(const bench *b) {
    b->k->relu_backward(b->stream, fp32(b, 0), fp32(b, 1), fp32(b, 2), b->count);
}

typedef struct bandwidth_row {
    const char *name;
    void (*run)(const bench *b);
    double bytes;  // for each 4 bytes of a flat tensor
    gs_dtype dtype;
    bool has_goal;  // GOAL_PERCENT
} bandwidth_row;

static const bandwidth_row rows[] = {
    {"copy", run_copy, 8, GS_FP32, false},
    {"clear", run_clear, 4, GS_FP32, true},
    {"add", run_add, 12, GS_FP32, true},
    {"scale", run_scale, 8, GS_FP32, true},
    {"axpy", run_axpy, 12, GS_FP32, true},
    {"sum_squares", run_sum_squares, 4, GS_FP32, true},
    {"sum_squares_many, 64", run_sum_squares_many, 4, GS_FP32, true},
    {"count_nonfinite", run_count_nonfinite, 4, GS_FP32, true},
    {"reduce fp32, 2 inputs", run_reduce_fp32, 12, GS_FP32, true},
    {"reduce bf16, 4 inputs", run_reduce_bf16, 20, GS_BF16, true},
    {"cast fp32 to bf16", run_cast, 6, GS_FP32, true},
    {"cast bf16 to fp32", run_cast_back, 6, GS_BF16, true},
    {"cast_many, 64 tensors", run_cast_many, 6, GS_FP32, true},
    {"round through bf16", run_round, 8, GS_FP32, true},
    {"quantize, rows of 512", run_quantize, 5 + 8.0 / QUANTIZED_ROW, GS_FP32, true},
    {"dequantize, 2 inputs", run_dequantize, 6 + 16.0 / QUANTIZED_ROW, GS_FP32, true},
    {"adamw fp32", run_adamw, 28, GS_FP32, true},
    {"adamw_beside fp32", run_adamw_beside, 32, GS_FP32, true},
    {"adamw bf16 + remainder", run_adamw_halves, 28, GS_FP32, true},
    {"sgd with momentum", run_sgd, 20, GS_FP32, true},
    {"sgd_beside with momentum", run_sgd_beside, 24, GS_FP32, true},
    {"split_master", run_split_master, 8, GS_FP32, true},
    {"join_master", run_join_master, 8, GS_BF16, true},
    {"bias_add fp32", run_bias_add, 8, GS_FP32, true},
    {"bias_gelu fp32", run_bias_gelu, 12, GS_FP32, true},
    {"gelu_backward fp32", run_gelu_backward, 12, GS_FP32, true},
    {"relu fp32", run_relu, 8, GS_FP32, true},
    {"relu_backward fp32", run_relu_backward, 12, GS_FP32, true},
    {"layernorm bf16", run_layernorm, 8, GS_BF16, false},
    {"residual_layernorm bf16", run_residual_layernorm, 16, GS_BF16, false},
    {"layernorm_backward bf16", run_layernorm_backward, 16, GS_BF16, false},
    {"bias_backward bf16", run_bias_backward, 4, GS_BF16, false},
    {"softmax_loss bf16", run_softmax_loss, 8, GS_BF16, false},
    {"copy again", run_copy, 8, GS_FP32, false},
};

// ---- measuring

typedef struct seconds {
    double median, least;
} seconds;

static seconds measure(const bench *b, void (*run)(const bench *b, const void *shape),
                       const void *shape) {
    double times[RUNS];
    const int runs = b->small ? 2 : RUNS;
    run(b, shape);
    run(b, shape);
    for (int i = 0; i < runs; i++) {
        int64_t ns = 0;
        gs_event_record(b->from, b->stream);
        run(b, shape);
        gs_event_record(b->to, b->stream);
        must(gs_stream_wait(b->stream, gs_deadline_in_seconds(WAIT_SECONDS)));
        must(gs_event_elapsed(b->from, b->to, &ns));
        times[i] = (double)(ns > 0 ? ns : 1) / 1e9;
    }
    const double median = measure_quantile(times, runs, 0.5);
    return (seconds){median, times[0]};
}

static void run_row(const bench *b, const void *shape) {
    ((const bandwidth_row *)shape)->run(b);
}

// Numbers of the size that activations have: constants would make products faster than they are,
// and moments and logits of the row before would be denormal or huge.
static void fill_flat(const bench *b, gs_dtype dtype) {
    const size_t bytes = b->count * 4, piece = (size_t)4 << 20,
                 numbers = piece / gs_dtype_bytes(dtype);
    if (dtype == GS_FP32) {
        for (int i = 0; i < NUM_FLAT; i++)
            b->k->fill(b->stream, fp32(b, i), 0.01f * (float)(i + 1), b->count);
        return;
    }
    uint16_t *host = malloc(piece);
    if (!host) must(gs_error(GS_RESOURCE_EXHAUSTED, "out of memory"));
    uint32_t state = 1;
    for (size_t i = 0; i < numbers; i++) {
        state = state * 1664525 + 1013904223;
        host[i] = gs_fp32_to_bf16((float)(int32_t)state / 2147483648.0f);
    }
    for (int i = 0; i < NUM_FLAT; i++) {
        for (size_t at = 0; at < bytes; at += piece) {
            must(gs_device_upload(b->device, b->flat[i] + at, host,
                                  bytes - at < piece ? bytes - at : piece));
        }
    }
    free(host);
}

static void measure_bandwidth(bench *b) {
    int num_asked = 0, num_below = 0;
    printf("%-26s %20s %10s %8s\n", "kernel", "ms", "GB/s", "of copy");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fill_flat(b, rows[i].dtype);
        if (rows[i].run == run_softmax_loss) b->k->clear(b->stream, b->flat[3], b->count * 4);
        const seconds took = measure(b, run_row, &rows[i]);
        const double gb_per_sec = rows[i].bytes * (double)b->count / took.median / 1e9;
        if (i == 0) b->copy_gb_per_sec = gb_per_sec;
        const double percent = 100 * gb_per_sec / b->copy_gb_per_sec;
        const bool is_below = rows[i].has_goal && percent < GOAL_PERCENT;
        num_asked += rows[i].has_goal;
        num_below += is_below;
        printf("%-26s %9.4f (%8.4f) %10.1f %7.1f%%%s\n", rows[i].name, 1e3 * took.median, 1e3 * took.least, gb_per_sec,
               percent, is_below ? "  BELOW" : "");
    }
    printf("bandwidth: %d of %d kernels reach %.0f %% of copy\n", num_asked - num_below, num_asked, GOAL_PERCENT);
}

static void run_matmul(const bench *b, const void *shape) {
    const gs_half_matmul product = {.shape = *(const gs_matmul *)shape};
    b->half->matmul(b->stream, half(b, 0), half(b, 1), half(b, 2), &product);
}

static void measure_matmul(bench *b) {
    static const size_t sizes[][3] = {{8192, 8192, 8192}, {16384, 3072, 768}, {16384, 768, 3072}};
    fill_flat(b, GS_BF16);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t by = b->small ? 128 : 1;
        const gs_matmul shape = {.transpose_b = true,
                                 .m = sizes[i][0] / by,
                                 .n = sizes[i][1] / by,
                                 .k = sizes[i][2] / by,
                                 .alpha = 1.0f};
        const seconds took = measure(b, run_matmul, &shape);
        const double flops = 2.0 * (double)shape.m * (double)shape.n * (double)shape.k;
        printf("matmul bf16 %zux%zux%zu: %.4f ms (%.4f), %.1f TFLOP/s\n", shape.m, shape.n, shape.k,
               1e3 * took.median, 1e3 * took.least, flops / took.median / 1e12);
    }
}

static void run_attention(const bench *b, const void *shape) {
    b->half->attention(b->stream, half(b, 0), b->few, half(b, 1), shape);
}

static void run_attention_backward(const bench *b, const void *shape) {
    b->half->attention_backward(b->stream, half(b, 3), half(b, 2), half(b, 1), half(b, 0), b->few,
                                shape);
}

static void measure_attention(bench *b) {
    static const gs_attention shapes[] = {
        {32, 1024, 12, 64}, {8, 4096, 12, 64}, {32, 1024, 6, 128}};
    fill_flat(b, GS_BF16);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        gs_attention shape = shapes[i];
        if (b->small) shape = (gs_attention){1, 128, 1, shape.head_channels};
        const double pairs = (double)shape.positions * (double)shape.positions / 2;
        const double flops = 4 * pairs * (double)(shape.batch * shape.heads * shape.head_channels);
        const seconds forward = measure(b, run_attention, &shape),
                      backward = measure(b, run_attention_backward, &shape);
        printf("attention bf16 %zu x %zu, %zu heads of %zu: forward %.4f ms, %.1f TFLOP/s; "
               "backward %.4f ms, "
               "%.1f TFLOP/s\n",
               shape.batch, shape.positions, shape.heads, shape.head_channels, 1e3 * forward.median,
               flops / forward.median / 1e12, 1e3 * backward.median,
               2.5 * flops / backward.median / 1e12);
    }
}

static void open_bench(bench *b) {
    b->k = gs_device_kernels(b->device);
    b->half = gs_device_half_kernels(b->device, GS_BF16);
    b->stream = gs_device_stream(b->device);
    b->count = b->small ? (size_t)1 << 16 : (size_t)64 << 20;
    b->cols = b->small ? 128 : 1024;
    b->rows = 2 * b->count / b->cols;
    for (int i = 0; i < NUM_FLAT; i++) {
        void *memory;
        must(gs_device_alloc(b->device, &memory, b->count * 4));
        b->flat[i] = memory;
    }
    void *few;
    must(gs_device_alloc(b->device, &few,
                         (2 * b->rows + 200 * b->cols + ((size_t)1 << 20)) * sizeof(float)));
    b->few = few;
    must(gs_device_alloc_pinned(b->device, &b->pinned, (size_t)1 << 16));
    must(gs_event_create(&b->from, b->device, true));
    must(gs_event_create(&b->to, b->device, true));
}

static void close_bench(bench *b) {
    gs_event_destroy(b->from);
    gs_event_destroy(b->to);
    gs_device_free_pinned(b->device, b->pinned);
    gs_device_free(b->device, b->few);
    for (int i = 0; i < NUM_FLAT; i++) gs_device_free(b->device, b->flat[i]);
    gs_device_close(b->device);
}

int main(int argc, char **argv) {
    bench b = {0};
    bool bandwidth = false, matmul = false, attention = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0)
            b.small = true;
        else if (strcmp(argv[i], "bandwidth") == 0)
            bandwidth = true;
        else if (strcmp(argv[i], "matmul") == 0)
            matmul = true;
        else if (strcmp(argv[i], "attention") == 0)
            attention = true;
        else {
            fprintf(stderr,
                    "usage: bench_gpu_kernels [--small] [bandwidth] [matmul] [attention]\n");
            return 2;
        }
    }
    const bool all = !bandwidth && !matmul && !attention;
    gs_status status = gs_device_open(&b.device, "cuda:0", &(gs_device_options){.num_threads = 1});
    if (status.code) {
        printf("skipped: %s\n", status.message);
        return SKIPPED;
    }
    if (!gs_test_has_libraries(b.device)) return 1;
    open_bench(&b);
    if (all || bandwidth) measure_bandwidth(&b);
    if (all || matmul) measure_matmul(&b);
    if (all || attention) measure_attention(&b);
    close_bench(&b);
    return 0;
}
