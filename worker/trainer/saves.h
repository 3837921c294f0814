// When a job's state is saved: at its cadence, without waiting for the disk; at the end, waited
// for. The lowest rank that sees the job's directory writes it for all, or each rank a part (checkpoint.parts), of a sharded state what it
// owns; who does not see the directory brings its part to one who does (worker/checkpoint/save_team.h). A save that fails stops no
// training, and the coordinator hears of each. Compute thread.
#ifndef WORKER_TRAINER_SAVES_H
#define WORKER_TRAINER_SAVES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/schema/job_spec.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/save_team.h"
#include "worker/control/control.h"
#include "worker/control/rendezvous.h"
#include "worker/state/trainer_state.h"

// Made of its first group of fields alone.
typedef struct gs_saves {
    // Borrows until release.
    const gs_job_spec *spec;
    gs_control *control;
    const gs_trainer_state *state;
    const char *job, *directory, *cluster;
    // Of the generation that trains; NULL: none does, or this rank saves alone.
    const gs_save_team *team;

    gs_checkpoint_writer *writer;  // owned; made by the first save
    gs_bringing *bringing;         // owned, and all ranks of the team have one: what is on its way to the saver; NULL: nothing
    uint64_t num_skipped;
    bool told_late;       // that the save in flight takes longer than the time between two
    int64_t counted_ns;   // since when the time to the next save by the clock is counted; 0: not yet
    bool is_due_by_time;  // agreed by all ranks
    int num_by_time;      // saves by the clock that this process has begun or left out
    _Atomic double longest_seconds;  // that a save has taken here so far
    // The last save of which a part was written here; of the writer's thread while one is in flight.
    char parted[GS_CHECKPOINT_NAME_LEN];
} gs_saves;

// These ranks begin to train: no checkpoint of those before them counts from now on.
void gs_saves_take_over(const gs_saves *saves, const gs_place *place);

// The team's communicator comes to its end: what is still on its way to be saved does not come.
void gs_saves_part(gs_saves *saves);
// False: a save in flight has not come to an end by the deadline. What is still on its way is given up.
GS_NODISCARD bool gs_saves_await(gs_saves *saves, gs_deadline deadline);
// Waits for a save in flight, however long.
void gs_saves_release(gs_saves *saves);

// The cadence of steps says so: of the step that was applied, on all ranks alike.
bool gs_saves_are_due(const gs_saves *saves);
// Seconds to the next save by the clock, behind `num_before` of them: the first ones come soon, so that ranks who die together over and
// over do not begin at the same step for ever; none takes more than a twentieth of the time. Never more than `every_seconds`.
double gs_saves_interval(double every_seconds, int num_before, double longest_seconds);
// A cadence of time, by the clock of the rank that saves for all, or parts that are brought; all save when it is late.
bool gs_saves_are_late(const gs_saves *saves, int rank);
void gs_saves_note_due(gs_saves *saves);  // the ranks agree
// By either cadence. Ranks that train apart are not brought together by a clock: what they come to would hang on it.
bool gs_saves_come_next(const gs_saves *saves);
// This rank has a part of each save, and still writes or brings that of the last one: for the others, who would write theirs in
// vain.
bool gs_saves_write_parts(const gs_saves *saves);
// After a step: goes on with what is on its way to the saver, whose disk is not waited for; saves where the cadence says so, what is
// this rank's to save. While any rank still writes its part, or brings it,
// which is known to all alike, nobody begins another. Seconds that the training stood still; 0: nothing was due.
double gs_saves_when_due(gs_saves *saves, int saving_ranks, const gs_place *place);
// The last save of a run, on all its ranks: waits for what this one writes, and nothing changes the state
// after it was called.
GS_NODISCARD gs_status gs_saves_at_end(gs_saves *saves, const char *reason,
                                       const gs_place *place);
// The same by this rank alone and of everything, which has to be here: no other may be left.
GS_NODISCARD gs_status gs_saves_alone(gs_saves *saves, const char *reason, const gs_place *place);
// No coordinator is there to make a checkpoint of the parts of the last save: this rank does, where it
// sees all of them.
void gs_saves_commit(gs_saves *saves);

#endif
