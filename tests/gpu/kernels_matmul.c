// Matrix products: all transposes, odd shapes and alignments, rows apart, alpha and beta, epilogues.
#include "tests/gpu/kernel_case.h"

// A sum that cancels keeps the error of its terms; TF32 would be off by 1e-3.
static const kernel_bound fp32_bound = {1e-4, 1e-4, "sums in another order"};

// Without the library's epilogue the product is rounded before the bias comes.
static kernel_bound half_bound(gs_dtype dtype) {
    const char *why = "sums in another order, then one or two roundings";
    if (dtype == GS_BF16) return (kernel_bound){0x1p-6, 0x1p-5, why};
    return (kernel_bound){0x1p-9, 0x1p-8, why};
}

typedef struct product_shape {
    gs_half_matmul product;
    size_t count_a, count_b, count_c;
} product_shape;

static size_t draw_stride(kernel_test *test, size_t tight) {
    static const size_t more[] = {0, 0, 1, 7, 24};
    return tight + more[kernel_random(test, 5)];
}

// Of what a matrix with rows apart covers: no element behind its last row.
static size_t count_of(size_t rows, size_t cols, size_t stride) {
    return rows && cols ? (rows - 1) * stride + cols : 0;
}

// Usually odd; in every third round what tensor cores like.
static product_shape draw_shape(kernel_test *test, int round, gs_epilogue epilogue) {
    product_shape s = {.product.epilogue = epilogue};
    gs_matmul *m = &s.product.shape;
    // Several tiles of 64 along each side in the simulator too.
    const size_t largest = kernel_in_simulator() ? 200 : 1600;
    // GELU's tail multiplies the relative error of its input by the square of it: of a few elements all may
    // lie there, of many the norm is that of the others.
    const size_t least = epilogue == GS_EPILOGUE_NONE ? 0 : 8;
    m->m = kernel_dim(test, least, largest);
    m->n = kernel_dim(test, least ? least : 1, largest);
    m->k = kernel_dim(test, 0, largest);
    if (round % 3 == 0) {
        m->m = 8 * (1 + m->m / 8);
        m->n = 8 * (1 + m->n / 8);
        m->k = 8 * (1 + m->k / 8);
    }
    m->transpose_a = kernel_random(test, 2);
    m->transpose_b = kernel_random(test, 2);
    m->alpha = 1.0f;
    if (epilogue == GS_EPILOGUE_NONE && kernel_random(test, 2)) {
        m->alpha = kernel_real(test, -2.0f, 2.0f);
        m->beta = kernel_random(test, 2) ? 1.0f : 0.5f;
    }
    const size_t rows_a = m->transpose_a ? m->k : m->m, cols_a = m->transpose_a ? m->m : m->k;
    const size_t rows_b = m->transpose_b ? m->n : m->k, cols_b = m->transpose_b ? m->k : m->n;
    const bool apart = round % 3 != 0;
    m->stride_a = apart ? draw_stride(test, cols_a) : 0;
    m->stride_b = apart ? draw_stride(test, cols_b) : 0;
    m->stride_c = apart ? draw_stride(test, m->n) : 0;
    s.count_a = count_of(rows_a, cols_a, apart ? m->stride_a : cols_a);
    s.count_b = count_of(rows_b, cols_b, apart ? m->stride_b : cols_b);
    s.count_c = count_of(m->m, m->n, apart ? m->stride_c : m->n);
    kernel_begin(test, "%zu×%zu×%zu, strides %zu %zu %zu, transposes %d %d, alpha %g, beta %g, epilogue %d",
                 m->m, m->n, m->k, m->stride_a, m->stride_b, m->stride_c, m->transpose_a,
                 m->transpose_b, (double)m->alpha, (double)m->beta, (int)epilogue);
    if (!apart) kernel_align(test);
    return s;
}

#define ROUNDS 36

// C, A, B; what lies between C's rows stays, and with beta 0 nothing of it is read.
static void name_operands(kernel_test *test, const product_shape *s, gs_dtype in, gs_dtype out,
                          kernel_bound bound) {
    kernel_inout(test, "c", out, s->count_c, s->product.shape.beta != 0 ? KERNEL_UNIT : KERNEL_SPECIAL,
                 bound);
    kernel_input(test, "a", in, s->count_a, KERNEL_UNIT);
    kernel_input(test, "b", in, s->count_b, KERNEL_UNIT);
}

static void launch_matmul(const kernel_run *run) {
    const product_shape *s = run->shape;
    run->kernels->matmul(run->stream, run->at[0], run->at[1], run->at[2], &s->product.shape);
}

static void test_matmul(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const product_shape shape = draw_shape(test, round, GS_EPILOGUE_NONE);
        name_operands(test, &shape, GS_FP32, GS_FP32, fp32_bound);
        kernel_check(test, launch_matmul, &shape);
    }
}

static void launch_half_matmul_grad(const kernel_run *run) {
    const product_shape *s = run->shape;
    run->half->matmul_grad(run->stream, run->at[0], run->at[1], run->at[2], &s->product.shape);
}

static void test_half_matmul_grad(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const product_shape shape = draw_shape(test, round, GS_EPILOGUE_NONE);
        name_operands(test, &shape, kernel_half_dtype(test), GS_FP32, fp32_bound);
        kernel_check(test, launch_half_matmul_grad, &shape);
    }
}

// The order of tensors: C, A, B, then bias and aux where the epilogue has them.
static void launch_half_matmul(const kernel_run *run) {
    const product_shape *s = run->shape;
    gs_half_matmul product = s->product;
    if (product.epilogue == GS_EPILOGUE_BIAS || product.epilogue == GS_EPILOGUE_BIAS_GELU)
        product.bias = run->at[3];
    if (product.epilogue == GS_EPILOGUE_BIAS_GELU) product.aux = run->at[4];
    if (product.epilogue == GS_EPILOGUE_DGELU) product.aux = run->at[3];
    run->half->matmul(run->stream, run->at[0], run->at[1], run->at[2], &product);
}

static void test_half_matmul(kernel_test *test) {
    const gs_dtype dtype = kernel_half_dtype(test);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        const gs_epilogue epilogue = (gs_epilogue)(round % 4);
        const product_shape shape = draw_shape(test, round / 4, epilogue);
        name_operands(test, &shape, dtype, dtype, half_bound(dtype));
        if (epilogue == GS_EPILOGUE_BIAS || epilogue == GS_EPILOGUE_BIAS_GELU)
            kernel_input(test, "bias", dtype, shape.product.shape.n, KERNEL_UNIT);
        if (epilogue == GS_EPILOGUE_BIAS_GELU)
            kernel_inout(test, "aux", dtype, shape.count_c, KERNEL_SPECIAL, half_bound(dtype));
        if (epilogue == GS_EPILOGUE_DGELU)
            kernel_input(test, "aux", dtype, shape.count_c, KERNEL_UNIT);
        kernel_check(test, launch_half_matmul, &shape);
    }
}

static const kernel_case cases[] = {
    KERNEL_CASE(matmul),
    KERNEL_HALF_CASE(matmul),
    KERNEL_HALF_CASE(matmul_grad),
};
const kernel_family kernel_family_matmul = {cases, sizeof cases / sizeof *cases};
