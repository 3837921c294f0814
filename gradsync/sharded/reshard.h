// What ranks own of tensors, from one partition to another: another plan, other parameters that
// train, another rule. Each element goes from who owned it to who owns it now, piece by piece; no
// rank ever has more than its old part, its new one, and one piece.
//
// Of an optimizer that is each of its states, and the counts of updates. Masters in 16-bit precision
// are tensors like any others (gs_reshard_run). Parameters themselves are whole on every rank, and
// only change places (gs_shards_param_offset).
//
// Between steps, when nothing is in flight. After an error the new part means nothing, and the old
// one is as it was.
//
// Threads: the communicator's owner.
#ifndef GRADSYNC_SHARDED_RESHARD_H
#define GRADSYNC_SHARDED_RESHARD_H

#include <stddef.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "gradsync/optim/optimizer.h"
#include "gradsync/sharded/shards.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_reshard_options {
    // Of the communicator's world and of the same parameters; `to` may have more behind them, whose elements stay
    // as they are there: a group that is added while training, with a state of zeros.
    const gs_shards *from, *to;
    gs_comm *comm;
    gs_device *device;   // where the parts lie
    size_t piece_bytes;  // that travel at a time, and that lie beside meanwhile; 0: 64 KiB
} gs_reshard_options;    // for the call

// One element of `element_bytes` for each element of the parameters: old_parts[i] is where segment i
// begins that this rank has of `from` (gs_shards_of_rank), new_parts[i] the same of `to`. Collective:
// ranks compare both partitions first, FAILED_PRECONDITION names a rank that has others. After any error,
// that of a wrong argument too, the communicator is aborted, for the other ranks wait.
GS_NODISCARD gs_status gs_reshard_run_sized(const gs_reshard_options *options, size_t options_bytes,
                                            void *const *new_parts, const void *const *old_parts,
                                            size_t element_bytes, gs_deadline deadline);
GS_NODISCARD static inline gs_status gs_reshard_run(const gs_reshard_options *options,
                                                    void *const *new_parts,
                                                    const void *const *old_parts,
                                                    size_t element_bytes, gs_deadline deadline) {
    return gs_reshard_run_sized(options, sizeof *options, new_parts, old_parts, element_bytes,
                                deadline);
}

// All that an optimizer keeps: `to` of this rank's segments of options->to, `from` of those of
// options->from, both of one kind. Collective. INVALID_ARGUMENT when they do not fit; aborted as above.
GS_NODISCARD gs_status gs_reshard_optimizer_sized(const gs_reshard_options *options,
                                                  size_t options_bytes, gs_optimizer *to,
                                                  gs_optimizer *from, gs_deadline deadline);
GS_NODISCARD static inline gs_status gs_reshard_optimizer(const gs_reshard_options *options,
                                                          gs_optimizer *to, gs_optimizer *from,
                                                          gs_deadline deadline) {
    return gs_reshard_optimizer_sized(options, sizeof *options, to, from, deadline);
}

GS_END_DECLS

#endif
