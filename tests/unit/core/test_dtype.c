#include "core/dtype.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

static void names_read_back(void **state) {
    (void)state;
    for (int dtype = 1; dtype < GS_NUM_DTYPES; dtype++) {
        assert_int_equal(gs_dtype_from_name(gs_dtype_name((gs_dtype)dtype)), dtype);
        assert_true(gs_dtype_bytes((gs_dtype)dtype) > 0);
    }
    assert_int_equal(gs_dtype_from_name("fp8"), GS_DTYPE_UNSET);
    assert_int_equal(gs_dtype_bytes(GS_DTYPE_UNSET), 0);
}

static void every_half_survives_the_round_trip(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float wide = gs_fp16_to_fp32((uint16_t)bits);
        if (isnan(wide)) assert_true(isnan(gs_fp16_to_fp32(gs_fp32_to_fp16(wide))));
        else assert_int_equal(gs_fp32_to_fp16(wide), bits);
    }
}

static void every_bfloat_survives_the_round_trip(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float wide = gs_bf16_to_fp32((uint16_t)bits);
        if (isnan(wide)) assert_true(isnan(gs_bf16_to_fp32(gs_fp32_to_bf16(wide))));
        else assert_int_equal(gs_fp32_to_bf16(wide), bits);
    }
}

static void ties_go_to_even_and_overflow_to_infinity(void **state) {
    (void)state;
    assert_int_equal(gs_fp32_to_fp16(2049.0f), 0x6800);  // between 2048 and 2050
    assert_int_equal(gs_fp32_to_fp16(2051.0f), 0x6802);  // between 2050 and 2052
    assert_int_equal(gs_fp32_to_fp16(65519.996f), 0x7bff);
    assert_int_equal(gs_fp32_to_fp16(65520.0f), 0x7c00);
    assert_int_equal(gs_fp32_to_fp16(-INFINITY), 0xfc00);
    assert_int_equal(gs_fp32_to_fp16(0x1p-25f), 0);          // tie at half the least subnormal
    assert_int_equal(gs_fp32_to_fp16(0x1.000002p-25f), 1);   // just above it
    assert_int_equal(gs_fp32_to_bf16(1.00390625f), 0x3f80);  // 1 + 2^-8: tie to even
    assert_int_equal(gs_fp32_to_bf16(1.01171875f), 0x3f82);  // 1 + 3·2^-8: tie to even
    assert_int_equal(gs_fp32_to_bf16(3.4e38f), 0x7f80);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_read_back),
        cmocka_unit_test(every_half_survives_the_round_trip),
        cmocka_unit_test(every_bfloat_survives_the_round_trip),
        cmocka_unit_test(ties_go_to_even_and_overflow_to_infinity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
