// Gradients in 8 bits (quantized_reference.h). "int8" and "int8_channel" round what each rank has,
// which is known to the last bit, and so are codes; "uint8_gather" rounds a sum, and may take the
// next number.
#include <stdlib.h>

#include "tests/support/hook_reference.h"
#include "tests/support/quantized_reference.h"

#define ROW_COUNT 512

static quantized_reference numbers_of(const reference_bucket *bucket) {
    return (quantized_reference){.world_size = bucket->world_size,
                                 .dtype = bucket->dtype,
                                 .wire_dtype = bucket->wire_dtype,
                                 .count = bucket->count,
                                 .scale = bucket->scale,
                                 .grads = (const double *const *)bucket->in};
}

static void run_int8(void **state, const gs_hook_choice *choice, const reference_bucket *bucket) {
    const quantized_reference numbers = numbers_of(bucket);
    (void)state, (void)choice;
    if (bucket->count) quantized_reference_int8(bucket->out, &numbers, 0);
}

static void run_int8_channel(void **state, const gs_hook_choice *choice,
                             const reference_bucket *bucket) {
    const quantized_reference numbers = numbers_of(bucket);
    (void)state, (void)choice;
    quantized_reference_int8(bucket->out, &numbers, ROW_COUNT);
}

static void run_uint8_gather(void **state, const gs_hook_choice *choice,
                             const reference_bucket *bucket) {
    const quantized_reference numbers = numbers_of(bucket);
    double *steps = calloc(bucket->count + 1, sizeof *steps);
    (void)state, (void)choice;
    if (!steps) abort();
    reference_sum(bucket, bucket->wire_dtype, false);  // for its slack
    quantized_reference_uint8_gather(bucket->out, steps, &numbers);
    for (size_t i = 0; i < bucket->count; i++) bucket->slack[i] += 1.001 * steps[i];
    free(steps);
}

static size_t draw_nothing(gs_hook_number numbers[HOOK_REFERENCE_NUMBERS], uint64_t dice,
                           const reference_limits *limits) {
    (void)numbers, (void)dice, (void)limits;
    return 0;
}

const hook_reference int8_reference = {"int8", false, draw_nothing, run_int8, NULL};
const hook_reference int8_channel_reference = {"int8_channel", false, draw_nothing,
                                               run_int8_channel, NULL};
const hook_reference uint8_gather_reference = {"uint8_gather", false, draw_nothing,
                                               run_uint8_gather, NULL};
