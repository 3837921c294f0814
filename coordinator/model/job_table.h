// All jobs, oldest first, and how a job is found: by id, by the beginning of an id, by name; and what is left of those
// that were deleted, so that a trainer that comes back later is told that its time is over.
#ifndef COORDINATOR_MODEL_JOB_TABLE_H
#define COORDINATOR_MODEL_JOB_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/model/job.h"
#include "core/status.h"
#include "core/u64_map.h"

// As many are listed. Ids follow the time of creation: behind a full list, whatever is below its smallest is gone too.
#define GS_MAX_TOMBSTONES 10000

// A job that had ended here and was deleted.
typedef struct gs_tombstone {
    uint64_t job;
    uint32_t generation;  // its last one
    gs_job_state outcome;
    int64_t deleted_ms;  // wall clock, for people
    bool frees_keys;     // of its deletion, not kept: idempotency keys that name it go along
    bool purges;         // the same: its checkpoints are owed to be removed
} gs_tombstone;

typedef struct gs_job_table {  // {0} is empty
    gs_job **items;            // owned; oldest first
    size_t count, reserved;
    gs_u64_map by_id;
    gs_tombstone *tombstones;  // owned; by id
    size_t num_tombstones, max_tombstones;
    uint64_t *unreadable;      // owned; ids whose record this life could not read
    size_t num_unreadable, max_unreadable;
} gs_job_table;

void gs_job_table_release(gs_job_table *table);
void gs_job_table_add(gs_job_table *table, gs_job *job);  // takes it
void gs_job_destroy(gs_job *job);                 // with its run; NULL is fine
// Takes it out; gs_job_destroy is the caller's.
void gs_job_table_unlink(gs_job_table *table, gs_job *job);

gs_job *gs_job_table_get(const gs_job_table *table, uint64_t id);         // NULL: none
gs_job *gs_job_table_of_text(const gs_job_table *table, const char *id);  // NULL: none, or no id
gs_job *gs_job_table_live_name(const gs_job_table *table, const char *name);
// What people call it: id, unique prefix of at least four characters, the name of a live job or else of the job
// that carried it last.
// NOT_FOUND; FAILED_PRECONDITION: several ids begin so, of which *candidates counts those (else 0), or it is the id of a
// job whose record could not be read.
#define GS_UNREADABLE_HINT "it is kept: the coordinator's log says why it cannot be read; the version that wrote it can read it"
GS_NODISCARD gs_status gs_job_table_find(const gs_job_table *table, gs_job **job, size_t *candidates,
                                         const char *text);
// Of several jobs with this name none is meant more than another: what cannot be undone asks for an id. FAILED_PRECONDITION.
GS_NODISCARD gs_status gs_job_table_check_sole(const gs_job_table *table, size_t *candidates, const char *text);
bool gs_job_is_candidate(const gs_job *job, const char *text);  // text may mean it

void gs_job_table_bury(gs_job_table *table, const gs_tombstone *tombstone);
const gs_tombstone *gs_job_table_tombstone(const gs_job_table *table, uint64_t id);  // NULL: not listed
// A job that is on the disk, whatever has become of it: its record is not readable.
void gs_job_table_add_unreadable(gs_job_table *table, uint64_t id);
// It was here, has ended and was deleted. `is_ours`: whoever runs for it says that its id was given out by this cluster.
bool gs_job_table_is_gone(const gs_job_table *table, uint64_t id, bool is_ours);

#endif
