// Copies between the host's memory and the device's, as the backend's table has them (kernels/backend.h).
#ifndef KERNELS_CUDA_STAGING_H
#define KERNELS_CUDA_STAGING_H

#include "kernels/cuda/types.h"

struct gs_cuda_staging;
GS_NODISCARD gs_status gs_cuda_staging_create(struct gs_cuda_staging **out, gs_cuda_device *device);
// idle: the device has nothing to do; else the pinned buffers stay, since freeing them would wait for it.
void gs_cuda_staging_destroy(struct gs_cuda_staging *staging, bool idle);
// In the order of the compute stream; done when it returns.
GS_NODISCARD gs_status gs_cuda_transfer(gs_device *device, void *to, const void *from, size_t bytes,
                                        gs_copy_direction direction);

#endif
