#include "tests/unit/kernels/kernel_test.h"

#include <math.h>
#include <stdlib.h>

typedef struct attention_fp64 {
    gs_attention shape;
    double *qkv, *dout, *out, *logsumexp;
    double *scores; // T, scratch
} attention_fp64;

static void attend_fp64(const attention_fp64 *a, size_t b, size_t h, size_t t) {
    const size_t T = a->shape.positions, NH = a->shape.heads, HS = a->shape.head_channels;
    const size_t C = NH * HS;
    const double *base = a->qkv + b * T * 3 * C + h * HS, *q = base + t * 3 * C;
    double largest = -INFINITY, sum = 0;
    for (size_t s = 0; s <= t; s++) {
        double score = 0;
        for (size_t i = 0; i < HS; i++) score += q[i] * base[s * 3 * C + C + i];
        a->scores[s] = score / sqrt((double)HS);
        if (a->scores[s] > largest) largest = a->scores[s];
    }
    for (size_t s = 0; s <= t; s++) sum += a->scores[s] = exp(a->scores[s] - largest);
    double *out = a->out + (b * T + t) * C + h * HS;
    for (size_t i = 0; i < HS; i++) {
        out[i] = 0;
        for (size_t s = 0; s <= t; s++) out[i] += a->scores[s] / sum * base[s * 3 * C + 2 * C + i];
    }
    a->logsumexp[(b * NH + h) * T + t] = largest + log(sum);
}

// Σ dout · attention(qkv)
static double attention_loss(void *ctx) {
    const attention_fp64 *a = ctx;
    for (size_t b = 0; b < a->shape.batch; b++) {
        for (size_t h = 0; h < a->shape.heads; h++) {
            for (size_t t = 0; t < a->shape.positions; t++) attend_fp64(a, b, h, t);
        }
    }
    double loss = 0;
    size_t count = a->shape.batch * a->shape.positions * a->shape.heads * a->shape.head_channels;
    for (size_t i = 0; i < count; i++) loss += a->dout[i] * a->out[i];
    return loss;
}

typedef struct fixture {
    size_t count, num_rows;
    float *qkv, *dout, *out, *logsumexp, *dqkv;
    attention_fp64 wide;
} fixture;

static fixture make_fixture(gs_attention shape, float range) {
    fixture f = {.num_rows = shape.batch * shape.heads * shape.positions};
    f.count = f.num_rows * shape.head_channels;
    f.qkv = make_uniform(3 * f.count, 1, -range, range);
    f.dout = make_uniform(f.count, 2, -1, 1);
    f.out = make_zeros(f.count);
    f.logsumexp = make_zeros(f.num_rows);
    f.dqkv = make_zeros(3 * f.count);
    for (size_t i = 0; i < 3 * f.count; i++) f.dqkv[i] = NAN; // all of it is overwritten
    f.wide = (attention_fp64){shape,
                              widen(f.qkv, 3 * f.count),
                              widen(f.dout, f.count),
                              widen(f.out, f.count),
                              widen(f.logsumexp, f.num_rows),
                              calloc(shape.positions + 1, sizeof(double))};
    return f;
}

static void release_fixture(fixture *f) {
    free(f->qkv);
    free(f->dout);
    free(f->out);
    free(f->logsumexp);
    free(f->dqkv);
    free(f->wide.qkv);
    free(f->wide.dout);
    free(f->wide.out);
    free(f->wide.logsumexp);
    free(f->wide.scores);
}

static void run_both(gs_device *device, fixture *f) {
    const gs_kernels *k = gs_device_kernels(device);
    k->attention(gs_device_stream(device), f->out, f->logsumexp, f->qkv, &f->wide.shape);
    k->attention_backward(gs_device_stream(device), f->dqkv, f->dout, f->qkv, f->out, f->logsumexp,
                          &f->wide.shape);
    assert_stream_ok(device);
}

static void forward_matches_fp64(void **state) {
    static const gs_attention shapes[] = {
        {1, 1, 1, 1},  {2, 1, 3, 5},    {1, 2, 1, 8},    {2, 17, 2, 33}, {1, 64, 2, 32},
        {1, 65, 1, 7}, {2, 130, 3, 16}, {1, 257, 1, 64}, {0, 4, 2, 8},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        fixture f = make_fixture(shapes[s], 2);
        run_both(*state, &f);
        attention_loss(&f.wide);
        assert_close(f.out, f.wide.out, f.count, 3e-6, 0);
        assert_close(f.logsumexp, f.wide.logsumexp, f.num_rows, 3e-6, 1e-6);
        release_fixture(&f);
    }
}

static void backward_matches_finite_differences(void **state) {
    static const gs_attention shapes[] = {
        {1, 1, 1, 1}, {1, 1, 2, 3}, {2, 3, 1, 5}, {1, 9, 2, 3}, {1, 70, 1, 3},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        fixture f = make_fixture(shapes[s], 1.5f);
        run_both(*state, &f);
        assert_gradient(f.dqkv, f.wide.qkv, 3 * f.count, attention_loss, &f.wide, 5e-6);
        release_fixture(&f);
    }
}

// Across three blocks of keys, a few elements of each of dq, dk and dv.
static void backward_crosses_blocks(void **state) {
    fixture f = make_fixture((gs_attention){1, 150, 2, 8}, 1.5f);
    run_both(*state, &f);
    for (size_t i = 0; i < 3 * f.count; i += 397) {
        assert_gradient(f.dqkv + i, f.wide.qkv + i, 1, attention_loss, &f.wide, 5e-6);
    }
    release_fixture(&f);
}

static void large_scores_do_not_overflow(void **state) {
    fixture f = make_fixture((gs_attention){1, 90, 1, 16}, 60);
    run_both(*state, &f);
    attention_loss(&f.wide);
    // Scores of thousands carry an fp32 error of 1e-3, so softmax does.
    assert_close(f.out, f.wide.out, f.count, 0.2, 0);
    for (size_t i = 0; i < 3 * f.count; i++) assert_true(isfinite(f.dqkv[i]));
    release_fixture(&f);
}

static void later_positions_change_nothing(void **state) {
    fixture f = make_fixture((gs_attention){1, 100, 1, 8}, 2);
    fixture g = make_fixture((gs_attention){1, 100, 1, 8}, 2);
    for (size_t i = 80 * 24; i < 100 * 24; i++) g.qkv[i] += 1.0f;
    run_both(*state, &f);
    run_both(*state, &g);
    assert_same_bits(f.out, g.out, 80 * 8 * sizeof *f.out);
    assert_true(f.out[80 * 8] != g.out[80 * 8]);
    release_fixture(&f);
    release_fixture(&g);
}

static void nan_is_not_hidden(void **state) {
    fixture f = make_fixture((gs_attention){1, 5, 1, 4}, 2);
    f.qkv[0] = NAN;
    run_both(*state, &f);
    assert_true(isnan(f.out[0]) && isnan(f.dqkv[0]));
    release_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_matches_fp64),
        cmocka_unit_test(backward_matches_finite_differences),
        cmocka_unit_test(backward_crosses_blocks),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(later_positions_change_nothing),
        cmocka_unit_test(nan_is_not_hidden),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
