// The reducer: makes N ranks hold the same mean gradient, as fast as one would compute it.
//
// A step is: begin; for each own micro-batch begin_pass, gradients marked ready as they become
// final, end_pass; finish. Gradients live in their buckets, inside the arena, in readiness order: a
// gradient is a view, unless the caller has tensors of its own (`separate`). Buckets start strictly
// in plan order, the same on every rank, as soon as they are complete in the last pass; earlier
// passes add up. What decides the update is read from the reduced buckets: used counts and samples
// travel in reserved elements behind the gradients, summed like them, and a value that is not
// finite survives every sum.
//
// Threads: one at a time calls everything here; it may be another from call to call, when the next
// call begins behind the end of the last. The communicator's creator must live meanwhile (comm.h).
// In the child of a fork destroy does nothing, and nothing else may be called. On a GPU it enqueues
// and does not wait but in finish; a gradient is final for a mark when it is behind the compute
// stream's point then (README.md, "On a GPU").
//
// Source: PyTorch DDP (Li et al., VLDB 2020, section 3.2), with the defects it documents made
// errors.
#ifndef GRADSYNC_REDUCER_REDUCER_H
#define GRADSYNC_REDUCER_REDUCER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/bucket_plan.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/bucket/reduce_stats.h"
#include "gradsync/comm/comm.h"
#include "gradsync/reducer/record_options.h"
#include "gradsync/reducer/reducer_types.h"
#include "gradsync/step/join.h"

GS_BEGIN_DECLS

// How much arena a reducer with these options needs, whatever the plan (plan and arena are not
// looked at; without a device it is enough for any). With windows: for this plan, and less in
// larger worlds. In exact mode, and with a hook of even parts, it depends on the world: who expects
// others takes the most that any of them needs.
GS_NODISCARD gs_status gs_reducer_arena_bytes_sized(size_t *bytes,
                                                    const gs_reducer_options *options,
                                                    size_t options_bytes);
GS_NODISCARD static inline gs_status gs_reducer_arena_bytes(size_t *bytes,
                                                            const gs_reducer_options *options) {
    return gs_reducer_arena_bytes_sized(bytes, options, sizeof *options);
}

// How many lanes its communicator must have: as many as a hook of the options has phases. The same is looked at.
GS_NODISCARD gs_status gs_reducer_lanes_sized(int *num_lanes, const gs_reducer_options *options,
                                              size_t options_bytes);
GS_NODISCARD static inline gs_status gs_reducer_lanes(int *num_lanes,
                                                      const gs_reducer_options *options) {
    return gs_reducer_lanes_sized(num_lanes, options, sizeof *options);
}

// Collective over `comm` (borrowed until destroy): all ranks' parameter lists, plans and hooks with
// their options are compared; a difference is FAILED_PRECONDITION naming rank and parameter, on every
// rank.
GS_NODISCARD gs_status gs_reducer_create_sized(gs_reducer **out, const gs_reducer_options *options,
                                               size_t options_bytes, gs_comm *comm,
                                               gs_deadline deadline);
GS_NODISCARD static inline gs_status gs_reducer_create(gs_reducer **out,
                                                       const gs_reducer_options *options,
                                                       gs_comm *comm, gs_deadline deadline) {
    return gs_reducer_create_sized(out, options, sizeof *options, comm, deadline);
}
// Before its communicator and its arena. Aborts the communicator when buckets are in flight.
void gs_reducer_destroy(gs_reducer *reducer);

// Another plan, between steps; same parameters, same arena. All ranks alike.
GS_NODISCARD gs_status gs_reducer_set_plan(gs_reducer *reducer, const gs_bucket_plan *plan,
                                           gs_deadline deadline);
const gs_bucket_plan *gs_reducer_plan(const gs_reducer *reducer);
// Which parameters train, from the next step on; num_params flags, copied; NULL: all. Between steps. Collective, and
// small: a rank whose flags differ from rank 0's is named with the parameter, on every rank. So who calls it at each
// boundary finds every change, and who knows that all ranks have changed calls it then; *changed (NULL: nobody asks)
// says whether they are others than before.
//
// A frozen parameter has no gradient: it is not marked, not unused either, in no norm, and its optimizer is told
// apart (gs_optimizer_set_trainable). A bucket of frozen ones alone does not travel; in a bucket of others zeros travel
// for it, until a plan puts them apart. What hooks carry for it stays as it is. A static graph is learned anew.
GS_NODISCARD gs_status gs_reducer_set_trainable(gs_reducer *reducer, const bool *trainable,
                                                bool *changed, gs_deadline deadline);
// When the last end_pass of a step returns, all its buckets have been posted in lane 0: the plan has at most
// GS_MAX_BUCKETS_IN_FLIGHT buckets, fewer where a hook posts many collectives for one.
bool gs_reducer_posts_all(const gs_reducer *reducer);

// Goes on with another communicator over the same arena, device, parameters and plan: the only way
// out of an error, of an abort and of a step that was left half-way. Rank and world are the new
// communicator's; logical shards stay, so the world may shrink, or grow as far as shards and arena
// reach. Behind gs_comm_wait_ended of the old one. Collective: all is compared anew. Steps may be
// repeated. Gradients and what a static graph learned are lost; a step that was not committed is rolled
// back, and the state of hooks is what the last commit left. Before the old communicator is destroyed;
// it is aborted when buckets are in flight.
GS_NODISCARD gs_status gs_reducer_reset(gs_reducer *reducer, gs_comm *comm, gs_deadline deadline);

// What gradients are multiplied by before they are marked, from the next step on: the loss scale of mixed precision,
// which the caller takes out of the result. Hooks that carry residuals keep them without it. Positive and finite,
// the same on all ranks; 1 at first. Between steps.
GS_NODISCARD gs_status gs_reducer_set_grad_unit(gs_reducer *reducer, double unit);
// Opens a step. `step` counts from 0 and must be the same on all ranks.
GS_NODISCARD gs_status gs_reducer_begin(gs_reducer *reducer, int64_t step);
// The same for a step in which some ranks have no data left (join.h); all ranks pass the same
// round. A rank that is not active runs no pass: zeros are on their way when this returns, go on
// with finish. With windows and several passes it waits until all but the last pass of the others
// are reduced. Refused: a round without active ranks (the join is over), inactive ranks in exact
// mode or in the first step of a static graph, and a mean over active ranks unless there is one
// logical shard for each rank.
GS_NODISCARD gs_status gs_reducer_begin_uneven(gs_reducer *reducer, int64_t step,
                                               const gs_join_round *round);

// The forward computation of the open step begins now; for the record alone.
void gs_reducer_note_forward(gs_reducer *reducer);

// Opens the next pass of the step; own shards in order, passes_per_shard each.
// With windows it waits for other ranks until what the last pass sent is reduced.
//   samples  in this pass's micro-batch; of all ranks and passes at most 2^32
// FAILED_PRECONDITION when all have been run.
GS_NODISCARD gs_status gs_reducer_begin_pass(gs_reducer *reducer, gs_reducer_pass *pass,
                                             int64_t samples);

// Whether this pass must add to the gradient of a parameter. Views are zeroed where a pass did not
// use them, so that it is pass.accumulate; a tensor of the caller's is left alone, so that it is
// whether an earlier pass of the same sum has marked it.
bool gs_reducer_pass_adds(const gs_reducer *reducer, size_t param);

// Says that a parameter's gradient will be written from now on in this pass: with windows before
// the first write, which gs_reducer_mark_from does itself; else nothing to do. Waits for other
// ranks until its bucket has its window, on a GPU too: DEADLINE_EXCEEDED names bucket and missing
// ranks. FAILED_PRECONDITION, naming the parameter, where the wait would be for a gradient of this
// rank that is not final, and for one that is. The error also sticks and comes out of finish, on
// every rank.
GS_NODISCARD gs_status gs_reducer_open_grad(gs_reducer *reducer, size_t param);
GS_NODISCARD gs_status gs_reducer_open_callback(void *reducer,
                                                size_t param);  // gs_model_pass.writes

// Marks a parameter's gradient as final for this pass; the last one of a bucket starts its
// reduction in the reducing pass. Never blocks for other ranks. FAILED_PRECONDITION, naming the
// parameter, if marked twice or outside a pass; the error also sticks and comes out of finish, on
// every rank.
GS_NODISCARD gs_status gs_reducer_mark_ready(gs_reducer *reducer, size_t param);
// The same for a gradient that lies elsewhere: `data`, of the parameter's shape and of `dtype`
// (fp32, fp64, fp16 or bf16), in memory that the device's kernels read, times the pass's
// grad_factor is copied, or added where the pass adds, and marked. `data` may be the gradient's own
// place, which is not copied; NULL: unused in this pass. Of several marks of a static graph the
// last one counts. Not with separate gradients.
GS_NODISCARD gs_status gs_reducer_mark_from(gs_reducer *reducer, size_t param, const void *data,
                                            gs_dtype dtype);
// For callbacks that cannot return a status (gs_model_pass.ready): errors stick. ctx is the
// reducer.
void gs_reducer_ready_callback(void *reducer, size_t param);

// Says early that this pass will not use a parameter, so that its bucket need not wait for the end
// of the pass: its gradient of this pass is zero. An error to mark it ready after that, or twice.
GS_NODISCARD gs_status gs_reducer_mark_unused(gs_reducer *reducer, size_t param);
void gs_reducer_unused_callback(void *reducer, size_t param);

// Closes a pass. Parameters not marked were not used in it: their gradient of this pass is zero.
GS_NODISCARD gs_status gs_reducer_end_pass(gs_reducer *reducer);

// Of the open step, on every rank in the same order; at most GS_MAX_TAILS. Not with windows.
GS_NODISCARD gs_status gs_reducer_add_tail(gs_reducer *reducer, const gs_reducer_tail *tail);

// The first part of finish, where a GPU is to go on with reduced gradients before the host knows what they are: waits for
// all buckets, runs the tails, and then what is enqueued on the compute stream finds gs_reducer_grads, and at *squares
// (pinned, one for each parameter in order; until the next begin) the sums that result.grad_norm is made of. Where a sum is
// not finite they cannot say more: the gradient is not, or its squares are beyond fp32. Finish then waits for what was
// enqueued up to here alone; results in separate gradients come with it. FAILED_PRECONDITION on a CPU, and the second
// time in a step; UNIMPLEMENTED with GS_TALLY_APART, and with fp64 parameters.
GS_NODISCARD gs_status gs_reducer_finish_buckets(gs_reducer *reducer, const double **squares,
                                                 gs_deadline deadline);
// Waits for all buckets, and a GPU. Afterwards gs_reducer_grads are the mean (or sum) on every
// rank, the same bits; of a hook that leaves parts, in this rank's segments alone. The result is
// the same on every rank in any case. DEADLINE_EXCEEDED names bucket and missing ranks; ABORTED carries the
// reason.
GS_NODISCARD gs_status gs_reducer_finish(gs_reducer *reducer, gs_reduce_result *result,
                                         gs_deadline deadline);
// What became of the finished step, for hooks that keep state from step to step: it was applied, or it
// was not and may be redone. Once for each step; a second call changes nothing. A begin or a set_plan
// without either takes a finite step as applied and another one as not. Callable after an abort, too
// (rule F2).
GS_NODISCARD gs_status gs_reducer_commit(gs_reducer *reducer);
GS_NODISCARD gs_status gs_reducer_rollback(gs_reducer *reducer);
// What hooks carry from step to step, for checkpoints: tensor `index`, between steps; false behind
// the last. It is what the last commit left: of a step that was applied, commit first. Which ones
// there are follows from parameters and options; where they lie changes with each commit. Who
// writes into them says so with `loaded` when all are written, before the next begin.
// FAILED_PRECONDITION while a finished step is neither committed nor rolled back: its commit would
// replace what was loaded.
bool gs_reducer_hook_state(gs_hook_state_tensor *out, gs_reducer *reducer, size_t index);
GS_NODISCARD gs_status gs_reducer_hook_state_loaded(gs_reducer *reducer);
// Between steps: how a bucket of the plan travels from now on and why, of a hook that chooses ("auto"); false: it does not.
bool gs_reducer_bucket_offers(gs_hook_offers *out, gs_reducer *reducer, size_t bucket);
// Says to ranks of this host which step it is that was loaded, or is there at first: it follows `step` applied steps.
// Between steps; the next begin says it, too.
void gs_reducer_note_step(gs_reducer *reducer, int64_t step);
// Tensor `index` of those, one that is a rank's own, of another rank, as it is behind `step` applied steps: one
// more than it has applied, too, when it has all buckets of that step. NULL: that rank is of another host,
// has GPU memory, or never came so far. Nobody takes a step meanwhile. It is what a rank that was killed leaves
// behind, and it is there until this rank's communicator is destroyed; gs_reducer_reset no longer sees it.
const void *gs_reducer_peer_hook_data(gs_reducer *reducer, size_t index, int rank, int64_t step);
// OK between steps. Else FAILED_PRECONDITION says what the open step lacks, parameters by name;
// nothing is aborted by asking.
GS_NODISCARD gs_status gs_reducer_check_finished(const gs_reducer *reducer);
// Leaves the open step as if it had not begun: for a backward pass that failed. OK without one.
// FAILED_PRECONDITION when a bucket of it has been posted already: other ranks wait for the rest,
// and gs_reducer_reset leads out. Does not stick.
GS_NODISCARD gs_status gs_reducer_abandon(gs_reducer *reducer);
// The reduced gradients: views into the buckets, num_params of them, of the types that a pass has;
// valid until the next begin. Of a gradient of which this rank has a segment, with windows too,
// element `first` of it is element `first` behind the pointer, and nothing else is to be read.
void *const *gs_reducer_grads(const gs_reducer *reducer);
// Which parameters are known to be used by some rank, by number, when bucket_finished tells of their bucket; valid
// until the next begin. On a host that is all which are. On a GPU it is what this rank used, the rest comes with finish
// (gs_reduce_result.used). NULL where all of it does: with GS_TALLY_APART.
const uint8_t *gs_reducer_used(const gs_reducer *reducer);
// Where a parameter's reduced gradient begins, in bytes from the arena's start; SIZE_MAX for a
// sparse one, and for one in a window, of which parts stay. Stays until another plan or a reset
// (gs_reducer_options.grads_moved).
size_t gs_reducer_grad_offset(const gs_reducer *reducer, size_t param);
// All buckets of the current step are complete here: the step may be applied after an abort (rule
// F2).
bool gs_reducer_complete(const gs_reducer *reducer);
// Gradients of the current step, once it has finished, are this rank's own: its hook left them
// apart (gs_hook_result.is_own). The same on all ranks.
bool gs_reducer_holds_own(const gs_reducer *reducer);

const gs_reduce_stats *gs_reducer_stats(const gs_reducer *reducer);  // of the last finished step
// What it is and how its steps went (record_options.h); until destroy.
const gs_reducer_record *gs_reducer_get_record(const gs_reducer *reducer);
// Parameters in the order in which gradients became ready in the last reducing pass; num_params of
// them. In the first step of a static graph: in that of their first marks.
const size_t *gs_reducer_ready_order(const gs_reducer *reducer);
// How many of them became ready in it (the rest was not used); *passes: reducing passes so far.
size_t gs_reducer_num_ready(const gs_reducer *reducer, uint64_t *passes);

GS_END_DECLS

#endif
