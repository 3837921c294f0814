// Parameters of 16 bits beside fp32 masters and fp32 main gradients.
//
//   masters, fp32 ── write_back, one rounding ──▶ params, 16 bits: for kernels of that type
//      ▲                                    └──▶ values, fp32: the same, for fp32 kernels
//   optimizer ◀── main gradient, fp32 ◀── finish_grad, one rounding ── gradient of a pass
//
// The masters are the truth: what the optimizer changes, checkpoints keep and ranks compare. Params
// and values are functions of them. A pass hands out its gradient as kernels of 16 bits would:
// rounded to them once, infinite where they overflow; what adds up (passes, ranks) is fp32.
//
// On CPUs all kernels compute in fp32, on `values`: precision there means which numbers parameters
// and gradients can be, not faster arithmetic; activations are not rounded.
#ifndef GRADSYNC_MIXED_PRECISION_H
#define GRADSYNC_MIXED_PRECISION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "kernels/device.h"

typedef struct gs_mixed_precision gs_mixed_precision;

typedef struct gs_mixed_precision_options {
    gs_dtype dtype;               // GS_FP16 or GS_BF16
    const gs_param_spec *params;  // for their shapes; looked at by create alone
    size_t num_params;
    float *const
        *masters;  // num_params tensors; borrowed, the list and what it points to, until destroy
    bool keeps_params;  // 2 bytes an element
    bool keeps_values;  // 4 bytes an element
    bool adds_passes;   // some pass adds to main gradients: memory for one pass, 4 bytes an element
    gs_device *device;  // borrows until destroy
} gs_mixed_precision_options;

// Params and values lie in one block each, tensors on boundaries of 64 bytes, zero until
// write_back.
GS_NODISCARD gs_status gs_mixed_precision_create(gs_mixed_precision **out,
                                                 const gs_mixed_precision_options *options);
void gs_mixed_precision_destroy(gs_mixed_precision *mixed);

gs_dtype gs_mixed_precision_dtype(const gs_mixed_precision *mixed);
// num_params tensors of `dtype`, of fp32; NULL where they are not kept.
void *const *gs_mixed_precision_params(const gs_mixed_precision *mixed);
void *const *gs_mixed_precision_values(const gs_mixed_precision *mixed);

// params and values = the masters, rounded to nearest even. After every change of masters.
void gs_mixed_precision_write_back(gs_mixed_precision *mixed);

// Where a pass writes its gradients, overwriting what is there: `main_grads` themselves, or when it
// is to add to them (`accumulate`) memory of its own. NULL: it may not add (adds_passes).
float *const *gs_mixed_precision_pass_grads(const gs_mixed_precision *mixed,
                                            float *const *main_grads, bool accumulate);
// The gradient of one parameter is final there: rounded to 16 bits, and added to the main gradient
// when `accumulate`. Before it is marked ready.
void gs_mixed_precision_finish_grad(const gs_mixed_precision *mixed, float *const *main_grads,
                                    bool accumulate, size_t param);

#endif
