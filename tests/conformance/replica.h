// One rank that trains with the product's own parts: communicator, reducer, buffers, commit, optimizer; on the
// CPU, or on the device that tests/support/test_device.h says.
#ifndef TESTS_CONFORMANCE_REPLICA_H
#define TESTS_CONFORMANCE_REPLICA_H

#include "gradsync/optim/optimizer.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/step/buffers.h"
#include "gradsync/step/commit.h"
#include "gradsync/step/join.h"
#include "gradsync/step/model.h"
#include "rpc/checkpoint/safetensors.h"
#include "tests/conformance/replica_shards.h"
#include "tests/support/ranks.h"

#define REPLICA_MAX_PARAMS 64

typedef struct replica_options {
    const gs_rank_env *env;
    int passes_per_shard;
    gs_optimizer_options optimizer;
    bool decay_all; // else two-dimensional parameters only
    bool zero_grads; // a gradient that nobody gave is zero once it has existed; else undefined
    bool uneven; // ranks may have no batch in a step
    gs_join_divisor divisor; // then
    uint64_t first_bucket_bytes, bucket_cap_bytes;
    const gs_bucket_plan *plan;  // NULL: by these two limits
    const replica_shards_options *sharded;  // NULL: every rank has everything
} replica_options;

typedef struct replica {
    int rank, world_size, passes_per_shard;
    gs_device *device;
    gs_model model;
    gs_comm *comm;
    gs_arena *arena;
    gs_reducer *reducer;
    gs_optimizer *optimizer;
    gs_buffers *buffers;
    gs_join *join; // NULL: every rank has a batch in every step
    replica_shards shards;  // empty: every rank has everything
    bool zero_grads;
    gs_param_spec specs[REPLICA_MAX_PARAMS];
    const gs_param_spec *buffer_specs;
    size_t num_params, num_buffers;
    void *params[REPLICA_MAX_PARAMS];  // while sharded, others' arrive behind a step: replica_await
    void *stage;  // of one batch, device memory
    size_t stage_bytes;
    int64_t step;
    // Of the last step:
    double losses[16]; // of each own micro-batch
    double commit_loss, grad_norm;
    uint8_t has_grad[REPLICA_MAX_PARAMS]; // on all ranks alike: what the optimizer updates
} replica;

// What a step asks of its owner between reduction and update; may be NULL.
typedef gs_status (*replica_check)(void *ctx, replica *self);

// `make_model` fills the model on self->device. The values of parameters and buffers are zero then;
// fill them and call replica_share.
GS_NODISCARD gs_status replica_open(replica *self, const replica_options *options,
                                    gs_status (*make_model)(void *ctx, gs_model *model,
                                                            gs_device *device),
                                    void *ctx);
// A tensor of the device's memory from and to the host's.
GS_NODISCARD gs_status replica_write(replica *self, void *tensor, const void *host, size_t bytes);
GS_NODISCARD gs_status replica_read(const replica *self, void *host, const void *tensor, size_t bytes);
// A batch of host memory where the model reads it; valid until the next one is staged.
GS_NODISCARD gs_status replica_stage(replica *self, gs_batch *staged, const gs_batch *batch);
// Rank 0's parameters and buffers, everywhere.
GS_NODISCARD gs_status replica_share(replica *self);
// One step over `passes_per_shard` batches; NULL: this rank has none and shadows the others. grad_clip
// 0: off. Checks that parameters and gradients are the same bits on all ranks; sharded: parameters.
GS_NODISCARD gs_status replica_step(replica *self, const gs_batch *batches, float lr,
                                    double grad_clip, replica_check check, void *ctx);
// Every parameter is what the last step made of it, on this rank too.
GS_NODISCARD gs_status replica_await(const replica *self);
// With uneven inputs, when no rank has a batch left: the end state.
GS_NODISCARD gs_status replica_finish(replica *self);
void replica_close(replica *self);

// Reading the vectors: a tensor as floats (copied: files give no alignment), a setting of the
// metadata.
GS_NODISCARD gs_status vector_floats(float **values, size_t *count, const gs_safetensors *file,
                                     const char *format, ...) GS_PRINTF(4, 5);
double vector_number(const gs_safetensors *file, const char *key); // 0 when absent
// Slice `at` of a tensor whose leading dimensions are flattened; its name is `prefix` and `name`.
GS_NODISCARD gs_status vector_slice(void *to, size_t bytes, const gs_safetensors *file,
                                    const char *prefix, const char *name, size_t at);
gs_optimizer_options vector_optimizer(const gs_safetensors *file); // of the metadata

// An ok status when the largest distance is at most absolute + relative · max(floor, largest
// wanted), and no value is NaN or infinite.
typedef struct tolerance {
    double absolute, relative, floor;
} tolerance;
GS_NODISCARD gs_status compare_floats(const char *what, const float *got, const float *wanted,
                                      size_t count, tolerance allowed);

#endif
