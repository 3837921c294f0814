// A trainer without a coordinator: the body of a rank that runs worker/trainer.h through a gs_control of
// sockets and files. What each rank held after each step is on record, by digest.
//
// In the directory `dir` of a run: record-RANK with a line "STEP DIGEST" for each step that was applied,
// settle-RANK while settling, dead-RANK made by the parent, checkpoints/, checkpoint (name of the last).
#ifndef TESTS_SUPPORT_TRAINER_RANK_H
#define TESTS_SUPPORT_TRAINER_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/status.h"
#include "tests/support/ranks.h"

#define TRAINER_RANK_MAX_STEPS 256

// Body "train". `arg` is {"spec":{…},"dir":"…","resume":"…"?}. Notes "fault KIND suspect RANK: …",
// "settling", "end REASON STEP".
gs_status trainer_rank_run(const gs_rank_env *env);

// The argument of a run: the caller's (free()). `resume` may be NULL.
char *trainer_rank_arg(const char *spec, const char *dir, const char *resume);

// Digest after step s in digests[s]; {0} where there is none. False, with `problem` filled in, when a step
// is on record with two different digests.
bool trainer_rank_read_record(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir, int rank,
                              char problem[160]);
int64_t trainer_rank_last_step(const gs_digest digests[TRAINER_RANK_MAX_STEPS]);
// Path of the checkpoint that the run wrote last: the caller's (free()); NULL when there is none.
char *trainer_rank_checkpoint(const char *dir);
// Tells the survivors that `rank` is no more.
void trainer_rank_declare_dead(const char *dir, int rank);

#endif
