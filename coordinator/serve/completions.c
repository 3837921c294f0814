#include "coordinator/serve/completions.h"

static const struct {
    gs_engine_event_kind event;
    gs_stored_kind stored;
} completions[GS_NUM_WORKS] = {
    [GS_WORK_PUT_JOB] = {GS_ON_STORED, GS_STORED_JOB},
    [GS_WORK_DELETE_JOB] = {GS_ON_STORED, GS_STORED_JOB_DELETED},
    [GS_WORK_RESERVE_GENERATIONS] = {GS_ON_STORED, GS_STORED_GENERATIONS},
    [GS_WORK_PUT_CHECKPOINT] = {GS_ON_STORED, GS_STORED_CHECKPOINT},
    [GS_WORK_DELETE_CHECKPOINT] = {GS_ON_STORED, GS_STORED_CHECKPOINT_DELETED},
    [GS_WORK_VERIFY] = {GS_ON_VERIFIED, 0},
    [GS_WORK_LOOK_AT_PARTS] = {GS_ON_PARTS_LOOKED, 0},
    [GS_WORK_FIND_DIRECTORIES] = {GS_ON_DIRECTORIES_FOUND, 0},
    [GS_WORK_CHECK] = {GS_ON_CHECKPOINTS_CHECKED, 0},
    [GS_WORK_LOOK_FOR_LIFE] = {GS_ON_LIFE_LOOKED, 0},
    [GS_WORK_REMOVE_CHECKPOINT] = {GS_ON_FILES_REMOVED, 0},
    // Not answered: prune_keys, remove_parts, sweep, purge, forget_purge.
};

void gs_completion_of(gs_engine_event *event, gs_work *work) {
    event->kind = completions[work->kind].event;
    event->done = (gs_completion){
        .status = work->base.status,
        .stored = completions[work->kind].stored,
        .ticket = work->ticket,
        .job = work->job,
        .directory = work->directory,
        .generation_end = work->generation_end,
        .all_reported = work->all_reported,
        .found = work->found,
        .names = (const char *const *)work->names,
        .num_names = work->num_names,
        .life = work->life,
        .left_by = work->left_by,
    };
    work->found = (gs_checkpoint_report){0};
}
