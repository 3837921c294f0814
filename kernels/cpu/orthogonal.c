// Orthonormal columns by modified Gram-Schmidt. A matrix is one thread's, sums are fp64 in fixed
// lanes.
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"
#include "kernels/device.h"

// What is left of a column that lay in the span of those before it is their rounding, and no direction: a share of its norm
// below so many times the type's precision.
#define MOST_ROUNDING 64

#define DEFINE_ORTHOGONALIZE(name, type, precision)                                                \
    static double dot_##name(const type *a, const type *b, size_t rows) {                          \
        double total;                                                                              \
        GS_LANE_SUM(double, total, i, rows, (double)a[i] * (double)b[i]);                          \
        return total;                                                                              \
    }                                                                                              \
    /* What is left of column c when its shares of those before it are taken. */                   \
    static void separate_##name(type *matrix, size_t rows, size_t c) {                             \
        type *column = matrix + c * rows;                                                          \
        for (size_t k = 0; k < c; k++) {                                                           \
            const type *unit = matrix + k * rows;                                                  \
            const double share = dot_##name(unit, column, rows);                                   \
            GS_ELEMENTWISE                                                                         \
            for (size_t i = 0; i < rows; i++)                                                      \
                column[i] = (type)((double)column[i] - share * (double)unit[i]);                   \
        }                                                                                          \
    }                                                                                              \
    /* A sum that left the type's range, or never was a number, takes its column along. False: it  \
       is zero, as is one whose norm is `least` or below. */                                       \
    static bool normalize_##name(type *column, size_t rows, double epsilon, double least) {        \
        const double norm = sqrt(dot_##name(column, column, rows));                                \
        if (norm <= least) {                                                                       \
            memset(column, 0, rows * sizeof *column);                                              \
            return false;                                                                          \
        }                                                                                          \
        const double divisor = isfinite(norm) ? norm + epsilon : NAN;                              \
        GS_ELEMENTWISE                                                                             \
        for (size_t i = 0; i < rows; i++) column[i] = (type)((double)column[i] / divisor);         \
        return true;                                                                               \
    }                                                                                              \
    /* An epsilon has its own way with small columns. */                                           \
    static double least_##name(const type *column, size_t rows, size_t c, double epsilon) {        \
        if (c == 0 || epsilon != 0) return 0;                                                      \
        const double least = MOST_ROUNDING * (precision) * sqrt(dot_##name(column, column, rows)); \
        return isfinite(least) ? least : 0;                                                        \
    }                                                                                              \
    static bool make_unit_##name(type *matrix, size_t rows, size_t c, double epsilon) {            \
        type *column = matrix + c * rows;                                                          \
        const double least = least_##name(column, rows, c, epsilon);                               \
        separate_##name(matrix, rows, c);                                                          \
        return normalize_##name(column, rows, epsilon, least);                                     \
    }                                                                                              \
    static void sweep_##name(const gs_orthogonal_item *item, double epsilon) {                     \
        type *matrix = item->matrix;                                                               \
        const type *spare = item->spare;                                                           \
        const size_t rows = item->rows;                                                            \
        for (size_t c = 0; c < (size_t)item->rank; c++) {                                          \
            if (make_unit_##name(matrix, rows, c, epsilon) || !spare) continue;                    \
            memcpy(matrix + c * rows, spare + c * rows, rows * sizeof *matrix);                    \
            make_unit_##name(matrix, rows, c, epsilon);                                            \
        }                                                                                          \
    }
DEFINE_ORTHOGONALIZE(fp32, float, (double)FLT_EPSILON)
DEFINE_ORTHOGONALIZE(fp64, double, DBL_EPSILON)

typedef struct orthogonal_job {
    const gs_orthogonal_item *items;
    gs_dtype dtype;
    double epsilon;
} orthogonal_job;

// The second sweep takes away what rounding left of a column that hardly differs from those before
// it. Of two columns with an epsilon there is none: it would divide by it again.
static void orthogonalize_item(void *ctx, size_t i) {
    const orthogonal_job *job = ctx;
    const gs_orthogonal_item *item = &job->items[i];
    const size_t rank = (size_t)item->rank;
    const double epsilon = rank > 2 ? 0 : job->epsilon;
    const int num_sweeps = rank > 1 && epsilon == 0 ? 2 : 1;
    for (int sweep = 0; sweep < num_sweeps; sweep++) {
        if (job->dtype == GS_FP64)
            sweep_fp64(item, epsilon);
        else
            sweep_fp32(item, epsilon);
    }
}

void GS_CPU(orthogonalize_many)(gs_stream *stream, const gs_orthogonal_item *items,
                                size_t num_items, gs_dtype dtype, double epsilon) {
    orthogonal_job job = {items, dtype, epsilon};
    gs_stream_for_each(stream, num_items, orthogonalize_item, &job);
}
