// A few words that all ranks must say alike, each with its name: what was configured on every host
// by itself.
#ifndef GRADSYNC_COMM_SAME_WORDS_H
#define GRADSYNC_COMM_SAME_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"

typedef struct gs_same_word {
    const char *name;
    int64_t value;
    bool is_opaque;  // a hash, or bits: the number would tell a reader nothing
} gs_same_word;

// Collective, as many words on every rank. The first difference is FAILED_PRECONDITION, the same on
// every rank: "rank 2 against rank 0: passes per shard 4 against 3".
GS_NODISCARD gs_status gs_same_words_check(const gs_same_word *words, size_t num_words,
                                           gs_comm *comm, gs_deadline deadline);

#endif
