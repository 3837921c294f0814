// Everything that survives: jobs, events, checkpoints, idempotency keys, generation numbers, in the tables of a database.
//
// Rows hold JSON texts that their owners make and read; the store knows keys. Opened by the loop at
// start, then used by the thread of rows alone; only gs_job_store_recall_job is for another one.
#ifndef COORDINATOR_STORE_JOB_STORE_H
#define COORDINATOR_STORE_JOB_STORE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "coordinator/model/state.h"
#include "coordinator/store/database/database.h"
#include "coordinator/store/database/store_start.h"
#include "core/status.h"

typedef struct gs_job_store gs_job_store;

// A large file is checked behind readiness (integrity.h), a small one at once.
// DATA_LOSS when the file is damaged: it is moved aside and named in the message, and so is it from then on until
// something takes its place.
GS_NODISCARD gs_status gs_job_store_open(gs_job_store **out, gs_store_start *start,
                                         const char *path);
bool gs_job_store_is_large(const char *path);
// Reads all of it beside whoever uses it. DATA_LOSS: it is damaged; UNAVAILABLE: the disk does not say.
GS_NODISCARD gs_status gs_job_store_check(const char *path, const atomic_bool *stopping);
// What is damaged stays as it was found: closing it moves nothing from its log.
void gs_job_store_keep_as_found(gs_job_store *store);
void gs_job_store_close(gs_job_store *store);

// How long coordinators of this database have lived, all lives together, about: no clock that somebody sets.
int64_t gs_job_store_lived_ms(const gs_job_store *store);

GS_NODISCARD gs_status gs_job_store_begin(gs_job_store *store);
// An error: nothing of it is stored, and no start finds it. Where the disk takes not even that back the error says so, and the
// next begin tries it again before anything else is written.
GS_NODISCARD gs_status gs_job_store_commit(gs_job_store *store);
bool gs_job_store_is_in_doubt(const gs_job_store *store);
void gs_job_store_rollback(gs_job_store *store);
// A part of a transaction that is whole or not there. end takes what became of it: an error undoes it. An error of
// end: the transaction as a whole is over, and nothing of it is stored.
GS_NODISCARD gs_status gs_job_store_begin_part(gs_job_store *store);
GS_NODISCARD gs_status gs_job_store_end_part(gs_job_store *store, gs_status status);

// FAILED_PRECONDITION: it was deleted.
GS_NODISCARD gs_status gs_job_store_put_job(gs_job_store *store, uint64_t id, const char *body);
// With its trainers it may come back.
GS_NODISCARD gs_status gs_job_store_put_adopted_job(gs_job_store *store, uint64_t id, const char *body);
// What a start has to know of a job that has ended, so that it need not read all of its row; of a job that is there.
GS_NODISCARD gs_status gs_job_store_put_card(gs_job_store *store, uint64_t id, const char *body);
// With what is left of it: the newest GS_MAX_TOMBSTONES are kept.
GS_NODISCARD gs_status gs_job_store_delete_job(gs_job_store *store, const gs_tombstone *tombstone);
// The files that its deletion was to take along are gone.
GS_NODISCARD gs_status gs_job_store_delete_purge(gs_job_store *store, uint64_t job);
GS_NODISCARD gs_status gs_job_store_put_event(gs_job_store *store, uint64_t sequence,
                                              uint64_t job, const char *body);
// Forgets the events before `least`.
GS_NODISCARD gs_status gs_job_store_prune_events(gs_job_store *store, uint64_t least);
GS_NODISCARD gs_status gs_job_store_put_checkpoint(gs_job_store *store, uint64_t job,
                                                   const char *directory, const char *body);
GS_NODISCARD gs_status gs_job_store_delete_checkpoint(gs_job_store *store, uint64_t job,
                                                      const char *directory);
GS_NODISCARD gs_status gs_job_store_put_key(gs_job_store *store, const char *key,
                                            const char *fingerprint, uint64_t job,
                                            int64_t left_ms);  // of its life
GS_NODISCARD gs_status gs_job_store_prune_keys(gs_job_store *store);  // whose life is over
GS_NODISCARD gs_status gs_job_store_reserve_generations(gs_job_store *store, uint32_t next);

// Listens to what is written; `values` as in the table that `operation` names. On the thread that writes.
typedef void (*gs_store_tap)(void *ctx, const char *operation, const gs_store_value *values,
                             int num_values);
// Before anything is written. `ctx` is borrowed until close.
void gs_job_store_set_tap(gs_job_store *store, gs_store_tap tap, void *ctx);

// Reading, at start. `visit` gets each row in order of its key; the texts are borrowed.
// Of each start that is remembered: id is its coordinator epoch, job its life.
GS_NODISCARD gs_status gs_job_store_load_lives(gs_job_store *store, gs_store_visit visit, void *ctx);
// Of each job that was deleted: id is its own, job its last generation, key how it ended, time_ms when it was deleted.
GS_NODISCARD gs_status gs_job_store_load_tombstones(gs_job_store *store, gs_store_visit visit, void *ctx);
// Of each deleted job whose checkpoints are still to be removed: id.
GS_NODISCARD gs_status gs_job_store_load_purges(gs_job_store *store, gs_store_visit visit, void *ctx);
gs_tombstone gs_tombstone_of_row(const gs_store_row *row);
GS_NODISCARD gs_status gs_job_store_load_jobs(gs_job_store *store, gs_store_visit visit, void *ctx);
GS_NODISCARD gs_status gs_job_store_load_jobs_without_card(gs_job_store *store, gs_store_visit visit, void *ctx);
// time_ms: how long coordinators of this database had lived when the job ended.
GS_NODISCARD gs_status gs_job_store_load_cards(gs_job_store *store, gs_store_visit visit, void *ctx);
// One job's row, at any time; the text is the caller's (free()). NOT_FOUND.
GS_NODISCARD gs_status gs_job_store_get_job(gs_job_store *store, char **body, uint64_t id);
// The same of one thread beside the other: what is committed by now. Neither waits for the other.
GS_NODISCARD gs_status gs_job_store_recall_job(gs_job_store *store, char **body, uint64_t id);
GS_NODISCARD gs_status gs_job_store_load_events(gs_job_store *store, gs_store_visit visit,
                                                void *ctx);
GS_NODISCARD gs_status gs_job_store_load_checkpoints(gs_job_store *store, gs_store_visit visit,
                                                     void *ctx);
GS_NODISCARD gs_status gs_job_store_load_keys(gs_job_store *store, gs_store_visit visit, void *ctx);

#endif
