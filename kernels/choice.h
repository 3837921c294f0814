// Other ways of a GPU to the same result, which wait for a device to say whether they are faster. Each is off until a
// variable of the environment is 1 when the device is opened, so that one binary compares; a CPU has none of them.
//
// Where one changes the order of operations gs_device_arithmetic says that it is on: ranks of an exact job agree on it.
#ifndef KERNELS_CHOICE_H
#define KERNELS_CHOICE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/device_options.h"

typedef enum gs_choice {
    GS_CHOICE_SHARED_LOSS_ROWS = 0,  // GRADSYNC_CUDA_SHARED_LOSS_ROWS: softmax_loss reads a row once
    GS_CHOICE_RESIDUAL_IN_PRODUCT,   // GRADSYNC_CUDA_RESIDUAL_IN_PRODUCT: models of 16 bits add a branch to its residual in the
                                     // product that makes it, with one rounding less
    // GRADSYNC_CUDA_BIAS_GRAD_IN_PRODUCT: linear_grads may have cuBLASLt sum the bias's gradient while it multiplies: where
    // that was timed and takes less, or always where nothing is timed (GRADSYNC_MATMUL_TIMING=0)
    GS_CHOICE_BIAS_GRAD_IN_PRODUCT,
    // GRADSYNC_CUDA_FACTOR_ON_DEVICE: a trainer enqueues its update behind grad_factor, before it knows the norm
    GS_CHOICE_FACTOR_ON_DEVICE,
    GS_CHOICE_CUDNN_ATTENTION,  // GRADSYNC_CUDA_CUDNN_ATTENTION: attention of 16 bits by cuDNN; not under same_bits
    GS_NUM_CHOICES
} gs_choice;

// Those that the environment asks for, a bit for each.
unsigned gs_choices_from_environment(void);
bool gs_device_chooses(const gs_device *device, gs_choice choice);
// " residual_in_product …": those that change bits.
void gs_choices_describe(unsigned choices, char *text, size_t text_bytes);

#endif
