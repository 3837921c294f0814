#include "kernels/cpu/matmul.h"

#include <cblas.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/log.h"
#include "kernels/cpu/chunks.h"

// OpenBLAS selects its kernels when it is loaded. A release older than the processor does not know
// the model and falls back to SSE3, four times slower; these two let it choose again. Weak: they
// are not part of its interface, and other builds may lack them.
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

// What a core of OpenBLAS computes with, and what a processor has.
typedef enum simd { SIMD_LESS = 0, SIMD_AVX2, SIMD_AVX512 } simd;

static const char *const simd_names[] = {"less than AVX2", "AVX2", "AVX-512"};

static simd core_simd(const char *core) {
    static const struct {
        const char *core;
        simd simd;
    } known[] = {{"Haswell", SIMD_AVX2},
                 {"Zen", SIMD_AVX2},
                 {"SkylakeX", SIMD_AVX512},
                 {"Cooperlake", SIMD_AVX512},
                 {"SapphireRapids", SIMD_AVX512}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcasecmp(core, known[i].core) == 0) return known[i].simd;
    }
    return SIMD_LESS;
}

static simd processor_simd(void) {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return SIMD_LESS;
    bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? SIMD_AVX512 : SIMD_AVX2;
#else
    return SIMD_LESS;  // nothing is known, so nothing is chosen and nothing is said
#endif
}

static void select_core(void) {
    static const char *const fitting[] = {NULL, "Haswell", "SkylakeX"};
    const char *core = fitting[processor_simd()];
    if (!core || getenv("OPENBLAS_CORETYPE") || core_simd(openblas_get_corename()) != SIMD_LESS)
        return;
    if (!gotoblas_dynamic_init || !gotoblas_dynamic_quit) return;
    setenv("OPENBLAS_CORETYPE", core, 1);
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
}

// The core that the environment asks for, when it uses less than the processor has. A name that
// OpenBLAS does not know is no such thing: it chooses by itself then, and well.
static const char *limiting_core(void) {
    const char *asked = getenv("OPENBLAS_CORETYPE");
    return asked && core_simd(openblas_get_corename()) < processor_simd() ? asked : NULL;
}

static void prepare_once(void) {
    openblas_set_num_threads(1);
    select_core();
    const char *asked = limiting_core();
    if (!asked) return;
    char quoted[64];
    gs_log_warn("OpenBLAS is held below what the processor has",
                "OPENBLAS_CORETYPE=%s core=%s core_has=\"%s\" processor_has=\"%s\"",
                gs_log_quote(quoted, sizeof quoted, asked), openblas_get_corename(),
                simd_names[core_simd(openblas_get_corename())], simd_names[processor_simd()]);
}

void gs_cpu_prepare_blas(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare_once);
}

void gs_cpu_describe_blas(char *text, size_t text_bytes) {
    char version[32] = "unknown";
    // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH …"
    if (sscanf(openblas_get_config(), "%*s %31s", version) != 1) strcpy(version, "unknown");
    snprintf(text, text_bytes, "%s/%s", version, openblas_get_corename());
}

void gs_cpu_describe_limit(char *text, size_t text_bytes) {
    const char *asked = limiting_core();
    text[0] = '\0';
    if (!asked) return;
    snprintf(text, text_bytes, "openblas held below %s by OPENBLAS_CORETYPE=%s",
             simd_names[processor_simd()], asked);
}

static void scale_rows(float *c, size_t m, size_t n, size_t stride, float beta) {
    for (size_t row = 0; row < m; row++) {
        for (size_t col = 0; col < n; col++) {
            c[row * stride + col] = beta == 0.0f ? 0.0f : beta * c[row * stride + col];
        }
    }
}

void gs_cpu_multiply(float *c, const float *a, const float *b, const gs_matmul *shape) {
    if (shape->m == 0 || shape->n == 0) return;
    if (shape->k == 0) {
        scale_rows(c, shape->m, shape->n, shape->stride_c, shape->beta);
        return;
    }
    cblas_sgemm(CblasRowMajor, shape->transpose_a ? CblasTrans : CblasNoTrans,
                shape->transpose_b ? CblasTrans : CblasNoTrans, (int)shape->m, (int)shape->n,
                (int)shape->k, shape->alpha, a, (int)shape->stride_a, b, (int)shape->stride_b,
                shape->beta, c, (int)shape->stride_c);
}

// Blocks of C for the threads, by the shape alone: the kernels of BLAS may round an element
// differently in a block of another size. Blocks of 192 columns or more cost one thread 2–4 %.
typedef struct grid {
    size_t row_blocks, col_blocks;
} grid;

#define MAX_BLOCKS 32
#define LEAST_SPLIT_FLOPS 2e6

static size_t count_blocks(size_t extent, size_t max_blocks, size_t least_pair, size_t least) {
    size_t blocks = 1;
    while (2 * blocks <= max_blocks &&
           extent / (2 * blocks) >= (blocks == 1 ? least_pair : least)) {
        blocks *= 2;
    }
    return blocks;
}

static grid plan_grid(const gs_matmul *shape) {
    grid plan = {1, 1};
    double flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;
    if (flops < LEAST_SPLIT_FLOPS) return plan;
    // Splitting along the longer side repeats the packing of the shorter operand.
    if (shape->m > shape->n) {
        plan.row_blocks = count_blocks(shape->m, MAX_BLOCKS, 128, 192);
        plan.col_blocks = count_blocks(shape->n, MAX_BLOCKS / plan.row_blocks, 512, 512);
    } else {
        plan.col_blocks = count_blocks(shape->n, MAX_BLOCKS, 128, 192);
        plan.row_blocks = count_blocks(shape->m, MAX_BLOCKS / plan.col_blocks, 512, 512);
    }
    return plan;
}

typedef struct product {
    float *c;
    const float *a, *b;
    gs_matmul shape;
    grid plan;
    size_t block_rows, block_cols;
} product;

static void multiply_block(void *ctx, size_t item) {
    const product *job = ctx;
    gs_range rows = gs_item_range(item / job->plan.col_blocks, job->block_rows, job->shape.m);
    gs_range cols = gs_item_range(item % job->plan.col_blocks, job->block_cols, job->shape.n);
    gs_matmul part = job->shape;
    part.m = rows.count;
    part.n = cols.count;
    gs_cpu_multiply(job->c + rows.first * part.stride_c + cols.first,
                    job->a + (part.transpose_a ? rows.first : rows.first * part.stride_a),
                    job->b + (part.transpose_b ? cols.first * part.stride_b : cols.first), &part);
}

static size_t block_size(size_t extent, size_t blocks) {
    size_t size = gs_num_items(extent, blocks);
    return blocks == 1 ? extent : gs_num_items(size, 16) * 16;
}

void gs_cpu_matmul(gs_stream *stream, float *c, const float *a, const float *b,
                   const gs_matmul *shape) {
    product job = {.c = c, .a = a, .b = b, .shape = *shape};
    gs_matmul *s = &job.shape;
    if (!s->stride_a) s->stride_a = s->transpose_a ? s->m : s->k;
    if (!s->stride_b) s->stride_b = s->transpose_b ? s->k : s->n;
    if (!s->stride_c) s->stride_c = s->n;
    if (s->m == 0 || s->n == 0) return;
    const size_t most = INT_MAX;
    if (s->m > most || s->n > most || s->k > most || s->stride_a > most || s->stride_b > most ||
        s->stride_c > most) {
        gs_stream_fail(stream,
                       gs_error(GS_INVALID_ARGUMENT, "matmul: %zu×%zu×%zu is beyond 2^31 - 1", s->m,
                                s->n, s->k));
        return;
    }
    job.plan = plan_grid(s);
    job.block_rows = block_size(s->m, job.plan.row_blocks);
    job.block_cols = block_size(s->n, job.plan.col_blocks);
    // Rounding blocks up to whole registers may leave fewer of them.
    job.plan.row_blocks = gs_num_items(s->m, job.block_rows);
    job.plan.col_blocks = gs_num_items(s->n, job.block_cols);
    gs_stream_for_each(stream, job.plan.row_blocks * job.plan.col_blocks, multiply_block, &job);
}
