// Elementwise work over flat arrays at the speed of memory: what the kernels of the reducer and of the
// optimizer have in common.
//
// An operation is a struct with its pointers and
//
//     static constexpr int width;        // neighbouring elements that one thread takes: a pack
//     static constexpr int unroll;       // packs whose loads are in flight together
//     size_t head() const;               // gs_common_head of its pointers
//     template <int W> struct inputs;    // what W elements need, in registers
//     inputs<W> load<W>(size_t i) const;              // of elements [i, i + W)
//     void store<W>(size_t i, const inputs<W> &in) const;
//
// load and store are called for W = width where all arrays lie on a common boundary, and for W = 1 in front
// of it, behind the last whole pack, and everywhere when there is no such boundary. An element's result does
// not depend on which. Outputs may be inputs: each element is read and written by one thread.
#ifndef KERNELS_CUDA_FLAT_CUH
#define KERNELS_CUDA_FLAT_CUH

#include "kernels/cuda/launch.cuh"

#define GS_FLAT_BLOCK 256
#define GS_FLAT_SINGLE_UNROLL 4  // single elements in flight, where there is no common boundary

// ---- W elements of a type, in accesses of at most 16 bytes

template <typename T, int W>
struct gs_elements {
    T at[W];
};

template <int BYTES>
struct gs_raw;
template <>
struct gs_raw<1> {
    typedef uint8_t type;
};
template <>
struct gs_raw<2> {
    typedef uint16_t type;
};
template <>
struct gs_raw<4> {
    typedef uint32_t type;
};
template <>
struct gs_raw<8> {
    typedef uint2 type;
};
template <>
struct gs_raw<16> {
    typedef uint4 type;
};

template <int W, typename T>
__device__ static inline gs_elements<T, W> gs_load_elements(const T *from) {
    typedef typename gs_raw<W * sizeof(T)>::type raw;
    union {
        raw bits;
        gs_elements<T, W> elements;
    } loaded;
    loaded.bits = *reinterpret_cast<const raw *>(from);
    return loaded.elements;
}

template <int W, typename T>
__device__ static inline void gs_store_elements(T *to, const gs_elements<T, W> &elements) {
    typedef typename gs_raw<W * sizeof(T)>::type raw;
    union {
        raw bits;
        gs_elements<T, W> elements;
    } stored;
    stored.elements = elements;
    *reinterpret_cast<raw *>(to) = stored.bits;
}

// ---- the common boundary

// Elements before a pack of W that starts on its own size; W when there is none.
template <int W, typename T>
__host__ __device__ static inline size_t gs_head_of(const T *pointer) {
    const size_t bytes = W * sizeof(T), past = reinterpret_cast<uintptr_t>(pointer) % bytes;
    if (past % sizeof(T)) return W;
    return past ? (bytes - past) / sizeof(T) : 0;
}

template <int W, typename T>
__host__ __device__ static inline size_t gs_common_head(const T *only) {
    return gs_head_of<W>(only);
}
template <int W, typename T, typename... Others>
__host__ __device__ static inline size_t gs_common_head(const T *first, const Others *...others) {
    const size_t head = gs_head_of<W>(first);
    return head == gs_common_head<W>(others...) ? head : W;
}

// ---- tiles

template <class Op>
constexpr size_t gs_tile_elements = (size_t)GS_FLAT_BLOCK * Op::width * Op::unroll;

template <class Op>
__host__ __device__ static inline size_t gs_num_tiles(size_t count) {
    return count / gs_tile_elements<Op> + (count % gs_tile_elements<Op> != 0);
}

template <int W, int UNROLL, class Op>
__device__ static inline void gs_run_packs(const Op &op, size_t first_pack, size_t num_packs,
                                           size_t head) {
    typename Op::template inputs<W> in[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const size_t pack = first_pack + u * GS_FLAT_BLOCK + threadIdx.x;
        if (pack < num_packs) in[u] = op.template load<W>(head + pack * W);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const size_t pack = first_pack + u * GS_FLAT_BLOCK + threadIdx.x;
        if (pack < num_packs) op.template store<W>(head + pack * W, in[u]);
    }
}

// Tile `tile` of `count` elements, by a block of GS_FLAT_BLOCK threads. The first tile also takes what lies
// before the boundary and behind the last whole pack: fewer than 2·width elements.
template <class Op>
__device__ static inline void gs_run_tile(const Op &op, size_t tile, size_t head, size_t count) {
    constexpr int W = Op::width;
    const size_t first = tile * gs_tile_elements<Op>;
    if (head == W) {
        constexpr int unroll = W * Op::unroll < GS_FLAT_SINGLE_UNROLL ? W * Op::unroll : GS_FLAT_SINGLE_UNROLL;
        for (int done = 0; done < W * Op::unroll; done += unroll)
            gs_run_packs<1, unroll>(op, first + (size_t)done * GS_FLAT_BLOCK, count, 0);
        return;
    }
    const size_t num_packs = count > head ? (count - head) / W : 0;
    gs_run_packs<W, Op::unroll>(op, first / W, num_packs, head);
    if (tile != 0) return;
    // Of the threads that find no element in front, the first takes the one behind the packs.
    const size_t edge = threadIdx.x < head ? threadIdx.x : num_packs * W + threadIdx.x;
    if (W > 1 && threadIdx.x < 2 * W && edge < count) {
        const typename Op::template inputs<1> in = op.template load<1>(edge);
        op.template store<1>(edge, in);
    }
}

template <class Op>
__global__ static void __launch_bounds__(GS_FLAT_BLOCK)
    gs_flat_kernel(const __grid_constant__ Op op, size_t head, size_t count) {
    const size_t num_tiles = gs_num_tiles<Op>(count);
    for (size_t tile = blockIdx.x; tile < num_tiles; tile += gridDim.x)
        gs_run_tile(op, tile, head, count);
}

// One block for each tile: the machine hands them out as others end, so that no wave is half empty.
template <class Op>
static inline void gs_run_flat(gs_stream *stream, const Op &op, size_t count) {
    const unsigned grid = gs_num_blocks(count, gs_tile_elements<Op>, 1u << 30);
    GS_LAUNCH(stream, grid, GS_FLAT_BLOCK, 0, (gs_flat_kernel<Op>), op, op.head(), count);
}

#endif
