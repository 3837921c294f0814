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
// With `splits_masters` there is no fp32 copy: a master lies in two halves, its bf16 parameter and 16 bits
// of remainder (kernels.h, gs_adamw_item), 4 bytes an element in all, and the update writes both.
//
// On a GPU kernels of 16 bits read `params` and write fp32 main gradients themselves: no pass_grads, no
// finish_grad, values are not kept. bf16 under Adam or AdamW splits its masters; fp16, and bf16 under other
// optimizers, has fp32 masters and one launch that writes params behind the update. Everything here is
// enqueued on the compute stream but read and write, which wait.
//
// A rank that owns segments of the state has masters (or remainders) of those alone. Params and values are
// whole on every rank: write_back and step change what belongs to the segments, the rest comes from its
// owners: into places that the caller gives for params (as gs_param_gather_params are), and from there into
// values by take_param. At first put_param makes them, from masters that a file has.
//
// On CPUs all kernels compute in fp32, on `values`: precision there means which numbers parameters
// and gradients can be, not faster arithmetic; activations are not rounded.
//
// Threads: one at a time, any, create and destroy included; the device is that one's meanwhile.
#ifndef GRADSYNC_OPTIM_MIXED_PRECISION_H
#define GRADSYNC_OPTIM_MIXED_PRECISION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/dtype.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "gradsync/optim/optimizer.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_mixed_precision gs_mixed_precision;

typedef struct gs_mixed_precision_options {
    gs_dtype dtype;               // GS_FP16 or GS_BF16
    const gs_param_spec *params;  // for their shapes; looked at by create alone
    size_t num_params;
    // One for each segment; borrowed, the list and what it points to, until destroy.
    float *const *masters;
    // GS_BF16 alone: masters (NULL) are params and remainders, kept here; keeps_values is not for it.
    bool splits_masters;
    bool keeps_params;  // 2 bytes an element
    bool keeps_values;  // 4 bytes an element
    bool adds_passes;   // some pass adds to main gradients: memory for one pass, 4 bytes an element
    gs_device *device;  // borrows until destroy
    // What has its masters here, as the optimizer has it; copied. NULL: all of every parameter.
    const gs_segment *segments;
    size_t num_segments;
    // Where each parameter lies in its 16 bits, if they are kept or halves of masters: memory of the device that is
    // borrowed until destroy, on 32 bytes, zeros or any numbers at first. NULL: here.
    void *const *places;
} gs_mixed_precision_options;

// Params and values lie in one block each, tensors on boundaries of 64 bytes, zero until
// write_back.
GS_NODISCARD gs_status gs_mixed_precision_create_sized(gs_mixed_precision **out,
                                                       const gs_mixed_precision_options *options,
                                                       size_t options_bytes);
GS_NODISCARD static inline gs_status
gs_mixed_precision_create(gs_mixed_precision **out, const gs_mixed_precision_options *options) {
    return gs_mixed_precision_create_sized(out, options, sizeof *options);
}
void gs_mixed_precision_destroy(gs_mixed_precision *mixed);
// On a CPU: places of the caller's (options) are these from now on, with the same values in them.
void gs_mixed_precision_move(gs_mixed_precision *mixed, void *const *places);

gs_dtype gs_mixed_precision_dtype(const gs_mixed_precision *mixed);
// num_params tensors of `dtype`, of fp32; NULL where they are not kept.
void *const *gs_mixed_precision_params(const gs_mixed_precision *mixed);
void *const *gs_mixed_precision_values(const gs_mixed_precision *mixed);

// Lower halves of masters, one for each segment; NULL unless they are split.
uint16_t *const *gs_mixed_precision_remainders(const gs_mixed_precision *mixed);
// Upper halves: where each segment lies in params; NULL unless masters are split.
uint16_t *const *gs_mixed_precision_uppers(const gs_mixed_precision *mixed);
// Where both halves lie, one block of the device's memory with zeros between tensors: equal masters have
// equal blocks. NULL unless they are split, and with places of the caller's.
void *gs_mixed_precision_halves(const gs_mixed_precision *mixed, size_t *bytes);

// params and values = the masters, rounded to nearest even. After every change of masters; nothing to do
// when they are split.
void gs_mixed_precision_write_back(gs_mixed_precision *mixed);
// The same behind a change of these parameters' masters alone.
void gs_mixed_precision_write_back_params(gs_mixed_precision *mixed, const size_t *which,
                                          size_t num_which);

// values = params, of one parameter: others have changed it in its place. Nothing to do without values.
void gs_mixed_precision_take_param(gs_mixed_precision *mixed, size_t param);
// Params, of elements [first, first + count) of one whose masters may be elsewhere: masters in host memory,
// rounded as their owner rounds them. Done when it returns. INVALID_ARGUMENT: there are no such elements, or
// params are not kept.
GS_NODISCARD gs_status gs_mixed_precision_put_param(gs_mixed_precision *mixed, size_t param,
                                                    size_t first, const float *host, size_t count);

// One update of the masters, whatever their form, and write_back; grads are those of the segments.
GS_NODISCARD gs_status gs_mixed_precision_step(gs_mixed_precision *mixed, gs_optimizer *optimizer,
                                               void *const *grads, const uint8_t *used, float lr,
                                               float grad_scale);
// The same of the parameters `which` alone, as gs_optimizer_step_params.
GS_NODISCARD gs_status gs_mixed_precision_step_params(gs_mixed_precision *mixed,
                                                      gs_optimizer *optimizer, const size_t *which,
                                                      size_t num_which, void *const *grads,
                                                      const uint8_t *used, float lr,
                                                      float grad_scale);

// Elements [first, first + count) of a parameter's master as fp32 in host memory, whatever its form: for
// checkpoints, initial values, digests. Done when they return; after the last write: write_back.
// INVALID_ARGUMENT when some of them have no master here.
GS_NODISCARD gs_status gs_mixed_precision_read(const gs_mixed_precision *mixed, float *host,
                                               size_t param, size_t first, size_t count);
GS_NODISCARD gs_status gs_mixed_precision_write(gs_mixed_precision *mixed, size_t param,
                                                size_t first, const float *host, size_t count);

// Where a pass writes its gradients, overwriting what is there: `main_grads` themselves, or when it
// is to add to them (`accumulate`) memory of its own. NULL: it may not add (adds_passes).
void *const *gs_mixed_precision_pass_grads(const gs_mixed_precision *mixed, void *const *main_grads,
                                           bool accumulate);
// The gradient of one parameter is final there: rounded to 16 bits, and added to the main gradient
// when `accumulate`. Before it is marked ready.
void gs_mixed_precision_finish_grad(const gs_mixed_precision *mixed, void *const *main_grads,
                                    bool accumulate, size_t param);

GS_END_DECLS

#endif
