// exp, log and GELU as branch-free arithmetic: gcc vectorises the loops that use them, and the bits
// are the same on every machine, which libm does not promise.
#ifndef KERNELS_CPU_MATH_H
#define KERNELS_CPU_MATH_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/isa.h"

// Within 2 units in the last place; 0 below -86.5, infinity above 88.72; NaN stays NaN.
// Cody–Waite reduction by ln 2 and the degree 5 polynomial of Cephes (Moshier).
GS_INLINE float exp_fp32(float x) {
    const float round_bias = 12582912.0f; // 1.5·2^23: adding it rounds to an integer
    float bounded = x < -86.5f ? -86.5f : x;
    bounded = bounded > 89.0f ? 89.0f : bounded;
    float biased = bounded * 1.44269504088896341f + round_bias;
    float whole = biased - round_bias;
    float rest = (bounded - whole * 0.693359375f) - whole * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * rest + 1.3981999507e-3f;
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    p = (p * (rest * rest) + rest) + 1.0f;
    // 2^(whole-1), then twice that: so 2^128 overflows where the result does and not before.
    uint32_t bits;
    memcpy(&bits, &biased, sizeof bits);
    bits = (bits - 0x4b400000u + 126u) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    float result = p * power * 2.0f;
    return x < -86.5f ? 0.0f : result;
}

// For rows, not for loops. x >= 0, normal; NaN and infinity pass through, 0 gives -infinity.
GS_INLINE double log_fp64(double x) {
    if (!(x > 0) || x > 1.7976931348623157e308) return x == 0 ? -1.0 / 0.0 : x;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull;
    double mantissa;
    memcpy(&mantissa, &bits, sizeof mantissa);
    if (mantissa > 1.4142135623730951) {
        mantissa *= 0.5;
        exponent++;
    }
    double s = (mantissa - 1.0) / (mantissa + 1.0), s2 = s * s, series = 0.0;
    for (int k = 21; k >= 3; k -= 2) series = (series + 1.0 / k) * s2;
    return 2.0 * s * (series + 1.0) + exponent * 0.69314718055994530942;
}

// GELU in the tanh form is x·σ(2u), u = √(2/π)·(x + 0.044715·x³). Beyond ±9 the sigmoid is 0 or 1
// to every digit and is taken at ±9, so that nothing overflows.
GS_INLINE float bound_gelu(float x) {
    float low = x < -9.0f ? -9.0f : x;
    return low > 9.0f ? 9.0f : low;
}

GS_INLINE float gelu_fp32(float x) {
    float b = bound_gelu(x);
    float e = exp_fp32(-1.5957691216057308f * (b + 0.044715f * (b * b * b)));
    return x / (1.0f + e);
}

// σ + x·σ·(1 − σ)·2u', with 1 − σ taken as e·σ: no cancellation for large x.
GS_INLINE float gelu_slope_fp32(float x) {
    float b = bound_gelu(x), square = b * b;
    float e = exp_fp32(-1.5957691216057308f * (b + 0.044715f * (square * b)));
    float sigmoid = 1.0f / (1.0f + e);
    float twice_slope = 1.5957691216057308f * (1.0f + 0.134145f * square);
    return sigmoid + b * sigmoid * (e * sigmoid) * twice_slope;
}

#endif
