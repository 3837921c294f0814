// The tally in a collective of its own: one sum of doubles over all ranks.
//
//   samples · ranks · active ranks │ of each parameter: ranks that used it │ squares │ elements │ edges
//
// Counts are integers far below 2^53, so their sums are exact. Squares are said by who holds the
// result: of a part the rank that has it; of a bucket that all have whole one rank, bucket and
// ranks taking turns, while all others say 0. So a norm has the same bits on every rank, and where
// no gradient is cut in two, those of the other carrier. Of one that is, the squares of its parts
// are added in rank order. (nccl: in an order of the library's, the same on all ranks.) What is not
// finite is NaN there, and survives the sum. Elements and edges tell that the parts are all of it:
// whoever holds too little, or what another has, would change the norm and nothing else.
#ifndef GRADSYNC_BUCKET_TALLY_APART_H
#define GRADSYNC_BUCKET_TALLY_APART_H

#include <stddef.h>

#include "gradsync/bucket/tally_state.h"

extern const gs_tally_world gs_tally_apart;

// Doubles in its collective, for so many parameters.
size_t gs_tally_apart_words(size_t num_params);

#endif
