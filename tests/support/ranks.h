// Runs this test binary N times as ranks, collects their statuses, signals one.
//
// Ranks are re-executions (CUDA dislikes fork): the parent's main calls gs_ranks_main first; in a
// rank it runs the named body and exits, in the parent it returns false. Ranks report a status;
// only the parent asserts. The exchange of a communicator runs over Unix sockets to the parent.
#ifndef TESTS_SUPPORT_RANKS_H
#define TESTS_SUPPORT_RANKS_H

#include <stdbool.h>
#include <sys/types.h>

#include "core/clock.h"
#include "core/status.h"

typedef struct gs_ranks gs_ranks;

typedef struct gs_rank_env {
    int rank, world_size;
    const char *arg; // as given to gs_ranks_start
    void *exchange;  // ctx for gs_rank_exchange
} gs_rank_env;

typedef struct gs_rank_body {
    const char *name;
    gs_status (*run)(const gs_rank_env *env);
} gs_rank_body;

// True when this process was a rank (it has run; return from main with *exit_code).
bool gs_ranks_main(int argc, char **argv, const gs_rank_body *bodies, int *exit_code);

// Fits gs_comm_options.exchange (gradsync/comm/comm_options.h). NULL and 0 instead of ranks: all.
gs_status gs_rank_exchange(void *ctx, const char *tag, const int *ranks, int num_ranks,
                           const void *mine, size_t bytes, void *all, gs_deadline deadline);
// Sends a line of text to the parent (gs_ranks_note).
void gs_rank_note(const gs_rank_env *env, const char *text);

// Starts world_size processes running body `name`; `environment` (NULL-terminated "NAME=value" list
// or NULL) is added to theirs. RANK and WORLD_SIZE are set.
GS_NODISCARD gs_status gs_ranks_start(gs_ranks **out, const char *name, int world_size,
                                      const char *arg, const char *const *environment);
pid_t gs_ranks_pid(const gs_ranks *ranks, int rank);
void gs_ranks_signal(gs_ranks *ranks, int rank, int signal);
// Waits for all; kills what is left at the deadline. statuses[rank]: what the body returned;
// ABORTED "killed by signal N" when it did not; DEADLINE_EXCEEDED when it had to be killed here. Ok
// when all ended by themselves, whatever they returned.
GS_NODISCARD gs_status gs_ranks_wait(gs_ranks *ranks, gs_status *statuses, gs_deadline deadline);
const char *gs_ranks_note(const gs_ranks *ranks, int rank); // the last note, "" when none
// Waits until rank `rank` has noted a text that starts with `prefix`.
GS_NODISCARD gs_status gs_ranks_wait_note(gs_ranks *ranks, int rank, const char *prefix,
                                          gs_deadline deadline);
void gs_ranks_destroy(gs_ranks *ranks);

// start, wait, destroy; the first error of any rank, prefixed with its rank.
GS_NODISCARD gs_status gs_ranks_run(const char *name, int world_size, const char *arg,
                                    gs_deadline deadline);

#endif
