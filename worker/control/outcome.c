#include "worker/control/outcome.h"

#include <stdlib.h>

const char *gs_trainer_end_name(gs_trainer_end end) {
    static const char *const names[] = {"target_reached", "drained", "aborted", "error",
                                        "data_ended", "orphaned"};
    return names[end];
}

void gs_trainer_outcome_release(gs_trainer_outcome *outcome) {
    free(outcome->sample);
    *outcome = (gs_trainer_outcome){0};
}
