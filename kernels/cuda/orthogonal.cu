// Orthonormal columns by modified Gram-Schmidt, one block for each matrix. A thread has its own rows of all
// columns, so that blocks meet for sums alone; these are fp64, in an order that the number of rows decides. The
// matrix is in shared memory while it is worked on, where it fits; otherwise in L2.
#include "kernels/cuda/launch.cuh"

#define BLOCK 512
// As in the CPU's: what is left of a column in the span of those before it is rounding.
#define MOST_ROUNDING 64

template <typename T>
struct precision;
template <>
struct precision<float> {
    static constexpr double value = 0x1p-23;
};
template <>
struct precision<double> {
    static constexpr double value = 0x1p-52;
};

// Sums over the block take turns in two places: one barrier for each.
struct block_sums {
    double (*places)[GS_WARP];
    unsigned turn;
    __device__ double operator()(double value) {
        turn ^= 1;
        return gs_block_sum(value, places[turn]);
    }
};

// column −= share·unit, and the dot product of what is left with `next`.
template <typename T>
__device__ static inline double subtract(T *column, const T *unit, double share, const T *next,
                                         size_t rows) {
    double sum = 0;
    for (size_t i = threadIdx.x; i < rows; i += BLOCK) {
        const T left = static_cast<T>(static_cast<double>(column[i]) -
                                      share * static_cast<double>(unit[i]));
        column[i] = left;
        sum += static_cast<double>(left) * static_cast<double>(next ? next[i] : left);
    }
    return sum;
}

template <typename T>
__device__ static inline double dot(const T *a, const T *b, size_t rows) {
    double sum = 0;
    for (size_t i = threadIdx.x; i < rows; i += BLOCK)
        sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    return sum;
}

// Takes from column c its shares of those before it, and makes it of unit length. False: nothing was left.
template <typename T>
__device__ static inline bool separate(T *matrix, size_t rows, size_t c, double epsilon,
                                       block_sums &sums) {
    T *column = matrix + c * rows;
    double least = 0;
    if (c > 0 && epsilon == 0) {
        least = MOST_ROUNDING * precision<T>::value * sqrt(sums(dot(column, column, rows)));
        if (!(least < INFINITY)) least = 0;
    }
    double own = dot(column, c ? matrix : column, rows);
    for (size_t k = 0; k < c; k++) {
        const double share = sums(own);
        const T *next = k + 1 < c ? matrix + (k + 1) * rows : nullptr;
        own = subtract(column, matrix + k * rows, share, next, rows);
    }
    const double norm = sqrt(sums(own));
    if (norm <= least) {
        for (size_t i = threadIdx.x; i < rows; i += BLOCK) column[i] = T(0);
        return false;
    }
    const double divisor = norm < INFINITY ? norm + epsilon : NAN;
    for (size_t i = threadIdx.x; i < rows; i += BLOCK)
        column[i] = static_cast<T>(static_cast<double>(column[i]) / divisor);
    return true;
}

template <typename T>
__device__ static inline void sweep(T *matrix, const T *spare, size_t rows, size_t rank,
                                    double epsilon, block_sums &sums) {
    for (size_t c = 0; c < rank; c++) {
        if (separate(matrix, rows, c, epsilon, sums) || !spare) continue;
        for (size_t i = threadIdx.x; i < rows; i += BLOCK)
            matrix[c * rows + i] = spare[c * rows + i];
        separate(matrix, rows, c, epsilon, sums);
    }
}

template <typename T>
__device__ static inline void copy_rows(T *to, const T *from, size_t rows, size_t rank) {
    for (size_t c = 0; c < rank; c++)
        for (size_t i = threadIdx.x; i < rows; i += BLOCK) to[c * rows + i] = from[c * rows + i];
}

template <typename T>
__global__ static void __launch_bounds__(BLOCK)
    orthogonalize_kernel(const gs_orthogonal_item *items, size_t num_items, double epsilon,
                         size_t shared_bytes) {
    __shared__ double places[2][GS_WARP];
    GS_DYNAMIC_SHARED(T, shared);
    block_sums sums = {places, 0};
    for (size_t i = blockIdx.x; i < num_items; i += gridDim.x) {
        const gs_orthogonal_item item = items[i];
        const size_t rank = static_cast<size_t>(item.rank);
        T *matrix = static_cast<T *>(item.matrix);
        const bool fits = item.rows * rank * sizeof(T) <= shared_bytes;
        T *work = fits ? shared : matrix;
        if (fits) copy_rows(work, matrix, item.rows, rank);
        const double added = rank > 2 ? 0 : epsilon;
        const T *spare = static_cast<const T *>(item.spare);
        const int num_sweeps = rank > 1 && added == 0 ? 2 : 1;
        for (int k = 0; k < num_sweeps; k++) sweep(work, spare, item.rows, rank, added, sums);
        if (fits) copy_rows(matrix, work, item.rows, rank);
    }
}

template <typename T>
static void run_orthogonalize(gs_stream *stream, const gs_orthogonal_item *items, size_t num_items,
                              double epsilon) {
    // What the kernel itself has is taken off.
    const size_t most = static_cast<size_t>(gs_cuda_stream_of(stream)->device->max_block_shared_bytes);
    const size_t bytes = most > 4096 ? most - 4096 : 0;
    GS_ALLOW_SHARED(stream, (orthogonalize_kernel<T>), bytes);
    GS_LAUNCH(stream, gs_num_blocks(num_items, 1, 1u << 20), BLOCK, bytes, (orthogonalize_kernel<T>),
              items, num_items, epsilon, bytes);
}

extern "C" void gs_cuda_orthogonalize_many(gs_stream *stream, const gs_orthogonal_item *items,
                                           size_t num_items, gs_dtype dtype, double epsilon) {
    if (num_items == 0) return;
    if (dtype == GS_FP64) {
        run_orthogonalize<double>(stream, items, num_items, epsilon);
    } else {
        run_orthogonalize<float>(stream, items, num_items, epsilon);
    }
}
