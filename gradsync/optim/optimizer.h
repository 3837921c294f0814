// Optimizers over flat memory: parameters and state each in one block, one update a step.
//
// What is updated are segments: a rank that owns a part of the state keeps and steps that part alone, which
// may begin inside a parameter. Counts of updates and weight decay are the parameter's. Every element takes
// the bits that it has when one rank steps everything.
//
// The state may lie in the host's memory, to leave a GPU's to others: then the host updates, and a step
// brings gradients and parameters there and parameters back, and waits for gradients (host_update.h). It
// may move there for a while, and back.
//
// On a GPU parameters, gradients and state are its memory, a step is enqueued on the compute stream and not
// waited for: Adam and AdamW in one launch for all parameters, whose table is made once. Counts of updates
// are the host's memory.
//
// Threads: one at a time, any, create and destroy included; the device is that one's meanwhile.
//
// To add one: a file in gradsync/optim/, a line in the table of optimizer.c.
#ifndef GRADSYNC_OPTIM_OPTIMIZER_H
#define GRADSYNC_OPTIM_OPTIMIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/param_spec.h"
#include "core/segment.h"
#include "core/status.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_optimizer gs_optimizer;

typedef struct gs_optimizer_options {
    const char *kind;  // "adamw", "adam", "sgd"
    float beta1, beta2, eps, weight_decay;
    float momentum, dampening;
    bool nesterov;
    // What a parameter has that no rank used: false: no gradient, and it is skipped; true: a
    // gradient of zero, once it has had one: momentum, decay and counts go on. Its gradient's
    // memory must then be zero.
    bool unused_is_zero;
    // What is updated here, in order of parameter and element, apart from each other; copied. NULL: all of
    // every parameter, segment i is parameter i.
    const gs_segment *segments;
    size_t num_segments;
    // On a GPU: the state lies in pinned memory of the host from the beginning (gs_optimizer_move_state).
    bool state_on_host;
    char reserved[3];  // 0
    int host_threads;  // for updates by the host; 0: one
} gs_optimizer_options;  // values are taken as they are: the defaults are the caller's

// State for the segments of `num_params` parameters, zeroed. `decays[i]`: weight decay applies to
// parameter i.
GS_NODISCARD gs_status gs_optimizer_create_sized(gs_optimizer **out,
                                                 const gs_optimizer_options *options,
                                                 size_t options_bytes, const gs_param_spec *params,
                                                 const bool *decays, size_t num_params,
                                                 gs_device *device);
GS_NODISCARD static inline gs_status gs_optimizer_create(gs_optimizer **out,
                                                         const gs_optimizer_options *options,
                                                         const gs_param_spec *params,
                                                         const bool *decays, size_t num_params,
                                                         gs_device *device) {
    return gs_optimizer_create_sized(out, options, sizeof *options, params, decays, num_params,
                                     device);
}
void gs_optimizer_destroy(gs_optimizer *optimizer);

// One update in place: params[i] and grads[i] are where segment i begins. Parameters with used[p] == 0
// are skipped, state and step count too (used NULL: all), unless unused_is_zero. A parameter of which
// nothing lies here is counted like one that does, so that all ranks hold the same counts; grads[i] NULL
// is none: whoever has the rows of that parameter updates it. `grad_scale` multiplies every gradient as it
// is read (clipping, unscaling).
GS_NODISCARD gs_status gs_optimizer_step(gs_optimizer *optimizer, void *const *params,
                                         void *const *grads, const uint8_t *used, float lr,
                                         float grad_scale);

// The same update of the parameters `which` alone, each named once; lists are those of a step. A step that is taken
// in several calls, each parameter in one of them, leaves the bits and counts of one call for all.
GS_NODISCARD gs_status gs_optimizer_step_params(gs_optimizer *optimizer, const size_t *which,
                                                size_t num_which, void *const *params,
                                                void *const *grads, const uint8_t *used, float lr,
                                                float grad_scale);

// Which parameters are stepped from now on; a flag for each, copied; NULL: all, as at first. The others stay as they
// are, whatever a step says of them: values, state and count, no decay and no momentum, until they are stepped again.
void gs_optimizer_set_trainable(gs_optimizer *optimizer, const bool *trainable);
// Whether a step of gradients `used` (NULL: all) changes a parameter, now or when it was the last one: frozen ones rest, and
// so do unused ones, unless they go on by unused_is_zero.
bool gs_optimizer_moves(const gs_optimizer *optimizer, size_t param, const uint8_t *used);

// Whether there is an update of masters that lie in two halves: "adam" and "adamw", on the device.
bool gs_optimizer_takes_halves(const gs_optimizer_options *options);
// The same step on fp32 masters in two halves of 16 bits (kernels.h, gs_adamw_item): `values` are bf16, what
// kernels read; one of each list for each segment. INVALID_ARGUMENT for a kind that takes none.
GS_NODISCARD gs_status gs_optimizer_step_halves(gs_optimizer *optimizer, uint16_t *const *values,
                                                uint16_t *const *remainders, void *const *grads,
                                                const uint8_t *used, float lr, float grad_scale);
GS_NODISCARD gs_status gs_optimizer_step_halves_params(gs_optimizer *optimizer, const size_t *which,
                                                       size_t num_which, uint16_t *const *values,
                                                       uint16_t *const *remainders,
                                                       void *const *grads, const uint8_t *used,
                                                       float lr, float grad_scale);

// What it updates here, in order of parameter and element.
const gs_segment *gs_optimizer_segments(const gs_optimizer *optimizer, size_t *num_segments);
size_t gs_optimizer_num_params(const gs_optimizer *optimizer);

// Moves the state to pinned memory of the host, or back to the device's, between steps; values stay.
// Nothing to do where it is there already, and on the CPU. Before it moves nothing may be under way that
// reads it; pointers to it are others afterwards. After an error it is where it was. FAILED_PRECONDITION of
// one that steps early (early_step.h).
GS_NODISCARD gs_status gs_optimizer_move_state(gs_optimizer *optimizer, bool to_host);
bool gs_optimizer_state_is_on_host(const gs_optimizer *optimizer);  // reached by it as its own memory

// What a checkpoint keeps: state `which` ("exp_avg", "exp_avg_sq", "momentum_buffer") of each segment,
// fp32, and each parameter's number of updates.
int gs_optimizer_state_count(const gs_optimizer *optimizer);
const char *gs_optimizer_state_name(const gs_optimizer *optimizer, int which);
float *gs_optimizer_state(const gs_optimizer *optimizer, int which, size_t segment);  // until the next step
int64_t *gs_optimizer_num_updates(const gs_optimizer *optimizer);  // num_params of them

// The contract for authors of optimizers: values only, the state is gs_optimizer's.
#define GS_OPTIMIZER_MAX_STATES 2

// A run of memory that takes one update: segments that share everything below.
typedef struct gs_optimizer_run {
    float *param;
    uint16_t *value, *remainder;  // instead of it, when masters are in halves
    const float *grad;
    float *state[GS_OPTIMIZER_MAX_STATES];
    // NULL: the update is in place. Else `was` becomes what `param` was, and the next states are
    // written here; masters are fp32.
    float *was, *next_state[GS_OPTIMIZER_MAX_STATES];
    size_t count;
    int64_t num_updates;  // before this one
    float weight_decay;
    float lr, grad_scale;
} gs_optimizer_run;

typedef struct gs_optimizer_method {
    const char *kind;
    // Names of the states that these options need, NULL behind the last.
    const char *const *(*state_names)(const gs_optimizer_options *options);
    // INVALID_ARGUMENT names the option.
    gs_status (*check)(const gs_optimizer_options *options);
    void (*update)(gs_device *device, const gs_optimizer_options *options,
                   const gs_optimizer_run *run);
    // The same update as an item of one launch for many runs, and what all runs of a step have in common.
    // False: this kind has no such launch, and none for masters in halves.
    bool (*describe)(gs_adamw_item *item, gs_adamw *step, const gs_optimizer_options *options,
                     const gs_optimizer_run *run);
} gs_optimizer_method;

GS_END_DECLS

// Where an update that can be taken back leaves what parameters were: of segment i from
// memory + offsets[i] on.
typedef struct gs_optimizer_kept {
    float *memory;  // of the device
    const size_t *offsets;
} gs_optimizer_kept;

// Memory for updates that can be taken back: states once more, the optimizer's until its end. Before the first.
GS_NODISCARD gs_status gs_optimizer_make_beside(gs_optimizer *optimizer);
// gs_optimizer_step_params, where states are written beside those that were, which stay; from here
// on those beside are the state.
GS_NODISCARD gs_status gs_optimizer_step_params_beside(gs_optimizer *optimizer, const size_t *which,
                                                       size_t num_which, void *const *params,
                                                       void *const *grads, const uint8_t *used,
                                                       float lr, float grad_scale,
                                                       const gs_optimizer_kept *kept);
// The last such update of each of them has not been, but for the counts of updates.
void gs_optimizer_take_back(gs_optimizer *optimizer, const size_t *which, size_t num_which,
                            void *const *params, const gs_optimizer_kept *kept);

// Not of the shared library's names: methods are chosen by their kind.
extern const gs_optimizer_method gs_optimizer_sgd;
extern const gs_optimizer_method gs_optimizer_adam;
extern const gs_optimizer_method gs_optimizer_adamw;

#endif
