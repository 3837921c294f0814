// Who shows a one-time token becomes a worker: its key is known from then on, also after any crash behind the answer.
#ifndef COORDINATOR_OBSERVE_HOSTS_ENROLMENT_H
#define COORDINATOR_OBSERVE_HOSTS_ENROLMENT_H

#include "coordinator/observe/observer.h"

void gs_enrol(gs_observer *observer, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);

#endif
