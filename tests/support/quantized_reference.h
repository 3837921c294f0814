// What hooks of 8 bits have to leave of one bucket, to the bit: serial and plain. Numbers are doubles that hold what the
// bucket's dtype holds, and every operation is rounded to it.
#ifndef TESTS_SUPPORT_QUANTIZED_REFERENCE_H
#define TESTS_SUPPORT_QUANTIZED_REFERENCE_H

#include <stddef.h>

#include "core/dtype.h"

typedef struct quantized_reference {
    int world_size;
    gs_dtype dtype, wire_dtype;  // GS_FP32 or GS_FP64; unset, GS_FP16 or GS_BF16
    size_t count;                // padding included
    double scale;
    const double *const *grads;  // of each rank, (count); zeros between its members
} quantized_reference;

// A number as 16 bits.
double quantized_reference_sent(gs_dtype wire_dtype, double value);

// The plain sum in the order of ranks, scaled; with the wire dtype as if sent in it.
void quantized_reference_allreduce(double *out, const quantized_reference *bucket);
// row_count 0: "int8"; 512: "int8_channel".
void quantized_reference_int8(double *out, const quantized_reference *bucket, size_t row_count);
// `step`: NULL, or how far each element is from the next number that could have been sent; 0: it is exact.
void quantized_reference_uint8_gather(double *out, double *step, const quantized_reference *bucket);

#endif
