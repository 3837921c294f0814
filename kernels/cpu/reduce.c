// outputs[*] = scale · (inputs[0] op inputs[1] op …): the inner loop of collectives. Runs in the
// calling thread, which need not be the stream's, and touches the stream only to report a misuse.
//
// All sources are read together, a step of elements at a time, so that the result is made in registers or L1
// and each line is touched once. Sums with a wire dtype are in wire_sum.c.
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/reduce.h"
#include "kernels/device.h"
#include "kernels/reduction.h"

#define COMBINE(type, op, left, right)                                                             \
    ((op) == GS_OP_SUM   ? (type)((left) + (right))                                                \
     : (op) == GS_OP_MAX ? ((left) > (right) || (left) != (left) ? (left) : (right))               \
                         : ((left) < (right) || (left) != (left) ? (left) : (right)))

// The fast path: sums of fp32 and bf16, folded left to right, type and number of inputs known to
// the compiler.
#define MOST_UNROLLED 8

GS_INLINE float load_element(const char *in, const gs_dtype dtype, size_t i) {
    uint32_t bits;
    if (dtype == GS_BF16) {
        uint16_t half;
        memcpy(&half, in + 2 * i, sizeof half);
        bits = (uint32_t)half << 16;
    } else {
        memcpy(&bits, in + 4 * i, sizeof bits);
    }
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// `count` is GS_REDUCE_STEP for all but the last step of a buffer.
GS_INLINE void sum_step(const gs_reduction *r, const gs_dtype dtype, const int num_inputs,
                        size_t first, const size_t count) {
    const size_t bytes = dtype == GS_BF16 ? 2 : 4;
    const float scale = (float)r->scale;
    float sums[GS_REDUCE_STEP];
    uint16_t halves[GS_REDUCE_STEP];
    const char *in[MOST_UNROLLED];
#pragma GCC unroll 8
    for (int k = 0; k < num_inputs; k++) in[k] = (const char *)r->inputs[k] + first * bytes;
    for (size_t i = 0; i < count; i++) {
        float sum = load_element(in[0], dtype, i);
#pragma GCC unroll 8
        for (int k = 1; k < num_inputs; k++) sum += load_element(in[k], dtype, i);
        sums[i] = sum * scale;
    }
    if (dtype == GS_BF16) GS_CPU(narrow_bf16)(halves, sums, count);
    for (int k = 0; k < r->num_outputs; k++) {
        char *out = (char *)r->outputs[k] + first * bytes;
        if (dtype == GS_BF16) {
            memcpy(out, halves, count * sizeof *halves);
        } else {
            memcpy(out, sums, count * sizeof *sums);
        }
    }
}

GS_INLINE float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// The upper half is the bf16 nearest to `value`, as narrow_bf16 finds it.
GS_INLINE uint32_t round_to_upper_half(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    uint32_t rounded = wide + 0x7fffu + ((wide >> 16) & 1u);
    return (wide & 0x7fffffffu) > 0x7f800000u ? wide | 0x400000u : rounded;
}

// A whole step of bf16, two elements to a word: the upper one is an fp32 once the lower one is
// masked off, the lower one once it is shifted up. No element changes its lane.
GS_INLINE void sum_bf16_pairs(const gs_reduction *r, const int num_inputs, size_t first) {
    const float scale = (float)r->scale;
    uint32_t sums[GS_REDUCE_STEP / 2];
    const char *in[MOST_UNROLLED];
#pragma GCC unroll 8
    for (int k = 0; k < num_inputs; k++) in[k] = (const char *)r->inputs[k] + first * 2;
    for (size_t i = 0; i < GS_REDUCE_STEP / 2; i++) {
        uint32_t pair;
        memcpy(&pair, in[0] + 4 * i, sizeof pair);
        float upper = float_of_bits(pair & 0xffff0000u), lower = float_of_bits(pair << 16);
#pragma GCC unroll 8
        for (int k = 1; k < num_inputs; k++) {
            memcpy(&pair, in[k] + 4 * i, sizeof pair);
            upper += float_of_bits(pair & 0xffff0000u);
            lower += float_of_bits(pair << 16);
        }
        sums[i] = (round_to_upper_half(upper * scale) & 0xffff0000u) |
                  round_to_upper_half(lower * scale) >> 16;
    }
    for (int k = 0; k < r->num_outputs; k++)
        memcpy((char *)r->outputs[k] + first * 2, sums, sizeof sums);
}

GS_INLINE void sum_steps(const gs_reduction *r, const gs_dtype dtype, const int num_inputs) {
    const size_t bytes = dtype == GS_BF16 ? 2 : 4;
    size_t at = 0;
    for (; at + GS_REDUCE_STEP <= r->count; at += GS_REDUCE_STEP) {
        gs_prefetch_step(r, at * bytes, GS_REDUCE_STEP * bytes);
        if (dtype == GS_BF16) {
            sum_bf16_pairs(r, num_inputs, at);
        } else {
            sum_step(r, dtype, num_inputs, at, GS_REDUCE_STEP);
        }
    }
    if (at < r->count) sum_step(r, dtype, num_inputs, at, r->count - at);
}

// False: no fast path for this number of inputs.
GS_INLINE bool sum_inputs(const gs_reduction *r, const gs_dtype dtype) {
    switch (r->num_inputs) {
    case 1:
        sum_steps(r, dtype, 1);
        return true;
    case 2:
        sum_steps(r, dtype, 2);
        return true;
    case 3:
        sum_steps(r, dtype, 3);
        return true;
    case 4:
        sum_steps(r, dtype, 4);
        return true;
    case 5:
        sum_steps(r, dtype, 5);
        return true;
    case 6:
        sum_steps(r, dtype, 6);
        return true;
    case 7:
        sum_steps(r, dtype, 7);
        return true;
    case 8:
        sum_steps(r, dtype, 8);
        return true;
    default:
        return false;
    }
}

static bool reduce_fast(const gs_reduction *r) {
    if (r->op != GS_OP_SUM || r->merges) return false;
    if (r->dtype == GS_FP32) return sum_inputs(r, GS_FP32);
    return r->dtype == GS_BF16 && sum_inputs(r, GS_BF16);
}

// The general path: any type, any merges. A stack of steps in the type that accumulates.
typedef union step {
    float fp32[GS_REDUCE_STEP];
    double fp64[GS_REDUCE_STEP];
    int64_t i64[GS_REDUCE_STEP];
    int32_t i32[GS_REDUCE_STEP];
} step;

static void load_step(step *to, const gs_reduction *r, int input, size_t first, size_t count) {
    size_t bytes = gs_dtype_bytes(r->dtype);
    const char *in = (const char *)r->inputs[input] + first * bytes;
    if (r->dtype == GS_FP16) {
        GS_CPU(widen_fp16)(to->fp32, (const void *)in, count);
    } else if (r->dtype == GS_BF16) {
        GS_CPU(widen_bf16)(to->fp32, (const void *)in, count);
    } else {
        memcpy(to, in, count * bytes);
    }
}

static void store_step(const gs_reduction *r, int output, step *from, size_t first, size_t count) {
    size_t bytes = gs_dtype_bytes(r->dtype);
    char *out = (char *)r->outputs[output] + first * bytes;
    if (r->dtype == GS_FP16) {
        GS_CPU(narrow_fp16)((void *)out, from->fp32, count);
    } else if (r->dtype == GS_BF16) {
        GS_CPU(narrow_bf16)((void *)out, from->fp32, count);
    } else {
        memcpy(out, from, count * bytes);
    }
}

// left = left op right. Integer sums wrap around.
#define DEFINE_COMBINE(name, type, sum_type)                                                       \
    static void name(type *left, const type *right, gs_reduce_op op) {                             \
        if (op == GS_OP_SUM) {                                                                     \
            for (size_t i = 0; i < GS_REDUCE_STEP; i++) {                                                    \
                left[i] = (type)((sum_type)left[i] + (sum_type)right[i]);                          \
            }                                                                                      \
        } else if (op == GS_OP_MAX) {                                                              \
            for (size_t i = 0; i < GS_REDUCE_STEP; i++) {                                                    \
                left[i] = COMBINE(type, GS_OP_MAX, left[i], right[i]);                             \
            }                                                                                      \
        } else {                                                                                   \
            for (size_t i = 0; i < GS_REDUCE_STEP; i++) {                                                    \
                left[i] = COMBINE(type, GS_OP_MIN, left[i], right[i]);                             \
            }                                                                                      \
        }                                                                                          \
    }
DEFINE_COMBINE(combine_fp32, float, float)
DEFINE_COMBINE(combine_fp64, double, double)
DEFINE_COMBINE(combine_i64, int64_t, uint64_t)
DEFINE_COMBINE(combine_i32, int32_t, uint32_t)

static void combine_steps(step *left, const step *right, gs_dtype dtype, gs_reduce_op op) {
    switch (dtype) {
    case GS_FP64:
        combine_fp64(left->fp64, right->fp64, op);
        return;
    case GS_I64:
        combine_i64(left->i64, right->i64, op);
        return;
    case GS_I32:
        combine_i32(left->i32, right->i32, op);
        return;
    default:
        combine_fp32(left->fp32, right->fp32, op);
        return;
    }
}

static void scale_step(step *at, gs_dtype dtype, double scale) {
    if (dtype == GS_FP64) {
        for (size_t i = 0; i < GS_REDUCE_STEP; i++) at->fp64[i] *= scale;
    } else if (dtype != GS_I64 && dtype != GS_I32) {
        for (size_t i = 0; i < GS_REDUCE_STEP; i++) at->fp32[i] *= (float)scale;
    }
}

// Elements beyond the count of a last step hold zeros or leftovers; they are combined and dropped.
static void reduce_steps(const gs_reduction *r, step *stack) {
    size_t bytes = gs_dtype_bytes(r->dtype);
    for (size_t first = 0; first < r->count; first += GS_REDUCE_STEP) {
        size_t count = r->count - first < GS_REDUCE_STEP ? r->count - first : GS_REDUCE_STEP;
        if (count == GS_REDUCE_STEP) gs_prefetch_step(r, first * bytes, GS_REDUCE_STEP * bytes);
        int depth = 0;
        for (int k = 0; k < r->num_inputs; k++) {
            load_step(&stack[depth++], r, k, first, count);
            for (int merges = r->merges ? r->merges[k] : k > 0; merges; merges--) {
                combine_steps(&stack[depth - 2], &stack[depth - 1], r->dtype, r->op);
                depth--;
            }
        }
        scale_step(&stack[0], r->dtype, r->scale);
        for (int k = 0; k < r->num_outputs; k++) store_step(r, k, &stack[0], first, count);
    }
}

void GS_CPU(reduce)(gs_stream *stream, const gs_reduction *reduction) {
    int depth = 0;
    gs_status status = gs_reduction_check(&depth, reduction);
    if (status.code) {
        gs_stream_fail(stream, status);
        return;
    }
    if (reduction->wire_dtype) {
        GS_CPU(sum_by_wire)(reduction);
        return;
    }
    if (reduce_fast(reduction)) return;
    step stack[GS_REDUCE_MAX_INPUTS];
    memset(stack, 0, (size_t)depth * sizeof *stack);
    reduce_steps(reduction, stack);
}
