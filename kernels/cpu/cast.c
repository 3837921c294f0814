// fp32, fp64, fp16 and bf16 into each other, with a scale; fp32 through 16 bits and back. The only
// intrinsics of the CPU kernels are here and in cast.h: F16C, which gcc does not find by itself.
//
// Between types of at most 32 bits the product is fp32, rounded once more to the output; with fp64
// on either side it is fp64, and goes to 16 bits through fp32.
#include "kernels/cpu/cast.h"

#include <string.h>

#include "kernels/cpu/chunks.h"

void GS_CPU(widen_fp16)(float *out, const uint16_t *in, size_t count) {
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(in + i))));
    }
#endif
    for (; i < count; i++) out[i] = gs_fp16_to_fp32(in[i]);
}

void GS_CPU(narrow_fp16)(uint16_t *out, const float *in, size_t count) {
    size_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((void *)(out + i), half);
    }
#endif
    for (; i < count; i++) out[i] = gs_fp32_to_fp16(in[i]);
}

void GS_CPU(widen_bf16)(float *out, const uint16_t *in, size_t count) {
    GS_ELEMENTWISE
    for (size_t i = 0; i < count; i++) {
        uint32_t wide = (uint32_t)in[i] << 16;
        memcpy(&out[i], &wide, sizeof wide);
    }
}

void GS_CPU(narrow_bf16)(uint16_t *out, const float *in, size_t count) {
    GS_ELEMENTWISE
    for (size_t i = 0; i < count; i++) {
        uint32_t wide;
        memcpy(&wide, &in[i], sizeof wide);
        uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;
        uint32_t quiet = (wide >> 16) | 0x40u;
        out[i] = (uint16_t)((wide & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

#if defined(GS_FP16_LANES)
// Whole vectors of it; returns how many elements they were.
static size_t round_fp16_vectors(float *out, const float *in, float scale, size_t count,
                                 bool accumulate) {
    const gs_fp16_lanes factor = gs_fill_fp16_lanes(scale);
    size_t i = 0;
    for (; i + GS_FP16_LANES <= count; i += GS_FP16_LANES) {
        gs_fp16_lanes rounded = gs_round_fp16_lanes(gs_load_fp16_lanes(in + i) * factor);
        if (accumulate) rounded = gs_load_fp16_lanes(out + i) + rounded;
        gs_store_fp16_lanes(out + i, rounded);
    }
    return i;
}
#endif

void GS_CPU(round_fp16)(float *out, const float *in, float scale, size_t count, bool accumulate) {
    size_t i = 0;
#if defined(GS_FP16_LANES)
    i = accumulate ? round_fp16_vectors(out, in, scale, count, true)
                   : round_fp16_vectors(out, in, scale, count, false);
#endif
    for (; i < count; i++) {
        float rounded = gs_fp16_to_fp32(gs_fp32_to_fp16(in[i] * scale));
        out[i] = accumulate ? out[i] + rounded : rounded;
    }
}

// fp32 whose upper half is the bf16 nearest to `value`.
GS_INLINE float round_to_bf16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) & 0xffff0000u;
    uint32_t quiet = (wide & 0xffff0000u) | 0x400000u;
    wide = (wide & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    memcpy(&value, &wide, sizeof value);
    return value;
}

void GS_CPU(round_bf16)(float *out, const float *in, float scale, size_t count, bool accumulate) {
    if (accumulate) {
        GS_ELEMENTWISE
        for (size_t i = 0; i < count; i++) out[i] += round_to_bf16(in[i] * scale);
    } else {
        GS_ELEMENTWISE
        for (size_t i = 0; i < count; i++) out[i] = round_to_bf16(in[i] * scale);
    }
}

// Small enough for L1, large enough to make the calls cheap.
#define BLOCK ((size_t)512)

typedef struct conversion {
    char *out;
    const char *in;
    gs_dtype out_dtype, in_dtype;
    size_t out_bytes, in_bytes;
    float scale;
    size_t count;
} conversion;

static void load_fp32(float *block, const void *in, gs_dtype dtype, size_t count) {
    if (dtype == GS_FP32) memcpy(block, in, count * sizeof *block);
    if (dtype == GS_FP16) GS_CPU(widen_fp16)(block, in, count);
    if (dtype == GS_BF16) GS_CPU(widen_bf16)(block, in, count);
}

static void store_fp32(void *out, gs_dtype dtype, const float *block, size_t count) {
    if (dtype == GS_FP32) memcpy(out, block, count * sizeof *block);
    if (dtype == GS_FP16) GS_CPU(narrow_fp16)(out, block, count);
    if (dtype == GS_BF16) GS_CPU(narrow_bf16)(out, block, count);
}

static void convert_block(const conversion *job, size_t first, size_t count) {
    char *out = job->out + first * job->out_bytes;
    const char *in = job->in + first * job->in_bytes;
    float block[BLOCK];
    load_fp32(block, in, job->in_dtype, count);
    for (size_t i = 0; i < count; i++) block[i] *= job->scale;
    store_fp32(out, job->out_dtype, block, count);
}

static void convert_wide_block(const conversion *job, size_t first, size_t count) {
    char *out = job->out + first * job->out_bytes;
    const char *in = job->in + first * job->in_bytes;
    float narrow[BLOCK];
    double wide[BLOCK];
    if (job->in_dtype == GS_FP64) {
        memcpy(wide, in, count * sizeof *wide);
    } else {
        load_fp32(narrow, in, job->in_dtype, count);
        for (size_t i = 0; i < count; i++) wide[i] = (double)narrow[i];
    }
    for (size_t i = 0; i < count; i++) wide[i] *= (double)job->scale;
    if (job->out_dtype == GS_FP64) {
        memcpy(out, wide, count * sizeof *wide);
    } else {
        for (size_t i = 0; i < count; i++) narrow[i] = (float)wide[i];
        store_fp32(out, job->out_dtype, narrow, count);
    }
}

static void cast_item(void *ctx, size_t item) {
    const conversion *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    bool wide = job->in_dtype == GS_FP64 || job->out_dtype == GS_FP64;
    for (size_t at = 0; at < range.count; at += BLOCK) {
        size_t count = range.count - at < BLOCK ? range.count - at : BLOCK;
        if (wide) {
            convert_wide_block(job, range.first + at, count);
        } else {
            convert_block(job, range.first + at, count);
        }
    }
}

static bool is_float(gs_dtype dtype) {
    return dtype == GS_FP32 || dtype == GS_FP64 || dtype == GS_FP16 || dtype == GS_BF16;
}

void GS_CPU(cast)(gs_stream *stream, void *out, gs_dtype out_dtype, const void *in,
                  gs_dtype in_dtype, float scale, size_t count) {
    if (!is_float(out_dtype) || !is_float(in_dtype)) {
        gs_stream_fail(stream,
                       gs_error(GS_INVALID_ARGUMENT, "cast: %s to %s is not between float types",
                                gs_dtype_name(in_dtype), gs_dtype_name(out_dtype)));
        return;
    }
    conversion job = {.out = out,
                      .in = in,
                      .out_dtype = out_dtype,
                      .in_dtype = in_dtype,
                      .out_bytes = gs_dtype_bytes(out_dtype),
                      .in_bytes = gs_dtype_bytes(in_dtype),
                      .scale = scale,
                      .count = count};
    // In place between types of different sizes, items would run into each other.
    if (out == in && job.out_bytes != job.in_bytes) {
        gs_stream_fail(stream,
                       gs_error(GS_INVALID_ARGUMENT, "cast: %s to %s cannot be done in place",
                                gs_dtype_name(in_dtype), gs_dtype_name(out_dtype)));
        return;
    }
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), cast_item, &job);
}

typedef struct rounding {
    float *out;
    const float *in;
    gs_dtype dtype;
    bool accumulate;
    size_t count;
} rounding;

static void round_item(void *ctx, size_t item) {
    const rounding *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->count);
    float *out = job->out + range.first;
    const float *in = job->in + range.first;
    if (job->dtype == GS_FP16) {
        GS_CPU(round_fp16)(out, in, 1, range.count, job->accumulate);
    } else {
        GS_CPU(round_bf16)(out, in, 1, range.count, job->accumulate);
    }
}

void GS_CPU(round)(gs_stream *stream, float *out, const float *in, gs_dtype dtype, size_t count,
                   bool accumulate) {
    if (dtype != GS_FP16 && dtype != GS_BF16) {
        gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT, "round: %s has not 16 bits",
                                        gs_dtype_name(dtype)));
        return;
    }
    rounding job = {.out = out, .in = in, .dtype = dtype, .accumulate = accumulate, .count = count};
    gs_stream_for_each(stream, gs_num_items(count, GS_CHUNK), round_item, &job);
}
