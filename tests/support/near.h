// Whether floating-point numbers are near each other: the one place where tests compare them.
//
// A number that is not finite is near nothing, unless the caller allows it and both are the same: a
// NaN must never pass for a gradient. (cmocka's assert_float_equal lets NaN and infinity pass for
// anything; tests/lint.cmake refuses it.) What fails a test instead of returning a status is in
// asserts.h.
#ifndef TESTS_SUPPORT_NEAR_H
#define TESTS_SUPPORT_NEAR_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

// Near: |got − wanted| ≤ absolute + relative·|wanted|. {0}: equal.
typedef struct gs_near {
    double absolute, relative;
    bool nonfinite;  // NaN is near NaN, and an infinity near the same one
} gs_near;

bool is_near(double got, double wanted, gs_near within);

// DATA_LOSS names `what`, both values and, in a list, the first element that is not near.
GS_NODISCARD gs_status check_near(const char *what, double got, double wanted, gs_near within);
GS_NODISCARD gs_status check_near_fp32(const char *what, const float *got, const float *wanted,
                                       size_t count, gs_near within);

// ‖got − wanted‖ / ‖wanted‖; infinite when one of them holds a NaN or an infinity.
double norm_distance(const float *got, const float *wanted, size_t count);

#endif
