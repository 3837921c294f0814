// The three dense passes of a low-rank approximation for one element type; low_rank.c includes this
// once for fp32 and once for fp64, with REAL and LOW_RANK(name) set. All matrices are walked in
// blocks that fit a cache, and within one in blocks that fit the registers, for as many columns of
// P and Q as there are: whatever the rank, an element comes from memory once in a pass.
//
// What decides the bits is the order of additions alone:
//   p[i]  lanes over the columns of a tile (LANES of them, folded as a tree), tiles from left to
//   right q[j]  GROUP rows one after the other, groups one after the other M̂     the columns of P
//   and Q, one after the other
// Which block computes a number, on how many threads and with registers of which width, does not.
#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/lanes.h"

#ifndef REAL
#define REAL float
#define LOW_RANK(name) name##_fp32
#endif

#ifndef KERNELS_CPU_LOW_RANK_SHAPES
#define KERNELS_CPU_LOW_RANK_SHAPES
// A register of the instruction set at hand, and a fixed 64 bytes of lanes made of PARTS of them.
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define PARTS (64 / VECTOR_BYTES)
#define WIDTH (VECTOR_BYTES / sizeof(REAL))
#define LANES (64 / sizeof(REAL))
#define TILE (4096 / sizeof(REAL))  // columns
#define GROUP ((size_t)16)          // rows that are summed up before they are added to q
#define BLOCK_ROWS ((size_t)4)      // rows whose sums are in registers together
#define BLOCK_RANK 4                // and columns of P
// Unrolled code with the checks of a sanitizer in it takes a compiler minutes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNROLL
#define BLOCK_INLINE static
#else
#define UNROLL _Pragma("GCC unroll 64")
#define BLOCK_INLINE GS_INLINE
#endif
#endif

#define vector LOW_RANK(vector)
typedef REAL vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

BLOCK_INLINE vector LOW_RANK(load)(const REAL *from) {
    return *(const vector *)from;
}

BLOCK_INLINE void LOW_RANK(store)(REAL *to, vector values) {
    *(vector *)to = values;
}

// ---- p = M·q

// The tree of lanes.h: lane j and lane j + half, for half = LANES / 2 and on.
BLOCK_INLINE REAL LOW_RANK(fold)(const vector sums[PARTS]) {
    vector folded[PARTS];
    UNROLL
    for (size_t part = 0; part < PARTS; part++) folded[part] = sums[part];
    UNROLL
    for (size_t half = PARTS / 2; half; half /= 2) {
        UNROLL
        for (size_t part = 0; part < half; part++) folded[part] += folded[part + half];
    }
    REAL lanes[WIDTH];
    LOW_RANK(store)(lanes, folded[0]);
    UNROLL
    for (size_t half = WIDTH / 2; half; half /= 2) {
        UNROLL
        for (size_t j = 0; j < half; j++) lanes[j] += lanes[j + half];
    }
    return lanes[0];
}

// sums[row][c] += the products of LANES columns.
BLOCK_INLINE void LOW_RANK(add_products)(vector sums[BLOCK_ROWS][BLOCK_RANK][PARTS],
                                         size_t num_rows, size_t rank, const REAL *m,
                                         size_t m_stride, const REAL *q, size_t q_stride) {
    UNROLL
    for (size_t part = 0; part < PARTS; part++) {
        vector values[BLOCK_ROWS];
        UNROLL
        for (size_t row = 0; row < num_rows; row++)
            values[row] = LOW_RANK(load)(m + row * m_stride + part * WIDTH);
        UNROLL
        for (size_t c = 0; c < rank; c++) {
            const vector factor = LOW_RANK(load)(q + c * q_stride + part * WIDTH);
            UNROLL
            for (size_t row = 0; row < num_rows; row++) sums[row][c][part] += values[row] * factor;
        }
    }
}

// p[c·rows + row] = or += the sums over a tile, whose whole LANES are in `sums`.
BLOCK_INLINE void LOW_RANK(take_sums)(REAL *p, size_t rows,
                                      vector sums[BLOCK_ROWS][BLOCK_RANK][PARTS], const REAL *m,
                                      const REAL *q, size_t cols, size_t count, size_t num_rows,
                                      size_t rank, bool accumulate) {
    const size_t whole = count - count % LANES;
    if (whole < count) {
        // Zeros in the other lanes: they change no sum, since none is ever -0.
        REAL last_m[BLOCK_ROWS][LANES] = {0}, last_q[BLOCK_RANK][LANES] = {0};
        for (size_t j = whole; j < count; j++) {
            for (size_t row = 0; row < num_rows; row++) last_m[row][j - whole] = m[row * cols + j];
            for (size_t c = 0; c < rank; c++) last_q[c][j - whole] = q[c * cols + j];
        }
        LOW_RANK(add_products)(sums, num_rows, rank, last_m[0], LANES, last_q[0], LANES);
    }
    UNROLL
    for (size_t c = 0; c < rank; c++) {
        UNROLL
        for (size_t row = 0; row < num_rows; row++) {
            const REAL sum = LOW_RANK(fold)(sums[row][c]);
            p[c * rows + row] = accumulate ? p[c * rows + row] + sum : sum;
        }
    }
}

// num_rows and rank are constants where this is inlined.
BLOCK_INLINE void LOW_RANK(project_block)(REAL *p, size_t rows, const REAL *m, const REAL *q,
                                          size_t cols, size_t count, size_t num_rows, size_t rank,
                                          bool accumulate) {
    vector sums[BLOCK_ROWS][BLOCK_RANK][PARTS] = {0};
    for (size_t j = 0; j + LANES <= count; j += LANES)
        LOW_RANK(add_products)(sums, num_rows, rank, m + j, cols, q + j, cols);
    LOW_RANK(take_sums)(p, rows, sums, m, q, cols, count, num_rows, rank, accumulate);
}

BLOCK_INLINE void LOW_RANK(project_rows)(REAL *p, size_t rows, const REAL *m, const REAL *q,
                                         size_t cols, size_t count, size_t num_rows, size_t rank,
                                         bool accumulate) {
    for (; rank >= BLOCK_RANK; rank -= BLOCK_RANK) {
        LOW_RANK(project_block)(p, rows, m, q, cols, count, num_rows, BLOCK_RANK, accumulate);
        p += BLOCK_RANK * rows;
        q += BLOCK_RANK * cols;
    }
    if (rank == 3) LOW_RANK(project_block)(p, rows, m, q, cols, count, num_rows, 3, accumulate);
    if (rank == 2) LOW_RANK(project_block)(p, rows, m, q, cols, count, num_rows, 2, accumulate);
    if (rank == 1) LOW_RANK(project_block)(p, rows, m, q, cols, count, num_rows, 1, accumulate);
}

// Part of a row of M, multiplied with the first `rank` columns of Q as it is made. The next tile is
// asked for: three streams, one of them written, are more than the machine foresees by itself.
BLOCK_INLINE void LOW_RANK(make_tile)(REAL *p, size_t rows, REAL *m, const REAL *grad,
                                      const REAL *held, const REAL *q, size_t cols, size_t count,
                                      size_t rank, REAL by_grad, REAL by_held, bool accumulate) {
    vector sums[BLOCK_ROWS][BLOCK_RANK][PARTS] = {0};
    const size_t whole = count - count % LANES;
    for (size_t j = 0; j < whole; j += LANES) {
        __builtin_prefetch(m + j + TILE, 1, 3);
        __builtin_prefetch(grad + j + TILE, 0, 3);
        if (held) __builtin_prefetch(held + j + TILE, 0, 3);
        UNROLL
        for (size_t part = 0; part < PARTS; part++) {
            const size_t at = j + part * WIDTH;
            vector made = LOW_RANK(load)(grad + at) * by_grad;
            if (held) made += LOW_RANK(load)(held + at) * by_held;
            LOW_RANK(store)(m + at, made);
            UNROLL
            for (size_t c = 0; c < rank; c++)
                sums[0][c][part] += made * LOW_RANK(load)(q + c * cols + at);
        }
    }
    for (size_t j = whole; j < count; j++)
        m[j] = held ? grad[j] * by_grad + held[j] * by_held : grad[j] * by_grad;
    LOW_RANK(take_sums)(p, rows, sums, m, q, cols, count, 1, rank, accumulate);
}

// As many columns as a constant.
static void LOW_RANK(make_some)(REAL *p, size_t rows, REAL *m, const REAL *grad, const REAL *held,
                                const REAL *q, size_t cols, size_t count, size_t rank, REAL by_grad,
                                REAL by_held, bool accumulate) {
#define MAKE(held, rank)                                                                           \
    LOW_RANK(make_tile)                                                                            \
    (p, rows, m, grad, held, q, cols, count, rank, by_grad, by_held, accumulate)
    if (held) {
        if (rank == 0) MAKE(held, 0);
        if (rank == 1) MAKE(held, 1);
        if (rank == 2) MAKE(held, 2);
    } else {
        if (rank == 0) MAKE(NULL, 0);
        if (rank == 1) MAKE(NULL, 1);
        if (rank == 2) MAKE(NULL, 2);
    }
#undef MAKE
}

static void LOW_RANK(project)(const gs_low_rank_item *item, gs_range rows, double grad_scale,
                              double held_scale) {
    const size_t cols = item->cols, rank = (size_t)item->rank;
    const REAL by_grad = (REAL)grad_scale, by_held = (REAL)held_scale, *q = item->q;
    const REAL *grad = item->grad, *held = item->held;
    REAL *m = item->error ? item->error : item->grad, *p = item->p;
    const bool is_made = m == grad && !held && by_grad == 1;
    for (size_t row = rows.first; row < rows.first + rows.count;) {
        const size_t left = rows.first + rows.count - row;
        // A few columns need no help from their neighbours: fewer streams of memory are faster.
        const bool is_made_at_once = rank < 3 && !is_made;
        const size_t num_rows = left < BLOCK_ROWS || is_made_at_once ? 1 : BLOCK_ROWS;
        for (size_t first = 0; first < cols; first += TILE) {
            const size_t count = cols - first < TILE ? cols - first : TILE;
            const size_t products = is_made_at_once ? rank : 0;
            for (size_t r = 0; r < num_rows && !is_made; r++) {
                const size_t at = (row + r) * cols + first;
                LOW_RANK(make_some)
                (p + row, item->rows, m + at, grad + at, held ? held + at : NULL, q + first, cols,
                 count, products, by_grad, by_held, first > 0);
            }
            if (is_made_at_once) continue;
            const REAL *m_tile = m + row * cols + first;
            if (num_rows == BLOCK_ROWS) {
                LOW_RANK(project_rows)
                (p + row, item->rows, m_tile, q + first, cols, count, BLOCK_ROWS, rank, first > 0);
            } else {
                LOW_RANK(project_rows)
                (p + row, item->rows, m_tile, q + first, cols, count, 1, rank, first > 0);
            }
        }
        row += num_rows;
    }
}

// ---- q = Mᵀ·p

// GROUP rows of M, or what is left, into the strip of q: = for the first group, += for others.
BLOCK_INLINE void LOW_RANK(add_group)(REAL *q, const REAL *m, const REAL *p, size_t rows,
                                      size_t cols, size_t count, size_t num_rows, size_t rank,
                                      bool accumulate) {
    const size_t whole = count - count % WIDTH;
    for (size_t j = 0; j < whole; j += WIDTH) {
        vector values[GROUP];
        UNROLL
        for (size_t row = 0; row < num_rows; row++)
            values[row] = LOW_RANK(load)(m + row * cols + j);
        for (size_t c = 0; c < rank; c++) {
            const REAL *factors = p + c * rows;
            vector sum = values[0] * factors[0];
            UNROLL
            for (size_t row = 1; row < num_rows; row++) sum += values[row] * factors[row];
            REAL *to = q + c * cols + j;
            if (accumulate) sum = LOW_RANK(load)(to) + sum;
            LOW_RANK(store)(to, sum);
        }
    }
    for (size_t c = 0; c < rank; c++) {
        const REAL *factors = p + c * rows;
        for (size_t j = whole; j < count; j++) {
            REAL sum = m[j] * factors[0];
            for (size_t row = 1; row < num_rows; row++) sum += m[row * cols + j] * factors[row];
            REAL *to = q + c * cols + j;
            *to = accumulate ? *to + sum : sum;
        }
    }
}

static void LOW_RANK(back_project)(const gs_low_rank_item *item, gs_range cols_range) {
    const size_t rows = item->rows, cols = item->cols, rank = (size_t)item->rank;
    const REAL *p = item->p;
    const REAL *m = (const REAL *)(item->error ? item->error : item->grad) + cols_range.first;
    REAL *q = (REAL *)item->q + cols_range.first;
    for (size_t row = 0; row < rows; row += GROUP) {
        const size_t num_rows = rows - row < GROUP ? rows - row : GROUP;
        const REAL *group = m + row * cols;
        if (num_rows < GROUP) {
            LOW_RANK(add_group)
            (q, group, p + row, rows, cols, cols_range.count, num_rows, rank, row > 0);
        } else if (rank == 1) {
            LOW_RANK(add_group)(q, group, p + row, rows, cols, cols_range.count, GROUP, 1, row > 0);
        } else if (rank == 2) {
            LOW_RANK(add_group)(q, group, p + row, rows, cols, cols_range.count, GROUP, 2, row > 0);
        } else {
            LOW_RANK(add_group)
            (q, group, p + row, rows, cols, cols_range.count, GROUP, rank, row > 0);
        }
    }
}

// ---- grad = p·qᵀ; error = (M − p·local_qᵀ)·scale

BLOCK_INLINE void LOW_RANK(rebuild_tile)(REAL *grad, REAL *error, const REAL *p, const REAL *q,
                                         const REAL *local_q, size_t rows, size_t cols,
                                         size_t count, size_t num_rows, size_t rank, REAL scale) {
    const size_t whole = count - count % WIDTH;
    for (size_t j = 0; j < whole; j += WIDTH) {
        vector sums[BLOCK_ROWS], local[BLOCK_ROWS];
        const vector first_q = LOW_RANK(load)(q + j);
        UNROLL
        for (size_t row = 0; row < num_rows; row++) sums[row] = first_q * p[row];
        for (size_t c = 1; c < rank; c++) {
            const vector next_q = LOW_RANK(load)(q + c * cols + j);
            UNROLL
            for (size_t row = 0; row < num_rows; row++) sums[row] += next_q * p[c * rows + row];
        }
        UNROLL
        for (size_t row = 0; row < num_rows; row++)
            LOW_RANK(store)(grad + row * cols + j, sums[row]);
        if (!error) continue;
        const vector first_local = LOW_RANK(load)(local_q + j);
        UNROLL
        for (size_t row = 0; row < num_rows; row++) local[row] = first_local * p[row];
        for (size_t c = 1; c < rank; c++) {
            const vector next_local = LOW_RANK(load)(local_q + c * cols + j);
            UNROLL
            for (size_t row = 0; row < num_rows; row++)
                local[row] += next_local * p[c * rows + row];
        }
        UNROLL
        for (size_t row = 0; row < num_rows; row++) {
            REAL *to = error + row * cols + j;
            LOW_RANK(store)(to, (LOW_RANK(load)(to) - local[row]) * scale);
        }
    }
    for (size_t row = 0; row < num_rows; row++) {
        for (size_t j = whole; j < count; j++) {
            REAL sum = q[j] * p[row];
            for (size_t c = 1; c < rank; c++) sum += q[c * cols + j] * p[c * rows + row];
            grad[row * cols + j] = sum;
            if (!error) continue;
            REAL local = local_q[j] * p[row];
            for (size_t c = 1; c < rank; c++) local += local_q[c * cols + j] * p[c * rows + row];
            error[row * cols + j] = (error[row * cols + j] - local) * scale;
        }
    }
}

// While they are in the cache.
static void LOW_RANK(add_squares)(double *sum, const REAL *error, size_t count) {
    REAL squares;
    GS_LANE_SUM(REAL, squares, i, count, error[i] * error[i]);
    *sum += (double)squares;
}

BLOCK_INLINE void LOW_RANK(rebuild_rows)(const gs_low_rank_item *item, size_t row, size_t num_rows,
                                         size_t rank, REAL scale) {
    const size_t cols = item->cols;
    REAL *grad = (REAL *)item->grad + row * cols;
    REAL *error = item->error ? (REAL *)item->error + row * cols : NULL;
    const REAL *p = (const REAL *)item->p + row, *q = item->q, *local_q = item->local_q;
    for (size_t first = 0; first < cols; first += TILE) {
        const size_t count = cols - first < TILE ? cols - first : TILE;
        if (error) {
            LOW_RANK(rebuild_tile)
            (grad + first, error + first, p, q + first, local_q + first, item->rows, cols, count,
             num_rows, rank, scale);
            if (!item->row_squares) continue;
            for (size_t r = 0; r < num_rows; r++) {
                double *squares = item->row_squares + row + r;
                if (!first) *squares = 0;
                LOW_RANK(add_squares)(squares, error + r * cols + first, count);
            }
        } else {
            LOW_RANK(rebuild_tile)
            (grad + first, NULL, p, q + first, NULL, item->rows, cols, count, num_rows, rank,
             scale);
        }
    }
}

static void LOW_RANK(rebuild)(const gs_low_rank_item *item, gs_range rows, double error_scale) {
    const REAL scale = (REAL)error_scale;
    const size_t rank = (size_t)item->rank, end = rows.first + rows.count;
    size_t row = rows.first;
    for (; row + BLOCK_ROWS <= end; row += BLOCK_ROWS) {
        if (rank == 1) {
            LOW_RANK(rebuild_rows)(item, row, BLOCK_ROWS, 1, scale);
        } else if (rank == 2) {
            LOW_RANK(rebuild_rows)(item, row, BLOCK_ROWS, 2, scale);
        } else {
            LOW_RANK(rebuild_rows)(item, row, BLOCK_ROWS, rank, scale);
        }
    }
    for (; row < end; row++) LOW_RANK(rebuild_rows)(item, row, 1, rank, scale);
}

#undef vector
#undef REAL
#undef LOW_RANK
