// What a run has come to.
#ifndef WORKER_CONTROL_OUTCOME_H
#define WORKER_CONTROL_OUTCOME_H

#include "core/digest.h"
#include "core/status.h"
#include "worker/exit_code.h"

typedef enum gs_trainer_end {
    GS_TARGET_REACHED = 0,
    GS_DRAINED,
    GS_TRAINER_ABORTED,  // restart me
    GS_TRAINER_FAILED,   // status says why
    GS_DATA_ENDED,       // uneven_inputs stop: a rank has no data left
    GS_ORPHANED          // nobody was there to direct the ranks: restart me
} gs_trainer_end;
const char *gs_trainer_end_name(gs_trainer_end end);  // as in Bye

typedef struct gs_trainer_outcome {
    gs_trainer_end end;
    gs_status status;
    gs_exit_reason reason;
    char *sample;  // owned; NULL: none
    gs_digest state_digest;  // {0}: what is here is no state
} gs_trainer_outcome;
void gs_trainer_outcome_release(gs_trainer_outcome *outcome);

#endif
