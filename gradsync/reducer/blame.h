// Errors of a program that calls at the wrong time or twice: FAILED_PRECONDITION with the place
// where it was.
#ifndef GRADSYNC_REDUCER_BLAME_H
#define GRADSYNC_REDUCER_BLAME_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

#define GS_NO_REPLICA (-1)

typedef struct gs_blamed {
    int rank;
    int64_t step;
    int replica;  // of the process; GS_NO_REPLICA
} gs_blamed;

// "rank 0, step 3: a pass is open, end it first", "rank 0, step 3, replica 1: …".
gs_status gs_blame_call(gs_blamed who, const char *what);
// `what` follows the parameter's number and name.
gs_status gs_blame_param(gs_blamed who, size_t param, const char *name, const char *what);

#endif
