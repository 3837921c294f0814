#include "tests/support/quantized_reference.h"

#include <math.h>

static double rounded(gs_dtype dtype, double value) {
    return dtype == GS_FP64 ? value : (double)(float)value;
}

double quantized_reference_sent(gs_dtype wire_dtype, double value) {
    const float narrow = (float)value;
    return (double)(wire_dtype == GS_FP16 ? gs_fp16_to_fp32(gs_fp32_to_fp16(narrow))
                                          : gs_bf16_to_fp32(gs_fp32_to_bf16(narrow)));
}

static double sum_of(const quantized_reference *bucket, size_t i) {
    const gs_dtype dtype = bucket->dtype;
    double sum = bucket->grads[0][i];
    for (int r = 1; r < bucket->world_size; r++) sum = rounded(dtype, sum + bucket->grads[r][i]);
    return rounded(dtype, sum * rounded(dtype, bucket->scale));
}

// Each contribution is scaled and rounded before the sum in fp32, which is rounded once more.
static double sent_sum_of(const quantized_reference *bucket, size_t i) {
    double sum = 0;
    for (int r = 0; r < bucket->world_size; r++) {
        double scaled = rounded(bucket->dtype, bucket->grads[r][i] * (double)(float)bucket->scale);
        double sent = quantized_reference_sent(bucket->wire_dtype, scaled);
        sum = r ? (double)(float)(sum + sent) : sent;
    }
    return quantized_reference_sent(bucket->wire_dtype, sum);
}

void quantized_reference_allreduce(double *out, const quantized_reference *bucket) {
    for (size_t i = 0; i < bucket->count; i++)
        out[i] = bucket->wire_dtype ? sent_sum_of(bucket, i) : sum_of(bucket, i);
}

// ---- 8 bits

typedef struct quantization {
    gs_dtype dtype;
    double scale, zero;
} quantization;

static double limited(double code) {
    return fmin(255, fmax(0, code));
}

static quantization quantization_of(const double *numbers, size_t count, gs_dtype dtype,
                                    double least_scale) {
    double lo = 0, hi = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(numbers[i])) return (quantization){dtype, (double)NAN, 0};
        lo = fmin(lo, numbers[i]);
        hi = fmax(hi, numbers[i]);
    }
    double width = rounded(dtype, hi - lo);
    if (!isfinite(width)) return (quantization){dtype, (double)NAN, 0};
    double scale = fmax(rounded(dtype, width / 255), least_scale);
    return (quantization){dtype, scale, limited(rint(rounded(dtype, -lo / scale)))};
}

// What arrives of a number.
static double through_code(const quantization *q, double number) {
    if (isnan(q->scale)) return (double)NAN;
    double code = limited(rint(rounded(q->dtype, number / q->scale)) + q->zero);
    return rounded(q->dtype, q->scale * (code - q->zero));
}

void quantized_reference_int8(double *out, const quantized_reference *bucket, size_t row_count) {
    const gs_dtype dtype = bucket->dtype;
    if (!row_count) row_count = bucket->count;
    for (size_t first = 0; first < bucket->count; first += row_count) {
        size_t count = bucket->count - first < row_count ? bucket->count - first : row_count;
        for (int r = 0; r < bucket->world_size; r++) {
            const double *row = bucket->grads[r] + first;
            const quantization q = quantization_of(row, count, dtype, 0x1p-23);
            for (size_t i = 0; i < count; i++) {
                double arrived = through_code(&q, row[i]);
                out[first + i] = r ? rounded(dtype, out[first + i] + arrived) : arrived;
            }
        }
        for (size_t i = first; i < first + count; i++)
            out[i] = rounded(dtype, out[i] * rounded(dtype, bucket->scale));
    }
}

void quantized_reference_uint8_gather(double *out, double *step, const quantized_reference *bucket) {
    const size_t part = bucket->count / (size_t)bucket->world_size / 64 * 64;
    const size_t cut = bucket->world_size > 1 && part >= 4096 ? part * (size_t)bucket->world_size : 0;
    if (!cut) {
        quantized_reference_allreduce(out, bucket);
    } else {
        // What is behind the last part is reduced with the reserved elements, which no wire dtype rounds.
        for (size_t i = 0; i < bucket->count; i++)
            out[i] = bucket->wire_dtype && i < cut ? sent_sum_of(bucket, i) : sum_of(bucket, i);
    }
    for (size_t i = 0; step && i < bucket->count; i++) step[i] = 0;
    for (size_t first = 0, count; first < cut; first += count) {
        count = part - first % part < 65536 ? part - first % part : 65536;
        const quantization q = quantization_of(out + first, count, bucket->dtype,
                                               bucket->dtype == GS_FP64 ? 0x1p-1022 : 0x1p-126);
        for (size_t i = first; i < first + count; i++) {
            out[i] = through_code(&q, out[i]);
            if (step) step[i] = q.scale;
        }
    }
}
