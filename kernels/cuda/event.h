// Events of the CUDA device, as the backend's table has them (kernels/backend.h).
#ifndef KERNELS_CUDA_EVENT_H
#define KERNELS_CUDA_EVENT_H

#include "kernels/cuda/types.h"

GS_NODISCARD gs_status gs_cuda_event_create(gs_event **out, gs_device *device, bool timed);
void gs_cuda_event_destroy(gs_event *event);
void gs_cuda_event_record(gs_event *event, gs_stream *stream);
GS_NODISCARD gs_status gs_cuda_event_query(gs_event *event, bool *done);
GS_NODISCARD gs_status gs_cuda_event_elapsed(const gs_event *from, const gs_event *to, int64_t *ns);
void gs_cuda_event_wait(gs_stream *stream, gs_event *event);

#endif
