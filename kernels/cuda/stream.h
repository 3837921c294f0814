// Streams of the CUDA device, as the backend's table has them (kernels/backend.h).
#ifndef KERNELS_CUDA_STREAM_H
#define KERNELS_CUDA_STREAM_H

#include "kernels/cuda/types.h"

GS_NODISCARD gs_status gs_cuda_stream_create(gs_stream **out, gs_device *device,
                                             gs_stream_priority priority);
void gs_cuda_stream_destroy(gs_stream *stream);
GS_NODISCARD gs_status gs_cuda_stream_wait(gs_stream *stream, gs_deadline deadline);
void gs_cuda_stream_take_reports(gs_stream *stream);
void *gs_cuda_stream_native(gs_stream *stream);
void gs_cuda_stream_follow(gs_stream *follower, gs_stream *leader);
// Whether all streams of the device have nothing left to do, or are past saving, by the deadline; at once
// where the wait before this one was in vain.
bool gs_cuda_streams_idle(gs_cuda_device *device, gs_deadline deadline);
GS_NODISCARD gs_status gs_cuda_is_capturing(bool *capturing, gs_cuda_stream *stream);

#endif
