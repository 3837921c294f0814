// Many tensors in one allocation: what a model keeps of a pass. Layout first, then memory: a model
// lists its tensors once, with their counts; the block gives each a place on a 64-byte boundary.
#ifndef WORKER_MODELS_TENSOR_BLOCK_H
#define WORKER_MODELS_TENSOR_BLOCK_H

#include <stddef.h>

#include "core/dtype.h"
#include "core/status.h"
#include "kernels/device.h"

#define GS_BLOCK_MAX_TENSORS 4096

typedef struct gs_tensor_block {
    struct {
        void *place; // borrowed: where the pointer is stored
        size_t offset_bytes;
    } * tensors; // owned
    size_t num_tensors;
    size_t bytes;
    void *memory; // owned by the device
    gs_device *device;
    bool failed;   // a count overflowed or there are too many tensors
} gs_tensor_block; // {0} is empty

// *place will point to rows · cols floats.
void gs_tensor_block_add(gs_tensor_block *block, float **place, size_t rows, size_t cols);
// The same of another type; `place` is the address of a pointer.
void gs_tensor_block_add_of(gs_tensor_block *block, void *place, gs_dtype dtype, size_t rows,
                            size_t cols);
// Allocates and fills in all places.
GS_NODISCARD gs_status gs_tensor_block_alloc(gs_tensor_block *block, gs_device *device,
                                             const char *what);
void gs_tensor_block_release(gs_tensor_block *block);

#endif
