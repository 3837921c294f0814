// One bit for each element and two means for each item. Sums run over slices of an item, in an order that its count
// alone decides; the CPU's add up in another.
#include "kernels/cuda/parts.cuh"

#define NUM_SLICES 64  // of an item, at most: blocks of one row of the grid
#define MOST_ROWS 65535u

// Slice `x` of `count` elements: whole blocks of threads.
struct slice {
    size_t first, end;
    __device__ slice(size_t count, unsigned x) {
        size_t size = (count + NUM_SLICES - 1) / NUM_SLICES;
        size = (size + GS_PART_BLOCK - 1) / GS_PART_BLOCK * GS_PART_BLOCK;
        first = x * size < count ? x * size : count;
        end = first + size < count ? first + size : count;
    }
};

struct side_sums {
    double above, below;  // sums of elements that are not below zero, and of those that are
    double num_below;
};

template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    sum_sides_kernel(side_sums *sums, const gs_item_table table) {
    __shared__ double shared[GS_WARP];
    for (size_t item = blockIdx.y; item < table.num_items; item += gridDim.y) {
        const T *error = static_cast<const T *>(table.items[item].error);
        const slice own(table.items[item].count, blockIdx.x);
        double above = 0, below = 0, num_below = 0;
        for (size_t i = own.first + threadIdx.x; i < own.end; i += GS_PART_BLOCK) {
            const double value = static_cast<double>(error[i]);
            const bool is_below = value < 0;
            above += is_below ? 0.0 : value;
            below += is_below ? value : 0.0;
            num_below += is_below;
        }
        above = gs_block_sum(above, shared);
        __syncthreads();
        below = gs_block_sum(below, shared);
        __syncthreads();
        num_below = gs_block_sum(num_below, shared);
        __syncthreads();
        if (threadIdx.x == 0) sums[item * NUM_SLICES + blockIdx.x] = {above, below, num_below};
    }
}

template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    store_means_kernel(T *means, const side_sums *sums, const gs_item_table table) {
    const size_t stride = static_cast<size_t>(gridDim.x) * GS_PART_BLOCK;
    for (size_t item = static_cast<size_t>(blockIdx.x) * GS_PART_BLOCK + threadIdx.x;
         item < table.num_items; item += stride) {
        side_sums all = {0, 0, 0};
        for (int s = 0; s < NUM_SLICES; s++) {
            const side_sums own = sums[item * NUM_SLICES + s];
            all.above += own.above;
            all.below += own.below;
            all.num_below += own.num_below;
        }
        const double num_above = static_cast<double>(table.items[item].count) - all.num_below;
        means[2 * item] = static_cast<T>(num_above > 0 ? all.above / num_above : 0.0);
        means[2 * item + 1] = static_cast<T>(all.num_below > 0 ? all.below / all.num_below : 0.0);
    }
}

// A warp votes; the first of every eight lanes has a byte. Slices are whole blocks, so bytes are of one slice.
template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    take_signs_kernel(uint8_t *bits, const T *means, const gs_item_table table) {
    for (size_t item = blockIdx.y; item < table.num_items; item += gridDim.y) {
        T *error = static_cast<T *>(table.items[item].error);
        uint8_t *own_bits = bits + table.items[item].first / 8;
        const slice own(table.items[item].count, blockIdx.x);
        const T above = means[2 * item], below = means[2 * item + 1];
        for (size_t base = own.first; base < own.end; base += GS_PART_BLOCK) {
            const size_t i = base + threadIdx.x;
            const T value = i < own.end ? error[i] : T(0);
            const bool is_below = value < 0;
            const unsigned votes = __ballot_sync(GS_FULL_WARP, is_below);
            if (i >= own.end) continue;
            error[i] = value - (is_below ? below : above);
            if (i % 8 == 0) own_bits[i / 8] = static_cast<uint8_t>(votes >> threadIdx.x % GS_WARP);
        }
    }
}

static unsigned num_rows(size_t num_items) {
    return num_items < MOST_ROWS ? static_cast<unsigned>(num_items) : MOST_ROWS;
}

template <typename T>
static void take_with(gs_stream *stream, const gs_signs *signs) {
    const gs_item_table table = {signs->items, signs->num_items};
    void *scratch =
        gs_scratch(stream, signs->num_items * NUM_SLICES * sizeof(side_sums), "take_signs");
    if (!scratch) return;
    side_sums *sums = static_cast<side_sums *>(scratch);
    const dim3 grid(NUM_SLICES, num_rows(signs->num_items));
    T *means = static_cast<T *>(signs->means);
    GS_LAUNCH(stream, grid, GS_PART_BLOCK, 0, (sum_sides_kernel<T>), sums, table);
    GS_LAUNCH(stream, gs_num_blocks(signs->num_items, GS_PART_BLOCK, 1024), GS_PART_BLOCK, 0,
              (store_means_kernel<T>), means, sums, table);
    GS_LAUNCH(stream, grid, GS_PART_BLOCK, 0, (take_signs_kernel<T>), signs->bits, means, table);
}

extern "C" void gs_cuda_take_signs(gs_stream *stream, const gs_signs *signs) {
    if (signs->num_items == 0) return;
    if (signs->dtype == GS_FP64) {
        take_with<double>(stream, signs);
    } else {
        take_with<float>(stream, signs);
    }
}

template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    add_signs_kernel(const gs_item_table table, const char *means, const uint8_t *bits, int num_ranks,
                     size_t stride_bytes) {
    for (size_t item = blockIdx.y; item < table.num_items; item += gridDim.y) {
        T *grad = static_cast<T *>(table.items[item].grad);
        const size_t first = table.items[item].first;
        const slice own(table.items[item].count, blockIdx.x);
        for (size_t i = own.first + threadIdx.x; i < own.end; i += GS_PART_BLOCK) {
            T sum = 0;
            for (int r = 0; r < num_ranks; r++) {
                const size_t offset = static_cast<size_t>(r) * stride_bytes;
                const T *said = reinterpret_cast<const T *>(means + offset) + 2 * item;
                const bool is_below = bits[offset + (first + i) / 8] >> i % 8 & 1;
                const T value = said[is_below ? 1 : 0];
                sum = r ? sum + value : value;
            }
            grad[i] = sum;
        }
    }
}

extern "C" void gs_cuda_add_signs(gs_stream *stream, const gs_signs *signs, int num_ranks,
                                  size_t stride_bytes) {
    if (signs->num_items == 0) return;
    const gs_item_table table = {signs->items, signs->num_items};
    const dim3 grid(NUM_SLICES, num_rows(signs->num_items));
    const char *means = static_cast<const char *>(signs->means);
    const uint8_t *bits = signs->bits;
    if (signs->dtype == GS_FP64) {
        GS_LAUNCH(stream, grid, GS_PART_BLOCK, 0, (add_signs_kernel<double>), table, means, bits,
                  num_ranks, stride_bytes);
    } else {
        GS_LAUNCH(stream, grid, GS_PART_BLOCK, 0, (add_signs_kernel<float>), table, means, bits,
                  num_ranks, stride_bytes);
    }
}
