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

double reference_real(gs_dtype dtype, double value) {
    return dtype == GS_FP64 ? value : (double)(float)value;
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

static const hook_reference allreduce = {"allreduce", true, draw_nothing, run_allreduce, NULL};
static const hook_reference fp16 = {"fp16", true, draw_division, run_fp16, NULL};
static const hook_reference bf16 = {"bf16", true, draw_division, run_bf16, NULL};

static const hook_reference *const references[] = {
    &allreduce, &fp16, &bf16, &topk_reference, &onebit_reference, &powersgd_reference,
    &batched_powersgd_reference, &int8_reference, &int8_channel_reference, &uint8_gather_reference, NULL};

const hook_reference *const *hook_references(void) {
    return references;
}

const hook_reference *hook_reference_find(const char *name) {
    for (size_t i = 0; references[i]; i++) {
        if (strcmp(references[i]->name, name) == 0) return references[i];
    }
    return NULL;
}
