// The largest elements of a bucket. The bits are the CPU's: what is chosen follows from magnitudes and places alone.
//
// Digits of the last one chosen are found from the top: blocks count them in shared memory, add what they have to the
// sums of all (whole numbers, in any order), and one block says which digit it is. Then each part says how many of its
// elements are above and how many equal, one block adds up what comes before each part, and the parts write.
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/parts.cuh"

#define DIGIT_BITS 11
#define NUM_DIGITS (1u << DIGIT_BITS)
#define PICK_BLOCK 1024

template <typename T>
struct magnitude;
template <>
struct magnitude<float> {
    static constexpr int num_bits = 31;
    __device__ static unsigned long long of(float value) {
        return __float_as_uint(value) & 0x7fffffffu;
    }
};
template <>
struct magnitude<double> {
    static constexpr int num_bits = 63;
    __device__ static unsigned long long of(double value) {
        return static_cast<unsigned long long>(__double_as_longlong(value)) & 0x7fffffffffffffffull;
    }
};

// In scratch memory.
struct selection_state {
    unsigned long long prefix;  // the digits found so far; at last those of the last one chosen
    unsigned long long wanted;  // how many of those that have them are chosen
    unsigned long long num_of_digit[NUM_DIGITS];
    unsigned long long above[GS_MOST_PARTS], equal[GS_MOST_PARTS];  // of each part
    unsigned long long to[GS_MOST_PARTS], equal_chosen[GS_MOST_PARTS];
};

// ---- what is compressed

template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    add_residuals_kernel(const gs_item_table table, T grad_scale, T held_scale) {
    const gs_part part(table);
    for (gs_piece piece = part.first(); piece.count; piece = part.next(piece)) {
        const gs_residual_item item = table.items[piece.item];
        const T *grad = static_cast<const T *>(item.grad) + piece.first;
        const T *held = static_cast<const T *>(item.held);
        T *error = static_cast<T *>(item.error) + piece.first;
        if (held) held += piece.first;
        for (size_t i = threadIdx.x; i < piece.count; i += GS_PART_BLOCK) {
            const T scaled = grad[i] * grad_scale;
            error[i] = held ? scaled + held[i] * held_scale : scaled;
        }
    }
}

extern "C" void gs_cuda_add_residuals(gs_stream *stream, const gs_residual_item *items, size_t num_items,
                                      gs_dtype dtype, double grad_scale, double held_scale) {
    const gs_item_table table = {items, num_items};
    if (num_items == 0) return;
    if (dtype == GS_FP64) {
        GS_LAUNCH(stream, GS_MOST_PARTS, GS_PART_BLOCK, 0, (add_residuals_kernel<double>), table,
                  grad_scale, held_scale);
    } else {
        GS_LAUNCH(stream, GS_MOST_PARTS, GS_PART_BLOCK, 0, (add_residuals_kernel<float>), table,
                  static_cast<float>(grad_scale), static_cast<float>(held_scale));
    }
}

// ---- the last one chosen

__global__ static void __launch_bounds__(PICK_BLOCK)
    begin_kernel(selection_state *state, unsigned long long wanted) {
    for (unsigned d = threadIdx.x; d < NUM_DIGITS; d += PICK_BLOCK) state->num_of_digit[d] = 0;
    if (threadIdx.x) return;
    state->prefix = 0;
    state->wanted = wanted;
}

template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    count_kernel(selection_state *state, const gs_item_table table, int shift) {
    __shared__ unsigned num_of_digit[NUM_DIGITS];
    for (unsigned d = threadIdx.x; d < NUM_DIGITS; d += GS_PART_BLOCK) num_of_digit[d] = 0;
    __syncthreads();
    const unsigned long long prefix = state->prefix;
    const gs_part part(table);
    for (gs_piece piece = part.first(); piece.count; piece = part.next(piece)) {
        const T *error = static_cast<const T *>(table.items[piece.item].error) + piece.first;
        for (size_t i = threadIdx.x; i < piece.count; i += GS_PART_BLOCK) {
            const unsigned long long digits = magnitude<T>::of(error[i]) >> shift;
            if (digits >> DIGIT_BITS == prefix) atomicAdd(&num_of_digit[digits % NUM_DIGITS], 1u);
        }
    }
    __syncthreads();
    for (unsigned d = threadIdx.x; d < NUM_DIGITS; d += GS_PART_BLOCK) {
        if (num_of_digit[d])
            atomicAdd(&state->num_of_digit[d], static_cast<unsigned long long>(num_of_digit[d]));
    }
}

// One block. Thread t has digits 2t and 2t + 1, counted from the largest: sums of those before it say whether the last one
// is among them.
__global__ static void __launch_bounds__(PICK_BLOCK) pick_kernel(selection_state *state) {
    __shared__ unsigned long long sums[PICK_BLOCK];
    const unsigned high = NUM_DIGITS - 1 - 2 * threadIdx.x, low = high - 1;
    const unsigned long long num_high = state->num_of_digit[high], num_low = state->num_of_digit[low];
    const unsigned long long wanted = state->wanted, prefix = state->prefix;
    sums[threadIdx.x] = num_high + num_low;
    __syncthreads();
    for (unsigned distance = 1; distance < PICK_BLOCK; distance *= 2) {
        const unsigned long long left = threadIdx.x >= distance ? sums[threadIdx.x - distance] : 0;
        __syncthreads();
        sums[threadIdx.x] += left;
        __syncthreads();
    }
    const unsigned long long before = sums[threadIdx.x] - num_high - num_low;
    if (before < wanted && sums[threadIdx.x] >= wanted) {
        const bool is_high = before + num_high >= wanted;
        state->prefix = prefix << DIGIT_BITS | (is_high ? high : low);
        state->wanted = wanted - before - (is_high ? 0 : num_high);
    }
    state->num_of_digit[high] = state->num_of_digit[low] = 0;
}

// ---- taking them

template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    compare_kernel(selection_state *state, const gs_item_table table) {
    __shared__ unsigned long long shared[GS_WARP];
    const unsigned long long least = state->prefix;
    unsigned long long above = 0, equal = 0;
    const gs_part part(table);
    for (gs_piece piece = part.first(); piece.count; piece = part.next(piece)) {
        const T *error = static_cast<const T *>(table.items[piece.item].error) + piece.first;
        for (size_t i = threadIdx.x; i < piece.count; i += GS_PART_BLOCK) {
            const unsigned long long bits = magnitude<T>::of(error[i]);
            above += bits > least;
            equal += bits == least;
        }
    }
    above = gs_block_sum(above, shared);
    __syncthreads();
    equal = gs_block_sum(equal, shared);
    if (threadIdx.x) return;
    state->above[blockIdx.x] = above;
    state->equal[blockIdx.x] = equal;
}

// One thread: some hundred additions, one after the other.
__global__ static void place_kernel(selection_state *state, unsigned num_parts) {
    unsigned long long to = 0, equal_left = state->wanted;
    for (unsigned p = 0; p < num_parts; p++) {
        const unsigned long long equal = state->equal[p] < equal_left ? state->equal[p] : equal_left;
        state->to[p] = to;
        state->equal_chosen[p] = equal;
        to += state->above[p] + equal;
        equal_left -= equal;
    }
}

template <typename T>
__device__ static inline T round_value(T value, gs_dtype wire_dtype) {
    const float narrow = static_cast<float>(value);
    if (wire_dtype == GS_FP16) return static_cast<T>(gs_widen_fp16(gs_narrow_fp16(narrow)));
    if (wire_dtype == GS_BF16) return static_cast<T>(gs_widen_bf16(gs_narrow_bf16(narrow)));
    return value;
}

// How many threads of the block before this one say so, and how many of all do. Ends with a barrier.
__device__ static inline unsigned count_before(bool says, unsigned *warps, unsigned *all) {
    const unsigned lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
    const unsigned votes = __ballot_sync(GS_FULL_WARP, says);
    if (lane == 0) warps[warp] = static_cast<unsigned>(__popc(votes));
    __syncthreads();
    unsigned before = static_cast<unsigned>(__popc(votes & ((1u << lane) - 1))), total = 0;
    for (unsigned w = 0; w < GS_PART_BLOCK / GS_WARP; w++) {
        if (w < warp) before += warps[w];
        total += warps[w];
    }
    __syncthreads();
    *all = total;
    return before;
}

template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    take_kernel(const selection_state *state, const gs_item_table table, T *values, uint32_t *places,
                gs_dtype wire_dtype) {
    __shared__ unsigned warps[GS_PART_BLOCK / GS_WARP];
    const unsigned long long least = state->prefix;
    unsigned long long to = state->to[blockIdx.x], equal_left = state->equal_chosen[blockIdx.x];
    const gs_part part(table);
    for (gs_piece piece = part.first(); piece.count; piece = part.next(piece)) {
        const gs_residual_item item = table.items[piece.item];
        T *error = static_cast<T *>(item.error) + piece.first;
        for (size_t base = 0; base < piece.count; base += GS_PART_BLOCK) {
            const size_t i = base + threadIdx.x;
            const T value = i < piece.count ? error[i] : T(0);
            const unsigned long long bits = magnitude<T>::of(value);
            unsigned num_equal, num_chosen;
            const bool is_equal = i < piece.count && bits == least;
            const unsigned equal_before = count_before(is_equal, warps, &num_equal);
            const bool is_chosen = (i < piece.count && bits > least) ||
                                   (is_equal && equal_before < equal_left);
            const unsigned before = count_before(is_chosen, warps, &num_chosen);
            if (is_chosen) {
                const T rounded = round_value(value, wire_dtype);
                values[to + before] = rounded;
                places[to + before] = static_cast<uint32_t>(item.first + piece.first + i);
                error[i] = value - rounded;
            }
            to += num_chosen;
            equal_left -= num_equal < equal_left ? num_equal : equal_left;
        }
    }
}

template <typename T>
static void select_with(gs_stream *stream, const gs_selection *selection) {
    void *scratch = gs_scratch(stream, sizeof(selection_state), "select_largest");
    if (!scratch) return;
    selection_state *state = static_cast<selection_state *>(scratch);
    const gs_item_table table = {selection->items, selection->num_items};
    const unsigned num_parts = gs_num_blocks(selection->num_places, GS_LEAST_PART, GS_MOST_PARTS);
    GS_LAUNCH(stream, 1, PICK_BLOCK, 0, begin_kernel, state,
              static_cast<unsigned long long>(selection->num_chosen));
    for (int shift = (magnitude<T>::num_bits - 1) / DIGIT_BITS * DIGIT_BITS; shift >= 0;
         shift -= DIGIT_BITS) {
        GS_LAUNCH(stream, num_parts, GS_PART_BLOCK, 0, (count_kernel<T>), state, table, shift);
        GS_LAUNCH(stream, 1, PICK_BLOCK, 0, pick_kernel, state);
    }
    GS_LAUNCH(stream, num_parts, GS_PART_BLOCK, 0, (compare_kernel<T>), state, table);
    GS_LAUNCH(stream, 1, 1, 0, place_kernel, state, num_parts);
    GS_LAUNCH(stream, num_parts, GS_PART_BLOCK, 0, (take_kernel<T>), state, table,
              static_cast<T *>(selection->values), selection->places, selection->wire_dtype);
}

extern "C" void gs_cuda_select_largest(gs_stream *stream, const gs_selection *selection) {
    if (selection->num_chosen == 0) return;
    if (selection->dtype == GS_FP64) {
        select_with<double>(stream, selection);
    } else {
        select_with<float>(stream, selection);
    }
}

// ---- where they arrive

__device__ static inline bool is_sound(const uint32_t *places, size_t i, size_t num_places) {
    return places[i] < num_places && (i == 0 || places[i - 1] < places[i]);
}

template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    add_at_kernel(T *out, const T *values, const uint32_t *places, size_t count, size_t num_places) {
    const size_t stride = static_cast<size_t>(gridDim.x) * GS_PART_BLOCK;
    for (size_t i = static_cast<size_t>(blockIdx.x) * GS_PART_BLOCK + threadIdx.x; i < count; i += stride) {
        if (is_sound(places, i, num_places)) out[places[i]] += values[i];
    }
}

// Behind the additions, one of which may be to element 0.
template <typename T>
__global__ static void __launch_bounds__(GS_PART_BLOCK)
    refuse_kernel(T *out, const uint32_t *places, size_t count, size_t num_places) {
    const size_t stride = static_cast<size_t>(gridDim.x) * GS_PART_BLOCK;
    for (size_t i = static_cast<size_t>(blockIdx.x) * GS_PART_BLOCK + threadIdx.x; i < count; i += stride) {
        if (!is_sound(places, i, num_places)) out[0] = static_cast<T>(NAN);
    }
}

template <typename T>
static void add_at_with(gs_stream *stream, void *out, const void *values, const uint32_t *places,
                        size_t count, size_t num_places) {
    const unsigned blocks = gs_num_blocks(count, GS_PART_BLOCK, 8 * gs_num_sms(stream));
    if (num_places == 0) return;
    GS_LAUNCH(stream, blocks, GS_PART_BLOCK, 0, (add_at_kernel<T>), static_cast<T *>(out),
              static_cast<const T *>(values), places, count, num_places);
    GS_LAUNCH(stream, blocks, GS_PART_BLOCK, 0, (refuse_kernel<T>), static_cast<T *>(out), places, count,
              num_places);
}

extern "C" void gs_cuda_add_at(gs_stream *stream, void *out, const void *values, const uint32_t *places,
                               size_t count, size_t num_places, gs_dtype dtype) {
    if (dtype == GS_FP64) {
        add_at_with<double>(stream, out, values, places, count, num_places);
    } else {
        add_at_with<float>(stream, out, values, places, count, num_places);
    }
}
