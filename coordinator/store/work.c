#include "coordinator/store/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"

static gs_write_lane lane_of(gs_work_kind kind) {
    if (kind <= GS_WORK_FORGET_PURGE) return GS_LANE_ROWS;
    if (kind == GS_WORK_PURGE) return GS_LANE_TREES;
    bool is_bulk = kind == GS_WORK_VERIFY || kind == GS_WORK_REMOVE_CHECKPOINT || kind == GS_WORK_SWEEP;
    return is_bulk ? GS_LANE_BULK : GS_LANE_LOOKS;
}

void *gs_work_create(size_t bytes, gs_work_kind kind, uint64_t job, const char *directory,
                     gs_status (*run)(gs_write *write, gs_job_store *store)) {
    gs_work *work = gs_model_alloc(1, bytes);
    // A look may be making a manifest in what a purge takes away; and whether the disk is there is known behind the first look.
    bool is_behind_looks = kind == GS_WORK_PURGE || kind == GS_WORK_REMOVE_CHECKPOINT;
    work->base = (gs_write){.run = run, .lane = lane_of(kind), .is_behind_looks = is_behind_looks};
    work->kind = kind;
    work->job = job;
    snprintf(work->directory, sizeof work->directory, "%s", directory);
    return work;
}

void gs_work_add_name(gs_work *work, const char *name) {
    size_t bytes = strlen(name) + 1;
    work->names = gs_model_grow(work->names, work->num_names, &work->max_names, sizeof *work->names);
    work->names[work->num_names++] = memcpy(gs_model_alloc(bytes, 1), name, bytes);
}

void gs_work_destroy(gs_work *work) {
    if (work->release) work->release(work);
    gs_checkpoint_report_release(&work->found);
    for (size_t i = 0; i < work->num_names; i++) free(work->names[i]);
    free(work->names);
    free(work);
}
