// What the attention kernels of all types share: where a head lies, which block does what, tiles in
// shared memory, and the sums that backward begins with.
//
// Rows in shared memory are one 16-byte piece longer than D numbers: an odd number of pieces, so
// that eight rows lie in different banks, whatever D. Channels from head_channels to D, and rows
// behind the last position, are 0.
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/kernels.h"

#define GS_ATTENTION_THREADS 128
#define GS_ATTENTION_MAX_CHANNELS 256
#define GS_ATTENTION_LOG2_E 1.4426950408889634f

// What a launch is about. Blocks are numbered so that those of a group of heads come together,
// whose keys and values the L2 cache holds, and among them the tiles with most work first.
template <typename NUMBER> struct attention_job {
    const NUMBER *qkv, *dout, *out;
    NUMBER *to;  // forward: out; backward: dqkv
    float *logsumexp;
    const float *saved_logsumexp;
    size_t channels;  // C
    int positions, heads, head_channels;
    unsigned num_heads, num_tiles, heads_per_group;  // num_heads: of all sequences
    float scale;                                     // 1/√HS
    bool whole_vectors;                              // every head starts on a 16-byte boundary
};

// One head of a tensor: rows `stride` numbers apart.
template <typename NUMBER> struct head_rows {
    const NUMBER *data;
    size_t stride;
};

struct attention_place {
    unsigned head, order;  // order 0: the tile with most work
};

template <typename NUMBER>
__device__ __forceinline__ attention_place find_place(const attention_job<NUMBER> &job) {
    const unsigned group_blocks = job.heads_per_group * job.num_tiles;
    const unsigned group = blockIdx.x / group_blocks, within = blockIdx.x % group_blocks;
    const unsigned first = group * job.heads_per_group;
    const unsigned left = job.num_heads - first;
    const unsigned heads = left < job.heads_per_group ? left : job.heads_per_group;
    attention_place place = {first + within % heads, within / heads};
    return place;
}

// Where position 0 of a head begins in a (B, T, parts · C) tensor.
template <typename NUMBER>
__device__ __forceinline__ size_t find_head(const attention_job<NUMBER> &job, unsigned head,
                                            unsigned parts) {
    const size_t sequence = head / (unsigned)job.heads, h = head % (unsigned)job.heads;
    return sequence * (size_t)job.positions * parts * job.channels + h * (size_t)job.head_channels;
}

// What the blocks of a head read.
template <typename NUMBER> struct head_inputs {
    size_t at;  // where the head begins in a (B, T, 3 · C) tensor
    head_rows<NUMBER> q, k, v;
    head_rows<NUMBER> dout;  // of backward alone, as what follows
    const float *logsumexp;  // of the head's first position
};

template <bool BACKWARD, typename NUMBER>
__device__ __forceinline__ head_inputs<NUMBER> find_inputs(const attention_job<NUMBER> &job,
                                                           unsigned head) {
    const size_t stride = 3 * job.channels;
    head_inputs<NUMBER> inputs;
    inputs.at = find_head(job, head, 3);
    inputs.q = {job.qkv + inputs.at, stride};
    inputs.k = {inputs.q.data + job.channels, stride};
    inputs.v = {inputs.k.data + job.channels, stride};
    if constexpr (BACKWARD) {
        inputs.dout = {job.dout + find_head(job, head, 1), job.channels};
        inputs.logsumexp = job.saved_logsumexp + (size_t)head * (size_t)job.positions;
    }
    return inputs;
}

// ---- Σ dout · out of each query

// Σ dout · out of a row waits where its dq will be written: the first 32 bits of the head's
// channels, which the last kernel of backward overwrites. So backward needs no memory beside its
// result.
__device__ __forceinline__ void keep_weighted(float *dq, float weighted) {
    *dq = weighted;
}

__device__ __forceinline__ float recall_weighted(const float *dq) {
    return *dq;
}

__device__ __forceinline__ void keep_weighted(uint16_t *dq, float weighted) {
    const uint32_t bits = __float_as_uint(weighted);
    dq[0] = (uint16_t)bits;
    dq[1] = (uint16_t)(bits >> 16);
}

__device__ __forceinline__ float recall_weighted(const uint16_t *dq) {
    return __uint_as_float((uint32_t)dq[0] | (uint32_t)dq[1] << 16);
}

#define GS_WEIGHT_LANES 8  // of a row
#define GS_WEIGHT_ROWS (GS_ATTENTION_THREADS / GS_WEIGHT_LANES)

// The first kernel of backward. A row is one position of one head, in the order in which (B, T, C)
// has them.
template <gs_dtype TYPE>
__global__ void __launch_bounds__(GS_ATTENTION_THREADS)
    weigh_rows(const attention_job<typename gs_number<TYPE>::type> job) {
    typedef typename gs_number<TYPE>::type number;
    constexpr int WIDTH = 16 / sizeof(number);
    const size_t num_rows = (size_t)job.num_heads * (size_t)job.positions;
    const int lane = (int)(threadIdx.x % GS_WEIGHT_LANES);
    for (size_t first = (size_t)blockIdx.x * GS_WEIGHT_ROWS; first < num_rows;
         first += (size_t)gridDim.x * GS_WEIGHT_ROWS) {
        const size_t row = first + threadIdx.x / GS_WEIGHT_LANES;
        const number *const dout = job.dout + row * (size_t)job.head_channels;
        const number *const out = job.out + row * (size_t)job.head_channels;
        const int channels = row < num_rows ? job.head_channels : 0;
        float sum = 0;
        if (job.whole_vectors) {
            for (int i = WIDTH * lane; i < channels; i += WIDTH * GS_WEIGHT_LANES) {
                const gs_vec16<number> a = gs_load16(dout + i), b = gs_load16(out + i);
#pragma unroll
                for (int k = 0; k < WIDTH; k++)
                    sum += gs_number<TYPE>::widen(a.at[k]) * gs_number<TYPE>::widen(b.at[k]);
            }
        } else {
            for (int i = lane; i < channels; i += GS_WEIGHT_LANES)
                sum += gs_number<TYPE>::widen(dout[i]) * gs_number<TYPE>::widen(out[i]);
        }
#pragma unroll
        for (int distance = GS_WEIGHT_LANES / 2; distance; distance /= 2)
            sum += __shfl_xor_sync(GS_FULL_WARP, sum, distance);
        if (lane || row >= num_rows) continue;
        const size_t position = row / (size_t)job.heads, h = row % (size_t)job.heads;
        keep_weighted(job.to + position * 3 * job.channels + h * (size_t)job.head_channels, sum);
    }
}

// What backward knows of a query beside its rows.
struct query_numbers {
    float logsumexp_log2, weighted;
};

template <typename NUMBER>
__device__ __forceinline__ query_numbers read_query(const attention_job<NUMBER> &job,
                                                    const head_inputs<NUMBER> &inputs, int query) {
    query_numbers numbers = {INFINITY, 0};  // behind the last position: every probability is 0
    if (query < job.positions) {
        numbers.logsumexp_log2 = inputs.logsumexp[query] * GS_ATTENTION_LOG2_E;
        numbers.weighted = recall_weighted(job.to + inputs.at + (size_t)query * 3 * job.channels);
    }
    return numbers;
}

// ---- tiles

template <typename NUMBER, int D> struct attention_tile {
    static constexpr int WIDTH = 16 / sizeof(NUMBER);  // numbers of a piece of 16 bytes
    static constexpr int PIECES = D / WIDTH;
    static constexpr int STRIDE = D + WIDTH;
};

// Rows `first` to first + ROWS - 1 start on their way into `tile`.
template <int D, int ROWS, typename NUMBER>
__device__ __forceinline__ void start_tile(gs_async_copies &copies, NUMBER *tile,
                                           head_rows<NUMBER> from, int first,
                                           const attention_job<NUMBER> &job) {
    typedef attention_tile<NUMBER, D> layout;
    if (job.whole_vectors) {
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < ROWS * layout::PIECES; i += GS_ATTENTION_THREADS) {
            const int row = i / layout::PIECES, column = i % layout::PIECES * layout::WIDTH;
            const bool valid = first + row < job.positions && column < job.head_channels;
            const NUMBER *at =
                valid ? from.data + (size_t)(first + row) * from.stride + column : from.data;
            copies.copy_16_bytes(tile + row * layout::STRIDE + column, at, valid);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < ROWS * D; i += GS_ATTENTION_THREADS) {
        const int row = i / D, column = i % D;
        const bool valid = first + row < job.positions && column < job.head_channels;
        tile[row * layout::STRIDE + column] =
            valid ? from.data[(size_t)(first + row) * from.stride + column] : (NUMBER)0;
    }
}

// ---- launching

// body.template operator()<D>() of the first of SIZES that holds a head.
template <int... SIZES, typename BODY>
static void run_for_first(size_t head_channels, const BODY &body) {
    (void)((head_channels <= (size_t)SIZES && (body.template operator()<SIZES>(), true)) || ...);
}

// Of the sizes that kernels exist for; one holds the head (accept_attention).
template <typename BODY> static void run_for_head_size(size_t head_channels, const BODY &body) {
    run_for_first<32, 64, 80, 96, 128, GS_ATTENTION_MAX_CHANNELS>(head_channels, body);
}

// What a shape must keep to. False: the stream failed, or there is nothing to do.
static inline bool accept_attention(gs_stream *stream, const gs_attention *shape) {
    if (shape->batch == 0 || shape->positions == 0 || shape->heads == 0 ||
        shape->head_channels == 0) {
        return false;
    }
    if (shape->head_channels > GS_ATTENTION_MAX_CHANNELS) {
        gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT,
                                        "attention: %zu channels a head, at most %d on CUDA",
                                        shape->head_channels, GS_ATTENTION_MAX_CHANNELS));
        return false;
    }
    // Blocks are counted in 32 bits; the smallest tile has 16 rows.
    const size_t tiles = (shape->positions + 15) / 16, most = (size_t)1 << 31;
    if (shape->positions >= most || shape->heads >= most ||
        tiles >= most / shape->heads / shape->batch) {
        gs_stream_fail(stream,
                       gs_error(GS_INVALID_ARGUMENT,
                                "attention: %zu sequences x %zu heads x %zu positions are too many",
                                shape->batch, shape->heads, shape->positions));
        return false;
    }
    return true;
}

static inline bool is_vector_address(const void *address) {
    return (uintptr_t)address % 16 == 0;
}

// The fields that follow from the shape alone.
template <typename NUMBER> static attention_job<NUMBER> plan_attention(const gs_attention *shape) {
    // Half of an L2 cache of 50 MB for what the blocks of a group read again and again.
    const size_t bytes = 4 * shape->positions * shape->head_channels * sizeof(NUMBER);
    const size_t num_heads = shape->batch * shape->heads, cached = ((size_t)24 << 20) / bytes;
    const size_t heads_per_group = cached < 1 ? 1 : cached < num_heads ? cached : num_heads;
    attention_job<NUMBER> job = {};
    job.channels = shape->heads * shape->head_channels;
    job.positions = (int)shape->positions;
    job.heads = (int)shape->heads;
    job.head_channels = (int)shape->head_channels;
    job.num_heads = (unsigned)num_heads;
    job.heads_per_group = (unsigned)heads_per_group;
    job.scale = 1.0f / sqrtf((float)shape->head_channels);
    job.whole_vectors = shape->head_channels * sizeof(NUMBER) % 16 == 0;
    return job;
}

template <typename NUMBER>
static attention_job<NUMBER> plan_forward(NUMBER *out, float *logsumexp, const NUMBER *qkv,
                                          const gs_attention *shape) {
    attention_job<NUMBER> job = plan_attention<NUMBER>(shape);
    job.qkv = qkv;
    job.to = out;
    job.logsumexp = logsumexp;
    job.whole_vectors = job.whole_vectors && is_vector_address(qkv) && is_vector_address(out);
    return job;
}

template <typename NUMBER>
static attention_job<NUMBER> plan_backward(NUMBER *dqkv, const NUMBER *dout, const NUMBER *qkv,
                                           const NUMBER *out, const float *logsumexp,
                                           const gs_attention *shape) {
    attention_job<NUMBER> job = plan_attention<NUMBER>(shape);
    job.qkv = qkv;
    job.dout = dout;
    job.out = out;
    job.to = dqkv;
    job.saved_logsumexp = logsumexp;
    job.whole_vectors = job.whole_vectors && is_vector_address(qkv) && is_vector_address(dout) &&
                        is_vector_address(out) && is_vector_address(dqkv);
    return job;
}

// A block for each tile of `rows` queries or keys of each head.
template <typename NUMBER>
static void launch_tiles(gs_stream *stream, attention_job<NUMBER> job, int rows, int shared_bytes,
                         void (*kernel)(const attention_job<NUMBER>), const char *name) {
    job.num_tiles = (unsigned)((job.positions + rows - 1) / rows);
    gs_allow_shared(stream, reinterpret_cast<const void *>(kernel), (size_t)shared_bytes, name);
    gs_launch(stream, job.num_heads * job.num_tiles, GS_ATTENTION_THREADS, (size_t)shared_bytes,
              name, kernel, job);
}
#define GS_LAUNCH_TILES(stream, job, rows, shared_bytes, kernel)                                   \
    launch_tiles((stream), (job), (rows), (shared_bytes), kernel, #kernel)

template <gs_dtype TYPE>
static void launch_weights(gs_stream *stream,
                           const attention_job<typename gs_number<TYPE>::type> &job) {
    const size_t num_rows = (size_t)job.num_heads * (size_t)job.positions;
    GS_LAUNCH(stream, gs_num_blocks(num_rows, GS_WEIGHT_ROWS, 32 * (size_t)gs_num_sms(stream)),
              GS_ATTENTION_THREADS, 0, (weigh_rows<TYPE>), job);
}

#endif
