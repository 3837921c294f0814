// Orthonormal columns by modified Gram-Schmidt. A matrix is one thread's, sums are fp64 in fixed
// lanes.
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"
#include "kernels/device.h"

#define DEFINE_ORTHOGONALIZE(name, type)                                                           \
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
       is zero. */                                                                                 \
    static bool normalize_##name(type *column, size_t rows, double epsilon) {                      \
        const double norm = sqrt(dot_##name(column, column, rows));                                \
        if (norm == 0) return false;                                                               \
        const double divisor = isfinite(norm) ? norm + epsilon : NAN;                              \
        GS_ELEMENTWISE                                                                             \
        for (size_t i = 0; i < rows; i++) column[i] = (type)((double)column[i] / divisor);         \
        return true;                                                                               \
    }                                                                                              \
    static void sweep_##name(const gs_orthogonal_item *item, double epsilon) {                     \
        type *matrix = item->matrix;                                                               \
        const type *spare = item->spare;                                                           \
        const size_t rows = item->rows;                                                            \
        for (size_t c = 0; c < (size_t)item->rank; c++) {                                          \
            type *column = matrix + c * rows;                                                      \
            separate_##name(matrix, rows, c);                                                      \
            if (normalize_##name(column, rows, epsilon) || !spare) continue;                       \
            memcpy(column, spare + c * rows, rows * sizeof *column);                               \
            separate_##name(matrix, rows, c);                                                      \
            normalize_##name(column, rows, epsilon);                                               \
        }                                                                                          \
    }
DEFINE_ORTHOGONALIZE(fp32, float)
DEFINE_ORTHOGONALIZE(fp64, double)

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
