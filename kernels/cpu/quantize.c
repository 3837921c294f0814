// Numbers in 8 bits, a scale and a zero for each segment, and sums of what they stand for.
//
// A smallest and a largest number are the same in any order, so only NaN needs care: it is noted beside
// them. Segments of up to MOST_KEPT elements are read again for their codes while they are in the cache.
#include <math.h>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/isa.h"

#define MOST_KEPT ((size_t)65536)
#define MOST_RANGES 256  // of one segment, on the stack; the cut depends on the count alone
#define BLOCK ((size_t)1024)
#define LANE_BYTES 128
#define MOST_CODE 255

// Of fp32 or fp64, which it holds exactly.
typedef struct value_range {
    double lo, hi;
    bool has_nan;
} value_range;

typedef struct quantizing {
    gs_quantized to;
    const void *in;
    double least_scale;
    size_t first, count, item_count;  // of a segment that is cut
    value_range ranges[MOST_RANGES];
} quantizing;

typedef struct dequantizing {
    gs_quantized from;
    void *out;
    size_t num_inputs, stride_bytes;
    double factor;
} dequantizing;

// `rounder` is 1.5 times the power of two from which on the type has only whole numbers: what is added to
// it, and is small beside it, is rounded to a whole number, ties to even.
#define DEFINE_KERNELS(type, bits, rounder)                                                        \
    static value_range find_range_##type(const type *in, size_t count) {                           \
        enum { LANES = LANE_BYTES / sizeof(type) };                                                \
        type lo[LANES] = {0}, hi[LANES] = {0};                                                     \
        bits nan[LANES] = {0};                                                                     \
        const size_t whole = count - count % LANES;                                                \
        for (size_t at = 0; at < whole; at += LANES) {                                             \
            for (size_t j = 0; j < LANES; j++) {                                                   \
                const type value = in[at + j];                                                     \
                lo[j] = value < lo[j] ? value : lo[j];                                             \
                hi[j] = value > hi[j] ? value : hi[j];                                             \
                nan[j] |= value != value;                                                          \
            }                                                                                      \
        }                                                                                          \
        for (size_t i = whole; i < count; i++) {                                                   \
            const type value = in[i];                                                              \
            lo[0] = value < lo[0] ? value : lo[0];                                                 \
            hi[0] = value > hi[0] ? value : hi[0];                                                 \
            nan[0] |= value != value;                                                              \
        }                                                                                          \
        for (size_t j = 1; j < LANES; j++) {                                                       \
            lo[0] = lo[j] < lo[0] ? lo[j] : lo[0];                                                 \
            hi[0] = hi[j] > hi[0] ? hi[j] : hi[0];                                                 \
            nan[0] |= nan[j];                                                                      \
        }                                                                                          \
        return (value_range){(double)lo[0], (double)hi[0], nan[0] != 0};                           \
    }                                                                                              \
                                                                                                   \
    GS_INLINE type round_##type(type value) {                                                      \
        return (value + (type)(rounder)) - (type)(rounder);                                        \
    }                                                                                              \
                                                                                                   \
    GS_INLINE type limit_##type(type code) {                                                       \
        code = code > 0 ? code : 0; /* a NaN too */                                                \
        return code < MOST_CODE ? code : MOST_CODE;                                                \
    }                                                                                              \
                                                                                                   \
    static void choose_scale_##type(type scale[2], const value_range *range, double least) {       \
        const type lo = (type)range->lo, width = (type)range->hi - lo;                             \
        const bool is_finite = !range->has_nan && width < (type)INFINITY;                          \
        const type wanted = width / MOST_CODE;                                                     \
        const type chosen = wanted > (type)least ? wanted : (type)least;                           \
        scale[0] = is_finite ? chosen : (type)NAN;                                                 \
        scale[1] = is_finite ? limit_##type(round_##type(-lo / chosen)) : 0;                       \
    }                                                                                              \
                                                                                                   \
    static void encode_##type(uint8_t *codes, const type *in, const type scale[2], size_t count) { \
        const type step = scale[0], zero = scale[1];                                               \
        GS_ELEMENTWISE                                                                             \
        for (size_t i = 0; i < count; i++)                                                         \
            codes[i] = (uint8_t)(int32_t)limit_##type(round_##type(in[i] / step) + zero);          \
    }                                                                                              \
                                                                                                   \
    /* Of one segment. */                                                                          \
    static void decode_##type(type *sum, const uint8_t *codes, const type scale[2], size_t count,  \
                              bool accumulate) {                                                   \
        const type step = scale[0], zero = scale[1];                                               \
        if (accumulate) {                                                                          \
            for (size_t i = 0; i < count; i++) sum[i] += step * ((type)codes[i] - zero);           \
        } else {                                                                                   \
            for (size_t i = 0; i < count; i++) sum[i] = step * ((type)codes[i] - zero);            \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static void dequantize_block_##type(const dequantizing *job, size_t first, size_t count) {     \
        const size_t segment = first / job->from.segment_count;                                    \
        type sum[BLOCK], *out = (type *)job->out + first;                                          \
        const type factor = (type)job->factor;                                                     \
        for (size_t k = 0; k < job->num_inputs; k++) {                                             \
            const char *scales = (const char *)job->from.scales + k * job->stride_bytes;           \
            decode_##type(sum, job->from.codes + k * job->stride_bytes + first,                    \
                          (const type *)(const void *)scales + 2 * segment, count, k > 0);         \
        }                                                                                          \
        for (size_t i = 0; i < count; i++) out[i] = sum[i] * factor;                               \
    }
DEFINE_KERNELS(float, uint32_t, 0x1.8p23)
DEFINE_KERNELS(double, uint64_t, 0x1.8p52)

static value_range find_range(const quantizing *job, size_t first, size_t count) {
    return job->to.dtype == GS_FP64 ? find_range_double((const double *)job->in + first, count)
                                    : find_range_float((const float *)job->in + first, count);
}

static void choose_scale(const quantizing *job, size_t segment, const value_range *range) {
    if (job->to.dtype == GS_FP64)
        choose_scale_double((double *)job->to.scales + 2 * segment, range, job->least_scale);
    else
        choose_scale_float((float *)job->to.scales + 2 * segment, range, job->least_scale);
}

static void encode(const quantizing *job, size_t segment, size_t first, size_t count) {
    const gs_quantized *to = &job->to;
    if (to->dtype == GS_FP64)
        encode_double(to->codes + first, (const double *)job->in + first,
                      (const double *)to->scales + 2 * segment, count);
    else
        encode_float(to->codes + first, (const float *)job->in + first,
                     (const float *)to->scales + 2 * segment, count);
}

// Segments that are kept: as many as are about a chunk.
static void quantize_segments(void *ctx, size_t item) {
    const quantizing *job = ctx;
    gs_range range = gs_item_range(item, job->item_count, job->to.count);
    for (size_t at = 0; at < range.count; at += job->to.segment_count) {
        const size_t first = range.first + at, segment = first / job->to.segment_count;
        const size_t left = range.count - at;
        const size_t count = left < job->to.segment_count ? left : job->to.segment_count;
        const value_range values = find_range(job, first, count);
        choose_scale(job, segment, &values);
        encode(job, segment, first, count);
    }
}

static void find_range_item(void *ctx, size_t item) {
    quantizing *job = ctx;
    gs_range range = gs_item_range(item, job->item_count, job->count);
    job->ranges[item] = find_range(job, job->first + range.first, range.count);
}

static void encode_item(void *ctx, size_t item) {
    const quantizing *job = ctx;
    gs_range range = gs_item_range(item, job->item_count, job->count);
    encode(job, job->first / job->to.segment_count, job->first + range.first, range.count);
}

static void quantize_long_segment(gs_stream *stream, quantizing *job) {
    job->item_count = GS_CHUNK * gs_num_items(gs_num_items(job->count, GS_CHUNK), MOST_RANGES);
    const size_t num_items = gs_num_items(job->count, job->item_count);
    gs_stream_for_each(stream, num_items, find_range_item, job);
    value_range all = job->ranges[0];
    for (size_t i = 1; i < num_items; i++) {
        const value_range *next = &job->ranges[i];
        all.lo = next->lo < all.lo ? next->lo : all.lo;
        all.hi = next->hi > all.hi ? next->hi : all.hi;
        all.has_nan |= next->has_nan;
    }
    choose_scale(job, job->first / job->to.segment_count, &all);
    gs_stream_for_each(stream, num_items, encode_item, job);
}

static bool check_dtype(gs_stream *stream, const gs_quantized *numbers) {
    if (numbers->dtype == GS_FP32 || numbers->dtype == GS_FP64) return true;
    gs_stream_fail(stream, gs_error(GS_INVALID_ARGUMENT, "codes of %s: only of fp32 and fp64",
                                    gs_dtype_name(numbers->dtype)));
    return false;
}

void GS_CPU(quantize)(gs_stream *stream, const gs_quantized *to, const void *in,
                      double least_scale) {
    quantizing job = {.to = *to, .in = in, .least_scale = least_scale};
    if (!check_dtype(stream, to) || !to->count) return;
    if (to->count < to->segment_count) job.to.segment_count = to->count;
    const size_t segment_count = job.to.segment_count;
    if (segment_count <= MOST_KEPT) {
        job.item_count = segment_count * (segment_count < GS_CHUNK ? GS_CHUNK / segment_count : 1);
        gs_stream_for_each(stream, gs_num_items(to->count, job.item_count), quantize_segments,
                           &job);
        return;
    }
    for (size_t first = 0; first < to->count; first += segment_count) {
        job.first = first;
        job.count = to->count - first < segment_count ? to->count - first : segment_count;
        quantize_long_segment(stream, &job);
    }
}

static void dequantize_item(void *ctx, size_t item) {
    const dequantizing *job = ctx;
    gs_range range = gs_item_range(item, GS_CHUNK, job->from.count);
    for (size_t at = 0, count; at < range.count; at += count) {
        const size_t first = range.first + at;
        const size_t in_segment = job->from.segment_count - first % job->from.segment_count;
        count = range.count - at < BLOCK ? range.count - at : BLOCK;
        if (count > in_segment) count = in_segment;
        if (job->from.dtype == GS_FP64)
            dequantize_block_double(job, first, count);
        else
            dequantize_block_float(job, first, count);
    }
}

void GS_CPU(dequantize)(gs_stream *stream, void *out, const gs_quantized *from, size_t num_inputs,
                        size_t stride_bytes, double factor) {
    dequantizing job = {.from = *from,
                        .out = out,
                        .num_inputs = num_inputs,
                        .stride_bytes = stride_bytes,
                        .factor = factor};
    if (!check_dtype(stream, from)) return;
    gs_stream_for_each(stream, gs_num_items(from->count, GS_CHUNK), dequantize_item, &job);
}
