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
#include "worker/checkpoint/spill.h"
#include "worker/state/state_snapshot.h"

typedef struct gs_save_team {
    gs_comm *comm;  // borrowed
    double timeout_seconds;  // of one collective
    bool is_apart;  // this rank does not see it, and another does
    int num_apart;  // such ranks; 0, too, where nobody sees it: then each writes where it is
    int saver;      // the lowest rank that sees it; 0 where nobody does
    bool *apart;    // owned; by rank
} gs_save_team;

// What ranks have brought to the saver. Elsewhere it stays empty.
typedef struct gs_brought_parts {
    int count;
    int *ranks;                    // owned
    // Owned; of a state that all have whole, what is common is borrowed from the saver's own. What came is in `spills`, and NULL here.
    gs_state_snapshot *snapshots;
    gs_spill **spills;  // owned; NULL: nothing came, all of it is common
} gs_brought_parts;

// Collective. `sees_none`: the checkpoints of this rank's worker are not the coordinator's.
GS_NODISCARD gs_status gs_save_team_meet(gs_save_team *team, gs_comm *comm, bool sees_none, double timeout_seconds,
                                         gs_deadline deadline);
void gs_save_team_release(gs_save_team *team);

// Collective, where num_apart is not 0: what each rank that is apart would have written comes to the saver, in pieces of a few MiB, which
// go to its disk, in `directory` of the job's checkpoints (looked at there alone), and not into its memory; and is compared with its digest. `mine` is this rank's own snapshot; NULL: it could not be taken, and then what hangs on it is left out.
// On the saver what came is in `brought` (its former content is given up); it is good until `mine` is. On a rank that is apart OK says
// that the saver has it. UNAVAILABLE: the saver has no snapshot. RESOURCE_EXHAUSTED: it has no room for this rank's part, or could not
// write it; it is left out, all others' come. DATA_LOSS: something else came than was sent.
//   ready  until then ranks may come to it, if that is later than a collective's timeout: one that saves for others may have the
//          last save to write first
GS_NODISCARD gs_status gs_save_team_bring(gs_brought_parts *brought, const gs_save_team *team, const gs_state_snapshot *mine, const char *directory,
                                          gs_deadline ready);
// Of one of them, which is written or given up: the disk has its room again.
void gs_brought_parts_drop(gs_brought_parts *brought, int index);
void gs_brought_parts_release(gs_brought_parts *brought);

#endif
