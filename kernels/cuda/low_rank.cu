// PowerSGD's dense passes over all matrices of a bucket, at the speed of memory: 12, 4 and 12 bytes for an
// element of fp32 while the rank is at most MOST_RANK; beyond that M comes once more for each MOST_RANK
// columns, from L1 or L2 where a row or a strip of it fits.
//
// M, the approximation and the error have the CPU's bits: no multiplication in them is fused. The sums p and q
// are fused, and in another order than the CPU's: one that the shape alone decides.
#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/item_table.cuh"

#define MOST_RANK 8     // columns of P and Q whose sums a thread keeps
#define PROJECT_BLOCK 256
#define PROJECT_ROWS (PROJECT_BLOCK / GS_WARP)  // a warp for each
#define STRIP_BLOCK 512
#define STRIP_LANES 8   // threads beside each other: 128 bytes of a row
#define STRIP_ROWS (STRIP_BLOCK / STRIP_LANES)
#define STRIP_UNROLL 4  // rows whose loads are in flight together
#define REBUILD_BLOCK 256
#define REBUILD_ROWS 2  // of a warp, which reads q once for them
#define REBUILD_TILE (REBUILD_BLOCK / GS_WARP * REBUILD_ROWS)

__device__ static inline float fused(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
__device__ static inline double fused(double a, double b, double c) {
    return __fma_rn(a, b, c);
}

// An item whose pointers have their type.
template <typename T>
struct typed_item {
    T *grad;
    const T *held;
    T *error;
    T *p, *q;
    const T *local_q;
    size_t rows, cols, rank;
    double *row_squares;

    __device__ explicit typed_item(const gs_low_rank_item &item)
        : grad(static_cast<T *>(item.grad)), held(static_cast<const T *>(item.held)),
          error(static_cast<T *>(item.error)), p(static_cast<T *>(item.p)),
          q(static_cast<T *>(item.q)), local_q(static_cast<const T *>(item.local_q)),
          rows(item.rows), cols(item.cols), rank(static_cast<size_t>(item.rank)),
          row_squares(item.row_squares) {}

    // Whether every row of all matrices that are read with M starts on 16 bytes.
    __device__ bool is_aligned() const {
        return cols % (16 / sizeof(T)) == 0 && gs_is_aligned16(grad) && gs_is_aligned16(held) &&
               gs_is_aligned16(error) && gs_is_aligned16(q) && gs_is_aligned16(local_q);
    }
    __device__ const T *m() const { return error ? error : grad; }
};

// run.with<K>(first, count) for pieces of the columns of P: K is how many a thread has room for.
template <class Run>
__device__ static inline void for_columns(size_t rank, const Run &run) {
    for (size_t first = 0; first < rank; first += MOST_RANK) {
        const size_t count = rank - first < MOST_RANK ? rank - first : MOST_RANK;
        if (count == 1) {
            run.template with<1>(first, count);
        } else if (count == 2) {
            run.template with<2>(first, count);
        } else if (count <= 4) {
            run.template with<4>(first, count);
        } else {
            run.template with<MOST_RANK>(first, count);
        }
    }
}

// ---- M, and p = M·q: a warp for each row

template <typename T, int W>
struct project_row {
    const typed_item<T> &item;
    size_t row;
    T by_grad, by_held;

    // M's elements [at, at + W), made by the first piece and found by the others.
    __device__ gs_elements<T, W> make(size_t at, bool is_first) const {
        T *m = item.error ? item.error : item.grad;
        if (!is_first) return gs_load_elements<W>(m + at);
        gs_elements<T, W> made = gs_load_elements<W>(item.grad + at);
        if (m == item.grad && !item.held && by_grad == T(1)) return made;
        if (item.held) {
            const gs_elements<T, W> held = gs_load_elements<W>(item.held + at);
#pragma unroll
            for (int k = 0; k < W; k++)
                made.at[k] = made.at[k] * by_grad + held.at[k] * by_held;
        } else {
#pragma unroll
            for (int k = 0; k < W; k++) made.at[k] *= by_grad;
        }
        gs_store_elements<W>(m + at, made);
        return made;
    }

    template <int K>
    __device__ void with(size_t first, size_t count) const {
        const unsigned lane = threadIdx.x % GS_WARP;
        const T *q = item.q + first * item.cols;
        T sums[K] = {};
#pragma unroll 2
        for (size_t j = lane * W; j < item.cols; j += GS_WARP * W) {
            const gs_elements<T, W> m = make(row * item.cols + j, first == 0);
#pragma unroll
            for (int c = 0; c < K; c++) {
                if (static_cast<size_t>(c) >= count) continue;
                const gs_elements<T, W> factors = gs_load_elements<W>(q + c * item.cols + j);
#pragma unroll
                for (int k = 0; k < W; k++) sums[c] = fused(m.at[k], factors.at[k], sums[c]);
            }
        }
#pragma unroll
        for (int c = 0; c < K; c++) {
            const T sum = gs_warp_sum(sums[c]);
            if (lane == 0 && static_cast<size_t>(c) < count)
                item.p[(first + c) * item.rows + row] = sum;
        }
    }
};

struct make_project {
    __device__ size_t num_tiles(const gs_low_rank_item &item) const {
        return (item.rows + PROJECT_ROWS - 1) / PROJECT_ROWS;
    }
    __device__ gs_low_rank_item prepared(const gs_low_rank_item &item) const { return item; }
};

template <typename T>
struct project_tile {
    T by_grad, by_held;
    __device__ void operator()(const gs_low_rank_item &raw, size_t tile) const {
        const typed_item<T> item(raw);
        const size_t row = tile * PROJECT_ROWS + threadIdx.x / GS_WARP;
        if (row >= item.rows) return;  // a whole warp
        if (item.is_aligned()) {
            for_columns(item.rank, project_row<T, 16 / sizeof(T)>{item, row, by_grad, by_held});
        } else {
            for_columns(item.rank, project_row<T, 1>{item, row, by_grad, by_held});
        }
    }
};

template <typename T>
__global__ static void __launch_bounds__(PROJECT_BLOCK, GS_BLOCKS_PER_SM)
    project_kernel(const gs_tile_table<gs_low_rank_item> table, T by_grad, T by_held) {
    gs_walk_tiles(table, project_tile<T>{by_grad, by_held});
}

// ---- q = Mᵀ·p: a block for each strip of columns

template <typename T, int W>
struct sum_strip {
    const typed_item<T> &item;
    size_t strip;
    T *shared;  // for each warp MOST_RANK sums of a strip's columns

    template <int K>
    __device__ void with(size_t first, size_t count) const {
        const unsigned lane = threadIdx.x % STRIP_LANES, group = threadIdx.x / STRIP_LANES;
        const unsigned warp = threadIdx.x / GS_WARP;
        const size_t j = (strip * STRIP_LANES + lane) * W;
        const T *m = item.m() + j, *p = item.p + first * item.rows;
        T sums[K][W] = {};
        if (j < item.cols) {
            for (size_t base = group; base < item.rows; base += STRIP_UNROLL * STRIP_ROWS) {
                gs_elements<T, W> values[STRIP_UNROLL];
#pragma unroll
                for (int u = 0; u < STRIP_UNROLL; u++) {
                    const size_t row = base + u * STRIP_ROWS;
                    if (row < item.rows) values[u] = gs_load_elements<W>(m + row * item.cols);
                }
#pragma unroll
                for (int u = 0; u < STRIP_UNROLL; u++) {
                    const size_t row = base + u * STRIP_ROWS;
                    if (row >= item.rows) continue;
#pragma unroll
                    for (int c = 0; c < K; c++) {
                        if (static_cast<size_t>(c) >= count) continue;
                        const T factor = p[c * item.rows + row];
#pragma unroll
                        for (int k = 0; k < W; k++)
                            sums[c][k] = fused(values[u].at[k], factor, sums[c][k]);
                    }
                }
            }
        }
        // The warp's row groups, then the warps in their order.
#pragma unroll
        for (int c = 0; c < K; c++) {
#pragma unroll
            for (int k = 0; k < W; k++) {
                T sum = sums[c][k];
#pragma unroll
                for (int distance = GS_WARP / 2; distance >= STRIP_LANES; distance /= 2)
                    sum += __shfl_xor_sync(GS_FULL_WARP, sum, distance);
                if (threadIdx.x % GS_WARP < STRIP_LANES)
                    shared[((warp * K + c) * STRIP_LANES + lane) * W + k] = sum;
            }
        }
        __syncthreads();
        constexpr unsigned width = STRIP_LANES * W;
        for (unsigned i = threadIdx.x; i < K * width; i += STRIP_BLOCK) {
            const size_t c = i / width, col = strip * width + i % width;
            if (c >= count || col >= item.cols) continue;
            T sum = shared[i];
            for (unsigned w = 1; w < STRIP_BLOCK / GS_WARP; w++) sum += shared[w * K * width + i];
            item.q[(first + c) * item.cols + col] = sum;
        }
        __syncthreads();
    }
};

// Strips are as wide as the rows allow.
template <typename T>
__device__ static inline size_t strip_width(const gs_low_rank_item &item) {
    return typed_item<T>(item).is_aligned() ? STRIP_LANES * 16 / sizeof(T) : STRIP_LANES;
}

template <typename T>
struct make_strips {
    __device__ size_t num_tiles(const gs_low_rank_item &item) const {
        const size_t width = strip_width<T>(item);
        return (item.cols + width - 1) / width;
    }
    __device__ gs_low_rank_item prepared(const gs_low_rank_item &item) const { return item; }
};

template <typename T>
struct strip_tile {
    T *shared;
    __device__ void operator()(const gs_low_rank_item &raw, size_t strip) const {
        const typed_item<T> item(raw);
        if (item.is_aligned()) {
            for_columns(item.rank, sum_strip<T, 16 / sizeof(T)>{item, strip, shared});
        } else {
            for_columns(item.rank, sum_strip<T, 1>{item, strip, shared});
        }
    }
};

template <typename T>
__global__ static void __launch_bounds__(STRIP_BLOCK, 2)
    back_project_kernel(const gs_tile_table<gs_low_rank_item> table) {
    __shared__ T shared[STRIP_BLOCK / GS_WARP * MOST_RANK * STRIP_LANES * (16 / sizeof(T))];
    gs_walk_tiles(table, strip_tile<T>{shared});
}

// ---- grad = p·qᵀ; error = (M − p·local_qᵀ)·scale: a warp for a few rows

template <typename T, int W>
__device__ static inline void multiply(T (&out)[REBUILD_ROWS][W], const typed_item<T> &item,
                                       const T *q, size_t first, size_t num_rows, size_t j) {
    for (size_t c = 0; c < item.rank; c++) {
        const gs_elements<T, W> factors = gs_load_elements<W>(q + c * item.cols + j);
#pragma unroll
        for (int r = 0; r < REBUILD_ROWS; r++) {
            if (static_cast<size_t>(r) >= num_rows) continue;
            const T p = item.p[c * item.rows + first + r];
#pragma unroll
            for (int k = 0; k < W; k++) {
                const T product = factors.at[k] * p;
                out[r][k] = c ? out[r][k] + product : product;
            }
        }
    }
}

template <typename T, int W>
__device__ static inline void rebuild_rows(const typed_item<T> &item, size_t first, T scale) {
    const unsigned lane = threadIdx.x % GS_WARP;
    const size_t num_rows = item.rows - first < REBUILD_ROWS ? item.rows - first : REBUILD_ROWS;
    double squares[REBUILD_ROWS] = {};
#pragma unroll 2
    for (size_t j = lane * W; j < item.cols; j += GS_WARP * W) {
        gs_elements<T, W> m[REBUILD_ROWS];
        T product[REBUILD_ROWS][W];
#pragma unroll
        for (int r = 0; r < REBUILD_ROWS; r++) {
            if (item.error && static_cast<size_t>(r) < num_rows)
                m[r] = gs_load_elements<W>(item.error + (first + r) * item.cols + j);
        }
        multiply<T, W>(product, item, item.q, first, num_rows, j);
#pragma unroll
        for (int r = 0; r < REBUILD_ROWS; r++) {
            if (static_cast<size_t>(r) >= num_rows) continue;
            gs_elements<T, W> out;
#pragma unroll
            for (int k = 0; k < W; k++) out.at[k] = product[r][k];
            gs_store_elements<W>(item.grad + (first + r) * item.cols + j, out);
        }
        if (!item.error) continue;
        multiply<T, W>(product, item, item.local_q, first, num_rows, j);
#pragma unroll
        for (int r = 0; r < REBUILD_ROWS; r++) {
            if (static_cast<size_t>(r) >= num_rows) continue;
#pragma unroll
            for (int k = 0; k < W; k++) {
                m[r].at[k] = (m[r].at[k] - product[r][k]) * scale;
                const double error = static_cast<double>(m[r].at[k]);
                squares[r] = __fma_rn(error, error, squares[r]);
            }
            gs_store_elements<W>(item.error + (first + r) * item.cols + j, m[r]);
        }
    }
    if (!item.error || !item.row_squares) return;
#pragma unroll
    for (int r = 0; r < REBUILD_ROWS; r++) {
        const double sum = gs_warp_sum(squares[r]);
        if (lane == 0 && static_cast<size_t>(r) < num_rows) item.row_squares[first + r] = sum;
    }
}

struct make_rebuild {
    __device__ size_t num_tiles(const gs_low_rank_item &item) const {
        return (item.rows + REBUILD_TILE - 1) / REBUILD_TILE;
    }
    __device__ gs_low_rank_item prepared(const gs_low_rank_item &item) const { return item; }
};

template <typename T>
struct rebuild_tile {
    T scale;
    __device__ void operator()(const gs_low_rank_item &raw, size_t tile) const {
        const typed_item<T> item(raw);
        const size_t first = tile * REBUILD_TILE + threadIdx.x / GS_WARP * REBUILD_ROWS;
        if (first >= item.rows) return;  // a whole warp
        if (item.is_aligned()) {
            rebuild_rows<T, 16 / sizeof(T)>(item, first, scale);
        } else {
            rebuild_rows<T, 1>(item, first, scale);
        }
    }
};

template <typename T>
__global__ static void __launch_bounds__(REBUILD_BLOCK, GS_BLOCKS_PER_SM)
    rebuild_kernel(const gs_tile_table<gs_low_rank_item> table, T scale) {
    gs_walk_tiles(table, rebuild_tile<T>{scale});
}

// ---- launchers

template <typename T>
static void run_project(gs_stream *stream, const gs_low_rank_item *items, size_t num_items,
                        double grad_scale, double held_scale) {
    gs_tile_table<gs_low_rank_item> table;
    char *rest;
    if (!gs_prepare_table(stream, &table, &rest, items, num_items, make_project{}, "low_rank_project"))
        return;
    GS_LAUNCH(stream, gs_persistent_grid(stream), PROJECT_BLOCK, 0, (project_kernel<T>), table,
              static_cast<T>(grad_scale), static_cast<T>(held_scale));
}

extern "C" void gs_cuda_low_rank_project(gs_stream *stream, const gs_low_rank_item *items,
                                         size_t num_items, gs_dtype dtype, double grad_scale,
                                         double held_scale) {
    if (num_items == 0) return;
    if (dtype == GS_FP64) {
        run_project<double>(stream, items, num_items, grad_scale, held_scale);
    } else {
        run_project<float>(stream, items, num_items, grad_scale, held_scale);
    }
}

template <typename T>
static void run_back_project(gs_stream *stream, const gs_low_rank_item *items, size_t num_items) {
    gs_tile_table<gs_low_rank_item> table;
    char *rest;
    if (!gs_prepare_table(stream, &table, &rest, items, num_items, make_strips<T>{},
                          "low_rank_back_project"))
        return;
    GS_LAUNCH(stream, 2 * gs_num_sms(stream), STRIP_BLOCK, 0, (back_project_kernel<T>), table);
}

extern "C" void gs_cuda_low_rank_back_project(gs_stream *stream, const gs_low_rank_item *items,
                                              size_t num_items, gs_dtype dtype) {
    if (num_items == 0) return;
    if (dtype == GS_FP64) {
        run_back_project<double>(stream, items, num_items);
    } else {
        run_back_project<float>(stream, items, num_items);
    }
}

template <typename T>
static void run_rebuild(gs_stream *stream, const gs_low_rank_item *items, size_t num_items,
                        double error_scale) {
    gs_tile_table<gs_low_rank_item> table;
    char *rest;
    if (!gs_prepare_table(stream, &table, &rest, items, num_items, make_rebuild{},
                          "low_rank_rebuild"))
        return;
    GS_LAUNCH(stream, gs_persistent_grid(stream), REBUILD_BLOCK, 0, (rebuild_kernel<T>), table,
              static_cast<T>(error_scale));
}

extern "C" void gs_cuda_low_rank_rebuild(gs_stream *stream, const gs_low_rank_item *items,
                                         size_t num_items, gs_dtype dtype, double error_scale) {
    if (num_items == 0) return;
    if (dtype == GS_FP64) {
        run_rebuild<double>(stream, items, num_items, error_scale);
    } else {
        run_rebuild<float>(stream, items, num_items, error_scale);
    }
}
