// Matrix products: all transposes, odd shapes and alignments, rows apart, alpha and beta, epilogues.
#include <math.h>
#include <string.h>

#include "core/dtype.h"
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
    bool has_residual;
} product_shape;

static size_t draw_stride(kernel_test *test, size_t tight) {
    static const size_t more[] = {0, 0, 1, 7, 24};
    return tight + more[kernel_random(test, 5)];
}

// Of what a matrix with rows apart covers: no element behind its last row.
static size_t count_of(size_t rows, size_t cols, size_t stride) {
    return rows && cols ? (rows - 1) * stride + cols : 0;
}

// Several tiles of 64 along each side in the simulator too.
static size_t largest_dim(void) {
    return kernel_in_simulator() ? 200 : 1600;
}

// Usually odd; in every third round what tensor cores like. Strides and transposes by chance.
static product_shape lay_out(kernel_test *test, int round, gs_half_matmul product) {
    product_shape s = {.product = product};
    gs_matmul *m = &s.product.shape;
    if (round % 3 == 0) {
        m->m = 8 * (1 + m->m / 8);
        m->n = 8 * (1 + m->n / 8);
        m->k = 8 * (1 + m->k / 8);
    }
    m->transpose_a = kernel_random(test, 2);
    m->transpose_b = kernel_random(test, 2);
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
                 m->transpose_b, (double)m->alpha, (double)m->beta, (int)product.epilogue);
    if (!apart) kernel_align(test);
    return s;
}

static product_shape draw_shape(kernel_test *test, int round, gs_epilogue epilogue) {
    gs_half_matmul product = {.epilogue = epilogue};
    gs_matmul *m = &product.shape;
    // GELU's tail multiplies the relative error of its input by the square of it: of a few elements all may
    // lie there, of many the norm is that of the others. Small ones: draw_exact_shape.
    const size_t least = epilogue == GS_EPILOGUE_NONE ? 0 : 8;
    m->m = kernel_dim(test, least, largest_dim());
    m->n = kernel_dim(test, least ? least : 1, largest_dim());
    m->k = kernel_dim(test, 0, largest_dim());
    m->alpha = 1.0f;
    if (epilogue == GS_EPILOGUE_NONE && kernel_random(test, 2)) {
        m->alpha = kernel_real(test, -2.0f, 2.0f);
        m->beta = kernel_random(test, 2) ? 1.0f : 0.5f;
    }
    return lay_out(test, round, product);
}

#define ROUNDS 36

// A matrix of C's shape that is written. What lies between its rows is NaN and stays it; with `all`, so is what
// lies in them, which then is not read.
static void name_written(kernel_test *test, const char *name, const product_shape *s, gs_dtype dtype,
                         bool all, kernel_bound bound) {
    const gs_matmul *m = &s->product.shape;
    const int tensor = kernel_inout(test, name, dtype, s->count_c, KERNEL_UNIT, bound);
    const size_t width = gs_dtype_bytes(dtype), stride = m->stride_c ? m->stride_c : m->n;
    char *data = kernel_data(test, tensor);
    for (size_t i = 0; i < s->count_c; i++)
        if (all || i % stride >= m->n) memset(data + i * width, 0xff, width);
}

// C, A, B
static void name_operands(kernel_test *test, const product_shape *s, gs_dtype in, gs_dtype out,
                          kernel_bound bound) {
    name_written(test, "c", s, out, s->product.shape.beta == 0, bound);
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

// A matrix of C's shape that is read: what lies between its rows is NaN.
static int name_read(kernel_test *test, const char *name, const product_shape *s, gs_dtype dtype) {
    const gs_matmul *m = &s->product.shape;
    const int tensor = kernel_input(test, name, dtype, s->count_c, KERNEL_UNIT);
    const size_t width = gs_dtype_bytes(dtype), stride = m->stride_c ? m->stride_c : m->n;
    char *data = kernel_data(test, tensor);
    for (size_t i = 0; i < s->count_c; i++)
        if (i % stride >= m->n) memset(data + i * width, 0xff, width);
    return tensor;
}

// The order of tensors: C, A, B, then bias, aux or residual where the epilogue has them.
static void launch_half_matmul(const kernel_run *run) {
    const product_shape *s = run->shape;
    gs_half_matmul product = s->product;
    if (product.epilogue == GS_EPILOGUE_BIAS || product.epilogue == GS_EPILOGUE_BIAS_GELU)
        product.bias = run->at[3];
    if (product.epilogue == GS_EPILOGUE_BIAS_GELU) product.aux = run->at[4];
    if (s->has_residual) product.residual = run->at[4];
    if (product.epilogue == GS_EPILOGUE_DGELU) product.aux = run->at[3];
    run->half->matmul(run->stream, run->at[0], run->at[1], run->at[2], &product);
}

static void test_half_matmul(kernel_test *test) {
    const gs_dtype dtype = kernel_half_dtype(test);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        const gs_epilogue epilogue = (gs_epilogue)(round % 4);
        product_shape shape = draw_shape(test, round / 4, epilogue);
        shape.has_residual = epilogue == GS_EPILOGUE_BIAS && kernel_random(test, 2);
        name_operands(test, &shape, dtype, dtype, half_bound(dtype));
        if (epilogue == GS_EPILOGUE_BIAS || epilogue == GS_EPILOGUE_BIAS_GELU)
            kernel_input(test, "bias", dtype, shape.product.shape.n, KERNEL_UNIT);
        if (epilogue == GS_EPILOGUE_BIAS_GELU)
            name_written(test, "aux", &shape, dtype, true, half_bound(dtype));
        if (shape.has_residual) name_read(test, "residual", &shape, dtype);
        if (epilogue == GS_EPILOGUE_DGELU)
            kernel_input(test, "aux", dtype, shape.count_c, KERNEL_UNIT);
        kernel_check(test, launch_half_matmul, &shape);
    }
}

// dweight, dbias, dy, x
static void launch_half_linear_grads(const kernel_run *run) {
    const product_shape *s = run->shape;
    run->half->linear_grads(run->stream, run->at[0], run->at[1], run->at[2], run->at[3],
                            &s->product.shape);
}

static void test_half_linear_grads(kernel_test *test) {
    const gs_dtype dtype = kernel_half_dtype(test);
    for (int round = 0; round < ROUNDS; round++) {
        product_shape shape = {0};
        gs_matmul *m = &shape.product.shape;
        *m = (gs_matmul){.transpose_a = true,
                         .m = kernel_dim(test, 1, largest_dim()),
                         .n = kernel_dim(test, 1, largest_dim()),
                         .k = kernel_dim(test, 0, largest_dim()),
                         .alpha = 1.0f,
                         .beta = kernel_random(test, 2) ? 1.0f : 0.0f};
        if (round % 3) {
            m->m = 8 * (1 + m->m / 8);
            m->n = 8 * (1 + m->n / 8);
        }
        kernel_begin(test, "%zu×%zu×%zu, beta %g", m->m, m->n, m->k, (double)m->beta);
        if (round % 3) kernel_align(test);
        shape.count_c = m->m * m->n;
        name_written(test, "dweight", &shape, GS_FP32, m->beta == 0, fp32_bound);
        if (m->beta != 0.0f)
            kernel_inout(test, "dbias", GS_FP32, m->m, KERNEL_UNIT, fp32_bound);
        else
            kernel_output(test, "dbias", GS_FP32, m->m, fp32_bound);
        kernel_input(test, "dy", dtype, m->k * m->m, KERNEL_UNIT);
        kernel_input(test, "x", dtype, m->k * m->n, KERNEL_UNIT);
        kernel_check(test, launch_half_linear_grads, &shape);
    }
}

// ---- products without a rounding
//
// Operands are 1 and 2 and k is small: all sums are small whole numbers, the same in any order and in every
// type. What is left of a product is its one rounding at the end, so that of any size, also of one element,
// it is the same bits. Only GELU's exponential may differ: by a step of the type, or by the 2^-11 of a tanh
// in hardware. Its input is positive, where that is a relative error.

#define EXACT_ROUNDS 96
#define MOST_TERMS 12

static kernel_bound step_of(gs_dtype dtype) {
    const double step = dtype == GS_BF16 ? 0x1p-7 : 0x1p-9;
    return (kernel_bound){step, step, "another exponential, then one rounding"};
}

static product_shape draw_exact_shape(kernel_test *test, int round, gs_epilogue epilogue) {
    // The last two take sums of fp16 beyond what it holds.
    static const float alphas[] = {1.0f, 0.5f, -2.0f, 16384.0f, -16384.0f};
    gs_half_matmul product = {.epilogue = epilogue};
    gs_matmul *m = &product.shape;
    const size_t largest = round % 2 ? 9 : largest_dim();
    m->m = kernel_dim(test, 1, largest);
    m->n = kernel_dim(test, 1, largest);
    m->k = 1 + kernel_random(test, MOST_TERMS);
    m->alpha = epilogue == GS_EPILOGUE_NONE ? alphas[kernel_random(test, 5)] : 1.0f;
    m->beta = epilogue == GS_EPILOGUE_NONE && kernel_random(test, 2) ? 1.0f : 0.0f;
    return lay_out(test, round, product);
}

// NaN stays: it marks what is not read.
static void make_whole(kernel_test *test, int tensor, gs_dtype dtype, size_t count, uint64_t most) {
    uint16_t *half = kernel_data(test, tensor);
    float *full = kernel_data(test, tensor);
    for (size_t i = 0; i < count; i++) {
        const float value = (float)(1 + kernel_random(test, most));
        if (dtype == GS_FP32 && !isnan(full[i])) full[i] = value;
        if (dtype == GS_BF16 && half[i] != 0xffff) half[i] = gs_fp32_to_bf16(value);
        if (dtype == GS_FP16 && half[i] != 0xffff) half[i] = gs_fp32_to_fp16(value);
    }
}

static void name_exact_operands(kernel_test *test, const product_shape *s, gs_dtype in, gs_dtype out) {
    const bool has_gelu = s->product.epilogue == GS_EPILOGUE_BIAS_GELU ||
                          s->product.epilogue == GS_EPILOGUE_DGELU;
    name_operands(test, s, in, out, has_gelu ? step_of(out) : KERNEL_SAME_BITS);
    make_whole(test, 0, out, s->count_c, 8);
    make_whole(test, 1, in, s->count_a, 2);
    make_whole(test, 2, in, s->count_b, 2);
}

static void test_exact_matmul(kernel_test *test) {
    for (int round = 0; round < EXACT_ROUNDS; round++) {
        const product_shape shape = draw_exact_shape(test, round, GS_EPILOGUE_NONE);
        name_exact_operands(test, &shape, GS_FP32, GS_FP32);
        kernel_check(test, launch_matmul, &shape);
    }
}

static void test_exact_half_matmul_grad(kernel_test *test) {
    for (int round = 0; round < EXACT_ROUNDS; round++) {
        const product_shape shape = draw_exact_shape(test, round, GS_EPILOGUE_NONE);
        name_exact_operands(test, &shape, kernel_half_dtype(test), GS_FP32);
        kernel_check(test, launch_half_matmul_grad, &shape);
    }
}

static void test_exact_half_matmul(kernel_test *test) {
    const gs_dtype dtype = kernel_half_dtype(test);
    for (int round = 0; round < 2 * EXACT_ROUNDS; round++) {
        const gs_epilogue epilogue = (gs_epilogue)(round % 4);
        product_shape shape = draw_exact_shape(test, round / 4, epilogue);
        shape.has_residual = epilogue == GS_EPILOGUE_BIAS && round / 4 % 2;
        name_exact_operands(test, &shape, dtype, dtype);
        if (epilogue == GS_EPILOGUE_BIAS || epilogue == GS_EPILOGUE_BIAS_GELU)
            kernel_input(test, "bias", dtype, shape.product.shape.n, KERNEL_POSITIVE);
        if (epilogue == GS_EPILOGUE_BIAS_GELU)
            name_written(test, "aux", &shape, dtype, true, KERNEL_SAME_BITS);
        if (shape.has_residual) {  // three terms: whole, so that their order does not show
            make_whole(test, 3, dtype, shape.product.shape.n, 8);
            make_whole(test, name_read(test, "residual", &shape, dtype), dtype, shape.count_c, 8);
        }
        if (epilogue == GS_EPILOGUE_DGELU)
            kernel_input(test, "aux", dtype, shape.count_c, KERNEL_POSITIVE);
        kernel_check(test, launch_half_matmul, &shape);
    }
}

static const kernel_case cases[] = {
    KERNEL_CASE(matmul),
    KERNEL_CASE_NAMED(matmul, "exact_matmul", test_exact_matmul),
    KERNEL_HALF_CASE(matmul),
    KERNEL_HALF_CASE_NAMED(matmul, "exact_half_matmul", test_exact_half_matmul),
    KERNEL_HALF_CASE(matmul_grad),
    KERNEL_HALF_CASE(linear_grads),
    KERNEL_HALF_CASE_NAMED(matmul_grad, "exact_half_matmul_grad", test_exact_half_matmul_grad),
};
const kernel_family kernel_family_matmul = {cases, sizeof cases / sizeof *cases};
