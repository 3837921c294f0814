// Every kernel gives the same bits on every instruction set and for every number of threads.
#include "tests/unit/kernels/kernel_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct setting {
    const char *isa;
    int num_threads;
} setting;

// Baseline with one thread is the reference; the others must agree.
static const setting settings[] = {{"baseline", 1}, {"baseline", 2}, {"baseline", 3},
                                   {"avx2", 1},     {"avx2", 2},     {"avx2", 3},
                                   {"avx512", 1},   {"avx512", 2},   {"avx512", 3}};
#define NUM_SETTINGS (sizeof settings / sizeof *settings)

// Inputs are the same for every setting; `out` is zeroed memory that is compared.
#define OUT_COUNT ((size_t)1 << 18)
#define IN_COUNT ((size_t)1 << 18)

typedef struct run {
    const gs_kernels *kernels;
    gs_stream *stream;
    const float *in, *positive;
    const int32_t *tokens;  // in [0, 50)
    float *out;
} run;

static bool open_setting(gs_device **device, setting chosen) {
    gs_device_options options = {.num_threads = chosen.num_threads, .isa = chosen.isa};
    gs_status status = gs_device_open(device, "cpu", &options);
    if (status.code == GS_INVALID_ARGUMENT) return false;  // not on this machine
    if (status.code) fail_msg("%s", status.message);
    return true;
}

static int32_t *make_tokens(size_t count) {
    int32_t *tokens = calloc(count, sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < count; i++) tokens[i] = (int32_t)(i * i % 50);
    return tokens;
}

static void assert_bits_agree(void (*body)(const run *job)) {
    float *in = make_uniform(IN_COUNT, 7, -3.0f, 3.0f);
    float *positive = make_uniform(IN_COUNT, 8, 0.1f, 2.0f);
    int32_t *tokens = make_tokens(1024);
    float *reference = make_zeros(OUT_COUNT), *out = make_zeros(OUT_COUNT);
    for (size_t i = 0; i < NUM_SETTINGS; i++) {
        gs_device *device;
        if (!open_setting(&device, settings[i])) continue;
        memset(out, 0, OUT_COUNT * sizeof *out);
        run job = {gs_device_kernels(device), gs_device_stream(device), in, positive, tokens,
                   i ? out : reference};
        body(&job);
        assert_stream_ok(device);
        if (i && memcmp(out, reference, OUT_COUNT * sizeof *out) != 0) {
            print_message("%s with %d threads\n", settings[i].isa, settings[i].num_threads);
            assert_same_bits(out, reference, OUT_COUNT * sizeof *out);
        }
        gs_device_close(device);
    }
    free(in);
    free(positive);
    free(tokens);
    free(reference);
    free(out);
}

// Larger than several chunks, and not a multiple of anything.
#define FLAT ((size_t)50021)

static void run_elementwise(const run *job) {
    const gs_kernels *k = job->kernels;
    float *out = job->out;
    k->fill(job->stream, out, 1.5f, FLAT);
    k->copy(job->stream, out + FLAT, job->in + 1, FLAT * sizeof *out);
    k->add(job->stream, out + 2 * FLAT, job->in, job->in + 3, FLAT);
    k->scale(job->stream, out + 3 * FLAT, job->in, 0.3f, FLAT);
    k->axpy(job->stream, out + 3 * FLAT + 5, job->in, 0.7f, FLAT);
}

static void run_sums(const run *job) {
    double squares;
    uint64_t nonfinite;
    for (size_t count = 0; count < 200; count += 13) {
        job->kernels->sum_squares(job->stream, &squares, job->in + 1, count);
        memcpy(job->out + 2 * count, &squares, sizeof squares);
    }
    job->kernels->sum_squares(job->stream, &squares, job->in, IN_COUNT - 1);
    memcpy(job->out + 500, &squares, sizeof squares);
    job->kernels->count_nonfinite(job->stream, &nonfinite, job->in, IN_COUNT);
    memcpy(job->out + 502, &nonfinite, sizeof nonfinite);
}

static void run_reduce(const run *job) {
    static const uint8_t tree[] = {0, 1, 0, 2, 0, 2};
    const void *inputs[8];
    float *out = job->out;
    for (int k = 0; k < 8; k++) inputs[k] = job->in + 1001 * k;
    for (int num_inputs = 1; num_inputs <= 8; num_inputs++) {
        for (int op = GS_OP_SUM; op <= GS_OP_MIN; op++) {
            void *outputs[] = {out};
            gs_reduction r = {.outputs = outputs,
                              .inputs = inputs,
                              .num_outputs = 1,
                              .num_inputs = num_inputs,
                              .dtype = GS_FP32,
                              .op = (gs_reduce_op)op,
                              .scale = 1.0 / 3,
                              .count = 1003};
            job->kernels->reduce(job->stream, &r);
            out += 1003;
        }
    }
    for (int dtype = GS_FP32; dtype <= GS_BF16; dtype++) {
        void *outputs[] = {out, out + 3000};
        gs_reduction r = {.outputs = outputs,
                          .inputs = inputs,
                          .num_outputs = 2,
                          .num_inputs = 6,
                          .merges = tree,
                          .dtype = (gs_dtype)dtype,
                          .scale = 0.4,
                          .count = 1003};
        job->kernels->reduce(job->stream, &r);
        out += 6000;
    }
    for (int way = 0; way < 4; way++) {
        void *outputs[] = {out, out + 3000};
        gs_reduction r = {.outputs = outputs,
                          .inputs = inputs,
                          .num_outputs = 2,
                          .num_inputs = 5,
                          .dtype = way % 2 ? GS_FP64 : GS_FP32,
                          .scale = 0.4,
                          .count = 1003,
                          .wire_dtype = way / 2 ? GS_FP16 : GS_BF16,
                          .wire_scale = 0.3f};
        job->kernels->reduce(job->stream, &r);
        out += 6000;
    }
}

static void run_cast(const run *job) {
    static const gs_dtype types[] = {GS_FP32, GS_FP64, GS_FP16, GS_BF16};
    char *out = (char *)job->out;
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 4; j++) {
            job->kernels->cast(job->stream, out, types[i], job->in, types[j], 0.37f, 5003);
            out += 5003 * 8;
        }
    }
}

static void run_matmul(const run *job) {
    for (int transposes = 0; transposes < 4; transposes++) {
        gs_matmul shape = {.transpose_a = transposes & 1,
                           .transpose_b = transposes & 2,
                           .m = 150,
                           .n = 401,
                           .k = 130,
                           .alpha = 0.5f,
                           .beta = 0.0f};
        job->kernels->matmul(job->stream, job->out + transposes * 60500, job->in, job->positive,
                             &shape);
    }
}

static void run_layers(const run *job) {
    const gs_kernels *k = job->kernels;
    const size_t rows = 203, cols = 271, count = rows * cols;
    float *out = job->out;
    memcpy(out, job->in, count * sizeof *out);
    k->bias_add(job->stream, out, job->positive, rows, cols);
    k->bias_gelu(job->stream, out + count, out, job->positive + cols, rows, cols);
    k->gelu_backward(job->stream, out + 2 * count, job->in, out, count);
    k->bias_backward(job->stream, out + 3 * count, job->in, rows, cols, true);
    k->relu(job->stream, out + 3 * count + cols, job->in, count / 4);
    k->relu_backward(job->stream, out + 3 * count + cols + count / 4, job->in, job->in + count / 4,
                     count / 4);
}

static void run_layernorm(const run *job) {
    const gs_kernels *k = job->kernels;
    const size_t rows = 201, cols = 131, count = rows * cols;
    float *out = job->out, *mean = out + 4 * count, *rstd = mean + rows;
    float *dweight = rstd + rows, *dbias = dweight + cols, *scratch = make_zeros(2 * 64 * cols);
    k->layernorm(job->stream, out, mean, rstd, job->in, job->positive, job->in, rows, cols);
    k->residual_layernorm(job->stream, out + count, out + 2 * count, mean, rstd, job->in,
                          job->positive, job->in + 7, job->positive, job->in, rows, cols);
    k->layernorm_backward(job->stream, out + 3 * count, dweight, dbias, scratch, job->in,
                          out + count, job->positive, mean, rstd, rows, cols, false);
    free(scratch);
}

static void run_embedding(const run *job) {
    const size_t batch = 3, positions = 67, channels = 261, count = batch * positions * channels;
    float *out = job->out;
    job->kernels->embedding(job->stream, out, job->tokens, job->in, job->positive, batch, positions,
                            channels, 50);
    job->kernels->embedding_backward(job->stream, out + count, out + 2 * count, job->in,
                                     job->tokens, batch, positions, channels, 50, true);
}

static void run_attention(const run *job) {
    const gs_attention shape = {.batch = 2, .positions = 131, .heads = 3, .head_channels = 20};
    const size_t count = 2 * 131 * 60;
    float *out = job->out, *logsumexp = out + count;
    job->kernels->attention(job->stream, out, logsumexp, job->in, &shape);
    job->kernels->attention_backward(job->stream, out + 2 * count, job->positive, job->in, out,
                                     logsumexp, &shape);
}

static void run_loss(const run *job) {
    const size_t rows = 151, classes = 777, stride = 784;
    float *logits = job->out, *losses = logits + rows * stride;
    int64_t num_correct[2];
    memcpy(logits, job->in, rows * stride * sizeof *logits);
    job->kernels->softmax_loss(job->stream, losses, logits, num_correct, job->tokens, rows, classes,
                               stride, 0.01f, false);
    job->kernels->softmax_loss(job->stream, losses + rows, logits, num_correct + 1, job->tokens,
                               rows, classes, stride, 0.01f, true);
    assert_same_bits(losses, losses + rows, rows * sizeof *losses);
    memcpy(losses + 2 * rows, num_correct, sizeof num_correct);
}

static void run_batchnorm(const run *job) {
    const gs_batchnorm shape = {.rows = 61, .channels = 151, .momentum = 0.1f, .eps = 1e-5f};
    const size_t count = 61 * 151, c = 151;
    float *out = job->out, *small = out + 4 * count;
    job->kernels->batchnorm(job->stream, out, small, small + c, small + 2 * c, small + 3 * c,
                            job->in, job->positive, job->in, job->in + 5, job->positive, &shape);
    job->kernels->batchnorm_eval(job->stream, out + count, job->in, job->positive, job->in,
                                 job->in + 5, job->positive, &shape);
    job->kernels->batchnorm_backward(job->stream, out + 2 * count, small + 4 * c, small + 5 * c,
                                     job->positive, job->in, job->positive, small, small + c,
                                     &shape, false);
}

// Each part's sums, and what is made of sums of three times as many rows.
static void run_batchnorm_parts(const run *job) {
    const gs_batchnorm shape = {.rows = 61, .channels = 151, .momentum = 0.1f, .eps = 1e-5f};
    const size_t count = 61 * 151, c = 151;
    float *out = job->out, *small = out + 2 * count;
    double *sums = (double *)(void *)(out + 3 * count + count % 2);
    job->kernels->batchnorm_measure(job->stream, sums, sums + c, job->in, &shape);
    job->kernels->batchnorm_apply(job->stream, out, small, small + c, small + 2 * c, small + 3 * c,
                                  job->in, job->positive, job->in, job->in + 5, job->positive, sums,
                                  sums + c, 183.0, &shape);
    job->kernels->batchnorm_sums(job->stream, sums + 2 * c, sums + 3 * c, small + 4 * c,
                                 small + 5 * c, job->positive, job->in, small, small + c, &shape,
                                 false);
    job->kernels->batchnorm_backward_apply(job->stream, out + count, job->positive, job->in,
                                           job->positive, small, small + c, sums + 2 * c,
                                           sums + 3 * c, 183.0, &shape);
}

static void run_adamw(const run *job) {
    gs_adamw step = {.lr = 1e-3f,
                     .beta1 = 0.9f,
                     .beta2 = 0.95f,
                     .eps = 1e-8f,
                     .weight_decay = 0.1f,
                     .grad_scale = 0.7f,
                     .correction1 = 0.19,
                     .correction2 = 0.0975,
                     .decoupled = true};
    float *param = job->out, *m = param + FLAT, *v = m + FLAT;
    memcpy(param, job->in, FLAT * sizeof *param);
    job->kernels->adamw(job->stream, param, m, v, job->in + 11, &step, FLAT);
    step.decoupled = false;
    job->kernels->adamw(job->stream, param, m, v, job->in + 13, &step, FLAT);
}

static void run_sgd(const run *job) {
    gs_sgd step = {.lr = 0.1f,
                   .momentum = 0.9f,
                   .dampening = 0.1f,
                   .weight_decay = 0.01f,
                   .grad_scale = 0.7f,
                   .first_step = true};
    float *param = job->out, *momentum = param + FLAT;
    memcpy(param, job->in, FLAT * sizeof *param);
    job->kernels->sgd(job->stream, param, momentum, job->in + 11, &step, FLAT);
    step.first_step = false;
    step.nesterov = true;
    job->kernels->sgd(job->stream, param, momentum, job->in + 13, &step, FLAT);
}

static void run_beside(const run *job) {
    enum { SMALL = FLAT / 2 };
    gs_adamw adamw = {.lr = 1e-3f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .grad_scale = 0.7f,
                      .correction1 = 0.19,
                      .correction2 = 0.0975};
    gs_sgd sgd = {.lr = 0.1f, .momentum = 0.9f, .dampening = 0.1f, .grad_scale = 0.7f};
    float *param = job->out, *was = param + SMALL, *m = was + SMALL, *v = m + SMALL;
    memcpy(param, job->in, SMALL * sizeof *param);
    job->kernels->adamw_beside(job->stream, param, was, m, v, job->in + 5, job->positive,
                               job->in + 11, &adamw, SMALL);
    job->kernels->sgd_beside(job->stream, param, v + SMALL, v + 2 * SMALL, m, job->in + 13, &sgd,
                             SMALL);
}

static void run_many(const run *job) {
    enum { HALVES = 40009 };
    gs_adamw step = {.lr = 1e-3f,
                     .beta1 = 0.9f,
                     .beta2 = 0.95f,
                     .eps = 1e-8f,
                     .grad_scale = 0.5f,
                     .decoupled = true};
    uint16_t *value = (uint16_t *)job->out, *remainder = value + HALVES + 1;
    float *m = job->out + HALVES + 1, *v = m + HALVES, *master = v + HALVES,
          *sums = master + HALVES;
    job->kernels->split_master(job->stream, value, remainder, job->in, HALVES);
    gs_adamw_item item = {.value = value,
                          .remainder = remainder,
                          .m = m,
                          .v = v,
                          .grad = job->in + 5,
                          .count = HALVES,
                          .weight_decay = 0.1f,
                          .correction1 = 0.1,
                          .correction2 = 0.05};
    job->kernels->adamw_many(job->stream, &item, 1, &step);
    job->kernels->join_master(job->stream, master, value, remainder, HALVES);
    double total[2] = {0.0, 0.0};
    gs_square_item square = {job->in, &total[0], HALVES};
    job->kernels->sum_squares_many(job->stream, &square, 1);
    job->kernels->add_mean(job->stream, &total[1], job->in, HALVES);
    const gs_grad_clip clip = {.max_norm = 0.7, .loss_scale = 3, .unscaling = 1.0f / 3};
    gs_grad_factor factor = {0};
    job->kernels->grad_factor(job->stream, &factor, total, 2, &clip);
    memcpy(sums, total, sizeof total);
    memcpy(sums + 4, &factor.value, sizeof factor.value);
    gs_stream_set_factor(job->stream, &factor);
    job->kernels->adamw_many(job->stream, &item, 1, &step);
    gs_stream_set_factor(job->stream, NULL);
    gs_cast_item cast = {sums + 5, job->in + 3, HALVES};
    job->kernels->cast_many(job->stream, &cast, 1, GS_FP16, GS_FP32, 0.5f);
    job->kernels->clear(job->stream, sums + 5, 1001);
}

// Numbers of either sign, kept segments and one that is cut; sums of two of them.
static void run_quantize(const run *job) {
    static const size_t segments[] = {512, 701, 200000};
    const size_t region = (size_t)1 << 17;
    uint8_t *out = (uint8_t *)job->out;
    for (size_t way = 0; way < 6; way++) {
        const bool is_wide = way >= 3;
        gs_quantized numbers = {.codes = out + way * region,
                                .scales = out + way * region + 100096,
                                .count = is_wide ? 31001 : 100003,
                                .segment_count = segments[way % 3],
                                .dtype = is_wide ? GS_FP64 : GS_FP32};
        job->kernels->quantize(job->stream, &numbers, job->in, 0x1p-23);
        numbers.count = 7001;
        if (way % 3 == 0)
            job->kernels->dequantize(job->stream, out + (is_wide ? 7 : 6) * region, &numbers, 2,
                                     2 * region, 0.3);
    }
}

#define BITS_AGREE(name)                                                                           \
    static void name##_bits_agree(void **state) {                                                  \
        (void)state;                                                                               \
        assert_bits_agree(run_##name);                                                             \
    }
BITS_AGREE(elementwise)
BITS_AGREE(sums)
BITS_AGREE(reduce)
BITS_AGREE(cast)
BITS_AGREE(matmul)
BITS_AGREE(layers)
BITS_AGREE(layernorm)
BITS_AGREE(embedding)
BITS_AGREE(attention)
BITS_AGREE(loss)
BITS_AGREE(batchnorm)
BITS_AGREE(batchnorm_parts)
BITS_AGREE(adamw)
BITS_AGREE(sgd)
BITS_AGREE(beside)
BITS_AGREE(many)
BITS_AGREE(quantize)

static void no_slot_is_empty(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_SETTINGS; i++) {
        gs_device *device;
        if (!open_setting(&device, settings[i])) continue;
        const gs_kernels *kernels = gs_device_kernels(device);
        void *const *slots = (void *const *)(const void *)kernels;
        for (size_t slot = 0; slot < sizeof *kernels / sizeof *slots; slot++) {
            assert_non_null(slots[slot]);
        }
        gs_device_close(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elementwise_bits_agree),
        cmocka_unit_test(sums_bits_agree),
        cmocka_unit_test(reduce_bits_agree),
        cmocka_unit_test(cast_bits_agree),
        cmocka_unit_test(matmul_bits_agree),
        cmocka_unit_test(layers_bits_agree),
        cmocka_unit_test(layernorm_bits_agree),
        cmocka_unit_test(embedding_bits_agree),
        cmocka_unit_test(attention_bits_agree),
        cmocka_unit_test(loss_bits_agree),
        cmocka_unit_test(batchnorm_parts_bits_agree),
        cmocka_unit_test(batchnorm_bits_agree),
        cmocka_unit_test(adamw_bits_agree),
        cmocka_unit_test(many_bits_agree),
        cmocka_unit_test(beside_bits_agree),
        cmocka_unit_test(quantize_bits_agree),
        cmocka_unit_test(sgd_bits_agree),
        cmocka_unit_test(no_slot_is_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
