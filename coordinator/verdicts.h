// Deadlines and silence: what happens because nothing happened. Loop thread.
//
// Silence is weak evidence, progress is strong: nobody is evicted for silence while steps advance, and nobody while
// most are silent: then it is the coordinator that cannot be reached, and it must be as harmless as a dead one.
#ifndef COORDINATOR_VERDICTS_H
#define COORDINATOR_VERDICTS_H

#include "coordinator/coordinator.h"

void gs_verdicts_tick(gs_coordinator *coordinator);
// The loop did not turn for that long: nobody could be heard, so no age and no deadline counts it.
// After a longer standstill all ages begin anew, for what is queued is still to be read.
void gs_verdicts_skip_time(gs_coordinator *coordinator, int64_t skipped_ns);

#endif
