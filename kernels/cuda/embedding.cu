// Token and position embeddings. All results have the CPU's bits: the gradient of a token's row is
// summed in the order of positions, which a stable sort by token on the device gives
// (row_sort.cuh).
#include "kernels/cuda/check.cuh"
#include "kernels/cuda/row_sort.cuh"
#include "kernels/cuda/wide.cuh"

#define BLOCK 256
#define BLOCK_WARPS (BLOCK / GS_WARP)
#define BLOCKS_PER_SM 8

// ---- forward

// A warp for each row.
template <typename T, int WIDTH>
__global__ static void __launch_bounds__(BLOCK)
    embedding_kernel(T *__restrict__ out, const int32_t *__restrict__ tokens,
                     const T *__restrict__ wte, const T *__restrict__ wpe, size_t rows,
                     size_t positions, size_t channels, const gs_check *check) {
    if (gs_data_is_bad(check)) return;
    const unsigned lane = threadIdx.x % GS_WARP;
    const size_t step = (size_t)gridDim.x * BLOCK_WARPS;
    for (size_t row = (size_t)blockIdx.x * BLOCK_WARPS + threadIdx.x / GS_WARP; row < rows;
         row += step) {
        const T *token = wte + (size_t)tokens[row] * channels;
        const T *position = wpe + row % positions * channels;
#pragma unroll 4
        for (size_t c = lane * WIDTH; c < channels; c += GS_WARP * WIDTH) {
            float a[WIDTH], b[WIDTH];
            gs_load_wide<WIDTH>(a, token + c);
            gs_load_wide<WIDTH>(b, position + c);
#pragma unroll
            for (int i = 0; i < WIDTH; i++) a[i] += b[i];
            gs_store_wide<WIDTH>(out + row * channels + c, a);
        }
    }
}

template <typename T>
static void run_embedding(gs_stream *stream, T *out, const int32_t *tokens, const T *wte,
                          const T *wpe, size_t batch, size_t positions, size_t channels,
                          size_t vocab) {
    const size_t rows = batch * positions;
    if (!rows) return;
    const gs_check *check = gs_run_check(stream, GS_CUDA_BAD_TOKEN, tokens, rows, vocab);
    if (!channels) return;
    const unsigned blocks =
        gs_num_blocks(rows, BLOCK_WARPS, (size_t)gs_num_sms(stream) * BLOCKS_PER_SM);
    const bool by_vector = channels % gs_vec_width<T> == 0 && gs_is_aligned16(out) &&
                           gs_is_aligned16(wte) && gs_is_aligned16(wpe);
    if (by_vector) {
        GS_LAUNCH(stream, blocks, BLOCK, 0, (embedding_kernel<T, gs_vec_width<T>>), out, tokens,
                  wte, wpe, rows, positions, channels, check);
    } else {
        GS_LAUNCH(stream, blocks, BLOCK, 0, (embedding_kernel<T, 1>), out, tokens, wte, wpe, rows,
                  positions, channels, check);
    }
}

// ---- sums by row

// Rows that are fetched before they are added, in their order.
#define AHEAD 8

// out[c …] += in[rows[i]][c …] for the i from `first` whose key is that of `first`. A whole warp.
template <typename T, int WIDTH>
__device__ static inline void add_run(float *out, const T *in, gs_sorted_rows sorted, size_t first,
                                      size_t count, size_t cols, size_t c) {
    const unsigned lane = threadIdx.x % GS_WARP;
    const bool has_cols = c < cols;
    const uint32_t key = sorted.keys[first];
    float *to = out + (size_t)key * cols + c;
    float sum[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] = 0.0f;
    if (has_cols) gs_load_floats<WIDTH>(sum, to);
    for (unsigned run = GS_WARP; run == GS_WARP; first += GS_WARP) {
        const size_t at = first + lane;
        const bool same = at < count && sorted.keys[at] == key;
        const uint32_t mine = same ? sorted.rows[at] : 0;
        run = __popc(__ballot_sync(GS_FULL_WARP, same));  // sorted: the first `run` lanes
        for (unsigned done = 0; done < run; done += AHEAD) {
            gs_packed<T, WIDTH> ahead[AHEAD] = {};
#pragma unroll
            for (unsigned k = 0; k < AHEAD; k++) {
                const uint32_t row = __shfl_sync(GS_FULL_WARP, mine, (done + k) % GS_WARP);
                if (has_cols && done + k < run)
                    ahead[k] = gs_load_packed<WIDTH>(in + (size_t)row * cols + c);
            }
#pragma unroll
            for (unsigned k = 0; k < AHEAD; k++) {
                for (int i = 0; i < WIDTH && done + k < run; i++) sum[i] += ahead[k][i];
            }
        }
    }
    if (has_cols) gs_store_floats<WIDTH>(to, sum);
}

// A block looks at 32 neighbours in the sorted order; its warps take the runs that begin there, in
// slices of columns. `check` NULL: the caller vouches for the rows.
template <typename T, int WIDTH>
__global__ static void __launch_bounds__(BLOCK, 2)
    add_rows_kernel(float *__restrict__ out, const T *__restrict__ in, gs_sorted_rows sorted,
                    size_t count, size_t cols, const gs_check *check) {
    if (check && gs_data_is_bad(check)) return;
    const unsigned lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
    const size_t at = (size_t)blockIdx.x * GS_WARP + lane;
    const bool begins = at < count && (at == 0 || sorted.keys[at - 1] != sorted.keys[at]);
    const uint32_t starts = __ballot_sync(GS_FULL_WARP, begins);
    const unsigned rank = __popc(starts & ((1u << lane) - 1));
    const size_t slices = (cols + GS_WARP * WIDTH - 1) / (GS_WARP * WIDTH);
    for (size_t item = warp; item < __popc(starts) * slices; item += BLOCK_WARPS) {
        const unsigned run = static_cast<unsigned>(item / slices);
        const uint32_t chosen = __ballot_sync(GS_FULL_WARP, begins && rank == run);
        const size_t first = (size_t)blockIdx.x * GS_WARP + __ffs(static_cast<int>(chosen)) - 1;
        const size_t c = (item % slices * GS_WARP + lane) * WIDTH;
        add_run<T, WIDTH>(out, in, sorted, first, count, cols, c);
    }
}

// Rows that are sorted at once: their memory fits beside the check. Few in the simulator, so that
// its tests take several turns.
#ifdef GRADSYNC_CUDA_SIM
#define MOST_ROWS ((size_t)3000)
#else
#define MOST_ROWS ((size_t)1 << 20)
#endif

// out[keys[i]] += in[i] in the order of i.
template <typename T>
static void add_sorted(gs_stream *stream, float *out, const T *in, const int32_t *keys,
                       size_t num_rows, size_t cols, int key_bits, const gs_check *check) {
    if (!num_rows || !cols) return;
    const size_t most = num_rows < MOST_ROWS ? num_rows : MOST_ROWS;
    char *scratch = static_cast<char *>(
        gs_scratch(stream, GS_CHECK_BYTES + gs_sort_bytes(most), "sums by row"));
    if (!scratch) return;
    const bool by_vector =
        cols % gs_vec_width<T> == 0 && gs_is_aligned16(out) && gs_is_aligned16(in);
    for (size_t first = 0; first < num_rows; first += MOST_ROWS) {
        const size_t count = num_rows - first < MOST_ROWS ? num_rows - first : MOST_ROWS;
        const T *part = in + first * cols;
        const gs_sorted_rows sorted =
            gs_sort_rows(stream, scratch + GS_CHECK_BYTES, keys + first, count, key_bits);
        const unsigned blocks = gs_num_blocks(count, GS_WARP, SIZE_MAX);
        if (by_vector) {
            GS_LAUNCH(stream, blocks, BLOCK, 0, (add_rows_kernel<T, gs_vec_width<T>>), out, part,
                      sorted, count, cols, check);
        } else {
            GS_LAUNCH(stream, blocks, BLOCK, 0, (add_rows_kernel<T, 1>), out, part, sorted, count,
                      cols, check);
        }
    }
}

extern "C" void gs_cuda_add_rows(gs_stream *stream, float *out, const int32_t *rows,
                                 const float *in, size_t num_rows, size_t cols) {
    add_sorted(stream, out, in, rows, num_rows, cols, 31, nullptr);
}

// ---- backward

// A thread for each column, or WIDTH of them, of a position: the batch in its order.
template <typename T, int WIDTH>
__global__ static void __launch_bounds__(BLOCK)
    dwpe_kernel(float *__restrict__ dwpe, const T *__restrict__ dout, size_t batch,
                size_t positions, size_t channels, bool accumulate, const gs_check *check) {
    if (gs_data_is_bad(check)) return;
    const size_t count = positions * channels;
    const size_t at = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH;
    if (at >= count) return;
    float sum[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; i++) sum[i] = 0.0f;
    if (accumulate) gs_load_floats<WIDTH>(sum, dwpe + at);
    for (size_t first = 0; first < batch; first += AHEAD) {
        gs_packed<T, WIDTH> ahead[AHEAD] = {};
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (first + k < batch)
                ahead[k] = gs_load_packed<WIDTH>(dout + (first + k) * count + at);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            for (int i = 0; i < WIDTH && first + k < batch; i++) sum[i] += ahead[k][i];
        }
    }
    gs_store_floats<WIDTH>(dwpe + at, sum);
}

static int bits_below(size_t limit) {
    int bits = 0;
    while (bits < 31 && ((size_t)1 << bits) < limit) bits++;
    return bits;
}

template <typename T>
static void run_embedding_backward(gs_stream *stream, float *dwte, float *dwpe, const T *dout,
                                   const int32_t *tokens, size_t batch, size_t positions,
                                   size_t channels, size_t vocab, bool accumulate) {
    const size_t rows = batch * positions, count = positions * channels;
    const gs_check *check = gs_run_check(stream, GS_CUDA_BAD_TOKEN, tokens, rows, vocab);
    if (dwte) add_sorted(stream, dwte, dout, tokens, rows, channels, bits_below(vocab), check);
    if (!count) return;
    const bool by_vector =
        channels % gs_vec_width<T> == 0 && gs_is_aligned16(dwpe) && gs_is_aligned16(dout);
    if (by_vector) {
        const unsigned blocks = gs_num_blocks(count / gs_vec_width<T>, BLOCK, SIZE_MAX);
        GS_LAUNCH(stream, blocks, BLOCK, 0, (dwpe_kernel<T, gs_vec_width<T>>), dwpe, dout, batch,
                  positions, channels, accumulate, check);
    } else {
        GS_LAUNCH(stream, gs_num_blocks(count, BLOCK, SIZE_MAX), BLOCK, 0, (dwpe_kernel<T, 1>),
                  dwpe, dout, batch, positions, channels, accumulate, check);
    }
}

// ---- launchers

extern "C" void gs_cuda_embedding(gs_stream *stream, float *out, const int32_t *tokens,
                                  const float *wte, const float *wpe, size_t batch,
                                  size_t positions, size_t channels, size_t vocab) {
    run_embedding(stream, out, tokens, wte, wpe, batch, positions, channels, vocab);
}

extern "C" void gs_cuda_embedding_backward(gs_stream *stream, float *dwte, float *dwpe,
                                           const float *dout, const int32_t *tokens, size_t batch,
                                           size_t positions, size_t channels, size_t vocab,
                                           bool accumulate) {
    run_embedding_backward(stream, dwte, dwpe, dout, tokens, batch, positions, channels, vocab,
                           accumulate);
}

#define HALF_LAUNCHERS(name, type)                                                                 \
    extern "C" void gs_cuda_##name##_embedding(                                                    \
        gs_stream *stream, gs_half *out, const int32_t *tokens, const gs_half *wte,                \
        const gs_half *wpe, size_t batch, size_t positions, size_t channels, size_t vocab) {       \
        run_embedding(stream, gs_as<type>(out), tokens, gs_as<type>(wte), gs_as<type>(wpe), batch, \
                      positions, channels, vocab);                                                 \
    }                                                                                              \
    extern "C" void gs_cuda_##name##_embedding_backward(                                           \
        gs_stream *stream, float *dwte, float *dwpe, const gs_half *dout, const int32_t *tokens,   \
        size_t batch, size_t positions, size_t channels, size_t vocab, bool accumulate) {          \
        run_embedding_backward(stream, dwte, dwpe, gs_as<type>(dout), tokens, batch, positions,    \
                               channels, vocab, accumulate);                                       \
    }

HALF_LAUNCHERS(bf16, __nv_bfloat16)
HALF_LAUNCHERS(fp16, __half)
