// Name → model: built from a job specification on a device.
#ifndef WORKER_MODELS_REGISTRY_H
#define WORKER_MODELS_REGISTRY_H

#include "core/status.h"
#include "gradsync/step/model.h"
#include "kernels/device.h"
#include "rpc/schema/job_spec.h"

// `micro_batch` rows at most in a pass. Borrows the device until gs_model_destroy. On a GPU a job of 16-bit
// precision gets a model that computes in 16 bits (gs_model.dtype) where there is one; on CPUs precision is
// which numbers fp32 kernels are given (gradsync/optim/mixed_precision.h).
GS_NODISCARD gs_status gs_model_create(gs_model *out, const gs_job_spec *spec, int64_t micro_batch,
                                       gs_device *device);

// The models themselves, for tests and embedders.
typedef struct gs_gpt2_options {
    int64_t layers, heads, channels, context, vocab;
    int64_t micro_batch, positions;  // the largest pass; positions ≤ context, 0: context
    double layer_drop;               // probability that a layer is left out; 0: never
    uint64_t seed;                   // of those draws
    gs_dtype dtype;  // GS_BF16, GS_FP16: what activations and pass->params are; unset: fp32
} gs_gpt2_options;
GS_NODISCARD gs_status gs_gpt2_create(gs_model *out, const gs_gpt2_options *options,
                                      gs_device *device);

typedef struct gs_mlp_options {
    const int64_t *dims;  // inputs, hidden…, classes
    int num_dims;         // at least 2
    bool batch_norm;
    bool hidden_bias;  // of layers that are followed by batch norm; the last layer always has one
    int64_t micro_batch;
} gs_mlp_options;
GS_NODISCARD gs_status gs_mlp_create(gs_model *out, const gs_mlp_options *options,
                                     gs_device *device);

#endif
