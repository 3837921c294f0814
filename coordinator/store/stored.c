#include "coordinator/store/stored.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/model/job_table.h"
#include "coordinator/model/memory.h"
#include "coordinator/store/record/checkpoint_record.h"
#include "coordinator/store/record/job_record.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/u64_map.h"

typedef struct reader {
    gs_stored *out;
    gs_job_store *store;
    gs_u64_map by_id;
    int64_t now_ns, wall_ms;
    int64_t lived_ms;  // at now_ns: a start that takes its time moves no end
} reader;

static void keep_job(reader *it, uint64_t id, gs_stored_job *stored, gs_status status) {
    gs_stored *out = it->out;
    if (status.code) {
        gs_log_error("job not readable", "id=%llu reason=\"%s\"", (unsigned long long)id, status.message);
        out->unreadable = gs_model_grow(out->unreadable, out->num_unreadable, &out->max_unreadable, sizeof *out->unreadable);
        out->unreadable[out->num_unreadable++] = id;
        return;
    }
    out->jobs = gs_model_grow(out->jobs, out->num_jobs, &out->max_jobs, sizeof *out->jobs);
    out->jobs[out->num_jobs++] = *stored;
    if (!gs_u64_map_set(&it->by_id, stored->job->id, stored->job)) abort();
}

static void load_job(void *ctx, const gs_store_row *row) {
    reader *it = ctx;
    gs_stored_job stored = {0};
    gs_status status =
        gs_job_from_record(&stored.job, &stored.documents, row->id, row->body, it->now_ns, it->wall_ms);
    keep_job(it, row->id, &stored, status);
}

static void load_card(void *ctx, const gs_store_row *row) {
    reader *it = ctx;
    gs_stored_job stored = {0};
    gs_status status =
        gs_job_from_card(&stored.job, &stored.documents, row->id, row->body, it->now_ns, it->wall_ms);
    char *body = NULL;
    if (status.code) status = gs_job_store_get_job(it->store, &body, row->id);
    if (body) status = gs_job_from_record(&stored.job, &stored.documents, row->id, body, it->now_ns, it->wall_ms);
    free(body);
    if (!status.code) stored.job->ended_ns = it->now_ns - (it->lived_ms - row->time_ms) * GS_NS_PER_MS;
    keep_job(it, row->id, &stored, status);
}

static int compare_ids(const void *a, const void *b) {
    uint64_t left = ((const gs_stored_job *)a)->job->id, right = ((const gs_stored_job *)b)->job->id;
    return left < right ? -1 : left > right;
}

static bool has_no_card(const gs_stored_job *item) {
    return item->documents.spec && gs_job_state_terminal(item->job->state);
}

static gs_status put_cards(const gs_stored *stored, gs_job_store *store, int64_t now_ns) {
    for (size_t i = 0; i < stored->num_jobs; i++) {
        const gs_stored_job *item = &stored->jobs[i];
        if (!has_no_card(item)) continue;
        char *card = NULL;
        gs_status status = gs_job_to_card(&card, item->job, &item->documents, now_ns);
        if (!status.code) status = gs_job_store_put_card(store, item->job->id, card);
        free(card);
        GS_TRY(status);
    }
    return gs_ok();
}

// Of jobs that a version without cards has written. Where there is no room for them the next start reads rows again.
static void make_cards(const gs_stored *stored, gs_job_store *store, int64_t now_ns) {
    size_t missing = 0;
    for (size_t i = 0; i < stored->num_jobs; i++) missing += has_no_card(&stored->jobs[i]);
    if (missing == 0) return;
    gs_status status = gs_job_store_begin(store);
    if (!status.code) status = put_cards(stored, store, now_ns);
    if (!status.code) status = gs_job_store_commit(store);
    if (!status.code) return;
    gs_job_store_rollback(store);
    gs_log_warn("cards not written", "reason=\"%s\"", status.message);
}

static void load_checkpoint(void *ctx, const gs_store_row *row) {
    const reader *it = ctx;
    gs_job *job = gs_u64_map_get(&it->by_id, row->job);
    gs_checkpoint read = {0};
    if (!job || gs_checkpoint_from_record(&read, row->body).code) return;
    gs_checkpoints_load(&job->checkpoints, row->key, &read);
}

gs_status gs_stored_load(gs_stored *out, gs_job_store *store, int64_t now_ns, int64_t wall_ms) {
    reader it = {.out = out, .store = store, .now_ns = now_ns, .wall_ms = wall_ms, .lived_ms = gs_job_store_lived_ms(store)};
    *out = (gs_stored){0};
    gs_status status = gs_job_store_load_cards(store, load_card, &it);
    if (!status.code) status = gs_job_store_load_jobs_without_card(store, load_job, &it);
    if (!status.code && out->num_jobs > 1) qsort(out->jobs, out->num_jobs, sizeof *out->jobs, compare_ids);
    if (!status.code) make_cards(out, store, now_ns);
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
    free(stored->unreadable);
    *stored = (gs_stored){0};
}
