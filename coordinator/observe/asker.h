// Who asks for a change, for people: the key that he shows, and whom an API names that was shown a token.
#ifndef COORDINATOR_OBSERVE_ASKER_H
#define COORDINATOR_OBSERVE_ASKER_H

#include "coordinator/observe/observer.h"

// Borrowed from the request; "": nobody is named, or by one who may not, or not as names are.
const char *gs_asker_name(const gs_rpc_peer *peer, const gs_json *request);
// An event "Requested", of no job; none where nobody is known. `what`: "a recording of job j-1".
void gs_asker_note(gs_observer *observer, const gs_rpc_peer *peer, const gs_json *request, const char *what);

#endif
