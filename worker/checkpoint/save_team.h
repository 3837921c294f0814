// Which ranks of a generation see the directory of their job's checkpoints, and what the others bring those who do: a rank whose
// worker has a directory of its own could write its part there, where neither the coordinator nor a restart finds it.
// Compute thread.
#ifndef WORKER_CHECKPOINT_SAVE_TEAM_H
#define WORKER_CHECKPOINT_SAVE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "worker/checkpoint/part_intake.h"
#include "worker/state/state_snapshot.h"

typedef struct gs_save_team {
    gs_comm *comm;  // borrowed
    double timeout_seconds;  // of one collective
    bool is_apart;  // this rank does not see it, and another does
    int num_apart;  // such ranks; 0, too, where nobody sees it: then each writes where it is
    int saver;      // the lowest rank that sees it; 0 where nobody does
    bool *apart;    // owned; by rank
} gs_save_team;

// Collective. `sees_none`: the checkpoints of this rank's worker are not the coordinator's.
GS_NODISCARD gs_status gs_save_team_meet(gs_save_team *team, gs_comm *comm, bool sees_none, double timeout_seconds,
                                         gs_deadline deadline);
void gs_save_team_release(gs_save_team *team);

// Parts of one save on their way to the saver. Each rank of the team has one, and all say the same of it.
typedef struct gs_bringing gs_bringing;

// Collective, where num_apart is not 0: what each rank that is apart would have written is to come to the saver, in pieces of a few MiB,
// and is compared with its digest. Nothing comes yet. `mine` is this rank's own snapshot, which has to stay as it is until all is done;
// NULL: it could not be taken, and then what hangs on it is left out.
//   intake  of the saver, where it has a snapshot, else NULL: some thread takes what comes of it to the disk; told of the end in any
//           case but that of an error here
//   ready   until then ranks may come to it, if that is later than a collective's timeout: one that saves for others may have the
//           last save to write first
GS_NODISCARD gs_status gs_save_team_begin(gs_bringing **out, const gs_save_team *team, const gs_state_snapshot *mine, gs_part_intake *intake,
                                          gs_deadline ready);
// Collective: as much as the saver has room for until its disk has taken more, which nobody waits for. Of what the disk does not keep
// the rest stays away. After an error it is only good for destroy. DATA_LOSS: something else came than was sent.
GS_NODISCARD gs_status gs_save_team_go_on(gs_bringing *bringing);
// Collective: all of it, or as much as the disk of the saver has taken by its deadline; the rest is given up.
GS_NODISCARD gs_status gs_save_team_finish(gs_bringing *bringing, gs_deadline deadline);
bool gs_save_team_is_done(const gs_bringing *bringing);
// Of this rank's part, as far as it is known. OK: it comes, or has come, or there is none; what becomes of it then is the saver's to
// tell. UNAVAILABLE: the saver has no snapshot of the same. RESOURCE_EXHAUSTED: it could not keep it.
gs_status gs_save_team_refusal(const gs_bringing *bringing);
// What has not come does not: the saver tells of those parts. NULL is fine.
void gs_save_team_part(gs_bringing *bringing);

#endif
