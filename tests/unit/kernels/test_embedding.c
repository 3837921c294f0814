#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>

#define BATCH ((size_t)2)
#define POSITIONS ((size_t)3)
#define CHANNELS ((size_t)131)
#define VOCAB ((size_t)5)

static const int32_t tokens[BATCH * POSITIONS] = {4, 0, 4, 4, 2, 0};

static void forward_adds_token_and_position(void **state) {
    float *wte = make_uniform(VOCAB * CHANNELS, 1, -1, 1);
    float *wpe = make_uniform(POSITIONS * CHANNELS, 2, -1, 1);
    float *out = make_zeros(BATCH * POSITIONS * CHANNELS);
    gs_device_kernels(*state)->embedding(gs_device_stream(*state), out, tokens, wte, wpe, BATCH,
                                         POSITIONS, CHANNELS, VOCAB);
    for (size_t i = 0; i < BATCH * POSITIONS * CHANNELS; i++) {
        size_t row = i / CHANNELS, c = i % CHANNELS;
        assert_true(out[i] ==
                    wte[(size_t)tokens[row] * CHANNELS + c] + wpe[row % POSITIONS * CHANNELS + c]);
    }
    free(wte);
    free(wpe);
    free(out);
}

static void backward_adds_tokens_and_sums_positions(void **state) {
    float *dout = make_uniform(BATCH * POSITIONS * CHANNELS, 3, -1, 1);
    float *dwte = make_uniform(VOCAB * CHANNELS, 4, -1, 1);
    float *dwpe = make_zeros(POSITIONS * CHANNELS);
    double *want_wte = widen(dwte, VOCAB * CHANNELS), *want_wpe = widen(dwpe, POSITIONS * CHANNELS);
    for (size_t i = 0; i < POSITIONS * CHANNELS; i++) dwpe[i] = NAN;
    for (size_t i = 0; i < BATCH * POSITIONS * CHANNELS; i++) {
        size_t row = i / CHANNELS, c = i % CHANNELS;
        want_wte[(size_t)tokens[row] * CHANNELS + c] += (double)dout[i];
        want_wpe[row % POSITIONS * CHANNELS + c] += (double)dout[i];
    }
    gs_device_kernels(*state)->embedding_backward(gs_device_stream(*state), dwte, dwpe, dout,
                                                  tokens, BATCH, POSITIONS, CHANNELS, VOCAB, false);
    assert_stream_ok(*state);
    assert_close(dwte, want_wte, VOCAB * CHANNELS, 1e-6, 0);
    assert_close(dwpe, want_wpe, POSITIONS * CHANNELS, 1e-6, 0);
    gs_device_kernels(*state)->embedding_backward(gs_device_stream(*state), dwte, dwpe, dout,
                                                  tokens, BATCH, POSITIONS, CHANNELS, VOCAB, true);
    for (size_t i = 0; i < POSITIONS * CHANNELS; i++) want_wpe[i] *= 2;
    assert_close(dwpe, want_wpe, POSITIONS * CHANNELS, 1e-6, 0);
    free(dout);
    free(dwte);
    free(dwpe);
    free(want_wte);
    free(want_wpe);
}

static void tokens_outside_the_vocabulary_fail_the_stream(void **state) {
    const int32_t bad[] = {0, 5}, negative[] = {-1, 0};
    float memory[64] = {0}, out[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    const gs_kernels *k = gs_device_kernels(*state);
    k->embedding_backward(gs_device_stream(*state), memory, memory + 32, memory, bad, 1, 2, 4, 5,
                          true);
    assert_stream_failed(*state, "row 1: token 5");
    k->embedding(gs_device_stream(*state), out, bad, memory, memory, 1, 2, 4, 5);
    assert_stream_failed(*state, "row 1: token 5 is not in [0, 5)");
    k->embedding(gs_device_stream(*state), out, negative, memory, memory, 1, 2, 4, 5);
    assert_stream_failed(*state, "row 0: token -1");
    for (int i = 0; i < 8; i++) assert_true(out[i] == 7);
}

// The rows of distinct tokens, each summed in the order of positions, put where they belong: what the
// dense kernel gives, to the bit.
static void rows_of_distinct_tokens_are_the_dense_gradient(void **state) {
    const gs_kernels *k = gs_device_kernels(*state);
    gs_stream *stream = gs_device_stream(*state);
    const int32_t distinct[] = {0, 2, 4}, place_of[] = {2, 0, 2, 2, 1, 0};
    float *dout = make_uniform(BATCH * POSITIONS * CHANNELS, 3, -1, 1);
    float *dense = make_zeros(VOCAB * CHANNELS), *from_rows = make_zeros(VOCAB * CHANNELS);
    float *rows = make_zeros(3 * CHANNELS);
    float *dwpe = make_zeros(POSITIONS * CHANNELS), *alone = make_zeros(POSITIONS * CHANNELS);
    k->embedding_backward(stream, dense, dwpe, dout, tokens, BATCH, POSITIONS, CHANNELS, VOCAB,
                          false);
    k->embedding_backward(stream, NULL, alone, dout, tokens, BATCH, POSITIONS, CHANNELS, VOCAB,
                          false);
    k->add_rows(stream, rows, place_of, dout, BATCH * POSITIONS, CHANNELS);
    k->add_rows(stream, from_rows, distinct, rows, 3, CHANNELS);
    k->add_rows(stream, from_rows, distinct, rows, 0, CHANNELS);
    assert_stream_ok(*state);
    assert_same_bits(from_rows, dense, VOCAB * CHANNELS * sizeof(float));
    assert_same_bits(alone, dwpe, POSITIONS * CHANNELS * sizeof(float));
    free(dout);
    free(dense);
    free(from_rows);
    free(rows);
    free(dwpe);
    free(alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_adds_token_and_position),
        cmocka_unit_test(backward_adds_tokens_and_sums_positions),
        cmocka_unit_test(rows_of_distinct_tokens_are_the_dense_gradient),
        cmocka_unit_test(tokens_outside_the_vocabulary_fail_the_stream),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
