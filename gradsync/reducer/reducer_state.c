#include "gradsync/reducer/reducer_state.h"

gs_status gs_reducer_blame(const gs_reducer *reducer, size_t param, const char *what) {
    return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld: parameter %zu \"%.100s\" %s",
                    reducer->options.shards.rank, (long long)reducer->step, param,
                    reducer->layout.params[param].name, what);
}

gs_status gs_reducer_misuse(const gs_reducer *reducer, const char *what) {
    return gs_error(GS_FAILED_PRECONDITION, "rank %d, step %lld: %s", reducer->options.shards.rank,
                    (long long)reducer->step, what);
}
