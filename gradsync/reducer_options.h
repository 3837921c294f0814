// Whether a reducer can be made from its options: what one rank sees without asking the others.
#ifndef GRADSYNC_REDUCER_OPTIONS_H
#define GRADSYNC_REDUCER_OPTIONS_H

#include "gradsync/reducer.h"

// INVALID_ARGUMENT names the option, the parameter or the bucket.
GS_NODISCARD gs_status gs_reducer_options_check(const gs_reducer_options *options,
                                                const gs_comm *comm);

#endif
