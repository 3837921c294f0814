// The contract of a communication hook: a ready bucket in, work out, in one phase or several.
//
// The life of a hook: measure (what it needs, before there is a communicator) · create · on_plan for the
// first plan · for each step run and finish of its buckets, then commit or rollback · on_plan again for every
// other plan and every other communicator · destroy. A bucket's phases follow each other; those of several
// buckets overlap: phase p of bucket b runs when phase p of the buckets before it has, and its own phase p - 1
// is done. Phase p posts in lane p, so that timing never decides an order.
//
// Threads: the owner's of the reducer makes all calls. None of them waits but on_plan, for what ranks prepare
// together, and finish, for what the hook started elsewhere. Errors of run and finish reach all ranks with this rank, step, bucket and the
// hook's name before them; after one the step is lost, and reset calls rollback.
//
// Memory lies in the reducer's arena, where ranks of a host share it and a GPU's library may map it. A hook
// says how much it needs at most; nothing is allocated in a step.
//   state   the same place for the reducer's life: whatever belongs to parameters. A replan and a reset leave
//           it alone; it is zero at first.
//   bucket  handed out by on_plan, piece by piece, each on 256 bytes; means nothing after the next on_plan.
//
// State is part of the step's transaction. What a step changes, a hook writes beside the state that holds
// (two copies, and a flag which one holds): commit makes the new one hold, rollback forgets it, and neither
// can fail. A step that is redone then finds what its first try found.
//
// What a hook calls is in hook_calls.h. To add one: a file in gradsync/hooks/, a line in the table of
// comm_hook.c; or a gs_comm_hook of a program's own, handed to gs_reducer_options.hooks. One that differs from
// another in two functions is a copy of its struct with those two exchanged.
#ifndef GRADSYNC_HOOKS_COMM_HOOK_H
#define GRADSYNC_HOOKS_COMM_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "core/hook_offers.h"
#include "core/param_spec.h"
#include "core/segment.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

#define GS_HOOK_NAME_LEN 48
#define GS_HOOK_MAX_PHASES GS_COMM_MAX_LANES
#define GS_HOOK_POSTS 4  // collectives of a bucket in one phase, of a hook that says nothing else
#define GS_HOOK_MAX_POSTS 64
#define GS_HOOK_PLACE_BYTES ((size_t)256)

typedef struct gs_comm_hook gs_comm_hook;

// An option that a hook knows. All values are numbers: flags are 0 and 1.
typedef struct gs_hook_option {
    const char *name;  // below GS_HOOK_NAME_LEN
    double fallback;   // where it is not given
    double least, most;
    bool is_whole;
} gs_hook_option;

typedef struct gs_hook_number {
    const char *name;
    double number;
} gs_hook_number;

// A hook and how it is to work; what ranks compare before the first step, but for `user`. Borrowed, with
// all that it points at, until the reducer's destroy.
typedef struct gs_hook_choice {
    const gs_comm_hook *hook;  // NULL: "allreduce"; with a wire dtype "fp16" or "bf16"
    const gs_hook_number *numbers;
    size_t num_numbers;
    const struct gs_hook_choice *inner;  // for a hook that wraps another
    void *user;                          // of a program's own hook
    void *reserved[2];                   // NULL, as all of this name: so structs that lie in arrays can grow
} gs_hook_choice;

// A parameter as hooks see it.
typedef struct gs_hook_param {
    size_t index;  // in registration order
    const gs_param_spec *spec;
    gs_dtype dtype;  // of its gradient: GS_FP64 or GS_FP32
    size_t count;    // elements of it; 0 for a sparse one, whose rows travel apart
    size_t room;     // elements that it takes in a bucket, padding included
    size_t first;    // of its bucket's data, where it begins; in a setup 0
    void *reserved[2];
} gs_hook_param;

typedef struct gs_hook_setup {
    const gs_hook_choice *choice;
    const gs_hook_param *params;  // in registration order; until destroy
    size_t num_params;
    // Of gs_reducer_options, or of a hook that wraps this one: all floats travel as such, but for the reserved
    // elements (gs_collective.wire_dtype). Unset: as they are.
    gs_dtype wire_dtype;
    bool exact;           // sums follow a tree, and nothing may be rounded by the number of ranks
    int rank, world_size;
    gs_device *device;  // NULL where it is measured for any (gs_reducer_arena_bytes without one)
    void *state;        // create: needs.state_bytes, on 256 bytes, zero
    // The result is divided once more by what is only known behind the sums (the samples of a mean over them).
    bool divides_later;
} gs_hook_setup;

typedef struct gs_hook_needs {
    int num_phases;       // 0: 1; each takes a lane of the communicator
    int most_posts;       // of a bucket in one phase; 0: GS_HOOK_POSTS
    size_t state_bytes;   // the same whatever rank, world and plan
    size_t bucket_bytes;  // enough for any plan (gs_hook_most_bytes)
    bool narrows;  // gradients travel in 16 bits: no room for sums that are divided later (GS_SAMPLE_MEAN)
    // The gradients of a bucket come in as many equal runs of whole lines of 64 bytes as there are ranks, zeros behind
    // the last member: gs_hook_bucket.count / world_size elements each. The hook has all buckets of its reducer.
    bool even_parts;
} gs_hook_needs;

// The memory that a hook declared for its buckets, and how much of it the plan in force has taken.
typedef struct gs_hook_memory {
    char *data;  // on GS_HOOK_PLACE_BYTES
    size_t bytes, used;
} gs_hook_memory;

// A bucket of the plan. Its members' gradients lie behind each other, zeros between them.
typedef struct gs_hook_layout {
    int hook;  // which of the reducer's has it
    gs_dtype dtype;
    size_t count, reserved_count;  // as in gs_hook_bucket
    const gs_hook_param *params;   // its members in order
    size_t num_params;
    void *reserved[2];
} gs_hook_layout;

typedef struct gs_hook_plan {
    gs_comm *comm;                  // until the next on_plan: another one after a reset, of another world perhaps
    int hook;                       // which of the reducer's is asked: it has the buckets of this number
    const gs_hook_layout *buckets;  // all of them, in plan order; until the next on_plan
    size_t num_buckets;
    gs_hook_memory *memory;  // gs_hook_place
    gs_deadline deadline;    // of what ranks do together here
} gs_hook_plan;

// A bucket in a step. `data` holds the gradients, padding included, then the reserved elements, all of them
// `dtype`. On a GPU it is the GPU's memory, as all of the arena is. In phase 0 it is final on the communicator's
// stream (gs_comm_stream) when that follows the compute stream's point, for gradients may have been copied there;
// work that belongs before a post goes there. What a later phase finds done, and what `finish` finds, is there on
// the compute stream.
typedef struct gs_hook_bucket {
    int index, num_buckets;  // in plan order; a static graph leaves out buckets that nobody uses
    bool is_last;            // no bucket follows in this step, of this hook or another
    int64_t step;
    int32_t num_active;  // ranks that have data
    gs_comm *comm;
    gs_device *device;  // whose kernels and stream the hook uses
    void *data;         // in the arena; the result goes here too
    gs_dtype dtype;     // GS_FP32 or GS_FP64
    size_t count;       // gradients; 0 for a sparse parameter, whose bucket is reserved elements alone
    size_t reserved_count;  // behind them: summed exactly, never compressed; scaled like gradients
    double scale;           // what turns the sum into the result wanted: 1 / divisor, or 1
    const gs_reduce_tree *tree;  // exact mode; else NULL
    size_t part_stride_bytes;
    const gs_hook_param *params;  // members in order
    size_t num_params;
    // What gradients were multiplied by before they came, the loss scale of mixed precision: what is carried from
    // step to step is kept without it. 1 without one; the same on all ranks.
    double grad_unit;
    // Ranks of whose gradients `scale` makes a mean, shares being equal; 0: the result is their
    // sum, or is divided later (gs_hook_scale_for).
    int mean_ranks;
} gs_hook_bucket;

// What a phase of a bucket has started. Zero when `run` is called, but for what it is called for. A wrapper
// that has phases before those of its inner hook counts `phase` down for it and leaves the lane alone.
typedef struct gs_hook_work {
    int phase;
    int lane;        // that it posts in
    int most_posts;  // as declared; gs_hook_post refuses more
    int num_posted;
    gs_work last;         // the collective that the phase waits for: the last one; none: it is done at once
    uint64_t wire_bytes;  // sent by a rank, in bytes of an all-reduce; gs_hook_post adds what it posts
    const char *algorithm;  // of the largest collective
    size_t largest_bytes;
    // Under way outside of the communicator; in the last phase only. `finish` waits for it: it is then called in
    // gs_reducer_finish alone, bucket by bucket in plan order, never within a backward pass.
    bool is_elsewhere;
    int64_t posting_ns;  // spent in gs_hook_post, which adds it: what else a phase takes is the hook's own
} gs_hook_work;

// Where the bucket holds results after `finish`. As it is handed out: everywhere. With segments each element of
// each gradient is in one rank's, and the reducer has GS_TALLY_APART (tally_carrier.h).
typedef struct gs_hook_result {
    // In these segments of its parameters alone; nothing is promised elsewhere. Where ranks read counts and
    // norms in whole buckets that is an error: it needs GS_TALLY_APART.
    bool is_partial;
    const gs_segment *segments;  // in the order of the bucket; the hook's, until its next on_plan
    size_t num_segments;
    // The gradients are those of this rank, or of some ranks, and others have other ones; reserved
    // elements are those of all as ever. Whole, with GS_TALLY_IN_BUCKETS, and never of a sample
    // mean. The reducer agrees whether any rank's are not finite; the norm is of what lies here.
    bool is_own;
} gs_hook_result;

// A tensor of a hook's state, as checkpoints have it.
typedef struct gs_hook_tensor {
    char name[GS_HOOK_NAME_LEN];
    int64_t param;  // whose it is; -1: no parameter's
    gs_dtype dtype;
    size_t count;
    void *data;       // where the state that holds lies now; changes with a commit
    bool is_on_host;  // else the device's
    // false: equal on all ranks. true: what this rank has yet to add to the result, in units of the result (a
    // gradient times gs_hook_bucket.scale, without grad_unit). It is the sum over ranks that counts: another world
    // gets the same sum, dealt in another way. One of each parameter at most, in the state; both copies stay where
    // they are, and neither is written between the last `finish` of a step and the next step's first `run`: other
    // ranks of the host read them when this one has died.
    bool is_own;
    // Behind the last `finish`: where that lies which `commit` makes hold, of the same size; NULL: what holds stays.
    void *beside;
} gs_hook_tensor;

// What a hook says of the step that has finished, for metrics. Zero when `report` is called.
typedef struct gs_hook_report {
    uint64_t elements, elements_sent;  // of the gradients that it compresses: before, and in their place
    bool carries;             // it keeps residuals, which are its own tensors (gs_hook_tensor.is_own)
    // Where they are known without a pass over them: the sum of their squares on this rank, in units of the result.
    // 0: taken from the tensors.
    double residual_squares;
} gs_hook_report;

// The same with the name that it has among all tensors of a reducer's hooks: "HOOK/TENSOR", or
// "HOOK/TENSOR/PARAMETER".
typedef struct gs_hook_state_tensor {
    char name[2 * GS_HOOK_NAME_LEN + GS_PARAM_NAME_LEN + 16];
    gs_hook_tensor tensor;
} gs_hook_state_tensor;

// No function is NULL but `report` and `offers`.
struct gs_comm_hook {
    const char *name;  // below GS_HOOK_NAME_LEN
    const gs_hook_option *options;
    size_t num_options;
    bool wraps;  // it needs an inner hook, which it makes and calls itself

    // What it needs with these options, and whether they fit together: INVALID_ARGUMENT names the option.
    // Options were checked one by one. May be asked any number of times, before and after create.
    gs_status (*measure)(gs_hook_needs *needs, const gs_hook_setup *setup);
    gs_status (*create)(void **state, const gs_hook_setup *setup);  // after an error: nothing to destroy
    // Between steps. State that belongs to parameters stays. May run collectives of its own, on all ranks alike.
    gs_status (*on_plan)(void *state, const gs_hook_plan *plan);
    // Phase 0: the bucket is ready. Phase p: what phase p - 1 posted is done. Never blocks.
    gs_status (*run)(void *state, const gs_hook_bucket *bucket, gs_hook_work *work);
    // All phases are done: turns what arrived into the result in `data`. The deadline is for what is elsewhere.
    gs_status (*finish)(void *state, const gs_hook_bucket *bucket, gs_hook_result *result,
                        gs_deadline deadline);
    void (*commit)(void *state);    // the step counts
    void (*rollback)(void *state);  // it does not, however far it came; what is elsewhere has ended on return
    // Tensor `index` of the state that holds, in an order that parameters and options decide alone; false
    // behind the last.
    bool (*tensor)(void *state, size_t index, gs_hook_tensor *tensor);
    gs_status (*loaded)(void *state);  // its tensors were filled; between steps
    void (*destroy)(void *state);  // as rollback; nothing of it is in flight in the communicator
    // May be NULL. Behind the last `finish` of a step, before its commit; on a GPU behind a wait for its stream.
    void (*report)(void *state, gs_hook_report *report);
    // May be NULL, as of hooks that have no choice. Between steps: how a bucket of the plan travels and why; false: there is
    // no such bucket, or it is another hook's.
    bool (*offers)(void *state, size_t bucket, gs_hook_offers *offers);
    void (*reserved[2])(void);
};

const gs_comm_hook *gs_comm_hook_find(const char *name);  // NULL: no such hook

GS_END_DECLS

// Not of the shared library's names: gs_comm_hook_find has them. What a reducer takes without a hook of its own is
// "allreduce"; with a wire dtype "fp16" or "bf16".
extern const gs_comm_hook gs_hook_allreduce;
extern const gs_comm_hook gs_hook_fp16;
extern const gs_comm_hook gs_hook_bf16;
extern const gs_comm_hook gs_hook_auto;
extern const gs_comm_hook gs_hook_wrap_fp16;
extern const gs_comm_hook gs_hook_wrap_bf16;
extern const gs_comm_hook gs_hook_local_sgd;
extern const gs_comm_hook gs_hook_noop;
extern const gs_comm_hook gs_hook_powersgd;
extern const gs_comm_hook gs_hook_batched_powersgd;
extern const gs_comm_hook gs_hook_topk;
extern const gs_comm_hook gs_hook_onebit;
extern const gs_comm_hook gs_hook_int8;
extern const gs_comm_hook gs_hook_int8_channel;
extern const gs_comm_hook gs_hook_uint8_gather;

#endif
