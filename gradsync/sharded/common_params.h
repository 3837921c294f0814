// Parameters in one memory for all ranks of a host: an owner updates its part where everybody reads
// it, and nothing is gathered (gs_param_gather_options.are_common).
//
// That memory is where rank 0's lie, in its arena, which the other ranks have mapped. It asks for
// two things that memory of one's own does not. An owner writes when all ranks have read, so behind
// the commit of a step and not before. And who loses a rank holds nothing: what is there may be of
// two steps.
#ifndef GRADSYNC_SHARDED_COMMON_PARAMS_H
#define GRADSYNC_SHARDED_COMMON_PARAMS_H

#include <stddef.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"

GS_BEGIN_DECLS

// Collective. *out becomes where rank 0's parameters lie as this rank reaches them, with what rank
// 0 has there, until the communicator is destroyed; or on all ranks NULL: one of them keeps its own,
// or ranks do not share memory.
//   params  this rank's; NULL: it keeps its own, wherever they lie. So it does with some that lie
//           outside of its arena.
// FAILED_PRECONDITION names a rank with another number of bytes. After any error the communicator
// is aborted.
GS_NODISCARD gs_status gs_common_params_find(void **out, gs_comm *comm, const void *params,
                                             size_t bytes, gs_deadline deadline);

GS_END_DECLS

#endif
