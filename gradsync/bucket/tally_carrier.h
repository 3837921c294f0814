// By what ranks tell each other about a step (gs_reducer_options.tally).
#ifndef GRADSYNC_BUCKET_TALLY_CARRIER_H
#define GRADSYNC_BUCKET_TALLY_CARRIER_H

#include "core/abi.h"

GS_BEGIN_DECLS

typedef enum gs_tally_carrier {
    // Reserved elements of each bucket, summed like gradients: no collective of their own, but all
    // ranks have to receive whole buckets.
    GS_TALLY_IN_BUCKETS = 0,
    // One small all-reduce behind all buckets and tails, for hooks that leave a rank with a part of
    // the result. Buckets have no reserved elements.
    GS_TALLY_APART
} gs_tally_carrier;

GS_END_DECLS

#endif
