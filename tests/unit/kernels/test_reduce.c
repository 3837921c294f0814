#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"

static void reduce(gs_device *device, const gs_reduction *reduction) {
    gs_device_kernels(device)->reduce(gs_device_stream(device), reduction);
}

// Inputs side by side in one allocation; inputs[k] points at the k-th.
static float *make_inputs(const void **inputs, int num_inputs, size_t count) {
    float *all = make_uniform((size_t)num_inputs * count, 11, -4, 4);
    for (int k = 0; k < num_inputs; k++) inputs[k] = all + (size_t)k * count;
    return all;
}

static void fp32_sums_fold_left_to_right(void **state) {
    static const size_t counts[] = {0, 1, 63, 64, 65, 1000};
    for (int num_inputs = 1; num_inputs <= 9; num_inputs++) {
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            size_t count = counts[c];
            const void *inputs[9];
            float *all = make_inputs(inputs, num_inputs, count);
            float *out = make_zeros(count + 1), *second = make_zeros(count + 1);
            void *outputs[] = {out, second};
            gs_reduction r = {.outputs = outputs,
                              .inputs = inputs,
                              .num_outputs = 2,
                              .num_inputs = num_inputs,
                              .dtype = GS_FP32,
                              .scale = 0.3,
                              .count = count};
            reduce(*state, &r);
            for (size_t i = 0; i < count; i++) {
                float want = all[i];
                for (int k = 1; k < num_inputs; k++) want += all[(size_t)k * count + i];
                assert_true(out[i] == want * 0.3f);
            }
            assert_same_bits(second, out, count * sizeof *out);
            assert_true(out[count] == 0.0f);
            free(all);
            free(out);
            free(second);
        }
    }
}

static void outputs_may_be_inputs(void **state) {
    const void *inputs[3];
    float *all = make_inputs(inputs, 3, 777), *want = make_zeros(777);
    for (size_t i = 0; i < 777; i++) want[i] = all[i] + all[777 + i] + all[1554 + i];
    void *outputs[] = {all, all + 777, all + 1554};
    gs_reduction r = {.outputs = outputs,
                      .inputs = inputs,
                      .num_outputs = 3,
                      .num_inputs = 3,
                      .dtype = GS_FP32,
                      .scale = 1,
                      .count = 777};
    reduce(*state, &r);
    for (int k = 0; k < 3; k++) assert_same_bits(outputs[k], want, 777 * sizeof *want);
    free(all);
    free(want);
}

static void merges_follow_the_tree(void **state) {
    // ((a + b) + (c + d)) + e in fp32 differs from the left fold for these numbers.
    static const uint8_t merges[] = {0, 1, 0, 2, 1};
    const void *inputs[5];
    float *all = make_inputs(inputs, 5, 200), *out = make_zeros(200);
    void *outputs[] = {out};
    gs_reduction r = {.outputs = outputs,
                      .inputs = inputs,
                      .num_outputs = 1,
                      .num_inputs = 5,
                      .merges = merges,
                      .dtype = GS_FP32,
                      .scale = 1,
                      .count = 200};
    reduce(*state, &r);
    for (size_t i = 0; i < 200; i++) {
        float want = ((all[i] + all[200 + i]) + (all[400 + i] + all[600 + i])) + all[800 + i];
        assert_true(out[i] == want);
    }
    free(all);
    free(out);
}

static void a_stack_of_all_inputs_fits(void **state) {
    uint8_t merges[GS_REDUCE_MAX_INPUTS] = {0};
    merges[GS_REDUCE_MAX_INPUTS - 1] = GS_REDUCE_MAX_INPUTS - 1;
    const void *inputs[GS_REDUCE_MAX_INPUTS];
    double one[70], out[70];
    for (size_t i = 0; i < 70; i++) one[i] = (double)i;
    for (int k = 0; k < GS_REDUCE_MAX_INPUTS; k++) inputs[k] = one;
    void *outputs[] = {out};
    gs_reduction r = {.outputs = outputs,
                      .inputs = inputs,
                      .num_outputs = 1,
                      .num_inputs = GS_REDUCE_MAX_INPUTS,
                      .merges = merges,
                      .dtype = GS_FP64,
                      .scale = 0.5,
                      .count = 70};
    reduce(*state, &r);
    for (size_t i = 0; i < 70; i++) assert_true(out[i] == 32.0 * (double)i);
}

static void fp64_keeps_all_digits_of_the_scale(void **state) {
    const double a[2] = {1.0, 3.0}, b[2] = {1.0 / 3.0, 0.1};
    const void *inputs[] = {a, b};
    double out[2];
    void *outputs[] = {out};
    gs_reduction r = {.outputs = outputs,
                      .inputs = inputs,
                      .num_outputs = 1,
                      .num_inputs = 2,
                      .dtype = GS_FP64,
                      .scale = 1.0 / 3.0,
                      .count = 2};
    reduce(*state, &r);
    for (int i = 0; i < 2; i++) assert_true(out[i] == (a[i] + b[i]) * (1.0 / 3.0));
}

static void sixteen_bit_types_round_once(void **state) {
    // 1 + 2^-8 is a tie that bf16 rounds back to 1, and 1 + 2^-11 one of fp16; two addends are not.
    uint16_t one = gs_fp32_to_bf16(1.0f), small = gs_fp32_to_bf16(0x1p-8f), out;
    const void *inputs[] = {&one, &small, &small};
    void *outputs[] = {&out};
    gs_reduction r = {.outputs = outputs,
                      .inputs = inputs,
                      .num_outputs = 1,
                      .num_inputs = 3,
                      .dtype = GS_BF16,
                      .scale = 1,
                      .count = 1};
    reduce(*state, &r);
    assert_true(gs_bf16_to_fp32(out) == 1.0f + 0x1p-7f);

    uint16_t half_one = gs_fp32_to_fp16(1.0f), half_small = gs_fp32_to_fp16(0x1p-11f);
    const void *halves[] = {&half_one, &half_small, &half_small};
    r.inputs = halves;
    r.dtype = GS_FP16;
    reduce(*state, &r);
    assert_true(gs_fp16_to_fp32(out) == 1.0f + 0x1p-10f);
}

static void halves_match_scalar_conversions(void **state) {
    enum { COUNT = 500 };
    float *a = make_uniform(COUNT, 21, -100, 100), *b = make_uniform(COUNT, 22, -1e-4f, 1e-4f);
    for (int type = 0; type < 2; type++) {
        uint16_t in[2][COUNT], out[COUNT];
        float (*widen_one)(uint16_t) = type ? gs_bf16_to_fp32 : gs_fp16_to_fp32;
        uint16_t (*narrow_one)(float) = type ? gs_fp32_to_bf16 : gs_fp32_to_fp16;
        for (size_t i = 0; i < COUNT; i++) {
            in[0][i] = narrow_one(a[i]);
            in[1][i] = narrow_one(b[i]);
        }
        const void *inputs[] = {in[0], in[1]};
        void *outputs[] = {out};
        gs_reduction r = {.outputs = outputs,
                          .inputs = inputs,
                          .num_outputs = 1,
                          .num_inputs = 2,
                          .dtype = type ? GS_BF16 : GS_FP16,
                          .scale = 0.5,
                          .count = COUNT};
        static const uint8_t merges[] = {0, 1};
        for (int with_merges = 0; with_merges < 2; with_merges++) {
            r.merges = with_merges ? merges : NULL;
            reduce(*state, &r);
            for (size_t i = 0; i < COUNT; i++) {
                float want = (widen_one(in[0][i]) + widen_one(in[1][i])) * 0.5f;
                assert_int_equal(out[i], narrow_one(want));
            }
        }
    }
    free(a);
    free(b);
}

static void integers_keep_every_bit(void **state) {
    int64_t a[3] = {INT64_MAX, -5, 1}, b[3] = {1, -6, INT64_C(1) << 53}, out[3];
    int32_t c[2] = {INT32_MIN, 7}, d[2] = {-1, -9}, small[2];
    const void *wide[] = {a, b}, *narrow[] = {c, d};
    void *outputs[] = {out}, *small_outputs[] = {small};
    gs_reduction r = {.outputs = outputs,
                      .inputs = wide,
                      .num_outputs = 1,
                      .num_inputs = 2,
                      .dtype = GS_I64,
                      .scale = 1,
                      .count = 3};
    reduce(*state, &r);
    assert_true(out[0] == INT64_MIN && out[1] == -11 && out[2] == (INT64_C(1) << 53) + 1);
    r.op = GS_OP_MAX;
    reduce(*state, &r);
    assert_true(out[0] == INT64_MAX && out[1] == -5 && out[2] == INT64_C(1) << 53);
    r = (gs_reduction){.outputs = small_outputs,
                       .inputs = narrow,
                       .num_outputs = 1,
                       .num_inputs = 2,
                       .dtype = GS_I32,
                       .op = GS_OP_MIN,
                       .scale = 1,
                       .count = 2};
    reduce(*state, &r);
    assert_true(small[0] == INT32_MIN && small[1] == -9);
}

static void nan_wins_every_operation(void **state) {
    float a[4] = {NAN, 1, INFINITY, -INFINITY}, b[4] = {1, NAN, 1, INFINITY}, out[4];
    const void *inputs[] = {a, b};
    void *outputs[] = {out};
    for (int op = GS_OP_SUM; op <= GS_OP_MIN; op++) {
        gs_reduction r = {.outputs = outputs,
                          .inputs = inputs,
                          .num_outputs = 1,
                          .num_inputs = 2,
                          .dtype = GS_FP32,
                          .op = (gs_reduce_op)op,
                          .scale = 1,
                          .count = 4};
        reduce(*state, &r);
        assert_true(isnan(out[0]) && isnan(out[1]));
        if (op == GS_OP_SUM) assert_true(isinf(out[2]) && isnan(out[3]));
        if (op == GS_OP_MAX) assert_true(out[2] == INFINITY && out[3] == INFINITY);
        if (op == GS_OP_MIN) assert_true(out[2] == 1.0f && out[3] == -INFINITY);
    }
}

// ---- wire dtypes

#define MOST_WIRE_INPUTS 11
#define MOST_WIRE_COUNT 1000

typedef struct wire_case {
    gs_dtype dtype, wire_dtype;
    int num_inputs;
    size_t count;
    float wire_scale;
    bool scale_after;
    double scale;
} wire_case;

// Every kind of number: ones that overflow the wire, or only in the sum; denormals of both types; ties;
// infinities of both signs, which sum to a NaN; NaNs.
static float draw_number(gs_random_key key, uint64_t i) {
    static const float specials[] = {0.0f,    -0.0f,     INFINITY, -INFINITY, NAN,     65504.0f,
                                     65519.9f, 65520.0f, 0x1p-24f, 0x1p-25f,  0x1p-133f, 3.4e38f,
                                     1.0f,    0x1.01p0f, 0x1.002p0f, -0x1p-149f};
    uint64_t bits = gs_random_u64(key, i);
    if (bits % 8 == 0) return specials[(bits >> 8) % 16];
    int exponent = (int)((bits >> 16) % 44) - 28;
    return ldexpf((float)((int64_t)(bits >> 40) - (1 << 23)), exponent - 23);
}

static void *make_wire_inputs(const void **inputs, const wire_case *c) {
    size_t bytes = gs_dtype_bytes(c->dtype);
    char *all = calloc((size_t)c->num_inputs * c->count + 1, bytes);
    assert_non_null(all);
    for (int k = 0; k < c->num_inputs; k++) {
        gs_random_key key = {.seed = 91, .stream = (uint64_t)k};
        char *input = all + (size_t)k * c->count * bytes;
        for (size_t i = 0; i < c->count; i++) {
            float value = draw_number(key, i);
            double wide = (double)value * (1.0 + 0x1p-30);
            if (c->dtype == GS_FP64)
                memcpy(input + i * bytes, &wide, bytes);
            else
                memcpy(input + i * bytes, &value, bytes);
        }
        inputs[k] = input;
    }
    return all;
}

// Cast, sum of 16 bits, cast: what the one pass has to equal.
static void sum_in_three_passes(gs_device *device, void *out, const void *const *inputs,
                                const wire_case *c) {
    static uint16_t wires[MOST_WIRE_INPUTS][MOST_WIRE_COUNT], sum[MOST_WIRE_COUNT];
    const gs_kernels *kernels = gs_device_kernels(device);
    const void *sent[MOST_WIRE_INPUTS];
    for (int k = 0; k < c->num_inputs; k++) {
        kernels->cast(gs_device_stream(device), wires[k], c->wire_dtype, inputs[k], c->dtype,
                      c->scale_after ? 1 : c->wire_scale, c->count);
        if (c->scale_after)
            kernels->cast(gs_device_stream(device), wires[k], c->wire_dtype, wires[k],
                          c->wire_dtype, c->wire_scale, c->count);
        sent[k] = wires[k];
    }
    void *outputs[] = {sum};
    gs_reduction r = {.outputs = outputs,
                      .inputs = sent,
                      .num_outputs = 1,
                      .num_inputs = c->num_inputs,
                      .dtype = c->wire_dtype,
                      .scale = c->scale,
                      .count = c->count};
    reduce(device, &r);
    kernels->cast(gs_device_stream(device), out, c->dtype, sum, c->wire_dtype, 1, c->count);
}

// Which NaN a sum of two leaves is the compiler's choice.
static void assert_same_numbers(const void *got, const void *want, const wire_case *c) {
    for (size_t i = 0; i < c->count; i++) {
        bool wide = c->dtype == GS_FP64;
        double value = wide ? ((const double *)got)[i] : (double)((const float *)got)[i];
        double wanted = wide ? ((const double *)want)[i] : (double)((const float *)want)[i];
        if (isnan(value) && isnan(wanted)) continue;
        if (memcmp(&value, &wanted, sizeof value) != 0)
            fail_msg("%s by %s, %d inputs: element %zu of %zu is %a, not %a",
                     gs_dtype_name(c->dtype), gs_dtype_name(c->wire_dtype), c->num_inputs, i,
                     c->count, value, wanted);
    }
}

static void check_wire_case(gs_device *device, const wire_case *c, bool in_place) {
    size_t bytes = c->count * gs_dtype_bytes(c->dtype);
    const void *inputs[MOST_WIRE_INPUTS];
    char *all = make_wire_inputs(inputs, c);
    double want[MOST_WIRE_COUNT], first[MOST_WIRE_COUNT + 1], second[MOST_WIRE_COUNT + 1];
    memset(first, 0x5a, sizeof first);
    memset(second, 0x5a, sizeof second);
    sum_in_three_passes(device, want, inputs, c);
    void *outputs[] = {in_place ? all : (void *)first, second};
    gs_reduction r = {.outputs = outputs,
                      .inputs = inputs,
                      .num_outputs = 2,
                      .num_inputs = c->num_inputs,
                      .dtype = c->dtype,
                      .scale = c->scale,
                      .count = c->count,
                      .wire_dtype = c->wire_dtype,
                      .wire_scale = c->wire_scale,
                      .wire_scale_after = c->scale_after};
    reduce(device, &r);
    assert_same_numbers(outputs[0], want, c);
    assert_same_numbers(second, want, c);
    unsigned char behind;
    memcpy(&behind, (char *)second + bytes, 1);
    assert_int_equal(behind, 0x5a);
    free(all);
}

static void check_wire_cases(gs_device *device) {
    static const gs_dtype dtypes[] = {GS_FP32, GS_FP64}, wires[] = {GS_FP16, GS_BF16};
    static const size_t counts[] = {0, 1, 7, 8, 9, 63, 64, 65, 127, 129, MOST_WIRE_COUNT};
    for (int way = 0; way < 12; way++) {
        for (int num_inputs = 1; num_inputs <= MOST_WIRE_INPUTS; num_inputs++) {
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                wire_case c = {.dtype = dtypes[way % 2],
                               .wire_dtype = wires[way / 2 % 2],
                               .num_inputs = num_inputs,
                               .count = counts[i],
                               .wire_scale = way / 4 ? 1.0f / 3.0f : 1.0f,
                               .scale_after = way / 4 == 2,
                               .scale = way / 4 ? 0.7 : 1.0};
                check_wire_case(device, &c, i % 2);
            }
        }
    }
    assert_stream_ok(device);
}

static void a_wire_dtype_is_cast_sum_and_cast_in_one(void **state) {
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    (void)state;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        gs_device *device;
        gs_device_options options = {.num_threads = 1, .isa = isas[i]};
        gs_status status = gs_device_open(&device, "cpu", &options);
        if (status.code == GS_INVALID_ARGUMENT) continue;  // not on this machine
        if (status.code) fail_msg("%s", status.message);
        check_wire_cases(device);
        gs_device_close(device);
    }
}

// Too much for fp16 before the division and not after it; the sum may overflow all the same.
static void what_overflows_the_wire_arrives_as_infinity(void **state) {
    float a[3] = {100000.0f, 100000.0f, 60000.0f}, b[3] = {-20.0f, 100000.0f, 60000.0f}, out[3];
    const void *inputs[] = {a, b};
    void *outputs[] = {out};
    gs_reduction r = {.outputs = outputs,
                      .inputs = inputs,
                      .num_outputs = 1,
                      .num_inputs = 2,
                      .dtype = GS_FP32,
                      .scale = 1,
                      .count = 3,
                      .wire_dtype = GS_FP16,
                      .wire_scale = 0.5f};
    reduce(*state, &r);
    assert_true(out[0] == 49984.0f && isinf(out[1]) && out[2] == 60000.0f);
    r.wire_scale_after = true;
    reduce(*state, &r);
    assert_true(isinf(out[0]) && isinf(out[1]) && out[2] == 60000.0f);
    r.wire_scale = 1;
    reduce(*state, &r);
    assert_true(isinf(out[0]) && isinf(out[1]) && isinf(out[2]));
}

static void misuse_fails_the_stream(void **state) {
    static const uint8_t too_many[] = {0, 2}, too_few[] = {0, 0};
    int32_t values[2] = {1, 2};
    const void *inputs[] = {values, values};
    void *outputs[] = {values};
    gs_reduction good = {.outputs = outputs,
                         .inputs = inputs,
                         .num_outputs = 1,
                         .num_inputs = 2,
                         .dtype = GS_I32,
                         .scale = 1,
                         .count = 1};
    gs_reduction r = good;
    r.scale = 0.5;
    reduce(*state, &r);
    assert_stream_failed(*state, "i32 takes no scale");
    r = good;
    r.dtype = GS_U8;
    reduce(*state, &r);
    assert_stream_failed(*state, "u8");
    r = good;
    r.num_inputs = 0;
    reduce(*state, &r);
    assert_stream_failed(*state, "0 inputs");
    r = good;
    r.merges = too_many;
    reduce(*state, &r);
    assert_stream_failed(*state, "merges");
    r.merges = too_few;
    reduce(*state, &r);
    assert_stream_failed(*state, "merges");
    r = good;
    r.wire_dtype = GS_FP16;
    reduce(*state, &r);
    assert_stream_failed(*state, "not for i32");
    r.dtype = GS_FP32;
    r.op = GS_OP_MAX;
    reduce(*state, &r);
    assert_stream_failed(*state, "operation 1");
    r.op = GS_OP_SUM;
    r.wire_dtype = GS_FP32;
    reduce(*state, &r);
    assert_stream_failed(*state, "wire dtype fp32");
    assert_int_equal(values[0], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_sums_fold_left_to_right),
        cmocka_unit_test(outputs_may_be_inputs),
        cmocka_unit_test(merges_follow_the_tree),
        cmocka_unit_test(a_stack_of_all_inputs_fits),
        cmocka_unit_test(fp64_keeps_all_digits_of_the_scale),
        cmocka_unit_test(sixteen_bit_types_round_once),
        cmocka_unit_test(halves_match_scalar_conversions),
        cmocka_unit_test(integers_keep_every_bit),
        cmocka_unit_test(nan_wins_every_operation),
        cmocka_unit_test(a_wire_dtype_is_cast_sum_and_cast_in_one),
        cmocka_unit_test(what_overflows_the_wire_arrives_as_infinity),
        cmocka_unit_test(misuse_fails_the_stream),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
