// A trainer without a coordinator: the body of a rank that runs worker/trainer/trainer.h through a gs_control of
// sockets and files. What each rank held after each step is on record, by digest.
//
// In the directory `dir` of a run: record-RANK with a line "STEP DIGEST" for each step that was applied,
// settle-RANK while settling, outcome-RANK with "STEP DIGEST" at its end, unsaved-RANK with a line "STEP" for each save
// that failed, dead-RANK made by the parent, report-RANK with "TOKENS LOSS" of the last report,
// checkpoints/, checkpoint (name of the last). On the software CUDA machine also calls-RANK with a line "STEP
// ALLOCATIONS WAITS PAGEABLE_COPIES" for each step: what the process had asked for by then.
#ifndef TESTS_SUPPORT_TRAINER_RANK_H
#define TESTS_SUPPORT_TRAINER_RANK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/status.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

#define TRAINER_RANK_MAX_STEPS 256

//
// What a coordinator does about plans is done by files too: order-K holds the Kth order that rank 0 told (from
// 0), from which each rank makes the plan of revision K + 2; plan-RANK holds "DIGEST STEP" of the last plan.
// Body "train". `arg` is {"spec":{…},"dir":"…","resume":"…"?,"withheld":RANK?,"layer_drop":PROBABILITY?,
// "device":"cuda:0"?,"data_root":"…"?,"params":true?,"quiet":true?}; quiet: without a record, for whose digests every
// step waits for what it has sent on its way;
// with `params` initial-RANK and params-RANK hold the parameters before and after, fp32;
// that rank gets no new plans; layers are dropped even where the specification's rules refuse it. Notes "fault KIND suspect RANK: …",
// "settling", "end REASON STEP".
gs_status trainer_rank_run(const gs_rank_env *env);

// What the rank said of its state when it ended, and the step after which; {0}: nothing. False: it did not end.
bool trainer_rank_read_outcome(gs_digest *digest, int64_t *step, const char *dir, int rank);
// How often it told that the checkpoint of a step is not to be.
int trainer_rank_count_unsaved(const char *dir, int rank, int64_t step);

// The argument of a run: the caller's (free()). `resume` may be NULL.
char *trainer_rank_arg(const char *spec, const char *dir, const char *resume);
char *trainer_rank_arg_on(const char *spec, const char *dir, const char *resume,
                          const char *device);

// Digest after step s in digests[s]; {0} where there is none. False, with `problem` filled in, when a step
// is on record with two different digests.
bool trainer_rank_read_record(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir, int rank,
                              char problem[160]);
// The record that all ranks share. INTERNAL names the rank and step that differ from rank 0's, or says that
// there is none.
gs_status trainer_rank_read_same(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir,
                                 int world_size);
// Runs body "train" in a world of `dir` and reads what all its ranks held. `resume` may be NULL.
gs_status trainer_rank_train(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir,
                             const char *spec, int world_size, const char *resume);
gs_status trainer_rank_train_on(gs_digest digests[TRAINER_RANK_MAX_STEPS], const char *dir,
                                const char *spec, int world_size, const char *resume,
                                const char *device);
int64_t trainer_rank_last_step(const gs_digest digests[TRAINER_RANK_MAX_STEPS]);
// What a rank told last: tokens of the whole run, loss of the last step. False when it told nothing.
typedef struct trainer_rank_report {
    int64_t tokens;
    double loss;
} trainer_rank_report;
bool trainer_rank_read_report(trainer_rank_report *report, const char *dir, int rank);
// Path of the checkpoint that the run wrote last: the caller's (free()); NULL when there is none.
char *trainer_rank_checkpoint(const char *dir);
// Whether the parameters (fp32) of the last checkpoints of two runs are near each other.
GS_NODISCARD gs_status trainer_rank_check_near(const char *dir, const char *wanted_dir,
                                               gs_near within);
// Tells the survivors that `rank` is no more.
void trainer_rank_declare_dead(const char *dir, int rank);

#endif
