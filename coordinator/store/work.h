// Something that was asked of the disk, on its way through the writer's threads and back: what the loop needs to know it
// again, and what came of it.
#ifndef COORDINATOR_STORE_WORK_H
#define COORDINATOR_STORE_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/model/checkpoint.h"
#include "coordinator/store/writer.h"

typedef enum gs_work_kind {
    // Rows.
    GS_WORK_PUT_JOB = 0,
    GS_WORK_DELETE_JOB,
    GS_WORK_RESERVE_GENERATIONS,
    GS_WORK_PUT_CHECKPOINT,
    GS_WORK_DELETE_CHECKPOINT,
    GS_WORK_PRUNE_KEYS,
    GS_WORK_FORGET_PURGE,
    // Files.
    GS_WORK_VERIFY,
    GS_WORK_LOOK_AT_PARTS,
    GS_WORK_FIND_DIRECTORIES,
    GS_WORK_CHECK,
    GS_WORK_LOOK_FOR_LIFE,
    GS_WORK_REMOVE_CHECKPOINT,
    GS_WORK_REMOVE_PARTS,  // behind the looks at them
    GS_WORK_SWEEP,
    GS_WORK_PURGE,
    GS_NUM_WORKS
} gs_work_kind;

typedef struct gs_work gs_work;
struct gs_work {  // first member of the struct of its kind
    gs_write base;
    gs_work_kind kind;
    void (*release)(gs_work *work);  // what only this kind owns; NULL: nothing
    uint64_t ticket, job;
    char directory[GS_CHECKPOINT_NAME_LEN];  // of a checkpoint; "" otherwise
    uint64_t version;  // of the job whose row it is
    uint32_t generation_end;
    bool all_reported;  // then a part that is missing is not late
    // What came of it.
    gs_checkpoint_report found;  // a checkpoint that is whole; owned
    char **names;                // owned; of directories
    size_t num_names, max_names;
    gs_life_look life;
    uint32_t left_by;           // a generation, the last that has left a fence; 0: none is known
    void *owner;        // of who asked
    gs_work *next;      // of who asked, once it is done
};

// A work of `bytes`, zeroed but for these. Never NULL.
void *gs_work_create(size_t bytes, gs_work_kind kind, uint64_t job, const char *directory,
                     gs_status (*run)(gs_write *write, gs_job_store *store));
void gs_work_add_name(gs_work *work, const char *name);
void gs_work_destroy(gs_work *work);

#endif
