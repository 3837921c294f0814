// Shares that a generation leaves in a rank's memory: its own, and those that it found of ranks that died.
// Compute thread.
#ifndef WORKER_STATE_KEPT_SHARES_H
#define WORKER_STATE_KEPT_SHARES_H

#include <stddef.h>

#include "core/status.h"
#include "worker/state/share_source.h"

typedef struct gs_kept_shares gs_kept_shares;

// Room for tensors that are added one after the other.
GS_NODISCARD gs_status gs_kept_shares_create(gs_kept_shares **out, size_t num_tensors);
void gs_kept_shares_destroy(gs_kept_shares *shares);
// Memory for the next tensor of the share of `rank`; NULL: there is none.
void *gs_kept_shares_add(gs_kept_shares *shares, int rank, const char *name, gs_dtype dtype,
                         size_t count);
// Without what was added for `rank`.
void gs_kept_shares_drop(gs_kept_shares *shares, int rank);
// The source takes them; its claim but for what it holds is the caller's to fill in.
gs_share_source gs_kept_shares_source(gs_kept_shares *shares, size_t num_tensors);

#endif
