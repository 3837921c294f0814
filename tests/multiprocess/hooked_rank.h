// A rank with a hook of the test's own: a reducer of many small parameters, whose sums are exact,
// and passes in which ranks fall behind each other.
#ifndef TESTS_MULTIPROCESS_HOOKED_RANK_H
#define TESTS_MULTIPROCESS_HOOKED_RANK_H

#include <stddef.h>
#include <stdint.h>

#include "gradsync/reducer/reducer.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define HOOKED_PARAMS 64
#define HOOKED_MAX_WORLD 4
#define HOOKED_STEPS 4

typedef struct hooked_rank {
    const gs_rank_env *env;
    comm_rank rank;
    gs_param_spec params[HOOKED_PARAMS];
    gs_bucket_plan plans[2];  // a bucket for each; few buckets
    gs_hook_choice choice;
    gs_reducer_options options;
    gs_reducer *reducer;
} hooked_rank;

// Elements of a parameter.
size_t hooked_rank_count(size_t param);
// Multiples of an eighth: sums of all ranks are exact in fp32.
float hooked_rank_value(int64_t step, int rank, size_t param, size_t index);
// Ranks fall behind here and there.
void hooked_rank_dawdle(uint64_t a, uint64_t b);
// Its parameters are of fp32, each in a bucket of its own: plans[0].
gs_status hooked_rank_open(hooked_rank *self, const gs_rank_env *env, const gs_comm_hook *hook,
                           gs_helper_thread helper);
void hooked_rank_close(hooked_rank *self);
// Another communicator of all ranks, on its memory or with none.
gs_status hooked_rank_open_comm(gs_comm **comm, const hooked_rank *self, uint32_t generation,
                                bool takes_arena);
// Gradients in an order of this rank's own.
gs_status hooked_rank_run_pass(hooked_rank *self, int64_t step,
                               float (*value)(int64_t step, int rank, size_t param, size_t index));
// Everybody is here: nobody is a step behind.
gs_status hooked_rank_meet(const hooked_rank *self, const char *what, int64_t step);
// Of hooked_rank_value, with any hook whose sums are exact.
gs_status hooked_rank_check_sums(const hooked_rank *self, int64_t step);

#endif
