#include "tests/support/hook_reference.h"

#include <math.h>
#include <string.h>

double reference_epsilon(gs_dtype dtype) {
    switch (dtype) {
    case GS_FP64:
        return 0x1p-53;
    case GS_FP32:
        return 0x1p-24;
    case GS_FP16:
        return 0x1p-11;
    default:
        return 0x1p-8;  // bf16
    }
}

double reference_round(gs_dtype dtype, double value) {
    return dtype == GS_FP16 ? (double)gs_fp16_to_fp32(gs_fp32_to_fp16((float)value))
                            : (double)gs_bf16_to_fp32(gs_fp32_to_bf16((float)value));
}

// How far a number of this dtype is from what was rounded to it, at most; fp16 loses small ones altogether.
static double rounding_of(gs_dtype dtype, double value) {
    return reference_epsilon(dtype) * fabs(value) + (dtype == GS_FP16 ? 0x1p-25 : 0);
}

void reference_sum(const reference_bucket *bucket, gs_dtype wire_dtype, bool rounds_first) {
    for (size_t i = 0; i < bucket->count; i++) {
        for (int r = 0; r < bucket->world_size; r++) {
            double value = bucket->in[r][i];
            // What was rounded on another way to here may be rounded to the next number.
            if (rounds_first) bucket->slack[i] += 2 * rounding_of(wire_dtype, value) * bucket->scale;
            bucket->out[i] += value * bucket->scale;
            if (wire_dtype) bucket->slack[i] += rounding_of(wire_dtype, value * bucket->scale);
        }
        if (wire_dtype) bucket->slack[i] = 1.1 * bucket->slack[i] + 1.1 * rounding_of(wire_dtype, bucket->out[i]);
    }
}

static size_t draw_nothing(gs_hook_number numbers[HOOK_REFERENCE_NUMBERS], uint64_t dice,
                           const reference_limits *limits) {
    (void)numbers, (void)dice, (void)limits;
    return 0;
}

static void run_allreduce(void **state, const gs_hook_choice *choice,
                          const reference_bucket *bucket) {
    (void)state, (void)choice;
    reference_sum(bucket, bucket->wire_dtype, false);
}

static size_t draw_division(gs_hook_number numbers[HOOK_REFERENCE_NUMBERS], uint64_t dice,
                            const reference_limits *limits) {
    (void)limits;
    numbers[0] = (gs_hook_number){"divide_after_cast", (double)(dice % 2)};
    return dice / 2 % 2;
}

static void run_half(const gs_hook_choice *choice, const reference_bucket *bucket, gs_dtype dtype) {
    bool after = false;
    for (size_t i = 0; i < choice->num_numbers; i++) after |= choice->numbers[i].number != 0;
    reference_sum(bucket, dtype, after);
}

static void run_fp16(void **state, const gs_hook_choice *choice, const reference_bucket *bucket) {
    (void)state;
    run_half(choice, bucket, GS_FP16);
}

static void run_bf16(void **state, const gs_hook_choice *choice, const reference_bucket *bucket) {
    (void)state;
    run_half(choice, bucket, GS_BF16);
}

// 8 bits: an element comes back within a step, of which a range has 255.
static double step_of(const double *numbers, size_t count) {
    double lo = 0, hi = 0;
    for (size_t i = 0; i < count; i++) {
        lo = fmin(lo, numbers[i]);
        hi = fmax(hi, numbers[i]);
    }
    return 1.01 * (hi - lo) / 255;
}

static void add_steps(const reference_bucket *bucket, size_t row_count) {
    reference_sum(bucket, GS_DTYPE_UNSET, false);
    for (size_t first = 0, count; first < bucket->count; first += count) {
        count = bucket->count - first < row_count ? bucket->count - first : row_count;
        for (int r = 0; r < bucket->world_size; r++) {
            double step = fmax(step_of(bucket->in[r] + first, count), 0x1p-23) * bucket->scale;
            for (size_t i = first; i < first + count; i++) bucket->slack[i] += step;
        }
    }
}

static void run_int8(void **state, const gs_hook_choice *choice, const reference_bucket *bucket) {
    (void)state, (void)choice;
    add_steps(bucket, bucket->count);
}

static void run_int8_channel(void **state, const gs_hook_choice *choice,
                             const reference_bucket *bucket) {
    (void)state, (void)choice;
    add_steps(bucket, 512);
}

// One step, of the sum, in the parts that ranks own.
static void run_uint8_gather(void **state, const gs_hook_choice *choice,
                             const reference_bucket *bucket) {
    (void)state, (void)choice;
    size_t part = bucket->count / (size_t)bucket->world_size / 64 * 64;
    reference_sum(bucket, bucket->wire_dtype, false);
    if (bucket->world_size == 1 || part < 4096) return;
    for (size_t first = 0; first < part * (size_t)bucket->world_size; first += part) {
        double step = step_of(bucket->out + first, part);
        for (size_t i = first; i < first + part; i++) bucket->slack[i] = 1.01 * bucket->slack[i] + step;
    }
}

static const hook_reference allreduce = {"allreduce", true, draw_nothing, run_allreduce, NULL};
static const hook_reference fp16 = {"fp16", true, draw_division, run_fp16, NULL};
static const hook_reference bf16 = {"bf16", true, draw_division, run_bf16, NULL};

static const hook_reference int8 = {"int8", false, draw_nothing, run_int8, NULL};
static const hook_reference int8_channel = {"int8_channel", false, draw_nothing, run_int8_channel,
                                            NULL};
static const hook_reference uint8_gather = {"uint8_gather", false, draw_nothing, run_uint8_gather,
                                            NULL};

static const hook_reference *const references[] = {&allreduce,    &fp16,         &bf16, &int8,
                                                   &int8_channel, &uint8_gather, NULL};

const hook_reference *const *hook_references(void) {
    return references;
}

const hook_reference *hook_reference_find(const char *name) {
    for (size_t i = 0; references[i]; i++) {
        if (strcmp(references[i]->name, name) == 0) return references[i];
    }
    return NULL;
}
