// Averages parameters that ranks change by themselves: by a table of periods, over all ranks or
// over neighbours first (post-local SGD; hooks/local_sgd.c keeps gradients local meanwhile).
//
//   after the update of step s ≥ start_step, at most one average:
//   one level      where s − start_step is a multiple of its period, over all ranks
//   several        the longest period that s is a multiple of (s itself), over as many neighbours
//
// The step number is the caller's: what is resumed or done again averages where it would have.
//
// An average is a transaction. The sum lies beside, and nothing is written before all ranks have
// said that they have theirs. A rank that dies then may leave some with the average and some
// without: each keeps what it brought until the next one, so that `reset` can take it back
// everywhere, and it is made anew by those that are left.
//
// Threads: the communicator's. Nothing else is in flight in its lane 0 during the calls.
#ifndef GRADSYNC_STEP_AVERAGER_H
#define GRADSYNC_STEP_AVERAGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/coalesce.h"
#include "gradsync/comm/comm.h"

GS_BEGIN_DECLS

#define GS_AVERAGER_MAX_LEVELS 8

typedef struct gs_averager gs_averager;

// Periods and ranks ascend; the last level is of all ranks.
typedef struct gs_average_level {
    int64_t period;  // steps, at least 1
    int num_ranks;   // so many neighbours, the last of them perhaps fewer; 0: all
} gs_average_level;

// The same on all ranks.
typedef struct gs_averager_options {
    const gs_average_level *levels;  // copied
    size_t num_levels;
    int64_t start_step;  // that of the hook
    // What is averaged: fp32, fp64, or of 16 bits; borrowed until destroy, the list too. Twice
    // their bytes are taken beside.
    const gs_tensor_view *tensors;
    size_t num_tensors;
    gs_comm *comm;  // borrowed until reset or destroy
} gs_averager_options;

// Collective: neighbours get communicators of their own (gs_comm_split). INVALID_ARGUMENT says what
// is wrong with the table. After an error the communicator is aborted: the others wait for this
// rank. Periods of 1 are warned of: they average as often as gradients would.
GS_NODISCARD gs_status gs_averager_create_sized(gs_averager **out,
                                                const gs_averager_options *options,
                                                size_t options_bytes, gs_deadline deadline);
GS_NODISCARD static inline gs_status
gs_averager_create(gs_averager **out, const gs_averager_options *options, gs_deadline deadline) {
    return gs_averager_create_sized(out, options, sizeof *options, deadline);
}
void gs_averager_destroy(gs_averager *averager);

// The level whose turn it is after step `step`; -1: none.
int gs_averager_due(const gs_averager *averager, int64_t step);

// After the update of `step`: averages if a level is due. Collective, whichever level it is.
//   used     by tensor: what no rank used is left as it is; the same on all ranks; NULL: all were
//   num_ranks  over how many it was averaged here; 0: none was due
// After an error nothing is written, and the communicator is aborted: `reset` leads out.
GS_NODISCARD gs_status gs_averager_run(gs_averager *averager, int64_t step, const uint8_t *used,
                                       int *num_ranks, gs_deadline deadline);
// The same over all ranks, due or not: before what they hold is saved or given to another.
GS_NODISCARD gs_status gs_averager_run_all(gs_averager *averager, int64_t step, const uint8_t *used,
                                           gs_deadline deadline);

// Goes on with another communicator, after an error: collective. `step` is that of an average which
// some of its ranks have begun and not all finished, -1: there is none. All hold then what they
// brought to it, and are to run it again, before anything else.
GS_NODISCARD gs_status gs_averager_reset(gs_averager *averager, gs_comm *comm, int64_t *step,
                                         gs_deadline deadline);

GS_END_DECLS

#endif
