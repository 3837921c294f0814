// A bucket: one run of the arena, the gradients of its members behind each other in plan order,
// then a few reserved elements that are summed like gradients.
//
//   gradient of member 0, padded to 64 bytes | … | last member | to even parts | reserved, padded | to 256 bytes
//
// Who cuts a bucket among ranks gets even parts: zeros behind the last member, so that as many equal runs of whole
// lines come out as there are parts. One part: none.
//
// All elements are of one type: main gradients, fp64 of fp64 parameters and fp32 of all others. The
// bucket of a sparse parameter holds reserved elements alone; its rows travel by themselves.
//
// Offsets depend on plan and shapes alone, so that they are equal on every rank. Reserved are, for
// each member, the number of ranks that used it; then samples (low 10 bits and the rest, so that
// sums stay exact in fp32), the number of ranks in the sum, and of those that had data. They are
// scaled with the gradients; what was summed is the nearest integer to value / scale, right for sums
// below 2^22: for 4096 ranks and GS_MAX_STEP_SAMPLES samples of all of them.
#ifndef GRADSYNC_BUCKET_BUCKET_H
#define GRADSYNC_BUCKET_BUCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bucket_plan.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "gradsync/bucket/reduce_stats.h"
#include "gradsync/comm/comm.h"

#define GS_MAX_STEP_SAMPLES (INT64_C(1) << 32)

typedef enum gs_bucket_state {
    GS_BUCKET_FILLING = 0,
    GS_BUCKET_READY,      // all members final, its turn has not come
    GS_BUCKET_IN_FLIGHT,  // the hook ran
    GS_BUCKET_DONE        // holds the result
} gs_bucket_state;

// The elements of a bucket's gradients that have a result on this rank, padding between them included.
typedef struct gs_bucket_result {
    size_t first, count;
    size_t offset_bytes;  // of the first of them, in slot 0
    bool is_apart;        // it lies elsewhere than what was reduced
} gs_bucket_result;

#define GS_NO_BUCKET SIZE_MAX
#define GS_BUCKET_BYTES ((size_t)256)  // no two slices of a bucket share a cache line

typedef struct gs_bucket {
    gs_bucket_state state;
    gs_dtype dtype;        // GS_FP32 or GS_FP64
    size_t element_bytes;  // of it
    bool travels;          // false: a static graph whose members nobody uses; stays zero
    bool rests;            // all its members are frozen: nothing reads or writes it; does not travel
    bool is_last;          // of those that travel
    const size_t *params;  // members in order; borrowed from the plan
    size_t num_params;
    size_t offset_bytes;  // in a slot of the arena
    size_t grad_count;    // elements of gradients, padding included
    size_t reserved_count;
    gs_bucket_result result;
    bool in_window;  // its place is that of others, too (grad_windows.h), and its result lies
                     // elsewhere
    size_t window;
    size_t before;  // the bucket that has the window before it in a step; GS_NO_BUCKET: none
    bool is_open;   // its place is its own by now, so members may be written; else zeros travel
    int hook;            // which of the reducer's has it
    size_t num_pending;  // members not yet ready
    int phases_run;      // of its hook
    bool is_elsewhere;   // the phase goes on outside of the communicator
    bool was_elsewhere;  // it did before the hook's last word
    gs_work work;        // what the phase waits for; none: nothing
    size_t most_sent;    // bytes of its largest collective, whose algorithm the times tell
    gs_bucket_times times;
} gs_bucket;

// Fills `buckets` (plan->num_buckets) and each parameter's offset in a slot.
//   num_parts  even parts of the gradients of each bucket, at least 1
void gs_bucket_layout(gs_bucket *buckets, size_t *param_offset_bytes, const gs_bucket_plan *plan,
                      const gs_param_spec *params, size_t num_parts);
// Bytes that hold the layout of any plan of these parameters; RESOURCE_EXHAUSTED when there are
// none.
GS_NODISCARD gs_status gs_bucket_max_layout_bytes(size_t *bytes, const gs_param_spec *params,
                                                  size_t num_params, size_t num_parts);
// Elements that the gradient of a parameter takes in a bucket, padding included; 0 for a sparse one.
size_t gs_bucket_room(const gs_param_spec *param);
// Zeroes what is not a gradient; it stays zero under sums.
void gs_bucket_clear_padding(const gs_bucket *bucket, void *slot, const gs_param_spec *params);

void gs_bucket_reset(gs_bucket *bucket);  // filling, all members pending; one that rests is ready

// What one rank says in a bucket.
typedef struct gs_bucket_share {
    const uint8_t *used;  // by parameter
    int64_t samples;
    bool active;  // it has data
} gs_bucket_share;
void gs_bucket_write_reserved(const gs_bucket *bucket, void *reserved,
                              const gs_bucket_share *share);

// Where the reserved elements lie in a slot.
static inline void *gs_bucket_reserved_at(const gs_bucket *bucket, void *slot) {
    return (char *)slot + bucket->offset_bytes + bucket->grad_count * bucket->element_bytes;
}

typedef struct gs_bucket_reserved {
    int64_t samples;
    int64_t num_ranks, num_active;
} gs_bucket_reserved;  // -1: damaged
// used[parameter of the bucket] becomes whether any rank used it.
void gs_bucket_read_reserved(gs_bucket_reserved *sums, uint8_t *used, const gs_bucket *bucket,
                             const void *reserved, double scale);

#endif
