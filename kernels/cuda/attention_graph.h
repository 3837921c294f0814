// Causal self-attention as cuDNN is told of it: a graph of products, reductions and pointwise operations, in the pattern
// that its fused kernels are found by (cuDNN's documentation, "fused flash attention").
//
// The layouts are the slot's (kernels.h): heads lie inside a row of qkv, logsumexp is the library's "stats". Backward is
// the deterministic one: dQ is written by its product, not added up beside it.
//
// Everything here describes: nothing runs, and no device is asked but for its properties by the handle.
#ifndef KERNELS_CUDA_ATTENTION_GRAPH_H
#define KERNELS_CUDA_ATTENTION_GRAPH_H

#include "core/dtype.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/kernels.h"

// Names of the tensors that have memory, for a pack of pointers.
typedef enum gs_attention_tensor {
    GS_ATTENTION_Q = 1,
    GS_ATTENTION_K,
    GS_ATTENTION_V,
    GS_ATTENTION_OUT,
    GS_ATTENTION_LOGSUMEXP,
    GS_ATTENTION_DOUT,
    GS_ATTENTION_DQ,
    GS_ATTENTION_DK,
    GS_ATTENTION_DV,
    GS_ATTENTION_WEIGHTED,  // Σ dout · out of each row, fp32: backward's own
    GS_ATTENTION_SCALE,     // numbers of the host
    GS_ATTENTION_HIDDEN,
    GS_ATTENTION_ONE,
    GS_ATTENTION_VIRTUAL    // from here on: without memory
} gs_attention_tensor;

#define GS_ATTENTION_MAX_DESCRIPTORS 96

typedef struct gs_attention_graph {
    const gs_cudnn *dnn;  // borrows
    cudnnBackendDescriptor_t made[GS_ATTENTION_MAX_DESCRIPTORS];  // owns
    int num_made;
    cudnnBackendDescriptor_t graph;  // one of them
    size_t weighted_count;           // elements of GS_ATTENTION_WEIGHTED; 0 forward
} gs_attention_graph;

//   handle  may be NULL where nothing will run, and the library is new enough not to want it
// UNIMPLEMENTED or INVALID_ARGUMENT with the library's word where it does not take it. Release after an error, too.
GS_NODISCARD gs_status gs_attention_graph_init(gs_attention_graph *out, const gs_cudnn *dnn,
                                               cudnnHandle_t handle, const gs_attention *shape,
                                               gs_dtype dtype, bool backward);
void gs_attention_graph_release(gs_attention_graph *graph);

#endif
