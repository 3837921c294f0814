// The model contract: what a model tells the trainer, and what a pass over one micro-batch is.
//
// Memory is the host's: parameters, gradients and buffers are handed in, so that gradients can live in
// the reducer's buckets and parameters in one flat block. A model owns its activations, made once in
// create for the largest micro-batch; a pass allocates nothing.
#ifndef GRADSYNC_STEP_MODEL_H
#define GRADSYNC_STEP_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/abi.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

// One micro-batch. Token models read `tokens` (rows · positions), others `features`
// (rows · row_features); targets: (rows · positions) or (rows). Device memory.
typedef struct gs_batch {
    size_t rows;       // samples
    size_t positions;  // tokens of a sample; 1 for a classifier
    size_t row_features;
    const int32_t *tokens;
    const float *features;
    const int32_t *targets;
} gs_batch;

typedef struct gs_model_param {
    gs_param_spec spec;
    bool decays;  // weight decay applies: everything with two dimensions
    // Backward writes its gradient long before that is final, as that of tied weights: others are
    // written about when they are ready.
    bool opens_early;
} gs_model_param;

// Statistics over the rows of all ranks (synchronised batch norm); gradsync/step/batch_sync.h makes one. Host
// memory. Each call is one collective: every rank makes the same calls in the same order.
typedef struct gs_model_sync {
    // In: rows of this pass here and, of each channel, the mean and Σ(x − mean)² over them. Out: the same
    // over the rows of all ranks.
    gs_status (*combine)(void *ctx, double *rows, double *mean, double *m2, size_t channels);
    gs_status (*sum)(void *ctx, double *values, size_t count);  // over ranks, in place
    void *ctx;
} gs_model_sync;

// Where a gradient goes that is a few rows of a large parameter: an embedding's. Called in backward; rows
// in order of positions, with duplicates.
typedef struct gs_row_sink {
    // Rows that will come, all of the pass, before any gradient is ready.
    void (*touch)(void *ctx, size_t param, const int32_t *rows, size_t num_rows);
    // values (num_rows, columns), grad_factor in them, are added.
    void (*add)(void *ctx, size_t param, const int32_t *rows, const float *values, size_t num_rows);
    void *ctx;
} gs_row_sink;

typedef struct gs_model_pass {
    const gs_batch *batch;
    bool training;  // batch statistics, buffers move; else evaluation
    int64_t step;
    int shard;  // logical shard, for random numbers keyed by (seed, step, shard, layer)
    void *const *params;               // values, in the model's order and of its dtype
    const void *const *buffers;        // the values that this pass starts from
    void *const *next_buffers;         // written beside; only when training
    // Called before forward reads a parameter for the first time; an error of it ends forward. NULL: all are there.
    gs_status (*reads)(void *ctx, size_t param);
    void *reads_ctx;
    // backward:
    // One for each parameter; NULL: it is frozen, and its gradient is neither written nor spoken of.
    void *const *grads;
    bool accumulate;      // add to what is there; false: overwrite
    float grad_factor;    // of d loss; 1 gives the gradient of the mean loss of this micro-batch
    // Called for each parameter before backward writes its gradient for the first time in the pass;
    // may be NULL, and may wait: until then the memory may be that of other gradients
    // (gs_reducer_open_grad). An error of it ends backward, for it still is.
    gs_status (*writes)(void *ctx, size_t param);
    void *writes_ctx;
    // Called once for each parameter of the pass, as soon as its gradient is final; may be NULL.
    void (*ready)(void *ctx, size_t param);
    void *ready_ctx;
    // Called when backward reads a parameter no more, at the latest with its end for those of which it says nothing;
    // may be NULL. The values may change from then on.
    void (*released)(void *ctx, size_t param);
    void *released_ctx;
    // Called at the start of backward for each parameter that this pass leaves out (layer_drop), which is
    // then neither ready nor written. NULL: it is zeroed unless the pass accumulates.
    void (*skipped)(void *ctx, size_t param);
    void *skipped_ctx;
    // Takes the row-sparse part of gradients; what remains in `grads` is ready without it. NULL: all of a
    // gradient goes to `grads`. Models without embeddings ignore it.
    const gs_row_sink *sparse;
    // Statistics of the batch are those of all ranks' rows; NULL: of this pass's alone. Gradients then are
    // those of the sum over ranks of loss · grad_factor, so that grad_factor is the number of rows.
    const gs_model_sync *sync;
    // Where forward adds its mean loss, on the stream, without waiting for it: pinned memory, read after a
    // wait. NULL: forward waits and says its results below.
    double *loss_sum;
    // Results of forward; 0 with loss_sum:
    double loss;          // mean over rows · positions
    int64_t num_correct;  // classifiers: rows whose best class is the target
} gs_model_pass;

// For models: `count` parameters from `first` on are read next.
GS_NODISCARD static inline gs_status gs_model_reads(const gs_model_pass *pass, size_t first,
                                                    size_t count) {
    for (size_t i = 0; pass->reads && i < count; i++)
        GS_TRY(pass->reads(pass->reads_ctx, first + i));
    return gs_ok();
}

// For models: backward writes the gradient of a parameter from now on, if it trains.
GS_NODISCARD static inline gs_status gs_model_writes(const gs_model_pass *pass, size_t param) {
    return pass->writes && pass->grads[param] ? pass->writes(pass->writes_ctx, param) : gs_ok();
}

// For models: whether backward has anything to do for `count` parameters from `first` on.
static inline bool gs_model_trains(const gs_model_pass *pass, size_t first, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (pass->grads[first + i]) return true;
    }
    return false;
}

typedef struct gs_model_ops {
    const char *name;
    // Parameters in registration order; pointers live as long as the model.
    const gs_model_param *(*params)(void *model, size_t *num_params);
    const gs_param_spec *(*buffers)(void *model, size_t *num_buffers);
    // Draws initial values from counters keyed by (seed, parameter): the same on every rank. fp32, whatever
    // the model's dtype.
    gs_status (*init)(void *model, void *const *params, void *const *buffers, uint64_t seed);
    gs_status (*forward)(void *model, gs_model_pass *pass);
    // After forward of the same pass. Calls pass->ready as gradients become final.
    gs_status (*backward)(void *model, gs_model_pass *pass);
    // Forward without targets: the logits of the last position of each row (token models) or of each row
    // (classifiers), (rows, classes), host memory, valid until the next pass.
    gs_status (*predict)(void *model, gs_model_pass *pass, const float **logits,
                         size_t *num_classes);
    size_t (*activation_bytes)(void *model);
    double (*flops_per_sample)(void *model);  // forward and backward
    // Whether a pass of the same pointers and scalars gives its device the same work, so that a graph of it
    // may be launched again (worker/pass/pass_graph.h). NULL: never.
    bool (*repeats)(void *model, const gs_model_pass *pass);
    void (*destroy)(void *model);
} gs_model_ops;

typedef struct gs_model {
    const gs_model_ops *ops;
    void *state;  // owned; ops->destroy releases it
    // What passes compute in: the type of activations and of pass->params. GS_BF16 or GS_FP16, else fp32.
    gs_dtype dtype;
} gs_model;

static inline void gs_model_destroy(gs_model *model) {
    if (model->ops) model->ops->destroy(model->state);
    memset(model, 0, sizeof *model);
}

GS_END_DECLS

#endif
