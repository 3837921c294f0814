#include "worker/state/share_deal.h"

#include <stdlib.h>

void gs_share_claim_add(gs_share_claim *claim, int rank) {
    claim->held[rank / 64] |= UINT64_C(1) << (rank % 64);
}

static bool holds(const gs_share_claim *claim, const gs_share_claim *origin, int rank) {
    return claim->origin == origin->origin && claim->step == origin->step &&
           claim->world_size == origin->world_size && claim->held[rank / 64] >> (rank % 64) & 1;
}

static bool is_one(const gs_share_claim *claim, int64_t step) {
    return claim->origin && claim->step == step && claim->world_size > 0 &&
           claim->world_size <= GS_COMM_MAX_RANKS;
}

// Whose ranks are still there comes first, the newest of those.
static bool is_better(const gs_share_claim *one, const gs_share_claim *other) {
    if ((one->rank >= 0) != (other->rank >= 0)) return one->rank >= 0;
    return one->origin > other->origin;
}

static int find_lost(const gs_share_claim *origin, const gs_share_claim *claims, int world_size) {
    for (int share = 0; share < origin->world_size; share++) {
        int holder = 0;
        while (holder < world_size && !holds(&claims[holder], origin, share)) holder++;
        if (holder == world_size) return share;
    }
    return -1;
}

// The shares that are gone on with: of the best origin that is whole. NULL: of none.
static const gs_share_claim *choose_origin(gs_share_deal *deal, const gs_share_claim *claims,
                                           int world_size, int64_t step) {
    const gs_share_claim *best = NULL;
    for (int i = 0; i < world_size; i++) {
        if (!is_one(&claims[i], step)) continue;
        int lost = find_lost(&claims[i], claims, world_size);
        if (lost >= 0) {
            if (!deal->has_lost) deal->lost = lost;
            deal->has_lost = true;
        } else if (!best || is_better(&claims[i], best)) {
            best = &claims[i];
        }
    }
    if (best) deal->has_lost = false;
    return best;
}

static bool stays(const gs_share_claim *claim, const gs_share_claim *origin) {
    return claim->rank >= 0 && claim->rank < origin->world_size &&
           holds(claim, origin, (int)claim->rank);
}

// Who stays keeps its own; newcomers, in order, get one each.
static void deal_by_rank(gs_share_deal *deal, const gs_share_claim *origin,
                         const gs_share_claim *claims, int world_size) {
    int newcomer = 0;
    for (int share = 0; share < deal->num_shares; share++) deal->shares[share].owner = -1;
    for (int i = 0; i < world_size; i++)
        if (stays(&claims[i], origin)) deal->shares[claims[i].rank].owner = i;
    for (int share = 0; share < deal->num_shares; share++) {
        if (deal->shares[share].owner >= 0) continue;
        while (newcomer < world_size && stays(&claims[newcomer], origin)) newcomer++;
        deal->shares[share].owner = newcomer < world_size ? newcomer++ : share % world_size;
    }
}

static void find_holders(gs_share_deal *deal, const gs_share_claim *origin,
                         const gs_share_claim *claims) {
    for (int share = 0; share < deal->num_shares; share++) {
        gs_share *it = &deal->shares[share];
        it->holder = 0;
        while (!holds(&claims[it->holder], origin, share)) it->holder++;
        if (holds(&claims[it->owner], origin, share)) it->holder = it->owner;
    }
}

gs_status gs_share_deal_make(gs_share_deal *deal, const gs_share_claim *claims, int world_size,
                             int64_t step) {
    *deal = (gs_share_deal){0};
    const gs_share_claim *origin = choose_origin(deal, claims, world_size, step);
    if (!origin) return gs_ok();
    deal->shares = calloc((size_t)origin->world_size, sizeof *deal->shares);
    if (!deal->shares) return gs_error(GS_RESOURCE_EXHAUSTED, "shares of ranks: out of memory");
    deal->num_shares = (int)origin->world_size;
    deal_by_rank(deal, origin, claims, world_size);
    find_holders(deal, origin, claims);
    return gs_ok();
}

void gs_share_deal_release(gs_share_deal *deal) {
    free(deal->shares);
    *deal = (gs_share_deal){0};
}
