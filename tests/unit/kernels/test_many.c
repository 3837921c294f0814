// Launches for many tensors are the single launches; masters in two halves are masters.
#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT ((size_t)20011)

static const gs_kernels *kernels_of(void **state) {
    return gs_device_kernels(*state);
}

static gs_adamw make_step(bool decoupled) {
    return (gs_adamw){.lr = 1e-2f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .grad_scale = 0.5f,
                      .correction1 = 0.19,
                      .correction2 = 0.0975,
                      .decoupled = decoupled};
}

// Splits and joins `count` patterns of bits.
static void assert_exact(void **state, const uint32_t *bits, size_t count) {
    float *master = malloc(count * sizeof *master), *back = malloc(count * sizeof *back);
    uint16_t *value = malloc(count * sizeof *value), *remainder = malloc(count * sizeof *remainder);
    memcpy(master, bits, count * sizeof *bits);
    kernels_of(state)->split_master(gs_device_stream(*state), value, remainder, master, count);
    kernels_of(state)->join_master(gs_device_stream(*state), back, value, remainder, count);
    assert_same_bits(back, bits, count * sizeof *bits);
    free(master);
    free(back);
    free(value);
    free(remainder);
}

// Every upper half with every lower half that rounds otherwise than its neighbour, and a stride through all.
static void halves_give_the_master_back(void **state) {
    static const uint16_t lower[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
    enum { NUM = sizeof lower / sizeof *lower };
    uint32_t *bits = malloc(65536 * NUM * sizeof *bits);
    for (uint32_t upper = 0; upper < 65536; upper++)
        for (uint32_t k = 0; k < NUM; k++) bits[upper * NUM + k] = upper << 16 | lower[k];
    assert_exact(state, bits, 65536 * NUM);
    for (uint32_t i = 0; i < 65536 * NUM; i++) bits[i] = i * 8191u + i / 7;
    assert_exact(state, bits, 65536 * NUM);
    free(bits);
}

static void the_value_is_the_nearest_bf16(void **state) {
    float *master = make_uniform(COUNT, 3, -2.0f, 2.0f), *value_fp32 = make_zeros(COUNT);
    uint16_t *value = malloc(COUNT * sizeof *value), *remainder = malloc(COUNT * sizeof *remainder);
    kernels_of(state)->split_master(gs_device_stream(*state), value, remainder, master, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        value_fp32[i] = gs_bf16_to_fp32(value[i]);
        assert_true(fabsf(value_fp32[i] - master[i]) <=
                    fabsf(gs_bf16_to_fp32(gs_fp32_to_bf16(master[i])) - master[i]));
    }
    free(master);
    free(value_fp32);
    free(value);
    free(remainder);
}

// Two parameters of different forms beside adamw on each; decay and corrections are the items' own.
static void adamw_many_is_adamw_on_each(void **state) {
    gs_stream *stream = gs_device_stream(*state);
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        float *param = make_uniform(COUNT, 1, -1, 1), *want = make_uniform(COUNT, 1, -1, 1);
        float *m = make_uniform(COUNT, 2, -1, 1), *want_m = make_uniform(COUNT, 2, -1, 1);
        float *v = make_uniform(COUNT, 3, 0, 1), *want_v = make_uniform(COUNT, 3, 0, 1);
        float *m2 = make_uniform(COUNT, 2, -1, 1), *v2 = make_uniform(COUNT, 3, 0, 1);
        float *grad = make_uniform(COUNT, 4, -1, 1), *joined = make_zeros(COUNT);
        uint16_t *value = calloc(3 * COUNT, sizeof *value), *remainder = value + COUNT;
        uint16_t *beside = remainder + COUNT;
        gs_adamw step = make_step(decoupled), own = step;
        own.weight_decay = 0.03f;
        own.correction1 = 0.5;
        own.correction2 = 0.25;
        kernels_of(state)->split_master(stream, value, remainder, param, COUNT);
        gs_adamw_item items[2] = {
            {.param = param, .value = beside, .m = m, .v = v, .grad = grad, .count = COUNT},
            {.value = value, .remainder = remainder, .m = m2, .v = v2, .grad = grad, .count = COUNT}};
        for (int i = 0; i < 2; i++) {
            items[i].weight_decay = own.weight_decay;
            items[i].correction1 = own.correction1;
            items[i].correction2 = own.correction2;
        }
        kernels_of(state)->adamw_many(stream, items, 2, &step);
        kernels_of(state)->adamw(stream, want, want_m, want_v, grad, &own, COUNT);
        kernels_of(state)->join_master(stream, joined, value, remainder, COUNT);
        assert_same_bits(param, want, COUNT * sizeof *want);
        assert_same_bits(joined, want, COUNT * sizeof *want);
        assert_same_bits(m, want_m, COUNT * sizeof *want);
        assert_same_bits(v, want_v, COUNT * sizeof *want);
        assert_same_bits(m2, want_m, COUNT * sizeof *want);
        assert_same_bits(v2, want_v, COUNT * sizeof *want);
        for (size_t i = 0; i < COUNT; i++) assert_int_equal(beside[i], gs_fp32_to_bf16(want[i]));
        assert_stream_ok(*state);
        float *const all[] = {param, want, m, want_m, v, want_v, m2, v2, grad, joined};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
        free(value);
    }
}

static void casts_and_sums_of_many_are_the_single_ones(void **state) {
    gs_stream *stream = gs_device_stream(*state);
    float *in = make_uniform(COUNT, 5, -3, 3);
    uint16_t *out = calloc(COUNT, sizeof *out), *want = calloc(COUNT, sizeof *want);
    double sums[2] = {-1, -1}, single = -1;
    gs_cast_item casts[] = {{out, in, 7}, {out + 7, in + 7, 0}, {out + 7, in + 7, COUNT - 7}};
    kernels_of(state)->cast_many(stream, casts, 3, GS_BF16, GS_FP32, 0.5f);
    kernels_of(state)->cast(stream, want, GS_BF16, in, GS_FP32, 0.5f, COUNT);
    assert_same_bits(out, want, COUNT * sizeof *out);
    gs_square_item squares[] = {{in, &sums[0], COUNT}, {in, &sums[1], 0}};
    kernels_of(state)->sum_squares_many(stream, squares, 2);
    kernels_of(state)->sum_squares(stream, &single, in, COUNT);
    assert_same_bits(&sums[0], &single, sizeof single);
    assert_true(sums[1] == 0.0);
    kernels_of(state)->cast_many(stream, casts, 1, GS_I32, GS_FP32, 1.0f);
    assert_stream_failed(*state, "not between float types");
    free(in);
    free(out);
    free(want);
}

static void means_add_up(void **state) {
    float values[] = {1, 2, 6};
    double sum = 10;
    kernels_of(state)->add_mean(gs_device_stream(*state), &sum, values, 3);
    assert_true(sum == 13.0);
    kernels_of(state)->add_mean(gs_device_stream(*state), &sum, values, 0);
    assert_true(sum == 13.0);
}

static void clear_takes_bytes(void **state) {
    unsigned char bytes[9];
    memset(bytes, 0xab, sizeof bytes);
    kernels_of(state)->clear(gs_device_stream(*state), bytes + 1, 7);
    assert_int_equal(bytes[0], 0xab);
    for (int i = 1; i < 8; i++) assert_int_equal(bytes[i], 0);
    assert_int_equal(bytes[8], 0xab);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_give_the_master_back),
        cmocka_unit_test(the_value_is_the_nearest_bf16),
        cmocka_unit_test(adamw_many_is_adamw_on_each),
        cmocka_unit_test(casts_and_sums_of_many_are_the_single_ones),
        cmocka_unit_test(means_add_up),
        cmocka_unit_test(clear_takes_bytes),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
