// Bandwidth of the CPU kernels beside the copy of the same run: GB/s counted as bytes read plus
// bytes written, and their share of the copy. Compute-bound kernels (gelu, attention, matmul) say
// ns/element and GFLOP/s as well.
//   bench_kernels [THREADS [ISA]]
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "kernels/device.h"

#define MOST_RUNS 12
#define FLAT ((size_t)8 << 20)  // 32 MiB of fp32 per array: outside private caches
#define ROWS ((size_t)4096)
#define COLS ((size_t)1024)
#define LOW_RANK_ROWS ((size_t)4096)
#define LOW_RANK_COLS (FLAT / LOW_RANK_ROWS)

typedef struct bench {
    gs_device *device;
    const gs_kernels *kernels;
    gs_stream *stream;
    float *a, *b, *c, *d;  // FLAT each
    int rank;              // of low-rank approximations
    double copy_gb_per_sec;
} bench;

static float *make_array(gs_device *device, uint64_t seed) {
    void *memory;
    gs_status status = gs_device_alloc(device, &memory, FLAT * sizeof(float));
    if (status.code) {
        fprintf(stderr, "bench_kernels: %s\n", status.message);
        exit(1);
    }
    gs_random_fill_uniform(memory, FLAT, (gs_random_key){seed, 0}, 0, -1.0f, 1.0f);
    return memory;
}

static void run_copy(const bench *b) {
    b->kernels->copy(b->stream, b->a, b->b, FLAT * 4);
}

static void run_axpy(const bench *b) {
    b->kernels->axpy(b->stream, b->a, b->b, 1e-3f, FLAT);
}

static void run_sum_squares(const bench *b) {
    double sum;
    b->kernels->sum_squares(b->stream, &sum, b->b, FLAT);
}

static void run_reduce(const bench *b, int num_inputs, gs_dtype dtype) {
    const void *inputs[] = {b->a, b->b, b->c, b->d};
    void *outputs[] = {b->a};
    gs_reduction r = {.outputs = outputs,
                      .inputs = inputs,
                      .num_outputs = 1,
                      .num_inputs = num_inputs,
                      .dtype = dtype,
                      .scale = 0.25,
                      .count = FLAT};
    b->kernels->reduce(b->stream, &r);
}

static void run_reduce2(const bench *b) {
    run_reduce(b, 2, GS_FP32);
}

static void run_reduce4(const bench *b) {
    run_reduce(b, 4, GS_FP32);
}

static void run_reduce4_bf16(const bench *b) {
    run_reduce(b, 4, GS_BF16);
}

static void run_reduce_wire(const bench *b, gs_dtype wire_dtype) {
    const void *inputs[] = {b->a, b->b, b->c, b->d};
    void *outputs[] = {b->a};
    gs_reduction r = {.outputs = outputs,
                      .inputs = inputs,
                      .num_outputs = 1,
                      .num_inputs = 4,
                      .dtype = GS_FP32,
                      .scale = 1,
                      .count = FLAT,
                      .wire_dtype = wire_dtype,
                      .wire_scale = 0.25f};
    b->kernels->reduce(b->stream, &r);
}

static void run_reduce4_by_bf16(const bench *b) {
    run_reduce_wire(b, GS_BF16);
}

static void run_reduce4_by_fp16(const bench *b) {
    run_reduce_wire(b, GS_FP16);
}

static void run_cast(const bench *b) {
    b->kernels->cast(b->stream, b->a, GS_BF16, b->b, GS_FP32, 0.5f, FLAT);
}

static void run_round(const bench *b) {
    b->kernels->round(b->stream, b->a, b->b, GS_FP16, FLAT, false);
}

static void run_adamw(const bench *b) {
    const gs_adamw step = {.lr = 1e-4f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .weight_decay = 0.1f,
                           .grad_scale = 1.0f,
                           .correction1 = 0.5,
                           .correction2 = 0.5,
                           .decoupled = true};
    b->kernels->adamw(b->stream, b->a, b->c, b->d, b->b, &step, FLAT);
}

// Each array is two of half its size.
static void run_adamw_beside(const bench *b) {
    const gs_adamw step = {.lr = 1e-4f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .grad_scale = 1.0f,
                           .correction1 = 0.5,
                           .correction2 = 0.5};
    const size_t half = FLAT / 2;
    b->kernels->adamw_beside(b->stream, b->a, b->a + half, b->c, b->d, b->c + half, b->d + half, b->b,
                             &step, half);
}

static void run_layernorm(const bench *b) {
    b->kernels->layernorm(b->stream, b->a, b->c, b->c + ROWS, b->b, b->d, b->d + COLS, ROWS, COLS);
}

static void run_bias_gelu(const bench *b) {
    b->kernels->bias_gelu(b->stream, b->a, b->c, b->d, ROWS, COLS);
}

static void run_gelu_backward(const bench *b) {
    b->kernels->gelu_backward(b->stream, b->a, b->b, b->c, ROWS * COLS);
}

static const gs_attention attention = {
    .batch = 4, .positions = 256, .heads = 4, .head_channels = 64};
#define ATTENTION_ELEMENTS ((size_t)4 * 256 * 256)

static void run_attention(const bench *b) {
    b->kernels->attention(b->stream, b->a, b->c, b->b, &attention);
}

static void run_attention_backward(const bench *b) {
    b->kernels->attention_backward(b->stream, b->a, b->d, b->b, b->d, b->c, &attention);
}

static void run_matmul(const bench *b) {
    const gs_matmul shape = {.transpose_b = true, .m = 256, .n = 1024, .k = 256, .alpha = 1.0f};
    b->kernels->matmul(b->stream, b->a, b->b, b->c, &shape);
}

// Gradient, held error and M are three arrays; P and Q lie in the fourth.
static gs_low_rank_item make_low_rank(const bench *b) {
    return (gs_low_rank_item){.grad = b->a,
                              .held = b->b,
                              .error = b->c,
                              .p = b->d,
                              .q = b->d + LOW_RANK_ROWS * 64,
                              .local_q = b->d + (LOW_RANK_ROWS + LOW_RANK_COLS) * 64,
                              .rows = LOW_RANK_ROWS,
                              .cols = LOW_RANK_COLS,
                              .rank = b->rank};
}

static void run_project(const bench *b) {
    const gs_low_rank_item item = make_low_rank(b);
    b->kernels->low_rank_project(b->stream, &item, 1, GS_FP32, 0.5, 1.0);
}

static void run_back_project(const bench *b) {
    const gs_low_rank_item item = make_low_rank(b);
    b->kernels->low_rank_back_project(b->stream, &item, 1, GS_FP32);
}

// An error that shrinks: not into denormal numbers within these runs.
static void run_rebuild(const bench *b) {
    const gs_low_rank_item item = make_low_rank(b);
    b->kernels->low_rank_rebuild(b->stream, &item, 1, GS_FP32, 0.5);
}

static double measure_seconds(const bench *b, void (*run)(const bench *b)) {
    double best = 1e30;
    run(b);
    for (int i = 0; i < MOST_RUNS; i++) {
        int64_t start_ns = gs_now_ns();
        run(b);
        double seconds = (double)(gs_now_ns() - start_ns) / 1e9;
        if (seconds < best) best = seconds;
    }
    return best;
}

typedef struct bench_row {
    const char *name;
    void (*run)(const bench *b);
    size_t elements;
    double bytes_per_element, flops_per_element;
    int rank;
} bench_row;

#define LOW_RANK(rank)                                                                             \
    {"low-rank project, " #rank, run_project, FLAT, 12, 2 * (rank), rank},                         \
        {"low-rank back, " #rank, run_back_project, FLAT, 4, 2 * (rank), rank}, {                  \
        "low-rank rebuild, " #rank, run_rebuild, FLAT, 12, 4 * (rank), rank                        \
    }

static const bench_row rows[] = {
    {"copy", run_copy, FLAT, 8, 0, 0},
    {"axpy", run_axpy, FLAT, 12, 0, 0},
    {"sum_squares", run_sum_squares, FLAT, 4, 0, 0},
    {"reduce fp32, 2 inputs", run_reduce2, FLAT, 12, 0, 0},
    {"reduce fp32, 4 inputs", run_reduce4, FLAT, 20, 0, 0},
    {"reduce bf16, 4 inputs", run_reduce4_bf16, FLAT, 10, 0, 0},
    {"reduce fp32 by bf16, 4 inputs", run_reduce4_by_bf16, FLAT, 20, 0, 0},
    {"reduce fp32 by fp16, 4 inputs", run_reduce4_by_fp16, FLAT, 20, 0, 0},
    {"cast fp32 to bf16", run_cast, FLAT, 6, 0, 0},
    {"round through fp16", run_round, FLAT, 8, 0, 0},
    {"adamw", run_adamw, FLAT, 28, 0, 0},
    {"adamw_beside", run_adamw_beside, FLAT / 2, 32, 0, 0},
    {"layernorm", run_layernorm, ROWS *COLS, 8, 0, 0},
    {"bias_gelu", run_bias_gelu, ROWS *COLS, 12, 0, 0},
    {"gelu_backward", run_gelu_backward, ROWS *COLS, 12, 0, 0},
    // Causal: T/2 keys for each query, 2 products forward, 5 backward.
    {"attention T=256", run_attention, ATTENTION_ELEMENTS, 16, 2 * 256, 0},
    {"attention_backward", run_attention_backward, ATTENTION_ELEMENTS, 32, 5 * 256, 0},
    {"matmul 256x1024x256", run_matmul, (size_t)256 * 1024, 0, 2 * 256, 0},
    LOW_RANK(1),
    LOW_RANK(2),
    LOW_RANK(4),
    LOW_RANK(8),
    LOW_RANK(32),
};

static void print_row(bench *b, const bench_row *row) {
    double seconds = measure_seconds(b, row->run), elements = (double)row->elements;
    double gb_per_sec = row->bytes_per_element * elements / seconds / 1e9;
    if (row->run == run_copy) b->copy_gb_per_sec = gb_per_sec;
    printf("%-24s %8.3f ms %7.3f ns/element", row->name, 1e3 * seconds, 1e9 * seconds / elements);
    if (row->bytes_per_element > 0) {
        printf(" %7.1f GB/s %5.2f of copy", gb_per_sec, gb_per_sec / b->copy_gb_per_sec);
    }
    if (row->flops_per_element > 0) {
        printf(" %7.1f GFLOP/s", row->flops_per_element * elements / seconds / 1e9);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    gs_device_options options = {.num_threads = argc > 1 ? atoi(argv[1]) : 1,
                                 .isa = argc > 2 ? argv[2] : NULL};
    bench b = {0};
    gs_status status = gs_device_open(&b.device, "cpu", &options);
    if (status.code) {
        fprintf(stderr, "bench_kernels: %s\n", status.message);
        return 1;
    }
    b.kernels = gs_device_kernels(b.device);
    b.stream = gs_device_stream(b.device);
    float **arrays[] = {&b.a, &b.b, &b.c, &b.d};
    for (uint64_t i = 0; i < 4; i++) *arrays[i] = make_array(b.device, i);

    char arithmetic[160];
    gs_device_arithmetic(b.device, arithmetic, sizeof arithmetic);
    printf("%s, %d thread(s), %s\n", b.kernels->name, gs_device_num_threads(b.device), arithmetic);
    char limit[128];
    gs_device_limit(b.device, limit, sizeof limit);
    if (*limit) printf("warning: %s\n", limit);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        // Moments and logits from the last row would be denormal or huge here.
        gs_random_fill_uniform(b.c, FLAT, (gs_random_key){9, i}, 0, 0.0f, 1.0f);
        gs_random_fill_uniform(b.d, FLAT, (gs_random_key){10, i}, 0, 0.0f, 1.0f);
        b.rank = rows[i].rank;
        print_row(&b, &rows[i]);
    }

    status = gs_stream_wait(b.stream, gs_deadline_in_seconds(1));
    for (int i = 0; i < 4; i++) gs_device_free(b.device, *arrays[i]);
    gs_device_close(b.device);
    if (status.code) fprintf(stderr, "bench_kernels: %s\n", status.message);
    return status.code ? 1 : 0;
}
