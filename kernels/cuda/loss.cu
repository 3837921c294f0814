// Softmax, cross-entropy and its gradient: a block for each row, two reads and one write of it.
//
// The first read keeps the largest logit and the sum of exponentials together, rescaled as the
// largest grows; the second goes backwards and finds most of the row in the cache. With
// GS_CHOICE_SHARED_LOSS_ROWS the row is copied to shared memory once and both read it there, if it
// fits; the bits are the same. Sums run in another order than the CPU's and the exponential is the
// device's. num_correct is a sum of integers: atomics do not change it.
#include "kernels/cuda/check.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wide.cuh"

#define MOST_THREADS 512
#define BLOCKS_PER_SM 2
#define MOST_WARPS (MOST_THREADS / GS_WARP)
#define AHEAD 4
#define COPY_GROUPS 4  // of a row on its way to shared memory: work begins when the first is there

// 16 bits hide the difference.
template <typename T> __device__ static inline float exp_for(float x) {
    if constexpr (sizeof(T) == sizeof(float)) return expf(x);
    return __expf(x);
}

// What one read of logits comes to.
struct row_totals {
    float largest;  // a NaN is passed over
    float before;   // the largest in front of the target
    float sum;      // Σ exp(logit − largest); while all are −∞, of exp(logit)
};

template <typename T>
__device__ static inline void raise_largest(row_totals &totals, float largest) {
    if (totals.largest > -INFINITY) totals.sum *= exp_for<T>(totals.largest - largest);
    totals.largest = largest;
}

// How many of WIDTH elements from `first` on are in front of `end`.
template <int WIDTH> __device__ static inline int count_below(size_t first, size_t end) {
    return first >= end ? 0 : end - first < WIDTH ? static_cast<int>(end - first) : WIDTH;
}

// The first `count` of these logits; `num_before` of them are in front of the target.
template <typename T, int WIDTH>
__device__ static inline void take_logits(row_totals &totals, const gs_packed<T, WIDTH> &logits,
                                          int count, int num_before) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        if (i < count) largest = fmaxf(largest, logits[i]);
    }
    if (num_before == WIDTH) {
        totals.before = fmaxf(totals.before, largest);
    } else if (num_before) {
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            if (i < num_before) totals.before = fmaxf(totals.before, logits[i]);
        }
    }
    if (largest > totals.largest) raise_largest<T>(totals, largest);
    const float base = totals.largest > -INFINITY ? totals.largest : 0.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        if (i < count) totals.sum += exp_for<T>(logits[i] - base);
    }
}

template <typename T, int WIDTH>
__device__ static inline row_totals read_row(const T *row, size_t classes, size_t target) {
    row_totals totals = {-INFINITY, -INFINITY, 0.0f};
    const size_t vectors = (classes + WIDTH - 1) / WIDTH, step = blockDim.x;
    for (size_t first = threadIdx.x; first < vectors; first += AHEAD * step) {
        gs_packed<T, WIDTH> ahead[AHEAD] = {};
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (first + k * step < vectors)
                ahead[k] = gs_load_packed<WIDTH>(row + (first + k * step) * WIDTH);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const size_t at = (first + k * step) * WIDTH;
            if (at >= classes) break;
            gs_stay_packed(ahead[k]);
            take_logits<T, WIDTH>(totals, ahead[k], count_below<WIDTH>(at, classes),
                                  count_below<WIDTH>(at, target));
        }
    }
    return totals;
}

// ---- a row in shared memory: each thread reads what it copied itself, so no barrier is needed

// Accesses of a thread for a row, and in one group of copies.
__device__ static inline size_t turns_of_group(size_t vectors) {
    const size_t turns = (vectors + blockDim.x - 1) / blockDim.x;
    return (turns + COPY_GROUPS - 1) / COPY_GROUPS;
}

template <typename T, int WIDTH>
__device__ static inline void start_row(gs_async_copies &copies, T *to, const T *row,
                                        size_t vectors) {
    const size_t turns = turns_of_group(vectors), step = blockDim.x;
    for (size_t group = 0; group < COPY_GROUPS; group++) {
        for (size_t turn = group * turns; turn < (group + 1) * turns; turn++) {
            const size_t at = threadIdx.x + turn * step;
            if (at >= vectors) break;
            copies.copy_16_bytes(to + at * WIDTH, row + at * WIDTH, true);
        }
        copies.commit();
    }
}

// Groups from the first to the last, in the order in which read_row takes the row.
template <typename T, int WIDTH, int LEFT>
__device__ static inline void take_groups(row_totals &totals, gs_async_copies &copies, const T *row,
                                          size_t classes, size_t vectors, size_t target) {
    const size_t turns = turns_of_group(vectors), step = blockDim.x;
    const size_t group = COPY_GROUPS - 1 - LEFT;
    copies.wait<LEFT>();
    for (size_t turn = group * turns; turn < (group + 1) * turns; turn++) {
        const size_t at = (threadIdx.x + turn * step) * WIDTH;
        if (at >= classes) break;
        take_logits<T, WIDTH>(totals, gs_load_packed<WIDTH>(row + at),
                              count_below<WIDTH>(at, classes), count_below<WIDTH>(at, target));
    }
    if constexpr (LEFT > 0)
        take_groups<T, WIDTH, LEFT - 1>(totals, copies, row, classes, vectors, target);
}

template <typename T, int WIDTH>
__device__ static inline row_totals read_row_once(T *shared_row, const T *row, size_t classes,
                                                  size_t target) {
    row_totals totals = {-INFINITY, -INFINITY, 0.0f};
    const size_t vectors = (classes + WIDTH - 1) / WIDTH;
    gs_async_copies copies;
    start_row<T, WIDTH>(copies, shared_row, row, vectors);
    take_groups<T, WIDTH, COPY_GROUPS - 1>(totals, copies, shared_row, classes, vectors, target);
    return totals;
}

// ---- a row's totals

template <typename T> __device__ static inline row_totals join_warp(row_totals totals) {
    const float largest = gs_warp_max(totals.largest);
    raise_largest<T>(totals, largest);
    totals.before = gs_warp_max(totals.before);
    totals.sum = gs_warp_sum(totals.sum);
    return totals;
}

// The block's totals, in every thread. One barrier: `shared` must be another one in the next call.
template <typename T>
__device__ static inline row_totals join_block(row_totals totals,
                                               row_totals (&shared)[MOST_WARPS]) {
    const unsigned lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
    totals = join_warp<T>(totals);
    if (lane == 0) shared[warp] = totals;
    __syncthreads();
    const row_totals none = {-INFINITY, -INFINITY, 0.0f};
    return join_warp<T>(lane < blockDim.x / GS_WARP ? shared[lane] : none);
}

// (softmax − onehot)·dloss of the logits, which lie in `from`, zeros behind them. Each thread
// rewrites what it read; what is behind the last logit's vector is not read.
template <typename T, int WIDTH>
__device__ static inline void write_gradient(T *row, const T *from, const row_totals &totals,
                                             size_t classes, size_t stride, size_t target,
                                             float at_target, float dloss) {
    const float factor = dloss / totals.sum;
    const float target_slope = (exp_for<T>(at_target - totals.largest) / totals.sum - 1.0f) * dloss;
    const size_t vectors = stride / WIDTH, step = blockDim.x;
    const size_t mine = vectors > threadIdx.x ? (vectors - threadIdx.x - 1) / step + 1 : 0;
    for (size_t turn = mine; turn > 0; turn--) {
        const size_t at = (threadIdx.x + (turn - 1) * step) * WIDTH;
        const int count = count_below<WIDTH>(at, classes);
        const int hit = at <= target ? count_below<WIDTH>(at, target) : WIDTH;
        float logits[WIDTH] = {};
        if (count) gs_load_wide<WIDTH>(logits, from + at);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            const float slope = exp_for<T>(logits[i] - totals.largest) * factor;
            logits[i] = i >= count ? 0.0f : i == hit ? target_slope : slope;
        }
        gs_store_wide<WIDTH>(row + at, logits);
    }
}

template <typename T> struct loss_args {
    float *losses;
    T *logits;
    int64_t *num_correct;
    const int32_t *targets;
    size_t rows, classes, stride;
    float dloss;
    bool gradient;
    gs_check *check;
};

// The last block to finish has everybody's count.
template <typename T>
__device__ static inline void count_correct(const loss_args<T> &args, unsigned long long correct) {
    unsigned long long *counted = reinterpret_cast<unsigned long long *>(&args.check->num_counted);
    if (correct) atomicAdd(counted, correct);
    __threadfence();
    if (atomicAdd(&args.check->num_done, 1u) != gridDim.x - 1) return;
    __threadfence();
    *args.num_correct = static_cast<int64_t>(atomicAdd(counted, 0ull));
}

// SHARED: rows pass through shared memory; with the gradient alone, which reads them twice.
template <typename T, int WIDTH, bool SHARED>
__global__ static void __launch_bounds__(MOST_THREADS, BLOCKS_PER_SM)
    loss_kernel(loss_args<T> args) {
    __shared__ row_totals shared[2][MOST_WARPS];
    if (gs_data_is_bad(args.check)) return;
    unsigned long long correct = 0;
    unsigned turn = 0;
    for (size_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
        T *logits = args.logits + row * args.stride;
        const size_t target = static_cast<size_t>(args.targets[row]);
        const float at_target = gs_to_float(logits[target]);
        const T *from = logits;
        row_totals totals;
        if constexpr (SHARED) {
            GS_DYNAMIC_SHARED(T, shared_row);
            from = shared_row;
            totals = read_row_once<T, WIDTH>(shared_row, logits, args.classes, target);
        } else {
            totals = read_row<T, WIDTH>(logits, args.classes, target);
        }
        totals = join_block<T>(totals, shared[turn]);
        if (args.gradient)
            write_gradient<T, WIDTH>(logits, from, totals, args.classes, args.stride, target,
                                     at_target, args.dloss);
        if (threadIdx.x == 0) {
            const double distance = (double)totals.largest - (double)at_target;
            args.losses[row] = (float)(log((double)totals.sum) + distance);
            const bool is_first = target == 0 || totals.before < totals.largest;
            correct += at_target == totals.largest && is_first;
        }
    }
    if (threadIdx.x == 0 && args.num_correct) count_correct(args, correct);
}

// Of a row in shared memory; 0: it stays where it is, because nobody asked for it, it is read once
// anyway, or a block has no room for it.
template <typename T> static size_t shared_row_bytes(gs_stream *stream, const loss_args<T> &args) {
    const size_t vectors = (args.classes + gs_vec_width<T> - 1) / gs_vec_width<T>;
    const size_t bytes = vectors * 16, fixed = 2 * MOST_WARPS * sizeof(row_totals);
    const size_t most = (size_t)gs_cuda_stream_of(stream)->device->max_block_shared_bytes;
    if (!gs_chooses(stream, GS_CHOICE_SHARED_LOSS_ROWS) || !args.gradient) return 0;
    return bytes + fixed <= most ? bytes : 0;
}

template <typename T> static void run_loss(gs_stream *stream, loss_args<T> args) {
    args.check = gs_run_check(stream, GS_CUDA_BAD_TARGET, args.targets, args.rows, args.classes);
    constexpr int width = gs_vec_width<T>;
    const bool by_vector = args.stride % width == 0 && gs_is_aligned16(args.logits);
    const size_t vectors = by_vector ? args.stride / width : args.stride;
    const size_t row_bytes = by_vector ? shared_row_bytes(stream, args) : 0;
    const unsigned block = vectors ? gs_block_for(vectors, MOST_THREADS) : GS_WARP;
    // Small blocks leave room for more of them.
    const size_t most = (size_t)gs_num_sms(stream) * BLOCKS_PER_SM * (MOST_THREADS / block);
    // A block even without rows: it writes num_correct.
    const unsigned blocks = args.rows ? gs_num_blocks(args.rows, 1, most) : 1;
    if (row_bytes) {
        GS_ALLOW_SHARED(stream, (loss_kernel<T, width, true>), row_bytes);
        GS_LAUNCH(stream, blocks, block, row_bytes, (loss_kernel<T, width, true>), args);
    } else if (by_vector) {
        GS_LAUNCH(stream, blocks, block, 0, (loss_kernel<T, width, false>), args);
    } else {
        GS_LAUNCH(stream, blocks, block, 0, (loss_kernel<T, 1, false>), args);
    }
}

template <typename T>
static void lose(gs_stream *stream, float *losses, T *logits, int64_t *num_correct,
                 const int32_t *targets, size_t rows, size_t classes, size_t stride, float dloss,
                 bool gradient) {
    run_loss(stream, loss_args<T>{.losses = losses,
                                  .logits = logits,
                                  .num_correct = num_correct,
                                  .targets = targets,
                                  .rows = rows,
                                  .classes = classes,
                                  .stride = stride,
                                  .dloss = dloss,
                                  .gradient = gradient,
                                  .check = nullptr});
}

extern "C" void gs_cuda_softmax_loss(gs_stream *stream, float *losses, float *logits,
                                     int64_t *num_correct, const int32_t *targets, size_t rows,
                                     size_t classes, size_t stride, float dloss, bool gradient) {
    lose(stream, losses, logits, num_correct, targets, rows, classes, stride, dloss, gradient);
}

#define HALF_LAUNCHER(name, type)                                                                  \
    extern "C" void gs_cuda_##name##_softmax_loss(                                                 \
        gs_stream *stream, float *losses, gs_half *logits, int64_t *num_correct,                   \
        const int32_t *targets, size_t rows, size_t classes, size_t stride, float dloss,           \
        bool gradient) {                                                                           \
        lose(stream, losses, gs_as<type>(logits), num_correct, targets, rows, classes, stride,     \
             dloss, gradient);                                                                     \
    }

HALF_LAUNCHER(bf16, __nv_bfloat16)
HALF_LAUNCHER(fp16, __half)
