// cuDNN's attention behind the slot of 16 bits, where it was chosen (GS_CHOICE_CUDNN_ATTENTION) and is found. What it does
// not take, and everything without it, runs on the kernels of attention_half_*.cu, which are also its reference.
// C and C++; internal to kernels/cuda/.
//
// What the library makes of a shape is kept (a plan); that waits for its compiler, allocates, and happens outside of a
// capture alone. Memory that it works in is one block for all shapes, which grows with the largest; a block that a
// captured graph may name stays until close. Backward needs about 2·heads·positions² bytes for each sequence on sm_90.
#ifndef KERNELS_CUDA_ATTENTION_LIBRARY_H
#define KERNELS_CUDA_ATTENTION_LIBRARY_H

#include "kernels/cuda/types.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gs_cudnn_attention gs_cudnn_attention;

// *out stays NULL, with a warning, where there is no library.
//   stream  the compute stream, the only one that it serves; borrows until close
GS_NODISCARD gs_status gs_cudnn_attention_open(gs_cudnn_attention **out, gs_cuda_stream *stream);
//   idle  the device has nothing left to do; else handle and memory stay, since giving them back waits
void gs_cudnn_attention_close(gs_cudnn_attention *attention, bool idle);
// " cudnn=91900", or "" without it
void gs_cudnn_attention_describe(const gs_cudnn_attention *attention, char *text, size_t text_bytes);

// Tensors of the slot; forward: dqkv and dout are NULL.
typedef struct gs_cudnn_attention_job {
    const gs_attention *shape;
    gs_dtype dtype;
    void *out, *dqkv;  // out: read in backward
    const void *qkv, *dout;
    float *logsumexp;  // read in backward
} gs_cudnn_attention_job;

// True: enqueued, or the stream has failed. False: nothing was done, also where nobody chose it.
bool gs_cudnn_attention_run(gs_stream *stream, const gs_cudnn_attention_job *job);

#ifdef __cplusplus
}
#endif

#endif
