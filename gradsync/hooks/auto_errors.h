// What each way of sending a bucket would lose of its gradients: |sent − meant| / |meant|, 0 to 1.
#ifndef GRADSYNC_HOOKS_AUTO_ERRORS_H
#define GRADSYNC_HOOKS_AUTO_ERRORS_H

#include <stddef.h>

#include "core/hook_offers.h"
#include "kernels/device.h"

// No scale of codes is smaller: gradients of any size are coded alike.
#define GS_AUTO_LEAST_SCALE 0x1p-100

// `data` times `scale` is what travels, from each of world_size ranks. On the host; passes over all of it, block by block.
// 1: nothing of it can be sent so; all zeros lose nothing.
void gs_auto_errors_measure(double errors[GS_NUM_OFFERS], gs_device *device, const float *data, size_t count, float scale,
                            int world_size);

#endif
