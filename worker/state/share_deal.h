// Who goes on with whose share, when a generation begins with other ranks than those that had the shares: a pure
// decision, the same on all ranks.
//
// A rank that is still there keeps its own. Shares whose ranks are gone are dealt to newcomers first, one each in
// order, so that a rank that was replaced goes on with the bits that it had; what is left is added to shares of
// those that are there, in order. So the sum over ranks stays. A checkpoint's ranks are all gone: the same
// world gets the same shares back.
#ifndef WORKER_STATE_SHARE_DEAL_H
#define WORKER_STATE_SHARE_DEAL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/comm_failure.h"

// What a rank says of the shares that it can read.
typedef struct gs_share_claim {
    uint64_t origin;     // equal where they are shares of the same ranks: of a generation, of a checkpoint; 0: none
    int64_t step;        // that they belong to
    int64_t world_size;  // of those ranks
    int64_t rank;        // which of them this one was and still is; −1: it comes new
    uint64_t held[GS_COMM_MAX_RANKS / 64];  // whose: a bit for each
} gs_share_claim;

void gs_share_claim_add(gs_share_claim *claim, int rank);

typedef struct gs_share {
    int holder, owner;  // ranks of now: who can read it, and who goes on with it; the same where that may be
} gs_share;

typedef struct gs_share_deal {
    gs_share *shares;  // owned; of each rank of then
    int num_shares;    // 0: there are none of this step
    bool has_lost;     // then nobody has the share of rank `lost`, and nothing is dealt
    int lost;
} gs_share_deal;

// From the claims of all ranks; only shares of `step` count. RESOURCE_EXHAUSTED alone. Release with the pair.
GS_NODISCARD gs_status gs_share_deal_make(gs_share_deal *deal, const gs_share_claim *claims,
                                          int world_size, int64_t step);
void gs_share_deal_release(gs_share_deal *deal);

#endif
