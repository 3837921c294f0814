// What people see of a way to the coordinator that is cut, of a rank and of a worker.
#ifndef COORDINATOR_OBSERVE_VIEWS_CONTROL_PATH_VIEW_H
#define COORDINATOR_OBSERVE_VIEWS_CONTROL_PATH_VIEW_H

#include "rpc/json/json.h"

// since_ms: of the last word, by the wall; 0: all is well, and nothing is shown.
void gs_control_path_to_view(gs_json *item, int64_t since_ms);

#endif
