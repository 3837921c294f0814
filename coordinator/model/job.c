#include "coordinator/model/job.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/model/memory.h"

static const char *const state_names[GS_NUM_JOB_STATES] = {
    "queued", "starting", "running", "recovering", "stopping", "succeeded", "failed", "cancelled",
};

const char *gs_job_state_name(gs_job_state state) {
    return (unsigned)state < GS_NUM_JOB_STATES ? state_names[state] : "unknown";
}

bool gs_job_state_from_name(gs_job_state *state, const char *name) {
    for (int i = 0; i < GS_NUM_JOB_STATES; i++) {
        if (strcmp(state_names[i], name) != 0) continue;
        *state = (gs_job_state)i;
        return true;
    }
    return false;
}

bool gs_job_state_terminal(gs_job_state state) { return state >= GS_JOB_SUCCEEDED; }

void gs_param_order_release(gs_param_order *order) {
    free(order->params);
    *order = (gs_param_order){0};
}

void gs_param_order_copy(gs_param_order *out, const gs_param_order *order) {
    gs_param_order copy = {.count = order->count};
    if (order->params) {
        copy.params = gs_model_alloc(order->count, sizeof *copy.params);
        memcpy(copy.params, order->params, order->count * sizeof *copy.params);
    }
    gs_param_order_release(out);
    *out = copy;
}

bool gs_param_order_equal(const gs_param_order *a, const gs_param_order *b) {
    if (!a->params || !b->params || a->count != b->count) return false;
    return memcmp(a->params, b->params, a->count * sizeof *a->params) == 0;
}

gs_job *gs_job_create(uint64_t id, const gs_job_spec *spec) {
    gs_job *job = calloc(1, sizeof *job);
    if (!job) return NULL;
    job->id = id;
    gs_job_id_format(job->id_text, id);
    job->spec = *spec;
    job->stop_outcome = GS_JOB_CANCELLED;
    return job;
}

void gs_job_free(gs_job *job) {
    gs_checkpoints_release(&job->checkpoints);
    gs_param_order_release(&job->ready_order);
    gs_param_order_release(&job->observed_order);
    gs_link_report_release(&job->link);
    gs_link_report_release(&job->observed_link);
    gs_plan_offers_release(&job->offers);
    gs_job_forget_workers(job);
    gs_complaints_release(&job->complaints);
    free(job);
}

static uint64_t hash_name(const char *name) { return gs_hash64(name, strlen(name), 0); }

// Members are in the order of their workers: who has several ranks follows itself.
void gs_job_note_worker(gs_job *job, const char *worker) {
    uint64_t hash = hash_name(worker);
    size_t count = job->num_last_workers;
    if (count && job->last_workers[count - 1] == hash) return;
    if ((count & (count - 1)) == 0) {  // there is room up to the next power of two
        uint64_t *grown = gs_model_alloc(count ? 2 * count : 1, sizeof *grown);
        if (count) memcpy(grown, job->last_workers, count * sizeof *grown);
        free(job->last_workers);
        job->last_workers = grown;
    }
    job->last_workers[job->num_last_workers++] = hash;
}

void gs_job_forget_workers(gs_job *job) {
    free(job->last_workers);
    job->last_workers = NULL;
    job->num_last_workers = 0;
}

bool gs_job_had_worker(const gs_job *job, const char *worker) {
    uint64_t hash = hash_name(worker);
    for (size_t i = 0; i < job->num_last_workers; i++)
        if (job->last_workers[i] == hash) return true;
    return false;
}

bool gs_job_is_being_deleted(const gs_job *job) { return job->held_back && gs_job_state_terminal(job->state); }

bool gs_job_is_of_other(const gs_job *job, const gs_cluster *ours, const char *cluster) {
    if (!gs_cluster_is_other(ours, cluster)) return false;
    return !job || strcmp(job->adopted_from, cluster) != 0;
}

const char *gs_job_cluster_of(const gs_job *job, const gs_cluster *ours, uint32_t generation) {
    if (generation >= job->least_generation) return ours->id;
    if (*job->written_as) return job->written_as;
    return *job->adopted_from ? job->adopted_from : ours->id;
}

gs_job_savers gs_job_savers_of(const gs_job *job) {
    bool has_record = job->begun_generation >= job->least_generation;
    gs_job_savers savers = {.generation = job->begun_generation,
                            .older_to = has_record ? -1 : job->adopted_step,
                            .begun_step = job->begun_step,
                            .left_generation = job->left_generation,
                            .left_step = job->left_step};
    memcpy(savers.begun_directory, job->begun_directory, sizeof savers.begun_directory);
    return savers;
}

// Ranks of another generation may have saved the same step, of another branch.
static bool has_begun_from(const gs_job_savers *savers, int64_t step, const char *directory) {
    if (step <= 0 || step != savers->begun_step) return false;
    return !savers->begun_directory[0] || !strcmp(savers->begun_directory, directory);
}

bool gs_job_savers_include(const gs_job_savers *savers, uint32_t generation, int64_t step, const char *directory) {
    if (generation && generation <= savers->left_generation && step > savers->left_step) return false;
    return !generation || generation >= savers->generation || step <= savers->older_to || has_begun_from(savers, step, directory);
}

bool gs_job_is_unrecorded(const gs_job *job) { return job->held_back && !gs_job_state_terminal(job->state); }

int64_t gs_job_age_ns(const gs_job *job, int64_t now_ns) {
    return now_ns > job->aged_ns ? job->age_ns + (now_ns - job->aged_ns) : job->age_ns;
}
