// From a waiting job to trainers being started on free slots. Loop thread.
#ifndef COORDINATOR_LAUNCH_H
#define COORDINATOR_LAUNCH_H

#include "coordinator/coordinator.h"

// Looks at every waiting job: starts what can start, says of the rest what it waits for.
void gs_launch_waiting(gs_coordinator *coordinator);

#endif
