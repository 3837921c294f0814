// The classifier: Linear → BatchNorm → ReLU, repeated, then Linear → softmax cross-entropy. Without
// batch norm the hidden layers are Linear → ReLU.
//
// Parameters fc1.weight [fc1.bias] bn1.weight bn1.bias … fcK.weight fcK.bias, linear weights (out,
// in), drawn uniformly in ±1/√in, biases too. Buffers bn1.running_mean, .running_var,
// .num_batches_tracked; a training pass reads the ones it is given and writes new ones beside them. A
// pass with `sync` normalises by the statistics of all ranks' rows: there the host waits for each norm,
// forward and backward, because ranks exchange statistics through its memory. Nothing else waits when the
// pass has a loss_sum.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/digest.h"
#include "core/random.h"
#include "worker/models/registry.h"
#include "worker/models/tensor_block.h"

#define MAX_MLP_DIMS 64
#define MAX_SIZE INT32_MAX  // matrix products count in int
#define BN_MOMENTUM 0.1f
#define BN_EPS 1e-5f
#define DEVICE_WAIT_SECONDS 600.0
#define BN_BUFFERS 3

typedef struct mlp_layer {
    size_t num_in, num_out;
    size_t weight;  // parameter; its bias, if any, is the next one
    bool has_bias, has_norm;
    size_t bn_weight;    // parameter; the norm's bias is the next one
    size_t buffer;       // running_mean; then running_var, num_batches_tracked
    float *linear;       // (rows, out); x·Wᵀ + b, what the norm reads
    float *out;          // (rows, out); after ReLU; the last layer: logits
    float *mean, *rstd;  // (out); of the batch
    double total_rows;   // that they were taken over
} mlp_layer;

typedef struct mlp {
    gs_device *device;  // borrowed
    size_t max_rows;
    mlp_layer *layers;  // owned
    int num_layers;
    gs_model_param *params;  // owned
    size_t num_params;
    gs_param_spec *buffers;  // owned
    size_t num_buffers;
    gs_tensor_block block;   // owns all that follows
    float *losses;           // (rows)
    int64_t *num_correct;    // one
    float *d_a, *d_b, *d_c;  // (rows, widest); gradients of activations
    int64_t *one;            // owned; on the device
    double *sums;            // owned, pinned; (2, widest), of synchronised statistics
    float *host_losses;      // owned; (rows)
    float *host_logits;      // owned; (rows, classes)
    bool has_dlogits;
} mlp;

static void add_param(mlp *model, int64_t rows, int64_t cols, const char *kind, int number,
                      const char *name) {
    gs_model_param *param = &model->params[model->num_params++];
    param->spec = gs_param_spec_make(GS_FP32, rows, cols, "%s%d.%s", kind, number, name);
    param->decays = cols > 0;
}

static void list_layer(mlp *model, mlp_layer *layer, int number) {
    int64_t out = (int64_t)layer->num_out;
    layer->weight = model->num_params;
    add_param(model, out, (int64_t)layer->num_in, "fc", number, "weight");
    if (layer->has_bias) add_param(model, out, 0, "fc", number, "bias");
    if (!layer->has_norm) return;
    layer->bn_weight = model->num_params;
    add_param(model, out, 0, "bn", number, "weight");
    add_param(model, out, 0, "bn", number, "bias");
    layer->buffer = model->num_buffers;
    gs_param_spec *buffer = &model->buffers[model->num_buffers];
    buffer[0] = gs_param_spec_make(GS_FP32, out, 0, "bn%d.running_mean", number);
    buffer[1] = gs_param_spec_make(GS_FP32, out, 0, "bn%d.running_var", number);
    buffer[2] = gs_param_spec_make(GS_I64, 0, 0, "bn%d.num_batches_tracked", number);
    model->num_buffers += BN_BUFFERS;
}

static gs_status alloc_activations(mlp *model) {
    size_t widest = 0, rows = model->max_rows;
    for (int i = 0; i < model->num_layers; i++) {
        mlp_layer *layer = &model->layers[i];
        if (layer->num_out > widest) widest = layer->num_out;
        gs_tensor_block_add(&model->block, &layer->out, rows, layer->num_out);
        if (!layer->has_norm) continue;
        gs_tensor_block_add(&model->block, &layer->linear, rows, layer->num_out);
        gs_tensor_block_add(&model->block, &layer->mean, layer->num_out, 1);
        gs_tensor_block_add(&model->block, &layer->rstd, layer->num_out, 1);
    }
    gs_tensor_block_add(&model->block, &model->losses, rows, 1);
    gs_tensor_block_add_of(&model->block, &model->num_correct, GS_I64, 1, 1);
    gs_tensor_block_add(&model->block, &model->d_a, rows, widest);
    gs_tensor_block_add(&model->block, &model->d_b, rows, widest);
    gs_tensor_block_add(&model->block, &model->d_c, rows, widest);
    gs_tensor_block_add_of(&model->block, &model->one, GS_I64, 1, 1);
    GS_TRY(gs_tensor_block_alloc(&model->block, model->device, "mlp activations"));
    const int64_t one = 1;
    GS_TRY(gs_device_upload(model->device, model->one, &one, sizeof one));
    void *sums;
    GS_TRY(gs_device_alloc_pinned(model->device, &sums, 2 * widest * sizeof *model->sums));
    model->sums = sums;
    // Without a norm the linear result is only wanted as the ReLU's input, and ReLU works in place.
    for (int i = 0; i < model->num_layers; i++)
        if (!model->layers[i].has_norm) model->layers[i].linear = model->layers[i].out;

    size_t classes = model->layers[model->num_layers - 1].num_out;
    model->host_losses = calloc(rows, sizeof *model->host_losses);
    model->host_logits = calloc(rows, classes * sizeof *model->host_logits);
    if (!model->host_losses || !model->host_logits)
        return gs_error(GS_RESOURCE_EXHAUSTED, "mlp: out of memory");
    return gs_ok();
}

static const gs_model_param *list_of_params(void *state, size_t *num_params) {
    const mlp *model = state;
    *num_params = model->num_params;
    return model->params;
}

static const gs_param_spec *list_of_buffers(void *state, size_t *num_buffers) {
    const mlp *model = state;
    *num_buffers = model->num_buffers;
    return model->buffers;
}

// Linear: uniform in ±1/√in; norms: weight one, bias zero. `num_in` is the layer's.
static gs_status init_param(const mlp *model, size_t at, void *values, size_t num_in,
                            uint64_t seed) {
    const gs_param_spec *spec = &model->params[at].spec;
    size_t count = gs_param_spec_count(spec);
    float *drawn = malloc(count * sizeof *drawn);
    if (!drawn) return gs_error(GS_RESOURCE_EXHAUSTED, "mlp: out of memory");
    if (spec->name[0] == 'f') {
        float bound = 1.0f / sqrtf((float)num_in);
        gs_random_key key = {seed, gs_hash64(spec->name, strlen(spec->name), 0)};
        gs_random_fill_uniform(drawn, count, key, 0, -bound, bound);
    } else {
        bool is_bias = strstr(spec->name, ".bias") != NULL;
        for (size_t i = 0; i < count; i++) drawn[i] = is_bias ? 0.0f : 1.0f;
    }
    gs_status status = gs_device_upload(model->device, values, drawn, count * sizeof *drawn);
    free(drawn);
    return status;
}

static gs_status init_buffers(const mlp *model, void *const *buffers) {
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    for (int i = 0; i < model->num_layers; i++) {
        const mlp_layer *layer = &model->layers[i];
        if (!layer->has_norm) continue;
        int64_t zero = 0;
        k->fill(stream, buffers[layer->buffer], 0.0f, layer->num_out);
        k->fill(stream, buffers[layer->buffer + 1], 1.0f, layer->num_out);
        GS_TRY(gs_device_upload(model->device, buffers[layer->buffer + 2], &zero, sizeof zero));
    }
    return gs_stream_wait(stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS));
}

// Behind the layer's last parameter.
static size_t end_of_layer(const mlp *model, int layer) {
    return layer + 1 < model->num_layers ? model->layers[layer + 1].weight : model->num_params;
}

static gs_status init_all(void *state, void *const *params, void *const *buffers, uint64_t seed) {
    mlp *model = state;
    for (int i = 0; i < model->num_layers; i++) {
        size_t first = model->layers[i].weight;
        for (size_t at = first; at < end_of_layer(model, i); at++)
            GS_TRY(init_param(model, at, params[at], model->layers[i].num_in, seed));
    }
    return init_buffers(model, buffers);
}

static gs_status check_pass(const mlp *model, const gs_model_pass *pass, bool wants_targets) {
    const gs_batch *batch = pass->batch;
    if (!batch || !batch->features || (wants_targets && !batch->targets))
        return gs_error(GS_INVALID_ARGUMENT, "mlp: the batch has no features or no targets");
    if (batch->rows < 1 || batch->rows > model->max_rows)
        return gs_error(GS_INVALID_ARGUMENT, "mlp: a batch of %zu rows, made for 1 to %zu",
                        batch->rows, model->max_rows);
    if (batch->row_features != model->layers[0].num_in)
        return gs_error(GS_INVALID_ARGUMENT, "mlp: %zu features, the model takes %zu",
                        batch->row_features, model->layers[0].num_in);
    if (wants_targets && pass->training && batch->rows == 1 && model->num_buffers && !pass->sync)
        return gs_error(GS_INVALID_ARGUMENT,
                        "mlp: batch norm cannot train on one row: its variance has no meaning");
    return gs_ok();
}

// next = now + 1, beside it.
static void count_batch(const mlp *model, void *next, const void *now) {
    const void *inputs[] = {now, model->one};
    const gs_reduction sum = {.outputs = &next,
                              .inputs = inputs,
                              .num_outputs = 1,
                              .num_inputs = 2,
                              .dtype = GS_I64,
                              .scale = 1.0,
                              .count = 1};
    gs_device_kernels(model->device)->reduce(gs_device_stream(model->device), &sum);
}

// Of this pass's rows, put together with the other ranks'; all ranks come here for each layer.
static gs_status measure_all_rows(const mlp *model, mlp_layer *layer, const gs_model_pass *pass,
                                  const gs_batchnorm *shape) {
    gs_stream *stream = gs_device_stream(model->device);
    double *mean = model->sums, *m2 = mean + layer->num_out;
    gs_device_kernels(model->device)->batchnorm_measure(stream, mean, m2, layer->linear, shape);
    GS_TRY(gs_stream_wait(stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS)));
    layer->total_rows = (double)shape->rows;
    GS_TRY(pass->sync->combine(pass->sync->ctx, &layer->total_rows, mean, m2, layer->num_out));
    if (layer->total_rows >= 2.0) return gs_ok();
    return gs_error(GS_INVALID_ARGUMENT,
                    "mlp: batch norm cannot train on one row in all: its variance has no meaning");
}

static gs_status forward_norm(const mlp *model, mlp_layer *layer, const gs_model_pass *pass,
                              bool training) {
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    const float *weight = pass->params[layer->bn_weight],
                *bias = pass->params[layer->bn_weight + 1];
    const void *const *now = pass->buffers + layer->buffer;
    gs_batchnorm shape = {.rows = pass->batch->rows,
                          .channels = layer->num_out,
                          .momentum = BN_MOMENTUM,
                          .eps = BN_EPS};
    if (!training) {
        k->batchnorm_eval(stream, layer->out, layer->linear, weight, bias, now[0], now[1], &shape);
        return gs_ok();
    }
    void *const *next = pass->next_buffers + layer->buffer;
    if (pass->sync) {
        const double *mean = model->sums;
        GS_TRY(measure_all_rows(model, layer, pass, &shape));
        k->batchnorm_apply(stream, layer->out, layer->mean, layer->rstd, next[0], next[1],
                           layer->linear, weight, bias, now[0], now[1], mean,
                           mean + layer->num_out, layer->total_rows, &shape);
    } else {
        k->batchnorm(stream, layer->out, layer->mean, layer->rstd, next[0], next[1], layer->linear,
                     weight, bias, now[0], now[1], &shape);
    }
    count_batch(model, next[2], now[2]);
    return gs_ok();
}

static gs_status forward_layers(const mlp *model, const gs_model_pass *pass, bool training) {
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    const float *in = pass->batch->features;
    size_t rows = pass->batch->rows;
    for (int i = 0; i < model->num_layers; i++) {
        mlp_layer *layer = &model->layers[i];
        gs_matmul shape = {
            .transpose_b = true, .m = rows, .n = layer->num_out, .k = layer->num_in, .alpha = 1.0f};
        GS_TRY(gs_model_reads(pass, layer->weight, end_of_layer(model, i) - layer->weight));
        k->matmul(stream, layer->linear, in, pass->params[layer->weight], &shape);
        if (layer->has_bias)
            k->bias_add(stream, layer->linear, pass->params[layer->weight + 1], rows,
                        layer->num_out);
        if (layer->has_norm) GS_TRY(forward_norm(model, layer, pass, training));
        if (i + 1 < model->num_layers)
            k->relu(stream, layer->out, layer->out, rows * layer->num_out);
        in = layer->out;
    }
    return gs_ok();
}

// The mean of the losses and the hits, either onto what the caller waits for or here and now.
static gs_status take_loss(mlp *model, gs_model_pass *pass) {
    gs_stream *stream = gs_device_stream(model->device);
    size_t rows = pass->batch->rows;
    pass->loss = 0.0;
    pass->num_correct = 0;
    if (pass->loss_sum) {
        gs_device_kernels(model->device)->add_mean(stream, pass->loss_sum, model->losses, rows);
        return gs_ok();
    }
    GS_TRY(gs_stream_wait(stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS)));
    GS_TRY(
        gs_device_download(model->device, model->host_losses, model->losses, rows * sizeof(float)));
    GS_TRY(gs_device_download(model->device, &pass->num_correct, model->num_correct,
                              sizeof pass->num_correct));
    double sum = 0.0;
    for (size_t i = 0; i < rows; i++) sum += (double)model->host_losses[i];
    pass->loss = sum / (double)rows;
    return gs_ok();
}

static gs_status forward(void *state, gs_model_pass *pass) {
    mlp *model = state;
    GS_TRY(check_pass(model, pass, true));
    model->has_dlogits = false;
    GS_TRY(forward_layers(model, pass, pass->training));
    const mlp_layer *last = &model->layers[model->num_layers - 1];
    size_t rows = pass->batch->rows;
    // The gradient of the mean loss replaces the logits at once; grad_factor comes in by backward.
    gs_device_kernels(model->device)
        ->softmax_loss(gs_device_stream(model->device), model->losses, last->out,
                       model->num_correct, pass->batch->targets, rows, last->num_out, last->num_out,
                       1.0f / (float)rows, pass->training);
    GS_TRY(take_loss(model, pass));
    model->has_dlogits = pass->training;
    return gs_ok();
}

static gs_status predict(void *state, gs_model_pass *pass, const float **logits,
                         size_t *num_classes) {
    mlp *model = state;
    GS_TRY(check_pass(model, pass, false));
    model->has_dlogits = false;
    GS_TRY(forward_layers(model, pass, false));
    const mlp_layer *last = &model->layers[model->num_layers - 1];
    gs_stream *stream = gs_device_stream(model->device);
    GS_TRY(gs_stream_wait(stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS)));
    GS_TRY(gs_device_download(model->device, model->host_logits, last->out,
                              pass->batch->rows * last->num_out * sizeof(float)));
    *logits = model->host_logits;
    *num_classes = last->num_out;
    return gs_ok();
}

static void mark_ready(const gs_model_pass *pass, size_t param) {
    if (pass->ready && pass->grads[param]) pass->ready(pass->ready_ctx, param);
}

// All parameters of a layer whose input has its gradient.
static void release_layer(const gs_model_pass *pass, const mlp_layer *layer) {
    if (!pass->released) return;
    pass->released(pass->released_ctx, layer->weight);
    if (layer->has_bias) pass->released(pass->released_ctx, layer->weight + 1);
    if (!layer->has_norm) return;
    pass->released(pass->released_ctx, layer->bn_weight);
    pass->released(pass->released_ctx, layer->bn_weight + 1);
}

// Of a norm that is frozen they go where nobody reads. Both gradients of activations are free by then: without `sync`
// the first alone, which has two rows at least.
static void find_norm_grads(void *grads[2], const mlp *model, const mlp_layer *layer,
                            const gs_model_pass *pass) {
    grads[0] = pass->grads[layer->bn_weight];
    grads[1] = pass->grads[layer->bn_weight + 1];
    if (!grads[0]) grads[0] = model->d_a;
    if (!grads[1]) grads[1] = pass->sync ? model->d_c : model->d_a + layer->num_out;
}

// d linear in d_c from d out of the norm in d_b. The norm's own gradients are final before the others'
// sums are here: their buckets start first.
static gs_status backward_norm(const mlp *model, const mlp_layer *layer, const gs_model_pass *pass,
                               const gs_batchnorm *shape) {
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    void *grads[2];
    const float *weight = pass->params[layer->bn_weight];
    find_norm_grads(grads, model, layer, pass);
    double *sum = model->sums, *dot = sum + layer->num_out;
    GS_TRY(gs_model_writes(pass, layer->bn_weight));
    GS_TRY(gs_model_writes(pass, layer->bn_weight + 1));
    if (!pass->sync) {
        k->batchnorm_backward(stream, model->d_c, grads[0], grads[1], model->d_b, layer->linear,
                              weight, layer->mean, layer->rstd, shape, pass->accumulate);
    } else {
        k->batchnorm_sums(stream, sum, dot, grads[0], grads[1], model->d_b, layer->linear,
                          layer->mean, layer->rstd, shape, pass->accumulate);
    }
    mark_ready(pass, layer->bn_weight);
    mark_ready(pass, layer->bn_weight + 1);
    if (!pass->sync) return gs_ok();
    GS_TRY(gs_stream_wait(stream, gs_deadline_in_seconds(DEVICE_WAIT_SECONDS)));
    GS_TRY(pass->sync->sum(pass->sync->ctx, sum, 2 * layer->num_out));
    k->batchnorm_backward_apply(stream, model->d_c, model->d_b, layer->linear, weight, layer->mean,
                                layer->rstd, sum, dot, layer->total_rows, shape);
    return gs_ok();
}

// From d out (after ReLU) to d linear, in d_b or d_c.
static gs_status backward_activation(const float **dy, const mlp *model, const mlp_layer *layer,
                                     const gs_model_pass *pass, const float *dout) {
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    size_t rows = pass->batch->rows;
    k->relu_backward(stream, model->d_b, dout, layer->out, rows * layer->num_out);
    *dy = layer->has_norm ? model->d_c : model->d_b;
    if (!layer->has_norm) return gs_ok();
    gs_batchnorm shape = {
        .rows = rows, .channels = layer->num_out, .momentum = BN_MOMENTUM, .eps = BN_EPS};
    return backward_norm(model, layer, pass, &shape);
}

static gs_status backward_linear(const mlp *model, const mlp_layer *layer,
                                 const gs_model_pass *pass, const float *dy, const float *in) {
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    gs_matmul shape = {.transpose_a = true,
                       .m = layer->num_out,
                       .n = layer->num_in,
                       .k = pass->batch->rows,
                       .alpha = 1.0f,
                       .beta = pass->accumulate ? 1.0f : 0.0f};
    if (pass->grads[layer->weight]) {
        GS_TRY(gs_model_writes(pass, layer->weight));
        k->matmul(stream, pass->grads[layer->weight], dy, in, &shape);
        mark_ready(pass, layer->weight);
    }
    if (!layer->has_bias || !pass->grads[layer->weight + 1]) return gs_ok();
    GS_TRY(gs_model_writes(pass, layer->weight + 1));
    k->bias_backward(stream, pass->grads[layer->weight + 1], dy, pass->batch->rows, layer->num_out,
                     pass->accumulate);
    mark_ready(pass, layer->weight + 1);
    return gs_ok();
}

// Layers in front of it are all frozen: backward ends there.
static int first_layer_that_trains(const mlp *model, const gs_model_pass *pass) {
    int i = 0;
    while (i + 1 < model->num_layers &&
           !gs_model_trains(pass, model->layers[i].weight,
                            end_of_layer(model, i) - model->layers[i].weight))
        i++;
    return i;
}

static gs_status backward(void *state, gs_model_pass *pass) {
    mlp *model = state;
    GS_TRY(check_pass(model, pass, true));
    if (!model->has_dlogits)
        return gs_error(GS_FAILED_PRECONDITION,
                        "mlp: backward without a training forward before it");
    const gs_kernels *k = gs_device_kernels(model->device);
    gs_stream *stream = gs_device_stream(model->device);
    size_t rows = pass->batch->rows;
    const mlp_layer *last = &model->layers[model->num_layers - 1];

    k->scale(stream, model->d_c, last->out, pass->grad_factor, rows * last->num_out);
    const float *dy = model->d_c;
    int first = first_layer_that_trains(model, pass);
    for (int i = model->num_layers - 1; i >= first; i--) {
        const mlp_layer *layer = &model->layers[i];
        if (i + 1 < model->num_layers)
            GS_TRY(backward_activation(&dy, model, layer, pass, model->d_a));
        GS_TRY(backward_linear(model, layer, pass, dy,
                               i ? model->layers[i - 1].out : pass->batch->features));
        if (i > first) {
            gs_matmul shape = {.m = rows, .n = layer->num_in, .k = layer->num_out, .alpha = 1.0f};
            k->matmul(stream, model->d_a, dy, pass->params[layer->weight], &shape);
        }
        release_layer(pass, layer);
    }
    return gs_ok();
}

static size_t activation_bytes(void *state) {
    const mlp *model = state;
    return model->block.bytes;
}

static double flops_per_sample(void *state) {
    const mlp *model = state;
    double flops = 0.0;
    for (int i = 0; i < model->num_layers; i++)
        flops += 6.0 * (double)model->layers[i].num_in * (double)model->layers[i].num_out;
    return flops;
}

// With `sync` the host computes in the middle.
static bool repeats(void *state, const gs_model_pass *pass) {
    (void)state;
    return !pass->sync;
}

static void destroy_model(void *state) {
    mlp *model = state;
    if (!model) return;
    gs_device_free_pinned(model->device, model->sums);
    gs_tensor_block_release(&model->block);
    free(model->layers);
    free(model->params);
    free(model->buffers);
    free(model->host_losses);
    free(model->host_logits);
    free(model);
}

static const gs_model_ops mlp_ops = {
    .name = "mlp",
    .params = list_of_params,
    .buffers = list_of_buffers,
    .init = init_all,
    .forward = forward,
    .backward = backward,
    .predict = predict,
    .activation_bytes = activation_bytes,
    .flops_per_sample = flops_per_sample,
    .repeats = repeats,
    .destroy = destroy_model,
};

static gs_status check_options(const gs_mlp_options *options) {
    if (options->num_dims < 2 || options->num_dims > MAX_MLP_DIMS)
        return gs_error(GS_INVALID_ARGUMENT, "mlp: %d dims, wanted 2 to %d", options->num_dims,
                        MAX_MLP_DIMS);
    for (int i = 0; i < options->num_dims; i++)
        if (options->dims[i] < 1 || options->dims[i] > MAX_SIZE)
            return gs_error(GS_INVALID_ARGUMENT, "mlp: dims[%d] is %lld", i,
                            (long long)options->dims[i]);
    if (options->micro_batch < 1 || options->micro_batch > MAX_SIZE)
        return gs_error(GS_INVALID_ARGUMENT, "mlp: micro_batch is %lld",
                        (long long)options->micro_batch);
    return gs_ok();
}

gs_status gs_mlp_create(gs_model *out, const gs_mlp_options *options, gs_device *device) {
    GS_TRY(check_options(options));
    mlp *model = calloc(1, sizeof *model);
    if (!model) return gs_error(GS_RESOURCE_EXHAUSTED, "mlp: out of memory");
    model->device = device;
    model->max_rows = (size_t)options->micro_batch;
    model->num_layers = options->num_dims - 1;
    size_t num_layers = (size_t)model->num_layers;
    model->layers = calloc(num_layers, sizeof *model->layers);
    model->params = calloc(4 * num_layers, sizeof *model->params);
    model->buffers = calloc(BN_BUFFERS * num_layers, sizeof *model->buffers);
    gs_status status = gs_ok();
    if (!model->layers || !model->params || !model->buffers)
        status = gs_error(GS_RESOURCE_EXHAUSTED, "mlp: out of memory");
    for (int i = 0; i < model->num_layers && !status.code; i++) {
        bool last = i + 1 == model->num_layers;
        model->layers[i] = (mlp_layer){
            .num_in = (size_t)options->dims[i],
            .num_out = (size_t)options->dims[i + 1],
            .has_norm = !last && options->batch_norm,
            .has_bias = last || !options->batch_norm || options->hidden_bias,
        };
        list_layer(model, &model->layers[i], i + 1);
    }
    if (!status.code) status = alloc_activations(model);
    if (status.code) {
        destroy_model(model);
        return status;
    }
    *out = (gs_model){.ops = &mlp_ops, .state = model, .dtype = GS_FP32};
    return gs_ok();
}
