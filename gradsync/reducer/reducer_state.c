#include "gradsync/reducer/reducer_state.h"

#include "gradsync/reducer/blame.h"

static gs_blamed who(const gs_reducer *reducer) {
    return (gs_blamed){reducer->options.shards.rank, reducer->step, GS_NO_REPLICA};
}

gs_status gs_reducer_blame(const gs_reducer *reducer, size_t param, const char *what) {
    return gs_blame_param(who(reducer), param, reducer->layout.params[param].name, what);
}

gs_status gs_reducer_misuse(const gs_reducer *reducer, const char *what) {
    return gs_blame_call(who(reducer), what);
}

gs_status gs_reducer_keep_error(gs_reducer *reducer, gs_status status) {
    if (!status.code || reducer->failed.code) return status;
    reducer->failed = status;
    gs_comm_abort(reducer->comm, status.message);
    gs_reducer_record_fail(&reducer->record, reducer->step, status);
    return status;
}
