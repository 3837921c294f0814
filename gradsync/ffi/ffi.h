// The library for foreign-function interfaces, such as Python's ctypes: no structs, no macros, no
// inline functions.
//
// Handles are opaque and made in two steps: gs_ffi_X_new (NULL: out of memory), then settings, then
// gs_ffi_X_open; gs_ffi_X_free at last, in reverse order of opening, NULL is fine. Until open a
// handle is a list of options.
//
// Functions return a code: 0, or a gs_code (core/status.h): 1 CANCELLED, 2 UNKNOWN (a callback
// returned none of these), 3 INVALID_ARGUMENT, 4 DEADLINE_EXCEEDED, 8 RESOURCE_EXHAUSTED, 9
// FAILED_PRECONDITION, 10 ABORTED, 12 UNIMPLEMENTED, 13 INTERNAL, 14 UNAVAILABLE, 15 DATA_LOSS. The
// words of a handle's last error are gs_ffi_error's.
// A missing handle or argument is INVALID_ARGUMENT; what is asked of a handle that is not open, or
// is open already, FAILED_PRECONDITION, and changes nothing; but where all ranks make a call (collective), the others
// wait: its communicator is aborted then, and they hear the words.
// Callbacks return 0 or such a code; they are called on the thread of the call that they belong to,
// but for the log's. `within_ns` is from now on; what is given to a callback is what is left.
// Element types are gs_dtype: 1 fp32, 2 fp64, 3 fp16, 4 bf16, 5 i64, 6 i32, 7 u8.
//
// Threads: a handle serves one thread at a time, any, one after the other; gs_ffi_comm_abort any
// thread, as long as the communicator is open. The thread that opened a communicator must live
// until it is freed. In a forked child only gs_ffi_X_free may be called, and does nothing to what
// the parent has. None of it changes the process: no environment (but NCCL's defaults), no
// signals, no output but the log's.
#ifndef GRADSYNC_FFI_FFI_H
#define GRADSYNC_FFI_FFI_H

#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"

GS_BEGIN_DECLS

// The last code of a handle, with its words in `text` ("" after 0): bytes, perhaps cut within a
// character.
int gs_ffi_error(const void *handle, char *text, size_t text_bytes);
const char *gs_ffi_code_name(int code);  // "DEADLINE_EXCEEDED"
// Where the library's log goes; from any thread. level: 0 debug, 1 info, 2 warn, 3 error. NULL:
// standard error.
void gs_ffi_log_to(void (*sink)(void *ctx, int level, const char *line), void *ctx);
void gs_ffi_log_from(int level);  // 4: nothing is said

// Device: "cpu", "cuda:0".
typedef struct gs_ffi_device gs_ffi_device;
gs_ffi_device *gs_ffi_device_new(void);
int gs_ffi_device_set_threads(gs_ffi_device *device, int num_threads);
int gs_ffi_device_open(gs_ffi_device *device, const char *name);
void gs_ffi_device_free(gs_ffi_device *device);

// Arena: where gradients live. On a CPU ordinary memory to this process, zero at first.
typedef struct gs_ffi_arena gs_ffi_arena;
gs_ffi_arena *gs_ffi_arena_new(void);
int gs_ffi_arena_open(gs_ffi_arena *arena, gs_ffi_device *device, size_t bytes);
void *gs_ffi_arena_data(const gs_ffi_arena *arena);
size_t gs_ffi_arena_bytes(const gs_ffi_arena *arena);
void gs_ffi_arena_free(gs_ffi_arena *arena);

// Parameters in order of registration. Copied where they are used.
typedef struct gs_ffi_params gs_ffi_params;
gs_ffi_params *gs_ffi_params_new(void);
int gs_ffi_params_add(gs_ffi_params *params, const char *name, int dtype, int num_dims,
                      const int64_t *shape);
// Who owns each of them whole, among so many ranks: "greedy" (in order, to the rank that has least) or "sorted" (the
// largest first); one of `owners` for each.
int gs_ffi_params_deal(gs_ffi_params *params, const char *rule, int world_size, int *owners);
void gs_ffi_params_free(gs_ffi_params *params);

// Plan: which parameters travel together. Limits 0, 0: those for ranks of one host; else the first
// bucket's, and that of all others, in bytes. `ready_order` (as many as parameters; NULL: none
// yet): gs_ffi_reducer_ready_order.
typedef struct gs_ffi_plan gs_ffi_plan;
gs_ffi_plan *gs_ffi_plan_new(void);
// Buckets of one owner each, a rank for each parameter: for shards of whole parameters.
int gs_ffi_plan_set_owners(gs_ffi_plan *plan, const int *owners, size_t num_params);
int gs_ffi_plan_open(gs_ffi_plan *plan, const gs_ffi_params *params, uint64_t first_bytes,
                     uint64_t cap_bytes, const size_t *ready_order);
size_t gs_ffi_plan_num_buckets(const gs_ffi_plan *plan);
// Its members: how many there are, the first `most` of them in `params`.
size_t gs_ffi_plan_bucket(const gs_ffi_plan *plan, size_t bucket, size_t *params, size_t most);
void gs_ffi_plan_free(gs_ffi_plan *plan);

// Shards: which rank owns what (gradsync/sharded/shards.h): each element of the parameters has one owner, which gets its
// gradient, keeps its optimizer state and updates it. Default: each bucket is cut in even parts. Owners: whole parameters,
// in a plan of the same. Optimizers: of each parameter the number of that which steps it, from 0, where there are several.
typedef struct gs_ffi_shards gs_ffi_shards;
gs_ffi_shards *gs_ffi_shards_new(void);
int gs_ffi_shards_set_owners(gs_ffi_shards *shards, const int *owners, size_t num_params);
int gs_ffi_shards_set_optimizers(gs_ffi_shards *shards, const int *optimizers, size_t num_params);
int gs_ffi_shards_open(gs_ffi_shards *shards, const gs_ffi_params *params, const gs_ffi_plan *plan,
                       int world_size);
// In another world, or by another plan (NULL: the same), in place; `owners` where there are some. Before the reducer's
// reset or replan; optimizers and gathers are made anew behind it.
int gs_ffi_shards_redo(gs_ffi_shards *shards, int world_size, const gs_ffi_plan *plan,
                       const int *owners);
size_t gs_ffi_shards_elements(const gs_ffi_shards *shards, int rank);  // that it owns
// Where parameters lie for a gather: bytes of the block, and from its start to each of them. SIZE_MAX: none.
size_t gs_ffi_shards_param_bytes(const gs_ffi_shards *shards);
size_t gs_ffi_shards_param_offset(const gs_ffi_shards *shards, size_t param);
void gs_ffi_shards_free(gs_ffi_shards *shards);

// Communicator. `exchange` brings `bytes` of each rank to all: `all` gets num_ranks · bytes in the
// order of `ranks` (numbers in the world; NULL: all of it). A tag is used once; others may meet at
// the same time.
typedef int (*gs_ffi_exchange)(void *ctx, const char *tag, const int *ranks, int num_ranks,
                               const void *mine, size_t bytes, void *all, int64_t left_ns);
typedef struct gs_ffi_comm gs_ffi_comm;
gs_ffi_comm *gs_ffi_comm_new(void);
int gs_ffi_comm_set_rank(gs_ffi_comm *comm, int rank, int world_size);
int gs_ffi_comm_set_generation(gs_ffi_comm *comm, uint32_t generation);
int gs_ffi_comm_set_lanes(gs_ffi_comm *comm, int num_lanes);  // 1; gs_ffi_reducer_lanes
int gs_ffi_comm_set_backend(gs_ffi_comm *comm, const char *name);  // copied; default "auto"
int gs_ffi_comm_set_exchange(gs_ffi_comm *comm, gs_ffi_exchange exchange, void *ctx);
// Asked at most every 100 ms inside every wait, creation too; not 0: the wait ends with CANCELLED.
int gs_ffi_comm_set_interrupt(gs_ffi_comm *comm, int (*interrupt)(void *ctx), void *ctx);
// `arena` may be NULL. Both are borrowed until free.
int gs_ffi_comm_open(gs_ffi_comm *comm, gs_ffi_device *device, gs_ffi_arena *arena,
                     int64_t within_ns);
// A collective from begin to end; after an error the communicator is aborted. kind:
// gs_collective_kind: 1 all-reduce, 2 reduce, 3 reduce-scatter, 4 all-gather, 5 broadcast, 6
// barrier. op: 0 sum, 1 max, 2 min.
int gs_ffi_comm_run(gs_ffi_comm *comm, int kind, const void *send, void *recv, size_t count,
                    int dtype, int op, int root, int64_t within_ns);
// Why the last wait failed, when it did: *kind is a gs_comm_failure_kind (1 timeout, 2 peer lost, 3
// mismatch, 4 damaged, 5 device, 6 aborted), *bucket -1 for none. The number of ranks accused, the
// first `most` of them in `ranks`.
int gs_ffi_comm_failure(gs_ffi_comm *comm, int *kind, int64_t *step, int *bucket, int *ranks,
                        int most);
const char *gs_ffi_comm_backend(const gs_ffi_comm *comm);  // which one it is; "" before open
void gs_ffi_comm_abort(gs_ffi_comm *comm, const char *reason);
// After an error: until no other rank can write into the arena. DEADLINE_EXCEEDED:
// gs_ffi_comm_failure names who may. Before it another communicator over the same arena is refused.
int gs_ffi_comm_wait_ended(gs_ffi_comm *comm, int64_t within_ns);
void gs_ffi_comm_free(gs_ffi_comm *comm);

// Reducer (gradsync/reducer/reducer.h says what each call means). Default: the mean over all ranks
// of fp32 and fp64 gradients, one pass for each step.
typedef struct gs_ffi_reducer gs_ffi_reducer;
gs_ffi_reducer *gs_ffi_reducer_new(void);
int gs_ffi_reducer_set_plan(gs_ffi_reducer *reducer, const gs_ffi_params *params,
                            const gs_ffi_plan *plan);        // copied
int gs_ffi_reducer_set_op(gs_ffi_reducer *reducer, int op);  // 0 mean, 1 sum, 2 mean over samples
int gs_ffi_reducer_set_passes(gs_ffi_reducer *reducer, int num_passes);  // added up in each step
int gs_ffi_reducer_set_wire_dtype(gs_ffi_reducer *reducer, int dtype);   // 3 fp16, 4 bf16, 0 none
int gs_ffi_reducer_set_static_graph(gs_ffi_reducer *reducer, int promised);
// bucket_finished: its result is there; grads_moved: offsets and pointers are to be asked anew.
// Either may be NULL.
int gs_ffi_reducer_set_notices(gs_ffi_reducer *reducer,
                               void (*bucket_finished)(void *ctx, size_t bucket),
                               void (*grads_moved)(void *ctx), void *ctx);
// Instead of the all-reduce a hook of the library's (gradsync/README.md lists them), with options by
// name, as they are in its file: "powersgd" with "rank" 2, "start_step" 10. `wrapper`: "wrap_fp16" or
// "wrap_bf16" around it, chosen before. Each begin takes the last step as applied if it was finite.
int gs_ffi_reducer_choose_hook(gs_ffi_reducer *reducer, const char *name);
int gs_ffi_reducer_set_hook_option(gs_ffi_reducer *reducer, const char *name, double number);
int gs_ffi_reducer_wrap_hook(gs_ffi_reducer *reducer, const char *wrapper);
// Or gradients for their owners alone: what a rank does not own has no meaning behind finish. Of this plan and of the
// world that the reducer is opened in; borrowed until free.
int gs_ffi_reducer_set_shards(gs_ffi_reducer *reducer, const gs_ffi_shards *shards);
// Or one of the host's own: `run` starts what the host does with `count` elements
// (gradients and what the library keeps behind them) and returns; `finish`, bucket by bucket in
// plan order, waits until they are the sum over all ranks times `scale`. Both name themselves in
// errors as `name` (copied), which all ranks have alike. `cancel` (may be NULL): what was run and
// not finished does not count any more; it has ended when this returns.
typedef int (*gs_ffi_hook_run)(void *ctx, int bucket, int is_last, int64_t step, void *data,
                               size_t count, int dtype, double scale);
typedef int (*gs_ffi_hook_finish)(void *ctx, int bucket, int64_t left_ns);
int gs_ffi_reducer_set_hook(gs_ffi_reducer *reducer, const char *name, gs_ffi_hook_run run,
                            gs_ffi_hook_finish finish, void (*cancel)(void *ctx), void *ctx);
// How much arena it needs on this device in a world of this size; before the arena is opened.
int gs_ffi_reducer_arena_bytes(gs_ffi_reducer *reducer, gs_ffi_device *device, int world_size,
                               size_t *bytes);
// How many lanes its communicator must have: with hooks that have several phases more than one.
int gs_ffi_reducer_lanes(gs_ffi_reducer *reducer, gs_ffi_device *device, int world_size,
                         int *num_lanes);
// Collective. All are borrowed until free. `arena` is the communicator's.
int gs_ffi_reducer_open(gs_ffi_reducer *reducer, gs_ffi_comm *comm, gs_ffi_arena *arena,
                        gs_ffi_device *device, int64_t within_ns);
int gs_ffi_reducer_begin(gs_ffi_reducer *reducer, int64_t step);
int gs_ffi_reducer_begin_pass(gs_ffi_reducer *reducer, int64_t samples);
// Whether a gradient of the open pass is to be added to what lies in its place.
int gs_ffi_reducer_adds(const gs_ffi_reducer *reducer);
int gs_ffi_reducer_mark(gs_ffi_reducer *reducer, size_t param);  // it was written in its place
int gs_ffi_reducer_mark_from(gs_ffi_reducer *reducer, size_t param, const void *data, int dtype);
int gs_ffi_reducer_mark_unused(gs_ffi_reducer *reducer, size_t param);
int gs_ffi_reducer_end_pass(gs_ffi_reducer *reducer);
int gs_ffi_reducer_finish(gs_ffi_reducer *reducer, int64_t within_ns);
int gs_ffi_reducer_abandon(gs_ffi_reducer *reducer);
// Of the last finished step.
int64_t gs_ffi_reducer_samples(const gs_ffi_reducer *reducer);
int gs_ffi_reducer_is_finite(const gs_ffi_reducer *reducer);
double gs_ffi_reducer_grad_norm(const gs_ffi_reducer *reducer);
int gs_ffi_reducer_was_used(const gs_ffi_reducer *reducer, size_t param);  // by any rank
// Bytes from the arena's start to a parameter's gradient: where it is written and where its result
// lies. SIZE_MAX: none.
size_t gs_ffi_reducer_grad_offset(const gs_ffi_reducer *reducer, size_t param);
// Parameters in the order in which their gradients became ready; as many as there are. Until the
// next step.
const size_t *gs_ffi_reducer_ready_order(const gs_ffi_reducer *reducer);
// Collective, between steps.
int gs_ffi_reducer_replan(gs_ffi_reducer *reducer, const gs_ffi_plan *plan, int64_t within_ns);
// Collective, between steps: which parameters train from now on, a flag for each; NULL: all. The others are not marked,
// and not updated once the optimizer, and the gather, have been told the same. *changed (may be NULL): they are others than
// before. A rank with other flags is named on all ranks, so who calls it in each step finds every change.
int gs_ffi_reducer_set_trainable(gs_ffi_reducer *reducer, const unsigned char *trainable,
                                 int *changed, int64_t within_ns);
// Goes on with another communicator after an error (gs_ffi_comm_wait_ended first, then one of
// another generation over the same arena); it is borrowed instead of the last one, which may be
// freed.
int gs_ffi_reducer_reset(gs_ffi_reducer *reducer, gs_ffi_comm *comm, int64_t within_ns);
void gs_ffi_reducer_free(gs_ffi_reducer *reducer);

// Optimizer: "adamw", "adam", "sgd"; numbers by name: beta1 0.9, beta2 0.999, eps 1e-8,
// weight_decay 0, momentum 0, dampening 0, nesterov 0.
typedef struct gs_ffi_optimizer gs_ffi_optimizer;
gs_ffi_optimizer *gs_ffi_optimizer_new(void);
int gs_ffi_optimizer_set(gs_ffi_optimizer *optimizer, const char *name, double number);
// State of what `rank` owns alone, which a step then updates; `which` of several optimizers, else 0. Borrowed until open.
int gs_ffi_optimizer_set_shards(gs_ffi_optimizer *optimizer, const gs_ffi_shards *shards, int rank,
                                int which);
int gs_ffi_optimizer_open(gs_ffi_optimizer *optimizer, const char *kind,
                          const gs_ffi_params *params, gs_ffi_device *device);
// One update of `values` (a pointer for each parameter, fp32, in place) by the reducer's last
// result; that it is finite is the caller's to ask.
int gs_ffi_optimizer_step(gs_ffi_optimizer *optimizer, void *const *values,
                          const gs_ffi_reducer *reducer, double lr, double grad_scale);
// The same flags as the reducer's; what does not train keeps values, state and count.
int gs_ffi_optimizer_set_trainable(gs_ffi_optimizer *optimizer, const unsigned char *trainable);
// What there is to save: segments (elements [first, first + count) of a parameter: all of each, or what is owned here),
// states by name ("exp_avg"; NULL: no more) of each segment, fp32 in the device's memory, and of each parameter how often
// it was updated.
size_t gs_ffi_optimizer_num_segments(const gs_ffi_optimizer *optimizer);
int gs_ffi_optimizer_segment(gs_ffi_optimizer *optimizer, size_t segment, size_t *param,
                             size_t *first, size_t *count);
const char *gs_ffi_optimizer_state_name(const gs_ffi_optimizer *optimizer, int which);
float *gs_ffi_optimizer_state(const gs_ffi_optimizer *optimizer, int which, size_t segment);
int64_t *gs_ffi_optimizer_num_updates(const gs_ffi_optimizer *optimizer);
void gs_ffi_optimizer_free(gs_ffi_optimizer *optimizer);

// Gather: parameters that their owners have updated, to all ranks (gradsync/sharded/param_gather.h). They lie in the
// communicator's arena from `offset_bytes` on, a multiple of 256: gs_ffi_shards_param_bytes. `lane`: one that nothing else
// uses: gs_ffi_reducer_lanes, and the communicator has one more.
typedef struct gs_ffi_gather gs_ffi_gather;
gs_ffi_gather *gs_ffi_gather_new(void);
// Collective. All are borrowed until free, which comes before the communicator's.
int gs_ffi_gather_open(gs_ffi_gather *gather, const gs_ffi_shards *shards, gs_ffi_comm *comm,
                       gs_ffi_arena *arena, size_t offset_bytes, int lane, int64_t within_ns);
int gs_ffi_gather_start(gs_ffi_gather *gather, int64_t step);  // behind the update
// One parameter is whole; all are. Until then only its owner may read it, and nobody write.
int gs_ffi_gather_wait(gs_ffi_gather *gather, size_t param, int64_t within_ns);
int gs_ffi_gather_finish(gs_ffi_gather *gather, int64_t within_ns);
// Behind finish, on all ranks: what does not train is not sent.
int gs_ffi_gather_set_trainable(gs_ffi_gather *gather, const unsigned char *trainable);
void gs_ffi_gather_free(gs_ffi_gather *gather);

// Averager: parameters of ranks that train apart (hooks "local_sgd", "noop";
// gradsync/step/averager.h says what each call means). `period` in steps, `num_ranks` neighbours, 0
// all; both ascend, the last is of all.
typedef struct gs_ffi_averager gs_ffi_averager;
gs_ffi_averager *gs_ffi_averager_new(void);
int gs_ffi_averager_add(gs_ffi_averager *averager, int64_t period, int num_ranks);
int gs_ffi_averager_set_start(gs_ffi_averager *averager, int64_t step);  // 0
// Collective. `values`: a pointer for each parameter, of its type; the tensors and `comm` are
// borrowed until free, comm until reset.
int gs_ffi_averager_open(gs_ffi_averager *averager, const gs_ffi_params *params,
                         void *const *values, gs_ffi_comm *comm, int64_t within_ns);
// Behind the update of `step`. used: a byte for each parameter, 0 for those that are left as they
// are, the same on all ranks; NULL: none. num_ranks: over how many it was averaged, 0: none was due.
int gs_ffi_averager_run(gs_ffi_averager *averager, int64_t step, const unsigned char *used,
                        int *num_ranks, int64_t within_ns);
int gs_ffi_averager_run_all(gs_ffi_averager *averager, int64_t step, const unsigned char *used,
                            int64_t within_ns);
// With another communicator after an error. step: of an average that is to be run again, before
// anything else; -1: none.
int gs_ffi_averager_reset(gs_ffi_averager *averager, gs_ffi_comm *comm, int64_t *step,
                          int64_t within_ns);
void gs_ffi_averager_free(gs_ffi_averager *averager);

GS_END_DECLS

#endif
