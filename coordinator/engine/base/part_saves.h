// Saves that ranks write in parts, until they are checkpoints or have failed.
//
// The disk says which parts are there (rpc/checkpoint/checkpoint_commit.h). A report is the occasion to look;
// so one that another life of this coordinator heard, and forgot, is not missed.
#ifndef COORDINATOR_ENGINE_BASE_PART_SAVES_H
#define COORDINATOR_ENGINE_BASE_PART_SAVES_H

#include "coordinator/engine/base/mind.h"

// What a rank says: of a checkpoint, of its part of one, or of a save that failed.
void gs_on_checkpointed(gs_engine *engine, gs_member *member, gs_engine_event *event);
// No rank of the run is left: what is not whole will not be.
void gs_part_saves_end_run(gs_engine *engine, gs_job *job);

void gs_on_parts_looked(gs_engine *engine, gs_completion *done);
void gs_on_directories_found(gs_engine *engine, const gs_completion *done);

#endif
