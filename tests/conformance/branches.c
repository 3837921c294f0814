#include "tests/conformance/branches.h"

#include <stdlib.h>

#include "worker/models/tensor_block.h"

enum {
    FC1_WEIGHT,
    FC1_BIAS,
    FA_WEIGHT,
    FA_BIAS,
    FS_WEIGHT,
    FB_WEIGHT,
    FB_BIAS,
    FC_WEIGHT,
    FC_BIAS,
    NUM_PARAMS
};
#define WAIT_SECONDS 60.0

typedef struct branches {
    branches_options options;
    gs_device *device;
    const gs_kernels *k;
    gs_stream *stream;
    gs_model_param params[NUM_PARAMS];
    gs_tensor_block block;
    float *hidden, *middle, *logits, *losses, *num_correct;
    float *d_logits, *d_middle, *d_hidden;
    bool has_a, has_b;  // of the pass in progress
} branches;

static const gs_model_param *list_of_params(void *state, size_t *num_params) {
    *num_params = NUM_PARAMS;
    return ((branches *)state)->params;
}

static const gs_param_spec *list_of_buffers(void *state, size_t *num_buffers) {
    (void)state;
    *num_buffers = 0;
    return NULL;
}

static gs_status draw_nothing(void *state, void *const *params, void *const *buffers,
                              uint64_t seed) {
    (void)state;
    (void)params;
    (void)buffers;
    (void)seed;
    return gs_error(GS_UNIMPLEMENTED, "branches: values come from a file");
}

static void linear(const branches *self, float *out, const float *in, const gs_model_pass *pass,
                   int weight, bool has_bias, float beta) {
    const gs_param_spec *spec = &self->params[weight].spec;
    size_t rows = pass->batch->rows, num_out = (size_t)spec->shape[0];
    gs_matmul shape = {.transpose_b = true,
                       .m = rows,
                       .n = num_out,
                       .k = (size_t)spec->shape[1],
                       .alpha = 1.0f,
                       .beta = beta};
    self->k->matmul(self->stream, out, in, pass->params[weight], &shape);
    if (has_bias) self->k->bias_add(self->stream, out, pass->params[weight + 1], rows, num_out);
}

static gs_status read_loss(const branches *self, size_t rows, double *mean) {
    GS_TRY(gs_stream_wait(self->stream, gs_deadline_in_seconds(WAIT_SECONDS)));
    float *losses = malloc(rows * sizeof *losses + 1);
    if (!losses) return gs_error(GS_RESOURCE_EXHAUSTED, "out of memory");
    gs_status status =
        gs_device_download(self->device, losses, self->losses, rows * sizeof *losses);
    double sum = 0.0;
    for (size_t i = 0; i < rows && !status.code; i++) sum += (double)losses[i];
    *mean = sum / (double)rows;
    free(losses);
    return status;
}

static gs_status forward(void *state, gs_model_pass *pass) {
    branches *self = state;
    size_t rows = pass->batch->rows;
    self->has_a = self->options.used[0] != 0;
    self->has_b = self->options.used[1] != 0;
    size_t hidden = rows * (size_t)self->options.dims[1];
    size_t middle = rows * (size_t)self->options.dims[2];
    size_t classes = (size_t)self->options.dims[3];
    linear(self, self->hidden, pass->batch->features, pass, FC1_WEIGHT, true, 0.0f);
    self->k->relu(self->stream, self->hidden, self->hidden, hidden);
    linear(self, self->middle, self->hidden, pass, FS_WEIGHT, false, 0.0f);
    if (self->has_a) linear(self, self->middle, self->hidden, pass, FA_WEIGHT, true, 1.0f);
    if (self->has_b) linear(self, self->middle, self->hidden, pass, FB_WEIGHT, true, 1.0f);
    self->k->relu(self->stream, self->middle, self->middle, middle);
    linear(self, self->logits, self->middle, pass, FC_WEIGHT, true, 0.0f);
    self->k->softmax_loss(self->stream, self->losses, self->logits,
                          (int64_t *)(void *)self->num_correct, pass->batch->targets, rows, classes,
                          classes, 1.0f / (float)rows, true);
    return read_loss(self, rows, &pass->loss);
}

// The gradients of one linear layer; what flows back is added to d_in (NULL: nobody wants it).
static void linear_backward(const branches *self, float *d_in, bool adds, const float *d_out,
                            const float *in, const gs_model_pass *pass, int weight, bool has_bias) {
    const gs_param_spec *spec = &self->params[weight].spec;
    size_t rows = pass->batch->rows;
    size_t num_out = (size_t)spec->shape[0], num_in = (size_t)spec->shape[1];
    gs_matmul shape = {.transpose_a = true,
                       .m = num_out,
                       .n = num_in,
                       .k = rows,
                       .alpha = 1.0f,
                       .beta = pass->accumulate ? 1.0f : 0.0f};
    self->k->matmul(self->stream, pass->grads[weight], d_out, in, &shape);
    pass->ready(pass->ready_ctx, (size_t)weight);
    if (has_bias) {
        self->k->bias_backward(self->stream, pass->grads[weight + 1], d_out, rows, num_out,
                               pass->accumulate);
        pass->ready(pass->ready_ctx, (size_t)weight + 1);
    }
    if (!d_in) return;
    gs_matmul back = {
        .m = rows, .n = num_in, .k = num_out, .alpha = 1.0f, .beta = adds ? 1.0f : 0.0f};
    self->k->matmul(self->stream, d_in, d_out, pass->params[weight], &back);
}

static gs_status backward(void *state, gs_model_pass *pass) {
    branches *self = state;
    size_t rows = pass->batch->rows;
    size_t hidden = rows * (size_t)self->options.dims[1];
    size_t middle = rows * (size_t)self->options.dims[2];
    self->k->scale(self->stream, self->d_logits, self->logits, pass->grad_factor,
                   rows * (size_t)self->options.dims[3]);
    linear_backward(self, self->d_middle, false, self->d_logits, self->middle, pass, FC_WEIGHT,
                    true);
    self->k->relu_backward(self->stream, self->d_middle, self->d_middle, self->middle, middle);
    if (self->has_b)
        linear_backward(self, self->d_hidden, false, self->d_middle, self->hidden, pass, FB_WEIGHT,
                        true);
    linear_backward(self, self->d_hidden, self->has_b, self->d_middle, self->hidden, pass,
                    FS_WEIGHT, false);
    if (self->has_a)
        linear_backward(self, self->d_hidden, true, self->d_middle, self->hidden, pass, FA_WEIGHT,
                        true);
    self->k->relu_backward(self->stream, self->d_hidden, self->d_hidden, self->hidden, hidden);
    linear_backward(self, NULL, false, self->d_hidden, pass->batch->features, pass, FC1_WEIGHT,
                    true);
    return gs_ok();
}

static gs_status predict(void *state, gs_model_pass *pass, const float **logits,
                         size_t *num_classes) {
    (void)state;
    (void)pass;
    (void)logits;
    (void)num_classes;
    return gs_error(GS_UNIMPLEMENTED, "branches: not a model to predict with");
}

static size_t activation_bytes(void *state) {
    return ((branches *)state)->block.bytes;
}

static double flops_per_sample(void *state) {
    double flops = 0.0;
    const branches *self = state;
    for (int i = 0; i < NUM_PARAMS; i++)
        flops += 6.0 * (double)gs_param_spec_count(&self->params[i].spec);
    return flops;
}

static void destroy_model(void *state) {
    branches *self = state;
    if (!self) return;
    gs_tensor_block_release(&self->block);
    free(self);
}

static const gs_model_ops branches_ops = {
    .name = "branches",
    .params = list_of_params,
    .buffers = list_of_buffers,
    .init = draw_nothing,
    .forward = forward,
    .backward = backward,
    .predict = predict,
    .activation_bytes = activation_bytes,
    .flops_per_sample = flops_per_sample,
    .destroy = destroy_model,
};

static void list_params(branches *self) {
    const int64_t *dims = self->options.dims;
    static const struct {
        const char *name;
        int num_out, num_in;  // places in dims; num_in -1: a bias
    } list[NUM_PARAMS] = {{"fc1.weight", 1, 0}, {"fc1.bias", 1, -1}, {"fa.weight", 2, 1},
                          {"fa.bias", 2, -1},   {"fs.weight", 2, 1}, {"fb.weight", 2, 1},
                          {"fb.bias", 2, -1},   {"fc.weight", 3, 2}, {"fc.bias", 3, -1}};
    for (int i = 0; i < NUM_PARAMS; i++) {
        int64_t num_in = list[i].num_in < 0 ? 0 : dims[list[i].num_in];
        self->params[i].spec =
            gs_param_spec_make(GS_FP32, dims[list[i].num_out], num_in, "%s", list[i].name);
        self->params[i].decays = num_in > 0;
    }
}

gs_status branches_create(gs_model *out, const branches_options *options, gs_device *device) {
    branches *self = calloc(1, sizeof *self);
    if (!self) return gs_error(GS_RESOURCE_EXHAUSTED, "branches: out of memory");
    *self = (branches){.options = *options,
                       .device = device,
                       .k = gs_device_kernels(device),
                       .stream = gs_device_stream(device)};
    list_params(self);
    size_t rows = options->max_rows, hidden = (size_t)options->dims[1];
    size_t middle = (size_t)options->dims[2], classes = (size_t)options->dims[3];
    gs_tensor_block_add(&self->block, &self->hidden, rows, hidden);
    gs_tensor_block_add(&self->block, &self->middle, rows, middle);
    gs_tensor_block_add(&self->block, &self->logits, rows, classes);
    gs_tensor_block_add(&self->block, &self->losses, rows, 1);
    gs_tensor_block_add(&self->block, &self->num_correct, 2, 1);
    gs_tensor_block_add(&self->block, &self->d_logits, rows, classes);
    gs_tensor_block_add(&self->block, &self->d_middle, rows, middle);
    gs_tensor_block_add(&self->block, &self->d_hidden, rows, hidden);
    gs_status status = gs_tensor_block_alloc(&self->block, device, "branches activations");
    if (status.code) {
        destroy_model(self);
        return status;
    }
    *out = (gs_model){.ops = &branches_ops, .state = self};
    return gs_ok();
}
