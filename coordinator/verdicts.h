// Deadlines and silence: what happens because nothing happened. Loop thread.
//
// Silence is weak evidence, progress is strong: nobody is evicted for silence while steps advance.
#ifndef COORDINATOR_VERDICTS_H
#define COORDINATOR_VERDICTS_H

#include "coordinator/coordinator.h"

void gs_verdicts_tick(gs_coordinator *coordinator);
// The loop stood still: silence of that time means nothing.
void gs_verdicts_forget_ages(gs_coordinator *coordinator);

#endif
