// Whom a rank waits for, and who of them is to blame.
//
// Of a sum that one rank holds up all others owe something in the end: an owner cannot send what it
// cannot add. So what hangs on a peer alone outranks what hangs on others too; and ranks that have
// waited for long say for whom, so that one which only waits itself is not taken for the one that
// is waited for.
#ifndef GRADSYNC_COMM_NET_DEBTS_H
#define GRADSYNC_COMM_NET_DEBTS_H

#include <stdint.h>

#define GS_NET_MOST_RANKS 64

typedef uint64_t gs_net_ranks;  // a bit for each

static inline gs_net_ranks gs_net_rank_bit(int rank) {
    return UINT64_C(1) << rank;
}

// Of one collective; a peer is in one of them, or in none.
typedef struct gs_net_debts {
    gs_net_ranks absent;  // did not say that they have come to it
    gs_net_ranks own;     // asked for what is theirs alone, or do not take what they asked for
    gs_net_ranks sums;    // what hangs on others' as well
} gs_net_debts;

// What a peer said last, of a lane.
typedef struct gs_net_word {
    uint64_t sequence;   // of the first collective that it had not finished
    gs_net_ranks waits;  // for whom; 0: it does not, or not for long
    int64_t heard_ns;    // when; who still waits says so again and again
} gs_net_word;

static inline gs_net_ranks gs_net_debts_all(const gs_net_debts *debts) {
    return debts->absent | debts->own | debts->sums;
}
// Those whose debts hang on nobody else, where there are any.
gs_net_ranks gs_net_debts_first(const gs_net_debts *debts);
// Who is to blame, as far as this rank knows. Words of a collective behind `sequence` excuse
// nobody: who is further owes nothing any more. Where all excuse each other: all of the first.
//   words     by rank
//   since_ns  what was heard before is not true any more: who said it has fallen silent
gs_net_ranks gs_net_debts_blame(const gs_net_debts *debts, int rank, uint64_t sequence,
                                const gs_net_word *words, int world_size, int64_t since_ns);

#endif
