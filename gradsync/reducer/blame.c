#include "gradsync/reducer/blame.h"

#include <stdio.h>

gs_status gs_blame_call(gs_blamed who, const char *what) {
    char replica[32] = "";
    if (who.replica != GS_NO_REPLICA)
        snprintf(replica, sizeof replica, ", replica %d", who.replica);
    return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld%s: %s", who.rank,
                    (long long)who.step, replica, what);
}

gs_status gs_blame_param(gs_blamed who, size_t param, const char *name, const char *what) {
    char text[320];
    snprintf(text, sizeof text, "parameter %zu \"%.100s\" %s", param, name, what);
    return gs_blame_call(who, text);
}
