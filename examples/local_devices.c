// One process and several devices, without a reducer: a batch is scattered over copies of a model,
// gradients come back as sums, losses are gathered.
//
//     local_devices [NUM_DEVICES]
//
// The model is y = weight · x + table[word]. The gradient of the table is a few rows of it, and
// travels so. Devices are CPUs here, each with a thread of its own in a real program.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradsync/extras.h"
#include "gradsync/gradsync.h"

enum { MAX_DEVICES = 8, NUM_INPUTS = 8, NUM_WORDS = 4, NUM_SAMPLES = 32, NUM_STEPS = 300 };

typedef struct batch {
    float x[NUM_SAMPLES][NUM_INPUTS], y[NUM_SAMPLES];
    int32_t words[NUM_SAMPLES];
} batch;

// What one device writes in a backward pass.
typedef struct device_grads {
    float weight[NUM_INPUTS];
    float rows[NUM_SAMPLES];  // of the table, one for each sample: of equal words they add up
    float loss;
} device_grads;

static gs_device_tensor tensor_of(gs_dtype dtype, int64_t rows, int64_t columns, void *data,
                                  gs_device *device) {
    const gs_param_spec spec = gs_param_spec_make(dtype, rows, columns, "tensor");
    return gs_device_tensor_make(&spec, data, device);
}

// The truth is 1, 2, … 8, and 1 to 4 for the words.
static void draw_batch(batch *out, unsigned short seed[3]) {
    for (int s = 0; s < NUM_SAMPLES; s++) {
        out->words[s] = (int32_t)(erand48(seed) * NUM_WORDS);
        out->y[s] = (float)(out->words[s] + 1);
        for (int i = 0; i < NUM_INPUTS; i++) {
            out->x[s][i] = (float)erand48(seed) * 2 - 1;
            out->y[s] += (float)(i + 1) * out->x[s][i];
        }
    }
}

// Of the samples that a device holds: gradients of the sum of their squared errors, and that sum.
static void run_backward(device_grads *grads, const float *weight, const float *table,
                         const float *x, const float *y, const int32_t *words,
                         int64_t num_samples) {
    memset(grads, 0, sizeof *grads);
    for (int64_t s = 0; s < num_samples; s++, x += NUM_INPUTS) {
        float difference = table[words[s]] - y[s];
        for (int i = 0; i < NUM_INPUTS; i++) difference += weight[i] * x[i];
        for (int i = 0; i < NUM_INPUTS; i++) grads->weight[i] += 2 * difference * x[i];
        grads->rows[s] = 2 * difference;
        grads->loss += difference * difference;
    }
}

typedef struct trainer {
    gs_device *devices[MAX_DEVICES];
    size_t num_devices;
    float weight[NUM_INPUTS], table[NUM_WORDS];  // the model's own, on the first device
    gs_model_copies *copies;                     // the weight is a parameter, the table a buffer
    device_grads grads[MAX_DEVICES];
} trainer;

// Each device its part of the batch; `words` of it are the caller's to release.
static gs_status run_devices(trainer *self, batch *drawn, gs_held_tensor words[MAX_DEVICES]) {
    gs_held_tensor x[MAX_DEVICES] = {0}, y[MAX_DEVICES] = {0};
    gs_device *first = self->devices[0];
    const gs_tensor_lists *params = gs_model_copies_params(self->copies);
    const gs_tensor_lists *tables = gs_model_copies_buffers(self->copies);
    const gs_device_tensor all_x = tensor_of(GS_FP32, NUM_SAMPLES, NUM_INPUTS, drawn->x, first);
    const gs_device_tensor all_y = tensor_of(GS_FP32, NUM_SAMPLES, 0, drawn->y, first);
    const gs_device_tensor all_words = tensor_of(GS_I32, NUM_SAMPLES, 0, drawn->words, first);
    gs_status status = gs_scatter(x, &all_x, self->devices, self->num_devices);
    if (!status.code) status = gs_scatter(y, &all_y, self->devices, self->num_devices);
    if (!status.code) status = gs_scatter(words, &all_words, self->devices, self->num_devices);
    for (size_t d = 0; d < self->num_devices && !status.code; d++) {
        status = gs_stream_wait(gs_device_stream(self->devices[d]), gs_deadline_in_seconds(30));
        if (!status.code)
            run_backward(&self->grads[d], gs_tensor_lists_of(params, d)->data,
                         gs_tensor_lists_of(tables, d)->data, x[d].tensor.data, y[d].tensor.data,
                         words[d].tensor.data, x[d].tensor.shape[0]);
    }
    for (size_t d = 0; d < self->num_devices; d++) {
        gs_held_tensor_release(&x[d]);
        gs_held_tensor_release(&y[d]);
    }
    return status;
}

static gs_status update_weight(trainer *self, float rate) {
    gs_device_tensor grads[MAX_DEVICES];
    gs_tensor_lists *sum;
    for (size_t d = 0; d < self->num_devices; d++)
        grads[d] = tensor_of(GS_FP32, NUM_INPUTS, 0, self->grads[d].weight, self->devices[d]);
    GS_TRY(gs_broadcast_backward(&sum, gs_model_copies_record(self->copies), grads,
                                 self->num_devices));
    const float *grad = gs_tensor_lists_of(sum, 0)->data;
    for (int i = 0; i < NUM_INPUTS; i++) self->weight[i] -= rate * grad[i];
    gs_tensor_lists_destroy(sum);
    return gs_ok();
}

static gs_status update_table(trainer *self, const gs_held_tensor words[MAX_DEVICES], float rate) {
    gs_sparse_tensor grads[MAX_DEVICES];
    gs_sparse_sum sum;
    for (size_t d = 0; d < self->num_devices; d++)
        grads[d] = (gs_sparse_tensor){
            words[d].tensor,
            tensor_of(GS_FP32, words[d].tensor.shape[0], 1, self->grads[d].rows, self->devices[d]),
            NUM_WORDS};
    GS_TRY(gs_reduce_add_sparse(&sum, grads, self->num_devices, NULL));
    const int32_t *indices = sum.indices.tensor.data;
    const float *rows = sum.values.tensor.data;
    for (int64_t i = 0; i < sum.indices.tensor.shape[0]; i++)
        self->table[indices[i]] -= rate * rows[i];
    gs_sparse_sum_release(&sum);
    return gs_ok();
}

static gs_status mean_loss(float *loss, trainer *self) {
    gs_device_tensor losses[MAX_DEVICES];
    gs_held_tensor all;
    for (size_t d = 0; d < self->num_devices; d++)
        losses[d] = tensor_of(GS_FP32, 0, 0, &self->grads[d].loss, self->devices[d]);
    GS_TRY(gs_gather(&all, losses, self->num_devices, NULL));
    *loss = 0;
    for (size_t d = 0; d < self->num_devices; d++)
        *loss += ((const float *)all.tensor.data)[d] / NUM_SAMPLES;
    gs_held_tensor_release(&all);
    return gs_ok();
}

static gs_status take_step(trainer *self, int step, unsigned short seed[3]) {
    batch drawn;
    gs_held_tensor words[MAX_DEVICES] = {0};
    const float rate = 0.1f / NUM_SAMPLES;
    float loss = 0;
    draw_batch(&drawn, seed);
    gs_status status = run_devices(self, &drawn, words);
    if (!status.code) status = update_weight(self, rate);
    if (!status.code) status = update_table(self, words, rate);
    if (!status.code) status = mean_loss(&loss, self);
    for (size_t d = 0; d < self->num_devices; d++) gs_held_tensor_release(&words[d]);
    // The model's own tensors have changed: their copies follow.
    for (size_t d = 1; d < self->num_devices && !status.code; d++) {
        gs_tensor_lists_refresh(gs_model_copies_params(self->copies), d);
        gs_tensor_lists_refresh(gs_model_copies_buffers(self->copies), d);
    }
    if (!status.code && step % 60 == 0) printf("step %3d: loss %.6f\n", step, (double)loss);
    return status;
}

static gs_status train(trainer *self) {
    const gs_device_tensor weight =
        tensor_of(GS_FP32, NUM_INPUTS, 0, self->weight, self->devices[0]);
    const gs_device_tensor table = tensor_of(GS_FP32, NUM_WORDS, 1, self->table, self->devices[0]);
    unsigned short seed[3] = {1, 2, 3};
    GS_TRY(gs_model_copies_create(&self->copies, &(gs_model_tables){&weight, &table, 1, 1},
                                  self->devices, self->num_devices));
    gs_status status = gs_ok();
    for (int step = 0; step < NUM_STEPS && !status.code; step++)
        status = take_step(self, step, seed);
    gs_model_copies_destroy(self->copies);
    if (!status.code)
        printf("weight %.3f to %.3f, words %.3f to %.3f on %zu devices\n", (double)self->weight[0],
               (double)self->weight[NUM_INPUTS - 1], (double)self->table[0],
               (double)self->table[NUM_WORDS - 1], self->num_devices);
    return status;
}

int main(int argc, char **argv) {
    static trainer self;
    int num_devices = argc > 1 ? atoi(argv[1]) : 3;
    if (num_devices < 1 || num_devices > MAX_DEVICES) return 2;
    gs_status status = gs_ok();
    for (; self.num_devices < (size_t)num_devices && !status.code; self.num_devices++)
        status = gs_device_open(&self.devices[self.num_devices], "cpu",
                                &(gs_device_options){.num_threads = 1});
    if (!status.code) status = train(&self);
    for (size_t d = 0; d < self.num_devices; d++) gs_device_close(self.devices[d]);
    if (status.code) fprintf(stderr, "local_devices: %s\n", status.message);
    return status.code != GS_OK;
}
