// One of several ranks that train (trainer_rank.h) dies at a named place of a step (core/failpoint.h): the run until
// all have ended, and whether what the others then hold is a state of a run that nothing happened to.
#ifndef TESTS_SUPPORT_RANK_DEATH_H
#define TESTS_SUPPORT_RANK_DEATH_H

#include <stdint.h>

#include "core/digest.h"
#include "core/status.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_rank.h"

typedef struct rank_death {
    const char *place;
    int pass;  // of that place, from 1
    int rank;
} rank_death;

// Runs body "train" in a world of `dir` and tells the survivors of the death, as a coordinator would. INTERNAL when
// nobody dies, or a survivor does not end as one.
GS_NODISCARD gs_status rank_death_run(const char *dir, const char *spec, int world_size,
                                      const rank_death *death);

// 'R', 'S', 'T' …; 'X' when there is no such process.
char rank_process_state(pid_t pid);
// Until the rank is no more; then the survivors are told.
GS_NODISCARD gs_status rank_death_await(gs_ranks *ranks, int rank, const char *dir);
// Waits for the end of all, and looks at the survivors'.
GS_NODISCARD gs_status rank_death_finish(gs_ranks *ranks, int world_size, int victim);

// Every state that the rank had is one of `undisturbed`; *last: of the step after which it ended.
GS_NODISCARD gs_status rank_death_check_record(int64_t *last, const char *dir, int rank,
                                               const gs_digest undisturbed[TRAINER_RANK_MAX_STEPS]);

#endif
