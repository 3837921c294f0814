// Passes of low-rank approximations, many matrices in a launch. M, the approximation and the error
// are the CPU's to the bit; sums are within rounding.
#include "tests/gpu/kernel_case.h"

#include <math.h>

#define ROUNDS 20
#define MOST_MATRICES 4
#define TENSORS 7  // of a matrix, behind the table: grad, held, error, p, q, local_q, row_squares

static const kernel_bound fp32_bound = {1e-6, 0, "fp32 sums in another order"};
static const kernel_bound fp64_bound = {1e-14, 0, "fp64 sums in another order"};
static const kernel_bound square_bound = {1e-6, 0, "fp32 sums on the CPU, fp64 sums here"};
// Of columns that are far from dependent.
static const kernel_bound fp32_columns = {1e-6, 0, "fp64 sums in another order, rounded to fp32"};
static const kernel_bound fp64_columns = {1e-12, 0, "fp64 sums in another order"};

typedef struct low_rank_shape {
    size_t num_items;
    gs_low_rank_item items[MOST_MATRICES];
    bool owes[MOST_MATRICES], holds[MOST_MATRICES], counts[MOST_MATRICES];
    gs_dtype dtype;
    double grad_scale, held_scale, error_scale, epsilon;
} low_rank_shape;

static low_rank_shape draw_shape(kernel_test *test, const char *what, int round) {
    low_rank_shape shape = {.num_items = (size_t)kernel_random(test, MOST_MATRICES + 1),
                            .dtype = round % 2 ? GS_FP64 : GS_FP32,
                            .grad_scale = kernel_random(test, 3) ? 0.125 : 1.0,
                            .held_scale = (double)kernel_real(test, 0.5f, 2.0f),
                            .error_scale = kernel_random(test, 2) ? 1.0 : 0.5};
    size_t total = 0;
    for (size_t i = 0; i < shape.num_items; i++) {
        const size_t most = kernel_in_simulator() ? 100 : 1500;
        gs_low_rank_item *item = &shape.items[i];
        item->rows = kernel_dim(test, 1, most);
        item->cols = kernel_dim(test, 1, most);
        if (kernel_random(test, 2)) item->cols = (item->cols + 7) / 8 * 8;
        const size_t least = item->rows < item->cols ? item->rows : item->cols;
        item->rank = (int)kernel_dim(test, 1, least < 64 ? least : 64);
        shape.owes[i] = kernel_random(test, 4) != 0;
        shape.holds[i] = shape.owes[i] && kernel_random(test, 4) != 0;
        // Squares of special numbers leave fp32, not fp64.
        shape.counts[i] = shape.owes[i] && round % 5 && kernel_random(test, 2);
        total += item->rows * item->cols;
    }
    kernel_begin(test, "%s of %zu matrices, %zu elements, fp%d", what, shape.num_items, total,
                 shape.dtype == GS_FP64 ? 64 : 32);
    kernel_table(test, MOST_MATRICES * sizeof(gs_low_rank_item));
    if (kernel_random(test, 2)) kernel_align(test);
    return shape;
}

static const gs_low_rank_item *set_items(const kernel_run *run) {
    const low_rank_shape *shape = run->shape;
    gs_low_rank_item *items = run->at[0];
    for (size_t i = 0; i < shape->num_items; i++) {
        void *const *at = run->at + 1 + TENSORS * i;
        items[i] = shape->items[i];
        items[i].grad = at[0];
        items[i].held = shape->holds[i] ? at[1] : NULL;
        items[i].error = shape->owes[i] ? at[2] : NULL;
        items[i].p = at[3];
        items[i].q = at[4];
        items[i].local_q = at[5];
        items[i].row_squares = shape->counts[i] ? at[6] : NULL;
    }
    return items;
}

static size_t p_count(const gs_low_rank_item *item) {
    return item->rows * (size_t)item->rank;
}

static size_t q_count(const gs_low_rank_item *item) {
    return item->cols * (size_t)item->rank;
}

static kernel_bound sum_bound(const low_rank_shape *shape) {
    return shape->dtype == GS_FP64 ? fp64_bound : fp32_bound;
}

static void launch_project(const kernel_run *run) {
    const low_rank_shape *shape = run->shape;
    run->kernels->low_rank_project(run->stream, set_items(run), shape->num_items, shape->dtype,
                                   shape->grad_scale, shape->held_scale);
}

static void test_low_rank_project(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const low_rank_shape shape = draw_shape(test, "projections", round);
        for (size_t i = 0; i < shape.num_items; i++) {
            const gs_low_rank_item *item = &shape.items[i];
            const size_t count = item->rows * item->cols;
            if (shape.owes[i]) {
                kernel_input(test, "grad", shape.dtype, count, KERNEL_UNIT);
            } else {
                kernel_inout(test, "grad", shape.dtype, count, KERNEL_UNIT, KERNEL_SAME_BITS);
            }
            kernel_input(test, "held", shape.dtype, shape.holds[i] ? count : 0, KERNEL_UNIT);
            kernel_output(test, "error", shape.dtype, shape.owes[i] ? count : 0, KERNEL_SAME_BITS);
            kernel_output(test, "p", shape.dtype, p_count(item), sum_bound(&shape));
            kernel_input(test, "q", shape.dtype, q_count(item), KERNEL_UNIT);
            kernel_input(test, "local_q", shape.dtype, 0, KERNEL_ZEROS);
            kernel_input(test, "row_squares", GS_FP64, 0, KERNEL_ZEROS);
        }
        kernel_check(test, launch_project, &shape);
    }
}

static void launch_back_project(const kernel_run *run) {
    const low_rank_shape *shape = run->shape;
    run->kernels->low_rank_back_project(run->stream, set_items(run), shape->num_items,
                                        shape->dtype);
}

static void test_low_rank_back_project(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const low_rank_shape shape = draw_shape(test, "back projections", round);
        for (size_t i = 0; i < shape.num_items; i++) {
            const gs_low_rank_item *item = &shape.items[i];
            const size_t count = item->rows * item->cols;
            kernel_input(test, "grad", shape.dtype, count, KERNEL_UNIT);
            kernel_input(test, "held", shape.dtype, 0, KERNEL_ZEROS);
            kernel_input(test, "error", shape.dtype, shape.owes[i] ? count : 0, KERNEL_UNIT);
            kernel_input(test, "p", shape.dtype, p_count(item), KERNEL_UNIT);
            kernel_output(test, "q", shape.dtype, q_count(item), sum_bound(&shape));
            kernel_input(test, "local_q", shape.dtype, 0, KERNEL_ZEROS);
            kernel_input(test, "row_squares", GS_FP64, 0, KERNEL_ZEROS);
        }
        kernel_check(test, launch_back_project, &shape);
    }
}

static void launch_rebuild(const kernel_run *run) {
    const low_rank_shape *shape = run->shape;
    run->kernels->low_rank_rebuild(run->stream, set_items(run), shape->num_items, shape->dtype,
                                   shape->error_scale);
}

static void test_low_rank_rebuild(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        const low_rank_shape shape = draw_shape(test, "approximations", round);
        for (size_t i = 0; i < shape.num_items; i++) {
            const gs_low_rank_item *item = &shape.items[i];
            const size_t count = item->rows * item->cols, owed = shape.owes[i] ? count : 0;
            const kernel_fill fill = round % 5 ? KERNEL_WIDE : KERNEL_SPECIAL;
            kernel_output(test, "grad", shape.dtype, count, KERNEL_SAME_BITS);
            kernel_input(test, "held", shape.dtype, 0, KERNEL_ZEROS);
            kernel_inout(test, "error", shape.dtype, owed, fill, KERNEL_SAME_BITS);
            kernel_input(test, "p", shape.dtype, p_count(item), fill);
            kernel_input(test, "q", shape.dtype, q_count(item), fill);
            kernel_input(test, "local_q", shape.dtype, owed ? q_count(item) : 0, fill);
            kernel_output(test, "row_squares", GS_FP64, shape.counts[i] ? item->rows : 0,
                          square_bound);
        }
        kernel_check(test, launch_rebuild, &shape);
    }
}

// ---- orthogonalize_many: the items' tensors are their matrices

static void launch_orthogonalize(const kernel_run *run) {
    const low_rank_shape *shape = run->shape;
    gs_orthogonal_item *items = run->at[0];
    for (size_t i = 0; i < shape->num_items; i++)
        items[i] = (gs_orthogonal_item){.matrix = run->at[1 + 2 * i],
                                        .rows = shape->items[i].rows,
                                        .rank = shape->items[i].rank,
                                        .spare = shape->owes[i] ? run->at[2 + 2 * i] : NULL};
    run->kernels->orthogonalize_many(run->stream, items, shape->num_items, shape->dtype,
                                     shape->epsilon);
}

static void test_orthogonalize_many(kernel_test *test) {
    for (int round = 0; round < ROUNDS; round++) {
        low_rank_shape shape = {.num_items = (size_t)kernel_random(test, MOST_MATRICES + 1),
                                .dtype = round % 2 ? GS_FP64 : GS_FP32,
                                .epsilon = kernel_random(test, 2) ? 0.0 : 0.125};
        // The last one does not fit into shared memory.
        const bool is_large = round >= ROUNDS - 2;
        if (is_large) shape.num_items = 1;
        kernel_begin(test, "%zu matrices, epsilon %g, fp%d", shape.num_items, shape.epsilon,
                     shape.dtype == GS_FP64 ? 64 : 32);
        kernel_table(test, MOST_MATRICES * sizeof(gs_orthogonal_item));
        for (size_t i = 0; i < shape.num_items; i++) {
            gs_low_rank_item *item = &shape.items[i];
            item->rank = is_large ? 3 : (int)kernel_dim(test, 1, kernel_in_simulator() ? 9 : 64);
            item->rows = is_large ? (size_t)(shape.dtype == GS_FP64 ? 30000 : 60000)
                                  : kernel_dim(test, 4 * (size_t)item->rank, 2000);
            const int matrix = kernel_inout(test, "matrix", shape.dtype, p_count(item), KERNEL_UNIT,
                                            shape.dtype == GS_FP64 ? fp64_columns : fp32_columns);
            shape.owes[i] = kernel_random(test, 2);
            kernel_input(test, "spare", shape.dtype, shape.owes[i] ? p_count(item) : 0,
                         KERNEL_UNIT);
            // A column of zeros, one that is no number, or neither.
            const size_t column = (size_t)kernel_random(test, (uint64_t)item->rank) * item->rows;
            const uint64_t way = kernel_random(test, 6);
            for (size_t k = 0; k < item->rows && way == 0; k++) {
                if (shape.dtype == GS_FP64)
                    ((double *)kernel_data(test, matrix))[column + k] = 0;
                else
                    ((float *)kernel_data(test, matrix))[column + k] = 0;
            }
            if (way == 1 && shape.dtype == GS_FP32)
                ((float *)kernel_data(test, matrix))[column + item->rows / 2] = INFINITY;
        }
        kernel_check(test, launch_orthogonalize, &shape);
    }
}

static const kernel_case cases[] = {KERNEL_CASE(low_rank_project),
                                    KERNEL_CASE(low_rank_back_project),
                                    KERNEL_CASE(low_rank_rebuild), KERNEL_CASE(orthogonalize_many)};
const kernel_family kernel_family_low_rank = {cases, sizeof cases / sizeof *cases};
