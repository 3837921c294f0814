// outputs[*] = scale · (inputs[0] op inputs[1] op …): the inner loop of collectives.
//
// The bits are the CPU's. Sums of few inputs, folded left to right, know their number: all loads of a pack
// are in flight together. Everything else runs the merges as a program: the last value is kept in registers,
// those under it in shared memory, where every thread has a column of its own.
#include "kernels/cuda/flat.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/reduction.h"

#define MOST_UNROLLED 8  // of inputs and outputs
#define MOST_OUTPUTS 64

// ---- element types

// How an element type accumulates.
template <gs_dtype DTYPE>
struct accumulation {
    typedef typename gs_number<DTYPE>::type type;
    typedef float sum;
    __device__ static float widen(type value) { return gs_number<DTYPE>::widen(value); }
    __device__ static type narrow(float value) { return gs_number<DTYPE>::narrow(value); }
    __device__ static float add(float left, float right) { return __fadd_rn(left, right); }
    __device__ static float scaled(float value, double scale) {
        return __fmul_rn(value, static_cast<float>(scale));
    }
};
template <>
struct accumulation<GS_FP64> {
    typedef double type;
    typedef double sum;
    __device__ static double widen(double value) { return value; }
    __device__ static double narrow(double value) { return value; }
    __device__ static double add(double left, double right) { return __dadd_rn(left, right); }
    __device__ static double scaled(double value, double scale) { return __dmul_rn(value, scale); }
};
// Integer sums wrap around.
template <>
struct accumulation<GS_I64> {
    typedef int64_t type;
    typedef int64_t sum;
    __device__ static int64_t widen(int64_t value) { return value; }
    __device__ static int64_t narrow(int64_t value) { return value; }
    __device__ static int64_t add(int64_t left, int64_t right) {
        return static_cast<int64_t>(static_cast<uint64_t>(left) + static_cast<uint64_t>(right));
    }
    __device__ static int64_t scaled(int64_t value, double) { return value; }
};
template <>
struct accumulation<GS_I32> {
    typedef int32_t type;
    typedef int32_t sum;
    __device__ static int32_t widen(int32_t value) { return value; }
    __device__ static int32_t narrow(int32_t value) { return value; }
    __device__ static int32_t add(int32_t left, int32_t right) {
        return static_cast<int32_t>(static_cast<uint32_t>(left) + static_cast<uint32_t>(right));
    }
    __device__ static int32_t scaled(int32_t value, double) { return value; }
};

// A NaN wins, the left one of two.
template <gs_dtype DTYPE, gs_reduce_op OP>
__device__ static inline typename accumulation<DTYPE>::sum combine(
    typename accumulation<DTYPE>::sum left, typename accumulation<DTYPE>::sum right) {
    if constexpr (OP == GS_OP_SUM) {
        return accumulation<DTYPE>::add(left, right);
    } else if constexpr (OP == GS_OP_MAX) {
        return left > right || left != left ? left : right;
    } else {
        return left < right || left != left ? left : right;
    }
}

// ---- sums of a known number of inputs

template <gs_dtype DTYPE, int INPUTS>
struct sum_op {
    typedef typename accumulation<DTYPE>::type type;
    static constexpr int width = 16 / sizeof(type), unroll = INPUTS == 1 ? 4 : INPUTS < 4 ? 2 : 1;
    type *out[MOST_UNROLLED];
    const type *in[INPUTS];
    int num_outputs;
    double factor;

    size_t head() const {
        const size_t head = gs_head_of<width>(in[0]);
        for (int k = 1; k < INPUTS; k++) {
            if (gs_head_of<width>(in[k]) != head) return width;
        }
        for (int k = 0; k < num_outputs; k++) {
            if (gs_head_of<width>(out[k]) != head) return width;
        }
        return head;
    }
    template <int W>
    struct inputs {
        gs_elements<type, W> in[INPUTS];
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        inputs<W> loaded;
#pragma unroll
        for (int k = 0; k < INPUTS; k++) loaded.in[k] = gs_load_elements<W>(in[k] + i);
        return loaded;
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &loaded) const {
        typedef accumulation<DTYPE> number;
        gs_elements<type, W> result;
#pragma unroll
        for (int e = 0; e < W; e++) {
            typename number::sum sum = number::widen(loaded.in[0].at[e]);
#pragma unroll
            for (int k = 1; k < INPUTS; k++)
                sum = number::add(sum, number::widen(loaded.in[k].at[e]));
            result.at[e] = number::narrow(number::scaled(sum, factor));
        }
#pragma unroll
        for (int k = 0; k < MOST_UNROLLED; k++) {
            if (k < num_outputs) gs_store_elements<W>(out[k] + i, result);
        }
    }
};

template <gs_dtype DTYPE, int INPUTS>
static void run_sum(gs_stream *stream, const gs_reduction *r) {
    typedef typename accumulation<DTYPE>::type type;
    sum_op<DTYPE, INPUTS> op;
    op.num_outputs = r->num_outputs;
    op.factor = r->scale;
    for (int k = 0; k < INPUTS; k++) op.in[k] = static_cast<const type *>(r->inputs[k]);
    for (int k = 0; k < MOST_UNROLLED; k++)
        op.out[k] = k < r->num_outputs ? static_cast<type *>(r->outputs[k]) : nullptr;
    gs_run_flat(stream, op, r->count);
}

// Numbers that are none of these are programs.
template <gs_dtype DTYPE>
static bool run_sums(gs_stream *stream, const gs_reduction *r) {
    if (r->num_outputs > MOST_UNROLLED) return false;
    switch (r->num_inputs) {
    case 1:
        run_sum<DTYPE, 1>(stream, r);
        return true;
    case 2:
        run_sum<DTYPE, 2>(stream, r);
        return true;
    case 3:
        run_sum<DTYPE, 3>(stream, r);
        return true;
    case 4:
        run_sum<DTYPE, 4>(stream, r);
        return true;
    case 8:
        run_sum<DTYPE, 8>(stream, r);
        return true;
    default:
        return false;
    }
}

static bool reduce_fast(gs_stream *stream, const gs_reduction *r) {
    if (r->op != GS_OP_SUM || r->merges) return false;
    if (r->dtype == GS_FP32) return run_sums<GS_FP32>(stream, r);
    if (r->dtype == GS_BF16) return run_sums<GS_BF16>(stream, r);
    return r->dtype == GS_FP16 && run_sums<GS_FP16>(stream, r);
}

// ---- sums that are rounded as if 16 bits had been sent

// What becomes of a number on its way: as cast and reduce round it.
template <gs_dtype WIRE>
__device__ static inline float round_to_wire(float value) {
    typedef gs_number<WIRE> wire;
    return wire::widen(wire::narrow(value));
}
template <gs_dtype WIRE>
__device__ static inline float send(float value, float scale) {
    return round_to_wire<WIRE>(__fmul_rn(value, scale));
}
template <gs_dtype WIRE>
__device__ static inline float send(double value, float scale) {
    return round_to_wire<WIRE>(__double2float_rn(__dmul_rn(value, static_cast<double>(scale))));
}
// Rounded before it is scaled, and after.
template <gs_dtype WIRE, typename T>
__device__ static inline float send_twice(T value, float scale) {
    return send<WIRE>(send<WIRE>(value, 1.0f), scale);
}

// One kernel for any number of inputs: where GPUs reduce among themselves a library sends the 16 bits.
template <gs_dtype DTYPE, gs_dtype WIRE>
struct wire_sum_op {
    typedef typename gs_number<DTYPE>::type type;
    static constexpr int width = 16 / sizeof(type), unroll = 1;
    type *out[MOST_OUTPUTS];
    const type *in[GS_REDUCE_MAX_INPUTS];
    int num_outputs, num_inputs;
    float wire_scale, factor;
    bool scale_after;

    size_t head() const {
        const size_t head = gs_head_of<width>(in[0]);
        for (int k = 1; k < num_inputs; k++) {
            if (gs_head_of<width>(in[k]) != head) return width;
        }
        for (int k = 0; k < num_outputs; k++) {
            if (gs_head_of<width>(out[k]) != head) return width;
        }
        return head;
    }
    template <int W>
    struct inputs {
        gs_elements<float, W> sum;
    };
    template <int W>
    __device__ inputs<W> load(size_t i) const {
        inputs<W> loaded;
        for (int k = 0; k < num_inputs; k++) {
            const gs_elements<type, W> next = gs_load_elements<W>(in[k] + i);
#pragma unroll
            for (int e = 0; e < W; e++) {
                const float sent = scale_after ? send_twice<WIRE>(next.at[e], wire_scale)
                                               : send<WIRE>(next.at[e], wire_scale);
                loaded.sum.at[e] = k ? __fadd_rn(loaded.sum.at[e], sent) : sent;
            }
        }
        return loaded;
    }
    template <int W>
    __device__ void store(size_t i, const inputs<W> &loaded) const {
        gs_elements<type, W> result;
#pragma unroll
        for (int e = 0; e < W; e++)
            result.at[e] = static_cast<type>(send<WIRE>(loaded.sum.at[e], factor));
        for (int k = 0; k < num_outputs; k++) gs_store_elements<W>(out[k] + i, result);
    }
};

template <gs_dtype DTYPE, gs_dtype WIRE>
static void run_wire_sum(gs_stream *stream, const gs_reduction *r) {
    typedef typename gs_number<DTYPE>::type type;
    wire_sum_op<DTYPE, WIRE> op;
    op.num_outputs = r->num_outputs;
    op.num_inputs = r->num_inputs;
    op.wire_scale = r->wire_scale;
    op.scale_after = r->wire_scale_after;
    op.factor = static_cast<float>(r->scale);
    for (int k = 0; k < GS_REDUCE_MAX_INPUTS; k++)
        op.in[k] = k < r->num_inputs ? static_cast<const type *>(r->inputs[k]) : nullptr;
    for (int k = 0; k < MOST_OUTPUTS; k++)
        op.out[k] = k < r->num_outputs ? static_cast<type *>(r->outputs[k]) : nullptr;
    gs_run_flat(stream, op, r->count);
}

static void reduce_by_wire(gs_stream *stream, const gs_reduction *r) {
    const bool is_fp16 = r->wire_dtype == GS_FP16;
    if (r->dtype == GS_FP32) {
        is_fp16 ? run_wire_sum<GS_FP32, GS_FP16>(stream, r) : run_wire_sum<GS_FP32, GS_BF16>(stream, r);
    } else {
        is_fp16 ? run_wire_sum<GS_FP64, GS_FP16>(stream, r) : run_wire_sum<GS_FP64, GS_BF16>(stream, r);
    }
}

// ---- programs

struct program {
    void *outputs[MOST_OUTPUTS];
    const void *inputs[GS_REDUCE_MAX_INPUTS];
    uint8_t merges[GS_REDUCE_MAX_INPUTS];
    int num_outputs, num_inputs;
    double scale;
};

// W elements by one thread. `column`: the thread's part of the stack, of which one value of W sums is `stride`
// behind the other.
template <gs_dtype DTYPE, gs_reduce_op OP, int W>
__device__ static inline void run_program(const program &p, size_t i,
                                          gs_elements<typename accumulation<DTYPE>::sum, W> *column,
                                          unsigned stride) {
    typedef accumulation<DTYPE> number;
    typedef typename number::type type;
    gs_elements<typename number::sum, W> top = {};
    int depth = 0;  // of what is in the column
    gs_elements<type, W> next = gs_load_elements<W>(static_cast<const type *>(p.inputs[0]) + i);
    for (int k = 0; k < p.num_inputs; k++) {
        const gs_elements<type, W> loaded = next;
        if (k + 1 < p.num_inputs)
            next = gs_load_elements<W>(static_cast<const type *>(p.inputs[k + 1]) + i);
        if (k > 0) column[stride * depth++] = top;
#pragma unroll
        for (int e = 0; e < W; e++) top.at[e] = number::widen(loaded.at[e]);
        for (int merges = p.merges[k]; merges; merges--) {
            const gs_elements<typename number::sum, W> left = column[stride * --depth];
#pragma unroll
            for (int e = 0; e < W; e++) top.at[e] = combine<DTYPE, OP>(left.at[e], top.at[e]);
        }
    }
    gs_elements<type, W> result;
#pragma unroll
    for (int e = 0; e < W; e++) result.at[e] = number::narrow(number::scaled(top.at[e], p.scale));
    for (int k = 0; k < p.num_outputs; k++)
        gs_store_elements<W>(static_cast<type *>(p.outputs[k]) + i, result);
}

template <gs_dtype DTYPE>
constexpr int program_width = 16 / sizeof(typename accumulation<DTYPE>::sum);

template <gs_dtype DTYPE, gs_reduce_op OP>
__global__ static void program_kernel(const __grid_constant__ program p, size_t head, size_t count) {
    constexpr int W = program_width<DTYPE>;
    typedef typename accumulation<DTYPE>::sum sum;
    GS_DYNAMIC_SHARED(uint4, stack);
    gs_elements<sum, W> *column = reinterpret_cast<gs_elements<sum, W> *>(stack) + threadIdx.x;
    gs_elements<sum, 1> *single = reinterpret_cast<gs_elements<sum, 1> *>(stack) + threadIdx.x;
    const size_t first = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    const size_t stride = gridDim.x * (size_t)blockDim.x;
    const size_t num_packs = head < W && count > head ? (count - head) / W : 0;
    for (size_t pack = first; pack < num_packs; pack += stride)
        run_program<DTYPE, OP, W>(p, head + pack * W, column, blockDim.x);
    // Columns of single sums lie elsewhere in the same memory.
    __syncthreads();
    const size_t before = num_packs ? head : 0;
    for (size_t edge = first; edge < count - num_packs * W; edge += stride)
        run_program<DTYPE, OP, 1>(p, edge < before ? edge : edge + num_packs * W, single, blockDim.x);
}

template <gs_dtype DTYPE>
static size_t find_head(const gs_reduction *r) {
    typedef typename accumulation<DTYPE>::type type;
    constexpr int W = program_width<DTYPE>;
    const size_t head = gs_head_of<W>(static_cast<const type *>(r->inputs[0]));
    for (int k = 1; k < r->num_inputs; k++) {
        if (gs_head_of<W>(static_cast<const type *>(r->inputs[k])) != head) return W;
    }
    for (int k = 0; k < r->num_outputs; k++) {
        if (gs_head_of<W>(static_cast<const type *>(r->outputs[k])) != head) return W;
    }
    return head;
}

// The block shrinks until its columns fit into what every device gives without asking.
static unsigned choose_block(int depth) {
    unsigned block = 256;
    while ((size_t)depth * block * 16 > (size_t)48 << 10) block /= 2;
    return block;
}

template <gs_dtype DTYPE>
static void run_typed(gs_stream *stream, const gs_reduction *r, const program &p, int depth) {
    const size_t head = find_head<DTYPE>(r);
    const unsigned block = choose_block(depth);
    const size_t shared_bytes = (size_t)depth * block * 16;
    const unsigned grid =
        gs_num_blocks(r->count, (size_t)block * (head < program_width<DTYPE> ? program_width<DTYPE> : 1),
                      1u << 30);
    if (r->op == GS_OP_SUM) {
        GS_LAUNCH(stream, grid, block, shared_bytes, (program_kernel<DTYPE, GS_OP_SUM>), p, head,
                  r->count);
    } else if (r->op == GS_OP_MAX) {
        GS_LAUNCH(stream, grid, block, shared_bytes, (program_kernel<DTYPE, GS_OP_MAX>), p, head,
                  r->count);
    } else {
        GS_LAUNCH(stream, grid, block, shared_bytes, (program_kernel<DTYPE, GS_OP_MIN>), p, head,
                  r->count);
    }
}

static void run_any(gs_stream *stream, const gs_reduction *r, const program &p, int depth) {
    switch (r->dtype) {
    case GS_FP64:
        run_typed<GS_FP64>(stream, r, p, depth);
        return;
    case GS_FP16:
        run_typed<GS_FP16>(stream, r, p, depth);
        return;
    case GS_BF16:
        run_typed<GS_BF16>(stream, r, p, depth);
        return;
    case GS_I64:
        run_typed<GS_I64>(stream, r, p, depth);
        return;
    case GS_I32:
        run_typed<GS_I32>(stream, r, p, depth);
        return;
    default:
        run_typed<GS_FP32>(stream, r, p, depth);
        return;
    }
}

extern "C" void gs_cuda_reduce(gs_stream *stream, const gs_reduction *r) {
    int depth = 0;
    const gs_status status = gs_reduction_check(&depth, r);
    if (status.code == GS_OK && r->num_outputs > MOST_OUTPUTS) {
        gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT, "reduce: %d outputs are more than %d",
                                        r->num_outputs, MOST_OUTPUTS));
        return;
    }
    gs_stream_fail(stream, status);
    if (status.code || r->num_outputs < 1 || r->count == 0) return;
    if (r->wire_dtype) {
        reduce_by_wire(stream, r);
        return;
    }
    if (reduce_fast(stream, r)) return;
    program p = {};
    p.num_outputs = r->num_outputs;
    p.num_inputs = r->num_inputs;
    p.scale = r->scale;
    for (int k = 0; k < r->num_outputs; k++) p.outputs[k] = r->outputs[k];
    for (int k = 0; k < r->num_inputs; k++) {
        p.inputs[k] = r->inputs[k];
        p.merges[k] = r->merges ? r->merges[k] : k > 0;
    }
    run_any(stream, r, p, depth);
}
