#include "gradsync/comm/net/debts.h"

gs_net_ranks gs_net_debts_first(const gs_net_debts *debts) {
    if (debts->absent) return debts->absent;
    return debts->own ? debts->own : debts->sums;
}

gs_net_ranks gs_net_debts_blame(const gs_net_debts *debts, int rank, uint64_t sequence,
                                const gs_net_word *words, int world_size, int64_t since_ns) {
    gs_net_ranks first = gs_net_debts_first(debts), all = first, seen = 0, blamed = 0;
    gs_net_ranks known =
        world_size < GS_NET_MOST_RANKS ? gs_net_rank_bit(world_size) - 1 : ~UINT64_C(0);
    while (all & ~seen) {
        int peer = __builtin_ctzll(all & ~seen);
        const gs_net_word *word = &words[peer];
        // Who says that it waits for this rank has no excuse here: this rank knows better.
        gs_net_ranks waits = word->waits & known & ~gs_net_rank_bit(rank) & ~gs_net_rank_bit(peer);
        seen |= gs_net_rank_bit(peer);
        if (waits && word->sequence <= sequence && word->heard_ns >= since_ns)
            all |= waits;
        else
            blamed |= gs_net_rank_bit(peer);
    }
    return blamed ? blamed : first;
}
