#include "coordinator/observe/views/control_path_view.h"

void gs_control_path_to_view(gs_json *item, int64_t since_ms) {
    if (!since_ms) return;
    gs_json_set_bool(item, "control_path_degraded", true);
    gs_json_set_time(item, "control_path_degraded_since", since_ms);
}
