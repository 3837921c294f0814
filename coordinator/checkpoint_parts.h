// Saves that ranks write in parts, until they are checkpoints or have failed. Loop thread; files are the
// writer's.
//
// The disk says which parts are there (rpc/checkpoint/checkpoint_commit.h). A report is the occasion to look;
// so one that another life of this coordinator heard, and forgot, is not missed.
#ifndef COORDINATOR_CHECKPOINT_PARTS_H
#define COORDINATOR_CHECKPOINT_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/coordinator.h"

#define GS_PART_SAVE_NAME_LEN 208

typedef struct gs_part_save {
    char directory[GS_PART_SAVE_NAME_LEN];
    int64_t step;
    size_t num_parts, num_reported;
    uint8_t *reported;  // owned; by part
    double seconds;     // of the slowest
    bool failed;
} gs_part_save;

// {0} has none.
typedef struct gs_part_saves {
    gs_part_save *items;  // owned; in order of arrival
    size_t count, reserved;
    int looking;  // at files, just now
} gs_part_saves;

void gs_part_saves_release(gs_part_saves *saves);

// INVALID_ARGUMENT: part and num_parts are not what they can be.
GS_NODISCARD gs_status gs_part_report_check(const gs_json *report);
// What a rank says of its part of `directory`, well or not. With all parts there the manifest is written,
// and the checkpoint taken; with one that failed the save has failed, once.
void gs_part_saves_report(gs_coordinator *coordinator, gs_job *job, const char *directory,
                          const gs_json *report);
// No rank of the run is left: what is not whole will not be.
void gs_part_saves_end_run(gs_coordinator *coordinator, gs_job *job);
// After a start: what is on the disk and not known, whole or with all its parts and of this job, is taken;
// what is neither and old is removed.
void gs_part_saves_adopt(gs_coordinator *coordinator, gs_job *job);

#endif
