#include "worker/models/tensor_block.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

#define ALIGNMENT 64

static void add_tensor(gs_tensor_block *block, void *place, size_t rows, size_t cols,
                       size_t element_bytes) {
    size_t count, bytes, total;
    if (!block->tensors) block->tensors = calloc(GS_BLOCK_MAX_TENSORS, sizeof *block->tensors);
    if (!block->tensors || block->num_tensors == GS_BLOCK_MAX_TENSORS ||
        !gs_bytes_of(&count, rows, cols) || !gs_bytes_of(&bytes, count, element_bytes) ||
        bytes > SIZE_MAX - ALIGNMENT ||
        __builtin_add_overflow(block->bytes, gs_round_up(bytes, ALIGNMENT), &total)) {
        block->failed = true;
        return;
    }
    block->tensors[block->num_tensors].place = place;
    block->tensors[block->num_tensors].offset_bytes = block->bytes;
    block->num_tensors++;
    block->bytes = total;
}

void gs_tensor_block_add(gs_tensor_block *block, float **place, size_t rows, size_t cols) {
    add_tensor(block, place, rows, cols, sizeof **place);
}

void gs_tensor_block_add_of(gs_tensor_block *block, void *place, gs_dtype dtype, size_t rows,
                            size_t cols) {
    add_tensor(block, place, rows, cols, gs_dtype_bytes(dtype));
}

gs_status gs_tensor_block_alloc(gs_tensor_block *block, gs_device *device, const char *what) {
    if (block->failed)
        return gs_error(GS_INVALID_ARGUMENT, "%s: the model is too large or out of memory", what);
    gs_status status = gs_device_alloc(device, &block->memory, block->bytes);
    if (status.code) {
        block->memory = NULL;
        return gs_status_prefix(status, "%s: %zu bytes", what, block->bytes);
    }
    block->device = device;
    // Copied, since what lies there is a pointer to one type or another.
    for (size_t i = 0; i < block->num_tensors; i++) {
        void *tensor = (char *)block->memory + block->tensors[i].offset_bytes;
        memcpy(block->tensors[i].place, &tensor, sizeof tensor);
    }
    return gs_ok();
}

void gs_tensor_block_release(gs_tensor_block *block) {
    if (block->memory) gs_device_free(block->device, block->memory);
    free(block->tensors);
    *block = (gs_tensor_block){0};
}
