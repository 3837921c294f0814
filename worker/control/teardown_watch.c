#include "worker/control/teardown_watch.h"

#include <unistd.h>

#include "core/log.h"
#include "worker/exit_code.h"

#define MOST_NS (5 * GS_NS_PER_SEC)

void gs_teardown_watch_look(const gs_control *control) {
    int64_t since_ns = atomic_load(&control->progress.teardown_since_ns);
    if (since_ns == 0 || gs_now_ns() - since_ns < MOST_NS) return;
    gs_log_error("a session could not be torn down: its communicator or a replica hangs",
                 "seconds=%lld", (long long)(MOST_NS / GS_NS_PER_SEC));
    _exit(GS_EXIT_ABORT_HUNG);
}
