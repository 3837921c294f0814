// The inside of a tally, for its two carriers: in buckets (bucket_tally.c), apart (tally_apart.c).
#ifndef GRADSYNC_BUCKET_TALLY_STATE_H
#define GRADSYNC_BUCKET_TALLY_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/segment.h"
#include "core/status.h"
#include "gradsync/bucket/bucket_mirror.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/comm/comm.h"
#include "gradsync/comm/work_stream.h"

// What the step is, the same on every rank but for the last.
typedef struct gs_bucket_step {
    int64_t step;
    double scale;    // of the sums
    int mean_ranks;  // ranks of whose gradients it makes a mean; 0: none
    double grad_unit;  // what gradients were multiplied by before they came
    int num_ranks;   // in the sums
    int num_active;  // of them that are to have data
    bool active;     // this rank has
    gs_comm *comm;   // of what the tally itself sends; borrowed until read
} gs_bucket_step;

// What this rank has of a reduced bucket: all of it, unless it is partial.
typedef struct gs_bucket_part {
    bool is_partial;
    const gs_segment *segments;  // borrowed until read
    size_t num_segments;
} gs_bucket_part;

// Of a tally apart.
typedef struct gs_apart_words {
    gs_bucket_part *parts;  // of each bucket
    double *said, *sums;    // what this rank says, and all of them
} gs_apart_words;

// Squares that ranks take for each other: of each parameter one does, of whoever the step's ranks are.
typedef struct gs_dealt_squares {
    int *measured_by;  // owned; of a rank, modulo how many there are; NULL: every rank takes all
    double *said, *sums;  // of each parameter: squares │ ranks that took them
} gs_dealt_squares;

typedef struct gs_bucket_tally gs_bucket_tally;

// How buckets are written and read: what bucket_tally.h says, in one of its ways.
typedef struct gs_tally_world {
    const char *name;
    void (*write)(const gs_bucket_tally *tally, size_t index, gs_work_stream on);
    gs_status (*take)(gs_bucket_tally *tally, size_t index);
    gs_status (*close)(gs_bucket_tally *tally, gs_deadline deadline);
    void (*measure)(gs_bucket_tally *tally, size_t param);
    gs_status (*read)(gs_bucket_tally *tally, gs_deadline deadline);
} gs_tally_world;

struct gs_bucket_tally {
    const gs_tally_world *world;
    const gs_grad_layout *layout;  // borrowed
    gs_device *device;             // borrowed
    bool sample_mean;              // sums are divided by the samples that they carry
    gs_bucket_mirror mirror;       // of a GPU's buckets
    gs_event *measured;            // on a GPU: behind all that `read` reads, once marked
    gs_apart_words apart;
    gs_dealt_squares dealt;
    // of the step
    gs_bucket_step step;
    int64_t samples;  // of this rank; the owner writes it before a bucket travels
    uint8_t *used;    // by this rank, for each parameter; the owner writes it
    // what the buckets taken so far say, the same on every rank
    uint8_t *used_anywhere;
    double *squares;  // of each reduced gradient; NaN when it is not finite; on a GPU the mirror's;
                      // apart: of what this rank speaks for, until read
    int64_t total_samples;  // -1 until a bucket has told
    bool has_read;          // on a GPU: what the buckets of this step said
    bool is_marked;         // the compute stream has more to do than what `read` waits for
    bool holds_own;         // some bucket has this rank's own result
    bool nonfinite;         // once read: some rank's result is
};

// What all ranks said, wherever it was read.
typedef struct gs_tally_sums {
    int64_t samples, num_ranks, num_active;
} gs_tally_sums;

// Compares them with what was announced, and with what was read before, and keeps the samples.
//   where  "bucket 3", for errors
GS_NODISCARD gs_status gs_tally_take_sums(gs_bucket_tally *tally, const gs_tally_sums *sums,
                                          const char *where);
// Divides a bucket of a sample mean by what the scale has not yet taken out.
void gs_tally_divide(const gs_bucket_tally *tally, size_t index);

#endif
