// Does what the engine wants: answers, tells, asks the disk, shows to people. In the order of the effects.
#ifndef COORDINATOR_SERVE_PERFORM_H
#define COORDINATOR_SERVE_PERFORM_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/model/state.h"
#include "coordinator/observe/observer.h"
#include "coordinator/serve/calls.h"
#include "coordinator/store/files/marked_root.h"
#include "coordinator/store/files/purges.h"
#include "coordinator/store/files/sweeper.h"
#include "coordinator/store/trace.h"
#include "coordinator/store/work.h"
#include "coordinator/store/writer.h"

typedef struct gs_performer {
    const gs_state *state;   // borrowed, like all here
    gs_calls *calls;
    gs_writer *writer;
    gs_observer *observer;
    gs_trace *trace;  // NULL: none
    gs_sweeper *sweeper;
    gs_marked_root *marked_root;  // borrowed; NULL: it is there
    gs_purges *purges;
    // No message holds this order: nobody has got it. The effect is there for the call.
    void (*too_large)(void *owner, const gs_effect *effect, gs_status status);
    void (*work_done)(gs_write *work, gs_status status);  // of each gs_work, with this owner
    void *owner;
    bool is_closing;  // nothing is asked of the disk any more
} gs_performer;

void gs_perform(gs_performer *performer, gs_effects effects);
// What jobs that are gone have left on the disk of checkpoints, and its row behind it: no effect of the engine. Takes
// done purges, forgotten rows and rows of jobs that may have come back.
void gs_perform_purges(gs_performer *performer);
void gs_perform_take_purged(gs_performer *performer, const gs_work *work);

#endif
