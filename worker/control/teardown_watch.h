// A communicator that cannot be torn down would keep its memory from the next generation: the
// process ends.
#ifndef WORKER_CONTROL_TEARDOWN_WATCH_H
#define WORKER_CONTROL_TEARDOWN_WATCH_H

#include "worker/control/control.h"

// Ends the process when the teardown that the compute thread is in has taken too long. Control
// thread, often.
void gs_teardown_watch_look(const gs_control *control);

#endif
