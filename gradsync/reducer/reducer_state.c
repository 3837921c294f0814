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
