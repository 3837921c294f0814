#include "coordinator/store/row_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/store/record/checkpoint_record.h"
#include "coordinator/store/record/job_record.h"
#include "core/clock.h"

typedef struct row_work {
    gs_work work;
    char *body;        // owned; the row; NULL: as it is
    char *card;        // owned; NULL: it has not ended
    gs_status status;  // of its making
    bool is_adoption;
    char *key;         // owned; NULL: none
    char fingerprint[GS_DIGEST_TEXT_LEN];
    int64_t left_ms;  // of the key's life
    gs_tombstone tombstone;
} row_work;

static void release(gs_work *work) {
    row_work *row = (row_work *)work;
    free(row->body);
    free(row->card);
    free(row->key);
}

static row_work *make_row(gs_work_kind kind, uint64_t job, const char *directory,
                          gs_status (*run)(gs_write *, gs_job_store *)) {
    row_work *row = gs_work_create(sizeof *row, kind, job, directory, run);
    row->work.release = release;
    return row;
}

static gs_status put_job(gs_write *base, gs_job_store *store) {
    const row_work *row = (const row_work *)base;
    if (row->status.code) return row->status;
    if (row->body && row->is_adoption) GS_TRY(gs_job_store_put_adopted_job(store, row->work.job, row->body));
    else if (row->body) GS_TRY(gs_job_store_put_job(store, row->work.job, row->body));
    if (row->card) GS_TRY(gs_job_store_put_card(store, row->work.job, row->card));
    if (!row->key) return gs_ok();
    return gs_job_store_put_key(store, row->key, row->fingerprint, row->work.job, row->left_ms);
}

gs_work *gs_row_work_put_job(const gs_job *job, const gs_job_documents *documents, const gs_request_key *key,
                             int64_t now_ns) {
    row_work *row = make_row(GS_WORK_PUT_JOB, job->id, "", put_job);
    row->work.version = job->version;
    row->is_adoption = job->adopted_from[0] && gs_job_is_unrecorded(job);  // its first row, not what comes behind it
    // Of a job that rests the rest is in its row alone.
    if (documents->spec) row->status = gs_job_to_record(&row->body, job, documents, now_ns);
    if (!row->status.code && gs_job_state_terminal(job->state)) row->status = gs_job_to_card(&row->card, job, documents, now_ns);
    row->work.base.bytes = (row->body ? strlen(row->body) : 0) + (row->card ? strlen(row->card) : 0);
    if (key) {
        row->key = strdup(key->key);
        if (!row->key) row->status = gs_error(GS_RESOURCE_EXHAUSTED, "job: out of memory");
        snprintf(row->fingerprint, sizeof row->fingerprint, "%s", key->fingerprint);
        row->left_ms = (key->expires_ns - now_ns) / GS_NS_PER_MS;
    }
    return &row->work;
}

void gs_row_work_refuse_job(gs_work *put_job, gs_status status) { ((row_work *)put_job)->status = status; }

static gs_status delete_job(gs_write *base, gs_job_store *store) {
    return gs_job_store_delete_job(store, &((const row_work *)base)->tombstone);
}

gs_work *gs_row_work_delete_job(const gs_tombstone *tombstone) {
    row_work *row = make_row(GS_WORK_DELETE_JOB, tombstone->job, "", delete_job);
    row->tombstone = *tombstone;
    return &row->work;
}

static gs_status reserve_generations(gs_write *base, gs_job_store *store) {
    return gs_job_store_reserve_generations(store, ((const gs_work *)base)->generation_end);
}

gs_work *gs_row_work_reserve_generations(uint32_t end) {
    row_work *row = make_row(GS_WORK_RESERVE_GENERATIONS, 0, "", reserve_generations);
    row->work.generation_end = end;
    return &row->work;
}

static gs_status put_checkpoint(gs_write *base, gs_job_store *store) {
    const row_work *row = (const row_work *)base;
    if (row->status.code) return row->status;
    return gs_job_store_put_checkpoint(store, row->work.job, row->work.directory, row->body);
}

gs_work *gs_row_work_put_checkpoint(uint64_t job, const gs_checkpoint *checkpoint) {
    row_work *row = make_row(GS_WORK_PUT_CHECKPOINT, job, checkpoint->directory, put_checkpoint);
    row->status = gs_checkpoint_to_record(&row->body, checkpoint);
    return &row->work;
}

static gs_status delete_checkpoint(gs_write *base, gs_job_store *store) {
    const gs_work *work = (const gs_work *)base;
    return gs_job_store_delete_checkpoint(store, work->job, work->directory);
}

gs_work *gs_row_work_delete_checkpoint(uint64_t job, const char *directory) {
    return &make_row(GS_WORK_DELETE_CHECKPOINT, job, directory, delete_checkpoint)->work;
}

static gs_status prune_keys(gs_write *base, gs_job_store *store) {
    (void)base;
    return gs_job_store_prune_keys(store);
}

gs_work *gs_row_work_prune_keys(void) { return &make_row(GS_WORK_PRUNE_KEYS, 0, "", prune_keys)->work; }

static gs_status forget_purge(gs_write *base, gs_job_store *store) {
    return gs_job_store_delete_purge(store, ((const gs_work *)base)->job);
}

gs_work *gs_row_work_forget_purge(uint64_t job) { return &make_row(GS_WORK_FORGET_PURGE, job, "", forget_purge)->work; }
