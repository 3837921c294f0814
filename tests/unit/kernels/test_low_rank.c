// The passes of low-rank approximations against sums in fp64, and their bits on every instruction
// set and with any number of threads.
#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "tests/support/near.h"

#define GRAD_SCALE 0.25
#define HELD_SCALE 4.0
#define ERROR_SCALE 0.5

typedef struct matrices {
    gs_low_rank_item item;
    gs_dtype dtype;
} matrices;

static double read(const void *values, gs_dtype dtype, size_t i) {
    return dtype == GS_FP64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static void write(void *values, gs_dtype dtype, size_t i, double value) {
    if (dtype == GS_FP64)
        ((double *)values)[i] = value;
    else
        ((float *)values)[i] = (float)value;
}

// `skew` elements past a 64-byte boundary.
static void *make_values(gs_dtype dtype, size_t count, uint64_t seed, size_t skew) {
    const size_t bytes = (count + skew + 1) * gs_dtype_bytes(dtype);
    char *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0, bytes);
    char *values = memory + skew * gs_dtype_bytes(dtype);
    float *uniform = make_uniform(count, seed, -1.0f, 1.0f);
    for (size_t i = 0; i < count; i++) write(values, dtype, i, (double)uniform[i]);
    free(uniform);
    return values;
}

static void free_values(void *values, gs_dtype dtype, size_t skew) {
    if (values) free((char *)values - skew * gs_dtype_bytes(dtype));
}

static size_t skew_of(size_t tensor) {
    return tensor % 3 * 5;
}

static matrices make_matrices(gs_dtype dtype, size_t rows, size_t cols, int rank, bool feedback) {
    const size_t count = rows * cols, columns = (size_t)rank;
    matrices made = {.dtype = dtype, .item = {.rows = rows, .cols = cols, .rank = rank}};
    made.item.grad = make_values(dtype, count, 1, skew_of(0));
    if (feedback) {
        made.item.held = make_values(dtype, count, 2, skew_of(1));
        made.item.error = make_values(dtype, count, 3, skew_of(2));
        made.item.local_q = make_values(dtype, cols * columns, 4, skew_of(3));
    }
    made.item.p = make_values(dtype, rows * columns, 5, skew_of(4));
    made.item.q = make_values(dtype, cols * columns, 6, skew_of(5));
    return made;
}

static void free_matrices(matrices *m) {
    void *all[] = {m->item.grad, (void *)m->item.held, m->item.error, m->item.local_q, m->item.p,
                   m->item.q};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free_values(all[i], m->dtype, skew_of(i));
}

static void project(gs_device *device, const matrices *m) {
    gs_device_kernels(device)->low_rank_project(gs_device_stream(device), &m->item, 1, m->dtype,
                                                GRAD_SCALE, HELD_SCALE);
}

static void back_project(gs_device *device, const matrices *m) {
    gs_device_kernels(device)->low_rank_back_project(gs_device_stream(device), &m->item, 1,
                                                     m->dtype);
}

static void rebuild(gs_device *device, const matrices *m) {
    gs_device_kernels(device)->low_rank_rebuild(gs_device_stream(device), &m->item, 1, m->dtype,
                                                ERROR_SCALE);
}

static void orthogonalize_sparing(gs_device *device, void *matrix, size_t rows, int rank,
                                  gs_dtype dtype, double epsilon, const void *spare) {
    const gs_orthogonal_item item = {
        .matrix = matrix, .rows = rows, .rank = rank, .spare = spare};
    gs_device_kernels(device)->orthogonalize_many(gs_device_stream(device), &item, 1, dtype,
                                                  epsilon);
}

static void orthogonalize(gs_device *device, void *matrix, size_t rows, int rank, gs_dtype dtype,
                          double epsilon) {
    orthogonalize_sparing(device, matrix, rows, rank, dtype, epsilon, NULL);
}

static double *widen_values(const void *values, gs_dtype dtype, size_t count) {
    double *wide = malloc((count + 1) * sizeof *wide);
    assert_non_null(wide);
    for (size_t i = 0; i < count; i++) wide[i] = read(values, dtype, i);
    return wide;
}

// |got - want| within `units` of the type's rounding, as a share of what was added up.
static void assert_rounded(const void *got, gs_dtype dtype, size_t i, double want, double magnitude,
                           double units, const char *what) {
    const double epsilon = dtype == GS_FP64 ? 0x1p-53 : 0x1p-24, value = read(got, dtype, i);
    if (is_near(value, want, (gs_near){.absolute = units * epsilon * magnitude})) return;
    fail_msg("%s[%zu]: got %.17g, want %.17g, of %.3g", what, i, value, want, magnitude);
}

// One whole round of the passes, each against a double loop over what it was given.
static void check_passes(gs_device *device, matrices *m) {
    const size_t rows = m->item.rows, cols = m->item.cols, rank = (size_t)m->item.rank;
    const gs_dtype dtype = m->dtype;
    double *grad = widen_values(m->item.grad, dtype, rows * cols);
    double *held = m->item.held ? widen_values(m->item.held, dtype, rows * cols) : NULL;
    project(device, m);
    double *made = widen_values(m->item.error ? m->item.error : m->item.grad, dtype, rows * cols);
    for (size_t i = 0; i < rows * cols; i++) {
        const double want = grad[i] * GRAD_SCALE + (held ? held[i] * HELD_SCALE : 0);
        assert_rounded(m->item.error ? m->item.error : m->item.grad, dtype, i, want, 5, 4, "M");
    }
    for (size_t c = 0; c < rank; c++) {
        for (size_t row = 0; row < rows; row++) {
            double want = 0, magnitude = 0;
            for (size_t j = 0; j < cols; j++) {
                const double term = made[row * cols + j] * read(m->item.q, dtype, c * cols + j);
                want += term;
                magnitude += fabs(term);
            }
            assert_rounded(m->item.p, dtype, c * rows + row, want, magnitude, 80, "p");
        }
    }
    back_project(device, m);
    for (size_t c = 0; c < rank; c++) {
        for (size_t j = 0; j < cols; j++) {
            double want = 0, magnitude = 0;
            for (size_t row = 0; row < rows; row++) {
                const double term = made[row * cols + j] * read(m->item.p, dtype, c * rows + row);
                want += term;
                magnitude += fabs(term);
            }
            assert_rounded(m->item.q, dtype, c * cols + j, want, magnitude, 80, "q");
        }
    }
    rebuild(device, m);
    for (size_t row = 0; row < rows; row++) {
        for (size_t j = 0; j < cols; j++) {
            double want = 0, local = 0, magnitude = 0, local_magnitude = fabs(made[row * cols + j]);
            for (size_t c = 0; c < rank; c++) {
                const double p = read(m->item.p, dtype, c * rows + row);
                want += p * read(m->item.q, dtype, c * cols + j);
                magnitude += fabs(p * read(m->item.q, dtype, c * cols + j));
                if (!m->item.error) continue;
                local += p * read(m->item.local_q, dtype, c * cols + j);
                local_magnitude += fabs(p * read(m->item.local_q, dtype, c * cols + j));
            }
            const size_t i = row * cols + j;
            assert_rounded(m->item.grad, dtype, i, want, magnitude, 70, "grad");
            if (m->item.error)
                assert_rounded(m->item.error, dtype, i, (made[i] - local) * ERROR_SCALE,
                               local_magnitude, 70, "error");
        }
    }
    free(grad);
    free(held);
    free(made);
}

// Edges of every block: rows by 4 and 16, columns by a register and 1024, ranks by 4.
static const size_t shapes[][3] = {{1, 1, 1},    {1, 7, 1},     {7, 1, 1},    {2, 2, 2},
                                   {4, 16, 4},   {5, 17, 3},    {16, 33, 5},  {17, 31, 17},
                                   {33, 9, 9},   {300, 5, 5},   {6, 1100, 6}, {19, 1024, 8},
                                   {3, 2100, 2}, {40, 513, 32}, {66, 70, 64}, {35, 515, 1}};
#define NUM_SHAPES (sizeof shapes / sizeof *shapes)

static void passes_match_sums_in_fp64(void **state) {
    for (size_t s = 0; s < NUM_SHAPES; s++) {
        for (int way = 0; way < 4; way++) {
            matrices m = make_matrices(way / 2 ? GS_FP64 : GS_FP32, shapes[s][0], shapes[s][1],
                                       (int)shapes[s][2], way % 2);
            check_passes(*state, &m);
            free_matrices(&m);
        }
    }
}

static void nothing_is_owed_at_first(void **state) {
    matrices m = make_matrices(GS_FP32, 9, 37, 2, true);
    free_values((void *)m.item.held, GS_FP32, skew_of(1));
    m.item.held = NULL;
    check_passes(*state, &m);
    free_matrices(&m);
}

// Several matrices in one launch, more than are handed out together.
static void matrices_do_not_meet(void **state) {
    enum { NUM = 70 };
    matrices together[NUM], alone[NUM];
    gs_low_rank_item items[NUM];
    for (size_t i = 0; i < NUM; i++) {
        const size_t *shape = shapes[i % NUM_SHAPES];
        together[i] = make_matrices(GS_FP32, shape[0], shape[1], (int)shape[2], i % 2);
        alone[i] = make_matrices(GS_FP32, shape[0], shape[1], (int)shape[2], i % 2);
        items[i] = together[i].item;
    }
    const gs_kernels *k = gs_device_kernels(*state);
    gs_stream *stream = gs_device_stream(*state);
    k->low_rank_project(stream, items, NUM, GS_FP32, GRAD_SCALE, HELD_SCALE);
    k->low_rank_back_project(stream, items, NUM, GS_FP32);
    k->low_rank_rebuild(stream, items, NUM, GS_FP32, ERROR_SCALE);
    for (size_t i = 0; i < NUM; i++) {
        project(*state, &alone[i]);
        back_project(*state, &alone[i]);
        rebuild(*state, &alone[i]);
        const size_t count = items[i].rows * items[i].cols;
        assert_same_bits(items[i].grad, alone[i].item.grad, count * sizeof(float));
        if (items[i].error)
            assert_same_bits(items[i].error, alone[i].item.error, count * sizeof(float));
        free_matrices(&together[i]);
        free_matrices(&alone[i]);
    }
}

static void run_all(gs_device *device, matrices *m, double epsilon) {
    project(device, m);
    orthogonalize(device, m->item.p, m->item.rows, m->item.rank, m->dtype, epsilon);
    back_project(device, m);
    rebuild(device, m);
}

static void same_bits_everywhere(void **state) {
    (void)state;
    static const struct {
        const char *isa;
        int num_threads;
    } settings[] = {{"baseline", 1}, {"baseline", 3}, {"avx2", 1}, {"avx512", 1}, {"avx512", 3}};
    for (size_t i = 1; i < sizeof settings / sizeof *settings; i++) {
        gs_device *device, *first = open_cpu_device("baseline", 1);
        gs_device_options options = {.num_threads = settings[i].num_threads,
                                     .isa = settings[i].isa};
        if (gs_device_open(&device, "cpu", &options).code) {  // this machine does not have it
            gs_device_close(first);
            continue;
        }
        for (size_t s = 0; s < 4 * NUM_SHAPES; s++) {
            const size_t *shape = shapes[s / 4];
            const gs_dtype dtype = s % 4 / 2 ? GS_FP64 : GS_FP32;
            const size_t bytes = gs_dtype_bytes(dtype), count = shape[0] * shape[1];
            matrices want = make_matrices(dtype, shape[0], shape[1], (int)shape[2], s % 2);
            matrices got = make_matrices(dtype, shape[0], shape[1], (int)shape[2], s % 2);
            run_all(first, &want, 1e-3);
            run_all(device, &got, 1e-3);
            assert_same_bits(got.item.p, want.item.p, shape[0] * shape[2] * bytes);
            assert_same_bits(got.item.q, want.item.q, shape[1] * shape[2] * bytes);
            assert_same_bits(got.item.grad, want.item.grad, count * bytes);
            if (s % 2) assert_same_bits(got.item.error, want.item.error, count * bytes);
            free_matrices(&want);
            free_matrices(&got);
        }
        gs_device_close(device);
        gs_device_close(first);
    }
}

static void zeros_stay_zeros(void **state) {
    for (int way = 0; way < 4; way++) {
        matrices m = make_matrices(way / 2 ? GS_FP64 : GS_FP32, 21, 45, 3, way % 2);
        const size_t bytes = (size_t)21 * 45 * gs_dtype_bytes(m.dtype);
        memset(m.item.grad, 0, bytes);
        if (m.item.held) memset((void *)m.item.held, 0, bytes);
        if (m.item.local_q) memset(m.item.local_q, 0, (size_t)45 * 3 * gs_dtype_bytes(m.dtype));
        run_all(*state, &m, 0);
        for (size_t i = 0; i < 21 * 45; i++) {
            assert_true(read(m.item.grad, m.dtype, i) == 0);
            if (m.item.error) assert_true(read(m.item.error, m.dtype, i) == 0);
        }
        free_matrices(&m);
    }
}

// One element that is no number, wherever it is, leaves none in the approximation.
static void bad_elements_spoil_the_matrix(void **state) {
    static const size_t places[] = {0, 44, 45 * 20, 45 * 20 + 44, 45 * 11 + 13};
    for (size_t i = 0; i < 5; i++) {
        for (int way = 0; way < 4; way++) {
            matrices m = make_matrices(way / 2 ? GS_FP64 : GS_FP32, 21, 45, (int)i % 3 + 1, true);
            write(way % 2 ? m.item.grad : (void *)m.item.held, m.dtype, places[i],
                  i % 2 ? (double)INFINITY : (double)NAN);
            run_all(*state, &m, 0);
            for (size_t k = 0; k < 21 * 45; k++)
                assert_true(!isfinite(read(m.item.grad, m.dtype, k)));
            free_matrices(&m);
        }
    }
}

static double dot(const void *matrix, gs_dtype dtype, size_t rows, size_t a, size_t b) {
    double sum = 0;
    for (size_t i = 0; i < rows; i++)
        sum += read(matrix, dtype, a * rows + i) * read(matrix, dtype, b * rows + i);
    return sum;
}

static void assert_orthonormal(const void *matrix, gs_dtype dtype, size_t rows, size_t rank) {
    const double tolerance = dtype == GS_FP64 ? 1e-14 : 1e-6;
    for (size_t a = 0; a < rank; a++)
        for (size_t b = 0; b <= a; b++) {
            const double got = dot(matrix, dtype, rows, a, b);
            if (!is_near(got, a == b, (gs_near){.absolute = tolerance}))
                fail_msg("columns %zu and %zu of (%zu, %zu): %.3g", a, b, rows, rank, got);
        }
}

static void columns_become_orthonormal(void **state) {
    static const size_t sizes[][2] = {{1, 1}, {2, 2}, {5, 3}, {40, 40}, {1000, 7}, {3001, 64}};
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof *sizes; s++) {
        const gs_dtype dtype = s % 2 ? GS_FP64 : GS_FP32;
        const size_t rows = sizes[s / 2][0], rank = sizes[s / 2][1];
        void *matrix = make_values(dtype, rows * rank, s + 1, 0);
        orthogonalize(*state, matrix, rows, (int)rank, dtype, 0);
        assert_orthonormal(matrix, dtype, rows, rank);
        free_values(matrix, dtype, 0);
    }
}

// What is left of a column after the others are taken from it is much rounding: a single
// sweep would leave columns that are far from orthogonal.
static void nearly_equal_columns_come_apart(void **state) {
    for (size_t rank = 2; rank <= 6; rank += 2) {
        enum { ROWS = 37 };
        float *matrix = make_uniform(ROWS * rank, 5, -1, 1);
        for (size_t c = 1; c < rank; c++)
            for (size_t i = 0; i < ROWS; i++)
                matrix[c * ROWS + i] = matrix[i] + 1e-4f * matrix[c * ROWS + i];
        orthogonalize(*state, matrix, ROWS, (int)rank, GS_FP32, 0);
        assert_orthonormal(matrix, GS_FP32, ROWS, rank);
        free(matrix);
    }
}

// Rows of zeros leave fewer directions than columns: the columns behind them are rounding, which a unit length would make
// directions again, counted twice.
static void what_rounding_left_is_no_direction(void **state) {
    enum { ROWS = 12, RANK = 10, LIVE = 3 };
    for (int kind = 0; kind < 2; kind++) {
        const gs_dtype dtype = kind ? GS_FP64 : GS_FP32;
        void *matrix = make_values(dtype, RANK * ROWS, 4, 0);
        for (size_t i = 0; i < RANK * ROWS; i++)
            if (i % ROWS % 4) write(matrix, dtype, i, 0);
        orthogonalize(*state, matrix, ROWS, RANK, dtype, 0);
        assert_orthonormal(matrix, dtype, ROWS, LIVE);
        for (size_t i = LIVE * ROWS; i < RANK * ROWS; i++)
            assert_true(read(matrix, dtype, i) == 0);
        free_values(matrix, dtype, 0);
    }
}

static void epsilon_is_added_to_norms(void **state) {
    float matrix[] = {3, 4, 0, /**/ 1, 2, 2};
    orthogonalize(*state, matrix, 3, 2, GS_FP32, 5.0);
    // Column 0: / (5 + 5). Column 1 less 1.1 of it, then / (norm + 5).
    const double rest[] = {1 - 1.1 * 0.3, 2 - 1.1 * 0.4, 2};
    const double norm = sqrt(rest[0] * rest[0] + rest[1] * rest[1] + rest[2] * rest[2]) + 5;
    const double want[] = {0.3, 0.4, 0, rest[0] / norm, rest[1] / norm, rest[2] / norm};
    assert_close(matrix, want, 6, 1e-6, 0);
}

static void zero_column_stays_zero(void **state) {
    for (int rank = 2; rank <= 3; rank++) {
        float matrix[15] = {0, 0, 0, 0, 0, 3, 0, 0, 4, 0, 1, 1, 1, 1, 1};
        orthogonalize(*state, matrix, 5, rank, GS_FP32, 0);
        const double want[] = {0, 0, 0, 0, 0, 0.6, 0, 0, 0.8, 0};
        assert_close(matrix, want, 10, 1e-7, 0);
    }
}

// The first column is, and the third is when the second is taken from it.
static void zero_columns_are_replaced_by_spare_ones(void **state) {
    for (int kind = 0; kind < 2; kind++) {
        const gs_dtype dtype = kind ? GS_FP64 : GS_FP32;
        void *matrix = make_values(dtype, 4 * 40, 8, 0), *spare = make_values(dtype, 4 * 40, 9, 0);
        for (size_t i = 0; i < 40; i++) {
            write(matrix, dtype, i, 0);
            write(matrix, dtype, 40 + i, i == 7 ? 4 : 0);
            write(matrix, dtype, 80 + i, 0);
        }
        orthogonalize_sparing(*state, matrix, 40, 4, dtype, 0, spare);
        assert_orthonormal(matrix, dtype, 40, 4);
        double *first = widen_values(spare, dtype, 40), length = 0;
        for (size_t i = 0; i < 40; i++) length += first[i] * first[i];
        for (size_t i = 0; i < 40; i++)
            assert_rounded(matrix, dtype, i, first[i] / sqrt(length), 1, 8, "column 0");
        free(first);
        free_values(matrix, dtype, 0);
        free_values(spare, dtype, 0);
    }
}

static void squares_of_errors_are_added_up_by_row(void **state) {
    static const size_t sizes[][2] = {{1, 1}, {5, 3}, {7, 2100}, {4, 64}};
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof *sizes; s++) {
        matrices m = make_matrices(s % 2 ? GS_FP64 : GS_FP32, sizes[s / 2][0], sizes[s / 2][1], 1, true);
        double *squares = calloc(m.item.rows, sizeof *squares);
        for (size_t r = 0; r < m.item.rows; r++) squares[r] = 77;
        m.item.row_squares = squares;
        project(*state, &m);
        rebuild(*state, &m);
        for (size_t r = 0; r < m.item.rows; r++) {
            double wanted = 0;
            for (size_t j = 0; j < m.item.cols; j++)
                wanted += pow(read(m.item.error, m.dtype, r * m.item.cols + j), 2);
            if (!is_near(squares[r], wanted, (gs_near){.relative = 1e-5}))
                fail_msg("row %zu: got %g, want %g", r, squares[r], wanted);
        }
        free(squares);
        free_matrices(&m);
    }
}

// The squares of these are beyond fp32, the columns are not.
static void large_and_small_columns_have_norms(void **state) {
    float matrix[] = {3e30f, 4e30f, 4e-30f, -3e-30f};
    orthogonalize(*state, matrix, 2, 2, GS_FP32, 0);
    const double want[] = {0.6, 0.8, 0.8, -0.6};
    assert_close(matrix, want, 4, 1e-6, 0);
    double wide[] = {3e200, 4e200};
    orthogonalize(*state, wide, 2, 1, GS_FP64, 0);
    assert_true(isnan(wide[0]) && isnan(wide[1]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_match_sums_in_fp64),
        cmocka_unit_test(nothing_is_owed_at_first),
        cmocka_unit_test(matrices_do_not_meet),
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(bad_elements_spoil_the_matrix),
        cmocka_unit_test(columns_become_orthonormal),
        cmocka_unit_test(nearly_equal_columns_come_apart),
        cmocka_unit_test(what_rounding_left_is_no_direction),
        cmocka_unit_test(epsilon_is_added_to_norms),
        cmocka_unit_test(zero_column_stays_zero),
        cmocka_unit_test(zero_columns_are_replaced_by_spare_ones),
        cmocka_unit_test(squares_of_errors_are_added_up_by_row),
        cmocka_unit_test(large_and_small_columns_have_norms),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
