// Sums as if 16 bits had been sent (gs_reduction.wire_dtype): each input is rounded on its way into the sum, and
// the sum once more, in one pass. A few inputs of fp32 are added up in registers; others step by step in L1.
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/reduce.h"

#define STEP ((size_t)GS_REDUCE_STEP)
#define MOST_UNROLLED 4  // inputs

// ---- all in registers

// The fp32 whose upper half is the bf16 nearest to `value`, a product: a NaN in it is a quiet one.
GS_INLINE float round_product_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t bias = 0x7fffu + ((bits >> 16) & 1u);
    bits = (bits + (value == value ? bias : 0)) & 0xffff0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

GS_INLINE void store_step(const gs_reduction *r, size_t first, const float *sums) {
    for (int k = 0; k < r->num_outputs; k++)
        memcpy((float *)r->outputs[k] + first, sums, STEP * sizeof *sums);
}

GS_INLINE void add_bf16_step(const gs_reduction *r, const int num_inputs, size_t first) {
    const float scale = (float)r->scale, wire_scale = r->wire_scale;
    const float *in[MOST_UNROLLED];
    float sums[STEP];
    for (int k = 0; k < num_inputs; k++) in[k] = (const float *)r->inputs[k] + first;
    for (size_t i = 0; i < STEP; i++) {
        float sum = round_product_to_bf16(in[0][i] * wire_scale);
#pragma GCC unroll 4
        for (int k = 1; k < num_inputs; k++) sum += round_product_to_bf16(in[k][i] * wire_scale);
        sums[i] = round_product_to_bf16(sum * scale);
    }
    store_step(r, first, sums);
}

#if defined(GS_FP16_LANES)
GS_INLINE void add_fp16_step(const gs_reduction *r, const int num_inputs, size_t first) {
    const gs_fp16_lanes scale = gs_fill_fp16_lanes((float)r->scale);
    const gs_fp16_lanes wire_scale = gs_fill_fp16_lanes(r->wire_scale);
    gs_fp16_lanes sums[STEP / GS_FP16_LANES];
#pragma GCC unroll 8
    for (size_t v = 0; v < STEP / GS_FP16_LANES; v++) {
        const size_t at = first + v * GS_FP16_LANES;
        gs_fp16_lanes sum = gs_load_fp16_lanes((const float *)r->inputs[0] + at);
        sum = gs_round_fp16_lanes(sum * wire_scale);
#pragma GCC unroll 4
        for (int k = 1; k < num_inputs; k++) {
            gs_fp16_lanes next = gs_load_fp16_lanes((const float *)r->inputs[k] + at);
            sum += gs_round_fp16_lanes(next * wire_scale);
        }
        sums[v] = gs_round_fp16_lanes(sum * scale);
    }
    for (int k = 0; k < r->num_outputs; k++) {
        float *out = (float *)r->outputs[k] + first;
#pragma GCC unroll 8
        for (size_t v = 0; v < STEP / GS_FP16_LANES; v++)
            gs_store_fp16_lanes(out + v * GS_FP16_LANES, sums[v]);
    }
}
#endif

// Whole steps; returns how many elements they were.
GS_INLINE size_t add_steps(const gs_reduction *r, const gs_dtype wire, const int num_inputs) {
    size_t at = 0;
    for (; at + STEP <= r->count; at += STEP) {
        gs_prefetch_step(r, at * sizeof(float), STEP * sizeof(float));
#if defined(GS_FP16_LANES)
        if (wire == GS_FP16) {
            add_fp16_step(r, num_inputs, at);
            continue;
        }
#else
        (void)wire;
#endif
        add_bf16_step(r, num_inputs, at);
    }
    return at;
}

GS_INLINE size_t add_inputs(const gs_reduction *r, const gs_dtype wire) {
    switch (r->num_inputs) {
    case 1:
        return add_steps(r, wire, 1);
    case 2:
        return add_steps(r, wire, 2);
    case 3:
        return add_steps(r, wire, 3);
    case 4:
        return add_steps(r, wire, 4);
    default:
        return 0;
    }
}

static size_t add_in_registers(const gs_reduction *r) {
    if (r->dtype != GS_FP32 || r->wire_scale_after) return 0;
    if (r->wire_dtype == GS_BF16) return add_inputs(r, GS_BF16);
#if defined(GS_FP16_LANES)
    return add_inputs(r, GS_FP16);
#else
    return 0;
#endif
}

// ---- step by step

// Calls are few enough to a step of this many elements.
#define WIRE_STEP ((size_t)256)

// to[i] = or += from[i] · scale, as it would arrive
static void send_step(float *to, const gs_reduction *r, const float *from, float scale,
                      size_t count, bool accumulate) {
    if (r->wire_dtype == GS_FP16) {
        GS_CPU(round_fp16)(to, from, scale, count, accumulate);
    } else {
        GS_CPU(round_bf16)(to, from, scale, count, accumulate);
    }
}

static void add_sent(float *sum, const gs_reduction *r, int input, size_t first, size_t count) {
    const float *from = (const float *)r->inputs[input] + first;
    float scale = r->wire_scale, narrow[WIRE_STEP];
    if (r->dtype == GS_FP64) {
        double wide[WIRE_STEP], factor = r->wire_scale_after ? 1 : (double)scale;
        memcpy(wide, (const char *)r->inputs[input] + first * sizeof *wide, count * sizeof *wide);
        for (size_t i = 0; i < count; i++) narrow[i] = (float)(wide[i] * factor);
        if (!r->wire_scale_after) scale = 1;
        from = narrow;
    }
    if (r->wire_scale_after) {
        send_step(narrow, r, from, 1, count, false);
        from = narrow;
    }
    send_step(sum, r, from, scale, count, input > 0);
}

static void store_sum(const gs_reduction *r, int output, const float *sum, size_t first,
                      size_t count) {
    if (r->dtype == GS_FP32) {
        memcpy((float *)r->outputs[output] + first, sum, count * sizeof *sum);
        return;
    }
    double wide[WIRE_STEP];
    for (size_t i = 0; i < count; i++) wide[i] = (double)sum[i];
    memcpy((char *)r->outputs[output] + first * sizeof *wide, wide, count * sizeof *wide);
}

void GS_CPU(sum_by_wire)(const gs_reduction *r) {
    size_t bytes = gs_dtype_bytes(r->dtype);
    float sum[WIRE_STEP];
    for (size_t first = add_in_registers(r); first < r->count; first += WIRE_STEP) {
        size_t count = r->count - first < WIRE_STEP ? r->count - first : WIRE_STEP;
        if (count == WIRE_STEP) gs_prefetch_step(r, first * bytes, WIRE_STEP * bytes);
        for (int k = 0; k < r->num_inputs; k++) add_sent(sum, r, k, first, count);
        send_step(sum, r, sum, (float)r->scale, count, false);
        for (int k = 0; k < r->num_outputs; k++) store_sum(r, k, sum, first, count);
    }
}
