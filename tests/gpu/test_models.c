// The models on a GPU: GPT-2 against the golden vectors, 16 bits and the classifier against the same model on
// the CPU, and what a pass promises to a graph: nothing allocated, nothing waited for, the same bits again.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/random.h"
#include "tests/support/near.h"
#include "tests/support/test_device.h"
#include "rpc/checkpoint/safetensors.h"
#include "worker/models/registry.h"
#ifdef GRADSYNC_CUDA_SIM
#include "machine.h"
#endif

#define MAX_PARAMS 64
#define WAIT_SECONDS 60.0
#define GOLDEN GRADSYNC_SOURCE_DIR "/tests/golden/gpt2_tiny.safetensors"

static void must(gs_status status) {
    if (status.code) fail_msg("%s", status.message);
}

// A model with memory of its own on a device; the host's copies are those of the last upload or download.
typedef struct subject {
    gs_device *device;
    gs_model model;
    const gs_model_param *list;
    size_t num_params, num_buffers, count;
    size_t offsets[MAX_PARAMS + 1];
    float *host_values, *host_grads;  // flat
    void *params[MAX_PARAMS];         // device memory, of the model's type
    void *grads[MAX_PARAMS];
    void *buffers[MAX_PARAMS], *next_buffers[MAX_PARAMS];
    float *grad_memory;
    void *value_memory;
    int32_t *tokens, *targets;  // device memory
    float *features;
    double *loss_sum;  // pinned
    gs_batch batch;
} subject;

static void *device_memory(subject *s, size_t bytes) {
    void *memory;
    must(gs_device_alloc(s->device, &memory, bytes ? bytes : 1));
    return memory;
}

static void lay_out(subject *s) {
    s->list = s->model.ops->params(s->model.state, &s->num_params);
    assert_in_range(s->num_params, 1, MAX_PARAMS);
    for (size_t i = 0; i < s->num_params; i++) {
        s->offsets[i] = s->count;
        s->count += (gs_param_spec_count(&s->list[i].spec) + 15) / 16 * 16;
    }
    s->offsets[s->num_params] = s->count;
    s->host_values = calloc(s->count, sizeof(float));
    s->host_grads = calloc(s->count, sizeof(float));
    s->value_memory = device_memory(s, s->count * sizeof(float));
    s->grad_memory = device_memory(s, s->count * sizeof(float));
    size_t element_bytes = gs_dtype_bytes(s->model.dtype);
    for (size_t i = 0; i < s->num_params; i++) {
        s->params[i] = (char *)s->value_memory + s->offsets[i] * element_bytes;
        s->grads[i] = s->grad_memory + s->offsets[i];
    }
    const gs_param_spec *buffers = s->model.ops->buffers(s->model.state, &s->num_buffers);
    for (size_t i = 0; i < s->num_buffers; i++) {
        s->buffers[i] = device_memory(s, gs_param_spec_bytes(&buffers[i]));
        s->next_buffers[i] = device_memory(s, gs_param_spec_bytes(&buffers[i]));
    }
    void *pinned;
    must(gs_device_alloc_pinned(s->device, &pinned, sizeof *s->loss_sum));
    s->loss_sum = pinned;
}

static void open_gpt2(subject *s, const char *device, gs_gpt2_options options, gs_dtype dtype) {
    *s = (subject){0};
    gs_device_options device_options = {.num_threads = 1};
    must(gs_device_open(&s->device, device, &device_options));
    options.dtype = dtype;
    must(gs_gpt2_create(&s->model, &options, s->device));
    lay_out(s);
}

static void close_subject(subject *s) {
    gs_model_destroy(&s->model);
    for (size_t i = 0; i < s->num_buffers; i++) {
        gs_device_free(s->device, s->buffers[i]);
        gs_device_free(s->device, s->next_buffers[i]);
    }
    gs_device_free(s->device, s->value_memory);
    gs_device_free(s->device, s->grad_memory);
    gs_device_free(s->device, s->tokens);
    gs_device_free(s->device, s->targets);
    gs_device_free(s->device, s->features);
    gs_device_free_pinned(s->device, s->loss_sum);
    gs_device_close(s->device);
    free(s->host_values);
    free(s->host_grads);
}

// What 16 bits can hold, so that models of all types start from the same values.
static float round_to(gs_dtype dtype, float value) {
    if (dtype == GS_BF16) return gs_bf16_to_fp32(gs_fp32_to_bf16(value));
    return dtype == GS_FP16 ? gs_fp16_to_fp32(gs_fp32_to_fp16(value)) : value;
}

static void draw_values(subject *s, gs_dtype dtype) {
    for (size_t i = 0; i < s->num_params; i++) {
        const gs_param_spec *spec = &s->list[i].spec;
        float *values = s->host_values + s->offsets[i];
        size_t count = gs_param_spec_count(spec);
        bool scales = spec->num_dims == 1 && !strstr(spec->name, ".bias");
        gs_random_fill_normal(values, count, (gs_random_key){5, i}, 0, scales ? 1.0f : 0.0f, 0.1f);
        for (size_t k = 0; k < count; k++) values[k] = round_to(dtype, values[k]);
    }
}

static void upload_values(subject *s) {
    gs_dtype dtype = s->model.dtype;
    if (gs_dtype_bytes(dtype) == sizeof(float)) {
        must(gs_device_upload(s->device, s->value_memory, s->host_values, s->count * sizeof(float)));
        return;
    }
    uint16_t *half = calloc(s->count, sizeof *half);
    for (size_t i = 0; i < s->count; i++)
        half[i] = dtype == GS_BF16 ? gs_fp32_to_bf16(s->host_values[i])
                                   : gs_fp32_to_fp16(s->host_values[i]);
    must(gs_device_upload(s->device, s->value_memory, half, s->count * sizeof *half));
    free(half);
}

static void *upload_new(subject *s, const void *host, size_t bytes) {
    void *memory = device_memory(s, bytes);
    must(gs_device_upload(s->device, memory, host, bytes));
    return memory;
}

static void set_tokens(subject *s, const int32_t *tokens, const int32_t *targets, size_t rows,
                       size_t positions) {
    s->tokens = upload_new(s, tokens, rows * positions * sizeof *tokens);
    s->targets = upload_new(s, targets, rows * positions * sizeof *targets);
    s->batch = (gs_batch){
        .rows = rows, .positions = positions, .tokens = s->tokens, .targets = s->targets};
}

static void draw_tokens(subject *s, size_t rows, size_t positions, uint64_t vocab) {
    int32_t tokens[256], targets[256];
    assert_in_range(rows * positions, 1, 256);
    for (size_t i = 0; i < rows * positions; i++) {
        tokens[i] = (int32_t)(gs_random_u64((gs_random_key){7, 1}, i) % vocab);
        targets[i] = (int32_t)(gs_random_u64((gs_random_key){7, 2}, i) % vocab);
    }
    set_tokens(s, tokens, targets, rows, positions);
}

static gs_model_pass pass_of(subject *s) {
    return (gs_model_pass){.batch = &s->batch,
                           .training = true,
                           .params = s->params,
                           .buffers = (const void *const *)s->buffers,
                           .next_buffers = s->next_buffers,
                           .grads = s->grads,
                           .grad_factor = 0.5f};
}

static void download_grads(subject *s) {
    must(gs_stream_wait(gs_device_stream(s->device), gs_deadline_in_seconds(WAIT_SECONDS)));
    must(gs_device_download(s->device, s->host_grads, s->grad_memory, s->count * sizeof(float)));
}

static double train(subject *s, gs_model_pass *pass) {
    must(s->model.ops->forward(s->model.state, pass));
    must(s->model.ops->backward(s->model.state, pass));
    download_grads(s);
    return pass->loss;
}

static void assert_gradients_near(const subject *got, const subject *wanted, double bound) {
    for (size_t i = 0; i < wanted->num_params; i++) {
        size_t at = wanted->offsets[i], count = gs_param_spec_count(&wanted->list[i].spec);
        double distance = norm_distance(got->host_grads + at, wanted->host_grads + at, count);
        if (!(distance <= bound))
            fail_msg("%s: the gradient is off by %g of its norm", wanted->list[i].spec.name,
                     distance);
    }
}

// ---- the golden vectors

static int64_t setting_of(const gs_safetensors *file, const char *key) {
    const char *text = gs_safetensors_metadata(file, key);
    assert_non_null(text);
    return strtoll(text, NULL, 10);
}

static const gs_safetensor *tensor_of(const gs_safetensors *file, const char *kind,
                                      const char *name) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", kind, name);
    const gs_safetensor *tensor = gs_safetensors_find(file, full);
    if (!tensor) fail_msg("no tensor %s", full);
    return tensor;
}

static void compare_golden_grads(const subject *s, const gs_safetensors *file) {
    for (size_t i = 0; i < s->num_params; i++) {
        const gs_safetensor *tensor = tensor_of(file, "grad.", s->list[i].spec.name);
        size_t count = tensor->bytes / sizeof(float);
        float *wanted = malloc(tensor->bytes);
        memcpy(wanted, tensor->data, tensor->bytes);
        double largest = 0.0;
        for (size_t k = 0; k < count; k++) largest = fmax(largest, fabs((double)wanted[k]));
        for (size_t k = 0; k < count; k++) {
            double apart = fabs((double)s->host_grads[s->offsets[i] + k] - (double)wanted[k]);
            if (!(apart <= 1e-6 + 1e-5 * largest))
                fail_msg("%s: element %zu is off by %g of %g", s->list[i].spec.name, k, apart,
                         largest);
        }
        free(wanted);
    }
}

static void gpt2_in_fp32_gives_the_golden_loss_and_gradients(void **state) {
    (void)state;
    gs_safetensors *file;
    must(gs_safetensors_load(&file, GOLDEN));
    const size_t rows = (size_t)setting_of(file, "batch"), T = (size_t)setting_of(file, "T");
    gs_gpt2_options options = {.layers = setting_of(file, "layers"),
                               .heads = setting_of(file, "heads"),
                               .channels = setting_of(file, "channels"),
                               .context = (int64_t)T,
                               .vocab = setting_of(file, "vocab"),
                               .micro_batch = (int64_t)rows};
    subject s;
    open_gpt2(&s, "cuda:0", options, GS_FP32);
    for (size_t i = 0; i < s.num_params; i++) {
        const gs_safetensor *tensor = tensor_of(file, "param.", s.list[i].spec.name);
        assert_int_equal(tensor->bytes, gs_param_spec_bytes(&s.list[i].spec));
        memcpy(s.host_values + s.offsets[i], tensor->data, tensor->bytes);
    }
    upload_values(&s);
    int32_t tokens[256], targets[256];
    assert_in_range(rows * T, 1, 256);
    memcpy(tokens, tensor_of(file, "tokens", "")->data, rows * T * sizeof *tokens);
    memcpy(targets, tensor_of(file, "targets", "")->data, rows * T * sizeof *targets);
    set_tokens(&s, tokens, targets, rows, T);
    gs_model_pass pass = pass_of(&s);
    pass.grad_factor = 1.0f;
    float wanted;
    memcpy(&wanted, tensor_of(file, "loss", "")->data, sizeof wanted);
    assert_true(fabs(train(&s, &pass) - (double)wanted) < 1e-5);
    compare_golden_grads(&s, file);
    close_subject(&s);
    gs_safetensors_close(file);
}

// ---- against the CPU

static const gs_gpt2_options odd = {
    .layers = 2, .heads = 3, .channels = 15, .context = 9, .vocab = 37, .micro_batch = 4};
// Aligned for tensor cores.
static const gs_gpt2_options even = {
    .layers = 2, .heads = 2, .channels = 64, .context = 24, .vocab = 128, .micro_batch = 4};

static double bound_of(gs_dtype dtype) {
    if (dtype == GS_FP32) return 1e-4;
    return dtype == GS_BF16 ? 3e-2 : 4e-3;
}

static void compare_with_cpu(gs_gpt2_options options, gs_dtype dtype, size_t positions) {
    static const char *const devices[] = {"cpu", "cuda:0"};
    subject s[2];
    double losses[2];
    for (int i = 0; i < 2; i++) {
        open_gpt2(&s[i], devices[i], options, dtype);
        draw_values(&s[i], dtype);
        upload_values(&s[i]);
        draw_tokens(&s[i], 3, positions, (uint64_t)options.vocab);
        gs_model_pass pass = pass_of(&s[i]);
        pass.step = 1;
        losses[i] = train(&s[i], &pass);
        pass.accumulate = true;
        train(&s[i], &pass);
    }
    assert_true(fabs(losses[1] - losses[0]) < 0.1 * bound_of(dtype) * losses[0]);
    assert_gradients_near(&s[1], &s[0], bound_of(dtype));
    close_subject(&s[0]);
    close_subject(&s[1]);
}

// kernels/choice.h
static void gpt2_is_that_of_the_cpu_in_other_ways_too(void **state) {
    (void)state;
    static const char *const variables[] = {"GRADSYNC_CUDA_SHARED_LOSS_ROWS",
                                            "GRADSYNC_CUDA_RESIDUAL_IN_PRODUCT",
                                            "GRADSYNC_CUDA_BIAS_GRAD_IN_PRODUCT"};
    setenv("GRADSYNC_MATMUL_TIMING", "0", 1);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) setenv(variables[i], "1", 1);
    compare_with_cpu(even, GS_BF16, 20);
    compare_with_cpu(odd, GS_FP16, 9);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    unsetenv("GRADSYNC_MATMUL_TIMING");
}

static void gpt2_of_each_type_is_that_of_the_cpu(void **state) {
    (void)state;
    const gs_dtype types[] = {GS_FP32, GS_BF16, GS_FP16};
    for (size_t i = 0; i < 3; i++) {
        gs_gpt2_options dropping = odd;
        dropping.layers = 4;
        dropping.layer_drop = 0.5;
        compare_with_cpu(odd, types[i], 9);
        compare_with_cpu(even, types[i], 20);
        compare_with_cpu(dropping, types[i], 5);
    }
}

static void predictions_are_those_of_the_cpu(void **state) {
    (void)state;
    const gs_dtype types[] = {GS_FP32, GS_BF16, GS_FP16};
    for (size_t i = 0; i < 3; i++) {
        float first[3 * 37];
        static const char *const devices[] = {"cpu", "cuda:0"};
        for (int d = 0; d < 2; d++) {
            subject s;
            open_gpt2(&s, devices[d], odd, types[i]);
            draw_values(&s, types[i]);
            upload_values(&s);
            draw_tokens(&s, 3, 7, 37);
            gs_model_pass pass = pass_of(&s);
            const float *logits;
            size_t classes;
            must(s.model.ops->predict(s.model.state, &pass, &logits, &classes));
            assert_int_equal(classes, 37);
            if (d == 0) memcpy(first, logits, sizeof first);
            else
                assert_true(norm_distance(logits, first, 3 * 37) < bound_of(types[i]));
            close_subject(&s);
        }
    }
}

// ---- the classifier

static const int64_t dims[] = {11, 13, 7, 5};
#define MLP_ROWS ((size_t)16)

static void open_mlp(subject *s, const char *device, bool batch_norm) {
    *s = (subject){0};
    gs_device_options device_options = {.num_threads = 1};
    gs_mlp_options options = {
        .dims = dims, .num_dims = 4, .batch_norm = batch_norm, .micro_batch = MLP_ROWS};
    must(gs_device_open(&s->device, device, &device_options));
    must(gs_mlp_create(&s->model, &options, s->device));
    lay_out(s);
    must(s->model.ops->init(s->model.state, s->params, s->buffers, 3));
    float features[MLP_ROWS * 11];
    int32_t targets[MLP_ROWS];
    gs_random_fill_normal(features, MLP_ROWS * 11, (gs_random_key){5, 1}, 0, 0.0f, 1.0f);
    for (size_t i = 0; i < MLP_ROWS; i++)
        targets[i] = (int32_t)(gs_random_u64((gs_random_key){5, 2}, i) % 5);
    s->features = upload_new(s, features, sizeof features);
    s->targets = upload_new(s, targets, sizeof targets);
    s->batch = (gs_batch){.rows = MLP_ROWS,
                          .positions = 1,
                          .row_features = 11,
                          .features = s->features,
                          .targets = s->targets};
}

// A sum over one rank.
static gs_status combine_alone(void *ctx, double *rows, double *mean, double *m2, size_t channels) {
    (void)rows, (void)mean, (void)m2, (void)channels;
    ++*(int *)ctx;
    return gs_ok();
}

static gs_status sum_alone(void *ctx, double *values, size_t count) {
    (void)values, (void)count;
    ++*(int *)ctx;
    return gs_ok();
}

static void compare_buffers(subject *got, subject *wanted) {
    size_t num_buffers;
    const gs_param_spec *specs = got->model.ops->buffers(got->model.state, &num_buffers);
    for (size_t i = 0; i < num_buffers; i++) {
        float a[16], b[16];
        size_t bytes = gs_param_spec_bytes(&specs[i]);
        assert_in_range(bytes, 1, sizeof a);
        must(gs_device_download(got->device, a, got->next_buffers[i], bytes));
        must(gs_device_download(wanted->device, b, wanted->next_buffers[i], bytes));
        if (specs[i].dtype == GS_I64) assert_memory_equal(a, b, bytes);
        else
            assert_true(norm_distance(a, b, bytes / sizeof(float)) < 1e-5);
    }
}

static void the_classifier_is_that_of_the_cpu(void **state) {
    (void)state;
    static const char *const devices[] = {"cpu", "cuda:0"};
    for (int kind = 0; kind < 3; kind++) {  // plain, batch norm, synchronised
        subject s[2];
        double losses[2];
        int64_t correct[2];
        for (int i = 0; i < 2; i++) {
            int calls = 0;
            gs_model_sync sync = {combine_alone, sum_alone, &calls};
            open_mlp(&s[i], devices[i], kind > 0);
            gs_model_pass pass = pass_of(&s[i]);
            if (kind == 2) pass.sync = &sync;
            losses[i] = train(&s[i], &pass);
            correct[i] = pass.num_correct;
            assert_int_equal(calls, kind == 2 ? 4 : 0);
        }
        assert_true(fabs(losses[1] - losses[0]) < 1e-5);
        assert_int_equal(correct[1], correct[0]);
        assert_gradients_near(&s[1], &s[0], 1e-4);
        compare_buffers(&s[1], &s[0]);
        close_subject(&s[0]);
        close_subject(&s[1]);
    }
}

// ---- what a graph needs

#ifdef GRADSYNC_CUDA_SIM
static void assert_nothing_waited(gs_sim_counters before) {
    gs_sim_counters after = gs_sim_count();
    assert_int_equal(after.mallocs, before.mallocs);
    assert_int_equal(after.frees, before.frees);
    assert_int_equal(after.host_waits, before.host_waits);
    assert_int_equal(after.pageable_copies, before.pageable_copies);
}
#endif

static void check_graph(subject *s) {
    gs_stream *stream = gs_device_stream(s->device);
    gs_model_pass pass = pass_of(s);
    const double loss = train(s, &pass);
    float *first = malloc(s->count * sizeof *first);
    memcpy(first, s->host_grads, s->count * sizeof *first);

    pass.loss_sum = s->loss_sum;
    assert_true(s->model.ops->repeats(s->model.state, &pass));
#ifdef GRADSYNC_CUDA_SIM
    gs_sim_counters before = gs_sim_count();
#endif
    must(s->model.ops->forward(s->model.state, &pass));
    must(s->model.ops->backward(s->model.state, &pass));
#ifdef GRADSYNC_CUDA_SIM
    assert_nothing_waited(before);
#endif
    download_grads(s);
    assert_true(pass.loss == 0.0);
    assert_true(fabs(*s->loss_sum - loss) < 1e-12);
    assert_memory_equal(first, s->host_grads, s->count * sizeof *first);

    gs_graph *graph;
    must(gs_graph_begin(stream));
    gs_status status = s->model.ops->forward(s->model.state, &pass);
    if (!status.code) status = s->model.ops->backward(s->model.state, &pass);
    must(gs_graph_end(&graph, stream));
    must(status);
    memset(s->host_grads, 0xff, s->count * sizeof(float));
    must(gs_device_upload(s->device, s->grad_memory, s->host_grads, s->count * sizeof(float)));
    for (int i = 0; i < 2; i++) must(gs_graph_launch(graph, stream));
    download_grads(s);
    for (size_t i = 0; i < s->num_params; i++)
        assert_memory_equal(s->host_grads + s->offsets[i], first + s->offsets[i],
                            gs_param_spec_bytes(&s->list[i].spec));
    assert_true(fabs(*s->loss_sum - 3 * loss) < 1e-12);
    gs_graph_destroy(graph);
    free(first);
}

static void a_pass_waits_for_nothing_and_a_graph_of_it_gives_its_bits(void **state) {
    (void)state;
    const gs_dtype types[] = {GS_FP32, GS_BF16, GS_FP16};
    for (size_t i = 0; i < 3; i++) {
        subject s;
        open_gpt2(&s, "cuda:0", even, types[i]);
        draw_values(&s, types[i]);
        upload_values(&s);
        draw_tokens(&s, 3, 20, 128);
        check_graph(&s);
        close_subject(&s);
    }
    subject s;
    open_mlp(&s, "cuda:0", true);
    check_graph(&s);
    close_subject(&s);
}

// Products of shapes that were never seen are captured too, untimed.
static void a_graph_may_be_the_first_pass_of_all(void **state) {
    (void)state;
    static const char *const devices[] = {"cpu", "cuda:0"};
    subject s[2];
    for (int i = 0; i < 2; i++) {
        open_gpt2(&s[i], devices[i], even, GS_BF16);
        draw_values(&s[i], GS_BF16);
        upload_values(&s[i]);
        draw_tokens(&s[i], 3, 20, 128);
    }
    gs_model_pass reference = pass_of(&s[0]), pass = pass_of(&s[1]);
    train(&s[0], &reference);
    pass.loss_sum = s[1].loss_sum;
    gs_stream *stream = gs_device_stream(s[1].device);
    gs_graph *graph;
    must(gs_graph_begin(stream));
    gs_status status = s[1].model.ops->forward(s[1].model.state, &pass);
    if (!status.code) status = s[1].model.ops->backward(s[1].model.state, &pass);
    must(gs_graph_end(&graph, stream));
    must(status);
    must(gs_graph_launch(graph, stream));
    download_grads(&s[1]);
    assert_gradients_near(&s[1], &s[0], bound_of(GS_BF16));
    gs_graph_destroy(graph);
    close_subject(&s[0]);
    close_subject(&s[1]);
}

static void a_bad_token_comes_out_of_the_wait_by_name(void **state) {
    (void)state;
    subject s;
    open_gpt2(&s, "cuda:0", odd, GS_BF16);
    draw_values(&s, GS_BF16);
    upload_values(&s);
    draw_tokens(&s, 3, 7, 37);
    const int32_t bad = 37;
    must(gs_device_upload(s.device, s.tokens + 12, &bad, sizeof bad));
    gs_model_pass pass = pass_of(&s);
    pass.loss_sum = s.loss_sum;
    must(s.model.ops->forward(s.model.state, &pass));
    gs_status status =
        gs_stream_wait(gs_device_stream(s.device), gs_deadline_in_seconds(WAIT_SECONDS));
    assert_int_equal(status.code, GS_INVALID_ARGUMENT);
    if (!strstr(status.message, "row 12: token 37 ")) fail_msg("%s", status.message);
    close_subject(&s);
}

int main(void) {
    if (!gs_test_gpu_name()) {
        printf("no CUDA device: skipped\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_in_fp32_gives_the_golden_loss_and_gradients),
        cmocka_unit_test(gpt2_of_each_type_is_that_of_the_cpu),
        cmocka_unit_test(gpt2_is_that_of_the_cpu_in_other_ways_too),
        cmocka_unit_test(predictions_are_those_of_the_cpu),
        cmocka_unit_test(the_classifier_is_that_of_the_cpu),
        cmocka_unit_test(a_pass_waits_for_nothing_and_a_graph_of_it_gives_its_bits),
        cmocka_unit_test(a_graph_may_be_the_first_pass_of_all),
        cmocka_unit_test(a_bad_token_comes_out_of_the_wait_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
