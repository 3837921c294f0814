#include "coordinator/store/stored.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/model/job_table.h"
#include "coordinator/model/memory.h"
#include "coordinator/store/record/checkpoint_record.h"
#include "coordinator/store/record/job_record.h"
#include "core/log.h"
#include "core/u64_map.h"

typedef struct reader {
    gs_stored *out;
    gs_u64_map by_id;
    int64_t now_ns, wall_ms;
} reader;

static void load_job(void *ctx, const gs_store_row *row) {
    reader *it = ctx;
    gs_stored_job stored = {0};
    gs_status status =
        gs_job_from_record(&stored.job, &stored.documents, row->id, row->body, it->now_ns, it->wall_ms);
    if (status.code) {
        gs_log_error("job not readable", "id=%llu reason=\"%s\"", (unsigned long long)row->id, status.message);
        return;
    }
    gs_stored *out = it->out;
    out->jobs = gs_model_grow(out->jobs, out->num_jobs, &out->max_jobs, sizeof *out->jobs);
    out->jobs[out->num_jobs++] = stored;
    if (!gs_u64_map_set(&it->by_id, stored.job->id, stored.job)) abort();
}

static void load_checkpoint(void *ctx, const gs_store_row *row) {
    const reader *it = ctx;
    gs_job *job = gs_u64_map_get(&it->by_id, row->job);
    gs_checkpoint read = {0};
    if (!job || gs_checkpoint_from_record(&read, row->body).code) return;
    gs_checkpoint *item = gs_checkpoints_add(&job->checkpoints, row->key);
    memcpy(read.directory, item->directory, sizeof read.directory);
    *item = read;
}

gs_status gs_stored_load(gs_stored *out, gs_job_store *store, int64_t now_ns, int64_t wall_ms) {
    reader it = {.out = out, .now_ns = now_ns, .wall_ms = wall_ms};
    *out = (gs_stored){0};
    gs_status status = gs_job_store_load_jobs(store, load_job, &it);
    if (!status.code) status = gs_job_store_load_checkpoints(store, load_checkpoint, &it);
    gs_u64_map_release(&it.by_id);
    if (status.code) gs_stored_release(out);
    return status;
}

void gs_stored_release(gs_stored *stored) {
    for (size_t i = 0; i < stored->num_jobs; i++) {
        gs_job_destroy(stored->jobs[i].job);
        gs_job_documents_release(&stored->jobs[i].documents);
    }
    free(stored->jobs);
    *stored = (gs_stored){0};
}
